//! Merges several state directories. A partition of the result has seen every key that the partition has seen in any of the directories.
//!
//! Must never write to a source directory, or merge states of different configurations.

use super::decode::metadata_rules;
use super::store::{Loaded, Store};
use super::{CheckpointMetadata, Error, PartitionId, StoredFingerprints};
use crate::dedup::Dedup;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum number of fingerprints to copy between two writes.
const FINGERPRINTS_MAX: u64 = 1 << 20;

/// Merges the states of `sources` into a new directory. Returns the number of partitions.
///
/// For each input topic, the result has the largest offset of the sources. All sources have read the same partitions. So the source with
/// the largest offset contains the effects of all records below this offset, and so does the result.
///
/// # Errors
/// Returns an error if a directory cannot be read or written, `target` already contains state, or two states do not match.
pub fn merge(sources: &[PathBuf], target: &Path) -> Result<usize, Error> {
    let opened = sources.iter().map(|dir| Ok((dir, Store::open_to_read(dir)?, Store::open_to_read(dir)?.all_metadata()?)));
    let sources: Vec<Source<'_>> = opened.collect::<Result<_, Error>>()?;
    let new = Arc::new(Store::open(target)?);
    if !new.all_metadata()?.is_empty() {
        return Err(Error::Merge(format!("{} already contains state; choose a new directory", target.display())));
    }
    let ids: BTreeSet<_> = sources.iter().flat_map(|(_, _, all_metadata)| all_metadata.iter().map(|(id, _)| id)).collect();
    for &id in &ids {
        join(&sources, id, &new)?;
    }
    Ok(ids.len())
}

type Source<'a> = (&'a PathBuf, Store, Vec<(PartitionId, CheckpointMetadata)>);

/// Merges one partition from all directories that contain it.
fn join(sources: &[Source<'_>], id: &PartitionId, new: &Arc<Store>) -> Result<(), Error> {
    let mut joined: Option<(CheckpointMetadata, Dedup)> = None;
    let mut parts = Vec::new();
    for (dir, store, all_metadata) in sources {
        let Some((_, metadata)) = all_metadata.iter().find(|(other, _)| other == id) else { continue };
        let Loaded::Usable { state, .. } = store.load(id, &metadata.settings, metadata_rules(metadata))? else { continue };
        parts.push((store, metadata));
        let (whole, own) = joined.get_or_insert_with(|| (metadata.clone(), Dedup::new(metadata_rules(metadata))));
        let misfit = |what: String| Error::Merge(format!("{id} in {}: {what}", dir.display()));
        if whole.settings != metadata.settings {
            return Err(misfit(metadata.settings.difference_to(&whole.settings, parts[0].0.dir())));
        }
        own.union(&state).map_err(|error| misfit(error.to_string()))?;
        for (topic, &offset) in &metadata.offsets {
            let known = whole.offsets.entry(topic.clone()).or_insert(offset);
            *known = offset.max(*known);
        }
    }
    let Some((mut metadata, mut state)) = joined else { return Ok(()) };
    metadata.state = state.metadata();
    let claim = new.claim(id);
    let (mut saved, _) = new.save(&claim, &metadata, &mut state, None)?;
    state.attach(Box::new(StoredFingerprints::new(Arc::clone(new), id.clone(), saved)));
    for (store, theirs) in parts {
        for (generation, slice) in theirs.state.generations() {
            store.each_fingerprint(id, generation, &mut |fingerprint| {
                let Some(exact) = state.exact_mut() else { return Ok(()) };
                exact.insert_into(slice, fingerprint);
                if exact.unsaved() >= FINGERPRINTS_MAX {
                    (saved, _) = new.save(&claim, &metadata, &mut state, Some(saved))?;
                }
                Ok(())
            })?;
        }
    }
    new.save(&claim, &metadata, &mut state, Some(saved)).map(drop)
}
