//! Packed cells of a few bits each, the positions of a key's cells, and the cost of `k` bits per key.

use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};

/// Zeroed memory in huge pages, as in the library, so that lookups cost the same.
struct Words(MmapMut);

impl Words {
    fn new(count: usize) -> Self {
        let map = MmapMut::map_anon(count * 8).expect("memory");
        #[cfg(target_os = "linux")]
        {
            // Without huge pages, small pages work, too.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Self(map)
    }
}

impl Deref for Words {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        bytemuck::cast_slice(&self.0)
    }
}

impl DerefMut for Words {
    fn deref_mut(&mut self) -> &mut [u64] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Cells of `width` bits, at most 32.
pub struct Cells {
    words: Words,
    width: usize,
    pub len: usize,
}

impl Cells {
    pub fn new(len: usize, width: usize) -> Self {
        Self { words: Words::new((len * width).div_ceil(64) + 1), width, len }
    }

    pub fn get(&self, cell: usize) -> u64 {
        let (word, shift) = (cell * self.width / 64, cell * self.width % 64);
        let mut value = self.words[word] >> shift;
        if shift + self.width > 64 {
            value |= self.words[word + 1] << (64 - shift);
        }
        value & ((1 << self.width) - 1)
    }

    pub fn set(&mut self, cell: usize, value: u64) {
        let (word, shift, ones) = (cell * self.width / 64, cell * self.width % 64, (1 << self.width) - 1);
        self.words[word] = self.words[word] & !(ones << shift) | value << shift;
        if shift + self.width > 64 {
            let next = &mut self.words[word + 1];
            *next = *next & !(ones >> (64 - shift)) | value >> (64 - shift);
        }
    }

    pub fn bytes(&self) -> usize {
        self.words.len() * 8
    }
}

/// Bits. Simpler and faster than cells of one bit.
pub struct Bits {
    words: Words,
    pub len: usize,
}

impl Bits {
    pub fn new(len: usize) -> Self {
        Self { words: Words::new(len.div_ceil(64)), len }
    }

    pub fn get(&self, bit: usize) -> bool {
        self.words[bit / 64] >> (bit % 64) & 1 == 1
    }

    pub fn set(&mut self, bit: usize) {
        self.words[bit / 64] |= 1 << (bit % 64);
    }

    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    pub fn bytes(&self) -> usize {
        self.words.len() * 8
    }
}

/// The `index`-th position of a key in the range `0..len`, each with its own hash. (Double hashing is faster, but two keys that
/// share two positions then share all too often. In small filters, that is visible below 1e-5.)
pub fn place(hash: u64, index: usize, len: usize) -> usize {
    let mixed = hash.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    scale((mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93), len)
}

/// Scales a 64-bit hash to the range `0..len`.
pub fn scale(hash: u64, len: usize) -> usize {
    ((u128::from(hash) * len as u128) >> 64) as usize
}

/// Number of cells, and of cells per key, of a Bloom filter that holds `keys` at `rate`.
pub fn bloom_size(keys: usize, rate: f64) -> (usize, usize) {
    let k = (-rate.log2()).round().max(1.0);
    let cells = -k * keys as f64 / (-rate.powf(1.0 / k)).ln_1p();
    (cells.ceil() as usize, k as usize)
}
