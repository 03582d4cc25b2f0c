//! Slices, the load of a filter, and its memory.

use super::*;

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
    // Bits per key of a window with four slices. The memory holds five generations, but only the keys of four slices count.
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
