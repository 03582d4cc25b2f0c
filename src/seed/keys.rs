//! The keys of one partition and their changelog records.
//!
//! This module never looks up a key in the filter, because a false positive would keep the key out of the changelog. A record with the key
//! would then be emitted as soon as the filter forgets the colliding key.

use crate::changelog::{self, Origin, RECORD_FINGERPRINTS_MAX};
use crate::dedup::{Dedup, Mutation, Rules};
use crate::filter::{ExactError, Slice};
use crate::key::Fingerprint;
use crate::record::Timestamp;

/// A key of a line, and the time when the key was seen or retracted.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    fingerprint: Fingerprint,
    /// Milliseconds since the epoch, or 0 for a window by count.
    time: Timestamp,
    /// Position among the keys of the file, to order sightings with the same time.
    number: u32,
    is_retraction: bool,
}

#[derive(Debug, Default)]
pub(super) struct Keys(Vec<Sighting>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Logged {
    pub(super) keys: u64,
    /// Keys that were skipped because their window had ended by the time of the latest key.
    pub(super) expired: u64,
    /// Keys that the filter forgets too early because it reaches its maximum memory.
    pub(super) evicted: u64,
    pub(super) stream_time: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) enum Failure<E> {
    Memory(ExactError),
    Write(E),
}

impl Keys {
    /// Adds a sighting. Only the latest sighting of a key counts. If two sightings have the same time, the later line counts.
    pub(super) fn add(&mut self, fingerprint: Fingerprint, time: Option<Timestamp>, number: u32, is_retraction: bool) {
        self.0.push(Sighting { fingerprint, time: time.unwrap_or_default(), number, is_retraction });
    }

    /// Keeps the last sighting of each key, sorted by time, and removes retracted keys.
    fn settle(&mut self) {
        self.0.sort_unstable_by_key(|seen| (seen.fingerprint, std::cmp::Reverse((seen.time, seen.number))));
        self.0.dedup_by_key(|seen| seen.fingerprint);
        self.0.retain(|seen| !seen.is_retraction);
        self.0.sort_unstable_by_key(|seen| (seen.time, seen.number));
    }

    /// Writes the changelog records of the keys whose window has not ended by the time of the latest key.
    pub(super) fn log<E>(
        mut self,
        rules: Rules,
        origin: Origin,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Logged, Failure<E>> {
        self.settle();
        let (mut dedup, mut logged) = (Dedup::new(rules), Logged::default());
        let is_timed = rules.window.length_ms().is_some();
        let slice_at = |seen: &Sighting| rules.window.slice_at(seen.time).filter(|_| rules.is_sliced());
        let newest = self.0.last().and_then(slice_at);
        let oldest = newest.map(|newest| newest.before(rules.window.slices()));
        let kept = self.0.iter().position(|seen| slice_at(seen) >= oldest).unwrap_or(0);
        logged.expired = kept as u64;
        let mut part = Part::default();
        for seen in &self.0[kept..] {
            let time = is_timed.then_some(seen.time);
            dedup.resume(time, None, None);
            dedup.apply(Mutation::Insert, seen.fingerprint).map_err(Failure::Memory)?;
            if part.keys.len() == RECORD_FINGERPRINTS_MAX || !part.keys.is_empty() && part.slice != dedup.clock() {
                part.write(origin, write)?;
            }
            if part.keys.is_empty() {
                let replay_info = dedup.replay_info().filter(|_| part.slice != dedup.clock() || logged.keys == 0);
                part = Part { slice: dedup.clock(), replay_info, time: None, keys: std::mem::take(&mut part.keys) };
            }
            part.time = time;
            part.keys.push(seen.fingerprint);
            logged.keys += 1;
        }
        if !part.keys.is_empty() {
            part.write(origin, write)?;
        }
        logged.evicted = dedup.usage().evicted;
        logged.stream_time = dedup.stream_time();
        Ok(logged)
    }
}

/// A changelog record under construction. All its keys are in the same slice.
#[derive(Default)]
struct Part {
    slice: Option<Slice>,
    replay_info: Option<u64>,
    time: Option<Timestamp>,
    keys: Vec<Fingerprint>,
}

impl Part {
    fn write<E>(&mut self, origin: Origin, write: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), Failure<E>> {
        let record = changelog::insertions(origin, self.slice, self.time, self.replay_info, &self.keys);
        self.keys.clear();
        write(&record).map_err(Failure::Write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changelog::{Applier, ChangelogRecord, Outcome};
    use crate::dedup::{Emit, Late};
    use crate::filter::{Demand, Kind, Spec, Window};
    use crate::key::numbered::key;
    use crate::record::Verdict;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    const ORIGIN: Origin = Origin { owner: 1, keys: 2, clock: 3, kind: 4 };
    const HOUR: i64 = 3_600_000;

    fn rules(window: Window, filter: Option<Spec>, exact: bool) -> Rules {
        Rules { window, filter, exact, refresh: false, late: Late::Emit, emit: Emit::First }
    }

    fn kinds(window: Window) -> Vec<Rules> {
        let spec = |kind: Kind, keys, rate| kind.spec(window, &Demand { bytes: 1 << 20, ..Demand::new(keys, rate) });
        let alone = Kind::ALL.iter().map(|&kind| rules(window, spec(kind, 400, 1e-6), kind.is_on_disk()));
        // A filter that is small enough for frequent false positives.
        let small = rules(window, spec(Kind::default(), 20, 0.3), false);
        alone.chain([small, rules(window, spec(Kind::default(), 200, 0.1), true)]).collect()
    }

    fn log(rules: Rules, seen: &[(u64, i64, bool)]) -> (Vec<Vec<u8>>, Logged) {
        let (mut keys, mut records) = (Keys::default(), Vec::new());
        for (number, &(name, time, is_retraction)) in (0..).zip(seen) {
            keys.add(key(name), rules.window.length_ms().map(|_| time), number, is_retraction);
        }
        let logged = keys.log::<Infallible>(rules, ORIGIN, &mut |record| {
            records.push(record.to_vec());
            Ok(())
        });
        (records, logged.ok().unwrap())
    }

    fn state(rules: Rules, records: &[Vec<u8>]) -> Dedup {
        let (mut dedup, mut applier) = (Dedup::new(rules), Applier::new(BTreeMap::new(), ORIGIN, BTreeMap::new(), None, 0));
        for record in records {
            let record = ChangelogRecord::decode(record).unwrap();
            assert!(!applier.continues(&record), "every record must be complete, because a checkpoint may lie between any two");
            assert_eq!(applier.follow(&mut dedup, &record).unwrap(), Outcome::Taken);
        }
        assert_eq!(applier.offsets, BTreeMap::new(), "a seed has no input offsets");
        dedup
    }

    proptest! {
        /// For every kind and any order of lines, a key is seen for one window after its last time. An exact store reports retracted and
        /// unknown keys as unseen.
        #[test]
        fn seeded_keys_are_seen_for_one_window(
            seen in prop::collection::vec((0..60_u64, 0..3 * HOUR, prop::bool::weighted(0.1)), 1..200),
            slices in 1..=4_u32,
            later in 0..HOUR,
        ) {
            let window = Window::time(HOUR, slices);
            let mut last = BTreeMap::new();
            for &(name, time, is_retraction) in &seen {
                let known = last.entry(name).or_insert((time, is_retraction));
                if time >= known.0 {
                    *known = (time, is_retraction);
                }
            }
            for rules in kinds(window) {
                let (records, logged) = log(rules, &seen);
                prop_assert_eq!(logged.keys + logged.expired, last.values().filter(|known| !known.1).count() as u64);
                let Some(newest) = last.values().filter(|known| !known.1).map(|known| known.0).max() else { continue };
                prop_assert_eq!(logged.stream_time, Some(newest));
                let now = newest + later;
                let mut dedup = state(rules, &records);
                // A record with another key advances stream time.
                dedup.judge(key(1_000), Some(now), i64::MAX).unwrap();
                let is_seen = |name: u64| dedup.would_drop(key(name)).unwrap().is_some();
                for (&name, &(time, is_retraction)) in &last {
                    if !is_retraction && now - time <= window.length_ms().unwrap() {
                        prop_assert!(is_seen(name), "{:?}", rules);
                    } else if is_retraction && rules.exact {
                        prop_assert!(!is_seen(name), "{:?}", rules);
                    }
                }
                prop_assert!(!rules.exact || !is_seen(1_001));
            }
        }

        #[test]
        fn a_count_window_remembers_the_last_keys(names in prop::collection::vec(0..100_u64, 1..200), slices in 1..=4_u32, keys in 8..60_u64) {
            let window = Window::keys(keys, slices);
            let seen: Vec<_> = names.iter().map(|&name| (name, 0, false)).collect();
            let mut last: Vec<u64> = Vec::new();
            for name in names.iter().rev() {
                if !last.contains(name) {
                    last.push(*name);
                }
            }
            for rules in kinds(window) {
                let (records, _) = log(rules, &seen);
                let dedup = state(rules, &records);
                for &name in last.iter().take(usize::try_from(keys).unwrap()) {
                    prop_assert!(dedup.would_drop(key(name)).unwrap().is_some(), "{:?}", rules);
                }
            }
        }
    }

    #[test]
    fn a_large_slice_is_split_into_several_records() {
        let window = Window::time(HOUR, 2);
        let rules = rules(window, Kind::default().spec(window, &Demand::new(200_000, 1e-6)), false);
        let seen: Vec<_> = (0..70_000).map(|name| (name, 5, false)).collect();
        let (records, logged) = log(rules, &seen);
        assert_eq!((records.len(), logged.keys), (3, 70_000));
        assert!(records.iter().all(|record| record.len() < 600_000));
        let mut dedup = state(rules, &records);
        assert!((0..70_000).all(|name| dedup.judge(key(name), Some(5), i64::MAX).unwrap() == Verdict::Duplicate));
    }
}
