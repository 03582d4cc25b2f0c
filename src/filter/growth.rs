//! The growth of a filter if the stream does not match its planned size.
//!
//! Owns the rule that sizes the next slice. Must never cause a key to be forgotten unless the configuration allows it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The growth of an aging filter's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// True if a slice is sized from the previous slices, and not only from the configuration.
    pub adapt: bool,
    /// Maximum memory for one partition's filter, in bytes.
    pub max_bytes: Option<u64>,
    /// Behavior at that maximum.
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
    /// The oldest slices are forgotten early, and their keys may be emitted again.
    EvictOldest,
}

/// Room for more keys than the fullest of the previous slices had, in eighths.
const HEADROOM_EIGHTHS: u64 = 9;
/// The smallest slice is this fraction of the configured size.
const LEAST_SHARE: u64 = 64;

impl Growth {
    /// Returns the number of keys that the next slice should hold. `configured` is the configured capacity, and `held` has the
    /// number of keys in each of the previous slices. Until a whole window has passed, the capacity only grows.
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
