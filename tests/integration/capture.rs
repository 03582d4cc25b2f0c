//! Promise: a capture contains every committed record of the requested time range, byte for byte. A replay of the capture gives the same
//! verdicts as the worker.

use crate::harness::{PATIENCE, Setup, TestRecord, broker, by_partition, client, produce, topic, unseen, wait_for_output};
use data_encoding::BASE64;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PARTITIONS: usize = 2;
const START: i64 = 1_700_000_000_000;

/// Records with text, binary, empty, and null keys and values. Every key occurs many times.
fn records() -> Vec<TestRecord> {
    let bytes: [Option<&[u8]>; 6] =
        [None, Some(b""), Some(b"text"), Some("caf\u{e9}\n\"".as_bytes()), Some(b"\xff\x00\xfe"), Some(b"\xc3\x28")];
    let mut records = Vec::new();
    for number in 0..600_usize {
        let [key, value] = [number % 6, number / 6 % 6].map(|at| bytes[at].map(<[u8]>::to_vec));
        let header = |value: Option<&[u8]>| ("h".to_owned(), value.map(<[u8]>::to_vec));
        let headers = match number % 4 {
            0 => vec![],
            1 => vec![header(Some(b"1")), header(Some(b"2")), header(None)],
            2 => vec![header(Some(b""))],
            _ => vec![header(Some(b"\xff"))],
        };
        let timestamp = START + i64::try_from(number).expect("few") * 1000;
        let partition = i32::from(number % 5 == 0);
        records.push(TestRecord { partition, key, value, headers, timestamp });
    }
    records
}

/// Writes an aborted transaction, so that each partition ends with a record that a `read_committed` consumer never receives.
fn abort(input: &str) {
    let producer: BaseProducer = client(broker()).set("transactional.id", format!("{input}-producer")).create().expect("a producer");
    producer.init_transactions(PATIENCE).and_then(|()| producer.begin_transaction()).expect("a transaction");
    for partition in 0..2 {
        let out = BaseRecord::<[u8], [u8]>::to(input).partition(partition).payload(b"aborted");
        producer.send(out).map_err(|(error, _)| error).expect("it is queued");
    }
    producer.flush(PATIENCE).expect("it is written");
    producer.abort_transaction(PATIENCE).expect("it is aborted");
}

fn captured_topic(hint: &str) -> (Setup, String, String) {
    let (input, output) = (topic(broker(), hint, 2), topic(broker(), hint, 2));
    let lines = "key = { record = \"key\" }\nwindow = \"1h\"\nfilter = { capacity = 1000 }\non_invalid = \"drop\"";
    let setup = Setup::new(broker(), hint).topic(&input, &output, lines);
    produce(broker(), &input, records());
    abort(&input);
    (setup, input, output)
}

fn capture(config: &Path, file: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let paths = [config, file].map(|path| path.to_str().expect("a path in UTF-8"));
    unseen([&["capture", "-c", paths[0], "-o", paths[1]], args].concat())
}

fn field(line: &Value, name: &str) -> Option<Vec<u8>> {
    let base64 = line.get(format!("{name}_base64")).map(|text| BASE64.decode(text.as_str().expect("text").as_bytes()).expect("base64"));
    base64.or_else(|| line[name].as_str().map(|text| text.as_bytes().to_vec()))
}

fn recorded(line: &str) -> (TestRecord, i64) {
    let line: Value = serde_json::from_str(line).expect("a line of JSON");
    let text = |value: &Value| value.as_str().map(|text| text.as_bytes().to_vec());
    let base64 = |value: &Value| value.as_str().map(|text| BASE64.decode(text.as_bytes()).expect("base64"));
    let parts: Vec<_> = match (line["headers"].as_array(), line["headers_base64"].as_array()) {
        (Some(parts), None) => parts.iter().map(text).collect(),
        (None, Some(parts)) => parts.iter().map(base64).collect(),
        (None, None) => Vec::new(),
        both => panic!("headers twice: {both:?}"),
    };
    let header = |pair: &[Option<Vec<u8>>]| (String::from_utf8(pair[0].clone().expect("a name")).expect("a text"), pair[1].clone());
    let record = TestRecord {
        partition: i32::try_from(line["partition"].as_i64().expect("a partition")).expect("a partition"),
        key: field(&line, "key"),
        value: field(&line, "payload"),
        headers: parts.chunks(2).map(header).collect(),
        timestamp: line["ts"].as_i64().expect("a time"),
    };
    assert_eq!(line["tstype"], "create");
    (record, line["offset"].as_i64().expect("an offset"))
}

fn read(file: &Path) -> Vec<Vec<TestRecord>> {
    let text = fs::read_to_string(file).expect("a capture in UTF-8");
    let mut last = BTreeMap::new();
    let records = text.lines().map(|line| {
        let (record, offset) = recorded(line);
        assert!(last.insert(record.partition, offset).is_none_or(|last| last < offset), "offsets rise: {line}");
        record
    });
    by_partition(records.collect::<Vec<_>>(), PARTITIONS)
}

fn expected(is_wanted: impl Fn(&TestRecord) -> bool) -> Vec<Vec<TestRecord>> {
    by_partition(records().into_iter().filter(is_wanted), PARTITIONS)
}

#[test]
fn capture_has_every_committed_record_byte_for_byte() {
    let (setup, input, _) = captured_topic("capture");
    let config = setup.write_config("a");
    let file = |name: &str| -> PathBuf { setup.dir().join(name) };
    let taken = |name: &str, args: &[&str]| {
        let (code, out, error) = capture(&config, &file(name), args);
        assert_eq!((code, out.as_str()), (Some(0), ""), "{args:?}: {error}");
        read(&file(name))
    };
    assert_eq!(taken("all", &[]), expected(|_| true));
    assert_eq!(taken("one", &["--partition", "1", "--topic", &input]), expected(|record| record.partition == 1));
    let (from, to) = (START + 100_000, START + 200_000);
    let bounds = ["--from", "2023-11-14T22:15:00Z", "--to", "2023-11-14T22:16:40Z"];
    assert_eq!(taken("some", &bounds), expected(|record| (from..to).contains(&record.timestamp)));
    assert_eq!(taken("late", &["--from", "2023-11-14T22:16:40Z"]), expected(|record| record.timestamp >= to));
    assert_eq!(taken("none", &["--from", "1s"]), expected(|_| false), "nothing is as young as that");
    assert_eq!(taken("few", &["--limit", "17"]).concat().len(), 17);
    let left: Vec<_> = fs::read_dir(setup.dir()).expect("a directory").flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("partial")), "something half done is left: {left:?}");
}

#[test]
fn invalid_capture_is_rejected() {
    let (setup, input, _) = captured_topic("capture-refused");
    let config = setup.write_config("a");
    let file = setup.dir().join("there");
    fs::write(&file, "mine").expect("a file");
    for (args, what) in [
        (&[][..], "there already exists; use another name, or move the existing file"),
        (&["--from", "noon"], "expected a time such as 2026-11-23T14:00:00Z, or an age such as 1h, got \"noon\""),
        (&["--from", "1h", "--to", "2h"], "--from must be before --to"),
    ] {
        let (code, _, error) = capture(&config, &file, args);
        assert!(code != Some(0) && error.contains(what), "{args:?}: {error}");
    }
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "mine");
    let new = setup.dir().join("new");
    for (args, what) in [
        (&["--topic", "no-such-topic"][..], "topic \"no-such-topic\" does not exist; check its name"),
        (&["--partition", "7", "--topic", &input], "7"),
    ] {
        let (code, _, error) = capture(&config, &new, args);
        assert!(code != Some(0) && error.contains(what) && !new.exists(), "{args:?}: {error}");
    }
}

#[test]
fn a_replay_of_a_capture_gives_the_verdicts_of_the_worker() {
    let (setup, _, output) = captured_topic("capture-replay");
    let config = setup.write_config("a");
    let file = setup.dir().join("capture.jsonl");
    let (code, _, error) = capture(&config, &file, &[]);
    assert_eq!(code, Some(0), "{error}");

    let replayed = Command::new(env!("CARGO_BIN_EXE_unseen"))
        .args(["replay", "--format", "capture", "--partitions", "2", "-c"])
        .args([&config, &file])
        .stdin(Stdio::null())
        .output()
        .expect("it ends");
    assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));
    let lines = std::str::from_utf8(&replayed.stdout).expect("as it was written").lines();
    let replayed = by_partition(lines.map(|line| recorded(line).0).collect::<Vec<_>>(), PARTITIONS);

    let mut worker = setup.start("a");
    let total = replayed.concat().len();
    // Each of the two partitions has all five non-null keys.
    assert_eq!(total, 10, "the records repeat themselves");
    let live = wait_for_output(broker(), &output, total, PARTITIONS, PATIENCE, &mut worker);
    worker.drain();
    assert_eq!(live, replayed);
}

/// Without `--key` and `--sample`, `unseen init` reads the topic to propose a key.
#[test]
fn init_proposes_a_key_from_the_topic_and_creates_the_output() {
    let input = topic(broker(), "init", 2);
    let output = format!("{input}-unseen");
    let order = |number: usize, second: usize| {
        let timestamp = START + i64::try_from(second).expect("few") * 1000;
        let value = format!("{{\"id\":{number},\"kind\":\"k{}\"}}", number % 3);
        let partition = i32::from(number.is_multiple_of(2));
        TestRecord { partition, key: None, value: Some(value.into_bytes()), headers: Vec::new(), timestamp }
    };
    // Every third order is delivered again after 40 s.
    let again = |second: usize| second.checked_sub(40).filter(|number| number.is_multiple_of(3)).map(|number| order(number, second));
    produce(broker(), &input, (0..500).flat_map(|second| std::iter::once(order(second, second)).chain(again(second))).collect::<Vec<_>>());
    let (code, text, error) = unseen(["init", &input, &output, "-b", broker(), "--create-topics"]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(error, format!("Created topic {output} with 2 partitions.\n"));
    for line in ["key = { field = \"/id\" }", "window = \"5m\"", "key_conflicts = true"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("unseen.toml");
    fs::write(&file, text).expect("a file");
    let (code, _, error) = unseen(["check", "--connect", "-c", file.to_str().expect("UTF-8")]);
    assert_eq!(code, Some(0), "{error}");
    let (code, _, error) = unseen(["init", &input, &output, "-b", broker(), "--create-topics", "--key", "/id"]);
    assert_eq!((code, &*error), (Some(0), ""));
}
