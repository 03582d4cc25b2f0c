//! Promise: if the group's offsets are lost, reset, or out of range, no existing record is lost, and the log reports the problem.

use crate::harness::{
    Group, News, TestRecord, alter_topic, assert_same, broker, committed_offset, delete_records_before, delete_topic, logged, make_topic,
    reset_offset, topic_with, wait_until,
};
use crate::observed::{address, metric};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Half of the records are read before the offsets change. The other half is read afterward.
const RECORDS: usize = 40_000;
const HALF: usize = RECORDS / 2;

fn commit(stream: &Stream, partition: i32, offset: i64) {
    reset_offset(broker(), stream.setup.group(), &stream.input, partition, offset);
}

fn committed(stream: &Stream, partition: i32) -> i64 {
    committed_offset(broker(), stream.setup.group(), &stream.input, partition).expect("a committed offset")
}

fn forget(stream: &mut Stream, lost: Range<i64>) {
    let mut place = 0;
    stream.records.retain(|record| {
        place += i64::from(record.partition == 0);
        record.partition != 0 || !lost.contains(&(place - 1))
    });
    stream.expected = stream.oracle.expected(&stream.records, PARTITIONS);
}

#[test]
fn records_that_expired_unread_are_reported() {
    let mut stream = Stream::remembered(broker(), "expired", RECORDS);
    stream.begin(HALF);
    stream.produce(HALF..);
    let first = committed(&stream, 0);
    delete_records_before(broker(), &stream.input, 0, first + 100);
    forget(&mut stream, first..first + 100);
    let mut worker = stream.setup.start("a");
    worker.wait_for_log("records were deleted before they were read", LIMIT);
    let address = address(&mut worker);
    let counted = metric(&address, &format!("unseen_deleted_unread_records_total{{topic=\"{}\"}}", stream.input));
    assert!((counted - 100.0).abs() < 0.5, "{counted}");
    let log = stream.check(worker);
    assert!(log.contains("records=100"), "{log}");
}

#[test]
fn records_that_expire_under_a_running_worker_are_reported() {
    let mut stream = Stream::remembered(broker(), "lagging", RECORDS);
    stream.produce(..HALF);
    let mut worker = stream.setup.start("a");
    stream.wait_until_read(HALF, &mut worker);
    worker.sigstop();
    stream.produce(HALF..);
    let end = stream.records.iter().filter(|record| record.partition == 0).count();
    delete_records_before(broker(), &stream.input, 0, i64::try_from(end).expect("few enough") - 100);
    worker.sigcont();
    let sentence = "records were deleted before they were read";
    worker.wait_for_log(sentence, LIMIT);
    // The worker may already have fetched some of the deleted records. Only its log shows which offsets it has missed.
    let log = worker.log();
    let line = log.lines().find(|line| line.contains(sentence)).expect("it was found");
    let (from, to) = (logged(line, "committed").cast_signed(), logged(line, "oldest").cast_signed());
    assert_eq!(logged(line, "records").cast_signed(), to - from, "{line}");
    forget(&mut stream, from..to);
    stream.check(worker);
}

#[test]
fn only_a_reset_partition_is_emitted_again() {
    let stream = Stream::remembered(broker(), "reset", RECORDS);
    stream.begin(HALF);
    let before = stream.output();
    commit(&stream, 0, 0);
    stream.produce(HALF..);
    let mut worker = stream.setup.start("a");
    stream.wait_until_read(RECORDS, &mut worker);
    let log = worker.drain();
    assert!(log.contains("is past the group's committed offset"), "{log}");
    // Partition 0 was reset to the start, so its records are emitted again, as requested. The other partitions continue.
    let output = stream.output();
    assert_same(&[[&*before[0], &*stream.expected[0]].concat()], &output[..1]);
    assert_same(&stream.expected[1..], &output[1..]);
}

#[test]
fn a_group_without_offsets_resumes_from_its_checkpoint() {
    let stream = Stream::remembered(broker(), "forgotten", RECORDS);
    stream.begin(HALF);
    stream.produce(HALF..);
    // With another group ID, there are checkpoints but no committed offsets, as after the offsets have expired.
    let group = format!("kafka.group_id={}-heir", stream.setup.group());
    let log = stream.check(stream.setup.start_with("a", &[&group]));
    assert!(log.contains("the group has no committed offset; resuming from the offset in the checkpoint"), "{log}");
}

/// A record from the future must not make the worker conclude that its checkpoint belongs to an earlier topic with the same name.
/// Otherwise, the worker would emit keys again.
#[test]
fn records_from_the_future_do_not_affect_a_group_without_offsets() {
    let mut records = News { count: RECORDS, ..News::default() }.records();
    // A year ahead of this machine's clock, and therefore ahead of all other records.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis();
    let ahead = i64::try_from(now).expect("a time") + 365 * 24 * 3_600_000;
    for record in records.iter_mut().take(HALF).skip(100).step_by(5_000) {
        record.timestamp = ahead;
    }
    let endless = [("message.timestamp.after.max.ms", "9223372036854775807")];
    let output = topic_with(broker(), "future-out", 4, &endless);
    let stream = Stream::into(broker(), "future", output, records, Duration::from_secs(24 * 3600));
    alter_topic(broker(), &stream.input, endless[0].0, endless[0].1);
    stream.begin(HALF);
    let before = stream.output();
    stream.produce(HALF..);
    let group = format!("kafka.group_id={}-heir", stream.setup.group());
    let mut worker = stream.setup.start_with("a", &[&group]);
    let heir = Group::new(broker(), &format!("{}-heir", stream.setup.group()), &stream.input, PARTITIONS);
    wait_until("all records are read", LIMIT, || {
        assert!(worker.runs(), "the worker has ended");
        heir.has_read_all().then_some(())
    });
    worker.drain();
    // This test checks only that no key is missing and no key is emitted twice. Other tests cover the verdicts on records from the future.
    let output = stream.output();
    for (before, after) in before.iter().zip(&output) {
        assert_eq!(before[..], after[..before.len()], "what was there before is not any more");
        let ids: BTreeSet<_> = after.iter().map(|record| &record.key).collect();
        assert_eq!(ids.len(), after.len(), "a record was emitted twice");
    }
    let keys = |records: &[TestRecord]| records.iter().map(|record| record.key.clone()).collect::<BTreeSet<_>>();
    assert_eq!(keys(&output.concat()), keys(&stream.records), "an unseen key was not emitted");
}

/// Reads half of the stream and then the records of a new topic with the same name. The broker has deleted the group's offsets with the old
/// topic. Keys that were emitted within the window must not be emitted again.
#[test]
fn longer_recreated_input_is_read_from_the_start() {
    let part = HALF - 1_000..RECORDS;
    let stream = Stream::remembered(broker(), "longer", RECORDS);
    stream.begin(HALF);
    delete_topic(broker(), &stream.input);
    make_topic(broker(), &stream.input, 4);
    stream.produce(part.clone());
    let both: Vec<_> = stream.records[..HALF].iter().chain(&stream.records[part.clone()]).cloned().collect();
    let expected = stream.oracle.expected(&both, PARTITIONS);
    // The second worker has no state and restores it from the changelog.
    for name in ["a", "b"] {
        let mut worker = stream.setup.start(name);
        let group = Group::new(broker(), stream.setup.group(), &stream.input, PARTITIONS);
        wait_until("the new topic is read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            group.has_read_all().then_some(())
        });
        worker.drain();
        assert_same(&expected, &stream.output());
        stream.produce(part.clone());
    }
}

/// Simulates a truncated log by committing an offset past the end of the log.
#[test]
fn log_that_ends_before_the_groups_offset_stops_the_worker() {
    let stream = Stream::remembered(broker(), "shorter", RECORDS);
    stream.begin(HALF);
    let end = committed(&stream, 0);
    commit(&stream, 0, 1_000_000);
    let log = stream.setup.start("a").fails(1);
    let sentence = format!("{}[0] ends at offset {end}, but the group has read up to offset 1000000; the log was truncated", stream.input);
    assert!(log.contains(&sentence) && log.contains("To continue at the end of the log, set kafka.on_truncation to \"continue\""), "{log}");
    // After a reset by hand, nothing is lost and nothing is duplicated.
    commit(&stream, 0, end);
    stream.produce(HALF..);
    stream.check(stream.setup.start("a"));
}
