//! The result of `Store::load`. A state is returned only if its metadata and all of its pages have valid checksums.

use super::Saved;
use crate::changelog::Progress;
use crate::dedup::Dedup;
use crate::record::Offset;
use std::collections::BTreeMap;

#[derive(Debug)]
pub enum Loaded {
    Nothing,
    Foreign {
        /// The difference, such as `its window is X, but the configured window is Y`.
        difference: String,
    },
    Usable {
        state: Box<Dedup>,
        /// The next offset of each input, by [`crate::record::log_name`].
        offsets: BTreeMap<String, Offset>,
        changelog: Progress,
        saved: Saved,
    },
}
