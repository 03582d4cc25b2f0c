//! The kinds of filters, as options name them.
//!
//! Must never depend on the size of a filter, which `filter` computes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One Bloom filter per slice of the window.
    Aging,
    /// Fingerprints in a cuckoo filter, each with its slice of the window. Keys can be retracted.
    Cuckoo,
    /// A stable Bloom filter, which forgets keys at random.
    Stable,
    /// A set of fingerprints on disk, without false positives.
    Exact,
}

impl Kind {
    /// Returns the name of the option's value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aging => "aging",
            Self::Cuckoo => "cuckoo",
            Self::Stable => "stable",
            Self::Exact => "exact",
        }
    }

    /// True if the filter is sized by a number of keys.
    pub(super) const fn has_capacity(self) -> bool {
        match self {
            Self::Aging | Self::Cuckoo => true,
            Self::Stable | Self::Exact => false,
        }
    }

    /// True if the filter grows and shrinks with the number of keys, up to `max_memory`.
    pub(super) const fn grows(self) -> bool {
        match self {
            Self::Aging => true,
            Self::Cuckoo | Self::Stable | Self::Exact => false,
        }
    }
}
