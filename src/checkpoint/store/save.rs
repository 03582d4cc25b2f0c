//! One checkpoint as one write: the metadata, what changed, and the deletion of what is gone.
//!
//! Must never leave a part of a checkpoint in the store, nor delete what another partition has.

use super::{CHANGE_BYTES, Saved, Store};
use crate::checkpoint::codec::{
    all_fingerprints, all_pages, append_checksum, fingerprint_key, fingerprints_of, metadata_key, page_key, pages_of,
};
use crate::checkpoint::database::Database;
use crate::checkpoint::draft::{self, Draft};
use crate::checkpoint::{CheckpointMetadata, Error, PartitionId};
use crate::dedup::{Dedup, DedupMetadata};
use crate::fault;
use crate::filter::{Change, Exact, Filter, PAGE_BYTES, PageId, Part};
use std::fs;
use std::sync::atomic::Ordering;

/// Ranges of keys to delete.
type Ranges = Vec<(Vec<u8>, Vec<u8>)>;

impl Store {
    /// Stores a partition's state as of `offsets`: what changed since `saved`, or all of it.
    ///
    /// Returns the proof for the next time, and the bytes written.
    ///
    /// # Errors
    /// When nothing was written; the state on disk is the one before.
    pub fn save(
        &self,
        id: &PartitionId,
        metadata: &CheckpointMetadata,
        state: &mut Dedup,
        saved: Option<Saved>,
    ) -> Result<(Saved, u64), Error> {
        fault::point("checkpoint.begin");
        self.reopen(true)?;
        let open = self.opened();
        let Some(db) = &open.db else { return Err(Error::InUse(self.dir.clone())) };
        // RocksDB would go on writing to files that have no name any more.
        if self.place() != open.place {
            return Err(Error::Corrupt { dir: self.dir.clone(), what: "it was deleted or replaced while it was in use".to_owned() });
        }
        let is_added = saved == Some(Saved { epoch: open.epoch });
        let (gone_pages, gone_fingerprints) = if is_added { self.expired(db, id, &metadata.state)? } else { self.replaced(id, state)? };
        let refused = |message| Error::Store { dir: self.dir.clone(), message };
        let key = metadata_key(id);
        let mut value = serde_json::to_vec(metadata).map_err(|error| refused(error.to_string()))?;
        append_checksum(&key, &mut value);
        let pages = state.filter().map(Filter::dirty_pages).unwrap_or_default();
        let changes = state.exact().map_or(0, Exact::unsaved);

        let options = draft::options();
        let mut draft = self.draft((pages.len() * PAGE_BYTES) as u64 + changes * CHANGE_BYTES, &options)?;
        let put = |draft: &mut Draft<'_>| {
            draft.put(&key, &value)?;
            gone_pages.iter().try_for_each(|range| draft.delete_range(range))?;
            state.filter().map_or(Ok(()), |filter| put_pages(draft, id, filter, &pages))?;
            gone_fingerprints.iter().try_for_each(|range| draft.delete_range(range))?;
            state.exact().map_or(Ok(()), |exact| put_fingerprints(draft, id, exact))?;
            draft.finish()
        };
        // Nothing of this is in the store yet, so none of it can have harmed that.
        put(&mut draft).map_err(|error: rocksdb::Error| refused(error.to_string()))?;
        fault::step("checkpoint.write").map_err(refused)?;
        let bytes = match db.write(draft) {
            Ok(bytes) => bytes,
            Err(error) => {
                drop(open);
                self.opened_mut().failed = true;
                return Err(self.error(&error));
            }
        };
        state.mark_stored();
        fault::step("checkpoint.written").map_err(refused)?;
        state.mark_clean();
        fault::point("checkpoint.clean");
        // Where all was replaced, the files of what is new lie in the same range: they are not to go with the others.
        if is_added {
            gone_pages.iter().chain(&gone_fingerprints).for_each(|range| drop_files(db, range));
        }
        fault::point("checkpoint.trimmed");
        Ok((Saved { epoch: open.epoch }, bytes))
    }

    /// The pages and the fingerprints that are stored, and that the state does not have any more.
    fn expired(&self, db: &Database, id: &PartitionId, now: &DedupMetadata) -> Result<(Ranges, Ranges), Error> {
        Ok(self.metadata(db, id)?.map(|stored| expired(id, &stored.state, now)).unwrap_or_default())
    }

    /// All pages and fingerprints of a partition, whose state is stored as a whole.
    fn replaced(&self, id: &PartitionId, state: &mut Dedup) -> Result<(Ranges, Ranges), Error> {
        if state.exact().is_some_and(Exact::is_stored) {
            return Err(Error::Lost { dir: self.dir.clone(), id: id.clone() });
        }
        state.mark_stale();
        Ok((vec![all_pages(id)], vec![all_fingerprints(id)]))
    }

    /// A checkpoint of so many bytes that is being put together.
    fn draft<'a>(&self, bytes: u64, options: &'a rocksdb::Options) -> Result<Draft<'a>, Error> {
        #[cfg(feature = "faults")]
        if self.memory.is_some() {
            return Ok(Draft::Memory(Vec::new()));
        }
        if bytes <= self.batch_bytes {
            return Ok(Draft::in_memory());
        }
        let dir = self.drafts().join(self.drafts.fetch_add(1, Ordering::Relaxed).to_string());
        fs::create_dir_all(&dir).map_err(|error| Error::Io { dir: dir.clone(), error })?;
        Ok(Draft::in_files(dir, options))
    }
}

/// Gives the room of a range back at once; what this leaves is hidden, and goes when RocksDB compacts.
fn drop_files(db: &Database, range: &(Vec<u8>, Vec<u8>)) {
    if let Err(error) = db.drop_files(range) {
        tracing::debug!(error = error.message, "expired state takes room for a while longer");
    }
}

/// The pages and the fingerprints that the state as it is stored has, and the state as it is now has not.
fn expired(id: &PartitionId, stored: &DedupMetadata, now: &DedupMetadata) -> (Ranges, Ranges) {
    // By its number alone: the slice of keys that came before any time was known may change.
    let (parts, generations) = (now.parts(), now.generations().map(|(generation, _)| generation).collect::<Vec<_>>());
    let is_kept = |part: &Part| parts.iter().any(|kept| (kept.slice, kept.layer) == (part.slice, part.layer));
    let gone = stored.parts().into_iter().filter(|part| !is_kept(part));
    let expired = stored.generations().filter(|(generation, _)| !generations.contains(generation));
    (gone.map(|part| pages_of(id, part)).collect(), expired.map(|(generation, _)| fingerprints_of(id, generation)).collect())
}

/// Puts the filter's changed pages, each with its checksum.
fn put_pages(draft: &mut Draft<'_>, id: &PartitionId, filter: &dyn Filter, pages: &[PageId]) -> Result<(), rocksdb::Error> {
    let mut value = Vec::new();
    for &page in pages {
        let key = page_key(id, page);
        value.clear();
        filter.write_page(page, &mut value);
        append_checksum(&key, &mut value);
        draft.put(&key, &value)?;
    }
    Ok(())
}

/// Puts the fingerprints that changed, in the order of their keys.
fn put_fingerprints(draft: &mut Draft<'_>, id: &PartitionId, exact: &Exact) -> Result<(), rocksdb::Error> {
    for (generation, changes) in exact.changes_by_generation() {
        let mut changes: Vec<_> = changes.collect();
        changes.sort_unstable_by_key(|&(fingerprint, _)| fingerprint.0);
        for (&fingerprint, change) in changes {
            let key = fingerprint_key(id, generation, fingerprint);
            match change {
                Change::Put => draft.put(&key, &[])?,
                Change::Delete => draft.delete(&key)?,
            }
        }
    }
    Ok(())
}
