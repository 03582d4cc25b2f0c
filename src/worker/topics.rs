//! What the worker knows of each topic that it reads.
//!
//! Owns what follows from the configuration and the cluster together. Must never depend on what was read.

use super::Shared;
use super::ids::CountsId;
use super::routes::Routes;
use crate::broker::Broker;
use crate::changelog::Origin;
use crate::checkpoint::{self, PartitionId};
use crate::config::Topic;
use crate::dedup::Rules;
use crate::fault;
use crate::key::{self, Fingerprint};
use crate::record::{SpaceId, TopicId};
use crate::stats;
use std::ops::Index;

/// A topic that is read, with what follows from the configuration and the cluster.
pub(super) struct InputTopic {
    /// What the configuration says, with the name of the topic that is really read.
    pub(super) config: Topic,
    /// Its key space. A topic whose records are only brought elsewhere has one of its own, of which nothing is remembered.
    pub(super) space: SpaceId,
    pub(super) rules: Rules,
    /// Where its records are counted: the configured topic.
    pub(super) counted: CountsId,
    /// Where its bytes are: the topic that is really read.
    pub(super) read: CountsId,
    /// Keys that a partition's filter is made for.
    pub(super) capacity: u64,
    pub(super) settings: checkpoint::Settings,
    /// What the fingerprints in its changelog depend on.
    pub(super) origin: Origin,
    /// The topic of its changelog, if there is one.
    pub(super) changelog: Option<String>,
    /// Where records go to be judged, if not here.
    pub(super) forward: Option<Forward>,
    /// Whether it is a topic that records were brought to.
    pub(super) is_internal: bool,
    pub(super) routes: Routes,
    /// Other topics of its space whose repeats are compared with what came out.
    pub(super) compared_beside: Vec<CountsId>,
}

impl InputTopic {
    /// Whether the content of what came out is kept for itself, or for another topic of its space.
    pub(super) const fn keeps_content(&self) -> bool {
        self.config.key_conflicts.is_some() || !self.compared_beside.is_empty()
    }

    /// Whose state it is, as the store calls it.
    pub(super) fn stored_as(&self, partition: i32) -> PartitionId {
        PartitionId { space: self.config.space.clone(), partition }
    }
}

/// A topic whose partitions follow the key.
pub(super) struct Forward {
    pub(super) topic: String,
    pub(super) partitions: u32,
}

impl Forward {
    /// The partition that a key asks for.
    pub(super) fn partition(&self, fingerprint: Fingerprint) -> i32 {
        key::partition(fingerprint, self.partitions).cast_signed()
    }
}

/// All topics that are read, by number. Those that only bring records to their partitions come after all others.
pub(super) struct Topics(Vec<InputTopic>);

impl Topics {
    pub(super) fn new<B: Broker>(shared: &Shared<B>) -> Self {
        let config = &shared.config;
        let partitions = |topic: &str| shared.cluster.partitions.get(topic).copied().unwrap_or(1);
        let read = |input: &str| CountsId(stats::topics(config).position(|(name, _)| name == input).unwrap_or(0));
        let judged = |(number, topic): (usize, &Topic)| {
            let settings = checkpoint::Settings::of(config, topic);
            let space = config.space_of(topic).id;
            let repartitioned = config.repartitioned(topic);
            let is_internal = repartitioned.is_some();
            let topic = Topic { input: repartitioned.unwrap_or_else(|| topic.input.clone()), ..topic.clone() };
            let rules = topic.rules(partitions(&topic.input));
            let is_beside =
                |&(other, beside): &(usize, &Topic)| other != number && beside.space == topic.space && beside.key_conflicts.is_some();
            let compared_beside = config.topics.iter().enumerate().filter(is_beside).map(|(other, _)| CountsId(other)).collect();
            InputTopic {
                space,
                rules,
                counted: CountsId(number),
                read: read(&topic.input),
                capacity: rules.capacity().unwrap_or(0),
                origin: settings.origin(config, &topic, &rules),
                settings,
                changelog: config.changelog(&topic.space),
                forward: None,
                is_internal,
                routes: Routes::new(&topic, &shared.cluster),
                compared_beside,
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
                rules: judged.rules,
                counted: CountsId(number),
                read: read(&topic.input),
                capacity: 0,
                settings: judged.settings.clone(),
                origin: judged.origin,
                changelog: None,
                forward: Some(Forward { partitions: partitions(&name), topic: name }),
                is_internal: false,
                routes: Routes::new(topic, &shared.cluster),
                compared_beside: Vec::new(),
            });
        }
        Self(topics)
    }

    /// All of them, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TopicId, &InputTopic)> {
        self.0.iter().enumerate().map(|(number, topic)| (TopicId(number), topic))
    }

    /// The number of the topic of that name.
    pub(super) fn find(&self, name: &str) -> Option<TopicId> {
        self.iter().find(|(_, topic)| topic.config.input == name).map(|(id, _)| id)
    }

    /// The topic of the configuration: for a repartition topic, the one whose records are in it.
    pub(super) fn configured(&self, id: TopicId) -> TopicId {
        let forwards = |(_, topic): &(TopicId, &InputTopic)| topic.counted == self[id].counted && topic.forward.is_some();
        let configured = self.iter().find(forwards).map_or(id, |(configured, _)| configured);
        if fault::defect("repartition_topic_not_held_back") { id } else { configured }
    }

    /// The topics of a key space.
    pub(super) fn of_space(&self, space: SpaceId) -> impl Iterator<Item = (TopicId, &InputTopic)> {
        self.iter().filter(move |(_, topic)| topic.space == space)
    }

    /// The topic that says for all of its key space what they agree on.
    pub(super) fn first_of(&self, space: SpaceId) -> &InputTopic {
        self.of_space(space).next().expect("a state is of a space that topics name").1
    }
}

impl Index<TopicId> for Topics {
    type Output = InputTopic;

    fn index(&self, id: TopicId) -> &InputTopic {
        &self.0[id.0]
    }
}
