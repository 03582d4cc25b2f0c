//! Outages: unavailable or slow brokers, new leaders, and lagging followers.

use super::super::network::NodeId;
use super::super::{Micros, World, micros, millis};
use crate::record::{Offset, TopicPartition};

impl World {
    /// Makes a broker unavailable for `time`. If the outage outlasts a random failover delay and the cluster has other brokers, the next
    /// available broker becomes the leader of the broker's partitions and the coordinator of its groups and transactions.
    pub(in crate::sim) fn take_down(&mut self, node: NodeId, time: Micros) {
        self.trace("broker down", node, time / 1000);
        let until = self.now + time;
        let down_until = &mut self.cluster.nodes[node].down_until;
        *down_until = until.max(*down_until);
        let failover = millis(self.random.between(50, 6_000));
        if failover < time && self.cluster.nodes.len() > 1 {
            self.after(failover, move |world| world.fail_over(node));
        }
    }

    fn fail_over(&mut self, node: NodeId) {
        let next = self.cluster.up_after(node, self.now);
        let topics = self.cluster.topics.iter();
        let led: Vec<_> = topics
            .flat_map(|(topic, of)| {
                of.partitions.iter().zip(0..).filter(|(partition, _)| partition.leader == node).map(|(_, number)| (topic.clone(), number))
            })
            .collect();
        for (topic, partition) in led {
            let lag = if self.random.chance(3000) { self.random.below(20) } else { 0 };
            self.elect(&TopicPartition { topic, partition }, next, i64::try_from(lag).unwrap_or(0));
        }
        let groups: Vec<_> = self.cluster.groups.keys().filter(|group| self.cluster.coordinator(group) == node).cloned().collect();
        let moved = &mut self.cluster.transactions.moved;
        moved.values_mut().filter(|to| **to == node).for_each(|to| *to = next);
        moved.insert(node, next);
        for group in groups {
            self.load_group(&group);
        }
    }

    /// Moves each coordinator to the next available broker after its current broker.
    pub(in crate::sim) fn move_coordinators(&mut self) {
        for own in 0..self.cluster.nodes.len() {
            let at = self.cluster.transactions.moved.get(&own).copied().unwrap_or(own);
            let next = self.cluster.up_after(at, self.now);
            self.cluster.transactions.moved.insert(own, next);
        }
        for group in self.cluster.groups.keys().cloned().collect::<Vec<_>>() {
            self.load_group(&group);
        }
    }

    /// Leaves a partition without a leader for `time`.
    pub(in crate::sim) fn take_leader(&mut self, of: &TopicPartition, time: Micros) {
        let until = self.now + time;
        if let Ok(partition) = self.cluster.partition_mut(of) {
            partition.no_leader_until = until;
            let of = of.clone();
            self.after(time, move |world| world.log_changed(&of));
        }
    }

    /// Makes a broker the leader of a partition. If `lag` is not 0, the high watermark of the new leader is too low by at most `lag`
    /// offsets for up to 800 ms (KIP-207).
    pub(in crate::sim) fn elect(&mut self, of: &TopicPartition, leader: NodeId, lag: Offset) {
        let unsure = millis(self.random.between(1, 800));
        let now = self.now;
        let Ok(partition) = self.cluster.partition_mut(of) else { return };
        partition.leader = leader;
        partition.log.new_epoch();
        if lag > 0 {
            let log = &mut partition.log;
            log.high_watermark = (log.high_watermark - lag).max(log.start);
            partition.unsure_until = partition.unsure_until.max(now + unsure);
            partition.lags_until = partition.lags_until.max(now + unsure);
            let of = of.clone();
            self.after(unsure, move |world| world.appended(&of));
        }
    }

    pub(in crate::sim) fn elect_all(&mut self, lag: Offset) {
        for of in self.cluster.all_partitions() {
            let leader = (self.cluster.leader(&of) + 1) % self.cluster.nodes.len();
            self.elect(&of, leader, lag);
        }
    }

    /// Truncates a log at an offset, like an unclean election.
    pub(in crate::sim) fn truncate(&mut self, of: &TopicPartition, offset: Offset) {
        if let Ok(partition) = self.cluster.partition_mut(of) {
            partition.log.truncate(offset);
            self.trace_on("truncated", of, offset);
            self.log_changed(of);
        }
    }

    /// Schedules random outages until `Faults::outage_every` is `None`.
    pub(in crate::sim) fn schedule_outage(&mut self) {
        let Some(mean) = self.faults.outage_every.map(micros) else { return };
        let delay = self.random.between(mean / 10, mean * 2);
        self.after(delay, |world| {
            if world.faults.outage_every.is_some() {
                world.draw_outage();
                world.schedule_outage();
            }
        });
    }

    fn draw_outage(&mut self) {
        let longest = micros(self.faults.outage_for);
        // Most outages are short.
        let time = if self.random.chance(2500) { self.random.below(longest) } else { self.random.below(longest / 10 + 1) };
        let node = self.random.index(self.cluster.nodes.len());
        let partitions = self.cluster.all_partitions();
        let chosen = self.random.index(partitions.len());
        let partition = partitions.into_iter().nth(chosen);
        match (self.random.below(7), partition) {
            (0 | 1, _) => self.take_down(node, time),
            (2, _) => (0..self.cluster.nodes.len()).for_each(|node| self.take_down(node, time / 2)),
            (3, Some(of)) => {
                let lag = i64::try_from(self.random.below(10)).unwrap_or(0);
                self.trace_on("election", &of, lag);
                self.elect(&of, node, lag);
            }
            (4, Some(of)) => {
                self.trace_on("followers lag", &of, time / 10_000);
                self.lag(&of, time / 10);
            }
            (5, Some(of)) => {
                self.trace_on("no leader", &of, time / 1000);
                self.take_leader(&of, time);
            }
            _ => {
                self.trace("broker slow", node, time / 1000);
                self.cluster.nodes[node].slow_until = self.now + time;
            }
        }
    }
}
