//! The exact store: the fingerprints themselves, without false positives.
//!
//! This module tracks the fingerprints of each generation. Fingerprints inserted since the last checkpoint are in memory, and all others
//! are in an [`Archive`]. A generation is forgotten as a whole, without a search for expired fingerprints. An exact store is used alone
//! (kind `exact`) or confirms the keys that a filter reports as seen. It never reports a key as seen that was not inserted. It never
//! reports a key as unseen that was inserted within the window and not deleted. The only exceptions are collisions of two 128-bit hashes
//! and, in a store with contents, of the low halves of two fingerprints.
//!
//! A store with contents (`emit = "on_change"`) also keeps the last content of each key. The low half of a fingerprint identifies the entry
//! of its key, and the high half is the content ([`Fingerprint::with_content`]). An insertion replaces the content. If several generations
//! have an entry for a key, only the entry in the newest generation counts, so an insertion need not delete older entries.

use super::{CapacityError, MetadataError, Slice, Window};
use crate::key::Fingerprint;
use crate::record::Timestamp;
use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::fmt;

/// Maximum number of changes that wait in memory for a checkpoint, at about 50 bytes each. At the maximum, checkpoints have probably failed
/// for a long time. Insertions then return an error, so that the changes do not fill the memory.
const UNSAVED_MAX: u64 = 1 << 24;

/// Id of a generation. Ids start at 0, and a partition never reuses an id.
pub type GenerationId = u64;

/// Storage of the fingerprints that earlier checkpoints have written.
pub trait Archive: fmt::Debug + Send + Sync {
    /// Returns the content of an entry that is stored in a generation, or `None` if the generation does not have the entry. The content is
    /// 0 in a store without contents.
    ///
    /// # Errors
    /// Returns an error if the archive cannot be read.
    fn content(&self, generation: GenerationId, entry: Fingerprint) -> Result<Option<u64>, ArchiveError>;
}

/// Error of an archive that cannot be read, with the reason. The worker then restores the partition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the stored fingerprints: {0}")]
pub struct ArchiveError(pub String);

/// Error of a lookup or a change in the filter and the exact store of a partition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExactError {
    /// The filter or the exact store cannot accept another key.
    #[error(transparent)]
    Full(#[from] CapacityError),
    /// The archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

/// An empty archive, for an exact store that was never written to disk.
#[derive(Debug)]
struct Nothing;

impl Archive for Nothing {
    fn content(&self, _: GenerationId, _: Fingerprint) -> Result<Option<u64>, ArchiveError> {
        Ok(None)
    }
}

/// The last change of an entry since the last checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The entry was inserted with this content, which is 0 in a store without contents.
    Put(u64),
    /// The entry was deleted.
    Delete,
}

#[derive(Debug)]
struct Generation {
    id: GenerationId,
    slice: Slice,
    /// Number of keys inserted, counting repeated insertions.
    keys: u64,
    /// True if the archive may contain fingerprints of this generation.
    stored: bool,
    changes: HashMap<Fingerprint, Change, RandomState>,
}

/// The exact store of one partition.
#[derive(Debug)]
pub struct Exact {
    window: Window,
    /// Mask of the fingerprint bits that identify an entry. The other bits are the content.
    entry_bits: u128,
    slice: Option<Slice>,
    /// Generations, oldest first. If the last generation is for the current slice, it is open: keys are inserted into it.
    generations: VecDeque<Generation>,
    next_id: GenerationId,
    unsaved: u64,
    archive: Box<dyn Archive>,
}

impl Exact {
    /// Creates an empty store without contents. Until an archive is attached, all of its fingerprints are in memory.
    #[must_use]
    pub fn new(window: Window) -> Self {
        let (slice, generations) = (window.first_slice(), VecDeque::new());
        Self { window, entry_bits: u128::MAX, slice, generations, next_id: 0, unsaved: 0, archive: Box::new(Nothing) }
    }

    /// Turns an empty store into a store with contents.
    #[must_use]
    pub fn with_contents(self) -> Self {
        Self { entry_bits: u64::MAX.into(), ..self }
    }

    /// True if the store keeps the last content of each key.
    #[must_use]
    pub const fn has_contents(&self) -> bool {
        self.entry_bits != u128::MAX
    }

    const fn entry(&self, fingerprint: Fingerprint) -> (Fingerprint, u64) {
        (Fingerprint(fingerprint.0 & self.entry_bits), Fingerprint(fingerprint.0 & !self.entry_bits).high())
    }

    /// Attaches the archive, which answers lookups of stored fingerprints: all fingerprints of a restored store, and the fingerprints that
    /// [`Exact::mark_clean`] removes from memory.
    pub fn attach(&mut self, archive: Box<dyn Archive>) {
        self.archive = archive;
    }

    /// True if the key was inserted within the window and not deleted since. In a store with contents, the last content of the key must
    /// also be the content in `fingerprint`.
    ///
    /// # Errors
    /// Returns an error if the archive cannot be read.
    pub fn contains(&self, fingerprint: Fingerprint) -> Result<bool, ArchiveError> {
        let (entry, content) = self.entry(fingerprint);
        Ok(self.newest(entry)?.is_some_and(|(_, newest)| newest == content))
    }

    /// Returns the slice of a key's last insertion, or `None` if the key is not present. Ignores the content in `fingerprint`.
    ///
    /// # Errors
    /// Returns an error if the archive cannot be read.
    pub fn slice_of(&self, fingerprint: Fingerprint) -> Result<Option<Slice>, ArchiveError> {
        let (entry, _) = self.entry(fingerprint);
        Ok(self.newest(entry)?.map(|(slice, _)| slice))
    }

    /// Returns the slice of the newest generation that has an entry, and the content of the entry there.
    fn newest(&self, entry: Fingerprint) -> Result<Option<(Slice, u64)>, ArchiveError> {
        for generation in self.generations.iter().rev() {
            if let Some(content) = self.content_in(generation, entry)? {
                return Ok(Some((generation.slice, content)));
            }
        }
        Ok(None)
    }

    fn content_in(&self, generation: &Generation, entry: Fingerprint) -> Result<Option<u64>, ArchiveError> {
        match generation.changes.get(&entry) {
            Some(&Change::Put(content)) => Ok(Some(content)),
            None if generation.stored => self.archive.content(generation.id, entry),
            Some(Change::Delete) | None => Ok(None),
        }
    }

    /// Inserts a key into the open generation. In a window by count, first starts the next slice if the current slice is full.
    ///
    /// # Errors
    /// Returns [`CapacityError::Unsaved`] if too many changes wait for a checkpoint.
    pub fn insert(&mut self, fingerprint: Fingerprint) -> Result<(), CapacityError> {
        if self.unsaved >= UNSAVED_MAX {
            return Err(CapacityError::Unsaved);
        }
        if let Window::Keys { slice_keys, .. } = self.window
            && self.open_keys() >= slice_keys
        {
            self.rotate(self.current().next());
        }
        if self.open().is_none() {
            let (id, slice) = (self.next_id, self.current());
            self.next_id += 1;
            self.generations.push_back(Generation { id, slice, keys: 0, stored: false, changes: HashMap::default() });
        }
        let (entry, content) = self.entry(fingerprint);
        if let Some(open) = self.generations.back_mut() {
            open.keys += 1;
            self.unsaved += u64::from(open.changes.insert(entry, Change::Put(content)).is_none());
        }
        Ok(())
    }

    /// Renews a key: inserts it into the open generation, unless that generation already has the key with the same content. Returns true if
    /// the state changed.
    ///
    /// # Errors
    /// Returns an error if the archive cannot be read, or if too many changes wait for a checkpoint. The state is then unchanged.
    pub fn refresh(&mut self, fingerprint: Fingerprint) -> Result<bool, ExactError> {
        let (entry, content) = self.entry(fingerprint);
        let there = self.open().map_or(Ok(None), |open| self.content_in(open, entry))? == Some(content);
        if !there {
            self.insert(fingerprint)?;
        }
        Ok(!there)
    }

    /// Deletes a key, regardless of its content. Returns true if the key was present.
    ///
    /// # Errors
    /// Returns an error if the archive cannot be read. The state is then unchanged.
    pub fn remove(&mut self, fingerprint: Fingerprint) -> Result<bool, ArchiveError> {
        let (entry, _) = self.entry(fingerprint);
        let holds = |generation| self.content_in(generation, entry).map(|content| content.is_some());
        let holders = self.generations.iter().map(holds).collect::<Result<Vec<_>, _>>()?;
        for (generation, _) in self.generations.iter_mut().zip(&holders).filter(|(_, holds)| **holds) {
            if generation.stored {
                self.unsaved += u64::from(generation.changes.insert(entry, Change::Delete).is_none());
            } else {
                self.unsaved -= u64::from(generation.changes.remove(&entry).is_some());
            }
        }
        Ok(holders.contains(&true))
    }

    /// Advances stream time to `time` and forgets keys that have left the window. Has an effect only in a window by time, and only if
    /// `time` is the first known time or is in a later slice than the current slice.
    pub fn advance(&mut self, time: Timestamp) {
        if let Some(slice) = self.window.slice_at(time)
            && self.slice.is_none_or(|current| slice > current)
        {
            self.rotate(slice);
        }
    }

    /// Moves to the slice that the changelog stores with the next keys, unless the current slice is later. Has no effect in a window by
    /// time. See [`super::Filter::resume`].
    pub fn resume(&mut self, slice: Slice) {
        if self.window.length_ms().is_none() && slice > self.current() {
            self.rotate(slice);
        }
    }

    fn rotate(&mut self, slice: Slice) {
        if self.slice.is_none() {
            // Move keys that were inserted before any time was known to the slice of the first known time.
            self.generations.iter_mut().for_each(|generation| generation.slice = slice);
        }
        self.slice = Some(slice);
        let oldest = slice.before(self.window.slices());
        while self.generations.front().is_some_and(|generation| generation.slice < oldest) {
            self.unsaved -= self.generations.pop_front().map_or(0, |expired| expired.changes.len() as u64);
        }
    }

    fn current(&self) -> Slice {
        self.slice.unwrap_or_default()
    }

    fn open(&self) -> Option<&Generation> {
        self.generations.back().filter(|newest| newest.slice == self.current())
    }

    /// Returns the number of the current slice. `None` in a window by time until the first time is known.
    #[must_use]
    pub const fn slice(&self) -> Option<Slice> {
        self.slice
    }

    /// Returns the number of keys inserted into the open generation, counting repeated insertions.
    #[must_use]
    pub fn open_keys(&self) -> u64 {
        self.open().map_or(0, |open| open.keys)
    }

    /// Returns the number of keys inserted into the generations of the window, counting repeated insertions and keys that were deleted
    /// afterward.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.generations.iter().map(|generation| generation.keys).sum()
    }

    /// Returns the number of changes that wait for a checkpoint.
    #[must_use]
    pub const fn unsaved(&self) -> u64 {
        self.unsaved
    }

    /// True if the archive may contain fingerprints.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.generations.iter().any(|generation| generation.stored)
    }

    /// Returns the changes of entries since the last checkpoint. Generations are in the order of their ids. Within a generation, the order
    /// is unspecified.
    pub fn changes_by_generation(&self) -> impl Iterator<Item = (GenerationId, impl Iterator<Item = (&Fingerprint, Change)>)> {
        self.generations.iter().map(|generation| {
            let changes = generation.changes.iter().map(|(fingerprint, &change)| (fingerprint, change));
            (generation.id, changes)
        })
    }

    /// Returns the changes since the last checkpoint, each with the id of its generation.
    pub fn changes(&self) -> impl Iterator<Item = (GenerationId, Fingerprint, Change)> {
        self.changes_by_generation().flat_map(|(id, changes)| changes.map(move |(&fingerprint, change)| (id, fingerprint, change)))
    }

    /// Records that a checkpoint may have written all changes to the archive. From now on, deleting a key that a change inserted must also
    /// delete the key in the archive.
    pub fn mark_stored(&mut self) {
        for generation in &mut self.generations {
            generation.stored |= !generation.changes.is_empty();
        }
    }

    /// Records that the archive contains all changes and removes them from memory.
    pub fn mark_clean(&mut self) {
        self.mark_stored();
        for generation in &mut self.generations {
            generation.changes = HashMap::default();
        }
        self.unsaved = 0;
    }

    /// Returns the metadata of the store, without its fingerprints.
    #[must_use]
    pub fn metadata(&self) -> ExactMetadata {
        let generations = self.generations.iter().map(|generation| ExactGenerationMetadata {
            id: generation.id,
            slice: generation.slice,
            keys: generation.keys,
        });
        ExactMetadata { slice: self.slice, next_id: self.next_id, generations: generations.collect() }
    }

    /// Restores a store from its metadata. `self` must be empty. The caller must then attach the archive with the fingerprints.
    ///
    /// # Errors
    /// Returns [`MetadataError::Generations`] if the metadata does not match the window.
    pub fn restored(self, metadata: &ExactMetadata) -> Result<Self, MetadataError> {
        let window = self.window;
        let mut exact = Self { slice: metadata.slice, next_id: metadata.next_id, ..self };
        let newest = exact.current();
        let oldest = newest.before(window.slices());
        let ordered = metadata.generations.windows(2).all(|pair| pair[0].slice < pair[1].slice && pair[0].id < pair[1].id);
        let within = metadata.generations.iter().all(|stored| (oldest..=newest).contains(&stored.slice) && stored.id < metadata.next_id);
        let known = metadata.slice.is_some() || (window.length_ms().is_some() && metadata.generations.len() <= 1);
        if !ordered || !within || !known {
            return Err(MetadataError::Generations);
        }
        let generations = metadata.generations.iter().map(|stored| Generation {
            id: stored.id,
            slice: stored.slice,
            keys: stored.keys,
            stored: true,
            changes: HashMap::default(),
        });
        exact.generations = generations.collect();
        Ok(exact)
    }
}

/// Metadata of an exact store, without its fingerprints. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExactMetadata {
    /// Number of the current slice. `None` in a window by time until the first time is known.
    pub slice: Option<Slice>,
    /// Id of the next generation.
    pub next_id: GenerationId,
    /// Generations, oldest first.
    pub generations: Vec<ExactGenerationMetadata>,
}

/// Metadata of a generation, without its fingerprints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExactGenerationMetadata {
    /// Id of the generation, used in the keys of its stored fingerprints.
    pub id: GenerationId,
    /// The slice whose keys the generation contains.
    pub slice: Slice,
    /// Number of keys inserted, counting repeated insertions.
    pub keys: u64,
}

#[cfg(test)]
mod tests;
