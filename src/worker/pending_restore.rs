//! Assigned partitions whose state is not restored yet.
//!
//! Owns their offsets and their state's rebuild until they become inputs. Must never ask a broker.

use super::ids::StateId;
use super::rebuild_job::Cancellation;
use super::topics::Topics;
use crate::broker::{Committed, Note};
use crate::record::{Offset, TopicId, TopicPartition, log_id};
use std::sync::Arc;
use std::time::Instant;

/// A partition that is assigned, and not read yet.
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

/// A state that is being rebuilt, and the partitions that wait for it.
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
    /// The state that the partition uses.
    pub(super) fn state(&self, topics: &Topics) -> StateId {
        StateId { space: topics[self.topic].space, partition: self.partition.partition }
    }

    /// The metadata of the committed offset.
    pub(super) fn note(&self) -> Note {
        Note::read(&self.committed.metadata)
    }

    /// True if the brokers report topic ids, which tell a recreated topic from the old one.
    pub(super) fn has_id(&self) -> bool {
        log_id(&self.topic_incarnation).is_some()
    }

    /// The position while the partition waits.
    pub(super) fn paused_at(&self) -> Offset {
        self.committed.offset.map_or(self.low, |committed| committed.clamp(self.low, self.high.max(self.low)))
    }
}
