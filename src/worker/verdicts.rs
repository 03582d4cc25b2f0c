//! The verdicts of uncommitted records: decide once, emit until committed.
//!
//! Keeps the verdict of each record until the record is committed. A verdict is decided when its record is first read, and the filter
//! changes immediately. If the transaction aborts, the record is read again. The filter would then report it as a duplicate of itself, and
//! the record would be lost. So this module never forgets a verdict before the transaction with its record is committed.
//!
//! **Storage.** Each `Input` (`input.rs`) has the [`Verdicts`] of its partition. `judge_batch` (`judge.rs`), `process_one`, and
//! `process_forwarded` (`records.rs`) add a verdict with [`Verdicts::remember`] before the record is written. Two kinds of records have no
//! verdict here: records of a warm-up, which are already committed, and records that are forwarded to a repartition topic, where they are
//! judged later.
//!
//! **Aborts.** `abort` calls `Worker::rewind` (`commit.rs`), which calls `Input::rewind` for every partition, unless the group has taken
//! all partitions from this member. The position returns to the committed offset. The verdicts stay, but their records are no longer in the
//! open transaction ([`Verdicts::restart_replay`]). The replay of a partition is complete when all records with a verdict are in the open
//! transaction again.
//!
//! **Recall.** `judge_one` (`judge.rs`) recalls the verdict of a record with [`Verdicts::recall`] and asks the filter only if the record
//! has no verdict. `process_forwarded` does the same for records without a key, which are not forwarded.
//!
//! **Replay.** Until the replay of a partition is complete, its records are not judged in batches, and the worker does not step over its
//! control records. Until the replays of all partitions are complete (`Assignment::is_replaying`), the worker commits nothing. If the
//! transaction fills up during a replay, new records of all partitions wait (`Assignment::holds_new_records`), and the replayed records may
//! exceed the limit of the transaction. A state is checkpointed only when its inputs have no verdicts ([`Verdicts::is_empty`]).
//!
//! **Removal.** `Input::note_commit` drops the verdicts of the records in a committed transaction. If the outcome of a transaction is
//! unknown, `resolve_in_doubt` (`commit.rs`) reads the group's committed offset and treats the transaction as committed or aborted.
//!
//! **Exceptions.**
//!
//! - If a topic rejects a record, `isolate_rejected` (`commit.rs`) makes the record invalid ([`Verdicts::refuse`]) or keeps the verdict and
//!   lets the next attempt write fewer headers ([`Verdicts::shorten`]).
//! - If a partition leaves this worker or is restored, its verdicts are dropped together with its state. The next state is restored at the
//!   committed offset and does not contain the uncommitted records, so they are judged again. `recovery.rs` restores a partition if a
//!   record does not arrive again ([`Recall::Gap`]), if the replay takes longer than half of the transaction timeout, if transactions are
//!   too large for the brokers, or if the state is lost.
//! - If several entries of the configuration read the input, a record whose schema is unknown waits although it has a verdict, unless the
//!   verdict is `Invalid` (`process_one`).

use crate::record::{Invalid, Offset, Verdict};
use std::collections::BTreeMap;

/// The verdicts of one partition since its last commit, in offset order.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// One byte per verdict, because a transaction can have millions of records.
    decided: Vec<Verdict>,
    /// The offsets of the records with a verdict.
    runs: Vec<VerdictRun>,
    /// The number of verdicts whose records are in the open transaction. Less than the total only after an abort.
    in_transaction: usize,
    /// The brokers' reasons for rejecting records, by offset.
    refused: BTreeMap<Offset, Invalid>,
}

/// Verdicts of records with consecutive offsets.
#[derive(Clone, Copy, Debug)]
struct VerdictRun {
    /// The offset of the first record and the index of its verdict.
    start: Offset,
    first: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recall {
    /// No verdict, because the record is read for the first time.
    New,
    /// The verdict from before an abort.
    Decided(Verdict),
    /// Earlier records with a verdict were not read again. Holds the offset of the first such record. These records must not be skipped
    /// silently.
    Gap(Offset),
}

impl Verdicts {
    /// Recalls the verdict of the next record, which was read at this offset.
    #[inline]
    pub(super) fn recall(&self, offset: Offset) -> Recall {
        let Some(&verdict) = self.decided.get(self.in_transaction) else { return Recall::New };
        match self.offset(self.in_transaction) {
            decided if decided == offset => Recall::Decided(verdict),
            decided => Recall::Gap(decided),
        }
    }

    /// Adds consecutive records to the open transaction. Either all of them are new, or all of them already have a verdict.
    #[inline]
    pub(super) fn remember(&mut self, first: Offset, verdicts: &[Verdict]) {
        let end = self.decided.len();
        if self.in_transaction == end {
            if self.runs.last().is_none_or(|run| run.at(end) != first) {
                self.runs.push(VerdictRun { start: first, first: end });
            }
            self.decided.extend_from_slice(verdicts);
        }
        self.in_transaction += verdicts.len();
    }

    /// Removes the last records from the open transaction, because they were not written. Their verdicts stay.
    pub(super) const fn give_back(&mut self, records: usize) {
        self.in_transaction -= records;
    }

    pub(super) fn verdict(&self, offset: Offset) -> Option<Verdict> {
        self.index(offset).map(|index| self.decided[index])
    }

    /// Makes a record invalid, because a broker rejected it. Does nothing if the record has no verdict here.
    pub(super) fn refuse(&mut self, offset: Offset, invalid: Invalid) {
        if let Some(index) = self.index(offset) {
            self.decided[index] = Verdict::Invalid(invalid.reason);
            self.refused.insert(offset, invalid);
        }
    }

    /// Stores the broker's reason for rejecting a record. The verdict stays, and the next attempt writes fewer headers.
    pub(super) fn shorten(&mut self, offset: Offset, invalid: Invalid) {
        self.refused.insert(offset, invalid);
    }

    #[inline]
    pub(super) fn refused(&self, offset: Offset) -> Option<&Invalid> {
        self.refused.get(&offset)
    }

    fn offset(&self, index: usize) -> Offset {
        // The first run starts at index 0, so at least one run starts at or before `index`.
        self.runs[self.runs.partition_point(|run| run.first <= index) - 1].at(index)
    }

    fn index(&self, offset: Offset) -> Option<usize> {
        let run = self.runs.partition_point(|run| run.start <= offset).checked_sub(1)?;
        let end = self.runs.get(run + 1).map_or(self.decided.len(), |next| next.first);
        let VerdictRun { start, first } = self.runs[run];
        Some(first + usize::try_from(offset - start).ok()?).filter(|&index| index < end)
    }

    /// Drops the verdicts of the records in the open transaction after it was committed.
    pub(super) fn committed(&mut self) {
        let left = self.decided.get(self.in_transaction).map(|_| self.offset(self.in_transaction));
        self.decided.drain(..self.in_transaction);
        self.refused = left.map_or_else(BTreeMap::new, |left| self.refused.split_off(&left));
        self.runs.retain_mut(|run| {
            let is_left = run.first >= self.in_transaction;
            run.first = run.first.saturating_sub(self.in_transaction);
            is_left
        });
        // If the transaction ended within a run, the rest of that run becomes the first run.
        if let Some(start) = left.filter(|_| self.runs.first().is_none_or(|run| run.first > 0)) {
            self.runs.insert(0, VerdictRun { start, first: 0 });
        }
        self.in_transaction = 0;
    }

    /// Restarts the replay from the first verdict, because an abort has removed all records from the open transaction.
    pub(super) const fn restart_replay(&mut self) {
        self.in_transaction = 0;
    }

    pub(super) const fn replay_complete(&self) -> bool {
        self.in_transaction == self.decided.len()
    }

    /// True if every record with a verdict is committed. A checkpoint may be taken only in this case.
    pub(super) const fn is_empty(&self) -> bool {
        self.decided.is_empty()
    }
}

impl VerdictRun {
    /// Returns the offset of the record whose verdict has this index.
    const fn at(self, index: usize) -> Offset {
        self.start + (index - self.first).cast_signed() as Offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Reason;
    use Verdict::{Duplicate, Unseen};

    fn refusal(offset: Offset) -> Invalid {
        Invalid { reason: Reason::Refused, message: format!("refused at {offset}") }
    }

    proptest::proptest! {
        /// Compares [`Verdicts`] with a plain list of offsets and verdicts, with random gaps between records and random transaction ends.
        #[test]
        fn it_behaves_like_a_list_of_pairs(steps in proptest::collection::vec((0_u8..8, 0_i64..4, 0_i64..40), 1..200)) {
            let (mut verdicts, mut list, mut in_transaction, mut next) = (Verdicts::default(), Vec::new(), 0, 10);
            for (what, gap, asked) in steps {
                match what {
                    0 => {
                        verdicts.committed();
                        list.drain(..in_transaction);
                        in_transaction = 0;
                    }
                    1 => {
                        verdicts.restart_replay();
                        in_transaction = 0;
                    }
                    2 => {
                        verdicts.refuse(asked, refusal(asked));
                        let refused = Verdict::Invalid(Reason::Refused);
                        list.iter_mut().filter(|(offset, _)| *offset == asked).for_each(|(_, verdict)| *verdict = refused);
                    }
                    3 if in_transaction == list.len() && gap > 0 => {
                        let seen: Vec<_> = (0..gap).map(|number| (number + asked) % 3 != 0).collect();
                        let taken: Vec<_> = seen.iter().map(|&seen| if seen { Duplicate } else { Unseen }).collect();
                        verdicts.remember(next + 1, &taken);
                        list.extend((next + 1..).zip(taken));
                        next += gap;
                        in_transaction = list.len();
                    }
                    _ => {
                        if in_transaction == list.len() {
                            next += 1 + gap / 3;
                            list.push((next, if gap == 0 { Unseen } else { Duplicate }));
                            proptest::prop_assert_eq!(verdicts.recall(next), Recall::New);
                        } else {
                            proptest::prop_assert_eq!(verdicts.recall(list[in_transaction].0), Recall::Decided(list[in_transaction].1));
                            proptest::prop_assert_eq!(verdicts.recall(0), Recall::Gap(list[in_transaction].0));
                        }
                        let (offset, verdict) = list[in_transaction];
                        verdicts.remember(offset, &[verdict]);
                        in_transaction += 1;
                    }
                }
                let found = list.iter().find(|(offset, _)| *offset == asked).map(|&(_, verdict)| verdict);
                proptest::prop_assert_eq!(verdicts.verdict(asked), found);
                let refused = found == Some(Verdict::Invalid(Reason::Refused));
                proptest::prop_assert_eq!(verdicts.refused(asked).cloned(), refused.then(|| refusal(asked)));
                proptest::prop_assert_eq!((verdicts.is_empty(), verdicts.replay_complete()), (list.is_empty(), in_transaction == list.len()));
            }
        }
    }

    #[test]
    fn an_aborted_record_keeps_its_verdict() {
        let mut verdicts = Verdicts::default();
        for (offset, verdict) in [(10, Unseen), (11, Duplicate), (14, Unseen)] {
            assert_eq!(verdicts.recall(offset), Recall::New);
            verdicts.remember(offset, &[verdict]);
        }
        verdicts.restart_replay();
        for (offset, verdict) in [(10, Unseen), (11, Duplicate)] {
            assert_eq!(verdicts.recall(offset), Recall::Decided(verdict));
            verdicts.remember(offset, &[verdict]);
        }
        verdicts.committed();
        assert!(!verdicts.is_empty(), "offset 14 is not in the transaction yet");
        assert_eq!(verdicts.recall(14), Recall::Decided(Unseen));
        verdicts.remember(14, &[Unseen]);
        assert_eq!(verdicts.recall(15), Recall::New);
        verdicts.remember(15, &[Unseen]);
        verdicts.committed();
        assert!(verdicts.is_empty());
    }

    #[test]
    fn a_missing_record_with_a_verdict_is_a_gap() {
        let mut verdicts = Verdicts::default();
        verdicts.remember(10, &[Unseen]);
        verdicts.remember(11, &[Unseen]);
        verdicts.restart_replay();
        assert_eq!(verdicts.recall(11), Recall::Gap(10));
    }

    #[test]
    fn a_rejection_by_the_broker_changes_the_verdict() {
        let mut verdicts = Verdicts::default();
        verdicts.remember(10, &[Unseen]);
        verdicts.refuse(10, refusal(10));
        verdicts.refuse(99, refusal(99));
        verdicts.restart_replay();
        assert_eq!(verdicts.recall(10), Recall::Decided(Verdict::Invalid(Reason::Refused)));
        assert_eq!((verdicts.refused(10), verdicts.refused(99)), (Some(&refusal(10)), None));
    }
}
