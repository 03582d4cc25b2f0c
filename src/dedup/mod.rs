//! One partition of one key space: from a fingerprint and its time to a verdict.
//!
//! Owns stream time and the rules of the window. Its state is a pure function of what it was
//! shown, in order: it must never look at a clock, and time comes in with each record.

mod state;
mod watched;

pub use state::DedupMetadata;
pub use watched::{Observed, WatchedKeys};

use crate::filter::{ArchiveError, Exact, ExactError, Filter, Slice, Spec, Usage, Window};
use crate::key::Fingerprint;
use crate::record::{Timestamp, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many lifetimes of a key a stable filter's log reaches back. What it had inserted before leaves a cell in some
/// thousands non-zero that a filter made anew from the changelog has zero.
const LIFETIMES: u32 = 8;

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

/// What a record did to a state. Done again in the same order, from the same state, it leaves the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Its key was inserted.
    Insert,
    /// Its key was renewed.
    Refresh,
    /// Its key was retracted.
    Delete,
}

/// The rules of one key space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// How long a key stays seen.
    pub window: Window,
    /// Kind and size of a partition's filter; `None` where the exact store stands alone.
    pub filter: Option<Spec>,
    /// Whether there is an exact store: it decides alone, or confirms what the filter calls seen.
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

    /// Whether a retraction takes a key from a filter alone, which may take another key's copy with it.
    #[must_use]
    pub fn retracts_by_filter(&self) -> bool {
        !self.exact && matches!(self.filter, Some(Spec::Cuckoo(_)))
    }

    /// Keys that the filter is made to remember at a time, if there is one.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        self.filter.map(|spec| spec.capacity(self.window))
    }

    /// The filter's window. Where an exact store counts the keys of a slice, the filter does not.
    const fn filter_window(&self) -> Window {
        match self.window {
            Window::Keys { slices, .. } if self.exact => Window::Keys { slice_keys: u64::MAX, slices },
            window => window,
        }
    }

    /// How far a filter of these rules has come; `None` before any time is known.
    fn expiry_clock(&self, filter: &dyn Filter) -> Option<Slice> {
        if self.is_sliced() { filter.slice() } else { Some(filter.expiry_clock()) }
    }
}

/// The state of one partition.
#[derive(Debug)]
pub struct Dedup {
    rules: Rules,
    filter: Option<Box<dyn Filter>>,
    exact: Option<Exact>,
    /// What the filter is held against; where all that it calls seen is confirmed, there is nothing to be wrong.
    watched: Option<WatchedKeys>,
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
            filter: rules.filter.map(|spec| spec.build(rules.filter_window())),
            exact: rules.exact.then(|| Exact::new(rules.window)),
            watched: Self::new_watched(&rules),
            stream_time: None,
            corrected: 0,
            mutation: None,
        }
    }

    fn new_watched(rules: &Rules) -> Option<WatchedKeys> {
        let capacity = rules.capacity().filter(|_| !rules.exact)?;
        let lifetime = if rules.is_sliced() { rules.window.slices() } else { LIFETIMES };
        Some(WatchedKeys::new(capacity, lifetime))
    }

    /// Its rules.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Has the cache load what judging these keys will read; see [`Filter::prefetch`].
    pub fn prefetch(&mut self, fingerprints: &[Fingerprint]) {
        if let Some(filter) = &mut self.filter {
            filter.prefetch(fingerprints);
        }
    }

    /// Decides one record, and remembers its key if it is to be emitted.
    ///
    /// `time` is the record's own time in milliseconds, if it has one. A time beyond `max_timestamp`, the
    /// latest that moves the window, is judged but does not advance stream time: a broken producer clock
    /// must not make the filter forget everything.
    ///
    /// # Errors
    /// [`ExactError`] when it cannot be decided.
    #[inline]
    pub fn judge(&mut self, fingerprint: Fingerprint, time: Option<Timestamp>, max_timestamp: Timestamp) -> Result<Verdict, ExactError> {
        self.advance(time, max_timestamp);
        self.mutation = None;
        let late = self.rules.late != Late::Emit && self.is_late(time);
        // What may be inserted is inserted by the same call that asks for it.
        let at_once = !late && !self.is_led();
        let maybe = match &mut self.filter {
            None => true,
            Some(filter) if at_once => filter.check_and_insert(fingerprint)?,
            Some(filter) => filter.contains(fingerprint),
        };
        if maybe && self.confirm(fingerprint)? {
            // A late record that is not dropped is not inserted either: neither says how often the filter is wrong.
            if !late {
                self.watch(|watched, clock| watched.dropped(fingerprint, clock));
            }
            if self.rules.refresh && self.refresh(fingerprint)? {
                self.mutation = Some(Mutation::Refresh);
            }
            return Ok(Verdict::Duplicate);
        }
        if late {
            return Ok(Verdict::Late);
        }
        if maybe || !at_once {
            self.insert(fingerprint)?;
        } else if let Some(exact) = &mut self.exact {
            exact.insert(fingerprint)?;
        }
        self.watch(|watched, clock| watched.emitted(fingerprint, clock));
        self.mutation = Some(Mutation::Insert);
        Ok(Verdict::Unseen)
    }

    /// Up to which record time [`Dedup::judge_each`] may be asked: to the end of the open slice, where nothing is asked but the
    /// filter, once a key; `None` if not at all.
    #[must_use]
    pub fn judges_each_until(&self) -> Option<Timestamp> {
        let Rules { window, refresh, late, exact, .. } = self.rules;
        let is_usual = !exact && !refresh && late == Late::Emit && self.rules.is_sliced();
        let slice = self.filter.as_ref().filter(|_| is_usual)?.slice()?;
        Some(window.start_of(slice.next())?.saturating_sub(1))
    }

    /// Decides records one after the other, as [`Dedup::judge`] does, where it [may](Self::judges_each_until). `seen` becomes
    /// whether each is a duplicate; those that are not are unseen.
    ///
    /// # Errors
    /// [`ExactError`] at the first that cannot be decided: of that one `seen` says nothing.
    pub fn judge_each(&mut self, fingerprints: &[Fingerprint], times: &[Timestamp], seen: &mut Vec<bool>) -> Result<(), ExactError> {
        seen.clear();
        let Some(filter) = &mut self.filter else { return Ok(()) };
        let judged = filter.check_and_insert_each(fingerprints, seen);
        // The one that cannot be decided was shown, too.
        let shown = times.iter().take(seen.len() + usize::from(judged.is_err()));
        self.stream_time = self.stream_time.max(shown.max().copied());
        self.mutation = seen.last().filter(|seen| judged.is_ok() && !**seen).map(|_| Mutation::Insert);
        self.watch(|watched, clock| watched.judged(fingerprints, seen, clock));
        Ok(judged?)
    }

    /// Retracts a key, as a record that says so asks for: the next record with it is unseen. Where an exact store knows,
    /// a key that is not remembered deletes nothing. A filter alone may then delete another key, with the probability of
    /// a false positive.
    ///
    /// # Errors
    /// [`ExactError`] when nobody knows whether it is remembered.
    pub fn retract(&mut self, fingerprint: Fingerprint, time: Option<Timestamp>, max_timestamp: Timestamp) -> Result<Verdict, ExactError> {
        self.advance(time, max_timestamp);
        self.mutation = self.delete(fingerprint)?.then_some(Mutation::Delete);
        Ok(Verdict::Retracted)
    }

    /// Reports to the watched keys, with a way to ask how far the filter has come.
    fn watch(&mut self, report: impl FnOnce(&mut WatchedKeys, &dyn Fn() -> Option<Slice>)) {
        if let (Some(watched), Some(filter)) = (&mut self.watched, &self.filter) {
            let rules = &self.rules;
            report(watched, &|| rules.expiry_clock(&**filter));
        }
    }

    fn insert(&mut self, fingerprint: Fingerprint) -> Result<(), ExactError> {
        if let Some(exact) = &mut self.exact {
            exact.insert(fingerprint)?;
        }
        self.follow_slices();
        if let Some(filter) = &mut self.filter {
            filter.insert(fingerprint)?;
        }
        Ok(())
    }

    /// Whether the exact store counts the keys of a slice for the filter, too. Each would count its own, and a filter
    /// that is wrong about what it has counts another number: it would forget what the exact store still has.
    const fn is_led(&self) -> bool {
        self.exact.is_some() && self.filter.is_some() && self.rules.window.length_ms().is_none()
    }

    /// Has the filter come to the slice of the exact store, where that counts for both.
    fn follow_slices(&mut self) {
        if self.is_led()
            && let (Some(exact), Some(filter)) = (&self.exact, &mut self.filter)
            && let Some(slice) = exact.slice().filter(|&slice| filter.slice().is_some_and(|own| own < slice))
        {
            filter.resume(slice, None);
        }
    }

    /// Returns whether there was a key to delete, as far as that is known.
    fn delete(&mut self, fingerprint: Fingerprint) -> Result<bool, ExactError> {
        let there = match &mut self.exact {
            Some(exact) => exact.remove(fingerprint)?,
            None => true,
        };
        // A filter may take another key's copy. Where there is an exact store it says "seen" on, and that corrects it.
        if let (Some(filter), None) = (&mut self.filter, &self.exact) {
            filter.remove(fingerprint);
        }
        if let Some(watched) = &mut self.watched {
            watched.remove(fingerprint);
        }
        Ok(there)
    }

    fn advance(&mut self, time: Option<Timestamp>, max_timestamp: Timestamp) {
        let Some(time) = time.filter(|&time| time <= max_timestamp) else { return };
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
    fn confirm(&mut self, fingerprint: Fingerprint) -> Result<bool, ExactError> {
        let Some(exact) = &self.exact else { return Ok(true) };
        let seen = exact.contains(fingerprint)?;
        self.corrected += u64::from(!seen && self.filter.is_some());
        Ok(seen)
    }

    /// Returns whether that changed anything.
    fn refresh(&mut self, fingerprint: Fingerprint) -> Result<bool, ExactError> {
        // What the exact store has in its open slice, the filter has, too.
        let mut changed = self.exact.as_mut().map_or(Ok(true), |exact| exact.refresh(fingerprint))?;
        self.follow_slices();
        if let Some(filter) = self.filter.as_mut().filter(|_| changed) {
            changed = filter.refresh(fingerprint)? || self.exact.is_some();
        }
        self.watch(|watched, clock| watched.inserted_again(fingerprint, true, clock));
        Ok(changed)
    }

    /// Whether a record with that key would be dropped; if so, the slice that it was inserted into, where that is known.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn would_drop(&self, fingerprint: Fingerprint) -> Result<Option<Option<Slice>>, ArchiveError> {
        if self.filter.as_ref().is_some_and(|filter| !filter.contains(fingerprint)) {
            return Ok(None);
        }
        match (&self.exact, &self.filter) {
            (Some(exact), _) => Ok(exact.slice_of(fingerprint)?.map(Some)),
            (None, Some(filter)) => Ok(Some(filter.slice_of(fingerprint))),
            (None, None) => Ok(None),
        }
    }

    /// When the slice starts in which a seen key was inserted, by record time. `None` where the kind does not know it, in a
    /// window by count, and where each repeat inserts its key again.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn seen_since(&self, fingerprint: Fingerprint) -> Result<Option<Timestamp>, ArchiveError> {
        if self.rules.refresh || self.rules.window.length_ms().is_none() {
            return Ok(None);
        }
        // What came before any time was known is of the first slice.
        let slice = self.would_drop(fingerprint)?.flatten().filter(|&slice| slice != Slice::default());
        Ok(slice.and_then(|slice| self.rules.window.start_of(slice)))
    }

    /// Sets to true what stands in `seen` beside the keys whose records would be dropped.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn contains_each(&self, fingerprints: &[Fingerprint], seen: &mut [bool]) -> Result<(), ArchiveError> {
        match (&self.filter, &self.exact) {
            (Some(filter), None) => filter.contains_each(fingerprints, seen),
            _ => {
                for (&fingerprint, seen) in fingerprints.iter().zip(seen) {
                    *seen |= self.would_drop(fingerprint)?.is_some();
                }
            }
        }
        Ok(())
    }

    /// Whether a record of that time is older than the window.
    #[must_use]
    pub fn is_late(&self, time: Option<Timestamp>) -> bool {
        match (self.rules.window.length_ms(), self.stream_time, time) {
            (Some(length), Some(stream_time), Some(time)) => stream_time.saturating_sub(time) > length,
            _ => false,
        }
    }

    /// Stream time: the largest record time so far that was not too far ahead of the clock.
    #[must_use]
    pub const fn stream_time(&self) -> Option<Timestamp> {
        self.stream_time
    }

    /// Number of the current slice; `None` before any time is known.
    #[must_use]
    pub fn slice(&self) -> Option<Slice> {
        match (&self.exact, &self.filter) {
            (Some(exact), _) => exact.slice(),
            (None, Some(filter)) => filter.slice(),
            (None, None) => None,
        }
    }

    /// How full it is. An exact store that stands alone takes the disk for its measure, and has no load.
    #[must_use]
    pub fn usage(&self) -> Usage {
        match (&self.filter, &self.exact) {
            (Some(filter), _) => filter.usage(),
            (None, Some(exact)) => Usage { keys: exact.keys(), open_keys: exact.open_keys(), ..Usage::default() },
            (None, None) => Usage::default(),
        }
    }

    /// Keys inserted since the current slice began, by whatever counts them.
    #[must_use]
    pub fn open_keys(&self) -> u64 {
        self.exact.as_ref().map_or_else(|| self.usage().open_keys, Exact::open_keys)
    }

    /// How often the exact store found that the filter was wrong, and put it right: its false positives, and keys that
    /// were retracted, which it has still. Counted since the start, not stored.
    #[must_use]
    pub const fn corrected(&self) -> u64 {
        self.corrected
    }

    /// How often the filter was found wrong, by keys that are watched, about one window back; `None` where every
    /// drop is confirmed. What a changelog is made from does not say it, so it is counted anew after a rebuild.
    #[must_use]
    pub fn observed(&self) -> Option<Observed> {
        let (watched, filter) = (self.watched.as_ref()?, self.filter.as_ref()?);
        Some(watched.observed(self.rules.expiry_clock(&**filter)))
    }

    // ---- The same again, from a changelog of what changed it. ----

    /// What the last record did to the state, if anything.
    #[must_use]
    pub const fn mutation(&self) -> Option<Mutation> {
        self.mutation
    }

    /// Does it again to other keys.
    ///
    /// # Errors
    /// [`ExactError`] when there is no room, or nobody knows what is remembered.
    pub fn apply(&mut self, mutation: Mutation, fingerprint: Fingerprint) -> Result<(), ExactError> {
        match mutation {
            Mutation::Insert => {
                self.insert(fingerprint)?;
                self.watch(|watched, clock| watched.inserted_again(fingerprint, false, clock));
                Ok(())
            }
            Mutation::Refresh => self.refresh(fingerprint).map(drop),
            Mutation::Delete => self.delete(fingerprint).map(drop),
        }
    }

    /// The slice that keys are inserted into, or how often a kind without slices has replaced all of its keys. It never falls;
    /// `None` before any time is known.
    #[must_use]
    #[inline]
    pub fn clock(&self) -> Option<Slice> {
        match (&self.exact, &self.filter) {
            (None, Some(filter)) if !self.rules.is_sliced() => Some(filter.expiry_clock()),
            // Keys are counted from the first on.
            _ if self.rules.window.length_ms().is_none() => Some(self.slice().unwrap_or_default()),
            _ => self.slice(),
        }
    }

    /// The oldest [clock](Self::clock) whose keys are still remembered; `None` before any time is known.
    #[must_use]
    pub fn oldest(&self) -> Option<Slice> {
        let lifetime = if self.rules.is_sliced() { self.rules.window.slices() } else { LIFETIMES };
        self.clock().map(|clock| clock.before(lifetime))
    }

    /// What the changelog must say beside the keys; see [`Filter::replay_info`].
    #[must_use]
    pub fn replay_info(&self) -> Option<u64> {
        self.filter.as_ref().and_then(|filter| filter.replay_info())
    }

    /// Comes to the time and the [clock](Self::clock) that the changelog says of the keys which follow. Without a clock only
    /// time passes, as where the changelog was written under other settings.
    pub fn resume(&mut self, time: Option<Timestamp>, clock: Option<Slice>, replay_info: Option<u64>) {
        self.advance(time, Timestamp::MAX);
        let Some(clock) = clock else { return };
        if let Some(filter) = &mut self.filter {
            filter.resume(clock, replay_info);
        }
        if let Some(exact) = &mut self.exact {
            exact.resume(clock);
        }
    }
}

#[cfg(test)]
mod tests;
