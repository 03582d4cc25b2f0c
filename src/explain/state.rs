//! The inputs of a state with their committed offsets, and the rules of the state. Never contains keys.

use super::history::Reading;
use crate::broker::Note;
use crate::changelog::Origin;
use crate::config::Topic;
use crate::dedup::Rules;
use crate::record::{Offset, TopicPartition};
use std::collections::BTreeMap;

pub(super) struct InputView<'c> {
    pub(super) topic: &'c Topic,
    /// The partition that the worker reads. With `repartition`, this is a partition of the repartition topic, not of the input.
    pub(super) read: TopicPartition,
    /// The topic in `read`, with its topic id if brokers report ids (see [`crate::record::log_name`]). Offsets of a deleted topic with the
    /// same name are offsets of another topic incarnation.
    pub(super) log: String,
    pub(super) committed: Option<Offset>,
    pub(super) note: Note,
}

pub(super) struct StateView<'c> {
    pub(super) partition: i32,
    pub(super) inputs: Vec<InputView<'c>>,
    pub(super) rules: Rules,
    pub(super) origin: Origin,
}

impl<'c> StateView<'c> {
    /// Returns the committed offset of each topic incarnation that has one. A changelog record does not count if it covers input offsets at
    /// or above a committed offset. Such a record was committed after the committed offsets were requested, or an offset reset made it
    /// void, or, with `at_least_once`, its offsets were never committed.
    pub(super) fn bounds(&self) -> BTreeMap<String, Offset> {
        self.inputs.iter().filter_map(|input| Some((input.log.clone(), input.committed?))).collect()
    }

    /// Returns the view of `topic`, or `None` if the worker reads a repartition topic instead.
    pub(super) fn input(&self, topic: &Topic) -> Option<&InputView<'c>> {
        self.inputs.iter().find(|input| input.topic.input == topic.input && input.read.topic == topic.input)
    }

    pub(super) fn readings(&self) -> BTreeMap<String, Reading> {
        let reading = |input: &InputView<'_>| {
            let stream_time = input.note.stream_time_in(&input.topic.space);
            Reading { first: input.note.first, committed: input.committed, stream_time }
        };
        self.inputs.iter().map(|input| (input.log.clone(), reading(input))).collect()
    }
}
