//! Stored fingerprints, for the exact memory of one partition to look up.
//!
//! Must never answer for a store that was set aside: what it held is lost, and "not there" would let
//! a seen record through.

use super::store::Store;
use super::{PartitionId, Saved};
use crate::filter::{Archive, ArchiveError, GenerationId};
use crate::key::Fingerprint;
use std::sync::Arc;

/// What a store holds of one partition.
#[derive(Debug)]
pub struct StoredFingerprints {
    store: Arc<Store>,
    id: PartitionId,
    saved: Saved,
}

impl StoredFingerprints {
    /// What was stored of that partition by the checkpoint that `saved` proves, and by those after it.
    #[must_use]
    pub const fn new(store: Arc<Store>, id: PartitionId, saved: Saved) -> Self {
        Self { store, id, saved }
    }
}

impl Archive for StoredFingerprints {
    fn contains(&self, generation: GenerationId, fingerprint: Fingerprint) -> Result<bool, ArchiveError> {
        self.store.holds_fingerprint(&self.id, self.saved, generation, fingerprint).map_err(|error| ArchiveError(error.to_string()))
    }
}
