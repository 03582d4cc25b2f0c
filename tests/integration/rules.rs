//! Promise: the first entry that selects a record deduplicates it. Each entry has its own keys and window, through kills and lost disks.
//! Without `repartition`, the output keeps the order of the input.

use crate::harness::{Setup, TestRecord, assert_same, broker, committed_offset, produce, read_committed, topic, unseen, wait_until};
use crate::stream::LIMIT;
use std::fs;

const KEYS: i64 = 500;

/// Records for two entries, and records that no entry selects. Each entry gets every key twice.
fn records() -> Vec<TestRecord> {
    let record = |number: i64| TestRecord {
        key: Some((number / 6).to_string().into_bytes()),
        headers: vec![("type".to_owned(), Some([b"a", b"b", b"c"][usize::try_from(number % 3).expect("small")].to_vec()))],
        timestamp: 1_700_000_000_000 + number,
        ..TestRecord::default()
    };
    (0..6 * KEYS).map(record).collect()
}

/// The records that a group emits if it reads `records` after `before`.
fn expected(before: &[TestRecord], records: &[TestRecord]) -> Vec<TestRecord> {
    let passes = |record: &TestRecord| record.headers[0].1.as_deref() == Some(b"c");
    let is_same = |one: &TestRecord, other: &TestRecord| one.key == other.key && one.headers == other.headers;
    let is_first = |number: &usize| !before.iter().chain(&records[..*number]).any(|other| is_same(other, &records[*number]));
    (0..records.len()).filter(|number| passes(&records[*number]) || is_first(number)).map(|number| records[number].clone()).collect()
}

#[test]
fn entries_keep_their_keys_through_kills_and_a_lost_disk() {
    for (hint, lines) in [("rules", ""), ("rules-repartition", "repartition = true\n")] {
        let (input, output) = (topic(broker(), &format!("{hint}-in"), 1), topic(broker(), &format!("{hint}-out"), 1));
        let entry = |space: &str, filter: &str| {
            format!(
                "space = {space:?}\nwhen = {{ header = \"type\", equals = {space:?} }}\nkey = {{ record = \"key\" }}\nwindow = \"24h\"\nfilter = {{ {filter} }}\n{lines}"
            )
        };
        let setup = Setup::new(broker(), hint)
            .worker("commit_interval = \"50ms\"\ncheckpoint_interval = \"200ms\"")
            .topic(&input, &output, &entry("a", "kind = \"exact\""))
            .topic(&input, &output, &entry("b", "kind = \"cuckoo\", capacity = 100000, false_positive_rate = 1e-9"));
        let records = records();
        let (first, second) = records.split_at(records.len() / 2);
        produce(broker(), &input, first);
        let mut worker = setup.start("a");
        wait_until("some records are committed", LIMIT, || {
            committed_offset(broker(), setup.group(), &input, 0).filter(|&offset| offset > 0)
        });
        worker.kill9();
        produce(broker(), &input, second);
        let mut worker = setup.start("a");
        let end = i64::try_from(records.len()).expect("few");
        wait_until("all records are read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (committed_offset(broker(), setup.group(), &input, 0) == Some(end)).then_some(())
        });
        worker.kill9();
        // After the loss of its disk, the worker rebuilds the state of each entry from the changelog of the entry.
        fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
        produce(broker(), &input, second);
        let mut worker = setup.start("a");
        let all: Vec<_> = expected(&[], &records).into_iter().chain(expected(&records, second)).collect();
        let of_type = |kind: &[u8], records: &[TestRecord]| -> Vec<TestRecord> {
            records.iter().filter(|record| record.headers[0].1.as_deref() == Some(kind)).cloned().collect()
        };
        wait_until("all records are emitted", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (read_committed(broker(), &output, 1)[0].len() >= all.len()).then_some(())
        });
        worker.drain();
        let emitted = &read_committed(broker(), &output, 1)[0];
        if lines.is_empty() {
            assert_same(&[all], std::slice::from_ref(emitted));
            let (offset, config) = ((end - 3).to_string(), setup.write_config("a").display().to_string());
            let (code, said, error) = unseen(["explain", "-c", &config, &input, "0", &offset]);
            assert_eq!(code, Some(0), "{error}");
            assert!(said.contains("duplicate"), "{said}");
        } else {
            // With `repartition`, records that pass through overtake the others, so the order is compared only within each type.
            for kind in [b"a", b"b", b"c"] {
                assert_same(&[of_type(kind, &all)], &[of_type(kind, emitted)]);
            }
        }
    }
}
