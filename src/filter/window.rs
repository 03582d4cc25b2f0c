//! The window, divided into slices. A key stays seen for at least one window, measured in record time or in inserted keys.
//!
//! Computes slices from times. Never reads a clock.

use crate::record::Timestamp;
use core::time::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The number of a slice. In a window by time, slices are numbered from the Unix epoch. In a window by count, slices are numbered from the
/// first key. For a filter without slices, the number counts how many average key lifetimes have passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Slice(pub i64);

impl Slice {
    /// The first slice of a window by count.
    pub const FIRST: Self = Self(0);

    /// Returns the next slice.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the difference between the numbers of two slices.
    #[must_use]
    pub const fn abs_diff(self, other: Self) -> u64 {
        self.0.abs_diff(other.0)
    }

    /// Returns the slice that is `slices` slices earlier.
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

/// The length of the window, as a record time or as a number of keys, and its division into slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// A window by record time. Slices start at multiples of `slice_ms` since the Unix epoch.
    Time {
        /// Length of a slice in milliseconds, at least 1.
        slice_ms: i64,
        /// Slices per window, at least 1.
        slices: u32,
    },
    /// A window by the number of keys inserted.
    Keys {
        /// Keys per slice, at least 1.
        slice_keys: u64,
        /// Slices per window, at least 1.
        slices: u32,
    },
}

impl Window {
    /// Creates a window of `length_ms` of record time. The length is rounded up to make each slice a whole number of milliseconds.
    #[must_use]
    pub fn time(length_ms: i64, slices: u32) -> Self {
        let slices = slices.max(1);
        Self::Time { slice_ms: (length_ms.max(1) - 1) / i64::from(slices) + 1, slices }
    }

    /// Creates a window of the last `keys` keys. The number is rounded up to give all slices the same number of keys.
    #[must_use]
    pub fn keys(keys: u64, slices: u32) -> Self {
        let slices = slices.max(1);
        Self::Keys { slice_keys: keys.max(1).div_ceil(u64::from(slices)), slices }
    }

    /// Returns the number of slices per window.
    #[must_use]
    pub const fn slices(self) -> u32 {
        match self {
            Self::Time { slices, .. } | Self::Keys { slices, .. } => slices,
        }
    }

    /// Returns the slice of the first key in a window by count. `None` in a window by time, because the slice then depends on the time of
    /// the first record.
    #[must_use]
    pub const fn first_slice(self) -> Option<Slice> {
        match self {
            Self::Time { .. } => None,
            Self::Keys { .. } => Some(Slice::FIRST),
        }
    }

    /// Returns the slice of a time, or `None` in a window by count.
    #[must_use]
    pub const fn slice_at(self, time: Timestamp) -> Option<Slice> {
        match self {
            Self::Time { slice_ms, .. } => Some(Slice(time.div_euclid(slice_ms))),
            Self::Keys { .. } => None,
        }
    }

    /// Returns the start time of a slice, or `None` in a window by count.
    #[must_use]
    pub const fn start_of(self, slice: Slice) -> Option<Timestamp> {
        match self {
            Self::Time { slice_ms, .. } => Some(slice.0.saturating_mul(slice_ms)),
            Self::Keys { .. } => None,
        }
    }

    /// Returns the length of the window in milliseconds, or `None` in a window by count. A record is late if it is behind stream time by
    /// more than this length.
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
