//! Ids of inputs, states, and counters.
//!
//! The object with an id need not exist.

use crate::record::{SpaceId, TopicId};

/// The id of an input partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InputId {
    pub(super) topic: TopicId,
    pub(super) partition: i32,
}

/// The id of a dedup state: a partition number of a key space. Partitions with the same number in the topics of a space share a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StateId {
    pub(super) space: SpaceId,
    pub(super) partition: i32,
}

/// The index of a topic in [`crate::stats::Stats::topics`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountsId(pub(super) usize);
