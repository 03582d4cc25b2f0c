//! Filters: sets of fingerprints that answer "seen" or "not seen".
//!
//! Owns the bits and how they age: one small trait, [`Filter`], and its kinds. Pure: no I/O, no clock, and no randomness of its
//! own. Time comes from the records. Must never forget a key within its window, except for [`Stable`], which does not guarantee a
//! window. All other errors are false positives. [`Kind`] and [`Spec`] come from the table
//! of the kinds.

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
use std::any::Any;
use std::fmt;

/// A filter for one partition: remembers keys and forgets them over time.
///
/// Its state is a pure function of the calls, in order. The state is stored as metadata and pages, and a restored state is
/// bit-for-bit identical.
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
pub trait Filter: Any + fmt::Debug + Send + Sync {
    /// Precomputes lookups of these keys. A hint: call it with a batch of 16 to 64 keys before asking for the first of them, so
    /// that their cache misses overlap.
    fn prefetch(&mut self, _fingerprints: &[Fingerprint]) {}

    /// True if the key is remembered. For other keys, also true at the planned false-positive rate. Never false for a key inserted
    /// within the window, if the kind guarantees a window.
    #[must_use]
    fn contains(&self, fingerprint: Fingerprint) -> bool;

    /// Looks up many keys at once, which takes a fraction of the time of single lookups. Sets the entries of `seen` to true for
    /// the keys that are remembered.
    fn contains_each(&self, fingerprints: &[Fingerprint], seen: &mut [bool]) {
        fingerprints.iter().zip(seen).for_each(|(&fingerprint, seen)| *seen |= self.contains(fingerprint));
    }

    /// Inserts a key.
    ///
    /// # Errors
    /// Returns [`CapacityError`] if there is no room. The key is then not remembered, and nothing is forgotten.
    fn insert(&mut self, fingerprint: Fingerprint) -> Result<(), CapacityError>;

    /// Looks up a key, and inserts it unless it is remembered. Returns true if it was remembered.
    ///
    /// # Errors
    /// Returns [`CapacityError`] if the key is not remembered and there is no room.
    fn check_and_insert(&mut self, fingerprint: Fingerprint) -> Result<bool, CapacityError> {
        let there = self.contains(fingerprint);
        if !there {
            self.insert(fingerprint)?;
        }
        Ok(there)
    }

    /// Calls [`Filter::check_and_insert`] for each key in order, and appends to `seen` whether each was remembered.
    ///
    /// # Errors
    /// Returns [`CapacityError`] at the first key that is not remembered and for which there is no room. Nothing is appended for
    /// that key.
    fn check_and_insert_each(&mut self, fingerprints: &[Fingerprint], seen: &mut Vec<bool>) -> Result<(), CapacityError> {
        check_and_insert_one_by_one(self, fingerprints, seen)
    }

    /// Renews a key that is remembered, as if it were inserted now. Returns true if the state changed.
    ///
    /// # Errors
    /// Returns [`CapacityError`] if there is no room. The state is then unchanged.
    fn refresh(&mut self, fingerprint: Fingerprint) -> Result<bool, CapacityError>;

    /// Deletes a key, if the kind supports it. Returns true if it did.
    fn remove(&mut self, _fingerprint: Fingerprint) -> bool {
        false
    }

    /// Merges another filter with the same kind, window, and layout: afterwards, a key that either filter had seen is seen. The
    /// false positives of both add up.
    ///
    /// # Errors
    /// Returns [`MergeError`] if the filters do not match. The state is then unchanged.
    fn union(&mut self, other: &dyn Filter) -> Result<(), MergeError>;

    /// Advances stream time to `time`, and forgets keys that have left the window. Time never goes back.
    fn advance(&mut self, time: Timestamp);

    /// Continues in the slice (see [`Filter::expiry_clock`]) into which keys were inserted according to a changelog, with its
    /// replay info. Inserting the same keys afterwards produces the same state. Has no effect for past slices and for windows by
    /// time.
    fn resume(&mut self, _slice: Slice, _replay_info: Option<u64>) {}

    /// Returns the information that a changelog must store in addition to the keys, so that they produce the same state. Called
    /// after the first key that the changelog has of a slice.
    #[must_use]
    fn replay_info(&self) -> Option<u64> {
        None
    }

    /// Returns a number that rises as keys expire, and never falls: the slice, or, for kinds without slices, the number of times that all
    /// keys were replaced by others.
    #[must_use]
    fn expiry_clock(&self) -> Slice {
        self.slice().unwrap_or_default()
    }

    /// Returns the number of the current slice, or `None` before any time is known and for kinds without slices.
    #[must_use]
    fn slice(&self) -> Option<Slice>;

    /// Returns the last slice into which a key was inserted, if the kind stores it.
    #[must_use]
    fn slice_of(&self, _fingerprint: Fingerprint) -> Option<Slice> {
        None
    }

    /// Returns the fill level of the filter.
    #[must_use]
    fn usage(&self) -> Usage;

    /// Returns everything except the bytes.
    #[must_use]
    fn metadata(&self) -> FilterMetadata;

    /// Returns the pages that changed since [`Filter::mark_clean`], in the order of their ids.
    #[must_use]
    fn dirty_pages(&self) -> Vec<PageId>;

    /// Appends the bytes of a page, or nothing if the page does not exist.
    fn write_page(&self, id: PageId, out: &mut Vec<u8>);

    /// Reads the bytes of a page into the filter.
    ///
    /// # Errors
    /// Returns [`MetadataError::Page`] if the filter has no such page, or the length is wrong.
    fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), MetadataError>;

    /// Marks all pages as stored.
    fn mark_clean(&mut self);

    /// Marks all pages that contain data as dirty, because nothing is stored any more.
    fn mark_stale(&mut self);
}

// The table of the kinds. ARCHITECTURE.md describes its rows, and `kind` its columns.
kinds! {
    memory:
    /// One Bloom filter per slice of the window.
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

/// A part of a filter that is stored and dropped as a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The slice, as in [`PageId`].
    pub slice: Slice,
    /// The layer, as in [`PageId`].
    pub layer: usize,
    /// Number of pages that contain data, and are therefore stored.
    pub pages: u64,
}

/// The fill level of a filter, from [`Filter::usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Number of keys remembered, counting repeated insertions.
    pub keys: u64,
    /// Number of keys inserted since the current slice started. For kinds without slices, all keys.
    pub open_keys: u64,
    /// Memory of the bits, in bytes.
    pub bytes: u64,
    /// Current fill level divided by the planned fill level. Above 1, the filter is overfull, and reacts as its kind does.
    pub load: f64,
    /// Number of keys forgotten early because the filter may not grow, since it was created or restored.
    pub evicted: u64,
}

/// The fill level of one slice of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceUsage {
    /// Number of the slice.
    pub slice: Slice,
    /// Number of keys inserted.
    pub keys: u64,
    /// Planned number of keys.
    pub capacity: u64,
    /// Memory, in bytes.
    pub bytes: u64,
}

/// Predicted behavior of a filter at some load, from [`Sizing::predicted`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Share of unseen keys that are reported as seen.
    pub rate: f64,
    /// Memory, in bytes.
    pub bytes: u64,
}

/// Default implementation of [`Filter::check_and_insert_each`], for kinds without a faster one.
fn check_and_insert_one_by_one<F: Filter + ?Sized>(
    filter: &mut F,
    fingerprints: &[Fingerprint],
    seen: &mut Vec<bool>,
) -> Result<(), CapacityError> {
    fingerprints.iter().try_for_each(|&fingerprint| filter.check_and_insert(fingerprint).map(|there| seen.push(there)))
}

/// Reason why a key cannot be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// This machine has no memory left for another part of the filter.
    #[error(
        "this machine does not have enough memory to grow the filter; give this process more memory, or start more workers on other machines"
    )]
    Memory,
    /// The filter has reached its maximum memory.
    #[error(
        "the filter has reached its max_memory; raise max_memory or capacity, or set at_max_memory to choose what happens at the limit"
    )]
    MaxMemory,
    /// Too many fingerprints wait for a checkpoint.
    #[error(
        "too many fingerprints are waiting for a checkpoint; free disk space for the state directory, or check the log for the reason why checkpoints fail"
    )]
    Unsaved,
}

/// Reason why two filters cannot be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// The filters are of different kinds.
    #[error("the filters are of different kinds")]
    Kind,
    /// The windows of the filters differ.
    #[error("the windows differ in length or number of slices")]
    Window,
    /// The sizes of the filters differ.
    #[error("the filters differ in size; only filters with the same capacity, rate, and slices can be merged")]
    Size,
    /// The windows count keys, and each counts its own.
    #[error("windows by count cannot be merged, because each counts its own keys")]
    Counted,
    /// One filter holds keys of an unknown time.
    #[error("one of the filters has not seen a record with a timestamp yet")]
    Untimed,
    /// Each state has the last contents of keys, and it is unknown which are newer.
    #[error("states of `emit = \"on_change\"` cannot be merged, because it is unknown which content of a key is newer")]
    Contents,
    /// There is not enough memory for the merged filter.
    #[error("this machine does not have enough memory for the merged filter; merge on a machine with more memory")]
    Memory,
}

/// Id of a page within a filter. The order of ids is the order in which pages are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageId {
    /// Slice of the generation.
    pub slice: Slice,
    /// Layer within the generation.
    pub layer: usize,
    /// Page within the layer.
    pub page: usize,
}

/// Reason why stored state does not belong to this filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The kind differs, or a required filter is missing.
    #[error("the stored filter has a different kind than the configured one")]
    Kind,
    /// There are more generations than the window has, or they are out of order or outside the window.
    #[error("the stored generations do not match the window")]
    Generations,
    /// A size that no filter has, or that this machine has no memory for.
    #[error("the stored filter has an invalid size, or this machine does not have enough memory for it")]
    Size,
    /// The filter is at a different slice than the partition.
    #[error("the stored filter does not match the stream time")]
    StreamTime,
    /// A page that does not fit the metadata.
    #[error("the stored filter has no page {} in layer {} of slice {}", .0.page, .0.layer, .0.slice)]
    Page(PageId),
}

#[cfg(test)]
mod mean_tests;
#[cfg(test)]
mod union_tests;
