//! Metadata of one state of a group: its inputs, their committed offsets, and its rules. It does not hold the seen keys.

use super::history::Reading;
use crate::broker::Note;
use crate::changelog::Origin;
use crate::config::Topic;
use crate::dedup::Rules;
use crate::record::{Offset, TopicPartition};
use std::collections::BTreeMap;

/// An input topic of a state.
pub(super) struct InputView<'c> {
    pub(super) topic: &'c Topic,
    /// The partition from which the worker reads the records: of the input topic or of its repartition topic.
    pub(super) read: TopicPartition,
    pub(super) log: String,
    pub(super) committed: Option<Offset>,
    pub(super) note: Note,
}

/// The state of one partition of a key space.
pub(super) struct StateView<'c> {
    pub(super) partition: i32,
    pub(super) inputs: Vec<InputView<'c>>,
    pub(super) rules: Rules,
    pub(super) origin: Origin,
}

impl<'c> StateView<'c> {
    /// Returns the committed offset of each log. Later entries of the changelog were not committed.
    pub(super) fn bounds(&self) -> BTreeMap<String, Offset> {
        self.inputs.iter().filter_map(|input| Some((input.log.clone(), input.committed?))).collect()
    }

    /// Returns the input that is read from the topic's own partition, without a repartition topic.
    pub(super) fn input(&self, topic: &Topic) -> Option<&InputView<'c>> {
        self.inputs.iter().find(|input| input.topic.input == topic.input && input.read.topic == topic.input)
    }

    /// Returns the progress of the group in each log.
    pub(super) fn readings(&self) -> BTreeMap<String, Reading> {
        let reading = |input: &InputView<'_>| {
            let stream_time = input.note.stream_time_in(&input.topic.space);
            Reading { first: input.note.first, committed: input.committed, stream_time }
        };
        self.inputs.iter().map(|input| (input.log.clone(), reading(input))).collect()
    }
}
