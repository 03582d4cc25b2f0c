//! Filters that grow, adapt to the stream, and reach their maximum memory.

use super::*;
use crate::filter::Growth;

/// Inserts `slices[n]` new keys into slice `n`. Returns the filter, and its memory in bytes after each slice.
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

/// A large slice evicts old generations one by one, only until there is room, and reuses their memory.
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
