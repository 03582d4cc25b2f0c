//! The options of a configuration file: their names, forms, and defaults.
//!
//! Checks only the form of each value. `resolve` checks the values and how they fit together. The comments on options are user
//! documentation: editors show them, and docs/reference/options.md lists them.

use super::format::{EncodingOption, FormatOption};
use super::properties::Properties;
use super::units::{Bytes, Count, Length, Rate, Span, Switch, expected};
use super::{ColdStart, Delivery, LogFormat, OnDuplicate, OnInvalid, OnTombstone, OnTruncation, Partitioner, Start};
use super::{content, forms, inputs, key, predicate};
use crate::dedup::Late;
use crate::filter::{AtMaxMemory, Kind};
use crate::key::{Field, Hashing};
use crate::values::CountBy;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// A configuration of unseen. Strings can contain `${VAR}`, `${VAR:-default}`, `${VAR:?message}`, and `${file:/run/secrets/name}`.
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
    /// The topics to deduplicate, at least one.
    #[schemars(with = "Vec<Topic>", length(min = 1))]
    // An entry is `None` if it is null in YAML, or if an error in it was already reported.
    pub(super) topics: Vec<Option<Topic>>,
}

/// The connection to Kafka and the consumer group.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(extend("required" = ["bootstrap_servers"]))]
pub(super) struct Kafka {
    /// Initial brokers: `host:port`, separated by commas. Required.
    #[schemars(required)]
    pub(super) bootstrap_servers: Option<String>,
    /// Consumer group. The names of internal topics and the transactional ids begin with the name of the group.
    pub(super) group_id: String,
    /// Static name of this process, such as the name of its pod. With a static name, a restart does not trigger a rebalance. Set this
    /// option for all processes of a group or for none.
    pub(super) instance_id: Option<String>,
    /// Start position in a partition without a committed offset.
    pub(super) start: Start,
    /// Action if a partition's log ends before the next offset to read, for example after an unclean leader election.
    pub(super) on_truncation: OnTruncation,
    /// Maximum time to wait for a broker at startup.
    pub(super) connect_timeout: Span,
    /// Other librdkafka properties, for all Kafka clients of unseen. unseen rejects properties that it sets itself.
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

/// The worker threads and their transactions.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Worker {
    /// Number of worker threads, each with its own consumer, producer, and partitions: 1 to 64.
    pub(super) workers: Count,
    /// Delivery guarantee, which determines the records that may be emitted again after a crash.
    pub(super) delivery: Delivery,
    /// Time between commits while records arrive: 10ms to half of `transaction_timeout`.
    pub(super) commit_interval: Span,
    /// Time between the checkpoints of a partition: at least 100ms.
    pub(super) checkpoint_interval: Span,
    /// Maximum duration of a transaction: 1s to 15m. If a process is lost, `read_committed` consumers of its outputs wait for at most this
    /// time.
    pub(super) transaction_timeout: Span,
    /// Maximum number of records in a transaction. A transaction also ends after 64 MiB of keys and values.
    pub(super) max_transaction_records: Count,
    /// Time limit for the last commit and checkpoint after SIGTERM and for the last replies of `unseen serve`.
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

/// The state of the partitions, on disk and in the changelog.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct State {
    /// Directory of the checkpoints.
    pub(super) dir: String,
    /// Also write the seen keys to a topic, `<group_id>-<space>-changelog`. The worker rebuilds the state of a partition from the topic if
    /// the disk is lost or if the partition moves to another machine. The worker creates the topic if it is missing.
    pub(super) changelog: Switch,
    /// Action for a partition that has neither a usable checkpoint nor a usable changelog.
    pub(super) cold_start: ColdStart,
    /// Maximum average write rate of checkpoints, in bytes per second.
    pub(super) max_write_rate: Bytes,
}

impl Default for State {
    fn default() -> Self {
        Self { dir: "state".to_owned(), changelog: Switch(true), cold_start: ColdStart::default(), max_write_rate: Bytes(32 << 20) }
    }
}

/// The dashboard, the metrics, and the probes of a worker.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Http {
    /// Address to listen on, such as `0.0.0.0:8080`, or `off`. Any client that can connect can read the endpoints but cannot change
    /// anything.
    pub(super) listen: String,
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: "127.0.0.1:8080".to_owned() }
    }
}

/// The log of the process.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Log {
    /// Minimum log level, such as `warn`. `info,unseen=debug` sets another level for one module.
    pub(super) level: String,
    /// Format of the log lines.
    pub(super) format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::default() }
    }
}

/// The schema registry. Required only for Avro and Protobuf records with the frame of a registry.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct SchemaRegistry {
    /// Address of the registry, such as `http://localhost:8081`, or several addresses separated by commas. If one fails or does not
    /// know a schema, the next one is tried.
    pub(super) url: Option<String>,
    /// User for basic authentication. For Confluent Cloud, the API key.
    pub(super) username: Option<String>,
    /// Password for basic authentication.
    pub(super) password: Option<String>,
    /// A bearer token, instead of a user and a password.
    pub(super) oauth: Option<RegistryOAuth>,
    /// PEM file with the CA certificates that sign the registry's certificate. The system's CAs by default.
    pub(super) ca_location: Option<String>,
    /// Maximum time for a response.
    pub(super) timeout: Span,
}

impl Default for SchemaRegistry {
    fn default() -> Self {
        Self { url: None, username: None, password: None, oauth: None, ca_location: None, timeout: Span(Duration::from_secs(10)) }
    }
}

/// A bearer token for the schema registry.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(extend("required" = ["token_endpoint_url"]))]
pub(super) struct RegistryOAuth {
    /// URL of a token endpoint, or `file:///path` for a token in a file that another process renews. Required.
    #[schemars(required)]
    pub(super) token_endpoint_url: Option<String>,
    /// Client ID. Required for a token endpoint.
    pub(super) client_id: Option<String>,
    /// Client secret. Required for a token endpoint.
    pub(super) client_secret: Option<String>,
    /// Scopes to request, separated by spaces.
    pub(super) scope: Option<String>,
    /// PEM file with the CA certificates that sign the token endpoint's certificate. The system's CAs by default.
    pub(super) ca_location: Option<String>,
    /// The registry's ID in Confluent Cloud, such as `lsrc-1234`.
    pub(super) logical_cluster: Option<String>,
    /// The identity pool in Confluent Cloud, such as `pool-1234`.
    pub(super) identity_pool_id: Option<String>,
}

/// The servers that `unseen serve` runs. `unseen run` ignores this table.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Serve {
    /// True if the configuration has this table.
    #[serde(skip)]
    pub(super) is_set: bool,
    /// Address for Redis clients. If it is not a local address, set a password and `tls`.
    pub(super) listen: String,
    /// Address of the metrics, the probes, and HTTP lookups, or `off`. The default differs from the default of `http.listen`, so a worker
    /// and a server can run side by side.
    pub(super) http_listen: String,
    /// Number of threads. The number of CPUs by default.
    pub(super) threads: Option<Count>,
    /// Maximum number of connections.
    pub(super) max_connections: Count,
    /// Password that clients must send with AUTH. Without one, any client can look up keys.
    pub(super) password: Option<String>,
    /// TLS for both ports.
    pub(super) tls: Option<Tls>,
    /// Partitions to follow, such as `0-31` or `0,2,4`. All by default.
    pub(super) partitions: Option<String>,
    /// Partitioner of the producers, which chooses the partition of a record by its record key. If the record key is part of the key,
    /// lookups then use only that partition. A wrong value causes wrong answers.
    pub(super) partitioner: Option<Partitioner>,
    /// Allow clients to write. `BF.ADD` and similar commands then write a record for the key to the space's input.
    pub(super) writes: Switch,
    /// Maximum age of the server's state. If the state is older because the server cannot reach the brokers or cannot keep up, the server
    /// returns errors. By default, the server keeps answering from its last state.
    pub(super) max_staleness: Option<Span>,
    /// Filters of this server that differ from the worker's filters, by the name of the space. Required for a space if the worker's
    /// filter is of kind `exact`.
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

/// PEM files for TLS. The server reads them again once a minute.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(extend("required" = ["certificate_location", "key_location"]))]
#[expect(clippy::struct_field_names, reason = "as librdkafka has them")]
pub(super) struct Tls {
    /// The server's certificate, followed by any intermediate certificates. Required.
    #[schemars(required)]
    pub(super) certificate_location: Option<String>,
    /// Private key of the server's certificate, without a password. Required.
    #[schemars(required)]
    pub(super) key_location: Option<String>,
    /// PEM file with CA certificates. If set, Redis clients must present a certificate that one of these CAs signed.
    pub(super) client_ca_location: Option<String>,
}

/// A topic to deduplicate.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(extend("required" = ["input", "key", "window"]))]
pub(super) struct Topic {
    /// Topic to read, a list of topics, or `{ pattern = "…" }` for all topics that match. In other topic names and in `space`,
    /// `{input}` stands for the topic that is read. Required.
    #[schemars(required)]
    pub(super) input: Option<inputs::Inputs>,
    /// Topic for unseen records, such as `{input}.unseen`. Without it, the topic is a shadow: the worker evaluates, counts, and remembers
    /// its records but writes only its state.
    pub(super) output: Option<String>,
    /// Predicate that selects the records to deduplicate, or a list of predicates that must all hold. The worker emits all other records in
    /// order, without deduplication. By default, it deduplicates all records.
    #[schemars(schema_with = "predicate::when_schema")]
    // `resolve` parses this option, so an error has the path of the predicate.
    pub(super) when: Option<Value>,
    /// Key space. Topics with the same space share their seen keys. The name of the input by default. A second entry with the same
    /// input needs a different space.
    pub(super) space: Option<String>,
    /// Key of a record: a part, or a list of parts. Records with the same key are duplicates. Required.
    #[schemars(schema_with = "key::schema")]
    // `resolve` parses this option, so an error has the path of the part.
    pub(super) key: Option<Value>,
    /// Format of the record keys. Matters only if the record key or a field of the record key is read. The possible values are the same as
    /// for `value_format`.
    pub(super) key_format: FormatOption,
    /// Format of the values: `json`, `json_schema`, `avro`, or `protobuf`. All except `json` expect the frame of a schema registry.
    /// Use `{ kind = "avro", schema = "file.avsc" }` for records without a frame that all have this schema.
    pub(super) value_format: FormatOption,
    /// Encodings of the whole value, outermost first: `gzip` and `base64`. The worker decodes at most 32 MiB to read a value and emits the
    /// value unchanged.
    pub(super) value_encoding: EncodingOption,
    /// Hash function for keys: `"xxh3"`, or, if untrusted parties choose the keys, `{ siphash = "32 hex digits" }` with a secret.
    #[schemars(schema_with = "forms::hash")]
    pub(super) hash: Option<Value>,
    /// Predicate that selects retractions, as in `when`, or `{ header = "name" }` for records with this header. After a retraction, the
    /// next record with its key is emitted. Requires kind {retracts}, or `filter.confirm`.
    #[schemars(schema_with = "predicate::retract_schema")]
    pub(super) retract: Option<Value>,
    /// First write each record to an internal topic, `<group_id>-<input>-repartition`, in a partition that is chosen by key. Use it for
    /// inputs that are not partitioned by this key. Each record is then written twice.
    pub(super) repartition: Switch,
    /// Length of the window: a duration in stream time, or a number of keys, `{ keys = 1000000 }`. unseen remembers a key for one window.
    /// Required.
    #[schemars(required)]
    pub(super) window: Option<Length>,
    /// The filter that stores seen keys.
    pub(super) filter: Filter,
    /// Let each duplicate restart the window of its key. A key that keeps occurring is then never emitted again.
    pub(super) refresh: Switch,
    /// Location of the event time, which moves the window: `{ field = "/ts" }` or `{ header = "ts" }`, with its `unit`, and
    /// `optional = true` to use Kafka's timestamp for records without a usable time. Kafka's timestamp by default.
    #[schemars(schema_with = "key::time_schema")]
    pub(super) time: Option<Value>,
    /// Maximum time that a record may be ahead of the local clock. Records that are further ahead do not move the window.
    pub(super) max_future: Span,
    /// Action for records that are older than the window and whose keys are unseen.
    pub(super) late: Late,
    /// Records of a key to emit: the `first` record within the window, or, with kind `exact`, each record that differs from the
    /// previous record of its key (`on_change`). `{ on_change = { except = ["/updated_at"] } }` ignores some fields.
    /// `{ on_change = { field = "/state" } }` compares only some parts, which have the form of `key`.
    #[schemars(schema_with = "content::emit_schema")]
    // `resolve` parses this option, so an error has the path of the part.
    pub(super) emit: Option<Value>,
    /// Action for duplicates.
    pub(super) on_duplicate: OnDuplicate,
    /// Action for tombstones (records with a null value) if the key needs the value. Otherwise, a tombstone is a record like
    /// any other.
    pub(super) on_tombstone: OnTombstone,
    /// Action for invalid records: those without a usable key or event time, and those that the output rejects.
    pub(super) on_invalid: OnInvalid,
    /// Count records and duplicates by a value, such as a tenant: `{ header = "name" }` or `{ field = "/pointer" }`. A worker
    /// counts a sample of one record in 32. Up to 64 frequent values have their own counts, and all others share one.
    #[schemars(schema_with = "forms::count_by")]
    pub(super) count_by: Option<Value>,
    /// Compare a sample of duplicates with the records that they duplicate: `true`, `false`, or `{ except = ["/pointer"] }` with
    /// fields that may differ. If the content differs, the key may lack a part.
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
            value_encoding: EncodingOption::default(),
            hash: None,
            retract: None,
            repartition: Switch(false),
            window: None,
            filter: Filter::default(),
            refresh: Switch(false),
            time: None,
            max_future: Span(Duration::from_secs(5 * 60)),
            late: Late::default(),
            emit: None,
            on_duplicate: OnDuplicate::default(),
            on_tombstone: OnTombstone::default(),
            on_invalid: OnInvalid::default(),
            count_by: None,
            key_conflicts: None,
        }
    }
}

/// The filter that stores seen keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct Filter {
    /// Kind of filter.
    pub(super) kind: Kind,
    /// Number of distinct keys of the whole topic in a window. Required for kind {capacity}, except with a window by count.
    pub(super) capacity: Option<Count>,
    /// Maximum share of unseen records that may be dropped wrongly, at capacity.
    pub(super) false_positive_rate: Rate,
    /// Number of slices of a window: 1 to 64. A key stays seen for at most one slice longer than the window.
    pub(super) slices: Count,
    /// Memory for the whole topic. Required for kind {memory} and invalid for all other kinds.
    pub(super) memory: Option<Bytes>,
    /// If the filter reports a key as seen, look the key up in an exact store on disk before the record is dropped. No unseen record is
    /// then dropped.
    pub(super) confirm: Switch,
    /// For kind {grows} with a window by time: size the next slice for the fullest recent slice plus an eighth. Slices are smaller than
    /// configured only after a whole window and never smaller than 1/64 of the configured size.
    pub(super) adapt: Switch,
    /// For kind {grows}: maximum memory for the topic's filters, divided evenly among its partitions. unseen rejects a limit that is too
    /// small for `capacity`.
    pub(super) max_memory: Option<Bytes>,
    /// Action of a filter that would need more than `max_memory`.
    pub(super) at_max_memory: AtMaxMemory,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            kind: Kind::default(),
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
            _ => Err(expected("\"drop\", \"mark\", or { topic = \"name\" }", &value)),
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
            _ => Err(expected("\"fail\", \"drop\", \"emit\", or { topic = \"name\" }", &value)),
        }
    }
}

/// Parses `{ topic = "name" }` and returns the name.
fn topic(value: &Value) -> Option<String> {
    match entry(value)? {
        ("topic", name) => Some(name.to_owned()),
        _ => None,
    }
}

/// Parses the option `hash`. Error messages never show the secret.
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

/// Parses `count_by`, the location of a value: `{ header = "name" }` or `{ field = "/pointer" }`.
pub(super) fn count_by(value: &Value) -> Result<CountBy, String> {
    match entry(value) {
        Some(("header", name)) => Ok(CountBy::Header(name.to_owned())),
        Some(("field", pointer)) => Field::new(pointer).map(CountBy::Field).map_err(|error| error.to_string()),
        _ => Err(expected("{ header = \"name\" } or { field = \"/pointer\" }", value)),
    }
}

/// Returns the only entry of a table, if its value is text.
fn entry(value: &Value) -> Option<(&str, &str)> {
    let table = value.as_object().filter(|table| table.len() == 1)?;
    let (name, value) = table.iter().next()?;
    Some((name, value.as_str()?))
}
