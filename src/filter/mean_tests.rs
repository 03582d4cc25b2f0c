//! The mean over a window matches the formulas, in a stream that has exactly the planned keys. Every key is new. Each key is
//! looked up and inserted, and a share of the keys is reported as seen.
#![expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]

use super::*;
use xxhash_rust::xxh3::xxh3_128;

/// Number of keys per window, both planned and actual.
const KEYS: u64 = 100_000;
/// Number of warm-up windows until the filter is steady, and number of windows that are counted.
const BEFORE: u64 = 3;
const COUNTED: u64 = 12;

fn time(slices: u32) -> Window {
    Window::Time { slice_ms: 1, slices }
}

/// Returns the share of new keys that were reported as seen, and the memory at the end.
fn measured(spec: Spec, window: Window) -> (f64, u64) {
    let mut filter = spec.build(window);
    let (slice_keys, begin, end) = (KEYS.div_ceil(window.slices().into()), BEFORE * KEYS, (BEFORE + COUNTED) * KEYS);
    let mut wrong = 0;
    for number in 0..end {
        filter.advance((number / slice_keys).cast_signed());
        let seen = filter.check_and_insert(Fingerprint(xxh3_128(&number.to_le_bytes()))).unwrap();
        wrong += u64::from(seen && number >= begin);
    }
    (wrong as f64 / (end - begin) as f64, filter.usage().bytes)
}

/// Compares the measured rate with the formula, allowing for chance (one in a thousand on either side). The measured rate may
/// also be lower by a share of `rate`, because a key that is reported as seen is not inserted, so slices hold slightly fewer keys
/// than planned.
fn assert_mean(what: &str, spec: Spec, window: Window, mean: f64) -> u64 {
    let (found, bytes) = measured(spec, window);
    let noise = 3.09 * (mean / (COUNTED * KEYS) as f64).sqrt();
    println!("{what}: {found:.3e} measured, {mean:.3e} computed, {:+.1} %", (found / mean - 1.0) * 100.0);
    assert!((mean * 0.93 - noise..mean * 1.02 + noise).contains(&found), "{what}: {found:.3e}, computed {mean:.3e}");
    bytes
}

/// An aging filter's sizing for this window and peak rate.
fn aging(window: Window, peak: f64, growth: Growth) -> AgingSizing {
    AgingSizing::new(window, KEYS, peak).with_growth(growth)
}

const FIXED: Growth = Growth { adapt: false, max_bytes: None, at_max: AtMaxMemory::Stop };
const ADAPTS: Growth = Growth { adapt: true, ..FIXED };

#[test]
fn the_mean_of_an_aging_filter_is_computed() {
    let by_count = Window::keys(KEYS, 4);
    for (what, window, growth) in [
        ("aging, 4 slices", time(4), FIXED),
        ("aging, 1 slice", time(1), FIXED),
        ("aging, 4 slices that adapt", time(4), ADAPTS),
        ("aging, 16 slices that adapt", time(16), ADAPTS),
        ("aging, by count", by_count, ADAPTS),
        ("aging, no room to adapt", time(4), Growth { max_bytes: Some(aging(time(4), 1e-2, FIXED).bytes(time(4))), ..ADAPTS }),
    ] {
        let sizing = aging(window, 1e-2, growth);
        let bytes = assert_mean(what, Spec::Aging(sizing), window, sizing.mean_rate(window)) as f64 / sizing.bytes(window) as f64;
        let grows = growth == ADAPTS && window.length_ms().is_some();
        assert!((bytes - if grows { 1.125 } else { 1.0 }).abs() < 0.01, "{what}: {bytes} times the memory");
    }
}

#[test]
fn an_aging_filter_is_sized_by_its_mean() {
    for (what, window, growth) in [
        ("aging, 4 slices", time(4), FIXED),
        ("aging, 4 slices that adapt", time(4), ADAPTS),
        ("aging, 1 slice that adapts", time(1), ADAPTS),
        ("aging, by count", Window::keys(KEYS, 4), ADAPTS),
    ] {
        let peak = AgingSizing::peak_of_mean(window, KEYS, 1e-2, growth);
        let sizing = aging(window, peak, growth);
        assert!((sizing.mean_rate(window) / 1e-2 - 1.0).abs() < 0.03, "{what}: {}", sizing.mean_rate(window));
        assert_mean(&format!("{what}, peak {peak:.2e}"), Spec::Aging(sizing), window, 1e-2);
        assert!(sizing.bytes(window) < aging(window, 1e-2, growth).bytes(window));
    }
}

#[test]
fn room_for_larger_slices_saves_memory() {
    let window = time(4);
    let bounded = |max_bytes| {
        let growth = Growth { max_bytes, ..ADAPTS };
        let sizing = aging(window, AgingSizing::peak_of_mean(window, KEYS, 1e-4, growth), growth);
        assert!(sizing.mean_rate(window) <= 1e-4, "{max_bytes:?}: {}", sizing.mean_rate(window));
        sizing.bytes(window)
    };
    let roomy = bounded(None);
    let with_room = roomy * 9 / 8 + 64 * 5;
    let full = bounded(Some(roomy));
    assert!(roomy < full && full < with_room, "{roomy}, {full}, {with_room}");
    // As soon as there is enough room, the filter is as small as without a limit.
    for (most, expected) in [(full, full), (with_room - 64 * 10, full), (with_room, roomy), (with_room + 1_000, roomy), (2 * full, roomy)] {
        assert_eq!(bounded(Some(most)), expected, "{most}");
    }
}

#[test]
fn the_mean_of_a_cuckoo_filter_is_computed_and_sized_by() {
    // At some rates, a bit is saved. At others, none is.
    for (slices, rate, saved) in [(4, 1e-2, 0), (4, 1.4e-2, 1), (1, 1e-2, 0), (1, 1.3e-2, 1), (64, 1e-2, 0)] {
        let window = time(slices);
        let sizing = CuckooSizing::new(window, KEYS, rate);
        let what = format!("cuckoo, {slices} slices, {rate:e}");
        let bytes = assert_mean(&what, Spec::Cuckoo(sizing), window, sizing.mean_rate(window));
        let by_mean = CuckooSizing::new(window, KEYS, CuckooSizing::peak_of_mean(window, KEYS, rate));
        let fewer = assert_mean(&format!("{what}, by its mean"), Spec::Cuckoo(by_mean), window, by_mean.mean_rate(window));
        assert!(by_mean.mean_rate(window) <= rate, "{what}");
        let bits = ((bytes - fewer) * 8) as f64 / (sizing.capacity as f64 / 0.95);
        assert!((bits - f64::from(saved)).abs() < 0.01, "{what}: {bits} bits a slot");
        assert!(saved > 0 || sizing == by_mean, "nothing is paid where nothing is gained");
    }
}

#[test]
fn the_mean_of_a_stable_filter_is_its_peak() {
    let sizing = StableSizing::new(40_000, 1e-2);
    assert_mean("stable", Spec::Stable(sizing), time(4), sizing.predict(f64::INFINITY).rate);
}

#[test]
fn what_was_sized_by_its_peak_goes_on_by_its_mean_and_back() {
    // The effect is the same as with a different rate: stored layers stay unchanged, and new layers have the new size.
    let window = time(4);
    let rate = 1.4e-2;
    let cuckoo = |peak| Spec::Cuckoo(CuckooSizing::new(window, KEYS, peak));
    let kinds = [
        [rate, AgingSizing::peak_of_mean(window, KEYS, rate, FIXED)].map(|peak| Spec::Aging(aging(window, peak, FIXED))),
        [rate, CuckooSizing::peak_of_mean(window, KEYS, rate)].map(cuckoo),
    ];
    for [one, other] in kinds.into_iter().flat_map(|[peak, mean]| [[peak, mean], [mean, peak]]) {
        let key = |number: u64| Fingerprint(xxh3_128(&number.to_le_bytes()));
        let slice_keys = KEYS / 4;
        let fill = |filter: &mut dyn Filter, slice: u64| {
            filter.advance(slice.cast_signed());
            (slice * slice_keys..(slice + 1) * slice_keys).for_each(|number| filter.insert(key(number)).unwrap());
        };
        let mut stored = one.build(window);
        (0..5).for_each(|slice| fill(stored.as_mut(), slice));
        let mut filter = other.restore(window, &stored.metadata()).unwrap();
        for page in stored.dirty_pages() {
            let mut bytes = Vec::new();
            stored.write_page(page, &mut bytes);
            filter.read_page(page, &bytes).unwrap();
        }
        for slice in 5..10 {
            let of_window = (slice - 5) * slice_keys..slice * slice_keys;
            assert!(of_window.clone().all(|number| filter.contains(key(number))), "{other:?}, before slice {slice}");
            fill(filter.as_mut(), slice);
        }
        assert_eq!(filter.usage().bytes, other.bytes(window), "{other:?}");
    }
}
