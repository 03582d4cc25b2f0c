//! How many bits and probes a filter needs.
//!
//! A blocked Bloom filter puts all bits of a key into one block. The load of blocks varies, so the
//! rate is a Poisson mixture over the number of keys in a block (Putze, Sanders, Singler: "Cache-,
//! Hash- and Space-Efficient Bloom Filters", 2007). How many bits of a block are set varies too; a
//! second-order term counts that. The result is within 1 % of the exact one for rates above 1e-9.

use super::bloom::{BLOCK_BITS, Shape};

/// The same, to reckon with.
const BLOCK: f64 = BLOCK_BITS as f64;

/// Most probes a key may have; at 32 the smallest rate is far below any real target.
pub(super) const PROBES_MAX: u32 = 32;

/// Most bits a key may be given before a rate is called unreachable.
pub(super) const BITS_PER_KEY_MAX: u32 = 512;

/// Share of a generation's rate that is kept back for the layers that an overfull slice chains.
pub const CHAIN_SHARE: f64 = 1.0 / 32.0;

/// The false-positive rate of a blocked filter of `bits_per_key` with `probes` different bits a key.
#[must_use]
pub fn blocked_rate(bits_per_key: f64, probes: u32) -> f64 {
    let load = BLOCK / bits_per_key;
    // The Poisson weight is negligible ten standard deviations away from the mean.
    let last = load + 10.0 * load.sqrt() + 10.0;
    let k = f64::from(probes);
    // What one key leaves clear: a given bit; two given bits.
    let (one, two) = (1.0 - k / BLOCK, (1.0 - k / BLOCK) * (1.0 - k / (BLOCK - 1.0)));
    let (mut keys, mut weight, mut one_clear, mut two_clear) = (1.0, (-load).exp() * load, one, two);
    let mut sum = 0.0;
    while keys <= last {
        sum += weight * hit_rate(one_clear, two_clear, probes);
        keys += 1.0;
        weight *= load / keys;
        one_clear *= one;
        two_clear *= two;
    }
    sum.min(1.0)
}

/// Probability that `probes` different bits are all set in a block, from the probabilities that one
/// given bit and two given bits of it are clear.
fn hit_rate(one_clear: f64, two_clear: f64, probes: u32) -> f64 {
    let clear = BLOCK * one_clear;
    let set = BLOCK - clear;
    let variance = (clear + BLOCK * (BLOCK - 1.0) * two_clear - clear * clear).max(0.0);
    let (mut rate, mut sum, mut squares) = (1.0, 0.0, 0.0);
    for taken in (0..probes).map(f64::from) {
        rate *= (set - taken) / (BLOCK - taken);
        let inverse = 1.0 / (set - taken);
        sum += inverse;
        squares += inverse * inverse;
    }
    rate * (1.0 + variance / 2.0 * (sum * sum - squares))
}

/// The rate that each of `generations` filters may have, if asking all of them may be wrong at `rate`.
#[must_use]
pub fn rate_per_generation(rate: f64, generations: u32) -> f64 {
    // 1 - (1 - rate)^(1/generations), without cancellation.
    -((-rate).ln_1p() / f64::from(generations)).exp_m1()
}

/// The smallest blocked filter that holds `keys` at `rate`.
///
/// `rate` must lie in (0, 1). The result is capped at 512 bits a key, which is far below any rate that 128-bit
/// fingerprints are good for.
#[must_use]
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes far below 2^52")]
pub fn shape_for(keys: u64, rate: f64) -> Shape {
    let (mut low, mut high) = (1.0, f64::from(BITS_PER_KEY_MAX));
    while high - low > 0.01 {
        let middle = f64::midpoint(low, high);
        if best_probes(middle).1 <= rate { high = middle } else { low = middle }
    }
    let blocks = (keys.max(1) as f64 * high / f64::from(BLOCK_BITS)).ceil() as u64;
    Shape { blocks: blocks.max(1), probes: best_probes(high).0 }
}

/// The number of probes with the lowest rate, and that rate: it falls to there and rises after.
fn best_probes(bits_per_key: f64) -> (u32, f64) {
    let mut best = (1, blocked_rate(bits_per_key, 1));
    for probes in 2..=PROBES_MAX {
        let rate = blocked_rate(bits_per_key, probes);
        if rate >= best.1 {
            break;
        }
        best = (probes, rate);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_rates_are_met() {
        // RocksDB, full blocked filter: 10 bits a key, 6 probes, 0.95 % (its own documentation).
        assert!((blocked_rate(10.0, 6) / 0.0095 - 1.0).abs() < 0.02, "{}", blocked_rate(10.0, 6));
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    fn published_sizes_are_met() {
        // Bits a key of 512-bit blocks at the usual rates, by the mixture formula.
        for (rate, bits) in [(1e-3, 15.49), (1e-4, 21.91), (1e-6, 38.51)] {
            let shape = shape_for(10_000_000, rate);
            let got = shape.bytes() as f64 * 8.0 / 1e7;
            assert!((got / bits - 1.0).abs() < 0.03, "{rate}: {got} bits a key, expected about {bits}");
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
    fn more_bits_are_never_worse() {
        let rates: Vec<f64> = (4..60).map(|bits| best_probes(f64::from(bits)).1).collect();
        assert!(rates.windows(2).all(|pair| pair[1] < pair[0]));
    }

    #[test]
    fn rates_agree_with_the_exact_ones() {
        // From the distribution of set bits, worked out in full.
        for (bits, probes, exact) in [(12.0, 5, 5.162_285e-3), (26.8, 12, 2.205_349e-5), (45.0, 18, 2.424_392e-7)] {
            let got = blocked_rate(bits, probes);
            assert!((got / exact - 1.0).abs() < 0.01, "{got} for {exact}");
        }
    }

    #[test]
    fn the_first_minimum_is_the_lowest() {
        for bits in (2..100).map(f64::from) {
            let lowest = (1..=PROBES_MAX).map(|probes| blocked_rate(bits, probes)).fold(1.0, f64::min);
            assert!(best_probes(bits).1 <= lowest, "{bits} bits a key");
        }
    }
}
