//! The progress of a state and its changelog through the records of an input.
//!
//! A topic with several rules has one state per rule. The states can be restored to different offsets. This module never sets the offsets
//! of the input.

use super::ids::StateId;
use crate::fault;
use crate::record::{Offset, Timestamp};

#[derive(Debug)]
pub(super) struct StateProgress {
    pub(super) state: StateId,
    /// The input offset of the restored state. Records below this offset do not change the state.
    pub(super) start: Offset,
    /// The end offset of the records whose effects are in the state's changelog. `Offset::MAX` if the state has no changelog.
    pub(super) logged: Offset,
    /// The end offset of the records whose effects are in the last checkpoint of this worker. 0 before the first checkpoint.
    pub(super) checkpointed: Offset,
    /// Stream time at the end of the warm-up, if known. Records in the warm-up cannot advance stream time past this value.
    pub(super) warm_up_max_timestamp: Option<Timestamp>,
}

impl StateProgress {
    /// Creates the progress of a state that reads from `start`. Records from `start` up to `warm_until` are a warm-up. If `warm_until` is
    /// less than `start`, the state contains the effects of the records below `warm_until`, and the records from `warm_until` up to `start`
    /// were deleted or do not belong to the state.
    pub(super) fn new(
        state: StateId,
        (start, warm_until): (Offset, Offset),
        warm_up_max_timestamp: Option<Timestamp>,
        has_changelog: bool,
    ) -> Self {
        // If the records from `warm_until` up to `start` are skipped, the first changelog record must still start at `warm_until`.
        // Otherwise, the next rebuild would find a gap.
        let logged = match has_changelog {
            true if fault::defect("expired_records_not_logged") => start,
            true => start.min(warm_until),
            false => Offset::MAX,
        };
        Self { state, start, logged, checkpointed: 0, warm_up_max_timestamp }
    }
}
