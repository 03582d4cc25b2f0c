//! The Golomb-compressed set: n hashes below n/p, sorted, with their differences in Golomb-Rice code. Putze, Sanders, Singler:
//! "Cache-, Hash- and Space-Efficient Bloom Filters", 2007.
//!
//! Hashes are divided into ranges of about 32 keys. An index stores where the code of each range starts. On average, a lookup
//! decodes half of a range.

use crate::bits::scale;
use crate::ring::Static;

const RANGE_KEYS: usize = 32;

pub struct Golomb {
    words: Vec<u64>,
    /// Position at which the code of each range starts, in bits. Has one more entry than there are ranges.
    index: Vec<u32>,
    /// Hashes are below ranges * width.
    width: u64,
    /// Number of low bits that are stored unencoded.
    low_bits: u32,
}

impl Golomb {
    pub fn new(keys: Vec<u64>, rate: f64) -> Self {
        let ranges = keys.len().div_ceil(RANGE_KEYS);
        let width = (keys.len() as f64 / rate / ranges as f64).ceil() as u64;
        let low_bits = (1.0 / rate * std::f64::consts::LN_2).log2().round() as u32;
        let mut golomb = Self { words: Vec::new(), index: Vec::with_capacity(ranges + 1), width, low_bits };
        let mut hashes: Vec<u64> = keys.into_iter().map(|key| scale(key, golomb.width as usize * ranges) as u64).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let (mut end, mut last) = (0, 0);
        for hash in hashes {
            while golomb.index.len() as u64 <= hash / width {
                last = golomb.index.len() as u64 * width;
                golomb.index.push(end);
            }
            let gap = hash - last;
            last = hash;
            let quotient = (gap >> low_bits) as u32;
            golomb.write(end + quotient, 1, 1);
            golomb.write(end + quotient + 1, gap & ((1 << low_bits) - 1), low_bits);
            end += quotient + 1 + low_bits;
        }
        golomb.index.resize(ranges + 1, end);
        golomb.words.resize(end as usize / 64 + 2, 0);
        golomb.words.shrink_to_fit();
        golomb
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
}

impl Static for Golomb {
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
