//! Which of the records of one commit that have one key came out.
//!
//! A commit says how often it inserted the key, and not of which record. Owns what follows from the order of records. Pure.
//! Must never name a record where another order is as possible.

use super::history::{CHANGES_MAX, Memory, Target};
use crate::dedup::{Late, Mutation, Rules};
use crate::filter::Slice;
use crate::record::{Offset, Timestamp};

/// A record that has the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occurrence {
    /// Which of the commit's spans it lies in.
    pub(super) span: usize,
    pub(super) offset: Offset,
    pub(super) time: Option<Timestamp>,
    pub(super) retracts: bool,
}

/// The records of a commit that have the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Occurrences {
    /// In order within each span.
    pub(super) all: Vec<Occurrence>,
    /// Whether there may be others: some could not be read any more, or are of another key.
    pub(super) may_lack_some: bool,
}

/// What had been seen of the key when a record was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// What was known before the commit.
    Commit,
    /// This record of the same commit, by number, had come out.
    Record(usize),
    /// A record of the same commit had retracted it.
    Retracted,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It came out; that had been seen of the key, where it is known.
    Emitted(Option<Before>),
    /// It did not; the key had been seen so, where that is known.
    Dropped(Option<Before>),
    /// It took its key back.
    Retracted,
    /// So many of so many did, and it is not known whether this is one of them.
    Unclear { emitted: usize, of: usize },
}

impl Occurrences {
    /// Those that a commit cannot have more of than are kept.
    pub(super) fn push(&mut self, occurrence: Occurrence) {
        if self.all.len() < CHANGES_MAX {
            self.all.push(occurrence);
        } else {
            self.may_lack_some = true;
        }
    }

    /// What became of record number `at`.
    pub(super) fn fate(&self, at: usize, target: &Target, rules: &Rules) -> Fate {
        if self.all[at].retracts {
            return Fate::Retracted;
        }
        let emitted = target.emissions();
        let judged = self.all.iter().filter(|other| !other.retracts).count();
        if emitted == 0 {
            return Fate::Dropped(self.before(at, target));
        }
        if emitted >= judged && !self.may_lack_some {
            return Fate::Emitted(self.before_emission(at));
        }
        let order = if self.is_ordered(target, rules) { self.order(target, rules) } else { None };
        order.map_or(Fate::Unclear { emitted, of: judged }, |order| order[at])
    }

    /// The record that inserted the key, if it is known which: the last of them.
    pub(super) fn emitter(&self, target: &Target, rules: &Rules) -> Option<usize> {
        (0..self.all.len()).rev().find(|&at| matches!(self.fate(at, target, rules), Fate::Emitted(_)))
    }

    /// Whether the order of the records says which of them came out.
    fn is_ordered(&self, target: &Target, rules: &Rules) -> bool {
        // Within a slice, a filter never forgets, unless another key is taken back.
        let never_forgets = rules.is_sliced() && !(target.retracts && rules.retracts_by_filter());
        let any_late = self.all.iter().any(|other| may_be_late(other, target, rules));
        let is_of_one_slice =
            self.all.iter().map(|other| clock_at(other, target, rules)).all(|(first, last)| first.is_some() && first == last);
        !self.may_lack_some && !any_late && self.is_of_one_topic() && never_forgets && is_of_one_slice
    }

    /// What had been seen of the key, if no record of the commit came out.
    fn before(&self, at: usize, target: &Target) -> Option<Before> {
        if !target.changes.iter().any(|&(mutation, _)| mutation == Mutation::Delete) {
            // Whoever took it back took back nothing.
            return Some(Before::Commit);
        }
        let is_retracted = self.all[..at].iter().any(|other| other.retracts);
        let is_known = !self.may_lack_some && self.is_of_one_topic();
        is_known.then_some(if is_retracted { Before::Retracted } else { Before::Commit })
    }

    /// What had been seen of the key, if all records of the commit with it came out.
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

    /// What became of each, if what an exact window would have done is what was done.
    fn order(&self, target: &Target, rules: &Rules) -> Option<Vec<Fate>> {
        let done: Vec<_> = target.changes.iter().map(|&(mutation, _)| mutation).filter(|&mutation| mutation != Mutation::Refresh).collect();
        let tries: &[bool] = match target.before.memory(rules, target.clock) {
            Memory::Seen => &[true],
            Memory::Unseen => &[false],
            Memory::Expiring => &[true, false],
        };
        let mut found = tries.iter().filter_map(|&is_seen| {
            let (fates, would) = self.play(is_seen, rules.exact);
            (would == done).then_some(fates)
        });
        // Where both do, nothing is known.
        found.next().filter(|_| found.next().is_none())
    }

    /// What an exact window would do with them, one after the other, and how that would change it.
    fn play(&self, is_seen: bool, exact: bool) -> (Vec<Fate>, Vec<Mutation>) {
        let (mut seen, mut unseen) = (is_seen.then_some(Before::Commit), Before::Commit);
        let (mut fates, mut would) = (Vec::with_capacity(self.all.len()), Vec::new());
        for (at, record) in self.all.iter().enumerate() {
            fates.push(match (record.retracts, seen) {
                (true, before) => {
                    // A filter alone does not know whether it is there.
                    if before.is_some() || !exact {
                        would.push(Mutation::Delete);
                    }
                    (seen, unseen) = (None, Before::Retracted);
                    Fate::Retracted
                }
                (false, Some(before)) => Fate::Dropped(Some(before)),
                (false, None) => {
                    would.push(Mutation::Insert);
                    seen = Some(Before::Record(at));
                    Fate::Emitted(Some(unseen))
                }
            });
        }
        (fates, would)
    }
}

/// How far the clock had come when a record was judged: at least, and at most.
pub(super) fn clock_at(record: &Occurrence, target: &Target, rules: &Rules) -> (Option<Slice>, Option<Slice>) {
    // Its own time, if that was not too far ahead, came before it was judged.
    let own = record.time.filter(|&time| rules.is_sliced() && target.stream_time.1.is_some_and(|end| time <= end));
    (target.clock.0.max(own.and_then(|time| rules.window.slice_at(time))), target.clock.1)
}

/// Whether a record may have been older than the window, where that is for the topic's `late` to decide.
pub(super) fn may_be_late(record: &Occurrence, target: &Target, rules: &Rules) -> bool {
    is_late(record, target.stream_time.1, rules)
}

/// Whether it was, whenever in the commit it was judged.
pub(super) fn was_late(record: &Occurrence, target: &Target, rules: &Rules) -> bool {
    is_late(record, target.stream_time.0, rules)
}

/// Whether it may have been older than the window, whatever is made of that.
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
