//! The verdict of a record: taken when it is first read, recalled when it is read again.

use super::Plan;
use super::decisions::Recall;
use super::partition::{Input, Memory};
use crate::config::Topic;
use crate::filter::Fault;
use crate::kafka::Message;
use crate::key::{Fingerprint, Scratch};
use crate::record::{Invalid, Offset, Record, Timestamp, Verdict};

/// Why a record cannot be decided.
pub(super) enum Undecided {
    /// Records that were decided do not come again: the offset of the first of them.
    Gap(Offset),
    /// The memory cannot tell.
    Fault(Fault),
}

/// The fingerprint of a record's key, and whether the record takes that key back.
pub(super) type Keyed = Result<(Fingerprint, bool), Box<Invalid>>;

/// Decides the record of `topic` at `offset`. `believed` is the latest record time that this machine's clock makes credible.
#[inline]
pub(super) fn decide(
    topic: &Topic,
    input: &Input,
    memory: &mut Memory,
    offset: Offset,
    time: Option<Timestamp>,
    keyed: &Keyed,
    believed: Timestamp,
) -> Result<Verdict, Undecided> {
    match input.decisions.recall(offset) {
        Recall::New => {}
        Recall::Decided(verdict) => return Ok(verdict),
        Recall::Gap(decided) => return Err(Undecided::Gap(decided)),
    }
    let &(fingerprint, takes_back) = match keyed {
        Ok(key) => key,
        Err(invalid) => return Ok(topic.verdict_without_key(invalid.reason)),
    };
    let horizon = if input.is_warm_up(offset) { input.warm_horizon.unwrap_or(believed) } else { believed };
    memory.changed = true;
    let verdict = if takes_back { memory.dedup.unsee(fingerprint, time, horizon) } else { memory.dedup.judge(fingerprint, time, horizon) };
    let verdict = verdict.map_err(Undecided::Fault)?;
    if offset >= input.logged {
        memory.journal.note(&memory.dedup, input.topic, offset, fingerprint);
    }
    Ok(verdict)
}

/// Takes the key of a record.
#[inline]
pub(super) fn key_of(plan: &Plan, message: &Message<'_>, scratch: &mut Scratch) -> Keyed {
    let headers: Vec<_> = if plan.topic.reads_headers() { message.headers().collect() } else { Vec::new() };
    let record = Record { key: message.key(), value: message.value(), headers: &headers };
    Ok((plan.topic.key.fingerprint(&record, scratch)?, plan.topic.takes_back(&headers)))
}
