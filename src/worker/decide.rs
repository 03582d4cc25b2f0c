//! The verdict of a record: taken when it is first read, recalled when it is read again.
//!
//! Owns the way from a record to its verdict. Whether a key is unseen, a duplicate or late, [`crate::dedup`] says; a record
//! without a key is what [`Topic::verdict_without_key`] makes of it. Only a broker that refuses the record changes its
//! verdict later (`commit.rs`). Records of an input with `repartition` do not come here: `records.rs` forwards them, and they
//! are decided when they are read from the topic in between. A replay asks [`crate::dedup`] itself. Must never ask the filter
//! for a record that has a verdict.

use super::input::Input;
use super::key_reader::Keyed;
use super::partition::PartitionState;
use super::verdicts::Recall;
use crate::config::Topic;
use crate::fault;
use crate::filter::ExactError;
use crate::format::SchemaId;
use crate::key::NoKey;
use crate::record::{Offset, Timestamp, Verdict};

/// Why a record cannot be decided.
pub(super) enum VerdictError {
    /// Its schema is not known yet.
    Awaits(SchemaId),
    /// Records that were decided do not come again: the offset of the first of them.
    Gap(Offset),
    /// The state cannot decide.
    State(ExactError),
}

/// Decides the record of `topic` at `offset`. `max_timestamp` is the latest record time that may advance
/// stream time, by this machine's clock.
#[inline]
pub(super) fn decide(
    topic: &Topic,
    input: &Input,
    state: &mut PartitionState,
    offset: Offset,
    time: Option<Timestamp>,
    keyed: &Keyed,
    max_timestamp: Timestamp,
) -> Result<Verdict, VerdictError> {
    match input.verdicts.recall(offset) {
        Recall::Decided(verdict) if !fault::defect("filter_asked_again_on_repeat") => return Ok(verdict),
        Recall::New | Recall::Decided(_) => {}
        Recall::Gap(decided) => return Err(VerdictError::Gap(decided)),
    }
    let &(fingerprint, is_retraction) = match keyed {
        Ok(key) => key,
        Err(NoKey::Invalid(invalid)) => return Ok(topic.verdict_without_key(invalid.reason)),
        Err(NoKey::Awaits(schema)) => return Err(VerdictError::Awaits(*schema)),
    };
    let max_timestamp = if input.is_warm_up(offset) { input.warm_up_max_timestamp.unwrap_or(max_timestamp) } else { max_timestamp };
    state.changed = true;
    let verdict = if is_retraction {
        state.dedup.retract(fingerprint, time, max_timestamp)
    } else {
        state.dedup.judge(fingerprint, time, max_timestamp)
    };
    let verdict = verdict.map_err(VerdictError::State)?;
    if offset >= input.logged {
        state.pending.note(&state.dedup, input.topic, offset, fingerprint);
    }
    Ok(verdict)
}
