//! Promise: `unseen dlq redrive` writes each dead letter back once, as the record that it was, through kills, repeated commands, and commands
//! at the same time.

use crate::harness::{
    PATIENCE, Setup, SplitMix, TestRecord, Worker, alter_topic, broker, by_partition, delete_topic, make_topic, produce, read_committed,
    topic, topic_with, unseen, unseen_with, wait_for_output, wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

const PARTITIONS: usize = 4;
const START: i64 = 1_735_689_600_000;
const LIMIT: Duration = Duration::from_secs(120);

/// A configuration whose dead letters come from a worker or from a test.
struct Dead {
    setup: Setup,
    input: String,
    output: String,
    letters: String,
}

impl Dead {
    fn new(hint: &str) -> Self {
        Self::with_topics(topic(broker(), &format!("{hint}-in"), 4), topic(broker(), &format!("{hint}-out"), 4), hint)
    }

    fn with_topics(input: String, output: String, hint: &str) -> Self {
        let letters = topic(broker(), &format!("{hint}-dead"), 4);
        let lines = format!(
            "key = {{ field = \"/id\" }}\nwindow = \"24h\"\nfilter = {{ capacity = 10000 }}\non_invalid = {{ topic = \"{letters}\" }}"
        );
        let setup = Setup::new(broker(), hint).topic(&input, &output, &lines);
        Self { setup, input, output, letters }
    }

    /// Writes the dead letters of these records for a reason. They are in the order of the records, and the input is empty.
    fn bury(&self, records: &[TestRecord], reason: &str) {
        let letters =
            (0..).zip(records).map(|(offset, record)| record.dead_letter(&self.input, offset, &format!("unseen.{reason}"), "why"));
        produce(broker(), &self.letters, letters.collect::<Vec<_>>());
    }

    fn redrive_with(&self, args: &[&str], faults: &str) -> (Option<i32>, String, String) {
        let config = self.setup.write_config("a").display().to_string();
        let environment = if faults.is_empty() { vec![] } else { vec![("UNSEEN_FAULT".to_owned(), faults.to_owned())] };
        unseen_with([&["dlq", "redrive", "-c", &config], args].concat(), &environment)
    }

    /// Redrives successfully, and returns the report.
    fn redrive(&self, args: &[&str]) -> Value {
        let (code, out, error) = self.redrive_with(&[args, &["--json"]].concat(), "");
        assert_eq!(code, Some(0), "{error}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    fn refused(&self, args: &[&str], why: &str) {
        let (code, _, error) = self.redrive_with(args, "");
        assert!(code == Some(1) && error.contains(why), "{code:?}: {error}");
    }

    fn input(&self) -> Vec<Vec<TestRecord>> {
        read_committed(broker(), &self.input, PARTITIONS)
    }
}

/// Records without a key, with all that a record can have.
fn records(count: usize) -> Vec<TestRecord> {
    let header = |value: Option<&[u8]>| ("h".to_owned(), value.map(<[u8]>::to_vec));
    let record = |number: usize| TestRecord {
        partition: i32::try_from(number % PARTITIONS).expect("few"),
        key: (!number.is_multiple_of(3)).then(|| format!("k{number}").into_bytes()),
        value: Some(format!("{{\"n\":{number}").into_bytes()),
        headers: match number % 4 {
            0 => vec![],
            1 => vec![header(None), header(Some(b"\xff")), header(Some(b""))],
            _ => vec![("__connect.errors.topic".to_owned(), Some(b"elsewhere".to_vec()))],
        },
        timestamp: START + i64::try_from(number).expect("few"),
    };
    (0..count).map(record).collect()
}

#[test]
fn dead_letters_of_a_worker_are_redriven_once_and_unchanged() {
    let dead = Dead::new("redrive");
    let records = records(100);
    produce(broker(), &dead.input, &records);
    let mut worker = dead.setup.start("a");
    wait_for_output(broker(), &dead.letters, records.len(), PARTITIONS, LIMIT, &mut worker);
    worker.drain();
    let kinds = json!([{ "input": dead.input, "reason": "malformed", "target": dead.input, "redriven": 100 }]);
    for (args, dry_run) in [(&["--dry-run"][..], true), (&["--dry-run"], true), (&[], false)] {
        let expected = json!({ "redriven": 100, "kinds": kinds, "left_out": [], "skipped": 0, "dry_run": dry_run });
        assert_eq!(dead.redrive(args), expected);
    }
    let twice: Vec<_> = records.iter().chain(&records).cloned().collect();
    assert_eq!(dead.input(), by_partition(twice.clone(), PARTITIONS));
    assert_eq!(dead.redrive(&[])["redriven"], 0);

    // They fail again, and so can be redriven again.
    let mut worker = dead.setup.start("a");
    wait_for_output(broker(), &dead.letters, 2 * records.len(), PARTITIONS, LIMIT, &mut worker);
    worker.drain();
    let (code, out, error) = dead.redrive_with(&[], "");
    assert!(code == Some(0) && out.starts_with("redrove 100 dead letters\n  "), "{out}{error}");
    assert_eq!(dead.input(), by_partition(twice.into_iter().chain(records), PARTITIONS));
}

/// A redrive is killed in its second transaction, and the next one continues.
#[test]
fn a_killed_redrive_continues() {
    let records = records(2_500);
    for fault in ["outsider.written:2:kill", "outsider.offsets_sent:2:kill", "outsider.committed:2:kill"] {
        let dead = Dead::new("redrive-killed");
        dead.bury(&records, "missing_key");
        assert_eq!(dead.redrive_with(&[], fault).0, None, "it was killed at {fault}");
        // At most 1,000 per transaction.
        let left = dead.redrive(&[])["redriven"].as_u64();
        let fewest = if fault.starts_with("outsider.committed") { 500 } else { 1500 };
        assert!(left.is_some_and(|left| left >= fewest && left < 2_500), "{fault}: {left:?}");
        assert_eq!(dead.input(), by_partition(records.clone(), PARTITIONS), "{fault}");
        assert_eq!(dead.redrive(&[])["redriven"], 0);
    }
}

/// A redrive stops before it commits, for example because its machine is suspended, and another one starts.
#[test]
fn a_second_redrive_fences_the_first() {
    let (dead, records) = (Dead::new("redrive-fenced"), records(1_500));
    dead.bury(&records, "missing_key");
    let config = dead.setup.write_config("a");
    let mut first = Worker::redrive(&config, "outsider.offsets_sent:1:stop", &dead.setup.dir().join("log"));
    wait_until("the first redrive stops", LIMIT, || {
        let status = fs::read_to_string(format!("/proc/{}/status", first.pid())).expect("it has not ended");
        status.contains("State:\tT").then_some(())
    });
    assert_eq!(dead.redrive(&[])["redriven"], 1_500);
    first.sigcont();
    let log = first.fails(1);
    assert!(log.contains("another redrive of this group has started"), "{log}");
    assert_eq!(dead.input(), by_partition(records, PARTITIONS));
}

/// A later redrive writes the dead letters that this one does not select. Records that the worker would not emit again go to the output.
#[test]
fn selected_dead_letters_are_redriven_and_others_are_left() {
    let (dead, records) = (Dead::new("redrive-some"), records(30));
    for (reason, range) in [("malformed", 0..10), ("oversize", 10..20), ("late", 20..30)] {
        dead.bury(&records[range], reason);
    }
    // No dead letters of this configuration.
    let foreign = records[0].dead_letter("other", 0, "unseen.malformed", "why");
    let unknown = records[1].dead_letter(&dead.input, 0, "unseen.newer", "why");
    produce(broker(), &dead.letters, [&foreign, &unknown, &records[2]]);
    let left = |reasons: &[&str]| -> Value { reasons.iter().map(|reason| json!({ "input": dead.input, "reason": reason })).collect() };
    let check = |args: &[&str], redriven: usize, reasons: &[&str], skipped: usize| {
        let report = dead.redrive(args);
        assert_eq!([&report["redriven"], &report["skipped"]], [&json!(redriven), &json!(skipped)], "{args:?}");
        assert_eq!(report["left_out"], left(reasons), "{args:?}");
    };
    check(&["--reason", "null_key"], 0, &["late", "malformed", "oversize"], 3);
    check(&["--limit", "4"], 4, &["late", "malformed", "oversize"], 0);
    check(&[], 6, &["late", "oversize"], 0);
    assert_eq!(dead.input(), by_partition(records[..10].iter().cloned(), PARTITIONS));
    check(&["--reason", "oversize,malformed"], 10, &["late"], 0);
    check(&["--topic", &dead.input, "--reason", "late"], 10, &[], 0);
    assert_eq!(read_committed(broker(), &dead.output, PARTITIONS), by_partition(records[10..].iter().cloned(), PARTITIONS));
    assert_eq!(dead.input(), by_partition(records[..10].iter().cloned(), PARTITIONS));
    check(&[], 0, &[], 0);

    // The dead letters of a recreated topic are new.
    delete_topic(broker(), &dead.letters);
    make_topic(broker(), &dead.letters, 4);
    dead.bury(&records[..2], "malformed");
    check(&[], 2, &[], 0);
}

/// The topic accepts no batch of the usual size, and then not every record.
#[test]
fn a_rejected_dead_letter_is_named() {
    let output = topic_with(broker(), "redrive-small-out", 4, &[("max.message.bytes", "2000")]);
    let dead = Dead::with_topics(topic(broker(), "redrive-small-in", 4), output, "redrive-small");
    let mut records = records(40);
    let mut random = SplitMix(3);
    for record in &mut records {
        record.value = Some(b"{}".to_vec());
        record.headers.clear();
        record.enlarge(500, &mut random);
    }
    dead.bury(&records, "oversize");
    let all = ["--reason", "oversize"];
    assert_eq!(dead.redrive(&all)["redriven"], 40);
    let mut large = records[5].clone();
    large.enlarge(3_000, &mut random);
    dead.bury(std::slice::from_ref(&large), "oversize");
    let place = format!("topic {:?} rejects the dead letter at {}[1] offset 10: the record has ", dead.output, dead.letters);
    dead.refused(&all, &place);
    alter_topic(broker(), &dead.output, "max.message.bytes", "5000");
    assert_eq!(dead.redrive(&all)["redriven"], 1);
    let expected = by_partition(records.into_iter().chain([large]), PARTITIONS);
    assert_eq!(read_committed(broker(), &dead.output, PARTITIONS), expected);
}

#[test]
fn errors_say_what_to_do() {
    let dead = Dead::new("redrive-errors");
    dead.refused(&["--topic", "other"], "--topic: expected one of ");
    let config = dead.setup.write_config("b").display().to_string();
    let (code, _, error) = unseen(["dlq", "redrive", "-c", &config, "--set", "topics.0.on_invalid=drop"]);
    let none = "no selected topic has a dead-letter topic; set on_invalid = { topic = \"...\" }";
    assert!(code == Some(1) && error.contains(none), "{code:?}: {error}");
    delete_topic(broker(), &dead.letters);
    wait_until("the topic is deleted", PATIENCE, || {
        let (code, _, error) = dead.redrive_with(&[], "");
        let is_missing = error.contains(&format!("dead-letter topic {:?} does not exist; create it, or correct on_invalid", dead.letters));
        (code == Some(1) && is_missing).then_some(())
    });
}
