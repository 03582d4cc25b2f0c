//! One state of a group, seen from outside: its inputs, how far they are read, and its rules.
//!
//! Must never hold the state itself: one key is asked for, and the others need not be known.

use super::history::Reading;
use crate::broker::Note;
use crate::changelog::Origin;
use crate::config::Topic;
use crate::dedup::Rules;
use crate::record::{Offset, TopicPartition};
use std::collections::BTreeMap;

/// One of the topics whose records a state judges.
pub(super) struct InputView<'c> {
    pub(super) topic: &'c Topic,
    /// Where its records are judged: its own partition, or that of the topic in between.
    pub(super) read: TopicPartition,
    pub(super) log: String,
    pub(super) committed: Option<Offset>,
    pub(super) note: Note,
}

/// A state: one partition number of one key space.
pub(super) struct StateView<'c> {
    pub(super) partition: i32,
    pub(super) inputs: Vec<InputView<'c>>,
    pub(super) rules: Rules,
    pub(super) origin: Origin,
}

impl<'c> StateView<'c> {
    /// What the group has committed of each log: what its changelog has past that did not happen.
    pub(super) fn bounds(&self) -> BTreeMap<String, Offset> {
        self.inputs.iter().filter_map(|input| Some((input.log.clone(), input.committed?))).collect()
    }

    /// The one of these that is of a topic's own partition.
    pub(super) fn input(&self, topic: &Topic) -> Option<&InputView<'c>> {
        self.inputs.iter().find(|input| input.topic.input == topic.input && input.read.topic == topic.input)
    }

    /// How far the group has read each log.
    pub(super) fn readings(&self) -> BTreeMap<String, Reading> {
        let reading =
            |input: &InputView<'_>| Reading { first: input.note.first, committed: input.committed, stream_time: input.note.stream_time };
        self.inputs.iter().map(|input| (input.log.clone(), reading(input))).collect()
    }
}
