//! Promise: the replay of a recorded stream gives the same verdicts as the live run, including the false positives.

use crate::harness::{Setup, TestRecord, assert_same, broker, by_partition, logged, produce, unseen};
use crate::stream::{PARTITIONS, Stream};
use serde_json::json;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

const RECORDS: usize = 200_000;

/// This filter is far too small. It drops more than a thousand unseen records, and a replay must drop the same records.
const SMALL: &str = "space = \"news\"\nkey = [{ field = \"/user_id\" }, { field = \"/news_id\" }]\nwindow = \"20m\"\n\
    filter = { kind = \"aging\", capacity = \"4k\", false_positive_rate = 0.05, slices = 4 }";

#[test]
fn replay_gives_the_verdicts_of_the_live_run() {
    let mut stream = Stream::new(broker(), "replay", RECORDS);
    stream.setup = Setup::new(broker(), "replay").topic(&stream.input, &stream.output, SMALL);
    produce(broker(), &stream.input, &stream.records);
    let mut worker = stream.setup.start("a");
    stream.wait_until_read(RECORDS, &mut worker);
    worker.drain();
    let live = stream.output();

    let count = |records: &[Vec<TestRecord>]| records.iter().map(Vec::len).sum::<usize>();
    assert!(count(&live) + 1000 < count(&stream.expected), "the filter is small enough to err");
    assert_same(&live, &by_partition(replay(&stream), PARTITIONS));
}

/// The records that a condition does not select pass through, in a live run, in a replay, and in an explanation.
#[test]
fn a_condition_selects_the_same_records_live_and_in_a_replay() {
    let mut stream = Stream::new(broker(), "replay-when", 6_000);
    for record in stream.records.iter_mut().step_by(3) {
        let value = record.text().trim_end_matches('}').to_owned();
        record.value = Some(format!("{value},\"kind\":\"view\"}}").into_bytes());
    }
    let lines = format!("when = {{ not = {{ field = \"/kind\", equals = \"view\" }} }}\n{SMALL}");
    stream.setup = Setup::new(broker(), "replay-when").topic(&stream.input, &stream.output, &lines);
    produce(broker(), &stream.input, &stream.records);
    let mut worker = stream.setup.start("a");
    stream.wait_until_read(6_000, &mut worker);
    let log = worker.drain();
    let live = stream.output();
    assert_same(&live, &by_partition(replay(&stream), PARTITIONS));

    let passes = |record: &&TestRecord| record.text().ends_with("\"kind\":\"view\"}");
    assert_eq!(logged(&log, "passed"), 2_000, "{log}");
    for (partition, records) in (0..).zip(&live) {
        let expected: Vec<_> = stream.records.iter().filter(|record| record.partition == partition).filter(passes).collect();
        assert_eq!(records.iter().filter(passes).collect::<Vec<_>>(), expected, "partition {partition}");
    }
    let config = stream.setup.write_config("a").display().to_string();
    let of_first = stream.records.iter().filter(|record| record.partition == 0);
    for (offset, record) in of_first.enumerate().take(6) {
        let (code, shown, error) = unseen(["explain", "-c", &config, &stream.input, "0", &offset.to_string(), "--json"]);
        assert_eq!(code, Some(0), "{error}");
        assert_eq!(shown.contains("\"verdict\": \"passed\""), passes(&record), "{offset}: {shown}");
    }
}

/// Runs `unseen replay` on the stream's records, in the format of `kcat -J`.
fn replay(stream: &Stream) -> Vec<TestRecord> {
    let mut recorded = String::new();
    let mut by_line = HashMap::new();
    for (offset, record) in stream.records.iter().enumerate() {
        let text = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let line = json!({
            "topic": stream.input, "partition": record.partition, "offset": offset, "tstype": "create", "ts": record.timestamp,
            "broker": 1, "key": text(&record.key), "payload": text(&record.value),
        })
        .to_string();
        writeln!(recorded, "{line}").expect("text grows");
        by_line.insert(line, record);
    }
    let mut process = Command::new(env!("CARGO_BIN_EXE_unseen"))
        .args(["replay", "--format", "kcat", "--partitions", "4", "--truth", "-c"])
        .arg(stream.setup.write_config("a"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = process.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || stdin.write_all(recorded.as_bytes()));
    let ended = process.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("it reads all");
    let summary = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "replay ended with {}: {summary}", ended.status);
    assert!(summary.contains("false positives"), "the summary tells the truth: {summary}");
    let lines = std::str::from_utf8(&ended.stdout).expect("what came in as UTF-8").lines();
    lines.map(|line| (*by_line.get(line).expect("each line as it came")).clone()).collect()
}
