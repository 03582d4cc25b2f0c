//! When a partition's memory is written to disk.
//!
//! Owns the barrier: a checkpoint holds the effect of the records below its offsets and of no other. Must never
//! take one while anything past the committed offset is decided.

use super::commit::inputs_of;
use super::rebuild::Trim;
use super::{MemoryId, Worker};
use crate::checkpoint::PartitionId;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Worker {
    /// Writes the memories whose turn it is, or all, if they changed: at the barrier, where nothing past the
    /// committed offsets is decided.
    pub(super) fn checkpoint(&mut self, all: bool) {
        if self.transaction.is_some() {
            return;
        }
        let mut due: Vec<_> = self.memories.iter().filter(|(_, memory)| memory.is_urgent()).map(|(&id, _)| id).collect();
        due.extend(if all { self.memories.keys().copied().collect() } else { self.take_turns() });
        let bytes: u64 = due.into_iter().map(|id| self.save(id)).sum();
        // Large checkpoints are written less often, so that the average stays below the bound.
        let state = &self.shared.config.state;
        let rate = (state.write_rate_max / u64::from(self.shared.config.worker.workers)).max(1);
        let pause = Duration::from_millis(bytes.saturating_mul(1000) / rate);
        self.next_checkpoint = self.next_checkpoint.max(Instant::now() + pause);
    }

    /// Whose turn it is. Each memory has one in an interval, at its own time: records wait while one is written, and
    /// would wait longer for all.
    fn take_turns(&mut self) -> Vec<MemoryId> {
        let Some(late) = Instant::now().checked_duration_since(self.next_checkpoint) else { return Vec::new() };
        let count = u32::try_from(self.memories.len()).unwrap_or(u32::MAX).max(1);
        let step = self.shared.config.worker.checkpoint_interval / count;
        let turns = if self.inputs.values().any(|input| input.is_warm_up(input.position)) {
            // What a warm-up remembers is logged when it is time for a checkpoint, all of it; so all are written.
            count
        } else {
            let due = late.as_nanos() / step.as_nanos().max(1) + 1;
            u32::try_from(due).unwrap_or(u32::MAX).min(count)
        };
        self.next_checkpoint += step * turns;
        let after = self.memories.range((Excluded(self.last_turn), Unbounded)).chain(&self.memories);
        let ids: Vec<_> = after.map(|(&id, _)| id).take(turns as usize).collect();
        self.last_turn = ids.last().copied().unwrap_or(self.last_turn);
        ids
    }

    /// Writes a memory if it changed and all that changed it is committed. Returns the bytes.
    fn save(&mut self, id: MemoryId) -> u64 {
        let (plan, inputs) = (&self.topics[id.0], || inputs_of(&self.topics, &self.inputs, id));
        let Some(memory) = self.memories.get_mut(&id).filter(|memory| memory.is_due(&self.shared.store)) else { return 0 };
        if inputs().next().is_none() || inputs().any(|input| !input.decisions.is_empty()) || !memory.journal.is_empty() {
            return 0;
        }
        let _span = tracing::debug_span!("checkpoint", space = plan.topic.space, partition = id.1).entered();
        for input in inputs() {
            memory.offsets.insert(input.partition.topic.clone(), input.position);
        }
        let began = Instant::now();
        let bytes = memory.save(&self.shared, &PartitionId { space: plan.topic.space.clone(), partition: id.1 }, &plan.settings);
        if bytes > 0 {
            self.shared.stats.checkpoint_time.observe(began.elapsed());
            self.shared.stats.checkpoint_bytes.store(bytes, Ordering::Relaxed);
        }
        // Written or not: a topic in between is only there with a changelog, which has what was read of it.
        for input in inputs().filter(|input| self.topics[input.topic].is_ours) {
            self.rebuilder.trim(input.partition.clone(), Trim::Before(input.position));
        }
        bytes
    }
}
