//! Infers which of a commit's records with the same key were emitted.
//!
//! The changelog shows how often a commit inserted the key, but not for which records. This module infers the records from their order. It
//! never does I/O and never reports a record as emitted if the changelog also allows another outcome.

use super::history::{CHANGES_MAX, Memory, Target};
use crate::dedup::{Late, Mutation, Rules};
use crate::filter::Slice;
use crate::record::{Offset, Timestamp};

/// A record with the requested key in the commit that is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occurrence {
    /// Index in `Commit::spans` of the offset range that contains the record.
    pub(super) span: usize,
    pub(super) offset: Offset,
    pub(super) time: Option<Timestamp>,
    pub(super) retracts: bool,
    /// See [`super::history::Seen::content`].
    pub(super) content: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Occurrences {
    /// The records, sorted by span, and within a span by offset. The order of records in different spans is unknown.
    pub(super) all: Vec<Occurrence>,
    /// True if records may be missing: they no longer exist, their key could not be read, or there are more than `CHANGES_MAX`.
    pub(super) may_be_incomplete: bool,
}

/// The state of the key when a record was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// No earlier record of the commit had inserted or retracted the key.
    Commit,
    /// The record with this index in the same commit had been emitted.
    Record(usize),
    /// A record of the same commit had retracted the key.
    Retracted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordOutcome {
    /// The record was emitted. Contains the state of the key before the record, if known.
    Emitted(Option<Before>),
    /// The record was dropped. Contains the state of the key before the record, if known.
    Dropped(Option<Before>),
    /// The record retracted its key. The key may have been unseen.
    Retracted,
    /// The commit emitted `emitted` of `of` records, and it is unknown whether this record is one of them.
    Unclear { emitted: usize, of: usize },
}

impl Occurrences {
    /// Adds a record. If there are already `CHANGES_MAX` records, marks the list as incomplete instead.
    pub(super) fn push(&mut self, occurrence: Occurrence) {
        if self.all.len() < CHANGES_MAX {
            self.all.push(occurrence);
        } else {
            self.may_be_incomplete = true;
        }
    }

    pub(super) fn outcome(&self, at: usize, target: &Target, rules: &Rules) -> RecordOutcome {
        if self.all[at].retracts {
            return RecordOutcome::Retracted;
        }
        let emitted = target.emissions();
        let judged = self.all.iter().filter(|other| !other.retracts).count();
        if emitted == 0 {
            return RecordOutcome::Dropped(self.before(at, target));
        }
        if emitted >= judged && !self.may_be_incomplete {
            return RecordOutcome::Emitted(self.before_emission(at));
        }
        let order = if self.is_ordered(target, rules) { self.order(target, rules) } else { None };
        order.map_or(RecordOutcome::Unclear { emitted, of: judged }, |order| order[at])
    }

    /// Returns the index of the last record that was certainly emitted.
    pub(super) fn emitter(&self, target: &Target, rules: &Rules) -> Option<usize> {
        (0..self.all.len()).rev().find(|&at| matches!(self.outcome(at, target, rules), RecordOutcome::Emitted(_)))
    }

    /// True if the outcomes can be derived from the order of the records: the list is complete, all records are from one input, no record
    /// can have been late, and the filter cannot have forgotten the key between two of the records.
    fn is_ordered(&self, target: &Target, rules: &Rules) -> bool {
        // A filter with slices never forgets a key within a slice, except that a cuckoo filter may delete the key when another key is
        // retracted.
        let never_forgets = rules.is_sliced() && !(target.retracts && rules.retracts_by_filter());
        let any_late = self.all.iter().any(|other| may_be_late(other, target, rules));
        let is_of_one_slice =
            self.all.iter().map(|other| clock_at(other, target, rules)).all(|(first, last)| first.is_some() && first == last);
        !self.may_be_incomplete && !any_late && self.is_of_one_topic() && never_forgets && is_of_one_slice
    }

    /// Returns the state of the key before a record, for a commit that emitted no record with the key. `None` if unknown.
    fn before(&self, at: usize, target: &Target) -> Option<Before> {
        if !target.changes.iter().any(|change| change.mutation == Mutation::Delete) {
            return Some(Before::Commit);
        }
        let is_retracted = self.all[..at].iter().any(|other| other.retracts);
        let is_known = !self.may_be_incomplete && self.is_of_one_topic();
        is_known.then_some(if is_retracted { Before::Retracted } else { Before::Commit })
    }

    /// Returns the state of the key before a record, for a commit that emitted all records with the key. `None` if unknown.
    fn before_emission(&self, at: usize) -> Option<Before> {
        if self.all.len() > 1 && !self.is_of_one_topic() {
            return None;
        }
        let last = at.checked_sub(1);
        Some(last.map_or(Before::Commit, |last| if self.all[last].retracts { Before::Retracted } else { Before::Record(last) }))
    }

    fn is_of_one_topic(&self) -> bool {
        self.all.iter().all(|other| other.span == self.all[0].span)
    }

    /// Returns the outcome of each record, or `None` if the order of the records does not determine the outcomes. Simulates an exact
    /// window. If it is unknown whether the key was seen before the commit, simulates both cases. Exactly one simulation must produce the
    /// changes in the changelog.
    fn order(&self, target: &Target, rules: &Rules) -> Option<Vec<RecordOutcome>> {
        let done = target.changes.iter().filter(|change| change.mutation != Mutation::Refresh);
        let done: Vec<_> = done.map(|change| (change.mutation, change.content)).collect();
        let before = target.before.seen.as_ref().map_or(0, |seen| seen.content);
        let candidates: &[bool] = match target.before.memory(rules, target.clock) {
            Memory::Seen => &[true],
            Memory::Unseen => &[false],
            Memory::Expiring => &[true, false],
        };
        let mut matches = candidates.iter().filter_map(|&is_seen| {
            let (outcomes, would) = self.simulate(is_seen.then_some(before), rules.exact);
            (would == done).then_some(outcomes)
        });
        // If both simulations match, it is unknown which of their outcomes happened.
        matches.next().filter(|_| matches.next().is_none())
    }

    /// Simulates an exact window. `seen` is the content of the last emitted record with the key, or `None` if the key is unseen. Returns
    /// the outcome of each record, and the changes that a worker would log, with their contents.
    fn simulate(&self, seen: Option<u64>, exact: bool) -> (Vec<RecordOutcome>, Vec<(Mutation, u64)>) {
        let (mut seen, mut unseen) = (seen.map(|content| (Before::Commit, content)), Before::Commit);
        let (mut outcomes, mut would) = (Vec::with_capacity(self.all.len()), Vec::new());
        for (at, record) in self.all.iter().enumerate() {
            outcomes.push(match (record.retracts, seen) {
                (true, before) => {
                    // A filter without an exact store logs every retraction, because it cannot tell whether it has the key.
                    if before.is_some() || !exact {
                        would.push((Mutation::Delete, record.content));
                    }
                    (seen, unseen) = (None, Before::Retracted);
                    RecordOutcome::Retracted
                }
                (false, Some((before, content))) if content == record.content => RecordOutcome::Dropped(Some(before)),
                (false, before) => {
                    would.push((Mutation::Insert, record.content));
                    seen = Some((Before::Record(at), record.content));
                    RecordOutcome::Emitted(Some(before.map_or(unseen, |(before, _)| before)))
                }
            });
        }
        (outcomes, would)
    }
}

/// Returns the earliest and the latest possible slice of the clock when a record was processed.
pub(super) fn clock_at(record: &Occurrence, target: &Target, rules: &Rules) -> (Option<Slice>, Option<Slice>) {
    // In a time window, a record's own time advances the clock before the verdict, unless the time is too far in the future.
    let own = record.time.filter(|&time| rules.is_sliced() && target.stream_time.1.is_some_and(|end| time <= end));
    (target.clock.0.max(own.and_then(|time| rules.window.slice_at(time))), target.clock.1)
}

/// True if a record may have been late. Always false with `late = "emit"`.
pub(super) fn may_be_late(record: &Occurrence, target: &Target, rules: &Rules) -> bool {
    is_late(record, target.stream_time.1, rules)
}

/// True if a record was certainly late, regardless of its position in the commit.
pub(super) fn was_late(record: &Occurrence, target: &Target, rules: &Rules) -> bool {
    is_late(record, target.stream_time.0, rules)
}

/// True if a record may have been older than the window. Ignores the setting `late`.
pub(super) fn was_old(record: &Occurrence, target: &Target, rules: &Rules) -> bool {
    is_old(record, target.stream_time.1, rules)
}

fn is_late(record: &Occurrence, stream_time: Option<Timestamp>, rules: &Rules) -> bool {
    rules.late != Late::Emit && is_old(record, stream_time, rules)
}

fn is_old(record: &Occurrence, stream_time: Option<Timestamp>, rules: &Rules) -> bool {
    match (rules.window.length_ms(), stream_time, record.time) {
        (Some(length), Some(stream_time), Some(time)) => stream_time.saturating_sub(time) > length,
        _ => false,
    }
}
