//! A queue of generations: the filter that forgets by dropping its oldest part.
//!
//! A window is cut into `slices`; `slices + 1` generations are kept, one filter each, so that a key
//! stays at least `window` and at most `window * (1 + 1/slices)`. With one slice this is the classic
//! pair of a young and an old filter (Yoon: "Aging Bloom Filter with Two Active Buffers", 2010).
//! Only the newest generation, the open one, ever changes. Error direction: as a Bloom filter's.

mod union;

use super::bloom::{BLOCK_BITS, Bloom, Mask, Shape};
use super::sizing::{BITS_PER_KEY_MAX, CHAIN_SHARE, PROBES_MAX, rate_per_generation, shape_for, shape_rate};
use super::{Different, Filter, Full, Growth, Mismatch, PageId, Part, Prediction, Usage, Window};
use crate::key::Fingerprint;
use crate::record::Timestamp;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::hint::black_box;

/// Most blocks that a stored layer may name, 256 GiB: more than one partition can have.
const BLOCKS_MAX: u64 = 1 << 32;

/// Most blocks that a key has bits in.
const LINES_MAX: u64 = 2;

/// Most masks made ahead; with the lines of five generations they still fit into the first cache.
const BATCH_MAX: usize = 64;

/// Sizes worked out once for all partitions that share a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Keys that a generation holds before it chains.
    pub capacity: u64,
    /// The rate that one generation may reach, chained layers included.
    pub rate: f64,
    /// The shape of a generation's first layer.
    pub shape: Shape,
    /// How its memory follows the stream.
    pub growth: Growth,
}

impl Plan {
    /// A filter whose window holds `keys`, asked of all generations wrong at no more than `rate`.
    #[must_use]
    pub fn new(window: Window, keys: u64, rate: f64) -> Self {
        let rate = rate_per_generation(rate, window.slices() + 1);
        let capacity = keys.max(1).div_ceil(u64::from(window.slices()));
        Self { capacity, rate, shape: shape_for(capacity, rate * (1.0 - CHAIN_SHARE)), growth: Growth::default() }
    }

    /// The same, its memory following the stream in another way.
    #[must_use]
    pub const fn with_growth(self, growth: Growth) -> Self {
        Self { growth, ..self }
    }

    /// Memory of all generations at capacity, in bytes.
    #[must_use]
    pub fn bytes(&self, window: Window) -> u64 {
        self.shape.bytes() * u64::from(window.slices() + 1)
    }

    /// The rate and the memory when each generation holds `load` times its capacity, chained layers
    /// included: the moment at which the filter is wrong most often.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn predict(&self, window: Window, load: f64) -> Prediction {
        let mut keys = self.capacity as f64 * load.max(0.0);
        let (mut right, mut bytes) = (1.0, 0);
        // As layers double, these hold any number of keys.
        for index in 0..64 {
            let (capacity, shape) = self.size(index);
            right *= 1.0 - shape_rate(shape, keys.min(capacity as f64));
            bytes += shape.bytes();
            keys -= capacity as f64;
            if keys <= 0.0 {
                break;
            }
        }
        Self::all(window, right, bytes)
    }

    /// The rate and the memory if nothing chained: each generation's first layer takes all of `load` times its
    /// capacity.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn rate_unchained(&self, window: Window, load: f64) -> Prediction {
        Self::all(window, 1.0 - shape_rate(self.shape, self.capacity as f64 * load), self.shape.bytes())
    }

    /// Of all generations, from what one is: its probability to be right, its memory.
    fn all(window: Window, right: f64, bytes: u64) -> Prediction {
        let generations = window.slices() + 1;
        // 1 - right^generations, without cancellation.
        let rate = -(right.ln() * f64::from(generations)).exp_m1();
        Prediction { rate, bytes: bytes * u64::from(generations) }
    }

    /// Capacity and shape of the layer `index` of a generation. The first has all of the rate but the share kept
    /// back for chaining. The layers chained to it have a half, a quarter, an eighth … of that share, so that
    /// their sum stays below it, and twice the capacity of the one before, so that there are few (Almeida et
    /// al.: "Scalable Bloom Filters", 2007).
    fn size(&self, index: usize) -> (u64, Shape) {
        let depth = u32::try_from(index).unwrap_or(u32::MAX).min(40);
        if depth == 0 {
            return (self.capacity, self.shape);
        }
        let capacity = self.capacity.div_ceil(2).saturating_mul(1 << (depth - 1));
        (capacity, shape_for(capacity, self.rate * CHAIN_SHARE * 0.5_f64.powi(depth.cast_signed())))
    }

    /// The layer `index` of a generation, empty.
    fn layer(&self, index: usize) -> Result<Layer, Full> {
        let (capacity, shape) = self.size(index);
        Ok(Layer { bloom: Bloom::new(shape).ok_or(Full::Memory)?, capacity, keys: 0 })
    }
}

/// One filter of a generation: the first, or one that an overfull slice chained to it.
#[derive(Debug)]
struct Layer {
    bloom: Bloom,
    capacity: u64,
    keys: u64,
}

/// The keys of one slice.
#[derive(Debug)]
struct Generation {
    slice: i64,
    layers: Vec<Layer>,
}

impl Generation {
    #[inline]
    fn contains(&self, fingerprint: Fingerprint, mask: &Mask) -> bool {
        self.layers.iter().any(|layer| layer.bloom.contains(fingerprint, mask))
    }

    fn insert(&mut self, fingerprint: Fingerprint, mask: &Mask, plan: &Plan) -> Result<(), Full> {
        if self.layers.last().is_none_or(|layer| layer.keys >= layer.capacity) {
            self.layers.push(plan.layer(self.layers.len())?);
        }
        if let Some(layer) = self.layers.last_mut() {
            layer.bloom.insert(fingerprint, mask);
            layer.keys += 1;
        }
        Ok(())
    }

    /// Keys put in, each as often as it was.
    fn keys(&self) -> u64 {
        self.layers.iter().map(|layer| layer.keys).sum()
    }
}

/// A filter that remembers keys for a window and then forgets them.
#[derive(Debug)]
pub struct Aging {
    window: Window,
    plan: Plan,
    /// Number of the current slice; unknown until the first time is shown.
    slice: Option<i64>,
    /// Oldest first; the last is open if its slice is the current one.
    generations: VecDeque<Generation>,
    batch: RefCell<Batch>,
}

/// The masks of the keys that are asked for next. Making one takes longer than a look-up that finds its lines
/// in the cache, and nothing where it is done while they are on their way. Says nothing about any key: with it
/// or without, all answers are the same.
#[derive(Debug, Default)]
struct Batch {
    /// Of `keys`, in their order; the rest is left over from earlier batches.
    masks: Vec<Mask>,
    keys: Vec<Fingerprint>,
    /// Where the key last asked for is.
    at: usize,
}

impl Batch {
    /// Takes in the first [`BATCH_MAX`] of these keys, without their bits.
    fn aim(&mut self, fingerprints: &[Fingerprint], shape: Shape) {
        self.keys.clear();
        self.keys.extend(fingerprints.iter().take(BATCH_MAX));
        if self.masks.len() < self.keys.len() {
            self.masks.resize(self.keys.len(), Mask::NONE);
        }
        self.masks.iter_mut().zip(&self.keys).for_each(|(mask, &key)| mask.aim(key, shape));
        self.at = 0;
    }

    fn draw(&mut self) {
        self.masks.iter_mut().zip(&self.keys).for_each(|(mask, &key)| mask.draw(key));
    }

    /// The mask of a key: the one last asked for, or one that comes after it, or else a batch of its own.
    #[inline]
    fn mask(&mut self, fingerprint: Fingerprint, shape: Shape) -> &Mask {
        // Nearly always it is one of these two: what was asked for is put in, or the next one is asked for.
        if self.keys.get(self.at) != Some(&fingerprint) {
            self.at += 1;
            if self.keys.get(self.at) != Some(&fingerprint) {
                self.search(fingerprint, shape);
            }
        }
        &self.masks[self.at]
    }

    #[inline(never)]
    fn search(&mut self, fingerprint: Fingerprint, shape: Shape) {
        if let Some(ahead) = self.keys.iter().skip(self.at).position(|&key| key == fingerprint) {
            self.at += ahead;
        } else {
            self.aim(&[fingerprint], shape);
            self.draw();
        }
    }
}

impl Aging {
    /// An empty filter.
    #[must_use]
    pub fn new(window: Window, plan: Plan) -> Self {
        let slice = match window {
            Window::Time { .. } => None,
            Window::Keys { .. } => Some(0),
        };
        Self { window, plan, slice, generations: VecDeque::new(), batch: RefCell::default() }
    }

    /// Number of the current slice. Before any time is known it is 0; [`Aging::rotate`] mends that.
    fn current(&self) -> i64 {
        self.slice.unwrap_or(0)
    }

    /// The generation of the current slice, if any key came in it.
    fn open(&self) -> Option<&Generation> {
        self.generations.back().filter(|newest| newest.slice == self.current())
    }

    /// Keys put into the open generation.
    fn open_keys(&self) -> u64 {
        self.open().map_or(0, Generation::keys)
    }

    /// Opens the generation of `slice` and drops those that no window reaches any more.
    fn rotate(&mut self, slice: i64) {
        if self.slice.is_none() {
            // Keys that came before any time was known belong to the first time that is. Pages are
            // stored by their slice: what was stored of these is now under a wrong name.
            self.generations.iter_mut().for_each(|generation| generation.slice = slice);
            self.mark_stale();
        }
        self.slice = Some(slice);
        let oldest = slice.saturating_sub(i64::from(self.window.slices()));
        while self.generations.front().is_some_and(|generation| generation.slice < oldest) {
            self.generations.pop_front();
        }
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.generations.iter().flat_map(|generation| &generation.layers)
    }

    fn layers_mut(&mut self) -> impl Iterator<Item = &mut Layer> {
        self.generations.iter_mut().flat_map(|generation| &mut generation.layers)
    }

    /// The filter that a manifest describes, its bits still clear: [`Filter::read_page`] puts them in.
    /// Sizes may differ from the plan's, which holds for layers to come, but not be absurd.
    ///
    /// # Errors
    /// [`Mismatch`] when the manifest is not one of a filter of this window.
    pub fn from_manifest(window: Window, plan: Plan, manifest: &Manifest) -> Result<Self, Mismatch> {
        let mut filter = Self { slice: manifest.slice, ..Self::new(window, plan) };
        let newest = filter.current();
        let oldest = newest.saturating_sub(i64::from(window.slices()));
        let ordered = manifest.generations.windows(2).all(|pair| pair[0].slice < pair[1].slice);
        let within = manifest.generations.iter().all(|stored| (oldest..=newest).contains(&stored.slice));
        // Before any time is known, there is one generation at most, and that only in a window of time.
        let known = manifest.slice.is_some() || (window.length_ms().is_some() && manifest.generations.len() <= 1);
        if !ordered || !within || !known {
            return Err(Mismatch::Generations);
        }
        for stored in &manifest.generations {
            let layers = stored.layers.iter().map(LayerManifest::layer).collect::<Option<_>>().ok_or(Mismatch::Shape)?;
            filter.generations.push_back(Generation { slice: stored.slice, layers });
        }
        Ok(filter)
    }
}

impl Filter for Aging {
    fn prefetch(&self, fingerprints: &[Fingerprint]) {
        let mut batch = self.batch.borrow_mut();
        batch.aim(fingerprints, self.plan.shape);
        let (keys, masks) = (&batch.keys, &batch.masks[..batch.keys.len()]);
        // One filter after the other: the loop over the keys is then a few instructions a line, and as many
        // lines are on their way as the processor can wait for.
        black_box(self.layers().fold(0, |sum, layer| sum ^ layer.bloom.load(keys, masks)));
        batch.draw();
    }

    fn contains(&self, fingerprint: Fingerprint) -> bool {
        let mut batch = self.batch.borrow_mut();
        let mask = batch.mask(fingerprint, self.plan.shape);
        self.generations.iter().rev().any(|generation| generation.contains(fingerprint, mask))
    }

    fn insert(&mut self, fingerprint: Fingerprint) -> Result<(), Full> {
        if let Window::Keys { slice_keys, .. } = self.window
            && self.open_keys() >= slice_keys
        {
            self.rotate(self.current().saturating_add(1));
        }
        if self.open().is_none() {
            self.generations.push_back(Generation { slice: self.current(), layers: Vec::new() });
        }
        let mask = self.batch.get_mut().mask(fingerprint, self.plan.shape);
        self.generations.back_mut().map_or(Ok(()), |open| open.insert(fingerprint, mask, &self.plan))
    }

    fn refresh(&mut self, fingerprint: Fingerprint) -> Result<(), Full> {
        // Wrongly "there" is as good: its bits are set, and stay as long as the generation does.
        let there = {
            let mut batch = self.batch.borrow_mut();
            let mask = batch.mask(fingerprint, self.plan.shape);
            self.open().is_some_and(|open| open.contains(fingerprint, mask))
        };
        if there { Ok(()) } else { self.insert(fingerprint) }
    }

    fn union(&mut self, other: &dyn Filter) -> Result<(), Different> {
        let other: &dyn Any = other;
        self.take_in(other.downcast_ref().ok_or(Different::Kind)?)
    }

    fn advance(&mut self, time: Timestamp) {
        if let Some(slice) = self.window.slice_at(time)
            && self.slice.is_none_or(|current| slice > current)
        {
            self.rotate(slice);
        }
    }

    fn slice(&self) -> Option<i64> {
        self.slice
    }

    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    fn usage(&self) -> Usage {
        Usage {
            keys: self.generations.iter().map(Generation::keys).sum(),
            open_keys: self.open_keys(),
            bytes: self.layers().map(|layer| layer.bloom.shape().bytes()).sum(),
            load: self.open_keys() as f64 / self.plan.capacity as f64,
        }
    }

    fn manifest(&self) -> super::Manifest {
        let generations = self.generations.iter().map(|generation| GenerationManifest {
            slice: generation.slice,
            layers: generation
                .layers
                .iter()
                .map(|layer| LayerManifest {
                    blocks: layer.bloom.shape().blocks,
                    lines: layer.bloom.shape().lines,
                    probes: layer.bloom.shape().probes,
                    capacity: layer.capacity,
                    keys: layer.keys,
                    pages: layer.bloom.memory.used_pages(),
                })
                .collect(),
        });
        super::Manifest::Aging(Manifest { slice: self.slice, generations: generations.collect() })
    }

    fn dirty_pages(&self) -> Vec<PageId> {
        let mut dirty = Vec::new();
        for generation in &self.generations {
            for (layer, filter) in generation.layers.iter().enumerate() {
                dirty.extend(filter.bloom.memory.dirty_pages().map(|page| PageId { slice: generation.slice, layer, page }));
            }
        }
        dirty
    }

    fn write_page(&self, id: PageId, out: &mut Vec<u8>) {
        let generation = self.generations.iter().find(|generation| generation.slice == id.slice);
        if let Some(layer) = generation.and_then(|generation| generation.layers.get(id.layer)) {
            layer.bloom.memory.write_page(id.page, out);
        }
    }

    fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), Mismatch> {
        let generation = self.generations.iter_mut().find(|generation| generation.slice == id.slice);
        let layer = generation.and_then(|generation| generation.layers.get_mut(id.layer));
        if layer.is_some_and(|layer| layer.bloom.memory.read_page(id.page, bytes)) { Ok(()) } else { Err(Mismatch::Page(id)) }
    }

    fn mark_clean(&mut self) {
        self.layers_mut().for_each(|layer| layer.bloom.memory.mark_clean());
    }

    fn mark_stale(&mut self) {
        self.layers_mut().for_each(|layer| layer.bloom.memory.mark_stale());
    }
}

/// A filter without its bits. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Number of the current slice.
    pub slice: Option<i64>,
    /// Oldest first.
    pub generations: Vec<GenerationManifest>,
}

impl Manifest {
    pub(super) fn usage(&self) -> Usage {
        let layers = || self.generations.iter().flat_map(|generation| &generation.layers);
        let open = self.generations.last().filter(|newest| Some(newest.slice) == self.slice);
        Usage {
            keys: layers().fold(0, |sum, layer| sum.saturating_add(layer.keys)),
            open_keys: open.map_or(0, |open| open.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.keys))),
            bytes: layers().fold(0, |sum, layer| sum.saturating_add(layer.blocks.saturating_mul(u64::from(BLOCK_BITS / 8)))),
            load: 0.0,
        }
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = Part> {
        self.generations.iter().flat_map(|generation| {
            let layers = generation.layers.iter().enumerate();
            layers.map(|(layer, stored)| Part { slice: generation.slice, layer, pages: stored.pages })
        })
    }
}

/// A generation without its bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationManifest {
    /// The slice whose keys it holds.
    pub slice: i64,
    /// The first filter, and those chained to it.
    pub layers: Vec<LayerManifest>,
}

/// A layer without its bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerManifest {
    /// Blocks of 64 bytes.
    pub blocks: u64,
    /// Blocks that a key has bits in.
    pub lines: u32,
    /// Bits that a key sets in each.
    pub probes: u32,
    /// Keys it is meant for.
    pub capacity: u64,
    /// Keys put in.
    pub keys: u64,
    /// Pages that hold anything, and so are stored.
    pub pages: u64,
}

impl LayerManifest {
    /// The empty layer, unless no filter is made so. Sizing gives a key 1 to 512 bits, so blocks, capacity
    /// and keys bound each other, and one wrong number cannot ask for memory that the others do not.
    fn layer(&self) -> Option<Layer> {
        let sane = (1..=BLOCKS_MAX).contains(&self.blocks)
            && (1..=LINES_MAX.min(self.blocks)).contains(&u64::from(self.lines))
            && (1..=PROBES_MAX).contains(&self.probes)
            && self.blocks <= self.capacity.saturating_mul(u64::from(BITS_PER_KEY_MAX / BLOCK_BITS)).max(u64::from(self.lines))
            && self.capacity <= self.blocks * u64::from(BLOCK_BITS);
        let shape = Shape { blocks: self.blocks, lines: self.lines, probes: self.probes };
        let bloom = sane.then(|| Bloom::new(shape)).flatten()?;
        Some(Layer { bloom, capacity: self.capacity, keys: self.keys })
    }
}

#[cfg(test)]
mod tests;
