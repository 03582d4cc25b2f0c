//! Faults of a cluster of three brokers. A broker fault begins only after the cluster has recovered from the previous one, so at most one
//! replica of a partition is out of sync.

use super::plan::Ailment;
use super::stage::Stage;
use crate::harness::{delete_topics, elect_first_replicas, move_leaders};
use std::time::{Duration, Instant};

impl Stage<'_> {
    /// Begins a fault of one broker. The plan continues during the fault. The fault ends after `time`, or earlier if a later step needs all
    /// brokers or no steps are left.
    pub fn begin_ailment(&mut self, ailment: Ailment, number: usize, time: Duration) {
        self.wait_until_whole();
        let Some(broker) = &mut self.broker else { return };
        self.broker_failed = true;
        match ailment {
            Ailment::Killed => broker.take_down(number),
            Ailment::Paused => broker.pause_one(number),
            Ailment::Slow => broker.slow_down(number),
        }
        self.ailment_ends = Some(Instant::now() + time);
    }

    pub fn tend_brokers(&mut self) {
        if self.ailment_ends.is_some_and(|end| Instant::now() >= end) {
            self.end_ailment();
        }
    }

    fn end_ailment(&mut self) {
        if self.ailment_ends.take().is_some() {
            self.story.tell("the broker recovers");
            self.broker.iter_mut().for_each(|broker| broker.repair());
        }
    }

    pub fn wait_until_whole(&mut self) {
        self.end_ailment();
        if self.conditions.brokers > 1 {
            self.wait("all replicas are in sync", |stage| stage.broker.as_mut().is_none_or(|broker| broker.is_whole()));
            self.story.tell("all replicas are in sync");
        }
    }

    pub fn roll_brokers(&mut self) {
        self.broker_failed = true;
        for at in 0..self.conditions.brokers {
            self.wait_until_whole();
            self.broker.iter_mut().for_each(|broker| broker.restart(at));
        }
        self.wait_until_whole();
    }

    /// Moves all leaders, and with them the coordinators of groups and transactions.
    pub fn move_leaders(&mut self) {
        self.wait_until_whole();
        let address = self.stream.broker.clone();
        self.wait("the order of the replicas changes", |_| move_leaders(&address));
        self.wait("leaders move", |_| elect_first_replicas(&address));
        self.story.tell("all leaders have moved");
    }

    /// On a cluster, checks that every topic, including the topics that the workers created, has one replica per broker. Then deletes the
    /// topics of the plan, to keep the cluster small for the next plan.
    pub fn delete_topics(&mut self) {
        let replicas = self.conditions.brokers;
        if replicas > 1 {
            self.wait("every topic has all replicas", |stage| {
                stage.broker.as_ref().and_then(|broker| broker.fewest_replicas()) == Some(replicas)
            });
            delete_topics(&self.stream.broker, &format!("chaos-{}-", self.conditions.seed));
        }
    }
}
