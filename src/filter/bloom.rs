//! One cache-line-blocked Bloom filter.
//!
//! All bits of a key lie in one block of 512 bits, a cache line, so that a look-up costs one miss
//! (Putze, Sanders, Singler, 2007). Error direction: may say "seen" of a key that is not there,
//! never "not seen" of one that is.

use super::memory::Memory;
use crate::key::Fingerprint;

/// Bits in a block.
pub(super) const BLOCK_BITS: u32 = 512;
const BLOCK_WORDS: usize = 8;
const BLOCK_BYTES: usize = 64;

/// Size of a filter: it, and the fingerprints put in, determine every bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of 64-byte blocks, at least 1.
    pub blocks: u64,
    /// Bits that a key sets in its block, all different; 1 to 32.
    pub probes: u32,
}

impl Shape {
    /// Memory for the bits.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.blocks.saturating_mul(BLOCK_BYTES as u64)
    }
}

/// The bits that a key sets within its block.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    probes: u32,
    bits: [u64; BLOCK_WORDS],
}

impl Mask {
    /// Top nine bits of the fingerprint's high half, multiplied on until there are `probes` different
    /// ones, at most 512. An odd number stays odd, so this cannot get stuck at zero.
    #[must_use]
    pub fn new(fingerprint: Fingerprint, probes: u32) -> Self {
        let mut bits = [0; BLOCK_WORDS];
        let mut hash = fingerprint.high() | 1;
        let mut set = 0;
        while set < probes {
            let bit = hash >> 55;
            let word = &mut bits[(bit >> 6) as usize & (BLOCK_WORDS - 1)];
            let before = *word;
            *word |= 1 << (bit & 63);
            set += u32::from(*word != before);
            hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        Self { probes, bits }
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

    /// Whether the fingerprint was put in; wrong at the planned rate for one that was not.
    ///
    /// `mask` is the fingerprint's, made beforehand: of several filters that are asked for one key, most
    /// have as many probes.
    #[must_use]
    pub fn contains(&self, fingerprint: Fingerprint, mask: &Mask) -> bool {
        if mask.probes != self.shape.probes {
            return self.contains(fingerprint, &Mask::new(fingerprint, self.shape.probes));
        }
        let block = &self.memory.bytes().as_chunks::<BLOCK_BYTES>().0[self.block(fingerprint)];
        let words = block.as_chunks::<8>().0;
        words.iter().zip(mask.bits).fold(0, |missing, (word, bits)| missing | (bits & !u64::from_le_bytes(*word))) == 0
    }

    /// Puts a fingerprint in.
    pub fn insert(&mut self, fingerprint: Fingerprint) {
        let mask = Mask::new(fingerprint, self.shape.probes);
        let number = self.block(fingerprint);
        let block = &mut self.memory.bytes_mut().as_chunks_mut::<BLOCK_BYTES>().0[number];
        for (word, bits) in block.as_chunks_mut::<8>().0.iter_mut().zip(mask.bits) {
            *word = (u64::from_le_bytes(*word) | bits).to_le_bytes();
        }
        self.memory.touch(number * BLOCK_BYTES);
    }

    /// The low half of the fingerprint, scaled to the number of blocks (Lemire's fast range, 2019).
    #[expect(clippy::cast_possible_truncation, reason = "less than the number of blocks, which is a usize")]
    fn block(&self, fingerprint: Fingerprint) -> usize {
        ((u128::from(fingerprint.low()) * u128::from(self.shape.blocks)) >> 64) as usize
    }
}
