//! From files, environment and flags to types that cannot be wrong.
//!
//! Built-in defaults < file (TOML or YAML) < environment `UNSEEN__A__B` < flags. Two steps, and
//! never back: `raw` is what a file may say, the types here are what it means. All errors are found
//! at once, and each names the file, the path in it and what was expected.
//!
//! Must never talk to a broker or touch the state directory.

mod aliases;
mod effective;
mod error;
mod filter;
pub mod flags;
mod format;
mod forms;
mod inputs;
mod key;
mod kind;
mod listen;
mod load;
mod oauth;
mod partitioner;
mod predicate;
mod properties;
mod raw;
mod registry;
mod resolve;
mod schema;
mod secrets;
mod serve;
mod space;
mod topics;
mod units;
mod vars;

pub use error::{Error, Errors};
pub use filter::Filter;
pub use kind::Kind;
pub use load::document;
pub use oauth::{OAuth, RegistryOAuth, TokenEndpoint, TokenSource};
pub use partitioner::Partitioner;
#[cfg(feature = "worker")]
pub(crate) use properties::first_name;
pub use registry::SchemaRegistry;
pub use schema::schema;
#[cfg(feature = "worker")]
pub(crate) use secrets::is_secret;
pub use serve::{Partitions, Serve, Tls};
pub use space::KeySpace;
pub use units::window_text;

use crate::content::CompareContent;
use crate::dedup::{Late, Rules};
use crate::filter::Window;
use crate::format::Formats;
use crate::key::{EventTime, KeySpec, Predicate, RecordSpec, TimePlace};
use crate::record::{Reason, Timestamp, TopicId, Verdict};
use crate::values::CountBy;
use error::Diagnostics;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vars::Environment;

/// A configuration that was checked as a whole.
#[derive(Clone, Debug)]
pub struct Config {
    /// How to reach Kafka.
    pub kafka: Kafka,
    /// How the worker threads work.
    pub worker: Worker,
    /// What is kept on disk.
    pub state: State,
    /// Where it can be watched.
    pub http: Http,
    /// What is logged.
    pub log: Log,
    /// Where schemas are, if there is a registry.
    pub schema_registry: Option<SchemaRegistry>,
    /// What `unseen serve` answers, and where.
    pub serve: Serve,
    /// The topics to deduplicate; at least one.
    pub topics: Vec<Topic>,
}

impl Config {
    /// Reads the file, the environment, and what was given on the command line as `path=value`.
    ///
    /// # Errors
    /// [`Errors`] with everything that is wrong.
    pub fn load(path: &Path, overrides: &[(String, String)]) -> Result<Self, Errors> {
        Self::load_with(path, &Self::environment(), overrides)
    }

    /// What is not Unicode is taken with replacement characters, so that it is refused and not overlooked.
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
    /// The topic in which a space's state is logged, if it is.
    #[must_use]
    pub fn changelog(&self, space: &str) -> Option<String> {
        self.state.changelog.then(|| format!("{}-{space}-changelog", self.kafka.group_id))
    }

    /// The topic in which a topic's records come in the partitions that their keys ask for, if there is one.
    #[must_use]
    pub fn repartitioned(&self, topic: &Topic) -> Option<String> {
        topic.repartition.then(|| format!("{}-{}-repartition", self.kafka.group_id, topic.input))
    }

    /// The topic whose input has that name.
    ///
    /// # Errors
    /// A sentence with the inputs that there are.
    pub fn topic(&self, input: &str) -> Result<TopicId, String> {
        let found = self.topics.iter().position(|topic| topic.input == input);
        found.map(TopicId).ok_or_else(|| format!("expected one of {}, got `{input}`", self.inputs()))
    }

    /// The inputs of all topics, as a sentence lists them.
    #[must_use]
    pub fn inputs(&self) -> String {
        self.topics.iter().map(|topic| topic.input.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// A sentence about each topic that is a shadow: whoever forgot an output must hear of it.
    pub fn shadows(&self) -> impl Iterator<Item = String> {
        self.topics.iter().filter(|topic| topic.is_shadow()).map(|Topic { entry, input, .. }| {
            format!("topics[{entry}]: {input:?} has no output, so it is a shadow: nothing of it is written but its state")
        })
    }
}

/// How to reach Kafka. Its `Debug` shows no secret.
#[derive(Clone)]
pub struct Kafka {
    /// `host:port`, separated by commas.
    pub bootstrap_servers: String,
    /// The consumer group; also the beginning of every transactional id.
    pub group_id: String,
    /// A name for this process that outlives it: makes the group membership static, so that a restart
    /// is no rebalance. Without it, the state directory's own id makes the transactional ids.
    pub instance_id: Option<String>,
    /// Where a partition without committed offset starts.
    pub start: Start,
    /// What to do where a log ends before the place up to which it was read.
    pub on_truncation: OnTruncation,
    /// How long to wait for a broker at start.
    pub connect_timeout: Duration,
    /// Any other librdkafka property.
    pub properties: BTreeMap<String, String>,
    /// The login of the SASL mechanism OAUTHBEARER.
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

/// Where a partition without committed offset starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// At the oldest record.
    #[default]
    Earliest,
    /// At the next new record.
    Latest,
}

/// What to do where a log ends before the place up to which it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTruncation {
    /// Stop with an error. Otherwise, records written below the old position would be skipped.
    #[default]
    Fail,
    /// Continue at the end of the log.
    Continue,
}

/// Bounds of [`Delivery::linger`].
const LINGER: Duration = Duration::from_millis(5);
const LINGER_MAX: Duration = Duration::from_millis(250);
/// The most that it is for each partition.
const LINGER_EACH: Duration = Duration::from_millis(1);

/// How the worker threads work.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Number of worker threads.
    pub workers: u16,
    /// What a crash may repeat.
    pub delivery: Delivery,
    /// Time between commits while records flow.
    pub commit_interval: Duration,
    /// Time between the checkpoints of a partition.
    pub checkpoint_interval: Duration,
    /// After it, the broker gives up a transaction: bounds how long a lost process blocks readers.
    pub transaction_timeout: Duration,
    /// Most records in one transaction.
    pub max_transaction_records: usize,
    /// How long the last commit and checkpoint may take after SIGTERM, and the last answers of `unseen serve`.
    pub shutdown_timeout: Duration,
}

impl Delivery {
    /// How long records of a partition are gathered before they are sent, unless `linger.ms` says it. librdkafka sends each
    /// partition in a request of its own, and brokers answer the requests of a connection one after the other: so that
    /// `partitions` make no more than a thousand of them a second, or five a commit each, however their records trickle in;
    /// four a second where commits are rarer. What lingers takes memory, so few partitions gather for less long. A commit
    /// waits for none of it.
    #[must_use]
    pub fn linger(self, commit_interval: Duration, partitions: u32) -> Duration {
        match self {
            Self::ExactlyOnce => (commit_interval / 4).min(LINGER_EACH * partitions).clamp(LINGER, LINGER_MAX),
            // What was written can be read before the commit.
            Self::AtLeastOnce => LINGER,
        }
    }

    /// Its name, as it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ExactlyOnce => "exactly_once",
            Self::AtLeastOnce => "at_least_once",
        }
    }
}

/// What a crash may repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Nothing. Outputs and offsets are committed in one transaction.
    #[default]
    ExactlyOnce,
    /// Records written since the last commit.
    AtLeastOnce,
}

/// What is kept on disk.
#[derive(Clone, Debug)]
pub struct State {
    /// Directory of the checkpoints.
    pub dir: PathBuf,
    /// Whether what is remembered is also logged to a topic, from which a partition's state can be rebuilt.
    pub changelog: bool,
    /// What to do for a partition of which neither a usable checkpoint nor a changelog is there.
    pub cold_start: ColdStart,
    /// Bytes a second that checkpoints may write on average; larger ones are written less often.
    pub max_write_rate: u64,
}

/// What to do for a partition of which neither a usable checkpoint nor a changelog is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ColdStart {
    /// Read one window of the input again, without emitting. The result is approximate.
    #[default]
    Rebuild,
    /// Start without seen keys. Records of a whole window may be emitted again.
    Empty,
    /// Stop with an error.
    Fail,
}

/// Where the worker can be watched: the dashboard, metrics and probes.
#[derive(Clone, Debug)]
pub struct Http {
    /// The address and port to listen on; none to listen nowhere. It serves whoever can connect, and changes nothing.
    pub listen: Option<SocketAddr>,
}

/// What is logged.
#[derive(Clone, Debug)]
pub struct Log {
    /// Levels, such as `info` or `info,unseen=debug`.
    pub level: String,
    /// How a line is written.
    pub format: LogFormat,
}

/// How a log line is written.
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

/// A topic to deduplicate.
#[derive(Clone, Debug)]
pub struct Topic {
    /// Index of its entry in `topics` of the configuration file. An entry with several inputs is several topics.
    pub entry: usize,
    /// Topic that is read.
    pub input: String,
    /// Topic that unseen records go to; none of a shadow, of which nothing is written but its state.
    pub output: Option<String>,
    /// The predicates that all hold for the records that are deduplicated. Other records pass through.
    pub when: Vec<Predicate>,
    /// Key space that its ids belong to.
    pub space: String,
    /// Where the key is.
    pub key: KeySpec,
    /// What its records' keys and values are.
    pub formats: Formats,
    /// Whether its records are first brought to the partition that their key asks for.
    pub repartition: bool,
    /// How long a key stays seen.
    pub window: Window,
    /// What remembers keys.
    pub filter: Filter,
    /// The predicate that holds for a record that retracts its key, if there is one.
    pub retract: Option<Predicate>,
    /// Whether a duplicate renews its key's window.
    pub refresh: bool,
    /// The place of the event time in its records, or `None` for Kafka's timestamps.
    pub time: Option<EventTime>,
    /// How far ahead of this machine's clock a record may be and still advance stream time.
    pub max_future: Duration,
    /// What becomes of records older than the window.
    pub late: Late,
    /// What becomes of duplicates.
    pub on_duplicate: OnDuplicate,
    /// What becomes of records without a value, where the key is made of it.
    pub on_tombstone: OnTombstone,
    /// What becomes of records without a key.
    pub on_invalid: OnInvalid,
    /// Where the value is that records and duplicates are counted by, if they are.
    pub count_by: Option<CountBy>,
    /// What duplicates are compared in with the record that they repeat, if they are.
    pub key_conflicts: Option<CompareContent>,
}

/// What becomes of duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "serde_json::Value", rename_all = "snake_case")]
#[schemars(!try_from)]
pub enum OnDuplicate {
    /// Drop them.
    #[default]
    Drop,
    /// Write them to another topic.
    Topic(String),
    /// Emit them, too. Every record of the output has its verdict in a header.
    Mark,
}

/// What becomes of records without a value, where the key is made of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTombstone {
    /// Emit them without a verdict.
    #[default]
    Emit,
    /// Drop them.
    Drop,
    /// Treat them as invalid: `on_invalid` decides.
    Invalid,
}

/// What becomes of records without a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "serde_json::Value", rename_all = "snake_case")]
#[schemars(!try_from)]
pub enum OnInvalid {
    /// Stop the worker with an error that names the record.
    #[default]
    Fail,
    /// Drop them.
    Drop,
    /// Emit them like unseen records.
    Emit,
    /// Write them to a dead-letter topic, with the reason in their headers.
    Topic(String),
}

impl Topic {
    /// Returns the path of one of its options in the configuration file, such as `topics[0].output`.
    #[must_use]
    pub fn setting(&self, option: &str) -> String {
        format!("topics[{}].{option}", self.entry)
    }

    /// Whether nothing of it is written but its state.
    #[must_use]
    #[inline]
    pub const fn is_shadow(&self) -> bool {
        self.output.is_none()
    }

    /// The latest record time that moves the window, of what is read now; both in milliseconds since the epoch.
    #[must_use]
    pub fn max_timestamp(&self, now: Timestamp) -> Timestamp {
        now.saturating_add(i64::try_from(self.max_future.as_millis()).unwrap_or(i64::MAX))
    }

    /// True if record times decide how long a key stays seen. A window by count has no time, and a `stable` filter has no window.
    #[must_use]
    pub fn forgets_by_time(&self) -> bool {
        self.window.length_ms().is_some() && (self.filter.is_exact() || self.filter.kind != Kind::Stable)
    }

    /// Returns everything that a verdict depends on, and where its records have it.
    #[must_use]
    #[inline]
    pub const fn record_spec(&self) -> RecordSpec<'_> {
        RecordSpec {
            key: &self.key,
            when: self.when.as_slice(),
            retract: self.retract.as_ref(),
            time: self.time.as_ref(),
            formats: &self.formats,
        }
    }

    /// Whether the headers of its records are to be read.
    #[must_use]
    pub fn reads_headers(&self) -> bool {
        self.when.iter().chain(&self.retract).any(Predicate::reads_headers)
            || matches!(self.time, Some(EventTime { place: TimePlace::Header(_), .. }))
            || self.key.reads_headers()
            || self.formats.reads_headers()
    }

    /// The verdict of a record that no key can be taken from, for this reason.
    #[must_use]
    pub fn verdict_without_key(&self, reason: Reason) -> Verdict {
        match reason {
            Reason::Tombstone if self.on_tombstone != OnTombstone::Invalid => Verdict::Tombstone,
            reason => Verdict::Invalid(reason),
        }
    }

    /// The rules of one of `partitions` partitions.
    #[must_use]
    pub fn rules(&self, partitions: u32) -> Rules {
        Rules {
            window: self.window,
            filter: self.filter.spec(self.window, partitions),
            exact: self.filter.is_exact(),
            refresh: self.refresh,
            late: self.late,
        }
    }
}

#[cfg(test)]
mod tests;
