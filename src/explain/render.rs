//! Renders an explanation as English sentences. The sentences must not state anything that the explanation does not contain.

use super::report::{Cause, Emission, Explanation, Forgetting, VerdictName};
use crate::config::{OnDuplicate, OnInvalid, OnTombstone, Topic};
use crate::dedup::{Emit, Late};
use crate::filter::Window;
use crate::key::NoKey;
use crate::record::{Invalid, Offset};
use crate::replay::format_rfc3339;

/// Renders the verdict on a record and the state of its key. `committed` is the group's committed offset for a pending record.
pub(super) fn sentences(explanation: &Explanation, topic: &Topic, committed: Option<Offset>) -> Vec<String> {
    let mut sentences: Vec<_> = explanation.verdict.map(|verdict| decided(explanation, verdict, topic, committed)).into_iter().collect();
    if explanation.changelog.is_some() || explanation.seen.is_some() {
        sentences.extend(of_key(explanation, topic));
    }
    sentences.extend(of_shadow(topic));
    sentences
}

fn of_shadow(topic: &Topic) -> Option<String> {
    topic.is_shadow().then(|| "The topic has no output, so \"emitted\" means that the record would have been emitted.".to_owned())
}

fn decided(explanation: &Explanation, verdict: VerdictName, topic: &Topic, committed: Option<Offset>) -> String {
    match verdict {
        VerdictName::Unseen => {
            let so_far = if explanation.certain { "" } else { ", as far as the changelog shows" };
            match explanation.cause {
                Some(Cause::Expired) => "The record was emitted. The window of the previous record with its key had ended.".to_owned(),
                Some(Cause::Changed) => {
                    "The record was emitted. Its content differs from the content of the last emitted record with its key.".to_owned()
                }
                Some(Cause::AfterRetraction) => "The record was emitted. Its key had been retracted.".to_owned(),
                Some(Cause::Forgotten) => "The record was emitted although another record with its key had been emitted within the \
                     window. The filter had forgotten the key too early."
                    .to_owned(),
                Some(Cause::Unknown) => "The record was emitted.".to_owned(),
                _ => format!("The record was emitted. No other record with its key had been emitted within the window{so_far}."),
            }
        }
        VerdictName::Duplicate => duplicate(explanation, &topic.on_duplicate, topic.emit()),
        VerdictName::Late => {
            let outcome = if topic.late == Late::DeadLetter { "went to the dead letters" } else { "was dropped" };
            let other = if topic.on_change.is_some() {
                "the last emitted record with its key had another content or had left the window"
            } else {
                "no record with its key had been emitted within the window"
            };
            format!("The record {outcome}. It was older than the window, and {other}.")
        }
        VerdictName::Retracted => "The record retracted its key. Such records are not emitted.".to_owned(),
        VerdictName::Tombstone | VerdictName::Invalid | VerdictName::Passed => String::new(),
        VerdictName::Pending => pending(committed) + of_now(explanation.seen, topic.emit()),
        VerdictName::Unknown => "The verdict on the record is unknown.".to_owned(),
    }
}

fn pending(committed: Option<Offset>) -> String {
    match committed {
        Some(committed) => format!("The record has not been processed yet. The committed offset of the group is {committed}."),
        None => "The record has not been processed yet. The group has not committed an offset for this partition.".to_owned(),
    }
}

const fn of_now(seen: Option<bool>, emit: Emit) -> &'static str {
    match seen {
        Some(true) if matches!(emit, Emit::OnChange) => {
            " With the current state, it will be emitted if its content differs from the content of the last emitted record with its key."
        }
        Some(true) => " With the current state, it will be a duplicate.",
        Some(false) => " With the current state, it will be emitted, unless it is a false positive.",
        None => "",
    }
}

fn duplicate(explanation: &Explanation, on_duplicate: &OnDuplicate, emit: Emit) -> String {
    let outcome = match on_duplicate {
        OnDuplicate::Drop => "The record was dropped".to_owned(),
        OnDuplicate::Mark => "The record was emitted and marked as a duplicate".to_owned(),
        OnDuplicate::Topic(name) => format!("The record went to {name:?}"),
    };
    match (explanation.cause, &explanation.repeats) {
        (Some(Cause::Repeat), Some(repeats)) if emit == Emit::OnChange => {
            format!("{outcome}. It has the same content as the last emitted record with its key: {}.", emission(repeats))
        }
        (Some(Cause::Repeat), Some(repeats)) => format!("{outcome}. It repeats {}.", emission(repeats)),
        (Some(Cause::FalsePositive), _) => {
            format!("{outcome}. No record with its key had been emitted within the window, so it is a false positive of the filter.")
        }
        _ => format!("{outcome}. It is unknown whether it is a duplicate or a false positive."),
    }
}

fn of_key(explanation: &Explanation, topic: &Topic) -> Vec<String> {
    let mut sentences = Vec::new();
    match (&explanation.first, &explanation.last) {
        (None, _) if explanation.seen.is_none() => {
            sentences.push("The changelog does not show any emitted record with this key.".to_owned());
        }
        (None, _) => sentences.push("No record with this key has been emitted.".to_owned()),
        (Some(first), last) => {
            let often = if explanation.emissions == 1 { "once".to_owned() } else { format!("{} times", explanation.emissions) };
            let last = last.as_ref().filter(|last| *last != first && explanation.emissions > 1);
            let last = last.map_or_else(String::new, |last| format!("; last: {}", emission(last)));
            sentences.push(format!("A record with this key was emitted {often}. First: {}{last}.", emission(first)));
        }
    }
    if explanation.retractions > 0 {
        let often = if explanation.retractions == 1 { "once".to_owned() } else { format!("{} times", explanation.retractions) };
        sentences.push(format!("The key was retracted {often}."));
    }
    match &explanation.forgotten {
        Some(forgotten) => sentences.push(forgetting(forgotten, topic)),
        None if explanation.seen == Some(false) && explanation.emissions > 0 => sentences.push("The key is no longer seen.".to_owned()),
        None if explanation.seen == Some(true) => {
            sentences.push("It is unknown when the filter will forget this key.".to_owned());
        }
        None => {}
    }
    sentences
}

fn forgetting(forgotten: &Forgetting, topic: &Topic) -> String {
    let Forgetting { at_slice, at_stream_time_ms, slice, stream_time_ms } = forgotten;
    match (at_stream_time_ms, topic.window) {
        (Some(at), _) => {
            let now = stream_time_ms.map_or_else(String::new, |now| format!(" (now: {})", format_rfc3339(now)));
            format!("The key will be forgotten when stream time reaches {}{now}.", format_rfc3339(*at))
        }
        (None, Window::Keys { slice_keys, .. }) => {
            let now = slice.map_or_else(String::new, |slice| format!(" (now: slice {slice})"));
            format!("The key will be forgotten when the partition reaches slice {at_slice}{now}. A slice has {slice_keys} keys.")
        }
        (None, Window::Time { .. }) => format!("The key will be forgotten when slice {at_slice} starts."),
    }
}

/// Renders the verdict on a record without a key. `pending_at` is the committed offset if the record is still pending.
pub(super) fn without_key(topic: &Topic, verdict: VerdictName, no_key: &NoKey, pending_at: Option<Offset>) -> Vec<String> {
    let decided = match no_key {
        NoKey::Invalid(invalid) => invalid_or_tombstone(topic, verdict, invalid),
        NoKey::Passes => "`when` does not select the record, so it is emitted without deduplication.".to_owned(),
        NoKey::Awaits(schema) => format!("The record needs schema {schema}, which is not available."),
    };
    std::iter::once(decided).chain(pending_at.map(|committed| pending(Some(committed)))).chain(of_shadow(topic)).collect()
}

fn invalid_or_tombstone(topic: &Topic, verdict: VerdictName, invalid: &Invalid) -> String {
    let outcome = match (verdict, &topic.on_invalid) {
        (VerdictName::Tombstone, _) if topic.on_tombstone == OnTombstone::Emit => {
            "it is emitted without deduplication (on_tombstone)".to_owned()
        }
        (VerdictName::Tombstone, _) => "it is dropped (on_tombstone)".to_owned(),
        (_, OnInvalid::Fail) => "the worker stops at it (on_invalid)".to_owned(),
        (_, OnInvalid::Drop) => "it is dropped (on_invalid)".to_owned(),
        (_, OnInvalid::Emit) => "it is emitted without deduplication (on_invalid)".to_owned(),
        (_, OnInvalid::Topic(name)) => format!("it goes to {name:?} (on_invalid)"),
    };
    format!("The record has no usable deduplication key, so {outcome}. Reason: {invalid}.")
}

/// Renders the emitted record, or the ranges of records that contain it.
fn emission(emission: &Emission) -> String {
    let ranges: Vec<_> = emission
        .inputs
        .iter()
        .map(|range| {
            let place = format!("{}[{}]", range.topic, range.partition);
            if range.first_offset == range.last_offset {
                format!("{place} offset {}", range.first_offset)
            } else {
                format!("{place} offsets {} to {}", range.first_offset, range.last_offset)
            }
        })
        .collect();
    let committed = emission.committed_at_ms.map_or_else(String::new, |at| format!(", committed at {}", format_rfc3339(at)));
    if ranges.is_empty() {
        return format!("a seeded key{committed}");
    }
    let is_exact = matches!(&emission.inputs[..], [range] if range.first_offset == range.last_offset);
    let which = if is_exact { "" } else { "one of " };
    format!("{which}{}{committed}", ranges.join(" or "))
}
