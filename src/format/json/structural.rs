//! Marks the quotes, the backslashes, and the control characters of a JSON text: the bytes that end a string, start an escape, or are not
//! allowed in a string. Uses SIMD instructions.
//!
//! The scan skips strings from mark to mark, so exactly these bytes must be marked.

#![allow(unsafe_code)]

use wide::u8x16;

/// Number of bytes that are marked at once.
pub(super) const BLOCK: usize = 64;

/// The marks of a text. The buffer is reused between texts.
#[derive(Debug, Default)]
pub(super) struct StructuralBitmap {
    /// One bit per byte, lowest first. May be longer than the text.
    blocks: Vec<u64>,
    /// Number of blocks with marks of the current text.
    used: usize,
    pub(super) is_ascii: bool,
}

impl StructuralBitmap {
    #[inline]
    pub(super) fn index(&mut self, text: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the only requirement of the function is AVX2, and the line above checked that the CPU supports it.
            return unsafe { self.index_with_avx2(text) };
        }
        self.index_by(text, marks);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn index_with_avx2(&mut self, text: &[u8]) {
        self.index_by(text, |block| marks_with_avx2(block));
    }

    #[expect(clippy::inline_always, reason = "the AVX2 version is only compiled for AVX2 if it is inlined into its caller")]
    #[inline(always)]
    fn index_by(&mut self, text: &[u8], marks: impl Fn(&[u8; BLOCK]) -> (u64, u32)) {
        self.used = text.len().div_ceil(BLOCK);
        if self.blocks.len() < self.used {
            self.grow();
        }
        let (whole, rest) = text.as_chunks();
        let mut others = 0;
        for (block, bitmap) in whole.iter().zip(&mut self.blocks) {
            let (found, more) = marks(block);
            *bitmap = found;
            others |= more;
        }
        if !rest.is_empty() {
            // If the text has at least 64 bytes, the last block consists of the last 64 bytes of the text. Some of them are also in the
            // previous block, and their marks are shifted out.
            let (found, more) = match text.last_chunk() {
                Some(block) => marks(block),
                None => marks(&padded(rest)),
            };
            let known = if whole.is_empty() { 0 } else { BLOCK - rest.len() };
            self.blocks[whole.len()] = found >> known;
            others |= more;
        }
        self.is_ascii = others == 0;
    }

    #[cold]
    fn grow(&mut self) {
        self.blocks.resize(self.used, 0);
    }

    /// Returns the position of the first marked byte at or after `at`.
    #[inline]
    pub(super) fn next(&self, at: usize) -> Option<usize> {
        let blocks = self.blocks.get(..self.used)?;
        let left = blocks.get(at / BLOCK)? >> (at % BLOCK);
        if left != 0 {
            return Some(at.wrapping_add(left.trailing_zeros() as usize));
        }
        let mut block = at / BLOCK + 1;
        while *blocks.get(block)? == 0 {
            block += 1;
        }
        Some(block * BLOCK + blocks[block].trailing_zeros() as usize)
    }
}

/// Copies a text into a full block. Fills the rest of the block with `x`, which is never marked.
fn padded(text: &[u8]) -> [u8; BLOCK] {
    let mut block = [b'x'; BLOCK];
    block[..text.len()].copy_from_slice(text);
    block
}

/// Returns the marks of a block and a number that is zero if all bytes of the block are ASCII.
#[inline]
fn marks(block: &[u8; BLOCK]) -> (u64, u32) {
    let (chunks, _) = block.as_chunks();
    let (mut bitmap, mut any) = (0, u8x16::ZERO);
    for &chunk in chunks.iter().rev() {
        let bytes = u8x16::new(chunk);
        let is = |byte| bytes.cmp_eq(u8x16::splat(byte));
        let is_control = bytes.min(u8x16::splat(b' ' - 1)).cmp_eq(bytes);
        bitmap = bitmap << 16 | u64::from((is(b'"') | is(b'\\') | is_control).move_mask().cast_unsigned());
        any |= bytes;
    }
    (bitmap, any.move_mask().cast_unsigned())
}

/// Does the same as [`marks`] with half the instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn marks_with_avx2(block: &[u8; BLOCK]) -> (u64, u32) {
    use std::arch::x86_64::{__m256i, _mm256_cmpeq_epi8, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8};
    let [first, second]: [__m256i; 2] = bytemuck::cast(*block);
    let marks = |bytes| {
        let is = |byte: u8| _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(byte.cast_signed()));
        let is_control = _mm256_cmpeq_epi8(_mm256_min_epu8(bytes, _mm256_set1_epi8(31)), bytes);
        let marks = _mm256_or_si256(_mm256_or_si256(is(b'"'), is(b'\\')), is_control);
        i64::from(_mm256_movemask_epi8(marks))
    };
    let (low, high) = (marks(first), marks(second));
    // The integers are signed, because the compiler would convert this computation with unsigned integers to vector code, which is slower.
    let all = ((high ^ low >> 32) << 32 ^ low).cast_unsigned();
    (all, _mm256_movemask_epi8(_mm256_or_si256(first, second)).cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_special_bytes_are_marked(text in prop::collection::vec(prop_oneof![1 => any::<u8>(), 1 => Just(b'"'), 20 => Just(b'a')], 0..300)) {
            let without_avx2 = |bitmap: &mut StructuralBitmap, text: &[u8]| bitmap.index_by(text, marks);
            for index in [StructuralBitmap::index, without_avx2] {
                // At the start, the bitmap has the marks of a longer text.
                let mut bitmap = StructuralBitmap { blocks: vec![u64::MAX; 9], used: 9, is_ascii: false };
                index(&mut bitmap, &text);
                prop_assert_eq!(bitmap.is_ascii, text.is_ascii());
                for at in 0..text.len() + BLOCK {
                    let expected = (at..text.len()).find(|&at| matches!(text[at], b'"' | b'\\' | ..b' '));
                    prop_assert_eq!(bitmap.next(at), expected, "{}", at);
                }
            }
        }
    }
}
