//! Promise: the worker trims the changelog of a window by count or of a stable filter, even if every worker runs only for a part of the
//! window.

use crate::harness::{Setup, TestRecord, Worker, broker, client, committed_offset, produce, topic, wait_until};
use crate::stream::LIMIT;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::fs;

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

/// Waits until the committed offset of partition 0 is `count`.
fn read(setup: &Setup, input: &str, worker: &mut Worker, count: usize) {
    wait_until("all records are read", LIMIT, || {
        assert!(worker.runs(), "the worker has ended");
        (committed_offset(broker(), setup.group(), input, 0) == i64::try_from(count).ok()).then_some(())
    });
}

/// The start and end offsets of partition 0.
fn ends(topic: &str) -> (i64, i64) {
    let reader: BaseConsumer = client(broker()).create().expect("a consumer");
    reader.fetch_watermarks(topic, 0, LIMIT).expect("the broker answers")
}

/// With the exact filter, each worker reads 100 keys: half of a window of 200 keys in four slices. With the stable filter, each worker
/// reads 20,000 keys.
#[test]
fn short_lived_workers_trim_the_changelog() {
    let stable = "{ kind = \"stable\", memory = \"1KiB\", false_positive_rate = 0.01 }";
    for (hint, window, filter) in [("count-trim", "{ keys = 200 }", "{ kind = \"exact\" }"), ("count-stable", "\"24h\"", stable)] {
        let (input, output) = (topic(broker(), hint, 1), topic(broker(), &format!("{hint}-out"), 1));
        let lines = format!("space = \"ids\"\nkey = {{ record = \"key\" }}\nwindow = {window}\nfilter = {filter}");
        let setup = Setup::new(broker(), hint).worker("commit_interval = \"20ms\"").topic(&input, &output, &lines);
        let changelog = format!("{}-ids-changelog", setup.group());
        let (mut count, mut starts) = (0, 0);
        let part = if filter == stable { 20_000 } else { 100 };
        wait_until("the changelog is trimmed", LIMIT, || {
            starts += 1;
            assert!(starts < 60, "{hint}: {count} keys, and nothing is trimmed");
            // Every fifth worker rebuilds its state from the changelog.
            if starts % 5 == 0 {
                fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
            }
            let mut worker = setup.start_with("a", &["state.cold_start=fail", "log.level=info,unseen=debug"]);
            produce(broker(), &input, records(count..count + part));
            count += part;
            read(&setup, &input, &mut worker, count);
            if starts > 4 {
                // By now, the changelog has keys that are no longer needed. Trimming runs in the background, so the test waits for it.
                worker.wait_for_log("deleted records that are no longer needed", LIMIT);
            }
            worker.drain();
            let (first, end) = ends(&changelog);
            (starts >= 7 && first > end / 2).then_some(())
        });
    }
}
