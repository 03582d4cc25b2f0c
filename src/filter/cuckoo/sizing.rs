//! How large a cuckoo filter is, and what is to be expected of it. Only arithmetic.

use super::TableLayout;
use super::table::SLOT_BITS_MAX;
use crate::filter::sizing::mean_between;
use crate::filter::{Prediction, Window};

/// Share of the rate that is kept back for tables that an overfull filter chains, at least.
const CHAIN_SHARE: f64 = 1.0 / 32.0;
/// Depth from which on chained tables do not grow any more.
const DEPTH_MAX: u32 = 40;

/// Sizes worked out once for all partitions that share a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizing {
    /// Keys that the first table holds, of all generations together, before it chains.
    pub capacity: u64,
    /// The rate that it may reach, chained tables included.
    pub rate: f64,
}

impl Sizing {
    /// A filter whose window holds `keys`, wrong at no more than `rate` in (0, 1). There is room for one slice more than
    /// the window has, at a load of 0.95. Rates below 2^(3 - 57 + t), t the bits of a tag, cannot be had.
    #[must_use]
    pub fn new(window: Window, keys: u64, rate: f64) -> Self {
        let slices = u64::from(window.slices());
        let capacity = u128::from(keys.max(1)).div_ceil(u128::from(slices)) * u128::from(slices + 1);
        Self { capacity: u64::try_from(capacity).unwrap_or(u64::MAX), rate }
    }

    /// Memory at capacity, in bytes.
    #[must_use]
    pub fn bytes(&self, window: Window) -> u64 {
        self.layout(window, 0).bytes()
    }

    /// The table at that depth of the chain. The first has all of the rate but a share. What it leaves of the
    /// rate (fingerprints are whole bits) is divided among those chained to it: a half, a quarter, an eighth …,
    /// so that their sum stays below it. The first of them has half the capacity, each further one twice as much
    /// as the one before, so that there are few (Almeida et al.: "Scalable Bloom Filters", 2007).
    pub(super) fn layout(&self, window: Window, depth: u32) -> TableLayout {
        let tags = u64::from(window.slices()) + 1;
        let first = narrowest(self.capacity, self.rate * (1.0 - CHAIN_SHARE), tags);
        if depth == 0 {
            return first;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let left = (self.rate - first.rate(first.capacity() as f64)).max(self.rate * CHAIN_SHARE);
        let depth = depth.min(DEPTH_MAX);
        let capacity = self.capacity.div_ceil(2).saturating_mul(1 << (depth - 1));
        narrowest(capacity, left * 0.5_f64.powi(depth.cast_signed()), tags)
    }

    /// What to expect when `load` times its capacity was inserted, within the window and the open slice together: so many
    /// tables are full, or the last of them as far as there are keys for it. The rate never passes the sizing's.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn predict(&self, window: Window, load: f64) -> Prediction {
        let mut left = load.max(0.0) * self.capacity as f64;
        let (mut right, mut bytes) = (1.0, 0_u64);
        for depth in 0..=DEPTH_MAX {
            let layout = self.layout(window, depth);
            let keys = left.min(layout.capacity() as f64);
            right *= 1.0 - layout.rate(keys);
            bytes = bytes.saturating_add(layout.bytes());
            left -= keys;
            if left <= 0.0 {
                break;
            }
        }
        Prediction { rate: 1.0 - right, bytes }
    }

    /// The rate on average over a window, in a steady stream that shows the planned keys in each: the keys of the window
    /// are there, and those of the open slice come.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn mean_rate(&self, window: Window) -> f64 {
        let (most, slices) = (self.capacity as f64, f64::from(window.slices()));
        let layout = self.layout(window, 0);
        mean_between(most * slices / (slices + 1.0), most, |keys| layout.rate(keys))
    }

    /// The rate at its peak of a filter whose window holds `keys`, and that is wrong at no more than `mean` on average over
    /// a window: what to size it for. Fingerprints are whole bits, and the mean is more than half of the peak. So it is
    /// that of one bit fewer, if the mean allows that; else nothing would be gained, and it is `mean`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn peak_of_mean(window: Window, keys: u64, mean: f64) -> f64 {
        let own = Self::new(window, keys, mean).layout(window, 0);
        let fewer = TableLayout { fingerprint_bits: own.fingerprint_bits - 1, ..own };
        // A little more, or rounding would decide whether it is reached.
        let peak = fewer.rate(fewer.capacity() as f64) / (1.0 - CHAIN_SHARE) * (1.0 + 1e-6);
        if peak < 1.0 && Self::new(window, keys, peak).mean_rate(window) <= mean { peak.max(mean) } else { mean }
    }
}

/// The table for `keys` with the shortest fingerprints that meet the rate when it is full.
#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn narrowest(keys: u64, rate: f64, tags: u64) -> TableLayout {
    let layout = |bits| TableLayout::holding(keys, bits, tags);
    let most = SLOT_BITS_MAX - layout(0).tag_bits();
    let bits = (2..most).find(|&bits| layout(bits).rate(layout(bits).capacity() as f64) <= rate);
    layout(bits.unwrap_or(most))
}
