//! Promise: `unseen dlq redrive` writes each dead letter back once, as the original record, through kills, repeated commands, and
//! concurrent commands.

use crate::harness::{
    OwnBroker, PATIENCE, Setup, SplitMix, TestRecord, Worker, alter_topic, api, broker, by_partition, delete_topic, front, make_topic,
    produce, read_committed, topic, topic_with, unique, unseen, unseen_with, wait_for_output, wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PARTITIONS: usize = 4;
const START: i64 = 1_735_689_600_000;
const LIMIT: Duration = Duration::from_secs(120);
const END_TXN: i16 = 26;
const TXN_OFFSET_COMMIT: i16 = 28;

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
        let setup = Setup::new(broker(), hint).topic(&input, &output, &lines(&letters));
        Self { setup, input, output, letters }
    }

    /// Writes a dead letter for each of these records. The input itself stays empty.
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

    fn redrive(&self, args: &[&str]) -> Value {
        let (code, out, error) = self.redrive_with(&[args, &["--json"]].concat(), "");
        assert_eq!(code, Some(0), "{error}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// Redrives when some dead letters cannot be written. Panics unless the exit code is 1. Returns the report and stderr.
    fn redrive_in_part(&self, args: &[&str]) -> (Value, String) {
        let (code, out, error) = self.redrive_with(&[args, &["--json"]].concat(), "");
        assert_eq!(code, Some(1), "{out}{error}");
        (serde_json::from_str(&out).unwrap_or_else(|problem| panic!("{problem}: {out}{error}")), error)
    }

    fn refused(&self, args: &[&str], why: &str) {
        let (code, _, error) = self.redrive_with(args, "");
        assert!(code == Some(1) && error.contains(why), "{code:?}: {error}");
    }

    fn input(&self) -> Vec<Vec<TestRecord>> {
        read_committed(broker(), &self.input, PARTITIONS)
    }
}

fn lines(letters: &str) -> String {
    format!("key = {{ field = \"/id\" }}\nwindow = \"24h\"\nfilter = {{ capacity = 10000 }}\non_invalid = {{ topic = \"{letters}\" }}")
}

fn wait_until_stopped(redrive: &Worker) {
    wait_until("the redrive stops", LIMIT, || {
        let status = fs::read_to_string(format!("/proc/{}/status", redrive.pid())).expect("it has not ended");
        status.contains("State:\tT").then_some(())
    });
}

/// Records with an invalid value. Some have no record key, and the headers vary.
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
        let mut expected = json!({ "redriven": 100, "kinds": kinds, "skipped": 0, "dry_run": dry_run });
        for empty in ["left_out", "unknown", "rejected", "unusable"] {
            expected[empty] = json!([]);
        }
        assert_eq!(dead.redrive(args), expected);
    }
    let twice: Vec<_> = records.iter().chain(&records).cloned().collect();
    assert_eq!(dead.input(), by_partition(twice.clone(), PARTITIONS));
    assert_eq!(dead.redrive(&[])["redriven"], 0);

    // The worker rejects the redriven records again, so there are new dead letters to redrive.
    let mut worker = dead.setup.start("a");
    wait_for_output(broker(), &dead.letters, 2 * records.len(), PARTITIONS, LIMIT, &mut worker);
    worker.drain();
    let (code, out, error) = dead.redrive_with(&[], "");
    assert!(code == Some(0) && out.starts_with("redrove 100 dead letters\n  "), "{out}{error}");
    assert_eq!(dead.input(), by_partition(twice.into_iter().chain(records), PARTITIONS));
}

#[test]
fn a_killed_redrive_continues() {
    let records = records(2_500);
    for fault in ["outsider.written:2:kill", "outsider.offsets_sent:2:kill", "outsider.committed:2:kill"] {
        let dead = Dead::new("redrive-killed");
        dead.bury(&records, "missing_key");
        assert_eq!(dead.redrive_with(&[], fault).0, None, "it was killed at {fault}");
        // A transaction redrives at most 1,000 dead letters. After a kill that follows the second commit, at least 500 are left. After the
        // other kills, only the first transaction is committed, so at least 1,500 are left.
        let left = dead.redrive(&[])["redriven"].as_u64();
        let fewest = if fault.starts_with("outsider.committed") { 500 } else { 1500 };
        assert!(left.is_some_and(|left| left >= fewest && left < 2_500), "{fault}: {left:?}");
        assert_eq!(dead.input(), by_partition(records.clone(), PARTITIONS), "{fault}");
        assert_eq!(dead.redrive(&[])["redriven"], 0);
    }
}

/// A redrive stops before it commits, for example because its machine is suspended. While it is stopped, another redrive starts.
#[test]
fn a_second_redrive_fences_the_first() {
    let (dead, records) = (Dead::new("redrive-fenced"), records(1_500));
    dead.bury(&records, "missing_key");
    let config = dead.setup.write_config("a");
    let mut first = Worker::redrive(&config, "outsider.offsets_sent:1:stop", &dead.setup.dir().join("log"));
    wait_until_stopped(&first);
    assert_eq!(dead.redrive(&[])["redriven"], 1_500);
    first.sigcont();
    let log = first.fails(1);
    assert!(log.contains("another redrive of this group has started"), "{log}");
    assert_eq!(dead.input(), by_partition(records, PARTITIONS));
}

/// A later redrive writes the dead letters that an earlier one did not select. Records that the worker would not emit if it read them
/// again, such as late ones, go to the output.
#[test]
fn only_selected_dead_letters_are_redriven() {
    let (dead, records) = (Dead::new("redrive-some"), records(30));
    for (reason, range) in [("malformed", 0..10), ("oversize", 10..20), ("late", 20..30)] {
        dead.bury(&records[range], reason);
    }
    // The third of these records is not a dead letter.
    let foreign = records[0].dead_letter("other", 0, "unseen.malformed", "why");
    let newer = records[1].dead_letter(&dead.input, 0, "unseen.newer", "why");
    produce(broker(), &dead.letters, [&foreign, &newer, &records[2]]);
    let unknown = json!([{ "topic": "other", "reason": "malformed" }, { "topic": dead.input, "reason": "newer" }]);
    let left = |reasons: &[&str]| -> Value { reasons.iter().map(|reason| json!({ "input": dead.input, "reason": reason })).collect() };
    let check = |args: &[&str], redriven: usize, reasons: &[&str], skipped: usize| {
        let report = dead.redrive(args);
        assert_eq!([&report["redriven"], &report["skipped"]], [&json!(redriven), &json!(skipped)], "{args:?}");
        assert_eq!(report["left_out"], left(reasons), "{args:?}");
        report["unknown"].clone()
    };
    assert_eq!(check(&["--reason", "null_key"], 0, &["late", "malformed", "oversize"], 1), unknown);
    check(&["--limit", "4"], 4, &["late", "malformed", "oversize"], 0);
    check(&[], 6, &["late", "oversize"], 0);
    assert_eq!(dead.input(), by_partition(records[..10].iter().cloned(), PARTITIONS));
    check(&["--reason", "oversize,malformed"], 10, &["late"], 0);
    check(&["--topic", &dead.input, "--reason", "late"], 10, &[], 0);
    assert_eq!(read_committed(broker(), &dead.output, PARTITIONS), by_partition(records[10..].iter().cloned(), PARTITIONS));
    assert_eq!(dead.input(), by_partition(records[..10].iter().cloned(), PARTITIONS));
    assert_eq!(check(&[], 0, &[], 0), unknown);

    // The committed offsets of the old dead-letter topic must not hide the dead letters of a recreated one.
    delete_topic(broker(), &dead.letters);
    make_topic(broker(), &dead.letters, 4);
    dead.bury(&records[..2], "malformed");
    check(&[], 2, &[], 0);
}

/// At first, the configuration lacks the entry for the topic `other`.
#[test]
fn dead_letters_of_an_unknown_topic_are_redriven_when_it_is_configured() {
    let (dead, records) = (Dead::new("redrive-unknown"), records(20));
    let other = topic(broker(), "redrive-other", 4);
    let of_other = (0..).zip(&records[..10]).map(|(offset, record)| record.dead_letter(&other, offset, "unseen.malformed", "why"));
    produce(broker(), &dead.letters, of_other.collect::<Vec<_>>());
    dead.bury(&records[10..], "malformed");
    for redriven in [10, 0] {
        let report = dead.redrive(&[]);
        assert_eq!((&report["redriven"], &report["skipped"]), (&json!(redriven), &json!(0)));
        assert_eq!(report["unknown"], json!([{ "topic": other, "reason": "malformed" }]));
    }
    let setup = dead.setup.topic(&other, &dead.output, &lines(&dead.letters));
    let dead = Dead { setup, ..dead };
    // An input that is not selected need not exist.
    delete_topic(broker(), &dead.input);
    wait_until("the input is deleted", PATIENCE, || {
        let (code, out, error) = dead.redrive_with(&["--dry-run"], "");
        assert!(out.contains("would redrive 10 dead letters"), "{out}{error}");
        let why = format!("topic {:?} does not exist; create it, or remove it from the configuration", dead.input);
        (code == Some(1) && error.contains(&why)).then_some(())
    });
    assert_eq!(dead.redrive(&["--topic", &other])["redriven"], 10);
    assert_eq!(read_committed(broker(), &other, PARTITIONS), by_partition(records[..10].iter().cloned(), PARTITIONS));
}

/// The output rejects batches of the usual size and then also some single records.
#[test]
fn rejected_dead_letter_does_not_stop_the_others() {
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
    let mut larger = large.clone();
    larger.enlarge(3_000, &mut random);
    let again = [&records[..5], &[large.clone(), larger.clone()], &records[5..]].concat();
    dead.bury(&again, "oversize");
    let place =
        |offset: i32| format!("topic {:?} rejects the dead letter at {}[1] offset {offset}: the record has ", dead.output, dead.letters);
    for redriven in [40, 0] {
        let (report, error) = dead.redrive_in_part(&all);
        assert_eq!(report["redriven"], redriven, "{error}");
        let rejected: Vec<_> = report["rejected"].as_array().expect("a list").iter().map(|letter| letter["offset"].clone()).collect();
        assert_eq!(rejected, [11, 12], "{report}");
        assert!(error.contains(&place(11)) && error.contains(&place(12)), "{error}");
    }
    // A redrive that does not select the rejected dead letters succeeds and reports them as left out.
    let report = dead.redrive(&["--reason", "malformed"]);
    assert_eq!(
        (&report["redriven"], &report["left_out"]),
        (&json!(0), &json!([{ "input": dead.input, "reason": "oversize" }])),
        "{report}"
    );
    alter_topic(broker(), &dead.output, "max.message.bytes", "5000");
    assert_eq!(dead.redrive_in_part(&all).0["redriven"], 1);
    alter_topic(broker(), &dead.output, "max.message.bytes", "9000");
    assert_eq!(dead.redrive(&all)["redriven"], 1);
    assert_eq!(dead.redrive(&all)["redriven"], 0);
    let expected = by_partition(records.iter().chain(&records).cloned().chain([large, larger]), PARTITIONS);
    assert_eq!(read_committed(broker(), &dead.output, PARTITIONS), expected);
}

#[test]
fn a_redrive_ends_before_the_rejected_dead_letters_that_are_too_many() {
    let output = topic_with(broker(), "redrive-many-out", 4, &[("max.message.bytes", "2000")]);
    let dead = Dead::with_topics(topic(broker(), "redrive-many-in", 4), output, "redrive-many");
    let mut records = records(30);
    let mut random = SplitMix(5);
    for record in &mut records {
        record.value = Some(b"{}".to_vec());
        record.headers.clear();
        record.enlarge(500, &mut random);
    }
    let mut large = records[0].clone();
    large.enlarge(3_000, &mut random);
    let letters = [&records[..20], &vec![large; 150], &records[20..]].concat();
    dead.bury(&letters, "oversize");
    // Some of the last ten records come after the rejected dead letters in the same partition. The redrive ends before it reaches these
    // records.
    let waiting = records[20..].iter().filter(|record| record.partition == records[0].partition).count();
    for redriven in [30 - waiting, 0] {
        let (report, error) = dead.redrive_in_part(&["--reason", "oversize"]);
        assert_eq!((&report["redriven"], report["rejected"].as_array().map(Vec::len)), (&json!(redriven), Some(100)), "{error}");
        assert!(error.contains("more than 100 of its dead letters were rejected"), "{error}");
    }
    alter_topic(broker(), &dead.output, "max.message.bytes", "9000");
    assert_eq!(dead.redrive(&["--reason", "oversize"])["redriven"], 150 + waiting);
}

/// While the redrive retries a rejected batch, a worker may write new dead letters. They must wait for the next redrive.
#[test]
fn dead_letters_added_after_the_start_are_not_redriven() {
    let input = topic_with(broker(), "redrive-start-in", 4, &[("max.message.bytes", "2000")]);
    let dead = Dead::with_topics(input, topic(broker(), "redrive-start-out", 4), "redrive-start");
    let mut records = records(40);
    for record in &mut records {
        record.value = Some(b"{}".to_vec());
        record.enlarge(500, &mut SplitMix(3));
    }
    dead.bury(&records, "missing_key");
    let config = dead.setup.write_config("a");
    let mut redrive = Worker::redrive(&config, "transaction.begin:1:stop", &dead.setup.dir().join("log"));
    wait_until_stopped(&redrive);
    dead.bury(&records[..4], "missing_key");
    redrive.sigcont();
    redrive.fails(0);
    assert_eq!(dead.input(), by_partition(records, PARTITIONS));
    assert_eq!(dead.redrive(&[])["redriven"], 4);
}

/// The client sends a `TxnOffsetCommit` request twice, because the connection breaks. The first copy reaches the broker during the next
/// transaction.
#[test]
fn a_delayed_commit_of_offsets_does_not_replace_later_offsets() {
    let own = OwnBroker::start();
    let [input, output, letters] = ["in", "out", "dead"].map(|name| topic(own.address(), name, 1));
    let setup = Setup::new(&own.servers_by_way(), "redrive-delayed").topic(&input, &output, &lines(&letters));
    let delayed: Arc<Mutex<(Option<Vec<u8>>, u32)>> = Arc::default();
    let of_front = Arc::clone(&delayed);
    own.way().lead_to(&front(own.behind(), move || {
        let delayed = Arc::clone(&of_front);
        Box::new(move |request, ask| {
            let arrives = {
                let (held, ended) = &mut *delayed.lock().expect("a lock");
                match api(&request).0 {
                    TXN_OFFSET_COMMIT if held.is_none() => {
                        *held = Some(request);
                        return Err(std::io::ErrorKind::ConnectionReset.into());
                    }
                    END_TXN => *ended += 1,
                    _ => {}
                }
                held.clone().filter(|_| api(&request).0 == END_TXN && *ended == 2)
            };
            if let Some(commit) = arrives {
                ask(&commit)?;
            }
            ask(&request)
        })
    }));
    let mut records = records(1_500);
    for record in &mut records {
        record.partition = 0;
    }
    let dead = (0..).zip(&records).map(|(offset, record)| record.dead_letter(&input, offset, "unseen.malformed", "why"));
    produce(own.address(), &letters, dead.collect::<Vec<_>>());
    let config = setup.write_config("a").display().to_string();
    for redriven in [1_500, 0] {
        let (code, out, error) = unseen(["dlq", "redrive", "--json", "-c", &config]);
        assert_eq!(code, Some(0), "{error}");
        let report: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(report["redriven"], redriven);
    }
    assert!(delayed.lock().expect("a lock").1 >= 2, "the delayed commit arrived");
    assert_eq!(read_committed(own.address(), &input, 1), [records]);
}

/// The dead-letter topic of one matching topic does not exist.
#[test]
fn an_unusable_matching_topic_does_not_stop_the_others() {
    let base = unique("redrive-pattern");
    let setup = |pattern: &str| {
        Setup::new(broker(), "redrive-pattern")
            .sections(&format!("[[topics]]\ninput = {{ pattern = '{pattern}' }}\noutput = \"{{input}}.out\"\n{}", lines("{input}.dead")))
    };
    let [good, bad] = ["good", "bad"].map(|name| format!("{base}.{name}"));
    for name in [format!("{good}.out"), format!("{bad}.out"), format!("{good}.dead"), good.clone(), bad.clone()] {
        make_topic(broker(), &name, 4);
    }
    let records = records(10);
    let letters = records.iter().map(|record| record.dead_letter(&good, 0, "unseen.malformed", "why"));
    produce(broker(), &format!("{good}.dead"), letters.collect::<Vec<_>>());
    let all = setup(&format!(r"{base}\..*"));
    let config = all.write_config("a").display().to_string();
    let (code, out, error) = unseen(["dlq", "redrive", "--json", "-c", &config]);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|problem| panic!("{problem}: {out}{error}"));
    let why = format!("dead-letter topic \"{bad}.dead\" does not exist; create it, or correct on_invalid");
    assert_eq!((code, &report["redriven"]), (Some(1), &json!(10)), "{error}");
    assert_eq!(report["unusable"], json!([{ "topic": format!("{bad}.dead"), "error": why }]));
    let end = "some dead letters were not redriven (rejected dead letters: 0, topics left out: 1); fix the causes shown above";
    assert!(error.contains(&format!("topic \"{bad}.dead\" is left out: {why}")) && error.contains(end), "{error}");
    assert_eq!(read_committed(broker(), &good, PARTITIONS), by_partition(records, PARTITIONS));

    let none = setup(&format!("{base}-none"));
    let config = none.write_config("a").display().to_string();
    let (code, _, error) = unseen(["dlq", "redrive", "-c", &config]);
    let message = "no topic that this user may see matches the pattern of an entry that has a dead-letter topic";
    assert!(code == Some(1) && error.contains(message) && !error.contains("set on_invalid"), "{code:?}: {error}");
}

#[test]
fn errors_state_what_to_do() {
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
