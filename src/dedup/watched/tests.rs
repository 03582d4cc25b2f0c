//! Promise: if all keys are watched, the counts are exact. Otherwise, the confidence interval contains the true rate.

use super::*;
use crate::dedup::{Dedup, Emit, Late, Rules};
use crate::filter::{AgingSizing, AtMaxMemory, Demand, Growth, Kind, Spec, Window};
use crate::key::numbered::key;
use crate::record::Verdict;
use proptest::prelude::*;
use std::collections::HashMap;

fn rules(window: Window, filter: Spec) -> Rules {
    Rules { window, filter: Some(filter), exact: false, refresh: false, late: Late::Emit, emit: Emit::First }
}

/// A filter of fixed size, which a stream can overfill.
fn fixed(window: Window, keys: u64, rate: f64) -> Spec {
    let plan = AgingSizing::new(window, keys, rate);
    let growth = Growth { adapt: false, max_bytes: Some(plan.bytes(window)), at_max: AtMaxMemory::Saturate };
    Spec::Aging(plan.with_growth(growth))
}

fn kinds() -> Vec<Kind> {
    Kind::ALL.iter().copied().filter(|kind| kind.properties().keeps_window && !kind.is_on_disk()).collect()
}

proptest! {
    #[test]
    fn if_all_keys_are_watched_every_wrong_key_is_counted_once(
        slices in 1..4_u32,
        kind in prop::sample::select(kinds()),
        is_fixed: bool,
        arrivals in prop::collection::vec((0..400_u64, 0..6_i64), 1..2_000),
    ) {
        let window = Window::time(400, slices);
        let filter = if is_fixed { fixed(window, 60, 0.05) } else { kind.spec(window, &Demand::new(60, 0.05)).unwrap() };
        let mut dedup = Dedup::new(rules(window, filter));
        let (mut clock, mut last, mut slice_of) = (0, HashMap::<u64, (i64, bool)>::new(), 0);
        let mut counts = Vec::new();
        let ms = match window { Window::Time { slice_ms, .. } => slice_ms, Window::Keys { .. } => unreachable!() };
        for (number, step) in arrivals {
            clock += step;
            slice_of = clock / ms;
            let oldest = slice_of - i64::from(slices);
            let known = last.get(&number).copied().filter(|&(slice, _)| slice >= oldest);
            match dedup.judge(key(number), Some(clock), i64::MAX).unwrap() {
                Verdict::Unseen => {
                    if known.is_none_or(|(_, wrong)| wrong) {
                        counts.push((slice_of, false));
                    }
                    last.insert(number, (slice_of, false));
                }
                _ if known.is_none() => {
                    counts.push((slice_of, true));
                    last.insert(number, (slice_of, true));
                }
                _ => {}
            }
        }
        let within = counts.iter().filter(|(slice, _)| *slice >= slice_of - i64::from(slices));
        let (mut checked, mut wrong) = (0, 0);
        within.for_each(|(_, is_wrong)| { checked += 1; wrong += u64::from(*is_wrong); });
        prop_assert_eq!(dedup.observed().unwrap(), Observed { checked, wrong });
        let metadata = dedup.metadata();
        let text = serde_json::to_string(&metadata).unwrap();
        prop_assert_eq!(serde_json::from_str::<crate::dedup::DedupMetadata>(&text).unwrap(), metadata);
    }
}

/// Returns the true share of distinct unseen keys that a filter drops, the measured share, and the number of watched keys.
fn rates(filter: Spec, window: Window, keys: std::ops::Range<u64>) -> (f64, Observed, u64) {
    let mut dedup = Dedup::new(rules(window, filter));
    let is_wrong = |number: &u64| dedup.judge(key(*number), Some(0), i64::MAX).unwrap() == Verdict::Duplicate;
    let (all, wrong) = (keys.end - keys.start, keys.filter(is_wrong).count());
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    let rate = wrong as f64 / all as f64;
    (rate, dedup.observed().unwrap(), dedup.watched.map_or(0, |watched| watched.keys.len() as u64))
}

#[test]
fn the_observed_interval_contains_the_true_rate() {
    let (window, capacity) = (Window::time(1_000, 4), 30_000);
    let overfilled = [1, 3].map(|overfill| (overfill, fixed(window, 4 * capacity, 0.05)));
    let demand = Demand { bytes: 20_000, ..Demand::new(capacity, 0.05) };
    let of_kinds = Kind::ALL.iter().filter_map(|kind| Some((1, kind.spec(window, &demand)?)));
    for (overfill, filter) in overfilled.into_iter().chain(of_kinds) {
        let keys = overfill * capacity;
        let rounds = 60;
        let covered = (0..rounds).filter(|round| {
            let (truth, observed, watched) = rates(filter, window, round * keys..(round + 1) * keys);
            let (low, high) = observed.interval();
            assert!(observed.checked < keys / 8 && watched <= KEYS_MIN * OVERFULL, "{observed:?} {watched}");
            // An overfull filter that cannot grow is far above its target rate, and the interval must show the excess.
            assert_eq!(low > 0.05, overfill > 1, "{observed:?}");
            (low..=high).contains(&truth)
        });
        // If the intervals are correct at 95 %, fewer than 51 hits in 60 rounds are very unlikely.
        let covered = covered.count();
        assert!(covered >= 51, "{covered} of {rounds} intervals hold the true rate of {filter:?}");
    }
}

#[test]
fn the_sample_is_bounded_for_any_number_of_keys() {
    let window = Window::time(1_000, 1);
    let (_, observed, watched) = rates(fixed(window, 2_000, 0.01), window, 0..100_000);
    assert!(watched <= KEYS_MIN * OVERFULL, "{watched}");
    assert!(observed.checked > 2_000);
}

#[test]
fn intervals_match_the_wilson_formula() {
    let close = |got: (f64, f64), want: (f64, f64)| (got.0 - want.0).abs() < 5e-4 && (got.1 - want.1).abs() < 5e-4;
    // Computed by hand from the formula. The values are also in Newcombe, "Two-sided confidence intervals for the single proportion", 1998.
    assert!(close(Observed { checked: 263, wrong: 81 }.interval(), (0.2553, 0.3662)));
    assert!(close(Observed { checked: 148, wrong: 15 }.interval(), (0.0624, 0.1605)));
    assert!(close(Observed { checked: 20, wrong: 0 }.interval(), (0.0, 0.1611)));
    assert!(close(Observed { checked: 29, wrong: 1 }.interval(), (0.0061, 0.1718)));
    assert_eq!(Observed::default().interval(), (0.0, 1.0));
    assert_eq!(Observed::default().rate(), None);
}

#[test]
fn a_state_rebuilt_from_a_changelog_watches_the_same_keys() {
    let window = Window::time(1_000, 4);
    let filter = Spec::Aging(AgingSizing::new(window, 1 << 17, 1e-9));
    let (mut live, mut made) = (Dedup::new(rules(window, filter)), Dedup::new(rules(window, filter)));
    for number in 0..20_000 {
        let time = i64::try_from(number).unwrap() / 4;
        assert_eq!(live.judge(key(number), Some(time), i64::MAX).unwrap(), Verdict::Unseen);
        made.resume(Some(time), None, None);
        made.apply(live.mutation().unwrap(), key(number)).unwrap();
    }
    let (live, made) = (live.watched.unwrap(), made.watched.unwrap());
    assert!(live.keys.len() > 40, "{}", live.keys.len());
    assert_eq!(live.keys, made.keys);
    assert_eq!(made.observed(None), Observed::default(), "a rebuilt state has observed no drops");
}

#[test]
fn a_retracted_key_is_not_expected() {
    let window = Window::time(1_000, 1);
    let retracts = kinds().into_iter().filter(|kind| kind.properties().can_retract);
    for mut dedup in retracts.map(|kind| Dedup::new(rules(window, kind.spec(window, &Demand::new(100, 1e-6)).unwrap()))) {
        for _ in 0..3 {
            assert_eq!(dedup.judge(key(1), Some(0), i64::MAX).unwrap(), Verdict::Unseen);
            dedup.retract(key(1), Some(0), i64::MAX).unwrap();
        }
        assert_eq!(dedup.observed().unwrap(), Observed { checked: 3, wrong: 0 });
    }
}

/// A burst reduces the share. When the burst's keys have expired, the share grows back. No key from before the burst is mistaken for a
/// wrongly dropped key.
#[test]
fn after_a_burst_the_share_grows_back() {
    let window = Window::time(1_000, 1);
    let filter = Spec::Aging(AgingSizing::new(window, 1 << 17, 1e-12));
    let mut dedup = Dedup::new(rules(window, filter));
    let share = |dedup: &Dedup| dedup.watched.as_ref().map(|watched| watched.halvings);
    let (mut number, before) = (0, share(&dedup));
    for slice in 0..40_i64 {
        // Slices 5 to 7 have twenty times the keys. Each key occurs twice, and again in the next slice unless that slice has a different
        // number of keys.
        let keys = if (5..8).contains(&slice) { 400_000 } else { 20_000 };
        for at in number..number + keys {
            let time = Some(slice * 1_000);
            assert_eq!(dedup.judge(key(at), time, i64::MAX).unwrap(), Verdict::Unseen);
            assert_eq!(dedup.judge(key(at), time, i64::MAX).unwrap(), Verdict::Duplicate);
            if slice != 5 && slice != 8 && slice > 0 {
                assert_eq!(dedup.judge(key(at - keys), time, i64::MAX).unwrap(), Verdict::Duplicate);
            }
        }
        number += keys;
        assert_eq!(dedup.observed().unwrap().wrong, 0, "in slice {slice}");
        if slice == 8 {
            assert!(share(&dedup) > before, "the burst did not change the share");
            let text = serde_json::to_string(&dedup.metadata()).unwrap();
            assert_eq!(serde_json::from_str::<crate::dedup::DedupMetadata>(&text).unwrap(), dedup.metadata());
        }
    }
    assert_eq!(share(&dedup), before);
}
