//! The exact store: fingerprints themselves, without errors.
//!
//! Owns which fingerprints belong to which generation. Fingerprints inserted since the last checkpoint are in memory. An
//! [`Archive`] holds the others. A whole generation is forgotten at once, so nothing ever has to search for expired fingerprints.
//! The store is a kind of its own, and confirms what another kind reports as seen. Must never report a key as seen that was not
//! inserted, or report a key as unseen that was inserted within the window (up to a collision of two 128-bit hashes).

use super::{CapacityError, MergeError, MetadataError, Slice, Window};
use crate::key::Fingerprint;
use crate::record::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::fmt;

/// Maximum number of fingerprints that may wait for a checkpoint, about 50 bytes each. If more are waiting, the disk has been
/// failing for a long time, and memory is not the place to keep them.
const UNSAVED_MAX: u64 = 1 << 24;

/// Number of a generation: counted up from 0, never reused by this partition.
pub type GenerationId = u64;

/// Storage for the fingerprints of earlier checkpoints.
pub trait Archive: fmt::Debug + Send + Sync {
    /// True if a fingerprint was stored in a generation and not deleted since.
    ///
    /// # Errors
    /// If the archive cannot be read.
    fn contains(&self, generation: GenerationId, fingerprint: Fingerprint) -> Result<bool, ArchiveError>;
}

/// An archive that cannot be read. Its contents have to be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the stored fingerprints: {0}")]
pub struct ArchiveError(pub String);

/// Reason why an exact store cannot insert or look up a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExactError {
    /// There is no room.
    #[error(transparent)]
    Full(#[from] CapacityError),
    /// The archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

/// The archive of an exact store that was never written to disk.
#[derive(Debug)]
struct Nothing;

impl Archive for Nothing {
    fn contains(&self, _: GenerationId, _: Fingerprint) -> Result<bool, ArchiveError> {
        Ok(false)
    }
}

/// Change of a fingerprint since the last checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Inserted.
    Put,
    /// Deleted.
    Delete,
}

/// The fingerprints of one slice.
#[derive(Debug)]
struct Generation {
    id: GenerationId,
    slice: Slice,
    /// Number of keys inserted, counting repeated insertions.
    keys: u64,
    /// True if the archive may contain fingerprints of this generation.
    stored: bool,
    changes: HashMap<Fingerprint, Change>,
}

/// Fingerprints, by generation.
#[derive(Debug)]
pub struct Exact {
    window: Window,
    slice: Option<Slice>,
    /// Generations, oldest first. The last is open if its slice is the current one.
    generations: VecDeque<Generation>,
    next_id: GenerationId,
    unsaved: u64,
    archive: Box<dyn Archive>,
}

impl Exact {
    /// Creates an empty store, in memory only.
    #[must_use]
    pub fn new(window: Window) -> Self {
        Self { window, slice: window.first_slice(), generations: VecDeque::new(), next_id: 0, unsaved: 0, archive: Box::new(Nothing) }
    }

    /// Attaches the archive, which answers lookups of fingerprints that [`Exact::mark_clean`] removed from memory.
    pub fn attach(&mut self, archive: Box<dyn Archive>) {
        self.archive = archive;
    }

    /// True if the key was inserted within the window and not deleted.
    ///
    /// # Errors
    /// If the archive cannot be read.
    pub fn contains(&self, fingerprint: Fingerprint) -> Result<bool, ArchiveError> {
        self.slice_of(fingerprint).map(|slice| slice.is_some())
    }

    /// Returns the last slice into which a key was inserted, if the key is present.
    ///
    /// # Errors
    /// If the archive cannot be read.
    pub fn slice_of(&self, fingerprint: Fingerprint) -> Result<Option<Slice>, ArchiveError> {
        for generation in self.generations.iter().rev() {
            if self.generation_contains(generation, fingerprint)? {
                return Ok(Some(generation.slice));
            }
        }
        Ok(None)
    }

    fn generation_contains(&self, generation: &Generation, fingerprint: Fingerprint) -> Result<bool, ArchiveError> {
        match generation.changes.get(&fingerprint) {
            Some(Change::Put) => Ok(true),
            None if generation.stored => self.archive.contains(generation.id, fingerprint),
            Some(Change::Delete) | None => Ok(false),
        }
    }

    /// Inserts a key into the open generation.
    ///
    /// # Errors
    /// [`CapacityError::Unsaved`] if too many fingerprints wait for a checkpoint.
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
            self.generations.push_back(Generation { id, slice, keys: 0, stored: false, changes: HashMap::new() });
        }
        if let Some(open) = self.generations.back_mut() {
            open.keys += 1;
            self.unsaved += u64::from(open.changes.insert(fingerprint, Change::Put).is_none());
        }
        Ok(())
    }

    /// Renews a key that is present: inserts it into the open generation, unless it is already in that generation. Returns true if the
    /// state changed.
    ///
    /// # Errors
    /// If the archive cannot be read, or there is no room. The state is then unchanged.
    pub fn refresh(&mut self, fingerprint: Fingerprint) -> Result<bool, ExactError> {
        let there = self.open().map_or(Ok(false), |open| self.generation_contains(open, fingerprint))?;
        if !there {
            self.insert(fingerprint)?;
        }
        Ok(!there)
    }

    /// Deletes a key. Returns true if it was present.
    ///
    /// # Errors
    /// If the archive cannot be read. The state is then unchanged.
    pub fn remove(&mut self, fingerprint: Fingerprint) -> Result<bool, ArchiveError> {
        let holders: Result<Vec<bool>, _> =
            self.generations.iter().map(|generation| self.generation_contains(generation, fingerprint)).collect();
        let holders = holders?;
        for (generation, _) in self.generations.iter_mut().zip(&holders).filter(|(_, holds)| **holds) {
            if generation.stored {
                self.unsaved += u64::from(generation.changes.insert(fingerprint, Change::Delete).is_none());
            } else {
                self.unsaved -= u64::from(generation.changes.remove(&fingerprint).is_some());
            }
        }
        Ok(holders.contains(&true))
    }

    /// Advances stream time to `time`, and forgets keys that have left the window.
    pub fn advance(&mut self, time: Timestamp) {
        if let Some(slice) = self.window.slice_at(time)
            && self.slice.is_none_or(|current| slice > current)
        {
            self.rotate(slice);
        }
    }

    /// Continues in the slice into which keys were inserted according to a changelog; see [`super::Filter::resume`].
    pub fn resume(&mut self, slice: Slice) {
        if self.window.length_ms().is_none() && slice > self.current() {
            self.rotate(slice);
        }
    }

    fn rotate(&mut self, slice: Slice) {
        if self.slice.is_none() {
            // Keys inserted before any time was known belong to the first known time.
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

    /// Returns the number of the current slice, or `None` before any time is known.
    #[must_use]
    pub const fn slice(&self) -> Option<Slice> {
        self.slice
    }

    /// Returns the number of keys in the open generation.
    #[must_use]
    pub fn open_keys(&self) -> u64 {
        self.open().map_or(0, |open| open.keys)
    }

    /// Returns the number of keys remembered, counting repeated insertions.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.generations.iter().map(|generation| generation.keys).sum()
    }

    /// Adds the generations of another store. [`Exact::insert_into`] then inserts their fingerprints.
    ///
    /// # Errors
    /// [`MergeError`] if the windows do not match. The state is then unchanged.
    pub fn union(&mut self, other: &ExactMetadata) -> Result<(), MergeError> {
        if self.window.length_ms().is_none() {
            return Err(MergeError::Counted);
        }
        if (self.slice.is_none() && !self.generations.is_empty()) || (other.slice.is_none() && !other.generations.is_empty()) {
            return Err(MergeError::Untimed);
        }
        if let Some(slice) = other.slice.filter(|&slice| self.slice.is_none_or(|own| slice > own)) {
            self.rotate(slice);
        }
        let oldest = self.current().before(self.window.slices());
        for theirs in other.generations.iter().filter(|theirs| theirs.slice >= oldest) {
            if let Some(own) = self.generations.iter_mut().find(|own| own.slice == theirs.slice) {
                own.keys = own.keys.saturating_add(theirs.keys);
            } else {
                let generation = Generation { id: 0, slice: theirs.slice, keys: theirs.keys, stored: false, changes: HashMap::new() };
                self.generations.push_back(generation);
            }
        }
        // Ids must rise with the slices. Nothing is stored under the old ids yet.
        self.generations.make_contiguous().sort_by_key(|generation| generation.slice);
        self.next_id = self.generations.len() as u64;
        self.generations.iter_mut().zip(0..).for_each(|(generation, id)| generation.id = id);
        Ok(())
    }

    /// Inserts a fingerprint into the generation of a slice without counting it. Does nothing if the slice has left the window.
    pub fn insert_into(&mut self, slice: Slice, fingerprint: Fingerprint) {
        if let Some(generation) = self.generations.iter_mut().find(|generation| generation.slice == slice) {
            self.unsaved += u64::from(generation.changes.insert(fingerprint, Change::Put).is_none());
        }
    }

    // ---- Storing and restoring state: metadata, and changes since the last checkpoint. ----

    /// Returns the number of changes that wait for a checkpoint.
    #[must_use]
    pub const fn unsaved(&self) -> u64 {
        self.unsaved
    }

    /// True if the archive contains any fingerprints.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.generations.iter().any(|generation| generation.stored)
    }

    /// Returns the changes since the last checkpoint, in the order of generation ids. Within a generation, the order is
    /// unspecified.
    pub fn changes_by_generation(&self) -> impl Iterator<Item = (GenerationId, impl Iterator<Item = (&Fingerprint, Change)>)> {
        self.generations.iter().map(|generation| {
            let changes = generation.changes.iter().map(|(fingerprint, &change)| (fingerprint, change));
            (generation.id, changes)
        })
    }

    /// Returns the changes since the last checkpoint, with their generation ids.
    pub fn changes(&self) -> impl Iterator<Item = (GenerationId, Fingerprint, Change)> {
        self.changes_by_generation().flat_map(|(id, changes)| changes.map(move |(&fingerprint, change)| (id, fingerprint, change)))
    }

    /// Records that the archive may contain all changes: a key that is deleted from now on must also be deleted there.
    pub fn mark_stored(&mut self) {
        for generation in &mut self.generations {
            generation.stored |= !generation.changes.is_empty();
        }
    }

    /// Records that the archive contains all changes.
    pub fn mark_clean(&mut self) {
        self.mark_stored();
        for generation in &mut self.generations {
            generation.changes = HashMap::new();
        }
        self.unsaved = 0;
    }

    /// Returns everything except the fingerprints.
    #[must_use]
    pub fn metadata(&self) -> ExactMetadata {
        let generations = self.generations.iter().map(|generation| ExactGenerationMetadata {
            id: generation.id,
            slice: generation.slice,
            keys: generation.keys,
        });
        ExactMetadata { slice: self.slice, next_id: self.next_id, generations: generations.collect() }
    }

    /// Creates the store that metadata describes. Its fingerprints are in an archive that the caller attaches next.
    ///
    /// # Errors
    /// [`MetadataError::Generations`] if the metadata does not match this window.
    pub fn from_metadata(window: Window, metadata: &ExactMetadata) -> Result<Self, MetadataError> {
        let mut exact = Self { slice: metadata.slice, next_id: metadata.next_id, ..Self::new(window) };
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
            changes: HashMap::new(),
        });
        exact.generations = generations.collect();
        Ok(exact)
    }
}

/// Metadata of an exact store, without its fingerprints. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExactMetadata {
    /// Number of the current slice.
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
    /// Id under which its fingerprints are stored.
    pub id: GenerationId,
    /// The slice whose keys the generation contains.
    pub slice: Slice,
    /// Number of keys inserted.
    pub keys: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(slices: &[i64]) -> ExactMetadata {
        let generations = (0..).zip(slices).map(|(id, &slice)| ExactGenerationMetadata { id, slice: Slice(slice), keys: 1 }).collect();
        ExactMetadata { slice: slices.last().copied().map(Slice), next_id: slices.len() as u64, generations }
    }

    #[test]
    fn impossible_metadata_is_rejected() {
        let window = Window::Time { slice_ms: 10, slices: 2 };
        assert!(Exact::from_metadata(window, &metadata(&[3, 4, 5])).is_ok());
        assert!(Exact::from_metadata(window, &metadata(&[])).is_ok());
        let changed = |change: fn(&mut ExactMetadata)| {
            let mut metadata = metadata(&[3, 4, 5]);
            change(&mut metadata);
            Exact::from_metadata(window, &metadata).map(drop)
        };
        let wrong: [fn(&mut ExactMetadata); 5] = [
            |metadata| metadata.next_id = 2,
            |metadata| metadata.generations.reverse(),
            |metadata| metadata.generations[0].slice = Slice(2),
            |metadata| metadata.slice = Some(Slice(4)),
            |metadata| metadata.slice = None,
        ];
        for change in wrong {
            assert_eq!(changed(change), Err(MetadataError::Generations));
        }
    }

    #[test]
    fn unsaved_fingerprints_are_counted_and_bounded() {
        let mut exact = Exact::new(Window::Time { slice_ms: 10, slices: 1 });
        exact.advance(0);
        for number in 0..5 {
            exact.insert(Fingerprint(number)).unwrap();
        }
        assert!(exact.remove(Fingerprint(0)).unwrap() && !exact.remove(Fingerprint(9)).unwrap());
        assert_eq!((exact.unsaved(), exact.changes().count(), exact.is_stored()), (4, 4, false));
        exact.mark_clean();
        assert_eq!((exact.unsaved(), exact.keys(), exact.is_stored()), (0, 5, true));
        exact.unsaved = UNSAVED_MAX;
        assert_eq!(exact.insert(Fingerprint(7)), Err(CapacityError::Unsaved));
    }

    #[test]
    fn deletions_of_possibly_stored_keys_reach_the_archive() {
        let mut exact = Exact::new(Window::keys(10, 1));
        exact.insert(Fingerprint(1)).unwrap();
        // The checkpoint was written, but the writer does not know that.
        exact.mark_stored();
        assert!(exact.remove(Fingerprint(1)).unwrap() && !exact.contains(Fingerprint(1)).unwrap());
        assert_eq!(exact.changes().collect::<Vec<_>>(), [(0, Fingerprint(1), Change::Delete)]);
    }

    #[test]
    fn an_unreadable_archive_is_an_error() {
        #[derive(Debug)]
        struct Broken;
        impl Archive for Broken {
            fn contains(&self, _: GenerationId, _: Fingerprint) -> Result<bool, ArchiveError> {
                Err(ArchiveError("broken".to_owned()))
            }
        }
        let mut exact = Exact::new(Window::keys(10, 1));
        exact.insert(Fingerprint(1)).unwrap();
        exact.mark_clean();
        exact.attach(Box::new(Broken));
        assert!(exact.contains(Fingerprint(1)).is_err() && exact.remove(Fingerprint(2)).is_err());
    }
}
