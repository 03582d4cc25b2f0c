//! Loads the configuration and validates it.
//!
//! Each layer overrides the previous layers: built-in defaults, the file (TOML or YAML), environment variables `UNSEEN__A__B`, and flags.
//! `raw` has the options as written, and `resolve` converts them to the types of this module, which are always valid. All errors are
//! reported at once. Each error contains its source (such as the file) and, if it concerns an option, the path of the option.
//!
//! This module never connects to a broker or touches the state directory.

mod aliases;
mod content;
mod effective;
mod error;
mod filter;
pub mod flags;
mod format;
mod forms;
mod inputs;
mod key;
mod listen;
mod load;
mod oauth;
mod partitioner;
mod pattern;
mod predicate;
mod properties;
mod raw;
mod registry;
mod resolve;
mod rules;
mod schema;
mod secrets;
mod serve;
mod space;
mod topics;
mod units;
mod vars;

pub use error::{Error, Errors};
pub use filter::Filter;
pub use load::document;
pub use oauth::{OAuth, RegistryOAuth, TokenEndpoint, TokenSource};
pub use partitioner::Partitioner;
pub use pattern::{LeftOut, MATCHED_MAX, Pattern};
#[cfg(feature = "worker")]
pub(crate) use properties::first_name;
pub use registry::SchemaRegistry;
pub use rules::EarlierRules;
pub use schema::schema;
#[cfg(feature = "worker")]
pub(crate) use secrets::is_secret;
pub use serve::{Partitions, Serve, Tls};
pub use space::KeySpace;
pub use units::window_text;

use crate::content::CompareContent;
use crate::dedup::{Emit, Late, Rules};
use crate::filter::Window;
use crate::format::Formats;
use crate::key::{EventTime, KeySpec, Predicate, RecordSpec, TimePlace};
use crate::record::{Reason, Timestamp, Verdict};
use crate::values::CountBy;
use error::Diagnostics;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vars::Environment;

/// A valid configuration, from [`Config::load`]. Sizes are in bytes. The capacity and the memory limits of a topic's filter apply to all of
/// its partitions together, but a window by count applies to each partition.
#[derive(Clone, Debug)]
pub struct Config {
    /// The connection to Kafka.
    pub kafka: Kafka,
    /// The worker threads and their transactions.
    pub worker: Worker,
    /// The state on disk and in the changelog.
    pub state: State,
    /// The HTTP server of a worker, for the dashboard, the metrics, and the probes.
    pub http: Http,
    /// The log of the process.
    pub log: Log,
    /// The schema registry, if it is configured.
    pub schema_registry: Option<SchemaRegistry>,
    /// The settings of `unseen serve`.
    pub serve: Serve,
    /// The topics to deduplicate: one for each input of each entry. Without patterns, the list has at least one topic.
    pub topics: Vec<Topic>,
    /// The entries whose `input` is a pattern. [`Config::expand`] adds the topics that match.
    pub patterns: Vec<Pattern>,
}

impl Config {
    /// Reads the file (TOML or YAML), the environment variables that begin with `UNSEEN__`, and the overrides of the command line, as pairs
    /// of path and value. Each source overrides the previous one.
    ///
    /// # Errors
    /// Returns [`Errors`] with all errors of the configuration.
    pub fn load(path: &Path, overrides: &[(String, String)]) -> Result<Self, Errors> {
        Self::load_with(path, &Self::environment(), overrides)
    }

    /// Returns the environment variables, with replacement characters for invalid Unicode. If variables with invalid Unicode were left out,
    /// their options would silently keep the defaults.
    fn environment() -> Environment {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
    }

    fn load_with(path: &Path, environment: &Environment, overrides: &[(String, String)]) -> Result<Self, Errors> {
        let mut diagnostics = Diagnostics::new(path.display().to_string());
        let raw = load::load(path, environment, overrides, &mut diagnostics);
        let config = raw.and_then(|raw| resolve::resolve(raw, &mut diagnostics));
        diagnostics.finish(config)
    }
}

impl Config {
    /// Returns the name of a space's changelog topic, `<group_id>-<space>-changelog`, or `None` if changelogs are off.
    #[must_use]
    pub fn changelog(&self, space: &str) -> Option<String> {
        self.state.changelog.then(|| format!("{}-{space}-changelog", self.kafka.group_id))
    }

    /// Returns the name of a topic's repartition topic, `<group_id>-<input>-repartition`, or `None` if the topic is not repartitioned.
    #[must_use]
    pub fn repartitioned(&self, topic: &Topic) -> Option<String> {
        topic.repartition.then(|| format!("{}-{}-repartition", self.kafka.group_id, topic.input))
    }
}

/// The connection to Kafka and the consumer group. Its `Debug` output contains no secret.
#[derive(Clone)]
pub struct Kafka {
    /// The initial brokers: `host:port`, separated by commas.
    pub bootstrap_servers: String,
    /// The consumer group. The names of internal topics and the transactional ids begin with the name of the group.
    pub group_id: String,
    /// A static name of this process. The name makes the group membership static, so a restart within `session.timeout.ms` does not trigger
    /// a rebalance. Transactional ids contain the static name or, without a static name, the id of the state directory.
    pub instance_id: Option<String>,
    /// The start position of a partition without a committed offset.
    pub start: Start,
    /// The action if a partition's log ends before the next offset that the worker would read. Applies only if the brokers have topic ids.
    /// Otherwise, the worker assumes that the topic was recreated and reads the partition from its beginning.
    pub on_truncation: OnTruncation,
    /// The maximum time to wait for a broker at startup.
    pub connect_timeout: Duration,
    /// Other librdkafka properties, by their primary names. The properties for OAUTHBEARER are in `oauth`.
    pub properties: BTreeMap<String, String>,
    /// The login with the SASL mechanism OAUTHBEARER, if it is configured.
    pub oauth: Option<OAuth>,
}

impl std::fmt::Debug for Kafka {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka")
            .field("bootstrap_servers", &self.bootstrap_servers)
            .field("group_id", &self.group_id)
            .field("instance_id", &self.instance_id)
            .field("start", &self.start)
            .field("on_truncation", &self.on_truncation)
            .field("connect_timeout", &self.connect_timeout)
            .field("properties", &self.properties.keys())
            .field("oauth", &self.oauth)
            .finish()
    }
}

/// The start position of a partition without a committed offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Start at the oldest record.
    #[default]
    Earliest,
    /// Start at the next new record.
    Latest,
}

/// The action if a partition's log ends before the next offset that the worker would read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTruncation {
    /// Stop with an error, because records that are written below the old position would be skipped.
    #[default]
    Fail,
    /// Continue at the end of the log.
    Continue,
}

/// The linger time with `at_least_once`, and the minimum with `exactly_once`.
const LINGER: Duration = Duration::from_millis(5);
const LINGER_MAX: Duration = Duration::from_millis(250);
/// The time that each partition adds to the linger time with `exactly_once`.
const LINGER_EACH: Duration = Duration::from_millis(1);

/// The worker threads and their transactions.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Number of worker threads, from 1 to 64.
    pub workers: u16,
    /// The delivery guarantee, which decides whether records can be emitted again after a crash.
    pub delivery: Delivery,
    /// Time between commits while records arrive, at least 10 ms.
    pub commit_interval: Duration,
    /// Time between the checkpoints of a partition.
    pub checkpoint_interval: Duration,
    /// With `exactly_once`, the time after which the broker aborts an open transaction. This limits how long a lost process can block
    /// `read_committed` consumers. With both guarantees, other time limits of the worker are derived from this time.
    pub transaction_timeout: Duration,
    /// Maximum number of records in a transaction or, with `at_least_once`, between two commits.
    pub max_transaction_records: usize,
    /// Time limit for the last commit and checkpoint after SIGTERM and for the last replies of `unseen serve`.
    pub shutdown_timeout: Duration,
}

impl Delivery {
    /// Returns the default of `linger.ms`, the time that the producer waits for more records of a partition before it sends them.
    ///
    /// With `at_least_once`, the time is always 5 ms. With `exactly_once`, it is 1 ms per partition. librdkafka sends one request per
    /// partition, and a broker processes the requests of a connection one at a time. With 1 ms per partition, all `partitions` together
    /// cause at most a thousand requests per second. With fewer partitions, the time is shorter, because records use memory while they
    /// wait. Two limits take precedence over 1 ms per partition. The time is at most a quarter of the commit interval. At this limit, a
    /// partition causes at most five requests per commit. The time is at most 250 ms (4 requests per second per partition) and at least
    /// 5 ms (200 requests), even if a quarter of the commit interval is less. A commit does not wait for this time, because it flushes the
    /// producer.
    #[must_use]
    pub fn linger(self, commit_interval: Duration, partitions: u32) -> Duration {
        match self {
            Self::ExactlyOnce => (commit_interval / 4).min(LINGER_EACH * partitions).clamp(LINGER, LINGER_MAX),
            // Without transactions, consumers read records before the commit, so a longer wait would only delay the records.
            Self::AtLeastOnce => LINGER,
        }
    }

    /// Returns the value of the option `worker.delivery` that selects this guarantee.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ExactlyOnce => "exactly_once",
            Self::AtLeastOnce => "at_least_once",
        }
    }
}

/// The delivery guarantee: the records that may be emitted again after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// No records are emitted again, because outputs and offsets are committed in one transaction.
    #[default]
    ExactlyOnce,
    /// The records since the last commit may be emitted again.
    AtLeastOnce,
}

/// The state of the partitions, on disk and in the changelog.
#[derive(Clone, Debug)]
pub struct State {
    /// Directory of the checkpoints.
    pub dir: PathBuf,
    /// True if seen keys are also written to a changelog topic. The state of a partition can be rebuilt from this topic.
    pub changelog: bool,
    /// The action if the state of a partition cannot be restored completely: no checkpoint or changelog is usable, or records that are
    /// missing from the restored state have been deleted from the input.
    pub cold_start: ColdStart,
    /// Maximum average number of bytes per second that the checkpoints of all workers write. To stay below this rate, large checkpoints are
    /// written less often than every `worker.checkpoint_interval`.
    pub max_write_rate: u64,
}

/// The action for a partition that has neither a usable checkpoint nor a usable changelog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ColdStart {
    /// Read one window of the input again, without emitting. With `time` or a window by count, read all records from the group's first
    /// offset on. The result is approximate.
    #[default]
    Rebuild,
    /// Start without seen keys. Records of the last window may be emitted again.
    Empty,
    /// Stop with an error.
    Fail,
}

/// The dashboard, the metrics, and the probes of a worker.
#[derive(Clone, Debug)]
pub struct Http {
    /// The address to listen on, if any. Any client that can connect can read the endpoints but cannot change anything.
    pub listen: Option<SocketAddr>,
}

/// The log of the process, which goes to stderr.
#[derive(Clone, Debug)]
pub struct Log {
    /// Minimum log level, such as `warn`. `info,unseen=debug` sets another level for one module.
    pub level: String,
    /// Format of the log lines.
    pub format: LogFormat,
}

/// Format of the log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Lines of text, for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// An input topic and its settings. An input with several rules has one `Topic` for each rule.
#[derive(Clone, Debug)]
pub struct Topic {
    /// Index of the topic's entry in `topics` of the configuration file. An entry with several inputs becomes several topics.
    pub entry: usize,
    /// The name of the input topic.
    pub input: String,
    /// The topic for unseen records. `None` for a shadow topic: the worker then writes only its state.
    pub output: Option<String>,
    /// The predicates that must all hold for a record to be deduplicated. All other records go to the next rule of the input or, after the
    /// last rule, pass through without deduplication.
    pub when: Vec<Predicate>,
    /// The name of the key space. Topics with the same key space share their seen keys.
    pub space: String,
    /// The parts of the key and the hash function.
    pub key: KeySpec,
    /// The formats of record keys and values.
    pub formats: Formats,
    /// True if records are first written to a repartition topic, in a partition that is chosen by key.
    pub repartition: bool,
    /// The window, by time or by number of keys: how long a key stays seen.
    pub window: Window,
    /// The filter that stores seen keys.
    pub filter: Filter,
    /// The predicate that selects retractions: records that remove their key from the state. `None` if `retract` is not set.
    pub retract: Option<Predicate>,
    /// True if a duplicate restarts the window of its key.
    pub refresh: bool,
    /// The location of the event time in a record, or `None` for Kafka's timestamp.
    pub time: Option<EventTime>,
    /// The maximum time that a record may be ahead of the local clock. Later record times do not advance stream time.
    pub max_future: Duration,
    /// The action for records that are older than the window and have an unseen key.
    pub late: Late,
    /// The parts to compare, if only changed records are emitted. `None` if the first record of each key is emitted.
    pub on_change: Option<KeySpec>,
    /// The action for duplicates.
    pub on_duplicate: OnDuplicate,
    /// The action for tombstones (records with a null value), if the key needs the value.
    pub on_tombstone: OnTombstone,
    /// The action for invalid records: records without a usable key, content, or event time, records for which a predicate cannot be
    /// tested, and records that the output rejects.
    pub on_invalid: OnInvalid,
    /// The field or header whose values get their own counts of records and duplicates. `None` if `count_by` is not set.
    pub count_by: Option<CountBy>,
    /// The comparison of a sample of duplicates with the records that they duplicate. `None` if `key_conflicts` is off.
    pub key_conflicts: Option<CompareContent>,
}

/// The action for duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "serde_json::Value", rename_all = "snake_case")]
#[schemars(!try_from)]
pub enum OnDuplicate {
    /// Drop duplicates.
    #[default]
    Drop,
    /// Write duplicates to another topic.
    Topic(String),
    /// Emit duplicates as well. Each output record then has its verdict in a header.
    Mark,
}

/// The action for tombstones if the key needs the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTombstone {
    /// Emit tombstones without deduplication.
    #[default]
    Emit,
    /// Drop tombstones.
    Drop,
    /// Treat tombstones as invalid records: `on_invalid` then sets what happens to them.
    Invalid,
}

/// The action for records without a usable key or event time, and for records that the output rejects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "serde_json::Value", rename_all = "snake_case")]
#[schemars(!try_from)]
pub enum OnInvalid {
    /// Stop the worker with an error that identifies the record.
    #[default]
    Fail,
    /// Drop invalid records.
    Drop,
    /// Emit invalid records like unseen records.
    Emit,
    /// Write invalid records to a dead-letter topic, with the reason in their headers.
    Topic(String),
}

impl Topic {
    /// Returns the path of one of the topic's options in the configuration file, such as `topics[0].output`.
    #[must_use]
    pub fn setting(&self, option: &str) -> String {
        format!("topics[{}].{option}", self.entry)
    }

    /// True if the worker writes nothing for this topic except its state.
    #[must_use]
    #[inline]
    pub const fn is_shadow(&self) -> bool {
        self.output.is_none()
    }

    /// Returns the latest record time that can advance stream time, if the record is read at `now`.
    #[must_use]
    pub fn max_timestamp(&self, now: Timestamp) -> Timestamp {
        now.saturating_add(i64::try_from(self.max_future.as_millis()).unwrap_or(i64::MAX))
    }

    /// True if record times decide how long a key stays seen. False for a window by count, and, without an exact store, for kinds of
    /// filters that can forget a key before the end of its window.
    #[must_use]
    pub fn forgets_by_time(&self) -> bool {
        self.window.length_ms().is_some() && (self.filter.is_exact() || self.filter.kind.properties().keeps_window)
    }

    /// Returns the places in a record that its verdict depends on, and the formats of its key and value.
    #[must_use]
    #[inline]
    pub const fn record_spec(&self) -> RecordSpec<'_> {
        RecordSpec {
            key: &self.key,
            content: self.on_change.as_ref(),
            when: self.when.as_slice(),
            retract: self.retract.as_ref(),
            time: self.time.as_ref(),
            formats: &self.formats,
        }
    }

    /// True if the verdict on a record can depend on its headers.
    #[must_use]
    pub fn reads_headers(&self) -> bool {
        self.when.iter().chain(&self.retract).any(Predicate::reads_headers)
            || matches!(self.time, Some(EventTime { place: TimePlace::Header(_), .. }))
            || self.key.reads_headers()
            || self.on_change.as_ref().is_some_and(KeySpec::reads_headers)
            || self.formats.reads_headers()
    }

    /// Returns the verdict on a record whose key, content, or time cannot be used because of `reason`.
    #[must_use]
    pub fn verdict_without_key(&self, reason: Reason) -> Verdict {
        match reason {
            Reason::Tombstone if self.on_tombstone != OnTombstone::Invalid => Verdict::Tombstone,
            reason => Verdict::Invalid(reason),
        }
    }

    /// Returns the dedup settings for one of the topic's `partitions` partitions.
    #[must_use]
    pub fn rules(&self, partitions: u32) -> Rules {
        Rules {
            window: self.window,
            filter: self.filter.spec(self.window, partitions),
            exact: self.filter.is_exact(),
            refresh: self.refresh,
            late: self.late,
            emit: self.emit(),
        }
    }

    /// Returns [`Emit::OnChange`] if changed records of a key are emitted, and [`Emit::First`] otherwise.
    #[must_use]
    #[inline]
    pub const fn emit(&self) -> Emit {
        if self.on_change.is_some() { Emit::OnChange } else { Emit::First }
    }
}

#[cfg(test)]
mod tests;
