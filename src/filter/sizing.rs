//! Sizes blocked Bloom filters: the number of blocks, and the number k of bits that a key sets in a block.
//!
//! Some blocks of a filter get more keys than others. The number of keys in a block has a Poisson distribution, so the false-positive rate
//! is the average over that distribution (Putze, Sanders, Singler: "Cache-, Hash- and Space-Efficient Bloom Filters", 2007). A key sets one
//! or two bits in each of a few words of its block. The words of a block are not independent: if some words have many bits set, the others
//! have few. A second-order term corrects the rate for this dependence. The result is within 1 % of the exact rate for rates above 1e-9.

use super::bloom::{BLOCK_BITS, BloomLayout, WORD_BITS};

const BLOCK: f64 = BLOCK_BITS as f64;
const WORD: f64 = WORD_BITS as f64;
const WORDS: f64 = BLOCK / WORD;

/// Maximum k: two bits in each word of a block.
pub(super) const K_MAX: u32 = 2 * BLOCK_BITS / WORD_BITS;

/// Maximum number of bits per key. A filter that would need more for its rate gets this number and exceeds its rate.
pub(super) const BITS_PER_KEY_MAX: u32 = 512;

/// Share of a generation's rate that is reserved for the layers that an overfull slice chains. A larger share makes every filter larger but
/// makes the chained layers of overfull filters smaller.
pub const CHAIN_SHARE: f64 = 1.0 / 128.0;

/// Threshold for using two blocks per key. A filter uses two blocks if it would be more than this factor larger with one block per key. A
/// lookup in two blocks takes nearly twice as long, so a smaller saving is not worth it. Filters with a rate below about 6e-6 use two
/// blocks, regardless of the number of keys.
const WORTH_A_BLOCK: f64 = 1.19;

/// False-positive rate of a filter with `blocks_per_key` blocks per key and `k` different bits per block. With two blocks per key, each
/// block has twice the keys, but an absent key is reported as seen only if its bits are set in both of its blocks.
fn spread_rate(bits_per_key: f64, blocks_per_key: u32, k: u32) -> f64 {
    let load = BLOCK / bits_per_key * f64::from(blocks_per_key);
    // The Poisson weight is negligible ten standard deviations from the mean.
    let last = load + 10.0 * load.sqrt() + 10.0;
    let words = Words::new(k);
    // Start ten standard deviations below the mean, not at zero keys: if the mean is high, the weight of zero keys is too small for a
    // float.
    let mut sum = 0.0;
    let mut keys = (load - 10.0 * load.sqrt() - 10.0).max(1.0).floor();
    let mut weight = poisson(load, keys);
    let mut clear = words.left_clear.map(|left| left.powf(keys));
    while keys <= last {
        sum += weight * words.hit_rate(clear);
        keys += 1.0;
        weight *= load / keys;
        clear.iter_mut().zip(words.left_clear).for_each(|(clear, left)| *clear *= left);
    }
    sum.min(1.0).powi(blocks_per_key.cast_signed())
}

/// Poisson probability of `count` at a mean of `load`. Computed with logarithms, because `exp(-load)` may be too small for a float.
fn poisson(load: f64, count: f64) -> f64 {
    let mut logarithm = -load;
    let mut number = 1.0;
    while number <= count {
        logarithm += (load / number).ln();
        number += 1.0;
    }
    logarithm.exp()
}

/// False-positive rate of one filter with this layout and `keys` inserted keys.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^52")]
pub(super) fn shape_rate(layout: BloomLayout, keys: f64) -> f64 {
    if keys <= 0.0 {
        return 0.0;
    }
    // With fewer than 0.1 bits per key, nearly all bits are set, and the rate hardly changes. The limit bounds the loop in `spread_rate`.
    let bits_per_key = (layout.blocks as f64 * BLOCK / keys).max(0.1);
    spread_rate(bits_per_key, layout.blocks_per_key, layout.k)
}

/// False-positive rate of a plain Bloom filter (Bloom, 1970). The bits of a key can be anywhere in a plain filter. Blocked filters are
/// compared with this rate.
#[must_use]
pub fn plain_rate(bits_per_key: f64, k: u32) -> f64 {
    (-(-f64::from(k) / bits_per_key).exp_m1()).powi(k.cast_signed())
}

/// Bits per key of a plain Bloom filter filled to `rate`, with the optimal k.
#[must_use]
pub fn plain_bits(rate: f64) -> f64 {
    -rate.ln() / std::f64::consts::LN_2.powi(2)
}

/// The distribution of a key's k bits over the words of its block.
struct Words {
    /// Number of words with two bits of a key.
    twos: u32,
    /// Number of words with one bit of a key: 0 or 1.
    ones: u32,
    /// Probabilities that a key leaves all bits of a group clear. The groups are, in this order: one bit, two bits of one word, one bit in
    /// each of two words, one bit in one word with two bits in another, and two bits in each of two words.
    left_clear: [f64; 5],
}

impl Words {
    fn new(k: u32) -> Self {
        let (twos, ones) = (k / 2, k % 2);
        let counts = [WORDS - f64::from(ones + twos), f64::from(ones), f64::from(twos)];
        // Probabilities that a key with zero, one, or two bits in a word leaves `given` chosen bits of that word clear.
        let misses = |given: f64| [1.0, 1.0 - given / WORD, (1.0 - given / WORD) * (1.0 - given / (WORD - 1.0))];
        let one_word = |given| counts.iter().zip(misses(given)).map(|(count, miss)| count / WORDS * miss).sum();
        let two_words = |given, other| {
            let pairs = (0..3).flat_map(|a| (0..3).map(move |b| (a, b)));
            let share = |(a, b): (usize, usize)| counts[a] * (counts[b] - f64::from(u8::from(a == b))) / (WORDS * (WORDS - 1.0));
            pairs.map(|(a, b)| share((a, b)) * misses(given)[a] * misses(other)[b]).sum()
        };
        Self { twos, ones, left_clear: [one_word(1.0), one_word(2.0), two_words(1.0, 1.0), two_words(1.0, 2.0), two_words(2.0, 2.0)] }
    }

    /// Probability that all bits of an absent key are set in a block. For each group of bits in [`Words::left_clear`], the argument has the
    /// probability that all of these bits are clear. A key that sets bits in one word sets fewer bits in other words, so the words are not
    /// independent. The quotients correct for the dependence between each pair of words.
    fn hit_rate(&self, [one, two, one_one, one_two, two_two]: [f64; 5]) -> f64 {
        let (single, double) = (1.0 - one, 1.0 - 2.0 * one + two);
        let doubles = 1.0 - 4.0 * one + 2.0 * two + 4.0 * one_one - 4.0 * one_two + two_two;
        let mixed = 1.0 - 3.0 * one + two + 2.0 * one_one - one_two;
        let twos = self.twos.cast_signed();
        let mut rate = 1.0;
        if twos > 0 {
            rate *= double.powi(twos) * (doubles / (double * double)).powi(twos * (twos - 1) / 2);
        }
        if self.ones > 0 {
            rate *= single * (mixed / (single * double)).powi(twos);
        }
        rate
    }
}

/// Returns the false-positive rate that each of `generations` generations may have, so their combined rate is at most `rate`.
#[must_use]
pub fn rate_per_generation(rate: f64, generations: u32) -> f64 {
    // 1 - (1 - rate)^(1/generations), without loss of precision at small rates.
    -((-rate).ln_1p() / f64::from(generations)).exp_m1()
}

/// Mean of a rate over arguments that grow evenly from `from` to `to`, by Simpson's rule. The error is too small to change the displayed
/// digits.
#[must_use]
pub fn mean_between(from: f64, to: f64, rate: impl Fn(f64) -> f64) -> f64 {
    const STEPS: u32 = 64;
    let at = |step: u32| {
        let weight = if step == 0 || step == STEPS { 1.0 } else { f64::from(2 + 2 * (step % 2)) };
        weight * rate(from + (to - from) * f64::from(step) / f64::from(STEPS))
    };
    (0..=STEPS).map(at).sum::<f64>() / f64::from(3 * STEPS)
}

/// Returns the layout of the smallest blocked filter that holds `keys` at `rate`, with two blocks per key if that makes the filter much
/// smaller.
///
/// `rate` must be in (0, 1). The filter has at most 512 bits per key, so it exceeds rates that would need more.
#[must_use]
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes far below 2^52")]
pub fn layout_for(keys: u64, rate: f64) -> BloomLayout {
    let (one, two) = (bits_for(rate, 1), bits_for(rate, 2));
    let (bits, blocks_per_key) = if one > two * WORTH_A_BLOCK { (two, 2) } else { (one, 1) };
    let blocks = (keys.max(1) as f64 * bits / f64::from(BLOCK_BITS)).ceil() as u64;
    // The two blocks of a key must be different, so a filter with two blocks per key needs at least two blocks.
    BloomLayout { blocks: blocks.max(u64::from(blocks_per_key)), blocks_per_key, k: best_k(bits, blocks_per_key).0 }
}

/// Minimum number of bits per key that reaches `rate`, up to [`BITS_PER_KEY_MAX`].
fn bits_for(rate: f64, blocks_per_key: u32) -> f64 {
    // A blocked filter never needs much less than a plain filter, so the search starts a little below the size of a plain filter.
    let most = f64::from(BITS_PER_KEY_MAX);
    let (mut low, mut high) = ((plain_bits(rate) * 0.9).clamp(1.0, most), most);
    while high - low > 0.01 {
        let middle = f64::midpoint(low, high);
        if best_k(middle, blocks_per_key).1 <= rate { high = middle } else { low = middle }
    }
    high
}

/// Returns the k per block with the lowest rate, and the rate at that k. As k grows, the rate first falls and then rises, so the search
/// ends when the rate stops falling.
fn best_k(bits_per_key: f64, blocks_per_key: u32) -> (u32, f64) {
    let mut best = (1, spread_rate(bits_per_key, blocks_per_key, 1));
    for k in 2..=K_MAX {
        let rate = spread_rate(bits_per_key, blocks_per_key, k);
        if rate >= best.1 {
            break;
        }
        best = (k, rate);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked_rate(bits_per_key: f64, k: u32) -> f64 {
        spread_rate(bits_per_key, 1, k)
    }

    #[test]
    fn rates_match_published_ones() {
        // From RocksDB's documentation: a full blocked filter with 10 bits per key and k = 6 has a rate of 0.95 %.
        assert!((blocked_rate(10.0, 6) / 0.0095 - 1.0).abs() < 0.02, "{}", blocked_rate(10.0, 6));
    }

    #[test]
    fn sizes_match_published_ones() {
        // Bits per key of filters with 512-bit blocks at common rates, by the Poisson formula.
        for (rate, bits) in [(1e-3, 15.49), (1e-4, 21.91), (1e-6, 38.51)] {
            let got = bits_for(rate, 1);
            assert!((got / bits - 1.0).abs() < 0.03, "{rate}: {got} bits per key, expected about {bits}");
        }
    }

    #[test]
    fn plain_sizes_and_rates_match_published_ones() {
        for (rate, bits, k, twice) in [(0.1, 4.792, 3, 0.40), (0.01, 9.585, 7, 0.15), (0.001, 14.378, 10, 0.05)] {
            assert!((plain_bits(rate) - bits).abs() < 1e-3, "{}", plain_bits(rate));
            assert!((plain_rate(bits, k) / rate - 1.0).abs() < 0.03, "{}", plain_rate(bits, k));
            // The rate with twice the planned keys.
            let got = plain_rate(bits / 2.0, k);
            assert!((got - twice).abs() < 0.04, "{got} for about {twice}");
        }
    }

    #[test]
    fn two_blocks_are_used_for_small_rates() {
        for generations in [2, 5, 9] {
            let blocks_per_key = |rate| layout_for(1_000_000, rate_per_generation(rate, generations)).blocks_per_key;
            assert_eq!([1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-9].map(blocks_per_key), [1, 1, 1, 2, 2, 2], "{generations} generations");
        }
    }

    #[test]
    fn empty_and_far_overfull_filters_have_a_rate() {
        let layout = layout_for(10_000, 1e-3);
        assert!(shape_rate(layout, 0.0) == 0.0);
        assert!((shape_rate(layout, 10_000.0) / 1e-3 - 1.0).abs() < 0.05);
        for keys in [1e6, 1e7, 1e12] {
            assert!(shape_rate(layout, keys) > 0.99, "{}", shape_rate(layout, keys));
        }
    }

    #[test]
    fn generations_share_the_rate() {
        for generations in [2, 5, 8] {
            let each = rate_per_generation(1e-3, generations);
            assert!((1.0 - (1.0 - each).powi(generations.cast_signed()) - 1e-3).abs() < 1e-9);
        }
    }

    #[test]
    fn means_match_the_integral() {
        for power in [0, 1, 5, 16, 32] {
            let expected = 1.0 / f64::from(power + 1);
            let got = mean_between(0.0, 1.0, |share| share.powi(power));
            assert!((got / expected - 1.0).abs() < 1e-3, "x^{power}: {got}, expected {expected}");
        }
        assert!((mean_between(4.0, 5.0, |share| share) - 4.5).abs() < 1e-12);
    }

    #[test]
    fn more_bits_are_never_worse() {
        let rates: Vec<f64> = (4..60).map(|bits| best_k(f64::from(bits), 1).1).collect();
        assert!(rates.windows(2).all(|pair| pair[1] < pair[0]));
    }

    #[test]
    fn rates_match_exact_ones() {
        // Average over a million randomly filled blocks. For each block, the probability of a false positive was computed exactly.
        for (bits, k, exact) in [(12.0, 5, 5.2028e-3), (26.8, 12, 2.2434e-5), (45.0, 16, 2.6730e-7)] {
            let got = blocked_rate(bits, k);
            assert!((got / exact - 1.0).abs() < 0.01, "{got} for {exact}");
        }
    }

    #[test]
    fn the_first_minimum_is_the_lowest() {
        for bits in (2..100).map(f64::from) {
            let lowest = (1..=K_MAX).map(|k| blocked_rate(bits, k)).fold(1.0, f64::min);
            assert!(best_k(bits, 1).1 <= lowest, "{bits} bits per key");
        }
    }
}
