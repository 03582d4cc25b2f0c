//! Promise: with the Debezium configurations in `config`, each change is emitted once, and different changes never count as duplicates.

use std::path::Path;
use std::sync::Arc;
use unseen::config::Config;
use unseen::format::{Body, Format, Lookup, Schema, SchemaId, Schemas};
use unseen::record::TimestampType;
use unseen::replay::{Captured, Format as LineFormat, Options, Replay};

/// An event: record key, record value, and the header `id`.
type Event = (Option<Vec<u8>>, Option<Vec<u8>>, Option<&'static str>);

/// Returns the indexes of the emitted events.
fn emitted(recipe: &str, schemas: impl Schemas + 'static, events: &[Event]) -> Vec<usize> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(recipe);
    let config = Config::load(&file, &[]).unwrap_or_else(|errors| panic!("{errors}"));
    let mut lines = Vec::new();
    for (number, (key, value, id)) in events.iter().enumerate() {
        let time = 1_735_689_600_000 + i64::try_from(number).expect("few");
        let headers: Vec<_> = id.iter().map(|id| (&b"id"[..], Some(id.as_bytes()))).collect();
        let record = Captured {
            topic: &config.topics[0].input,
            partition: 0,
            offset: i64::try_from(number).expect("few"),
            time: Some((TimestampType::CreateTime, time)),
            key: key.as_deref(),
            value: value.as_deref(),
            headers: &headers,
        };
        record.write(&mut lines).expect("a line");
    }
    let options = Options { format: LineFormat::Kcat, time: None, partitions: 1, truth: true };
    let mut replay = Replay::new(&config.topics[0], &options).expect("a replay").with_schemas(Arc::new(schemas));
    let mut output = Vec::new();
    replay.run(&lines[..], &mut output, || i64::MAX).unwrap_or_else(|error| panic!("{error}"));
    let output = String::from_utf8(output).expect("text");
    output
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            usize::try_from(line["offset"].as_u64().expect("an offset")).expect("few")
        })
        .collect()
}

#[expect(clippy::unnecessary_wraps, reason = "a key or a value may be null")]
fn text(text: impl Into<String>) -> Option<Vec<u8>> {
    Some(text.into().into_bytes())
}

/// A change in an envelope: its row, its position in the database log, and the connector's processing time.
fn envelope(row: u32, total: u32, lsn: u32, op: &str, seen: u32) -> Event {
    let value = format!(
        r#"{{"schema":{{"type":"struct","name":"v{seen}"}},"payload":{{"before":null,"after":{{"id":{row},"total":{total}}},
        "source":{{"db":"shop","lsn":{lsn},"txId":7,"sequence":"[\"{seen}\",\"{lsn}\"]"}},"op":"{op}","ts_ms":{seen},"ts_us":{seen}000,"transaction":{{"total_order":{seen}}}}}}}"#
    );
    (text(format!(r#"{{"payload":{{"id":{row}}}}}"#)), text(value), None)
}

#[test]
fn repeated_json_changes_with_an_envelope_are_dropped() {
    let events = [
        envelope(1, 5, 100, "c", 1),
        envelope(2, 5, 100, "c", 2), // another row at the same position in the log
        envelope(1, 6, 101, "u", 3),
        envelope(1, 5, 102, "u", 4), // the first total again, in a later change
        envelope(1, 5, 100, "c", 9), // sent again after a restart of the connector
        envelope(2, 5, 100, "c", 10),
        envelope(1, 5, 102, "u", 11),
        (text(r#"{"payload":{"id":1}}"#), None, None), // the tombstone after a delete
        envelope(1, 5, 103, "d", 12),
    ];
    assert_eq!(emitted("debezium-json.toml", unseen::format::NoSchemas, &events), [0, 1, 2, 3, 7, 8]);
}

#[test]
fn repeated_changes_without_an_envelope_are_dropped() {
    let change = |row: u32, lsn: u32, op: &str| {
        (text(format!(r#"{{"id":{row}}}"#)), text(format!(r#"{{"id":{row},"total":5,"__op":"{op}","__lsn":{lsn}}}"#)), None)
    };
    let tombstone = (text(r#"{"id":1}"#), None, None);
    let events = [change(1, 100, "c"), change(2, 100, "c"), change(1, 101, "u"), change(1, 100, "c"), change(1, 102, "d"), tombstone];
    assert_eq!(emitted("debezium-unwrapped.toml", unseen::format::NoSchemas, &events), [0, 1, 2, 4, 5]);
}

#[test]
fn repeated_events_of_an_outbox_are_dropped() {
    let event = |id, value: &str| (text("order-1"), text(value), Some(id));
    let events = [event("e-1", "{}"), event("e-2", "{}"), event("e-1", "{}"), event("e-3", "not JSON")];
    assert_eq!(emitted("debezium-outbox.toml", unseen::format::NoSchemas, &events), [0, 1, 3]);
}

/// The schemas of a key and of two versions of a value. The second version has an additional field.
#[derive(Debug)]
struct Versions;

impl Schemas for Versions {
    fn get(&self, id: SchemaId) -> Lookup {
        let (more, is_key) = match id {
            SchemaId::Number(1 | 4) => ("", true),
            SchemaId::Number(2) => ("", false),
            SchemaId::Number(3) => (r#"{"name":"snapshot","type":["null","string"]},"#, false),
            _ => return Lookup::Unknown("it is not there".into()),
        };
        let row = r#"{"type":"record","name":"Value","fields":[{"name":"id","type":"long"}]}"#;
        let body = if is_key {
            r#"{"type":"record","name":"Key","fields":[{"name":"id","type":"long"}]}"#.to_owned()
        } else {
            format!(
                r#"{{"type":"record","name":"Envelope","fields":[{{"name":"before","type":["null",{row}]}},{{"name":"after","type":["null","Value"]}},
                {{"name":"source","type":{{"type":"record","name":"Source","fields":[{more}{{"name":"lsn","type":["null","long"]}},{{"name":"txId","type":["null","long"]}}]}}}},
                {{"name":"op","type":"string"}},{{"name":"ts_ms","type":["null","long"]}}]}}"#
            )
        };
        Lookup::Known(Arc::new(Schema::new(Format::Avro, Body::Text(body), Vec::new())))
    }
}

#[test]
fn repeated_avro_changes_are_dropped() {
    // Avro encodes numbers below 64 in one byte.
    let change = |row: u8, lsn: u8, seen: u8, version: u8| {
        let key = [0, 0, 0, 0, if version == 3 { 4 } else { 1 }, 2 * row];
        let snapshot: &[u8] = if version == 3 { &[0] } else { &[] };
        let value = [&[0, 0, 0, 0, version, 0, 2, 2 * row][..], snapshot, &[2, 2 * lsn, 2, 14, 2, b'u', 2, 2 * seen]].concat();
        (Some(key.to_vec()), Some(value), None)
    };
    // A change has the same key under new versions of both schemas.
    let events =
        [change(1, 10, 1, 2), change(2, 10, 1, 2), change(1, 11, 2, 2), change(1, 10, 9, 2), change(1, 10, 9, 3), change(1, 12, 9, 3)];
    assert_eq!(emitted("debezium-avro.toml", Versions, &events), [0, 1, 2, 5]);
}
