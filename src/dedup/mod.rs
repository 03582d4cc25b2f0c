//! The dedup state of one partition of one key space: decides a verdict from a fingerprint and a time.
//!
//! Tracks stream time and applies the rules of the window. The same calls in the same order always produce the same verdicts and the same
//! state. For that reason, this module never reads a clock: the caller passes the time of each record and the latest time that may advance
//! stream time.

mod emit;
mod rules;
mod state;
mod watched;

pub use emit::Emit;
pub use rules::{Late, Rules};
pub use state::DedupMetadata;
pub use watched::{Observed, WatchedKeys};

use crate::filter::{ArchiveError, Exact, ExactError, Filter, Slice, Usage};
use crate::key::Fingerprint;
use crate::record::{Timestamp, Verdict};

/// For a `stable` filter without an exact store: the number of average key lifetimes that the changelog covers and that a watched key stays
/// in the sample. The changelog can leave out older keys, because the filter still remembers at most about one in three thousand of them. A
/// rebuilt filter remembers none of them.
const LIFETIMES: u32 = 8;

/// The change that a record made to a state. The changelog stores these changes, and [`Dedup::apply`] repeats them when a state is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The key was inserted, because its record was unseen.
    Insert,
    /// The key was renewed by a duplicate, because [`Rules::refresh`] is set.
    Refresh,
    /// The key was deleted by a retraction.
    Delete,
}

/// The dedup state of one partition.
///
/// Times are in milliseconds since the Unix epoch. A state must get only the records of its partition number, from the topics of its key
/// space. The records of each topic must be in offset order, because the verdicts depend on the order.
///
/// ```
/// use unseen::dedup::{Dedup, Emit, Late, Rules};
/// use unseen::filter::{Demand, Kind, Window};
/// use unseen::key::Fingerprint;
/// use unseen::record::{Timestamp, Verdict};
///
/// let window = Window::time(60_000, 4);
/// let filter = Kind::default().spec(window, &Demand::new(1_000_000, 1e-4));
/// let rules = Rules { window, filter, exact: false, refresh: false, late: Late::Drop, emit: Emit::First };
/// let mut dedup = Dedup::new(rules);
/// let mut judge = |key, time| dedup.judge(key, Some(time), Timestamp::MAX);
///
/// // Fingerprints must be hashes, because filters rely on evenly distributed bits.
/// let a = Fingerprint(0x243f_6a88_85a3_08d3_1319_8a2e_0370_7344);
/// let b = Fingerprint(0xa409_3822_299f_31d0_082e_fa98_ec4e_6c89);
/// assert_eq!(judge(a, 1_000_000)?, Verdict::Unseen);
/// assert_eq!(judge(a, 1_030_000)?, Verdict::Duplicate);
/// assert_eq!(judge(b, 900_000)?, Verdict::Late);
/// assert_eq!(judge(a, 1_200_000)?, Verdict::Unseen, "the window has passed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Dedup {
    rules: Rules,
    filter: Option<Box<dyn Filter>>,
    exact: Option<Exact>,
    /// A sample of the keys, remembered exactly to measure the filter's errors. `None` if there is an exact store, because the filter's
    /// errors then do not affect verdicts.
    watched: Option<WatchedKeys>,
    stream_time: Option<Timestamp>,
    corrected: u64,
    mutation: Option<Mutation>,
}

impl Dedup {
    /// Creates the state of a partition that has seen nothing.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            filter: rules.filter.map(|spec| spec.build(rules.filter_window())),
            exact: rules.exact.then(|| rules.exact_store()),
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

    /// Returns the rules of the state.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Prefetches the memory that judging these keys will read. See [`Filter::prefetch`].
    pub fn prefetch(&mut self, fingerprints: &[Fingerprint]) {
        if let Some(filter) = &mut self.filter {
            filter.prefetch(fingerprints);
        }
    }

    /// Decides the verdict of one record: [`Verdict::Unseen`], [`Verdict::Duplicate`], or [`Verdict::Late`]. If the record is unseen,
    /// inserts its key. If it is a duplicate and [`Rules::refresh`] is set, renews its key.
    ///
    /// `time` is the record's own time in milliseconds, if the record has a time. `max_timestamp` is the latest time that may move the
    /// window. A record with a later time is judged but does not advance stream time, because a broken producer clock must not make the
    /// filter forget everything.
    ///
    /// # Errors
    /// Returns [`ExactError`] if the filter or the exact store cannot store the key, or if the archive cannot be read.
    #[inline]
    pub fn judge(&mut self, fingerprint: Fingerprint, time: Option<Timestamp>, max_timestamp: Timestamp) -> Result<Verdict, ExactError> {
        self.advance(time, max_timestamp);
        self.mutation = None;
        let late = self.rules.late != Late::Emit && self.is_late(time);
        let seen = if late { self.contains(fingerprint)? } else { self.check_and_insert(fingerprint)? };
        if seen {
            // If `late` is true, unseen late records are not emitted and not inserted. So late records do not count toward the measured
            // error rate.
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
        self.watch(|watched, clock| watched.emitted(fingerprint, clock));
        self.mutation = Some(Mutation::Insert);
        Ok(Verdict::Unseen)
    }

    /// Returns the latest record time for [`Dedup::judge_batch`]: the end of the open slice, because no slice expires before that time.
    /// Returns `None` if records must be judged one by one: with `refresh`, with a `stable` filter, in a window by count, if late records
    /// are not emitted, and until the first time is known.
    #[must_use]
    pub fn batch_horizon(&self) -> Option<Timestamp> {
        let Rules { window, refresh, late, filter, .. } = self.rules;
        let is_usual = !refresh && late == Late::Emit && filter.is_none_or(|spec| spec.kind().properties().keeps_window);
        let slice = self.slice().filter(|_| is_usual)?;
        Some(window.start_of(slice.next())?.saturating_sub(1))
    }

    /// Decides records in order, like [`Dedup::judge`]. No record may have a time later than the [batch horizon](Self::batch_horizon).
    /// Replaces the content of `seen` with one entry per record: true for a duplicate, false for an unseen record. If `since` is given,
    /// replaces its content with [`seen_since`](Self::seen_since) for each duplicate and with `None` for each unseen record. This takes
    /// longer.
    ///
    /// # Errors
    /// Returns [`ExactError`] at the first record that cannot be decided. `seen` and `since` then have only the results of the earlier
    /// records.
    pub fn judge_batch(
        &mut self,
        fingerprints: &[Fingerprint],
        times: &[Timestamp],
        seen: &mut Vec<bool>,
        mut since: Option<&mut Vec<Option<Timestamp>>>,
    ) -> Result<(), ExactError> {
        seen.clear();
        if let Some(since) = &mut since {
            since.clear();
        }
        let judged = match (&mut self.filter, &self.exact, &mut since) {
            (Some(filter), None, None) => filter.check_and_insert_each(fingerprints, seen).map_err(ExactError::from),
            (_, _, since) => fingerprints.iter().try_for_each(|&fingerprint| {
                let there = self.check_and_insert(fingerprint)?;
                if let Some(since) = since {
                    // Look up the slice now, because a later record of the batch may insert the key again or make the filter forget the
                    // key.
                    since.push(if there { self.seen_since(fingerprint)? } else { None });
                }
                seen.push(there);
                Ok(())
            }),
        };
        // Like `judge`, advance stream time even for a record that cannot be decided.
        let shown = times.iter().take(seen.len() + usize::from(judged.is_err()));
        self.stream_time = self.stream_time.max(shown.max().copied());
        self.mutation = seen.last().filter(|seen| judged.is_ok() && !**seen).map(|_| Mutation::Insert);
        self.watch(|watched, clock| watched.judged(fingerprints, seen, clock));
        judged
    }

    /// Retracts the key of a record, so that the next record with this key is unseen (except for false positives). With an exact store,
    /// retracting an unknown key deletes nothing. Without an exact store, only a kind of filter with
    /// [`can_retract`](crate::filter::Properties::can_retract) deletes the key. If the key is unknown, such a filter can delete a different
    /// key, with the probability of a false positive. Always returns [`Verdict::Retracted`].
    ///
    /// # Errors
    /// Returns [`ExactError`] if the archive cannot be read.
    pub fn retract(&mut self, fingerprint: Fingerprint, time: Option<Timestamp>, max_timestamp: Timestamp) -> Result<Verdict, ExactError> {
        self.advance(time, max_timestamp);
        self.mutation = self.delete(fingerprint)?.then_some(Mutation::Delete);
        Ok(Verdict::Retracted)
    }

    /// Calls `report` with the watched keys and a function that returns the filter's expiry clock. Does nothing if no keys are watched.
    fn watch(&mut self, report: impl FnOnce(&mut WatchedKeys, &dyn Fn() -> Option<Slice>)) {
        if let (Some(watched), Some(filter)) = (&mut self.watched, &self.filter) {
            let rules = &self.rules;
            report(watched, &|| rules.expiry_clock(&**filter));
        }
    }

    /// Returns true if a key is seen. Otherwise, inserts the key.
    #[inline]
    fn check_and_insert(&mut self, fingerprint: Fingerprint) -> Result<bool, ExactError> {
        // Unless the exact store counts keys for the filter, one call of the filter looks the key up and inserts it.
        let at_once = !self.is_led();
        let maybe = match &mut self.filter {
            None => true,
            Some(filter) if at_once => filter.check_and_insert(fingerprint)?,
            Some(filter) => filter.contains(fingerprint),
        };
        if maybe && self.confirm(fingerprint)? {
            return Ok(true);
        }
        if maybe || !at_once {
            self.insert(fingerprint)?;
        } else if let Some(exact) = &mut self.exact {
            exact.insert(fingerprint)?;
        }
        Ok(false)
    }

    fn contains(&mut self, fingerprint: Fingerprint) -> Result<bool, ExactError> {
        let maybe = self.filter.as_ref().is_none_or(|filter| filter.contains(fingerprint));
        Ok(maybe && self.confirm(fingerprint)?)
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

    /// True if the exact store also counts the keys of a slice for the filter: in a window by count with both an exact store and a filter.
    /// If the filter counted its own keys, its false positives would change the count, and it would forget keys that the exact store still
    /// has.
    const fn is_led(&self) -> bool {
        self.exact.is_some() && self.filter.is_some() && self.rules.window.length_ms().is_none()
    }

    /// Advances the filter to the slice of the exact store, if the exact store counts the keys of a slice for the filter.
    fn follow_slices(&mut self) {
        if self.is_led()
            && let (Some(exact), Some(filter)) = (&self.exact, &mut self.filter)
            && let Some(slice) = exact.slice().filter(|&slice| filter.slice().is_some_and(|own| own < slice))
        {
            filter.resume(slice, None);
        }
    }

    /// Deletes a key. Returns true if the exact store had the key. Without an exact store, always returns true, because a filter cannot
    /// tell whether it had the key.
    fn delete(&mut self, fingerprint: Fingerprint) -> Result<bool, ExactError> {
        let there = match &mut self.exact {
            Some(exact) => exact.remove(fingerprint)?,
            None => true,
        };
        // If there is an exact store, the key is deleted only there, because a filter can delete a different key's copy. The filter keeps
        // reporting the key as seen, and the exact store corrects the filter.
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

    /// Returns true if a key is seen. Called if the filter reports the key as seen, or if there is no filter.
    fn confirm(&mut self, fingerprint: Fingerprint) -> Result<bool, ExactError> {
        let Some(exact) = &self.exact else { return Ok(true) };
        let seen = exact.contains(fingerprint)?;
        self.corrected += u64::from(!seen && self.filter.is_some());
        Ok(seen)
    }

    fn refresh(&mut self, fingerprint: Fingerprint) -> Result<bool, ExactError> {
        // If the exact store has the key in its open slice, the filter has it there as well, and neither has to change.
        let mut changed = self.exact.as_mut().map_or(Ok(true), |exact| exact.refresh(fingerprint))?;
        self.follow_slices();
        if let Some(filter) = self.filter.as_mut().filter(|_| changed) {
            changed = filter.refresh(fingerprint)? || self.exact.is_some();
        }
        self.watch(|watched, clock| watched.inserted_again(fingerprint, true, clock));
        Ok(changed)
    }

    /// Returns `None` if a record with this key would be emitted. If the record would be dropped, returns the slice of the seen key, or
    /// `Some(None)` if the slice is not stored. Does not consider whether the record is late. With [`Emit::OnChange`], ignores the content:
    /// returns `Some` if any content of the key is known.
    ///
    /// # Errors
    /// Returns an error if the archive cannot be read.
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

    /// Returns the start time of a seen key's slice, in milliseconds of record time. `None` if the key is not seen, in a window by count,
    /// if [`Rules::refresh`] is set, and if no record time is known yet. Without an exact store, also `None` if the kind of filter does not
    /// store slices.
    ///
    /// # Errors
    /// Returns an error if the archive cannot be read.
    pub fn seen_since(&self, fingerprint: Fingerprint) -> Result<Option<Timestamp>, ArchiveError> {
        if self.rules.refresh || self.rules.window.length_ms().is_none() {
            return Ok(None);
        }
        // Slice 0 also contains the keys that were inserted before any time was known, so slice 0 does not show a time.
        let slice = self.would_drop(fingerprint)?.flatten().filter(|&slice| slice != Slice::default());
        Ok(slice.and_then(|slice| self.rules.window.start_of(slice)))
    }

    /// For each key whose record would be dropped, sets the entry of `seen` at the same index to true. Leaves the other entries unchanged.
    ///
    /// # Errors
    /// Returns an error if the archive cannot be read.
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

    /// True if a record with this time is older than the window. False in a window by count, and if the record or the state has no time.
    #[must_use]
    pub fn is_late(&self, time: Option<Timestamp>) -> bool {
        match (self.rules.window.length_ms(), self.stream_time, time) {
            (Some(length), Some(stream_time), Some(time)) => stream_time.saturating_sub(time) > length,
            _ => false,
        }
    }

    /// Returns stream time: the largest record time so far that was not too far ahead of the clock, in milliseconds. `None` before the
    /// first such time.
    #[must_use]
    pub const fn stream_time(&self) -> Option<Timestamp> {
        self.stream_time
    }

    /// Returns the number of the current slice. `None` for a `stable` filter without an exact store, and in a window by time until the
    /// first time is known.
    #[must_use]
    pub fn slice(&self) -> Option<Slice> {
        match (&self.exact, &self.filter) {
            (Some(exact), _) => exact.slice(),
            (None, Some(filter)) => filter.slice(),
            (None, None) => None,
        }
    }

    /// Returns the number of keys, the filter's memory, and its load. An exact store without a filter has no filter memory and no planned
    /// size, so `bytes` and `load` are 0.
    #[must_use]
    pub fn usage(&self) -> Usage {
        match (&self.filter, &self.exact) {
            (Some(filter), _) => filter.usage(),
            (None, Some(exact)) => Usage { keys: exact.keys(), open_keys: exact.open_keys(), ..Usage::default() },
            (None, None) => Usage::default(),
        }
    }

    /// Returns the number of keys inserted or renewed since the current slice started. For a `stable` filter without an exact store,
    /// returns the number of keys ever inserted or renewed.
    #[must_use]
    pub fn open_keys(&self) -> u64 {
        self.exact.as_ref().map_or_else(|| self.usage().open_keys, Exact::open_keys)
    }

    /// Returns the number of times that the exact store corrected the filter: false positives and retracted keys that are still in the
    /// filter. Counted since this state was created or restored.
    #[must_use]
    pub const fn corrected(&self) -> u64 {
        self.corrected
    }

    /// Returns the filter's measured errors, from the watched keys, or `None` if there is an exact store. The counts cover about one window
    /// or, for a `stable` filter, about eight average key lifetimes. A rebuild from a changelog adds nothing to the counts, because the
    /// changelog does not contain them.
    #[must_use]
    pub fn observed(&self) -> Option<Observed> {
        let (watched, filter) = (self.watched.as_ref()?, self.filter.as_ref()?);
        Some(watched.observed(self.rules.expiry_clock(&**filter)))
    }

    /// Returns the change that the last judged or retracted record made to the state, if any.
    #[must_use]
    pub const fn mutation(&self) -> Option<Mutation> {
        self.mutation
    }

    /// Applies a change from a changelog to a key.
    ///
    /// # Errors
    /// Returns [`ExactError`] if the filter or the exact store cannot store the key, or if the archive cannot be read.
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

    /// Returns the slice that new keys are inserted into. For a `stable` filter without an exact store, returns the
    /// [`Filter::expiry_clock`] instead. The clock never goes back. Returns `None` in a window by time until the first time is known,
    /// except for a `stable` filter without an exact store.
    #[must_use]
    #[inline]
    pub fn clock(&self) -> Option<Slice> {
        match (&self.exact, &self.filter) {
            (None, Some(filter)) if !self.rules.is_sliced() => Some(filter.expiry_clock()),
            // In a window by count, the clock starts at slice 0 and is never `None`.
            _ if self.rules.window.length_ms().is_none() => Some(self.slice().unwrap_or_default()),
            _ => self.slice(),
        }
    }

    /// Returns the oldest value of the [clock](Self::clock) whose keys may still be remembered, or `None` if the clock is `None`.
    #[must_use]
    pub fn oldest(&self) -> Option<Slice> {
        let lifetime = if self.rules.is_sliced() { self.rules.window.slices() } else { LIFETIMES };
        self.clock().map(|clock| clock.before(lifetime))
    }

    /// Returns the information that the changelog must store in addition to the keys. See [`Filter::replay_info`].
    #[must_use]
    pub fn replay_info(&self) -> Option<u64> {
        self.filter.as_ref().and_then(|filter| filter.replay_info())
    }

    /// Advances the state to the time and the [clock](Self::clock) of the next keys in the changelog. If `clock` is `None`, for example
    /// because the changelog was written with different settings, advances only stream time.
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
