//! Promise: whatever becomes of the group's offsets, no record that is still there is lost, and the log says what happened.

use crate::harness::{
    assert_same, broker, client, committed_offset, delete_records_before, delete_topic, make_topic, told, wait_for_output, wait_until,
};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use std::ops::Range;

/// Half of it is read before the offsets are meddled with, the other half after.
const RECORDS: usize = 40_000;
const HALF: usize = RECORDS / 2;

/// Commits an offset in the group's name, while none of its members is there.
fn commit(stream: &Stream, partition: i32, offset: i64) {
    let consumer: BaseConsumer = client(broker()).set("group.id", stream.setup.group()).create().expect("a consumer");
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&stream.input, partition, Offset::Offset(offset)).expect("a valid offset");
    wait_until("the group takes the offset", LIMIT, || consumer.commit(&offsets, CommitMode::Sync).ok());
}

fn committed(stream: &Stream, partition: i32) -> i64 {
    committed_offset(broker(), stream.setup.group(), &stream.input, partition).expect("a committed offset")
}

/// Expects the stream without these offsets of partition 0.
fn forget(stream: &mut Stream, lost: Range<i64>) {
    let mut place = 0;
    stream.records.retain(|record| {
        place += i64::from(record.partition == 0);
        record.partition != 0 || !lost.contains(&(place - 1))
    });
    stream.expected = stream.oracle.expected(&stream.records, PARTITIONS);
}

#[test]
fn records_that_expired_unread_are_told_of() {
    let mut stream = Stream::remembered(broker(), "expired", RECORDS);
    stream.begin(HALF);
    stream.produce(HALF..);
    // A hundred records of one partition go before they are read.
    let first = committed(&stream, 0);
    delete_records_before(broker(), &stream.input, 0, first + 100);
    forget(&mut stream, first..first + 100);
    let log = stream.check(stream.setup.start("a"));
    assert!(log.contains("records expired before they were read"), "{log}");
    assert!(log.contains("records=100"), "{log}");
}

#[test]
fn records_that_expire_under_a_running_worker_are_told_of() {
    let mut stream = Stream::remembered(broker(), "lagging", RECORDS);
    stream.produce(..HALF);
    let mut worker = stream.setup.start("a");
    stream.wait_until_read(HALF, &mut worker);
    worker.sigstop();
    stream.produce(HALF..);
    let end = stream.records.iter().filter(|record| record.partition == 0).count();
    delete_records_before(broker(), &stream.input, 0, i64::try_from(end).expect("few enough") - 100);
    worker.sigcont();
    let sentence = "records expired before they were read; raise the topic's retention";
    worker.wait_for_log(sentence, LIMIT);
    // How far it had come is its own to say: some of what was deleted may have been on its way already.
    let log = worker.log();
    let line = log.lines().find(|line| line.contains(sentence)).expect("it was found");
    let (from, to) = (told(line, "committed").cast_signed(), told(line, "oldest").cast_signed());
    assert_eq!(told(line, "records").cast_signed(), to - from, "{line}");
    forget(&mut stream, from..to);
    stream.check(worker);
}

#[test]
fn offsets_set_back_repeat_nothing() {
    let stream = Stream::remembered(broker(), "reset", RECORDS);
    stream.begin(HALF);
    let before = stream.output();
    commit(&stream, 0, 0);
    stream.produce(HALF..);
    let mut worker = stream.setup.start("a");
    stream.wait_until_read(RECORDS, &mut worker);
    let log = worker.drain();
    assert!(log.contains("checkpoint is past what the group has committed"), "{log}");
    // Set back to the beginning, partition 0 is emitted anew from there: that is what a reset asks for. The others go on.
    let output = stream.output();
    assert_same(&[[&*before[0], &*stream.expected[0]].concat()], &output[..1]);
    assert_same(&stream.expected[1..], &output[1..]);
}

#[test]
fn without_committed_offsets_a_checkpoint_tells_where_to_go_on() {
    let stream = Stream::remembered(broker(), "forgotten", RECORDS);
    stream.begin(HALF);
    stream.produce(HALF..);
    // A group of another name that finds this state is in the place of one whose offsets have expired.
    let group = format!("kafka.group_id={}-heir", stream.setup.group());
    let log = stream.check(stream.setup.start_with("a", &[&group]));
    assert!(log.contains("the group has no committed offset, but a checkpoint does; going on from there"), "{log}");
}

/// Reads half of the stream, then this part of it from a new topic in the old one's place. The broker
/// has forgotten the group's offsets with the old topic; the checkpoints are still of that.
fn topic_made_anew(hint: &str, part: Range<usize>) {
    let stream = Stream::remembered(broker(), hint, RECORDS);
    stream.begin(HALF);
    let before = stream.output();
    delete_topic(broker(), &stream.input);
    make_topic(broker(), &stream.input, 4);
    stream.produce(part.clone());
    let after = stream.oracle.expected(&stream.records[part], PARTITIONS);
    let both: Vec<_> = before.into_iter().zip(after).map(|(before, after)| [before, after].concat()).collect();
    let mut worker = stream.setup.start("a");
    wait_for_output(broker(), &stream.output, both.iter().map(Vec::len).sum(), PARTITIONS, LIMIT, &mut worker);
    let log = worker.drain();
    assert!(log.contains("checkpoint is past what the group has committed (were its offsets reset, or was the topic made anew?)"), "{log}");
    assert_same(&both, &stream.output());
}

#[test]
fn a_topic_made_anew_is_read_from_its_beginning() {
    topic_made_anew("anew", 0..HALF / 2);
}

#[test]
fn a_topic_made_anew_may_be_longer_than_the_old_one() {
    topic_made_anew("longer", HALF - 1_000..RECORDS);
}

#[test]
fn a_committed_offset_past_the_end_loses_nothing() {
    let stream = Stream::remembered(broker(), "past", RECORDS);
    stream.begin(HALF);
    let before = stream.output();
    commit(&stream, 0, 1_000_000);
    stream.produce(HALF..);
    let total = before[0].len() + stream.expected.iter().map(Vec::len).sum::<usize>();
    let mut worker = stream.setup.start("a");
    wait_for_output(broker(), &stream.output, total, PARTITIONS, LIMIT, &mut worker);
    let log = worker.drain();
    assert!(log.contains("committed offset is past the end of the topic; was it made anew? Reading it from its beginning"), "{log}");
    let output = stream.output();
    assert_same(&[[&*before[0], &*stream.expected[0]].concat()], &output[..1]);
    assert_same(&stream.expected[1..], &output[1..]);
}
