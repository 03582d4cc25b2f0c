#![expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]

use super::*;
use crate::key::numbered::key_of_family as key;

fn load_at_first_failure<const B: usize>() -> f64 {
    let layout = TableLayout::<B> { buckets: (1 << 16) / B as u64, fingerprint_bits: 16, tags: 5 };
    let load = |family| {
        let mut table = Table::new(layout).unwrap();
        let put = (0..1 << 20).take_while(|&number| table.insert(table.place(key(family, number)), number % 5)).count();
        assert_eq!(table.used(), put as u64);
        assert!((0..put as u64).all(|number| table.contains(table.place(key(family, number)))), "a failed insertion loses nothing");
        put as f64 / layout.slots() as f64
    };
    (0..8).map(load).sum::<f64>() / 8.0
}

#[test]
fn published_loads_are_reached() {
    let got = [load_at_first_failure::<1>(), load_at_first_failure::<2>(), load_at_first_failure::<4>(), load_at_first_failure::<8>()];
    println!("cuckoo: load at the first failed insertion, 1, 2, 4, 8 slots per bucket: {got:.4?}");
    // Each measured load must reach the load that the cuckoo filter paper (Fan et al., 2014) reports. A large table cannot exceed the
    // threshold (Fernholz, Ramachandran: "The k-orientability thresholds for G(n,p)", 2007), but a small table can exceed it by chance.
    for ((got, published), threshold) in got.into_iter().zip([0.50, 0.84, 0.95, 0.98]).zip([0.5, 0.897, 0.980, 0.999]) {
        assert!(got >= published && got <= threshold + 0.02, "{got:.3}, published {published}, threshold {threshold}");
    }
}

#[test]
fn a_failed_insertion_changes_nothing() {
    let mut table = Table::<4>::new(TableLayout { buckets: 101, fingerprint_bits: 13, tags: 5 }).unwrap();
    let full = (0..1_000).find(|&number| !table.insert(table.place(key(0, number)), number % 5)).unwrap();
    for number in full..full + 200 {
        let (before, used) = (table.buffer.bytes().to_vec(), table.used());
        if !table.insert(table.place(key(0, number)), 0) {
            assert!(table.buffer.bytes() == before && table.used() == used);
        }
    }
}

#[test]
fn buckets_come_in_pairs() {
    for buckets in [1, 2, 3, 1_000, 65_537] {
        let table = Table::<4>::new(TableLayout { buckets, fingerprint_bits: 12, tags: 3 }).unwrap();
        for number in 0..1_000 {
            let place = table.place(key(0, number));
            assert!(place.buckets.iter().all(|&bucket| bucket < buckets));
            assert_eq!(table.other(place.buckets[1], place.fingerprint), place.buckets[0]);
        }
    }
}

#[test]
fn slots_of_any_width_do_not_overlap() {
    for (fingerprint_bits, tags) in [(1, 2), (9, 2), (13, 5), (20, 9), (33, 1), (54, 8)] {
        let layout = TableLayout::<4> { buckets: 50, fingerprint_bits, tags };
        let mut table = Table::new(layout).unwrap();
        let value = |slot: u64| key(fingerprint_bits.into(), slot).low() >> (64 - layout.slot_bits());
        (0..200).rev().for_each(|slot| table.set(slot, value(slot)));
        (0..200).step_by(3).for_each(|slot| table.set(slot, 0));
        assert!((0..200).all(|slot| table.get(slot) == if slot % 3 == 0 { 0 } else { value(slot) }));
    }
}
