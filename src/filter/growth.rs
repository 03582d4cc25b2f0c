//! What a filter may do about a stream that is larger or smaller than it was sized for.
//!
//! Owns the rule by which the next slice is sized. Must never be a reason to forget a key, but where
//! the configuration says so.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How an aging filter's memory follows the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// Whether a slice is sized from what the last ones held, and not from the configuration alone.
    pub adapt: bool,
    /// Most memory for one partition's filter, in bytes.
    pub max_bytes: Option<u64>,
    /// What happens when that is not enough.
    pub at_max: AtMaxMemory,
}

/// What happens when a filter may not grow any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AtMaxMemory {
    /// The worker stops with an error: nothing is lost or repeated, and nothing goes on.
    #[default]
    Stop,
    /// Slices are filled beyond their capacity: more and more unseen records are dropped.
    Saturate,
    /// The oldest slices are forgotten before their time: their keys may be emitted again.
    EvictOldest,
}

/// Room for more keys than the fullest of the last slices had, in eighths.
const HEADROOM_EIGHTHS: u64 = 9;
/// A slice is never made smaller than this part of what was configured.
const LEAST_SHARE: u64 = 64;

impl Growth {
    /// Keys that the next slice is to hold, where `configured` is what the configuration says and `held`
    /// what each of the last slices held. Before a whole window of them was seen it only grows.
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
    fn the_next_slice_is_sized_from_the_last_ones() {
        let capacity = |held: &[u64]| Growth { adapt: true, ..Growth::default() }.capacity(1_000, held.iter().copied(), 4);
        assert_eq!(capacity(&[]), 1_000);
        assert_eq!(capacity(&[10, 10, 10]), 1_000, "not smaller before a window was seen");
        assert_eq!(capacity(&[10, 4_000, 10]), 4_500, "larger at once");
        assert_eq!(capacity(&[10, 80, 10, 20]), 90);
        assert_eq!(capacity(&[0, 0, 0, 0]), 16, "never to nothing");
        assert_eq!(capacity(&[u64::MAX, 0, 0, 0]), u64::MAX.div_ceil(8));
    }

    #[test]
    fn switched_off_it_is_what_was_configured() {
        assert_eq!(Growth::default().capacity(1_000, [1, 2, 3, 4].into_iter(), 4), 1_000);
    }
}
