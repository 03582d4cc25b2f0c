//! The history of a key in a changelog: its first and last insertion, the number of insertions, and the changes in the commit of the
//! requested record.
//!
//! This module never does I/O, and its memory does not grow with the length of the changelog. If the group's offsets were reset to lower
//! offsets, the group read some input records again. Only the later changelog records of these input records count.

use crate::changelog::{Applier, ChangelogRecord, Cut, Origin, Outcome, Span};
use crate::dedup::{Mutation, Rules};
use crate::filter::Slice;
use crate::key::Fingerprint;
use crate::record::{Offset, Timestamp};
use std::collections::BTreeMap;
use std::ops::Range;

/// The maximum number of changes to the key per changelog record, and of input records with the key per commit. Limits memory.
pub(super) const CHANGES_MAX: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Commit {
    /// The input offsets that the commit processed, by topic incarnation (name and topic id, see [`crate::record::log_name`]). Empty for
    /// keys that `unseen seed` wrote.
    pub(super) spans: Vec<(String, Range<Offset>)>,
    pub(super) epoch: i64,
    /// Offset of the commit's first record in the changelog.
    pub(super) at: Offset,
    pub(super) time: Option<Timestamp>,
}

impl Commit {
    fn has(&self, log: &str, offset: Offset) -> bool {
        self.spans.iter().any(|(name, span)| name == log && span.contains(&offset))
    }
}

/// An insertion of the key. Either a worker emitted a record with the key and logged the insertion, or `unseen seed` wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Emission {
    pub(super) commit: Commit,
    pub(super) slice: Option<Slice>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) emission: Emission,
    /// The slice of the last renewal, or of the insertion if the key was never renewed.
    pub(super) slice: Option<Slice>,
    /// Hash of the content that `emit = "on_change"` compares. 0 if only keys are compared.
    pub(super) content: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyState {
    pub(super) first: Option<Emission>,
    pub(super) emissions: u64,
    pub(super) retractions: u64,
    /// The last insertion, unless the key was retracted afterward. The key may have expired.
    pub(super) seen: Option<Seen>,
    /// True if the key was renewed although the changelog shows no insertion or renewal within the window. Either a false positive renewed
    /// the key, or the changelog lacks an insertion or a renewal. In both cases, the filter contained the key after the renewal.
    pub(super) is_wrongly_renewed: bool,
}

/// The state of a key in an exact window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    Seen,
    /// The key was never inserted, has expired, or was retracted.
    Unseen,
    /// The key leaves the window between the two slices passed to [`KeyState::memory`], so it is unknown whether the key is still seen.
    Expiring,
}

impl KeyState {
    /// Returns the state of the key at a time when the current slice is between the two slices of `clock`. If a slice of `clock` or the
    /// slice of the key is unknown, the key counts as within the window.
    pub(super) fn memory(&self, rules: &Rules, clock: (Option<Slice>, Option<Slice>)) -> Memory {
        let Some(seen) = &self.seen else { return Memory::Unseen };
        if !rules.is_sliced() {
            // The filter forgets keys at random, and the changelog does not show when. So a key that was inserted counts as seen.
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

    fn change(&mut self, Change { mutation, slice, content }: Change, commit: &Commit, rules: &Rules) {
        match mutation {
            Mutation::Insert => {
                let emission = Emission { commit: commit.clone(), slice };
                self.first.get_or_insert_with(|| emission.clone());
                self.emissions += 1;
                self.seen = Some(Seen { emission, slice, content });
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

    /// If the key was inserted before the state had a slice, sets the slice of the last insertion to `slice`.
    fn begin(&mut self, slice: Slice) {
        if let Some(seen) = &mut self.seen {
            seen.slice.get_or_insert(slice);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) mutation: Mutation,
    pub(super) slice: Option<Slice>,
    /// See [`Seen::content`].
    pub(super) content: u64,
}

/// The commit that processed the requested record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) commit: Commit,
    pub(super) before: KeyState,
    pub(super) changes: Vec<Change>,
    /// The clock (the current slice) before and after the commit.
    pub(super) clock: (Option<Slice>, Option<Slice>),
    /// Stream time before and after the commit.
    pub(super) stream_time: (Option<Timestamp>, Option<Timestamp>),
    /// True if the commit retracted any key.
    pub(super) retracts: bool,
    /// True if the commit used the window and the filter kind of the configuration.
    pub(super) same_settings: bool,
}

impl Target {
    fn insertions(&self) -> impl Iterator<Item = Option<Slice>> {
        self.changes.iter().filter(|change| change.mutation == Mutation::Insert).map(|change| change.slice)
    }

    /// Returns the number of records with the key that the commit emitted.
    pub(super) fn emissions(&self) -> usize {
        self.insertions().count()
    }

    /// Returns the slice of the commit's first insertion of the key. `None` if the commit did not insert the key, or if the slice is
    /// unknown.
    pub(super) fn inserted_into(&self) -> Option<Slice> {
        self.insertions().next().flatten()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The fingerprints of all interpretations of the key, for example as text and as a number.
    pub(super) fingerprints: Vec<Fingerprint>,
    /// Topic incarnation and offset of the requested record. `None` if a key was requested, or if the worker reads a repartition topic
    /// instead of the record's topic.
    pub(super) record: Option<(String, Offset)>,
}

/// The offsets of a group in a topic incarnation, and the stream time of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// The start offset of the group, if known.
    pub(super) first: Option<Offset>,
    pub(super) committed: Option<Offset>,
    /// Stream time of the state at the last commit.
    pub(super) stream_time: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) struct History<'w> {
    wanted: &'w Wanted,
    rules: &'w Rules,
    origin: Origin,
    applier: Applier,
    low: Offset,
    /// The state of the key, for each fingerprint in `wanted`.
    pub(super) known: Vec<KeyState>,
    pub(super) target: Option<Target>,
    /// The first slice in the changelog, or the first slice after the last gap.
    first_slice: Option<Slice>,
    /// For each topic incarnation, the first offset whose effect is in the changelog.
    pub(super) starts: BTreeMap<String, Offset>,
    /// True if the changelog may lack changes of the state, before its first record or between two records.
    begins_later: bool,
    /// True if some changelog records were skipped because they use another definition of the key.
    pub(super) has_other_keys: bool,
    /// True if some changelog records were written with another window, so their slice numbers cannot be compared.
    pub(super) has_other_slices: bool,
    pub(super) clock: Option<Slice>,
    pub(super) stream_time: Option<Timestamp>,
    commit: Commit,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    /// The group's offsets were reset. Read the changelog again without the records that the cut voids.
    Restart(Cut),
    /// The record belongs to another group or key space.
    Foreign,
    /// The group's offsets were reset to an unknown position.
    Lost,
}

impl<'w> History<'w> {
    /// Creates an empty history of a changelog whose first offset is `low`. `bounds` contains the committed offset of each topic
    /// incarnation. Changelog records that cover input offsets at or above these bounds are skipped.
    pub(super) fn new(wanted: &'w Wanted, rules: &'w Rules, origin: Origin, bounds: BTreeMap<String, Offset>, low: Offset) -> Self {
        Self {
            low,
            known: vec![KeyState::default(); wanted.fingerprints.len()],
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

    /// Processes the next changelog record, with offset `at` and timestamp `time`, unless one of the `cuts` voids it.
    pub(super) fn take(&mut self, at: Offset, time: Option<Timestamp>, record: &ChangelogRecord<'_>, cuts: &[Cut]) -> Next {
        if cuts.iter().any(|cut| cut.voids(at, record)) {
            self.applier.epoch = self.applier.epoch.max(record.epoch);
            return Next::Continue;
        }
        // The changelog may begin with seeded keys, which are logged without a span and do not add to `starts`. So the number of applied
        // fingerprints is checked, too.
        let has_begun = !self.starts.is_empty() || self.applier.fingerprints > 0;
        let continues = !self.commit.spans.is_empty() && self.applier.continues(record);
        let lacks = |span: &Span<'_>| self.applier.offsets.get(span.topic).is_some_and(|&position| span.start > position);
        let has_gap = !continues && record.spans.iter().any(lacks);
        match self.applier.accept(record) {
            Outcome::Taken => {}
            Outcome::Foreign => return Next::Foreign,
            Outcome::SetBack => return self.applier.cut(at, record).map_or(Next::Lost, Next::Restart),
            Outcome::Passed | Outcome::PastBounds | Outcome::Gap => {
                if record.origin.keys != self.origin.keys {
                    self.has_other_keys = true;
                    self.begins_later |= self.starts.is_empty();
                }
                return Next::Continue;
            }
        }
        if has_gap {
            // The changes in the gap were logged with another definition of the key, or not at all, so the history is complete only after
            // the gap.
            (self.begins_later, self.first_slice) = (true, None);
        }
        let same_settings = record.origin.clock == self.origin.clock;
        self.has_other_slices |= !same_settings;
        // Slice numbers of different windows cannot be compared. If the window differs, derive the slice from the changelog record's time,
        // as the worker does when it rebuilds its state.
        let slice_at = |time: Timestamp| self.rules.window.slice_at(time).filter(|_| self.rules.is_sliced());
        let slice = if same_settings { record.slice } else { record.time.and_then(slice_at) };
        let end = record.end_time.max(record.time);
        let clock = self.clock.max(slice).max(end.and_then(slice_at));
        let mut is_whole = true;
        if !continues {
            // The first commit of a trimmed changelog may lack its first records, so it must not become the target.
            is_whole = self.low == 0 || has_begun;
            self.begin_commit(at, time, record);
        }
        if let Some(slice) = slice {
            self.first_slice.get_or_insert(slice);
            self.known.iter_mut().for_each(|known| known.begin(slice));
        }
        let in_target = is_whole && self.in_target(continues, same_settings && record.origin.kind == self.origin.kind);
        let mut changes = Vec::new();
        for run in &record.runs {
            for fingerprint in run.fingerprints() {
                let key = self.rules.emit.key_of(fingerprint);
                let Some(which) = self.wanted.fingerprints.iter().position(|&wanted| wanted == key) else { continue };
                let change = Change { mutation: run.mutation, slice, content: self.rules.emit.content_of(fingerprint) };
                self.known[which].change(change, &self.commit, self.rules);
                if in_target && changes.len() < CHANGES_MAX {
                    changes.push(change);
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
        Next::Continue
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

    /// True if the current commit contains the requested record. If the commit is new and contains it, sets `target`.
    fn in_target(&mut self, continues: bool, same_settings: bool) -> bool {
        let Some((log, offset)) = &self.wanted.record else { return false };
        let is_requested = self.commit.has(log, *offset);
        if continues {
            return is_requested && self.target.as_ref().is_some_and(|target| target.commit.at == self.commit.at);
        }
        if is_requested {
            self.target = Some(Target {
                commit: self.commit.clone(),
                before: self.known[0].clone(),
                changes: Vec::new(),
                retracts: false,
                clock: (self.clock.or(self.rules.window.first_slice()), self.clock),
                stream_time: (self.stream_time, self.stream_time),
                same_settings,
            });
        }
        is_requested
    }

    /// True if the changelog contains every insertion that the state can still remember at `clock`. `readings` contains the group's offsets
    /// in each topic incarnation of the state.
    pub(super) fn is_whole(&self, clock: Option<Slice>, readings: &BTreeMap<String, Reading>) -> bool {
        let is_first =
            |(log, &start): (&String, &Offset)| start == 0 || readings.get(log).is_some_and(|reading| reading.first == Some(start));
        // True for a topic incarnation with processed records whose effects are not in the changelog, because `state.changelog` was false
        // or the changelog was trimmed.
        let is_unlogged = |&(log, reading): &(&String, &Reading)| {
            let position = self.applier.offsets.get(log).copied().or(reading.first).unwrap_or_default();
            reading.committed.is_some_and(|committed| position < committed)
        };
        let mut unlogged = readings.iter().filter(is_unlogged).map(|(_, reading)| reading.stream_time).peekable();
        if self.low == 0 && !self.begins_later && self.starts.iter().all(is_first) && unlogged.peek().is_none() {
            return true;
        }
        // With `refresh`, a filter without an exact store does not log every renewal, so it may still remember a key whose insertion was
        // trimmed.
        let logs_renewals = !self.rules.refresh || self.rules.exact;
        let (Some(first), Some(clock), true) = (self.first_slice, clock, logs_renewals) else { return false };
        let oldest = clock.before(self.rules.window.slices());
        let has_expired =
            |time: Option<Timestamp>| time.and_then(|time| self.rules.window.slice_at(time)).is_some_and(|slice| slice < oldest);
        if !unlogged.all(has_expired) {
            return false;
        }
        match self.low {
            _ if !self.rules.is_sliced() => false,
            // The changelog may have begun in the middle of its first slice, so this slice may be incomplete.
            0 => first < oldest,
            _ if self.begins_later => first < oldest,
            // A worker trims a changelog only at the start of a slice, so the first slice is complete.
            _ => first <= oldest,
        }
    }
}
