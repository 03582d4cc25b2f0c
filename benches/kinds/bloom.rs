//! The plain Bloom filter: k bits anywhere among m. Bloom: "Space/Time Trade-offs in Hash Coding with Allowable Errors", 1970.

use crate::Kind;
use crate::bits::{Bits, bloom_size, place};
use unseen::key::Fingerprint;

pub struct Bloom {
    bits: Bits,
    k: usize,
}

impl Bloom {
    pub fn new(keys: usize, rate: f64) -> Self {
        let (bits, k) = bloom_size(keys, rate);
        Self { bits: Bits::new(bits), k }
    }
}

impl Kind for Bloom {
    fn insert(&mut self, key: Fingerprint) {
        (0..self.k).for_each(|number| self.bits.set(place(key.low(), number, self.bits.len)));
    }

    fn contains(&self, key: Fingerprint) -> bool {
        (0..self.k).all(|number| self.bits.get(place(key.low(), number, self.bits.len)))
    }

    fn clear(&mut self) {
        self.bits.clear();
    }

    fn bytes(&self) -> usize {
        self.bits.bytes()
    }
}

/// The same filter from the crate `fastbloom`, with the same number of bits and k, to validate the reference above.
pub struct Fast(fastbloom::BloomFilter, usize);

impl Fast {
    pub fn new(keys: usize, rate: f64) -> Self {
        let (bits, k) = bloom_size(keys, rate);
        Self(fastbloom::BloomFilter::with_num_bits(bits).seed(&1).hashes(k as u32), bits.div_ceil(8))
    }
}

impl Kind for Fast {
    fn insert(&mut self, key: Fingerprint) {
        self.0.insert_hash(key.low());
    }

    fn contains(&self, key: Fingerprint) -> bool {
        self.0.contains_hash(key.low())
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn bytes(&self) -> usize {
        self.1
    }
}
