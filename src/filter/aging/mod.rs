//! The aging filter: a queue of generations. It forgets keys by dropping the oldest generation.
//!
//! A window is divided into `slices`. The filter keeps at most `slices + 1` generations, each with its own Bloom filters, so a key stays
//! seen for at least `window` and at most `window * (1 + 1/slices)`. With one slice, this is the classic pair of a young and an old filter
//! (Yoon: "Aging Bloom Filter with Two Active Buffers", 2010). Keys are inserted only into the open generation, which is the generation of
//! the current slice. The filter may report an absent key as seen. It never forgets a key within its window, unless the configuration
//! allows early eviction at `max_memory`.

mod batch;
mod metadata;
mod simd;
mod sizing;

pub use metadata::{GenerationMetadata, LayerMetadata, Metadata};
pub use sizing::Sizing;

use super::bloom::{Bloom, BloomLayout, Mask};
use super::{AtMaxMemory, CapacityError, Filter, MetadataError, PageId, Slice, Usage, Window, check_and_insert_one_by_one};
use crate::key::Fingerprint;
use crate::record::Timestamp;
use batch::{BATCH_MAX, Batch, Entry};

/// Maximum number of keys in a lookup that uses the smaller of two stack buffers.
const FEW: usize = 16;

/// One filter of a generation: the first filter, or a filter that was chained to it because the slice was overfull.
#[derive(Debug)]
struct Layer {
    bloom: Bloom,
    capacity: u64,
    keys: u64,
}

impl Layer {
    fn new((capacity, layout): (u64, BloomLayout)) -> Result<Self, CapacityError> {
        Ok(Self { bloom: Bloom::new(layout).ok_or(CapacityError::Memory)?, capacity, keys: 0 })
    }
}

#[derive(Debug)]
struct Generation {
    slice: Slice,
    layers: Vec<Layer>,
}

impl Generation {
    fn is_full(&self) -> bool {
        self.layers.last().is_none_or(|layer| layer.keys >= layer.capacity)
    }

    fn capacity(&self) -> u64 {
        self.layers.first().map_or(1, |layer| layer.capacity)
    }

    fn contains(&self, fingerprint: Fingerprint) -> bool {
        self.layers.iter().any(|layer| layer.bloom.contains(fingerprint, &Mask::new(fingerprint, layer.bloom.layout())))
    }

    fn keys(&self) -> u64 {
        self.layers.iter().map(|layer| layer.keys).sum()
    }

    fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bloom.layout().bytes()).sum()
    }
}

/// A filter that remembers keys for a window and then forgets them.
#[derive(Debug)]
pub struct Aging {
    window: Window,
    sizing: Sizing,
    /// `None` in a window by time until the first time is known.
    slice: Option<Slice>,
    /// Generations, oldest first. If the last generation is for the current slice, it is open: keys are inserted into it.
    generations: Vec<Generation>,
    /// True if the newest layer accepts any number of keys, because `max_memory` allows no further layer in the current slice. Reset when
    /// the next slice starts.
    saturated: bool,
    evicted: u64,
    /// Capacity that the changelog stores for the current slice. `None` if the filter computes the capacity itself.
    replay_info: Option<u64>,
    /// Version of the layers: rises when a layer is added or removed, when a slice starts, and when a page is restored. Starts at 1,
    /// because version 0 means that nothing was precomputed.
    version: u64,
    /// Number of keys that the newest layer still accepts. If it is 0, the next insertion calls [`Aging::find_room`].
    room: u64,
    batch: Batch,
}

impl Aging {
    /// Creates an empty filter.
    #[must_use]
    pub fn new(window: Window, sizing: Sizing) -> Self {
        Self {
            window,
            sizing,
            slice: window.first_slice(),
            generations: Vec::new(),
            saturated: false,
            evicted: 0,
            replay_info: None,
            version: 1,
            room: 0,
            batch: Batch::default(),
        }
    }

    /// Returns the current slice. In a window by time, returns slice 0 until the first time is known. [`Aging::rotate`] then moves the keys
    /// from slice 0 to the slice of the first known time.
    fn current(&self) -> Slice {
        self.slice.unwrap_or_default()
    }

    fn open(&self) -> Option<&Generation> {
        self.generations.last().filter(|newest| newest.slice == self.current())
    }

    /// The newest layer of the open generation. Keys are inserted only into this layer.
    fn last(&self) -> Option<&Layer> {
        self.open().and_then(|open| open.layers.last())
    }

    #[inline(never)]
    fn contains_alone(&self, fingerprint: Fingerprint) -> bool {
        let mut entry = [Entry::new(fingerprint)];
        simd::work(&mut entry, self.layers().map(|layer| &layer.bloom), self.last().is_some());
        self.contains_entry(fingerprint, &entry[0])
    }

    #[inline]
    fn contains_entry(&self, fingerprint: Fingerprint, entry: &Entry) -> bool {
        entry.seen || self.last().is_some_and(|layer| layer.bloom.contains(fingerprint, &entry.mask))
    }

    fn contains_each_of<const MOST: usize>(&self, fingerprints: &[Fingerprint], seen: &mut [bool]) {
        let mut room = [Entry::new(Fingerprint(0)); MOST];
        for (keys, seen) in fingerprints.chunks(MOST).zip(seen.chunks_mut(MOST)) {
            let entries = &mut room[..keys.len()];
            entries.iter_mut().zip(keys).for_each(|(entry, &key)| entry.begin(key));
            simd::work(entries, self.layers().map(|layer| &layer.bloom), self.last().is_some());
            let found = keys.iter().zip(&*entries).map(|(&key, entry)| self.contains_entry(key, entry));
            seen.iter_mut().zip(found).for_each(|(seen, found)| *seen |= found);
        }
    }

    #[inline(never)]
    fn check_then_insert(&mut self, fingerprint: Fingerprint) -> Result<bool, CapacityError> {
        if self.batch.find(fingerprint, self.version).is_none() {
            // Compute the key's bits only once for the lookup and the insertion below.
            self.prefetch(&[fingerprint]);
        }
        let there = self.contains(fingerprint);
        if !there {
            self.insert(fingerprint)?;
        }
        Ok(there)
    }

    fn open_keys(&self) -> u64 {
        self.open().map_or(0, Generation::keys)
    }

    /// Starts `slice` and drops generations that have left the window. The first insertion opens the generation of `slice`.
    fn rotate(&mut self, slice: Slice) {
        if self.slice.is_none() {
            // Move keys that were inserted before any time was known to the slice of the first known time. A page's id contains its slice,
            // so all pages must be stored again under their new ids.
            self.generations.iter_mut().for_each(|generation| generation.slice = slice);
            self.mark_stale();
        }
        self.slice = Some(slice);
        self.saturated = false;
        self.replay_info = None;
        self.layers_change();
        let oldest = slice.before(self.window.slices());
        self.generations.retain(|generation| generation.slice >= oldest);
    }

    /// Invalidates all precomputed results.
    fn layers_change(&mut self) {
        self.version += 1;
        self.room = 0;
    }

    /// In a window by count, starts the next slice if the current slice is full. Then ensures that the newest layer accepts keys and
    /// computes `room`, the number of keys that it accepts. If `max_memory` allows no further layer, returns an error or, depending on
    /// `at_max_memory`, lets the newest layer accept any number of keys even if it is full.
    fn find_room(&mut self) -> Result<(), CapacityError> {
        let slice_keys = match self.window {
            Window::Time { .. } => u64::MAX,
            Window::Keys { slice_keys, .. } => slice_keys,
        };
        if self.open_keys() >= slice_keys {
            self.rotate(self.current().next());
        }
        if !self.saturated && self.open().is_none_or(Generation::is_full) {
            self.make_room()?;
        }
        let left = self.last().filter(|_| !self.saturated).map_or(u64::MAX, |layer| layer.capacity - layer.keys);
        self.room = left.min(slice_keys - self.open_keys()).max(1);
        Ok(())
    }

    /// Opens a generation for the current slice. If the generation is already open, chains another layer to it or, if `max_memory` does not
    /// allow the layer, does what `at_max_memory` requires.
    fn make_room(&mut self) -> Result<(), CapacityError> {
        self.layers_change();
        if self.open().is_none() {
            let first = self.first_size();
            while self.evicts() && !self.generations.is_empty() && !self.fits(first.1.bytes()) {
                self.evict();
            }
            self.generations.push(Generation { slice: self.current(), layers: vec![Layer::new(first)?] });
            return Ok(());
        }
        let size =
            self.generations.last().map_or((1, self.sizing.layout), |open| self.sizing.resized(open.capacity()).size(open.layers.len()));
        while !self.fits(size.1.bytes()) {
            match self.sizing.growth.at_max {
                AtMaxMemory::Stop => return Err(CapacityError::MaxMemory),
                // Evict generations only if eviction makes enough room.
                AtMaxMemory::EvictOldest if self.generations.len() > 1 && self.fits_alone(size.1.bytes()) => self.evict(),
                AtMaxMemory::EvictOldest | AtMaxMemory::Saturate => {
                    self.saturated = true;
                    return Ok(());
                }
            }
        }
        let layer = Layer::new(size)?;
        if let Some(open) = self.generations.last_mut() {
            open.layers.push(layer);
        }
        Ok(())
    }

    /// Returns the capacity and layout of the first layer of a generation that is about to open. The capacity comes from the changelog if
    /// the changelog stores one (`replay_info`). Otherwise, it follows from the number of keys in the previous generations in a window by
    /// time with `adapt`, and is the configured capacity in all other cases. If `max_memory` does not allow a layer that is larger than
    /// configured, the layer has the configured size.
    fn first_size(&self) -> (u64, BloomLayout) {
        let held = self.generations.iter().map(Generation::keys);
        let capacity = match self.window {
            _ if self.replay_info.is_some() => self.replay_info.unwrap_or_default(),
            Window::Time { slices, .. } => self.sizing.growth.capacity(self.sizing.capacity, held, slices),
            // In a window by count, a slice always holds the configured number of keys.
            Window::Keys { .. } => self.sizing.capacity,
        };
        let sizing = self.sizing.resized(capacity);
        if capacity <= self.sizing.capacity || self.fits(sizing.layout.bytes()) { sizing.size(0) } else { self.sizing.size(0) }
    }

    /// True if `max_memory` allows the generation that is open or about to open to use `bytes` more bytes. If generations cannot be
    /// evicted, also reserves at least the configured size for every other generation of the window, including generations that do not
    /// exist yet.
    fn fits(&self, bytes: u64) -> bool {
        let Some(most) = self.sizing.growth.max_bytes else { return true };
        let first = self.sizing.layout.bytes();
        let open = self.open().map_or(0, Generation::bytes).saturating_add(bytes);
        let others = &self.generations[..self.generations.len() - usize::from(self.open().is_some())];
        if self.evicts() {
            return others.iter().map(Generation::bytes).fold(open, u64::saturating_add) <= most;
        }
        let to_come = u64::from(self.window.slices()).saturating_sub(others.len() as u64);
        let reserved = others.iter().map(|other| other.bytes().max(first)).fold(first.saturating_mul(to_come), u64::saturating_add);
        reserved.saturating_add(open.max(first)) <= most
    }

    /// True if `max_memory` allows the open generation to use `bytes` more bytes after all other generations are evicted.
    fn fits_alone(&self, bytes: u64) -> bool {
        let open = self.open().map_or(0, Generation::bytes).saturating_add(bytes);
        self.sizing.growth.max_bytes.is_none_or(|most| open <= most)
    }

    const fn evicts(&self) -> bool {
        matches!(self.sizing.growth.at_max, AtMaxMemory::EvictOldest)
    }

    fn evict(&mut self) {
        self.evicted += self.generations.remove(0).keys();
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.generations.iter().flat_map(|generation| &generation.layers)
    }

    fn layers_mut(&mut self) -> impl Iterator<Item = &mut Layer> {
        self.generations.iter_mut().flat_map(|generation| &mut generation.layers)
    }

    /// Creates the filter that metadata describes, with its bits still clear. [`Filter::read_page`] fills them in. `sizing` applies only to
    /// new layers, so stored layers can have other sizes.
    ///
    /// # Errors
    /// Returns [`MetadataError`] if the metadata does not match this window, if a size is impossible, or if there is not enough memory.
    pub fn from_metadata(window: Window, sizing: Sizing, metadata: &Metadata) -> Result<Self, MetadataError> {
        let mut filter = Self { slice: metadata.slice, ..Self::new(window, sizing) };
        let newest = filter.current();
        let oldest = newest.before(window.slices());
        let ordered = metadata.generations.windows(2).all(|pair| pair[0].slice < pair[1].slice);
        let within = metadata.generations.iter().all(|stored| (oldest..=newest).contains(&stored.slice));
        // The current slice can be unknown only in a window by time, and then there is at most one generation.
        let known = metadata.slice.is_some() || (window.length_ms().is_some() && metadata.generations.len() <= 1);
        if !ordered || !within || !known {
            return Err(MetadataError::Generations);
        }
        for stored in &metadata.generations {
            let layers = stored.layers.iter().map(LayerMetadata::layer).collect::<Option<_>>().ok_or(MetadataError::Size)?;
            filter.generations.push(Generation { slice: stored.slice, layers });
        }
        Ok(filter)
    }
}

impl Filter for Aging {
    #[inline(never)]
    fn prefetch(&mut self, fingerprints: &[Fingerprint]) {
        let (is_open, layers) = (self.last().is_some(), self.generations.iter().flat_map(|generation| &generation.layers));
        simd::work(self.batch.begin(fingerprints, self.version), layers.map(|layer| &layer.bloom), is_open);
    }

    #[inline]
    fn contains(&self, fingerprint: Fingerprint) -> bool {
        self.batch
            .find(fingerprint, self.version)
            .map_or_else(|| self.contains_alone(fingerprint), |entry| self.contains_entry(fingerprint, entry))
    }

    fn contains_each(&self, fingerprints: &[Fingerprint], seen: &mut [bool]) {
        if let ([fingerprint], [seen]) = (fingerprints, &mut *seen) {
            *seen |= self.contains_alone(*fingerprint);
            return;
        }
        match fingerprints.len() {
            ..=FEW => self.contains_each_of::<FEW>(fingerprints, seen),
            _ => self.contains_each_of::<BATCH_MAX>(fingerprints, seen),
        }
    }

    fn insert(&mut self, fingerprint: Fingerprint) -> Result<(), CapacityError> {
        if self.room == 0 {
            self.find_room()?;
        }
        if let Some(layer) = self.generations.last_mut().and_then(|open| open.layers.last_mut()) {
            match self.batch.find(fingerprint, self.version) {
                Some(entry) => layer.bloom.insert(fingerprint, &entry.mask),
                None => layer.bloom.insert(fingerprint, &Mask::new(fingerprint, layer.bloom.layout())),
            };
            layer.keys += 1;
            self.room -= 1;
        }
        Ok(())
    }

    #[inline]
    fn check_and_insert(&mut self, fingerprint: Fingerprint) -> Result<bool, CapacityError> {
        let found = if self.room > 0 { self.batch.find(fingerprint, self.version) } else { None };
        let Some(entry) = found else { return self.check_then_insert(fingerprint) };
        // `room` is not 0, so `find_room` has ensured that there is a layer.
        let layer = self.generations.last_mut().and_then(|open| open.layers.last_mut()).filter(|_| !entry.seen);
        let Some(layer) = layer else { return Ok(true) };
        let there = layer.bloom.insert(fingerprint, &entry.mask);
        layer.keys += u64::from(!there);
        self.room -= u64::from(!there);
        Ok(there)
    }

    fn check_and_insert_each(&mut self, fingerprints: &[Fingerprint], seen: &mut Vec<bool>) -> Result<(), CapacityError> {
        let ahead = self.batch.next(fingerprints, self.version).filter(|_| self.room >= fingerprints.len() as u64);
        let layer = self.generations.last_mut().and_then(|open| open.layers.last_mut());
        let Some((entries, layer)) = ahead.zip(layer) else {
            return check_and_insert_one_by_one(self, fingerprints, seen);
        };
        let first = seen.len();
        // `room` is sufficient for all of these keys, so `find_room` has ensured that there is a layer for them.
        seen.extend(
            entries.iter().zip(fingerprints).map(|(entry, &fingerprint)| entry.seen || layer.bloom.insert(fingerprint, &entry.mask)),
        );
        let inserted = seen[first..].iter().filter(|there| !**there).count() as u64;
        layer.keys += inserted;
        self.room -= inserted;
        Ok(())
    }

    fn refresh(&mut self, fingerprint: Fingerprint) -> Result<bool, CapacityError> {
        // A false positive is harmless here: the key's bits are set and stay set as long as the generation exists.
        let there = self.open().is_some_and(|open| open.contains(fingerprint));
        if !there {
            self.insert(fingerprint)?;
        }
        Ok(!there)
    }

    fn advance(&mut self, time: Timestamp) {
        if let Some(slice) = self.window.slice_at(time)
            && self.slice.is_none_or(|current| slice > current)
        {
            self.rotate(slice);
        }
    }

    fn resume(&mut self, slice: Slice, replay_info: Option<u64>) {
        if self.window.length_ms().is_none() && slice > self.current() {
            self.rotate(slice);
        }
        if slice == self.current() {
            self.replay_info = replay_info;
        }
    }

    fn replay_info(&self) -> Option<u64> {
        self.open().map(Generation::capacity)
    }

    fn slice(&self) -> Option<Slice> {
        self.slice
    }

    fn slice_of(&self, fingerprint: Fingerprint) -> Option<Slice> {
        self.generations.iter().rev().find(|generation| generation.contains(fingerprint)).map(|generation| generation.slice)
    }

    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    fn usage(&self) -> Usage {
        Usage {
            keys: self.generations.iter().map(Generation::keys).sum(),
            open_keys: self.open_keys(),
            bytes: self.generations.iter().map(Generation::bytes).sum(),
            load: self.open().map_or(0.0, |open| open.keys() as f64 / open.capacity() as f64),
            evicted: self.evicted,
        }
    }

    fn metadata(&self) -> super::FilterMetadata {
        let generations = self.generations.iter().map(|generation| GenerationMetadata {
            slice: generation.slice,
            layers: generation
                .layers
                .iter()
                .map(|layer| LayerMetadata {
                    blocks: layer.bloom.layout().blocks,
                    blocks_per_key: layer.bloom.layout().blocks_per_key,
                    k: layer.bloom.layout().k,
                    capacity: layer.capacity,
                    keys: layer.keys,
                    pages: layer.bloom.buffer.used_pages(),
                })
                .collect(),
        });
        super::FilterMetadata::Aging(Metadata { slice: self.slice, generations: generations.collect() })
    }

    fn dirty_pages(&self) -> Vec<PageId> {
        let mut dirty = Vec::new();
        for generation in &self.generations {
            for (layer, filter) in generation.layers.iter().enumerate() {
                dirty.extend(filter.bloom.buffer.dirty_pages().map(|page| PageId { slice: generation.slice, layer, page }));
            }
        }
        dirty
    }

    fn write_page(&self, id: PageId, out: &mut Vec<u8>) {
        let generation = self.generations.iter().find(|generation| generation.slice == id.slice);
        if let Some(layer) = generation.and_then(|generation| generation.layers.get(id.layer)) {
            layer.bloom.buffer.write_page(id.page, out);
        }
    }

    fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), MetadataError> {
        self.layers_change();
        let generation = self.generations.iter_mut().find(|generation| generation.slice == id.slice);
        let layer = generation.and_then(|generation| generation.layers.get_mut(id.layer));
        if layer.is_some_and(|layer| layer.bloom.buffer.read_page(id.page, bytes)) { Ok(()) } else { Err(MetadataError::Page(id)) }
    }

    fn mark_clean(&mut self) {
        self.layers_mut().for_each(|layer| layer.bloom.buffer.mark_clean());
    }

    fn mark_stale(&mut self) {
        self.layers_mut().for_each(|layer| layer.bloom.buffer.mark_stale());
    }
}

#[cfg(test)]
mod tests;
