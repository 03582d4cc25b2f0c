//! Promise: the group commits its start position before it reads any records. The position survives the death of the first worker.

use crate::harness::{
    Setup, TestRecord, Worker, add_partitions, broker, client, committed_offset, delete_records_before, make_topic_with, produce,
    read_committed, reset_offset, topic, wait_for_output, wait_until,
};
use crate::stream::{LIMIT, short_timeouts};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::time::Duration;

const LINES: &str = "space = \"ids\"\nkey = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }";

fn records(numbers: Range<i32>, partitions: Range<i32>, timestamp: i64) -> Vec<TestRecord> {
    let spread = |number: i32| partitions.start + number % (partitions.end - partitions.start);
    let record = |number: i32| TestRecord {
        partition: spread(number),
        key: Some(number.to_string().into_bytes()),
        timestamp,
        ..TestRecord::default()
    };
    numbers.map(record).collect()
}

const TIME: i64 = 1_700_000_000_000;

struct Topics {
    input: String,
    output: String,
    setup: Setup,
}

impl Topics {
    fn new(hint: &str, kafka: &str, state: &str, partitions: u32) -> Self {
        let (input, output) = (topic(broker(), hint, partitions), topic(broker(), &format!("{hint}-out"), 4));
        let setup = Setup::new(broker(), hint).kafka(kafka).state(state).worker("commit_interval = \"50ms\"").topic(&input, &output, LINES);
        Self { input, output, setup }
    }

    fn wait_until_read(&self, partition: i32, offset: i64, worker: &mut Worker) {
        wait_until("all records are read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (committed_offset(broker(), self.setup.group(), &self.input, partition) == Some(offset)).then_some(())
        });
    }
}

#[test]
fn group_keeps_its_start_position_if_its_first_worker_is_killed() {
    for delivery in ["exactly_once", "at_least_once"] {
        let mut topics = Topics::new("begin-killed", "start = \"latest\"", "", 2);
        topics.setup = short_timeouts(topics.setup);
        produce(broker(), &topics.input, records(0..100, 0..2, TIME));
        let delivery = format!("worker.delivery={delivery}");
        let mut worker = topics.setup.start_armed("a", &[&delivery], "transaction.sent:1:kill");
        worker.wait_for_log("partitions assigned", LIMIT);
        produce(broker(), &topics.input, records(100..110, 0..2, TIME));
        worker.wait(LIMIT);
        let mut worker = topics.setup.start_with("b", &[&delivery]);
        let out = wait_for_output(broker(), &topics.output, 10, 4, LIMIT, &mut worker);
        worker.drain();
        let mut keys: Vec<_> = out.into_iter().flatten().map(|record| record.key).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 10, "{delivery}");
    }
}

/// With `start = "latest"`, a group that has started reads a partition without a committed offset from its beginning, because the partition
/// must have been added later. A partition that waits for its state can move to another worker and must therefore already have a committed
/// start position.
#[test]
fn partition_that_waits_for_its_state_has_a_committed_start_position() {
    let topics = Topics::new("begin-waits", "start = \"latest\"", "", 2);
    let changelog = format!("{}-ids-changelog", topics.setup.group());
    make_topic_with(broker(), &changelog, 2, &[("retention.ms", "-1"), ("message.timestamp.after.max.ms", "9223372036854775807")]);
    produce(broker(), &topics.input, records(0..100, 0..2, TIME));
    let stranger: BaseProducer = client(broker()).set("transactional.id", &changelog).create().expect("a producer");
    stranger.init_transactions(LIMIT).and_then(|()| stranger.begin_transaction()).expect("a transaction");
    stranger.send(BaseRecord::<(), str>::to(&changelog).partition(1).payload("open")).expect("it is sent");
    stranger.flush(LIMIT).expect("it is written");
    let mut worker = topics.setup.start("a");
    topics.wait_until_read(1, 50, &mut worker);
    assert!(!worker.log().contains("[1] start="), "the worker did not wait");
    stranger.abort_transaction(LIMIT).expect("it is aborted");
    worker.drain();
}

#[test]
fn added_partitions_are_read_from_the_start() {
    let topics = Topics::new("begin-added", "start = \"latest\"", "", 2);
    produce(broker(), &topics.input, records(0..100, 0..2, TIME));
    let mut worker = topics.setup.start("a");
    for partition in 0..2 {
        topics.wait_until_read(partition, 50, &mut worker);
    }
    worker.drain();
    add_partitions(broker(), &topics.input, 4);
    produce(broker(), &topics.input, records(200..300, 2..4, TIME));
    let mut worker = topics.setup.start("a");
    for partition in 2..4 {
        topics.wait_until_read(partition, 50, &mut worker);
    }
    worker.drain();
    let out = read_committed(broker(), &topics.output, 4);
    assert_eq!(out.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 50, 50]);
}

#[test]
fn lost_state_is_detected_after_the_input_has_expired() {
    let topics = Topics::new("begin-lost", "", "changelog = false\ncold_start = \"fail\"", 1);
    // The input is empty, so the lost state directory contained no keys, and the worker starts despite `cold_start = "fail"`.
    for _ in 0..2 {
        let mut worker = topics.setup.start("a");
        topics.wait_until_read(0, 0, &mut worker);
        worker.drain();
        fs::remove_dir_all(topics.setup.state_dir("a")).expect("it can be deleted");
    }
    produce(broker(), &topics.input, records(0..100, 0..1, TIME));
    let mut worker = topics.setup.start("a");
    topics.wait_until_read(0, 100, &mut worker);
    worker.drain();
    delete_records_before(broker(), &topics.input, 0, 100);
    fs::remove_dir_all(topics.setup.state_dir("a")).expect("it can be deleted");
    let log = topics.setup.start("a").fails(1);
    assert!(log.contains("]: no checkpoint can be used; to start anyway, set state.cold_start to \"rebuild\", "), "{log}");
}

/// An offset reset deletes the offset's metadata, so the worker no longer knows where the group started. With `start = "latest"`, the group
/// may have skipped records below the offset. A cold start must not count their keys as seen, so it treats all keys as unseen.
#[test]
fn cold_start_after_a_manual_reset_treats_all_keys_as_unseen() {
    let topics = Topics::new("begin-cold", "start = \"latest\"", "changelog = false", 1);
    produce(broker(), &topics.input, records(0..100, 0..1, TIME));
    let mut worker = topics.setup.start("a");
    topics.wait_until_read(0, 100, &mut worker);
    produce(broker(), &topics.input, records(100..200, 0..1, TIME));
    topics.wait_until_read(0, 200, &mut worker);
    worker.drain();
    fs::remove_dir_all(topics.setup.state_dir("a")).expect("it can be deleted");
    reset_offset(broker(), topics.setup.group(), &topics.input, 0, 200);
    produce(broker(), &topics.input, records(0..200, 0..1, TIME));
    let mut worker = topics.setup.start("a");
    topics.wait_until_read(0, 400, &mut worker);
    worker.drain();
    let out: Vec<_> = read_committed(broker(), &topics.output, 4).concat();
    let keys: BTreeSet<_> = out.iter().map(|record| record.key.clone()).collect();
    assert_eq!((keys.len(), out.len()), (200, 300), "keys from before the group were never emitted");
}

/// Timestamps can be near the Unix epoch if a producer uses the wrong unit. The window then begins before the epoch.
#[test]
fn cold_start_remembers_keys_with_times_near_the_epoch() {
    let topics = Topics::new("begin-epoch", "", "changelog = false", 1);
    produce(broker(), &topics.input, records(0..100, 0..1, 1_700_000));
    let mut worker = topics.setup.start("a");
    topics.wait_until_read(0, 100, &mut worker);
    worker.drain();
    fs::remove_dir_all(topics.setup.state_dir("a")).expect("it can be deleted");
    produce(broker(), &topics.input, records(50..150, 0..1, 1_700_000));
    let mut worker = topics.setup.start("a");
    topics.wait_until_read(0, 200, &mut worker);
    worker.drain();
    assert_eq!(read_committed(broker(), &topics.output, 4)[0].len(), 150);
}

/// A group member that delays the next generation: nothing polls its consumer, so it does not rejoin during a rebalance. All members that
/// join during the delay get their partitions in the same generation.
struct Gate(BaseConsumer);

impl Gate {
    fn hold(group: &str, topic: &str) -> Self {
        let consumer: BaseConsumer = client(broker())
            .set("group.id", group)
            .set("partition.assignment.strategy", "range")
            .set("enable.auto.commit", "false")
            .create()
            .expect("a consumer");
        consumer.subscribe(&[topic]).expect("a subscription");
        wait_until("the gate is a member", LIMIT, || {
            let _ = consumer.poll(Duration::from_millis(100));
            (consumer.assignment().ok()?.count() > 0).then_some(())
        });
        Self(consumer)
    }

    fn open(self, group: &str, others: usize) {
        wait_until("the others have joined", LIMIT, || {
            let groups = self.0.fetch_group_list(Some(group), LIMIT).ok()?;
            (groups.groups().first()?.members().len() == others + 1).then_some(())
        });
    }
}

/// Two members find that the group has no committed offsets. While the slower member waits, the faster member, which owns partition 0,
/// commits the start position and then later offsets. The slower member must not reset partition 0 to its start position.
#[test]
fn slow_member_does_not_reset_the_group_to_its_start_position() {
    let mut topics = Topics::new("begin-slow", "start = \"latest\"", "", 2);
    // The long session timeout keeps members in the group while their processes are stopped.
    topics.setup = topics.setup.properties("\"session.timeout.ms\" = \"45000\"");
    let setup = &topics.setup;
    let (fast, slow) = (["kafka.instance_id=a"], ["kafka.instance_id=b"]);
    produce(broker(), &topics.input, records(0..100, 0..2, TIME));
    let gate = Gate::hold(setup.group(), &topics.input);
    let mut a = setup.start_armed("a", &fast, "restore.offsets:1:stop");
    let mut b = setup.start_armed("b", &slow, "transaction.begun:1:stop");
    gate.open(setup.group(), 2);
    a.wait_for_log("fault point reached", LIMIT);
    wait_until("the slow member is about to commit, or waits for the other", LIMIT, || {
        let log = b.log();
        (log.contains("fault point reached") || log.contains("waiting until the owner of partition 0 commits")).then_some(())
    });
    a.sigcont();
    topics.wait_until_read(0, 50, &mut a);
    produce(broker(), &topics.input, records(100..150, 0..1, TIME));
    topics.wait_until_read(0, 100, &mut a);
    // If the slower member committed the start position of partition 0, it would do so before it reads this record.
    produce(broker(), &topics.input, records(150..151, 1..2, TIME));
    wait_until("the slow member has read its partition", LIMIT, || {
        b.sigcont();
        (committed_offset(broker(), setup.group(), &topics.input, 1) == Some(51)).then_some(())
    });
    assert_eq!(committed_offset(broker(), setup.group(), &topics.input, 0), Some(100), "the group was set back");
    a.kill9();
    b.kill9();
    let mut a = setup.start_with("a", &fast);
    topics.wait_until_read(0, 100, &mut a);
    produce(broker(), &topics.input, records(200..201, 0..1, TIME));
    topics.wait_until_read(0, 101, &mut a);
    a.drain();
    assert_eq!(read_committed(broker(), &topics.output, 2).iter().map(Vec::len).collect::<Vec<_>>(), [51, 1]);
}
