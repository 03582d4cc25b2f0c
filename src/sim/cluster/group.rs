//! The group coordinator's view of a group: members, generations, and sessions (`GroupMetadataManager`, classic protocol).

use super::super::network::Code;
use super::super::{ClientId, Micros, World, millis};
use super::log::Pid;
use crate::record::{Offset, TopicPartition};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sim) enum GroupState {
    #[default]
    Empty,
    PreparingRebalance,
    CompletingRebalance,
    Stable,
}

#[derive(Clone, Debug)]
pub(in crate::sim) struct JoinRequest {
    pub(in crate::sim) client: ClientId,
    /// The number of the client's join attempt. Answers to earlier attempts are ignored.
    pub(in crate::sim) attempt: u64,
    pub(in crate::sim) member_id: String,
    pub(in crate::sim) instance: Option<String>,
    pub(in crate::sim) protocol: &'static str,
    pub(in crate::sim) topics: Vec<String>,
    /// The partitions that the member owns, for the cooperative protocol.
    pub(in crate::sim) owned: Vec<TopicPartition>,
    pub(in crate::sim) session: Micros,
    pub(in crate::sim) rebalance_timeout: Micros,
}

#[derive(Clone, Debug)]
pub(in crate::sim) struct Joined {
    pub(in crate::sim) generation: i32,
    pub(in crate::sim) member_id: String,
    /// The join requests of all members, by member id, if this member is the leader and must assign partitions.
    pub(in crate::sim) members: Option<Vec<(String, JoinRequest)>>,
}

#[derive(Clone, Debug)]
pub(in crate::sim) enum JoinAnswer {
    /// The answer comes later: when the other members have joined, or when the rebalance times out.
    Waits,
    /// The member must join again with this id (KIP-394).
    IdRequired(String),
    Joined(Joined),
}

/// The identity that a member sends with its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRef {
    pub(in crate::sim) id: String,
    pub(in crate::sim) instance: Option<String>,
    pub(in crate::sim) generation: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) struct CommittedOffset {
    pub(in crate::sim) offset: Offset,
    pub(in crate::sim) metadata: String,
}

/// A former coordinator that was frozen while another broker took over. Until the former coordinator learns that it was replaced, it
/// answers `OffsetFetch` with the offsets in its memory (`OffsetMetadataManager.fetchOffsets`).
pub(in crate::sim) struct FormerCoordinator {
    pub(in crate::sim) offsets: BTreeMap<TopicPartition, CommittedOffset>,
    pub(in crate::sim) pending_offsets: BTreeMap<Pid, BTreeMap<TopicPartition, CommittedOffset>>,
    pub(in crate::sim) times: std::ops::Range<Micros>,
}

/// A group as its coordinator last wrote it to `__consumer_offsets` (`GroupMetadataValue`). Does not contain the committed offsets.
#[derive(Default)]
struct StoredGroup {
    generation: i32,
    leader: Option<String>,
    members: Vec<(JoinRequest, Vec<TopicPartition>)>,
}

pub(super) struct Member {
    pub(super) request: JoinRequest,
    /// True while the member's `JoinGroup` request waits for the other members.
    pub(super) is_joining: bool,
    /// The attempt whose `SyncGroup` request waits for the leader's assignment, if any.
    pub(super) syncing: Option<u64>,
    pub(super) assignment: Vec<TopicPartition>,
    pub(super) expires: Micros,
}

#[derive(Default)]
pub(in crate::sim) struct Group {
    pub(in crate::sim) state: GroupState,
    pub(in crate::sim) generation: i32,
    pub(super) members: BTreeMap<String, Member>,
    /// Member ids by instance id (`group.instance.id`).
    pub(super) instances: BTreeMap<String, String>,
    /// Member ids that the coordinator has assigned, but that no client has joined with yet.
    pub(super) pending: BTreeSet<String>,
    pub(super) leader: Option<String>,
    /// The state that a new coordinator loads.
    stored: StoredGroup,
    pub(in crate::sim) former: Option<FormerCoordinator>,
    /// The number of the last rebalance. Timeouts of earlier rebalances are ignored.
    pub(super) rebalance: u64,
    pub(in crate::sim) offsets: BTreeMap<TopicPartition, CommittedOffset>,
    /// The offsets of transactions whose marker has not been written yet, by producer id.
    pub(in crate::sim) pending_offsets: BTreeMap<Pid, BTreeMap<TopicPartition, CommittedOffset>>,
}

impl Group {
    /// Checks the identity and the generation of a member (`ClassicGroup.validateMember`).
    pub(super) fn validate(&self, member: &MemberRef) -> Result<(), Code> {
        if let Some(instance) = &member.instance {
            match self.instances.get(instance) {
                None => return Err(Code::UnknownMember),
                Some(id) if *id != member.id => return Err(Code::FencedInstance),
                Some(_) => {}
            }
        }
        if !self.members.contains_key(&member.id) {
            return Err(Code::UnknownMember);
        }
        if member.generation == self.generation { Ok(()) } else { Err(Code::IllegalGeneration) }
    }

    /// Writes the group to `__consumer_offsets`. The coordinator writes the group when the leader's assignments have arrived, when a static
    /// member of a stable group was replaced, and when a rebalance ends without members.
    pub(super) fn store(&mut self) {
        let members = self.members.values().map(|member| (member.request.clone(), member.assignment.clone())).collect();
        self.stored = StoredGroup { generation: self.generation, leader: self.leader.clone(), members };
    }

    pub(in crate::sim) fn member_ids(&self) -> Vec<String> {
        self.members.keys().cloned().collect()
    }

    pub(super) fn remove(&mut self, id: &str) {
        if let Some(member) = self.members.remove(id)
            && let Some(instance) = member.request.instance
            && self.instances.get(&instance).is_some_and(|own| own == id)
        {
            self.instances.remove(&instance);
        }
        if self.leader.as_deref() == Some(id) {
            self.leader = None;
        }
    }
}

impl World {
    pub(super) fn group(&mut self, name: &str) -> &mut Group {
        self.cluster.groups.entry(name.to_owned()).or_default()
    }

    /// Makes a new coordinator load the group. The new coordinator knows only the stored state (`GroupMetadataManager.replay` and
    /// `onLoaded`), so no rebalance is in progress, and all sessions start over. Requests that wait at the former coordinator fail
    /// (`GroupMetadataManager.onUnloaded`).
    pub(in crate::sim) fn load_group(&mut self, name: &str) {
        let now = self.now;
        let group = self.group(name);
        let mut waiting = Vec::new();
        for Member { request, is_joining, syncing, .. } in group.members.values() {
            waiting.extend(is_joining.then_some((request.client, request.attempt, true)));
            waiting.extend(syncing.map(|attempt| (request.client, attempt, false)));
        }
        group.pending.clear();
        group.rebalance += 1;
        (group.generation, group.leader) = (group.stored.generation, group.stored.leader.clone());
        let stored = group.stored.members.iter().map(|(request, assignment)| {
            let expires = now + request.session;
            let member = Member { request: request.clone(), is_joining: false, syncing: None, assignment: assignment.clone(), expires };
            (request.member_id.clone(), member)
        });
        group.members = stored.collect();
        let instances = group.members.iter().filter_map(|(id, member)| Some((member.request.instance.clone()?, id.clone())));
        group.instances = instances.collect();
        group.state = if group.members.is_empty() { GroupState::Empty } else { GroupState::Stable };
        let (ids, generation) = (group.member_ids(), group.generation);
        self.trace("group loaded", generation, ids.len());
        for (client, attempt, joins) in waiting {
            if joins {
                self.answer_join(client, attempt, Err(Code::NotCoordinator));
            } else {
                self.answer_sync(client, attempt, Err(Code::NotCoordinator));
            }
        }
        for id in ids {
            self.watch_session(name.to_owned(), id);
        }
    }

    /// Handles a heartbeat (`classicGroupHeartbeat`).
    pub(in crate::sim) fn heartbeat(&mut self, name: &str, of: &MemberRef) -> Result<(), Code> {
        self.group(name).validate(of)?;
        self.touch(name, &of.id);
        if self.group(name).state == GroupState::PreparingRebalance { Err(Code::RebalanceInProgress) } else { Ok(()) }
    }

    /// Handles a `LeaveGroup` request (`classicGroupLeave`).
    pub(in crate::sim) fn leave_group(&mut self, name: &str, id: &str) {
        let group = self.group(name);
        group.pending.remove(id);
        if group.members.contains_key(id) {
            group.remove(id);
            self.trace("member left", 0, 0);
            self.members_changed(name);
        }
    }

    pub(super) fn touch(&mut self, name: &str, id: &str) {
        let now = self.now;
        if let Some(member) = self.group(name).members.get_mut(id) {
            member.expires = now + member.request.session;
        }
    }

    /// Schedules the end of a member's session (`rescheduleClassicGroupMemberHeartbeat`).
    pub(super) fn watch_session(&mut self, name: String, id: String) {
        let Some(member) = self.group(&name).members.get(&id) else { return };
        let left = member.expires.saturating_sub(self.now).max(millis(1));
        self.after(left, move |world| {
            let now = world.now;
            let is_down = world.cluster.is_down(world.cluster.coordinator(&name), now);
            let Some(member) = world.group(&name).members.get_mut(&id) else { return };
            // A member with a waiting request is alive (`hasHeartbeat` and `isAwaitingJoin`). While the coordinator is down, no session
            // expires, because the next coordinator restarts all sessions when it loads the group (`GroupMetadataManager.onLoaded`).
            if member.is_joining || member.syncing.is_some() || is_down {
                member.expires = now + member.request.session;
            }
            if member.expires <= now {
                world.group(&name).remove(&id);
                world.trace("session expired", 0, 0);
                world.members_changed(&name);
            } else {
                world.watch_session(name, id);
            }
        });
    }

    /// Rebalances the group, because a member is gone (`removeMemberAndUpdateClassicGroup`).
    fn members_changed(&mut self, name: &str) {
        match self.group(name).state {
            GroupState::Stable | GroupState::CompletingRebalance => self.prepare_rebalance(name),
            GroupState::PreparingRebalance => self.try_complete_join(name),
            GroupState::Empty => {}
        }
    }
}
