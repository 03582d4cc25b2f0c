//! Claims of workers on checkpoints.
//!
//! The workers of a process share one store, and a worker that has lost a partition may not know about the loss yet. Such a worker must
//! never replace the next owner's checkpoint or mix its own pages into that checkpoint.

use super::Store;
use crate::checkpoint::PartitionId;
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

/// A claim on the checkpoint of a partition. The newest claim wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub(super) id: PartitionId,
    number: u64,
}

/// The number of the newest claim on each partition.
pub(super) type Claims = BTreeMap<PartitionId, u64>;

impl Store {
    /// Claims the checkpoint of a partition. Checkpoints under earlier claims can no longer be saved. A worker must claim a partition
    /// before it requests the group's offsets. Otherwise, the previous owner could still save a checkpoint whose offsets are higher than
    /// the offsets that the worker gets.
    #[must_use]
    pub fn claim(&self, id: &PartitionId) -> Claim {
        let mut claims = self.claims();
        let number = claims.entry(id.clone()).or_default();
        *number += 1;
        Claim { id: id.clone(), number: *number }
    }

    pub(super) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    pub(super) fn is_newest(&self, claims: &Claims) -> bool {
        claims.get(&self.id) == Some(&self.number)
    }
}
