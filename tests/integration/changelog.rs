//! Promise: after the loss of the disk, the changelog restores exactly the seen keys, even if the input has expired. The worker trims the
//! changelog only as far as the window allows.

use crate::harness::state::digests as digests_of;
use crate::harness::{
    News, Oracle, Setup, SplitMix, TestRecord, Worker, add_partitions, assert_same, broker, client, committed_offset,
    delete_records_before, delete_topic, first_offset, make_topic, make_topic_with, produce, read_committed, topic, wait_for_output,
    wait_until,
};
use crate::stream::{LIMIT, Stream};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;
use unseen::changelog::{ChangelogRecord, KeyRun};

const RECORDS: usize = 60_000;

fn start(stream: &Stream, name: &str) -> Worker {
    stream.setup.start_with(name, &["state.cold_start=fail"])
}

/// Deletes the input records below the group's committed offsets, so that a worker without a checkpoint can get their keys only from the
/// changelog.
fn expire_input(stream: &Stream) {
    for partition in 0..4 {
        let committed = committed_offset(&stream.broker, stream.setup.group(), &stream.input, partition).expect("a committed offset");
        delete_records_before(&stream.broker, &stream.input, partition, committed);
    }
}

fn digests(stream: &Stream, name: &str) -> BTreeMap<String, String> {
    digests_of(&stream.setup.state_dir(name))
}

fn changelog(stream: &Stream) -> String {
    format!("{}-news-changelog", stream.setup.group())
}

#[test]
fn a_lost_disk_is_rebuilt_exactly() {
    // The window rotates, so the restored state must also expire the keys of each slice at the right time.
    let stream = Stream::new(broker(), "log-disk", RECORDS);
    stream.begin(RECORDS / 2);
    expire_input(&stream);
    let before = digests(&stream, "a");
    fs::remove_dir_all(stream.setup.state_dir("a")).expect("it can be deleted");
    let worker = start(&stream, "a");
    wait_until("all partitions are restored", LIMIT, || (worker.log().matches("partition restored").count() == 4).then_some(()));
    worker.drain();
    assert_eq!(before.len(), 4);
    assert_eq!(digests(&stream, "a"), before, "what was rebuilt is not what was lost");
    stream.produce(RECORDS / 2..);
    fs::remove_dir_all(stream.setup.state_dir("a")).expect("it can be deleted");
    let log = stream.check(start(&stream, "a"));
    assert!(log.contains("state rebuilt from the changelog") && log.contains("warm_up_records=0"), "{log}");
}

#[test]
fn a_checkpoint_older_than_the_trimmed_changelog_is_replaced() {
    let stream = Stream::new(broker(), "log-older", RECORDS);
    stream.begin(RECORDS / 4);
    let (state, old) = (stream.setup.state_dir("a"), stream.setup.dir().join("old"));
    fs::rename(&state, &old).expect("it can be moved");
    let ends: Vec<_> = (0..4).map(|partition| log_end(&changelog(&stream), partition)).collect();
    let mut worker = start(&stream, "a");
    // Produces in two steps to get at least two transactions.
    for (from, to) in [(RECORDS / 4, RECORDS / 2), (RECORDS / 2, 3 * RECORDS / 4)] {
        stream.produce(from..to);
        stream.wait_until_read(to, &mut worker);
    }
    // The window has moved on, so the worker trims the changelog past the position of the old checkpoint.
    for (partition, end) in (0..).zip(ends) {
        wait_until("the changelog is trimmed past the old state", LIMIT, || {
            (first_offset(&stream.broker, &changelog(&stream), partition) >= end).then_some(())
        });
    }
    worker.drain();
    fs::remove_dir_all(&state).and_then(|()| fs::rename(&old, &state)).expect("it can be put back");
    expire_input(&stream);
    stream.produce(3 * RECORDS / 4..);
    let log = stream.check(start(&stream, "a"));
    assert!(log.contains("state rebuilt from the changelog"), "{log}");
}

fn log_end(changelog: &str, partition: i32) -> i64 {
    let reader: BaseConsumer = client(broker()).set("group.id", "nobody").create().expect("a consumer");
    reader.fetch_watermarks(changelog, partition, LIMIT).expect("the broker answers").1
}

/// Leaves a transaction open in partitions of the changelog. A worker that rebuilds one of these partitions must wait until the transaction
/// ends.
fn leave_open(stream: &Stream, partitions: &[i32]) -> BaseProducer {
    let stranger: BaseProducer = client(&stream.broker)
        .set("transactional.id", stream.setup.group().to_owned() + "-stranger")
        .set("transaction.timeout.ms", "300000")
        .create()
        .expect("a producer");
    stranger.init_transactions(LIMIT).expect("transactions");
    stranger.begin_transaction().expect("a transaction");
    for &partition in partitions {
        stranger.send(BaseRecord::<[u8], [u8]>::to(&changelog(stream)).partition(partition).payload(b"never committed")).expect("a record");
    }
    stranger.flush(LIMIT).expect("the records are written");
    stranger
}

/// An open transaction blocks two partitions, and the worker has only two rebuild threads. The worker must still rebuild, read, and trim
/// the other partitions.
#[test]
fn open_transactions_hold_up_only_their_own_partitions() {
    let stream = Stream::new(broker(), "log-wait", RECORDS);
    stream.begin(RECORDS / 2);
    fs::remove_dir_all(stream.setup.state_dir("a")).expect("it can be deleted");
    let stranger = leave_open(&stream, &[0, 1]);
    stream.produce(RECORDS / 2..);
    let committed = |partition| committed_offset(&stream.broker, stream.setup.group(), &stream.input, partition);
    let before = [0, 1].map(committed);
    let others = [2, 3].map(|partition| (partition, first_offset(&stream.broker, &changelog(&stream), partition)));
    let worker = start(&stream, "a");
    for (partition, trimmed_to) in others {
        let end = stream.records.iter().filter(|record| record.partition == partition).count();
        wait_until("the other partitions are read", LIMIT, || (committed(partition) == i64::try_from(end).ok()).then_some(()));
        wait_until("their changelog is trimmed", LIMIT, || {
            (first_offset(&stream.broker, &changelog(&stream), partition) > trimmed_to).then_some(())
        });
    }
    assert_eq!([0, 1].map(committed), before, "a partition was read before its state was there");
    stranger.abort_transaction(LIMIT).expect("it is aborted");
    stream.check(worker);
}

/// A key space with one partition and four slices of one minute. Each commit has at most ten records.
struct Sliced {
    setup: Setup,
    input: String,
    output: String,
    changelog: String,
    end: i64,
}

impl Sliced {
    fn new() -> Self {
        let (input, output) = (topic(broker(), "log-new-in", 1), topic(broker(), "log-new-out", 1));
        let setup = Setup::new(broker(), "log-new").worker("max_transaction_records = 10").topic(
            &input,
            &output,
            "space = \"news\"\nkey = { record = \"key\" }\nwindow = \"4m\"\nfilter = { kind = \"exact\" }",
        );
        let changelog = format!("{}-news-changelog", setup.group());
        Self { setup, input, output, changelog, end: 0 }
    }

    fn record(key: i64, slice: i64) -> TestRecord {
        let timestamp = (28_333_334 + slice) * 60_000 + key % 1000;
        TestRecord { key: Some(key.to_string().into_bytes()), timestamp, ..TestRecord::default() }
    }

    fn fill(slice: i64, count: i64) -> impl Iterator<Item = TestRecord> {
        (0..count).map(move |number| Self::record(1000 * slice + number, slice))
    }

    fn read(&mut self, records: impl Iterator<Item = TestRecord>, worker: &mut Worker) {
        let records: Vec<_> = records.collect();
        self.end += i64::try_from(records.len()).expect("few records");
        produce(broker(), &self.input, records);
        wait_until("the records are read", LIMIT, || {
            assert!(worker.runs(), "the worker ended");
            (committed_offset(broker(), self.setup.group(), &self.input, 0) == Some(self.end)).then_some(())
        });
    }
}

/// The new changelog has records at the offsets of expired slices of the old changelog. The worker must not delete these records.
#[test]
fn changelog_that_is_recreated_under_a_worker_is_not_trimmed() {
    let mut sliced = Sliced::new();
    let mut worker = sliced.setup.start("a");
    sliced.read((0..4).flat_map(|slice| Sliced::fill(slice, 200)), &mut worker);
    delete_topic(broker(), &sliced.changelog);
    make_topic(broker(), &sliced.changelog, 1);
    produce(broker(), &sliced.changelog, (0..1_000).map(|number| Sliced::record(number, 0)));
    // Because of these 1,000 records, the worker's next commits have higher offsets than its commits in the old changelog. So the offsets
    // do not show the worker that the changelog was recreated.
    sliced.read((4..9).flat_map(|slice| Sliced::fill(slice, 200)), &mut worker);
    let first = || first_offset(broker(), &sliced.changelog, 0);
    wait_until("a slice has expired", LIMIT, || {
        (worker.log().contains("so the offset `before` belongs to the old topic; not deleting the records below it") || first() > 0)
            .then_some(())
    });
    worker.drain();
    assert_eq!(first(), 0, "the new changelog was trimmed by an offset of the old one");
}

/// When a worker trims the new changelog, it must not use offsets of the old one.
#[test]
fn recreated_changelog_keeps_the_keys_of_the_window() {
    let mut sliced = Sliced::new();
    let mut worker = sliced.setup.start("a");
    sliced.read((0..4).flat_map(|slice| Sliced::fill(slice, 200)), &mut worker);
    worker.drain();
    delete_topic(broker(), &sliced.changelog);
    let mut worker = sliced.setup.start_with("a", &["state.cold_start=fail"]);
    worker.wait_for_log("partition restored", LIMIT);
    // The new changelog has more commits per slice, so its slices start at other offsets than the slices of the old changelog. When slice 8
    // begins, the worker deletes all records of slices before slice 4 from the changelog.
    sliced.read((3..9).flat_map(|slice| Sliced::fill(slice, if slice == 3 { 600 } else { 400 })).skip(200), &mut worker);
    wait_until("the changelog is trimmed", LIMIT, || (first_offset(broker(), &sliced.changelog, 0) > 0).then_some(()));
    worker.drain();
    fs::remove_dir_all(sliced.setup.state_dir("a")).expect("the state directory can be deleted");
    let mut worker = sliced.setup.start_with("a", &["state.cold_start=fail"]);
    let before = read_committed(broker(), &sliced.output, 1)[0].len();
    let repeat = |key: i64| TestRecord { timestamp: Sliced::record(0, 8).timestamp, ..Sliced::record(key, 8) };
    sliced.read((4..9).flat_map(|slice| (0..400).map(move |number| 1000 * slice + number)).map(repeat), &mut worker);
    worker.drain();
    assert_eq!(read_committed(broker(), &sliced.output, 1)[0].len(), before, "keys of the window were emitted again");
}

/// A trimmed changelog contains the whole window, but only for the settings with which it was written.
#[test]
fn a_trimmed_changelog_of_other_settings_is_not_a_complete_state() {
    let mut sliced = Sliced::new();
    let mut worker = sliced.setup.start("a");
    sliced.read((0..9).flat_map(|slice| Sliced::fill(slice, 100)), &mut worker);
    wait_until("the changelog is trimmed", LIMIT, || (first_offset(broker(), &sliced.changelog, 0) > 0).then_some(()));
    worker.drain();
    let log = sliced.setup.start_with("a", &["state.cold_start=fail", "topics.0.emit=on_change"]).fails(1);
    assert!(log.contains("cannot restore all seen keys"), "{log}");
}

/// Two topics share a space, and one of them has no new records. After the worker has trimmed the changelog records that mention the idle
/// topic, a new owner must not read the idle topic again. Otherwise, a window by count would count the records of the idle topic twice. In
/// this test, the new owner would stop, because of `cold_start = "fail"`.
#[test]
fn idle_topic_of_a_shared_space_is_not_read_again() {
    let [idle, busy] = ["idle", "busy"].map(|name| topic(broker(), &format!("log-{name}"), 1));
    let output = topic(broker(), "log-shared-out", 1);
    let lines = "space = \"news\"\nkey = { record = \"key\" }\nwindow = { keys = 1000 }\nfilter = { kind = \"exact\" }";
    let setup =
        Setup::new(broker(), "log-idle").worker("max_transaction_records = 10").topic(&idle, &output, lines).topic(&busy, &output, lines);
    let keys = |from: i64, to: i64| (from..to).map(|key| Sliced::record(key, 0)).collect::<Vec<_>>();
    let wait_until_read = |input: &str, end: i64, worker: &mut Worker| {
        wait_until("the records are read", LIMIT, || {
            assert!(worker.runs(), "the worker ended");
            (committed_offset(broker(), setup.group(), input, 0) == Some(end)).then_some(())
        });
    };
    produce(broker(), &idle, keys(0, 300));
    let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
    wait_until_read(&idle, 300, &mut worker);
    let changelog = format!("{}-news-changelog", setup.group());
    let of_idle = log_end(&changelog, 0);
    produce(broker(), &busy, keys(1_000, 4_000));
    wait_until_read(&busy, 3_000, &mut worker);
    wait_until("the changelog is trimmed", LIMIT, || (first_offset(broker(), &changelog, 0) >= of_idle).then_some(()));
    worker.drain();
    fs::remove_dir_all(setup.state_dir("a")).expect("the state directory can be deleted");
    let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
    // Produces the last 1,000 keys again. A window of 1,000 keys must still contain all of them.
    produce(broker(), &busy, keys(3_000, 4_000));
    wait_until_read(&busy, 4_000, &mut worker);
    // The keys of the idle topic have left the window, so they are emitted again.
    produce(broker(), &idle, keys(0, 300));
    wait_until_read(&idle, 600, &mut worker);
    worker.drain();
    assert_eq!(read_committed(broker(), &output, 1)[0].len(), 300 + 3_000 + 300);
}

/// A warm-up writes a bounded number of keys to the changelog at a time, even while the worker processes the records of an aborted
/// transaction again.
#[test]
fn unlogged_keys_of_a_warm_up_are_bounded_while_a_transaction_is_repeated() {
    const BOUND: usize = 500;
    let (input, output) = (topic(broker(), "log-bound-in", 2), topic(broker(), "log-bound-out", 2));
    let setup = Setup::new(broker(), "log-bound").worker("max_transaction_records = 500").topic(
        &input,
        &output,
        "space = \"news\"\nkey = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }",
    );
    let record = |partition: i32, number: i64| TestRecord {
        partition,
        key: Some(number.to_string().into_bytes()),
        value: Some(b"{}".to_vec()),
        timestamp: 1_700_000_000_000,
        ..TestRecord::default()
    };
    let wait_until_read = |partition: i32, end: i64, worker: &mut Worker| {
        wait_until("the records are read", LIMIT, || {
            assert!(worker.runs(), "the worker ended");
            (committed_offset(broker(), setup.group(), &input, partition) == Some(end)).then_some(())
        });
    };
    // Partition 0 must warm up, because neither a checkpoint nor the changelog has its keys.
    let many = 100_000;
    produce(broker(), &input, (0..many).map(|number| record(0, number)));
    let mut worker = setup.start_with("a", &["state.changelog=false", "worker.max_transaction_records=100000"]);
    wait_until_read(0, many, &mut worker);
    worker.drain();
    fs::remove_dir_all(setup.state_dir("a")).expect("the state directory can be deleted");
    // Partition 1 has large records, so a fetch contains few of them and many records of partition 0. Of the first 380 writes of a record,
    // every 20th fails, which aborts the transaction.
    let mut random = SplitMix(1);
    let large = (0..400).map(|number| {
        let mut record = record(1, number);
        record.enlarge(20_000, &mut random);
        record
    });
    produce(broker(), &input, large.collect::<Vec<_>>());
    let aborts: Vec<_> = (1..20).map(|number| format!("transaction.send:{}:error", 20 * number)).collect();
    let mut worker = setup.start_armed("a", &[], &aborts.join(","));
    produce(broker(), &input, [record(0, many)]);
    wait_until_read(0, many + 1, &mut worker);
    wait_until_read(1, 400, &mut worker);
    let log = worker.drain();
    assert!(log.contains("warm_up_records=100000") && log.matches("its records are processed again").count() > 10, "{log}");
    let changelog = read_committed(broker(), &format!("{}-news-changelog", setup.group()), 2);
    let largest = changelog[0].iter().map(|record| record.value.as_ref().map_or(0, Vec::len) / 16).max();
    assert!(largest <= Some(2 * BOUND), "{largest:?} keys were logged at a time");
}

/// With `at_least_once`, keys that were written to the changelog stay there even if the offset commit fails. The worker must not write
/// these keys again.
#[test]
fn failed_offset_commits_do_not_log_keys_twice() {
    let (input, output) = (topic(broker(), "log-once-in", 1), topic(broker(), "log-once-out", 1));
    let setup = Setup::new(broker(), "log-once").worker("delivery = \"at_least_once\"\nmax_transaction_records = 10").topic(
        &input,
        &output,
        "space = \"news\"\nkey = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }",
    );
    let record = |number: i64| TestRecord {
        key: Some(number.to_string().into_bytes()),
        timestamp: 1_700_000_000_000 + number,
        ..TestRecord::default()
    };
    produce(broker(), &input, (0..200).map(record));
    let failures: Vec<_> = (1..10).map(|number| format!("commit.flushed:{}:error", 3 * number)).collect();
    let mut worker = setup.start_armed("a", &[], &failures.join(","));
    wait_until("the records are read", LIMIT, || {
        assert!(worker.runs(), "the worker ended");
        (committed_offset(broker(), setup.group(), &input, 0) == Some(200)).then_some(())
    });
    let log = worker.drain();
    assert!(log.matches("its records are processed again").count() > 5, "{log}");
    let changelog = read_committed(broker(), &format!("{}-news-changelog", setup.group()), 1);
    let values: Vec<_> = changelog[0].iter().filter_map(|record| record.value.as_deref()).collect();
    let mut keys = Vec::new();
    for record in values.into_iter().map(|value| ChangelogRecord::decode(value).expect("a record of a changelog")) {
        keys.extend(record.runs.iter().flat_map(KeyRun::fingerprints).map(|key| key.0));
    }
    let logged = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((logged, keys.len()), (200, 200), "keys that were logged, and distinct ones");
}

#[test]
fn a_partition_can_be_revoked_during_its_rebuild() {
    let stream = Stream::remembered(broker(), "log-revoked", RECORDS);
    stream.begin(RECORDS / 2);
    fs::remove_dir_all(stream.setup.state_dir("a")).expect("it can be deleted");
    let stranger = leave_open(&stream, &[0]);
    stream.produce(RECORDS / 2..);
    let mut worker = start(&stream, "a");
    worker.wait_for_log("partitions assigned", LIMIT);
    let mut heir = start(&stream, "b");
    heir.wait_for_log("partitions assigned", LIMIT);
    worker.drain();
    wait_until("the new owner has all partitions except the waiting one", LIMIT, || {
        (heir.log().matches("partition restored").count() == 3).then_some(())
    });
    stranger.abort_transaction(LIMIT).expect("it is aborted");
    stream.check(heir);
}

#[test]
fn added_partitions_are_read_and_logged() {
    let (input, output) = (topic(broker(), "log-in", 2), topic(broker(), "log-out", 2));
    let setup = Setup::new(broker(), "log-added")
        .worker("commit_interval = \"50ms\"")
        .properties("\"topic.metadata.refresh.interval.ms\" = 500")
        .topic(&input, &output, &Stream::lines(Duration::from_secs(24 * 3600), "filter = { kind = \"exact\" }"));
    let records = |partitions: i32| {
        let spread = |record: TestRecord| TestRecord { partition: record.partition % partitions, ..record };
        News { count: 2_000, ..News::default() }.records().into_iter().map(spread).collect::<Vec<_>>()
    };
    produce(broker(), &input, records(2));
    let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
    worker.wait_for_log("partitions assigned", LIMIT);
    add_partitions(broker(), &output, 4);
    add_partitions(broker(), &input, 4);
    let added: Vec<_> = records(4).into_iter().filter(|record| record.partition >= 2).collect();
    produce(broker(), &input, &added);
    let total = Oracle::new(Duration::from_secs(24 * 3600), 4).expected(&[records(2), added.clone()].concat(), 4);
    let out = wait_for_output(broker(), &output, total.iter().map(Vec::len).sum(), 4, LIMIT, &mut worker);
    assert_same(&total, &out);
    let log = worker.drain();
    assert!(log.contains("partitions were added"), "{log}");
    // The changelog must have the keys of the new partitions, too.
    fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
    produce(broker(), &input, &added);
    let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
    for partition in 2..4 {
        let end = 2 * added.iter().filter(|record| record.partition == partition).count();
        wait_until("all records are read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (committed_offset(broker(), setup.group(), &input, partition) == i64::try_from(end).ok()).then_some(())
        });
    }
    worker.drain();
    assert_same(&total, &read_committed(broker(), &output, 4));
}

/// Only an operator can fix unequal partition counts, so the worker stops. If it retried, it would block the whole group.
#[test]
fn mismatched_partition_counts_stop_the_worker() {
    let (input, output) = (topic(broker(), "log-in", 2), topic(broker(), "log-out", 4));
    let setup = Setup::new(broker(), "log-misfit").properties("\"topic.metadata.refresh.interval.ms\" = 500").topic(
        &input,
        &output,
        &Stream::lines(Duration::from_secs(60), "filter = { kind = \"exact\" }"),
    );
    let mut worker = setup.start("a");
    worker.wait_for_log("partition restored", LIMIT);
    add_partitions(broker(), &format!("{}-news-changelog", setup.group()), 8);
    add_partitions(broker(), &input, 4);
    let log = worker.fails(1);
    assert!(log.contains("has 8 partitions, but its space has 4, and the counts must be equal; keep the state directories"), "{log}");
}

#[test]
fn changelog_that_could_lose_records_is_rejected() {
    let (input, output) = (topic(broker(), "log-in", 2), topic(broker(), "log-out", 2));
    let refused = |partitions: u32, properties: &[(&str, &str)], sentence: &str| {
        let setup = Setup::new(broker(), "log-refused").topic(
            &input,
            &output,
            &Stream::lines(Duration::from_secs(60), "filter = { kind = \"exact\" }"),
        );
        let name = format!("{}-news-changelog", setup.group());
        make_topic_with(broker(), &name, partitions, properties);
        let log = setup.start("a").fails(1);
        assert!(log.contains(sentence), "{log}");
    };
    refused(3, &[], "has 3 partitions, but its space has 2, and the counts must be equal");
    refused(2, &[("cleanup.policy", "compact")], "has cleanup.policy=compact; set it to delete");
    refused(2, &[("retention.ms", "1000")], "has retention.ms=1000; set it to -1");
}

#[test]
fn compression_does_not_change_a_rebuilt_state() {
    for (compression, of_topic) in [("none", "producer"), ("gzip", "producer"), ("snappy", "lz4"), ("lz4", "uncompressed")] {
        let stream = Stream::remembered(broker(), "log-pressed", 4_000)
            .with(|setup| setup.properties(&format!("\"compression.type\" = \"{compression}\"")).worker("max_transaction_records = 500"));
        let settings = [("retention.ms", "-1"), ("compression.type", of_topic), ("message.timestamp.after.max.ms", "9223372036854775807")];
        make_topic_with(broker(), &changelog(&stream), 4, &settings);
        stream.begin(4_000);
        let before = digests(&stream, "a");
        fs::remove_dir_all(stream.setup.state_dir("a")).expect("it can be deleted");
        expire_input(&stream);
        let worker = start(&stream, "a");
        wait_until("all partitions are restored", LIMIT, || (worker.log().matches("partition restored").count() == 4).then_some(()));
        worker.drain();
        assert_eq!(digests(&stream, "a"), before, "compressed by {compression}, then by {of_topic}");
    }
}
