//! Lookups in batches.

use super::*;

/// Looks up numbered keys in batches, some of them repeatedly, and inserts each key that is not seen. Calls `ahead` before each batch.
/// Asserts that every key that was inserted within the window is seen. Returns the answers and the filter.
fn play(rate: f64, count: u64, ahead: impl Fn(&mut Aging, &[Fingerprint])) -> (Vec<bool>, Aging) {
    const SLICES: u32 = 3;
    let window = Window::Time { slice_ms: 100, slices: SLICES };
    // The filter is far too small, so lookups read chained layers of several shapes.
    let mut filter = Aging::new(window, Sizing::new(window, 500, rate));
    let mut last_seen = std::collections::HashMap::new();
    let mut seen = Vec::new();
    let numbers: Vec<u64> = (0..count).map(|turn| key(5, turn).low() % (turn + 1)).collect();
    for (turn, batch) in numbers.chunks(50).enumerate() {
        let time = i64::try_from(turn).unwrap() * 7;
        filter.advance(time);
        let keys: Vec<Fingerprint> = batch.iter().map(|&number| key(6, number)).collect();
        ahead(&mut filter, &keys);
        for (at, &key) in keys.iter().enumerate() {
            // Cover both ways to check and insert: with one call and with separate calls.
            let together = at % 3 > 0;
            let there = if together { filter.check_and_insert(key).unwrap() } else { filter.contains(key) };
            let within = last_seen.get(&key).is_some_and(|&last| time - last < 100 * i64::from(SLICES));
            assert!(there || !within, "forgot a key of its window");
            if !there {
                if !together {
                    filter.insert(key).unwrap();
                }
                last_seen.insert(key, time);
            }
            seen.push(there);
        }
    }
    filter.mark_stale();
    (seen, filter)
}

#[test]
fn prefetching_does_not_change_answers() {
    let ways: [fn(&mut Aging, &[Fingerprint]); 5] = [
        |filter, keys| filter.prefetch(keys),
        // Batches with too many keys, with too few, in a different order, and with different keys.
        |filter, keys| filter.prefetch(&keys.repeat(3)),
        |filter, keys| filter.prefetch(&keys[..keys.len() / 2]),
        |filter, keys| filter.prefetch(&keys.iter().rev().copied().collect::<Vec<_>>()),
        |filter, _| filter.prefetch(&[key(99, 0), key(99, 1)]),
    ];
    for rate in [1e-2, 1e-6] {
        let (seen, filter) = play(rate, 8_000, |_, _| {});
        assert!(filter.generations.iter().any(|generation| generation.layers.len() > 2));
        for way in ways {
            let (again, other) = play(rate, 8_000, way);
            assert!(seen == again);
            assert!(dirty(&filter) == dirty(&other));
        }
    }
}

#[test]
fn keys_can_be_looked_up_in_any_order_after_a_prefetch() {
    let (mut filter, _) = large();
    let keys: Vec<Fingerprint> = (0..64).map(|number| key(7, number)).collect();
    filter.prefetch(&keys);
    for at in [3, 3, 0, 63, 62, 5, 5, 4] {
        assert!(filter.contains(keys[at]));
        assert!(!filter.contains(key(1_000, at as u64)));
    }
    filter.prefetch(&[]);
    assert!(filter.contains(keys[1]));
}
