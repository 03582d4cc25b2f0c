#![expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]

use super::*;
use crate::filter::kind::Metadata as _;
use crate::filter::{Growth, Prediction};
use crate::key::numbered::key_of_family as key;

/// A filter whose `slices + 1` generations each hold `each` keys: the moment at which its false-positive rate is highest.
fn full(sizing: Sizing, slices: u32, each: u64, family: u64) -> Aging {
    let mut filter = Aging::new(Window::Time { slice_ms: 1, slices }, sizing);
    for slice in 0..=u64::from(slices) {
        filter.advance(slice.cast_signed());
        (0..each).for_each(|number| filter.insert(key(family, slice * each + number)).unwrap());
    }
    filter
}

/// Counts how many of `asked` absent keys, spread over several filters, are reported as seen.
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

/// Checks that a measured rate is not above the target. By chance, a filter exactly at the target exceeds `most` with a probability of one
/// in a thousand (normal approximation of the binomial distribution, one-sided 99.9 %). The keys are fixed, so the test always gives the
/// same result.
fn assert_rate(what: &str, found: u64, asked: u64, target: f64) {
    let expected = asked as f64 * target;
    let most = expected + 3.09 * (expected * (1.0 - target)).sqrt();
    println!("{what}: {:.3e} of {asked}, target {target:.0e}", found as f64 / asked as f64);
    assert!(found as f64 <= most, "{what}: {found} false positives of {asked}, expected at most {most:.0}");
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
        // Sizing must not waste memory either: the rate is within a few percent of the target, not a factor below it.
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
fn a_far_too_small_filter_forgets_nothing() {
    for slices in [1, 4] {
        let sizing = Sizing::new(Window::Time { slice_ms: 1, slices }, 1, 1e-2);
        let filter = full(sizing, slices, 3_000, 0);
        assert!((0..3_000 * (u64::from(slices) + 1)).all(|number| filter.contains(key(0, number))));
        assert!(filter.generations.iter().all(|generation| generation.layers.len() <= 14), "layers double");
        assert!(filter.usage().load > 1.0);
    }
}

#[test]
fn memory_matches_the_documentation() {
    // Bits per key of the window, with four slices. The keys of the open slice are not counted.
    for (rate, most) in [(1e-2, 17.5), (1e-3, 25.0), (1e-4, 34.0), (1e-6, 45.0)] {
        let window = Window::time(86_400_000, 4);
        let bits = Sizing::new(window, 10_000_000, rate).bytes(window) as f64 * 8.0 / 1e7;
        println!("{rate:.0e}: {bits:.2} bits per key");
        assert!(bits <= most && bits > most - 1.5, "{rate:.0e}: {bits:.2} bits per key, expected at most {most}");
    }
}

#[test]
fn windows_are_rounded_up_to_whole_slices() {
    assert_eq!(Window::time(10, 3), Window::Time { slice_ms: 4, slices: 3 });
    assert_eq!(Window::time(12, 3).length_ms(), Some(12));
    assert_eq!(Window::time(i64::MAX, 3).length_ms(), Some(i64::MAX));
    assert_eq!(Window::time(0, 0), Window::Time { slice_ms: 1, slices: 1 });
    assert_eq!(Window::keys(10, 3), Window::Keys { slice_keys: 4, slices: 3 });
    assert_eq!(Window::keys(u64::MAX, 1).length_ms(), None);
}

#[test]
fn slices_start_at_multiples_of_their_length() {
    let window = Window::Time { slice_ms: 10, slices: 2 };
    assert_eq!([-11, -10, -1, 0, 9, 10].map(|time| window.slice_at(time)), [-2, -1, -1, 0, 0, 1].map(|number| Some(Slice(number))));
}

#[test]
fn extreme_times_do_not_overflow() {
    let mut filter = Aging::new(Window::Time { slice_ms: 1, slices: 8 }, Sizing::new(Window::time(8, 8), 8, 1e-3));
    for time in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX] {
        filter.advance(time);
        filter.insert(key(0, 1)).unwrap();
        assert!(filter.contains(key(0, 1)));
    }
    assert_eq!(filter.usage().keys, 1);
}

#[test]
fn load_is_the_load_of_the_open_generation() {
    let window = Window::Time { slice_ms: 1, slices: 1 };
    let mut filter = Aging::new(window, Sizing::new(window, 10, 1e-3));
    filter.advance(0);
    (0..5).for_each(|number| filter.insert(key(0, number)).unwrap());
    assert!((filter.usage().load - 0.5).abs() < 1e-9);
    filter.advance(1);
    assert!(filter.usage().load == 0.0, "the new slice has no keys yet");
    assert_eq!((filter.usage().keys, filter.usage().open_keys), (5, 0));
}

#[test]
fn small_rates_are_met_with_two_blocks_per_key() {
    // A filter at the target has too few false positives to count. A filter without chaining that is four times overfull has enough.
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

// ---- Predictions. ----

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
            // The prediction is not only an upper bound, so the measured rate must not be far below it either.
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

// ---- Batched lookups. ----

/// Looks up keys by number in batches, some of them repeatedly, and inserts each key that is not seen. Returns the answers and the filter.
/// `ahead` is called before each batch. A `HashMap` checks that each key within the window is seen.
fn play(rate: f64, count: u64, ahead: impl Fn(&mut Aging, &[Fingerprint])) -> (Vec<bool>, Aging) {
    const SLICES: u32 = 3;
    let window = Window::Time { slice_ms: 100, slices: SLICES };
    // The filter is far too small, so that lookups read chained layers of several shapes.
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
            // Alternate between one call and separate calls for checking and inserting.
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

// ---- Storing and restoring state. ----

fn metadata(filter: &Aging) -> Metadata {
    let super::super::FilterMetadata::Aging(metadata) = filter.metadata() else { panic!("wrong kind") };
    metadata
}

/// Number of pages that a filter reports as stored.
fn stored_pages(filter: &Aging) -> u64 {
    metadata(filter).parts().iter().map(|part| part.pages).sum()
}

/// All pages of a filter that have to be stored.
fn dirty(filter: &Aging) -> Vec<(PageId, Vec<u8>)> {
    let page = |id| {
        let mut bytes = Vec::new();
        filter.write_page(id, &mut bytes);
        (id, bytes)
    };
    filter.dirty_pages().into_iter().map(page).collect()
}

fn restored(filter: &Aging, pages: &[(PageId, Vec<u8>)]) -> Aging {
    let mut other = Aging::from_metadata(filter.window, filter.sizing, &metadata(filter)).unwrap();
    for (id, bytes) in pages {
        other.read_page(*id, bytes).unwrap();
    }
    other
}

/// A filter with several pages, generations, and layers.
fn large() -> (Aging, Sizing) {
    let sizing = Sizing::new(Window::Time { slice_ms: 1, slices: 2 }, 200_000, 1e-3);
    (full(sizing, 2, 140_000, 7), sizing)
}

#[test]
fn restored_state_is_bit_for_bit_identical() {
    let (mut filter, _) = large();
    let pages = dirty(&filter);
    assert!(pages.is_sorted_by_key(|(id, _)| *id), "pages are sorted by id");
    assert_eq!(pages.len() as u64, stored_pages(&filter));
    let mut other = restored(&filter, &pages);
    assert_eq!(other.dirty_pages().len(), 0, "restored pages are clean");
    assert_eq!(other.metadata(), filter.metadata());
    other.mark_stale();
    assert!(dirty(&other) == pages);
    for number in 0..10_000 {
        filter.insert(key(8, number)).unwrap();
        other.insert(key(8, number)).unwrap();
    }
    filter.mark_stale();
    other.mark_stale();
    assert!(dirty(&other) == dirty(&filter));
}

#[test]
fn only_changed_pages_are_dirty() {
    let (mut filter, _) = large();
    filter.mark_clean();
    assert_eq!(filter.dirty_pages().len(), 0);
    filter.insert(key(9, 0)).unwrap();
    let changed: Vec<_> = filter.dirty_pages();
    assert_eq!(changed.len(), 1);
    assert_eq!((changed[0].slice, changed[0].layer), (Slice(2), 1), "a page that already contained data");
    filter.mark_clean();
    filter.advance(3);
    (0..1000).for_each(|number| filter.insert(key(9, number)).unwrap());
    assert!(filter.dirty_pages().iter().all(|page| page.slice == Slice(3)), "a sealed generation never changes");
    filter.mark_stale();
    assert_eq!(filter.dirty_pages().len() as u64, stored_pages(&filter));
}

#[test]
fn empty_pages_are_not_stored() {
    let window = Window::Time { slice_ms: 1, slices: 1 };
    let mut filter = Aging::new(window, Sizing::new(window, 1_000_000, 1e-3));
    filter.insert(key(0, 0)).unwrap();
    assert_eq!(stored_pages(&filter), 1);
    filter.mark_stale();
    assert_eq!(filter.dirty_pages().len(), 1);
}

#[test]
fn keys_of_unknown_time_are_stored_again_when_the_time_is_known() {
    let window = Window::Time { slice_ms: 1, slices: 1 };
    let mut filter = Aging::new(window, Sizing::new(window, 100, 1e-3));
    filter.insert(key(0, 0)).unwrap();
    filter.mark_clean();
    filter.advance(1_000);
    let pages = dirty(&filter);
    assert!(pages.iter().all(|(id, _)| id.slice == Slice(1_000)));
    assert!(restored(&filter, &pages).contains(key(0, 0)));
}

#[test]
fn a_new_capacity_applies_from_the_next_layer() {
    let (filter, sizing) = large();
    let smaller = Sizing::new(filter.window, 1_000, 1e-3);
    let mut other = Aging::from_metadata(filter.window, smaller, &metadata(&filter)).unwrap();
    for (id, bytes) in dirty(&filter) {
        other.read_page(id, &bytes).unwrap();
    }
    assert!(other.contains(key(7, 5)));
    other.advance(3);
    other.insert(key(9, 0)).unwrap();
    assert!(metadata(&other).generations.last().unwrap().layers[0].blocks < sizing.layout.blocks / 100);
}

#[test]
fn impossible_metadata_is_rejected() {
    let (filter, sizing) = large();
    let window = filter.window;
    let with = |change: &dyn Fn(&mut Metadata)| {
        let mut metadata = metadata(&filter);
        change(&mut metadata);
        Aging::from_metadata(window, sizing, &metadata).map(|_| ())
    };
    assert_eq!(with(&|_| ()), Ok(()));
    let shapes: [fn(&mut LayerMetadata); 11] = [
        |layer| layer.blocks = 0,
        |layer| layer.blocks = 1 << 40,
        |layer| layer.blocks = u64::MAX,
        |layer| (layer.blocks, layer.capacity) = (1 << 40, 1 << 40),
        |layer| (layer.blocks, layer.capacity) = (u64::MAX, u64::MAX),
        |layer| layer.capacity = u64::MAX,
        |layer| layer.k = 0,
        |layer| layer.k = u32::MAX,
        |layer| layer.blocks_per_key = 0,
        |layer| layer.blocks_per_key = 3,
        |layer| (layer.blocks, layer.capacity, layer.keys, layer.blocks_per_key) = (1, 1, 1, 2),
    ];
    for change in shapes {
        assert_eq!(with(&|metadata| change(&mut metadata.generations[0].layers[0])), Err(MetadataError::Size));
    }
    let orders: [fn(&mut Metadata); 5] = [
        |metadata| metadata.generations.reverse(),
        |metadata| metadata.generations[2].slice = Slice(3),
        |metadata| metadata.generations[0].slice = Slice(-1),
        |metadata| metadata.slice = Some(Slice(1)),
        |metadata| metadata.slice = None,
    ];
    for change in orders {
        assert_eq!(with(&change), Err(MetadataError::Generations));
    }
}

#[test]
fn foreign_pages_are_rejected() {
    let (mut filter, _) = large();
    let (id, bytes) = dirty(&filter).remove(0);
    for wrong in [PageId { slice: Slice(9), ..id }, PageId { layer: 9, ..id }, PageId { page: 1 << 40, ..id }] {
        assert_eq!(filter.read_page(wrong, &bytes), Err(MetadataError::Page(wrong)));
    }
    assert_eq!(filter.read_page(id, &bytes[..64]), Err(MetadataError::Page(id)));
}

// ---- Growth. ----

/// Inserts a number of new keys in each slice, and returns the memory after each slice.
fn grown(growth: Growth, slices: &[u64]) -> (Aging, Vec<u64>) {
    let mut filter = Aging::new(plan_window(), Sizing::new(plan_window(), 20_000, 1e-3).with_growth(growth));
    let mut bytes = Vec::new();
    for (slice, &keys) in (0..).zip(slices) {
        filter.advance(slice);
        (0..keys).for_each(|number| filter.insert(key(slice.cast_unsigned(), number)).unwrap());
        bytes.push(filter.usage().bytes);
    }
    (filter, bytes)
}

#[test]
fn slices_adapt_to_the_stream() {
    let adapt = Growth { adapt: true, ..Growth::default() };
    let slices = [40_000; 4].into_iter().chain([1_000; 8]).collect::<Vec<_>>();
    let ((filter, adapted), (_, fixed)) = (grown(adapt, &slices), grown(Growth::default(), &slices));
    assert_eq!(adapted[0], fixed[0], "the first slice has no previous slice");
    let chained = |filter: &Aging| filter.generations.iter().any(|generation| generation.layers.len() > 1);
    let (third, _) = grown(adapt, &slices[..4]);
    assert_eq!(third.generations.last().unwrap().layers.len(), 1, "sized from the previous slices");
    assert!(!chained(&filter) && adapted[11] < fixed[11] / 4, "{adapted:?} {fixed:?}");
    assert!(fixed[3] > adapted[3], "chained layers take more memory than one large layer");
    for slice in 9..12 {
        assert!((0..1_000).all(|number| filter.contains(key(slice, number))));
    }
}

#[test]
fn adapting_slices_keep_the_rate() {
    let (filter, _) = grown(Growth { adapt: true, ..Growth::default() }, &[30_000, 1_000, 90_000, 500, 60_000, 60_000, 60_000]);
    let asked = 1_000_000;
    let found = (0..asked).filter(|&number| filter.contains(key(99, number))).count() as u64;
    assert_rate("after ups and downs", found, asked, 1e-3);
}

#[test]
fn at_its_maximum_memory_a_filter_follows_at_max_memory() {
    let sizing = Sizing::new(plan_window(), 20_000, 1e-3);
    let most = sizing.bytes(plan_window()) * 3 / 2;
    let with = |at_max| Growth { adapt: true, max_bytes: Some(most), at_max };
    let slices = [8_000, 8_000, 8_000, 80_000, 80_000];

    let (saturated, bytes) = grown(with(AtMaxMemory::Saturate), &slices);
    assert!(bytes.iter().all(|&bytes| bytes <= most), "{bytes:?} of {most}");
    assert!((0..80_000).all(|number| saturated.contains(key(4, number)) && saturated.contains(key(3, number))));
    assert_eq!(saturated.usage().evicted, 0);
    assert!(saturated.usage().load > 1.0);

    let (evicting, bytes) = grown(with(AtMaxMemory::EvictOldest), &slices);
    assert!(bytes.iter().all(|&bytes| bytes <= most), "{bytes:?} of {most}");
    assert!((0..80_000).all(|number| evicting.contains(key(4, number))), "the newest keys stay");
    assert!(evicting.usage().evicted >= 8_000, "{}", evicting.usage().evicted);

    let mut stopping = Aging::new(plan_window(), sizing.with_growth(with(AtMaxMemory::Stop)));
    stopping.advance(0);
    let refused = (0..200_000).find(|&number| stopping.insert(key(0, number)).is_err()).unwrap();
    assert_eq!(stopping.insert(key(0, refused)), Err(CapacityError::MaxMemory));
    assert!(refused >= 10_000 && (0..refused).all(|number| stopping.contains(key(0, number))), "stopped at {refused}");
    assert!(stopping.usage().bytes <= most);
    stopping.advance(1);
    assert_eq!(stopping.insert(key(0, refused)), Ok(()), "the next slice has room");
}

const fn plan_window() -> Window {
    Window::Time { slice_ms: 1, slices: 2 }
}

#[test]
fn a_saturated_filter_is_restored_unchanged() {
    let sizing = Sizing::new(plan_window(), 20_000, 1e-3);
    let growth = Growth { adapt: true, max_bytes: Some(sizing.bytes(plan_window())), at_max: AtMaxMemory::Saturate };
    let (mut filter, _) = grown(growth, &[30_000, 30_000]);
    let mut other = restored(&filter, &dirty(&filter));
    for number in 0..10_000 {
        assert_eq!(filter.insert(key(9, number)), other.insert(key(9, number)));
    }
    filter.mark_stale();
    other.mark_stale();
    assert!(dirty(&filter) == dirty(&other));
}

/// One slice has more keys than the others. As few of the oldest generations as necessary are evicted, and their memory is reused.
#[test]
fn evicted_keys_free_memory() {
    let sizing = Sizing::new(plan_window(), 20_000, 1e-3);
    let most = sizing.bytes(plan_window()) * 11 / 10;
    let growth = Growth { adapt: true, max_bytes: Some(most), at_max: AtMaxMemory::EvictOldest };
    let (filter, bytes) = grown(growth, &[10_000, 10_000, 10_000, 12_000]);
    assert!(bytes.iter().all(|&bytes| bytes <= most), "{bytes:?} of {most}");
    assert_eq!(filter.usage().evicted, 10_000, "one slice is enough");
    assert!(filter.usage().bytes > most / 2, "{} of {most} bytes are used", filter.usage().bytes);
    assert!((0..12_000).all(|number| filter.contains(key(3, number))) && (0..10_000).all(|number| filter.contains(key(2, number))));
}

/// A burst after small slices must leave enough memory for the slices that follow.
#[test]
fn a_burst_after_small_slices_stays_within_the_maximum() {
    let sizing = Sizing::new(plan_window(), 20_000, 1e-3);
    let most = sizing.bytes(plan_window()) * 3 / 2;
    for at_max in [AtMaxMemory::Saturate, AtMaxMemory::EvictOldest] {
        let growth = Growth { adapt: true, max_bytes: Some(most), at_max };
        let (_, bytes) = grown(growth, &[10, 10, 10, 10, 10, 90_000, 10_000, 90_000, 10, 10]);
        assert!(bytes.iter().all(|&bytes| bytes <= most), "{at_max:?}: {bytes:?} of {most}");
    }
}
