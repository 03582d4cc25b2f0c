//! Decides the verdict of a record when the record is read for the first time and recalls the verdict when the record is read again.
//!
//! Only this module lets a state judge a record. [`crate::dedup`] decides whether a key is unseen, a duplicate, or late.
//! [`Topic::verdict_without_key`] decides about invalid records. A verdict changes later only if a topic rejects the written record
//! (`commit.rs`). Never judges a record that already has a verdict, because the second verdict would be "duplicate".
//!
//! Consecutive new records are judged in batches. Other records are judged one by one, for example records that are read again, have no key
//! or no timestamp, retract their key, or start a slice of the window. With some options, such as `refresh`, all records are judged one by
//! one. [`RecordLoop::emit`] then writes and counts the records.

use super::ids::StateId;
use super::input::Input;
use super::key_reader::Keyed;
use super::partition::PartitionState;
use super::record_loop::{RecordLoop, VerdictError};
use super::verdicts::Recall;
use crate::broker::{Broker, Record, RecordOf};
use crate::config::Topic;
use crate::fault;
use crate::filter::ExactError;
use crate::key::{KeyedRecord, NoKey};
use crate::record::{Offset, Timestamp, Verdict};
use crate::route;

/// Decides or recalls the verdict of one record, in the state of its rule. `max_timestamp` is the latest timestamp that may advance stream
/// time, based on the local clock.
#[inline]
pub(super) fn judge_one(
    topic: &Topic,
    input: &Input,
    (id, state): (StateId, &mut PartitionState),
    offset: Offset,
    keyed: &Keyed,
    max_timestamp: Timestamp,
) -> Result<Verdict, VerdictError> {
    match input.verdicts().recall(offset) {
        Recall::Decided(verdict) if !fault::defect("filter_asked_again_on_repeat") => return Ok(verdict),
        Recall::New | Recall::Decided(_) => {}
        Recall::Gap(decided) => return Err(VerdictError::Gap(decided)),
    }
    let &KeyedRecord { fingerprint, retracts, time } = match keyed {
        Ok(record) => record,
        Err(NoKey::Invalid(invalid)) => return Ok(topic.verdict_without_key(invalid.reason)),
        Err(NoKey::Passes) => return Ok(Verdict::Passed),
        Err(NoKey::Awaits(schema)) => return Err(VerdictError::Awaits(*schema)),
    };
    let max_timestamp = input.max_timestamp(id, offset, max_timestamp);
    state.changed = true;
    let keeps_first = fault::defect("replaced_contents_not_logged") && state.dedup.would_drop(fingerprint).is_ok_and(|seen| seen.is_some());
    let verdict =
        if retracts { state.dedup.retract(fingerprint, time, max_timestamp) } else { state.dedup.judge(fingerprint, time, max_timestamp) };
    let verdict = verdict.map_err(VerdictError::State)?;
    if !input.is_logged(id, offset) && !keeps_first {
        state.pending.note(&state.dedup, input.topic, offset, fingerprint);
    }
    Ok(verdict)
}

impl<B: Broker> RecordLoop<'_, B> {
    /// Judges the next records that can form a batch and remembers their verdicts. Returns the number of judged records, which may be 0. If
    /// judging fails at a record, also returns the error.
    pub(super) fn judge_batch(&mut self, messages: &[RecordOf<'_, B>], keys: &[Keyed]) -> (usize, Option<ExactError>) {
        let Some(horizon) = self.batch_horizon(messages) else { return (0, None) };
        let room = self.writer.room();
        if self.bytes > room.bytes {
            // A transaction ends with the record that fills it. So near the limit, records are processed one by one.
            return (0, None);
        }
        self.columns.take(&messages[..room.records.min(messages.len())], keys, horizon);
        let (Some(state), Some(first)) = (self.state.as_deref_mut(), messages.first().map(Record::offset)) else { return (0, None) };
        let columns = &mut *self.columns;
        if columns.fingerprints.is_empty() {
            return (0, None);
        }
        let before = state.dedup.stream_time();
        state.changed = true;
        columns.since.clear();
        let since = route::explains(&self.topic.config, Verdict::Duplicate).then_some(&mut columns.since);
        let judged = state.dedup.judge_batch(&columns.fingerprints, &columns.times, &mut columns.seen, since);
        if self.topic.changelog.is_some() {
            state.pending.note_batch(self.input.topic, first, &columns.fingerprints, before, &columns.times, &columns.seen);
        }
        columns.verdicts.clear();
        columns.verdicts.extend(columns.seen.iter().map(|&seen| if seen { Verdict::Duplicate } else { Verdict::Unseen }));
        if !columns.verdicts.is_empty() {
            self.input.remember(first, &columns.verdicts);
        }
        (columns.verdicts.len(), judged.err())
    }

    /// Returns the latest timestamp of records that may be judged in a batch, or `None` if batches are not possible now.
    fn batch_horizon(&self, messages: &[RecordOf<'_, B>]) -> Option<Timestamp> {
        let (input, topic, state) = (&self.input, self.topic, self.state.as_deref()?);
        let is_live = !self.others_warm_up && !input.is_warming_up() && input.replay_complete();
        if topic.forward.is_some() || !is_live || !state.pending.can_append(&state.dedup) {
            return None;
        }
        let is_new = messages.first().is_some_and(|first| input.is_new_from(first.offset()));
        state.dedup.batch_horizon().filter(|_| is_new).map(|latest| latest.min(self.max_timestamp))
    }
}
