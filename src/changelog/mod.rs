//! The log of a memory: what changed it, as records from which the same memory can be made again.
//!
//! Owns the form of those records, what is kept until they are committed, and how they are followed.
//! They hold fingerprints, not bits, so that a filter of another kind or size can be made from them
//! too. Pure: where they are kept is for others to know. Must never hold what was not committed
//! together with the outputs it belongs to.

mod journal;
mod record;

pub use journal::Journal;
pub use record::{Broken, Record, Run, Span};

use crate::dedup::Dedup;
use crate::filter::Fault;
use crate::record::Offset;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// What the fingerprints in a log depend on, and what its marks do. Hashes of texts, for they are only compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// How keys are taken and hashed: under another one, the fingerprints mean nothing.
    pub keys: u64,
    /// The window: under another one, marks and hints mean nothing.
    pub window: u64,
}

impl Origin {
    /// From texts that say how keys are taken and hashed, and what the window is.
    #[must_use]
    pub fn new(keys: &str, window: &str) -> Self {
        Self { keys: xxh3_64(keys.as_bytes()), window: xxh3_64(window.as_bytes()) }
    }
}

/// What becomes of a record of the log.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// It was taken in.
    Taken,
    /// It was passed over: it is of other keys, or past what the group has committed.
    Passed,
    /// It goes on from an offset before the one that the log had come to: the group was set back. What the log
    /// says from there on up to this record did not happen.
    SetBack,
    /// It is the first that the memory has not, and does not go on from where that has come to.
    Gap,
}

/// Follows a log, and makes the memory that was logged.
#[derive(Debug)]
pub struct Follower {
    /// For each input topic, the offset it has come to.
    pub offsets: BTreeMap<String, Offset>,
    /// Fingerprints taken in.
    pub fingerprints: u64,
    origin: Origin,
    /// For each input topic, the offset that the log is of use up to; none for those without bound.
    bounds: BTreeMap<String, Offset>,
    /// Keys under a smaller mark have expired since.
    oldest_mark: i64,
    /// The spans of the record before: parts of one commit have the same.
    last: Vec<(String, Offset, Offset)>,
}

impl Follower {
    /// Follows from where a memory has come to `offsets`, up to `bounds`. Of keys under a smaller mark than
    /// `oldest_mark` it is known that they have expired.
    #[must_use]
    pub const fn new(offsets: BTreeMap<String, Offset>, origin: Origin, bounds: BTreeMap<String, Offset>, oldest_mark: i64) -> Self {
        Self { offsets, fingerprints: 0, origin, bounds, oldest_mark, last: Vec::new() }
    }

    /// Whether it is another part of the commit that was taken in last.
    #[must_use]
    pub fn continues(&self, record: &Record<'_>) -> bool {
        let same = |(span, last): (&Span<'_>, &(String, Offset, Offset))| (span.topic, span.start, span.end) == (&*last.0, last.1, last.2);
        record.spans.len() == self.last.len() && record.spans.iter().zip(&self.last).all(same)
    }

    /// Lets the memory take one record in. `mark` is what it was stored under.
    ///
    /// # Errors
    /// [`Fault`] when the memory has no room, or cannot tell.
    pub fn follow(&mut self, dedup: &mut Dedup, record: &Record<'_>, mark: i64) -> Result<Step, Fault> {
        let beyond = |span: &Span<'_>| self.bounds.get(span.topic).is_some_and(|&bound| span.end > bound);
        if record.origin.keys != self.origin.keys || record.spans.iter().any(beyond) {
            return Ok(Step::Passed);
        }
        let same = self.continues(record);
        if !same {
            let known = |span: &&Span<'_>| self.offsets.get(span.topic).is_some_and(|&come_to| span.start < come_to);
            if record.spans.iter().any(|span| known(&span)) {
                // Of a checkpoint, the log has what came before it as well.
                let old = record.spans.iter().all(|span| self.offsets.get(span.topic).is_some_and(|&come_to| span.end <= come_to));
                return Ok(if self.last.is_empty() && old { Step::Passed } else { Step::SetBack });
            }
            let lacks = |span: &Span<'_>| self.offsets.get(span.topic).is_some_and(|&come_to| span.start > come_to);
            if self.last.is_empty() && record.spans.iter().any(lacks) {
                return Ok(Step::Gap);
            }
        }
        let mark = (record.origin.window == self.origin.window).then_some(mark);
        if mark.is_none_or(|mark| mark >= self.oldest_mark) {
            // Of a record without keys, the mark only says when it was written.
            dedup.resume(record.time, mark.filter(|_| !record.runs.is_empty()), record.hint);
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
        Ok(Step::Taken)
    }
}

#[cfg(test)]
mod tests;
