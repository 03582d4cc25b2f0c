//! The state of a worker, reported once a second to whoever shows it.
//!
//! Owns what was counted since the last report. Must never hold up a record: what is asked here is known without asking
//! a broker.

use super::assignment::Assignment;
use super::ids::{CountsId, StateId};
use super::partition::{Input, PartitionState, Stall};
use super::topics::{InputTopic, Topics};
use crate::kafka::Source;
use crate::record::SpaceId;
use crate::stats::{InputReport, InputState, StateReport, Stats, Tally, WorkerReport};
use std::ops::{Index, IndexMut};
use std::time::{Duration, Instant};

/// Least time between two reports.
const INTERVAL: Duration = Duration::from_secs(1);

/// What was counted of each topic in [`Stats::topics`].
pub(super) struct Tallies(Vec<Tally>);

impl Index<CountsId> for Tallies {
    type Output = Tally;

    fn index(&self, id: CountsId) -> &Tally {
        &self.0[id.0]
    }
}

impl IndexMut<CountsId> for Tallies {
    fn index_mut(&mut self, id: CountsId) -> &mut Tally {
        &mut self.0[id.0]
    }
}

/// Reports how a worker stands.
pub(super) struct Reporter {
    /// Whether the group has said which partitions are this member's.
    pub(super) joined: bool,
    /// Why nothing can be committed, once that has been so for a while.
    pub(super) blocked: Option<String>,
    /// What was counted of each topic.
    pub(super) tallies: Tallies,
    next: Instant,
}

impl Reporter {
    pub(super) fn new(stats: &Stats) -> Self {
        Self { joined: false, blocked: None, tallies: Tallies(vec![Tally::default(); stats.topics.len()]), next: Instant::now() }
    }

    /// Something has changed that a person waits for: the next report comes at once.
    pub(super) fn hurry(&mut self) {
        self.next = Instant::now();
    }

    /// Adds what was counted to what all workers have counted.
    pub(super) fn count(&mut self, stats: &Stats) {
        self.tallies.0.iter_mut().zip(&stats.topics).for_each(|(tally, counts)| tally.report(counts));
    }

    /// Says how the worker `number` stands, if it is time.
    pub(super) fn report(&mut self, stats: &Stats, number: usize, topics: &Topics, assignment: &mut Assignment, source: &Source) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + INTERVAL;
        let inputs = input_reports(topics, assignment, source);
        let kept = assignment.states.iter_mut().map(|(id, state)| state_report(id.space, topics.first_of(id.space), state));
        let report = WorkerReport { joined: self.joined, blocked: self.blocked.clone(), states: kept.collect(), inputs };
        stats.report(number, report);
    }
}

fn input_reports(topics: &Topics, assignment: &Assignment, source: &Source) -> Vec<InputReport> {
    let stream_time = |id: StateId| assignment.states.get(&id).and_then(|state| state.dedup.stream_time());
    let read = assignment.inputs.values().map(|input: &Input| InputReport {
        partition: input.partition.clone(),
        space: topics[input.topic].space,
        state: match input {
            Input { awaits: Some(_), .. } => InputState::AwaitingSchema,
            Input { warming_up: true, .. } => InputState::WarmingUp,
            _ => InputState::Running,
        },
        position: input.position,
        committed: input.group.offset.unwrap_or(input.committed),
        end: source.end(&input.partition),
        stream_time: stream_time(input.state),
        open_transaction_since: input.stall.as_ref().and_then(Stall::open_transaction_since),
    });
    let waiting = assignment.paused().map(|found| InputReport {
        partition: found.partition.clone(),
        space: topics[found.topic].space,
        state: InputState::Rebuilding,
        position: found.paused_at(),
        committed: found.paused_at(),
        end: Some(found.high),
        stream_time: None,
        open_transaction_since: None,
    });
    read.chain(waiting).collect()
}

fn state_report(space: SpaceId, topic: &InputTopic, state: &mut PartitionState) -> StateReport {
    let (usage, estimated) = (state.dedup.usage(), state.estimate());
    StateReport {
        space,
        keys: usage.keys,
        bytes: usage.bytes,
        load: usage.load,
        peak: topic.peak,
        estimated,
        observed: state.dedup.observed(),
        stream_time: state.dedup.stream_time(),
        capacity: topic.capacity,
    }
}
