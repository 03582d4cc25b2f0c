//! A cuckoo filter with a generation tag in each slot: the filter that can delete keys.
//!
//! One table holds the keys of all slices. A slot has the fingerprint of a key and a tag for the slice of its insertion or last renewal.
//! Compared with the queue of Bloom filters in [`super::aging`], a cuckoo filter is smaller at low rates, needs about two cache misses per
//! table and lookup for any number of slices, and supports [`Filter::remove`]. But each start of a slice needs a pass over the table (a few
//! nanoseconds per slot), and changes are spread over all pages, so every checkpoint stores most pages. The filter may report an absent key
//! as seen. It never reports an inserted key as unseen within its window, as long as only inserted keys are removed. Removing an absent key
//! may remove a different key.
//!
//! There are `slices + 1` tags, one per generation. Before a slice starts, a pass over the table removes every key whose tag is about to be
//! reused, no matter how far time has jumped. So all keys with the same tag are always from the same slice of the window.

mod sizing;
mod table;

pub use sizing::Sizing;

use super::kind;
use super::{CapacityError, Filter, MetadataError, PageId, Part, Slice, Usage, Window};
use crate::key::Fingerprint;
use crate::record::Timestamp;
use serde::{Deserialize, Serialize};
use table::{SLOT_BITS_MAX, Table, age};

/// Slots per bucket.
const SLOTS: usize = 4;
/// Number of keys whose cache misses overlap in a batched lookup.
const BATCH: usize = 32;
type TableLayout = table::TableLayout<SLOTS>;
/// Maximum memory of all tables together, in bytes: 256 GiB, more than any filter needs.
const BYTES_MAX: u64 = 1 << 38;
/// Maximum number of tables ever created for one partition.
const NAMES_MAX: u64 = 1 << 48;

/// One table of the filter. When a table is full, the filter chains another one.
#[derive(Debug)]
struct Layer {
    /// Number that identifies the layer in the ids of its pages. A filter never reuses a name, not even the name of a dropped layer.
    name: u64,
    /// Position in the chain, starting at 0. [`Sizing::layout`] computes the layout from the position.
    depth: u32,
    /// True if the layer was created for a different sizing. It then accepts no more keys.
    retired: bool,
    /// Maximum number of filled slots: the capacity of the layer, or less if an insertion has failed since the current slice started.
    limit: u64,
    table: Table<SLOTS>,
}

/// A filter that remembers keys for a window and can delete single keys.
#[derive(Debug)]
pub struct Cuckoo {
    window: Window,
    sizing: Sizing,
    /// `None` in a window by time until the first time is known.
    slice: Option<Slice>,
    tag: u64,
    open_keys: u64,
    /// Name of the next layer.
    names: u64,
    /// Layers in the order of creation.
    layers: Vec<Layer>,
}

/// One copy of a key: its layer, its slot in that layer, and how many slices ago it was inserted or renewed.
struct Copy {
    layer: usize,
    slot: u64,
    age: u64,
}

impl Cuckoo {
    /// Creates an empty filter.
    #[must_use]
    pub const fn new(window: Window, sizing: Sizing) -> Self {
        Self { window, sizing, slice: window.first_slice(), tag: 0, open_keys: 0, names: 0, layers: Vec::new() }
    }

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

    /// Returns the copy of a key that expires first. A renewal updates this copy. If the copy belongs to a different key with the same
    /// fingerprint, the different key is remembered longer than necessary, never shorter.
    fn oldest(&self, fingerprint: Fingerprint) -> Option<Copy> {
        self.copies(fingerprint).max_by_key(|copy| copy.age)
    }

    /// True if the key has the maximum number of copies: eight in total, or one in every slot of the key's buckets in some layer. The next
    /// insertion then renews a copy instead of adding one.
    fn is_saturated(&self, fingerprint: Fingerprint) -> bool {
        let full = |layer: &Layer| {
            let place = layer.table.place(fingerprint);
            layer.table.copies(place).count() >= place.slots::<SLOTS>()
        };
        self.copies(fingerprint).count() >= 2 * SLOTS || self.layers.iter().any(full)
    }

    /// Inserts a copy of a key into the first layer that has room or into a new layer. If the key is saturated, renews its oldest copy
    /// instead.
    fn store(&mut self, fingerprint: Fingerprint) -> Result<(), CapacityError> {
        if let Some(oldest) = self.oldest(fingerprint).filter(|_| self.is_saturated(fingerprint)) {
            // The key has enough copies, but it must be remembered for a whole window from now on.
            self.renew(&oldest);
            return Ok(());
        }
        let tag = self.tag;
        for layer in self.layers.iter_mut().filter(|layer| !layer.retired && layer.table.used() < layer.limit) {
            if layer.table.insert(layer.table.place(fingerprint), tag) {
                return Ok(());
            }
            // Another insertion into this layer would most likely fail as well, after moving many fingerprints.
            layer.limit = layer.table.used();
        }
        let mut layer = self.next_layer()?;
        // This insertion cannot fail, because the table is empty.
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

    /// Creates a layer at the lowest free depth of the chain.
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

    fn bytes(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.table.layout().bytes()))
    }

    /// In a window by count, starts the next slice if the current slice is full.
    fn make_way(&mut self) {
        if let (Window::Keys { slice_keys, .. }, Some(slice)) = (self.window, self.slice)
            && self.open_keys >= slice_keys
        {
            self.rotate(slice.next());
        }
    }

    /// Starts a slice and removes keys that have left the window. Drops empty layers, except the layer at depth 0 of the current sizing,
    /// which the next insertion would create again.
    fn rotate(&mut self, slice: Slice) {
        // If no time was known before, the keys inserted so far become keys of this slice. Their tag stays the same.
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

    /// Creates the filter that metadata describes, with its slots still empty. [`Filter::read_page`] fills them in. Tables that were
    /// created for a different sizing accept no more keys and are dropped when their keys have expired.
    ///
    /// # Errors
    /// Returns [`MetadataError`] if the metadata does not match this window, if a size is impossible, or if there is not enough memory.
    pub fn from_metadata(window: Window, sizing: Sizing, metadata: &Metadata) -> Result<Self, MetadataError> {
        let mut filter = Self { slice: metadata.slice, tag: metadata.tag, ..Self::new(window, sizing) };
        // The current slice can be unknown only in a window by time, and only before the first rotation, when the tag is 0.
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

/// Pages are stored under the name of their layer, because all slices share the layer.
fn page_id(layer: &Layer, page: usize) -> PageId {
    PageId { slice: Slice::FIRST, layer: usize::try_from(layer.name).unwrap_or(usize::MAX), page }
}

impl Cuckoo {
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

    /// Each insertion adds a copy of the key, until the key has eight copies or fills all slots of its buckets in one layer. A further
    /// insertion only renews the oldest copy, so [`Filter::remove`] cannot undo that insertion separately.
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
        // In a window by count, this renewal starts the next slice if the current slice is full. The copy could expire at that moment, so
        // renew it before the start of the slice, and again afterward with the new tag. The copy stays in its slot, but the index of its
        // layer may change, so find the layer by its name.
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

    /// Removes one copy of a key. The other copies then have the same ages as if the oldest copy had been removed. **For a key that was
    /// never inserted, this may remove a copy of a different key**, with the probability of a false positive, and the different key is then
    /// forgotten within its window. To prevent this, first ask an exact store whether the key was inserted.
    fn remove(&mut self, fingerprint: Fingerprint) -> bool {
        // Remove the copy with the longest fingerprint, because it is the least likely to belong to a different key. Usually, tables
        // further down the chain have longer fingerprints.
        let bits = |copy: &Copy| self.layers[copy.layer].table.layout().fingerprint_bits;
        let (copy, oldest) = (self.copies(fingerprint).max_by_key(|copy| (bits(copy), copy.age)), self.oldest(fingerprint));
        if let (Some(copy), Some(oldest)) = (&copy, &oldest) {
            // The oldest copy gets the age of the removed copy.
            let tag = (self.tag + self.tags() - copy.age) % self.tags();
            self.layers[oldest.layer].table.tag(oldest.slot, tag);
            self.layers[copy.layer].table.clear(copy.slot);
        }
        copy.is_some()
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
        // If the current slice is full, the next key starts the next slice. Do not start the slice here, because the changelog may renew
        // that key, and starting the slice first could remove it.
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

    /// `load` counts the keys of all slices, because the slices share the tables.
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

/// Metadata of a filter, without its slots. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Number of the current slice. `None` in a window by time until the first time is known.
    pub slice: Option<Slice>,
    /// Slices per window. There is one tag more than slices, so the meaning of a tag depends on this number.
    pub slices: u32,
    /// Tag of the current slice.
    pub tag: u64,
    /// Number of keys inserted or renewed since the current slice started.
    pub open_keys: u64,
    /// Number of layers created so far, which is the name of the next one.
    pub names: u64,
    /// Layers, in the order of their names.
    pub layers: Vec<LayerMetadata>,
}

impl kind::Metadata for Metadata {
    fn usage(&self) -> Usage {
        let shapes = self.layers.iter().filter_map(|layer| layer.layout(u64::from(self.slices) + 1));
        Usage {
            keys: self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.keys)),
            open_keys: self.open_keys,
            bytes: shapes.fold(0, |sum, layout| sum.saturating_add(layout.bytes())),
            load: 0.0,
            evicted: 0,
        }
    }

    /// Returns the probability that at least one layer reports an absent key as seen.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    fn estimate(&self) -> f64 {
        let tags = u64::from(self.slices) + 1;
        let rates = self.layers.iter().filter_map(|layer| Some(layer.layout(tags)?.rate(layer.keys as f64)));
        1.0 - rates.fold(1.0, |right, rate| right * (1.0 - rate))
    }

    fn parts(&self) -> Vec<Part> {
        let name = |layer: &LayerMetadata| usize::try_from(layer.name).unwrap_or(usize::MAX);
        self.layers.iter().map(|layer| Part { slice: Slice::FIRST, layer: name(layer), pages: layer.pages }).collect()
    }
}

/// Metadata of a layer, without its slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerMetadata {
    /// Name of the layer, used in the ids of its pages.
    pub name: u64,
    /// Position of the layer in the chain, starting at 0.
    pub depth: u32,
    /// Number of buckets of four slots.
    pub buckets: u64,
    /// Bits per fingerprint.
    pub fingerprint_bits: u32,
    /// Planned number of keys. Stored although it follows from `buckets`, to detect a wrong number of buckets before memory is allocated.
    pub capacity: u64,
    /// Maximum number of filled slots: the capacity of the layer, or less if an insertion has failed since the current slice started.
    pub limit: u64,
    /// Number of filled slots. A key that was inserted several times can fill up to eight slots.
    pub keys: u64,
    /// Number of pages that contain data and are therefore stored.
    pub pages: u64,
}

impl LayerMetadata {
    /// Returns the layout of the stored table, or `None` if no table can have these numbers.
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
