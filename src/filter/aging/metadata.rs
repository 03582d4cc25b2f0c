//! An aging filter without its bits, as it is stored. Must never ask for memory that its numbers do not bear out.

use super::Layer;
use crate::filter::bloom::{BLOCK_BITS, Bloom, BloomLayout};
use crate::filter::sizing::{BITS_PER_KEY_MAX, K_MAX, shape_rate};
use crate::filter::{Part, Slice, SliceUsage, Usage};
use serde::{Deserialize, Serialize};

/// Most blocks that a stored layer may name, 256 GiB: more than one partition can have.
const BLOCKS_MAX: u64 = 1 << 32;

/// Most blocks that a key has bits in.
const BLOCKS_PER_KEY_MAX: u64 = 2;

/// A filter without its bits. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Number of the current slice.
    pub slice: Option<Slice>,
    /// Oldest first.
    pub generations: Vec<GenerationMetadata>,
}

impl Metadata {
    pub(in crate::filter) fn usage(&self) -> Usage {
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

    /// An absent key is right in all layers, or called seen.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub(in crate::filter) fn estimate(&self) -> f64 {
        let layers = self.generations.iter().flat_map(|generation| &generation.layers);
        let rates = layers.map(|layer| {
            let layout = BloomLayout { blocks: layer.blocks, blocks_per_key: layer.blocks_per_key, k: layer.k };
            shape_rate(layout, layer.keys as f64)
        });
        1.0 - rates.fold(1.0, |right, rate| right * (1.0 - rate))
    }

    pub(in crate::filter) fn slices(&self) -> Vec<SliceUsage> {
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

    pub(in crate::filter) fn parts(&self) -> impl Iterator<Item = Part> {
        self.generations.iter().flat_map(|generation| {
            let layers = generation.layers.iter().enumerate();
            layers.map(|(layer, stored)| Part { slice: generation.slice, layer, pages: stored.pages })
        })
    }
}

/// A generation without its bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationMetadata {
    /// The slice whose keys it holds.
    pub slice: Slice,
    /// The first filter, and those chained to it.
    pub layers: Vec<LayerMetadata>,
}

/// A layer without its bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerMetadata {
    /// Blocks of 64 bytes.
    pub blocks: u64,
    /// Blocks that a key has bits in.
    pub blocks_per_key: u32,
    /// Bits that a key sets in each.
    pub k: u32,
    /// Keys it is meant for.
    pub capacity: u64,
    /// Keys inserted.
    pub keys: u64,
    /// Pages that hold anything, and so are stored.
    pub pages: u64,
}

impl LayerMetadata {
    /// The empty layer, unless no filter is made so. Sizing gives a key 1 to 512 bits, so blocks, capacity
    /// and keys bound each other, and one wrong number cannot ask for memory that the others do not.
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
