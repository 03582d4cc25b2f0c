//! When a partition's memory is written to disk.
//!
//! Owns the barrier: a checkpoint holds the effect of the records below its offsets and of no other. Must never
//! take one while anything past the committed offset is decided.

use super::Worker;
use super::partition::Memory;
use super::rebuild::Trim;
use crate::checkpoint::PartitionId;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Worker {
    /// Writes what changed, if it is time, at the barrier: nothing past the committed offsets is decided.
    pub(super) fn checkpoint(&mut self, now: bool) {
        let due = || now || Instant::now() >= self.next_checkpoint || self.memories.values().any(Memory::is_urgent);
        if self.transaction.is_some() || !due() {
            return;
        }
        let (began, mut bytes) = (Instant::now(), 0);
        for (&id, memory) in &mut self.memories {
            let inputs: Vec<_> = self.inputs.values().filter(|input| input.memory == id).collect();
            let is_whole = inputs.iter().all(|input| input.decisions.is_empty()) && memory.journal.is_empty();
            if inputs.is_empty() || !is_whole || !memory.is_due(&self.shared.store) {
                continue;
            }
            for input in inputs {
                memory.offsets.insert(input.partition.topic.clone(), input.position);
            }
            let plan = &self.topics[id.0];
            bytes += memory.save(&self.shared, &PartitionId { space: plan.topic.space.clone(), partition: id.1 }, &plan.settings);
        }
        for input in self.inputs.values().filter(|input| self.topics[input.topic].is_ours) {
            self.rebuilder.trim(input.partition.clone(), Trim::Before(input.committed));
        }
        if bytes > 0 {
            self.shared.stats.checkpoint_time.observe(began.elapsed());
            self.shared.stats.checkpoint_bytes.store(bytes, Ordering::Relaxed);
        }
        // Large checkpoints are written less often, so that the average stays below the bound.
        let state = &self.shared.config.state;
        let rate = (state.write_rate_max / u64::from(self.shared.config.worker.workers)).max(1);
        let pause = Duration::from_millis(bytes.saturating_mul(1000) / rate);
        self.next_checkpoint = Instant::now() + self.shared.config.worker.checkpoint_interval.max(pause);
    }
}
