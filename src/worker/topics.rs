//! The input topics of a worker.
//!
//! Keeps everything that is derived from the configuration and the cluster metadata. Never depends on records.

use super::ids::{CountsId, InputId, StateId, UnitId};
use super::outputs::{Forward, Outputs};
use crate::broker::{Cluster, Note};
use crate::changelog::Origin;
use crate::checkpoint::{self, PartitionId};
use crate::config::{Config, Topic};
use crate::dedup::Rules;
use crate::fault;
use crate::record::{SpaceId, Timestamp, TopicId};
use crate::stats;
use std::ops::Index;

/// An input topic, or a single rule of an input with several rules.
pub(super) struct InputTopic {
    /// The configuration, with the name of the topic that is actually read: the input, or its repartition topic.
    pub(super) config: Topic,
    /// The key space. A topic whose records are forwarded has its own key space without a state.
    pub(super) space: SpaceId,
    /// The rules of the same input, in order. The first rule also identifies the input.
    pub(super) of_input: Vec<TopicId>,
    /// The unit of the key space, identified by its first space. The spaces of a unit are restored together.
    unit: SpaceId,
    pub(super) rules: Rules,
    /// The index of the record counters of the configured topic.
    pub(super) counted: CountsId,
    /// The index of the byte counters of the topic that is actually read.
    pub(super) read: CountsId,
    /// The number of keys per partition that the filter is sized for.
    pub(super) capacity: u64,
    pub(super) settings: checkpoint::Settings,
    pub(super) origin: Origin,
    pub(super) changelog: Option<String>,
    pub(super) forward: Option<Forward>,
    /// True for a repartition topic.
    pub(super) is_internal: bool,
    pub(super) outputs: Outputs,
    /// Other topics of the space that compare contents. They forget the content of a key when a record of this topic is emitted or retracts
    /// the key.
    pub(super) compared_with: Vec<CountsId>,
}

impl InputTopic {
    /// True if this topic or another topic of its space compares contents.
    pub(super) const fn keeps_content(&self) -> bool {
        self.config.key_conflicts.is_some() || !self.compared_with.is_empty()
    }

    pub(super) fn forwards_to(&self, to: &str) -> bool {
        self.forward.as_ref().is_some_and(|forward| forward.topic == to)
    }

    pub(super) const fn has_rules(&self) -> bool {
        self.of_input.len() > 1
    }

    /// Returns the id of a state in the checkpoint store.
    pub(super) fn stored_as(&self, partition: i32) -> PartitionId {
        PartitionId { space: self.config.space.clone(), partition }
    }
}

/// The input topics by id. Topics whose records are forwarded come last.
pub(super) struct Topics {
    all: Vec<InputTopic>,
    pub(super) have_rules: bool,
}

impl Topics {
    pub(super) fn new(config: &Config, cluster: &Cluster) -> Self {
        let partitions = |topic: &str| cluster.partitions.get(topic).copied().unwrap_or(1);
        let read = |input: &str| CountsId(stats::topics(config).position(|(name, _)| name == input).unwrap_or(0));
        let judged = |(number, topic): (usize, &Topic)| {
            let settings = checkpoint::Settings::of(config, topic);
            let space = config.space_of(topic).id;
            let repartitioned = config.repartitioned(topic);
            let is_internal = repartitioned.is_some();
            // Only records that `when` selects are forwarded. The conditions are tested again only if the input has several rules, to find
            // the rule of each record.
            let is_selected = is_internal && config.rules(&topic.input).nth(1).is_none();
            let when = if is_selected { Vec::new() } else { topic.when.clone() };
            let topic = Topic { input: repartitioned.unwrap_or_else(|| topic.input.clone()), when, ..topic.clone() };
            let rules = topic.rules(partitions(&topic.input));
            let is_beside =
                |&(other, beside): &(usize, &Topic)| other != number && beside.space == topic.space && beside.key_conflicts.is_some();
            let compared_with = config.topics.iter().enumerate().filter(is_beside).map(|(other, _)| CountsId(other)).collect();
            InputTopic {
                space,
                of_input: Vec::new(),
                unit: space,
                rules,
                counted: CountsId(number),
                read: read(&topic.input),
                capacity: rules.capacity().unwrap_or(0),
                origin: settings.origin(config, &topic, &rules),
                settings,
                changelog: config.changelog(&topic.space),
                forward: None,
                is_internal,
                outputs: Outputs::new(&topic, cluster),
                compared_with,
                config: topic,
            }
        };
        let mut topics: Vec<_> = config.topics.iter().enumerate().map(judged).collect();
        for (number, topic) in config.topics.iter().enumerate() {
            let Some(name) = config.repartitioned(topic) else { continue };
            let judged = &topics[number];
            topics.push(InputTopic {
                config: topic.clone(),
                space: SpaceId(topics.len()),
                of_input: Vec::new(),
                unit: SpaceId(topics.len()),
                rules: judged.rules,
                counted: CountsId(number),
                read: read(&topic.input),
                capacity: 0,
                settings: judged.settings.clone(),
                origin: judged.origin,
                changelog: None,
                forward: Some(Forward { partitions: partitions(&name), topic: name }),
                is_internal: false,
                outputs: Outputs::new(topic, cluster),
                compared_with: Vec::new(),
            });
        }
        for number in 0..topics.len() {
            let name = &topics[number].config.input;
            let of_input = topics.iter().enumerate().filter(|(_, topic)| topic.config.input == *name);
            topics[number].of_input = of_input.map(|(number, _)| TopicId(number)).collect();
        }
        connect(&mut topics);
        Self { have_rules: topics.iter().any(InputTopic::has_rules), all: topics }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TopicId, &InputTopic)> {
        self.all.iter().enumerate().map(|(number, topic)| (TopicId(number), topic))
    }

    /// Iterates over the inputs, each with its first rule.
    pub(super) fn inputs(&self) -> impl Iterator<Item = (TopicId, &InputTopic)> {
        self.iter().filter(|(id, topic)| topic.of_input.first() == Some(id))
    }

    #[inline]
    pub(super) fn input_of(&self, rule: InputId) -> InputId {
        InputId { topic: self[rule.topic].of_input[0], ..rule }
    }

    pub(super) fn states_of(&self, input: InputId) -> impl Iterator<Item = StateId> {
        let rules = self[input.topic].of_input.iter();
        rules.map(move |&rule| StateId { space: self[rule].space, partition: input.partition })
    }

    pub(super) fn unit_of(&self, input: InputId) -> UnitId {
        UnitId { first: self[input.topic].unit, partition: input.partition }
    }

    pub(super) fn unit_of_state(&self, state: StateId) -> UnitId {
        UnitId { first: self.first_of(state.space).unit, partition: state.partition }
    }

    pub(super) fn inputs_of_unit(&self, unit: UnitId) -> impl Iterator<Item = InputId> {
        let of_unit = self.inputs().filter(move |(_, topic)| topic.unit == unit.first);
        of_unit.map(move |(topic, _)| InputId { topic, partition: unit.partition })
    }

    /// Returns offset metadata with the stream times of an input's states.
    pub(super) fn note_of_times(&self, input: TopicId, mut times: impl Iterator<Item = (StateId, Option<Timestamp>)>) -> Note {
        if self[input].has_rules() {
            let named = times.map(|(state, time)| (self.first_of(state.space).config.space.clone(), time));
            Note { stream_times: named.collect(), ..Note::default() }
        } else {
            Note { stream_time: times.find_map(|(_, time)| time), ..Note::default() }
        }
    }

    /// Finds a topic by name. If the topic has several rules, returns the first rule.
    pub(super) fn find(&self, name: &str) -> Option<TopicId> {
        self.iter().find(|(_, topic)| topic.config.input == name).map(|(id, _)| id)
    }

    /// Returns the topic that the configuration names. For a repartition topic, this is the topic whose records are forwarded to it. For
    /// any other topic, it is the topic itself.
    pub(super) fn configured(&self, id: TopicId) -> TopicId {
        let forwards = |(_, topic): &(TopicId, &InputTopic)| topic.counted == self[id].counted && topic.forward.is_some();
        let configured = self.iter().find(forwards).map_or(id, |(configured, _)| configured);
        if fault::defect("repartition_topic_not_held_back") { id } else { configured }
    }

    pub(super) fn of_space(&self, space: SpaceId) -> impl Iterator<Item = (TopicId, &InputTopic)> {
        self.iter().filter(move |(_, topic)| topic.space == space)
    }

    /// Returns the first topic of a key space, for settings that all its topics share.
    pub(super) fn first_of(&self, space: SpaceId) -> &InputTopic {
        self.of_space(space).next().expect("every key space has a topic").1
    }
}

/// Groups spaces into units. Two spaces are in the same unit if an input uses both, or if a chain of other inputs and spaces connects them.
fn connect(topics: &mut [InputTopic]) {
    loop {
        let mut is_changed = false;
        for number in 0..topics.len() {
            let topic = &topics[number];
            let is_connected = |other: &&InputTopic| other.space == topic.space || topic.of_input[0] == other.of_input[0];
            let first = topics.iter().filter(is_connected).map(|other| other.unit).min().unwrap_or(topic.unit);
            is_changed |= first != topic.unit;
            topics[number].unit = first;
        }
        if !is_changed {
            return;
        }
    }
}

impl Index<TopicId> for Topics {
    type Output = InputTopic;

    fn index(&self, id: TopicId) -> &InputTopic {
        &self.all[id.0]
    }
}
