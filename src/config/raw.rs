//! What a configuration may say: the names of all options, and their defaults.
//!
//! Nothing here is checked beyond its own form; `resolve` looks at the whole.

use super::units::{Bytes, Count, Length, Rate, Span, Switch, expected};
use super::{ColdStart, Delivery, Kind, LogFormat, OnDuplicate, OnInvalid, Start};
use crate::dedup::Late;
use crate::filter::AtMaxMemory;
use crate::key::{Hashing, Part};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Raw {
    pub(super) kafka: Kafka,
    pub(super) worker: Worker,
    pub(super) state: State,
    pub(super) http: Http,
    pub(super) log: Log,
    /// An empty place is a topic whose fault is already known.
    pub(super) topics: Vec<Option<Topic>>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Kafka {
    pub(super) bootstrap_servers: Option<String>,
    pub(super) group_id: String,
    pub(super) instance_id: Option<String>,
    pub(super) start: Start,
    pub(super) connect_timeout: Span,
    pub(super) properties: Properties,
}

impl Default for Kafka {
    fn default() -> Self {
        Self {
            bootstrap_servers: None,
            group_id: "unseen".to_owned(),
            instance_id: None,
            start: Start::default(),
            connect_timeout: Span(Duration::from_secs(60)),
            properties: Properties::default(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Worker {
    pub(super) workers: Count,
    pub(super) delivery: Delivery,
    pub(super) commit_interval: Span,
    pub(super) checkpoint_interval: Span,
    pub(super) transaction_timeout: Span,
    pub(super) transaction_records_max: Count,
    pub(super) shutdown_timeout: Span,
}

impl Default for Worker {
    fn default() -> Self {
        Self {
            workers: Count(1),
            delivery: Delivery::default(),
            commit_interval: Span(Duration::from_millis(200)),
            checkpoint_interval: Span(Duration::from_secs(10)),
            transaction_timeout: Span(Duration::from_secs(10)),
            transaction_records_max: Count(200_000),
            shutdown_timeout: Span(Duration::from_secs(20)),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct State {
    pub(super) dir: String,
    pub(super) changelog: Switch,
    pub(super) cold_start: ColdStart,
    pub(super) write_rate_max: Bytes,
}

impl Default for State {
    fn default() -> Self {
        Self { dir: "state".to_owned(), changelog: Switch(true), cold_start: ColdStart::default(), write_rate_max: Bytes(32 << 20) }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Http {
    pub(super) listen: String,
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: "127.0.0.1:8080".to_owned() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Log {
    pub(super) level: String,
    pub(super) format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::default() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Topic {
    pub(super) input: Option<String>,
    pub(super) output: Option<String>,
    pub(super) space: Option<String>,
    /// One part or a list of them; read by `resolve`, so that each part's fault has its own path.
    pub(super) key: Option<Value>,
    /// `"xxh3"` or `{ siphash = "32 hex digits" }`.
    pub(super) hash: Option<Value>,
    /// `{ header = "name" }`.
    pub(super) unsee: Option<Value>,
    pub(super) repartition: Switch,
    pub(super) window: Option<Length>,
    pub(super) filter: Filter,
    pub(super) refresh: Switch,
    pub(super) max_future: Span,
    pub(super) late: Late,
    pub(super) on_duplicate: OnDuplicate,
    pub(super) on_invalid: OnInvalid,
}

impl Default for Topic {
    fn default() -> Self {
        Self {
            input: None,
            output: None,
            space: None,
            key: None,
            hash: None,
            unsee: None,
            repartition: Switch(false),
            window: None,
            filter: Filter::default(),
            refresh: Switch(false),
            max_future: Span(Duration::from_secs(5 * 60)),
            late: Late::default(),
            on_duplicate: OnDuplicate::default(),
            on_invalid: OnInvalid::default(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Filter {
    pub(super) kind: Kind,
    pub(super) capacity: Option<Count>,
    pub(super) false_positive_rate: Rate,
    pub(super) slices: Count,
    pub(super) memory: Option<Bytes>,
    pub(super) confirm: Switch,
    pub(super) adapt: Switch,
    pub(super) max_memory: Option<Bytes>,
    pub(super) at_max_memory: AtMaxMemory,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            kind: Kind::Aging,
            capacity: None,
            false_positive_rate: Rate(1e-4),
            slices: Count(4),
            memory: None,
            confirm: Switch(false),
            adapt: Switch(true),
            max_memory: None,
            at_max_memory: AtMaxMemory::default(),
        }
    }
}

/// librdkafka's properties as they are written. Its faults never show a value.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Properties(pub(super) BTreeMap<String, Value>);

impl TryFrom<Value> for Properties {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        match value {
            Value::Object(table) => Ok(Self(table.into_iter().collect())),
            _ => Err("expected a table of librdkafka properties"),
        }
    }
}

impl TryFrom<Value> for OnDuplicate {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match (value.as_str(), topic(&value)) {
            (Some("drop"), _) => Ok(Self::Drop),
            (Some("mark"), _) => Ok(Self::Mark),
            (_, Some(topic)) => Ok(Self::Topic(topic)),
            _ => Err(expected("\"drop\", \"mark\" or { topic = \"name\" }", &value)),
        }
    }
}

impl TryFrom<Value> for OnInvalid {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match (value.as_str(), topic(&value)) {
            (Some("fail"), _) => Ok(Self::Fail),
            (Some("drop"), _) => Ok(Self::Drop),
            (Some("emit"), _) => Ok(Self::Emit),
            (_, Some(topic)) => Ok(Self::Topic(topic)),
            _ => Err(expected("\"fail\", \"drop\", \"emit\" or { topic = \"name\" }", &value)),
        }
    }
}

/// `{ topic = "name" }`.
fn topic(value: &Value) -> Option<String> {
    match entry(value)? {
        ("topic", name) => Some(name.to_owned()),
        _ => None,
    }
}

/// How keys are hashed. Its faults never show the secret.
pub(super) fn hashing(value: &Value) -> Result<Hashing, String> {
    if value.as_str() == Some("xxh3") {
        return Ok(Hashing::Xxh3);
    }
    match entry(value) {
        Some(("siphash", key)) => Hashing::siphash_from_hex(key).map_err(|error| error.to_string()),
        _ => Err("expected \"xxh3\" or { siphash = \"32 hex digits\" }".to_owned()),
    }
}

/// `{ header = "name" }`.
pub(super) fn header(value: &Value) -> Result<String, String> {
    match entry(value) {
        Some(("header", name)) => Ok(name.to_owned()),
        _ => Err(expected("{ header = \"name\" }", value)),
    }
}

/// One part of a key.
pub(super) fn part(value: &Value) -> Result<Part, String> {
    match entry(value) {
        Some(("record", "key")) => Ok(Part::RecordKey),
        Some(("record", "value")) => Ok(Part::RecordValue),
        Some(("header", name)) => Ok(Part::Header(name.to_owned())),
        Some(("json", pointer)) => Ok(Part::Json(pointer.to_owned())),
        _ => Err(expected("{ record = \"key\" }, { record = \"value\" }, { header = \"name\" } or { json = \"/pointer\" }", value)),
    }
}

/// A table's only entry, if it is text.
fn entry(value: &Value) -> Option<(&str, &str)> {
    let table = value.as_object().filter(|table| table.len() == 1)?;
    let (name, value) = table.iter().next()?;
    Some((name, value.as_str()?))
}
