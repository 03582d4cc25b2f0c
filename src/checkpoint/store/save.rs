//! Writes a checkpoint atomically: the metadata, the changes, and the deletions.
//!
//! Never leaves a partial checkpoint in the store and never deletes data of another partition.

use super::{CHANGE_BYTES, Claim, Saved, Store};
use crate::checkpoint::codec::{
    all_fingerprints, all_pages, append_checksum, fingerprint_key, fingerprints_of, metadata_key, page_key, pages_of,
};
use crate::checkpoint::database::Database;
use crate::checkpoint::draft::Draft;
use crate::checkpoint::{CheckpointMetadata, Error, PartitionId};
use crate::dedup::{Dedup, DedupMetadata};
use crate::fault;
use crate::filter::{Change, Exact, Filter, PAGE_BYTES, PageId, Part};
use std::fs;
use std::sync::atomic::Ordering;

type Ranges = Vec<(Vec<u8>, Vec<u8>)>;

impl Store {
    /// Stores a partition's state as of the offsets in `metadata`. If the store still holds `saved`, writes only the later changes.
    /// Otherwise, writes the whole state.
    ///
    /// Returns `saved` for the next call and the number of bytes written.
    ///
    /// # Errors
    /// Returns [`Error::Superseded`] if there is a newer claim, and other errors if the checkpoint cannot be written. No error leaves a
    /// partial checkpoint: the store then contains the complete new checkpoint or the same entries as before the call.
    pub fn save(
        &self,
        claim: &Claim,
        metadata: &CheckpointMetadata,
        state: &mut Dedup,
        saved: Option<Saved>,
    ) -> Result<(Saved, u64), Error> {
        fault::point("checkpoint.begin");
        let id = &claim.id;
        self.reopen(true)?;
        let open = self.opened();
        let Some(db) = &open.db else {
            return Err(Error::Store {
                dir: self.dir.clone(),
                message: "the database is closed, because it could not be opened again after a quarantine or a failed write".to_owned(),
            });
        };
        // If the directory was deleted or replaced, RocksDB would continue to write to the deleted files.
        if self.place() != open.place {
            return Err(Error::Corrupt { dir: self.dir.clone(), what: "the checkpoints were deleted or replaced while in use".to_owned() });
        }
        let is_added = saved == Some(Saved { epoch: open.epoch });
        let (gone_pages, gone_fingerprints) = if is_added { self.expired(db, id, &metadata.state)? } else { self.replaced(id, state)? };
        let store_error = |message| Error::Store { dir: self.dir.clone(), message };
        let key = metadata_key(id);
        let mut value = serde_json::to_vec(metadata).map_err(|error| store_error(error.to_string()))?;
        append_checksum(&key, &mut value);
        let pages = state.filter().map(Filter::dirty_pages).unwrap_or_default();
        let changes = state.exact().map_or(0, Exact::unsaved);

        let mut draft = self.draft((pages.len() * PAGE_BYTES) as u64 + changes * CHANGE_BYTES)?;
        let put = |draft: &mut Draft| {
            draft.put(&key, &value)?;
            gone_pages.iter().try_for_each(|range| draft.delete_range(range))?;
            state.filter().map_or(Ok(()), |filter| put_pages(draft, id, filter, &pages))?;
            gone_fingerprints.iter().try_for_each(|range| draft.delete_range(range))?;
            state.exact().map_or(Ok(()), |exact| put_fingerprints(draft, id, exact))?;
            draft.finish()
        };
        // An error here does not set `failed`, because the draft is not in the store yet.
        put(&mut draft).map_err(|error: rocksdb::Error| store_error(error.to_string()))?;
        fault::step("checkpoint.write").map_err(store_error)?;
        let claims = self.claims();
        if !claim.is_newest(&claims) && !fault::defect("claims_ignored") {
            return Err(Error::Superseded(id.clone()));
        }
        let written = db.write(draft);
        drop(claims);
        let bytes = match written {
            Ok(bytes) => bytes,
            Err(error) => {
                drop(open);
                self.opened_mut().failed = true;
                return Err(self.error(&error));
            }
        };
        state.mark_stored();
        fault::step("checkpoint.written").map_err(store_error)?;
        state.mark_clean();
        fault::point("checkpoint.clean");
        // After a full checkpoint, the new files lie in the same ranges and must not be deleted with the old files.
        if is_added {
            drop_files(db, &gone_pages.iter().chain(&gone_fingerprints).collect::<Vec<_>>());
        }
        fault::point("checkpoint.trimmed");
        Ok((Saved { epoch: open.epoch }, bytes))
    }

    fn expired(&self, db: &Database, id: &PartitionId, now: &DedupMetadata) -> Result<(Ranges, Ranges), Error> {
        Ok(self.metadata(db, id)?.map(|stored| expired(id, &stored.state, now)).unwrap_or_default())
    }

    /// Prepares a full checkpoint: marks all pages as changed and returns the ranges of all stored pages and fingerprints. Fails if some
    /// fingerprints of the state were only in a store that has been replaced.
    fn replaced(&self, id: &PartitionId, state: &mut Dedup) -> Result<(Ranges, Ranges), Error> {
        if state.exact().is_some_and(Exact::is_stored) {
            return Err(Error::Lost { dir: self.dir.clone(), id: id.clone() });
        }
        state.mark_stale();
        Ok((vec![all_pages(id)], vec![all_fingerprints(id)]))
    }

    fn draft(&self, bytes: u64) -> Result<Draft, Error> {
        #[cfg(feature = "faults")]
        if self.memory.is_some() {
            return Ok(Draft::Memory(Vec::new()));
        }
        if bytes <= self.batch_bytes {
            return Ok(Draft::in_memory());
        }
        let dir = self.drafts().join(self.drafts.fetch_add(1, Ordering::Relaxed).to_string());
        fs::create_dir_all(&dir).map_err(|error| Error::Io { dir: dir.clone(), error })?;
        Ok(Draft::in_files(dir))
    }
}

/// Deletes the files that contain only entries of deleted ranges, to free disk space immediately. RocksDB frees the space of all other
/// deleted entries by compaction.
fn drop_files(db: &Database, ranges: &[&(Vec<u8>, Vec<u8>)]) {
    if let Err(error) = db.drop_files(ranges) {
        tracing::debug!(error = error.message, "cannot free the disk space of expired state; compaction will free it");
    }
}

/// Returns the ranges of pages and fingerprints that the stored state has but the current state does not.
fn expired(id: &PartitionId, stored: &DedupMetadata, now: &DedupMetadata) -> (Ranges, Ranges) {
    // Compare generations only by id. If keys arrive before the first timestamp, the slice of their generation can change later.
    let (parts, generations) = (now.parts(), now.generations().map(|(generation, _)| generation).collect::<Vec<_>>());
    let is_kept = |part: &Part| parts.iter().any(|kept| (kept.slice, kept.layer) == (part.slice, part.layer));
    let gone = stored.parts().into_iter().filter(|part| !is_kept(part));
    let expired = stored.generations().filter(|(generation, _)| !generations.contains(generation));
    (gone.map(|part| pages_of(id, part)).collect(), expired.map(|(generation, _)| fingerprints_of(id, generation)).collect())
}

fn put_pages(draft: &mut Draft, id: &PartitionId, filter: &dyn Filter, pages: &[PageId]) -> Result<(), rocksdb::Error> {
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

fn put_fingerprints(draft: &mut Draft, id: &PartitionId, exact: &Exact) -> Result<(), rocksdb::Error> {
    for (generation, changes) in exact.changes_by_generation() {
        let mut changes: Vec<_> = changes.collect();
        changes.sort_unstable_by_key(|&(fingerprint, _)| fingerprint.0);
        for (&fingerprint, change) in changes {
            let key = fingerprint_key(id, generation, fingerprint);
            match change {
                Change::Put(content) if exact.has_contents() => draft.put(&key, &content.to_le_bytes())?,
                Change::Put(_) => draft.put(&key, &[])?,
                Change::Delete => draft.delete(&key)?,
            }
        }
    }
    Ok(())
}
