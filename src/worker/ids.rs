//! Names of what a worker has, as numbers.
//!
//! Must never say whether it is there.

use crate::record::{SpaceId, TopicId};

/// A partition of a topic that is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InputId {
    pub(super) topic: TopicId,
    pub(super) partition: i32,
}

/// Whose state: a partition number of a key space. Equal partitions of the topics of a space share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StateId {
    pub(super) space: SpaceId,
    pub(super) partition: i32,
}

/// Place of a topic in [`crate::stats::Stats::topics`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountsId(pub(super) usize);
