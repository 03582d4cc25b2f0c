//! What the worker knows of each topic that it reads.
//!
//! Owns what follows from the configuration and the cluster together. Must never depend on what was read.

use super::routes::Routes;
use super::{Shared, partition};
use crate::changelog::Origin;
use crate::checkpoint::{self, PartitionId};
use crate::config::Topic;
use crate::dedup::Rules;
use crate::filter::Spec;
use crate::key::Fingerprint;
use crate::stats;

/// A topic that is read, with what follows from the configuration and the cluster. Those that only bring records
/// to their partitions come after all others.
pub(super) struct Plan {
    pub(super) topic: Topic,
    /// Its space, by the first topic that is of it.
    pub(super) space: usize,
    pub(super) rules: Rules,
    /// Where its records are counted: the configured topic.
    pub(super) counted: usize,
    /// Where its bytes are: the topic that is really read.
    pub(super) read: usize,
    /// Keys that a partition's filter is made for.
    pub(super) capacity: u64,
    pub(super) settings: checkpoint::Settings,
    /// What the fingerprints in its changelog depend on.
    pub(super) origin: Origin,
    /// The topic of its changelog, if there is one.
    pub(super) log: Option<String>,
    /// Where records go to be judged, if not here.
    pub(super) forward: Option<Forward>,
    /// Whether it is a topic that records were brought to.
    pub(super) is_internal: bool,
    pub(super) routes: Routes,
}

impl Plan {
    /// Whose state it is, as the store calls it.
    pub(super) fn stored_as(&self, partition: i32) -> PartitionId {
        PartitionId { space: self.topic.space.clone(), partition }
    }
}

/// A topic whose partitions follow the key.
pub(super) struct Forward {
    pub(super) topic: String,
    pub(super) partitions: u32,
}

impl Forward {
    /// The partition that a key asks for.
    #[expect(clippy::cast_possible_truncation, reason = "below the number of partitions")]
    pub(super) fn partition(&self, fingerprint: Fingerprint) -> i32 {
        (fingerprint.0 % u128::from(self.partitions.max(1))) as i32
    }
}

/// All topics that are read.
pub(super) fn plans(shared: &Shared) -> Vec<Plan> {
    let config = &shared.config;
    let partitions = |topic: &str| shared.cluster.partitions.get(topic).copied().unwrap_or(1);
    let read = |input: &str| stats::topics(config).position(|(name, _)| name == input).unwrap_or(0);
    let plan = |(number, topic): (usize, &Topic)| {
        let settings = partition::settings(config, topic);
        let repartitioned = config.repartitioned(topic);
        let is_internal = repartitioned.is_some();
        let topic = Topic { input: repartitioned.unwrap_or_else(|| topic.input.clone()), ..topic.clone() };
        let rules = topic.rules(partitions(&topic.input));
        Plan {
            space: config.topics.iter().position(|other| other.space == topic.space).unwrap_or(number),
            rules,
            counted: number,
            read: read(&topic.input),
            capacity: rules.filter.map_or(0, Spec::capacity),
            origin: partition::origin(config, &topic, &settings, &rules),
            settings,
            log: config.changelog(&topic.space),
            forward: None,
            is_internal,
            routes: Routes::new(&topic, &shared.cluster),
            topic,
        }
    };
    let mut plans: Vec<_> = config.topics.iter().enumerate().map(plan).collect();
    for (number, topic) in config.topics.iter().enumerate() {
        let Some(name) = config.repartitioned(topic) else { continue };
        let forward = Some(Forward { partitions: partitions(&name), topic: name });
        let (space, routes) = (plans.len(), Routes::new(topic, &shared.cluster));
        let settings = plans[number].settings.clone();
        let (rules, origin) = (plans[number].rules, plans[number].origin);
        plans.push(Plan {
            topic: topic.clone(),
            space,
            rules,
            counted: number,
            read: read(&topic.input),
            capacity: 0,
            settings,
            origin,
            log: None,
            forward,
            is_internal: false,
            routes,
        });
    }
    plans
}
