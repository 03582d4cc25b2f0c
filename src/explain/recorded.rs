//! An explanation from a capture: a replay judges the records again, with an exact window beside it for the one key.
//!
//! Owns what a capture can say. Must never take its beginning for the group's: what came before it is not known.

use super::live::{empty, key_parts};
use super::report::{Cause, Emission, ExplainedRecord, Explanation, Forgetting, InputRange, VerdictName};
use super::{Error, words};
use crate::config::{Config, Topic};
use crate::filter::Slice;
use crate::format::Schemas;
use crate::record::{Offset, Timestamp, Verdict};
use crate::replay::{FollowedRecord, Format, Options, RecordedKey, Replay};
use std::io::{self, BufRead};
use std::sync::Arc;

/// What a capture is, and how it was read.
pub struct Captured<'c> {
    /// Opens it, each time at its beginning.
    pub open: &'c dyn Fn() -> io::Result<Box<dyn BufRead>>,
    /// Its name, for messages.
    pub name: &'c str,
    /// How many partitions the topic has.
    pub partitions: u32,
    /// As in [`Replay::run_and_list`].
    pub max_timestamp: &'c dyn Fn() -> Timestamp,
}

/// What is known of the key so far.
#[derive(Default)]
struct Known {
    first: Option<FollowedRecord>,
    /// What came out last, if it was not retracted since.
    last: Option<FollowedRecord>,
    /// The slice that it is remembered by.
    slice: Option<Slice>,
    emissions: u64,
    retractions: u64,
}

/// Says what became of the record at an offset of a topic, by a replay of what was captured.
///
/// # Errors
/// When the record is not in the capture, or the capture cannot be replayed.
pub fn recorded(
    config: &Config,
    topic: &Topic,
    schemas: &Arc<dyn Schemas>,
    (partition, offset): (i32, Offset),
    captured: &Captured<'_>,
) -> Result<Explanation, Error> {
    let options = Options { format: Format::Kcat, time: None, partitions: captured.partitions, truth: true };
    let open = || (captured.open)().map_err(|error| Error::Question(format!("{}: {error}", captured.name)));
    let replay = || Ok::<_, Error>(Replay::new(topic, &options)?.with_schemas(Arc::clone(schemas)));
    let Some(RecordedKey { time, fingerprint, texts, first_offset }) = replay()?.find(open()?, &topic.input, partition, offset)? else {
        return Err(Error::Question(format!(
            "{} has no record of {}[{partition}] at offset {offset}; capture a time that has it",
            captured.name, topic.input
        )));
    };
    let record = ExplainedRecord { topic: topic.input.clone(), partition, offset, time_ms: time };
    let parts = key_parts(topic, texts);
    let mut explanation = Explanation { record: Some(record), key: parts, partition: Some(partition), ..empty(topic) };
    let fingerprint = match fingerprint {
        Ok(fingerprint) => fingerprint,
        Err(invalid) => {
            let is_tombstone = topic.verdict_without_key(invalid.reason) == Verdict::Tombstone;
            let verdict = if is_tombstone { VerdictName::Tombstone } else { VerdictName::Invalid };
            explanation.verdict = Some(verdict);
            explanation.sentences = words::without_key(topic, verdict, &invalid, None);
            return Ok(explanation);
        }
    };
    let of = |record: &FollowedRecord| emission(topic, partition, record);
    let mut known = Known::default();
    let is_sliced = topic.rules(captured.partitions).is_sliced();
    let (slice, stream_time) = replay()?.follow(open()?, (partition, fingerprint), captured.max_timestamp, &mut |followed| {
        if followed.offset == Some(offset) {
            let (verdict, cause, repeats) = judged(&known, &followed, is_sliced);
            (explanation.verdict, explanation.cause, explanation.repeats) = (Some(verdict), cause, repeats.map(|repeats| of(&repeats)));
        }
        known.note(followed, topic.refresh);
    })?;
    explanation.first = known.first.as_ref().map(of);
    explanation.last = known.last.as_ref().map(of);
    (explanation.emissions, explanation.retractions) = (known.emissions, known.retractions);
    let forgotten = known.slice.map(|inserted| Slice(inserted.0.saturating_add(i64::from(topic.window.slices()) + 1)));
    let is_seen = known.last.is_some() && forgotten.is_none_or(|at| slice.is_none_or(|slice| slice < at));
    explanation.seen = Some(is_seen);
    explanation.forgotten = forgotten.filter(|_| is_seen && is_sliced).map(|at| Forgetting {
        at_slice: at,
        at_stream_time_ms: topic.window.start_of(at),
        slice,
        stream_time_ms: stream_time,
    });
    limit(&mut explanation, config, topic, first_offset);
    explanation.sentences = words::sentences(&explanation, topic, None);
    Ok(explanation)
}

/// Says what the capture does not.
fn limit(explanation: &mut Explanation, config: &Config, topic: &Topic, first_offset: Option<Offset>) {
    if let Some(first) = first_offset.filter(|&first| first > 0) {
        explanation.certain &= explanation.cause == Some(Cause::Repeat);
        explanation.limits.push(format!(
            "the capture begins at offset {first} of this partition, and the replay with nothing seen: what came out before is not known"
        ));
    }
    if topic.repartition {
        explanation.certain = false;
        explanation
            .limits
            .push("the worker brings records of this topic to other partitions before it judges them, and this replay does not".to_owned());
    }
    if config.space_of(topic).topics.len() > 1 {
        explanation.certain = false;
        explanation.limits.push("other topics share the key space, and a replay has this one alone".to_owned());
    }
}

/// What was decided of a record, and why.
fn judged(known: &Known, followed: &FollowedRecord, is_sliced: bool) -> (VerdictName, Option<Cause>, Option<FollowedRecord>) {
    match followed.verdict {
        Verdict::Duplicate if followed.is_wrong => (VerdictName::Duplicate, Some(Cause::FalsePositive), None),
        Verdict::Duplicate => (VerdictName::Duplicate, Some(Cause::Repeat), known.last),
        Verdict::Late => (VerdictName::Late, None, None),
        Verdict::Retracted => (VerdictName::Retracted, None, None),
        _ if known.last.is_some() && is_sliced => (VerdictName::Unseen, Some(Cause::Expired), None),
        _ if known.last.is_some() => (VerdictName::Unseen, Some(Cause::Forgotten), None),
        _ if known.retractions > 0 => (VerdictName::Unseen, Some(Cause::AfterRetraction), None),
        _ => (VerdictName::Unseen, Some(Cause::First), None),
    }
}

impl Known {
    fn note(&mut self, followed: FollowedRecord, refresh: bool) {
        match followed.verdict {
            Verdict::Unseen => {
                self.first.get_or_insert(followed);
                self.last = Some(followed);
                self.slice = followed.slice;
                self.emissions += 1;
            }
            Verdict::Duplicate if refresh && !followed.is_wrong => self.slice = followed.slice,
            Verdict::Retracted => {
                (self.last, self.slice) = (None, None);
                self.retractions += 1;
            }
            _ => {}
        }
    }
}

fn emission(topic: &Topic, partition: i32, record: &FollowedRecord) -> Emission {
    let offset = record.offset.unwrap_or_default();
    let only = InputRange { topic: topic.input.clone(), partition, first_offset: offset, last_offset: offset };
    Emission { inputs: vec![only], slice: record.slice, committed_at_ms: None, changelog_offset: None, epoch: None }
}
