//! Changes the records of a plan as its options require. Adds headers from which the model learns of the changes.

use super::super::options::{ENCODED, EVENT_TIMES, ON_CHANGE, Options, RULES, WHEN};
use crate::harness::{SplitMix, TestRecord};
use data_encoding::BASE64;
use flate2::Compression;
use flate2::read::{GzDecoder, GzEncoder};
use std::io::Read;

/// The latest time that advances the model's stream time, 2027-01-01. No record has a time near it, so workers agree with the model,
/// although their max timestamp depends on their clock.
pub const MAX_TIMESTAMP: i64 = 1_798_761_600_000;
/// The record size limit of the output, in bytes.
pub const LIMIT_BYTES: usize = 20_000;

/// The ID of a record. It is in a header, because the key of the record may be missing. Each entry of an input has its own IDs.
pub fn id(record: &TestRecord) -> Vec<u8> {
    let mut id = record.headers.iter().find(|(name, _)| name == "id").and_then(|(_, value)| value.clone()).unwrap_or_default();
    if is_of_first_entry(record) {
        id.extend_from_slice(b" of the first entry");
    }
    id
}

/// A record with this header goes to the first of two entries.
const RULE: &str = "rule";

pub fn is_of_first_entry(record: &TestRecord) -> bool {
    let has = |header: &str| record.headers.iter().any(|(name, _)| name == header);
    has(RULE) && !has(WITHOUT_RULE)
}

/// Sends a third of the records to the first of two entries, if the options require it.
pub fn mark_rules(options: &Options, records: &mut [TestRecord], seed: u64) {
    let mut random = SplitMix(seed ^ 0x2171e);
    for record in records.iter_mut().filter(|_| options.has(RULES)) {
        if random.below(3) == 0 {
            record.headers.push((RULE.to_owned(), None));
        }
    }
}

/// The header that contains the event time for this model. Workers read the time from a field of the value.
const EVENT_TIME: &str = "event-time";
/// The maximum difference between Kafka's timestamp and the event time.
const JITTER_MS: i64 = 10 * 60 * 1_000;

/// If the options require it, moves the times of records into a field of their values and changes the timestamps by up to [`JITTER_MS`].
pub fn move_times(options: &Options, records: &mut [TestRecord], seed: u64) {
    let mut random = SplitMix(seed ^ 0x7157);
    for record in records.iter_mut().filter(|_| options.has(EVENT_TIMES)) {
        set_event_time(record, record.timestamp, random.below(5));
        if record.timestamp > 0 {
            let jitter = (random.next() % (2 * JITTER_MS).unsigned_abs()).cast_signed() - JITTER_MS;
            record.timestamp = (record.timestamp + jitter).max(1);
        }
    }
}

/// Writes an event time into the value of a record, in one of five forms. If `time` is not positive, removes the field.
pub fn set_event_time(record: &mut TestRecord, time: i64, form: usize) {
    record.headers.retain(|(name, _)| name != EVENT_TIME);
    let is_encoded = record.value.as_deref().is_some_and(is_encoded);
    let Some(value) = record.value.as_deref().map(|value| if is_encoded { decoded(value) } else { text(value) }) else { return };
    let Some((before, rest)) = value.split_once(",\"ts\":") else { return };
    let after = rest.find([',', '}']).map_or("", |end| &rest[end..]);
    let written = match (form, time) {
        (_, ..=0) => String::new(),
        // The time is written as text, because workers would read a small number as seconds.
        (0, _) | (_, ..100_000_000_000) => {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(time.unsigned_abs());
            format!(",\"ts\":\"{}\"", humantime::format_rfc3339_millis(time))
        }
        (1, _) => format!(",\"ts\":{}.{:03}", time / 1_000, time % 1_000),
        (2, _) => format!(",\"ts\":\"{time}\""),
        (3, _) => format!(",\"ts\":{time}999"),
        _ => format!(",\"ts\":{time}000001"),
    };
    let value = format!("{before}{written}{after}");
    if time > 0 {
        record.headers.push((EVENT_TIME.to_owned(), Some(time.to_string().into_bytes())));
    }
    record.value = Some(if is_encoded { encoded(&value) } else { value.into_bytes() });
}

/// The header that marks an encoded record whose key cannot be read.
const BROKEN: &str = "broken";

/// If the options require it, moves the IDs of records into JSON in a text field and encodes the values. A value that cannot be read stays
/// unreadable, either in its encoding or in its JSON.
pub fn encode(options: &Options, records: &mut [TestRecord]) {
    for (number, record) in records.iter_mut().enumerate().filter(|_| options.has(ENCODED)) {
        let Some(value) = record.value.as_deref().map(text) else { continue };
        let (is_broken, mut parts) = (is_broken(record), value.splitn(3, ','));
        let value = match (parts.next(), parts.next(), parts.next()) {
            (Some(user), Some(news), Some(rest)) if !is_broken => format!("{{\"body\":{:?},{rest}", format!("{user},{news}}}")),
            _ => value,
        };
        let mut value = encoded(&value);
        if is_broken {
            record.headers.push((BROKEN.to_owned(), None));
            if number % 2 == 0 {
                value.truncate(20);
            }
        }
        record.value = Some(value);
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn is_encoded(value: &[u8]) -> bool {
    !value.starts_with(b"{")
}

/// Encodes a value as base64 of gzip. If the value exceeds the size limit of the output, gzip stores it without compression, so the result
/// exceeds the limit, too.
fn encoded(value: &str) -> Vec<u8> {
    let level = if value.len() > LIMIT_BYTES { Compression::none() } else { Compression::fast() };
    let mut gzip = Vec::new();
    GzEncoder::new(value.as_bytes(), level).read_to_end(&mut gzip).expect("memory can be read");
    BASE64.encode(&gzip).into_bytes()
}

/// The text of an encoded value. If the value was cut off, the text is incomplete.
fn decoded(value: &[u8]) -> String {
    let mut text = String::new();
    let gzip = BASE64.decode(value).unwrap_or_default();
    let _ = GzDecoder::new(&*gzip).read_to_string(&mut text);
    text
}

/// The time that advances stream time. `None` if the record has no time.
pub(super) fn time(record: &TestRecord) -> Option<i64> {
    let header = record.headers.iter().find(|(name, _)| name == EVENT_TIME).and_then(|(_, value)| value.as_deref());
    let event = header.map(|time| std::str::from_utf8(time).ok().and_then(|time| time.parse().ok()).expect("a number"));
    event.or(Some(record.timestamp)).filter(|&time| time >= 0)
}

/// The header that contains the state of a record for this model. Workers read the state from a field of the value.
const STATE: &str = "state";

/// If the options require it, gives most records a state. Consecutive records of a key often have the same state.
pub fn set_states(options: &Options, records: &mut [TestRecord], seed: u64) {
    let mut random = SplitMix(seed ^ 0x57a7);
    for record in records.iter_mut().filter(|_| options.has(ON_CHANGE)) {
        let state = match random.below(8) {
            0 => continue,
            1 => "off".to_owned(),
            2 => format!("{}", random.below(3)),
            _ => "on".to_owned(),
        };
        if let Some(value) = record.value.as_mut().filter(|value| value.ends_with(b"}")) {
            value.pop();
            value.extend_from_slice(format!(",\"state\":\"{state}\"}}").as_bytes());
            record.headers.push((STATE.to_owned(), Some(state.into_bytes())));
        }
    }
}

pub(super) fn state(record: &TestRecord) -> Option<Vec<u8>> {
    record.headers.iter().find(|(name, _)| name == STATE).and_then(|(_, value)| value.clone())
}

/// A record with this header passes through, regardless of its value.
const SKIP: &str = "skip";
/// A record with this header passes through because of its value. The model reads the header. Workers read the value.
const PASSES: &str = "passes";
/// The header that the simulation adds to a record that the worker read while the configuration had no `when` condition.
pub const WITHOUT_CONDITION: &str = "without-condition";
/// The header that the simulation adds to a record that the worker read while the configuration lacked the first of two entries.
pub const WITHOUT_RULE: &str = "without-rule";

/// The header that the simulation adds to a record that the worker read while only the first record of each key was emitted.
pub const FIRST_ONLY: &str = "first-only";

pub(super) fn has_header(record: &TestRecord, name: &str) -> bool {
    record.headers.iter().any(|(header, _)| header == name)
}

pub fn mark_passing(options: &Options, records: &mut [TestRecord], seed: u64) {
    let mut random = SplitMix(seed ^ 0x9a55);
    for record in records.iter_mut().filter(|_| options.has(WHEN)) {
        let (kind, passes) = match random.below(16) {
            0 => {
                record.headers.push((SKIP.to_owned(), None));
                continue;
            }
            1 => ("\"view\"", true),
            2 => ("7", true),
            3 => ("\"7\" ", true),
            4 => ("\"article\"", false),
            _ => continue,
        };
        if let Some(value) = record.value.as_mut().filter(|value| value.ends_with(b"}")) {
            value.pop();
            value.extend_from_slice(format!(",\"kind\":{kind}}}").as_bytes());
            record.headers.extend(passes.then(|| (PASSES.to_owned(), None)));
        }
    }
}

pub(super) fn passes(record: &TestRecord) -> bool {
    let has = |name: &str| has_header(record, name);
    (has(SKIP) || has(PASSES)) && !has(WITHOUT_CONDITION)
}

pub(super) fn trace(record: &TestRecord) -> Vec<u8> {
    let header = record.headers.iter().find(|(name, _)| name == "trace");
    header.and_then(|(_, value)| value.clone()).unwrap_or_else(|| panic!("no trace in {record:?}"))
}

pub(super) fn is_broken(record: &TestRecord) -> bool {
    let has_mark = || record.headers.iter().any(|(name, _)| name == BROKEN);
    record.value.as_deref().is_some_and(|value| if is_encoded(value) { has_mark() } else { !value.ends_with(b"}") })
}

pub fn is_refused(options: &Options, record: &TestRecord) -> bool {
    let is_compacted = options.has("records that the output refuses");
    is_compacted && record.key.is_none() || record.value.as_ref().is_some_and(|value| value.len() > LIMIT_BYTES)
}

pub fn is_judged(record: &TestRecord) -> bool {
    record.value.is_some() && !is_broken(record) && !passes(record)
}

/// The record as a worker writes it. A time before 0 becomes "no time" (-1). Time 0 becomes 1, because librdkafka cannot write 0.
pub(super) fn as_written(mut record: TestRecord) -> TestRecord {
    record.headers.retain(|(name, _)| ![WITHOUT_CONDITION, WITHOUT_RULE, FIRST_ONLY].contains(&&**name));
    record.timestamp = match record.timestamp {
        ..0 => -1,
        0 => 1,
        time => time,
    };
    record
}
