//! How a worker stands, told once a second to whoever shows it.
//!
//! Must never hold up a record: what is asked here is known without asking a broker.

use super::partition::{Input, PartitionState};
use super::{StateId, Worker};
use crate::kafka::Source;
use crate::stats::{InputReport, InputState, StateReport, WorkerReport};
use std::time::{Duration, Instant};

/// Least time between two reports.
const INTERVAL: Duration = Duration::from_secs(1);

impl Worker {
    /// Says how it stands, if it is time, or at once after something has changed that a person waits for.
    pub(super) fn report(&mut self, source: &Source) {
        if Instant::now() < self.next_report {
            return;
        }
        self.next_report = Instant::now() + INTERVAL;
        let states = self.states.iter_mut().map(|(&(space, _), state)| memory_report(space, self.topics[space].capacity, state));
        let blocked = self.blocked.clone();
        let report = WorkerReport { joined: self.joined, blocked, states: states.collect(), inputs: self.input_reports(source) };
        self.shared.stats.report(self.number, report);
    }

    fn input_reports(&self, source: &Source) -> Vec<InputReport> {
        let stream_time = |id: StateId| self.states.get(&id).and_then(|state| state.dedup.stream_time());
        let read = self.inputs.values().map(|input: &Input| InputReport {
            partition: input.partition.clone(),
            space: self.topics[input.topic].space,
            state: if input.warming_up { InputState::WarmingUp } else { InputState::Running },
            position: input.position,
            committed: input.group.offset.unwrap_or(input.committed),
            end: source.end(&input.partition),
            stream_time: stream_time(input.state),
        });
        let waiting = self.parked().map(|found| InputReport {
            partition: found.partition.clone(),
            space: self.topics[found.topic].space,
            state: InputState::Rebuilding,
            position: found.parked(),
            committed: found.parked(),
            end: Some(found.high),
            stream_time: None,
        });
        read.chain(waiting).collect()
    }
}

fn memory_report(space: usize, capacity: u64, state: &mut PartitionState) -> StateReport {
    let (usage, estimated) = (state.dedup.usage(), state.estimate());
    StateReport {
        space,
        keys: usage.keys,
        bytes: usage.bytes,
        load: usage.load,
        estimated,
        observed: state.dedup.observed(),
        stream_time: state.dedup.stream_time(),
        capacity,
    }
}
