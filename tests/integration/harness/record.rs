//! A record as tests produce and expect it.

use super::SplitMix;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestRecord {
    pub partition: i32,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Milliseconds since the Unix epoch. -1 for a record without a time.
    pub timestamp: i64,
}

impl TestRecord {
    /// The expected dead letter of this record, if the worker has read the record at `offset` of `topic`.
    pub fn dead_letter(&self, topic: &str, offset: i64, class: &str, message: &str) -> Self {
        let mut letter = self.clone();
        let partition = self.partition.to_string();
        let offset = offset.to_string();
        for (name, value) in [
            ("topic", topic),
            ("partition", &partition),
            ("offset", &offset),
            ("stage", "DEDUP"),
            ("exception.class.name", class),
            ("exception.message", message),
        ] {
            letter.headers.push((format!("__connect.errors.{name}"), Some(value.as_bytes().to_vec())));
        }
        letter
    }

    /// Adds a field with `bytes` random characters to the value, which must be a JSON object. There are 64 different characters, so
    /// compression shrinks the field by at most a quarter.
    pub fn enlarge(&mut self, bytes: usize, random: &mut SplitMix) {
        let letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
        let padding: String = (0..bytes).map(|_| char::from(letters[random.below(letters.len())])).collect();
        self.pad(&padding);
    }

    /// Adds the field `padding` to the value, which must be a JSON object.
    pub fn pad(&mut self, padding: &str) {
        let fields = self.text().strip_suffix('}').expect("a JSON object");
        self.value = Some(format!("{fields},\"padding\":\"{padding}\"}}").into_bytes());
    }

    pub fn text(&self) -> &str {
        self.value.as_deref().and_then(|value| std::str::from_utf8(value).ok()).expect("a value in UTF-8")
    }
}

/// The offset that `record` gets if all of `records` are produced to an empty topic.
pub fn offset_of(record: &TestRecord, records: &[TestRecord]) -> i64 {
    let at = records.iter().filter(|other| other.partition == record.partition).position(|other| other == record);
    i64::try_from(at.expect("it is one of them")).expect("few enough")
}

pub fn by_partition(records: impl IntoIterator<Item = TestRecord>, partitions: usize) -> Vec<Vec<TestRecord>> {
    let mut split = vec![Vec::new(); partitions];
    for record in records {
        split[index(record.partition)].push(record);
    }
    split
}

pub fn index(partition: i32) -> usize {
    usize::try_from(partition).expect("a partition's number is not negative")
}
