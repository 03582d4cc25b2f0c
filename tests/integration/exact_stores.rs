//! Promise: if a filter keeps its keys on disk, the keys and their retractions survive kills. Lookups work even if the disk is full.

use crate::harness::{News, RETRACT, TestRecord, broker, topic, wait_until};
use crate::stream::{LIMIT, Stream};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

const RECORDS: usize = 60_000;
const KILLS: usize = 2;

fn news() -> Vec<TestRecord> {
    News { count: RECORDS, ..News::default() }.records()
}

/// Every tenth record retracts its key.
fn with_regrets() -> Vec<TestRecord> {
    let mut records = news();
    records.iter_mut().step_by(10).for_each(|record| record.headers.push((RETRACT.to_owned(), None)));
    records
}

/// Records whose field `/padding` has one of two values.
fn with_states() -> Vec<TestRecord> {
    let mut records = news();
    for (number, record) in records.iter_mut().enumerate() {
        record.pad(&(number / 3 % 2).to_string());
    }
    records
}

/// The records whose `/padding` differs from that of the previous record with the same key, by partition. The first record of each key is
/// included.
fn changes(records: &[TestRecord]) -> Vec<Vec<TestRecord>> {
    let (mut states, mut changes) = (HashMap::new(), vec![Vec::new(); 4]);
    for record in records {
        let state = record.text().ends_with("\"1\"}");
        if states.insert(record.key.clone(), state) != Some(state) {
            changes[usize::try_from(record.partition).expect("a partition")].push(record.clone());
        }
    }
    changes
}

/// Runs workers that are killed while they read the records. Compares the output with the exact window.
fn killed(hint: &str, records: Vec<TestRecord>, lines: &str) {
    let output = topic(broker(), &format!("{hint}-out"), 4);
    let stream = Stream::remembered_by(broker(), hint, output, records, Duration::from_secs(20 * 60), lines);
    killed_in(stream, hint);
}

fn killed_in(stream: Stream, hint: &str) {
    let stream = stream.with(|setup| setup.kafka(&format!("instance_id = \"{hint}\"")));
    let part = stream.records.len() / (KILLS + 1);
    let mut worker = stream.setup.start("a");
    for kill in 0..KILLS {
        stream.produce(kill * part..(kill + 1) * part);
        // When the worker is killed, usually only some of these records are committed, and the last checkpoint contains only some of the
        // committed records.
        stream.wait_until_read((kill * part) + part / 2, &mut worker);
        worker.kill9();
        worker = stream.setup.start("a");
    }
    stream.produce(KILLS * part..);
    stream.check(worker);
}

#[test]
fn retracted_keys_of_an_exact_filter_survive_kills() {
    killed("exact", with_regrets(), "retract = { header = \"retract\" }\nfilter = { kind = \"exact\" }");
}

#[test]
fn retracted_keys_of_a_confirmed_filter_survive_kills() {
    let filter = "filter = { kind = \"aging\", capacity = \"100k\", false_positive_rate = 0.1, confirm = true }";
    killed("confirmed", with_regrets(), &format!("retract = {{ header = \"retract\" }}\n{filter}"));
}

#[test]
fn changed_contents_survive_kills() {
    let lines = "emit = { on_change = { field = \"/padding\" } }\nfilter = { kind = \"exact\" }";
    let output = topic(broker(), "change-out", 4);
    let mut stream = Stream::remembered_by(broker(), "change", output, with_states(), Duration::from_secs(24 * 3600), lines);
    stream.expected = changes(&stream.records);
    let emitted = stream.expected.iter().map(Vec::len).sum::<usize>();
    let keys = stream.records.iter().map(|record| &record.key).collect::<HashSet<_>>().len();
    assert!(emitted > keys * 5 / 4 && emitted < RECORDS * 9 / 10, "{emitted} of {RECORDS} records with {keys} keys are changes");
    killed_in(stream, "change");
}

/// A full disk is simulated by a file size limit of 1 KiB. The worker cannot write checkpoints, but it still looks up keys on disk.
#[test]
fn keys_stay_seen_on_a_full_disk() {
    let confirmed = "filter = { kind = \"aging\", capacity = \"10k\", false_positive_rate = 0.3, confirm = true }";
    for (hint, filter) in [("room-exact", "filter = { kind = \"exact\" }"), ("room-confirmed", confirmed)] {
        let output = topic(broker(), &format!("{hint}-out"), 4);
        let stream = Stream::remembered_by(broker(), hint, output, news(), Duration::from_secs(20 * 60), filter)
            .with(|setup| setup.kafka(&format!("instance_id = \"{hint}\"")));
        let third = stream.records.len() / 3;
        stream.produce(..third);
        let mut worker = stream.setup.start_armed("a", &["log.level=info,unseen=debug"], "");
        stream.wait_until_read(third, &mut worker);
        worker.limit_files(1 << 10);
        stream.produce(third..2 * third);
        worker.wait_for_log("checkpoint failed; the worker continues and tries again at the next checkpoint", LIMIT);
        stream.wait_until_read(2 * third, &mut worker);

        let full = worker.log().len();
        worker.lift_file_limit();
        stream.produce(2 * third..);
        wait_until("checkpoints are written again", LIMIT, || {
            let since = &worker.log()[full..];
            (0..4).all(|partition| since.contains(&format!("checkpoint written partition=news[{partition}]"))).then_some(())
        });
        worker.kill9();
        stream.check(stream.setup.start_with("a", &["state.cold_start=fail"]));
    }
}
