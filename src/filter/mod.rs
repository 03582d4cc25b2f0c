//! What remembers fingerprints: from a fingerprint to "seen" or "not seen".
//!
//! Owns the bits and how they age: one small trait, [`Filter`], and the kinds of it. Pure: no I/O, no
//! clock, no randomness of its own; time comes in with the records. Must never forget a key within
//! its window, but for [`Stable`], which promises none: every other error is on the side of "seen".
//! CONTRIBUTING.md lists what a new kind needs.

pub mod aging;
mod bloom;
pub mod cuckoo;
pub mod exact;
mod growth;
mod hash;
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
pub use paged_buffer::PAGE_BYTES;
pub use sizing::{blocked_rate, mean_between, plain_bits, plain_rate, rate_per_generation};
pub use stable::{CellLayout as StableLayout, Sizing as StableSizing, Stable};
pub use window::{Slice, Window};

use crate::key::Fingerprint;
use crate::record::Timestamp;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;

/// What remembers keys and forgets them with time: one kind of filter, for one partition.
///
/// Its state is a pure function of the calls made, in order. State goes out as metadata and
/// pages; put back, it is the same bit for bit.
pub trait Filter: Any + fmt::Debug + Send + Sync {
    /// Does ahead what it can of looking these keys up. A hint: give it for a batch of 16 to 64 keys before
    /// asking for the first of them, so that their cache misses overlap.
    fn prefetch(&mut self, _fingerprints: &[Fingerprint]) {}

    /// Whether the key is remembered; wrong at the planned rate for one that is not. Never false for one
    /// inserted within the window, if the kind promises that.
    #[must_use]
    fn contains(&self, fingerprint: Fingerprint) -> bool;

    /// Asks for many keys at once, which takes a fraction of asking for each: sets to true what stands in `seen` beside
    /// those that are remembered.
    fn contains_each(&self, fingerprints: &[Fingerprint], seen: &mut [bool]) {
        fingerprints.iter().zip(seen).for_each(|(&fingerprint, seen)| *seen |= self.contains(fingerprint));
    }

    /// Puts a key in.
    ///
    /// # Errors
    /// [`CapacityError`] when there is no room. The key is then not remembered, and nothing is forgotten.
    fn insert(&mut self, fingerprint: Fingerprint) -> Result<(), CapacityError>;

    /// Asks for a key, and puts it in unless it is remembered; says whether it was.
    ///
    /// # Errors
    /// [`CapacityError`] when it is not remembered and there is no room.
    fn check_and_insert(&mut self, fingerprint: Fingerprint) -> Result<bool, CapacityError> {
        let there = self.contains(fingerprint);
        if !there {
            self.insert(fingerprint)?;
        }
        Ok(there)
    }

    /// Does that with keys one after the other; adds to `seen` whether each was remembered.
    ///
    /// # Errors
    /// [`CapacityError`] at the first that is not remembered and for which there is no room. Nothing is added for it.
    fn check_and_insert_each(&mut self, fingerprints: &[Fingerprint], seen: &mut Vec<bool>) -> Result<(), CapacityError> {
        check_and_insert_one_by_one(self, fingerprints, seen)
    }

    /// Renews a key that is remembered, as if it were inserted now. Returns whether that changed anything.
    ///
    /// # Errors
    /// [`CapacityError`] when there is no room. It is then as it was.
    fn refresh(&mut self, fingerprint: Fingerprint) -> Result<bool, CapacityError>;

    /// Takes a key back: it is not remembered any more, if the kind can do that. Returns whether it did.
    fn remove(&mut self, _fingerprint: Fingerprint) -> bool {
        false
    }

    /// Takes in what another filter of the same kind, window and layout remembers: afterwards a key that either
    /// had seen is seen. Both may have been wrong, so the join may be as often as both together.
    ///
    /// # Errors
    /// [`MergeError`] when they do not fit; nothing has changed then.
    fn union(&mut self, other: &dyn Filter) -> Result<(), MergeError>;

    /// Stream time has come to `time`: forgets what has left the window. Time never goes back.
    fn advance(&mut self, time: Timestamp);

    /// Goes on in the slice (see [`Filter::expiry_clock`]) that a changelog says its keys were inserted into, with its replay info: the
    /// same keys inserted then leave the same state. For the past, and for windows by time, it changes nothing.
    fn resume(&mut self, _slice: Slice, _replay_info: Option<u64>) {}

    /// What a changelog must say beside the keys for the same state to come of it; asked for after the first key
    /// that the changelog has of a slice.
    #[must_use]
    fn replay_info(&self) -> Option<u64> {
        None
    }

    /// A number that rises as keys expire, and never falls: the slice; for kinds without slices, how often all
    /// keys were replaced by others.
    #[must_use]
    fn expiry_clock(&self) -> Slice {
        self.slice().unwrap_or_default()
    }

    /// Number of the current slice; `None` before any time is known, and for kinds without slices.
    #[must_use]
    fn slice(&self) -> Option<Slice>;

    /// The last slice that a key was inserted into, if the kind knows it.
    #[must_use]
    fn slice_of(&self, _fingerprint: Fingerprint) -> Option<Slice> {
        None
    }

    /// How full it is.
    #[must_use]
    fn usage(&self) -> Usage;

    /// Everything but the bytes.
    #[must_use]
    fn metadata(&self) -> FilterMetadata;

    /// The pages that changed since [`Filter::mark_clean`], in the order of their ids.
    #[must_use]
    fn dirty_pages(&self) -> Vec<PageId>;

    /// Appends the bytes of a page; nothing if there is no such page.
    fn write_page(&self, id: PageId, out: &mut Vec<u8>);

    /// Takes the bytes of a page in.
    ///
    /// # Errors
    /// [`MetadataError::Page`] when the filter has no such page, or it has another length.
    fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), MetadataError>;

    /// All pages are stored.
    fn mark_clean(&mut self);

    /// Nothing is stored any more: all pages that hold anything are dirty.
    fn mark_stale(&mut self);
}

/// A kind and its size: with a window, what a filter is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spec {
    /// A queue of generations, and how large one is.
    Aging(AgingSizing),
    /// Fingerprints that say when they were inserted, and can be deleted; how large their table is.
    Cuckoo(CuckooSizing),
    /// Cells that forget by lot: keys inserted lately are seen, most likely. The one kind without a promise, or a window.
    Stable(StableSizing),
}

impl Spec {
    /// An empty filter.
    #[must_use]
    pub fn build(self, window: Window) -> Box<dyn Filter> {
        match self {
            Self::Aging(sizing) => Box::new(Aging::new(window, sizing)),
            Self::Cuckoo(sizing) => Box::new(Cuckoo::new(window, sizing)),
            Self::Stable(sizing) => Box::new(Stable::new(sizing)),
        }
    }

    /// Whether it forgets by slices of the window.
    #[must_use]
    pub const fn has_slices(self) -> bool {
        match self {
            Self::Aging(_) | Self::Cuckoo(_) => true,
            Self::Stable(_) => false,
        }
    }

    /// Keys that it is made to remember at a time.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate")]
    pub fn capacity(self, window: Window) -> u64 {
        let slices = u64::from(window.slices());
        match self {
            Self::Aging(sizing) => sizing.capacity.saturating_mul(slices),
            Self::Cuckoo(sizing) => sizing.capacity / (slices + 1) * slices,
            Self::Stable(sizing) => sizing.lifetime() as u64,
        }
    }

    /// Memory that it takes at capacity, in bytes.
    #[must_use]
    pub fn bytes(self, window: Window) -> u64 {
        match self {
            Self::Aging(sizing) => sizing.bytes(window),
            Self::Cuckoo(sizing) => sizing.bytes(window),
            Self::Stable(sizing) => sizing.bytes(),
        }
    }

    /// The filter that metadata describes, its bytes still zero: [`Filter::read_page`] puts them in.
    ///
    /// # Errors
    /// [`MetadataError`] when the metadata is not of such a filter.
    pub fn restore(self, window: Window, metadata: &FilterMetadata) -> Result<Box<dyn Filter>, MetadataError> {
        // By what is stored, one kind a line: a new kind does not compile until it has its own.
        match metadata {
            FilterMetadata::Aging(metadata) => match self {
                Self::Aging(sizing) => Ok(Box::new(Aging::from_metadata(window, sizing, metadata)?)),
                _ => Err(MetadataError::Kind),
            },
            FilterMetadata::Cuckoo(metadata) => match self {
                Self::Cuckoo(sizing) => Ok(Box::new(Cuckoo::from_metadata(window, sizing, metadata)?)),
                _ => Err(MetadataError::Kind),
            },
            FilterMetadata::Stable(metadata) => match self {
                Self::Stable(sizing) => Ok(Box::new(Stable::from_metadata(sizing, metadata)?)),
                _ => Err(MetadataError::Kind),
            },
        }
    }
}

/// A filter without its bytes. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterMetadata {
    /// Of an [`Aging`] filter.
    Aging(aging::Metadata),
    /// Of a [`Cuckoo`] filter.
    Cuckoo(cuckoo::Metadata),
    /// Of a [`Stable`] filter.
    Stable(stable::Metadata),
}

impl FilterMetadata {
    /// A description of what it is of, good enough to restore it and to join it with others, not to put keys in.
    #[must_use]
    pub fn spec(&self, window: Window) -> Spec {
        match self {
            Self::Aging(_) => Spec::Aging(AgingSizing::new(window, 1, 0.5)),
            Self::Cuckoo(_) => Spec::Cuckoo(CuckooSizing::new(window, 1, 0.5)),
            Self::Stable(metadata) => Spec::Stable(metadata.sizing()),
        }
    }

    /// How full the filter is, but for its load.
    #[must_use]
    pub fn usage(&self) -> Usage {
        match self {
            Self::Aging(metadata) => metadata.usage(),
            Self::Cuckoo(metadata) => metadata.usage(),
            Self::Stable(metadata) => metadata.usage(),
        }
    }

    /// Share of unseen keys that the filter calls seen as full as it is now, by its kind's formula.
    #[must_use]
    pub fn estimate(&self) -> f64 {
        match self {
            Self::Aging(metadata) => metadata.estimate(),
            Self::Cuckoo(metadata) => metadata.estimate(),
            Self::Stable(metadata) => metadata.estimate(),
        }
    }

    /// The keys of each slice, oldest first; of kinds that keep all in one place, all of them.
    #[must_use]
    pub fn slices(&self) -> Vec<SliceUsage> {
        match self {
            Self::Aging(metadata) => metadata.slices(),
            Self::Cuckoo(_) | Self::Stable(_) => Vec::new(),
        }
    }

    /// What it is stored in.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        match self {
            Self::Aging(metadata) => metadata.parts().collect(),
            Self::Cuckoo(metadata) => metadata.parts().collect(),
            Self::Stable(metadata) => metadata.parts().collect(),
        }
    }
}

/// A part of a filter that is stored, and dropped, as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// As in [`PageId`].
    pub slice: Slice,
    /// As in [`PageId`].
    pub layer: usize,
    /// How many of its pages hold anything, and so are stored.
    pub pages: u64,
}

/// How full a filter is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Keys remembered, each as often as it was inserted.
    pub keys: u64,
    /// Keys inserted since the current slice began; all of them, for kinds without slices.
    pub open_keys: u64,
    /// Memory of the bits, in bytes.
    pub bytes: u64,
    /// What is filled now over what it is meant for; above 1, the kind's answer to that is at work.
    pub load: f64,
    /// Keys forgotten before their time because the filter may not grow, counted since it was made or restored.
    pub evicted: u64,
}

/// How full one slice of a filter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceUsage {
    /// Its number.
    pub slice: Slice,
    /// Keys inserted.
    pub keys: u64,
    /// Keys that it was made for.
    pub capacity: u64,
    /// Memory, in bytes.
    pub bytes: u64,
}

/// What a filter is expected to do at some load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Share of unseen keys that are called seen.
    pub rate: f64,
    /// Memory, in bytes.
    pub bytes: u64,
}

/// What [`Filter::check_and_insert_each`] is where a kind has no quicker way.
fn check_and_insert_one_by_one<F: Filter + ?Sized>(
    filter: &mut F,
    fingerprints: &[Fingerprint],
    seen: &mut Vec<bool>,
) -> Result<(), CapacityError> {
    fingerprints.iter().try_for_each(|&fingerprint| filter.check_and_insert(fingerprint).map(|there| seen.push(there)))
}

/// Why a key cannot be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// This machine has no memory left for another part.
    #[error("this machine has not enough memory for another part of the filter")]
    Memory,
    /// It has all the memory that it may have.
    #[error("the filter has reached its max_memory; raise that, or capacity, or say with at_max_memory what is to give way")]
    MaxMemory,
    /// Too many fingerprints wait for a checkpoint.
    #[error("too many fingerprints wait to be stored; make room in the state directory, or see in the log why checkpoints fail")]
    Unsaved,
}

/// Why two filters cannot be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// One is of another kind.
    #[error("the filters are of different kinds")]
    Kind,
    /// Their windows differ.
    #[error("the windows differ in length or slices")]
    Window,
    /// Their sizes differ.
    #[error("the filters differ in size: joined can be only what had the same capacity, rate, rate_is and slices")]
    Size,
    /// What they count is not the same.
    #[error("windows by count cannot be joined: each counts its own keys")]
    Counted,
    /// One holds keys, and nobody knows of which time.
    #[error("one of the filters has not met a record with a time yet")]
    Untimed,
    /// There is no memory for the join.
    #[error("this machine has not enough memory for the join")]
    Memory,
}

/// Name of a page within a filter, in the order in which pages are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageId {
    /// The generation's slice.
    pub slice: Slice,
    /// The layer within it.
    pub layer: usize,
    /// The page within that.
    pub page: usize,
}

/// Stored state that does not belong to this filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// A filter of another kind, or none where there must be one.
    #[error("it is not of the kind that is configured")]
    Kind,
    /// More generations than the window has, out of order, or out of its reach.
    #[error("its generations are not those of this window")]
    Generations,
    /// A filter of a size that none has, or that this machine has no memory for.
    #[error("it names a filter of impossible size")]
    Size,
    /// The filter stands at another slice than the partition.
    #[error("its filter does not stand at its stream time")]
    StreamTime,
    /// A page that the metadata leaves no room for.
    #[error("it has no room for page {} of layer {} of slice {}", .0.page, .0.layer, .0.slice)]
    Page(PageId),
}

#[cfg(test)]
mod mean_tests;
#[cfg(test)]
mod union_tests;
