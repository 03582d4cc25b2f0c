//! Arithmetic on hashes, shared by several kinds of filters.
//!
//! These functions must never change, because the positions of stored keys depend on them.

/// The increment of `SplitMix64`: 2^64 divided by the golden ratio, rounded to an odd number.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of a number: every bit of the result depends on all bits of the number. The function is the finalizer of `SplitMix64`
/// (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014). Different numbers have different results.
#[must_use]
pub(super) const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Scales a hash to the range `0..end` (Lemire's fast range, 2019).
#[must_use]
pub(super) const fn scale(hash: u64, end: u64) -> u64 {
    ((hash as u128 * end as u128) >> 64) as u64
}

/// The `SplitMix64` generator: deterministic pseudorandom numbers from a one-word state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SplitMix(pub(super) u64);

impl SplitMix {
    /// Returns the generator with this seed after it has produced `draws` numbers.
    pub(super) const fn after(seed: u64, draws: u64) -> Self {
        Self(seed.wrapping_add(GOLDEN.wrapping_mul(draws)))
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_matches_the_published_one() {
        // The expected numbers come from the reference implementation with seed 1234567.
        let mut numbers = SplitMix(1_234_567);
        assert_eq!([numbers.next(), numbers.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn scaling_stays_below_its_end() {
        assert_eq!([scale(0, 10), scale(u64::MAX / 2, 10), scale(u64::MAX, 10), scale(u64::MAX, 1)], [0, 4, 9, 0]);
    }
}
