//! Promise: a worker commits the offsets of all its partitions, even if they do not fit into one record batch of `__consumer_offsets`.

use crate::harness::{
    Group, OwnBroker, PATIENCE, Setup, TestRecord, add_partitions, alter_topic, produce, read_committed, reset_offset, topic, wait_until,
};
use std::time::{Duration, Instant};

/// Produces a record to each of the first `records` partitions, and runs a worker until it has committed the offsets after these records.
/// Before the worker reads a record, it commits the start position of all partitions. Returns the log.
fn commit_all(broker: &str, partitions: u32, records: u32, delivery: &str, limit: Duration) -> String {
    // The output comes first, because a broker that creates thousands of partitions creates no other topic until it has finished.
    let output = topic(broker, "many-out", 1);
    // The controller limits the number of partitions per request.
    let input = topic(broker, "many-in", partitions.min(5_000));
    if partitions > 5_000 {
        add_partitions(broker, &input, partitions);
    }
    let lines = "key = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }";
    let setup = Setup::new(broker, "many").state("changelog = false").topic(&input, &output, lines);
    let record = |partition: i32| TestRecord {
        partition,
        key: Some(partition.to_string().into_bytes()),
        timestamp: 1_700_000_000_000,
        ..TestRecord::default()
    };
    produce(broker, &input, (0..records.cast_signed()).map(record));
    let mut worker = setup.start_with("a", &[&format!("worker.delivery={delivery}")]);
    let group = Group::new(broker, setup.group(), &input, records as usize);
    wait_until("all offsets are committed", limit, || {
        assert!(worker.runs(), "the worker has ended");
        group.committed()?.iter().all(|&offset| offset == 1).then_some(())
    });
    let log = worker.drain();
    let mut keys: Vec<_> = read_committed(broker, &output, 1).concat().into_iter().map(|record| record.key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), records as usize);
    log
}

#[test]
fn offset_commits_are_split_until_the_coordinator_accepts_them() {
    let broker = OwnBroker::start();
    // This commit makes the broker create its offsets topic, which must exist before its settings can be changed.
    let first = topic(broker.address(), "first", 1);
    reset_offset(broker.address(), "first", &first, 0, 0);
    // The limit is enough for the group's metadata record and for about twenty offsets.
    alter_topic(broker.address(), "__consumer_offsets", "max.message.bytes", "3000");
    for delivery in ["exactly_once", "at_least_once"] {
        let log = commit_all(broker.address(), 64, 64, delivery, PATIENCE);
        assert!(log.contains("the group coordinator rejected an offset commit, probably because it is too large"), "{delivery}: {log}");
    }
}

/// To run this test: `cargo test --release --features faults --test integration -- --ignored --nocapture ten_thousand_partitions`
#[test]
#[ignore = "it creates 10,000 partitions, which takes minutes"]
fn ten_thousand_partitions_of_one_worker_are_committed() {
    let (broker, began) = (OwnBroker::start_large(), Instant::now());
    let log = commit_all(broker.address(), 10_000, 1, "exactly_once", Duration::from_secs(900));
    assert!(!log.contains("aborting the current transaction"), "{log}");
    println!("10,000 partitions: {:?}", began.elapsed());
}
