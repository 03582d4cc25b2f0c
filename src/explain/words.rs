//! An explanation in sentences.
//!
//! Owns the words. Must never say more than the explanation does.

use super::report::{Cause, Emission, Explanation, Forgetting, VerdictName};
use crate::config::{OnDuplicate, OnInvalid, OnTombstone, Topic};
use crate::dedup::Late;
use crate::filter::Window;
use crate::record::{Invalid, Offset};
use crate::replay::format_rfc3339;

/// What became of a record, and what is known of its key. The group has `committed` so far.
pub(super) fn sentences(explanation: &Explanation, topic: &Topic, committed: Option<Offset>) -> Vec<String> {
    let mut sentences: Vec<_> = explanation.verdict.map(|verdict| decided(explanation, verdict, topic, committed)).into_iter().collect();
    if explanation.changelog.is_some() || explanation.seen.is_some() {
        sentences.extend(of_key(explanation, topic));
    }
    if topic.is_shadow() {
        sentences.push("The topic has no output, so what is said to have come out is what would have.".to_owned());
    }
    sentences
}

fn decided(explanation: &Explanation, verdict: VerdictName, topic: &Topic, committed: Option<Offset>) -> String {
    match verdict {
        VerdictName::Unseen => {
            let so_far = if explanation.certain { "" } else { ", as far as is known" };
            match explanation.cause {
                Some(Cause::Expired) => "It came out: one with its key had come out before, and its window was over.".to_owned(),
                Some(Cause::AfterRetraction) => "It came out: its key had been retracted before.".to_owned(),
                Some(Cause::Forgotten) => {
                    "It came out, though one with its key had come out within the window: the filter had forgotten that before its time."
                        .to_owned()
                }
                Some(Cause::Unknown) => "It came out.".to_owned(),
                _ => format!("It came out: no record with its key had come out within the window{so_far}."),
            }
        }
        VerdictName::Duplicate => duplicate(explanation, &topic.on_duplicate),
        VerdictName::Late => {
            let fate = if topic.late == Late::DeadLetter { "went to the dead letters" } else { "was dropped" };
            format!("It {fate}: it was older than the window, and its key had not come out within that.")
        }
        VerdictName::Retracted => "It took its key back; such a record does not come out.".to_owned(),
        VerdictName::Tombstone | VerdictName::Invalid => String::new(),
        VerdictName::Pending => pending(committed) + of_now(explanation.seen),
        VerdictName::Unknown => "What was decided of it is not known.".to_owned(),
    }
}

fn pending(committed: Option<Offset>) -> String {
    match committed {
        Some(committed) => format!("It is not decided yet: the group has come to offset {committed}."),
        None => "It is not decided yet: the group has committed nothing of this partition.".to_owned(),
    }
}

const fn of_now(seen: Option<bool>) -> &'static str {
    match seen {
        Some(true) => " As things stand, it will be a duplicate.",
        Some(false) => " As things stand, it will come out, but for a false positive.",
        None => "",
    }
}

fn duplicate(explanation: &Explanation, on_duplicate: &OnDuplicate) -> String {
    let fate = match on_duplicate {
        OnDuplicate::Drop => "It did not come out".to_owned(),
        OnDuplicate::Mark => "It came out marked as a duplicate".to_owned(),
        OnDuplicate::Topic(name) => format!("It went to {name:?}"),
    };
    match (explanation.cause, &explanation.repeats) {
        (Some(Cause::Repeat), Some(repeats)) => format!("{fate}: it repeats {}.", emission(repeats)),
        (Some(Cause::FalsePositive), _) => {
            format!("{fate}, and no record with its key had come out within the window: it is a false positive of the filter.")
        }
        _ => format!("{fate}; whether it repeats another record, or is a false positive, is not known."),
    }
}

fn of_key(explanation: &Explanation, topic: &Topic) -> Vec<String> {
    let mut sentences = Vec::new();
    match (&explanation.first, &explanation.last) {
        (None, _) if explanation.seen.is_none() => sentences.push("The changelog has no record with this key that came out.".to_owned()),
        (None, _) => sentences.push("No record with this key has come out.".to_owned()),
        (Some(first), last) => {
            let often = if explanation.emissions == 1 { "once".to_owned() } else { format!("{} times", explanation.emissions) };
            let last = last.as_ref().filter(|last| *last != first && explanation.emissions > 1);
            let last = last.map_or_else(String::new, |last| format!("; last, {}", emission(last)));
            sentences.push(format!("A record with this key came out {often}: first, {}{last}.", emission(first)));
        }
    }
    if explanation.retractions > 0 {
        let often = if explanation.retractions == 1 { "once".to_owned() } else { format!("{} times", explanation.retractions) };
        sentences.push(format!("The key was retracted {often}."));
    }
    match &explanation.forgotten {
        Some(forgotten) => sentences.push(forgetting(forgotten, topic)),
        None if explanation.seen == Some(false) && explanation.emissions > 0 => sentences.push("The key is not seen any more.".to_owned()),
        None if explanation.seen == Some(true) => {
            sentences.push("The filter forgets at random, so nobody knows when it forgets this key.".to_owned());
        }
        None => {}
    }
    sentences
}

fn forgetting(forgotten: &Forgetting, topic: &Topic) -> String {
    let Forgetting { at_slice, at_stream_time_ms, slice, stream_time_ms } = forgotten;
    match (at_stream_time_ms, topic.window) {
        (Some(at), _) => {
            let now = stream_time_ms.map_or_else(String::new, |now| format!("; it is at {} now", format_rfc3339(now)));
            format!("The key will be forgotten when stream time comes to {}{now}.", format_rfc3339(*at))
        }
        (None, Window::Keys { slice_keys, .. }) => {
            let now = slice.map_or_else(String::new, |slice| format!("; it is in slice {slice} now"));
            format!("The key will be forgotten when the partition comes to slice {at_slice}{now}, and a slice has {slice_keys} keys.")
        }
        (None, Window::Time { .. }) => format!("The key will be forgotten with slice {at_slice}."),
    }
}

/// Of a record without a key: the fault, and what became of it. The group has committed so far, if it is still to come to it.
pub(super) fn without_key(topic: &Topic, verdict: VerdictName, invalid: &Invalid, pending_at: Option<Offset>) -> Vec<String> {
    let fate = match (verdict, &topic.on_invalid) {
        (VerdictName::Tombstone, _) if topic.on_tombstone == OnTombstone::Emit => "it comes out undecided (on_tombstone)".to_owned(),
        (VerdictName::Tombstone, _) => "it is dropped (on_tombstone)".to_owned(),
        (_, OnInvalid::Fail) => "the worker stops before it (on_invalid)".to_owned(),
        (_, OnInvalid::Drop) => "it is dropped (on_invalid)".to_owned(),
        (_, OnInvalid::Emit) => "it comes out undecided (on_invalid)".to_owned(),
        (_, OnInvalid::Topic(name)) => format!("it goes to {name:?} (on_invalid)"),
    };
    let mut sentences = vec![format!("It has no key, so {fate}: {invalid}.")];
    if let Some(committed) = pending_at {
        sentences.push(pending(Some(committed)));
    }
    sentences
}

/// The record that came out, or those of which it was one.
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
        return format!("what the group was seeded with{committed}");
    }
    let is_exact = matches!(&emission.inputs[..], [range] if range.first_offset == range.last_offset);
    let which = if is_exact { "" } else { "one of " };
    format!("{which}{}{committed}", ranges.join(" or "))
}
