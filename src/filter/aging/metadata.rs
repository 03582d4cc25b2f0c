//! The stored form of an aging filter, without its bits. If one of its numbers is corrupt, restoring the filter fails or allocates no more
//! memory than the other numbers allow.

use super::Layer;
use crate::filter::bloom::{BLOCK_BITS, Bloom, BloomLayout};
use crate::filter::kind;
use crate::filter::sizing::{BITS_PER_KEY_MAX, K_MAX, shape_rate};
use crate::filter::{Part, Slice, SliceUsage, Usage};
use serde::{Deserialize, Serialize};

/// Maximum number of blocks in a stored layer: 256 GiB, more than any filter needs.
const BLOCKS_MAX: u64 = 1 << 32;

const BLOCKS_PER_KEY_MAX: u64 = 2;

/// Metadata of a filter, without its bits. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Number of the current slice. `None` in a window by time until the first time is known.
    pub slice: Option<Slice>,
    /// Generations, oldest first.
    pub generations: Vec<GenerationMetadata>,
}

impl kind::Metadata for Metadata {
    fn usage(&self) -> Usage {
        let layers = || self.generations.iter().flat_map(|generation| &generation.layers);
        let open = self.generations.last().filter(|newest| Some(newest.slice) == self.slice);
        Usage {
            keys: layers().fold(0, |sum, layer| sum.saturating_add(layer.keys)),
            open_keys: open.map_or(0, |open| open.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.keys))),
            bytes: layers().fold(0, |sum, layer| sum.saturating_add(layer.blocks.saturating_mul(u64::from(BLOCK_BITS / 8)))),
            load: 0.0,
            evicted: 0,
        }
    }

    /// Returns the probability that at least one layer reports an absent key as seen.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    fn estimate(&self) -> f64 {
        let layers = self.generations.iter().flat_map(|generation| &generation.layers);
        let rates = layers.map(|layer| {
            let layout = BloomLayout { blocks: layer.blocks, blocks_per_key: layer.blocks_per_key, k: layer.k };
            shape_rate(layout, layer.keys as f64)
        });
        1.0 - rates.fold(1.0, |right, rate| right * (1.0 - rate))
    }

    fn slices(&self) -> Vec<SliceUsage> {
        let sum = |generation: &GenerationMetadata, number: fn(&LayerMetadata) -> u64| {
            generation.layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(number(layer)))
        };
        let slice = |generation: &GenerationMetadata| SliceUsage {
            slice: generation.slice,
            keys: sum(generation, |layer| layer.keys),
            capacity: generation.layers.first().map_or(0, |layer| layer.capacity),
            bytes: sum(generation, |layer| layer.blocks.saturating_mul(u64::from(BLOCK_BITS / 8))),
        };
        self.generations.iter().map(slice).collect()
    }

    fn parts(&self) -> Vec<Part> {
        let parts = self.generations.iter().flat_map(|generation| {
            let layers = generation.layers.iter().enumerate();
            layers.map(|(layer, stored)| Part { slice: generation.slice, layer, pages: stored.pages })
        });
        parts.collect()
    }
}

/// Metadata of a generation, without its bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationMetadata {
    /// Number of the slice whose keys the generation contains.
    pub slice: Slice,
    /// The first layer and the layers chained to it.
    pub layers: Vec<LayerMetadata>,
}

/// Metadata of a layer, without its bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerMetadata {
    /// Number of 64-byte blocks, at least `blocks_per_key`.
    pub blocks: u64,
    /// Number of blocks that contain bits of one key: 1 or 2.
    pub blocks_per_key: u32,
    /// Number of bits that a key sets in each of its blocks: 1 to 16.
    pub k: u32,
    /// Maximum number of keys before another layer is chained.
    pub capacity: u64,
    /// Number of keys inserted, counting repeated insertions.
    pub keys: u64,
    /// Number of pages that contain data and are therefore stored.
    pub pages: u64,
}

impl LayerMetadata {
    /// Returns the layer with its bits still clear, or `None` if no filter can have such a layer, or if there is not enough memory. Sizing
    /// gives each key 1 to 512 bits, so `blocks` and `capacity` limit each other. One wrong number therefore cannot allocate more memory
    /// than the other number allows.
    pub(super) fn layer(&self) -> Option<Layer> {
        let sane = (1..=BLOCKS_MAX).contains(&self.blocks)
            && (1..=BLOCKS_PER_KEY_MAX.min(self.blocks)).contains(&u64::from(self.blocks_per_key))
            && (1..=K_MAX).contains(&self.k)
            && self.blocks <= self.capacity.saturating_mul(u64::from(BITS_PER_KEY_MAX / BLOCK_BITS)).max(u64::from(self.blocks_per_key))
            && self.capacity <= self.blocks * u64::from(BLOCK_BITS);
        let layout = BloomLayout { blocks: self.blocks, blocks_per_key: self.blocks_per_key, k: self.k };
        let bloom = sane.then(|| Bloom::new(layout)).flatten()?;
        Some(Layer { bloom, capacity: self.capacity, keys: self.keys })
    }
}
