//! Ids of inputs, states, and counts.
//!
//! An id does not show that its object exists.

use crate::record::{SpaceId, TopicId};

/// The id of an input: a partition of a topic that is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InputId {
    pub(super) topic: TopicId,
    pub(super) partition: i32,
}

/// The id of a state: a partition number of a key space. Equal partition numbers of the topics of a space share a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StateId {
    pub(super) space: SpaceId,
    pub(super) partition: i32,
}

/// The index of a topic in [`crate::stats::Stats::topics`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountsId(pub(super) usize);
