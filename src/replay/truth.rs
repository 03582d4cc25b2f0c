//! An exact window alongside the filter, to detect errors of the filter.
//!
//! Keeps each emitted key until the key's slice leaves the window. This module never relies on the contents of the filter, because they may
//! be wrong.

use crate::dedup::{Dedup, Emit, Rules};
use crate::filter::Window;
use crate::key::Fingerprint;
use crate::record::Verdict;
use std::collections::HashMap;

/// Errors of the filter, counted with an exact window. See [`Options::truth`](super::Options::truth).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records whose key an exact window does not remember, except for retractions. Each of them could have become a false positive.
    pub unseen: u64,
    /// Unseen records that the filter reported as duplicates.
    pub false_positives: u64,
    /// Records that were emitted although their key had been emitted within the window.
    pub false_negatives: u64,
}

impl Counts {
    /// Returns the share of unseen records that were false positives, from 0 to 1. Returns 0 if there are no unseen records.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn rate(self) -> f64 {
        if self.unseen == 0 { 0.0 } else { self.false_positives as f64 / self.unseen as f64 }
    }

    /// Adds the counts of another partition or rule.
    pub fn add(&mut self, other: Self) {
        self.unseen += other.unseen;
        self.false_positives += other.false_positives;
        self.false_negatives += other.false_negatives;
    }
}

/// The exact window of one partition. In a window by time, a position is a stream time in milliseconds. In a window by count, a position is
/// the index of a key in the order of insertion.
#[derive(Debug)]
pub(super) struct Truth {
    refresh: bool,
    emit: Emit,
    /// True for a window by count.
    counted: bool,
    slice: i64,
    window: i64,
    /// Current position of the window, or `None` before the first time or key.
    position: Option<i64>,
    /// For each key, the position and the content of the last record that was emitted or that refreshed the key. The position is `None` if
    /// the partition had no record time yet.
    emitted: HashMap<Fingerprint, (Option<i64>, u64)>,
    counts: Counts,
}

impl Truth {
    pub(super) fn new(rules: Rules) -> Self {
        let (counted, slice) = match rules.window {
            Window::Time { slice_ms, .. } => (false, slice_ms),
            Window::Keys { slice_keys, .. } => (true, i64::try_from(slice_keys).unwrap_or(i64::MAX)),
        };
        let window = slice.saturating_mul(i64::from(rules.window.slices()));
        Self {
            refresh: rules.refresh,
            emit: rules.emit,
            counted,
            slice,
            window,
            position: None,
            emitted: HashMap::new(),
            counts: Counts::default(),
        }
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Checks a verdict right after `dedup` returned it. Returns true if the verdict is a false positive.
    pub(super) fn check(&mut self, fingerprint: Fingerprint, verdict: Verdict, dedup: &Dedup) -> bool {
        let after = self.position_of(dedup);
        // In a window by count, an inserted key advances the position, but only after its own verdict.
        let evaluated_at = if self.counted { self.position } else { after };
        self.advance(evaluated_at);
        let (key, content) = (self.emit.key_of(fingerprint), self.emit.content_of(fingerprint));
        let emitted = self.emitted.get(&key).filter(|(_, last)| *last == content).map(|&(at, _)| at);
        let remembered = emitted.is_some_and(|at| self.remembers(at));
        let is_wrong = !remembered && verdict == Verdict::Duplicate;
        self.counts.unseen += u64::from(!remembered && verdict != Verdict::Retracted);
        self.counts.false_positives += u64::from(is_wrong);
        let promised = emitted.is_some_and(|at| self.age(at) <= self.window);
        self.counts.false_negatives += u64::from(promised && verdict == Verdict::Unseen);
        self.advance(after);
        if verdict == Verdict::Retracted {
            self.emitted.remove(&key);
        } else if verdict == Verdict::Unseen || (verdict == Verdict::Duplicate && self.refresh && remembered) {
            self.emitted.insert(key, (self.position, content));
        }
        is_wrong
    }

    /// Updates the position after `dedup` evaluated a record with a different key.
    pub(super) fn pass(&mut self, dedup: &Dedup) {
        self.advance(self.position_of(dedup));
    }

    fn position_of(&self, dedup: &Dedup) -> Option<i64> {
        if !self.counted {
            return dedup.stream_time();
        }
        // Every slice before the open slice is full, so it has `slice` keys. `stable` has no slices and counts all keys as open.
        let slice = dedup.slice().unwrap_or_default().0;
        let open = i64::try_from(dedup.open_keys()).unwrap_or(i64::MAX);
        Some(slice.saturating_mul(self.slice).saturating_add(open) - 1).filter(|&last| last >= 0)
    }

    /// Advances the position and removes keys whose slice has left the window.
    fn advance(&mut self, position: Option<i64>) {
        if self.position.is_none() && position.is_some() {
            // Keys that were emitted before the first record time count as emitted at that time.
            self.emitted.values_mut().for_each(|(at, _)| *at = position);
        }
        let turned = self.slice_of(position) != self.slice_of(self.position);
        self.position = position;
        if turned {
            let mut emitted = std::mem::take(&mut self.emitted);
            emitted.retain(|_, (at, _)| self.remembers(*at));
            self.emitted = emitted;
        }
    }

    fn slice_of(&self, position: Option<i64>) -> i64 {
        position.unwrap_or(0).div_euclid(self.slice)
    }

    /// True if the slice of position `at` has not left the window.
    fn remembers(&self, at: Option<i64>) -> bool {
        self.slice_of(self.position).saturating_sub(self.slice_of(at)) <= self.window / self.slice
    }

    fn age(&self, at: Option<i64>) -> i64 {
        self.position.unwrap_or(0).saturating_sub(at.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedup::Late;
    use crate::filter::{AgingSizing, Demand, Kind, Spec};
    use crate::record::Verdict::{Duplicate, Unseen};

    /// Judges each key to advance `dedup` but checks the given verdict instead of the verdict of `dedup`.
    fn counted(window: Window, stream: &[(u128, i64, Verdict)]) -> Counts {
        let rules = Rules {
            window,
            filter: Some(Spec::Aging(AgingSizing::new(window, 100, 1e-9))),
            exact: false,
            refresh: false,
            late: Late::Emit,
            emit: Emit::First,
        };
        let (mut dedup, mut truth) = (Dedup::new(rules), Truth::new(rules));
        for &(key, time, verdict) in stream {
            dedup.judge(Fingerprint(key << 100 | key << 40), Some(time), i64::MAX).unwrap();
            truth.check(Fingerprint(key), verdict, &dedup);
        }
        truth.counts()
    }

    #[test]
    fn wrong_verdicts_are_counted() {
        let window = Window::time(100, 1);
        let counts = |unseen, false_positives, false_negatives| Counts { unseen, false_positives, false_negatives };
        assert_eq!(counted(window, &[(1, 0, Unseen), (1, 100, Duplicate), (1, 200, Unseen)]), counts(2, 0, 0));
        assert_eq!(counted(window, &[(1, 0, Duplicate), (1, 0, Unseen)]), counts(2, 1, 0));
        assert_eq!(counted(window, &[(1, 0, Unseen), (1, 100, Unseen)]), counts(1, 0, 1));
        assert_eq!(counted(window, &[(1, 0, Unseen), (1, 200, Duplicate)]), counts(2, 1, 0));
        // The filter may remember a key that is older than the window until the key's whole slice has left the window. Both verdicts on
        // such a key are correct.
        assert_eq!(counted(window, &[(1, 0, Unseen), (1, 199, Duplicate)]), counts(1, 0, 0));
        assert_eq!(counted(window, &[(1, 0, Unseen), (1, 199, Unseen)]), counts(1, 0, 0));
    }

    /// With `confirm`, the exact store decides and counts the keys, so false positives of the filter cause no errors.
    #[test]
    fn a_confirmed_filter_has_no_errors() {
        let window = Window::keys(60, 4);
        let plan = AgingSizing::new(window, 60, 0.3);
        let filter = Some(Spec::Aging(plan));
        let rules = Rules { window, filter, exact: true, refresh: true, late: Late::Emit, emit: Emit::First };
        let (mut dedup, mut truth) = (Dedup::new(rules), Truth::new(rules));
        for step in 0..20_000_u64 {
            let fingerprint = Fingerprint(xxhash_rust::xxh3::xxh3_128(&(step * step % 997 % 120).to_le_bytes()));
            let verdict = dedup.judge(fingerprint, None, i64::MAX).unwrap();
            truth.check(fingerprint, verdict, &dedup);
        }
        assert_eq!((truth.counts().false_positives, truth.counts().false_negatives), (0, 0));
    }

    #[test]
    fn the_window_of_a_stable_filter_moves_by_count() {
        let window = Window::keys(40, 4);
        let filter = Kind::Stable.spec(window, &Demand::new(40, 1e-3));
        let rules = Rules { window, filter, exact: false, refresh: false, late: Late::Emit, emit: Emit::First };
        let (mut dedup, mut truth) = (Dedup::new(rules), Truth::new(rules));
        for step in 0..1_000_u64 {
            let fingerprint = Fingerprint(xxhash_rust::xxh3::xxh3_128(&step.to_le_bytes()));
            let verdict = dedup.judge(fingerprint, None, i64::MAX).unwrap();
            truth.check(fingerprint, verdict, &dedup);
        }
        assert!(truth.emitted.len() <= 50, "forgotten keys take no memory");
        let wrong = truth.check(Fingerprint(xxhash_rust::xxh3::xxh3_128(&0_u64.to_le_bytes())), Duplicate, &dedup);
        assert!(wrong, "the window has passed");
    }

    #[test]
    fn forgotten_keys_take_no_memory() {
        let window = Window::time(100, 1);
        let rules = Rules {
            window,
            filter: Some(Spec::Aging(AgingSizing::new(window, 100, 1e-9))),
            exact: false,
            refresh: false,
            late: Late::Emit,
            emit: Emit::First,
        };
        let (mut dedup, mut truth) = (Dedup::new(rules), Truth::new(rules));
        for key in 0..10_000_u128 {
            let time = i64::try_from(key).unwrap();
            let verdict = dedup.judge(Fingerprint(key << 100 | key << 40), Some(time), i64::MAX).unwrap();
            truth.check(Fingerprint(key), verdict, &dedup);
        }
        assert!(truth.emitted.len() <= 200);
    }
}
