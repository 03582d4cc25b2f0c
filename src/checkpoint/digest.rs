//! One number for all that a state remembers: two checkpoints with the same one give the same verdicts.

use super::{CheckpointMetadata, Error, PartitionId, Store};
use xxhash_rust::xxh3::Xxh3;

/// The digest of a partition's stored state: of its metadata, pages and fingerprints, not of offsets, of the
/// numbers that generations of fingerprints happen to have, nor of what the filter is held against.
///
/// # Errors
/// When it cannot be read.
pub fn digest(store: &Store, id: &PartitionId, metadata: &CheckpointMetadata) -> Result<u128, Error> {
    let mut state = metadata.state.clone();
    let generations: Vec<_> = state.generations().collect();
    state.watched = None;
    if let Some(exact) = &mut state.exact {
        exact.next_id = 0;
        exact.generations.iter_mut().for_each(|generation| generation.id = 0);
    }
    let mut hash = Xxh3::new();
    let metadata = serde_json::to_vec(&state).map_err(|error| Error::Merge(format!("the metadata of {id}: {error}")))?;
    hash.update(&metadata);
    store.each_page(id, &mut |bytes| hash.update(bytes))?;
    for (generation, slice) in generations {
        hash.update(&slice.0.to_le_bytes());
        store.each_fingerprint(id, generation, &mut |fingerprint| {
            hash.update(&fingerprint.0.to_le_bytes());
            Ok(())
        })?;
    }
    Ok(hash.digest128())
}
