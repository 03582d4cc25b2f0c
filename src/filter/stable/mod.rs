//! A stable Bloom filter: forgets keys at random, in memory that never grows.
//!
//! The filter consists of cells with a few bits each. An insertion decrements cells at a random position and then sets the cells of the new
//! key to the maximum (Deng, Rafiei: "Approximately Detecting Duplicates for Streaming Data using Stable Bloom Filters", SIGMOD 2006).
//! After enough insertions, the average share of zero cells and the false-positive rate no longer change. The paper calls this state the
//! stable point. The filter errs in **both** directions: it may report an absent key as seen, and an inserted key as unseen. It is more
//! likely to remember keys that were inserted recently but guarantees neither a window nor a number of keys. Only the key that was inserted
//! last is certainly seen.

mod sizing;

pub use sizing::{CellLayout, Sizing};

use super::hash::{SplitMix, scale};
use super::kind;
use super::paged_buffer::PagedBuffer;
use super::{CapacityError, Filter, MetadataError, PageId, Part, Slice, Usage};
use crate::key::Fingerprint;
use crate::record::Timestamp;
use serde::{Deserialize, Serialize};

/// The multiplier of Knuth's MMIX generator, a linear congruential generator. The generator has its full period with any odd increment.
const STEP: u64 = 6_364_136_223_846_793_005;

#[derive(Debug)]
struct Cells {
    layout: CellLayout,
    buffer: PagedBuffer,
    filled: u64,
}

/// A filter that remembers keys for a random time.
#[derive(Debug)]
pub struct Stable {
    sizing: Sizing,
    /// Expected number of insertions until a key is forgotten. Cached, because computing it is slow.
    lifetime: f64,
    numbers: SplitMix,
    keys: u64,
    /// Allocated with the first key.
    cells: Option<Cells>,
}

/// Returns the numbers of a key's K cells, from a linear congruential generator. The generator starts at the low half of the fingerprint,
/// and its increment is the high half, made odd.
fn places(fingerprint: Fingerprint, layout: CellLayout) -> impl Iterator<Item = u64> {
    let (mut hash, increment) = (fingerprint.low(), fingerprint.high() | 1);
    (0..layout.k).map(move |_| {
        let place = scale(hash, layout.cells);
        hash = hash.wrapping_mul(STEP).wrapping_add(increment);
        place
    })
}

impl Cells {
    fn new(layout: CellLayout) -> Option<Self> {
        Some(Self { layout, buffer: PagedBuffer::new(layout.bytes())?, filled: 0 })
    }

    /// Returns the first byte of a cell, and the number of bits in that byte before the cell.
    fn at(&self, cell: u64) -> (usize, u32) {
        let bit = cell * u64::from(self.layout.cell_bits);
        ((bit / 8) as usize, (bit % 8) as u32)
    }

    /// Returns the eight bytes that start at `byte`. If a cell starts in the first byte, they contain at least 57 bits from the start of
    /// the cell.
    fn word(&self, byte: usize) -> u64 {
        let bytes = &self.buffer.bytes()[byte..byte + 8];
        bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    }

    fn get(&self, cell: u64) -> u64 {
        let (byte, shift) = self.at(cell);
        self.word(byte) >> shift & self.layout.max()
    }

    /// XORs `change` into the cells that start at `cell`.
    fn flip(&mut self, cell: u64, change: u64) {
        if change == 0 {
            return;
        }
        let (byte, shift) = self.at(cell);
        let word = self.word(byte) ^ change << shift;
        self.buffer.bytes_mut()[byte..byte + 8].copy_from_slice(&word.to_le_bytes());
        self.buffer.touch(byte);
        self.buffer.touch(byte + (change << shift).ilog2() as usize / 8);
    }

    /// Decrements the nonzero cells among `layout.decrements` consecutive cells, starting at `first` and wrapping around at the end.
    fn decrement(&mut self, first: u64) {
        let straight = self.layout.decrements.min(self.layout.cells - first);
        self.decrement_run(first, straight);
        self.decrement_run(0, self.layout.decrements - straight);
    }

    /// Decrements the nonzero cells among `count` consecutive cells. Processes up to 57 bits of cells at a time.
    fn decrement_run(&mut self, mut first: u64, mut count: u64) {
        let bits = self.layout.cell_bits;
        // Returns a mask with the lowest bit of each of `cells` cells.
        let ones = |cells: u64| (0..cells).fold(0, |ones, _| ones << bits | 1_u64);
        let (at_a_time, all) = (u64::from(57 / bits), ones(u64::from(57 / bits)));
        while count > 0 {
            let taken = count.min(at_a_time);
            let lowest = if taken == at_a_time { all } else { ones(taken) };
            let values = self.get_run(first, lowest);
            let nonzero = |values: u64| (0..bits).fold(0, |any, bit| any | values >> bit) & lowest;
            let less = values - nonzero(values);
            self.flip(first, values ^ less);
            self.filled = self.filled.saturating_sub(u64::from((nonzero(values) ^ nonzero(less)).count_ones()));
            first += taken;
            count -= taken;
        }
    }

    /// Returns the values of consecutive cells, packed as in the buffer, starting at `first`. `lowest` has the lowest bit of each cell to
    /// return.
    fn get_run(&self, first: u64, lowest: u64) -> u64 {
        let (byte, shift) = self.at(first);
        self.word(byte) >> shift & (lowest * self.layout.max())
    }

    fn set(&mut self, fingerprint: Fingerprint) {
        for cell in places(fingerprint, self.layout) {
            let value = self.get(cell);
            if value != self.layout.max() {
                self.flip(cell, value ^ self.layout.max());
                self.filled = self.filled.saturating_add(u64::from(value == 0));
            }
        }
    }

    fn contains(&self, fingerprint: Fingerprint) -> bool {
        places(fingerprint, self.layout).all(|cell| self.get(cell) != 0)
    }
}

impl Stable {
    /// Creates an empty filter.
    #[must_use]
    pub fn new(sizing: Sizing) -> Self {
        Self { sizing, lifetime: sizing.lifetime(), numbers: SplitMix(sizing.seed), keys: 0, cells: None }
    }

    /// Creates the filter that metadata describes, with its cells still zero. [`Filter::read_page`] fills them in. The filter has the
    /// stored layout, regardless of the layout in `sizing`, because cells cannot be rearranged.
    ///
    /// # Errors
    /// Returns [`MetadataError::Size`] if no filter can have this size, if there are keys but no cells, or if this machine does not have
    /// enough memory.
    pub fn from_metadata(sizing: Sizing, metadata: &Metadata) -> Result<Self, MetadataError> {
        let mut filter = Self { numbers: SplitMix(metadata.state), keys: metadata.keys, ..Self::new(sizing) };
        if let Some(stored) = &metadata.cells {
            let cells = stored.cells().ok_or(MetadataError::Size)?;
            filter.sizing.layout = cells.layout;
            filter.lifetime = filter.sizing.lifetime();
            filter.cells = Some(cells);
        } else if metadata.keys > 0 {
            return Err(MetadataError::Size);
        }
        Ok(filter)
    }

    fn buffer_mut(&mut self) -> Option<&mut PagedBuffer> {
        self.cells.as_mut().map(|cells| &mut cells.buffer)
    }
}

impl Filter for Stable {
    fn prefetch(&mut self, fingerprints: &[Fingerprint]) {
        let Some(cells) = &self.cells else { return };
        let bytes = cells.buffer.bytes();
        // A lookup of an absent key usually ends at the first or second cell, so the other cells are not prefetched.
        let places = fingerprints.iter().flat_map(|&fingerprint| places(fingerprint, cells.layout).take(2));
        std::hint::black_box(places.fold(0, |sum, cell| sum ^ bytes[cells.at(cell).0]));
    }

    fn contains(&self, fingerprint: Fingerprint) -> bool {
        self.cells.as_ref().is_some_and(|cells| cells.contains(fingerprint))
    }

    fn insert(&mut self, fingerprint: Fingerprint) -> Result<(), CapacityError> {
        if self.cells.is_none() {
            self.cells = Some(Cells::new(self.sizing.layout).ok_or(CapacityError::Memory)?);
        }
        if let Some(cells) = &mut self.cells {
            cells.decrement(scale(self.numbers.next(), cells.layout.cells));
            cells.set(fingerprint);
            self.keys = self.keys.saturating_add(1);
        }
        Ok(())
    }

    /// Inserts the key again, including decrements, as in the paper. Without decrements, a stream with many duplicates would increase the
    /// false-positive rate.
    fn refresh(&mut self, fingerprint: Fingerprint) -> Result<bool, CapacityError> {
        self.insert(fingerprint).map(|()| true)
    }

    fn advance(&mut self, _time: Timestamp) {}

    /// The replay info is the number of earlier insertions. The generator's state follows from that number and the seed.
    fn resume(&mut self, _slice: Slice, replay_info: Option<u64>) {
        if let Some(keys) = replay_info {
            self.keys = keys;
            self.numbers = SplitMix::after(self.sizing.seed, keys);
        }
    }

    fn replay_info(&self) -> Option<u64> {
        self.keys.checked_sub(1)
    }

    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "an estimate, and below what a changelog counts")]
    fn expiry_clock(&self) -> Slice {
        Slice((self.keys as f64 / self.lifetime) as i64)
    }

    fn slice(&self) -> Option<Slice> {
        None
    }

    /// The number of keys is the number of insertions, capped at the number of keys that the filter remembers on average. The load is the
    /// share of nonzero cells, divided by their share at the stable point, so it rises to about 1 and stays there.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate")]
    fn usage(&self) -> Usage {
        let filled = self.cells.as_ref().map_or(0, |cells| cells.filled);
        Usage {
            keys: self.keys.min(self.lifetime as u64),
            open_keys: self.keys,
            bytes: self.cells.as_ref().map_or(0, |cells| cells.layout.bytes()),
            load: filled as f64 / (self.sizing.layout.stable_fill() * self.sizing.layout.cells as f64),
            evicted: 0,
        }
    }

    fn metadata(&self) -> super::FilterMetadata {
        let cells = self.cells.as_ref().map(|cells| CellsMetadata {
            cells: cells.layout.cells,
            cell_bits: cells.layout.cell_bits,
            k: cells.layout.k,
            decrements: cells.layout.decrements,
            bytes: cells.layout.bytes(),
            filled: cells.filled.min(cells.layout.cells),
            pages: cells.buffer.used_pages(),
        });
        super::FilterMetadata::Stable(Metadata { state: self.numbers.0, keys: self.keys, cells })
    }

    fn dirty_pages(&self) -> Vec<PageId> {
        let pages = self.cells.iter().flat_map(|cells| cells.buffer.dirty_pages());
        pages.map(|page| PageId { slice: Slice::FIRST, layer: 0, page }).collect()
    }

    fn write_page(&self, id: PageId, out: &mut Vec<u8>) {
        if let (PageId { slice: Slice::FIRST, layer: 0, page }, Some(cells)) = (id, &self.cells) {
            cells.buffer.write_page(page, out);
        }
    }

    fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), MetadataError> {
        let own = (id.slice, id.layer) == (Slice::FIRST, 0);
        let taken = own && self.buffer_mut().is_some_and(|memory| memory.read_page(id.page, bytes));
        if taken { Ok(()) } else { Err(MetadataError::Page(id)) }
    }

    fn mark_clean(&mut self) {
        self.buffer_mut().into_iter().for_each(PagedBuffer::mark_clean);
    }

    fn mark_stale(&mut self) {
        self.buffer_mut().into_iter().for_each(PagedBuffer::mark_stale);
    }
}

/// Metadata of a filter, without its cells. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// State of the generator that selects the cells to decrement.
    pub state: u64,
    /// Total number of keys inserted.
    pub keys: u64,
    /// The cells, or `None` before the first key is inserted.
    pub cells: Option<CellsMetadata>,
}

impl kind::Metadata for Metadata {
    fn usage(&self) -> Usage {
        let bytes = self.cells.as_ref().map_or(0, |cells| cells.bytes);
        Usage { keys: self.keys, open_keys: self.keys, bytes, load: 0.0, evicted: 0 }
    }

    /// Returns the probability that all cells of an absent key are filled.
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    fn estimate(&self) -> f64 {
        let rate = |cells: &CellsMetadata| (cells.filled as f64 / cells.cells as f64).powi(cells.k.cast_signed());
        self.cells.as_ref().map_or(0.0, rate)
    }

    fn parts(&self) -> Vec<Part> {
        self.cells.iter().map(|cells| Part { slice: Slice::FIRST, layer: 0, pages: cells.pages }).collect()
    }
}

/// Metadata of the cells, without their values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellsMetadata {
    /// Number of cells.
    pub cells: u64,
    /// Bits per cell, 1 to 4.
    pub cell_bits: u32,
    /// Number of cells that a key sets, 1 to 32.
    pub k: u32,
    /// Number of cells that an insertion decrements.
    pub decrements: u64,
    /// Memory of all cells, in bytes, with padding. Stored although it follows from the other numbers, to detect a wrong number before
    /// memory is allocated.
    pub bytes: u64,
    /// Number of nonzero cells.
    pub filled: u64,
    /// Number of pages that contain data and are therefore stored.
    pub pages: u64,
}

impl CellsMetadata {
    /// Returns the cells, all zero. `None` if no filter can have such cells, or if there is not enough memory.
    fn cells(&self) -> Option<Cells> {
        let Self { cells, cell_bits, k, decrements, bytes, filled, .. } = *self;
        let layout = CellLayout { cells, cell_bits, k, decrements };
        let sane = layout.is_sane() && layout.bytes() == bytes && filled <= cells;
        let cells = sane.then(|| Cells::new(layout)).flatten()?;
        Some(Cells { filled, ..cells })
    }
}

#[cfg(test)]
mod tests;
