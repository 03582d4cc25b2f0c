//! How long a key stays seen, and how that time is cut into slices.

use crate::record::Timestamp;
use core::time::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Number of a slice, which never falls: where time is cut into slices, counted from the epoch; where keys are counted,
/// from the first key. A kind without slices counts how often all keys were replaced by others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Slice(pub i64);

impl Slice {
    /// The one that the count begins with.
    pub const FIRST: Self = Self(0);

    /// The slice after this.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// How many slices lie between the two.
    #[must_use]
    pub const fn abs_diff(self, other: Self) -> u64 {
        self.0.abs_diff(other.0)
    }

    /// The slice that many before this.
    #[must_use]
    pub const fn before(self, slices: u32) -> Self {
        Self(self.0.saturating_sub(slices as i64))
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How long a key stays seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// By record time. Slices start at multiples of their length since the epoch.
    Time {
        /// Length of a slice in milliseconds, at least 1.
        slice_ms: i64,
        /// Slices in a window, at least 1.
        slices: u32,
    },
    /// By the number of keys inserted.
    Keys {
        /// Keys in a slice, at least 1.
        slice_keys: u64,
        /// Slices in a window, at least 1.
        slices: u32,
    },
}

impl Window {
    /// A window of `length_ms` of record time; rounded up to whole slices.
    #[must_use]
    pub fn time(length_ms: i64, slices: u32) -> Self {
        let slices = slices.max(1);
        Self::Time { slice_ms: (length_ms.max(1) - 1) / i64::from(slices) + 1, slices }
    }

    /// A window of the last `keys` keys; rounded up to whole slices.
    #[must_use]
    pub fn keys(keys: u64, slices: u32) -> Self {
        let slices = slices.max(1);
        Self::Keys { slice_keys: keys.max(1).div_ceil(u64::from(slices)), slices }
    }

    /// Slices in a window.
    #[must_use]
    pub const fn slices(self) -> u32 {
        match self {
            Self::Time { slices, .. } | Self::Keys { slices, .. } => slices,
        }
    }

    /// The slice of the first key, where keys are counted; `None` where the first time decides.
    #[must_use]
    pub const fn first_slice(self) -> Option<Slice> {
        match self {
            Self::Time { .. } => None,
            Self::Keys { .. } => Some(Slice::FIRST),
        }
    }

    /// Number of the slice that a time lies in; `None` for windows by count.
    #[must_use]
    pub const fn slice_at(self, time: Timestamp) -> Option<Slice> {
        match self {
            Self::Time { slice_ms, .. } => Some(Slice(time.div_euclid(slice_ms))),
            Self::Keys { .. } => None,
        }
    }

    /// When a slice starts; `None` for windows by count.
    #[must_use]
    pub const fn start_of(self, slice: Slice) -> Option<Timestamp> {
        match self {
            Self::Time { slice_ms, .. } => Some(slice.0.saturating_mul(slice_ms)),
            Self::Keys { .. } => None,
        }
    }

    /// How far behind stream time a record may be and still lie within the window; `None` for windows by count.
    #[must_use]
    pub const fn length_ms(self) -> Option<i64> {
        match self {
            Self::Time { slice_ms, slices } => Some(slice_ms.saturating_mul(slices as i64)),
            Self::Keys { .. } => None,
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time { slice_ms, slices } => {
                let slice = Duration::from_millis(u64::try_from(*slice_ms).unwrap_or(0));
                write!(f, "{slices} slices of {}", humantime::format_duration(slice))
            }
            Self::Keys { slice_keys, slices } => write!(f, "{slices} slices of {slice_keys} keys"),
        }
    }
}
