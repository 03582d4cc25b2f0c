//! The partitions that a worker has: how far each is read, and what is remembered of them.
//!
//! Owns inputs, states, and the partitions that wait for a state. Must never talk to a broker.

use super::ids::{InputId, StateId};
use super::input::Input;
use super::partition::{Announced, PartitionState};
use super::rebuild_job::Rebuilt;
use super::topics::Topics;
use super::waiting::{Found, Waiting};
use crate::broker::Note;
use crate::record::{Offset, TopicPartition, log_id};
use crate::runtime;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// The partitions that a worker has.
pub(super) struct Assignment {
    pub(super) inputs: BTreeMap<InputId, Input>,
    pub(super) states: BTreeMap<StateId, PartitionState>,
    /// States that are not there yet.
    pub(super) waiting: BTreeMap<StateId, Waiting>,
    pub(super) rebuilt: (Sender<Rebuilt>, Receiver<Rebuilt>),
    /// Partitions of topics that the group has not begun with.
    pub(super) unbegun: Vec<Found>,
    /// When to ask for them again.
    pub(super) unbegun_due: Instant,
    /// The ends of all partitions of these topics, as they were when this worker got partition 0.
    pub(super) ends: BTreeMap<TopicPartition, Offset>,
    /// Where the group begins, in partitions of any member, while that is being committed.
    pub(super) beginnings: BTreeMap<TopicPartition, Offset>,
    /// Whether any topic warms up that shares its state.
    pub(super) warming: bool,
    /// Whether any partition waits for a schema.
    pub(super) awaiting: bool,
    /// True if the transaction is full, or a warm-up has as many keys to be logged as it may, while records that the transaction
    /// must carry are still to come. All other records wait for those.
    pub(super) holding: bool,
    /// The store's epoch when the states in it were last known to be there.
    pub(super) store_epoch: u64,
}

/// The topics' partitions that use a state.
pub(super) fn inputs_of<'w>(topics: &'w Topics, inputs: &'w BTreeMap<InputId, Input>, state: StateId) -> impl Iterator<Item = &'w Input> {
    topics.of_space(state.space).filter_map(move |(topic, _)| inputs.get(&InputId { topic, partition: state.partition }))
}

impl Assignment {
    /// Nothing is assigned yet.
    pub(super) fn new(store_epoch: u64) -> Self {
        Self {
            inputs: BTreeMap::new(),
            states: BTreeMap::new(),
            waiting: BTreeMap::new(),
            rebuilt: channel(),
            unbegun: Vec::new(),
            unbegun_due: runtime::now(),
            ends: BTreeMap::new(),
            beginnings: BTreeMap::new(),
            warming: false,
            awaiting: false,
            holding: false,
            store_epoch,
        }
    }

    /// The partitions that are paused until their state is there.
    pub(super) fn paused(&self) -> impl Iterator<Item = &Found> {
        self.waiting.values().flat_map(|waiting| &waiting.found).chain(&self.unbegun)
    }

    /// Where each partition stands.
    pub(super) fn positions(&self) -> Vec<(TopicPartition, Offset)> {
        let read = self.inputs.values().map(|input| (input.partition.clone(), input.position));
        read.chain(self.paused().map(|found| (found.partition.clone(), found.paused_at()))).collect()
    }

    /// The partitions of the inputs that are so.
    pub(super) fn partitions(&self, are: impl Fn(&Input) -> bool) -> Vec<TopicPartition> {
        self.inputs.values().filter(|input| are(input)).map(|input| input.partition.clone()).collect()
    }

    /// The partitions that share a state with one of these.
    pub(super) fn with_shared_state(&self, partitions: &[TopicPartition]) -> Vec<TopicPartition> {
        let states: BTreeSet<_> =
            self.inputs.values().filter(|input| partitions.contains(&input.partition)).map(|input| input.state).collect();
        self.partitions(|input| states.contains(&input.state))
    }

    /// Whether records are decided that the open transaction does not carry yet, for the one before was aborted. Only
    /// together are they committed: so the changelog has them in the order in which they were decided, and stream time
    /// is that of what is committed.
    pub(super) fn must_repeat(&self) -> bool {
        self.inputs.values().any(|input| !input.ends_worker && !input.verdicts.is_all_carried())
    }

    /// Whether any topic of a state is still warming up.
    pub(super) fn warms_up(&self, topics: &Topics, state: StateId) -> bool {
        inputs_of(topics, &self.inputs, state).any(|input| input.is_warm_up(input.position))
    }

    /// True if a changelog needs a record that no other commit has written: its new owner has logged nothing for `patience`, or the
    /// end of a warm-up is not logged.
    pub(super) fn must_announce(&self, topics: &Topics, patience: Duration) -> bool {
        self.states.iter().any(|(&id, state)| match state.announced {
            Announced::Nothing { since } => runtime::since(since) >= patience,
            announced => announced != Announced::Complete && announced.is_behind(self.warms_up(topics, id)),
        })
    }

    /// Whether topics that share the state of this one still warm up.
    pub(super) fn others_warm_up(&self, topics: &Topics, of: InputId) -> bool {
        let Some(state) = self.inputs.get(&of).map(|input| input.state) else { return false };
        inputs_of(topics, &self.inputs, state).any(|input| input.topic != of.topic && input.is_warm_up(input.position))
    }

    /// Drops the state of partitions that are another member's now.
    pub(super) fn forget(&mut self, partitions: &[TopicPartition]) {
        self.inputs.retain(|_, input| !partitions.contains(&input.partition));
        self.waiting.values_mut().for_each(|waiting| waiting.found.retain(|found| !partitions.contains(&found.partition)));
        self.waiting.retain(|_, waiting| !waiting.found.is_empty());
        self.unbegun.retain(|found| !partitions.contains(&found.partition));
        let used: BTreeSet<_> = self.inputs.values().map(|input| input.state).collect();
        self.states.retain(|id, _| used.contains(id));
    }

    /// Drops everything: all partitions are another member's now.
    pub(super) fn clear(&mut self) {
        self.inputs.clear();
        self.states.clear();
        self.waiting.clear();
        self.unbegun.clear();
    }

    /// Returns the offsets to commit, each with its note: first those of partitions that were read further. Changelog records of
    /// other partitions go with the offsets that the group has already, because the group takes offsets from its members only.
    pub(super) fn offsets(&self, topics: &Topics) -> Vec<(TopicPartition, Offset, String)> {
        let ahead = self.inputs.values().filter(|input| input.is_ahead()).map(|input| {
            // What is decided past a refused record must not move time for whoever goes on from here.
            let is_whole = inputs_of(topics, &self.inputs, input.state).all(|input| input.verdicts.is_all_carried());
            let state = self.states.get(&input.state);
            let stream_time = state.filter(|_| is_whole).and_then(|state| state.dedup.stream_time());
            let (id, epoch) = (log_id(&input.log).map(str::to_owned), state.map(|state| state.epoch));
            let note = Note { first: input.first, stream_time, id, epoch, is_seed: false };
            (input.partition.clone(), input.position, note.to_string())
        });
        let announces = |input: &Input| self.states.get(&input.state).is_some_and(|state| state.announced != Announced::Complete);
        let is_noted =
            |input: &&Input| !input.is_ahead() && (input.position > input.logged || input.group.offset.is_none() || announces(input));
        let unmoved = self.inputs.values().filter(is_noted);
        let unmoved = unmoved
            .map(|input| (input.partition.clone(), input.group.offset.unwrap_or_else(|| input.beginning()), input.group.metadata.clone()));
        let begun_at = |offset| Note { first: Some(offset), ..Note::default() }.to_string();
        // Partition 0 of a topic comes last: others take its offset as the sign that all are committed, and without
        // transactions, the requests of one commit take effect one after the other.
        let beginnings = self.beginnings.iter().rev().map(|(partition, &offset)| (partition.clone(), offset, begun_at(offset)));
        ahead.chain(unmoved).chain(beginnings).collect()
    }

    /// The committed offsets of the partitions whose owner has not announced itself in their changelog.
    pub(super) fn unannounced(&self) -> Vec<(TopicPartition, Offset, String)> {
        let is_new =
            |input: &&Input| self.states.get(&input.state).is_some_and(|state| matches!(state.announced, Announced::Nothing { .. }));
        let committed = |input: &Input| input.group.offset.map(|offset| (input.partition.clone(), offset, input.group.metadata.clone()));
        self.inputs.values().filter(is_new).filter_map(committed).collect()
    }

    /// These offsets, as [`Assignment::offsets`] gave them, are committed.
    pub(super) fn committed(&mut self, offsets: Vec<(TopicPartition, Offset, String)>) {
        for input in self.inputs.values_mut().filter(|input| !input.is_ahead() && input.group.offset.is_none()) {
            input.group.offset = Some(input.beginning());
        }
        for (input, (_, _, note)) in self.inputs.values_mut().filter(|input| input.is_ahead()).zip(offsets) {
            input.note_commit(note);
        }
    }

    /// What was written to the changelogs is committed; `written` has the offsets of its records. Returns false if a changelog
    /// was recreated.
    pub(super) fn logged(&mut self, topics: &Topics, mut written: BTreeMap<TopicPartition, Vec<Offset>>) -> bool {
        let mut are_same = true;
        for (&id, state) in &mut self.states {
            let Some(changelog) = &topics.first_of(id.space).changelog else { continue };
            let inputs = || inputs_of(topics, &self.inputs, id);
            let read: Vec<_> = inputs().map(|input| (input.topic, input.position)).collect();
            state.pending.committed(&read);
            if let Some(written) = written.remove(&TopicPartition { topic: changelog.clone(), partition: id.partition }) {
                are_same &= state.logged(&written);
                let warms_up = inputs().any(Input::logs_warm_up);
                state.announced = if warms_up { Announced::WarmUp } else { Announced::Complete };
            }
        }
        self.inputs.values_mut().for_each(|input| input.logged = input.logged.max(input.position));
        are_same
    }
}
