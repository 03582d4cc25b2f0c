//! Partitions that are about to be read, and those that wait for a state.
//!
//! Owns what is known of them before their state is there. Must never ask a broker.

use super::ids::StateId;
use super::rebuild_job::Cancellation;
use super::topics::Topics;
use crate::broker::{Committed, Note};
use crate::record::{Offset, TopicId, TopicPartition, log_id};
use std::sync::Arc;
use std::time::Instant;

/// What is known of a partition that is about to be read.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) partition: TopicPartition,
    pub(super) topic: TopicId,
    /// The name of the log that is read.
    pub(super) log: String,
    pub(super) committed: Committed,
    pub(super) low: Offset,
    pub(super) high: Offset,
}

/// A state that is being rebuilt, and the partitions that wait for it.
pub(super) struct Waiting {
    pub(super) found: Vec<Found>,
    pub(super) began: Instant,
    pub(super) cancellation: Arc<Cancellation>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.cancellation.cancel();
    }
}

impl Found {
    /// The state that the partition uses.
    pub(super) fn state(&self, topics: &Topics) -> StateId {
        StateId { space: topics[self.topic].space, partition: self.partition.partition }
    }

    /// What is noted beside the committed offset.
    pub(super) fn note(&self) -> Note {
        Note::read(&self.committed.metadata)
    }

    /// Whether its brokers distinguish one log of a topic's name from the next.
    pub(super) fn has_id(&self) -> bool {
        log_id(&self.log).is_some()
    }

    /// Where it stands while it waits.
    pub(super) fn paused_at(&self) -> Offset {
        self.committed.offset.map_or(self.low, |committed| committed.clamp(self.low, self.high.max(self.low)))
    }
}
