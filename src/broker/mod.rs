//! The interface between the worker and Kafka.
//!
//! `kafka` implements these traits with librdkafka. In test builds, `sim` implements them in memory. This module never refers to a type of
//! librdkafka.
//!
//! A method that returns a `Result` passes on the error of the client, as an [`Error`] or a [`ClientError`].
#![allow(clippy::missing_errors_doc, reason = "documented once, in the module")]

mod changelog;
mod error;
mod errored;
mod note;
mod sink;
pub(crate) mod throttle;
pub mod topics;

use crate::config::Config;
use crate::record::{Offset, Timestamp, TimestampType, TopicPartition};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

pub use changelog::{ChangelogEnds, ChangelogReader, ChangelogTail, Logged, ReadEnd, TailEvent};
pub use error::{Error, Problem};
pub(crate) use errored::Errored;
pub use note::Note;
pub use sink::{Meanwhile, Outgoing, Refused, Sink, SinkError, Target, duplicate_producer};

/// A Kafka cluster, with constructors for its clients. Clones refer to the same cluster.
pub trait Broker: Clone + Send + Sync + 'static {
    type Consumer: Consumer;
    type Producer: ProducerClient<Self> + Send;
    type ChangelogReader: ChangelogReader;
    type ChangelogTail: ChangelogTail + Send + 'static;
    type ChangelogEnds: ChangelogEnds + Send + 'static;

    /// Creates the consumer of worker `number`, which has not joined the group yet.
    fn consumer(&self, config: &Config, number: usize) -> Result<Self::Consumer, Error>;

    /// Creates a producer that has not contacted any broker yet.
    fn producer(&self, config: &Config, options: &ProducerOptions<'_>) -> Result<Self::Producer, Error>;

    fn changelog_reader(&self, config: &Config) -> Result<Self::ChangelogReader, Error>;

    fn changelog_tail(&self, config: &Config) -> Result<Self::ChangelogTail, Error>;

    fn changelog_ends(&self, config: &Config) -> Result<Self::ChangelogEnds, Error>;

    /// Waits for a broker and returns the names of all topics that the configured user may see.
    fn topics(&self, config: &Config, stop: &dyn Fn() -> bool) -> Result<BTreeSet<String>, Error>;

    /// Waits for a broker and checks the configured topics. Creates missing internal topics. Adds partitions to a changelog that has fewer
    /// partitions than the topics of its key space.
    fn discover(&self, config: &Config, stop: &dyn Fn() -> bool) -> Result<Cluster, Error>;

    /// Returns an error message for each topic in `known` that no longer exists, or nothing if the brokers do not respond.
    fn missing(&self, config: &Config, known: &Cluster) -> Vec<String>;
}

pub type RecordOf<'a, B> = <<B as Broker>::Consumer as Consumer>::Record<'a>;

pub type MembershipOf<B> = <<B as Broker>::Consumer as Consumer>::Membership;

pub trait Record {
    fn topic(&self) -> &str;
    fn partition(&self) -> i32;
    fn offset(&self) -> Offset;
    /// The timestamp in milliseconds since the Unix epoch, with its type. A negative timestamp is invalid.
    fn stamp(&self) -> Option<(TimestampType, Timestamp)>;
    fn key(&self) -> Option<&[u8]>;
    fn value(&self) -> Option<&[u8]>;
    /// All headers in order, including those whose names are not UTF-8.
    fn all_headers(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)>;
    fn same_partition(&self, other: &Self) -> bool;

    /// The timestamp in milliseconds, or `None` if it is missing or negative.
    fn timestamp(&self) -> Option<Timestamp> {
        self.stamp().map(|(_, time)| time).filter(|&time| time >= 0)
    }

    /// The headers with UTF-8 names, in order.
    fn headers(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        self.all_headers().filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, value)))
    }

    /// The size of the key and the value in bytes.
    fn bytes(&self) -> usize {
        self.key().map_or(0, <[u8]>::len) + self.value().map_or(0, <[u8]>::len)
    }
}

/// A change of this consumer's assignment, which the worker must answer with [`Consumer::assign`] or [`Consumer::unassign`].
#[derive(Debug)]
pub enum Rebalance {
    Assigned(Vec<TopicPartition>),
    /// This consumer must release these partitions or has already lost them.
    Revoked {
        partitions: Vec<TopicPartition>,
        /// True if other members may already own the partitions. A commit would then be too late.
        lost: bool,
    },
}

#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// The next offset to process, or `None` if the group has committed nothing.
    pub offset: Option<Offset>,
    pub metadata: String,
}

pub struct Batch<R> {
    /// Records, in offset order within each partition.
    pub messages: Vec<R>,
    /// True if the position of a partition is outside the partition's log.
    pub out_of_range: bool,
    /// Partitions that were read to their end, each with its end offset. The consumer has returned all records below the end. Reported only
    /// if topics share key spaces, because such topics wait for each other to finish warming up.
    pub ends: Vec<(TopicPartition, Offset)>,
}

impl<R> Default for Batch<R> {
    fn default() -> Self {
        Self { messages: Vec::new(), out_of_range: false, ends: Vec::new() }
    }
}

impl<R> Batch<R> {
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.messages.is_empty() && !self.out_of_range && self.ends.is_empty()
    }

    pub fn clear(&mut self) {
        self.messages.clear();
        self.out_of_range = false;
        self.ends.clear();
    }
}

/// A member of the consumer group. Rebalances are queued until the worker answers them.
pub trait Consumer {
    type Record<'a>: Record
    where
        Self: 'a;
    /// Proof of group membership, for a transaction that commits offsets.
    type Membership: Send;

    fn subscribe(&self, topics: &[&str]) -> Result<(), Error>;
    /// Waits up to `timeout` and appends at most `records` records to `batch`. Returns early, without records, if a rebalance is queued or
    /// `batch.out_of_range` is set. After an error, this consumer cannot read again. After [`Error::Fenced`], a new consumer can join with
    /// the same static name.
    fn poll<'a>(&'a self, batch: &mut Batch<Self::Record<'a>>, records: usize, timeout: Duration) -> Result<(), Error>;
    fn has_rebalance(&self) -> bool;
    fn next_rebalance(&self) -> Option<Rebalance>;
    /// Answers [`Rebalance::Assigned`]. Starts reading at these offsets. Also resumes these partitions, because librdkafka remembers
    /// earlier pauses.
    fn assign(&self, partitions: &[(TopicPartition, Offset)]) -> Result<(), Error>;
    /// Answers [`Rebalance::Revoked`].
    fn unassign(&self, partitions: &[TopicPartition]) -> Result<(), Error>;
    /// True if the group may already have given this consumer's partitions to other members.
    fn lost(&self) -> bool;
    /// Restarts fetching the `stopped` partitions and resumes them. `all` contains the positions of all assigned partitions, including
    /// `stopped`. With the eager protocol, all assigned partitions are restarted.
    fn restart(&self, stopped: &[TopicPartition], all: &[(TopicPartition, Offset)]) -> Result<(), Error>;
    /// Returns the high watermark of a partition as of its last fetch, or `None` before its first fetch.
    fn end(&self, partition: &TopicPartition) -> Option<Offset>;
    /// Returns, for each partition, the offset after the last record that the consumer has read, including control records. The offset is
    /// `None` from an assignment or a seek until the first record, and from a fetch error until the seek. It is always `None` if the
    /// consumer reports [`Batch::ends`], because librdkafka counts the end of a partition as a record.
    fn positions<'p>(&self, partitions: impl Iterator<Item = &'p TopicPartition>) -> Vec<Option<Offset>>;
    /// Returns the last stable offset of a partition. Waits for at most a second.
    fn last_stable_offset(&self, partition: &TopicPartition) -> Result<Offset, Error>;
    /// Returns the partitions that reported a fetch error and are due for a seek to their positions. The consumer drops their records until
    /// the seek. If the seek fails, a later call returns the partition again.
    fn errored_due(&self) -> Vec<TopicPartition>;
    /// Continues reading at another offset, after a resume if the partition is paused. Fails if the partition is not assigned, or if the
    /// consumer stopped fetching it because its position was outside the log.
    fn seek(&self, partition: &TopicPartition, offset: Offset) -> Result<(), Error>;
    fn pause(&self, partitions: &[TopicPartition]) -> Result<(), Error>;
    fn resume(&self, partitions: &[TopicPartition]) -> Result<(), Error>;
    /// Returns the group's committed offsets, in the order of `partitions`. Waits until no open transaction contains an offset of these
    /// partitions or until the request times out. A failed call can be retried.
    fn committed(&self, partitions: &[TopicPartition]) -> Result<Vec<Committed>, Error>;
    /// Returns the log start offset and the last stable offset. A failed call can be retried.
    fn watermarks(&self, partition: &TopicPartition) -> Result<(Offset, Offset), Error>;
    /// Returns the ids of topics by name. The map is empty if the brokers are older than Kafka 2.8, which introduced topic ids. A failed
    /// call can be retried.
    fn topic_ids(&self, topics: &[&str]) -> Result<BTreeMap<String, String>, Error>;
    /// Returns the offset of the first record with a timestamp of `time` or later, or `None` if all timestamps are earlier. A failed call
    /// can be retried.
    fn offset_at(&self, partition: &TopicPartition, time: Timestamp) -> Result<Option<Offset>, Error>;
    fn membership(&self) -> Option<Self::Membership>;
    /// Returns the group's generation, or `None` if this consumer is not currently a member.
    fn generation(&self) -> Option<i32>;
    /// Commits offsets outside a transaction.
    fn commit(&self, offsets: &[(TopicPartition, Offset, String)]) -> Result<(), ClientError>;
    /// Closes the consumer and declines rebalances that are still queued. Leaves the group, unless the membership is static.
    fn close(self);
}

pub struct ProducerOptions<'a> {
    pub transactional_id: &'a str,
    /// The number of input partitions. With exactly-once delivery, more partitions result in a longer `linger.ms`.
    pub partitions: u32,
    pub batch_bytes: usize,
    pub one_record_per_batch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutgoingTime {
    /// The time in milliseconds. 0 becomes 1, because librdkafka interprets 0 as "now".
    At(Timestamp),
    /// The time when the client accepts the record.
    Now,
    Never,
}

pub trait HeaderChanges {
    /// The indexes of the headers to remove, in the header list before any change. An index removes a single header, even if other headers
    /// have the same name.
    fn removed_positions(&self) -> Range<usize> {
        0..0
    }
    /// The names of the headers to remove afterward. A name removes all headers with that name.
    fn removed(&self) -> impl Iterator<Item = &CStr>;
    fn added(&self) -> impl Iterator<Item = (&CStr, &[u8])>;
}

pub struct OutgoingRecord<'a, R, H> {
    pub topic: &'a str,
    /// The partition, or `None` to let the client choose it by the key (murmur2, like Java).
    pub partition: Option<i32>,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub time: OutgoingTime,
    /// The record whose headers are copied, and the changes to them. `None` writes no headers.
    pub headers: Option<(&'a R, &'a H)>,
    /// The number that identifies the record in delivery reports. 0 marks changelog records, whose offsets are also reported.
    pub tag: usize,
}

#[derive(Clone, Debug)]
pub struct DeliveryFailure {
    pub tag: usize,
    pub topic: String,
    /// The size of the key and the value in bytes.
    pub bytes: usize,
    pub code: ErrorCode,
    pub error: String,
    /// The broker's message about this record, or an empty string.
    pub reason: String,
}

/// A producer with librdkafka's interface. Each [`ClientError`] shows whether the call can be retried or whether the transaction must be
/// aborted.
pub trait ProducerClient<B: Broker> {
    /// Fences earlier producers with the same transactional id and waits until their transactions have ended.
    fn init_transactions(&self, timeout: Duration) -> Result<(), ClientError>;
    fn begin_transaction(&self) -> Result<(), ClientError>;
    /// Queues a copy of a record.
    fn send<H: HeaderChanges>(&self, record: &OutgoingRecord<'_, RecordOf<'_, B>, H>) -> Result<(), Box<ClientError>>;
    /// Processes delivery reports. Waits up to `wait` for the first report.
    fn poll(&self, wait: Duration);
    /// Waits until no record is queued or in flight. Returns false after `timeout`.
    fn flush(&self, timeout: Duration) -> bool;
    /// Drops all records that are queued or in flight and reports them as failures.
    fn purge(&self);
    /// Adds offsets to the transaction. May be called several times per transaction.
    fn send_offsets(
        &self,
        offsets: &[(TopicPartition, Offset, String)],
        membership: &MembershipOf<B>,
        timeout: Duration,
    ) -> Result<(), ClientError>;
    /// Commits the transaction. All records must have been flushed.
    fn commit_transaction(&self, timeout: Duration) -> Result<(), ClientError>;
    fn abort_transaction(&self, timeout: Duration) -> Result<(), ClientError>;
    /// Takes the failures reported since the last call, at most 10,000. Leaves out records that failed only because another record failed,
    /// unless such a failure was the first one reported since the last call.
    fn take_failures(&self) -> Vec<DeliveryFailure>;
    /// Takes the offsets of changelog records (tag 0) written since the last call, in order.
    fn take_written(&self) -> BTreeMap<TopicPartition, Vec<Offset>>;
    /// True if this producer has sent a `TxnOffsetCommit` or `EndTxn` request more than once, or has sent such a request without receiving
    /// an answer. A copy of the request may then still arrive at a broker.
    fn has_late_request(&self) -> bool;
}

#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// The partition counts of the configured topics that exist, and of the internal topics.
    pub partitions: BTreeMap<String, u32>,
    /// The largest batch size in bytes that all outputs accept, but at most 1,000,000.
    pub batch_bytes: usize,
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    NotAuthorized,
    /// Another producer with this transactional id has started, or the coordinator has aborted a transaction that was open for too long.
    Fenced,
    QueueFull,
    /// The state of the client does not allow the call, for example because the transaction has failed.
    State,
    Fatal,
    PurgedQueue,
    PurgedInFlight,
    TooLarge,
    /// The record is invalid, for example without a key in a compacted topic.
    InvalidRecord,
    /// The timestamp of the record is outside the topic's limits.
    InvalidTimestamp,
    /// The record failed because another record of its batch failed.
    OtherRecord,
    /// The metadata of a committed offset is longer than the brokers allow.
    OffsetMetadataTooLarge,
    /// The request commits more offsets than the group coordinator can store at once.
    OffsetsTooLarge,
    /// `UNKNOWN_SERVER_ERROR`. Kafka 4 also returns it if a request commits more offsets than the group coordinator can store at once.
    Unknown,
    Other,
}

#[derive(Clone, Debug)]
pub struct ClientError {
    pub code: ErrorCode,
    pub message: String,
    pub missing_permission: Option<&'static str>,
    /// True if the client can no longer be used.
    pub is_fatal: bool,
    pub is_retriable: bool,
    pub requires_abort: bool,
}

impl ClientError {
    pub(crate) const fn fenced(message: String) -> Self {
        let code = ErrorCode::Fenced;
        Self { code, message, missing_permission: None, is_fatal: true, is_retriable: false, requires_abort: false }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Returns the maximum age of a transaction that can still be committed. Older transactions fail, because librdkafka drops their unwritten
/// records or the brokers abort them.
pub fn delivery_timeout(config: &Config) -> Duration {
    let set = ["message.timeout.ms", "topic.message.timeout.ms"].into_iter().filter_map(|name| config.kafka.properties.get(name));
    // In librdkafka, zero means no limit.
    let set = set.filter_map(|text| text.parse().ok()).filter(|&millis| millis > 0).map(Duration::from_millis);
    set.fold(config.worker.transaction_timeout, Duration::min)
}
