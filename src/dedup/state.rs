//! Storing and restoring a state: metadata, the filter's pages, and changes of the exact store.
//!
//! Validates a stored state. Never accepts a state that does not match its rules.

use super::{Dedup, Rules, WatchedKeys};
use crate::filter::{Archive, Exact, ExactMetadata, Filter, FilterMetadata, GenerationId, MetadataError, PageId, Part, Slice, Usage};
use crate::record::Timestamp;
use serde::{Deserialize, Serialize};

impl Dedup {
    /// Returns the metadata of the state: everything except the filter's bytes and the exact store's fingerprints.
    #[must_use]
    pub fn metadata(&self) -> DedupMetadata {
        DedupMetadata {
            stream_time: self.stream_time,
            filter: self.filter.as_ref().map(|filter| filter.metadata()),
            exact: self.exact.as_ref().map(Exact::metadata),
            watched: self.watched.clone(),
        }
    }

    /// Returns the filter, if any, to store its pages.
    #[must_use]
    pub fn filter(&self) -> Option<&dyn Filter> {
        self.filter.as_deref()
    }

    /// Returns the exact store, if any, to store its changes.
    #[must_use]
    pub const fn exact(&self) -> Option<&Exact> {
        self.exact.as_ref()
    }

    /// Attaches the archive of the exact store's fingerprints, if there is an exact store.
    pub fn attach(&mut self, archive: Box<dyn Archive>) {
        if let Some(exact) = &mut self.exact {
            exact.attach(archive);
        }
    }

    /// Records that a checkpoint may have stored the state. From now on, deleting a key must also delete its stored copy.
    pub fn mark_stored(&mut self) {
        if let Some(exact) = &mut self.exact {
            exact.mark_stored();
        }
    }

    /// Records that a checkpoint has stored the state. The exact store removes its changes from memory, so lookups need an attached
    /// archive.
    pub fn mark_clean(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.mark_clean();
        }
        if let Some(exact) = &mut self.exact {
            exact.mark_clean();
        }
    }

    /// Marks all pages of the filter that contain data as not stored. The next checkpoint stores these pages.
    pub fn mark_stale(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.mark_stale();
        }
    }

    /// Creates the state that metadata describes. The caller must then read the pages of the filter and attach the archive.
    ///
    /// # Errors
    /// Returns [`MetadataError`] if the metadata does not match these rules.
    pub fn from_metadata(rules: Rules, metadata: &DedupMetadata) -> Result<Self, MetadataError> {
        let filter = match (rules.filter, &metadata.filter) {
            (Some(spec), Some(metadata)) => Some(spec.restore(rules.filter_window(), metadata)?),
            (None, None) => None,
            _ => return Err(MetadataError::Kind),
        };
        let exact = match (rules.exact, &metadata.exact) {
            (true, Some(metadata)) => Some(rules.exact_store().restored(metadata)?),
            (false, None) => None,
            _ => return Err(MetadataError::Kind),
        };
        let expected = metadata.stream_time.and_then(|time| rules.window.slice_at(time));
        let by_slices = filter.as_ref().filter(|_| rules.filter.is_some_and(|spec| spec.kind().properties().keeps_window));
        let slices = [by_slices.map(|filter| filter.slice()), exact.as_ref().map(Exact::slice)];
        if rules.window.length_ms().is_some() && slices.into_iter().flatten().any(|slice| slice != expected) {
            return Err(MetadataError::StreamTime);
        }
        let fresh = Self::new_watched(&rules);
        let watched = fresh.map(|fresh| metadata.watched.clone().filter(|stored| stored.lifetime() == fresh.lifetime()).unwrap_or(fresh));
        Ok(Self { rules, filter, exact, watched, stream_time: metadata.stream_time, corrected: 0, mutation: None })
    }

    /// Reads the bytes of a page into the filter.
    ///
    /// # Errors
    /// Returns [`MetadataError`] if the page does not exist, or if the length is wrong.
    pub fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), MetadataError> {
        self.filter.as_mut().map_or(Err(MetadataError::Page(id)), |filter| filter.read_page(id, bytes))
    }
}

/// The metadata of a partition's state, without the filter's bytes and the exact store's fingerprints. Its JSON is part of the state
/// format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DedupMetadata {
    /// Stream time: the largest record time so far that was not too far ahead of the clock, in milliseconds.
    pub stream_time: Option<Timestamp>,
    /// The filter's metadata, if there is a filter.
    pub filter: Option<FilterMetadata>,
    /// The exact store's metadata, if there is an exact store.
    pub exact: Option<ExactMetadata>,
    /// The sample of the keys, remembered exactly to measure the filter's errors. `None` if there is an exact store.
    #[serde(default, rename = "shadow")] // The name in states of earlier builds, which must stay readable.
    pub watched: Option<WatchedKeys>,
}

impl DedupMetadata {
    /// Returns the stored parts of the filter. Empty if there is only an exact store.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        self.filter.as_ref().map_or_else(Vec::new, FilterMetadata::parts)
    }

    /// Returns the ids of the exact store's generations, and their slices, oldest first.
    pub fn generations(&self) -> impl Iterator<Item = (GenerationId, Slice)> {
        self.exact.iter().flat_map(|metadata| metadata.generations.iter().map(|generation| (generation.id, generation.slice)))
    }

    /// Returns the fill level of the filter, or the number of keys in the exact store if there is no filter. `load` and `evicted` are
    /// always 0.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let keys = self.exact.iter().flat_map(|metadata| &metadata.generations).map(|generation| generation.keys).sum();
        self.filter.as_ref().map_or(Usage { keys, ..Usage::default() }, FilterMetadata::usage)
    }
}
