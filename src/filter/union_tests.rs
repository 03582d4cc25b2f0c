//! Promise: a merged filter has seen every key that either filter had seen, if the key is still within the window.

use super::*;
use crate::key::numbered::key;
use proptest::prelude::*;

const WINDOW: Window = Window::Time { slice_ms: 10, slices: 3 };

fn specs(window: Window, keys: u64, keep_window: bool) -> Vec<Spec> {
    let demand = Demand { bytes: keys * 1_000, ..Demand::new(keys, 1e-9) };
    let kinds = Kind::ALL.iter().filter(|kind| kind.properties().keeps_window || !keep_window);
    kinds.filter_map(|kind| kind.spec(window, &demand)).collect()
}

fn filter_with(spec: Spec, keys: &[(u64, i64)]) -> Box<dyn Filter> {
    filter_with_window(WINDOW, spec, keys)
}

fn filter_with_window(window: Window, spec: Spec, keys: &[(u64, i64)]) -> Box<dyn Filter> {
    let mut filter = spec.build(window);
    for &(number, time) in keys {
        filter.advance(time);
        filter.insert(key(number)).unwrap();
    }
    filter
}

fn stored(filter: &mut dyn Filter) -> Vec<(PageId, Vec<u8>)> {
    filter.mark_stale();
    let page = |id| {
        let mut bytes = Vec::new();
        filter.write_page(id, &mut bytes);
        (id, bytes)
    };
    filter.dirty_pages().into_iter().map(page).collect()
}

fn keys() -> impl Strategy<Value = Vec<(u64, i64)>> {
    prop::collection::vec((0..300_u64, 0..60_i64), 0..120).prop_map(|mut keys| {
        keys.sort_by_key(|&(_, time)| time);
        keys
    })
}

proptest! {
    #[test]
    fn a_merged_filter_has_seen_the_keys_of_both(ours in keys(), theirs in keys(), spec in prop::sample::select(specs(WINDOW, 60, true))) {
        // The filters have room for 60 keys, so some of them chain layers.
        let (mut own, other) = (filter_with(spec, &ours), filter_with(spec, &theirs));
        if own.union(&*other).is_err() {
            // A merge of two filters with keys must not fail: both have the same spec and `adapt` is off, so layers of the same depth have
            // the same layout.
            prop_assert!(ours.is_empty() || theirs.is_empty());
            return Ok(());
        }
        let newest = ours.iter().chain(&theirs).map(|&(_, time)| time).max().unwrap_or(0);
        let kept = |time: i64| time.div_euclid(10) >= newest.div_euclid(10) - 3;
        for &(number, time) in ours.iter().chain(&theirs) {
            prop_assert!(!kept(time) || own.contains(key(number)), "{number} at {time} of {newest}");
        }
        for number in 0..300 {
            let there = ours.iter().chain(&theirs).any(|&(other, time)| other == number && kept(time));
            prop_assert_eq!(own.contains(key(number)), there, "{}", number);
        }
        let mut again = spec.restore(WINDOW, &own.metadata()).unwrap();
        let pages = stored(&mut *own);
        for (id, bytes) in &pages {
            again.read_page(*id, bytes).unwrap();
        }
        prop_assert!(stored(&mut *again) == pages);
    }
}

#[test]
fn filters_of_every_kind_are_merged() {
    let (ours, theirs): (Vec<_>, Vec<_>) = ((0..500).map(|number| (number, 0)).collect(), (500..1_000).map(|number| (number, 0)).collect());
    for spec in specs(WINDOW, 20_000, false) {
        let (mut own, other) = (filter_with(spec, &ours), filter_with(spec, &theirs));
        own.union(&*other).unwrap();
        assert!((0..1_000).all(|number| own.contains(key(number))), "{spec:?}");
        let usage = own.usage();
        assert!(usage.open_keys == 1_000 || spec.kind().properties().keeps_window, "{spec:?}: {usage:?}");
    }
}

#[test]
fn incompatible_filters_are_rejected_with_a_message() {
    let refused_in = |(own_window, own): (Window, Spec), (other_window, other): (Window, Spec)| {
        let (mut own, other) = (filter_with_window(own_window, own, &[(1, 0)]), filter_with_window(other_window, other, &[(2, 0)]));
        let before = stored(&mut *own);
        let sentence = own.union(&*other).unwrap_err().to_string();
        assert!(stored(&mut *own) == before, "a failed merge changed the filter");
        sentence
    };
    let refused = |own: Spec, other: Spec| refused_in((WINDOW, own), (WINDOW, other));
    for own in specs(WINDOW, 60, false) {
        for other in specs(WINDOW, 6_000, false) {
            let expected = if own.kind() == other.kind() { "the filters differ in size" } else { "the filters are of different kinds" };
            assert!(refused(own, other).starts_with(expected), "{own:?}, {other:?}");
        }
    }
    let (longer, counted) = (Window::Time { slice_ms: 10, slices: 4 }, Window::keys(30, 3));
    for (own, other) in specs(WINDOW, 60, true).into_iter().zip(specs(longer, 60, true)) {
        assert_eq!(refused_in((WINDOW, own), (longer, other)), "the windows differ in kind, length, or number of slices");
    }
    for own in specs(counted, 30, true) {
        assert_eq!(refused_in((counted, own), (counted, own)), "windows by count cannot be merged, because each counts its own keys");
    }
}
