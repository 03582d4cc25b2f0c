//! When a partition's memory is written to disk.
//!
//! Owns the barrier: a checkpoint holds the effect of the records below its offsets and of no other. Must never
//! take one while anything past the committed offset is decided.

use super::commit::inputs_of;
use super::{MemoryId, Worker};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

/// Whose turn it is to be written. Each memory has one in an interval, at its own time: records wait while one is
/// written, and would wait longer for all.
pub(super) struct Turns {
    next: Instant,
    /// Whose turn was the last.
    last: MemoryId,
}

impl Turns {
    pub(super) fn new(first: Instant) -> Self {
        Self { next: first, last: MemoryId::default() }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Takes the turns that are due: of all, if they go `together`. None has two.
    fn take<T>(&mut self, memories: &BTreeMap<MemoryId, T>, now: Instant, interval: Duration, together: bool) -> Vec<MemoryId> {
        let Some(late) = now.checked_duration_since(self.next) else { return Vec::new() };
        let count = u32::try_from(memories.len()).unwrap_or(u32::MAX).max(1);
        let step = interval / count;
        let due = late.as_nanos() / step.as_nanos().max(1) + 1;
        let turns = if together { count } else { u32::try_from(due).unwrap_or(u32::MAX).min(count) };
        self.next += step * turns;
        // What could not be taken in time is not made up for.
        self.put_off(now);
        let after = memories.range((Excluded(self.last), Unbounded)).chain(memories);
        let ids: Vec<_> = after.map(|(&id, _)| id).take(turns as usize).collect();
        self.last = ids.last().copied().unwrap_or(self.last);
        ids
    }

    /// No turn comes before that.
    fn put_off(&mut self, until: Instant) {
        self.next = self.next.max(until);
    }
}

impl Worker {
    /// Writes the memories whose turn it is, or all, if they changed: at the barrier, where nothing past the
    /// committed offsets is decided.
    pub(super) fn checkpoint(&mut self, all: bool) {
        if self.transaction.is_some() {
            return;
        }
        let due = if all { self.memories.keys().copied().collect() } else { self.due() };
        let bytes: u64 = due.into_iter().map(|id| self.save(id)).sum();
        // Large checkpoints are written less often, so that the average stays below the bound.
        let state = &self.shared.config.state;
        let rate = (state.write_rate_max / u64::from(self.shared.config.worker.workers)).max(1);
        self.turns.put_off(Instant::now() + Duration::from_millis(bytes.saturating_mul(1000) / rate));
    }

    /// The memories that cannot wait, and those whose turn it is.
    fn due(&mut self) -> Vec<MemoryId> {
        let mut due: Vec<_> = self.memories.iter().filter(|(_, memory)| memory.is_urgent()).map(|(&id, _)| id).collect();
        let now = Instant::now();
        if self.turns.is_due(now) {
            // What a warm-up remembers is logged when it is time for a checkpoint, all of it; so all are written.
            let warms_up = self.inputs.values().any(|input| input.is_warm_up(input.position));
            due.extend(self.turns.take(&self.memories, now, self.shared.config.worker.checkpoint_interval, warms_up));
        }
        due
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
            memory.come_to(&input.log, input.position);
        }
        let bytes = memory.save(&self.shared.store, &self.shared.stats, &plan.stored_as(id.1), &plan.settings);
        // Written or not: a topic in between is only there with a changelog, which has what was read of it.
        for input in inputs().filter(|input| self.topics[input.topic].is_ours) {
            self.shared.rebuilder.trim(input.partition.clone(), input.position);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const INTERVAL: Duration = Duration::from_secs(1);

    fn memories(count: i32) -> BTreeMap<MemoryId, char> {
        (0..count).map(|partition| ((0, partition), '_')).collect()
    }

    #[test]
    fn each_has_one_turn_in_an_interval_and_its_own_time() {
        let (memories, start) = (memories(4), Instant::now());
        let mut turns = Turns::new(start);
        let mut taken = Vec::new();
        // Barriers come when they come, and not when a turn is due.
        for tick in 0..100 {
            let now = turns.take(&memories, start + tick * INTERVAL / 10, INTERVAL, false);
            assert!(now.len() <= 1, "{now:?} at once");
            taken.extend(now);
        }
        assert_eq!(taken.len(), 40);
        assert!(taken.windows(5).all(|five| five[0] == five[4]), "{taken:?}");
        assert_eq!(taken[..4].iter().collect::<BTreeSet<_>>().len(), 4, "{taken:?}");
    }

    #[test]
    fn what_is_late_is_taken_once() {
        let (memories, start) = (memories(3), Instant::now());
        let mut turns = Turns::new(start);
        let late = start + 1000 * INTERVAL;
        assert_eq!(turns.take(&memories, late, INTERVAL, false).len(), 3);
        assert_eq!(turns.take(&memories, late, INTERVAL, false).len(), 1);
        assert_eq!(turns.take(&memories, late, INTERVAL, false).len(), 0);
        // More than there are barriers.
        let many = self::memories(1000);
        let mut turns = Turns::new(start);
        let taken: usize = (0..100).map(|tick| turns.take(&many, start + tick * INTERVAL / 10, INTERVAL, false).len()).sum();
        assert!((9_900..=10_000).contains(&taken), "{taken}");
    }

    #[test]
    fn together_all_are_taken_once_in_an_interval() {
        let (memories, start) = (memories(4), Instant::now());
        let mut turns = Turns::new(start);
        assert_eq!(turns.take(&memories, start, INTERVAL, true).len(), 4);
        assert!(!turns.is_due(start + INTERVAL * 9 / 10));
        assert_eq!(turns.take(&memories, start + INTERVAL, INTERVAL, true).len(), 4);
        turns.put_off(start + 5 * INTERVAL);
        assert!(turns.take(&memories, start + 4 * INTERVAL, INTERVAL, true).is_empty());
    }
}
