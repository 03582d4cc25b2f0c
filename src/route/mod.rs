//! Decides where a record is written and which headers are added to it, based on its verdict and the options of its topic.
//!
//! This module never changes a verdict and does not know which partitions exist.

mod added_headers;
pub mod dead_letter;

pub use added_headers::AddedHeaders;
pub use dead_letter::Origin;

use crate::config::{OnDuplicate, OnInvalid, OnTombstone, Topic};
use crate::dedup::Late;
use crate::record::{Invalid, Reason, Timestamp, Verdict};
use std::ffi::CStr;

/// Headers that explain a verdict.
const VERDICT: &CStr = c"unseen-verdict";
const SPACE: &CStr = c"unseen-space";
const FILTER: &CStr = c"unseen-filter";
/// Start time of the slice that a duplicate's key was inserted into, in milliseconds since the epoch.
const SINCE: &CStr = c"unseen-since";
const TOPIC: &CStr = c"unseen-topic";
const PARTITION: &CStr = c"unseen-partition";
const OFFSET: &CStr = c"unseen-offset";
const EXPLANATION: &[&CStr] = &[VERDICT, SPACE, FILTER, SINCE, TOPIC, PARTITION, OFFSET];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The topic in `output`.
    Output,
    /// The topic in `on_duplicate = { topic = … }`.
    Duplicates,
    /// The topic in `on_invalid = { topic = … }`.
    DeadLetters,
}

impl Destination {
    /// Returns the topic of this destination, if it is configured.
    #[must_use]
    pub fn name(self, topic: &Topic) -> Option<&str> {
        match (self, &topic.on_duplicate, &topic.on_invalid) {
            (Self::Output, ..) => topic.output.as_deref(),
            (Self::Duplicates, OnDuplicate::Topic(name), _) | (Self::DeadLetters, _, OnInvalid::Topic(name)) => Some(name),
            (Self::Duplicates | Self::DeadLetters, ..) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Write(Destination),
    Drop,
    /// Stop the worker at this record.
    Fail(Reason),
}

#[inline]
#[must_use]
pub fn of(topic: &Topic, verdict: Verdict) -> Route {
    match verdict {
        _ if topic.is_shadow() => Route::Drop,
        Verdict::Unseen | Verdict::Passed => Route::Write(Destination::Output),
        Verdict::Tombstone if topic.on_tombstone == OnTombstone::Emit => Route::Write(Destination::Output),
        Verdict::Retracted | Verdict::Tombstone => Route::Drop,
        Verdict::Duplicate => match topic.on_duplicate {
            OnDuplicate::Drop => Route::Drop,
            OnDuplicate::Mark => Route::Write(Destination::Output),
            OnDuplicate::Topic(_) => Route::Write(Destination::Duplicates),
        },
        Verdict::Late => match (topic.late, &topic.on_invalid) {
            (Late::DeadLetter, OnInvalid::Topic(_)) => Route::Write(Destination::DeadLetters),
            _ => Route::Drop,
        },
        Verdict::Invalid(reason) => match topic.on_invalid {
            OnInvalid::Drop => Route::Drop,
            OnInvalid::Fail => Route::Fail(reason),
            // If the record were written unchanged, the broker would reject it again.
            OnInvalid::Emit if reason.is_of_broker() => Route::Fail(reason),
            OnInvalid::Emit => Route::Write(Destination::Output),
            OnInvalid::Topic(_) => Route::Write(Destination::DeadLetters),
        },
    }
}

/// Amount of detail in the headers that explain a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// All headers. For a duplicate, the time is the value of `unseen-since`: the start of the slice that the key was inserted into. `None`
    /// if there is no such time, for example in a window by count, with `refresh`, or if the filter does not store slices.
    Full(Option<Timestamp>),
    /// For records that would be too large with all headers. With `on_duplicate = "mark"`, a record gets only the verdict. Otherwise, it
    /// gets no header.
    Brief,
}

/// True if records with this verdict are written with headers that explain the verdict.
#[must_use]
pub fn explains(topic: &Topic, verdict: Verdict) -> bool {
    match of(topic, verdict) {
        Route::Write(Destination::Output) => topic.on_duplicate == OnDuplicate::Mark,
        Route::Write(Destination::Duplicates) => true,
        _ => false,
    }
}

/// Replaces the contents of `headers` with the headers to add to a written record. `invalid` explains an invalid verdict. `origin` is
/// called only if a header needs its result.
#[inline]
pub fn headers<'o>(
    topic: &Topic,
    destination: Destination,
    verdict: Verdict,
    invalid: Option<&Invalid>,
    detail: Detail,
    origin: impl FnOnce() -> Origin<'o>,
    headers: &mut AddedHeaders,
) {
    headers.clear();
    if destination == Destination::DeadLetters {
        dead_letter::write(verdict, invalid, &origin(), headers);
    } else if verdict == Verdict::Duplicate || topic.on_duplicate == OnDuplicate::Mark {
        match detail {
            Detail::Full(since) => explain(topic, verdict, since, &origin(), headers),
            Detail::Brief if topic.on_duplicate == OnDuplicate::Mark => {
                headers.replace(EXPLANATION);
                headers.push_text(VERDICT, verdict.label());
            }
            Detail::Brief => {}
        }
    }
}

/// Headers with the same names, from an earlier worker or any other producer, are removed from the record.
fn explain(topic: &Topic, verdict: Verdict, since: Option<Timestamp>, origin: &Origin<'_>, headers: &mut AddedHeaders) {
    headers.replace(EXPLANATION);
    headers.push_text(VERDICT, verdict.label());
    headers.push_text(SPACE, &topic.space);
    headers.push_text(FILTER, topic.filter.kind.name());
    if let Some(since) = since {
        headers.push_number(SINCE, since);
    }
    headers.push_text(TOPIC, origin.topic);
    headers.push_number(PARTITION, origin.partition.into());
    headers.push_number(OFFSET, origin.offset);
}
