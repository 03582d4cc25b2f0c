#![expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts far below 2^52")]

use super::super::{FilterMetadata as AnyMetadata, PAGE_BYTES};
use super::*;
use crate::filter::kind::{Metadata as _, Sizing as _};
use crate::key::numbered::key_of_family as key;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

const FOUR: Window = Window::Time { slice_ms: 1, slices: 4 };

fn filled(window: Window, sizing: Sizing, keys: u64, family: u64) -> Cuckoo {
    let mut filter = Cuckoo::new(window, sizing);
    for number in 0..keys {
        if number.is_multiple_of(keys.div_ceil(filter.tags())) {
            filter.advance((number * filter.tags() / keys).cast_signed());
        }
        filter.insert(key(family, number)).unwrap();
    }
    filter
}

#[test]
fn memory_matches_the_documentation() {
    // Bits per key of a window with four slices. The table is sized for five slices, but only the keys of four slices count.
    for (rate, least, most) in [(1e-2, 15.0, 18.5), (1e-3, 19.0, 22.0), (1e-4, 24.0, 27.0), (1e-6, 31.0, 34.5), (1e-9, 44.0, 49.0)] {
        let sizing = Sizing::new(FOUR, 10_000_000, rate);
        let bits = sizing.bytes(FOUR) as f64 * 8.0 / 1e7;
        let layout = sizing.layout(FOUR, 0);
        println!("cuckoo {rate:.0e}: {bits:.2} bits per key, slots of {} + {}", layout.fingerprint_bits, layout.tag_bits());
        assert!((least..most).contains(&bits) && layout.capacity() >= 12_500_000, "{rate:.0e}: {bits:.2}");
    }
}

#[test]
fn measured_rates_match_predictions() {
    const FILTERS: u64 = 4;
    for (rate, asked) in [(1e-2, 400_000), (1e-3, 2_000_000), (1e-4, 4_000_000)] {
        let sizing = Sizing::new(FOUR, 40_000, rate);
        for load in [0.5, 1.0, 2.0, 4.0] {
            let expected = sizing.predict(FOUR, load);
            let found = (0..FILTERS).map(|family| {
                let filter = filled(FOUR, sizing, (load * sizing.capacity as f64) as u64, family);
                assert_eq!(filter.usage().bytes, expected.bytes, "chained as predicted");
                assert!((filter.usage().load - load).abs() < 0.001);
                (0..asked / FILTERS).filter(|&number| filter.contains(key(family, (1 << 40) + number))).count() as f64
            });
            let got = found.sum::<f64>() / asked as f64;
            println!("cuckoo {rate:.0e}, load {load}: measured {got:.3e}, predicted {:.3e}, {} bytes", expected.rate, expected.bytes);
            assert!(expected.rate <= rate, "the sizing's rate holds, chained or not");
            // Statistical error of the count, which is exceeded with a probability of one in a thousand.
            let noise = 3.09 * (expected.rate / asked as f64).sqrt();
            assert!(got <= expected.rate * 1.03 + noise && got >= expected.rate * 0.97 - noise, "{rate:.0e} at {load}: {got:.3e}");
        }
    }
}

#[test]
fn a_far_too_small_filter_forgets_nothing() {
    let filter = filled(FOUR, Sizing::new(FOUR, 1, 1e-3), 10_000, 0);
    assert!((0..10_000).all(|number| filter.contains(key(0, number))));
    assert!(filter.layers.len() <= 16, "layers double: {}", filter.layers.len());
    assert_eq!(filter.usage().keys, 10_000);
}

#[test]
fn a_window_by_count_keeps_its_keys() {
    let window = Window::keys(40, 4);
    let mut filter = Cuckoo::new(window, Sizing::new(window, 40, 1e-9));
    for number in 0..1_000_u64 {
        filter.insert(key(0, number)).unwrap();
        assert!((number.saturating_sub(40)..=number).all(|number| filter.contains(key(0, number))));
        assert!((0..number.saturating_sub(49)).all(|number| !filter.contains(key(0, number))));
        assert!(filter.layers.len() <= 2, "expired keys free slots; such a small table may chain another one");
    }
    // A renewed key counts as inserted, unless it is already in the current slice.
    let open = filter.usage().open_keys;
    filter.refresh(key(0, 999)).unwrap();
    assert_eq!(filter.usage().open_keys, open);
    filter.refresh(key(0, 960)).unwrap();
    assert_eq!((filter.usage().open_keys, filter.slice()), (1, Some(Slice(100))), "the key started a slice, and was in the oldest one");
    assert!(filter.contains(key(0, 960)) && !filter.contains(key(0, 959)));
}

#[test]
fn tags_stay_unambiguous_when_time_jumps() {
    for slices in [1, 2, 3, 4, 7, 8] {
        let window = Window::Time { slice_ms: 1, slices };
        for jump in 1..40 {
            let mut filter = Cuckoo::new(window, Sizing::new(window, 100, 1e-9));
            for time in 0..12_i64 {
                filter.advance(time);
                filter.insert(key(0, time.cast_unsigned())).unwrap();
            }
            filter.advance(11 + jump);
            for time in 0..12_i64 {
                let within = 11 + jump - time <= i64::from(slices);
                assert_eq!(filter.contains(key(0, time.cast_unsigned())), within, "{slices} slices, {jump} on, of {time}");
            }
        }
    }
}

#[test]
fn extreme_times_do_not_overflow() {
    let mut filter = Cuckoo::new(Window::Time { slice_ms: 1, slices: 8 }, Sizing::new(Window::time(8, 8), 8, 1e-3));
    for time in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX] {
        filter.advance(time);
        filter.insert(key(0, 1)).unwrap();
        assert!(filter.contains(key(0, 1)));
    }
    assert_eq!(filter.usage().keys, 1);
    let window = Window::Time { slice_ms: 1, slices: u32::MAX };
    let mut filter = Cuckoo::new(window, Sizing::new(window, u64::MAX, f64::MIN_POSITIVE));
    assert_eq!(filter.insert(key(0, 1)), Err(CapacityError::Memory));
    assert_eq!(filter.usage().keys, 0);
}

#[test]
fn keys_of_unknown_time_belong_to_the_first_known_time() {
    let mut filter = Cuckoo::new(FOUR, Sizing::new(FOUR, 100, 1e-9));
    filter.insert(key(0, 0)).unwrap();
    filter.advance(1_000);
    filter.advance(1_004);
    assert!(filter.contains(key(0, 0)));
    filter.advance(1_005);
    assert!(!filter.contains(key(0, 0)));
}

#[test]
fn a_key_has_at_most_eight_copies() {
    let mut filter = Cuckoo::new(FOUR, Sizing::new(FOUR, 1_000, 1e-6));
    filter.advance(0);
    (0..9).for_each(|_| filter.insert(key(0, 1)).unwrap());
    assert_eq!((filter.usage().keys, filter.usage().open_keys), (8, 9));
    assert!((0..8).all(|_| filter.remove(key(0, 1))));
    assert!(!filter.contains(key(0, 1)) && !filter.remove(key(0, 1)));
    // A ninth copy is not stored, but the key is remembered for a whole window from then on.
    (0..8).for_each(|_| filter.insert(key(0, 2)).unwrap());
    filter.advance(3);
    filter.insert(key(0, 2)).unwrap();
    filter.advance(7);
    assert!(filter.contains(key(0, 2)) && filter.usage().keys == 1);
}

#[test]
fn copies_do_not_chain_tables() {
    // The first tables have 2, 2, 4, and 33 buckets. Chained tables can have a single bucket.
    for keys in [1, 4, 10, 100] {
        let mut filter = Cuckoo::new(FOUR, Sizing::new(FOUR, keys, 1e-6));
        (0..1_000).for_each(|_| filter.insert(key(0, 1)).unwrap());
        assert!(filter.usage().keys <= 8 && filter.layers.len() <= 3, "{keys}: {:?}", filter.usage());
    }
}

#[test]
fn removing_keys_frees_slots() {
    let sizing = Sizing::new(FOUR, 1_000, 1e-9);
    let mut filter = Cuckoo::new(FOUR, sizing);
    for number in 0..20_000 {
        filter.insert(key(0, number)).unwrap();
        if number >= 1_000 {
            assert!(filter.remove(key(0, number - 1_000)) && !filter.contains(key(0, number - 1_000)));
        }
    }
    assert_eq!((filter.layers.len(), filter.usage().keys), (1, 1_000));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u64),
    Refresh(u64),
    Remove(u64),
    Advance(i64),
    Checkpoint,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..60_u64).prop_map(Step::Insert),
        1 => (0..3_u64).prop_map(Step::Insert),
        2 => (0..60_u64).prop_map(Step::Refresh),
        3 => (0..60_u64).prop_map(Step::Remove),
        1 => (0..12_i64).prop_map(Step::Advance),
        1 => (0..1_000_i64).prop_map(Step::Advance),
        1 => Just(Step::Checkpoint),
    ]
}

/// An exact model: for each key, the slices of at most `most` of its copies. The filter must remember every key that a model with four
/// copies per key remembers and must not remember a key that a model with all copies has forgotten.
struct Model {
    most: usize,
    slices: i64,
    copies: HashMap<u64, Vec<i64>>,
}

impl Model {
    fn apply(&mut self, step: Step, before: Option<i64>, slice: i64) {
        let oldest = |copies: &[i64]| (0..copies.len()).min_by_key(|&at| copies[at]);
        match step {
            Step::Insert(number) | Step::Refresh(number) => {
                let copies = self.copies.entry(number).or_default();
                let at = oldest(copies);
                match at {
                    Some(at) if matches!(step, Step::Refresh(_)) || copies.len() >= self.most => copies[at] = slice,
                    _ => copies.push(slice),
                }
            }
            Step::Remove(number) => {
                let copies = self.copies.entry(number).or_default();
                if let Some(at) = oldest(copies) {
                    copies.remove(at);
                }
            }
            Step::Advance(_) if before.is_none() => self.copies.values_mut().flatten().for_each(|at| *at = slice),
            Step::Advance(_) | Step::Checkpoint => {}
        }
        let slices = self.slices;
        self.copies.values_mut().for_each(|copies| copies.retain(|&at| slice - at <= slices));
    }

    fn has(&self, number: u64) -> bool {
        self.copies.get(&number).is_some_and(|copies| !copies.is_empty())
    }
}

fn apply(filter: &mut Cuckoo, step: Step, time: &mut i64) {
    match step {
        Step::Insert(number) => filter.insert(key(0, number)).unwrap(),
        Step::Refresh(number) => _ = filter.refresh(key(0, number)).unwrap(),
        Step::Remove(number) => _ = filter.remove(key(0, number)),
        Step::Advance(by) => {
            *time += by;
            filter.advance(*time);
        }
        Step::Checkpoint => {}
    }
}

proptest! {
    #[test]
    fn no_key_is_forgotten_within_its_window(
        steps in proptest::collection::vec(step(), 1..400),
        slices in 1..9_u32,
        by_count in any::<bool>(),
        keys in 1..40_u64,
    ) {
        let window = if by_count { Window::Keys { slice_keys: 10, slices } } else { Window::Time { slice_ms: 10, slices } };
        let mut filter = Cuckoo::new(window, Sizing::new(window, keys, 1e-11));
        let mut twin = Cuckoo::new(window, Sizing::new(window, keys, 1e-11));
        let model = |most| Model { most, slices: slices.into(), copies: HashMap::new() };
        let (mut least, mut most) = (model(4), model(usize::MAX));
        let (mut time, mut twins_time, mut store) = (-50, -50, Store::default());
        for step in steps {
            let before = filter.slice().map(|slice| slice.0);
            apply(&mut filter, step, &mut time);
            apply(&mut twin, step, &mut twins_time);
            if matches!(step, Step::Checkpoint) {
                filter = store.save_and_load(&mut filter);
            }
            for model in [&mut least, &mut most] {
                model.apply(step, before, filter.slice().unwrap_or_default().0);
            }
            for number in 0..60 {
                prop_assert!(filter.contains(key(0, number)) || !least.has(number), "{number} was forgotten");
                prop_assert!(!filter.contains(key(0, number)) || most.has(number), "{number} was not forgotten");
            }
        }
        prop_assert!(bytes(&filter) == bytes(&twin), "the restored filter differs from the original");
    }
}

fn metadata(filter: &Cuckoo) -> Metadata {
    let AnyMetadata::Cuckoo(metadata) = filter.metadata() else { panic!("wrong kind") };
    metadata
}

fn bytes(filter: &Cuckoo) -> Vec<&[u8]> {
    filter.layers.iter().map(|layer| layer.table.buffer.bytes()).collect()
}

#[derive(Default)]
struct Store(BTreeMap<PageId, Vec<u8>>);

impl Store {
    fn save_and_load(&mut self, filter: &mut Cuckoo) -> Cuckoo {
        let parts = metadata(filter).parts();
        self.0.retain(|id, _| parts.iter().any(|part| (part.slice, part.layer) == (id.slice, id.layer)));
        let dirty = filter.dirty_pages();
        assert!(dirty.is_sorted(), "pages are sorted by id");
        for id in dirty {
            let mut bytes = Vec::new();
            filter.write_page(id, &mut bytes);
            self.0.insert(id, bytes);
        }
        filter.mark_clean();
        assert_eq!(self.0.len() as u64, parts.iter().map(|part| part.pages).sum::<u64>());
        let json = serde_json::to_string(&metadata(filter)).unwrap();
        let mut other = Cuckoo::from_metadata(filter.window, filter.sizing, &serde_json::from_str(&json).unwrap()).unwrap();
        for (id, bytes) in &self.0 {
            other.read_page(*id, bytes).unwrap();
        }
        assert!(other.dirty_pages().is_empty() && other.metadata() == filter.metadata());
        assert!(bytes(&other) == bytes(filter));
        other
    }
}

#[test]
fn restored_state_is_bit_for_bit_identical_while_tables_change() {
    let sizing = Sizing::new(FOUR, 50_000, 1e-3);
    let (mut filter, mut store, mut most) = (Cuckoo::new(FOUR, sizing), Store::default(), 0);
    for slice in 0..16_u64 {
        filter.advance(slice.cast_signed());
        let keys = if slice % 8 < 2 { 120_000 } else { 3_000 };
        (0..keys).for_each(|number| filter.insert(key(slice, number)).unwrap());
        most = most.max(filter.layers.len());
        let mut other = store.save_and_load(&mut filter);
        for filter in [&mut filter, &mut other] {
            (0..2_000).for_each(|number| filter.insert(key(100 + slice, number)).unwrap());
        }
        assert!(bytes(&other) == bytes(&filter) && other.metadata() == filter.metadata());
    }
    println!("cuckoo: {most} layers at most, {} in the end, {} made", filter.layers.len(), filter.names);
    assert!(most > 3 && filter.layers.len() < most && filter.names > most as u64);
}

#[test]
fn a_rotation_only_writes_pages_with_expired_keys() {
    let sizing = Sizing::new(FOUR, 1_000_000, 1e-3);
    let mut filter = Cuckoo::new(FOUR, sizing);
    filter.advance(0);
    filter.insert(key(0, 0)).unwrap();
    filter.advance(4);
    assert!(filter.dirty_pages().len() <= 2, "one slot, which may cross a page boundary");
    filter.mark_clean();
    filter.advance(4);
    assert!(filter.dirty_pages().is_empty());
    filter.insert(key(0, 1)).unwrap();
    filter.mark_clean();
    filter.advance(5);
    assert!((1..=2).contains(&filter.dirty_pages().len()) && filter.usage().keys == 1);
}

#[test]
fn tables_with_a_different_sizing_drain() {
    let (small, large) = (Sizing::new(FOUR, 1_000, 1e-9), Sizing::new(FOUR, 5_000, 1e-9));
    let mut old = filled(FOUR, small, 2_000, 0);
    let mut store = Store::default();
    store.save_and_load(&mut old);
    let mut filter = Cuckoo::from_metadata(FOUR, large, &metadata(&old)).unwrap();
    for (id, bytes) in &store.0 {
        filter.read_page(*id, bytes).unwrap();
    }
    (0..1_000).for_each(|number| filter.insert(key(1, number)).unwrap());
    assert!((0..2_000).all(|number| filter.contains(key(0, number))));
    filter.advance(9);
    assert_eq!((filter.layers.len(), filter.usage().bytes), (1, large.bytes(FOUR)));
}

#[test]
fn impossible_metadata_is_rejected() {
    let filter = filled(FOUR, Sizing::new(FOUR, 1_000, 1e-3), 3_000, 0);
    let with = |change: &dyn Fn(&mut Metadata)| {
        let mut metadata = metadata(&filter);
        change(&mut metadata);
        Cuckoo::from_metadata(FOUR, filter.sizing, &metadata).map(|_| ())
    };
    assert_eq!(with(&|_| ()), Ok(()));
    let shapes: [fn(&mut Metadata); 16] = [
        |metadata| metadata.layers[0].buckets = 0,
        |metadata| metadata.layers[0].buckets += 1_000,
        |metadata| metadata.layers[0].buckets = u64::MAX,
        |metadata| (metadata.layers[0].buckets, metadata.layers[0].capacity) = (1 << 38, (1 << 40) - (1_u64 << 40).div_ceil(20)),
        |metadata| (metadata.layers[0].buckets, metadata.layers[0].capacity) = (u64::MAX, u64::MAX),
        |metadata| metadata.layers[0].fingerprint_bits = 0,
        |metadata| metadata.layers[0].fingerprint_bits = 55,
        |metadata| metadata.layers[0].fingerprint_bits = u32::MAX,
        |metadata| metadata.layers[0].capacity += 1,
        |metadata| metadata.layers[0].limit = u64::MAX,
        |metadata| metadata.layers[0].keys = u64::MAX,
        |metadata| metadata.layers[0].name = 1,
        |metadata| metadata.layers.reverse(),
        |metadata| metadata.names = 1,
        |metadata| metadata.names = u64::MAX,
        |metadata| {
            // Each layer has a possible size, but together they exceed the maximum memory.
            let buckets = 1_u64 << 35;
            let capacity = 4 * buckets - (4 * buckets).div_ceil(20);
            let layer = LayerMetadata { buckets, capacity, ..metadata.layers[0].clone() };
            metadata.layers = (0..100).map(|name| LayerMetadata { name, ..layer.clone() }).collect();
            metadata.names = 100;
        },
    ];
    for (number, change) in shapes.iter().enumerate() {
        assert_eq!(with(change), Err(MetadataError::Size), "change {number}");
    }
    let generations: [fn(&mut Metadata); 4] =
        [|metadata| metadata.tag = 5, |metadata| metadata.tag = u64::MAX, |metadata| metadata.slices = 5, |metadata| metadata.slice = None];
    for (number, change) in generations.iter().enumerate() {
        assert_eq!(with(change), Err(MetadataError::Generations), "change {number}");
    }
    assert_eq!(with(&|metadata| metadata.layers[0].depth = u32::MAX), Ok(()), "the layer has a different sizing");
    let window = Window::keys(40, 4);
    let counted = Metadata { open_keys: 11, ..metadata(&Cuckoo::new(window, filter.sizing)) };
    assert_eq!(Cuckoo::from_metadata(window, filter.sizing, &counted).map(|_| ()), Err(MetadataError::Generations));
}

#[test]
fn pages_may_contain_any_bytes_of_the_right_length() {
    let sizing = Sizing::new(FOUR, 100_000, 1e-3);
    let mut filter = filled(FOUR, sizing, 100_000, 0);
    let id = PageId { slice: Slice::FIRST, layer: 0, page: 0 };
    for wrong in [PageId { slice: Slice(9), ..id }, PageId { layer: 9, ..id }, PageId { page: 1 << 40, ..id }] {
        assert_eq!(filter.read_page(wrong, &vec![0; PAGE_BYTES]), Err(MetadataError::Page(wrong)));
    }
    assert_eq!(filter.read_page(id, &[0; 64]), Err(MetadataError::Page(id)));
    for (family, page) in [vec![0xff; PAGE_BYTES], vec![0; PAGE_BYTES], (0..=255).cycle().take(PAGE_BYTES).collect()].iter().enumerate() {
        let family = 10 + family as u64;
        filter.read_page(id, page).unwrap();
        for number in 0..100_000 {
            filter.insert(key(family, number)).unwrap();
            assert!(filter.contains(key(family, number)));
            assert!(number % 2 == 0 || filter.remove(key(family, number)));
        }
        filter.advance(filter.slice().unwrap().0 + 1);
        let counted = |layer: &Layer| (0..layer.table.layout().slots()).filter(|&slot| layer.table.get(slot) != 0).count() as u64;
        assert!(filter.layers.iter().all(|layer| counted(layer) == layer.table.used()), "impossible tags are removed");
    }
}

/// Found by fuzzing: metadata with more filled slots than the planned capacity was rejected.
#[test]
fn metadata_of_damaged_pages_is_accepted() {
    let sizing = Sizing::new(FOUR, 1_000, 1e-3);
    let mut filter = filled(FOUR, sizing, 1_000, 0);
    // This pattern puts fingerprints with a valid tag into more slots than the planned capacity.
    let bytes = vec![0b1000_1100; bytes(&filter)[0].len()];
    filter.read_page(PageId { slice: Slice::FIRST, layer: 0, page: 0 }, &bytes).unwrap();
    filter.advance(filter.slice().unwrap().0 + 1);
    let metadata = metadata(&filter);
    assert!(metadata.layers[0].keys > metadata.layers[0].capacity);
    assert!(Cuckoo::from_metadata(FOUR, sizing, &metadata).is_ok());
}
