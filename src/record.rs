//! Shared types: records, their positions, and verdicts.
//!
//! The types do not depend on where records are read from or written to.

use std::fmt;

/// The offset of a record in its partition, or the next offset to read.
pub type Offset = i64;

/// Milliseconds since the Unix epoch.
pub type Timestamp = i64;

/// The source of a record's timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer set the timestamp.
    CreateTime,
    /// The broker set the timestamp when it appended the record.
    LogAppendTime,
}

/// The index of an entry in [`Config::topics`](crate::config::Config::topics). If the entry has `repartition`, its index refers to the
/// repartition topic, and the input gets an index after the indexes of all entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicId(pub usize);

/// The index of a key space. Spaces are ordered by their first topic in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(pub usize);

/// A partition of a topic, displayed as `topic[partition]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    /// The topic's name in Kafka.
    pub topic: String,
    /// The number of the partition, from 0.
    pub partition: i32,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.topic, self.partition)
    }
}

/// Returns the identity of a topic incarnation: the topic's name, a colon, and the topic's id, or only the name if the brokers have no
/// topic ids. A recreated topic is a new incarnation, and offsets of the previous incarnation are not valid for it.
#[must_use]
pub fn log_name(topic: &str, id: Option<&str>) -> String {
    id.map_or_else(|| topic.to_owned(), |id| format!("{topic}:{id}"))
}

/// Returns the topic name in a [`log_name`].
#[must_use]
pub fn log_topic(log: &str) -> &str {
    log.split_once(':').map_or(log, |(topic, _)| topic)
}

/// Returns the topic id in a [`log_name`], or `None` if the brokers have no topic ids.
#[must_use]
pub fn log_id(log: &str) -> Option<&str> {
    log.split_once(':').map(|(_, id)| id)
}

/// The fields of a record that a key can use, as borrowed bytes.
///
/// ```
/// use unseen::record::Record;
///
/// let headers: &[(&str, Option<&[u8]>)] = &[("tenant", Some(b"7")), ("trace", None)];
/// let record = Record { key: None, value: Some(br#"{"id": 5}"#), headers };
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Record<'a> {
    /// The record key, or `None` if it is null.
    pub key: Option<&'a [u8]>,
    /// The record value, or `None` for a tombstone.
    pub value: Option<&'a [u8]>,
    /// The names and values of the headers, in the record's order. A null value is `None`. May be empty if the configuration does not need
    /// headers.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}

/// The decision about a record. If an abort returns a partition to its committed offset and the worker keeps the partition, the worker
/// usually reuses the verdicts of the records that it reads again. A record that a broker has rejected gets [`Verdict::Invalid`] instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The key was not seen within the window, or its content has changed (`emit = "on_change"`). The record is emitted, unless the topic
    /// is a shadow.
    Unseen,
    /// The key was seen within the window. With `emit = "on_change"`, the content is the same, too. Can be a false positive of the filter.
    /// By default, the record is dropped. `on_duplicate` can set another destination.
    Duplicate,
    /// The key is unseen, but the record is older than the window, and `late` is `"drop"` or `"dead_letter"`.
    Late,
    /// The record removes its key from the state (`retract`). The record itself is not written.
    Retracted,
    /// The value is null, but the key needs the value, and `on_tombstone` is `"emit"` or `"drop"`. The option determines whether the record
    /// is emitted.
    Tombstone,
    /// The record does not match the `when` of any entry of the input. The record is emitted without deduplication, unless the topic is a
    /// shadow.
    Passed,
    /// The record cannot be deduplicated, for example because it lacks a part of the key, or a broker rejects it. `on_invalid` determines
    /// the action.
    Invalid(Reason),
}

impl Verdict {
    /// Returns the name of the verdict, as in metric labels and headers. All reasons of [`Verdict::Invalid`] have the same label.
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

/// The reason for [`Verdict::Invalid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A record key or value that must be read cannot be decoded in the configured format, or the record has no usable event time although
    /// `time` requires one.
    Malformed,
    /// The record does not have a part of the key, or it is a CloudEvent in an unsupported format.
    MissingKey,
    /// All parts of the key are null, so the key does not identify a record.
    NullKey,
    /// The broker rejects the record because of its size.
    Oversize,
    /// The value is null, but the key needs the value. If `on_tombstone` is `"emit"` or `"drop"`, the verdict is [`Verdict::Tombstone`]
    /// instead.
    Tombstone,
    /// The broker rejects the record for another reason, for example its timestamp or a missing record key.
    Refused,
    /// The schema of the record key or value does not exist or cannot be used.
    UnknownSchema,
}

impl Reason {
    /// All reasons, in the order of the variants.
    pub const ALL: [Self; 7] =
        [Self::Malformed, Self::MissingKey, Self::NullKey, Self::Oversize, Self::Tombstone, Self::Refused, Self::UnknownSchema];

    /// True if a broker rejected the record. The same topic would reject the record again, so `on_invalid = "emit"` does not apply to it.
    #[must_use]
    pub const fn is_of_broker(self) -> bool {
        matches!(self, Self::Oversize | Self::Refused)
    }

    /// Returns the name of the reason, as in metric labels and dead letters.
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

/// An invalid record: the reason, and a message for the person who fixes the producer. [`crate::key::KeySpec::fingerprint`] returns this
/// error if a record has no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    /// The kind of problem, which determines the metric label.
    pub reason: Reason,
    /// The problem, with the part of the key and the location in the value if they are known.
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
