//! The Golomb-compressed set: n keys are hashed to numbers less than n/p, where p is the false-positive rate. The hashes are sorted, and
//! the differences between neighbors are stored in Golomb-Rice code. Putze, Sanders, Singler: "Cache-, Hash- and Space-Efficient Bloom
//! Filters", 2007.
//!
//! Hashes are divided into ranges of about 32 keys. An index stores where the code of each range starts, so a lookup decodes only half of a
//! range on average.

use crate::cells::scale;
use crate::{Buffer, Kind, SLICES, buffer_bytes};
use std::collections::VecDeque;
use unseen::key::Fingerprint;

const RANGE_KEYS: usize = 32;

/// A set for each closed slice, newest first, and a plain hash set for the open slice.
pub struct Golomb {
    sets: VecDeque<Set>,
    open: Buffer,
    slice_keys: usize,
    rate: f64,
}

impl Golomb {
    pub fn new(keys: usize, rate: f64) -> Self {
        let rate = unseen::filter::rate_per_generation(rate, SLICES as u32);
        Self { sets: VecDeque::new(), open: Buffer::default(), slice_keys: keys / SLICES, rate }
    }
}

impl Kind for Golomb {
    fn insert(&mut self, key: Fingerprint) {
        self.open.insert(key.low());
    }

    fn contains(&self, key: Fingerprint) -> bool {
        self.open.contains(&key.low()) || self.sets.iter().any(|set| set.contains(key.low()))
    }

    fn bytes(&self) -> usize {
        buffer_bytes(self.slice_keys) + self.sets.iter().map(Set::bytes).sum::<usize>()
    }

    fn rotate(&mut self) {
        self.sets.truncate(SLICES - 1);
        self.sets.push_front(Set::new(self.open.drain().collect(), self.rate));
    }
}

struct Set {
    words: Vec<u64>,
    /// Start positions of the ranges' codes, in bits. The last entry is the end of the last range.
    index: Vec<u32>,
    /// Number of hash values per range.
    width: u64,
    /// Number of low bits of a difference that are stored unencoded.
    low_bits: u32,
}

impl Set {
    fn new(keys: Vec<u64>, rate: f64) -> Self {
        let ranges = keys.len().div_ceil(RANGE_KEYS);
        let width = (keys.len() as f64 / rate / ranges as f64).ceil() as u64;
        let low_bits = (1.0 / rate * std::f64::consts::LN_2).log2().round() as u32;
        let mut set = Self { words: Vec::new(), index: Vec::with_capacity(ranges + 1), width, low_bits };
        let mut hashes: Vec<u64> = keys.into_iter().map(|key| scale(key, set.width as usize * ranges) as u64).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let (mut end, mut last) = (0, 0);
        for hash in hashes {
            while set.index.len() as u64 <= hash / width {
                last = set.index.len() as u64 * width;
                set.index.push(end);
            }
            let gap = hash - last;
            last = hash;
            let quotient = (gap >> low_bits) as u32;
            set.write(end + quotient, 1, 1);
            set.write(end + quotient + 1, gap & ((1 << low_bits) - 1), low_bits);
            end += quotient + 1 + low_bits;
        }
        set.index.resize(ranges + 1, end);
        set.words.resize(end as usize / 64 + 2, 0);
        set.words.shrink_to_fit();
        set
    }

    fn write(&mut self, at: u32, value: u64, bits: u32) {
        let (word, shift) = (at as usize / 64, at % 64);
        if self.words.len() < word + 2 {
            self.words.resize(word + 2, 0);
        }
        self.words[word] |= value << shift;
        if shift + bits > 64 {
            self.words[word + 1] |= value >> (64 - shift);
        }
    }

    fn read(&self, at: u32) -> u64 {
        let (word, shift) = (at as usize / 64, at % 64);
        self.words[word] >> shift | (self.words[word + 1] << 1) << (63 - shift)
    }

    fn contains(&self, hash: u64) -> bool {
        let ranges = self.index.len() - 1;
        let hash = scale(hash, self.width as usize * ranges) as u64;
        let range = (hash / self.width) as usize;
        let (mut at, end) = (self.index[range], self.index[range + 1]);
        let mut value = range as u64 * self.width;
        while at < end {
            let mut quotient = 0;
            let mut code = self.read(at);
            while code == 0 {
                (quotient, at) = (quotient + 64, at + 64);
                code = self.read(at);
            }
            quotient += code.trailing_zeros();
            at += code.trailing_zeros() + 1;
            value += u64::from(quotient) << self.low_bits | self.read(at) & ((1 << self.low_bits) - 1);
            at += self.low_bits;
            if value >= hash {
                return value == hash;
            }
        }
        false
    }

    fn bytes(&self) -> usize {
        self.words.len() * 8 + self.index.len() * 4
    }
}
