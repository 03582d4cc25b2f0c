//! Promise: a merged filter has seen every key that either filter had seen.

use super::*;
use proptest::prelude::*;
use std::sync::LazyLock;

const WINDOW: Window = Window::Time { slice_ms: 10, slices: 3 };

fn key(number: u64) -> Fingerprint {
    Fingerprint(xxhash_rust::xxh3::xxh3_128(&number.to_le_bytes()))
}

fn aging(capacity: u64) -> Spec {
    Spec::Aging(AgingSizing::new(WINDOW, capacity, 1e-9))
}

fn cuckoo(capacity: u64) -> Spec {
    Spec::Cuckoo(CuckooSizing::new(WINDOW, capacity, 1e-9))
}

fn stable(bytes: u64) -> Spec {
    static PLAN: LazyLock<StableSizing> = LazyLock::new(|| StableSizing::new(1 << 20, 1e-3));
    Spec::Stable(if bytes == 1 << 20 { *PLAN } else { StableSizing::new(bytes, 1e-3) })
}

/// A filter into which keys were inserted at given times.
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
    fn a_merged_filter_has_seen_the_keys_of_both(ours in keys(), theirs in keys(), kind in 0..2_u8) {
        // Small enough to chain now and then.
        let spec = if kind == 0 { aging(60) } else { cuckoo(60) };
        let (mut own, other) = (filter_with(spec, &ours), filter_with(spec, &theirs));
        if own.union(&*other).is_err() {
            // Layers of different depths have the same shapes, so only a filter without a time is rejected.
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
        // The merged state can be stored and restored like any other.
        let mut again = spec.restore(WINDOW, &own.metadata()).unwrap();
        let pages = stored(&mut *own);
        for (id, bytes) in &pages {
            again.read_page(*id, bytes).unwrap();
        }
        prop_assert!(stored(&mut *again) == pages);
    }
}

#[test]
fn stable_cells_are_merged() {
    let (ours, theirs): (Vec<_>, Vec<_>) = ((0..500).map(|number| (number, 0)).collect(), (500..1_000).map(|number| (number, 0)).collect());
    let (mut own, other) = (filter_with(stable(1 << 20), &ours), filter_with(stable(1 << 20), &theirs));
    own.union(&*other).unwrap();
    assert!((0..1_000).all(|number| own.contains(key(number))));
    assert_eq!(own.usage().open_keys, 1_000);
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
    assert_eq!(refused(aging(60), cuckoo(60)), "the filters are of different kinds");
    assert_eq!(refused(stable(1 << 20), aging(60)), "the filters are of different kinds");
    for (own, other) in [(aging(60), aging(6_000)), (cuckoo(60), cuckoo(6_000)), (stable(1 << 20), stable(1 << 14))] {
        assert!(refused(own, other).starts_with("the filters differ in size"));
    }
    let longer = Window::Time { slice_ms: 10, slices: 4 };
    let other = Spec::Aging(AgingSizing::new(longer, 60, 1e-9));
    assert_eq!(refused_in((WINDOW, aging(60)), (longer, other)), "the windows differ in length or number of slices");
    let counted = Window::keys(30, 3);
    let counted = (counted, Spec::Aging(AgingSizing::new(counted, 30, 1e-9)));
    assert_eq!(refused_in(counted, counted), "windows by count cannot be merged, because each counts its own keys");
}
