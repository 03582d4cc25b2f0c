//! A queue of generations: the filter that forgets by dropping its oldest part.
//!
//! A window is cut into `slices`; `slices + 1` generations are kept, one filter each, so that a key
//! stays at least `window` and at most `window * (1 + 1/slices)`. With one slice this is the classic
//! pair of a young and an old filter (Yoon: "Aging Bloom Filter with Two Active Buffers", 2010).
//! Only the newest generation, the open one, ever changes. Error direction: as a Bloom filter's.

use super::bloom::{BLOCK_BITS, Bloom, Mask, Shape};
use super::sizing::{BITS_PER_KEY_MAX, CHAIN_SHARE, PROBES_MAX, rate_per_generation, shape_for};
use crate::key::Fingerprint;
use crate::record::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Most blocks that a stored layer may name, 256 GiB: more than one partition can have.
const BLOCKS_MAX: u64 = 1 << 32;

/// How long a key stays seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// By record time. Slices start at multiples of their length since the epoch.
    Time {
        /// Length of a slice in milliseconds, at least 1.
        slice_ms: i64,
        /// Slices in a window, at least 1.
        slices: u32,
    },
    /// By the number of keys put in.
    Keys {
        /// Keys in a slice, at least 1.
        slice_keys: u64,
        /// Slices in a window, at least 1.
        slices: u32,
    },
}

impl Window {
    /// A window of `length_ms` of record time; rounded up to whole slices.
    #[must_use]
    pub fn time(length_ms: i64, slices: u32) -> Self {
        let slices = slices.max(1);
        Self::Time { slice_ms: (length_ms.max(1) - 1) / i64::from(slices) + 1, slices }
    }

    /// A window of the last `keys` keys; rounded up to whole slices.
    #[must_use]
    pub fn keys(keys: u64, slices: u32) -> Self {
        let slices = slices.max(1);
        Self::Keys { slice_keys: keys.max(1).div_ceil(u64::from(slices)), slices }
    }

    /// Slices in a window.
    #[must_use]
    pub const fn slices(self) -> u32 {
        match self {
            Self::Time { slices, .. } | Self::Keys { slices, .. } => slices,
        }
    }

    /// Number of the slice that a time lies in; `None` for windows by count.
    #[must_use]
    pub const fn slice_at(self, time: Timestamp) -> Option<i64> {
        match self {
            Self::Time { slice_ms, .. } => Some(time.div_euclid(slice_ms)),
            Self::Keys { .. } => None,
        }
    }

    /// How far behind stream time a record may be and still lie within the window; `None` for windows by count.
    #[must_use]
    pub const fn length_ms(self) -> Option<i64> {
        match self {
            Self::Time { slice_ms, slices } => Some(slice_ms.saturating_mul(slices as i64)),
            Self::Keys { .. } => None,
        }
    }
}

/// Sizes worked out once for all partitions that share a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Keys that a generation holds before it chains.
    pub capacity: u64,
    /// The rate that one generation may reach, chained layers included.
    pub rate: f64,
    /// The shape of a generation's first layer.
    pub shape: Shape,
}

impl Plan {
    /// A filter whose window holds `keys`, asked of all generations wrong at no more than `rate`.
    #[must_use]
    pub fn new(window: Window, keys: u64, rate: f64) -> Self {
        let rate = rate_per_generation(rate, window.slices() + 1);
        let capacity = keys.max(1).div_ceil(u64::from(window.slices()));
        Self { capacity, rate, shape: shape_for(capacity, rate * (1.0 - CHAIN_SHARE)) }
    }

    /// Memory of all generations at capacity, in bytes.
    #[must_use]
    pub fn bytes(&self, window: Window) -> u64 {
        self.shape.bytes() * u64::from(window.slices() + 1)
    }

    /// The layer `index` of a generation. The first has all of the rate but the share kept back for
    /// chaining. The layers chained to it have a half, a quarter, an eighth … of that share, so that their
    /// sum stays below it, and twice the capacity of the one before, so that there are few (Almeida et
    /// al.: "Scalable Bloom Filters", 2007).
    fn layer(&self, index: usize) -> Layer {
        let depth = u32::try_from(index).unwrap_or(u32::MAX).min(40);
        let (capacity, shape) = if depth == 0 {
            (self.capacity, self.shape)
        } else {
            let capacity = self.capacity.div_ceil(2).saturating_mul(1 << (depth - 1));
            (capacity, shape_for(capacity, self.rate * CHAIN_SHARE * 0.5_f64.powi(depth.cast_signed())))
        };
        Layer { bloom: Bloom::new(shape), capacity, keys: 0 }
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
    fn contains(&self, fingerprint: Fingerprint, mask: &Mask) -> bool {
        self.layers.iter().any(|layer| layer.bloom.contains(fingerprint, mask))
    }

    fn insert(&mut self, fingerprint: Fingerprint, plan: &Plan) {
        if self.layers.last().is_none_or(|layer| layer.keys >= layer.capacity) {
            self.layers.push(plan.layer(self.layers.len()));
        }
        if let Some(layer) = self.layers.last_mut() {
            layer.bloom.insert(fingerprint);
            layer.keys += 1;
        }
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
}

impl Aging {
    /// An empty filter.
    #[must_use]
    pub const fn new(window: Window, plan: Plan) -> Self {
        let slice = match window {
            Window::Time { .. } => None,
            Window::Keys { .. } => Some(0),
        };
        Self { window, plan, slice, generations: VecDeque::new() }
    }

    /// Whether the key is remembered. Never false for one put in within the window.
    #[must_use]
    pub fn contains(&self, fingerprint: Fingerprint) -> bool {
        let mask = self.mask(fingerprint);
        self.generations.iter().rev().any(|generation| generation.contains(fingerprint, &mask))
    }

    fn mask(&self, fingerprint: Fingerprint) -> Mask {
        Mask::new(fingerprint, self.plan.shape.probes)
    }

    /// Puts a key into the open generation.
    pub fn insert(&mut self, fingerprint: Fingerprint) {
        if let Window::Keys { slice_keys, .. } = self.window
            && self.open_keys() >= slice_keys
        {
            self.rotate(self.current().saturating_add(1));
        }
        if self.open().is_none() {
            self.generations.push_back(Generation { slice: self.current(), layers: Vec::new() });
        }
        if let Some(open) = self.generations.back_mut() {
            open.insert(fingerprint, &self.plan);
        }
    }

    /// Renews a key: puts it into the open generation unless it is there.
    pub fn refresh(&mut self, fingerprint: Fingerprint) {
        // Wrongly "there" is as good: its bits are set, and stay as long as the generation does.
        let mask = self.mask(fingerprint);
        if !self.open().is_some_and(|open| open.contains(fingerprint, &mask)) {
            self.insert(fingerprint);
        }
    }

    /// Number of the current slice. Before any time is known it is 0; [`Aging::rotate`] mends that.
    fn current(&self) -> i64 {
        self.slice.unwrap_or(0)
    }

    /// The generation of the current slice, if any key came in it.
    fn open(&self) -> Option<&Generation> {
        self.generations.back().filter(|newest| newest.slice == self.current())
    }

    /// Stream time has come to `time`: forgets what has left the window. Time never goes back.
    pub fn advance(&mut self, time: Timestamp) {
        if let Some(slice) = self.window.slice_at(time)
            && self.slice.is_none_or(|current| slice > current)
        {
            self.rotate(slice);
        }
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

    /// Number of the current slice: a key put in now is remembered until `window.slices()` further ones
    /// went by. `None` before any time is known.
    #[must_use]
    pub const fn slice(&self) -> Option<i64> {
        self.slice
    }

    /// Keys put into the open generation.
    #[must_use]
    pub fn open_keys(&self) -> u64 {
        self.open().map_or(0, Generation::keys)
    }

    /// Keys remembered, each as often as it was put in.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.generations.iter().map(Generation::keys).sum()
    }

    /// Keys in the open generation over the capacity of a slice; above 1 it has chained.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn load(&self) -> f64 {
        self.open_keys() as f64 / self.plan.capacity as f64
    }

    /// Memory of the bits, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layers().map(|layer| layer.bloom.shape().bytes()).sum()
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.generations.iter().flat_map(|generation| &generation.layers)
    }

    fn layers_mut(&mut self) -> impl Iterator<Item = &mut Layer> {
        self.generations.iter_mut().flat_map(|generation| &mut generation.layers)
    }

    // ---- State out and in: a manifest and pages, in the order of the pages' ids. ----

    /// Everything but the bits.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        let generations = self.generations.iter().map(|generation| GenerationManifest {
            slice: generation.slice,
            layers: generation
                .layers
                .iter()
                .map(|layer| LayerManifest {
                    blocks: layer.bloom.shape().blocks,
                    probes: layer.bloom.shape().probes,
                    capacity: layer.capacity,
                    keys: layer.keys,
                    pages: layer.bloom.used_pages(),
                })
                .collect(),
        });
        Manifest { slice: self.slice, generations: generations.collect() }
    }

    /// The pages that changed since [`Aging::mark_clean`].
    pub fn dirty_pages(&self) -> impl Iterator<Item = PageId> {
        self.generations.iter().flat_map(|generation| {
            generation.layers.iter().enumerate().flat_map(move |(layer, filter)| {
                filter.bloom.dirty_pages().map(move |page| PageId { slice: generation.slice, layer, page })
            })
        })
    }

    /// Appends the bits of a page; nothing if there is no such page.
    pub fn write_page(&self, id: PageId, out: &mut Vec<u8>) {
        let generation = self.generations.iter().find(|generation| generation.slice == id.slice);
        if let Some(layer) = generation.and_then(|generation| generation.layers.get(id.layer)) {
            layer.bloom.write_page(id.page, out);
        }
    }

    /// All pages are stored.
    pub fn mark_clean(&mut self) {
        self.layers_mut().for_each(|layer| layer.bloom.mark_clean());
    }

    /// Nothing is stored any more: all pages that hold anything are dirty.
    pub fn mark_stale(&mut self) {
        self.layers_mut().for_each(|layer| layer.bloom.mark_stale());
    }

    /// The filter that a manifest describes, its bits still clear: [`Aging::read_page`] puts them in.
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

    /// Takes the bits of a page in.
    ///
    /// # Errors
    /// [`Mismatch::Page`] when the filter has no such page, or it has another length.
    pub fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), Mismatch> {
        let generation = self.generations.iter_mut().find(|generation| generation.slice == id.slice);
        let layer = generation.and_then(|generation| generation.layers.get_mut(id.layer));
        if layer.is_some_and(|layer| layer.bloom.read_page(id.page, bytes)) { Ok(()) } else { Err(Mismatch::Page(id)) }
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
    /// Pages that hold anything, and so are stored.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.generations.iter().flat_map(|generation| &generation.layers).map(|layer| layer.pages).sum()
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
    /// Bits a key sets.
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
            && (1..=PROBES_MAX).contains(&self.probes)
            && self.blocks <= self.capacity.saturating_mul(u64::from(BITS_PER_KEY_MAX / BLOCK_BITS))
            && self.capacity <= self.blocks * u64::from(BLOCK_BITS)
            && self.keys <= self.capacity;
        let shape = Shape { blocks: self.blocks, probes: self.probes };
        let bloom = sane.then(|| Bloom::try_new(shape)).flatten()?;
        Some(Layer { bloom, capacity: self.capacity, keys: self.keys })
    }
}

/// Name of a page within a filter, in the order in which pages are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageId {
    /// The generation's slice.
    pub slice: i64,
    /// The layer within it.
    pub layer: usize,
    /// The page within that.
    pub page: usize,
}

/// Stored state that does not belong to this filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// More generations than the window has, out of order, or out of its reach.
    #[error("its generations are not those of this window")]
    Generations,
    /// A filter of a size that none has, or that this machine has no memory for.
    #[error("it names a filter of impossible size")]
    Shape,
    /// The filter stands at another slice than the partition.
    #[error("its filter does not stand at its stream time")]
    StreamTime,
    /// A page that the manifest leaves no room for.
    #[error("it has no room for page {} of layer {} of slice {}", .0.page, .0.layer, .0.slice)]
    Page(PageId),
}

#[cfg(test)]
mod tests;
