//! What a configuration may say: the names of all options, and their defaults.
//!
//! Nothing here is checked beyond its own form; `resolve` looks at the whole. What is said of an option here is what
//! editors show.

use super::format::FormatOption;
use super::properties::Properties;
use super::units::{Bytes, Count, Length, Rate, Span, Switch, expected};
use super::{ColdStart, Delivery, Kind, LogFormat, OnDuplicate, OnInvalid, OnTombstone, OnTruncation, Partitioner, Start};
use super::{forms, key, predicate};
use crate::content::CompareContent;
use crate::dedup::Late;
use crate::filter::AtMaxMemory;
use crate::key::{Field, Hashing};
use crate::values::CountBy;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::Duration;

/// What unseen does. Text may hold `${VAR}`, `${VAR:-default}`, `${VAR:?message}` and `${file:/run/secrets/name}`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(title = "Configuration of unseen", extend("required" = ["kafka", "topics"]))]
pub(super) struct Raw {
    pub(super) kafka: Kafka,
    pub(super) worker: Worker,
    pub(super) state: State,
    pub(super) http: Http,
    pub(super) log: Log,
    pub(super) schema_registry: SchemaRegistry,
    pub(super) serve: Serve,
    /// The topics to deduplicate; at least one.
    #[schemars(with = "Vec<Topic>", length(min = 1))]
    // An empty place is a topic whose fault is already known.
    pub(super) topics: Vec<Option<Topic>>,
}

/// How to reach Kafka.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(extend("required" = ["bootstrap_servers"]))]
pub(super) struct Kafka {
    /// The brokers to begin with: `host:port`, separated by commas. Required.
    #[schemars(required)]
    pub(super) bootstrap_servers: Option<String>,
    /// The consumer group; the transactional ids begin with it too.
    pub(super) group_id: String,
    /// A name for this process that outlives it, such as a pod's; makes a restart no rebalance. All of a group's processes
    /// have one, or none has.
    pub(super) instance_id: Option<String>,
    /// Where a partition without committed offset starts.
    pub(super) start: Start,
    /// What to do where a log ends before the place up to which it was read, as after an unclean leader election.
    pub(super) on_truncation: OnTruncation,
    /// How long to wait for a broker at start.
    pub(super) connect_timeout: Span,
    /// Any other property of librdkafka, for all clients; those that unseen sets itself are refused.
    pub(super) properties: Properties,
}

impl Default for Kafka {
    fn default() -> Self {
        Self {
            bootstrap_servers: None,
            group_id: "unseen".to_owned(),
            instance_id: None,
            start: Start::default(),
            on_truncation: OnTruncation::default(),
            connect_timeout: Span(Duration::from_secs(60)),
            properties: Properties::default(),
        }
    }
}

/// How the worker threads work.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Worker {
    /// Threads, each with its own consumer, producer and partitions: 1 to 64.
    pub(super) workers: Count,
    /// What a crash may repeat.
    pub(super) delivery: Delivery,
    /// Time between commits while records flow: from 10ms to half of `transaction_timeout`.
    pub(super) commit_interval: Span,
    /// Time between the checkpoints of a partition: at least 100ms.
    pub(super) checkpoint_interval: Span,
    /// How long a lost process may block the readers of its outputs: 1s to 15m.
    pub(super) transaction_timeout: Span,
    /// Most records in one transaction.
    pub(super) max_transaction_records: Count,
    /// How long the last commit and checkpoint may take after SIGTERM, and the last answers of `unseen serve`.
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
            max_transaction_records: Count(1_000_000),
            shutdown_timeout: Span(Duration::from_secs(20)),
        }
    }
}

/// What is kept on disk.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct State {
    /// Directory of the checkpoints.
    pub(super) dir: String,
    /// Whether what is remembered is also written to a topic, `<group_id>-<space>-changelog`, from which a partition's state is
    /// rebuilt where its disk is lost or it comes from another machine. Made if it is missing.
    pub(super) changelog: Switch,
    /// For a partition with neither checkpoint nor changelog.
    pub(super) cold_start: ColdStart,
    /// Bytes a second that checkpoints may write on average.
    pub(super) max_write_rate: Bytes,
}

impl Default for State {
    fn default() -> Self {
        Self { dir: "state".to_owned(), changelog: Switch(true), cold_start: ColdStart::default(), max_write_rate: Bytes(32 << 20) }
    }
}

/// The dashboard, the metrics and the probes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Http {
    /// Where they are served, such as `0.0.0.0:8080`; `off` for nowhere. Whoever can connect can look: nothing can be
    /// changed there.
    pub(super) listen: String,
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: "127.0.0.1:8080".to_owned() }
    }
}

/// What is logged.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Log {
    /// Lowest level to log, such as `warn` or `info,unseen=debug`.
    pub(super) level: String,
    /// How a line is written.
    pub(super) format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::default() }
    }
}

/// Where the schemas of Avro and Protobuf records are. Needed only for such records.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct SchemaRegistry {
    /// Its address, such as `http://localhost:8081`; of several, separated by commas, the next is tried where one does not
    /// answer.
    pub(super) url: Option<String>,
    /// A user, for basic authentication.
    pub(super) username: Option<String>,
    /// That user's password.
    pub(super) password: Option<String>,
    /// A bearer token instead of a user.
    pub(super) oauth: Option<RegistryOAuth>,
    /// A file of certificates in PEM that the registry's own is signed by. Those of the system by default.
    pub(super) ca_location: Option<String>,
    /// How long an answer may take.
    pub(super) timeout: Span,
}

impl Default for SchemaRegistry {
    fn default() -> Self {
        Self { url: None, username: None, password: None, oauth: None, ca_location: None, timeout: Span(Duration::from_secs(10)) }
    }
}

/// Bearer tokens for a schema registry.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(extend("required" = ["token_endpoint_url"]))]
pub(super) struct RegistryOAuth {
    /// The URL of a token endpoint, or `file:///path` for a token in a file that another process renews. Required.
    #[schemars(required)]
    pub(super) token_endpoint_url: Option<String>,
    /// The client's ID, for a token endpoint.
    pub(super) client_id: Option<String>,
    /// The client's secret.
    pub(super) client_secret: Option<String>,
    /// The scopes to request, separated by spaces.
    pub(super) scope: Option<String>,
    /// A PEM file with the CA certificates of the token endpoint. The system's CAs by default.
    pub(super) ca_location: Option<String>,
    /// The registry's ID in Confluent Cloud, such as `lsrc-1234`.
    pub(super) logical_cluster: Option<String>,
    /// The identity pool in Confluent Cloud, such as `pool-1234`.
    pub(super) identity_pool_id: Option<String>,
}

/// What `unseen serve` answers, and where. `unseen run` does not read it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Serve {
    /// True if the configuration has this table.
    #[serde(skip)]
    pub(super) is_set: bool,
    /// Where clients of Redis ask. Set a password, and TLS, where it is no address of this machine only.
    pub(super) listen: String,
    /// Where metrics, probes and the look-up over HTTP are; `off` for nowhere. Set apart from `http.listen`, so that a worker
    /// and a server can run side by side.
    pub(super) http_listen: String,
    /// Threads that answer. As many as there are processors by default.
    pub(super) threads: Option<Count>,
    /// Most connections at a time.
    pub(super) max_connections: Count,
    /// What clients must give with AUTH. Anybody may ask where there is none.
    pub(super) password: Option<String>,
    /// Encrypts connections, those over HTTP too.
    pub(super) tls: Option<Tls>,
    /// The partitions that are followed, such as `0-31` or `0,2,4`. All by default.
    pub(super) partitions: Option<String>,
    /// How producers choose the partition of a record by its key: `murmur2` (Java) or `crc32` (librdkafka). For keys that hold
    /// the record key: with it, only that partition is asked. A wrong one makes answers wrong.
    pub(super) partitioner: Option<Partitioner>,
    /// Whether clients may write: `BF.ADD` and the like then write the record that stands for the key to the space's input.
    pub(super) writes: Switch,
    /// How long ago the brokers may have been heard of. Without it, a server that is cut off goes on answering as of then.
    pub(super) max_staleness: Option<Span>,
    /// For spaces that this server is to keep in another filter than the worker has, by name: required where the worker's is
    /// of kind `exact`.
    pub(super) filters: BTreeMap<String, Filter>,
}

impl Default for Serve {
    fn default() -> Self {
        Self {
            is_set: false,
            listen: "127.0.0.1:6379".to_owned(),
            http_listen: "127.0.0.1:8082".to_owned(),
            threads: None,
            max_connections: Count(10_000),
            password: None,
            tls: None,
            partitions: None,
            partitioner: None,
            writes: Switch(false),
            max_staleness: None,
            filters: BTreeMap::new(),
        }
    }
}

/// Files in PEM by which connections are encrypted. They are read anew once a minute.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(extend("required" = ["certificate_location", "key_location"]))]
#[expect(clippy::struct_field_names, reason = "as librdkafka has them")]
pub(super) struct Tls {
    /// The server's certificate, and behind it those that it is signed by, but for the root. Required.
    #[schemars(required)]
    pub(super) certificate_location: Option<String>,
    /// Its private key, without a password. Required.
    #[schemars(required)]
    pub(super) key_location: Option<String>,
    /// Certificates that those of clients must be signed by. Without it, clients need none.
    pub(super) client_ca_location: Option<String>,
}

/// A topic to deduplicate.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(extend("required" = ["input", "key", "window"]))]
pub(super) struct Topic {
    /// The topic to read. Required.
    #[schemars(required)]
    pub(super) input: Option<String>,
    /// The topic that unseen records go to. A topic without it is a shadow: its records are judged, counted and remembered, and
    /// nothing of it is written but its state.
    pub(super) output: Option<String>,
    /// The records that are deduplicated: those for which this predicate holds, or each predicate of a list. All others are emitted in
    /// order, without deduplication. By default, all records are deduplicated.
    #[schemars(schema_with = "predicate::when_schema")]
    // Read by `resolve`, so that each predicate's fault has its own path.
    pub(super) when: Option<Value>,
    /// What the ids are ids of; topics that share one share what was seen. The input's name by default.
    pub(super) space: Option<String>,
    /// What identifies a record, one part or a list. Required.
    #[schemars(schema_with = "key::schema")]
    // Read by `resolve`, so that each part's fault has its own path.
    pub(super) key: Option<Value>,
    /// What the records' own keys are, where parts of the key are fields of them: as of `value_format`.
    pub(super) key_format: FormatOption,
    /// What the values are: `json`, `json_schema`, `avro` or `protobuf`. All but `json` have the frame of a schema registry.
    /// `{ kind = "avro", schema = "file.avsc" }` is for records without a frame, all of which are of that schema.
    pub(super) value_format: FormatOption,
    /// How keys are hashed: `xxh3`, or for keys that strangers choose `siphash` with a secret.
    #[schemars(schema_with = "forms::hash")]
    pub(super) hash: Option<Value>,
    /// Records that retract their key, so that the next record with the key is emitted: those with a header, or with one of some
    /// values in a header or a field. For kinds `cuckoo` and `exact`, and if `filter.confirm` is set.
    #[schemars(schema_with = "predicate::retract_schema")]
    pub(super) retract: Option<Value>,
    /// Whether records are first brought to the partition that their key asks for, through an internal topic,
    /// `<group_id>-<input>-repartition`: for inputs that are not partitioned by this key. Each record is then written twice.
    pub(super) repartition: Switch,
    /// How long a key stays seen, by record time or by count. Required.
    #[schemars(required)]
    pub(super) window: Option<Length>,
    /// How keys are remembered.
    pub(super) filter: Filter,
    /// Whether a duplicate begins its key's window anew; a key that repeats for ever is then never emitted again.
    pub(super) refresh: Switch,
    /// The place of a record's event time, which moves the window: `{ field = "/ts" }` or `{ header = "ts" }`, with its
    /// `unit`, and `optional = true` to use Kafka's timestamp for records without a usable time. Kafka's timestamp by default.
    #[schemars(schema_with = "key::time_schema")]
    pub(super) time: Option<Value>,
    /// How far ahead of this machine's clock a record's time may be to move the window.
    pub(super) max_future: Span,
    /// Records older than the window and not seen in it.
    pub(super) late: Late,
    /// What becomes of duplicates.
    pub(super) on_duplicate: OnDuplicate,
    /// What becomes of tombstones, records whose value is null, where the key is made of the value. Where it is not, they
    /// are records like any other.
    pub(super) on_tombstone: OnTombstone,
    /// What becomes of records without a key.
    pub(super) on_invalid: OnInvalid,
    /// A value, such as a tenant's name, that records and duplicates are counted by, of a sample of one record in 32: those of
    /// up to 64 values that are often there, and the rest. None by default.
    #[schemars(schema_with = "forms::count_by")]
    pub(super) count_by: Option<Value>,
    /// Whether duplicates are compared with the record that they repeat, of a sample of the keys: `true`, `false`, or
    /// `{ except = ["/pointer"] }` with the fields that may differ. Where the content differs, the key may lack a part.
    #[schemars(schema_with = "forms::key_conflicts")]
    pub(super) key_conflicts: Option<Value>,
}

impl Default for Topic {
    fn default() -> Self {
        Self {
            input: None,
            output: None,
            when: None,
            space: None,
            key: None,
            key_format: FormatOption::default(),
            value_format: FormatOption::default(),
            hash: None,
            retract: None,
            repartition: Switch(false),
            window: None,
            filter: Filter::default(),
            refresh: Switch(false),
            time: None,
            max_future: Span(Duration::from_secs(5 * 60)),
            late: Late::default(),
            on_duplicate: OnDuplicate::default(),
            on_tombstone: OnTombstone::default(),
            on_invalid: OnInvalid::default(),
            count_by: None,
            key_conflicts: None,
        }
    }
}

/// How keys are remembered.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Filter {
    /// How keys are remembered.
    pub(super) kind: Kind,
    /// Distinct keys that the whole topic shows in a window. Required for `aging` and `cuckoo`, but not for a window by count.
    pub(super) capacity: Option<Count>,
    /// Share of unseen records that may be dropped wrongly, at capacity.
    pub(super) false_positive_rate: Rate,
    /// Parts that a window is forgotten in: a key stays for at most one part longer than the window. 1 to 64.
    pub(super) slices: Count,
    /// Memory of the whole topic. Required for kind `stable`, and for no other.
    pub(super) memory: Option<Bytes>,
    /// Whether what the filter calls seen is looked up exactly, on disk: then no unseen record is dropped.
    pub(super) confirm: Switch,
    /// For `aging`: whether the next slice is sized from what the last ones held.
    pub(super) adapt: Switch,
    /// For `aging`: most memory for the topic's filters, shared out evenly over its partitions.
    pub(super) max_memory: Option<Bytes>,
    /// And when that is not enough.
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
        _ if value.get("siphash").is_some_and(|key| !key.is_string()) => Err("the siphash key is not text: put it in quotes".to_owned()),
        _ => Err("expected \"xxh3\" or { siphash = \"32 hex digits\" }".to_owned()),
    }
}

/// Where a value is that is counted by: `{ header = "name" }` or `{ field = "/pointer" }`.
pub(super) fn count_by(value: &Value) -> Result<CountBy, String> {
    match entry(value) {
        Some(("header", name)) => Ok(CountBy::Header(name.to_owned())),
        Some(("field", pointer)) => Field::new(pointer).map(CountBy::Field).map_err(|error| error.to_string()),
        _ => Err(expected("{ header = \"name\" } or { field = \"/pointer\" }", value)),
    }
}

/// `true`, `false` or `{ except = ["/pointer"] }`.
pub(super) fn key_conflicts(value: &Value) -> Result<Option<CompareContent>, String> {
    let except = |table: &Map<String, Value>| {
        let pointers = table.get("except").filter(|_| table.len() == 1)?.as_array()?;
        pointers.iter().map(|pointer| pointer.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
    };
    match value {
        Value::Bool(is_on) => return Ok(is_on.then(CompareContent::default)),
        // A variable gives text.
        Value::String(text) if text == "true" || text == "false" => return Ok((text == "true").then(CompareContent::default)),
        _ => {}
    }
    let except = value.as_object().and_then(except).ok_or_else(|| expected("true, false or { except = [\"/pointer\"] }", value))?;
    CompareContent::new(except).map(Some)
}

/// A table's only entry, if it is text.
fn entry(value: &Value) -> Option<(&str, &str)> {
    let table = value.as_object().filter(|table| table.len() == 1)?;
    let (name, value) = table.iter().next()?;
    Some((name, value.as_str()?))
}
