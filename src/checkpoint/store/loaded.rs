//! The results of loading from the store. Must never contain data that was not verified.

use super::Saved;
use crate::changelog::Progress;
use crate::dedup::Dedup;
use crate::record::Offset;
use std::collections::BTreeMap;

/// The stored state of a partition.
#[derive(Debug)]
pub enum Loaded {
    /// There is no checkpoint.
    Nothing,
    /// The checkpoint was written with other settings.
    Foreign {
        /// The difference, such as `its window is X, but the configured window is Y`.
        difference: String,
    },
    /// The checkpoint can be used.
    Usable {
        state: Box<Dedup>,
        /// The next offset of each input, by [`crate::record::log_name`].
        offsets: BTreeMap<String, Offset>,
        /// The part of the changelog that the state contains.
        changelog: Progress,
        /// Proof that the store contains this state.
        saved: Saved,
    },
}
