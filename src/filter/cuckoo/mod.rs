//! A cuckoo filter with a generation tag in each slot: the filter that can take a key back.
//!
//! One table holds the keys of all slices; a key's slot says into which it was inserted. Compared with a queue of
//! generations: smaller at low rates, two cache misses a look-up however many slices, and [`Filter::remove`];
//! but a rotation is one pass over the table (some nanoseconds a slot), and what it and single keys change
//! is spread over all pages, so most of them are stored at every checkpoint. Error direction: as a Bloom
//! filter's, if only keys are unseen that were inserted; an unseen absent key may take another key with it.
//!
//! What the tags may be relied on for: there are as many as generations, `slices + 1`, and before a slice begins
//! the pass takes out every key whose tag is about to mean something else, however far time has jumped. So
//! every tag always stands for one slice of the window.

mod sizing;
mod table;
mod union;

pub use sizing::Sizing;

use super::{CapacityError, Filter, MergeError, MetadataError, PageId, Part, Slice, Usage, Window};
use crate::key::Fingerprint;
use crate::record::Timestamp;
use serde::{Deserialize, Serialize};
use std::any::Any;
use table::{SLOT_BITS_MAX, Table, age};

/// Slots in a bucket.
const SLOTS: usize = 4;
/// Keys whose cache misses overlap where many are asked for.
const BATCH: usize = 32;
/// Size of a table.
type TableLayout = table::TableLayout<SLOTS>;
/// Most memory of all tables together, 256 GiB: more than one partition can have.
const BYTES_MAX: u64 = 1 << 38;
/// Most tables that are ever made for one partition.
const NAMES_MAX: u64 = 1 << 48;

/// One table of the chain.
#[derive(Debug)]
struct Layer {
    /// What its pages are stored under. No two layers of a filter ever had the same.
    name: u64,
    /// Its place in the sizing's chain.
    depth: u32,
    /// It is of another sizing, and takes no more keys.
    retired: bool,
    /// Filled slots at which no more is inserted: its capacity, or less if a put failed before.
    limit: u64,
    table: Table<SLOTS>,
}

/// A filter that remembers keys for a window, and can forget single ones.
#[derive(Debug)]
pub struct Cuckoo {
    window: Window,
    sizing: Sizing,
    /// Number of the current slice; unknown until the first time is shown.
    slice: Option<Slice>,
    /// The current slice's tag.
    tag: u64,
    /// Keys inserted since the current slice began.
    open_keys: u64,
    /// Name of the next layer.
    names: u64,
    /// In the order in which they were made.
    layers: Vec<Layer>,
}

/// One copy of a key: its layer, its slot there, and how many slices ago it was inserted.
struct Copy {
    layer: usize,
    slot: u64,
    age: u64,
}

impl Cuckoo {
    /// An empty filter.
    #[must_use]
    pub const fn new(window: Window, sizing: Sizing) -> Self {
        Self { window, sizing, slice: window.first_slice(), tag: 0, open_keys: 0, names: 0, layers: Vec::new() }
    }

    /// How many generations there are at a time.
    fn tags(&self) -> u64 {
        u64::from(self.window.slices()) + 1
    }

    fn copies(&self, fingerprint: Fingerprint) -> impl Iterator<Item = Copy> {
        let (now, tags) = (self.tag, self.tags());
        self.layers.iter().enumerate().flat_map(move |(layer, own)| {
            let copies = own.table.copies(own.table.place(fingerprint));
            copies.map(move |(slot, tag)| Copy { layer, slot, age: age(tag, now, tags) })
        })
    }

    /// The copy of a key that is first to expire. It is the one to renew: a key that shares it is then remembered longer
    /// than it must be, never shorter.
    fn oldest(&self, fingerprint: Fingerprint) -> Option<Copy> {
        self.copies(fingerprint).max_by_key(|copy| copy.age)
    }

    /// Whether so many copies of a key are there that no other is inserted: two buckets full of it.
    fn is_saturated(&self, fingerprint: Fingerprint) -> bool {
        let full = |layer: &Layer| {
            let place = layer.table.place(fingerprint);
            layer.table.copies(place).count() >= place.slots::<SLOTS>()
        };
        self.copies(fingerprint).count() >= 2 * SLOTS || self.layers.iter().any(full)
    }

    /// Puts a key into the first layer that has room, or one more.
    fn store(&mut self, fingerprint: Fingerprint) -> Result<(), CapacityError> {
        if let Some(oldest) = self.oldest(fingerprint).filter(|_| self.is_saturated(fingerprint)) {
            // It is there often enough, but it must stay for a window from now on.
            self.renew(&oldest);
            return Ok(());
        }
        let tag = self.tag;
        for layer in self.layers.iter_mut().filter(|layer| !layer.retired && layer.table.used() < layer.limit) {
            if layer.table.insert(layer.table.place(fingerprint), tag) {
                return Ok(());
            }
            // The next put would most likely fail as well, and that late.
            layer.limit = layer.table.used();
        }
        let mut layer = self.next_layer()?;
        // An empty table has room.
        layer.table.insert(layer.table.place(fingerprint), tag);
        self.layers.push(layer);
        self.names += 1;
        Ok(())
    }

    fn renew(&mut self, copy: &Copy) {
        if copy.age > 0 {
            self.layers[copy.layer].table.tag(copy.slot, self.tag);
        }
    }

    /// The first of the sizing's chain that is not there.
    fn next_layer(&self) -> Result<Layer, CapacityError> {
        let taken = |depth: &u32| self.layers.iter().any(|layer| layer.depth == *depth && !layer.retired);
        let depth = (0..u32::MAX).find(|depth| !taken(depth)).ok_or(CapacityError::Memory)?;
        let layout = self.sizing.layout(self.window, depth);
        if self.bytes().saturating_add(layout.bytes()) > BYTES_MAX || self.names >= NAMES_MAX {
            return Err(CapacityError::Memory);
        }
        let table = Table::new(layout).ok_or(CapacityError::Memory)?;
        Ok(Layer { name: self.names, depth, retired: false, limit: layout.capacity(), table })
    }

    /// Memory of all layers.
    fn bytes(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.table.layout().bytes()))
    }

    /// Begins a new slice if the current one is full, in a window by count.
    fn make_way(&mut self) {
        if let (Window::Keys { slice_keys, .. }, Some(slice)) = (self.window, self.slice)
            && self.open_keys >= slice_keys
        {
            self.rotate(slice.next());
        }
    }

    /// Begins a slice, and takes out what no window reaches any more. Layers that become empty go, but the
    /// first: it would be needed again at once.
    fn rotate(&mut self, slice: Slice) {
        // Keys that came before any time was known belong to the first time that is: their tag says so now.
        let passed = self.slice.map_or(0, |current| slice.abs_diff(current));
        self.slice = Some(slice);
        if passed == 0 {
            return;
        }
        for layer in &mut self.layers {
            layer.table.expire(self.tag, passed);
            layer.limit = layer.table.layout().capacity();
        }
        self.layers.retain(|layer| layer.table.used() > 0 || (layer.depth == 0 && !layer.retired));
        self.tag = (self.tag + passed % self.tags()) % self.tags();
        self.open_keys = 0;
    }

    /// The filter that metadata describes, its slots still empty: [`Filter::read_page`] puts the keys in. Tables of
    /// another sizing take no more keys, and go when theirs have expired.
    ///
    /// # Errors
    /// [`MetadataError`] when the metadata is not one of a filter of this window.
    pub fn from_metadata(window: Window, sizing: Sizing, metadata: &Metadata) -> Result<Self, MetadataError> {
        let mut filter = Self { slice: metadata.slice, tag: metadata.tag, ..Self::new(window, sizing) };
        // Before any time is known, in a window of time, nothing has rotated.
        let known = metadata.slice.is_some() || (window.length_ms().is_some() && metadata.tag == 0);
        let counted = !matches!(window, Window::Keys { slice_keys, .. } if metadata.open_keys > slice_keys);
        if !known || !counted || metadata.slices != window.slices() || metadata.tag >= filter.tags() {
            return Err(MetadataError::Generations);
        }
        let ordered = metadata.layers.windows(2).all(|pair| pair[0].name < pair[1].name);
        if !ordered || metadata.names > NAMES_MAX || metadata.layers.last().is_some_and(|last| last.name >= metadata.names) {
            return Err(MetadataError::Size);
        }
        (filter.open_keys, filter.names) = (metadata.open_keys, metadata.names);
        for stored in &metadata.layers {
            let layout = stored.layout(filter.tags()).ok_or(MetadataError::Size)?;
            if filter.bytes().saturating_add(layout.bytes()) > BYTES_MAX {
                return Err(MetadataError::Size);
            }
            let table = Table::restored(layout, stored.keys).ok_or(MetadataError::Size)?;
            let retired = layout != sizing.layout(window, stored.depth);
            filter.layers.push(Layer { name: stored.name, depth: stored.depth, retired, limit: stored.limit, table });
        }
        Ok(filter)
    }

    fn layer_mut(&mut self, id: PageId) -> Option<&mut Layer> {
        self.layers.iter_mut().find(|layer| page_id(layer, id.page) == id)
    }
}

/// Pages are stored under the name of their layer; all slices share them.
fn page_id(layer: &Layer, page: usize) -> PageId {
    PageId { slice: Slice::FIRST, layer: usize::try_from(layer.name).unwrap_or(usize::MAX), page }
}

impl Cuckoo {
    /// Has the cache load what asking for these keys will read.
    fn glance(&self, fingerprints: &[Fingerprint]) {
        let mut sum = 0;
        for layer in &self.layers {
            sum = fingerprints.iter().fold(sum, |sum, &fingerprint| sum ^ layer.table.glance(layer.table.place(fingerprint)));
        }
        std::hint::black_box(sum);
    }
}

impl Filter for Cuckoo {
    fn prefetch(&mut self, fingerprints: &[Fingerprint]) {
        self.glance(fingerprints);
    }

    fn contains_each(&self, fingerprints: &[Fingerprint], seen: &mut [bool]) {
        for (keys, seen) in fingerprints.chunks(BATCH).zip(seen.chunks_mut(BATCH)) {
            self.glance(keys);
            keys.iter().zip(seen).for_each(|(&fingerprint, seen)| *seen |= self.contains(fingerprint));
        }
    }

    fn contains(&self, fingerprint: Fingerprint) -> bool {
        self.layers.iter().any(|layer| layer.table.contains(layer.table.place(fingerprint)))
    }

    /// A key is kept as often as it was inserted, but eight times at most (two buckets full; four, if they are the
    /// same one): the next renews the oldest copy instead, and [`Filter::remove`] does not know of it.
    fn insert(&mut self, fingerprint: Fingerprint) -> Result<(), CapacityError> {
        self.make_way();
        self.store(fingerprint)?;
        self.open_keys = self.open_keys.saturating_add(1);
        Ok(())
    }

    fn refresh(&mut self, fingerprint: Fingerprint) -> Result<bool, CapacityError> {
        let Some(copy) = self.oldest(fingerprint) else { return self.insert(fingerprint).map(|()| true) };
        if copy.age == 0 {
            return Ok(false);
        }
        // Now, and again if a slice begins with this key: it must not expire under our hands. It stays in
        // its slot, but its layer may move up.
        self.renew(&copy);
        let name = self.layers[copy.layer].name;
        self.make_way();
        let tag = self.tag;
        if let Some(layer) = self.layers.iter_mut().find(|layer| layer.name == name) {
            layer.table.tag(copy.slot, tag);
        }
        self.open_keys = self.open_keys.saturating_add(1);
        Ok(true)
    }

    /// Takes one copy of a key out, as if it were the oldest. **Of a key that was never inserted, an absent key's copy may be taken**, with
    /// the probability of a false positive, and that absent key is then forgotten within its window. To exclude that, ask an
    /// exact store of what was inserted first.
    fn remove(&mut self, fingerprint: Fingerprint) -> bool {
        // The longer a fingerprint is, the less likely is it another key's: tables of a chain have longer and longer ones.
        let bits = |copy: &Copy| self.layers[copy.layer].table.layout().fingerprint_bits;
        let (copy, oldest) = (self.copies(fingerprint).max_by_key(|copy| (bits(copy), copy.age)), self.oldest(fingerprint));
        if let (Some(copy), Some(oldest)) = (&copy, &oldest) {
            // What is left stays as long as if the oldest had been taken.
            let tag = (self.tag + self.tags() - copy.age) % self.tags();
            self.layers[oldest.layer].table.tag(oldest.slot, tag);
            self.layers[copy.layer].table.clear(copy.slot);
        }
        copy.is_some()
    }

    fn union(&mut self, other: &dyn Filter) -> Result<(), MergeError> {
        let other: &dyn Any = other;
        self.merge(other.downcast_ref().ok_or(MergeError::Kind)?)
    }

    fn advance(&mut self, time: Timestamp) {
        if let Some(slice) = self.window.slice_at(time)
            && self.slice.is_none_or(|current| slice > current)
        {
            self.rotate(slice);
        }
    }

    fn resume(&mut self, slice: Slice, _replay_info: Option<u64>) {
        let Window::Keys { slice_keys, .. } = self.window else { return };
        // A full slice ends with its next key, which may be one to be renewed: it must not expire before.
        let ends = self.open_keys >= slice_keys;
        if self.slice.is_none_or(|current| slice > current && slice.abs_diff(current) > u64::from(ends)) {
            self.rotate(slice);
        }
    }

    fn slice(&self) -> Option<Slice> {
        self.slice
    }

    fn slice_of(&self, fingerprint: Fingerprint) -> Option<Slice> {
        let youngest = self.copies(fingerprint).map(|copy| copy.age).min()?;
        Some(self.slice?.before(u32::try_from(youngest).ok()?))
    }

    /// The load is that of all slices together.
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    fn usage(&self) -> Usage {
        let keys = self.layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.table.used()));
        Usage { keys, open_keys: self.open_keys, bytes: self.bytes(), load: keys as f64 / self.sizing.capacity as f64, evicted: 0 }
    }

    fn metadata(&self) -> super::FilterMetadata {
        let layers = self.layers.iter().map(|layer| LayerMetadata {
            name: layer.name,
            depth: layer.depth,
            buckets: layer.table.layout().buckets,
            fingerprint_bits: layer.table.layout().fingerprint_bits,
            capacity: layer.table.layout().capacity(),
            limit: layer.limit,
            keys: layer.table.used(),
            pages: layer.table.buffer.used_pages(),
        });
        let Self { slice, tag, open_keys, names, .. } = *self;
        super::FilterMetadata::Cuckoo(Metadata { slice, slices: self.window.slices(), tag, open_keys, names, layers: layers.collect() })
    }

    fn dirty_pages(&self) -> Vec<PageId> {
        let mut dirty = Vec::new();
        for layer in &self.layers {
            dirty.extend(layer.table.buffer.dirty_pages().map(|page| page_id(layer, page)));
        }
        dirty
    }

    fn write_page(&self, id: PageId, out: &mut Vec<u8>) {
        if let Some(layer) = self.layers.iter().find(|layer| page_id(layer, id.page) == id) {
            layer.table.buffer.write_page(id.page, out);
        }
    }

    fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), MetadataError> {
        let taken = self.layer_mut(id).is_some_and(|layer| layer.table.buffer.read_page(id.page, bytes));
        if taken { Ok(()) } else { Err(MetadataError::Page(id)) }
    }

    fn mark_clean(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.table.buffer.mark_clean());
    }

    fn mark_stale(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.table.buffer.mark_stale());
    }
}

/// A filter without its slots. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Number of the current slice.
    pub slice: Option<Slice>,
    /// Slices in a window: what a tag means depends on it.
    pub slices: u32,
    /// The current slice's tag.
    pub tag: u64,
    /// Keys inserted since it began.
    pub open_keys: u64,
    /// How many layers were ever made.
    pub names: u64,
    /// In the order of their names.
    pub layers: Vec<LayerMetadata>,
}

impl Metadata {
    pub(super) fn usage(&self) -> Usage {
        let shapes = self.layers.iter().filter_map(|layer| layer.layout(u64::from(self.slices) + 1));
        Usage {
            keys: self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.keys)),
            open_keys: self.open_keys,
            bytes: shapes.fold(0, |sum, layout| sum.saturating_add(layout.bytes())),
            load: 0.0,
            evicted: 0,
        }
    }

    /// An absent key is right in all layers, or called seen.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub(super) fn estimate(&self) -> f64 {
        let tags = u64::from(self.slices) + 1;
        let rates = self.layers.iter().filter_map(|layer| Some(layer.layout(tags)?.rate(layer.keys as f64)));
        1.0 - rates.fold(1.0, |right, rate| right * (1.0 - rate))
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = Part> {
        let name = |layer: &LayerMetadata| usize::try_from(layer.name).unwrap_or(usize::MAX);
        self.layers.iter().map(move |layer| Part { slice: Slice::FIRST, layer: name(layer), pages: layer.pages })
    }
}

/// A layer without its slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerMetadata {
    /// What its pages are stored under.
    pub name: u64,
    /// Its place in the chain.
    pub depth: u32,
    /// Buckets of four slots.
    pub buckets: u64,
    /// Bits of a fingerprint.
    pub fingerprint_bits: u32,
    /// Keys it is meant for: it follows from the buckets, so that one wrong number cannot ask for more memory.
    pub capacity: u64,
    /// Keys at which no more is inserted.
    pub limit: u64,
    /// Keys in it.
    pub keys: u64,
    /// Pages that hold anything, and so are stored.
    pub pages: u64,
}

impl LayerMetadata {
    /// Its size, unless no layer is so.
    fn layout(&self, tags: u64) -> Option<TableLayout> {
        let layout = TableLayout { buckets: self.buckets, fingerprint_bits: self.fingerprint_bits, tags };
        let sane = (1..=BYTES_MAX).contains(&self.buckets)
            && self.fingerprint_bits > 0
            && layout.slot_bits() <= SLOT_BITS_MAX
            && layout.bytes() <= BYTES_MAX
            && self.capacity == layout.capacity()
            && self.limit <= self.capacity
            && self.keys <= layout.slots();
        sane.then_some(layout)
    }
}

#[cfg(test)]
mod tests;
