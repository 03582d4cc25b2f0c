//! Promise: in a stream with exactly the planned number of keys, the average false-positive rate over a window matches the formulas. Every
//! key in these tests is new, so every key that is reported as seen is a false positive.
#![expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]

use super::*;
use xxhash_rust::xxh3::xxh3_128;

const KEYS: u64 = 100_000;
/// Number of windows before counting starts. The filter is then in its steady state.
const BEFORE: u64 = 3;
const COUNTED: u64 = 12;

fn time(slices: u32) -> Window {
    Window::Time { slice_ms: 1, slices }
}

/// Returns the share of new keys that were reported as seen, and the memory at the end, in bytes.
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

/// Compares the measured rate with the formula and returns the memory in bytes. `noise` is exceeded by chance with a probability of one in
/// a thousand on either side. The measured rate may also be up to 7 % lower: a key that is reported as seen is not inserted, so slices hold
/// slightly fewer keys than planned. It may be up to 2 % higher, because the formulas are approximations.
fn assert_mean(what: &str, spec: Spec, window: Window) -> u64 {
    let (mean, (found, bytes)) = (spec.sizing().mean_rate(window), measured(spec, window));
    let noise = 3.09 * (mean / (COUNTED * KEYS) as f64).sqrt();
    println!("{what}: {found:.3e} measured, {mean:.3e} computed, {:+.1} %", (found / mean - 1.0) * 100.0);
    assert!((mean * 0.93 - noise..mean * 1.02 + noise).contains(&found), "{what}: {found:.3e}, computed {mean:.3e}");
    bytes
}

fn aging(window: Window, peak: f64, growth: Growth) -> AgingSizing {
    AgingSizing::new(window, KEYS, peak).with_growth(growth)
}

const FIXED: Growth = Growth { adapt: false, max_bytes: None, at_max: AtMaxMemory::Stop };
const ADAPTS: Growth = Growth { adapt: true, ..FIXED };

#[test]
fn the_mean_of_an_aging_filter_matches_the_formula() {
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
        let bytes = assert_mean(what, Spec::Aging(sizing), window) as f64 / sizing.bytes(window) as f64;
        let grows = growth == ADAPTS && window.length_ms().is_some();
        assert!((bytes - if grows { 1.125 } else { 1.0 }).abs() < 0.01, "{what}: {bytes} times the memory");
    }
}

#[test]
fn the_mean_of_every_kind_matches_the_formula() {
    for (slices, rate) in [(4, 1e-2), (4, 1.4e-2), (1, 1e-2), (64, 1e-2)] {
        let window = time(slices);
        for kind in Kind::ALL {
            let Some(spec) = kind.spec(window, &Demand { bytes: 40_000, ..Demand::new(KEYS, rate) }) else { continue };
            assert_mean(&format!("{}, {slices} slices, {rate:e}", kind.name()), spec, window);
        }
    }
}
