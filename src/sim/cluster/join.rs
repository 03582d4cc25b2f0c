//! Rebalances: joins and assignments.

use super::super::World;
use super::super::network::Code;
use super::group::{Group, GroupState, JoinAnswer, JoinRequest, Joined, Member, MemberRef};
use crate::record::TopicPartition;
use std::collections::BTreeMap;

impl World {
    /// Handles a join (`classicGroupJoinToClassicGroup`).
    pub(in crate::sim) fn join_group(&mut self, name: &str, request: JoinRequest) -> Result<JoinAnswer, Code> {
        let new_id = self.cluster.new_id();
        let group = self.group(name);
        if group.members.values().any(|member| member.request.protocol != request.protocol) {
            return Err(Code::InconsistentProtocol);
        }
        if let Some(instance) = request.instance.clone() {
            return self.join_static(name, &instance, new_id, request);
        }
        if request.member_id.is_empty() {
            group.pending.insert(new_id.clone());
            let (name, id) = (name.to_owned(), new_id.clone());
            self.after(request.session, move |world| {
                world.group(&name).pending.remove(&id);
                world.try_complete_join(&name);
            });
            return Ok(JoinAnswer::IdRequired(new_id));
        }
        if group.pending.remove(&request.member_id) {
            return Ok(self.add_member(name, request));
        }
        if !group.members.contains_key(&request.member_id) {
            return Err(Code::UnknownMember);
        }
        Ok(self.rejoin(name, request))
    }

    fn join_static(&mut self, name: &str, instance: &str, new_id: String, mut request: JoinRequest) -> Result<JoinAnswer, Code> {
        let known = self.group(name).instances.get(instance).cloned();
        match known {
            Some(id) if request.member_id == id => Ok(self.rejoin(name, request)),
            Some(_) if !request.member_id.is_empty() => Err(Code::FencedInstance),
            Some(old) => {
                request.member_id = new_id;
                Ok(self.replace_static(name, &old, instance, request))
            }
            None if !request.member_id.is_empty() => Err(Code::UnknownMember),
            None => {
                request.member_id = new_id;
                self.group(name).instances.insert(instance.to_owned(), request.member_id.clone());
                Ok(self.add_member(name, request))
            }
        }
    }

    fn add_member(&mut self, name: &str, request: JoinRequest) -> JoinAnswer {
        let id = request.member_id.clone();
        let expires = self.now + request.session;
        let member = Member { request, is_joining: true, syncing: None, assignment: Vec::new(), expires };
        self.trace("member joined", 0, 0);
        self.group(name).members.insert(id.clone(), member);
        self.watch_session(name.to_owned(), id);
        self.rebalance_or_wait(name);
        JoinAnswer::Waits
    }

    /// Replaces a static member that joins without its member id. The member gets a new id, and the client with the old id is fenced
    /// (KIP-345, `updateStaticMemberThenRebalanceOrCompleteJoin`). A stable group does not rebalance.
    fn replace_static(&mut self, name: &str, old: &str, instance: &str, request: JoinRequest) -> JoinAnswer {
        let (now, id) = (self.now, request.member_id.clone());
        let group = self.group(name);
        let mut member = group.members.remove(old).expect("the instance id belongs to a member");
        let fenced = member.request.client;
        let waiting = member.syncing.take().or(member.is_joining.then_some(member.request.attempt));
        member.is_joining = false;
        member.expires = now + request.session;
        member.request = request;
        group.members.insert(id.clone(), member);
        group.instances.insert(instance.to_owned(), id.clone());
        let was_leader = group.leader.as_deref() == Some(old);
        if was_leader {
            group.leader = Some(id.clone());
        }
        let (state, generation) = (group.state, group.generation);
        self.trace("static member replaced", 0, 0);
        if let Some(attempt) = waiting {
            self.answer_join(fenced, attempt, Err(Code::FencedInstance));
        }
        self.watch_session(name.to_owned(), id.clone());
        if state == GroupState::Stable {
            self.group(name).store();
            // Even the leader receives no list of members, because it must not assign partitions (KIP-814).
            return JoinAnswer::Joined(Joined { generation, member_id: id, members: None });
        }
        self.set_joining(name, &id);
        if state == GroupState::CompletingRebalance {
            self.prepare_rebalance(name);
        } else {
            self.rebalance_or_wait(name);
        }
        JoinAnswer::Waits
    }

    fn set_joining(&mut self, name: &str, id: &str) {
        if let Some(member) = self.group(name).members.get_mut(id) {
            member.is_joining = true;
        }
    }

    fn rejoin(&mut self, name: &str, request: JoinRequest) -> JoinAnswer {
        let id = request.member_id.clone();
        let group = self.group(name);
        let is_leader = group.leader.as_ref() == Some(&id);
        let (state, generation) = (group.state, group.generation);
        let member = group.members.get_mut(&id).expect("the caller has found the member");
        let is_same = member.request.topics == request.topics && member.request.owned == request.owned;
        member.request = request;
        match state {
            // The member repeats its request, because the answer was lost.
            GroupState::CompletingRebalance if is_same => {
                let members = is_leader.then(|| members(self.group(name)));
                JoinAnswer::Joined(Joined { generation, member_id: id, members })
            }
            GroupState::Stable if is_same && !is_leader => JoinAnswer::Joined(Joined { generation, member_id: id, members: None }),
            _ => {
                member.is_joining = true;
                self.rebalance_or_wait(name);
                JoinAnswer::Waits
            }
        }
    }

    fn rebalance_or_wait(&mut self, name: &str) {
        if self.group(name).state == GroupState::PreparingRebalance {
            self.try_complete_join(name);
        } else {
            self.prepare_rebalance(name);
        }
    }

    /// Starts a rebalance. All members must rejoin (`prepareRebalance`).
    pub(super) fn prepare_rebalance(&mut self, name: &str) {
        let group = self.group(name);
        group.state = GroupState::PreparingRebalance;
        group.rebalance += 1;
        let rebalance = group.rebalance;
        let timeout = group.members.values().map(|member| member.request.rebalance_timeout).max().unwrap_or(0);
        let mut waiting = Vec::new();
        for member in group.members.values_mut() {
            waiting.extend(member.syncing.take().map(|attempt| (member.request.client, attempt)));
        }
        for (client, attempt) in waiting {
            self.answer_sync(client, attempt, Err(Code::RebalanceInProgress));
        }
        self.trace("rebalance", rebalance, 0);
        let name = name.to_owned();
        self.try_complete_join(&name);
        self.after(timeout, move |world| {
            let group = world.group(&name);
            if group.state == GroupState::PreparingRebalance && group.rebalance == rebalance {
                world.complete_join(&name);
            }
        });
    }

    /// Completes the join if all members have joined, and no client is about to join with a new member id.
    pub(super) fn try_complete_join(&mut self, name: &str) {
        let group = self.group(name);
        if group.state == GroupState::PreparingRebalance
            && group.pending.is_empty()
            && group.members.values().all(|member| member.is_joining)
        {
            self.complete_join(name);
        }
    }

    /// Starts a new generation with the members that have joined (`completeClassicGroupJoin`). Static members that have not joined stay in
    /// the group until their sessions expire.
    fn complete_join(&mut self, name: &str) {
        let now = self.now;
        let group = self.group(name);
        let gone: Vec<_> = group
            .members
            .iter()
            .filter(|(_, member)| !member.is_joining && member.request.instance.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        for id in &gone {
            group.remove(id);
        }
        group.generation += 1;
        if group.members.is_empty() {
            group.state = GroupState::Empty;
            group.store();
            return;
        }
        if !group.leader.as_ref().and_then(|leader| group.members.get(leader)).is_some_and(|leader| leader.is_joining) {
            group.leader = group.members.iter().find(|(_, member)| member.is_joining).map(|(id, _)| id.clone());
        }
        group.state = GroupState::CompletingRebalance;
        let (generation, leader, rebalance) = (group.generation, group.leader.clone(), group.rebalance);
        let all = members(group);
        let mut answers = Vec::new();
        for (id, member) in &mut group.members {
            member.expires = now + member.request.session;
            if std::mem::take(&mut member.is_joining) {
                let members = (leader.as_ref() == Some(id)).then(|| all.clone());
                let joined = Joined { generation, member_id: id.clone(), members };
                answers.push((member.request.client, member.request.attempt, joined));
            }
        }
        let timeout = group.members.values().map(|member| member.request.rebalance_timeout).max().unwrap_or(0);
        self.trace("generation", generation, answers.len());
        for (client, attempt, joined) in answers {
            self.answer_join(client, attempt, Ok(joined));
        }
        let name = name.to_owned();
        self.after(timeout, move |world| {
            let group = world.group(&name);
            if group.state == GroupState::CompletingRebalance && group.rebalance == rebalance {
                world.prepare_rebalance(&name);
            }
        });
    }

    /// Handles a member's request for its assignment. The leader's request contains the assignments (`classicGroupSync`). Returns `None` if
    /// `answer_sync` sends the answer instead, once the leader's assignments have arrived or another rebalance starts.
    pub(in crate::sim) fn sync_group(
        &mut self,
        name: &str,
        of: &MemberRef,
        attempt: u64,
        assignments: Option<BTreeMap<String, Vec<TopicPartition>>>,
    ) -> Result<Option<Vec<TopicPartition>>, Code> {
        self.group(name).validate(of)?;
        self.touch(name, &of.id);
        let group = self.group(name);
        let member = group.members.get_mut(&of.id).expect("the member was validated");
        match group.state {
            GroupState::Empty => Err(Code::UnknownMember),
            GroupState::PreparingRebalance => Err(Code::RebalanceInProgress),
            GroupState::Stable => Ok(Some(member.assignment.clone())),
            GroupState::CompletingRebalance => {
                member.syncing = Some(attempt);
                let Some(mut assignments) = assignments.filter(|_| group.leader.as_ref() == Some(&of.id)) else { return Ok(None) };
                group.state = GroupState::Stable;
                let mut answers = Vec::new();
                for (id, member) in &mut group.members {
                    member.assignment = assignments.remove(id).unwrap_or_default();
                    if let Some(attempt) = member.syncing.take() {
                        answers.push((member.request.client, attempt, member.assignment.clone()));
                    }
                }
                group.store();
                self.trace("stable", answers.len(), 0);
                for (client, attempt, assignment) in answers {
                    self.answer_sync(client, attempt, Ok(assignment));
                }
                Ok(None)
            }
        }
    }
}

fn members(group: &Group) -> Vec<(String, JoinRequest)> {
    group.members.iter().map(|(id, member)| (id.clone(), member.request.clone())).collect()
}
