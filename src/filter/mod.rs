//! Filters: sets of fingerprints that answer "seen" or "not seen".
//!
//! Defines the trait [`Filter`], the kinds of filters, and the exact store. Code here does no I/O itself ([`Exact`] reads stored
//! fingerprints through the trait [`Archive`]) and reads no clock: time comes from the records. Random choices come from generators that
//! are seeded with a key, or whose state is part of the filter. A filter never forgets a key within its window, with three exceptions:
//! [`Stable`] does not guarantee a window, an [`Aging`] filter can be configured to forget its oldest keys at its maximum memory
//! ([`AtMaxMemory::EvictOldest`]), and removing a key that was never inserted may remove a different key. The only other error is a false
//! positive: an unseen key that is reported as seen.
//!
//! The macro `kinds!` generates [`Kind`], [`Spec`], and [`FilterMetadata`] from the table below.

pub mod aging;
mod bloom;
pub mod cuckoo;
pub mod exact;
mod growth;
mod hash;
mod kind;
mod paged_buffer;
mod prefetch;
mod sizing;
pub mod stable;
mod window;

pub use aging::{Aging, Sizing as AgingSizing};
pub use bloom::BloomLayout;
pub use cuckoo::{Cuckoo, Sizing as CuckooSizing};
pub use exact::{Archive, ArchiveError, Change, Exact, ExactError, ExactMetadata, GenerationId};
pub use growth::{AtMaxMemory, Growth};
pub use kind::{Demand, Properties, Size, Sizing};
pub use paged_buffer::PAGE_BYTES;
pub use sizing::{plain_bits, plain_rate, rate_per_generation};
pub use stable::{CellLayout as StableLayout, Sizing as StableSizing, Stable};
pub use window::{Slice, Window};

use crate::key::Fingerprint;
use crate::record::Timestamp;
use kind::{Metadata, Row, kinds};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A filter for one partition: remembers keys and forgets them over time.
///
/// The same calls in the same order always produce the same state. A checkpoint stores the state as metadata and pages, and a filter
/// restored from them is bit-for-bit identical.
///
/// ```
/// use unseen::filter::{Demand, Filter, Kind, Window};
/// use unseen::key::Fingerprint;
///
/// let window = Window::keys(1_000, 4);
/// let spec = Kind::default().spec(window, &Demand::new(1_000, 1e-4)).ok_or("not in memory")?;
/// let mut filter = spec.build(window);
/// filter.insert(Fingerprint(42))?;
///
/// let mut restored = spec.restore(window, &filter.metadata())?;
/// for page in filter.dirty_pages() {
///     let mut bytes = Vec::new();
///     filter.write_page(page, &mut bytes);
///     restored.read_page(page, &bytes)?;
/// }
/// assert!(restored.contains(Fingerprint(42)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Filter: fmt::Debug + Send + Sync {
    /// Prepares the next lookups of these keys by overlapping their cache misses. Does not change the answers. Call this method with 16 to
    /// 64 keys just before you look them up. The default implementation does nothing.
    fn prefetch(&mut self, _fingerprints: &[Fingerprint]) {}

    /// True if the key is remembered. Also true for some keys that were never inserted: the false positives. If the kind keeps a window
    /// ([`Properties::keeps_window`]), it remembers every key that was inserted within the window, except keys that were removed or evicted
    /// at the maximum memory.
    #[must_use]
    fn contains(&self, fingerprint: Fingerprint) -> bool;

    /// Looks up keys. For each key that [`Filter::contains`] reports as seen, sets the entry of `seen` at the same index to true. Leaves
    /// the other entries unchanged. For [`Aging`] and [`Cuckoo`], one call with many keys is much faster than single lookups.
    fn contains_each(&self, fingerprints: &[Fingerprint], seen: &mut [bool]) {
        fingerprints.iter().zip(seen).for_each(|(&fingerprint, seen)| *seen |= self.contains(fingerprint));
    }

    /// Inserts a key.
    ///
    /// # Errors
    /// Returns [`CapacityError`] if there is no room. The key is then not inserted.
    fn insert(&mut self, fingerprint: Fingerprint) -> Result<(), CapacityError>;

    /// Looks up a key and inserts it unless [`Filter::contains`] reports it as seen. Returns true if the key was reported as seen.
    ///
    /// # Errors
    /// Returns [`CapacityError`] if the key must be inserted, but there is no room.
    fn check_and_insert(&mut self, fingerprint: Fingerprint) -> Result<bool, CapacityError> {
        let there = self.contains(fingerprint);
        if !there {
            self.insert(fingerprint)?;
        }
        Ok(there)
    }

    /// Calls [`Filter::check_and_insert`] for each key in order and appends the results to `seen`.
    ///
    /// # Errors
    /// Returns [`CapacityError`] at the first key that cannot be inserted. `seen` then has only the results of the keys before that key.
    fn check_and_insert_each(&mut self, fingerprints: &[Fingerprint], seen: &mut Vec<bool>) -> Result<(), CapacityError> {
        check_and_insert_one_by_one(self, fingerprints, seen)
    }

    /// Renews a key: its window starts again, as if the key were inserted now. A key that is not remembered is inserted. Returns true if
    /// the state changed.
    ///
    /// # Errors
    /// Returns [`CapacityError`] if there is no room. The key is then not renewed.
    fn refresh(&mut self, fingerprint: Fingerprint) -> Result<bool, CapacityError>;

    /// Deletes a key, or only one copy of a key that was inserted several times. Does nothing if the kind cannot delete keys
    /// ([`Properties::can_retract`]). Returns true if a copy was deleted. If the key was never inserted, a copy of a different key may be
    /// deleted, with the probability of a false positive.
    fn remove(&mut self, _fingerprint: Fingerprint) -> bool {
        false
    }

    /// Advances stream time to `time` and forgets keys that have left the window. Has an effect only in a window by time, only for kinds
    /// with slices, and only if `time` is the first known time or is in a later slice than the current slice.
    fn advance(&mut self, time: Timestamp);

    /// Prepares the filter to insert the keys of one slice from a changelog, so that the insertions produce the same state as the original
    /// insertions. `slice` and `replay_info` are the [`Filter::expiry_clock`] and the [`Filter::replay_info`] that the changelog stores
    /// with the keys. In a window by count, a kind with slices moves to `slice` unless the current slice is later. [`Cuckoo`] does not move
    /// from a full slice to the next slice here, but at the next insertion. In a window by time, only [`Filter::advance`] changes the
    /// slice.
    fn resume(&mut self, _slice: Slice, _replay_info: Option<u64>) {}

    /// Returns the number that a changelog must store with the keys of a slice. [`Filter::resume`] needs the number to produce the same
    /// state when the keys are inserted again. Call this method right after the first of these keys is inserted. For `aging`, the number is
    /// the capacity of the current slice's first layer. For `stable`, it is the number of insertions before the last insertion. `None` for
    /// other kinds and before the first insertion (for `aging`, into the current slice).
    #[must_use]
    fn replay_info(&self) -> Option<u64> {
        None
    }

    /// Returns a number that rises as keys expire. For kinds with slices, this is the current slice, or slice 0 until the first time is
    /// known. For other kinds, it is the number of insertions, divided by the average lifetime of a key in insertions.
    #[must_use]
    fn expiry_clock(&self) -> Slice {
        self.slice().unwrap_or_default()
    }

    /// Returns the number of the current slice. `None` for kinds without slices, and in a window by time until the first time is known.
    #[must_use]
    fn slice(&self) -> Option<Slice>;

    /// Returns the slice of a key's last insertion or renewal. `None` if the key is not remembered, or if the kind does not store slices.
    /// False positives can make the slice too late, and a key that was never inserted can have a slice.
    #[must_use]
    fn slice_of(&self, _fingerprint: Fingerprint) -> Option<Slice> {
        None
    }

    /// Returns the fill level of the filter.
    #[must_use]
    fn usage(&self) -> Usage;

    /// Returns the metadata of the filter: everything that a checkpoint stores, except the bytes of the pages.
    #[must_use]
    fn metadata(&self) -> FilterMetadata;

    /// Returns the pages whose stored copies are missing or out of date, in the order of their ids.
    #[must_use]
    fn dirty_pages(&self) -> Vec<PageId>;

    /// Appends the bytes of a page to `out`. Does nothing if the page does not exist.
    fn write_page(&self, id: PageId, out: &mut Vec<u8>);

    /// Restores a page from its stored bytes.
    ///
    /// # Errors
    /// Returns [`MetadataError::Page`] if the filter does not have this page, or if the length is wrong.
    fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), MetadataError>;

    /// Marks all dirty pages as stored. Call this method after a checkpoint has written the dirty pages.
    fn mark_clean(&mut self);

    /// Marks all pages that contain data as dirty. The next checkpoint then stores all of them. Needed if the stored pages are gone.
    fn mark_stale(&mut self);
}

// The table of the kinds of filters. ARCHITECTURE.md describes each kind, and `kind::Properties` describes the properties.
kinds! {
    memory:
    /// One or more Bloom filters per slice of the window.
    Aging in aging {
        size: Size::Capacity,
        keeps_window: true,
        grows: true,
        can_retract: false,
        overfull: "chains more filters: same rate, more memory",
    },
    /// A stable Bloom filter, which forgets keys at random.
    Stable in stable {
        size: Size::Memory { least: 1024 },
        keeps_window: false,
        grows: false,
        can_retract: false,
        overfull: "forgets sooner: same rate",
    },
    /// Fingerprints in a cuckoo filter, each with its slice of the window. Keys can be retracted.
    Cuckoo in cuckoo {
        size: Size::Capacity,
        keeps_window: true,
        grows: false,
        can_retract: true,
        overfull: "chains more tables: same rate, more memory",
    };
    disk:
    /// A set of fingerprints on disk, without false positives.
    Exact in exact {
        size: Size::Disk,
        keeps_window: true,
        grows: false,
        can_retract: true,
        overfull: "more disk; memory only for caches",
    };
}

/// A layer of a filter. The pages of a layer are deleted from the checkpoint together when the layer is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Slice of the layer, as in [`PageId::slice`].
    pub slice: Slice,
    /// Number of the layer, as in [`PageId::layer`].
    pub layer: usize,
    /// Number of pages that contain data and are therefore stored.
    pub pages: u64,
}

/// The fill level of a filter, from [`Filter::usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Number of keys remembered, counting repeated insertions. For `stable`, an estimate. For `exact`, deleted keys are still counted
    /// until their slice leaves the window.
    pub keys: u64,
    /// Number of keys inserted or renewed since the current slice started. For kinds without slices, the number of keys ever inserted or
    /// renewed.
    pub open_keys: u64,
    /// Memory of the bits, cells, or slots, in bytes.
    pub bytes: u64,
    /// Current fill level divided by the planned fill level. For `aging`, only the current slice counts. Above 1, the filter is overfull.
    /// [`Properties::overfull`] describes what an overfull filter does.
    pub load: f64,
    /// Number of keys that were forgotten early because the filter had reached its maximum memory. Counted since the filter was created or
    /// restored.
    pub evicted: u64,
}

/// The fill level of one slice of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceUsage {
    /// Number of the slice, as in [`Filter::slice`].
    pub slice: Slice,
    /// Number of keys inserted into the slice, counting repeated insertions.
    pub keys: u64,
    /// Planned number of keys. Above that number, the slice chains another layer, if the maximum memory allows one.
    pub capacity: u64,
    /// Memory of all layers of the slice, in bytes.
    pub bytes: u64,
}

/// Predicted false-positive rate and memory of a filter at some load, from [`Sizing::predicted`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Share of unseen keys that are reported as seen.
    pub rate: f64,
    /// Memory of the filter, in bytes.
    pub bytes: u64,
}

fn check_and_insert_one_by_one<F: Filter + ?Sized>(
    filter: &mut F,
    fingerprints: &[Fingerprint],
    seen: &mut Vec<bool>,
) -> Result<(), CapacityError> {
    fingerprints.iter().try_for_each(|&fingerprint| filter.check_and_insert(fingerprint).map(|there| seen.push(there)))
}

/// Error of an insertion or a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// The process cannot get the memory for another part of the filter, or a cuckoo filter has reached its limit of 256 GiB or 2^48
    /// tables.
    #[error(
        "the filter cannot grow, because the process cannot get more memory, or because a cuckoo filter has reached its limit of 256 GiB; give the process more memory, start more workers on other machines, or set another filter.kind"
    )]
    Memory,
    /// The filter has reached its maximum memory, and [`Growth::at_max`] is [`AtMaxMemory::Stop`].
    #[error(
        "the filter has reached filter.max_memory; raise filter.max_memory, or set filter.at_max_memory to \"saturate\" (drops more unseen records) or \"evict_oldest\" (may emit keys of the window again)"
    )]
    MaxMemory,
    /// An exact store has 2^24 changes (about 17 million) that wait for a checkpoint.
    #[error(
        "the exact store cannot accept another key, because 2^24 changes (about 17 million) are waiting for a checkpoint; check the log for the cause of the failed checkpoints, such as a full disk"
    )]
    Unsaved,
}

/// Id of a page within a filter. Pages are stored in the order of their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageId {
    /// Slice of the generation. [`Slice::FIRST`] for kinds that do not store each generation in its own pages.
    pub slice: Slice,
    /// Number of the layer within the generation. A generation has more than one layer if it was overfull. For a cuckoo filter, the name of
    /// the table ([`cuckoo::LayerMetadata::name`]).
    pub layer: usize,
    /// Number of the page within the layer.
    pub page: usize,
}

/// Error for stored state that cannot be restored to a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The stored filter is of a different kind, or a filter or exact store is missing or unexpected.
    #[error("the checkpoint is inconsistent: its filter or exact store does not match its own settings")]
    Kind,
    /// The stored slices contradict the window. For example, the number of slices differs, the slices are out of order, or a slice is
    /// outside the window.
    #[error("the stored slices do not match the window")]
    Generations,
    /// The stored sizes or numbers of layers are impossible, or the process cannot get enough memory for them.
    #[error(
        "cannot allocate the stored filter: its stored size is invalid, or the process cannot get enough memory; if memory is short, raise the memory limit of the process"
    )]
    Size,
    /// The current slice of the stored filter or exact store is not the slice of the stored stream time.
    #[error("the stored filter or exact store does not match the stored stream time")]
    StreamTime,
    /// The filter does not have this page, or the page has the wrong length.
    #[error("the stored filter has no page {} in layer {} of slice {}, or the page has the wrong length", .0.page, .0.layer, .0.slice)]
    Page(PageId),
}

#[cfg(test)]
mod mean_tests;
