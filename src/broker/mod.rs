//! The seam between the worker and the outside world: Kafka as the worker needs it.
//!
//! `kafka` implements these traits with librdkafka. In test builds, `sim` implements them in memory.
//!
//! Each method fails as librdkafka's does, with its error code.
#![allow(clippy::missing_errors_doc, reason = "the module says it once for all of them")]

mod changelog;
mod error;
mod errored;
mod note;
mod sink;
pub(crate) mod throttle;

use crate::config::Config;
use crate::record::{Offset, Timestamp, TimestampType, TopicPartition};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt;
use std::time::Duration;

pub use changelog::{ChangelogEnds, ChangelogReader, ChangelogTail, Logged, ReadEnd, TailEvent};
pub use error::Error;
pub(crate) use errored::Errored;
pub use note::Note;
pub use sink::{Meanwhile, Outgoing, Refused, Sink, SinkError, Target, duplicate_producer};

/// A cluster, and how to get clients of it. Clones share the cluster.
pub trait Broker: Clone + Send + Sync + 'static {
    /// A member of the consumer group.
    type Consumer: Consumer;
    /// A transactional producer.
    type Producer: ProducerClient<Self> + Send;
    /// Reads one changelog partition at a time.
    type ChangelogReader: ChangelogReader;
    /// Follows many changelog partitions.
    type ChangelogTail: ChangelogTail + Send + 'static;
    /// Asks how far changelogs reach.
    type ChangelogEnds: ChangelogEnds + Send + 'static;

    /// Creates the consumer of worker `number`. It has not joined the group yet.
    fn consumer(&self, config: &Config, number: usize) -> Result<Self::Consumer, Error>;

    /// Creates a producer that has talked to no broker yet.
    fn producer(&self, config: &Config, options: &ProducerOptions<'_>) -> Result<Self::Producer, Error>;

    /// Creates a reader of changelogs. It joins no group.
    fn changelog_reader(&self, config: &Config) -> Result<Self::ChangelogReader, Error>;

    /// Creates a client that follows changelogs. It joins no group.
    fn changelog_tail(&self, config: &Config) -> Result<Self::ChangelogTail, Error>;

    /// Creates a client that asks how far changelogs reach.
    fn changelog_ends(&self, config: &Config) -> Result<Self::ChangelogEnds, Error>;

    /// Waits for a broker, checks the configured topics, and creates missing internal topics.
    fn discover(&self, config: &Config, stop: &dyn Fn() -> bool) -> Result<Cluster, Error>;

    /// Describes each known topic that no longer exists. Empty if the brokers do not answer.
    fn missing(&self, config: &Config, known: &Cluster) -> Vec<String>;
}

/// The records of a broker's consumers.
pub type RecordOf<'a, B> = <<B as Broker>::Consumer as Consumer>::Record<'a>;

/// The membership of a broker's consumers.
pub type MembershipOf<B> = <<B as Broker>::Consumer as Consumer>::Membership;

/// A record as a consumer returns it. Nothing is copied.
pub trait Record {
    /// The topic it was read from.
    fn topic(&self) -> &str;
    /// The partition it was read from.
    fn partition(&self) -> i32;
    /// Its offset.
    fn offset(&self) -> Offset;
    /// The timestamp, even if it is negative, and who set it.
    fn stamp(&self) -> Option<(TimestampType, Timestamp)>;
    /// The key; `None` is Kafka's null.
    fn key(&self) -> Option<&[u8]>;
    /// The value; `None` is Kafka's null.
    fn value(&self) -> Option<&[u8]>;
    /// All headers, in order.
    fn all_headers(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)>;
    /// True if both records are from the same topic-partition.
    fn same_partition(&self, other: &Self) -> bool;

    /// The timestamp, if it is valid.
    fn timestamp(&self) -> Option<Timestamp> {
        self.stamp().map(|(_, time)| time).filter(|&time| time >= 0)
    }

    /// The headers whose name is UTF-8, in order.
    fn headers(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        self.all_headers().filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, value)))
    }

    /// Bytes of the key and the value.
    fn bytes(&self) -> usize {
        self.key().map_or(0, <[u8]>::len) + self.value().map_or(0, <[u8]>::len)
    }
}

/// A change of the group that the worker must answer with [`Consumer::assign`] or [`Consumer::unassign`].
#[derive(Debug)]
pub enum Rebalance {
    /// These partitions are assigned to this consumer.
    Assigned(Vec<TopicPartition>),
    /// This consumer must give these partitions back, or has already lost them.
    Revoked {
        /// The partitions.
        partitions: Vec<TopicPartition>,
        /// True if it is too late to commit.
        lost: bool,
    },
}

/// The group's committed offset of a partition.
#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// The next offset to process, if the group has committed any.
    pub offset: Option<Offset>,
    /// The metadata that was committed with the offset.
    pub metadata: String,
}

/// The result of polling a consumer.
pub struct Batch<R> {
    /// Records, in order within each partition.
    pub messages: Vec<R>,
    /// True if the position of some partition is outside its log.
    pub out_of_range: bool,
    /// Partitions that were read to their end, and that end: offsets below it are records that were read, or hold no record. Only a
    /// consumer whose configuration shares key spaces reports ends.
    pub ends: Vec<(TopicPartition, Offset)>,
}

impl<R> Default for Batch<R> {
    fn default() -> Self {
        Self { messages: Vec::new(), out_of_range: false, ends: Vec::new() }
    }
}

impl<R> Batch<R> {
    /// True if polling returned nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.messages.is_empty() && !self.out_of_range && self.ends.is_empty()
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.out_of_range = false;
        self.ends.clear();
    }
}

/// A member of the consumer group. Rebalances are queued until the worker answers them.
pub trait Consumer {
    /// A record, valid while the consumer lives.
    type Record<'a>: Record
    where
        Self: 'a;
    /// Proof of group membership, for a transaction that commits offsets.
    type Membership: Send;

    /// Joins the group.
    fn subscribe(&self, topics: &[&str]) -> Result<(), Error>;
    /// Waits up to `timeout` and appends at most `records` records to `batch`. Returns early, without records, if a rebalance is queued.
    /// An error means that this consumer can never read again ([`Error::Fenced`]: another member took over the static name).
    fn poll<'a>(&'a self, batch: &mut Batch<Self::Record<'a>>, records: usize, timeout: Duration) -> Result<(), Error>;
    /// True if a rebalance waits for its answer.
    fn has_rebalance(&self) -> bool;
    /// Takes the next rebalance.
    fn next_rebalance(&self) -> Option<Rebalance>;
    /// Answers [`Rebalance::Assigned`]: starts reading at these offsets. Resumes the partitions.
    fn assign(&self, partitions: &[(TopicPartition, Offset)]) -> Result<(), Error>;
    /// Answers [`Rebalance::Revoked`].
    fn unassign(&self, partitions: &[TopicPartition]) -> Result<(), Error>;
    /// True if the group has already given this consumer's partitions to other members.
    fn lost(&self) -> bool;
    /// Restarts fetching `stopped` partitions. `all` are the offsets of everything that is assigned, `stopped` included.
    fn restart(&self, stopped: &[TopicPartition], all: &[(TopicPartition, Offset)]) -> Result<(), Error>;
    /// The end of the partition's log as of the last fetch.
    fn end(&self, partition: &TopicPartition) -> Option<Offset>;
    /// The offset up to which each partition was handed out, control records included. `None` before the first record since a seek,
    /// and after an error or the end of a partition, which librdkafka counts as records.
    fn positions<'p>(&self, partitions: impl Iterator<Item = &'p TopicPartition>) -> Vec<Option<Offset>>;
    /// The offset before which a partition has no open transaction. Waits a second at most.
    fn last_stable_offset(&self, partition: &TopicPartition) -> Result<Offset, Error>;
    /// The partitions to seek to their position because they reported an error: until then, nothing more of them is returned. A
    /// partition whose seek fails is due again later.
    fn errored_due(&self) -> Vec<TopicPartition>;
    /// Continues reading at another offset. Fails if the partition is not being read.
    fn seek(&self, partition: &TopicPartition, offset: Offset) -> Result<(), Error>;
    /// Stops fetching assigned partitions.
    fn pause(&self, partitions: &[TopicPartition]) -> Result<(), Error>;
    /// Fetches paused partitions again.
    fn resume(&self, partitions: &[TopicPartition]) -> Result<(), Error>;
    /// The group's committed offsets, in the order asked for, once no transaction on them is open. An error is worth a retry.
    fn committed(&self, partitions: &[TopicPartition]) -> Result<Vec<Committed>, Error>;
    /// The log start offset and the high watermark. An error is worth a retry.
    fn watermarks(&self, partition: &TopicPartition) -> Result<(Offset, Offset), Error>;
    /// The ids of topics by name. Brokers before Kafka 2.8 return none. An error is worth a retry.
    fn topic_ids(&self, topics: &[&str]) -> Result<BTreeMap<String, String>, Error>;
    /// The first offset with this timestamp or a later one. An error is worth a retry.
    fn offset_at(&self, partition: &TopicPartition, time: Timestamp) -> Result<Option<Offset>, Error>;
    /// The membership of this consumer; `None` if it is not a member.
    fn membership(&self) -> Option<Self::Membership>;
    /// The generation of the group that this consumer is a member of.
    fn generation(&self) -> Option<i32>;
    /// Commits offsets outside a transaction.
    fn commit(&self, offsets: &[(TopicPartition, Offset, String)]) -> Result<(), ClientError>;
    /// Leaves the group. Queued rebalances are declined.
    fn close(self);
}

/// The settings of one producer.
pub struct ProducerOptions<'a> {
    /// The transactional id.
    pub transactional_id: &'a str,
    /// Number of input partitions, for `linger.ms`.
    pub partitions: u32,
    /// The largest batch, in bytes.
    pub batch_bytes: usize,
    /// True if every record gets its own batch.
    pub one_record_per_batch: bool,
}

/// The timestamp of a record to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutgoingTime {
    /// This time, in milliseconds. 0 becomes 1, because librdkafka takes 0 for "now".
    At(Timestamp),
    /// The time at which the client takes the record.
    Now,
    /// None.
    Never,
}

/// Changes to the headers that a record had when it was read.
pub trait HeaderChanges {
    /// The names of headers to remove first.
    fn removed(&self) -> impl Iterator<Item = &CStr>;
    /// The headers to append.
    fn added(&self) -> impl Iterator<Item = (&CStr, &[u8])>;
}

/// A record to write.
pub struct OutgoingRecord<'a, R, H> {
    /// The topic.
    pub topic: &'a str,
    /// The partition; `None` lets the client choose it by the key (murmur2, like Java).
    pub partition: Option<i32>,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// The timestamp.
    pub time: OutgoingTime,
    /// The record whose headers are copied, and the changes to them.
    pub headers: Option<(&'a R, &'a H)>,
    /// The number that delivery reports name the record by. 0 marks changelog records, whose offsets are reported too.
    pub tag: usize,
}

/// A record that was not written.
#[derive(Clone, Debug)]
pub struct DeliveryFailure {
    /// [`OutgoingRecord::tag`].
    pub tag: usize,
    /// The topic.
    pub topic: String,
    /// Bytes of the key and the value.
    pub bytes: usize,
    /// The error.
    pub code: ErrorCode,
    /// The client's description of the error.
    pub error: String,
    /// The broker's message about this record; empty if it had none.
    pub reason: String,
}

/// A producer, as librdkafka offers it: every call may fail with an error that says what may be done next.
pub trait ProducerClient<B: Broker> {
    /// Fences earlier producers of the transactional id and waits until their transactions have ended.
    fn init_transactions(&self, timeout: Duration) -> Result<(), ClientError>;
    /// Begins a transaction.
    fn begin_transaction(&self) -> Result<(), ClientError>;
    /// Queues a record, copying it.
    fn send<H: HeaderChanges>(&self, record: &OutgoingRecord<'_, RecordOf<'_, B>, H>) -> Result<(), Box<ClientError>>;
    /// Takes delivery reports, waiting up to `wait` for the first one.
    fn poll(&self, wait: Duration);
    /// Waits until no record is queued or in flight. False if that takes longer than `timeout`.
    fn flush(&self, timeout: Duration) -> bool;
    /// Drops all records that are queued or in flight; they are reported as failures.
    fn purge(&self);
    /// Adds offsets to the transaction. May be called several times in one transaction.
    fn send_offsets(
        &self,
        offsets: &[(TopicPartition, Offset, String)],
        membership: &MembershipOf<B>,
        timeout: Duration,
    ) -> Result<(), ClientError>;
    /// Commits the transaction. All records must have been flushed.
    fn commit_transaction(&self, timeout: Duration) -> Result<(), ClientError>;
    /// Aborts the transaction.
    fn abort_transaction(&self, timeout: Duration) -> Result<(), ClientError>;
    /// Takes the failures reported since the last call, at most 10,000.
    fn take_failures(&self) -> Vec<DeliveryFailure>;
    /// Takes the offsets of changelog records (tag 0) written since the last call, in order.
    fn take_written(&self) -> BTreeMap<TopicPartition, Vec<Offset>>;
    /// True if a `TxnOffsetCommit` or `EndTxn` request of this producer was sent more than once or was not answered, so that a copy
    /// may still arrive.
    fn has_late_request(&self) -> bool;
}

/// The topics that the configuration names.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Partition count of each topic that exists.
    pub partitions: BTreeMap<String, u32>,
    /// The largest batch, in bytes, that every output accepts.
    pub batch_bytes: usize,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// An error code of a client or a broker, as far as it decides what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// The user lacks a permission.
    NotAuthorized,
    /// Another producer has this transactional id.
    Fenced,
    /// The send queue is full.
    QueueFull,
    /// The call is not allowed in the client's state, such as in a failed transaction.
    State,
    /// The client failed for good.
    Fatal,
    /// The record was purged from the queue.
    PurgedQueue,
    /// The record was purged in flight.
    PurgedInFlight,
    /// The record or its batch is too large.
    TooLarge,
    /// The record is invalid, for example without a key in a compacted topic.
    InvalidRecord,
    /// The timestamp of the record is outside the topic's limits.
    InvalidTimestamp,
    /// The record failed because another record of its batch did.
    OtherRecord,
    /// The metadata of a committed offset is longer than the brokers allow.
    OffsetMetadataTooLarge,
    /// The group coordinator cannot store the offsets of one request.
    OffsetsTooLarge,
    /// The broker reported an unknown error.
    Unknown,
    /// Anything else.
    Other,
}

/// A failed call.
#[derive(Clone, Debug)]
pub struct ClientError {
    /// The kind of error.
    pub code: ErrorCode,
    /// The client's message.
    pub message: String,
    /// The permission that the user lacks, if that is the reason.
    pub missing_permission: Option<&'static str>,
    /// True if the client can no longer be used.
    pub is_fatal: bool,
    /// True if the same call may still succeed.
    pub is_retriable: bool,
    /// True if the transaction must be aborted.
    pub requires_abort: bool,
}

impl ClientError {
    /// The error of a producer that another one has fenced.
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

/// The time limit for records of a transaction, after which librdkafka or the brokers drop them.
pub fn delivery_timeout(config: &Config) -> Duration {
    let set = ["message.timeout.ms", "topic.message.timeout.ms"].into_iter().filter_map(|name| config.kafka.properties.get(name));
    // None is no bound.
    let set = set.filter_map(|text| text.parse().ok()).filter(|&millis| millis > 0).map(Duration::from_millis);
    set.fold(config.worker.transaction_timeout, Duration::min)
}
