//! One partition of one key space: from a fingerprint and its time to a verdict.
//!
//! Owns stream time and the rules of the window. Its state is a pure function of what it was
//! shown, in order: it must never look at a clock, and time comes in with each record.

mod sample;

pub use sample::{Observed, Sample};

use crate::filter::{
    Archive, Different, Exact, Fault, Filter, GenerationId, Manifest, Mismatch, Outline, PageId, Part, Spec, Usage, Window,
};
use crate::key::Fingerprint;
use crate::record::{Timestamp, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many lifetimes of a key a stable filter's log reaches back. What it had put in before leaves a cell in some
/// thousands non-zero that a filter made anew from the log has zero.
const LIFETIMES: i64 = 8;

/// What becomes of a record that is older than the window and was not seen within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Late {
    /// It goes out like any unseen record: when unsure, never lose.
    #[default]
    Emit,
    /// It is dropped.
    Drop,
    /// It goes to the topic's dead letters.
    DeadLetter,
}

/// What a record did to a memory. Done again in the same order, from the same state, it leaves the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Its key was put in.
    Insert,
    /// Its key was renewed.
    Refresh,
    /// Its key was taken back.
    Unsee,
}

/// The rules of one key space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// How long a key stays seen.
    pub window: Window,
    /// Kind and size of a partition's filter; `None` where the exact memory stands alone.
    pub filter: Option<Spec>,
    /// Whether there is an exact memory: it decides alone, or confirms what the filter calls seen.
    pub exact: bool,
    /// Whether a duplicate renews the window of its key. If so, a key that repeats for ever is never emitted again.
    pub refresh: bool,
    /// What becomes of late records.
    pub late: Late,
}

impl Rules {
    /// Whether keys are forgotten by slices of the window.
    #[must_use]
    pub fn is_sliced(&self) -> bool {
        self.exact || self.filter.is_some_and(Spec::has_slices)
    }
}

/// The memory of one partition.
#[derive(Debug)]
pub struct Dedup {
    rules: Rules,
    filter: Option<Box<dyn Filter>>,
    exact: Option<Exact>,
    /// What the filter is held against; where all that it calls seen is confirmed, there is nothing to be wrong.
    sample: Option<Sample>,
    stream_time: Option<Timestamp>,
    corrected: u64,
    mutation: Option<Mutation>,
}

impl Dedup {
    /// A partition that has seen nothing.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            filter: rules.filter.map(Spec::build),
            exact: rules.exact.then(|| Exact::new(rules.window)),
            sample: Self::new_sample(&rules),
            stream_time: None,
            corrected: 0,
            mutation: None,
        }
    }

    fn new_sample(rules: &Rules) -> Option<Sample> {
        let spec = rules.filter.filter(|_| !rules.exact)?;
        let eras = if rules.is_sliced() { i64::from(rules.window.slices()) } else { LIFETIMES };
        Some(Sample::new(spec.capacity(), eras))
    }

    /// Has the cache load what judging these keys will read; see [`Filter::prefetch`].
    pub fn prefetch(&self, fingerprints: &[Fingerprint]) {
        if let Some(filter) = &self.filter {
            filter.prefetch(fingerprints);
        }
    }

    /// Decides one record, and remembers its key if it is to be emitted.
    ///
    /// `time` is the record's own time in milliseconds, if it has one. A time beyond `horizon`, the
    /// latest that is believed, is judged but does not advance stream time: a broken producer clock
    /// must not make the filter forget everything.
    ///
    /// # Errors
    /// [`Fault`] when it cannot be decided.
    pub fn judge(&mut self, fingerprint: Fingerprint, time: Option<Timestamp>, horizon: Timestamp) -> Result<Verdict, Fault> {
        self.advance(time, horizon);
        self.mutation = None;
        let late = self.rules.late != Late::Emit && self.is_late(time);
        // What may be put in is put in by the same call that asks for it.
        let maybe = match &mut self.filter {
            None => true,
            Some(filter) if late => filter.contains(fingerprint),
            Some(filter) => filter.check_and_insert(fingerprint)?,
        };
        if maybe && self.confirm(fingerprint)? {
            self.sample(|sample, era| sample.dropped(fingerprint, era));
            if self.rules.refresh && self.refresh(fingerprint)? {
                self.mutation = Some(Mutation::Refresh);
            }
            return Ok(Verdict::Duplicate);
        }
        if late {
            return Ok(Verdict::Late);
        }
        if let Some(filter) = self.filter.as_mut().filter(|_| maybe) {
            filter.insert(fingerprint)?;
        }
        if let Some(exact) = &mut self.exact {
            exact.insert(fingerprint)?;
        }
        self.sample(|sample, era| sample.emitted(fingerprint, era));
        self.mutation = Some(Mutation::Insert);
        Ok(Verdict::Unseen)
    }

    /// Takes a key back, as a record that says so asks for: the next record with it is unseen. Of a key
    /// that is not remembered nothing is taken, where an exact memory knows; a filter alone may take a
    /// stranger's, with the probability of a false positive.
    ///
    /// # Errors
    /// [`Fault`] when nobody knows whether it is remembered.
    pub fn unsee(&mut self, fingerprint: Fingerprint, time: Option<Timestamp>, horizon: Timestamp) -> Result<Verdict, Fault> {
        self.advance(time, horizon);
        self.mutation = self.take_back(fingerprint)?.then_some(Mutation::Unsee);
        Ok(Verdict::Unsee)
    }

    /// Tells the sample, with a way to ask how far the filter has come.
    fn sample(&mut self, tell: impl FnOnce(&mut Sample, &dyn Fn() -> Option<i64>)) {
        if let (Some(sample), Some(filter)) = (&mut self.sample, &self.filter) {
            let is_sliced = self.rules.is_sliced();
            tell(sample, &|| if is_sliced { filter.slice() } else { Some(filter.era()) });
        }
    }

    fn insert(&mut self, fingerprint: Fingerprint) -> Result<(), Fault> {
        if let Some(filter) = &mut self.filter {
            filter.insert(fingerprint)?;
        }
        if let Some(exact) = &mut self.exact {
            exact.insert(fingerprint)?;
        }
        Ok(())
    }

    /// Returns whether there was a key to take back, as far as that is known.
    fn take_back(&mut self, fingerprint: Fingerprint) -> Result<bool, Fault> {
        let there = match &mut self.exact {
            Some(exact) => exact.remove(fingerprint)?,
            None => true,
        };
        if let Some(filter) = self.filter.as_mut().filter(|_| there) {
            // A filter that cannot do it says "seen" on; the exact memory then corrects it.
            filter.unsee(fingerprint);
        }
        if let Some(sample) = &mut self.sample {
            sample.remove(fingerprint);
        }
        Ok(there)
    }

    fn advance(&mut self, time: Option<Timestamp>, horizon: Timestamp) {
        let Some(time) = time.filter(|&time| time <= horizon) else { return };
        if self.stream_time.is_none_or(|stream_time| time > stream_time) {
            self.stream_time = Some(time);
            if let Some(filter) = &mut self.filter {
                filter.advance(time);
            }
            if let Some(exact) = &mut self.exact {
                exact.advance(time);
            }
        }
    }

    /// Whether a key is seen that the filter, if there is one, calls so.
    fn confirm(&mut self, fingerprint: Fingerprint) -> Result<bool, Fault> {
        let Some(exact) = &self.exact else { return Ok(true) };
        let seen = exact.contains(fingerprint)?;
        self.corrected += u64::from(!seen && self.filter.is_some());
        Ok(seen)
    }

    /// Returns whether that changed anything.
    fn refresh(&mut self, fingerprint: Fingerprint) -> Result<bool, Fault> {
        let mut changed = false;
        if let Some(filter) = &mut self.filter {
            changed |= filter.refresh(fingerprint)?;
        }
        if let Some(exact) = &mut self.exact {
            changed |= exact.refresh(fingerprint)?;
        }
        self.sample(|sample, era| sample.put(fingerprint, true, era));
        Ok(changed)
    }

    /// Whether a record of that time is older than the window.
    #[must_use]
    pub fn is_late(&self, time: Option<Timestamp>) -> bool {
        match (self.rules.window.length_ms(), self.stream_time, time) {
            (Some(length), Some(stream_time), Some(time)) => stream_time.saturating_sub(time) > length,
            _ => false,
        }
    }

    /// The largest believed record time that was shown.
    #[must_use]
    pub const fn stream_time(&self) -> Option<Timestamp> {
        self.stream_time
    }

    /// Number of the current slice; `None` before any time is known.
    #[must_use]
    pub fn slice(&self) -> Option<i64> {
        match (&self.exact, &self.filter) {
            (Some(exact), _) => exact.slice(),
            (None, Some(filter)) => filter.slice(),
            (None, None) => None,
        }
    }

    /// How full it is. An exact memory that stands alone takes the disk for its measure, and has no load.
    #[must_use]
    pub fn usage(&self) -> Usage {
        match (&self.filter, &self.exact) {
            (Some(filter), _) => filter.usage(),
            (None, Some(exact)) => Usage { keys: exact.keys(), open_keys: exact.open_keys(), ..Usage::default() },
            (None, None) => Usage::default(),
        }
    }

    /// How often the exact memory found that the filter was wrong: its false positives, each put right.
    /// Counted since the start, not stored.
    #[must_use]
    pub const fn corrected(&self) -> u64 {
        self.corrected
    }

    /// How often the filter was found wrong, by keys that are watched, about one window back; `None` where every
    /// drop is confirmed. What a log is made from does not say it, so it is counted anew after a rebuild.
    #[must_use]
    pub fn observed(&self) -> Option<Observed> {
        let (sample, filter) = (self.sample.as_ref()?, self.filter.as_ref()?);
        Some(sample.observed(if self.rules.is_sliced() { filter.slice() } else { Some(filter.era()) }))
    }

    // ---- The same again, from a log of what changed it. ----

    /// What the last record did to the memory, if anything.
    #[must_use]
    pub const fn mutation(&self) -> Option<Mutation> {
        self.mutation
    }

    /// Does it again to other keys.
    ///
    /// # Errors
    /// [`Fault`] when there is no room, or nobody knows what is remembered.
    pub fn apply(&mut self, mutation: Mutation, fingerprint: Fingerprint) -> Result<(), Fault> {
        match mutation {
            Mutation::Insert => {
                self.insert(fingerprint)?;
                self.sample(|sample, era| sample.put(fingerprint, false, era));
                Ok(())
            }
            Mutation::Refresh => self.refresh(fingerprint).map(drop),
            Mutation::Unsee => self.take_back(fingerprint).map(drop),
        }
    }

    /// Where the memory stands, for its log to be searched by: what was put in at a smaller mark than
    /// [`Dedup::oldest_mark`] is not needed any more. It never falls.
    #[must_use]
    pub fn mark(&self) -> i64 {
        self.mark_before(0)
    }

    /// The mark of the oldest keys that are still remembered.
    #[must_use]
    pub fn oldest_mark(&self) -> i64 {
        self.mark_before(if self.rules.is_sliced() { i64::from(self.rules.window.slices()) } else { LIFETIMES })
    }

    fn mark_before(&self, eras: i64) -> i64 {
        match (&self.exact, &self.filter) {
            (Some(exact), _) => exact.slice().map_or(0, |slice| self.rules.window.mark(slice.saturating_sub(eras))),
            (None, Some(filter)) if self.rules.is_sliced() => {
                filter.slice().map_or(0, |slice| self.rules.window.mark(slice.saturating_sub(eras)))
            }
            (None, Some(filter)) => filter.era().saturating_sub(eras).max(0),
            (None, None) => 0,
        }
    }

    /// What the log must say beside the keys; see [`Filter::hint`].
    #[must_use]
    pub fn hint(&self) -> Option<u64> {
        self.filter.as_ref().and_then(|filter| filter.hint())
    }

    /// Comes to the time and the mark that the log says of the keys which follow. Without a mark only time passes,
    /// as where the log was written under other settings.
    pub fn resume(&mut self, time: Option<Timestamp>, mark: Option<i64>, hint: Option<u64>) {
        self.advance(time, Timestamp::MAX);
        let Some(mark) = mark else { return };
        let era = if self.rules.is_sliced() { self.rules.window.slice_of(mark) } else { mark };
        if let Some(filter) = &mut self.filter {
            filter.resume(era, hint);
        }
        if let Some(exact) = &mut self.exact {
            exact.resume(era);
        }
    }

    // ---- State out and in: a snapshot, the filter's pages, and what changed of the exact memory. ----

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
        let filter = match (rules.filter, &snapshot.filter) {
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

#[cfg(test)]
mod tests;
