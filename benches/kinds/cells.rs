//! Packed cells of a few bits each, the positions of a key's cells, and the number of cells per key.

use memmap2::MmapMut;

/// Packed cells of up to 32 bits. Like the library's filters, they request huge pages, so memory accesses cost the same.
pub struct Cells {
    map: MmapMut,
    width: usize,
    pub len: usize,
}

impl Cells {
    pub fn new(len: usize, width: usize) -> Self {
        let map = MmapMut::map_anon(((len * width).div_ceil(64) + 1) * 8).expect("memory");
        #[cfg(target_os = "linux")]
        {
            // An error is ignored, because the cells also work in small pages.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Self { map, width, len }
    }

    pub fn get(&self, cell: usize) -> u64 {
        let (words, word, shift) = (bytemuck::cast_slice::<u8, u64>(&self.map), cell * self.width / 64, cell * self.width % 64);
        let mut value = words[word] >> shift;
        if shift + self.width > 64 {
            value |= words[word + 1] << (64 - shift);
        }
        value & ((1 << self.width) - 1)
    }

    pub fn set(&mut self, cell: usize, value: u64) {
        let (word, shift, ones) = (cell * self.width / 64, cell * self.width % 64, (1 << self.width) - 1);
        let words = bytemuck::cast_slice_mut::<u8, u64>(&mut self.map);
        words[word] = words[word] & !(ones << shift) | value << shift;
        if shift + self.width > 64 {
            words[word + 1] = words[word + 1] & !(ones >> (64 - shift)) | value >> (64 - shift);
        }
    }

    pub fn clear(&mut self) {
        self.map.fill(0);
    }

    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    pub fn places(&self, hash: u64, k: usize) -> impl Iterator<Item = usize> + use<> {
        let len = self.len;
        (0..k).map(move |number| place(hash, number, len))
    }
}

/// Returns the `index`-th position of a key in the range `0..len`. Each position has a separate hash. Double hashing would be faster, but
/// two keys that share two positions would then often share all positions. In small filters, such keys visibly increase false-positive
/// rates that are lower than 1e-5.
pub fn place(hash: u64, index: usize, len: usize) -> usize {
    let mixed = hash.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    scale((mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93), len)
}

pub fn scale(hash: u64, len: usize) -> usize {
    ((u128::from(hash) * len as u128) >> 64) as usize
}

/// Returns the number of cells, and the number of cells per key, of a Bloom filter for `keys` keys at `rate`.
pub fn bloom_size(keys: usize, rate: f64) -> (usize, usize) {
    let k = (-rate.log2()).round().max(1.0);
    let cells = -k * keys as f64 / (-rate.powf(1.0 / k)).ln_1p();
    (cells.ceil() as usize, k as usize)
}
