//! Publishes the state of a worker once per second for the status, the metrics, and the probes.
//!
//! Keeps the counts since the last report. Never delays a record: a report sends no request to a broker.

use super::assignment::Assignment;
use super::ids::CountsId;
use super::input::Input;
use super::partition::PartitionState;
use super::stall::Stall;
use super::topics::{InputTopic, Topics};
use super::{Shared, Worker};
use crate::broker::{Broker, Consumer};
use crate::fault;
use crate::record::{SpaceId, TopicPartition};
use crate::runtime;
use crate::stats::{InputReport, InputState, StateReport, Stats, Tally, TimesChange, WorkerReport};
use std::ops::{Index, IndexMut};
use std::time::{Duration, Instant};

/// The time between two reports, unless a change makes a report due earlier.
const INTERVAL: Duration = Duration::from_secs(1);

/// The counts per topic, indexed like [`Stats::topics`].
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

pub(super) struct Blocked {
    pub(super) reason: String,
    /// The partitions whose records are repeatedly aborted.
    pub(super) partitions: Vec<TopicPartition>,
}

pub(super) struct Reporter {
    /// True after an assignment, even if it was empty. False again after a revocation that leaves no partition, or after partitions were
    /// lost.
    pub(super) joined: bool,
    /// Set after several consecutive aborts. Cleared by a commit or by [`Reporter::unblock`].
    pub(super) blocked: Option<Blocked>,
    pub(super) tallies: Tallies,
    next: Instant,
}

impl Reporter {
    pub(super) fn new(stats: &Stats) -> Self {
        Self { joined: false, blocked: None, tallies: Tallies(vec![Tally::default(); stats.topics.len()]), next: runtime::now() }
    }

    /// Makes a report due immediately, because an operator may be waiting for the change.
    pub(super) fn make_due(&mut self) {
        self.next = runtime::now();
    }

    /// Adds this worker's counts to the totals of all workers and resets this worker's counts to 0.
    pub(super) fn count(&mut self, stats: &Stats) {
        self.tallies.0.iter_mut().zip(&stats.topics).for_each(|(tally, counts)| tally.report(counts));
    }

    /// Clears [`Reporter::blocked`] if no commit of this worker will clear it. This is the case if other members now own the partitions of
    /// the aborted records, or if these partitions are committed up to their high watermarks. Returns true if `blocked` was cleared.
    pub(super) fn unblock(&mut self, assignment: &Assignment, source: &impl Consumer) -> bool {
        let Some(blocked) = &self.blocked else { return false };
        let is_committed = |input: &Input| !input.is_ahead() && source.end(&input.partition).is_some_and(|end| input.position() >= end);
        let is_own = |partition| blocked.partitions.contains(partition);
        let mut inputs = assignment.inputs.values().filter(|input| is_own(&input.partition));
        if inputs.any(|input| !is_committed(input)) || assignment.paused().any(|assigned| is_own(&assigned.partition)) {
            return false;
        }
        self.blocked = None;
        self.make_due();
        true
    }

    /// Publishes the state of worker `number`. Does nothing and returns false if no report is due.
    pub(super) fn report<B: Broker>(
        &mut self,
        shared: &Shared<B>,
        number: usize,
        topics: &Topics,
        assignment: &mut Assignment,
        source: &B::Consumer,
    ) -> bool {
        if runtime::now() < self.next {
            return false;
        }
        self.next = runtime::now() + INTERVAL;
        let inputs = input_reports(topics, assignment, source);
        let kept = assignment.states.iter_mut().map(|(id, state)| state_report(id.space, topics.first_of(id.space), state));
        // The generation shows whether the session is alive. If a member has no partitions, its session may end without a rebalance.
        let joined = self.joined && source.generation().is_some();
        let blocked = self.blocked.as_ref().map(|blocked| blocked.reason.clone());
        let stats = &shared.stats;
        stats.report(number, WorkerReport { joined, blocked, states: kept.collect(), inputs });
        stats.check_times(&shared.config, runtime::wall_clock()).iter().for_each(log_times);
        true
    }
}

impl<B: Broker> Worker<B> {
    pub(super) fn report(&mut self, source: &B::Consumer) {
        if !self.writer.is_open() && self.reporter.unblock(&self.assignment, source) {
            self.writer.aborts = 0;
        }
        if !self.reporter.report(&self.shared, self.number, &self.topics, &mut self.assignment, source) {
            return;
        }
        for (topic, counts) in self.key_reader.take_content_counts() {
            let topic = &self.topics[topic];
            if let Some(warning) = self.shared.stats.topics[topic.counted.0].compared.add(counts) {
                tracing::warn!(topic = topic.config.input, "{warning}");
            }
        }
    }
}

fn log_times(TimesChange { topic, warning }: &TimesChange) {
    if let Some(warning) = warning {
        tracing::warn!(topic, "{warning}");
    } else {
        tracing::info!(topic, "record timestamps advance the window again");
    }
}

fn input_reports(topics: &Topics, assignment: &Assignment, source: &impl Consumer) -> Vec<InputReport> {
    // The states of an input with several rules may have different stream times, so the report contains the latest.
    let stream_time = |input: &Input| input.states().filter_map(|id| assignment.states.get(&id)?.dedup.stream_time()).max();
    let read = assignment.inputs.values().map(|input: &Input| InputReport {
        partition: input.partition.clone(),
        space: topics[input.topic].space,
        state: match input {
            Input { blocked_on_schema: Some(_), .. } => InputState::AwaitingSchema,
            _ if input.is_warm_up(input.position()) || input.is_warming_up() && fault::defect("idle_partition_warms_up") => {
                InputState::WarmingUp
            }
            _ => InputState::Running,
        },
        position: input.position(),
        committed: input.reported_committed(),
        end: source.end(&input.partition),
        stream_time: stream_time(input),
        open_transaction_since: input.stall.as_ref().and_then(Stall::open_transaction_since),
        unreadable_since: input.unreadable_since(),
    });
    let waiting = assignment.paused().map(|assigned| InputReport {
        partition: assigned.partition.clone(),
        space: topics[assigned.topic].space,
        state: InputState::Rebuilding,
        position: assigned.paused_at(),
        committed: assigned.paused_at(),
        end: Some(assigned.high),
        stream_time: None,
        open_transaction_since: None,
        unreadable_since: None,
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
        estimated,
        observed: state.dedup.observed(),
        stream_time: state.dedup.stream_time(),
        capacity: topic.capacity,
    }
}
