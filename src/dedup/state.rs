//! A memory out and in: a snapshot, the filter's pages, and what changed of the exact memory.
//!
//! Owns what a stored memory must be to be taken in. Must never let in what does not fit its rules.

use super::{Dedup, Rules, Sample};
use crate::filter::{Archive, Different, Exact, Filter, GenerationId, Manifest, Mismatch, Outline, PageId, Part, Spec, Usage};
use crate::record::Timestamp;
use serde::{Deserialize, Serialize};

impl Dedup {
    /// Everything but the filter's bytes and the stored fingerprints.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            stream_time: self.stream_time,
            filter: self.filter.as_ref().map(|filter| filter.manifest()),
            exact: self.exact.as_ref().map(Exact::outline),
            sample: self.sample.clone(),
        }
    }

    /// The filter, if there is one: its pages are to be stored.
    #[must_use]
    pub fn filter(&self) -> Option<&dyn Filter> {
        self.filter.as_deref()
    }

    /// The exact memory, if there is one: its changes are to be stored.
    #[must_use]
    pub const fn exact(&self) -> Option<&Exact> {
        self.exact.as_ref()
    }

    /// Gives the exact memory, if there is one, the place where its fingerprints are stored.
    pub fn attach(&mut self, archive: Box<dyn Archive>) {
        if let Some(exact) = &mut self.exact {
            exact.attach(archive);
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

    /// The partition that a snapshot describes; its pages are still to be read in, and its archive to be attached.
    ///
    /// # Errors
    /// [`Mismatch`] when the snapshot is not one of these rules.
    pub fn from_snapshot(rules: Rules, snapshot: &Snapshot) -> Result<Self, Mismatch> {
        let filter = match (rules.filter_spec(), &snapshot.filter) {
            (Some(spec), Some(manifest)) => Some(spec.restore(manifest)?),
            (None, None) => None,
            _ => return Err(Mismatch::Kind),
        };
        let exact = match (rules.exact, &snapshot.exact) {
            (true, Some(outline)) => Some(Exact::from_outline(rules.window, outline)?),
            (false, None) => None,
            _ => return Err(Mismatch::Kind),
        };
        let expected = snapshot.stream_time.and_then(|time| rules.window.slice_at(time));
        let by_slices = filter.as_ref().filter(|_| rules.filter.is_some_and(Spec::has_slices));
        let slices = [by_slices.map(|filter| filter.slice()), exact.as_ref().map(Exact::slice)];
        if rules.window.length_ms().is_some() && slices.into_iter().flatten().any(|slice| slice != expected) {
            return Err(Mismatch::StreamTime);
        }
        let fresh = Self::new_sample(&rules);
        let sample = fresh.map(|fresh| snapshot.sample.clone().filter(|stored| stored.eras() == fresh.eras()).unwrap_or(fresh));
        Ok(Self { rules, filter, exact, sample, stream_time: snapshot.stream_time, corrected: 0, mutation: None })
    }

    /// Takes in what the filter of another memory of the same rules remembers, and makes room for its exact
    /// memory: [`Exact::put`] puts its fingerprints in.
    ///
    /// # Errors
    /// [`Different`] when they do not fit.
    pub fn union(&mut self, other: &Self) -> Result<(), Different> {
        match (&mut self.filter, &other.filter) {
            (Some(own), Some(other)) => own.union(&**other)?,
            (None, None) => {}
            _ => return Err(Different::Kind),
        }
        match (&mut self.exact, &other.exact) {
            (Some(own), Some(other)) => own.union(&other.outline())?,
            (None, None) => {}
            _ => return Err(Different::Kind),
        }
        if let (Some(own), Some(other)) = (&mut self.sample, &other.sample) {
            own.union(other);
        }
        self.stream_time = self.stream_time.max(other.stream_time);
        Ok(())
    }

    /// The exact memory, if there is one, to put fingerprints in that another had.
    pub const fn exact_mut(&mut self) -> Option<&mut Exact> {
        self.exact.as_mut()
    }

    /// Takes the bytes of a page in.
    ///
    /// # Errors
    /// [`Mismatch`] when there is no such page.
    pub fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), Mismatch> {
        self.filter.as_mut().map_or(Err(Mismatch::Page(id)), |filter| filter.read_page(id, bytes))
    }
}

/// A partition's memory without the filter's bits. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The largest believed record time that was shown, in milliseconds.
    pub stream_time: Option<Timestamp>,
    /// The filter's outline, if there is one.
    pub filter: Option<Manifest>,
    /// The exact memory's outline, if there is one.
    pub exact: Option<Outline>,
    /// The keys that the filter is held against.
    #[serde(default)]
    pub sample: Option<Sample>,
}

impl Snapshot {
    /// What the filter is stored in.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        self.filter.as_ref().map_or_else(Vec::new, Manifest::parts)
    }

    /// The generations of the exact memory that are stored, and their slices.
    pub fn generations(&self) -> impl Iterator<Item = (GenerationId, i64)> {
        self.exact.iter().flat_map(|outline| outline.generations.iter().map(|generation| (generation.id, generation.slice)))
    }

    /// How full the memory is that it outlines, but for its load.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let keys = self.exact.iter().flat_map(|outline| &outline.generations).map(|generation| generation.keys).sum();
        self.filter.as_ref().map_or(Usage { keys, ..Usage::default() }, Manifest::usage)
    }
}
