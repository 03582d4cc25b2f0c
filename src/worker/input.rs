//! Per-partition progress of an input: its offsets, the verdicts that are not committed, and what it waits for.
//!
//! Owns the rules for these offsets: nothing else can set one. `committed` is at most `position`, and an abort sets `position` back to
//! `committed`. Verdicts move with them: they are remembered until the offset behind them is committed. Must never talk to a broker, or
//! forget a verdict that is not committed.

use super::ids::StateId;
use super::pending_restore::AssignedPartition;
use super::verdicts::Verdicts;
use crate::broker::Committed;
use crate::changelog::Span;
use crate::fault;
use crate::format::SchemaId;
use crate::record::{Invalid, Offset, Timestamp, TopicId, TopicPartition, Verdict};
use crate::runtime;
use std::time::{Duration, Instant};

/// The time without progress after which a broker is asked whether an open transaction holds a partition back, and the time for which its
/// answer is valid. Ordinary transactions are shorter.
pub(super) const STALLED: Duration = Duration::from_secs(30);

/// The delay before the status shows that a partition cannot be read.
const UNREADABLE_MS: Timestamp = 5_000;

/// The wait of an input: see `pausing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Not at all.
    No,
    /// Records were passed over, and must be read again.
    PassedOver,
    /// The consumer is paused.
    Paused,
}

/// Progress of one topic-partition.
pub(super) struct Input {
    pub(super) partition: TopicPartition,
    /// The name of the log that the offsets belong to.
    pub(super) topic_incarnation: String,
    /// The configured topic.
    pub(super) topic: TopicId,
    /// The state that the input uses.
    pub(super) state: StateId,
    /// The offset at which the group began, if known.
    first: Option<Offset>,
    /// The next record to process.
    position: Offset,
    /// The position to return to if the open transaction aborts.
    committed: Offset,
    /// The group's committed offset, as far as this worker knows.
    group: Committed,
    /// Records below were emitted before the restore. They only change the state.
    warm_until: Offset,
    /// True until a record behind the warm-up is processed.
    warming_up: bool,
    /// Stream time at `warm_until`, if known. No record of the warm-up advances stream time past it.
    warm_up_max_timestamp: Option<Timestamp>,
    /// The changelog has the effects of all records below.
    logged: Offset,
    /// Records below are counted.
    counted: Offset,
    verdicts: Verdicts,
    pub(super) wait: Wait,
    /// The unknown schema of the next record.
    pub(super) blocked_on_schema: Option<SchemaId>,
    /// True if the next record can neither be written nor skipped. The worker ends before it.
    pub(super) ends_worker: bool,
    /// Set while the partition makes no progress before the end of its log.
    pub(super) stall: Option<Stall>,
    /// The position at which the last fetch failed, and the time of the first failure there.
    failing: Option<(Offset, Timestamp)>,
}

impl Input {
    /// Starts an input at `start`. Records from there up to `warm_until` are a warm-up. `group` is what the group has committed, and
    /// `first` the offset at which it began.
    pub(super) fn new(
        assigned: AssignedPartition,
        state: StateId,
        (start, warm_until): (Offset, Offset),
        first: Option<Offset>,
        group: Committed,
        has_changelog: bool,
    ) -> Self {
        Self {
            warm_up_max_timestamp: assigned.note().stream_time,
            partition: assigned.partition,
            topic_incarnation: assigned.topic_incarnation,
            topic: assigned.topic,
            state,
            first,
            position: start,
            committed: start,
            group,
            warm_until,
            warming_up: start < warm_until,
            logged: if has_changelog { start } else { Offset::MAX },
            counted: start,
            verdicts: Verdicts::default(),
            wait: Wait::No,
            blocked_on_schema: None,
            ends_worker: false,
            stall: None,
            failing: None,
        }
    }

    /// The next record to process.
    #[inline]
    pub(super) const fn position(&self) -> Offset {
        self.position
    }

    /// The group's committed offset, as far as this worker knows, with its metadata.
    pub(super) const fn group(&self) -> &Committed {
        &self.group
    }

    /// The offset at which the group began, if known.
    pub(super) const fn group_start(&self) -> Option<Offset> {
        self.first
    }

    /// The committed offset for status reports.
    pub(super) fn reported_committed(&self) -> Offset {
        self.group.offset.unwrap_or(self.committed)
    }

    /// The verdicts that are not committed yet.
    #[inline]
    pub(super) const fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }

    /// True if the open transaction carries every record that was decided. Less than that is possible only after an abort.
    #[inline]
    pub(super) const fn replay_complete(&self) -> bool {
        self.verdicts.replay_complete()
    }

    /// True if anything was decided before the committed offset.
    pub(super) fn has_history(&self) -> bool {
        self.first != Some(self.committed)
    }

    /// True while the warm-up has not ended with a record behind it.
    #[inline]
    pub(super) const fn is_warming_up(&self) -> bool {
        self.warming_up
    }

    /// Ends the warm-up, because a record behind it is processed. Returns false if it had ended before.
    #[inline]
    pub(super) fn end_warm_up(&mut self) -> bool {
        std::mem::take(&mut self.warming_up)
    }

    /// True if the record at this offset only changes the state, because it was emitted before the restore.
    #[inline]
    pub(super) const fn is_warm_up(&self, offset: Offset) -> bool {
        offset < self.warm_until
    }

    /// The offset to commit before the first record is emitted: the end of the warm-up, if there is one.
    pub(super) fn beginning(&self) -> Offset {
        self.position.max(self.warm_until)
    }

    /// The latest record time that may advance stream time, if the record at this offset is read. `now` is that of a live record.
    #[inline]
    pub(super) fn max_timestamp(&self, offset: Offset, now: Timestamp) -> Timestamp {
        if self.is_warm_up(offset) { self.warm_up_max_timestamp.unwrap_or(now) } else { now }
    }

    /// Advances past a record of the warm-up. There is nothing to commit, and no way back.
    #[inline]
    pub(super) const fn warmed_up(&mut self, offset: Offset) {
        self.position = offset + 1;
        self.committed = self.position;
    }

    /// Advances to the end of the warm-up, if no record before it is left.
    #[inline]
    pub(super) const fn skip_warm_up(&mut self) {
        if self.is_warm_up(self.position) {
            self.warmed_up(self.warm_until - 1);
        }
    }

    /// Remembers the verdicts of consecutive records, which the open transaction carries. Verdicts that are remembered already stay.
    #[inline]
    pub(super) fn remember(&mut self, first: Offset, verdicts: &[Verdict]) {
        self.verdicts.remember(first, verdicts);
    }

    /// Takes the last records out of the open transaction, because writing them failed. Their verdicts stay.
    pub(super) const fn give_back(&mut self, records: usize) {
        self.verdicts.give_back(records);
    }

    /// Changes the verdict of a record that a broker rejected.
    pub(super) fn refuse(&mut self, offset: Offset, invalid: Invalid) {
        self.verdicts.refuse(offset, invalid);
    }

    /// Notes that a record must be written with fewer headers. Its verdict stays.
    pub(super) fn shorten(&mut self, offset: Offset, invalid: Invalid) {
        self.verdicts.shorten(offset, invalid);
    }

    /// Advances to `end`. Returns true if the record before it is counted for the first time, and not written again after an abort.
    #[inline]
    pub(super) const fn advance(&mut self, end: Offset) -> bool {
        self.position = end;
        let is_new = end > self.counted;
        if is_new {
            self.counted = end;
        }
        is_new
    }

    /// True if the record at this offset was counted before.
    #[inline]
    pub(super) const fn is_counted(&self, offset: Offset) -> bool {
        offset < self.counted
    }

    /// True if the changelog has the effect of the record at this offset.
    #[inline]
    pub(super) const fn is_logged(&self, offset: Offset) -> bool {
        offset < self.logged
    }

    /// True if the changelog has no effects of records below the position.
    pub(super) const fn has_unlogged(&self) -> bool {
        self.position > self.logged
    }

    /// The changelog has the effects of all records below the position.
    pub(super) fn note_logged(&mut self) {
        self.logged = self.logged.max(self.position);
    }

    /// True if the records from this offset on are read for the first time: they are not a warm-up, and neither counted nor logged.
    #[inline]
    pub(super) fn is_new_from(&self, offset: Offset) -> bool {
        offset >= self.position.max(self.warm_until).max(self.counted).max(self.logged)
    }

    /// True if the next changelog record of its state still has effects of the warm-up.
    pub(super) const fn logs_warm_up(&self) -> bool {
        self.logged < self.warm_until
    }

    /// The records whose effect is not in the changelog.
    pub(super) fn unlogged(&self) -> Span<'_> {
        Span { topic: &self.topic_incarnation, start: self.logged.min(self.position), end: self.position }
    }

    /// Passes over a record that comes too early. It is read again.
    pub(super) fn pass_over(&mut self) {
        if self.wait == Wait::No {
            self.wait = Wait::PassedOver;
        }
    }

    /// True if records were processed that are not committed.
    pub(super) const fn is_ahead(&self) -> bool {
        self.position != self.committed
    }

    /// Notes that a fetch failed.
    pub(super) fn read_failed(&mut self) {
        if self.failing.is_none_or(|(position, _)| position != self.position) {
            self.failing = Some((self.position, runtime::wall_clock()));
        }
    }

    /// The time at which fetching began to fail, if it has been failing for a while.
    pub(super) fn unreadable_since(&self) -> Option<Timestamp> {
        let (_, since) = self.failing.filter(|&(position, _)| position == self.position)?;
        Some(since).filter(|since| runtime::wall_clock().saturating_sub(*since) >= UNREADABLE_MS)
    }

    /// The group's starting offset is committed.
    pub(super) fn note_beginning(&mut self) {
        if !self.is_ahead() && self.group.offset.is_none() {
            self.group.offset = Some(self.beginning());
        }
    }

    /// The open transaction is committed, with this note as the metadata of the offset.
    pub(super) fn note_commit(&mut self, note: String) {
        self.committed = self.position;
        self.group = Committed { offset: Some(self.position), metadata: note };
        self.verdicts.committed();
    }

    /// Returns to the committed offset, because the open transaction is aborted. Verdicts stay, for when the records are read again.
    pub(super) fn rewind(&mut self) {
        if self.is_ahead() {
            // The record that waits for a schema is read again, behind others.
            self.blocked_on_schema = None;
        }
        self.position = self.committed;
        self.ends_worker = false;
        self.verdicts.restart_replay();
        if fault::defect("verdicts_forgotten_on_abort") {
            self.verdicts = Verdicts::default();
        }
    }

    /// True if everything that was fetched has been processed.
    fn is_up_to_date(&self) -> bool {
        let is_read = self.wait == Wait::No || fault::defect("passed_over_records_stepped_over");
        is_read && self.blocked_on_schema.is_none() && !self.ends_worker && self.verdicts.replay_complete()
    }

    /// Steps over offsets below `to` that hold no record to read: control records and aborted records. Returns true if the new position
    /// must be committed.
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
            // Still nothing is judged.
            self.first = Some(to);
        }
        self.position = to;
        true
    }

    /// Notes whether the input makes no progress before `end`, the end of its log.
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

/// A partition that makes no progress before the end of its log.
pub(super) struct Stall {
    pub(super) position: Offset,
    pub(super) since: Instant,
    since_ms: Timestamp,
    /// The time of the last answer of a broker, and whether an open transaction is the cause.
    pub(super) answer: Option<(Instant, bool)>,
}

impl Stall {
    /// The time at which the partition stopped before an open transaction; `None` if that is not known to be the cause.
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
    use super::super::verdicts::Recall;
    use super::*;

    /// An input that is read up to an offset, where nothing was judged yet.
    fn input(position: Offset) -> Input {
        Input {
            partition: TopicPartition { topic: "in".to_owned(), partition: 0 },
            topic_incarnation: "in".to_owned(),
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
            blocked_on_schema: None,
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
        input.rewind();
        assert_eq!(input.position, 5);
        assert!(input.step_over(7), "again, after an abort");
    }

    #[test]
    fn nothing_is_stepped_over_while_records_are_still_to_come() {
        // With the warm-up behind it, and within it.
        for warm_until in [5, 8] {
            let input = || Input { warm_until, ..input(5) };
            let waiting = |wait| Input { wait, ..input() };
            let awaiting = Input { blocked_on_schema: Some(SchemaId::Number(1)), ..input() };
            let ending = Input { ends_worker: true, ..input() };
            let mut repeating = input();
            repeating.remember(5, &[Verdict::Unseen]);
            assert!(repeating.advance(6));
            repeating.rewind();
            for mut input in [waiting(Wait::PassedOver), waiting(Wait::Paused), awaiting, ending, repeating] {
                assert!(!input.step_over(9));
                assert_eq!((input.position, input.committed), (5, 5), "{:?} {:?} {warm_until}", input.wait, input.blocked_on_schema);
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
    fn a_record_that_is_written_again_is_counted_once_and_keeps_its_verdict() {
        let mut input = input(5);
        input.remember(5, &[Verdict::Unseen, Verdict::Duplicate]);
        assert!(input.advance(7) && input.is_ahead() && input.has_unlogged());
        input.rewind();
        assert_eq!((input.position(), input.replay_complete(), input.is_counted(6)), (5, false, true));
        assert_eq!(input.verdicts().recall(5), Recall::Decided(Verdict::Unseen));
        input.remember(5, &[Verdict::Unseen]);
        assert!(!input.advance(6), "it was counted");
        input.note_commit(String::new());
        input.rewind();
        assert_eq!((input.position(), input.group().offset), (6, Some(6)), "no abort goes back behind a commit");
        assert_eq!(input.verdicts().recall(6), Recall::Decided(Verdict::Duplicate), "it is not committed yet");
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
