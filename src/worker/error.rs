//! Errors that end a worker.
//!
//! Owns their messages, which say what to do. Must never be an error that a retry can fix.

use crate::broker;
use crate::checkpoint;
use crate::filter::CapacityError;
use crate::record::{Invalid, Offset, TopicPartition};

/// Why a worker cannot go on. What was committed stays; what was not is done again by the next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Kafka cannot be worked with.
    #[error(transparent)]
    Kafka(#[from] broker::Error),
    /// The state directory cannot be worked with.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// A record without key, and the topic's `on_invalid` is `fail`.
    #[error("{partition} offset {offset}: {invalid}; to go on, mend the producer and set on_invalid to \"drop\"{} or {{ topic = \"...\" }} for topic {:?}", if invalid.reason.is_of_broker() { "" } else { ", \"emit\"" }, .partition.topic)]
    Invalid {
        /// Where it was read.
        partition: TopicPartition,
        /// Where in it.
        offset: Offset,
        /// What is wrong with it.
        invalid: Invalid,
    },
    /// There is no usable checkpoint, and `state.cold_start` is `fail`.
    #[error("no usable checkpoint of {partition}: {why}; set state.cold_start to \"rebuild\" or \"empty\" to start without it")]
    ColdStart {
        /// Whose.
        partition: TopicPartition,
        /// Why not.
        why: String,
    },
    /// A filter has no room for another key.
    #[error("{partition} offset {offset}: {full}")]
    Full {
        /// Whose filter.
        partition: TopicPartition,
        /// The record whose key finds no room; nothing is lost, it will be read again.
        offset: Offset,
        /// What is full.
        full: CapacityError,
    },
    /// A log ends before the place up to which it was read, and `kafka.on_truncation` is `fail`.
    #[error(
        "{partition} ends at offset {end}, but was read up to {read}: its log became shorter, as after an unclean leader election; set kafka.on_truncation to \"continue\" to go on at its end, or, if records were written since, set the group's offset to the first of them"
    )]
    Truncated {
        /// The partition.
        partition: TopicPartition,
        /// Where its log ends.
        end: Offset,
        /// Up to where it was read.
        read: Offset,
    },
    /// Anything else that another try would not mend.
    #[error("{0}")]
    Exit(String),
}
