//! Decide once, emit until committed.
//!
//! A verdict is taken once, when a record is first read, and the filter is changed at once. If the
//! transaction aborts, the record is read again; asking the filter again would call it its own
//! duplicate, and lose it. So verdicts are kept until the transaction that carries them is committed.

use crate::record::{Offset, Verdict};

/// The verdicts of one partition since its last commit, in order of offset.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    taken: Vec<(Offset, Verdict)>,
    /// How many of them the open transaction carries; less than all only after an abort.
    carried: usize,
}

/// What is known of a record before the filter is asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recall {
    /// It is read for the first time.
    New,
    /// It was decided before an abort.
    Decided(Verdict),
    /// Records that were decided before it do not come again: they must not be passed over in silence.
    Gap(Offset),
}

impl Decisions {
    /// Looks up the next record to be carried.
    pub(super) fn recall(&self, offset: Offset) -> Recall {
        match self.taken.get(self.carried) {
            None => Recall::New,
            Some(&(decided, verdict)) if decided == offset => Recall::Decided(verdict),
            Some(&(decided, _)) => Recall::Gap(decided),
        }
    }

    /// The open transaction carries this record, new or not.
    pub(super) fn carry(&mut self, offset: Offset, verdict: Verdict) {
        if self.carried == self.taken.len() {
            self.taken.push((offset, verdict));
        }
        self.carried += 1;
    }

    /// What was decided of a record.
    pub(super) fn verdict(&self, offset: Offset) -> Option<Verdict> {
        self.at(offset).map(|at| self.taken[at].1)
    }

    /// Changes the verdict of a record: it cannot be written as it was decided.
    pub(super) fn revise(&mut self, offset: Offset, verdict: Verdict) {
        if let Some(at) = self.at(offset) {
            self.taken[at].1 = verdict;
        }
    }

    fn at(&self, offset: Offset) -> Option<usize> {
        self.taken.binary_search_by_key(&offset, |&(decided, _)| decided).ok()
    }

    /// The open transaction is committed.
    pub(super) fn committed(&mut self) {
        self.taken.drain(..self.carried);
        self.carried = 0;
    }

    /// The open transaction is aborted: everything is carried anew.
    pub(super) const fn rewind(&mut self) {
        self.carried = 0;
    }

    /// Whether the open transaction carries all that is decided.
    pub(super) const fn is_all_carried(&self) -> bool {
        self.carried == self.taken.len()
    }

    /// Whether nothing is decided but uncommitted: the barrier at which a checkpoint may be taken.
    pub(super) const fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Duplicate, Unseen};

    #[test]
    fn an_aborted_record_keeps_its_verdict() {
        let mut decisions = Decisions::default();
        for (offset, verdict) in [(10, Unseen), (11, Duplicate), (14, Unseen)] {
            assert_eq!(decisions.recall(offset), Recall::New);
            decisions.carry(offset, verdict);
        }
        decisions.rewind();
        for (offset, verdict) in [(10, Unseen), (11, Duplicate)] {
            assert_eq!(decisions.recall(offset), Recall::Decided(verdict));
            decisions.carry(offset, verdict);
        }
        decisions.committed();
        assert!(!decisions.is_empty(), "offset 14 is still to be carried");
        assert_eq!(decisions.recall(14), Recall::Decided(Unseen));
        decisions.carry(14, Unseen);
        assert_eq!(decisions.recall(15), Recall::New);
        decisions.carry(15, Unseen);
        decisions.committed();
        assert!(decisions.is_empty());
    }

    #[test]
    fn a_decided_record_is_not_passed_over() {
        let mut decisions = Decisions::default();
        decisions.carry(10, Unseen);
        decisions.carry(11, Unseen);
        decisions.rewind();
        assert_eq!(decisions.recall(11), Recall::Gap(10));
    }

    #[test]
    fn a_verdict_may_be_revised() {
        let mut decisions = Decisions::default();
        decisions.carry(10, Unseen);
        decisions.revise(10, Duplicate);
        decisions.revise(99, Duplicate);
        decisions.rewind();
        assert_eq!(decisions.recall(10), Recall::Decided(Duplicate));
    }
}
