//! How a worker stands, told once a second to whoever shows it.
//!
//! Must never hold up a record: what is asked here is known without asking a broker.

use super::partition::{Input, Memory};
use super::{MemoryId, Worker};
use crate::kafka::Source;
use crate::stats::{InputReport, InputState, MemoryReport, Report};
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
        let memories = self.memories.iter_mut().map(|(&(space, _), memory)| memory_report(space, self.topics[space].capacity, memory));
        let blocked = self.blocked.clone();
        let report = Report { joined: self.joined, blocked, memories: memories.collect(), inputs: self.input_reports(source) };
        self.shared.stats.report(self.number, report);
    }

    fn input_reports(&self, source: &Source) -> Vec<InputReport> {
        let stream_time = |id: MemoryId| self.memories.get(&id).and_then(|memory| memory.dedup.stream_time());
        let read = self.inputs.values().map(|input: &Input| InputReport {
            partition: input.partition.clone(),
            space: self.topics[input.topic].space,
            state: if input.warming_up { InputState::WarmingUp } else { InputState::Running },
            position: input.position,
            committed: input.group.offset.unwrap_or(input.committed),
            end: source.end(&input.partition),
            stream_time: stream_time(input.memory),
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

fn memory_report(space: usize, capacity: u64, memory: &mut Memory) -> MemoryReport {
    let (usage, estimated) = (memory.dedup.usage(), memory.estimate());
    MemoryReport {
        space,
        keys: usage.keys,
        bytes: usage.bytes,
        load: usage.load,
        estimated,
        observed: memory.dedup.observed(),
        stream_time: memory.dedup.stream_time(),
        capacity,
    }
}
