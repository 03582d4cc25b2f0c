//! Determines the verdict on a record and its cause, from the history of its key and its commit, without I/O.
//!
//! A conclusion must not be marked certain if another sequence of events would explain the changelog as well.

use super::history::{Emission, Memory, Target};
use super::outcome::{Before, Occurrence, Occurrences, RecordOutcome, clock_at, may_be_late, was_late, was_old};
use super::report::{Cause, VerdictName};
use crate::dedup::{Emit, Mutation, Rules};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Judgment {
    pub(super) verdict: VerdictName,
    pub(super) cause: Option<Cause>,
    pub(super) is_certain: bool,
    pub(super) repeats: Option<Repeated>,
    /// Message about what is unknown.
    pub(super) limit: Option<String>,
}

/// The emission that a duplicate repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Repeated {
    /// An emission of an earlier commit.
    Emission(Emission),
    /// The index of a record of the same commit.
    Record(usize),
}

impl Judgment {
    const fn certain(verdict: VerdictName, cause: Cause) -> Self {
        Self { verdict, cause: Some(cause), is_certain: true, repeats: None, limit: None }
    }

    fn unknown(verdict: VerdictName, limit: String) -> Self {
        Self { verdict, cause: Some(Cause::Unknown), is_certain: false, repeats: None, limit: Some(limit) }
    }

    fn doubtful(mut self, limit: &str) -> Self {
        self.is_certain = false;
        self.limit.get_or_insert_with(|| limit.to_owned());
        self
    }
}

const OTHER_SETTINGS: &str = "the record was processed with another window or filter kind; use the configuration that applied at that time";
const OTHER_RETRACT: &str =
    "the number of retractions in the record's commit does not match the current `retract`, so `retract` may have been different";
const NOT_WHOLE: &str = "the changelog does not have all keys that were seen at that time, so a duplicate looks like a false positive";
const EXPIRING: &str =
    "the key left the window in the commit that processed this record; it is unknown whether the record was processed before or after that";
const RENEWALS: &str = "a filter with `refresh` does not log every renewal, so an unlogged renewal of the key may explain the drop";

/// Determines the verdict on the record at index `at`. `is_whole` is true if the changelog contains every key that the state could
/// remember.
pub(super) fn judge(
    outcome: RecordOutcome,
    at: usize,
    occurrences: &Occurrences,
    target: &Target,
    is_whole: bool,
    rules: &Rules,
) -> Judgment {
    let record = &occurrences.all[at];
    let judgment = match outcome {
        RecordOutcome::Retracted => Judgment { cause: None, ..Judgment::certain(VerdictName::Retracted, Cause::First) },
        RecordOutcome::Emitted(before) => emitted(before, record, target, is_whole, rules),
        RecordOutcome::Dropped(before) => dropped(before, record, target, is_whole, rules),
        RecordOutcome::Unclear { emitted, of } => Judgment::unknown(
            VerdictName::Unknown,
            format!(
                "the record's commit has {of} records with this key and emitted {emitted} of them; neither their order nor the changelog shows which ones"
            ),
        ),
    };
    let judgment = if target.same_settings { judgment } else { judgment.doubtful(OTHER_SETTINGS) };
    if retractions_match(outcome, occurrences, target) { judgment } else { judgment.doubtful(OTHER_RETRACT) }
}

/// True if the commit matches the current `retract`: the commit retracted the key once for each record with the key that `retract` selects.
/// If the requested record retracts its key, the commit must also have emitted at most one record for each record with the key that
/// `retract` does not select. A mismatch means that `retract` may have been different when the commit was made. An exact store can also
/// cause a mismatch, because it does not log the retraction of an unseen key.
fn retractions_match(outcome: RecordOutcome, occurrences: &Occurrences, target: &Target) -> bool {
    let deletions = target.changes.iter().filter(|change| change.mutation == Mutation::Delete).count();
    let retracting = occurrences.all.iter().filter(|other| other.retracts).count();
    let retracted_and_emitted = outcome == RecordOutcome::Retracted && target.emissions() > occurrences.all.len() - retracting;
    deletions == retracting && !retracted_and_emitted
}

fn emitted(before: Option<Before>, record: &Occurrence, target: &Target, is_whole: bool, rules: &Rules) -> Judgment {
    match before {
        Some(Before::Commit) => {}
        Some(Before::Retracted) => return Judgment::certain(VerdictName::Unseen, Cause::AfterRetraction),
        Some(Before::Record(_)) if rules.emit == Emit::OnChange => return Judgment::certain(VerdictName::Unseen, Cause::Changed),
        Some(Before::Record(_)) if !rules.is_sliced() => return Judgment::certain(VerdictName::Unseen, Cause::Forgotten),
        Some(Before::Record(_)) | None => {
            let limit = "another record with its key was emitted in the same commit, and it is unknown what happened between the two";
            return Judgment::unknown(VerdictName::Unseen, limit.to_owned());
        }
    }
    let cause = match (target.before.memory(rules, clock_at(record, target, rules)), &target.before.seen) {
        (Memory::Seen, Some(seen)) if seen.content != record.content => Cause::Changed,
        (Memory::Expiring, Some(seen)) if seen.content != record.content => {
            return Judgment::certain(VerdictName::Unseen, Cause::Changed).doubtful(EXPIRING);
        }
        (Memory::Unseen | Memory::Expiring, Some(_)) => Cause::Expired,
        (Memory::Seen, Some(_)) => Cause::Forgotten,
        _ if target.before.retractions > 0 && target.before.emissions > 0 => Cause::AfterRetraction,
        // A complete changelog shows that the key was unseen. If the changelog is incomplete, the emission itself shows that the key was
        // unseen: a filter with slices and without retractions forgets a key within the window only if the filter has reached its maximum
        // memory.
        _ if is_whole || (rules.is_sliced() && !rules.retracts_by_filter()) => Cause::First,
        _ if rules.is_sliced() => {
            return Judgment::certain(VerdictName::Unseen, Cause::First)
                .doubtful("the changelog does not cover the whole window, so a retraction of another key may have removed this key");
        }
        _ => {
            return Judgment::certain(VerdictName::Unseen, Cause::First)
                .doubtful("the changelog does not reach back to the start of the group, so the key may have been emitted before");
        }
    };
    Judgment::certain(VerdictName::Unseen, cause)
}

fn dropped(before: Option<Before>, record: &Occurrence, target: &Target, is_whole: bool, rules: &Rules) -> Judgment {
    let memory = match before {
        Some(Before::Record(at)) => {
            return Judgment { repeats: Some(Repeated::Record(at)), ..Judgment::certain(VerdictName::Duplicate, Cause::Repeat) };
        }
        Some(Before::Retracted) => Memory::Unseen,
        // With `emit = "on_change"`, a record whose content differs from that of the last emitted record is not its duplicate, so the key
        // counts as unseen.
        Some(Before::Commit) if target.before.seen.as_ref().is_some_and(|seen| seen.content != record.content) => Memory::Unseen,
        Some(Before::Commit) => target.before.memory(rules, clock_at(record, target, rules)),
        None => {
            let limit =
                "the record's commit also retracted this key, and it is unknown whether the retraction was before or after the record";
            return Judgment::unknown(VerdictName::Duplicate, limit.to_owned());
        }
    };
    let earlier = target.before.seen.as_ref().map(|seen| Repeated::Emission(seen.emission.clone()));
    match memory {
        Memory::Seen => Judgment { repeats: earlier, ..Judgment::certain(VerdictName::Duplicate, Cause::Repeat) },
        Memory::Expiring | Memory::Unseen if may_be_late(record, target, rules) && !was_late(record, target, rules) => Judgment::unknown(
            VerdictName::Unknown,
            "stream time advanced during the record's commit and made the record late; it is unknown whether the worker processed the record before or after that".to_owned(),
        ),
        Memory::Expiring if was_late(record, target, rules) => Judgment::unknown(
            VerdictName::Unknown,
            "the record was late, and its key left the window in the same commit; either can be the reason for the drop".to_owned(),
        ),
        Memory::Expiring => Judgment { repeats: earlier, ..Judgment::certain(VerdictName::Duplicate, Cause::Repeat) }
            .doubtful(EXPIRING),
        Memory::Unseen if was_late(record, target, rules) => {
            let late = Judgment { cause: None, ..Judgment::certain(VerdictName::Late, Cause::First) };
            if rules.exact { late } else { late.doubtful("if the filter had a false positive, the record counted as a duplicate") }
        }
        Memory::Unseen if rules.exact => Judgment::unknown(
            VerdictName::Duplicate,
            "the exact store had the key, but the changelog does not; the changelog may have been switched on after the group started or may be damaged"
                .to_owned(),
        ),
        Memory::Unseen if !is_whole => Judgment::unknown(VerdictName::Duplicate, NOT_WHOLE.to_owned()),
        Memory::Unseen => {
            let wrong = Judgment::certain(VerdictName::Duplicate, Cause::FalsePositive);
            if was_old(record, target, rules) {
                return wrong.doubtful("the record is older than the window; if `late` was different at that time, the record was dropped as late");
            }
            if rules.refresh && target.before.seen.is_some() && before == Some(Before::Commit) { wrong.doubtful(RENEWALS) } else { wrong }
        }
    }
}
