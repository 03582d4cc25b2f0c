//! The size of a cuckoo filter, and its predicted rate and memory.

use super::table::SLOT_BITS_MAX;
use super::{Cuckoo, Metadata, SLOTS, TableLayout};
use crate::filter::kind::{self, Demand};
use crate::filter::sizing::mean_between;
use crate::filter::{Filter, MetadataError, Prediction, Window};

/// Minimum share of the rate that is reserved for tables chained by an overfull filter.
const CHAIN_SHARE: f64 = 1.0 / 32.0;
/// Depth of the largest chained table. Deeper tables have the same size.
const DEPTH_MAX: u32 = 40;

/// The size of a cuckoo filter, computed once for all partitions that share a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizing {
    /// Number of keys, over all generations, that the first table holds before another one is chained.
    pub capacity: u64,
    /// Maximum false-positive rate of the filter, including its chained tables.
    pub rate: f64,
}

impl Sizing {
    /// Sizes a filter whose window holds `keys`, with a rate of at most `rate` in (0, 1). The first table is sized for the keys of one
    /// slice more than the window has, because the open slice fills up before the oldest slice expires. The table uses at most 95 % of its
    /// slots. If a tag has t bits, rates below about `2^(t-54)` cannot be reached.
    #[must_use]
    pub fn new(window: Window, keys: u64, rate: f64) -> Self {
        let slices = u64::from(window.slices());
        let capacity = u128::from(keys.max(1)).div_ceil(u128::from(slices)) * u128::from(slices + 1);
        Self { capacity: u64::try_from(capacity).unwrap_or(u64::MAX), rate }
    }

    /// Returns the layout of the table at a depth of the chain. The first table, at depth 0, may use all of the rate except
    /// [`CHAIN_SHARE`]. It usually uses less, because fingerprints have a whole number of bits. The first chained table may use half of the
    /// unused rate, the next a quarter, and so on. All tables together therefore stay below the rate. The first chained table has half the
    /// capacity of the first table, and each further table has twice the capacity of the previous one to keep the number of tables small
    /// (Almeida et al.: "Scalable Bloom Filters", 2007).
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

    /// Predicts the rate and memory if the window and the open slice together have `load` times `capacity` keys. All tables are then full
    /// except the last, which holds the remaining keys. The predicted rate is at most [`Sizing::rate`], unless that rate cannot be reached.
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
}

impl kind::Row for Sizing {
    type Metadata = Metadata;

    fn demanded(window: Window, demand: &Demand) -> Self {
        Self::new(window, demand.keys, demand.rate)
    }

    fn stored(window: Window, _metadata: &Metadata) -> Self {
        Self::new(window, 1, 0.5)
    }

    fn restore(self, window: Window, metadata: &Metadata) -> Result<Box<dyn Filter>, MetadataError> {
        Ok(Box::new(Cuckoo::from_metadata(window, self, metadata)?))
    }
}

impl kind::Sizing for Sizing {
    fn build(&self, window: Window) -> Box<dyn Filter> {
        Box::new(Cuckoo::new(window, *self))
    }

    fn capacity(&self, window: Window) -> u64 {
        let slices = u64::from(window.slices());
        self.capacity / (slices + 1) * slices
    }

    fn bytes(&self, window: Window) -> u64 {
        self.layout(window, 0).bytes()
    }

    /// Does not adjust `load`, because `capacity` already includes the open slice.
    fn predicted(&self, window: Window, _keys: u64, load: f64) -> Prediction {
        self.predict(window, load)
    }

    /// Averages the rate while the open slice fills up. All other slices have the planned number of keys.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    fn mean_rate(&self, window: Window) -> f64 {
        let (most, slices) = (self.capacity as f64, f64::from(window.slices()));
        let layout = self.layout(window, 0);
        mean_between(most * slices / (slices + 1.0), most, |keys| layout.rate(keys))
    }

    fn reads(&self, _window: Window) -> (u32, String) {
        let slots = 2 * SLOTS;
        (u32::try_from(slots).unwrap_or(u32::MAX), format!("2 buckets, {slots} slots"))
    }
}

/// Returns the table for `keys` with the shortest fingerprints that meet the rate when the table is full. If even the longest fingerprints
/// do not meet the rate, uses the longest.
#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn narrowest(keys: u64, rate: f64, tags: u64) -> TableLayout {
    let layout = |bits| TableLayout::holding(keys, bits, tags);
    let most = SLOT_BITS_MAX - layout(0).tag_bits();
    let bits = (2..most).find(|&bits| layout(bits).rate(layout(bits).capacity() as f64) <= rate);
    layout(bits.unwrap_or(most))
}
