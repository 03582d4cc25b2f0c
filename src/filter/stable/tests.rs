#![expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts far below 2^52")]

use super::super::{FilterMetadata as AnyMetadata, Spec};
use super::*;
use crate::filter::kind::Metadata as _;
use crate::key::numbered::key_of_family as key;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

fn absent_keys_seen(filter: &Stable, asked: u64) -> f64 {
    (0..asked).filter(|&number| filter.contains(key(99, number))).count() as f64 / asked as f64
}

fn filled(filter: &Stable) -> f64 {
    let cells = filter.cells.as_ref().unwrap();
    let counted = (0..cells.layout.cells).filter(|&cell| cells.get(cell) != 0).count() as u64;
    assert_eq!(counted, cells.filled, "the count matches the cells");
    counted as f64 / cells.layout.cells as f64
}

fn loaded(sizing: Sizing, load: f64) -> (Stable, u64) {
    let mut filter = Stable::new(sizing);
    let keys = (load * sizing.lifetime()) as u64;
    (0..keys).for_each(|number| filter.insert(key(0, number)).unwrap());
    (filter, keys)
}

#[test]
fn the_stable_point_is_reached_and_matches_the_formula() {
    for (rate, asked) in [(1e-1, 200_000), (1e-2, 1_000_000), (1e-3, 2_000_000)] {
        let sizing = Sizing::new(1 << 17, rate);
        let stable = sizing.predict(f64::INFINITY).rate;
        assert!(stable <= rate && stable > rate * 0.7, "{rate:.0e}: P is rounded up, so {stable:.3e} is not above");
        for load in [0.5, 1.0, 2.0, 8.0, 32.0] {
            let (filter, _) = loaded(sizing, load);
            let (got, expected) = (absent_keys_seen(&filter, asked), sizing.predict(load).rate);
            println!("stable {rate:.0e}, load {load}: measured {got:.3e}, predicted {expected:.3e}, filled {:.4}", filled(&filter));
            assert!(expected <= stable * 1.000_001, "the rate only rises to the stable point");
            // The tolerance is ten percent, plus the statistical error of the count, which is exceeded with a probability of one in a
            // thousand.
            let most = expected * 1.1 + 3.09 * (expected / asked as f64).sqrt();
            assert!(got <= most, "{rate:.0e} at load {load}: {got:.3e}, predicted {expected:.3e}");
            if load >= 32.0 {
                assert!((filled(&filter) / sizing.layout.stable_fill() - 1.0).abs() < 0.01, "{}", filled(&filter));
                assert!((filter.usage().load - 1.0).abs() < 0.01);
                assert!((expected / stable - 1.0).abs() < 0.01 && got > stable * 0.9);
            }
        }
    }
}

#[test]
fn keys_are_forgotten_as_predicted() {
    for rate in [1e-1, 1e-2, 1e-3] {
        let sizing = Sizing::new(1 << 18, rate);
        let (filter, keys) = loaded(sizing, 6.0);
        for share in [0.1, 0.25, 0.5, 1.0, 2.0] {
            let age = (share * sizing.lifetime()) as u64;
            // One key is not enough to measure a share, so count the keys in a narrow range around `age`.
            let band = (keys / 100).min(age);
            let unseen = (0..2 * band).filter(|&number| !filter.contains(key(0, keys - age - band + number))).count();
            let (got, expected) = (unseen as f64 / (2 * band) as f64, sizing.unseen_after(age));
            println!("stable {rate:.0e}: of the keys of {share} lifetimes ago, {got:.4} are unseen, predicted {expected:.4}");
            let noise = 4.0 * (expected * (1.0 - expected) / (2 * band) as f64).sqrt();
            assert!((got - expected).abs() <= 0.02 * expected + 0.002 + noise, "{rate:.0e}, {share}: {got:.4}, predicted {expected:.4}");
            assert!(sizing.forgotten_after(age) >= expected - 1e-9, "forgotten keys are unseen or false positives");
        }
    }
}

#[test]
fn layouts_maximize_the_lifetime() {
    for (rate, bits_a_key) in [(1e-1, 11.0), (1e-2, 34.0), (1e-3, 72.0), (1e-4, 109.0), (1e-6, 181.0)] {
        let sizing = Sizing::new(1 << 20, rate);
        let got = sizing.bytes() as f64 * 8.0 / sizing.lifetime();
        println!("stable {rate:.0e}: {:?}, lifetime {:.0}, {got:.1} bits per key", sizing.layout, sizing.lifetime());
        assert!(sizing.bytes() <= 1 << 20 && got < bits_a_key);
        let half = sizing.lifetime() / 2.0;
        let forgotten = [0.0, half, 2.0 * half, 20.0 * half].map(|age| sizing.forgotten_after(age as u64));
        println!("stable {rate:.0e}: forgotten after 0, 1/2, 1, 10 lifetimes: {forgotten:.4?}");
        assert!(forgotten.is_sorted() && forgotten[0] < 1e-9 && forgotten[3] > 0.99);
    }
}

#[test]
fn a_key_is_seen_right_after_its_insertion() {
    // The filters are so small that an insertion often decrements the cells of its own key.
    for (bytes, rate) in [(64, 1e-2), (64, 1e-300), (0, 0.5), (1 << 12, 1e-3)] {
        let mut filter = Stable::new(Sizing::new(bytes, rate));
        for number in 0..5_000 {
            filter.insert(key(0, number)).unwrap();
            assert!(filter.contains(key(0, number)));
        }
        filter.refresh(key(0, 0)).unwrap();
        assert!(filter.contains(key(0, 0)) && filter.usage().open_keys == 5_001);
    }
}

#[test]
fn renewed_keys_stay_seen() {
    let sizing = Sizing::new(1 << 14, 1e-3);
    let often = (sizing.lifetime() / 50.0) as u64;
    let mut filter = Stable::new(sizing);
    filter.insert(key(1, 0)).unwrap();
    for number in 0..200_000 {
        if number % often == 0 {
            assert!(filter.contains(key(1, 0)), "forgotten within a fiftieth of its lifetime");
            filter.refresh(key(1, 0)).unwrap();
        }
        filter.insert(key(0, number)).unwrap();
    }
}

#[test]
fn a_run_of_decrements_equals_single_ones() {
    for cell_bits in 1..=4 {
        let layout = CellLayout { cells: 1_001, cell_bits, k: 3, decrements: 150 };
        let mut cells = Cells::new(layout).unwrap();
        let mut model = vec![0; 1_001_usize];
        let mut numbers = SplitMix(u64::from(cell_bits));
        for number in 0..2_000 {
            let first = scale(numbers.next(), layout.cells);
            cells.decrement(first);
            (first..first + 150).for_each(|cell| model[cell as usize % 1_001] = u64::saturating_sub(model[cell as usize % 1_001], 1));
            cells.set(key(0, number));
            places(key(0, number), layout).for_each(|cell| model[cell as usize] = layout.max());
        }
        assert!((0..1_001).all(|cell| cells.get(cell) == model[cell as usize]), "{cell_bits} bits");
        assert_eq!(cells.filled, model.iter().filter(|&&value| value > 0).count() as u64);
    }
}

fn metadata(filter: &Stable) -> Metadata {
    let AnyMetadata::Stable(metadata) = filter.metadata() else { panic!("wrong kind") };
    metadata
}

fn stored(filter: &mut Stable, pages: &mut BTreeMap<PageId, Vec<u8>>) -> Stable {
    for id in filter.dirty_pages() {
        let mut bytes = Vec::new();
        filter.write_page(id, &mut bytes);
        pages.insert(id, bytes);
    }
    filter.mark_clean();
    assert_eq!(pages.len() as u64, metadata(filter).parts().iter().map(|part| part.pages).sum::<u64>());
    let mut other = Stable::from_metadata(filter.sizing, &metadata(filter)).unwrap();
    for (id, bytes) in &*pages {
        other.read_page(*id, bytes).unwrap();
    }
    assert!(other.dirty_pages().is_empty() && other.metadata() == filter.metadata());
    other
}

fn bytes(filter: &Stable) -> &[u8] {
    filter.cells.as_ref().map_or(&[], |cells| cells.buffer.bytes())
}

#[test]
fn restored_state_is_bit_for_bit_identical() {
    let sizing = Sizing { seed: 7, ..Sizing::new(300_000, 1e-3) };
    let (mut filter, mut pages) = (Stable::new(sizing), BTreeMap::new());
    assert!(!stored(&mut filter, &mut pages).contains(key(0, 0)) && pages.is_empty(), "no pages before the first key");
    for step in 0..5 {
        (0..5_000).for_each(|number| filter.insert(key(step, number)).unwrap());
        let mut other = stored(&mut filter, &mut pages);
        assert!(bytes(&other) == bytes(&filter));
        // The restored filter also makes the same decrements from now on.
        (0..1_000).for_each(|number| other.insert(key(9 + step, number)).unwrap());
        (0..1_000).for_each(|number| filter.insert(key(9 + step, number)).unwrap());
        assert!(bytes(&other) == bytes(&filter) && other.metadata() == filter.metadata());
    }
    filter.mark_stale();
    assert_eq!(filter.dirty_pages().len(), 300_000_usize.div_ceil(crate::filter::PAGE_BYTES));
    let other_seed = Sizing { seed: 8, ..sizing };
    assert!(bytes(&loaded(other_seed, 1.0).0) != bytes(&loaded(sizing, 1.0).0));
}

#[test]
fn impossible_metadata_is_rejected() {
    let (filter, _) = loaded(Sizing::new(100_000, 1e-2), 1.0);
    let with = |change: &dyn Fn(&mut CellsMetadata)| {
        let mut metadata = metadata(&filter);
        change(metadata.cells.as_mut().unwrap());
        Stable::from_metadata(filter.sizing, &metadata).map(|_| ())
    };
    assert_eq!(with(&|_| ()), Ok(()));
    let changes: [fn(&mut CellsMetadata); 12] = [
        |stored| stored.cells = 0,
        |stored| stored.cells = 3,
        |stored| stored.cells = u64::MAX,
        |stored| (stored.cells, stored.bytes) = (u64::MAX, u64::MAX),
        |stored| (stored.cells, stored.bytes) = (1 << 50, (1 << 47) + 8),
        |stored| stored.cell_bits = 0,
        |stored| stored.cell_bits = 64,
        |stored| stored.k = 0,
        |stored| stored.k = u32::MAX,
        |stored| stored.decrements = 0,
        |stored| stored.decrements = stored.cells + 1,
        |stored| stored.filled = stored.cells + 1,
    ];
    for (number, change) in changes.iter().enumerate() {
        assert_eq!(with(change), Err(MetadataError::Size), "change {number}");
    }
    let without = Metadata { cells: None, ..metadata(&filter) };
    assert_eq!(Stable::from_metadata(filter.sizing, &without).map(|_| ()), Err(MetadataError::Size));
    let window = crate::filter::Window::time(1, 1);
    let other = Spec::Aging(crate::filter::AgingSizing::new(window, 1, 0.1));
    assert_eq!(other.restore(window, &filter.metadata()).map(|_| ()), Err(MetadataError::Kind));
}

#[test]
fn pages_may_contain_any_bytes_of_the_right_length() {
    let (mut filter, _) = loaded(Sizing::new(100_000, 1e-2), 1.0);
    let id = PageId { slice: Slice::FIRST, layer: 0, page: 0 };
    for wrong in [PageId { slice: Slice(9), ..id }, PageId { layer: 9, ..id }, PageId { page: 1 << 40, ..id }] {
        assert_eq!(filter.read_page(wrong, &vec![0; crate::filter::PAGE_BYTES]), Err(MetadataError::Page(wrong)));
    }
    assert_eq!(filter.read_page(id, &[0; 64]), Err(MetadataError::Page(id)));
    for fill in [0xff, 0] {
        // The stored count of filled cells is now wrong, but nothing breaks.
        filter.read_page(id, &vec![fill; crate::filter::PAGE_BYTES]).unwrap();
        (0..100_000).for_each(|number| filter.insert(key(3, number)).unwrap());
        assert!(filter.contains(key(3, 99_999)) && filter.usage().load.is_finite());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares the filter with an exact model of the cells that changes one cell at a time.
    #[test]
    fn every_answer_matches_the_model(
        stream in proptest::collection::vec((0..300_u64, any::<bool>()), 1..1_500),
        (bytes, rate) in (64..2_000_u64, prop_oneof![Just(0.1), Just(1e-2), Just(1e-4), Just(1e-6)]),
        seed in any::<u64>(),
        checkpoint in 0..1_500_usize,
    ) {
        let sizing = Sizing { seed, ..Sizing::new(bytes, rate) };
        let layout = sizing.layout;
        let (mut filter, mut pages, mut numbers) = (Stable::new(sizing), BTreeMap::new(), SplitMix(seed));
        let mut model = HashMap::<u64, u64>::new();
        for (at, (number, renew)) in stream.into_iter().enumerate() {
            if at == checkpoint {
                filter = stored(&mut filter, &mut pages);
            }
            let seen = filter.contains(key(0, number));
            prop_assert_eq!(seen, places(key(0, number), layout).all(|cell| model.contains_key(&cell)));
            if renew || !seen {
                if seen { filter.refresh(key(0, number)).map(drop) } else { filter.insert(key(0, number)) }.unwrap();
                prop_assert!(filter.contains(key(0, number)));
                let first = scale(numbers.next(), layout.cells);
                for cell in (first..first + layout.decrements).map(|cell| cell % layout.cells) {
                    if model.get(&cell) == Some(&1) {
                        model.remove(&cell);
                    }
                    model.entry(cell).and_modify(|value| *value -= 1);
                }
                model.extend(places(key(0, number), layout).map(|cell| (cell, layout.max())));
            }
        }
        prop_assert_eq!(filter.usage().keys, filter.usage().open_keys.min(filter.lifetime as u64));
        prop_assert_eq!(filter.cells.as_ref().unwrap().filled, model.len() as u64);
    }
}
