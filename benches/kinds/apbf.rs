//! The age-partitioned Bloom filter: k + l parts; a key sets one bit in each of the k youngest; a part is dropped
//! and a new one begun every g keys; a key is there if k parts in a row have its bits. Shtul, Baquero, Almeida:
//! "Age-Partitioned Bloom Filters", 2020.

use crate::Kind;
use crate::bits::{Bits, place};
use std::collections::VecDeque;
use unseen::key::Fingerprint;

pub struct AgePartitioned {
    /// Youngest first; the number is that of its hash.
    parts: VecDeque<(usize, Bits)>,
    k: usize,
    keys: usize,
    generation_keys: usize,
}

impl AgePartitioned {
    /// The cheapest k and l at that rate.
    pub fn new(keys: usize, rate: f64) -> Self {
        let cost = |k: usize, l: usize| k as f64 * (k + l) as f64 / l as f64;
        let shapes = (1..40).filter_map(|k| Some((k, (1..200).rev().find(|&l| false_positives(k, l) <= rate)?)));
        let (k, l) = shapes.min_by(|one, two| cost(one.0, one.1).total_cmp(&cost(two.0, two.1))).expect("a shape");
        let generation_keys = keys.div_ceil(l);
        // Half of a part's bits are set once k generations of keys are in it.
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

    /// From the oldest that k parts in a row may begin with; after a miss no run can cross it, so the next
    /// that may be the first is k before it, and what was found behind that counts on.
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

/// The rate with all parts as full as they get: part i of the youngest k has seen i + 1 generations.
fn false_positives(k: usize, l: usize) -> f64 {
    // Probability of having the last 0, 1 … k - 1 parts in a row, and not k anywhere yet.
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
