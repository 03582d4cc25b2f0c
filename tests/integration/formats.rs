//! Promise: records with a schema are emitted exactly once, through schema changes and registry outages.

use crate::harness::{
    SchemaRegistry, Setup, SplitMix, TestRecord, Worker, assert_same, broker, by_partition, committed_offset, offset_of, produce,
    read_committed, secure_broker, topic, wait_until,
};
use crate::observed::{address, ask};
use crate::stream::{LIMIT, PARTITIONS, SHORT_SESSION, Stream};
use serde_json::{Value, json};
use std::time::Duration;

const WINDOW: Duration = Duration::from_secs(24 * 3600);
const START: i64 = 1_735_689_600_000;

/// A schema in four versions: the original, with an additional field, with a renamed `id`, and reordered with an enum as `id`.
const VERSIONS: [&str; 4] = [
    r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"string"},{"name":"cents","type":"long"}]}"#,
    r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"string"},{"name":"note","type":["null","string"]},{"name":"cents","type":"long"}]}"#,
    r#"{"type":"record","name":"Order","fields":[{"name":"number","aliases":["id"],"type":["null","string"]},{"name":"cents","type":"long"}]}"#,
    r#"{"type":"record","name":"Order","fields":[{"name":"cents","type":"long"},{"name":"id","type":{"type":"enum","name":"E","symbols":["o-0","o-1"]}}]}"#,
];

fn long(number: i64) -> Vec<u8> {
    let (mut left, mut bytes) = (((number << 1) ^ (number >> 63)).cast_unsigned(), Vec::new());
    while left >= 0x80 {
        bytes.push(left.to_le_bytes()[0] | 0x80);
        left >>= 7;
    }
    bytes.push(left.to_le_bytes()[0]);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    [long(i64::try_from(text.len()).expect("short")), text.as_bytes().to_vec()].concat()
}

/// The framed value of the order `o-ID` in a schema version.
fn order(id: usize, cents: i64, version: usize) -> Vec<u8> {
    let name = format!("o-{id}");
    let body = match version {
        0 => [string(&name), long(cents)].concat(),
        1 => [string(&name), long(0), long(cents)].concat(),
        2 => [long(1), string(&name), long(cents)].concat(),
        _ => [long(cents), long(i64::from(id == 1))].concat(),
    };
    [vec![0, 0, 0, 0, u8::try_from(version + 1).expect("few")], body].concat()
}

fn schema(version: usize, id: usize) -> Value {
    json!({ "subject": "orders-value", "version": version + 1, "id": id, "schema": VERSIONS[version] })
}

/// Creates orders. Many of them repeat the ID of an earlier order. `version` chooses the schema version of each order. The record key is
/// the ID, because the oracle uses record keys.
fn orders(count: usize, mut version: impl FnMut(usize, i32) -> usize) -> Vec<TestRecord> {
    let mut random = SplitMix(7);
    let record = |number: usize| {
        let partition = i32::try_from(random.below(PARTITIONS)).expect("few");
        let version = version(number, partition);
        let id = random.below(if version == 3 { 2 } else { count / 2 });
        let value = order(id, i64::try_from(number).expect("few"), version);
        let (key, timestamp) = (Some(format!("o-{id}").into_bytes()), START + i64::try_from(number).expect("few"));
        TestRecord { partition, key, value: Some(value), headers: Vec::new(), timestamp }
    };
    (0..count).map(record).collect()
}

fn settings(registry: &SchemaRegistry) -> Vec<String> {
    let url = format!("schema_registry.url={}", registry.url());
    ["topics[0].key={ field = \"/id\" }", "topics[0].value_format=avro", &url].map(str::to_owned).into()
}

fn start(stream: &Stream, name: &str, settings: &[String]) -> Worker {
    stream.setup.start_with(name, &settings.iter().map(String::as_str).collect::<Vec<_>>())
}

fn registry() -> SchemaRegistry {
    let registry = SchemaRegistry::start(&[]);
    registry.put(&(0..4).map(|version| schema(version, version + 1)).collect());
    registry
}

fn wait_until_read(stream: &Stream, partition: i32, end: usize, worker: &mut Worker) {
    wait_until(&format!("partition {partition} is read up to {end}"), LIMIT, || {
        assert!(worker.runs(), "the worker has ended");
        let committed = committed_offset(broker(), stream.setup.group(), &stream.input, partition);
        (committed == Some(i64::try_from(end).expect("few"))).then_some(())
    });
}

#[test]
fn schemas_can_change_mid_stream() {
    let registry = registry();
    let records = orders(40_000, |number, _| number / 5_000 % 4);
    let stream = Stream::of(broker(), "formats-evolve", records, WINDOW);
    stream.produce(..);
    stream.check(start(&stream, "a", &settings(&registry)));
    let requests = registry.requests();
    for id in 1..=4 {
        assert_eq!(requests[format!("GET /schemas/ids/{id}")], 1, "{requests}");
    }
}

#[test]
fn a_registry_outage_delays_only_partitions_that_need_it() {
    let registry = registry();
    // Partition 1 switches to a schema that the worker has not fetched when the registry fails.
    let records = orders(20_000, |number, partition| usize::from(partition == 1 && number >= 10_000));
    let stream = Stream::of(broker(), "formats-down", records, WINDOW).with(|setup| setup.properties(SHORT_SESSION));
    let settings = settings(&registry);
    stream.produce(..10_000);
    let mut worker = start(&stream, "a", &settings);
    stream.wait_until_read(10_000, &mut worker);
    registry.fail(503);
    stream.produce(10_000..);
    let waits_at = stream.records[..10_000].iter().filter(|record| record.partition == 1).count();
    let waiting = |worker: &mut Worker| {
        for partition in [0, 2, 3] {
            let end = stream.records.iter().filter(|record| record.partition == partition).count();
            wait_until_read(&stream, partition, end, worker);
        }
        let address = address(worker);
        wait_until("the worker reports the missing schema", LIMIT, || {
            let (status, _, body) = ask(&address, "/readyz");
            (status == 503 && body.contains("1 of 4 partitions wait for a schema") && body.contains("503")).then_some(())
        });
        assert!(ask(&address, "/metrics").2.contains("\nunseen_state{state=\"awaiting_schema\"} 1"));
        address
    };
    waiting(&mut worker);
    // If a worker is killed while it waits for a schema, no record is lost. The next worker waits for the schema, too.
    worker.kill9();
    registry.heal();
    registry.hang();
    let mut worker = start(&stream, "a", &[settings, vec!["schema_registry.timeout=1s".to_owned()]].concat());
    for partition in [0, 2, 3] {
        let end = stream.records.iter().filter(|record| record.partition == partition).count();
        wait_until_read(&stream, partition, end, &mut worker);
    }
    wait_until_read(&stream, 1, waits_at, &mut worker);
    // `UNSEEN_REGISTRY_AWAY` extends the outage by a number of seconds.
    let away = std::env::var("UNSEEN_REGISTRY_AWAY").map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    let (began, away) = (std::time::Instant::now(), Duration::from_secs(away));
    wait_until("the registry was away for the configured time", LIMIT + away, || (began.elapsed() >= away).then_some(()));
    assert!(worker.runs(), "the worker has ended");
    wait_until_read(&stream, 1, waits_at, &mut worker);
    registry.heal();
    let address = address(&mut worker);
    wait_until("the worker is ready again", LIMIT, || (ask(&address, "/readyz").0 == 200).then_some(()));
    stream.check(worker);
}

#[test]
fn a_waiting_partition_can_move_and_return() {
    for settings_of in [&["kafka.instance_id=a"][..], &["state.changelog=false"], &[]] {
        let registry = registry();
        let records = orders(8_000, |number, partition| usize::from(partition == 1 && number >= 4_000));
        let stream = Stream::of(broker(), "formats-moves", records, WINDOW).with(|setup| setup.properties(SHORT_SESSION));
        let settings = |extra: &[&str]| [settings(&registry), extra.iter().map(|setting| (*setting).to_owned()).collect()].concat();
        stream.produce(..4_000);
        let mut worker = start(&stream, "a", &settings(settings_of));
        stream.wait_until_read(4_000, &mut worker);
        registry.fail(503);
        stream.produce(4_000..);
        let address = address(&mut worker);
        let waits = || ask(&address, "/readyz").2.contains("1 of 4 partitions wait for a schema");
        wait_until("a partition waits", LIMIT, || waits().then_some(()));
        let others: Vec<_> = settings_of.iter().map(|setting| setting.replace("instance_id=a", "instance_id=b")).collect();
        let mut other = start(&stream, "b", &settings(&others.iter().map(String::as_str).collect::<Vec<_>>()));
        other.wait_for_log("partitions assigned", LIMIT);
        // With `kafka.instance_id`, the stopped member keeps its partitions until its session ends.
        other.drain();
        wait_until("all partitions are back", LIMIT, || {
            let status: Value = serde_json::from_str(&ask(&address, "/api/v1/status").2).expect("JSON");
            (status["partitions"].as_array().is_some_and(|partitions| partitions.len() == PARTITIONS)).then_some(())
        });
        registry.heal();
        stream.check(worker);
    }
}

#[test]
fn abort_while_a_partition_waits_loses_nothing() {
    let registry = registry();
    let records = orders(20_000, |number, partition| usize::from(partition == 1 && number >= 10_000));
    let stream = Stream::of(broker(), "formats-abort", records, WINDOW).with(|setup| setup.worker("transaction_timeout = \"60s\""));
    let settings = settings(&registry);
    registry.fail_at("/schemas/ids/2", 503);
    stream.produce(..);
    // Two early commits fail. The worker then reads their records again, in partition 1 up to the record that waits for its schema.
    let overrides: Vec<_> = settings.iter().map(String::as_str).collect();
    let mut worker = stream.setup.start_armed("a", &overrides, "commit.flushed:1:error,commit.flushed:3:error");
    wait_until("a partition waits", LIMIT, || {
        assert!(worker.runs(), "the worker has ended");
        worker.log().contains("cannot fetch a schema").then_some(())
    });
    for partition in [0, 2, 3] {
        let end = stream.records.iter().filter(|record| record.partition == partition).count();
        wait_until_read(&stream, partition, end, &mut worker);
    }
    registry.heal();
    let log = stream.check(worker);
    assert!(crate::harness::logged(&log, "aborts") > 0 && !log.contains("restoring"), "{log}");
}

#[test]
fn flapping_registry_makes_no_record_invalid() {
    let registry = SchemaRegistry::start(&[]);
    let stream = Stream::of(broker(), "formats-flaps", orders(2_000, |_, _| 0), WINDOW);
    stream.produce(..);
    let worker = start(&stream, "a", &settings(&registry));
    // A worker treats a schema as unknown only after the registry has reported it as unknown for ten seconds. Here, the registry fails for
    // 12 s between two such reports. These 12 s must not count toward the ten seconds. Afterward, the registry gets the schema.
    let asked = || registry.requests()["GET /schemas/ids/1"].as_u64().unwrap_or_default();
    let more = |than: u64| wait_until("the registry gets another request", LIMIT, || (asked() > than).then(asked));
    more(0);
    registry.fail(503);
    let away = std::time::Instant::now();
    wait_until("the registry was away for 12 s", LIMIT, || (away.elapsed() > Duration::from_secs(12)).then_some(()));
    registry.heal();
    more(asked() + 1);
    registry.put(&json!([schema(0, 1)]));
    stream.check(worker);
}

#[test]
fn records_that_fit_no_schema_become_dead_letters() {
    let registry = registry();
    let mut records = orders(4_000, |number, _| number % 3);
    let bad: [(&[u8], &str, &str); 4] = [
        (&[0, 0, 0, 0, 9, 2, b'a'], "unseen.unknown_schema", "the record value has schema 9, but "),
        (&[0, 0, 0, 0, 1, 8, b'o'], "unseen.malformed", "the record value does not match its schema: at byte 1: "),
        (br#"{"id":"o-1"}"#, "unseen.malformed", "the record value does not begin with the frame of a schema registry"),
        (&[0, 0, 0, 0, 3, 0, 2], "unseen.null_key", "field `/id` is null"),
    ];
    for (number, (value, ..)) in bad.iter().enumerate() {
        let mut record = records[number * 900].clone();
        (record.key, record.value) = (Some(format!("bad-{number}").into_bytes()), Some(value.to_vec()));
        records.insert(number * 900 + 1, record);
    }
    let is_good = |record: &TestRecord| !record.key.as_ref().is_some_and(|key| key.starts_with(b"bad-"));
    let mut stream = Stream::of(broker(), "formats-bad", records, WINDOW);
    stream.expected.iter_mut().for_each(|expected| expected.retain(is_good));
    stream.produce(..);
    let dead = topic(broker(), "formats-dead", 4);
    stream.check(start(&stream, "a", &[settings(&registry), vec![format!("topics[0].on_invalid.topic={dead}")]].concat()));

    let letters = read_committed(broker(), &dead, PARTITIONS).concat();
    assert_eq!(letters.len(), bad.len());
    for (number, (_, class, words)) in bad.into_iter().enumerate() {
        let key = Some(format!("bad-{number}").into_bytes());
        let record = stream.records.iter().find(|record| record.key == key).expect("it was sent");
        let letter = letters.iter().find(|letter| letter.key == key).expect("it is there");
        let message = letter.headers.last().and_then(|(_, value)| value.clone()).expect("a message");
        let message = String::from_utf8(message).expect("text");
        assert!(message.starts_with(words), "{message}");
        assert_eq!(*letter, record.dead_letter(&stream.input, offset_of(record, &stream.records), class, &message));
    }
}

#[test]
fn topics_of_different_formats_can_share_a_space() {
    let registry = registry();
    let records = orders(4_000, |_, _| 0);
    let stream = Stream::of(broker(), "formats-shared", records.clone(), WINDOW);
    // The same orders again, as JSON in a separate topic.
    let json = topic(broker(), "formats-shared-json", 4);
    let of_json = |record: &TestRecord| {
        let id = String::from_utf8(record.key.clone().expect("a key")).expect("text");
        TestRecord { value: Some(json!({ "order": { "id": id } }).to_string().into_bytes()), ..record.clone() }
    };
    let lines = Stream::lines(WINDOW, "filter = { kind = \"aging\", capacity = \"400k\", false_positive_rate = 1e-9, slices = 4 }");
    let stream = stream.with(|setup| setup.topic(&json, &topic(broker(), "formats-shared-out", 4), &lines));
    let settings = [settings(&registry), vec!["topics[1].key={ field = \"/order/id\" }".to_owned()]].concat();
    stream.produce(..);
    let mut worker = start(&stream, "a", &settings);
    stream.wait_until_read(stream.records.len(), &mut worker);
    produce(broker(), &json, records.iter().map(of_json).collect::<Vec<_>>());
    for partition in 0..4 {
        let end = records.iter().filter(|record| record.partition == partition).count();
        wait_until("the other topic is read", LIMIT, || {
            let committed = committed_offset(broker(), stream.setup.group(), &json, partition);
            (committed == Some(i64::try_from(end).expect("few"))).then_some(())
        });
    }
    let log = stream.check(worker);
    assert_eq!(crate::harness::logged(&log, "duplicates"), u64::try_from(2 * 4_000 - stream.expected.concat().len()).expect("few"));
}

#[test]
fn the_registry_password_and_certificate_are_checked() {
    let broker = secure_broker();
    let file = |name: &str| broker.file(name).to_str().expect("a path in UTF-8").to_owned();
    let args = ["--user", "unseen:s3cret", "--cert", &file("../broker.crt"), "--key", &file("../broker.key")];
    let registry = SchemaRegistry::start(&args);
    let stream = Stream::of(broker.address(), "formats-secure", Vec::new(), WINDOW);
    let check = |extra: &[&str]| {
        let settings = settings(&registry);
        let settings: Vec<_> = settings.iter().map(String::as_str).chain(extra.iter().copied()).collect();
        stream.setup.check_with("a", &settings)
    };
    let ca = format!("schema_registry.ca_location={}", file("ca.pem"));
    let user = "schema_registry.username=unseen";
    let (code, out, errors) = check(&[&ca, user, "schema_registry.password=s3cret"]);
    assert_eq!(code, Some(0), "{out}{errors}");
    assert!(errors.contains("the schema registry has no subject"), "{errors}");
    let (code, _, errors) = check(&[&ca, user, "schema_registry.password=wr0ng"]);
    assert!(code == Some(78) && errors.contains("check schema_registry.username and .password"), "{errors}");
    assert!(!errors.contains("wr0ng"), "{errors}");
    let (code, _, errors) = check(&[user, "schema_registry.password=s3cret"]);
    assert!(code == Some(78) && errors.contains("certificate"), "{errors}");
}

#[test]
fn check_looks_for_the_fields_in_the_latest_schema() {
    let registry = SchemaRegistry::start(&[]);
    let stream = Stream::of(broker(), "formats-check", Vec::new(), WINDOW);
    registry.put(&json!([{ "subject": format!("{}-value", stream.input), "version": 1, "id": 1, "schema": VERSIONS[0] }]));
    let (input, output) = (&stream.input, &stream.output);
    let setup = Setup::new(broker(), "formats-check").sections(&format!(
        "[[topics]]\ninput = \"{input}\"\noutput = \"{output}\"\nkey = {{ field = \"/id\" }}\nwindow = \"1h\"\nfilter = {{ kind = \"exact\" }}\n"
    ));
    let check = |key: &str, content: &str| {
        let key = format!("topics[0].key={{ field = \"{key}\" }}");
        let emit = format!("topics[0].emit={{ on_change = {{ field = \"{content}\" }} }}");
        let settings = [settings(&registry), vec![key, emit]].concat();
        setup.check_with("a", &settings.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (code, out, errors) = check("/id", "/id");
    assert!(code == Some(0) && !errors.contains("warning"), "{out}{errors}");
    for (key, content) in [("/nummer", "/id"), ("/id", "/nummer")] {
        let (code, _, errors) = check(key, content);
        assert!(code == Some(78) && errors.contains("has no field `/nummer`"), "{errors}");
    }
    drop(registry);
}

#[test]
fn a_record_key_is_read_by_its_own_format() {
    let registry = registry();
    // The record key is an order in Avro, and the value is null.
    let mut records = orders(4_000, |number, _| number % 3);
    let mut stream = Stream::of(broker(), "formats-key", records.clone(), WINDOW);
    for record in records.iter_mut().chain(stream.records.iter_mut()).chain(stream.expected.iter_mut().flatten()) {
        std::mem::swap(&mut record.key, &mut record.value);
        record.value = None;
    }
    stream.produce(..);
    let url = format!("schema_registry.url={}", registry.url());
    let settings = ["topics[0].key={ key_field = \"/id\" }", "topics[0].key_format=avro", &url].map(str::to_owned);
    stream.check(start(&stream, "a", &settings));
    assert_same(&by_partition(records, PARTITIONS), &read_committed(broker(), &stream.input, PARTITIONS));
}

/// A schema counts as unknown if the registry has reported it as unknown for ten seconds. The worker waits for these ten seconds only once
/// per batch, even if the batch has many unknown schemas.
#[test]
fn records_of_many_unknown_schemas_wait_once() {
    let registry = registry();
    let mut records = orders(4_000, |_, _| 0);
    for number in 0..100_u8 {
        let mut record = records[usize::from(number)].clone();
        (record.key, record.value) = (Some(format!("bad-{number}").into_bytes()), Some(vec![0, 0, 1, number, 1, 2, b'a']));
        record.partition = 0;
        records.insert(usize::from(number) * 2, record);
    }
    let mut stream = Stream::of(broker(), "formats-unknown", records, WINDOW);
    let is_good = |record: &TestRecord| !record.key.as_ref().is_some_and(|key| key.starts_with(b"bad-"));
    stream.expected.iter_mut().for_each(|expected| expected.retain(is_good));
    stream.produce(..);
    let log = stream.check(start(&stream, "a", &[settings(&registry), vec!["topics[0].on_invalid=drop".to_owned()]].concat()));
    assert_eq!(crate::harness::logged(&log, "invalid"), 100);
}

/// The key of one entry was changed, so this entry reads the input again, but the other entry still has all its keys. The new process does
/// not know the schema yet and cannot tell which entry selects a record, so the warm-up must wait for the schema.
#[test]
fn a_warm_up_waits_for_the_schema_that_selects_the_entry() {
    let registry = registry();
    let (input, output) = (topic(broker(), "formats-entries", 1), topic(broker(), "formats-entries-out", 1));
    let entry = |lines: &str| format!("{lines}\nvalue_format = \"avro\"\nwindow = \"24h\"\nfilter = {{ kind = \"exact\" }}");
    let setup = Setup::new(broker(), "formats-entries")
        .state("changelog = false")
        .topic(&input, &output, &entry("space = \"one\"\nwhen = { field = \"/id\", equals = \"o-1\" }\nkey = { field = \"/id\" }"))
        .topic(&input, &output, &entry("space = \"others\"\nkey = [{ field = \"/id\" }, { field = \"/cents\" }]"));
    let url = format!("schema_registry.url={}", registry.url());
    let records = |ids: usize, cents: i64| -> Vec<TestRecord> {
        (0..ids).map(|id| TestRecord { value: Some(order(id, cents, 0)), timestamp: START, ..TestRecord::default() }).collect()
    };
    let run = |records: &[TestRecord], end: i64, overrides: &[&str]| {
        produce(broker(), &input, records);
        let mut worker = setup.start_with("a", overrides);
        wait_until("all records are read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (committed_offset(broker(), setup.group(), &input, 0) == Some(end)).then_some(())
        });
        worker.drain();
    };
    run(&records(10, 1), 10, &[&url]);
    run(&records(11, 2), 21, &[&url, "topics[1].key={ field = \"/id\" }"]);
    let expected = [records(10, 1), records(11, 2)[10..].to_vec()].concat();
    assert_same(&[expected], &read_committed(broker(), &output, 1));
}
