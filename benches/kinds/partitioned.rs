//! The partitioned Bloom filter: k parts of m/k bits, with one bit of a key in each. Mullin: "A Second Look at Bloom Filters",
//! 1983; Almeida: "A Case for Partitioned Bloom Filters", 2020.

use crate::Kind;
use crate::bits::{Bits, bloom_size, place};
use unseen::key::Fingerprint;

pub struct Partitioned {
    parts: Vec<Bits>,
}

impl Partitioned {
    pub fn new(keys: usize, rate: f64) -> Self {
        let (bits, k) = bloom_size(keys, rate);
        Self { parts: (0..k).map(|_| Bits::new(bits.div_ceil(k))).collect() }
    }
}

impl Kind for Partitioned {
    fn insert(&mut self, key: Fingerprint) {
        self.parts.iter_mut().enumerate().for_each(|(number, part)| part.set(place(key.low(), number, part.len)));
    }

    fn contains(&self, key: Fingerprint) -> bool {
        self.parts.iter().enumerate().all(|(number, part)| part.get(place(key.low(), number, part.len)))
    }

    fn clear(&mut self) {
        self.parts.iter_mut().for_each(Bits::clear);
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(Bits::bytes).sum()
    }
}
