//! Measured and predicted false-positive rates, at capacity and at other loads.

use super::*;
use crate::filter::Prediction;

fn absent_keys_seen(slices: u32, capacity: u64, rate: f64, overfull: u64, asked: u64) -> u64 {
    const FILTERS: u64 = 8;
    let window = Window::Time { slice_ms: 1, slices };
    let sizing = Sizing::new(window, capacity, rate);
    (0..FILTERS)
        .map(|family| {
            let filter = full(sizing, slices, sizing.capacity * overfull, family);
            (0..asked / FILTERS).filter(|&number| filter.contains(key(family, (1 << 40) + number))).count() as u64
        })
        .sum()
}

#[test]
fn measured_rates_at_capacity_are_at_or_under_the_target() {
    for (slices, rate, asked) in [
        (1, 1e-2, 1_000_000),
        (4, 1e-2, 1_000_000),
        (1, 1e-3, 4_000_000),
        (4, 1e-3, 4_000_000),
        (8, 1e-3, 4_000_000),
        (4, 1e-4, 8_000_000),
        (4, 1e-5, 8_000_000),
    ] {
        let found = absent_keys_seen(slices, 80_000, rate, 1, asked);
        assert_rate(&format!("{slices} slices"), found, asked, rate);
        // A rate far below the target would mean that sizing wastes memory.
        let expected = asked as f64 * rate;
        let least = expected * 0.9 - 3.09 * expected.sqrt();
        assert!(found as f64 >= least, "{slices} slices: only {found} false positives of {asked}");
    }
}

#[test]
fn overfull_slices_chain_and_keep_the_rate() {
    for overfull in [1, 2, 4] {
        for (rate, asked) in [(1e-2, 1_000_000), (1e-3, 4_000_000)] {
            let found = absent_keys_seen(4, 20_000, rate, overfull, asked);
            assert_rate(&format!("{overfull} times its capacity"), found, asked, rate);
        }
    }
}

#[test]
fn small_rates_are_met_with_two_blocks_per_key() {
    // At the target rate, there are too few false positives to count. A filter that holds four times its capacity without chaining has
    // enough false positives.
    let window = Window::Time { slice_ms: 1, slices: 4 };
    let sizing = Sizing::new(window, 40_000, 1e-6);
    assert_eq!(sizing.layout.blocks_per_key, 2);
    let overfull = Sizing { capacity: sizing.capacity * 4, ..sizing };
    let expected = overfull.rate_unchained(window, 1.0).rate;
    assert!((expected - sizing.rate_unchained(window, 4.0).rate).abs() < 1e-12);
    let filter = full(overfull, 4, overfull.capacity, 3);
    let asked = 100_000;
    let found = (0..asked).filter(|&number| filter.contains(key(3, (1 << 40) + number))).count() as f64;
    println!("measured {:.3e}, predicted {expected:.3e}", found / asked as f64);
    assert!((found / asked as f64 / expected - 1.0).abs() < 0.05, "{found} of {asked}, expected {expected}");
}

#[test]
fn measured_rates_match_predictions() {
    let window = Window::Time { slice_ms: 1, slices: 4 };
    for (rate, asked) in [(1e-2, 400_000), (1e-3, 2_000_000)] {
        let sizing = Sizing::new(window, 80_000, rate);
        for quarters in [2, 4, 8, 16] {
            let filter = full(sizing, 4, sizing.capacity * quarters / 4, quarters);
            let prediction = sizing.predict(window, quarters as f64 / 4.0);
            assert_eq!(filter.usage().bytes, prediction.bytes);
            let found = (0..asked).filter(|&number| filter.contains(key(quarters, (1 << 40) + number))).count() as f64;
            let expected = prediction.rate * asked as f64;
            println!("{rate:.0e}, {quarters}/4 full: {:.3e}, predicted {:.3e}", found / asked as f64, prediction.rate);
            let most = expected * 1.1 + 3.09 * expected.sqrt();
            assert!(found <= most, "{quarters}/4 full: {found} false positives of {asked}, expected {expected:.0}");
            // The prediction is an estimate and not an upper bound, so the measured rate must not be far below it.
            let least = expected * 0.9 - 3.09 * expected.sqrt();
            assert!(found >= least, "{quarters}/4 full: only {found} false positives of {asked}, expected {expected:.0}");
        }
    }
}

#[test]
fn predictions_keep_the_target_and_grow_with_the_load() {
    for slices in [1, 4, 8] {
        let window = Window::Time { slice_ms: 1, slices };
        for rate in [1e-2, 1e-3, 1e-4, 1e-6] {
            let sizing = Sizing::new(window, 1_000_000, rate);
            let loads: Vec<Prediction> = [0.0, 0.5, 1.0, 1.5, 2.0, 4.0].map(|load| sizing.predict(window, load)).into();
            assert!(loads.iter().all(|of| of.rate <= rate), "{loads:?}");
            assert!(loads.windows(2).all(|of| of[0].rate < of[1].rate && of[0].bytes <= of[1].bytes), "{loads:?}");
            assert!(loads[0].rate == 0.0 && loads[2].bytes == sizing.bytes(window));
            assert!((loads[2].rate - sizing.rate_unchained(window, 1.0).rate).abs() < 1e-12);
            assert!(sizing.rate_unchained(window, 4.0).rate > 10.0 * rate);
            assert_eq!(sizing.rate_unchained(window, 4.0).bytes, sizing.bytes(window));
        }
    }
}
