//! One number for all that a memory remembers: two checkpoints with the same one give the same verdicts.

use super::{Error, Head, PartitionId, Store};
use xxhash_rust::xxh3::Xxh3;

/// The digest of a partition's stored memory: of its outline, pages and fingerprints, not of offsets, of the
/// numbers that generations of fingerprints happen to have, nor of what the filter is held against.
///
/// # Errors
/// When it cannot be read.
pub fn digest(store: &Store, id: &PartitionId, head: &Head) -> Result<u128, Error> {
    let mut memory = head.memory.clone();
    let generations: Vec<_> = memory.generations().collect();
    memory.sample = None;
    if let Some(exact) = &mut memory.exact {
        exact.next_id = 0;
        exact.generations.iter_mut().for_each(|generation| generation.id = 0);
    }
    let mut hash = Xxh3::new();
    let outline = serde_json::to_vec(&memory).map_err(|error| Error::Merge(format!("the head of {id}: {error}")))?;
    hash.update(&outline);
    store.each_page(id, &mut |bytes| hash.update(bytes))?;
    for (generation, slice) in generations {
        hash.update(&slice.to_le_bytes());
        store.each_fingerprint(id, generation, &mut |fingerprint| {
            hash.update(&fingerprint.0.to_le_bytes());
            Ok(())
        })?;
    }
    Ok(hash.digest128())
}
