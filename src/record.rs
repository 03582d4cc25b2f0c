//! What flows: a record as it was read, where it came from, and what was decided of it.
//!
//! Owns the vocabulary only. Must never know where records come from or go to.

use std::fmt;

/// Position of a record within its topic-partition, as Kafka counts it.
pub type Offset = i64;

/// Milliseconds since the Unix epoch, as Kafka stamps records.
pub type Timestamp = i64;

/// Who gave a record its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// Its producer.
    CreateTime,
    /// The broker, when it wrote the record.
    LogAppendTime,
}

/// Number of a topic among those that a worker reads, in the order of the configuration; internal topics come last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicId(pub usize);

/// Number of a key space, in the order in which the configured topics name spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(pub usize);

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    /// Name of the topic.
    pub topic: String,
    /// Number of the partition.
    pub partition: i32,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.topic, self.partition)
    }
}

/// The identity of a topic's log. A topic that is deleted and recreated has another log with the same name, and offsets of one log have no
/// meaning in the other. The text consists of the topic, a colon, and the topic's id. If the brokers have no topic ids, it is the topic
/// alone.
#[must_use]
pub fn log_name(topic: &str, id: Option<&str>) -> String {
    id.map_or_else(|| topic.to_owned(), |id| format!("{topic}:{id}"))
}

/// The topic of a log.
#[must_use]
pub fn log_topic(log: &str) -> &str {
    log.split_once(':').map_or(log, |(topic, _)| topic)
}

/// The id of a log, if its brokers give one.
#[must_use]
pub fn log_id(log: &str) -> Option<&str> {
    log.split_once(':').map(|(_, id)| id)
}

/// The parts of a record that a key can be taken from. Borrowed: nothing is copied to judge it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record<'a> {
    /// The record key; `None` is Kafka's null.
    pub key: Option<&'a [u8]>,
    /// The record value; `None` is Kafka's null, a tombstone.
    pub value: Option<&'a [u8]>,
    /// Names and values of the headers, in order. Left empty when no key part asks for a header.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}

/// What is decided of a record, once, when it is first read. Only a broker that refuses the record changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its key was not emitted within the window: it goes out.
    Unseen,
    /// Its key was emitted within the window. The only verdict that drops a record by default.
    Duplicate,
    /// Unseen, but older than the window, and the topic's `late` policy wants such records apart.
    Late,
    /// It retracts its key: the next record with that key is unseen. It is not written itself.
    Retracted,
    /// Its value is null, and its key is made of the value; `on_tombstone` says whether it goes out or not.
    Tombstone,
    /// `when` does not select it: it is emitted without deduplication.
    Passed,
    /// No key can be taken from it, or it cannot be written as it is; `on_invalid` decides.
    Invalid(Reason),
}

impl Verdict {
    /// The verdict as a word, the same as in metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unseen => "unseen",
            Self::Duplicate => "duplicate",
            Self::Late => "late",
            Self::Retracted => "retracted",
            Self::Tombstone => "tombstone",
            Self::Passed => "passed",
            Self::Invalid(_) => "invalid",
        }
    }
}

/// Why a record is [`Verdict::Invalid`]. The words are those of the metric label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The value, or the key, is not what its format says, though a key part points into it.
    Malformed,
    /// A key part names something that the record does not have.
    MissingKey,
    /// Every key part is null: such records have no identity to distinguish them.
    NullKey,
    /// The broker refuses the record for its size.
    Oversize,
    /// The value is null, though the key is made of it.
    Tombstone,
    /// The broker refuses the record for its time, or for a key that it lacks.
    Refused,
    /// The schema that the record names is not to be had, or cannot be used.
    UnknownSchema,
}

impl Reason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Malformed, Self::MissingKey, Self::NullKey, Self::Oversize, Self::Tombstone, Self::Refused, Self::UnknownSchema];

    /// Whether the broker gave it. Written to the same topic, the record would be refused again.
    #[must_use]
    pub const fn is_of_broker(self) -> bool {
        matches!(self, Self::Oversize | Self::Refused)
    }

    /// The reason as a metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::MissingKey => "missing_key",
            Self::NullKey => "null_key",
            Self::Oversize => "oversize",
            Self::Tombstone => "tombstone",
            Self::Refused => "refused",
            Self::UnknownSchema => "unknown_schema",
        }
    }
}

/// An invalid record: the reason, and a message for the person who fixes the producer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    /// Which kind of fault it is.
    pub reason: Reason,
    /// What is wrong, naming the part of the key and the place in the value.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_distinguished_from_its_topic() {
        for (topic, id) in [("orders", None), ("orders", Some("q83vEjRWeJCrze8SNFZ4kA"))] {
            let log = log_name(topic, id);
            assert_eq!((log_topic(&log), log_id(&log)), (topic, id));
        }
    }
}
