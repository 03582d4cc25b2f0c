//! Looks up the stored fingerprints of a partition for its exact store.
//!
//! After a quarantine, every lookup of a stored fingerprint fails. The store no longer has the fingerprints, and the answer "not found"
//! would let duplicates through.

use super::store::Store;
use super::{PartitionId, Saved};
use crate::filter::{Archive, ArchiveError, GenerationId};
use crate::key::Fingerprint;
use std::sync::Arc;

#[derive(Debug)]
pub struct StoredFingerprints {
    store: Arc<Store>,
    id: PartitionId,
    saved: Saved,
}

impl StoredFingerprints {
    /// Creates a view of the partition's stored fingerprints. Lookups fail as soon as the store no longer holds `saved` ([`Store::holds`]).
    #[must_use]
    pub const fn new(store: Arc<Store>, id: PartitionId, saved: Saved) -> Self {
        Self { store, id, saved }
    }
}

impl Archive for StoredFingerprints {
    fn content(&self, generation: GenerationId, entry: Fingerprint) -> Result<Option<u64>, ArchiveError> {
        self.store.stored_content(&self.id, self.saved, generation, entry).map_err(|error| ArchiveError(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changelog::Progress;
    use crate::checkpoint::{CheckpointMetadata, Error, Settings};
    use crate::dedup::{Dedup, Emit, Late, Rules};
    use crate::filter::{ExactError, Window};
    use crate::record::Verdict;
    use std::collections::BTreeMap;

    const RULES: Rules = Rules {
        window: Window::Time { slice_ms: 10, slices: 1 },
        filter: None,
        exact: true,
        refresh: false,
        late: Late::Emit,
        emit: Emit::First,
    };

    fn save(store: &Store, id: &PartitionId, state: &mut Dedup, saved: Option<Saved>) -> Result<Saved, Error> {
        let settings = Settings { window: RULES.window, filter: "exact".into(), hash: "xxh3".into(), keys: BTreeMap::new() };
        let metadata = CheckpointMetadata { settings, offsets: BTreeMap::new(), changelog: Progress::default(), state: state.metadata() };
        store.save(&store.claim(id), &metadata, state, saved).map(|(saved, _)| saved)
    }

    #[test]
    fn the_last_content_of_a_key_is_stored() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let id = PartitionId { space: "doors".to_owned(), partition: 0 };
        let mut state = Dedup::new(Rules { emit: Emit::OnChange, ..RULES });
        let judge = |state: &mut Dedup, content| state.judge(Fingerprint(1).with_content(Fingerprint(content)), Some(5), i64::MAX);
        let mut saved = None;
        for (content, verdict) in [(1, Verdict::Unseen), (1, Verdict::Duplicate), (2, Verdict::Unseen), (1, Verdict::Unseen)] {
            assert_eq!(judge(&mut state, content), Ok(verdict));
            saved = Some(save(&store, &id, &mut state, saved).unwrap());
            state.attach(Box::new(StoredFingerprints::new(Arc::clone(&store), id.clone(), saved.unwrap())));
        }
        let mut stored = Vec::new();
        store.each_fingerprint(&id, 0, &mut |fingerprint| stored.push(fingerprint)).unwrap();
        assert_eq!(stored, [Fingerprint(1).with_content(Fingerprint(1))]);
    }

    #[test]
    fn a_quarantined_store_gives_no_answer() {
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
        assert!(matches!(judge(&mut state, 1), Err(ExactError::Archive(_))), "\"unseen\" would emit a duplicate");
        assert!(matches!(save(&store, &id, &mut state, Some(saved)), Err(Error::Lost { .. })), "an incomplete state is not stored");
        assert_eq!(judge(&mut state, 2), Ok(Verdict::Duplicate), "keys in memory are still known");
    }
}
