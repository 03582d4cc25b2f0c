//! The records of the demo, in each format that it shows.
//!
//! Owns their schemas, which have no registry here: records have no frame.

use std::path::Path;

/// What the values of the demo are.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum NewsFormat {
    /// JSON.
    Json,
    /// Avro, with its schema in a file.
    Avro,
    /// Protobuf, with its schema in a file.
    Protobuf,
}

const AVRO: &str = r#"{
  "type": "record", "name": "News", "fields": [
    { "name": "source", "type": "string" },
    { "name": "title", "type": ["null", "string"] },
    { "name": "news_id", "type": "string" },
    { "name": "published", "type": { "type": "long", "logicalType": "timestamp-millis" } }
  ]
}
"#;

const PROTOBUF: &str = r#"syntax = "proto3";
message News {
  string source = 1;
  optional string title = 2;
  string news_id = 3;
  int64 published = 4;
}
"#;

impl NewsFormat {
    /// Writes the schema into a directory. Returns the line of the configuration that names it.
    pub fn prepare(self, dir: &Path) -> std::io::Result<String> {
        let (kind, file, schema) = match self {
            Self::Json => return Ok(String::new()),
            Self::Avro => ("avro", dir.join("news.avsc"), AVRO),
            Self::Protobuf => ("protobuf", dir.join("news.proto"), PROTOBUF),
        };
        std::fs::write(&file, schema)?;
        Ok(format!("value_format = {{ kind = \"{kind}\", schema = \"{}\" }}\n", file.display()))
    }

    /// The value of a record.
    pub fn value(self, id: u64, news_id: &str, published: i64) -> Vec<u8> {
        let source = format!("wire-{}", id % 97);
        let title = format!("Something happened for the {id}th time, say sources close to the matter");
        match self {
            Self::Json => format!(r#"{{"news_id":"{news_id}","source":"{source}","title":"{title}","lang":"en","published":{published}}}"#)
                .into_bytes(),
            Self::Avro => {
                let mut value = Vec::new();
                sized(&mut value, &source);
                value.push(2); // the second branch of the union
                sized(&mut value, &title);
                sized(&mut value, news_id);
                varint(&mut value, zigzag(published));
                value
            }
            Self::Protobuf => {
                let mut value = Vec::new();
                for (field, text) in [(1, &*source), (2, &title), (3, news_id)] {
                    value.push(field << 3 | 2);
                    varint(&mut value, text.len() as u64);
                    value.extend_from_slice(text.as_bytes());
                }
                value.push(4 << 3);
                varint(&mut value, published.cast_unsigned());
                value
            }
        }
    }
}

/// A text of Avro.
fn sized(value: &mut Vec<u8>, text: &str) {
    varint(value, zigzag(i64::try_from(text.len()).unwrap_or(i64::MAX)));
    value.extend_from_slice(text.as_bytes());
}

const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// A number in groups of seven bits, the lowest first.
fn varint(value: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        value.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    value.push(number.to_le_bytes()[0]);
}
