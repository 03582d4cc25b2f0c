//! A state out and in: metadata, the filter's pages, and what changed of the exact store.
//!
//! Owns what a stored state must be to be taken in. Must never let in what does not fit its rules.

use super::{Dedup, Rules, WatchedKeys};
use crate::filter::{
    Archive, Exact, ExactMetadata, Filter, FilterMetadata, GenerationId, MergeError, MetadataError, PageId, Part, Slice, Spec, Usage,
};
use crate::record::Timestamp;
use serde::{Deserialize, Serialize};

impl Dedup {
    /// Everything but the filter's bytes and the stored fingerprints.
    #[must_use]
    pub fn metadata(&self) -> DedupMetadata {
        DedupMetadata {
            stream_time: self.stream_time,
            filter: self.filter.as_ref().map(|filter| filter.metadata()),
            exact: self.exact.as_ref().map(Exact::metadata),
            watched: self.watched.clone(),
        }
    }

    /// The filter, if there is one: its pages are to be stored.
    #[must_use]
    pub fn filter(&self) -> Option<&dyn Filter> {
        self.filter.as_deref()
    }

    /// The exact store, if there is one: its changes are to be stored.
    #[must_use]
    pub const fn exact(&self) -> Option<&Exact> {
        self.exact.as_ref()
    }

    /// Gives the exact store, if there is one, the place where its fingerprints are stored.
    pub fn attach(&mut self, archive: Box<dyn Archive>) {
        if let Some(exact) = &mut self.exact {
            exact.attach(archive);
        }
    }

    /// Everything may be stored, and nobody has said so yet.
    pub fn mark_stored(&mut self) {
        if let Some(exact) = &mut self.exact {
            exact.mark_stored();
        }
    }

    /// Everything is stored.
    pub fn mark_clean(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.mark_clean();
        }
        if let Some(exact) = &mut self.exact {
            exact.mark_clean();
        }
    }

    /// None of the filter's pages is stored any more.
    pub fn mark_stale(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.mark_stale();
        }
    }

    /// The partition that metadata describes; its pages are still to be read in, and its archive to be attached.
    ///
    /// # Errors
    /// [`MetadataError`] when the metadata is not one of these rules.
    pub fn from_metadata(rules: Rules, metadata: &DedupMetadata) -> Result<Self, MetadataError> {
        let filter = match (rules.filter, &metadata.filter) {
            (Some(spec), Some(metadata)) => Some(spec.restore(rules.filter_window(), metadata)?),
            (None, None) => None,
            _ => return Err(MetadataError::Kind),
        };
        let exact = match (rules.exact, &metadata.exact) {
            (true, Some(metadata)) => Some(Exact::from_metadata(rules.window, metadata)?),
            (false, None) => None,
            _ => return Err(MetadataError::Kind),
        };
        let expected = metadata.stream_time.and_then(|time| rules.window.slice_at(time));
        let by_slices = filter.as_ref().filter(|_| rules.filter.is_some_and(Spec::has_slices));
        let slices = [by_slices.map(|filter| filter.slice()), exact.as_ref().map(Exact::slice)];
        if rules.window.length_ms().is_some() && slices.into_iter().flatten().any(|slice| slice != expected) {
            return Err(MetadataError::StreamTime);
        }
        let fresh = Self::new_watched(&rules);
        let watched = fresh.map(|fresh| metadata.watched.clone().filter(|stored| stored.lifetime() == fresh.lifetime()).unwrap_or(fresh));
        Ok(Self { rules, filter, exact, watched, stream_time: metadata.stream_time, corrected: 0, mutation: None })
    }

    /// Takes in what the filter of another state of the same rules remembers, and makes room for its exact
    /// state: [`Exact::insert_into`] inserts its fingerprints.
    ///
    /// # Errors
    /// [`MergeError`] when they do not fit.
    pub fn union(&mut self, other: &Self) -> Result<(), MergeError> {
        match (&mut self.filter, &other.filter) {
            (Some(own), Some(other)) => own.union(&**other)?,
            (None, None) => {}
            _ => return Err(MergeError::Kind),
        }
        match (&mut self.exact, &other.exact) {
            (Some(own), Some(other)) => own.union(&other.metadata())?,
            (None, None) => {}
            _ => return Err(MergeError::Kind),
        }
        if let (Some(own), Some(other)) = (&mut self.watched, &other.watched) {
            own.union(other);
        }
        self.stream_time = self.stream_time.max(other.stream_time);
        Ok(())
    }

    /// The exact store, if there is one, to put fingerprints in that another had.
    pub const fn exact_mut(&mut self) -> Option<&mut Exact> {
        self.exact.as_mut()
    }

    /// Takes the bytes of a page in.
    ///
    /// # Errors
    /// [`MetadataError`] when there is no such page.
    pub fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), MetadataError> {
        self.filter.as_mut().map_or(Err(MetadataError::Page(id)), |filter| filter.read_page(id, bytes))
    }
}

/// A partition's state without the filter's bits. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DedupMetadata {
    /// Stream time: the largest record time so far that was not too far ahead of the clock, in milliseconds.
    pub stream_time: Option<Timestamp>,
    /// The filter's metadata, if there is one.
    pub filter: Option<FilterMetadata>,
    /// The exact store's metadata, if there is one.
    pub exact: Option<ExactMetadata>,
    /// The keys that the filter is held against.
    #[serde(default, rename = "shadow")] // As state of earlier builds has it.
    pub watched: Option<WatchedKeys>,
}

impl DedupMetadata {
    /// What the filter is stored in.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        self.filter.as_ref().map_or_else(Vec::new, FilterMetadata::parts)
    }

    /// The generations of the exact store that are stored, and their slices.
    pub fn generations(&self) -> impl Iterator<Item = (GenerationId, Slice)> {
        self.exact.iter().flat_map(|metadata| metadata.generations.iter().map(|generation| (generation.id, generation.slice)))
    }

    /// How full the state is, but for its load.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let keys = self.exact.iter().flat_map(|metadata| &metadata.generations).map(|generation| generation.keys).sum();
        self.filter.as_ref().map_or(Usage { keys, ..Usage::default() }, FilterMetadata::usage)
    }
}
