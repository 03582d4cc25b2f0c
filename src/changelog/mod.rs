//! The changelog of a state: what changed it, as records from which the same state can be made again.
//!
//! Owns the form of those records, what is kept until they are committed, and how they are applied again.
//! They hold fingerprints, not bits, so that a filter of another kind or size can be made from them
//! too. Pure: where they are kept is for others to know. Must never hold what was not committed
//! together with the outputs it belongs to.

mod pending;
mod progress;
mod record;

pub use pending::PendingChanges;
pub use pending::RECORD_FINGERPRINTS_MAX;
pub use progress::Progress;
pub use record::insertions;
pub use record::{ChangelogRecord, DecodeError, KeyRun, Span};

use crate::dedup::Dedup;
use crate::filter::{ExactError, Slice};
use crate::record::{Offset, Timestamp};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// By whom a changelog was written, and under which settings. Hashes of texts, for they are only compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The group and the key space. Two pairs of them may make the same topic name.
    pub owner: u64,
    /// How keys are taken and hashed: under another one, the fingerprints mean nothing.
    pub keys: u64,
    /// What slices count, time or keys, and how long they are: under another one, their numbers mean nothing.
    pub clock: u64,
    /// The kind of filter: to another one, replay info means nothing.
    pub kind: u64,
}

impl Origin {
    /// From texts that say each of them.
    #[must_use]
    pub fn new(owner: &str, keys: &str, clock: &str, kind: &str) -> Self {
        let [owner, keys, clock, kind] = [owner, keys, clock, kind].map(|text| xxh3_64(text.as_bytes()));
        Self { owner, keys, clock, kind }
    }
}

/// What becomes of a record of the changelog.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was taken in.
    Taken,
    /// It was passed over: it is of other keys, past what the group has committed, or a part of a commit that is in already.
    Passed,
    /// It goes on from an offset before the one that the changelog had come to: the group was set back. What the changelog
    /// says from there on up to this record did not happen.
    SetBack,
    /// It is the first that the state has not, and does not go on from where that has come to.
    Gap,
    /// It was written by another group, or for another key space.
    Foreign,
}

/// Applies a changelog, and makes the state that was logged.
#[derive(Debug)]
pub struct Applier {
    /// For each input topic, the offset it has come to.
    pub offsets: BTreeMap<String, Offset>,
    /// Fingerprints taken in.
    pub fingerprints: u64,
    origin: Origin,
    /// For each input topic, the offset that the changelog is of use up to; none for those without bound.
    bounds: BTreeMap<String, Offset>,
    /// Keys of an earlier slice have expired since, if that is known.
    oldest_slice: Option<Slice>,
    /// The highest epoch that was met.
    pub epoch: i64,
    /// The spans and the epoch of the last commit, which all of its parts have, and how many parts of it were taken in.
    last: Vec<(String, Offset, Offset)>,
    last_epoch: i64,
    last_parts: u32,
}

impl Applier {
    /// Goes on from where a state has come to `offsets`, up to `bounds`. Keys of slices before `oldest_slice` are known
    /// to have expired.
    #[must_use]
    pub const fn new(
        offsets: BTreeMap<String, Offset>,
        origin: Origin,
        bounds: BTreeMap<String, Offset>,
        oldest_slice: Option<Slice>,
        epoch: i64,
    ) -> Self {
        Self { offsets, fingerprints: 0, origin, bounds, oldest_slice, epoch, last: Vec::new(), last_epoch: epoch, last_parts: 0 }
    }

    /// Whether it is another part of the commit that was taken in last.
    #[must_use]
    pub fn continues(&self, record: &ChangelogRecord<'_>) -> bool {
        let same = |(span, last): (&Span<'_>, &(String, Offset, Offset))| (span.topic, span.start, span.end) == (&*last.0, last.1, last.2);
        // What no input says, each record says by itself.
        !record.spans.is_empty()
            && record.epoch == self.last_epoch
            && record.spans.len() == self.last.len()
            && record.spans.iter().zip(&self.last).all(same)
    }

    /// Lets the state take one record in.
    ///
    /// # Errors
    /// [`ExactError`] when the state has no room, or cannot decide.
    pub fn follow(&mut self, dedup: &mut Dedup, record: &ChangelogRecord<'_>) -> Result<Outcome, ExactError> {
        let outcome = self.accept(record);
        if outcome == Outcome::Taken {
            let effect = self.effect(record);
            effect.begin(dedup);
            for run in effect.runs {
                run.fingerprints().try_for_each(|fingerprint| dedup.apply(run.mutation, fingerprint))?;
            }
            effect.end(dedup);
        }
        Ok(outcome)
    }

    /// Decides what becomes of the next record. One that is [`Outcome::Taken`] has come to its offsets: the state must have
    /// its [`Applier::effect`] before the next.
    pub fn accept(&mut self, record: &ChangelogRecord<'_>) -> Outcome {
        if record.origin.owner != self.origin.owner {
            return Outcome::Foreign;
        }
        // Who has lost the partition may not know it yet, and write on where no transaction keeps it from that.
        if record.epoch < self.epoch {
            return Outcome::Passed;
        }
        self.epoch = record.epoch;
        let beyond = |span: &Span<'_>| self.bounds.get(span.topic).is_some_and(|&bound| span.end > bound);
        if record.origin.keys != self.origin.keys || record.spans.iter().any(beyond) {
            return Outcome::Passed;
        }
        let same = self.continues(record);
        // A worker logs a commit again if it cannot know whether the first try was written: without transactions, or where a
        // warm-up moves no offset that would tell. Its parts are the same. What is in must not be applied twice: a cuckoo filter
        // would keep two copies of a key, and a window by count would count its keys twice.
        if same && record.part.is_some_and(|part| part < self.last_parts) {
            return Outcome::Passed;
        }
        if !same {
            let known = |span: &&Span<'_>| self.offsets.get(span.topic).is_some_and(|&come_to| span.start < come_to);
            if record.spans.iter().any(|span| known(&span)) {
                // Of a checkpoint, the changelog has what came before it as well.
                let old = record.spans.iter().all(|span| self.offsets.get(span.topic).is_some_and(|&come_to| span.end <= come_to));
                return if self.last.is_empty() && old { Outcome::Passed } else { Outcome::SetBack };
            }
            let lacks = |span: &Span<'_>| self.offsets.get(span.topic).is_some_and(|&come_to| span.start > come_to);
            if self.last.is_empty() && record.spans.iter().any(lacks) {
                return Outcome::Gap;
            }
            (self.last_epoch, self.last_parts) = (record.epoch, 0);
            self.last = record.spans.iter().map(|span| (span.topic.to_owned(), span.start, span.end)).collect();
        }
        self.last_parts = record.part.unwrap_or(self.last_parts).saturating_add(1);
        for span in &record.spans {
            self.offsets.insert(span.topic.to_owned(), span.end);
        }
        self.fingerprints += self.effect(record).runs.iter().map(KeyRun::len).sum::<u64>();
        Outcome::Taken
    }

    /// What a record that was taken does to the state.
    #[must_use]
    pub fn effect<'r>(&self, record: &'r ChangelogRecord<'r>) -> Effect<'r> {
        let slice = record.slice.filter(|_| record.origin.clock == self.origin.clock);
        let is_expired = slice.is_some_and(|slice| self.oldest_slice.is_some_and(|oldest| slice < oldest));
        Effect {
            start: (!is_expired).then(|| {
                // Of a record without keys, the slice only says when it was written.
                let slice = slice.filter(|_| !record.runs.is_empty());
                (record.time, slice, record.replay_info.filter(|_| record.origin.kind == self.origin.kind))
            }),
            runs: if is_expired { &[] } else { &record.runs },
            end_time: record.end_time,
        }
    }

    /// Where the group was set back to, if this record, at its offset in the changelog, says so: see [`Outcome::SetBack`].
    #[must_use]
    pub fn cut(&self, before: Offset, record: &ChangelogRecord<'_>) -> Option<Cut> {
        let back = record.spans.iter().find(|span| self.offsets.get(span.topic).is_some_and(|&come_to| span.start < come_to))?;
        let ends = record.spans.iter().map(|span| (span.topic.to_owned(), span.end)).collect();
        Some(Cut { before, topic: back.topic.to_owned(), start: back.start, ends })
    }
}

/// What a record does to a state: it begins, its runs are applied in order, it ends.
#[derive(Debug)]
pub struct Effect<'r> {
    /// Time, clock and replay info to begin with; none where its keys have expired.
    start: Option<(Option<Timestamp>, Option<Slice>, Option<u64>)>,
    /// Its keys, each to be applied by [`Dedup::apply`].
    pub runs: &'r [KeyRun<'r>],
    end_time: Option<Timestamp>,
}

impl Effect<'_> {
    /// Comes to the time of its keys.
    pub fn begin(&self, dedup: &mut Dedup) {
        if let Some((time, slice, replay_info)) = self.start {
            dedup.resume(time, slice, replay_info);
        }
    }

    /// Comes to the time of its end.
    pub fn end(&self, dedup: &mut Dedup) {
        dedup.resume(self.end_time, None, None);
    }
}

/// What a group that was set back makes void: below `before` in the changelog, the effect of `topic` from `start` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The offset, in the changelog, of the record that says so.
    pub before: Offset,
    /// The input topic.
    pub topic: String,
    /// The first of its offsets whose effect is void.
    pub start: Offset,
    /// The end offsets of the record that says so.
    pub ends: Vec<(String, Offset)>,
}

impl Cut {
    /// Most times that a group may be set back within one changelog.
    pub const MAX: usize = 100;

    /// Adds the cut, for another reading from the beginning. Removes earlier cuts whose own record is now void: the worker that wrote
    /// this cut's record had restored its state without them.
    ///
    /// Each reading adds a cut and removes only cuts of earlier records, so the readings come to an end.
    pub fn add_to(self, cuts: &mut Vec<Self>) {
        let is_void =
            |cut: &Self| cut.before < self.before && cut.ends.iter().any(|(topic, end)| *topic == self.topic && *end > self.start);
        cuts.retain(|cut| !is_void(cut));
        cuts.push(self);
    }

    /// Whether the record at an offset of the changelog did not happen.
    #[must_use]
    pub fn voids(&self, offset: Offset, record: &ChangelogRecord<'_>) -> bool {
        offset < self.before && record.spans.iter().any(|span| span.topic == self.topic && span.end > self.start)
    }
}

#[cfg(test)]
mod tests;
