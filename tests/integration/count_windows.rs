//! Promise: what a window by count remembers comes back from the changelog, for each kind of filter.

use crate::harness::{Setup, TestRecord, Worker, broker, client, committed_offset, produce, read_committed, topic, wait_until};
use crate::stream::LIMIT;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::fs;

const KEYS: usize = 2_000;

fn records(range: std::ops::Range<usize>) -> Vec<TestRecord> {
    range
        .map(|number| TestRecord {
            key: Some(format!("key-{number}").into_bytes()),
            value: Some(number.to_string().into_bytes()),
            timestamp: 1_700_000_000_000,
            ..TestRecord::default()
        })
        .collect()
}

/// Waits until all of so many records are committed.
fn read(setup: &Setup, input: &str, worker: &mut Worker, count: usize) {
    wait_until("all is read", LIMIT, || {
        assert!(worker.runs(), "the worker has ended");
        (committed_offset(broker(), setup.group(), input, 0) == i64::try_from(count).ok()).then_some(())
    });
}

/// The first offset of a topic's partition, and the one after its last.
fn ends(topic: &str) -> (i64, i64) {
    let reader: BaseConsumer = client(broker()).create().expect("a consumer");
    reader.fetch_watermarks(topic, 0, LIMIT).expect("the broker answers")
}

#[test]
fn they_outlive_their_disk() {
    for (hint, filter) in [
        ("count-aging", "{ kind = \"aging\", false_positive_rate = 1e-9 }"),
        ("count-cuckoo", "{ kind = \"cuckoo\", false_positive_rate = 1e-9 }"),
        ("count-exact", "{ kind = \"exact\" }"),
        ("count-confirmed", "{ kind = \"aging\", false_positive_rate = 0.1, confirm = true }"),
    ] {
        let (input, output) = (topic(broker(), hint, 1), topic(broker(), &format!("{hint}-out"), 1));
        let lines = format!("space = \"ids\"\nkey = {{ record = \"key\" }}\nwindow = {{ keys = 1000000 }}\nfilter = {filter}");
        let setup = Setup::new(broker(), hint).worker("commit_interval = \"50ms\"").topic(&input, &output, &lines);
        let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
        for part in 0..4 {
            produce(broker(), &input, records(part * KEYS / 4..(part + 1) * KEYS / 4));
            read(&setup, &input, &mut worker, (part + 1) * KEYS / 4);
        }
        worker.drain();
        fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
        produce(broker(), &input, records(0..KEYS));
        let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
        read(&setup, &input, &mut worker, 2 * KEYS);
        let log = worker.drain();
        assert!(log.contains("state rebuilt from the changelog"), "{log}");
        let out = read_committed(broker(), &output, 1);
        assert_eq!(out[0].len(), KEYS, "{hint}: keys came out again");
    }
}

/// Of a window of 200 keys, in four slices: a worker that starts anew before each of them is over.
#[test]
fn their_changelog_is_trimmed_by_workers_that_do_not_live_for_a_window() {
    let stable = "{ kind = \"stable\", memory = \"1KiB\", false_positive_rate = 0.01 }";
    for (hint, window, filter) in [("count-trim", "{ keys = 200 }", "{ kind = \"exact\" }"), ("count-stable", "\"24h\"", stable)] {
        let (input, output) = (topic(broker(), hint, 1), topic(broker(), &format!("{hint}-out"), 1));
        let lines = format!("space = \"ids\"\nkey = {{ record = \"key\" }}\nwindow = {window}\nfilter = {filter}");
        let setup = Setup::new(broker(), hint).worker("commit_interval = \"20ms\"").topic(&input, &output, &lines);
        let changelog = format!("{}-ids-changelog", setup.group());
        let (mut count, mut starts) = (0, 0);
        let part = if filter == stable { 20_000 } else { 40 };
        wait_until("the changelog is trimmed", LIMIT, || {
            starts += 1;
            assert!(starts < 60, "{hint}: {count} keys, and nothing is trimmed");
            // Once in a while without its state, so that it is made anew from the changelog.
            if starts % 5 == 0 {
                fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
            }
            let mut worker = setup.start_with("a", &["state.cold_start=fail", "log.level=info,unseen=debug"]);
            produce(broker(), &input, records(count..count + part));
            count += part;
            read(&setup, &input, &mut worker, count);
            if starts > 8 {
                // A window is over by now; this is done beside the work.
                worker.wait_for_log(" trimmed ", LIMIT);
            }
            worker.drain();
            let (first, end) = ends(&changelog);
            (starts >= 12 && first > end / 2).then_some(())
        });
    }
}
