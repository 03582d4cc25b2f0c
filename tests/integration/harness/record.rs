//! A record as tests write and expect it.

/// A record with everything that must come out as it went in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestRecord {
    pub partition: i32,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Milliseconds since the epoch.
    pub timestamp: i64,
}

/// Splits records by partition, each in its order.
pub fn by_partition(records: impl IntoIterator<Item = TestRecord>, partitions: usize) -> Vec<Vec<TestRecord>> {
    let mut split = vec![Vec::new(); partitions];
    for record in records {
        split[index(record.partition)].push(record);
    }
    split
}

/// A partition's number as an index.
pub fn index(partition: i32) -> usize {
    usize::try_from(partition).expect("a partition's number is not negative")
}
