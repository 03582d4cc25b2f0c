//! Promise: without `repartition`, the worker reports keys that arrive in several partitions. With `repartition`, it emits each key once,
//! even through kills.

use crate::harness::{
    Setup, TestRecord, Worker, add_partitions, broker, committed_offset, delete_group, delete_topic, logged, produce, read_committed,
    topic, wait_until,
};
use crate::stream::{LIMIT, PARTITIONS, short_timeouts};
use std::collections::HashSet;
use unseen::changelog::ChangelogRecord;

const KEYS: u32 = 40_000;
const RECORDS: u32 = 3 * KEYS;

/// Each key occurs three times, each time in another partition.
fn records() -> Vec<TestRecord> {
    let record = |number: u32| TestRecord {
        partition: (number % KEYS + number / KEYS).rem_euclid(4).cast_signed(),
        key: Some(format!("key {}", number % KEYS).into_bytes()),
        value: Some(number.to_string().into_bytes()),
        headers: vec![("number".to_owned(), Some(number.to_be_bytes().to_vec()))],
        timestamp: 1_735_689_600_000 + i64::from(number),
    };
    (0..RECORDS).map(record).collect()
}

fn setup(input: &str, output: &str, repartition: bool) -> Setup {
    Setup::new(broker(), "spread").worker("commit_interval = \"50ms\"\ncheckpoint_interval = \"500ms\"").topic(
        input,
        output,
        &format!("space = \"s\"\nkey = [{{ record = \"key\" }}]\nwindow = \"1d\"\nrepartition = {repartition}\nfilter = {{ capacity = \"100k\", false_positive_rate = 1e-9 }}"),
    )
}

fn wait_until_read(setup: &Setup, input: &str, worker: &mut Worker) {
    for partition in 0..4 {
        let end = records().iter().filter(|record| record.partition == partition).count();
        wait_until("the input is read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (committed_offset(broker(), setup.group(), input, partition) == i64::try_from(end).ok()).then_some(())
        });
    }
}

#[test]
fn each_key_is_emitted_once_from_any_partition() {
    let (input, output) = (topic(broker(), "spread-in", 4), topic(broker(), "spread-out", 4));
    let setup = short_timeouts(setup(&input, &output, true));
    produce(broker(), &input, records());
    let out = || read_committed(broker(), &output, PARTITIONS).concat();
    // The worker is killed, and its disk is lost, while some records are not forwarded yet and others wait in the repartition topic.
    for share in [8, 4, 2] {
        let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
        wait_until("a part of the keys is emitted", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (out().len() >= (KEYS / share) as usize).then_some(())
        });
        worker.kill9();
        std::fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
    }
    let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
    wait_until_read(&setup, &input, &mut worker);
    wait_until("every key is emitted", LIMIT, || (out().len() >= KEYS as usize).then_some(()));
    let log = worker.drain();
    let out = out();
    let keys: HashSet<_> = out.iter().map(|record| record.key.clone()).collect();
    assert_eq!((out.len(), keys.len()), (KEYS as usize, KEYS as usize), "a key was emitted twice");
    let all = records();
    for record in &out {
        let number = record.value.as_ref().and_then(|value| String::from_utf8_lossy(value).parse::<usize>().ok()).expect("a number");
        assert_eq!((&record.headers, record.timestamp), (&all[number].headers, all[number].timestamp), "it was changed on the way");
    }
    assert!(!log.contains("the same key arrived in two partitions"), "{log}");
}

#[test]
fn keys_in_two_partitions_are_reported() {
    let (input, output) = (topic(broker(), "spread-in", 4), topic(broker(), "spread-out", 4));
    let setup = setup(&input, &output, false);
    produce(broker(), &input, records());
    let mut worker = setup.start("a");
    wait_until_read(&setup, &input, &mut worker);
    let log = worker.drain();
    assert_eq!(log.matches("the same key arrived in two partitions").count(), 1, "the warning is logged once");
    // The worker samples one key in 1,024. Each sampled key has two duplicates in other partitions, and both duplicates count.
    let cross_partition_keys = logged(&log, "cross_partition_keys");
    assert!(
        (u64::from(KEYS) / 1024..=u64::from(KEYS) / 256).contains(&cross_partition_keys),
        "{cross_partition_keys} of the sample's keys"
    );
}

/// The repartition topic keeps its number of partitions, so no key moves. The result does not depend on which member first notices the new
/// partitions of the input.
#[test]
fn adding_partitions_to_the_input_moves_no_key() {
    let (input, output) = (topic(broker(), "spread-in", 2), topic(broker(), "spread-out", 4));
    let setup = setup(&input, &output, true).properties("\"topic.metadata.refresh.interval.ms\" = 500");
    let (first, rest): (Vec<_>, Vec<_>) = records().into_iter().partition(|record| record.partition < 2);
    produce(broker(), &input, &first);
    let out = || read_committed(broker(), &output, PARTITIONS).concat();
    // There are more members than new partitions, so some members do not get a new partition.
    let mut workers: Vec<_> = ["a", "b", "c"].iter().map(|name| setup.start(name)).collect();
    wait_until("a part of the keys is emitted", LIMIT, || {
        assert!(workers.iter_mut().all(Worker::runs), "a worker has ended");
        (out().len() >= (KEYS / 8) as usize).then_some(())
    });
    add_partitions(broker(), &input, 4);
    produce(broker(), &input, &rest);
    wait_until_read(&setup, &input, &mut workers[0]);
    wait_until("every key is emitted", LIMIT, || (out().len() >= KEYS as usize).then_some(()));
    // Produces each key again. A member that lacks its state would emit the keys again.
    produce(broker(), &input, &rest);
    wait_until("all records are read again", LIMIT, || {
        let end = 2 * rest.iter().filter(|record| record.partition == 3).count();
        (committed_offset(broker(), setup.group(), &input, 3) == i64::try_from(end).ok()).then_some(())
    });
    let log: String = workers.into_iter().map(Worker::drain).collect();
    assert!(log.contains("partitions were added topic="), "{log}");
    // If the input has more partitions than the repartition topic, a worker that starts still reads the repartition topic to its end.
    let between = format!("{}-{input}-repartition", setup.group());
    let mut worker = setup.start("a");
    for partition in 0..2 {
        wait_until("the repartition topic is read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            let read = committed_offset(broker(), setup.group(), &between, partition)?;
            let records = read_committed(broker(), &between, 2)[usize::try_from(partition).expect("a partition")].len();
            // Transaction markers have offsets, too, so the committed offset can exceed the number of records.
            (read >= i64::try_from(records).expect("few enough")).then_some(())
        });
    }
    worker.drain();
    let out = out();
    let keys: HashSet<_> = out.iter().map(|record| record.key.clone()).collect();
    assert_eq!((out.len(), keys.len()), (KEYS as usize, KEYS as usize), "a key was emitted twice");
}

/// Records with distinct keys, for an input of one partition.
fn distinct(numbers: std::ops::Range<i64>) -> Vec<TestRecord> {
    let record = |number: i64| TestRecord {
        key: Some(format!("key {number}").into_bytes()),
        timestamp: 1_735_689_600_000 + number,
        ..TestRecord::default()
    };
    numbers.map(record).collect()
}

fn wait_for_output(output: &str, records: usize, worker: &mut Worker) {
    wait_until("the records are emitted", LIMIT, || {
        assert!(worker.runs(), "the worker ended");
        (read_committed(broker(), output, PARTITIONS).concat().len() >= records).then_some(())
    });
}

/// Deletes the repartition topic and the state directory, so that only the changelog has the state.
fn lose_all_but_changelog(setup: &Setup, input: &str) {
    delete_topic(broker(), &format!("{}-{input}-repartition", setup.group()));
    std::fs::remove_dir_all(setup.state_dir("a")).expect("the state directory can be deleted");
}

#[test]
fn recreated_repartition_topic_keeps_seen_keys() {
    let (input, output) = (topic(broker(), "spread-in", 1), topic(broker(), "spread-out", 4));
    let setup = setup(&input, &output, true);
    produce(broker(), &input, distinct(0..1_000));
    let mut worker = setup.start("a");
    wait_for_output(&output, 1_000, &mut worker);
    worker.drain();
    lose_all_but_changelog(&setup, &input);
    let mut worker = setup.start("a");
    worker.wait_for_log("-repartition[0]", LIMIT);
    // The input and the repartition topic have one partition each, so the worker processes all duplicates before it emits the new keys.
    produce(broker(), &input, distinct(0..1_100));
    wait_for_output(&output, 1_100, &mut worker);
    worker.drain();
    assert_eq!(read_committed(broker(), &output, PARTITIONS).concat().len(), 1_100, "keys were emitted again");
}

/// With `start = "latest"`, a group that lost its offsets must not start at the end again. The repartition topic is empty, but the
/// changelog shows that the group had started.
#[test]
fn recreated_repartition_topic_does_not_restart_the_group() {
    let (input, output) = (topic(broker(), "spread-in", 1), topic(broker(), "spread-out", 4));
    let setup = setup(&input, &output, true).kafka("start = \"latest\"");
    let mut worker = setup.start("a");
    wait_until("the group has begun", LIMIT, || committed_offset(broker(), setup.group(), &input, 0));
    produce(broker(), &input, distinct(0..1_000));
    wait_for_output(&output, 1_000, &mut worker);
    worker.drain();
    // Each worker that takes over the partition has a higher epoch than the previous one.
    for keys in 1_000..1_003 {
        let mut worker = setup.start("a");
        produce(broker(), &input, distinct(keys..keys + 1));
        wait_for_output(&output, usize::try_from(keys).expect("few") + 1, &mut worker);
        worker.drain();
    }
    delete_group(broker(), setup.group());
    lose_all_but_changelog(&setup, &input);
    produce(broker(), &input, distinct(1_003..1_100));
    let mut worker = setup.start("a");
    wait_for_output(&output, 1_100, &mut worker);
    worker.drain();
    let changelog = read_committed(broker(), &format!("{}-s-changelog", setup.group()), 1).concat();
    let epoch = |record: &TestRecord| ChangelogRecord::decode(record.value.as_ref()?).ok().map(|record| record.epoch);
    let epochs: Vec<_> = changelog.iter().filter_map(epoch).collect();
    assert!(epochs.is_sorted() && epochs.last() >= Some(&5), "readers skip records of a lower epoch: {epochs:?}");
    assert_eq!(read_committed(broker(), &output, PARTITIONS).concat().len(), 1_100, "keys were emitted again");
}
