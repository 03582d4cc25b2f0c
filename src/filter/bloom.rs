//! A cache-line-blocked Bloom filter.
//!
//! Usually, all bits of a key are in one block of 512 bits. A block is a cache line, so a lookup costs one cache miss (Putze, Sanders,
//! Singler, 2007). If the rate is so low that one block per key would need too much memory, each key has two blocks, with half of its bits
//! in each. The filter may report an absent key as seen but never reports an inserted key as unseen.

#![expect(clippy::inline_always, reason = "SIMD code must be inlined into the function with the target feature")]

use super::paged_buffer::PagedBuffer;
use super::prefetch::prefetch_line;
use crate::key::Fingerprint;

pub(super) const BLOCK_BITS: u32 = 512;
const BLOCK_BYTES: usize = 64;

/// Bits per word of a block. In each word, a key sets zero, one, or two bits.
pub(super) const WORD_BITS: u32 = 64;
const WORDS: usize = (BLOCK_BITS / WORD_BITS) as usize;

/// A block in memory. The 64-bit word `w` consists of two little-endian 32-bit numbers: the lower half at index `w`, and the upper half at
/// `w + 8`. The same 32-bit operations then compute all words, so compilers vectorize them.
type Bits = [u32; 2 * WORDS];

/// Odd multipliers that derive further hashes from a fingerprint. `OTHER` is a prime of XXH64. `FACTORS` has a multiplier for each word,
/// from XXH32 and `MurmurHash3`. The last multiplier is a constant of `MurmurHash3` plus 1, which makes it odd.
const OTHER: u64 = 0xc2b2_ae3d_27d4_eb4f;
const FACTORS: [u32; WORDS] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d, 0x27d4_eb2f, 0x1656_67b1, 0xcc9e_2d51, 0x1b87_3593, 0xe654_6b65];

/// 56 permutations of the eight words. A permutation selects the words for the bits of a key. Any two words occur at any two positions
/// equally often, as among all 40,320 permutations. These permutations are the maps ax + b (a ≠ 0) of the finite field with eight elements.
static ORDERS: [[i32; WORDS]; 56] = orders();

#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "less than eight")]
const fn orders() -> [[i32; WORDS]; 56] {
    // In this field, all elements except zero are powers of the element 2, so a product is a sum of exponents. A sum of elements is an
    // XOR.
    const POWERS: [usize; 7] = [1, 2, 4, 3, 6, 7, 5];
    let (mut orders, mut index) = ([[0; WORDS]; 56], 0);
    while index < 56 {
        let (a, b) = (index / 8, index % 8);
        orders[index][0] = b as i32;
        let mut power = 0;
        while power < 7 {
            orders[index][POWERS[power]] = (POWERS[(power + a) % 7] ^ b) as i32;
            power += 1;
        }
        index += 1;
    }
    orders
}

/// Size of a filter. The size and the inserted fingerprints determine every bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BloomLayout {
    /// Number of 64-byte blocks, at least `blocks_per_key`.
    pub blocks: u64,
    /// Number of blocks that contain bits of one key: 1 or 2. A lookup costs at most one cache miss per block.
    pub blocks_per_key: u32,
    /// Number of different bits that a key sets in each block, 1 to 16.
    pub k: u32,
}

impl BloomLayout {
    /// Memory for the bits, in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.blocks.saturating_mul(BLOCK_BYTES as u64)
    }

    /// True if a key sets the same bits within its blocks in both layouts.
    #[inline]
    pub(super) const fn has_same_mask(self, other: Self) -> bool {
        self.blocks_per_key == other.blocks_per_key && self.k == other.k
    }

    /// Returns the index of a key's first block: the low half of the fingerprint, scaled to the number of blocks (Lemire's fast range,
    /// 2019).
    #[inline(always)]
    fn first(self, fingerprint: Fingerprint) -> usize {
        scale(fingerprint.low(), self.blocks)
    }

    /// Returns the index of a key's second block. The high half of the fingerprint selects it from all blocks except the key's first block.
    #[inline(always)]
    fn second(self, fingerprint: Fingerprint) -> usize {
        let step = 1 + scale(fingerprint.high().wrapping_mul(OTHER), self.blocks - 1);
        let block = self.first(fingerprint) + step;
        if block as u64 >= self.blocks { block - usize::try_from(self.blocks).unwrap_or(block) } else { block }
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "less than the number of blocks, which is a usize")]
fn scale(number: u64, many: u64) -> usize {
    ((u128::from(number) * u128::from(many)) >> 64) as usize
}

/// The bits that a key sets in its blocks. A key has the same mask in all filters with the same `k` and `blocks_per_key`.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Mask([Bits; 2]);

impl Mask {
    pub(super) const NONE: Self = Self([[0; 2 * WORDS]; 2]);

    /// Computes the mask of a key. In the first block, the high half of the fingerprint selects the bits within each word, because the low
    /// half selects the block. The lower 32 bits of the low half select the words. For the second block, the halves are swapped.
    #[inline(always)]
    pub(super) fn compute(&mut self, fingerprint: Fingerprint, layout: BloomLayout) {
        let (low, high) = (fingerprint.low(), fingerprint.high());
        self.0[0] = bits_of(high, low, layout.k);
        if layout.blocks_per_key > 1 {
            self.0[1] = bits_of(low.wrapping_mul(OTHER), high, layout.k);
        }
    }

    pub(super) fn new(fingerprint: Fingerprint, layout: BloomLayout) -> Self {
        let mut mask = Self::NONE;
        mask.compute(fingerprint, layout);
        mask
    }
}

/// Computes `k` different bits of a block. `order` selects a permutation of the words: its first `k / 2` words get two bits each, and the
/// next word gets one bit if `k` is odd.
///
/// This code has no branches, so compilers vectorize it. The false-positive rate is nearly as low as with bits anywhere in the block: a
/// false positive needs bits in several words, and if some words have many bits set, others have few.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "halves are wanted; k are few")]
fn bits_of(seed: u64, order: u64, k: u32) -> Bits {
    let order = &ORDERS[((u64::from(order as u32) * ORDERS.len() as u64) >> 32) as usize];
    let seeds = [seed as u32, (seed >> 32) as u32];
    let (ones, twos) = (k.div_ceil(2) as i32, (k / 2) as i32);
    let mut bits = [0; 2 * WORDS];
    for word in 0..WORDS {
        let hash = seeds[word / (WORDS / 2)].wrapping_mul(FACTORS[word]);
        let one = hash >> 26;
        let two = one ^ (hash >> 20 & 63).max(1);
        let one_bit = if order[word] < ones { 1 << (one & 31) } else { 0 };
        let two_bit = if order[word] < twos { 1 << (two & 31) } else { 0 };
        let (one_upper, two_upper) = ((one >> 5).wrapping_neg(), (two >> 5).wrapping_neg());
        bits[word] = (one_bit & !one_upper | two_bit & !two_upper).to_le();
        bits[word + WORDS] = (one_bit & one_upper | two_bit & two_upper).to_le();
    }
    bits
}

#[derive(Debug)]
pub(super) struct Bloom {
    layout: BloomLayout,
    pub(super) buffer: PagedBuffer,
}

impl Bloom {
    pub(super) fn new(layout: BloomLayout) -> Option<Self> {
        Some(Self { layout, buffer: PagedBuffer::new(layout.bytes())? })
    }

    #[inline]
    pub(super) const fn layout(&self) -> BloomLayout {
        self.layout
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, keys: impl Iterator<Item = Fingerprint>) {
        let (blocks, layout) = (self.blocks(), self.layout);
        for key in keys {
            prefetch_line(&blocks[layout.first(key)]);
            if layout.blocks_per_key > 1 {
                prefetch_line(&blocks[layout.second(key)]);
            }
        }
    }

    /// Looks up keys by their masks. If the filter contains a key, sets the flag of the key to true. Also prefetches the cache lines that a
    /// lookup of the same keys in the filter `next` will read.
    #[inline(always)]
    pub(super) fn contains_each<'a>(&self, next: &Self, keys: impl Iterator<Item = (Fingerprint, &'a Mask, &'a mut bool)>) {
        let (blocks, next_blocks, layout, next) = (self.blocks(), next.blocks(), self.layout, next.layout);
        if layout.blocks_per_key == 1 && next.blocks_per_key == 1 {
            for (key, mask, seen) in keys {
                prefetch_line(&next_blocks[next.first(key)]);
                *seen |= contains_bits(&bytemuck::cast(blocks[layout.first(key)]), &mask.0[0]);
            }
        } else {
            for (key, mask, seen) in keys {
                prefetch_line(&next_blocks[next.first(key)]);
                if next.blocks_per_key > 1 {
                    prefetch_line(&next_blocks[next.second(key)]);
                }
                let first = contains_bits(&bytemuck::cast(blocks[layout.first(key)]), &mask.0[0]);
                let second = layout.blocks_per_key == 1 || contains_bits(&bytemuck::cast(blocks[layout.second(key)]), &mask.0[1]);
                *seen |= first & second;
            }
        }
    }

    /// True if all bits of the fingerprint are set. `mask` must be the fingerprint's mask for the layout of this filter.
    #[inline]
    pub(super) fn contains(&self, fingerprint: Fingerprint, mask: &Mask) -> bool {
        self.first_contains(fingerprint, mask) && (self.layout.blocks_per_key == 1 || self.second_contains(fingerprint, mask))
    }

    #[inline(always)]
    fn first_contains(&self, fingerprint: Fingerprint, mask: &Mask) -> bool {
        contains_bits(&bytemuck::cast(self.blocks()[self.layout.first(fingerprint)]), &mask.0[0])
    }

    #[inline(always)]
    fn second_contains(&self, fingerprint: Fingerprint, mask: &Mask) -> bool {
        contains_bits(&bytemuck::cast(self.blocks()[self.layout.second(fingerprint)]), &mask.0[1])
    }

    /// Inserts a fingerprint. Returns true if all of its bits were already set. `mask` must be the fingerprint's mask for the layout of
    /// this filter.
    #[inline]
    pub(super) fn insert(&mut self, fingerprint: Fingerprint, mask: &Mask) -> bool {
        let there = self.set_block(self.layout.first(fingerprint), &mask.0[0]);
        if self.layout.blocks_per_key == 1 { there } else { self.set_block(self.layout.second(fingerprint), &mask.0[1]) && there }
    }

    #[inline]
    fn set_block(&mut self, number: usize, bits: &Bits) -> bool {
        let there = contains_bits(&bytemuck::cast(self.blocks()[number]), bits);
        if !there {
            self.change_block(number, bits);
        }
        there
    }

    /// Sets bits of a block. Not inlined, because the compiler would not vectorize this function as a part of `set_block`.
    #[inline(never)]
    fn change_block(&mut self, number: usize, bits: &Bits) {
        let block = &mut self.buffer.bytes_mut().as_chunks_mut::<BLOCK_BYTES>().0[number];
        let old: Bits = bytemuck::cast(*block);
        *block = bytemuck::cast::<Bits, _>(std::array::from_fn(|word| old[word] | bits[word]));
        self.buffer.touch(number * BLOCK_BYTES);
    }

    #[inline(always)]
    fn blocks(&self) -> &[[u8; BLOCK_BYTES]] {
        self.buffer.bytes().as_chunks::<BLOCK_BYTES>().0
    }
}

/// True if all of `bits` are set in the block. Has no early exit, because the whole cache line is loaded anyway.
#[inline(always)]
fn contains_bits(block: &Bits, bits: &Bits) -> bool {
    block.iter().zip(bits).fold(0, |missing, (block, bits)| missing | bits & !block) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::numbered::key;
    use xxhash_rust::xxh3::xxh3_64;

    #[test]
    fn a_key_sets_k_bits_per_block() {
        for k in 1..=16 {
            for blocks_per_key in [1, 2] {
                let layout = BloomLayout { blocks: 2, blocks_per_key, k };
                for Mask(bits) in (0..1000).map(|number| Mask::new(key(number), layout)) {
                    let counts = bits.map(|bits| bits.iter().map(|word| word.count_ones()).sum::<u32>());
                    assert_eq!(counts, [k, if blocks_per_key == 2 { k } else { 0 }]);
                }
            }
        }
    }

    #[test]
    fn orders_are_balanced() {
        let mut pairs = [[0; WORDS]; WORDS];
        for order in &ORDERS {
            let places: Vec<usize> = order.iter().map(|&place| usize::try_from(place).unwrap()).collect();
            pairs[places[2]][places[5]] += 1;
        }
        for (a, row) in pairs.iter().enumerate() {
            assert!(row.iter().enumerate().all(|(b, &count)| count == u32::from(a != b)), "{pairs:?}");
        }
    }

    /// Stored filters depend on the positions of these bits. If this test fails, the state format has changed.
    #[test]
    fn the_bits_of_a_key_do_not_change() {
        let mut bloom = Bloom::new(BloomLayout { blocks: 1000, blocks_per_key: 2, k: 11 }).unwrap();
        for number in 0..1000 {
            let mask = Mask::new(key(number), bloom.layout());
            bloom.insert(key(number), &mask);
        }
        assert_eq!(xxh3_64(bloom.buffer.bytes()), 7_021_788_297_073_204_072);
    }
}
