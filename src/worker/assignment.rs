//! The partitions assigned to a worker, with their progress and dedup state.
//!
//! Keeps the inputs, the states, and the partitions that wait for a state. Never talks to a broker.

use super::ids::{InputId, StateId, UnitId};
use super::input::Input;
use super::partition::{Announced, PartitionState};
use super::pending_restore::{AssignedPartition, PendingRestore};
use super::rebuild_job::Rebuilt;
use super::topics::Topics;
use crate::broker::{Committed, Note};
use crate::checkpoint::Claim;
use crate::record::{Offset, TopicPartition, log_id};
use crate::runtime;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

pub(super) struct Assignment {
    pub(super) inputs: BTreeMap<InputId, Input>,
    pub(super) states: BTreeMap<StateId, PartitionState>,
    /// The claim of each state on its checkpoint. Within the process, only the newest claim on a checkpoint can save it.
    pub(super) claims: BTreeMap<StateId, Claim>,
    /// States that must be restored, because another worker of this process has claimed their checkpoint although a later commit has shown
    /// that this worker is still the owner.
    pub(super) superseded: BTreeSet<StateId>,
    pub(super) pending_restores: BTreeMap<UnitId, PendingRestore>,
    pub(super) rebuilt: (Sender<Rebuilt>, Receiver<Rebuilt>),
    /// Partitions that are paused because the group has not committed starting offsets for their topic yet.
    pub(super) unbegun: Vec<AssignedPartition>,
    /// The time of the next check for the starting offsets of the topics in `unbegun`.
    pub(super) unbegun_due: Instant,
    /// For each topic in `unbegun` whose partition 0 this worker owns: the end offsets of all partitions at the time of the assignment.
    pub(super) ends: BTreeMap<TopicPartition, Offset>,
    /// The starting offsets that this worker is committing, including offsets for partitions of other members. Empty at all other times.
    pub(super) beginnings: BTreeMap<TopicPartition, Offset>,
    /// True if a unit with several inputs may be warming up. If false, no input has to wait for the warm-up of another input.
    pub(super) any_warm_up: bool,
    pub(super) any_blocked_on_schema: bool,
    /// True if records without a verdict must wait for the next commit. This can happen during a replay and after the worker has passed
    /// over the rest of a batch.
    pub(super) holds_new_records: bool,
    /// The last epoch of the checkpoint store that the worker has seen. A different epoch shows that the store has been quarantined.
    pub(super) store_epoch: u64,
}

pub(super) fn inputs_of<'w>(topics: &'w Topics, inputs: &'w BTreeMap<InputId, Input>, state: StateId) -> impl Iterator<Item = &'w Input> {
    topics
        .of_space(state.space)
        .filter_map(move |(rule, _)| inputs.get(&topics.input_of(InputId { topic: rule, partition: state.partition })))
}

impl Assignment {
    pub(super) fn new(store_epoch: u64) -> Self {
        Self {
            inputs: BTreeMap::new(),
            states: BTreeMap::new(),
            claims: BTreeMap::new(),
            superseded: BTreeSet::new(),
            pending_restores: BTreeMap::new(),
            rebuilt: channel(),
            unbegun: Vec::new(),
            unbegun_due: runtime::now(),
            ends: BTreeMap::new(),
            beginnings: BTreeMap::new(),
            any_warm_up: false,
            any_blocked_on_schema: false,
            holds_new_records: false,
            store_epoch,
        }
    }

    /// Returns the partitions that are paused until their state is rebuilt or until the group starts to read their topic.
    pub(super) fn paused(&self) -> impl Iterator<Item = &AssignedPartition> {
        self.pending_restores.values().flat_map(|waiting| &waiting.assigned).chain(&self.unbegun)
    }

    /// Returns the position of each assigned partition, including the paused partitions.
    pub(super) fn positions(&self) -> Vec<(TopicPartition, Offset)> {
        let read = self.inputs.values().map(|input| (input.partition.clone(), input.position()));
        read.chain(self.paused().map(|assigned| (assigned.partition.clone(), assigned.paused_at()))).collect()
    }

    pub(super) fn partitions(&self, are: impl Fn(&Input) -> bool) -> Vec<TopicPartition> {
        self.inputs.values().filter(|input| are(input)).map(|input| input.partition.clone()).collect()
    }

    /// Returns the inputs among the given partitions and all other inputs of their units, because the inputs of a unit must be restored
    /// together.
    pub(super) fn with_shared_state(&self, topics: &Topics, partitions: &[TopicPartition]) -> Vec<TopicPartition> {
        let units: BTreeSet<_> =
            self.inputs.iter().filter(|(_, input)| partitions.contains(&input.partition)).map(|(&id, _)| topics.unit_of(id)).collect();
        let of_units = self.inputs.iter().filter(|(id, _)| units.contains(&topics.unit_of(**id)));
        of_units.map(|(_, input)| input.partition.clone()).collect()
    }

    /// True if the open transaction still lacks records of an aborted transaction. A single transaction must commit all records of the
    /// aborted transaction. Otherwise, the changelog, if there is one, would lose the order of the verdicts, and the committed stream time
    /// could be later than the times of all committed records. Ignores an input whose next record ends the worker, because its replay
    /// cannot continue.
    pub(super) fn is_replaying(&self) -> bool {
        self.inputs.values().any(|input| !input.ends_worker && !input.replay_complete())
    }

    /// True if the state is incomplete until the warm-up of one of its inputs has finished.
    pub(super) fn warms_up(&self, topics: &Topics, state: StateId) -> bool {
        inputs_of(topics, &self.inputs, state).any(|input| input.warms_up(state))
    }

    pub(super) fn warming(&self, topics: &Topics) -> BTreeSet<UnitId> {
        let warming = self.inputs.iter().filter(|(_, input)| input.is_warm_up(input.position()));
        warming.map(|(&id, _)| topics.unit_of(id)).collect()
    }

    /// True if a changelog needs an announcement that no other commit has written. This is the case if the new owner has logged nothing for
    /// `timeout`, or if the changelog does not show yet that a warm-up has ended.
    pub(super) fn must_announce(&self, topics: &Topics, timeout: Duration) -> bool {
        self.states.iter().any(|(&id, state)| match state.announced {
            Announced::Nothing { since } => runtime::since(since) >= timeout,
            announced => announced != Announced::Complete && announced.is_behind(self.warms_up(topics, id)),
        })
    }

    /// True if another input of the same unit is warming up.
    pub(super) fn others_warm_up(&self, topics: &Topics, of: InputId) -> bool {
        let others = topics.inputs_of_unit(topics.unit_of(of)).filter(|&other| other != of);
        others.filter_map(|other| self.inputs.get(&other)).any(|input| input.is_warm_up(input.position()))
    }

    /// Drops partitions and the states that no remaining input uses.
    pub(super) fn forget(&mut self, partitions: &[TopicPartition]) {
        self.inputs.retain(|_, input| !partitions.contains(&input.partition));
        self.pending_restores
            .values_mut()
            .for_each(|waiting| waiting.assigned.retain(|assigned| !partitions.contains(&assigned.partition)));
        self.pending_restores.retain(|_, waiting| !waiting.assigned.is_empty());
        self.unbegun.retain(|assigned| !partitions.contains(&assigned.partition));
        let used: BTreeSet<_> = self.inputs.values().flat_map(Input::states).collect();
        self.states.retain(|id, _| used.contains(id));
    }

    /// Drops all partitions and states, because other members may already own the partitions.
    pub(super) fn clear(&mut self) {
        self.inputs.clear();
        self.states.clear();
        self.pending_restores.clear();
        self.unbegun.clear();
    }

    /// Returns the offsets to commit, with their metadata. Partitions that advanced come first, because [`Assignment::committed`] relies on
    /// that order. If a partition has not advanced but its changelog gets a record, its current offset is committed again, because the
    /// brokers check the worker's group membership only when the worker commits offsets. For a partition without a committed offset, the
    /// starting offset is committed.
    pub(super) fn offsets(&self, topics: &Topics) -> Vec<(TopicPartition, Offset, String)> {
        let ahead = self.inputs.values().filter(|input| input.is_ahead()).map(|input| self.reached(topics, input));
        let announces = |input: &Input| self.states_of(input).any(|(_, state)| state.announced != Announced::Complete);
        let is_noted = |input: &&Input| !input.is_ahead() && (input.has_unlogged() || input.group().offset.is_none() || announces(input));
        let unmoved = self.inputs.values().filter(is_noted).map(Self::unmoved);
        let begun_at = |offset| Note { first: Some(offset), ..Note::default() }.to_string();
        // Partition 0 of a topic comes last, because its offset tells other members that all partitions are committed. The order matters
        // without transactions, where the requests of a commit take effect one after the other.
        let beginnings = self.beginnings.iter().rev().map(|(partition, &offset)| (partition.clone(), offset, begun_at(offset)));
        ahead.chain(unmoved).chain(beginnings).collect()
    }

    /// Returns the states of an input that are already restored.
    fn states_of(&self, input: &Input) -> impl Iterator<Item = (StateId, &PartitionState)> {
        input.states().filter_map(|id| Some((id, self.states.get(&id)?)))
    }

    /// Returns the position of an input as an offset to commit, with its metadata.
    fn reached(&self, topics: &Topics, input: &Input) -> (TopicPartition, Offset, String) {
        // While a replay is incomplete, stream time may come from a record that is not in this transaction yet. The metadata then leaves
        // stream time out, because the next owner must not start with a stream time that no committed record has reached.
        let is_whole = |state: StateId| inputs_of(topics, &self.inputs, state).all(Input::replay_complete);
        let times = self.states_of(input).map(|(id, state)| (id, state.dedup.stream_time().filter(|_| is_whole(id))));
        let id = log_id(&input.topic_incarnation).map(str::to_owned);
        let epoch = self.states_of(input).map(|(_, state)| state.epoch).max();
        let note = Note { first: input.group_start(), id, epoch, ..topics.note_of_times(input.topic, times) };
        (input.partition.clone(), input.position(), note.to_string())
    }

    /// Returns the offsets to commit for inputs whose uncommitted records were all forwarded to a repartition topic. Leaves out an input
    /// with other uncommitted records, because these records may have failed together with a rejected record of the same batch.
    pub(super) fn forwarded(&self, topics: &Topics) -> Vec<(TopicPartition, Offset, String)> {
        let is_forwarded = |input: &&Input| input.is_ahead() && topics[input.topic].forward.is_some() && input.verdicts().is_empty();
        self.inputs.values().filter(is_forwarded).map(|input| self.reached(topics, input)).collect()
    }

    pub(super) fn note_forwarded(&mut self, offsets: Vec<(TopicPartition, Offset, String)>) {
        for (partition, _, note) in offsets {
            self.inputs.values_mut().filter(|input| input.partition == partition).for_each(|input| input.note_commit(note.clone()));
        }
    }

    /// Returns the committed or starting offset of each partition with a state that this worker has not announced in the changelog yet.
    pub(super) fn unannounced(&self) -> Vec<(TopicPartition, Offset, String)> {
        let is_new = |input: &&Input| self.states_of(input).any(|(_, state)| matches!(state.announced, Announced::Nothing { .. }));
        self.inputs.values().filter(is_new).map(Self::unmoved).collect()
    }

    /// Returns the committed offset of an input with the metadata to commit. If no offset is committed, returns the starting offset
    /// instead.
    fn unmoved(input: &Input) -> (TopicPartition, Offset, String) {
        let Committed { offset, metadata } = input.group();
        (input.partition.clone(), offset.unwrap_or_else(|| input.beginning()), metadata.clone())
    }

    pub(super) fn committed(&mut self, offsets: Vec<(TopicPartition, Offset, String)>) {
        self.inputs.values_mut().for_each(Input::note_beginning);
        for (input, (_, _, note)) in self.inputs.values_mut().filter(|input| input.is_ahead()).zip(offsets) {
            input.note_commit(note);
        }
    }

    /// Updates the changelog progress of the states. `written` are the offsets of the changelog records that the brokers have accepted.
    /// Drops the pending changes that these records contain. Returns false if a changelog was recreated.
    pub(super) fn logged(&mut self, topics: &Topics, mut written: BTreeMap<TopicPartition, Vec<Offset>>) -> bool {
        let mut are_same = true;
        for (&id, state) in &mut self.states {
            let Some(changelog) = &topics.first_of(id.space).changelog else { continue };
            let inputs = || inputs_of(topics, &self.inputs, id);
            let read: Vec<_> = inputs().map(|input| (input.topic, input.position())).collect();
            state.pending.committed(&read);
            if let Some(written) = written.remove(&TopicPartition { topic: changelog.clone(), partition: id.partition }) {
                are_same &= state.logged(&written);
                let warms_up = inputs().any(|input| input.logs_warm_up(id));
                state.announced = if warms_up { Announced::WarmUp } else { Announced::Complete };
            }
        }
        self.inputs.values_mut().for_each(Input::note_logged);
        are_same
    }
}
