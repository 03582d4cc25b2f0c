//! Promise: `on_invalid` determines what happens to a record without a key. Such a record never counts as a duplicate and does not affect
//! the order of valid records.

use crate::harness::{
    News, Oracle, SplitMix, TestRecord, assert_prefix, assert_same, broker, by_partition, committed_offset, logged, offset_of,
    read_committed, topic,
};
use crate::stream::{PARTITIONS, Stream};
use std::time::Duration;

const GOOD: usize = 10_000;
const WINDOW: Duration = Duration::from_secs(24 * 3600);

const TOMBSTONES: &str = "topics[0].on_tombstone=invalid";

/// Values without a key in `/user_id` and `/news_id`, each with the class and the message of its error.
const BAD: [(Option<&[u8]>, &str, &str); 8] = [
    (
        Some(br#"{"user_id":1,"news_id":"n-1""#),
        "unseen.malformed",
        "the record value is not JSON: EOF while parsing an object at line 1 column 28",
    ),
    (Some(b"user_id=1"), "unseen.malformed", "the record value is not JSON: expected value at line 1 column 1"),
    (
        Some(br#"{"user_id":1} {"news_id":"n-1"}"#),
        "unseen.malformed",
        "the record value is not JSON: trailing characters at line 1 column 15",
    ),
    (Some(br#"{"user_id":1,"news":"n-1"}"#), "unseen.missing_key", "the record has no field `/news_id`"),
    (Some(br#"[1,"n-1"]"#), "unseen.missing_key", "the record has no field `/user_id`"),
    (None, "unseen.tombstone", "the record value is null, but the key needs it"),
    (
        Some(b"{\"user_id\":1,\"news_id\":\"n-\xff\xfe\"}"),
        "unseen.malformed",
        "the record value is not JSON: invalid unicode code point at line 1 column 27",
    ),
    (
        Some(br#"{"user_id":null,"news_id":null}"#),
        "unseen.null_key",
        "field `/user_id` and field `/news_id` are null, so the record has no key",
    ),
];

/// Valid records mixed with invalid records of every kind, in every partition.
fn mixed() -> Vec<TestRecord> {
    let mut records = Vec::new();
    let mut kinds = BAD.iter().cycle();
    for (number, record) in (News { count: GOOD, ..News::default() }).records().into_iter().enumerate() {
        let (partition, timestamp) = (record.partition, record.timestamp);
        records.push(record);
        if number % 50 == 25 {
            let (value, ..) = kinds.next().expect("it goes round");
            records.push(bad(*value, number, partition, timestamp));
        }
    }
    records
}

/// Creates an invalid record. Its record key is unique, so that the oracle never counts it as a duplicate.
fn bad(value: Option<&[u8]>, number: usize, partition: i32, timestamp: i64) -> TestRecord {
    let headers =
        if number.is_multiple_of(100) { Vec::new() } else { vec![("trace".to_owned(), None), ("bad".to_owned(), Some(vec![0, 255]))] };
    TestRecord { partition, key: Some(format!("bad-{number}").into_bytes()), value: value.map(<[u8]>::to_vec), headers, timestamp }
}

fn is_good(record: &TestRecord) -> bool {
    !record.key.as_ref().is_some_and(|key| key.starts_with(b"bad-"))
}

/// Produces valid and invalid records, but expects only the valid ones in the output.
fn good_only(hint: &str) -> Stream {
    let mut stream = Stream::of(broker(), hint, mixed(), WINDOW);
    stream.expected.iter_mut().for_each(|expected| expected.retain(is_good));
    stream.produce(..);
    stream
}

#[test]
fn invalid_records_become_dead_letters_unchanged() {
    let stream = good_only("invalid");
    let dead_letters = topic(broker(), "invalid-dead", 4);
    stream.check(stream.setup.start_with("a", &[TOMBSTONES, &format!("topics[0].on_invalid.topic={dead_letters}")]));

    let letters = stream.records.iter().filter(|record| !is_good(record)).map(|record| {
        let (_, class, message) = BAD.iter().find(|(value, ..)| *value == record.value.as_deref()).expect("a kind of bad record");
        record.dead_letter(&stream.input, offset_of(record, &stream.records), class, message)
    });
    let expected = by_partition(letters, PARTITIONS);
    assert!(expected.iter().all(|letters| letters.len() > 10), "too few bad records to try anything");
    assert_same(&expected, &read_committed(broker(), &dead_letters, PARTITIONS));
}

#[test]
fn invalid_records_are_emitted_if_configured() {
    let stream = Stream::of(broker(), "invalid-emit", mixed(), WINDOW);
    assert!(stream.expected.iter().flatten().any(|record| !is_good(record)), "no bad record is expected");
    stream.produce(..);
    stream.check(stream.setup.start_with("a", &[TOMBSTONES, "topics[0].on_invalid=emit"]));
}

#[test]
fn invalid_record_stops_the_worker_by_default() {
    for (kind, (value, _, message)) in BAD.into_iter().enumerate().step_by(5) {
        let mut records = News { count: 2_000, ..News::default() }.records();
        let (partition, timestamp) = (records[1_000].partition, records[1_000].timestamp);
        let bad = bad(value, kind, partition, timestamp);
        records.insert(1_001, bad.clone());
        let offset = offset_of(&bad, &records);
        let mut stream = Stream::of(broker(), "invalid-fail", records, WINDOW);
        let before = by_partition(stream.records[..1_001].to_vec(), PARTITIONS);
        stream.expected.iter_mut().for_each(|expected| expected.retain(is_good));
        stream.produce(..);

        let log = stream.setup.start_with("a", &[TOMBSTONES]).fails(1);
        assert!(
            log.contains(&format!("error: {}[{partition}] offset {offset}: {message}. The worker stopped at this record. ", stream.input)),
            "{log}"
        );
        assert_eq!(
            committed_offset(broker(), stream.setup.group(), &stream.input, partition),
            Some(offset),
            "what came before is not committed"
        );
        let committed = |partition| committed_offset(broker(), stream.setup.group(), &stream.input, partition).unwrap_or_default();
        let committed: i64 = (0..4).map(committed).sum();
        assert_eq!(logged(&log, "records"), committed.unsigned_abs(), "the last line does not count what was committed");
        let output = stream.output();
        assert_prefix(&stream.expected, &output);
        let at = usize::try_from(partition).expect("a partition");
        let good = Oracle::new(WINDOW, 4).expected(&before[at], PARTITIONS)[at].len();
        assert_eq!(output[at].len(), good, "not all records before the invalid record were emitted");

        // A restarted worker stops at the same record.
        let again = stream.setup.start_with("a", &[TOMBSTONES]).fails(1);
        assert!(again.contains(&format!("offset {offset}: {message}")), "{again}");
        stream.check(stream.setup.start_with("a", &[TOMBSTONES, "topics[0].on_invalid=drop"]));
    }
}

#[test]
fn a_record_of_a_megabyte_passes_unchanged() {
    let mut records = News { count: 1_000, ..News::default() }.records();
    let mut random = SplitMix(9);
    for number in [300, 301, 700] {
        let fields = records[number].text().strip_suffix('}').expect("a JSON object").to_owned() + ",\"padding\":\"";
        // The padding is random, so compression hardly shrinks the record.
        let padding: String =
            (0..1_000_000 - fields.len() - 2).map(|_| char::from(b' ' + 1 + u8::try_from(random.below(94)).expect("a letter"))).collect();
        records[number].value = Some(format!("{fields}{}\"}}", padding.replace(['"', '\\'], "-")).into_bytes());
        assert_eq!(records[number].text().len(), 1_000_000);
    }
    let stream = Stream::of(broker(), "megabyte", records, WINDOW);
    assert!(stream.expected.iter().flatten().any(|record| record.text().len() == 1_000_000), "no large record is expected");
    stream.produce(..);
    stream.check(stream.setup.start("a"));
}
