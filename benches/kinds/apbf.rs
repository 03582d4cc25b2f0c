//! The age-partitioned Bloom filter. It has k + l parts, and a key sets one bit in each of the k youngest. Every g keys, the
//! oldest part is dropped, and a new one is added. A key is present if k consecutive parts have its bits. Shtul, Baquero,
//! Almeida: "Age-Partitioned Bloom Filters", 2020.

use crate::Kind;
use crate::bits::{Bits, place};
use std::collections::VecDeque;
use unseen::key::Fingerprint;

pub struct AgePartitioned {
    /// Parts, youngest first, each with the number of its hash.
    parts: VecDeque<(usize, Bits)>,
    k: usize,
    keys: usize,
    generation_keys: usize,
}

impl AgePartitioned {
    /// Selects the cheapest k and l for the rate.
    pub fn new(keys: usize, rate: f64) -> Self {
        let cost = |k: usize, l: usize| k as f64 * (k + l) as f64 / l as f64;
        let shapes = (1..40).filter_map(|k| Some((k, (1..200).rev().find(|&l| false_positives(k, l) <= rate)?)));
        let (k, l) = shapes.min_by(|one, two| cost(one.0, one.1).total_cmp(&cost(two.0, two.1))).expect("a shape");
        let generation_keys = keys.div_ceil(l);
        // Half of a part's bits are set once it contains k generations of keys.
        let bits = ((k * generation_keys) as f64 / std::f64::consts::LN_2).ceil() as usize;
        let parts = (0..k + l).map(|number| (number, Bits::new(bits))).collect();
        Self { parts, k, keys: 0, generation_keys }
    }

    fn has(&self, part: usize, key: Fingerprint) -> bool {
        let (number, bits) = &self.parts[part];
        bits.get(place(key.low(), *number, bits.len))
    }
}

impl Kind for AgePartitioned {
    fn insert(&mut self, key: Fingerprint) {
        if self.keys == self.generation_keys {
            self.parts.rotate_right(1);
            self.parts[0].1.clear();
            self.keys = 0;
        }
        self.keys += 1;
        self.parts.iter_mut().take(self.k).for_each(|(number, bits)| bits.set(place(key.low(), *number, bits.len)));
    }

    /// Starts at the oldest part at which a run of k parts can start. No run can cross a miss, so the next possible start is k
    /// parts before the miss, and the matches found after that start still count.
    fn contains(&self, key: Fingerprint) -> bool {
        let (mut part, mut found, mut behind) = (self.parts.len() - self.k, 0, 0);
        loop {
            if self.has(part, key) {
                found += 1;
                part += 1;
                if found + behind == self.k {
                    return true;
                }
            } else {
                let Some(next) = part.checked_sub(self.k) else { return false };
                (part, behind, found) = (next, found, 0);
            }
        }
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, bits)| bits.bytes()).sum()
    }
}

/// The rate when all parts are as full as they get: part i of the youngest k has seen i + 1 generations.
fn false_positives(k: usize, l: usize) -> f64 {
    // Probabilities of a current run of 0, 1 … k - 1 parts, without a run of k anywhere yet.
    let mut runs = vec![0.0; k];
    runs[0] = 1.0;
    let mut hit = 0.0;
    for part in 0..k + l {
        let set = 1.0 - 0.5_f64.powf((part + 1).min(k) as f64 / k as f64);
        let next = runs.iter().sum::<f64>() * (1.0 - set);
        hit += runs[k - 1] * set;
        for run in (1..k).rev() {
            runs[run] = runs[run - 1] * set;
        }
        runs[0] = next;
    }
    hit
}
