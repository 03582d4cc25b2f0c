//! Compares the actual output with the expected output, record by record and in order.

use super::TestRecord;

pub fn assert_same(expected: &[Vec<TestRecord>], actual: &[Vec<TestRecord>]) {
    if let Some(difference) = difference(expected, actual) {
        panic!("{difference}");
    }
}

/// Panics unless the actual records of each partition are a prefix of the expected records.
pub fn assert_prefix(expected: &[Vec<TestRecord>], actual: &[Vec<TestRecord>]) {
    let begun: Vec<_> =
        expected.iter().zip(actual).map(|(expected, actual)| expected[..actual.len().min(expected.len())].to_vec()).collect();
    assert_same(&begun, actual);
}

pub fn difference(expected: &[Vec<TestRecord>], actual: &[Vec<TestRecord>]) -> Option<String> {
    if expected.len() != actual.len() {
        return Some(format!("{} partitions expected, {} found", expected.len(), actual.len()));
    }
    expected.iter().zip(actual).enumerate().find_map(|(partition, (expected, actual))| {
        let common = expected.iter().zip(actual).take_while(|(expected, actual)| expected == actual).count();
        let what = describe(expected, actual, common)?;
        let (wanted, got) = (expected.len(), actual.len());
        Some(format!("partition {partition}, record {common}: {what}\n  ({wanted} records expected there, {got} found)"))
    })
}

/// Describes the difference at index `at`, where the lists first differ. `None` if the lists are equal.
fn describe(expected: &[TestRecord], actual: &[TestRecord], at: usize) -> Option<String> {
    match (expected.get(at), actual.get(at)) {
        (None, None) => None,
        (Some(wanted), None) => Some(format!("lost, and so are all records after it\n  expected {}", show(wanted))),
        (wanted, Some(got)) if actual[..at].contains(got) => {
            let first = actual[..at].iter().position(|earlier| earlier == got).unwrap_or_default();
            let wanted = wanted.map_or_else(|| "the end".to_owned(), show);
            Some(format!("twice, first as record {first}\n  expected {wanted}\n  found    {}", show(got)))
        }
        (None, Some(got)) => Some(format!("one too many\n  found    {}", show(got))),
        (Some(wanted), Some(got)) => {
            let what = if actual[at..].contains(wanted) {
                if expected[at..].contains(got) { "out of order" } else { "not expected at all" }
            } else if wanted.key == got.key {
                "changed"
            } else {
                "lost"
            };
            Some(format!("{what}\n  expected {}\n  found    {}", show(wanted), show(got)))
        }
    }
}

pub fn show(record: &TestRecord) -> String {
    let bytes = |bytes: &Option<Vec<u8>>| {
        let Some(bytes) = bytes else { return "null".to_owned() };
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
        if bytes.len() > 300 { format!("{shown}... ({} bytes)", bytes.len()) } else { shown }
    };
    let headers: Vec<_> = record.headers.iter().map(|(name, value)| format!("{name}={}", bytes(value))).collect();
    format!("key {} value {} headers [{}] time {}", bytes(&record.key), bytes(&record.value), headers.join(", "), record.timestamp)
}
