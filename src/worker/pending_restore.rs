//! Assigned partitions whose state is not restored yet.
//!
//! Owns their offsets and the rebuild of their state until they become inputs. Must never ask a broker.

use super::ids::StateId;
use super::rebuild_job::Cancellation;
use super::topics::Topics;
use crate::broker::{Committed, Note};
use crate::record::{Offset, TopicId, TopicPartition, log_id};
use std::sync::Arc;
use std::time::Instant;

/// An assigned partition that is not read yet.
#[derive(Clone)]
pub(super) struct AssignedPartition {
    pub(super) partition: TopicPartition,
    pub(super) topic: TopicId,
    /// The name of the topic incarnation.
    pub(super) topic_incarnation: String,
    pub(super) committed: Committed,
    pub(super) low: Offset,
    pub(super) high: Offset,
}

/// A state that is being rebuilt, with the partitions that wait for it.
pub(super) struct PendingRestore {
    pub(super) assigned: Vec<AssignedPartition>,
    pub(super) began: Instant,
    pub(super) cancellation: Arc<Cancellation>,
}

impl Drop for PendingRestore {
    fn drop(&mut self) {
        self.cancellation.cancel();
    }
}

impl AssignedPartition {
    /// Returns the id of the partition's state.
    pub(super) fn state(&self, topics: &Topics) -> StateId {
        StateId { space: topics[self.topic].space, partition: self.partition.partition }
    }

    /// Returns the metadata of the committed offset.
    pub(super) fn note(&self) -> Note {
        Note::read(&self.committed.metadata)
    }

    /// True if the brokers report topic ids, which distinguish a recreated topic from the old one.
    pub(super) fn has_id(&self) -> bool {
        log_id(&self.topic_incarnation).is_some()
    }

    /// Returns the position to report while the partition waits.
    pub(super) fn paused_at(&self) -> Offset {
        self.committed.offset.map_or(self.low, |committed| committed.clamp(self.low, self.high.max(self.low)))
    }
}
