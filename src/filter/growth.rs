//! Adapts the size of an aging filter to the number of keys in the stream.
//!
//! Computes the size of the next slice. A size that turns out to be too small makes the slice chain layers, so keys are forgotten early
//! only if `max_memory` does not allow a layer and `at_max_memory` is `evict_oldest`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings for the growth of an aging filter's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// True if the size of a new slice follows the number of keys in the previous slices. If false, every slice has the configured size.
    /// Ignored in a window by count, because every slice then has the same number of keys.
    pub adapt: bool,
    /// Maximum memory of one partition's filter, in bytes. `None` means no limit.
    pub max_bytes: Option<u64>,
    /// Behavior of a filter that has reached `max_bytes`.
    pub at_max: AtMaxMemory,
}

/// Behavior of a filter that has reached its maximum memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AtMaxMemory {
    /// The worker stops with an error. No records are lost or duplicated, but processing stops.
    #[default]
    Stop,
    /// Slices are filled beyond their capacity, and more and more unseen records are dropped.
    Saturate,
    /// The oldest slices are forgotten early, and their keys may be emitted again. If a single slice exceeds the maximum, it is saturated.
    EvictOldest,
}

/// Capacity of a new slice, in eighths of the number of keys in the fullest of the previous slices.
const HEADROOM_EIGHTHS: u64 = 9;
/// A slice never gets smaller than the configured size divided by this number.
const LEAST_SHARE: u64 = 64;

impl Growth {
    /// Returns the capacity of the next slice, in keys. `configured` is the configured capacity, and `held` has the number of keys in each
    /// previous generation. If there are fewer generations than slices in a window, as at the start of a stream or after empty slices, the
    /// result is at least `configured`.
    pub(super) fn capacity(self, configured: u64, held: impl ExactSizeIterator<Item = u64>, slices: u32) -> u64 {
        if !self.adapt {
            return configured;
        }
        let seen_all = held.len() as u64 >= u64::from(slices);
        let fullest = held.max().unwrap_or(0);
        let wanted = fullest.saturating_mul(HEADROOM_EIGHTHS).div_ceil(8);
        wanted.max(if seen_all { configured.div_ceil(LEAST_SHARE) } else { configured })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_slice_is_sized_from_the_previous_ones() {
        let capacity = |held: &[u64]| Growth { adapt: true, ..Growth::default() }.capacity(1_000, held.iter().copied(), 4);
        assert_eq!(capacity(&[]), 1_000);
        assert_eq!(capacity(&[10, 10, 10]), 1_000, "not smaller before a whole window has passed");
        assert_eq!(capacity(&[10, 4_000, 10]), 4_500, "larger immediately");
        assert_eq!(capacity(&[10, 80, 10, 20]), 90);
        assert_eq!(capacity(&[0, 0, 0, 0]), 16, "never zero");
        assert_eq!(capacity(&[u64::MAX, 0, 0, 0]), u64::MAX.div_ceil(8));
    }

    #[test]
    fn without_adapt_slices_have_the_configured_size() {
        assert_eq!(Growth::default().capacity(1_000, [1, 2, 3, 4].into_iter(), 4), 1_000);
    }
}
