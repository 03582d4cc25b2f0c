//! How many bits and k a filter needs.
//!
//! A blocked Bloom filter puts all bits of a key into one block. The load of blocks varies, so the
//! rate is a Poisson mixture over the number of keys in a block (Putze, Sanders, Singler: "Cache-,
//! Hash- and Space-Efficient Bloom Filters", 2007). Here a key has two bits in each of some words of
//! its block, and where some words have many keys, others have few; a second-order term counts that.
//! The result is within 1 % of the exact one for rates above 1e-9.

use super::bloom::{BLOCK_BITS, BloomLayout, WORD_BITS};

/// The same, to compute with.
const BLOCK: f64 = BLOCK_BITS as f64;
const WORD: f64 = WORD_BITS as f64;
const WORDS: f64 = BLOCK / WORD;

/// Most k a block: two in each of its words.
pub(super) const K_MAX: u32 = 2 * BLOCK_BITS / WORD_BITS;

/// Most bits a key may be given before a rate is called unreachable.
pub(super) const BITS_PER_KEY_MAX: u32 = 512;

/// Share of a generation's rate that is kept back for the layers that an overfull slice chains. It is memory of every
/// filter, against that of overfull ones.
pub const CHAIN_SHARE: f64 = 1.0 / 128.0;

/// A look-up of two blocks costs nearly twice the time of one. It is worth that where one block would take
/// this much more memory: below a rate of about 7e-6 for one filter, whatever the number of keys.
const WORTH_A_BLOCK: f64 = 1.19;

/// No filter is sized for a peak this many times its mean, or above that rate.
const PEAK_SHARE_MAX: f64 = 64.0;
const PEAK_MAX: f64 = 0.99;

/// The false-positive rate of a blocked filter of `bits_per_key` with `k` different bits a key.
#[must_use]
pub fn blocked_rate(bits_per_key: f64, k: u32) -> f64 {
    spread_rate(bits_per_key, 1, k)
}

/// The same when a key has `k` different bits in each of `blocks_per_key` blocks. A block then has as many times
/// the keys, and an absent key must find its bits in each.
fn spread_rate(bits_per_key: f64, blocks_per_key: u32, k: u32) -> f64 {
    let load = BLOCK / bits_per_key * f64::from(blocks_per_key);
    // The Poisson weight is negligible ten standard deviations away from the mean.
    let last = load + 10.0 * load.sqrt() + 10.0;
    let words = Words::new(k);
    // The weights from the mean on: far above it, that of no key at all is too small for a number.
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

/// The Poisson weight of `count` at a mean of `load`.
fn poisson(load: f64, count: f64) -> f64 {
    let mut logarithm = -load;
    let mut number = 1.0;
    while number <= count {
        logarithm += (load / number).ln();
        number += 1.0;
    }
    logarithm.exp()
}

/// The false-positive rate of a filter of this layout that holds `keys`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^52")]
pub(super) fn shape_rate(layout: BloomLayout, keys: f64) -> f64 {
    if keys <= 0.0 {
        return 0.0;
    }
    // Past this, every block has far more keys than bits.
    let bits_per_key = (layout.blocks as f64 * BLOCK / keys).max(0.1);
    spread_rate(bits_per_key, layout.blocks_per_key, layout.k)
}

/// The false-positive rate of a plain Bloom filter, whose bits may lie anywhere (Bloom, 1970): what the
/// blocked ones are compared with.
#[must_use]
pub fn plain_rate(bits_per_key: f64, k: u32) -> f64 {
    (-(-f64::from(k) / bits_per_key).exp_m1()).powi(k.cast_signed())
}

/// The bits a key of a plain Bloom filter that is filled to `rate`, with the best number of k.
#[must_use]
pub fn plain_bits(rate: f64) -> f64 {
    -rate.ln() / std::f64::consts::LN_2.powi(2)
}

/// How the k of a key lie in the words of its block.
struct Words {
    /// Words with two of them, and with one: 0 or 1.
    twos: u32,
    ones: u32,
    /// What one key leaves clear, each a probability: one given bit; two given bits of one word; and of two words one
    /// given bit each, one and two, two each.
    left_clear: [f64; 5],
}

impl Words {
    fn new(k: u32) -> Self {
        let (twos, ones) = (k / 2, k % 2);
        let counts = [WORDS - f64::from(ones + twos), f64::from(ones), f64::from(twos)];
        // That a word's bits, none to two, are none of some given ones.
        let misses = |given: f64| [1.0, 1.0 - given / WORD, (1.0 - given / WORD) * (1.0 - given / (WORD - 1.0))];
        let one_word = |given| counts.iter().zip(misses(given)).map(|(count, miss)| count / WORDS * miss).sum();
        let two_words = |given, other| {
            let pairs = (0..3).flat_map(|a| (0..3).map(move |b| (a, b)));
            let share = |(a, b): (usize, usize)| counts[a] * (counts[b] - f64::from(u8::from(a == b))) / (WORDS * (WORDS - 1.0));
            pairs.map(|(a, b)| share((a, b)) * misses(given)[a] * misses(other)[b]).sum()
        };
        Self { twos, ones, left_clear: [one_word(1.0), one_word(2.0), two_words(1.0, 1.0), two_words(1.0, 2.0), two_words(2.0, 2.0)] }
    }

    /// Probability that the bits of an absent key are all set, from what is clear with probabilities as above. That two
    /// words are hit is not the product of their chances: what one has of a key, another has not.
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

/// The rate that each of `generations` filters may have, if asking all of them may be wrong at `rate`.
#[must_use]
pub fn rate_per_generation(rate: f64, generations: u32) -> f64 {
    // 1 - (1 - rate)^(1/generations), without cancellation.
    -((-rate).ln_1p() / f64::from(generations)).exp_m1()
}

/// The mean of a rate while what it depends on grows steadily: Simpson's rule, exact but for what no digit shows.
#[must_use]
pub fn mean_between(from: f64, to: f64, rate: impl Fn(f64) -> f64) -> f64 {
    const STEPS: u32 = 64;
    let at = |step: u32| {
        let weight = if step == 0 || step == STEPS { 1.0 } else { f64::from(2 + 2 * (step % 2)) };
        weight * rate(from + (to - from) * f64::from(step) / f64::from(STEPS))
    };
    (0..=STEPS).map(at).sum::<f64>() / f64::from(3 * STEPS)
}

/// The greatest peak that is good, within a thousandth, from one on that is; up to where a peak is good for nothing. If there
/// are better ones above a bad one, it may be the last before that.
pub(super) fn greatest_peak(from: f64, is_good: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (from, (from * PEAK_SHARE_MAX).min(PEAK_MAX).max(from));
    while high / low > 1.001 {
        let middle = (low * high).sqrt();
        if is_good(middle) { low = middle } else { high = middle }
    }
    low
}

/// The smallest blocked filter that holds `keys` at `rate`; with two blocks a key if that makes it much smaller.
///
/// `rate` must lie in (0, 1). The result is capped at 512 bits a key, which is far below any rate that 128-bit
/// fingerprints are good for.
#[must_use]
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes far below 2^52")]
pub fn layout_for(keys: u64, rate: f64) -> BloomLayout {
    let (one, two) = (bits_for(rate, 1), bits_for(rate, 2));
    let (bits, blocks_per_key) = if one > two * WORTH_A_BLOCK { (two, 2) } else { (one, 1) };
    let blocks = (keys.max(1) as f64 * bits / f64::from(BLOCK_BITS)).ceil() as u64;
    // Two different blocks are wanted, so there are two.
    BloomLayout { blocks: blocks.max(u64::from(blocks_per_key)), blocks_per_key, k: best_k(bits, blocks_per_key).0 }
}

/// The fewest bits a key that reach `rate`.
fn bits_for(rate: f64, blocks_per_key: u32) -> f64 {
    // A plain filter is about the least.
    let most = f64::from(BITS_PER_KEY_MAX);
    let (mut low, mut high) = ((plain_bits(rate) * 0.9).clamp(1.0, most), most);
    while high - low > 0.01 {
        let middle = f64::midpoint(low, high);
        if best_k(middle, blocks_per_key).1 <= rate { high = middle } else { low = middle }
    }
    high
}

/// The number of k a block with the lowest rate, and that rate: it falls to there and rises after.
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

    #[test]
    fn published_rates_are_met() {
        // RocksDB, full blocked filter: 10 bits a key, 6 k, 0.95 % (its own documentation).
        assert!((blocked_rate(10.0, 6) / 0.0095 - 1.0).abs() < 0.02, "{}", blocked_rate(10.0, 6));
    }

    #[test]
    fn published_sizes_are_met() {
        // Bits a key of 512-bit blocks at the usual rates, by the mixture formula.
        for (rate, bits) in [(1e-3, 15.49), (1e-4, 21.91), (1e-6, 38.51)] {
            let got = bits_for(rate, 1);
            assert!((got / bits - 1.0).abs() < 0.03, "{rate}: {got} bits a key, expected about {bits}");
        }
    }

    #[test]
    fn published_plain_sizes_and_rates_are_met() {
        for (rate, bits, k, twice) in [(0.1, 4.792, 3, 0.40), (0.01, 9.585, 7, 0.15), (0.001, 14.378, 10, 0.05)] {
            assert!((plain_bits(rate) - bits).abs() < 1e-3, "{}", plain_bits(rate));
            assert!((plain_rate(bits, k) / rate - 1.0).abs() < 0.03, "{}", plain_rate(bits, k));
            // Filled with twice the keys.
            let got = plain_rate(bits / 2.0, k);
            assert!((got - twice).abs() < 0.04, "{got} for about {twice}");
        }
    }

    #[test]
    fn two_blocks_are_for_small_rates() {
        for generations in [2, 5, 9] {
            let blocks_per_key = |rate| layout_for(1_000_000, rate_per_generation(rate, generations)).blocks_per_key;
            assert_eq!([1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-9].map(blocks_per_key), [1, 1, 1, 2, 2, 2], "{generations} generations");
        }
    }

    #[test]
    fn a_filter_that_is_empty_or_far_overfull_has_a_rate() {
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
    fn means_are_the_integral() {
        for power in [0, 1, 5, 16, 32] {
            let expected = 1.0 / f64::from(power + 1);
            let got = mean_between(0.0, 1.0, |share| share.powi(power));
            assert!((got / expected - 1.0).abs() < 1e-3, "x^{power}: {got}, expected {expected}");
        }
        assert!((mean_between(4.0, 5.0, |share| share) - 4.5).abs() < 1e-12);
    }

    #[test]
    fn the_greatest_peak_is_found() {
        for (from, most, expected) in [(1e-3, 3e-3, 3e-3), (1e-3, 1.0, 64e-3), (0.9, 1.0, 0.99), (0.999, 1.0, 0.999)] {
            let peak = greatest_peak(from, |peak| peak <= most);
            assert!(peak <= expected && peak > expected * 0.998, "{peak}, expected {expected}");
        }
    }

    #[test]
    fn more_bits_are_never_worse() {
        let rates: Vec<f64> = (4..60).map(|bits| best_k(f64::from(bits), 1).1).collect();
        assert!(rates.windows(2).all(|pair| pair[1] < pair[0]));
    }

    #[test]
    fn rates_agree_with_the_exact_ones() {
        // From a million blocks filled by lot, in each of which the chance of an absent key was worked out in full.
        for (bits, k, exact) in [(12.0, 5, 5.2028e-3), (26.8, 12, 2.2434e-5), (45.0, 16, 2.6730e-7)] {
            let got = blocked_rate(bits, k);
            assert!((got / exact - 1.0).abs() < 0.01, "{got} for {exact}");
        }
    }

    #[test]
    fn the_first_minimum_is_the_lowest() {
        for bits in (2..100).map(f64::from) {
            let lowest = (1..=K_MAX).map(|k| blocked_rate(bits, k)).fold(1.0, f64::min);
            assert!(best_k(bits, 1).1 <= lowest, "{bits} bits a key");
        }
    }
}
