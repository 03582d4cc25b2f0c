//! Promise: seeded keys are not emitted within their window, through kills and lost disks. A seed is written completely or not at all. A
//! group that has already started cannot be seeded.

use crate::harness::state::digests;
use crate::harness::{
    News, Setup, TestRecord, Worker, broker, committed_offset, delete_group, delete_topic, move_offset, offset_of, produce, read_committed,
    topic, unseen, unseen_with, wait_for_output, wait_until,
};
use crate::stream::{LIMIT, PARTITIONS, Stream, short_timeouts};
use serde_json::json;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const SEEDING: &[&str] = &["outsider.written:1:kill", "outsider.offsets_sent:1:kill", "outsider.committed:1:kill"];
const SEEDS: usize = 3_000;
const LIVE: usize = 3_000;

const AGING: &str = "filter = { kind = \"aging\", capacity = \"4k\", false_positive_rate = 1e-9 }";
const CUCKOO: &str = "filter = { kind = \"cuckoo\", capacity = \"40k\", false_positive_rate = 1e-6 }";
const CONFIRMED: &str = "filter = { kind = \"aging\", capacity = \"4k\", false_positive_rate = 0.1, confirm = true }";
const EXACT: &str = "filter = { kind = \"exact\" }";

/// A stream whose first records another tool has processed.
struct Seeded {
    stream: Stream,
    seeds: Vec<TestRecord>,
}

impl Seeded {
    fn new(hint: &str, filter: &str) -> Self {
        let records = News { count: SEEDS + LIVE, ..News::default() }.records();
        let output = topic(broker(), &format!("{hint}-out"), 4);
        let stream = Stream::remembered_by(broker(), hint, output, records, HOUR / 2, filter);
        let mut stream = stream.with(short_timeouts);
        let live = stream.records.split_off(SEEDS);
        let seeds = std::mem::replace(&mut stream.records, live);
        let known = last_sightings(&seeds);
        let all: Vec<_> = known.iter().chain(&stream.records).cloned().collect();
        stream.expected = stream.oracle.expected(&all, PARTITIONS);
        for partition in &mut stream.expected {
            partition.retain(|record| !known.contains(record));
        }
        Self { stream, seeds }
    }

    /// Writes the seeds as a capture of the input, in reverse order.
    fn capture(&self) -> PathBuf {
        let mut text = String::new();
        for (offset, record) in self.seeds.iter().enumerate().rev() {
            let key = record.key.as_deref().map(String::from_utf8_lossy);
            let line = json!({
                "topic": self.stream.input, "partition": record.partition, "offset": offset, "tstype": "create",
                "ts": record.timestamp, "key": key, "payload": record.text(),
            });
            writeln!(text, "{line}").expect("text grows");
        }
        write(&self.stream.setup, "seeds.ndjson", &text)
    }

    fn seed(&self, faults: &str) -> (Option<i32>, String, String) {
        let (config, file) = (self.stream.setup.write_config("a").display().to_string(), self.capture().display().to_string());
        let environment = if faults.is_empty() { vec![] } else { vec![("UNSEEN_FAULT".to_owned(), faults.to_owned())] };
        unseen_with(["seed", "-c", &config, &file, "--format", "capture"], &environment)
    }
}

fn write(setup: &Setup, name: &str, text: &str) -> PathBuf {
    let file = setup.dir().join(name);
    fs::write(&file, text).expect("a file");
    file
}

/// The last occurrence of each key, ordered by time.
fn last_sightings(seeds: &[TestRecord]) -> Vec<TestRecord> {
    let mut last: HashMap<_, &TestRecord> = HashMap::new();
    for record in seeds {
        let known = last.entry(&record.key).or_insert(record);
        if record.timestamp >= known.timestamp {
            *known = record;
        }
    }
    let mut last: Vec<_> = last.into_values().cloned().collect();
    last.sort_by_key(|record| record.timestamp);
    last
}

fn refused(answer: (Option<i32>, String, String), why: &str) {
    let (code, _, error) = answer;
    assert!(code == Some(1) && error.contains(why), "{code:?}: {error}");
}

/// The group is seeded and started, and its worker is killed. Except with the cuckoo filter, the worker also loses its disk before it
/// starts again.
#[test]
fn seeded_keys_are_not_emitted() {
    for (hint, filter) in [("seed-aging", AGING), ("seed-cuckoo", CUCKOO), ("seed-confirmed", CONFIRMED), ("seed-exact", EXACT)] {
        let seeded = Seeded::new(hint, filter);
        let (code, said, error) = seeded.seed("");
        assert_eq!(code, Some(0), "{error}");
        assert!(said.starts_with("3,000 lines, 3,000 keys\n"), "{said}");
        refused(seeded.seed(""), "has already started or was seeded");

        let stream = &seeded.stream;
        let mut worker = stream.setup.start("a");
        stream.produce(..LIVE / 3);
        stream.wait_until_read(LIVE / 3, &mut worker);
        refused(seeded.seed(""), "has members");
        // The explanation of a duplicate refers to the seed.
        let is_known =
            |record: &&TestRecord| !stream.expected.concat().contains(record) && seeded.seeds.iter().any(|seed| seed.key == record.key);
        let repeat = stream.records[..LIVE / 3].iter().find(is_known).expect("there are repeats of seeds");
        let offset = offset_of(repeat, &stream.records).to_string();
        let config = stream.setup.write_config("a").display().to_string();
        let (code, said, error) = unseen(["explain", "-c", &config, &stream.input, &repeat.partition.to_string(), &offset]);
        assert!(code == Some(0) && said.contains("It repeats a seeded key, committed at "), "{said}{error}");
        worker.kill9();
        if hint != "seed-cuckoo" {
            fs::remove_dir_all(stream.setup.state_dir("a")).expect("it can be deleted");
        }
        let mut worker = stream.setup.start("a");
        stream.produce(LIVE / 3..LIVE / 2);
        stream.wait_until_read(LIVE / 2, &mut worker);
        worker.kill9();
        let worker = stream.setup.start("b");
        stream.produce(LIVE / 2..);
        stream.check(worker);
    }
}

#[test]
fn seed_is_written_completely_or_not_at_all() {
    for fault in SEEDING {
        let seeded = Seeded::new("seed-killed", AGING);
        let (code, ..) = seeded.seed(fault);
        assert_eq!(code, None, "it was killed at {fault}");
        if fault.starts_with("outsider.committed") {
            refused(seeded.seed(""), "has already started or was seeded");
        } else {
            let (code, _, error) = seeded.seed("");
            assert_eq!(code, Some(0), "{error}");
        }
        seeded.stream.produce(..);
        seeded.stream.check(seeded.stream.setup.start("a"));
    }
}

/// A group that started too early and found nothing to read has checkpoints without the seed. Later, its offsets and its changelog were
/// deleted, but not its state directory.
#[test]
fn checkpoint_from_before_the_seed_does_not_hide_seeded_keys() {
    let seeded = Seeded::new("seed-early", AGING);
    let restored = |mut worker: Worker| {
        wait_until("all partitions are read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (worker.log().matches("partition restored").count() == PARTITIONS).then_some(())
        });
        worker.drain();
    };
    restored(seeded.stream.setup.start("a"));
    delete_group(broker(), seeded.stream.setup.group());
    assert_eq!(digests(&seeded.stream.setup.state_dir("a")).len(), PARTITIONS);
    let (code, _, error) = seeded.seed("");
    assert!(code == Some(1) && error.contains("so the group has already started"), "{code:?}: {error}");
    delete_topic(broker(), &format!("{}-news-changelog", seeded.stream.setup.group()));
    let (code, _, error) = seeded.seed("");
    assert_eq!(code, Some(0), "{error}");
    // The worker writes a checkpoint with the seed and stops before it has processed any record.
    restored(seeded.stream.setup.start("a"));
    seeded.stream.produce(..);
    seeded.stream.check(seeded.stream.setup.start("a"));
}

struct Rows {
    setup: Setup,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

const START: i64 = 1_735_689_600_000;

impl Rows {
    fn new(hint: &str, topics: usize, partitions: u32, lines: &str, kafka: &str) -> Self {
        let names = |end: &str| (0..topics).map(|_| topic(broker(), &format!("{hint}-{end}"), partitions)).collect::<Vec<_>>();
        let (inputs, outputs) = (names("in"), names("out"));
        let mut setup = Setup::new(broker(), hint).kafka(kafka).worker("commit_interval = \"100ms\"\ncheckpoint_interval = \"1s\"");
        for (input, output) in inputs.iter().zip(&outputs) {
            setup = setup.topic(input, output, lines);
        }
        Self { setup, inputs, outputs }
    }

    fn seed(&self, text: &str, args: &[&str]) -> (Option<i32>, String, String) {
        let (config, file) = (self.setup.write_config("a").display().to_string(), write(&self.setup, "seeds", text).display().to_string());
        unseen([&["seed", "-c", &config, &file, "--topic", &self.inputs[0]], args].concat())
    }

    /// Runs a worker until the output of a topic has `count` records. Returns the sorted keys of all records in the output.
    fn come_out(&self, topic: usize, count: usize) -> Vec<String> {
        let mut worker = self.setup.start("a");
        let partitions = 4;
        wait_for_output(broker(), &self.outputs[topic], count, partitions, LIMIT, &mut worker);
        worker.drain();
        let mut keys: Vec<_> = read_committed(broker(), &self.outputs[topic], partitions)
            .concat()
            .iter()
            .map(|record| String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned())
            .collect();
        keys.sort();
        keys
    }
}

fn record(number: i64, partition: i32) -> TestRecord {
    TestRecord {
        partition,
        key: Some(format!("k{number:03}").into_bytes()),
        value: Some(format!("{{\"id\":{number}}}").into_bytes()),
        timestamp: START + number,
        ..TestRecord::default()
    }
}

fn table(ids: impl Iterator<Item = i64>) -> String {
    ids.fold("id,time\n".to_owned(), |text, id| format!("{text}{id},{}\n", START - 1_000 + id))
}

/// With `repartition`, seeded keys go to the same partitions as records with these keys. The group starts at another group's offsets.
#[test]
fn a_table_seeds_partitions_by_key() {
    let lines = "space = \"ids\"\nkey = { field = \"/id\" }\nwindow = \"1h\"\nrepartition = true\n".to_owned() + AGING;
    let rows = Rows::new("seed-table", 1, 4, &lines, "");
    produce(broker(), &rows.inputs[0], (0..220).map(|number| record(number, (number % 4) as i32)).collect::<Vec<_>>().iter());
    // The other tool has processed the first 180 ids, which are 45 records per partition. The repartition topic receives the later records.
    let other = rows.setup.group().to_owned() + "-other";
    let args = ["--format", "csv", "--offsets-of", &other];
    refused(rows.seed(&table(0..190), &args), "has not committed an offset for ");
    (0..4).for_each(|partition| move_offset(broker(), &other, &rows.inputs[0], partition, 45));
    let json = |said: &str| serde_json::from_str::<serde_json::Value>(said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let (code, said, error) = rows.seed(&table(0..190), &[&args[..], &["--json", "--dry-run"]].concat());
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(json(&said)["seeded"], json!(null), "{said}");
    let (code, said, error) = rows.seed(&table(0..190), &[&args[..], &["--json"]].concat());
    assert_eq!(code, Some(0), "{error}");
    // A number in a table counts as both a number and a string, so each line has two keys.
    let seeded = json!({
        "group": rows.setup.group(), "partitions": 4, "keys": 380, "expired": 0, "evicted": 0, "stream_time_ms": START - 1_000 + 189,
    });
    let report = json(&said);
    assert_eq!([&report["lines"], &report["keys"], &report["seeded"]], [&json!(190), &json!(380), &seeded], "{said}");
    assert_eq!(report["warnings"].as_array().map(Vec::len), Some(error.matches("warning: ").count()), "{said}{error}");
    assert_eq!(rows.come_out(0, 30), (190..220).map(|number| format!("k{number:03}")).collect::<Vec<_>>());
}

#[test]
fn topics_of_a_space_start_together_and_at_their_ends() {
    let lines = "space = \"ids\"\nkey = { field = \"/id\" }\nwindow = \"1h\"\n".to_owned() + EXACT;
    let rows = Rows::new("seed-latest", 2, 4, &lines, "start = \"latest\"");
    let of = |range: std::ops::Range<i64>| range.map(|number| record(number, (number % 4) as i32)).collect::<Vec<_>>();
    // These records are written before the seed, so the group does not read them.
    produce(broker(), &rows.inputs[1], of(500..600).iter());
    refused(rows.seed(&table(0..100), &["--format", "csv"]), "line 2: the partition of the key is unknown");
    let (code, _, error) = rows.seed(&table(0..100), &["--format", "csv", "--every-partition"]);
    assert_eq!(code, Some(0), "{error}");
    // These records are written between the seed and the start of the group, so the group reads them.
    produce(broker(), &rows.inputs[1], of(0..150).iter());
    assert_eq!(rows.come_out(1, 50), (100..150).map(|number| format!("k{number:03}")).collect::<Vec<_>>());
    assert_eq!(rows.come_out(0, 0), [""; 0]);
}

/// The JSON lines contain the record key, which determines the partition that producers choose.
#[test]
fn json_lines_go_to_the_partitions_that_producers_choose() {
    let lines = "space = \"ids\"\nkey = [{ record = \"key\" }, { field = \"/id\" }]\nwindow = \"1h\"\n".to_owned() + EXACT;
    let rows = Rows::new("seed-json", 1, 4, &lines, "");
    let text = |ids: std::ops::Range<i64>| {
        ids.fold(String::new(), |text, id| {
            format!("{text}{{\"id\":{id},\"k\":\"k{id:03}\",\"seen\":\"2024-12-31T23:59:0{}Z\"}}\n", id % 10)
        })
    };
    let args = ["--record-key", "/k", "--time", "/seen", "--partitioner", "murmur2"];
    refused(rows.seed(&text(0..10), &args[2..]), "the record key, which an ndjson line does not have; set its location with --record-key");
    refused(rows.seed(&text(0..10), &args[..2]), "the line has no time");
    refused(rows.seed(&(text(0..3) + "{\"id\":"), &args), "line 4: ");
    for (time, hint) in
        [("99999999999999", "and that the times are in milliseconds"), ("1735689600", "if the times are in seconds, convert them")]
    {
        refused(rows.seed(&format!("{{\"id\":1,\"k\":\"a\",\"seen\":{time}}}\n"), &args), hint);
    }
    let (code, said, error) = rows.seed(&text(0..100), &args);
    assert_eq!(code, Some(0), "{error}");
    assert!(said.contains("with 100 distinct keys in 4 partitions, the latest seen at 2024-12-31T23:59:09Z"), "{said}");
    let records: Vec<_> = (0..200).map(|number| record(number, murmur2_partition(&format!("k{number:03}")))).collect();
    produce(broker(), &rows.inputs[0], records.iter());
    assert_eq!(rows.come_out(0, 100), (100..200).map(|number| format!("k{number:03}")).collect::<Vec<_>>());
    assert!((0..4).any(|partition| committed_offset(broker(), rows.setup.group(), &rows.inputs[0], partition) > Some(0)));
}

/// The partition that Kafka's Java client chooses (`Utils.murmur2` of the key).
fn murmur2_partition(key: &str) -> i32 {
    let mut hash = 0x9747_b28c_u32 ^ u32::try_from(key.len()).expect("short");
    let (words, rest) = key.as_bytes().as_chunks::<4>();
    for word in words {
        let mixed = u32::from_le_bytes(*word).wrapping_mul(0x5bd1_e995);
        hash = hash.wrapping_mul(0x5bd1_e995) ^ (mixed ^ mixed >> 24).wrapping_mul(0x5bd1_e995);
    }
    assert!(rest.is_empty(), "keys of four bytes");
    hash = (hash ^ hash >> 13).wrapping_mul(0x5bd1_e995);
    ((hash ^ hash >> 15) & 0x7fff_ffff).cast_signed() % 4
}
