//! The schedule of checkpoints.
//!
//! Ensures that a checkpoint contains the effects of exactly the records below its offsets. Never takes a checkpoint of a state while a
//! record past the committed offset of its inputs has a verdict. Never trims a repartition topic past the offset in a checkpoint.

use super::Worker;
use super::assignment::{Assignment, inputs_of};
use super::ids::{InputId, StateId};
use crate::broker::Broker;
use crate::fault;
use crate::record::log_id;
use crate::runtime;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

/// Spreads the checkpoints of all states over the interval, because processing stops while a state is written.
pub(super) struct Schedule {
    next: Instant,
    last: StateId,
}

impl Schedule {
    pub(super) fn new(first: Instant) -> Self {
        Self { next: first, last: StateId::default() }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Returns the states that are due, each at most once. If `together` is true, all states are due at the same time.
    fn take<T>(&mut self, states: &BTreeMap<StateId, T>, now: Instant, interval: Duration, together: bool) -> Vec<StateId> {
        let Some(late) = now.checked_duration_since(self.next) else { return Vec::new() };
        let count = u32::try_from(states.len()).unwrap_or(u32::MAX).max(1);
        let step = interval / count;
        let due = late.as_nanos() / step.as_nanos().max(1) + 1;
        let taken = if together { count } else { u32::try_from(due).unwrap_or(u32::MAX).min(count) };
        self.next += step * taken;
        // After a long pause, each state is due once, not once for every interval that has passed.
        self.put_off(now);
        let after = states.range((Excluded(self.last), Unbounded)).chain(states);
        let ids: Vec<_> = after.map(|(&id, _)| id).take(taken as usize).collect();
        self.last = ids.last().copied().unwrap_or(self.last);
        ids
    }

    /// Postpones the next checkpoint to `until`, unless the checkpoint is due even later.
    fn put_off(&mut self, until: Instant) {
        self.next = self.next.max(until);
    }
}

impl<B: Broker> Worker<B> {
    /// Writes checkpoints of the changed states that are due, or of all changed states if `all` is true. Does nothing while a transaction
    /// is open.
    pub(super) fn checkpoint(&mut self, all: bool) {
        if self.writer.is_open() {
            return;
        }
        let due = if all { self.assignment.states.keys().copied().collect() } else { self.due() };
        let bytes: u64 = due.into_iter().map(|id| self.save(id)).sum();
        // Large checkpoints postpone the next scheduled checkpoint to keep the average write rate of all workers below
        // `state.max_write_rate`.
        let config = &self.shared.config;
        let rate = (config.state.max_write_rate / u64::from(config.worker.workers)).max(1);
        self.schedule.put_off(runtime::now() + Duration::from_millis(bytes.saturating_mul(1000) / rate));
    }

    fn due(&mut self) -> Vec<StateId> {
        let Assignment { inputs, states, .. } = &self.assignment;
        let mut due: Vec<_> = states.iter().filter(|(_, state)| state.is_urgent()).map(|(&id, _)| id).collect();
        let now = runtime::now();
        if self.schedule.is_due(now) {
            // A state with pending changes cannot be written. During a warm-up, `log_warm_up` logs the pending changes of all states as
            // soon as a checkpoint is due, so all states are then written at once.
            let warms_up = inputs.values().any(|input| input.is_warm_up(input.position()));
            due.extend(self.schedule.take(states, now, self.shared.config.worker.checkpoint_interval, warms_up));
        }
        due
    }

    /// Writes the checkpoint of a state, unless the last checkpoint is still current or some changes of the state are not committed.
    /// Returns the number of bytes written.
    fn save(&mut self, id: StateId) -> u64 {
        self.check_stop();
        let Assignment { inputs, states, claims, .. } = &mut self.assignment;
        let (topic, inputs) = (self.topics.first_of(id.space), || inputs_of(&self.topics, inputs, id));
        let Some(state) = states.get_mut(&id).filter(|state| state.is_due(&self.shared.store)) else { return 0 };
        let is_committed = inputs().all(|input| input.verdicts().is_empty()) && state.pending.is_empty();
        if inputs().next().is_none() || !is_committed && !fault::defect("checkpoint_of_uncommitted_verdicts") {
            return 0;
        }
        let _span = tracing::debug_span!("checkpoint", space = topic.config.space, partition = id.partition).entered();
        for input in inputs() {
            state.advance_offset(&input.topic_incarnation, input.reached(id));
        }
        let Some(claim) = claims.get(&id) else { return 0 };
        let saved = state.save(&self.shared.store, &self.shared.stats, (&topic.stored_as(id.partition), claim), &topic.settings);
        if saved.is_some() || fault::defect("trimmed_before_checkpoint") {
            self.trim_inputs(id);
        }
        saved.unwrap_or_default()
    }

    /// Trims the repartition topics that a state reads. A record is kept until the checkpoints of all states of the input contain its
    /// effect, because a state that loses its changelog reads the record again.
    fn trim_inputs(&mut self, id: StateId) {
        let Assignment { inputs, states, .. } = &mut self.assignment;
        for (rule, _) in self.topics.of_space(id.space) {
            let of = self.topics.input_of(InputId { topic: rule, partition: id.partition });
            let Some(input) = inputs.get_mut(&of).filter(|input| self.topics[input.topic].is_internal) else { continue };
            input.note_checkpoint(id);
            let before = if fault::defect("trimmed_before_checkpoint") { input.position() } else { input.checkpointed() };
            self.shared.rebuilder.trim(input.partition.clone(), log_id(&input.topic_incarnation).map(str::to_owned), before);
            // If a state gets no records, its checkpoint keeps an old offset, which would prevent trimming. Marking the state as changed
            // makes the worker write a checkpoint with the new offset.
            for other in input.states().filter(|&other| other != id && before < input.position()) {
                if let Some(state) = states.get_mut(&other) {
                    state.changed = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const INTERVAL: Duration = Duration::from_secs(1);

    fn states(count: i32) -> BTreeMap<StateId, char> {
        (0..count).map(|partition| (StateId { partition, ..StateId::default() }, '_')).collect()
    }

    #[test]
    fn each_state_is_due_once_per_interval_at_its_own_time() {
        let (states, start) = (states(4), Instant::now());
        let mut schedule = Schedule::new(start);
        let mut taken = Vec::new();
        // Commits happen at arbitrary times, not when a state is due.
        for tick in 0..100 {
            let now = schedule.take(&states, start + tick * INTERVAL / 10, INTERVAL, false);
            assert!(now.len() <= 1, "{now:?} at once");
            taken.extend(now);
        }
        assert_eq!(taken.len(), 40);
        assert!(taken.windows(5).all(|five| five[0] == five[4]), "{taken:?}");
        assert_eq!(taken[..4].iter().collect::<BTreeSet<_>>().len(), 4, "{taken:?}");
    }

    #[test]
    fn overdue_states_are_taken_once() {
        let (states, start) = (states(3), Instant::now());
        let mut schedule = Schedule::new(start);
        let late = start + 1000 * INTERVAL;
        assert_eq!(schedule.take(&states, late, INTERVAL, false).len(), 3);
        assert_eq!(schedule.take(&states, late, INTERVAL, false).len(), 1);
        assert_eq!(schedule.take(&states, late, INTERVAL, false).len(), 0);
        // There are more states than commits in an interval.
        let many = self::states(1000);
        let mut schedule = Schedule::new(start);
        let taken: usize = (0..100).map(|tick| schedule.take(&many, start + tick * INTERVAL / 10, INTERVAL, false).len()).sum();
        assert!((9_900..=10_000).contains(&taken), "{taken}");
    }

    #[test]
    fn together_takes_all_states_once_per_interval() {
        let (states, start) = (states(4), Instant::now());
        let mut schedule = Schedule::new(start);
        assert_eq!(schedule.take(&states, start, INTERVAL, true).len(), 4);
        assert!(!schedule.is_due(start + INTERVAL * 9 / 10));
        assert_eq!(schedule.take(&states, start + INTERVAL, INTERVAL, true).len(), 4);
        schedule.put_off(start + 5 * INTERVAL);
        assert!(schedule.take(&states, start + 4 * INTERVAL, INTERVAL, true).is_empty());
    }
}
