//! The records and schemas of the demo, in each of its formats. The records have no schema registry frame.

use std::path::Path;

/// Format of the record values.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum NewsFormat {
    Json,
    /// Avro, with a schema file
    Avro,
    /// Protobuf, with a schema file
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
    /// Writes the schema to a directory. Returns the configuration line that refers to it.
    pub fn prepare(self, dir: &Path) -> std::io::Result<String> {
        let (kind, file, schema) = match self {
            Self::Json => return Ok(String::new()),
            Self::Avro => ("avro", dir.join("news.avsc"), AVRO),
            Self::Protobuf => ("protobuf", dir.join("news.proto"), PROTOBUF),
        };
        std::fs::write(&file, schema)?;
        Ok(format!("value_format = {{ kind = \"{kind}\", schema = \"{}\" }}\n", file.display()))
    }

    pub fn value(self, id: u64, news_id: &str, published: i64) -> Vec<u8> {
        let source = format!("wire-{}", id % 97);
        let title = format!("Event number {id}, according to sources close to the matter");
        match self {
            Self::Json => format!(r#"{{"news_id":"{news_id}","source":"{source}","title":"{title}","lang":"en","published":{published}}}"#)
                .into_bytes(),
            Self::Avro => {
                let mut value = Vec::new();
                avro_string(&mut value, &source);
                value.push(2); // the second branch of the union
                avro_string(&mut value, &title);
                avro_string(&mut value, news_id);
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

fn avro_string(value: &mut Vec<u8>, text: &str) {
    varint(value, zigzag(i64::try_from(text.len()).unwrap_or(i64::MAX)));
    value.extend_from_slice(text.as_bytes());
}

const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// Appends a number as a variable-length integer: groups of seven bits, lowest first.
fn varint(value: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        value.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    value.push(number.to_le_bytes()[0]);
}
