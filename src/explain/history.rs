//! One key in a changelog: what was done to it, by which commits.
//!
//! Owns what is kept of that, which is bounded, however long the changelog is. Pure: who reads the changelog is for others to
//! know. Must never take what did not happen for what did: a group that was set back voids what it had logged.

use crate::changelog::{Applier, ChangelogRecord, Cut, Origin, Outcome, Span};
use crate::dedup::{Mutation, Rules};
use crate::filter::Slice;
use crate::key::Fingerprint;
use crate::record::{Offset, Timestamp};
use std::collections::BTreeMap;
use std::ops::Range;

/// Most changes of one key that are kept of one record of the changelog, and most records with one key of one commit.
pub(super) const CHANGES_MAX: usize = 4096;

/// One commit, as its changelog has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Commit {
    /// For each log that it read, which of its offsets.
    pub(super) spans: Vec<(String, Range<Offset>)>,
    pub(super) epoch: i64,
    /// Offset of its first record in the changelog.
    pub(super) at: Offset,
    /// When that was written.
    pub(super) time: Option<Timestamp>,
}

impl Commit {
    fn has(&self, log: &str, offset: Offset) -> bool {
        self.spans.iter().any(|(name, span)| name == log && span.contains(&offset))
    }
}

/// A key was inserted: its record came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Emission {
    pub(super) commit: Commit,
    /// The slice that it was inserted into.
    pub(super) slice: Option<Slice>,
}

/// That a key is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) emission: Emission,
    /// The slice that it was inserted into, or renewed in.
    pub(super) slice: Option<Slice>,
}

/// What the changelog has of one key, up to some place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) first: Option<Emission>,
    pub(super) emissions: u64,
    pub(super) retractions: u64,
    /// As of its last insertion, if it was not retracted since. It may have expired.
    pub(super) seen: Option<Seen>,
    /// Whether it was renewed when it was not seen: the filter took it for seen, and has it since.
    pub(super) is_wrongly_renewed: bool,
}

/// Whether a key is still seen, as far as that is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// It is.
    Seen,
    /// It is not: it was never inserted, or has expired, or was retracted.
    Unseen,
    /// It expires about then.
    Expiring,
}

impl Known {
    /// Whether it is seen where the clock is somewhere between the two.
    pub(super) fn memory(&self, rules: &Rules, clock: (Option<Slice>, Option<Slice>)) -> Memory {
        let Some(seen) = &self.seen else { return Memory::Unseen };
        if !rules.is_sliced() {
            // It forgets at random; that it was there is all that can be said.
            return Memory::Seen;
        }
        let is_kept = |clock: Option<Slice>| match (seen.slice, clock) {
            (Some(slice), Some(clock)) => clock.0.saturating_sub(slice.0) <= i64::from(rules.window.slices()),
            _ => true,
        };
        match (is_kept(clock.0), is_kept(clock.1)) {
            (true, true) => Memory::Seen,
            (false, false) => Memory::Unseen,
            _ => Memory::Expiring,
        }
    }

    fn change(&mut self, mutation: Mutation, slice: Option<Slice>, commit: &Commit, rules: &Rules) {
        match mutation {
            Mutation::Insert => {
                let emission = Emission { commit: commit.clone(), slice };
                self.first.get_or_insert_with(|| emission.clone());
                self.emissions += 1;
                self.seen = Some(Seen { emission, slice });
            }
            Mutation::Refresh => {
                let is_seen = self.memory(rules, (slice, slice)) != Memory::Unseen;
                match &mut self.seen {
                    Some(seen) if is_seen => seen.slice = slice,
                    _ => self.is_wrongly_renewed = true,
                }
            }
            Mutation::Delete => {
                self.retractions += 1;
                self.seen = None;
                self.is_wrongly_renewed = false;
            }
        }
    }

    /// Keys that came before any time was known belong to the first slice that is.
    fn begin(&mut self, slice: Slice) {
        if let Some(seen) = &mut self.seen {
            seen.slice.get_or_insert(slice);
        }
    }
}

/// The commit that decided the record that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) commit: Commit,
    /// What was known of the key before it.
    pub(super) before: Known,
    /// What it did to the key, in order.
    pub(super) changes: Vec<(Mutation, Option<Slice>)>,
    /// How far the clock had come before it, and with it.
    pub(super) clock: (Option<Slice>, Option<Slice>),
    /// The same of stream time.
    pub(super) stream_time: (Option<Timestamp>, Option<Timestamp>),
    /// Whether it took a key back, this one or another.
    pub(super) retracts: bool,
    /// Whether it was judged under the window and the kind that the configuration says.
    pub(super) is_alike: bool,
}

impl Target {
    fn insertions(&self) -> impl Iterator<Item = Option<Slice>> {
        self.changes.iter().filter(|(mutation, _)| *mutation == Mutation::Insert).map(|&(_, slice)| slice)
    }

    /// How many records with the key it emitted.
    pub(super) fn emissions(&self) -> usize {
        self.insertions().count()
    }

    /// The slice that it inserted the key into first.
    pub(super) fn inserted_into(&self) -> Option<Slice> {
        self.insertions().next().flatten()
    }
}

/// What to look for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Of a key that may be meant in several ways, all of them.
    pub(super) fingerprints: Vec<Fingerprint>,
    /// The record that is asked for: its log, and its offset there.
    pub(super) record: Option<(String, Offset)>,
}

/// How far a group has read a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// Where it began, as far as that is known.
    pub(super) first: Option<Offset>,
    pub(super) committed: Option<Offset>,
    /// Stream time of the state when that was committed.
    pub(super) stream_time: Option<Timestamp>,
}

/// What a changelog has of a key.
#[derive(Debug)]
pub(super) struct History<'w> {
    wanted: &'w Wanted,
    rules: &'w Rules,
    origin: Origin,
    applier: Applier,
    /// The first offset that the changelog has.
    low: Offset,
    /// By fingerprint.
    pub(super) known: Vec<Known>,
    pub(super) target: Option<Target>,
    /// The slice of the first record.
    first_slice: Option<Slice>,
    /// For each log, the first offset that the changelog knows of.
    pub(super) starts: BTreeMap<String, Offset>,
    /// Whether the state may have been changed before its first record, or between two of them, by what it does not have.
    begins_later: bool,
    /// Whether records are of other keys.
    pub(super) has_other_keys: bool,
    /// Whether records count other slices.
    pub(super) has_other_slices: bool,
    pub(super) clock: Option<Slice>,
    pub(super) stream_time: Option<Timestamp>,
    /// Of the commit that is being read.
    commit: Commit,
}

/// What to do after a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Read on.
    On,
    /// The group was set back: read again from the beginning, without what that voids.
    Again(Cut),
    /// The record is of another group or key space.
    Foreign,
    /// It was set back, and the changelog does not say to where.
    Lost,
}

impl<'w> History<'w> {
    /// Nothing is read yet of a changelog that begins at offset `low`. What goes past `bounds`, what the group has committed of
    /// each log, has not happened.
    pub(super) fn new(wanted: &'w Wanted, rules: &'w Rules, origin: Origin, bounds: BTreeMap<String, Offset>, low: Offset) -> Self {
        Self {
            low,
            known: vec![Known::default(); wanted.fingerprints.len()],
            wanted,
            rules,
            origin,
            applier: Applier::new(BTreeMap::new(), origin, bounds, None, 0),
            target: None,
            first_slice: None,
            starts: BTreeMap::new(),
            begins_later: false,
            has_other_keys: false,
            has_other_slices: false,
            clock: None,
            stream_time: None,
            commit: Commit::default(),
        }
    }

    /// Takes the next record in, which lies at `at` and was written at `time`. `cuts` are what was found to be void.
    pub(super) fn take(&mut self, at: Offset, time: Option<Timestamp>, record: &ChangelogRecord<'_>, cuts: &[Cut]) -> Next {
        if cuts.iter().any(|cut| cut.voids(at, record)) {
            self.applier.epoch = self.applier.epoch.max(record.epoch);
            return Next::On;
        }
        // Keys of a seed are of no log.
        let has_begun = !self.starts.is_empty() || self.applier.fingerprints > 0;
        let continues = !self.commit.spans.is_empty() && self.applier.continues(record);
        let lacks = |span: &Span<'_>| self.applier.offsets.get(span.topic).is_some_and(|&come_to| span.start > come_to);
        let has_gap = !continues && record.spans.iter().any(lacks);
        match self.applier.accept(record) {
            Outcome::Taken => {}
            Outcome::Foreign => return Next::Foreign,
            Outcome::SetBack => return self.applier.cut(at, record).map_or(Next::Lost, Next::Again),
            Outcome::Passed | Outcome::Gap => {
                if record.origin.keys != self.origin.keys {
                    self.has_other_keys = true;
                    self.begins_later |= self.starts.is_empty();
                }
                return Next::On;
            }
        }
        if has_gap {
            // What was judged in between was logged for other keys, or not at all. It begins anew.
            (self.begins_later, self.first_slice) = (true, None);
        }
        let is_alike = record.origin.clock == self.origin.clock;
        self.has_other_slices |= !is_alike;
        // What a state makes of the slices of another clock: only time passes.
        let slice_at = |time: Timestamp| self.rules.window.slice_at(time).filter(|_| self.rules.is_sliced());
        let slice = if is_alike { record.slice } else { record.time.and_then(slice_at) };
        let end = record.end_time.max(record.time);
        let clock = self.clock.max(slice).max(end.and_then(slice_at));
        let mut is_whole = true;
        if !continues {
            // Where a changelog was trimmed, parts of its first commit may be gone.
            is_whole = self.low == 0 || has_begun;
            self.begin_commit(at, time, record);
        }
        if let Some(slice) = slice {
            self.first_slice.get_or_insert(slice);
            self.known.iter_mut().for_each(|known| known.begin(slice));
        }
        let in_target = is_whole && self.in_target(continues, is_alike && record.origin.kind == self.origin.kind);
        let mut changes = Vec::new();
        for run in &record.runs {
            for fingerprint in run.fingerprints() {
                let Some(which) = self.wanted.fingerprints.iter().position(|&wanted| wanted == fingerprint) else { continue };
                self.known[which].change(run.mutation, slice, &self.commit, self.rules);
                if in_target && changes.len() < CHANGES_MAX {
                    changes.push((run.mutation, slice));
                }
            }
        }
        if let Some(target) = self.target.as_mut().filter(|_| in_target) {
            target.changes.extend(changes);
            target.retracts |= record.runs.iter().any(|run| run.mutation == Mutation::Delete);
            target.clock.1 = target.clock.1.max(clock);
            target.stream_time.1 = target.stream_time.1.max(end);
        }
        self.clock = clock;
        self.stream_time = self.stream_time.max(end);
        Next::On
    }

    fn begin_commit(&mut self, at: Offset, time: Option<Timestamp>, record: &ChangelogRecord<'_>) {
        let spans = record.spans.iter().map(|span| (span.topic.to_owned(), span.start..span.end)).collect();
        for span in &record.spans {
            if !self.starts.contains_key(span.topic) {
                self.starts.insert(span.topic.to_owned(), span.start);
            }
        }
        self.commit = Commit { spans, epoch: record.epoch, at, time };
    }

    /// Whether the commit that is being read has the record that is asked for. If it has just begun, that is noted.
    fn in_target(&mut self, continues: bool, is_alike: bool) -> bool {
        let Some((log, offset)) = &self.wanted.record else { return false };
        let is_it = self.commit.has(log, *offset);
        if continues {
            return is_it && self.target.as_ref().is_some_and(|target| target.commit.at == self.commit.at);
        }
        if is_it {
            self.target = Some(Target {
                commit: self.commit.clone(),
                before: self.known[0].clone(),
                changes: Vec::new(),
                retracts: false,
                clock: (self.clock.or(self.rules.window.first_slice()), self.clock),
                stream_time: (self.stream_time, self.stream_time),
                is_alike,
            });
        }
        is_it
    }

    /// Whether the changelog has every insertion that a state whose clock has come to `clock` can still have. `readings` has
    /// the logs of the state, and how far the group has read each.
    pub(super) fn is_whole(&self, clock: Option<Slice>, readings: &BTreeMap<String, Reading>) -> bool {
        let is_first =
            |(log, &start): (&String, &Offset)| start == 0 || readings.get(log).is_some_and(|reading| reading.first == Some(start));
        // Read, and not logged: while `state.changelog` was false, or in a part that was trimmed.
        let is_lacking = |&(log, reading): &(&String, &Reading)| {
            let come_to = self.applier.offsets.get(log).copied().or(reading.first).unwrap_or_default();
            reading.committed.is_some_and(|committed| come_to < committed)
        };
        let mut lacking = readings.iter().filter(is_lacking).map(|(_, reading)| reading.stream_time).peekable();
        if self.low == 0 && !self.begins_later && self.starts.iter().all(is_first) && lacking.peek().is_none() {
            return true;
        }
        // A filter alone does not log a renewal that it takes for done: what it renews may be trimmed.
        let logs_renewals = !self.rules.refresh || self.rules.exact;
        let (Some(first), Some(clock), true) = (self.first_slice, clock, logs_renewals) else { return false };
        let oldest = clock.before(self.rules.window.slices());
        let has_expired =
            |time: Option<Timestamp>| time.and_then(|time| self.rules.window.slice_at(time)).is_some_and(|slice| slice < oldest);
        if !lacking.all(has_expired) {
            return false;
        }
        match self.low {
            _ if !self.rules.is_sliced() => false,
            // Nothing says how much of its first slice it lacks.
            0 => first < oldest,
            // A worker trims at the beginning of a slice.
            _ if self.begins_later => first < oldest,
            _ => first <= oldest,
        }
    }
}
