//! The size of an aging filter, and its predicted rate and memory.

use super::{Aging, Metadata};
use crate::filter::bloom::BloomLayout;
use crate::filter::kind::{self, Demand};
use crate::filter::sizing::{CHAIN_SHARE, layout_for, mean_between, rate_per_generation, shape_rate};
use crate::filter::{Filter, Growth, MetadataError, Prediction, Window};

/// The size of an aging filter, computed once for all partitions that share a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizing {
    /// Number of keys that a generation holds before it chains another layer.
    pub capacity: u64,
    /// Maximum false-positive rate of one generation, including chained layers.
    pub rate: f64,
    /// Layout of a generation's first layer.
    pub layout: BloomLayout,
    /// Settings for the growth of the filter's memory.
    pub growth: Growth,
}

impl Sizing {
    /// Sizes a filter whose window holds `keys`, with a rate of at most `rate` over all generations.
    #[must_use]
    pub fn new(window: Window, keys: u64, rate: f64) -> Self {
        let rate = rate_per_generation(rate, window.slices() + 1);
        let capacity = keys.max(1).div_ceil(u64::from(window.slices()));
        Self { capacity, rate, layout: layout_for(capacity, rate * (1.0 - CHAIN_SHARE)), growth: Growth::default() }
    }

    /// Replaces the settings for growth. By default, slices do not adapt, and memory has no limit.
    #[must_use]
    pub const fn with_growth(self, growth: Growth) -> Self {
        Self { growth, ..self }
    }

    /// Memory of all generations at capacity, without chained layers, in bytes.
    #[must_use]
    pub fn bytes(&self, window: Window) -> u64 {
        self.layout.bytes() * u64::from(window.slices() + 1)
    }

    /// Predicts the rate and memory, including chained layers, at the moment when every generation holds `load` times its capacity. The
    /// filter's false-positive rate is highest at that moment.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn predict(&self, window: Window, load: f64) -> Prediction {
        let mut keys = self.capacity as f64 * load.max(0.0);
        let (mut right, mut bytes) = (1.0, 0);
        // Chained layers double in size, so 64 layers hold any number of keys.
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

    /// Predicts the rate and memory without chaining, when each generation holds `load` times its capacity in its first and only layer.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn rate_unchained(&self, window: Window, load: f64) -> Prediction {
        Self::all(window, 1.0 - shape_rate(self.layout, self.capacity as f64 * load), self.layout.bytes())
    }

    /// Returns the sizing of a slice if each of the previous slices had the planned number of keys.
    fn steady(&self, window: Window) -> Self {
        let Window::Time { slices, .. } = window else { return *self };
        let held = std::iter::repeat_n(self.capacity, slices as usize);
        let grown = self.resized(self.growth.capacity(self.capacity, held, slices));
        // If `max_bytes` does not allow the larger size, a slice has the planned size.
        if self.growth.max_bytes.is_none_or(|most| grown.bytes(window) <= most) { grown } else { *self }
    }

    pub(super) fn resized(&self, capacity: u64) -> Self {
        if capacity == self.capacity {
            return *self;
        }
        Self { capacity, layout: layout_for(capacity, self.rate * (1.0 - CHAIN_SHARE)), ..*self }
    }

    /// Extends the prediction for one generation to all generations. `right` is the probability that a generation does not report an absent
    /// key as seen, and `bytes` is the memory of one generation.
    fn all(window: Window, right: f64, bytes: u64) -> Prediction {
        let generations = window.slices() + 1;
        // 1 - right^generations, without loss of precision at small rates.
        let rate = -(right.ln() * f64::from(generations)).exp_m1();
        Prediction { rate, bytes: bytes * u64::from(generations) }
    }

    /// Returns the capacity and layout of layer `index` of a generation. The first layer may use all of the rate except [`CHAIN_SHARE`]. Of
    /// that share, the first chained layer may use half, the next a quarter, and so on. The chained layers together therefore stay below
    /// the share. The first chained layer has half the capacity of the first layer, and each further layer has twice the capacity of the
    /// previous one to keep the number of layers small (Almeida et al.: "Scalable Bloom Filters", 2007).
    pub(super) fn size(&self, index: usize) -> (u64, BloomLayout) {
        let depth = u32::try_from(index).unwrap_or(u32::MAX).min(40);
        if depth == 0 {
            return (self.capacity, self.layout);
        }
        let capacity = self.capacity.div_ceil(2).saturating_mul(1 << (depth - 1));
        (capacity, layout_for(capacity, self.rate * CHAIN_SHARE * 0.5_f64.powi(depth.cast_signed())))
    }
}

impl kind::Row for Sizing {
    type Metadata = Metadata;

    fn demanded(window: Window, demand: &Demand) -> Self {
        Self::new(window, demand.keys, demand.rate).with_growth(demand.growth)
    }

    fn stored(window: Window, _metadata: &Metadata) -> Self {
        Self::new(window, 1, 0.5)
    }

    fn restore(self, window: Window, metadata: &Metadata) -> Result<Box<dyn Filter>, MetadataError> {
        Ok(Box::new(Aging::from_metadata(window, self, metadata)?))
    }
}

impl kind::Sizing for Sizing {
    fn build(&self, window: Window) -> Box<dyn Filter> {
        Box::new(Aging::new(window, *self))
    }

    fn capacity(&self, window: Window) -> u64 {
        self.capacity.saturating_mul(window.slices().into())
    }

    fn bytes(&self, window: Window) -> u64 {
        Self::bytes(self, window)
    }

    fn steady_bytes(&self, window: Window) -> u64 {
        self.steady(window).bytes(window)
    }

    fn predicted(&self, window: Window, _keys: u64, load: f64) -> Prediction {
        self.predict(window, load)
    }

    /// Averages the rate while the open slice fills up. All other slices have the planned number of keys. With `adapt` in a window by time,
    /// the layers are larger than the planned number of keys requires, if `max_memory` allows that.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    fn mean_rate(&self, window: Window) -> f64 {
        let (keys, layout) = (self.capacity as f64, self.steady(window).layout);
        let closed = (-shape_rate(layout, keys)).ln_1p();
        let open = (-mean_between(0.0, keys, |keys| shape_rate(layout, keys))).ln_1p();
        // 1 - e^(closed * slices + open), without loss of precision at small rates.
        -(closed * f64::from(window.slices()) + open).exp_m1()
    }

    fn reads(&self, window: Window) -> (u32, String) {
        let blocks = self.layout.blocks_per_key * (window.slices() + 1);
        let bits = self.layout.k * blocks;
        (bits, format!("{blocks} blocks, {bits} bits"))
    }
}
