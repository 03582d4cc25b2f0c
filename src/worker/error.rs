//! Errors that end a worker.
//!
//! Defines the error messages, which tell the operator what to do. Never contains an error that a retry can fix.

use crate::broker;
use crate::checkpoint;
use crate::filter::CapacityError;
use crate::record::{Invalid, Offset, TopicPartition};

/// An error that ends the worker. The next owner processes the uncommitted records again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Kafka(#[from] broker::Error),
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// An invalid record in a topic with `on_invalid = "fail"`.
    #[error("{partition} offset {offset}: {invalid}. The worker stopped at this record. To continue past it, set on_invalid to \"drop\"{} or {{ topic = \"...\" }} for topic {:?}; to prevent more such records, {}", if invalid.reason.is_of_broker() { "" } else { ", \"emit\"," }, .partition.topic, if invalid.reason.is_of_broker() { "change the settings of the topic that rejected the record" } else { "fix the cause, which is usually the producer" })]
    Invalid {
        partition: TopicPartition,
        offset: Offset,
        /// The reason that the record is invalid or was rejected by a broker.
        invalid: Invalid,
    },
    /// A state that cannot be restored, with `state.cold_start = "fail"`.
    #[error(
        "cannot restore all seen keys of {partition}: {why}; to start anyway, set state.cold_start to \"rebuild\", which reads one window of the input again (all records if the topic has `time` or a window by count), or to \"empty\", which may emit duplicates"
    )]
    ColdStart {
        partition: TopicPartition,
        /// The reason that the keys cannot be restored.
        why: String,
    },
    /// A filter that cannot store another key.
    #[error("{partition} offset {offset}: {full}")]
    Full {
        partition: TopicPartition,
        /// The offset of the record whose key does not fit into the filter. This offset is not committed, so the worker reads the record
        /// again after a restart.
        offset: Offset,
        full: CapacityError,
    },
    /// A log that ends before the group's last position, with `kafka.on_truncation = "fail"`.
    #[error(
        "{partition} ends at offset {end}, but the group has read up to offset {read}; the log was truncated, for example by an unclean leader election, or the group's offset was set past the end. To continue at the end of the log, set kafka.on_truncation to \"continue\". If records were written after a truncation, reset the group's offset to the first of these records instead"
    )]
    Truncated {
        partition: TopicPartition,
        end: Offset,
        /// The group's last position, which is past `end`.
        read: Offset,
    },
    /// Any other error that a retry cannot fix.
    #[error("{0}")]
    Exit(String),
}
