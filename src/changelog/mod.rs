//! The changelog of a state: what changed it, as records from which the same state can be made again.
//!
//! Owns the form of those records, what is kept until they are committed, and how they are followed.
//! They hold fingerprints, not bits, so that a filter of another kind or size can be made from them
//! too. Pure: where they are kept is for others to know. Must never hold what was not committed
//! together with the outputs it belongs to.

mod pending;
mod progress;
mod record;

pub use pending::PendingChanges;
pub use progress::Progress;
pub use record::{ChangelogRecord, DecodeError, KeyRun, Span};

use crate::dedup::Dedup;
use crate::filter::{ExactError, Slice};
use crate::record::Offset;
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
    /// It was passed over: it is of other keys, or past what the group has committed.
    Passed,
    /// It goes on from an offset before the one that the changelog had come to: the group was set back. What the changelog
    /// says from there on up to this record did not happen.
    SetBack,
    /// It is the first that the state has not, and does not go on from where that has come to.
    Gap,
    /// It was written by another group, or for another key space.
    Foreign,
}

/// Follows a changelog, and makes the state that was logged.
#[derive(Debug)]
pub struct Follower {
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
    /// The spans of the record before: parts of one commit have the same.
    last: Vec<(String, Offset, Offset)>,
}

impl Follower {
    /// Follows from where a state has come to `offsets`, up to `bounds`. Keys of slices before `oldest_slice` are known
    /// to have expired.
    #[must_use]
    pub const fn new(
        offsets: BTreeMap<String, Offset>,
        origin: Origin,
        bounds: BTreeMap<String, Offset>,
        oldest_slice: Option<Slice>,
        epoch: i64,
    ) -> Self {
        Self { offsets, fingerprints: 0, origin, bounds, oldest_slice, epoch, last: Vec::new() }
    }

    /// Whether it is another part of the commit that was taken in last.
    #[must_use]
    pub fn continues(&self, record: &ChangelogRecord<'_>) -> bool {
        let same = |(span, last): (&Span<'_>, &(String, Offset, Offset))| (span.topic, span.start, span.end) == (&*last.0, last.1, last.2);
        record.spans.len() == self.last.len() && record.spans.iter().zip(&self.last).all(same)
    }

    /// Lets the state take one record in.
    ///
    /// # Errors
    /// [`ExactError`] when the state has no room, or cannot decide.
    pub fn follow(&mut self, dedup: &mut Dedup, record: &ChangelogRecord<'_>) -> Result<Outcome, ExactError> {
        if record.origin.owner != self.origin.owner {
            return Ok(Outcome::Foreign);
        }
        // Who has lost the partition may not know it yet, and write on where no transaction keeps it from that.
        if record.epoch < self.epoch {
            return Ok(Outcome::Passed);
        }
        self.epoch = record.epoch;
        let beyond = |span: &Span<'_>| self.bounds.get(span.topic).is_some_and(|&bound| span.end > bound);
        if record.origin.keys != self.origin.keys || record.spans.iter().any(beyond) {
            return Ok(Outcome::Passed);
        }
        let same = self.continues(record);
        if !same {
            let known = |span: &&Span<'_>| self.offsets.get(span.topic).is_some_and(|&come_to| span.start < come_to);
            if record.spans.iter().any(|span| known(&span)) {
                // Of a checkpoint, the changelog has what came before it as well.
                let old = record.spans.iter().all(|span| self.offsets.get(span.topic).is_some_and(|&come_to| span.end <= come_to));
                return Ok(if self.last.is_empty() && old { Outcome::Passed } else { Outcome::SetBack });
            }
            let lacks = |span: &Span<'_>| self.offsets.get(span.topic).is_some_and(|&come_to| span.start > come_to);
            if self.last.is_empty() && record.spans.iter().any(lacks) {
                return Ok(Outcome::Gap);
            }
        }
        let slice = record.slice.filter(|_| record.origin.clock == self.origin.clock);
        let replay_info = record.replay_info.filter(|_| record.origin.kind == self.origin.kind);
        if slice.is_none_or(|slice| self.oldest_slice.is_none_or(|oldest| slice >= oldest)) {
            // Of a record without keys, the slice only says when it was written.
            dedup.resume(record.time, slice.filter(|_| !record.runs.is_empty()), replay_info);
            for run in &record.runs {
                for fingerprint in run.fingerprints() {
                    dedup.apply(run.mutation, fingerprint)?;
                }
                self.fingerprints += run.len();
            }
        }
        dedup.resume(record.end_time, None, None);
        if !same {
            self.last = record.spans.iter().map(|span| (span.topic.to_owned(), span.start, span.end)).collect();
        }
        for span in &record.spans {
            self.offsets.insert(span.topic.to_owned(), span.end);
        }
        Ok(Outcome::Taken)
    }
}

#[cfg(test)]
mod tests;
