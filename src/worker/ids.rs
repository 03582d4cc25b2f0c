//! Ids of inputs, states, and counters.
//!
//! The object with an id need not exist.

use crate::record::{SpaceId, TopicId};

/// The id of an input partition: the topic is the first rule of the input. Where a record is meant, the topic is the record's rule.
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

/// The id of states that are restored together: a partition number of the key spaces that rules of the same inputs connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UnitId {
    /// The first of these spaces.
    pub(super) first: SpaceId,
    pub(super) partition: i32,
}

/// The index of a topic in [`crate::stats::Stats::topics`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountsId(pub(super) usize);
