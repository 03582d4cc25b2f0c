//! A digest of a state. If two checkpoints of a partition have the same settings and the same digest, they give the same verdicts.

use super::{CheckpointMetadata, Error, PartitionId, Store};
use xxhash_rust::xxh3::Xxh3;

/// Computes the digest of a partition's stored state from its metadata, pages, and fingerprints. The digest does not depend on offsets, on
/// the ids of generations, or on the watched keys, because they do not affect verdicts.
///
/// # Errors
/// Returns an error if the state cannot be read.
pub fn digest(store: &Store, id: &PartitionId, metadata: &CheckpointMetadata) -> Result<u128, Error> {
    let mut state = metadata.state.clone();
    let generations: Vec<_> = state.generations().collect();
    state.watched = None;
    if let Some(exact) = &mut state.exact {
        exact.next_id = 0;
        exact.generations.iter_mut().for_each(|generation| generation.id = 0);
    }
    let mut hash = Xxh3::new();
    let error = |error: serde_json::Error| Error::Store { dir: store.dir().to_owned(), message: format!("the metadata of {id}: {error}") };
    let metadata = serde_json::to_vec(&state).map_err(error)?;
    hash.update(&metadata);
    store.each_page(id, &mut |bytes| hash.update(bytes))?;
    for (generation, slice) in generations {
        hash.update(&slice.0.to_le_bytes());
        store.each_fingerprint(id, generation, &mut |fingerprint| hash.update(&fingerprint.0.to_le_bytes()))?;
    }
    Ok(hash.digest128())
}
