//! Per-partition progress of an input: positions, the warm-up, and what it waits for.
//!
//! Owns the way back of a partition whose transaction was aborted. Must never talk to a broker, nor forget a verdict that
//! is not committed.

use super::ids::StateId;
use super::verdicts::Verdicts;
use crate::broker::Committed;
use crate::changelog::Span;
use crate::fault;
use crate::format::SchemaId;
use crate::record::{Offset, Timestamp, TopicId, TopicPartition};
use crate::runtime;
use std::time::{Duration, Instant};

/// How long a partition stands still before a broker is asked whether an open transaction holds it back, and how long its
/// answer counts. Ordinary transactions are shorter.
pub(super) const STALLED: Duration = Duration::from_secs(30);

/// Delay before the status shows that a partition cannot be read.
const UNREADABLE_MS: Timestamp = 5_000;

/// How a topic-partition waits: see `pausing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It does not.
    No,
    /// Records that came were passed over, and are to be read again.
    PassedOver,
    /// It is not being read.
    Paused,
}

/// How far one topic-partition is read.
pub(super) struct Input {
    pub(super) partition: TopicPartition,
    /// The name of the log that its offsets are of.
    pub(super) log: String,
    /// Which configured topic it is of.
    pub(super) topic: TopicId,
    /// Whose state it uses.
    pub(super) state: StateId,
    /// Where the group began, as far as that is known.
    pub(super) first: Option<Offset>,
    /// The next record to decide.
    pub(super) position: Offset,
    /// Where to go back to if the open transaction aborts.
    pub(super) committed: Offset,
    /// What the group has committed, as far as we know.
    pub(super) group: Committed,
    /// Records below are decided for the state's sake only: they were emitted long ago.
    pub(super) warm_until: Offset,
    /// Whether no record past that has come yet.
    pub(super) warming_up: bool,
    /// Stream time at `warm_until`, if known: no record below it took stream time further.
    pub(super) warm_up_max_timestamp: Option<Timestamp>,
    /// Up to where the changelog has what its records did.
    pub(super) logged: Offset,
    pub(super) verdicts: Verdicts,
    /// Whether it waits.
    pub(super) wait: Wait,
    /// The schema that its next record is of, while that is asked for.
    pub(super) awaits: Option<SchemaId>,
    /// Whether its next record is neither to be written nor passed over: the worker ends before it.
    pub(super) ends_worker: bool,
    /// Up to where its records are counted.
    pub(super) counted: Offset,
    /// Set while it stands still before the end of its log.
    pub(super) stall: Option<Stall>,
    /// The position at which reading it failed last, and since when it does.
    pub(super) failing: Option<(Offset, Timestamp)>,
}

impl Input {
    /// Whether the record there is decided for the state's sake only.
    pub(super) const fn is_warm_up(&self, offset: Offset) -> bool {
        offset < self.warm_until
    }

    /// The offset to commit before the first record is emitted: the end of the warm-up, if there is one.
    pub(super) fn beginning(&self) -> Offset {
        self.position.max(self.warm_until)
    }

    /// A record of the warm-up is decided. There is nothing to commit, and no way back.
    pub(super) const fn warmed_up(&mut self, offset: Offset) {
        self.position = offset + 1;
        self.committed = self.position;
    }

    /// True if the next changelog record of its state still has effects of the warm-up.
    pub(super) const fn logs_warm_up(&self) -> bool {
        self.logged < self.warm_until
    }

    /// The records whose effect is not in the changelog.
    pub(super) fn unlogged(&self) -> Span<'_> {
        Span { topic: &self.log, start: self.logged.min(self.position), end: self.position }
    }

    /// A record of it comes too early, and is to be read again.
    pub(super) fn pass_over(&mut self) {
        if self.wait == Wait::No {
            self.wait = Wait::PassedOver;
        }
    }

    /// Whether records were read that are not committed.
    pub(super) const fn is_ahead(&self) -> bool {
        self.position != self.committed
    }

    /// Reading it failed.
    pub(super) fn read_failed(&mut self) {
        if self.failing.is_none_or(|(position, _)| position != self.position) {
            self.failing = Some((self.position, runtime::wall_clock()));
        }
    }

    /// When reading it began to fail, if it has been failing for a while.
    pub(super) fn unreadable_since(&self) -> Option<Timestamp> {
        let (_, since) = self.failing.filter(|&(position, _)| position == self.position)?;
        Some(since).filter(|since| runtime::wall_clock().saturating_sub(*since) >= UNREADABLE_MS)
    }

    /// The open transaction is committed, with this note beside the offset.
    pub(super) fn note_commit(&mut self, note: String) {
        self.committed = self.position;
        self.group = Committed { offset: Some(self.position), metadata: note };
        self.verdicts.committed();
    }

    /// The open transaction is aborted.
    pub(super) fn set_back(&mut self) {
        if self.is_ahead() {
            // The record that waits for a schema comes again behind those that are read again.
            self.awaits = None;
        }
        self.position = self.committed;
        self.ends_worker = false;
        self.verdicts.reset_carried();
        if fault::defect("verdicts_forgotten_on_abort") {
            self.verdicts = Verdicts::default();
        }
    }

    /// True if everything that was fetched of it has been processed.
    fn is_up_to_date(&self) -> bool {
        let is_read = self.wait == Wait::No || fault::defect("passed_over_records_stepped_over");
        is_read && self.awaits.is_none() && !self.ends_worker && self.verdicts.is_all_carried()
    }

    /// Steps over offsets below `to` that hold no record to read: control records and aborted records. Returns true if the
    /// new position is to be committed.
    pub(super) fn step_over(&mut self, to: Offset) -> bool {
        if to <= self.position || !self.is_up_to_date() || fault::defect("markers_not_stepped_over") {
            return false;
        }
        if self.is_warm_up(self.position) {
            self.warmed_up(to.min(self.warm_until) - 1);
        }
        if to <= self.position {
            return false;
        }
        if self.first == Some(self.position) {
            // Still nothing was judged.
            self.first = Some(to);
        }
        self.position = to;
        true
    }

    /// Notes whether it stands still before `end`, the end of its log.
    pub(super) fn note_stall(&mut self, end: Option<Offset>, now: Instant) {
        let is_behind = end.is_some_and(|end| end > self.position) && self.is_up_to_date();
        let is_known = self.stall.as_ref().is_some_and(|stall| stall.position == self.position);
        if !is_behind {
            self.stall = None;
        } else if !is_known {
            self.stall = Some(Stall { position: self.position, since: now, since_ms: runtime::wall_clock(), answer: None });
        }
    }
}

/// A partition that stands still before the end of its log.
pub(super) struct Stall {
    pub(super) position: Offset,
    pub(super) since: Instant,
    since_ms: Timestamp,
    /// When a broker was last asked, and whether it named an open transaction as the cause.
    pub(super) answer: Option<(Instant, bool)>,
}

impl Stall {
    /// When the partition came to a stop before an open transaction; `None` if that is not known to be the cause.
    pub(super) fn open_transaction_since(&self) -> Option<Timestamp> {
        self.answer.filter(|&(_, is_open)| is_open).map(|_| self.since_ms)
    }

    pub(super) fn must_ask(&self, now: Instant) -> bool {
        let last = self.answer.map_or(self.since, |(asked, _)| asked);
        now.saturating_duration_since(last) >= STALLED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Verdict;

    /// An input that is read up to an offset, where nothing was judged yet.
    fn input(position: Offset) -> Input {
        Input {
            partition: TopicPartition { topic: "in".to_owned(), partition: 0 },
            log: "in".to_owned(),
            topic: TopicId(0),
            state: StateId::default(),
            first: Some(position),
            position,
            committed: position,
            group: Committed { offset: Some(position), metadata: String::new() },
            warm_until: position,
            warming_up: false,
            warm_up_max_timestamp: None,
            logged: position,
            verdicts: Verdicts::default(),
            wait: Wait::No,
            awaits: None,
            ends_worker: false,
            counted: position,
            stall: None,
            failing: None,
        }
    }

    #[test]
    fn control_records_are_stepped_over_and_the_group_still_begins_behind_them() {
        let mut input = input(5);
        assert!(!input.step_over(5) && !input.step_over(3), "never back");
        assert!(input.step_over(7));
        assert_eq!((input.position, input.committed, input.first, input.is_ahead()), (7, 5, Some(7), true));
        input.set_back();
        assert_eq!(input.position, 5);
        assert!(input.step_over(7), "again, after an abort");
    }

    #[test]
    fn nothing_is_stepped_over_while_records_are_still_to_come() {
        // With the warm-up behind it, and within it.
        for warm_until in [5, 8] {
            let input = || Input { warm_until, ..input(5) };
            let waiting = |wait| Input { wait, ..input() };
            let awaiting = Input { awaits: Some(SchemaId::Number(1)), ..input() };
            let ending = Input { ends_worker: true, ..input() };
            let mut repeating = input();
            repeating.verdicts.carry(5, Verdict::Unseen);
            repeating.position = 6;
            repeating.set_back();
            for mut input in [waiting(Wait::PassedOver), waiting(Wait::Paused), awaiting, ending, repeating] {
                assert!(!input.step_over(9));
                assert_eq!((input.position, input.committed), (5, 5), "{:?} {:?} {warm_until}", input.wait, input.awaits);
            }
        }
    }

    #[test]
    fn a_warm_up_ends_at_control_records_and_commits_only_what_is_past_it() {
        let mut input = Input { warm_until: 8, committed: 5, first: None, ..input(5) };
        assert!(!input.step_over(7), "a warm-up has nothing to commit");
        assert_eq!((input.position, input.is_warm_up(input.position)), (7, true));
        assert!(input.step_over(10));
        assert_eq!((input.position, input.committed, input.first), (10, 8, None));
    }

    #[test]
    fn a_stall_lasts_from_when_the_partition_stopped_until_it_moves() {
        let (mut input, start) = (input(5), Instant::now());
        input.note_stall(Some(9), start);
        input.note_stall(Some(12), start + STALLED);
        let stall = input.stall.as_mut().expect("it stands still");
        assert!(stall.must_ask(start + STALLED) && !stall.must_ask(start + STALLED / 2));
        assert_eq!(stall.open_transaction_since(), None, "no broker was asked");
        stall.answer = Some((start + STALLED, true));
        assert!(!stall.must_ask(start + STALLED) && stall.must_ask(start + 2 * STALLED));
        assert_eq!(stall.open_transaction_since(), Some(stall.since_ms));
        input.position = 6;
        input.note_stall(Some(12), start + 2 * STALLED);
        assert_eq!(input.stall.as_ref().and_then(Stall::open_transaction_since), None);
        input.note_stall(Some(6), start + 2 * STALLED);
        assert!(input.stall.is_none());
    }
}
