//! How large an aging filter is, and what is to be expected of it. Only arithmetic.

use crate::filter::bloom::BloomLayout;
use crate::filter::sizing::{CHAIN_SHARE, greatest_peak, layout_for, mean_between, rate_per_generation, shape_rate};
use crate::filter::{Growth, Prediction, Window};

/// Sizes worked out once for all partitions that share a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizing {
    /// Keys that a generation holds before it chains.
    pub capacity: u64,
    /// The rate that one generation may reach, chained layers included.
    pub rate: f64,
    /// The layout of a generation's first layer.
    pub layout: BloomLayout,
    /// How its memory follows the stream.
    pub growth: Growth,
}

impl Sizing {
    /// A filter whose window holds `keys`, asked of all generations wrong at no more than `rate`.
    #[must_use]
    pub fn new(window: Window, keys: u64, rate: f64) -> Self {
        let rate = rate_per_generation(rate, window.slices() + 1);
        let capacity = keys.max(1).div_ceil(u64::from(window.slices()));
        Self { capacity, rate, layout: layout_for(capacity, rate * (1.0 - CHAIN_SHARE)), growth: Growth::default() }
    }

    /// The same, its memory following the stream in another way.
    #[must_use]
    pub const fn with_growth(self, growth: Growth) -> Self {
        Self { growth, ..self }
    }

    /// Memory of all generations at capacity, in bytes.
    #[must_use]
    pub fn bytes(&self, window: Window) -> u64 {
        self.layout.bytes() * u64::from(window.slices() + 1)
    }

    /// The same once slices size themselves, in a steady stream that shows the planned keys in each window.
    #[must_use]
    pub fn steady_bytes(&self, window: Window) -> u64 {
        self.steady(window).bytes(window)
    }

    /// The rate and the memory when each generation holds `load` times its capacity, chained layers
    /// included: the moment at which the filter is wrong most often.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn predict(&self, window: Window, load: f64) -> Prediction {
        let mut keys = self.capacity as f64 * load.max(0.0);
        let (mut right, mut bytes) = (1.0, 0);
        // As layers double, these hold any number of keys.
        for index in 0..64 {
            let (capacity, layout) = self.size(index);
            right *= 1.0 - shape_rate(layout, keys.min(capacity as f64));
            bytes += layout.bytes();
            keys -= capacity as f64;
            if keys <= 0.0 {
                break;
            }
        }
        Self::all(window, right, bytes)
    }

    /// The rate and the memory if nothing chained: each generation's first layer takes all of `load` times its
    /// capacity.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn rate_unchained(&self, window: Window, load: f64) -> Prediction {
        Self::all(window, 1.0 - shape_rate(self.layout, self.capacity as f64 * load), self.layout.bytes())
    }

    /// The rate on average over a window, in a steady stream that shows the planned keys in each: the slices of the window
    /// hold their keys, and the open one fills. Slices that size themselves are larger than that, if they may be.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn mean_rate(&self, window: Window) -> f64 {
        let (keys, layout) = (self.capacity as f64, self.steady(window).layout);
        let closed = (-shape_rate(layout, keys)).ln_1p();
        let open = (-mean_between(0.0, keys, |keys| shape_rate(layout, keys))).ln_1p();
        // 1 - closed^slices * open, without cancellation.
        -(closed * f64::from(window.slices()) + open).exp_m1()
    }

    /// The rate at its peak of a filter whose window holds `keys`, and that is wrong at no more than `mean` on average over
    /// a window: what to size it for, in little memory. A mean is no greater than its peak, so there is one.
    #[must_use]
    pub fn peak_of_mean(window: Window, keys: u64, mean: f64, growth: Growth) -> f64 {
        // With room for slices that size themselves, a filter is better, so a smaller one will do. Where the smallest has not
        // that room, no larger one has: slices stay as planned, and fill.
        let roomy = Self::peak_with_room(window, keys, mean, Growth { max_bytes: None, ..growth });
        if Self::new(window, keys, roomy).with_growth(growth).mean_rate(window) <= mean {
            roomy
        } else {
            Self::peak_with_room(window, keys, mean, Growth { adapt: false, ..growth })
        }
    }

    /// The same where slices are as large as they want to be. Then a smaller filter is a worse one, but for the rounding to
    /// whole blocks, which counts where they are few.
    fn peak_with_room(window: Window, keys: u64, mean: f64, growth: Growth) -> f64 {
        let sized = |peak| Self::new(window, keys, peak).with_growth(growth);
        let peak = greatest_peak(mean, |peak| sized(peak).mean_rate(window) <= mean);
        let blocks = |peak| sized(peak).layout.blocks_per_key;
        if blocks(peak) == blocks(mean) {
            return peak;
        }
        // Just before a key gets one block in place of two, a filter is smaller than after, and better.
        let before = greatest_peak(mean, |peak| blocks(peak) == blocks(mean));
        if sized(before).bytes(window) < sized(peak).bytes(window) { before } else { peak }
    }

    /// What slices are sized for once each of the last had the planned keys.
    fn steady(&self, window: Window) -> Self {
        let Window::Time { slices, .. } = window else { return *self };
        let held = std::iter::repeat_n(self.capacity, slices as usize);
        let grown = self.resized(self.growth.capacity(self.capacity, held, slices));
        // Where there is no room for that, a slice has the planned size.
        if self.growth.max_bytes.is_none_or(|most| grown.bytes(window) <= most) { grown } else { *self }
    }

    /// The same for slices of another capacity.
    pub(super) fn resized(&self, capacity: u64) -> Self {
        if capacity == self.capacity {
            return *self;
        }
        Self { capacity, layout: layout_for(capacity, self.rate * (1.0 - CHAIN_SHARE)), ..*self }
    }

    /// Of all generations, from what one is: its probability to be right, its memory.
    fn all(window: Window, right: f64, bytes: u64) -> Prediction {
        let generations = window.slices() + 1;
        // 1 - right^generations, without cancellation.
        let rate = -(right.ln() * f64::from(generations)).exp_m1();
        Prediction { rate, bytes: bytes * u64::from(generations) }
    }

    /// Capacity and layout of the layer `index` of a generation. The first has all of the rate but the share kept
    /// back for chaining. The layers chained to it have a half, a quarter, an eighth … of that share, so that
    /// their sum stays below it, and twice the capacity of the one before, so that there are few (Almeida et
    /// al.: "Scalable Bloom Filters", 2007).
    pub(super) fn size(&self, index: usize) -> (u64, BloomLayout) {
        let depth = u32::try_from(index).unwrap_or(u32::MAX).min(40);
        if depth == 0 {
            return (self.capacity, self.layout);
        }
        let capacity = self.capacity.div_ceil(2).saturating_mul(1 << (depth - 1));
        (capacity, layout_for(capacity, self.rate * CHAIN_SHARE * 0.5_f64.powi(depth.cast_signed())))
    }
}
