//! Starts a group with `start = "latest"`: commits the end offsets of its topics as starting offsets and then lets the workers read their
//! partitions.
//!
//! Makes partitions wait until the starting offsets of their topic are committed. `restore/first.rs` decides which partitions wait.

use super::pending_restore::AssignedPartition;
use super::{Error, Flow, Worker};
use crate::broker::{Broker, Consumer as _};
use crate::record::{TopicId, TopicPartition};
use crate::runtime;
use std::collections::BTreeSet;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(200);

impl<B: Broker> Worker<B> {
    /// Commits starting offsets for topics whose partition 0 this worker owns. Restores the partitions of topics that have starting
    /// offsets.
    pub(super) fn begin_topics(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        let now = runtime::now();
        if self.assignment.unbegun.is_empty()
            || now < self.assignment.unbegun_due
            || self.writer.is_open()
            || self.assignment.is_replaying()
        {
            return Ok(Flow::Continue);
        }
        self.assignment.unbegun_due = now + INTERVAL;
        let unbegun = &self.assignment.unbegun;
        let is_own = |assigned: &&AssignedPartition| assigned.partition.partition == 0 && !self.topics[assigned.topic].is_internal;
        let own: BTreeSet<_> = unbegun.iter().filter(is_own).map(|assigned| assigned.topic).collect();
        let mut begun = BTreeSet::new();
        for topic in own {
            let partitions = self.input_partitions(topic);
            if self.retry_until_answered(|| source.committed(&partitions))?.iter().any(|committed| committed.offset.is_some()) {
                begun.insert(topic);
                continue;
            }
            let ends = partitions.iter().filter_map(|partition| self.assignment.ends.get_key_value(partition));
            let ends: Vec<_> = ends.map(|(partition, &end)| (partition.clone(), end)).collect();
            self.assignment.beginnings.extend(ends);
        }
        if !self.assignment.beginnings.is_empty() {
            let flow = self.commit_at_once(source)?;
            self.assignment.beginnings.clear();
            if let Flow::Rewound = flow {
                return Ok(Flow::Rewound);
            }
        }
        self.restore_begun(source, begun)?;
        Ok(Flow::Continue)
    }

    /// Restores the partitions of the topics in `begun` and of topics whose partition 0 has a committed offset.
    fn restore_begun(&mut self, source: &B::Consumer, mut begun: BTreeSet<TopicId>) -> Result<(), Error> {
        let configured = |assigned: &AssignedPartition| self.topics.configured(assigned.topic);
        let topics: BTreeSet<_> = self.assignment.unbegun.iter().map(configured).collect();
        let first = |&topic: &TopicId| TopicPartition { topic: self.topics[topic].config.input.clone(), partition: 0 };
        let firsts: Vec<_> = topics.iter().map(first).collect();
        let committed = self.retry_until_answered(|| source.committed(&firsts))?;
        begun.extend(topics.into_iter().zip(committed).filter(|(_, of)| of.offset.is_some()).map(|(topic, _)| topic));
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.assignment.unbegun).into_iter().partition(|assigned| begun.contains(&configured(assigned)));
        self.assignment.unbegun = waiting;
        if self.assignment.unbegun.is_empty() {
            self.assignment.ends.clear();
        }
        if ready.is_empty() {
            return Ok(());
        }
        let partitions: Vec<_> = ready.into_iter().map(|assigned| assigned.partition).collect();
        self.restore(source, &partitions)?;
        self.restart_fetching(source, &partitions)
    }
}
