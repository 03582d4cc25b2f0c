//! The kinds of filter and of rates, as the configuration names them.
//!
//! Owns their names. Must never know how a filter is sized: `filter` does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How keys are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Generations of Bloom filters.
    Aging,
    /// Fingerprints with the slice that they were inserted in. They can be deleted.
    Cuckoo,
    /// Cells that forget at random.
    Stable,
    /// The fingerprints themselves, on disk.
    Exact,
}

impl Kind {
    /// Its name, as it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aging => "aging",
            Self::Cuckoo => "cuckoo",
            Self::Stable => "stable",
            Self::Exact => "exact",
        }
    }

    /// Whether it is sized by the number of keys.
    pub(super) const fn has_capacity(self) -> bool {
        match self {
            Self::Aging | Self::Cuckoo => true,
            Self::Stable | Self::Exact => false,
        }
    }

    /// Whether it follows the stream within `max_memory`.
    pub(super) const fn grows(self) -> bool {
        match self {
            Self::Aging => true,
            Self::Cuckoo | Self::Stable | Self::Exact => false,
        }
    }
}
