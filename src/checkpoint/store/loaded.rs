//! What comes out of the store. Must never say more than was checked.

use super::Saved;
use crate::changelog::Progress;
use crate::dedup::Dedup;
use crate::record::Offset;
use std::collections::BTreeMap;

/// What the store has of a partition.
#[derive(Debug)]
pub enum Loaded {
    /// Nothing.
    Nothing,
    /// A checkpoint of other settings; the text says what differs.
    Foreign {
        /// `its window was X and is Y`
        difference: String,
    },
    /// A checkpoint.
    Usable {
        /// The partition's state.
        state: Box<Dedup>,
        /// For each input topic, the offset that the state has come to.
        offsets: BTreeMap<String, Offset>,
        /// How far the changelog is in it.
        changelog: Progress,
        /// Proof that it is stored as it is.
        saved: Saved,
    },
}
