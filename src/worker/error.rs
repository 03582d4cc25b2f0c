//! Errors that end a worker.
//!
//! Owns their messages, which say what to do. Must never be an error that a retry can fix.

use crate::broker;
use crate::checkpoint;
use crate::filter::CapacityError;
use crate::record::{Invalid, Offset, TopicPartition};

/// The reason why a worker cannot continue. Records that are not committed are processed again by the next owner.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Kafka fails.
    #[error(transparent)]
    Kafka(#[from] broker::Error),
    /// The state directory fails.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// An invalid record, and the topic's `on_invalid` is `fail`.
    #[error("{partition} offset {offset}: {invalid}; to go on, mend the producer and set on_invalid to \"drop\"{} or {{ topic = \"...\" }} for topic {:?}", if invalid.reason.is_of_broker() { "" } else { ", \"emit\"" }, .partition.topic)]
    Invalid {
        /// The partition of the record.
        partition: TopicPartition,
        /// The offset of the record.
        offset: Offset,
        /// The reason.
        invalid: Invalid,
    },
    /// There is no usable checkpoint, and `state.cold_start` is `fail`.
    #[error("no usable checkpoint of {partition}: {why}; set state.cold_start to \"rebuild\" or \"empty\" to start without it")]
    ColdStart {
        /// The partition.
        partition: TopicPartition,
        /// The reason.
        why: String,
    },
    /// A filter has no room for another key.
    #[error("{partition} offset {offset}: {full}")]
    Full {
        /// The partition.
        partition: TopicPartition,
        /// The record whose key has no room. It is not lost, because it will be read again.
        offset: Offset,
        /// The part of the filter that is full.
        full: CapacityError,
    },
    /// A log ends before the position up to which it was read, and `kafka.on_truncation` is `fail`.
    #[error(
        "{partition} ends at offset {end}, but was read up to {read}: its log became shorter, as after an unclean leader election; set kafka.on_truncation to \"continue\" to go on at its end, or, if records were written since, set the group's offset to the first of them"
    )]
    Truncated {
        /// The partition.
        partition: TopicPartition,
        /// The end of its log.
        end: Offset,
        /// The position up to which it was read.
        read: Offset,
    },
    /// Any other error that a retry cannot fix.
    #[error("{0}")]
    Exit(String),
}
