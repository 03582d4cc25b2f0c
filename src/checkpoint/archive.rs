//! Stored fingerprints, for the exact store of one partition to look up.
//!
//! Must never answer for a store that was quarantined: what it held is lost, and "not there" would let
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changelog::Progress;
    use crate::checkpoint::{CheckpointMetadata, Error, Settings};
    use crate::dedup::{Dedup, Late, Rules};
    use crate::filter::{ExactError, Window};
    use crate::record::Verdict;
    use std::collections::BTreeMap;

    const RULES: Rules =
        Rules { window: Window::Time { slice_ms: 10, slices: 1 }, filter: None, exact: true, refresh: false, late: Late::Emit };

    fn save(store: &Store, id: &PartitionId, state: &mut Dedup, saved: Option<Saved>) -> Result<Saved, Error> {
        let settings = Settings { window: RULES.window, filter: "exact".into(), hash: "xxh3".into(), keys: BTreeMap::new() };
        let metadata = CheckpointMetadata { settings, offsets: BTreeMap::new(), changelog: Progress::default(), state: state.metadata() };
        store.save(id, &metadata, state, saved).map(|(saved, _)| saved)
    }

    #[test]
    fn a_store_that_was_quarantined_is_not_answered_for() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let id = PartitionId { space: "orders".to_owned(), partition: 0 };
        let mut state = Dedup::new(RULES);
        let judge = |state: &mut Dedup, key| state.judge(Fingerprint(key), Some(5), i64::MAX);
        assert_eq!(judge(&mut state, 1), Ok(Verdict::Unseen));
        let saved = save(&store, &id, &mut state, None).unwrap();
        state.attach(Box::new(StoredFingerprints::new(Arc::clone(&store), id.clone(), saved)));
        assert_eq!((judge(&mut state, 1), judge(&mut state, 2)), (Ok(Verdict::Duplicate), Ok(Verdict::Unseen)));

        store.quarantine("a test").unwrap();
        assert!(matches!(judge(&mut state, 1), Err(ExactError::Archive(_))), "\"unseen\" would let it through twice");
        assert!(matches!(save(&store, &id, &mut state, Some(saved)), Err(Error::Lost { .. })), "half of a state is not stored");
        assert_eq!(judge(&mut state, 2), Ok(Verdict::Duplicate), "what is in state is known all the same");
    }
}
