//! Tests that the harness reads back what it writes, and that it detects differences.

use crate::harness::{
    News, Oracle, TestRecord, assert_same, broker, by_partition, committed_offset, delete_records_before, difference, produce,
    read_committed, topic, topic_with,
};
use std::time::Duration;

const PARTITIONS: usize = 4;

fn news(count: usize) -> Vec<TestRecord> {
    News { count, ..News::default() }.records()
}

#[test]
fn produced_records_are_read_back() {
    let topic = topic(broker(), "smoke", 4);
    let records = news(10_000);
    produce(broker(), &topic, &records);
    assert_same(&by_partition(records, PARTITIONS), &read_committed(broker(), &topic, PARTITIONS));
    assert_eq!(committed_offset(broker(), &topic, &topic, 0), None);
}

#[test]
fn deleted_records_are_gone() {
    let topic = topic_with(broker(), "smoke-delete", 1, &[("max.message.bytes", "2000000")]);
    let records = News { count: 1_000, partitions: 1, ..News::default() }.records();
    produce(broker(), &topic, &records);
    delete_records_before(broker(), &topic, 0, 400);
    assert_same(&[records[400..].to_vec()], &read_committed(broker(), &topic, 1));
}

#[test]
fn half_of_the_news_are_duplicates_and_the_oracle_forgets_keys() {
    let records = news(100_000);
    let for_ever = Oracle::new(Duration::from_secs(86_400), 4).expected(&records, PARTITIONS);
    let unseen: usize = for_ever.iter().map(Vec::len).sum();
    assert!((48_000..52_000).contains(&unseen), "{unseen} of 100000 are new");

    let forgetful = Oracle::new(Duration::from_secs(1_200), 4).expected(&records, PARTITIONS);
    let emitted: usize = forgetful.iter().map(Vec::len).sum();
    assert!(emitted > unseen + 1_000, "{emitted} emitted with a window that rotates, {unseen} without");
}

#[test]
fn the_oracle_keeps_a_key_for_the_window_and_a_slice() {
    let record = |timestamp| TestRecord { key: Some(b"a".to_vec()), timestamp, ..TestRecord::default() };
    // With four slices of 10 s, a key that is emitted in the slice at 0 s is forgotten when the slice at 50 s begins.
    let oracle = Oracle::new(Duration::from_secs(40), 4);
    let records = [record(9_000), record(49_999), record(50_000), record(20_000)];
    assert_eq!(oracle.expected(&records, 1), [vec![record(9_000), record(50_000)]]);
}

#[test]
fn differences_are_distinguished() {
    let expected = Oracle::new(Duration::from_secs(1_200), 4).expected(&news(10_000), PARTITIONS);
    let after = |change: &dyn Fn(&mut Vec<TestRecord>)| {
        let mut actual = expected.clone();
        change(&mut actual[2]);
        difference(&expected, &actual).unwrap_or_default()
    };
    for (change, words) in [
        (&(|_: &mut Vec<TestRecord>| {}) as &dyn Fn(&mut Vec<TestRecord>), ""),
        (&|records| drop(records.remove(10)), "partition 2, record 10: lost"),
        (&|records| drop(records.pop()), "lost, and so are all records after it"),
        (&|records| records.insert(20, records[10].clone()), "partition 2, record 20: twice, first as record 10"),
        (&|records| records.push(records[10].clone()), "twice, first as record 10"),
        (&|records| records[10].value = None, "partition 2, record 10: changed"),
        (&|records| records[10].timestamp += 1, "partition 2, record 10: changed"),
        (&|records| records[10].headers.swap(0, 1), "partition 2, record 10: changed"),
        (&|records| records.swap(10, 11), "partition 2, record 10: out of order"),
        (&|records| records.insert(10, TestRecord::default()), "partition 2, record 10: not expected at all"),
        (&|records| records.push(TestRecord::default()), "one too many"),
    ] {
        let found = after(change);
        assert!(found.contains(words) && found.is_empty() == words.is_empty(), "expected `{words}`, got `{found}`");
    }
}
