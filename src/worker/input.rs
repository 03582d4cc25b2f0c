//! The progress of an input partition: its offsets, its uncommitted verdicts, and its wait state.
//!
//! Only this module sets these offsets. `committed` is at most `position`, and an abort resets `position` to `committed`. A verdict is kept
//! until an offset past its record is committed. This module never talks to a broker and never forgets the verdict of an uncommitted
//! record.

use super::ids::StateId;
use super::pending_restore::AssignedPartition;
use super::stall::{Stall, Wait};
use super::state_progress::StateProgress;
use super::verdicts::Verdicts;
use crate::broker::Committed;
use crate::changelog::Span;
use crate::fault;
use crate::format::SchemaId;
use crate::record::{Invalid, Offset, Timestamp, TopicId, TopicPartition, Verdict};
use crate::runtime;
use std::time::Instant;

/// The minimum duration of fetch failures, in milliseconds, before the status shows a partition as unreadable.
const UNREADABLE_MS: Timestamp = 5_000;

pub(super) struct Input {
    pub(super) partition: TopicPartition,
    /// The topic that the offsets belong to: its name, together with its id if the brokers report ids.
    pub(super) topic_incarnation: String,
    /// The topic, identified by its first rule.
    pub(super) topic: TopicId,
    states: Vec<StateProgress>,
    /// The group's starting offset in the partition, if known.
    first: Option<Offset>,
    position: Offset,
    /// The position to return to if the open transaction aborts.
    committed: Offset,
    /// The group's committed offset, as far as this worker knows.
    group: Committed,
    /// The end of the warm-up. Records below this offset were processed before the restore and only update the state.
    warm_until: Offset,
    /// True from the start of a warm-up until the first record after it is processed.
    warming_up: bool,
    /// Records below this offset are already counted in the statistics.
    counted: Offset,
    verdicts: Verdicts,
    pub(super) wait: Wait,
    /// The unknown schema that the next record needs.
    pub(super) blocked_on_schema: Option<SchemaId>,
    /// True if the next record can be neither written nor skipped. The worker stops before it.
    pub(super) ends_worker: bool,
    /// Set while the partition makes no progress below its high watermark, although all fetched records are processed.
    pub(super) stall: Option<Stall>,
    /// The position of the last failed fetch, with the time of the first failure at that position.
    failing: Option<(Offset, Timestamp)>,
}

impl Input {
    /// Creates an input that reads from `start`. Records from `start` up to `warm_until` are a warm-up of at least one state. If
    /// `warm_until` is less than `start`, the records from `warm_until` up to `start` are skipped, because they were deleted or do not
    /// belong to a state. `first` is the group's starting offset. `group` is the group's committed offset.
    pub(super) fn new(
        assigned: AssignedPartition,
        states: Vec<StateProgress>,
        (start, warm_until): (Offset, Offset),
        first: Option<Offset>,
        group: Committed,
    ) -> Self {
        Self {
            partition: assigned.partition,
            topic_incarnation: assigned.topic_incarnation,
            topic: assigned.topic,
            states,
            first,
            position: start,
            committed: start,
            group,
            warm_until,
            warming_up: start < warm_until,
            counted: start,
            verdicts: Verdicts::default(),
            wait: Wait::No,
            blocked_on_schema: None,
            ends_worker: false,
            stall: None,
            failing: None,
        }
    }

    pub(super) fn states(&self) -> impl Iterator<Item = StateId> {
        self.states.iter().map(|progress| progress.state)
    }

    #[inline]
    fn progress(&self, state: StateId) -> Option<&StateProgress> {
        self.states.iter().find(|progress| progress.state == state)
    }

    /// Returns the end offset of the input records whose effects are in a state.
    pub(super) fn reached(&self, state: StateId) -> Offset {
        let start = self.progress(state).map_or(0, |progress| progress.start);
        self.position.max(start)
    }

    /// True if the record at this offset is in the warm-up, but the restored state already contains its effect.
    pub(super) fn is_in(&self, state: StateId, offset: Offset) -> bool {
        let has = |progress: &StateProgress| offset < progress.start && !fault::defect("warm_up_applied_again");
        self.is_warm_up(offset) && self.progress(state).is_some_and(has)
    }

    /// True if the state is incomplete until the warm-up of this input has finished.
    pub(super) fn warms_up(&self, state: StateId) -> bool {
        self.is_warm_up(self.position) && self.progress(state).is_some_and(|progress| progress.start < self.warm_until)
    }

    #[inline]
    pub(super) const fn position(&self) -> Offset {
        self.position
    }

    pub(super) const fn group(&self) -> &Committed {
        &self.group
    }

    pub(super) const fn group_start(&self) -> Option<Offset> {
        self.first
    }

    /// Returns the group's committed offset for status reports. If the group has not committed an offset, returns the position that an
    /// abort would return to.
    pub(super) fn reported_committed(&self) -> Offset {
        self.group.offset.unwrap_or(self.committed)
    }

    #[inline]
    pub(super) const fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }

    /// True if the open transaction contains every record that has a verdict. Records can be missing only after an abort.
    #[inline]
    pub(super) const fn replay_complete(&self) -> bool {
        self.verdicts.replay_complete()
    }

    /// True if records below the committed offset may have been judged. False if the group started at the committed offset.
    pub(super) fn has_history(&self) -> bool {
        self.first != Some(self.committed)
    }

    #[inline]
    pub(super) const fn is_warming_up(&self) -> bool {
        self.warming_up
    }

    /// Ends the warm-up. Called when a record after the warm-up is processed. Returns false if the warm-up had already ended.
    #[inline]
    pub(super) fn end_warm_up(&mut self) -> bool {
        std::mem::take(&mut self.warming_up)
    }

    /// True if the record at this offset is in the warm-up. Such a record was processed before the restore and only updates the state.
    #[inline]
    pub(super) const fn is_warm_up(&self, offset: Offset) -> bool {
        offset < self.warm_until
    }

    /// Returns the starting offset to commit before the first record is emitted: the position that an abort would return to, or the end of
    /// the warm-up if that offset is higher.
    pub(super) fn beginning(&self) -> Offset {
        self.committed.max(self.warm_until)
    }

    /// Returns the latest timestamp that may advance a state's stream time at this offset. For a record of a warm-up, the limit is the
    /// stream time at the end of the warm-up, if known. Otherwise, the limit is `now`.
    #[inline]
    pub(super) fn max_timestamp(&self, state: StateId, offset: Offset, now: Timestamp) -> Timestamp {
        if !self.is_warm_up(offset) {
            return now;
        }
        self.progress(state).and_then(|progress| progress.warm_up_max_timestamp).unwrap_or(now)
    }

    /// Advances past a record of the warm-up. The record was committed earlier, so an abort does not return to it.
    #[inline]
    pub(super) const fn warmed_up(&mut self, offset: Offset) {
        self.position = offset + 1;
        self.committed = self.position;
    }

    /// Advances to the end of the warm-up. The caller must know that no record of the warm-up is left.
    #[inline]
    pub(super) const fn skip_warm_up(&mut self) {
        if self.is_warm_up(self.position) {
            self.warmed_up(self.warm_until - 1);
        }
    }

    #[inline]
    pub(super) fn remember(&mut self, first: Offset, verdicts: &[Verdict]) {
        self.verdicts.remember(first, verdicts);
    }

    pub(super) const fn give_back(&mut self, records: usize) {
        self.verdicts.give_back(records);
    }

    pub(super) fn refuse(&mut self, offset: Offset, invalid: Invalid) {
        self.verdicts.refuse(offset, invalid);
    }

    pub(super) fn shorten(&mut self, offset: Offset, invalid: Invalid) {
        self.verdicts.shorten(offset, invalid);
    }

    /// Advances to `end`. Returns true if the record before `end` must be counted, and false if it was already counted before an abort.
    #[inline]
    pub(super) const fn advance(&mut self, end: Offset) -> bool {
        self.position = end;
        let is_new = end > self.counted;
        if is_new {
            self.counted = end;
        }
        is_new
    }

    #[inline]
    pub(super) const fn is_counted(&self, offset: Offset) -> bool {
        offset < self.counted
    }

    /// True if the state's changelog contains the effect of the record at this offset, or if the state has no changelog.
    #[inline]
    pub(super) fn is_logged(&self, state: StateId, offset: Offset) -> bool {
        self.progress(state).is_some_and(|progress| offset < progress.logged)
    }

    /// True if the changelog of a state lacks the effects of some records below the position.
    pub(super) fn has_unlogged(&self) -> bool {
        self.states.iter().any(|progress| self.position > progress.logged)
    }

    /// Marks all records below the position as logged in the changelogs of their states.
    pub(super) fn note_logged(&mut self) {
        for progress in &mut self.states {
            progress.logged = progress.logged.max(self.position).max(progress.start);
        }
    }

    /// True if the records from this offset on are read for the first time: they are past the warm-up and neither counted nor logged.
    #[inline]
    pub(super) fn is_new_from(&self, offset: Offset) -> bool {
        let logged = self.states.iter().map(|progress| progress.logged).filter(|&logged| logged != Offset::MAX).max().unwrap_or_default();
        offset >= self.position.max(self.warm_until).max(self.counted).max(logged)
    }

    /// Marks all records below the position as checkpointed, after a checkpoint of the state was written.
    pub(super) fn note_checkpoint(&mut self, state: StateId) {
        let position = self.position;
        self.states.iter_mut().filter(|progress| progress.state == state).for_each(|progress| progress.checkpointed = position);
    }

    /// Returns the end offset of the input records whose effects are in the checkpoints of all states.
    pub(super) fn checkpointed(&self) -> Offset {
        self.states.iter().map(|progress| progress.checkpointed).min().unwrap_or_default()
    }

    /// True if the next changelog record of the state will contain effects of the warm-up.
    pub(super) fn logs_warm_up(&self, state: StateId) -> bool {
        self.progress(state).is_some_and(|progress| progress.logged < self.warm_until)
    }

    /// Returns the span of records whose effects are in the state but not in its changelog. Empty if the state has no changelog.
    pub(super) fn unlogged(&self, state: StateId) -> Span<'_> {
        let end = self.reached(state);
        let logged = self.progress(state).map_or(end, |progress| progress.logged);
        Span { topic: &self.topic_incarnation, start: logged.min(end), end }
    }

    /// Marks the input after a record was passed over because it must wait. The input then processes no later record until the consumer has
    /// returned to the position.
    pub(super) fn pass_over(&mut self) {
        if self.wait == Wait::No {
            self.wait = Wait::PassedOver;
        }
    }

    /// True if processed records or skipped offsets are not committed yet.
    pub(super) const fn is_ahead(&self) -> bool {
        self.position != self.committed
    }

    pub(super) fn read_failed(&mut self) {
        if self.failing.is_none_or(|(position, _)| position != self.position) {
            self.failing = Some((self.position, runtime::wall_clock()));
        }
    }

    /// Returns the time of the first failed fetch at the position, if fetches have been failing for at least five seconds.
    pub(super) fn unreadable_since(&self) -> Option<Timestamp> {
        let (_, since) = self.failing.filter(|&(position, _)| position == self.position)?;
        Some(since).filter(|since| runtime::wall_clock().saturating_sub(*since) >= UNREADABLE_MS)
    }

    /// After a commit, sets the group's committed offset to the starting offset if the group had no committed offset before. The commit
    /// contained the starting offset.
    pub(super) fn note_beginning(&mut self) {
        if !self.is_ahead() && self.group.offset.is_none() {
            self.group.offset = Some(self.beginning());
        }
    }

    /// Moves the committed offset to the position after a commit. `note` is the metadata of the committed offset.
    pub(super) fn note_commit(&mut self, note: String) {
        self.committed = self.position;
        self.group = Committed { offset: Some(self.position), metadata: note };
        self.verdicts.committed();
    }

    /// Returns to the committed offset after the open transaction was aborted. The verdicts stay, because the records are read again.
    pub(super) fn rewind(&mut self) {
        if self.is_ahead() {
            // The partition first reads earlier records again, which do not wait for this schema.
            self.blocked_on_schema = None;
        }
        self.position = self.committed;
        self.ends_worker = false;
        self.verdicts.restart_replay();
        if fault::defect("verdicts_forgotten_on_abort") {
            self.verdicts = Verdicts::default();
        }
    }

    /// True if the input holds back no record. False if a record was passed over, if the partition is paused, if the next record waits for
    /// a schema or ends the worker, or during a replay.
    fn is_up_to_date(&self) -> bool {
        let is_read = self.wait == Wait::No || fault::defect("passed_over_records_stepped_over");
        is_read && self.blocked_on_schema.is_none() && !self.ends_worker && self.verdicts.replay_complete()
    }

    /// Advances past offsets below `to` that have no record to process, for example offsets of control records and aborted records. Returns
    /// true if the new position must be committed.
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
            // No record has been judged yet, so the group now starts at the new position.
            self.first = Some(to);
        }
        self.position = to;
        true
    }

    /// Starts a stall if all fetched records are processed, but the position is below `end`, the high watermark. A stall that has already
    /// started at this position continues. Clears the stall if the position is not below `end`, or if the input holds back a record.
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

#[cfg(test)]
mod tests {
    use super::super::{stall::STALLED, verdicts::Recall};
    use super::*;
    use crate::record::SpaceId;

    fn input(position: Offset) -> Input {
        Input {
            partition: TopicPartition { topic: "in".to_owned(), partition: 0 },
            topic_incarnation: "in".to_owned(),
            topic: TopicId(0),
            states: vec![StateProgress::new(StateId::default(), (position, position), None, true)],
            first: Some(position),
            position,
            committed: position,
            group: Committed { offset: Some(position), metadata: String::new() },
            warm_until: position,
            warming_up: false,
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
    fn control_records_are_skipped_and_the_group_starts_after_them() {
        let mut input = input(5);
        assert!(!input.step_over(5) && !input.step_over(3), "never back");
        assert!(input.step_over(7));
        assert_eq!((input.position, input.committed, input.first, input.is_ahead()), (7, 5, Some(7), true));
        input.rewind();
        assert_eq!(input.position, 5);
        assert!(input.step_over(7), "after an abort");
    }

    #[test]
    fn nothing_is_skipped_while_records_remain() {
        // The warm-up ends at the position, or three records later.
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
    fn a_warm_up_ends_at_control_records_and_commits_only_later_offsets() {
        let mut input = Input { warm_until: 8, committed: 5, first: None, ..input(5) };
        assert!(!input.step_over(7), "a warm-up has nothing to commit");
        assert_eq!((input.position, input.is_warm_up(input.position)), (7, true));
        assert!(input.step_over(10));
        assert_eq!((input.position, input.committed, input.first), (10, 8, None));
    }

    #[test]
    fn a_retried_record_is_counted_once_and_keeps_its_verdict() {
        let mut input = input(5);
        input.remember(5, &[Verdict::Unseen, Verdict::Duplicate]);
        assert!(input.advance(7) && input.is_ahead() && input.has_unlogged());
        input.rewind();
        assert_eq!((input.position(), input.replay_complete(), input.is_counted(6)), (5, false, true));
        assert_eq!(input.verdicts().recall(5), Recall::Decided(Verdict::Unseen));
        input.remember(5, &[Verdict::Unseen]);
        assert!(!input.advance(6), "already counted");
        input.note_commit(String::new());
        input.rewind();
        assert_eq!((input.position(), input.group().offset), (6, Some(6)), "an abort does not undo a commit");
        assert_eq!(input.verdicts().recall(6), Recall::Decided(Verdict::Duplicate), "not committed yet");
    }

    /// A state never processes a record twice, even if it was restored to a later offset than the other states of its input.
    #[test]
    fn each_state_warms_up_from_its_own_offset() {
        let state = |space| StateId { space: SpaceId(space), partition: 0 };
        let progress = |space, start, time| StateProgress::new(state(space), (start, 10), Some(time), true);
        let states = vec![progress(0, 5, 0), progress(1, 8, 1), progress(2, 10, 2)];
        let mut input = Input { states, warm_until: 10, warming_up: true, ..input(5) };
        let span = |input: &Input, space| (input.unlogged(state(space)).start, input.unlogged(state(space)).end);
        input.warmed_up(6);
        assert_eq!([0, 1, 2].map(|space| input.is_in(state(space), 7)), [false, true, true]);
        assert_eq!([0, 1, 2].map(|space| input.reached(state(space))), [7, 8, 10]);
        assert_eq!([0, 1, 2].map(|space| input.warms_up(state(space))), [true, true, false]);
        assert_eq!([0, 1, 2].map(|space| input.logs_warm_up(state(space))), [true, true, false]);
        assert_eq!([0, 1, 2].map(|space| span(&input, space)), [(5, 7), (8, 8), (10, 10)]);
        assert_eq!([0, 1].map(|space| input.max_timestamp(state(space), 9, 77)), [0, 1]);
        input.note_logged();
        input.skip_warm_up();
        assert_eq!([0, 1, 2].map(|space| span(&input, space)), [(7, 10), (8, 10), (10, 10)]);
        assert!(![0, 1, 2].into_iter().any(|space| input.warms_up(state(space)) || input.is_in(state(space), 10)));
        assert_eq!(input.max_timestamp(state(1), 10, 77), 77);
    }

    #[test]
    fn a_stall_begins_when_the_partition_stops_and_ends_when_it_moves() {
        let (mut input, start) = (input(5), Instant::now());
        input.note_stall(Some(9), start);
        input.note_stall(Some(12), start + STALLED);
        let stall = input.stall.as_mut().expect("the partition has stalled");
        assert!(stall.must_ask(start + STALLED) && !stall.must_ask(start + STALLED / 2));
        assert_eq!(stall.open_transaction_since(), None, "no broker has answered yet");
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
