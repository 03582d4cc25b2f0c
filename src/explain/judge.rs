//! Why a record was decided as it was, by what is known of its key and its commit.
//!
//! Owns that conclusion. Pure. Must never call certain what another course of things would explain as well.

use super::fate::{Before, Fate, Occurrence, Occurrences, clock_at, may_be_late, was_late, was_old};
use super::history::{Emission, Memory, Target};
use super::report::{Cause, VerdictName};
use crate::dedup::{Mutation, Rules};

/// What was decided, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) verdict: VerdictName,
    pub(super) cause: Option<Cause>,
    pub(super) is_certain: bool,
    /// What it repeats.
    pub(super) repeats: Option<Repeated>,
    /// What is not known.
    pub(super) limit: Option<String>,
}

/// What a record repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Repeated {
    /// What an earlier commit emitted.
    Emission(Emission),
    /// A record of the same commit, by number.
    Record(usize),
}

impl Judgement {
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

const OTHER_SETTINGS: &str =
    "it was decided under another window or kind of filter than the configuration says; explain it by the configuration of then";
const OTHER_RETRACT: &str =
    "its commit took the key back more often or less often than `retract` says now, so that may have been another then";
const NOT_WHOLE: &str = "the changelog does not have all that had been seen then, so a repeat and a false positive look alike";
const RENEWALS: &str =
    "a filter with `refresh` renews only what it lacks in the open slice, so a renewal that would explain this may be in no changelog";

/// Judges what became of a record. The changelog `is_whole` if it has all that the state could remember then.
pub(super) fn judge(fate: Fate, at: usize, occurrences: &Occurrences, target: &Target, is_whole: bool, rules: &Rules) -> Judgement {
    let record = &occurrences.all[at];
    let judgement = match fate {
        Fate::Retracted => Judgement { cause: None, ..Judgement::certain(VerdictName::Retracted, Cause::First) },
        Fate::Emitted(before) => emitted(before, record, target, is_whole, rules),
        Fate::Dropped(before) => dropped(before, record, target, is_whole, rules),
        Fate::Unclear { emitted, of } => Judgement::unknown(
            VerdictName::Unknown,
            format!(
                "its commit has {of} records with this key and emitted {emitted} of them; which, neither their order nor the changelog says"
            ),
        ),
    };
    let judgement = if target.is_alike { judgement } else { judgement.doubtful(OTHER_SETTINGS) };
    if retracts_alike(fate, occurrences, target) { judgement } else { judgement.doubtful(OTHER_RETRACT) }
}

/// Whether what a commit did to the key is what `retract` asks for now. A filter alone logs each retraction. An exact store
/// logs those that took something back; of another one, the changelog does not show that it was one.
fn retracts_alike(fate: Fate, occurrences: &Occurrences, target: &Target) -> bool {
    let deletions = target.changes.iter().filter(|(mutation, _)| *mutation == Mutation::Delete).count();
    let retracting = occurrences.all.iter().filter(|other| other.retracts).count();
    let took_back_and_emitted = fate == Fate::Retracted && target.emissions() > occurrences.all.len() - retracting;
    deletions == retracting && !took_back_and_emitted
}

fn emitted(before: Option<Before>, record: &Occurrence, target: &Target, is_whole: bool, rules: &Rules) -> Judgement {
    match before {
        Some(Before::Commit) => {}
        Some(Before::Retracted) => return Judgement::certain(VerdictName::Unseen, Cause::AfterRetraction),
        Some(Before::Record(_)) if !rules.is_sliced() => return Judgement::certain(VerdictName::Unseen, Cause::Forgotten),
        Some(Before::Record(_)) | None => {
            let limit = "another record with its key came out in the same commit, and what lay between the two is not known";
            return Judgement::unknown(VerdictName::Unseen, limit.to_owned());
        }
    }
    let cause = match (target.before.memory(rules, clock_at(record, target, rules)), &target.before.seen) {
        (Memory::Unseen | Memory::Expiring, Some(_)) => Cause::Expired,
        (Memory::Seen, Some(_)) => Cause::Forgotten,
        _ if target.before.retractions > 0 && target.before.emissions > 0 => Cause::AfterRetraction,
        // What forgets nothing within the window had not seen it.
        _ if is_whole || (rules.is_sliced() && !rules.retracts_by_filter()) => Cause::First,
        _ if rules.is_sliced() => {
            return Judgement::certain(VerdictName::Unseen, Cause::First).doubtful(
                "the changelog does not reach back over the whole window, so a retraction of another key may have taken this one",
            );
        }
        _ => {
            return Judgement::certain(VerdictName::Unseen, Cause::First)
                .doubtful("the changelog does not reach back to the group's beginning, so the key may have come out before");
        }
    };
    Judgement::certain(VerdictName::Unseen, cause)
}

fn dropped(before: Option<Before>, record: &Occurrence, target: &Target, is_whole: bool, rules: &Rules) -> Judgement {
    let memory = match before {
        Some(Before::Record(at)) => {
            return Judgement { repeats: Some(Repeated::Record(at)), ..Judgement::certain(VerdictName::Duplicate, Cause::Repeat) };
        }
        Some(Before::Retracted) => Memory::Unseen,
        Some(Before::Commit) => target.before.memory(rules, clock_at(record, target, rules)),
        None => {
            let limit = "its commit also retracted this key, and the order of the two is not known";
            return Judgement::unknown(VerdictName::Duplicate, limit.to_owned());
        }
    };
    let earlier = target.before.seen.as_ref().map(|seen| Repeated::Emission(seen.emission.clone()));
    match memory {
        Memory::Seen => Judgement { repeats: earlier, ..Judgement::certain(VerdictName::Duplicate, Cause::Repeat) },
        Memory::Expiring | Memory::Unseen if may_be_late(record, target, rules) && !was_late(record, target, rules) => Judgement::unknown(
            VerdictName::Unknown,
            "within its commit, stream time came to where the record is late; whether before or after it, is not known".to_owned(),
        ),
        Memory::Expiring if was_late(record, target, rules) => Judgement::unknown(
            VerdictName::Unknown,
            "it was late, and its key left the window in its very commit: either was a reason to leave it out".to_owned(),
        ),
        Memory::Expiring => Judgement { repeats: earlier, ..Judgement::certain(VerdictName::Duplicate, Cause::Repeat) }
            .doubtful("the key left the window in the very commit that decided this record"),
        Memory::Unseen if was_late(record, target, rules) => {
            let late = Judgement { cause: None, ..Judgement::certain(VerdictName::Late, Cause::First) };
            if rules.exact { late } else { late.doubtful("if the filter took its key for seen, it counted as a duplicate") }
        }
        Memory::Unseen if rules.exact => Judgement::unknown(
            VerdictName::Duplicate,
            "an exact store knew its key, and the changelog does not: it was not written from the group's beginning, or was harmed"
                .to_owned(),
        ),
        Memory::Unseen if !is_whole => Judgement::unknown(VerdictName::Duplicate, NOT_WHOLE.to_owned()),
        Memory::Unseen => {
            let wrong = Judgement::certain(VerdictName::Duplicate, Cause::FalsePositive);
            if was_old(record, target, rules) {
                return wrong.doubtful("it is older than the window; if `late` was another then, it was left out for that");
            }
            if rules.refresh && target.before.seen.is_some() && before == Some(Before::Commit) { wrong.doubtful(RENEWALS) } else { wrong }
        }
    }
}
