//! Ids of inputs, states, and counters.
//!
//! An id is only a key. It does not imply that the worker owns an input or a state with this id.

use crate::record::{SpaceId, TopicId};

/// The id of an input partition, with the first rule of the input as `topic`. In the id of a run of records, `topic` is the rule of these
/// records.
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

/// The id of a unit: a group of states with the same partition number that are restored together. All states of an input are in the same
/// unit, so inputs that share a state also share a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UnitId {
    /// The first key space of the unit.
    pub(super) first: SpaceId,
    pub(super) partition: i32,
}

/// The index of a topic in [`crate::stats::Stats::topics`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountsId(pub(super) usize);
