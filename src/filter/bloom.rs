//! One cache-line-blocked Bloom filter.
//!
//! All bits of a key lie in one block of 512 bits, a cache line, so that a look-up costs one miss
//! (Putze, Sanders, Singler, 2007); or, where a small rate makes that dear, half of them in each of two
//! blocks. Error direction: may say "seen" of a key that is not there, never "not seen" of one that is.

use super::memory::Memory;
use super::sizing::PROBES_MAX;
use crate::key::Fingerprint;

/// Bits in a block.
pub(super) const BLOCK_BITS: u32 = 512;
const BLOCK_WORDS: usize = 8;
const BLOCK_BYTES: usize = 64;

/// Odd multipliers that make one number into another: 2^64 over the golden ratio, and a prime of XXH64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const OTHER: u64 = 0xc2b2_ae3d_27d4_eb4f;

/// The powers of [`STEP`], from 1 on.
const STEPS: [u64; PROBES_MAX as usize + 1] = {
    let (mut powers, mut index) = ([1_u64; PROBES_MAX as usize + 1], 1);
    while index < powers.len() {
        powers[index] = powers[index - 1].wrapping_mul(STEP);
        index += 1;
    }
    powers
};

/// Size of a filter: it, and the fingerprints put in, determine every bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of 64-byte blocks, at least 1.
    pub blocks: u64,
    /// Blocks that a key has bits in, 1 or 2: the cache misses of a look-up.
    pub lines: u32,
    /// Bits that a key sets in each of them, all different; 1 to 32.
    pub probes: u32,
}

impl Shape {
    /// Memory for the bits.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.blocks.saturating_mul(BLOCK_BYTES as u64)
    }

    /// The low half of the fingerprint, scaled to the number of blocks (Lemire's fast range, 2019).
    #[inline]
    fn first(self, fingerprint: Fingerprint) -> usize {
        scale(fingerprint.low(), self.blocks)
    }

    /// A block picked by the high half, among those that are not the first.
    #[inline]
    fn second(self, fingerprint: Fingerprint) -> usize {
        let step = 1 + scale(fingerprint.high().wrapping_mul(OTHER), self.blocks - 1);
        let block = self.first(fingerprint) + step;
        if block as u64 >= self.blocks { block - usize::try_from(self.blocks).unwrap_or(block) } else { block }
    }
}

/// From a number among all 64-bit ones to one of `many`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "less than the number of blocks, which is a usize")]
fn scale(number: u64, many: u64) -> usize {
    ((u128::from(number) * u128::from(many)) >> 64) as usize
}

/// Where the bits of a key are in all filters of one shape.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    shape: Shape,
    places: [usize; 2],
    bits: [[u64; BLOCK_WORDS]; 2],
}

impl Mask {
    /// Of no filter.
    pub(super) const NONE: Self = Self { shape: Shape { blocks: 0, lines: 0, probes: 0 }, places: [0; 2], bits: [[0; BLOCK_WORDS]; 2] };

    /// That of a key in a filter of this shape.
    #[must_use]
    pub fn new(fingerprint: Fingerprint, shape: Shape) -> Self {
        let mut mask = Self::NONE;
        mask.aim(fingerprint, shape);
        mask.draw(fingerprint);
        mask
    }

    /// Makes it that of another key, in place, for copying one takes as long as making it: first the blocks.
    #[inline]
    pub(super) fn aim(&mut self, fingerprint: Fingerprint, shape: Shape) {
        self.shape = shape;
        self.places[0] = shape.first(fingerprint);
        if shape.lines > 1 {
            self.places[1] = shape.second(fingerprint);
        }
    }

    /// Then the bits. Those of the first block come from the high half of the fingerprint, as the block comes
    /// from the low one; those of the second the other way around.
    #[inline]
    pub(super) fn draw(&mut self, fingerprint: Fingerprint) {
        draw(fingerprint.high(), self.shape.probes, &mut self.bits[0]);
        if self.shape.lines > 1 {
            draw(fingerprint.low().wrapping_mul(OTHER), self.shape.probes, &mut self.bits[1]);
        }
    }
}

/// The top nine bits of a number, multiplied on until there are `probes` different ones, at most 512. An
/// odd number stays odd, so this cannot get stuck at zero.
///
/// That they differ, and may lie anywhere in the block, is worth 1 to 2 % of memory; one or two in each word of it
/// would be made in little more than half of the time.
#[inline]
fn draw(seed: u64, probes: u32, bits: &mut [u64; BLOCK_WORDS]) {
    *bits = [0; BLOCK_WORDS];
    let seed = seed | 1;
    // First as many as there should be, without a look at them; in one key of eight, some are the same. No
    // product waits for the one before it.
    let again = STEPS[..probes as usize].iter().fold(0, |again, step| {
        let hash = seed.wrapping_mul(*step);
        let bit = 1 << (hash >> 55 & 63);
        let word = &mut bits[(hash >> 61) as usize];
        let again = again | *word & bit;
        *word |= bit;
        again
    });
    if again != 0 {
        mend(seed.wrapping_mul(STEPS[probes as usize]), probes, bits);
    }
}

/// Goes on until there are `probes` different bits.
#[cold]
fn mend(mut hash: u64, probes: u32, bits: &mut [u64; BLOCK_WORDS]) {
    while bits.iter().map(|word| word.count_ones()).sum::<u32>() < probes {
        bits[(hash >> 61) as usize] |= 1 << (hash >> 55 & 63);
        hash = hash.wrapping_mul(STEP);
    }
}

/// The bits of one filter.
#[derive(Debug)]
pub struct Bloom {
    shape: Shape,
    pub(super) memory: Memory,
}

impl Bloom {
    /// An empty filter; `None` when this machine cannot give so much memory.
    #[must_use]
    pub fn new(shape: Shape) -> Option<Self> {
        Some(Self { shape, memory: Memory::new(shape.bytes())? })
    }

    /// The size it was made with.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// Loads a byte of every block that look-ups of these keys will read; `masks` are theirs, aimed. The loads
    /// do not depend on each other, so their misses overlap. The result means nothing; it must be used for the
    /// loads to happen.
    pub(super) fn load(&self, fingerprints: &[Fingerprint], masks: &[Mask]) -> u8 {
        let blocks = self.blocks();
        let (lines, mut sum) = (self.shape.lines, 0);
        if masks.first().is_some_and(|mask| mask.shape == self.shape) {
            for mask in masks {
                sum ^= blocks[mask.places[0]][0];
                if lines > 1 {
                    sum ^= blocks[mask.places[1]][0];
                }
            }
        } else {
            for &fingerprint in fingerprints {
                sum ^= blocks[self.shape.first(fingerprint)][0];
                if lines > 1 {
                    sum ^= blocks[self.shape.second(fingerprint)][0];
                }
            }
        }
        sum
    }

    /// Notes in `seen` which of these keys were put in; `masks` are theirs.
    pub(super) fn ask(&self, fingerprints: &[Fingerprint], masks: &[Mask], seen: &mut [bool]) {
        if masks.first().is_some_and(|mask| mask.shape == self.shape) {
            for (mask, seen) in masks.iter().zip(seen) {
                *seen |= self.has(mask);
            }
        } else {
            for (&fingerprint, seen) in fingerprints.iter().zip(seen) {
                *seen |= self.has_other(fingerprint);
            }
        }
    }

    /// Whether the fingerprint was put in; wrong at the planned rate for one that was not.
    ///
    /// `mask` is the fingerprint's, made beforehand: of several filters that are asked for one key, most
    /// have it in common. If it is one of another shape, its own is made.
    #[must_use]
    #[inline]
    pub fn contains(&self, fingerprint: Fingerprint, mask: &Mask) -> bool {
        if mask.shape == self.shape { self.has(mask) } else { self.has_other(fingerprint) }
    }

    #[inline]
    fn has(&self, mask: &Mask) -> bool {
        let blocks = self.blocks();
        let mut missing = lack(&blocks[mask.places[0]], &mask.bits[0]);
        if self.shape.lines > 1 {
            missing |= lack(&blocks[mask.places[1]], &mask.bits[1]);
        }
        missing == 0
    }

    #[inline(never)]
    fn has_other(&self, fingerprint: Fingerprint) -> bool {
        self.contains(fingerprint, &Mask::new(fingerprint, self.shape))
    }

    /// Puts a fingerprint in; `mask` as for [`Bloom::contains`].
    #[inline]
    pub fn insert(&mut self, fingerprint: Fingerprint, mask: &Mask) {
        if mask.shape != self.shape {
            return self.insert(fingerprint, &Mask::new(fingerprint, self.shape));
        }
        self.set_block(mask.places[0], &mask.bits[0]);
        if self.shape.lines > 1 {
            self.set_block(mask.places[1], &mask.bits[1]);
        }
    }

    #[inline]
    fn set_block(&mut self, number: usize, bits: &[u64; BLOCK_WORDS]) {
        let block = &mut self.memory.bytes_mut().as_chunks_mut::<BLOCK_BYTES>().0[number];
        for (word, bits) in block.as_chunks_mut::<8>().0.iter_mut().zip(bits) {
            *word = (u64::from_le_bytes(*word) | bits).to_le_bytes();
        }
        self.memory.touch(number * BLOCK_BYTES);
    }

    #[inline]
    fn blocks(&self) -> &[[u8; BLOCK_BYTES]] {
        self.memory.bytes().as_chunks::<BLOCK_BYTES>().0
    }
}

/// The bits that a block has not. All of it is compared, without a branch: it is one line either way.
#[inline]
fn lack(block: &[u8; BLOCK_BYTES], bits: &[u64; BLOCK_WORDS]) -> u64 {
    block.as_chunks::<8>().0.iter().zip(bits).fold(0, |missing, (word, bits)| missing | (bits & !u64::from_le_bytes(*word)))
}
