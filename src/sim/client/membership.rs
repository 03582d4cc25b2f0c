//! Membership in a group: joins, heartbeats, and rebalances that the application has not answered yet (`rdkafka_cgrp.c`).

use super::super::cluster::{JoinAnswer, JoinRequest, Joined, MemberRef};
use super::super::faults::Api;
use super::super::network::{Code, NodeId};
use super::super::{ClientId, Micros, Signal, World, millis};
use super::Client;
use super::assignor;
use super::fetcher::Fetcher;
use crate::broker::Rebalance;
use crate::record::TopicPartition;
use std::collections::VecDeque;

/// The time that librdkafka adds to `max.poll.interval.ms` for the timeout of a `JoinGroup` request, and to `session.timeout.ms` for the
/// timeout of a `SyncGroup` request.
const GRACE: Micros = millis(3000);

/// The state of a member in a rebalance (`rkcg_join_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinState {
    /// Not subscribed or waiting before the next join.
    Idle,
    Joining,
    Syncing,
    /// An assignment awaits the application's answer (`WAIT_ASSIGN_CALL`).
    WaitsForAssign,
    /// A revocation awaits the application's answer (`WAIT_UNASSIGN_CALL`).
    WaitsForUnassign,
    Steady,
}

#[expect(clippy::struct_excessive_bools, reason = "librdkafka keeps them as flags that do not depend on each other")]
pub(in crate::sim) struct ConsumerState {
    pub(super) process: usize,
    pub(super) signal: Signal,
    pub(super) fetcher: Fetcher,
    pub(super) group: String,
    pub(super) instance: Option<String>,
    /// True for `range`. False for `cooperative-sticky`.
    pub(super) is_eager: bool,
    pub(super) topics: Vec<String>,
    pub(super) session: Micros,
    pub(super) heartbeat: Micros,
    pub(in crate::sim) max_poll: Micros,
    pub(super) member_id: String,
    pub(super) generation: i32,
    pub(super) state: JoinState,
    /// The number of the last join. Answers to earlier joins are ignored.
    attempt: u64,
    /// The assigned partitions (`rkcg_group_assignment`).
    pub(super) assignment: Option<Vec<TopicPartition>>,
    pub(super) rebalances: VecDeque<Rebalance>,
    /// Partitions to assign after a revocation (`rkcg_rebalance_incr_assignment`).
    pub(super) then_assign: Option<Vec<TopicPartition>>,
    pub(super) then_rejoin: bool,
    pub(super) is_lost: bool,
    /// True if another member has joined with the same `group.instance.id`. The consumer can no longer be used.
    pub(super) is_fenced: bool,
    /// The end of the session as far as the client knows.
    session_ends: Option<Micros>,
    pub(super) last_poll: Micros,
    /// True if the application has exceeded `max.poll.interval.ms`. The consumer does not rejoin before the next poll.
    has_exceeded_max_poll: bool,
    counts: Vec<usize>,
}

impl ConsumerState {
    pub(super) fn new(process: usize, signal: Signal, group: &str, instance: Option<String>, is_eager: bool, reports_ends: bool) -> Self {
        Self {
            process,
            signal,
            fetcher: Fetcher::new(reports_ends),
            group: group.to_owned(),
            instance,
            is_eager,
            topics: Vec::new(),
            session: millis(10_000),
            heartbeat: millis(2000),
            max_poll: millis(300_000),
            member_id: String::new(),
            generation: -1,
            state: JoinState::Idle,
            attempt: 0,
            assignment: None,
            rebalances: VecDeque::new(),
            then_assign: None,
            then_rejoin: false,
            is_lost: false,
            is_fenced: false,
            session_ends: None,
            last_poll: 0,
            has_exceeded_max_poll: false,
            counts: Vec::new(),
        }
    }

    pub(super) fn member(&self) -> MemberRef {
        MemberRef { id: self.member_id.clone(), instance: self.instance.clone(), generation: self.generation }
    }

    /// The member's identity, or `None` if its id or generation is unknown. A commit of offsets in a transaction requires the id and the
    /// generation, because brokers do not check a request that has neither an id nor a generation.
    pub(super) fn membership(&self) -> Option<MemberRef> {
        (self.generation >= 0 && !self.member_id.is_empty()).then(|| self.member())
    }

    /// True if the application has not polled for longer than `max.poll.interval.ms` (`rd_kafka_max_poll_exceeded`).
    const fn exceeds_max_poll(&self, now: Micros) -> bool {
        now.saturating_sub(self.last_poll) > self.max_poll
    }

    /// Queues a rebalance for the application. In the cooperative protocol, the assignment changes immediately, not when the application
    /// answers (`rd_kafka_rebalance_op_incr`).
    fn push(&mut self, rebalance: Rebalance) {
        if !self.is_eager {
            let held = self.assignment.get_or_insert_default();
            match &rebalance {
                Rebalance::Assigned(added) => held.extend(added.iter().cloned()),
                Rebalance::Revoked { partitions, .. } => held.retain(|partition| !partitions.contains(partition)),
            }
        }
        self.then_rejoin = false;
        self.state = match rebalance {
            Rebalance::Assigned(_) => JoinState::WaitsForAssign,
            Rebalance::Revoked { .. } => JoinState::WaitsForUnassign,
        };
        self.rebalances.push_back(rebalance);
    }
}

impl World {
    fn group_coordinator(&self, client: ClientId) -> NodeId {
        match self.clients.get(&client) {
            Some(Client::Consumer(consumer)) => self.cluster.coordinator(&consumer.group),
            _ => 0,
        }
    }

    /// Joins or rejoins the group (`rd_kafka_cgrp_join`). If the application has exceeded `max.poll.interval.ms`, waits for its next poll.
    pub(super) fn join(&mut self, client: ClientId) {
        let (now, counts) = (self.now, self.topic_counts(client));
        let node = self.group_coordinator(client);
        let Some(consumer) = self.consumer(client).filter(|consumer| !consumer.is_fenced) else { return };
        if consumer.has_exceeded_max_poll && consumer.exceeds_max_poll(now) {
            consumer.state = JoinState::Idle;
            return self.join_later(client, millis(100));
        }
        consumer.has_exceeded_max_poll = false;
        consumer.state = JoinState::Joining;
        consumer.attempt += 1;
        consumer.counts = counts;
        let (attempt, group, timeout) = (consumer.attempt, consumer.group.clone(), consumer.max_poll + GRACE);
        let request = JoinRequest {
            client,
            attempt,
            member_id: consumer.member_id.clone(),
            instance: consumer.instance.clone(),
            protocol: if consumer.is_eager { "range" } else { "cooperative-sticky" },
            topics: consumer.topics.clone(),
            owned: if consumer.is_eager { Vec::new() } else { consumer.assignment.clone().unwrap_or_default() },
            session: consumer.session,
            rebalance_timeout: consumer.max_poll,
        };
        self.give_up_after(timeout, client, attempt, JoinState::Joining);
        self.request(
            client,
            (Api::JoinGroup, node),
            move |world| world.join_group(&group, request),
            move |world, answer| match answer {
                Ok(JoinAnswer::Waits) => {}
                Ok(JoinAnswer::Joined(joined)) => world.joined(client, attempt, Ok(joined)),
                Ok(JoinAnswer::IdRequired(id)) => {
                    if let Some(consumer) = world.consumer(client).filter(|consumer| consumer.attempt == attempt) {
                        consumer.member_id = id;
                        world.rejoin_without_id(client);
                    }
                }
                Err(code) => world.joined(client, attempt, Err(code)),
            },
        );
    }

    /// Schedules the timeout of a request that the coordinator may never answer (`rd_kafka_JoinGroupRequest`, `rd_kafka_SyncGroupRequest`).
    fn give_up_after(&mut self, timeout: Micros, client: ClientId, attempt: u64, state: JoinState) {
        self.inside_after(timeout, client, move |world| {
            if world.consumer(client).is_some_and(|consumer| (consumer.attempt, consumer.state) == (attempt, state)) {
                world.failed_to_join(client, &Code::TimedOut);
            }
        });
    }

    /// Sends the coordinator's delayed answer to a `JoinGroup` request.
    pub(in crate::sim) fn answer_join(&mut self, client: ClientId, attempt: u64, answer: Result<Joined, Code>) {
        let node = self.group_coordinator(client);
        let answer = if self.random.chance(self.faults.lost_answer) { Err(Code::Transport) } else { answer };
        self.answer_later(client, node, move |world| world.joined(client, attempt, answer));
    }

    /// Sends the coordinator's delayed answer to a `SyncGroup` request.
    pub(in crate::sim) fn answer_sync(&mut self, client: ClientId, attempt: u64, answer: Result<Vec<TopicPartition>, Code>) {
        let node = self.group_coordinator(client);
        let answer = if self.random.chance(self.faults.lost_answer) { Err(Code::Transport) } else { answer };
        self.answer_later(client, node, move |world| world.synced(client, attempt, answer));
    }

    fn joined(&mut self, client: ClientId, attempt: u64, answer: Result<Joined, Code>) {
        let now = self.now;
        let Some(consumer) = self.consumer(client) else { return };
        if consumer.attempt != attempt || consumer.state != JoinState::Joining {
            return;
        }
        let joined = match answer {
            Ok(joined) => joined,
            Err(code) => return self.failed_to_join(client, &code),
        };
        consumer.session_ends = Some(now + consumer.session);
        (consumer.generation, consumer.member_id) = (joined.generation, joined.member_id);
        consumer.state = JoinState::Syncing;
        let (member, group, timeout) = (consumer.member(), consumer.group.clone(), consumer.session + GRACE);
        let topics = &self.cluster.topics;
        let count = |topic: &str| topics.get(topic).map_or(0, |topic| topic.partitions.len());
        let assignments = joined.members.map(|members| assignor::assign(&members, count));
        self.give_up_after(timeout, client, attempt, JoinState::Syncing);
        let node = self.group_coordinator(client);
        let serve = move |world: &mut Self| world.sync_group(&group, &member, attempt, assignments);
        self.request(client, (Api::SyncGroup, node), serve, move |world, answer| match answer {
            Ok(None) => {}
            Ok(Some(assignment)) => world.synced(client, attempt, Ok(assignment)),
            Err(code) => world.synced(client, attempt, Err(code)),
        });
    }

    fn failed_to_join(&mut self, client: ClientId, code: &Code) {
        let delay = millis(self.random.between(100, 1000));
        let Some(consumer) = self.consumer(client) else { return };
        let was_syncing = consumer.state == JoinState::Syncing;
        consumer.state = JoinState::Idle;
        match code {
            Code::FencedInstance => return self.fence(client),
            // A member that the group does not know rejoins without an id. With the cooperative protocol, the member may still hold
            // partitions. It loses them when the coordinator assigns a new id (`rejoin_without_id`).
            Code::UnknownMember => consumer.member_id.clear(),
            Code::IllegalGeneration => consumer.generation = -1,
            _ => {}
        }
        if *code == Code::IllegalGeneration || was_syncing && *code == Code::UnknownMember {
            return self.rejoin_without_id(client);
        }
        self.join_later(client, delay);
    }

    /// Joins after a delay, unless another join starts earlier.
    fn join_later(&mut self, client: ClientId, delay: Micros) {
        let Some(attempt) = self.consumer(client).map(|consumer| consumer.attempt) else { return };
        self.inside_after(delay, client, move |world| {
            if world.consumer(client).is_some_and(|consumer| consumer.state == JoinState::Idle && consumer.attempt == attempt) {
                world.join(client);
            }
        });
    }

    /// Rejoins after the coordinator has assigned a new member id or has rejected the member or its generation. In the cooperative
    /// protocol, the member first loses the partitions that it kept (`rd_kafka_cgrp_handle_JoinGroup`, `rd_kafka_cgrp_handle_SyncGroup`).
    fn rejoin_without_id(&mut self, client: ClientId) {
        let Some(consumer) = self.consumer(client) else { return };
        if consumer.is_eager {
            return self.join(client);
        }
        consumer.state = JoinState::Steady;
        self.revoke_all(client, true);
    }

    fn fence(&mut self, client: ClientId) {
        self.trace("consumer fenced", client, 0);
        if let Some(consumer) = self.consumer(client) {
            consumer.is_fenced = true;
            let signal = consumer.signal;
            self.notify(signal);
        }
    }

    fn synced(&mut self, client: ClientId, attempt: u64, answer: Result<Vec<TopicPartition>, Code>) {
        let now = self.now;
        let Some(consumer) = self.consumer(client) else { return };
        if consumer.attempt != attempt || consumer.state != JoinState::Syncing {
            return;
        }
        let assignment = match answer {
            Ok(assignment) => assignment,
            Err(code) => return self.failed_to_join(client, &code),
        };
        consumer.session_ends = Some(now + consumer.session);
        if consumer.is_eager {
            consumer.assignment = Some(assignment.clone());
            consumer.push(Rebalance::Assigned(assignment));
        } else {
            // Revocations come first, and new partitions afterward (`rd_kafka_cgrp_handle_assignment_cooperative`).
            let held = consumer.assignment.get_or_insert_default();
            let added: Vec<_> = assignment.iter().filter(|partition| !held.contains(partition)).cloned().collect();
            let revoked: Vec<_> = held.iter().filter(|partition| !assignment.contains(partition)).cloned().collect();
            if revoked.is_empty() {
                consumer.push(Rebalance::Assigned(added));
            } else {
                consumer.then_assign = Some(added);
                consumer.push(Rebalance::Revoked { partitions: revoked, lost: false });
            }
        }
        let (signal, generation) = (consumer.signal, consumer.generation);
        self.trace("assignment", client, generation);
        self.notify(signal);
    }

    /// Handles an assign call of the application. The call does not answer a pending revocation, but the partitions no longer count as lost
    /// (`rd_kafka_cgrp_incremental_assign`, `rd_kafka_cgrp_assign`).
    pub(super) fn answered_assign(&mut self, client: ClientId) {
        let Some(consumer) = self.consumer(client) else { return };
        consumer.is_lost = false;
        if consumer.state != JoinState::WaitsForAssign {
            return;
        }
        if std::mem::take(&mut consumer.then_rejoin) {
            self.join(client);
        } else {
            consumer.state = JoinState::Steady;
        }
    }

    /// Handles an unassign call of the application. The call answers a pending revocation, if there is one
    /// (`rd_kafka_cgrp_incremental_unassign`, `rd_kafka_cgrp_unassign`).
    pub(super) fn answered_unassign(&mut self, client: ClientId) {
        let Some(consumer) = self.consumer(client) else { return };
        consumer.is_lost = false;
        if consumer.state != JoinState::WaitsForUnassign {
            return;
        }
        if consumer.is_eager {
            consumer.assignment = None;
        }
        match consumer.then_assign.take() {
            Some(added) => {
                // The member must rejoin, because only its next join shows the other members which partitions it has released.
                consumer.push(Rebalance::Assigned(added));
                consumer.then_rejoin = true;
                let signal = consumer.signal;
                self.notify(signal);
            }
            None => self.join(client),
        }
    }

    /// Handles the application's calls to restart partitions while a rebalance awaits an answer. In the cooperative protocol, the unassign
    /// call answers a revocation and the assign call answers an assignment (`rd_kafka_cgrp_incremental_unassign`,
    /// `rd_kafka_cgrp_incremental_assign`), although the application has not taken the rebalance from the queue yet.
    pub(super) fn answered_by_restart(&mut self, client: ClientId) {
        for _ in 0..=self.random.below(2) {
            match self.consumer(client).map(|consumer| consumer.state) {
                Some(JoinState::WaitsForAssign) => self.answered_assign(client),
                Some(JoinState::WaitsForUnassign) => self.answered_unassign(client),
                _ => return,
            }
        }
    }

    /// Handles a rebalance of the group or, if `lost` is true, the loss of the membership (`rd_kafka_cgrp_revoke_all_rejoin_maybe`). The
    /// eager protocol revokes all partitions before the member rejoins. The cooperative protocol revokes them only if they are lost. Does
    /// nothing unless the member's state is `Steady`.
    fn revoke_all(&mut self, client: ClientId, lost: bool) {
        let Some(consumer) = self.consumer(client).filter(|consumer| consumer.state == JoinState::Steady) else { return };
        let signal = consumer.signal;
        match consumer.assignment.clone() {
            Some(partitions) if consumer.is_eager || lost && !partitions.is_empty() => {
                consumer.is_lost = lost;
                consumer.push(Rebalance::Revoked { partitions, lost });
                self.trace("revoked", client, i64::from(lost));
                self.notify(signal);
            }
            _ => self.join(client),
        }
    }

    pub(super) fn start_heartbeats(&mut self, client: ClientId) {
        let Some(interval) = self.consumer(client).map(|consumer| consumer.heartbeat) else { return };
        self.inside_after(interval, client, move |world| {
            world.beat(client);
            world.start_heartbeats(client);
        });
    }

    fn topic_counts(&self, client: ClientId) -> Vec<usize> {
        let Some(Client::Consumer(consumer)) = self.clients.get(&client) else { return Vec::new() };
        consumer.topics.iter().map(|topic| self.cluster.topics.get(topic).map_or(0, |topic| topic.partitions.len())).collect()
    }

    fn beat(&mut self, client: ClientId) {
        let (now, node, counts) = (self.now, self.group_coordinator(client), self.topic_counts(client));
        let refreshes = self.random.chance(3000);
        let Some(consumer) = self.consumer(client) else { return };
        if consumer.is_fenced || !matches!(consumer.state, JoinState::WaitsForAssign | JoinState::WaitsForUnassign | JoinState::Steady) {
            return;
        }
        if consumer.session_ends.is_some_and(|ends| ends <= now) {
            // The client sends heartbeats without an id until the application answers (`rd_kafka_cgrp_session_timeout_check`, librdkafka
            // issue 3437).
            consumer.session_ends = None;
            consumer.member_id.clear();
            self.trace("session timed out", client, 0);
            return self.revoke_all(client, true);
        }
        if !consumer.has_exceeded_max_poll && consumer.exceeds_max_poll(now) {
            return self.exceed_max_poll(client);
        }
        if refreshes && consumer.state == JoinState::Steady && consumer.counts != counts {
            // The partition count of a topic has changed (`rd_kafka_cgrp_metadata_update_check`).
            consumer.counts = counts;
            return self.revoke_all(client, false);
        }
        let (member, group) = (consumer.member(), consumer.group.clone());
        let attempt = consumer.attempt;
        self.request(
            client,
            (Api::Heartbeat, node),
            move |world| world.heartbeat(&group, &member),
            move |world, answer| {
                let now = world.now;
                let Some(consumer) = world.consumer(client).filter(|consumer| consumer.attempt == attempt) else { return };
                match answer {
                    Ok(()) => consumer.session_ends = Some(now + consumer.session),
                    Err(Code::RebalanceInProgress) => {
                        consumer.session_ends = Some(now + consumer.session);
                        world.revoke_all(client, false);
                    }
                    Err(Code::UnknownMember) => {
                        consumer.member_id.clear();
                        world.revoke_all(client, true);
                    }
                    Err(Code::IllegalGeneration) => {
                        consumer.generation = -1;
                        world.revoke_all(client, true);
                    }
                    Err(Code::FencedInstance) => world.fence(client),
                    Err(_) => {}
                }
            },
        );
    }

    /// Handles an exceeded poll interval (`rd_kafka_cgrp_max_poll_interval_check_tmr_cb`). A static member does not leave the group.
    fn exceed_max_poll(&mut self, client: ClientId) {
        if self.consumer(client).is_some_and(|consumer| consumer.instance.is_none()) {
            self.send_leave(client);
        }
        let Some(consumer) = self.consumer(client) else { return };
        consumer.has_exceeded_max_poll = true;
        consumer.member_id.clear();
        self.trace("max.poll.interval.ms exceeded", client, 0);
        self.revoke_all(client, true);
    }

    pub(super) fn send_leave(&mut self, client: ClientId) {
        let node = self.group_coordinator(client);
        let Some(consumer) = self.consumer(client) else { return };
        let (group, id) = (consumer.group.clone(), consumer.member_id.clone());
        let serve = move |world: &mut Self| {
            world.leave_group(&group, &id);
            Ok(())
        };
        self.request(client, (Api::LeaveGroup, node), serve, |_, _| {});
    }
}
