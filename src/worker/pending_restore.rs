//! Assigned partitions whose states are not restored yet.
//!
//! Keeps the offsets of these partitions and the rebuilds of their states until the partitions become inputs. This module never talks to a
//! broker.

use super::ids::{InputId, StateId};
use super::partition::PartitionState;
use super::rebuild_job::Cancellation;
use crate::broker::{Committed, Note};
use crate::record::{Offset, TopicId, TopicPartition, log_id};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

#[derive(Clone)]
pub(super) struct AssignedPartition {
    pub(super) partition: TopicPartition,
    pub(super) topic: TopicId,
    /// The name of the topic, together with its id if the brokers report ids.
    pub(super) topic_incarnation: String,
    pub(super) committed: Committed,
    pub(super) low: Offset,
    pub(super) high: Offset,
}

/// A unit with at least one state that is being rebuilt, and the partitions that wait for the unit.
pub(super) struct PendingRestore {
    pub(super) assigned: Vec<AssignedPartition>,
    pub(super) began: Instant,
    /// The states that are being rebuilt.
    pub(super) jobs: BTreeMap<StateId, Arc<Cancellation>>,
    /// The states that are restored already.
    pub(super) states: BTreeMap<StateId, PartitionState>,
}

impl PendingRestore {
    /// True if this job still rebuilds the state. False if another job has replaced it.
    pub(super) fn awaits(&self, id: StateId, job: &Arc<Cancellation>) -> bool {
        self.jobs.get(&id).is_some_and(|awaited| Arc::ptr_eq(awaited, job))
    }
}

impl Drop for PendingRestore {
    fn drop(&mut self) {
        for job in self.jobs.values() {
            job.cancel();
        }
    }
}

impl AssignedPartition {
    pub(super) const fn input(&self) -> InputId {
        InputId { topic: self.topic, partition: self.partition.partition }
    }

    pub(super) fn note(&self) -> Note {
        Note::read(&self.committed.metadata)
    }

    /// True if the brokers report topic ids, which distinguish a recreated topic from the old topic.
    pub(super) fn has_id(&self) -> bool {
        log_id(&self.topic_incarnation).is_some()
    }

    /// Returns the position while the partition waits: the committed offset, or the nearest offset within the log. If no offset is
    /// committed, returns the log start offset.
    pub(super) fn paused_at(&self) -> Offset {
        self.committed.offset.map_or(self.low, |committed| committed.clamp(self.low, self.high.max(self.low)))
    }
}
