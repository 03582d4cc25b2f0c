//! Records judged together: a batch of one partition as columns, where nothing but the filter has a say.
//!
//! Owns which records these are: new ones, one after the other, with a key and a time, none of which ends a slice of the
//! window. All others are taken one by one. Must never make another thing of a record than [`RecordLoop::record`] does.

use super::co_partitioning;
use super::columns::Columns;
use super::decide::VerdictError;
use super::key_reader::Keyed;
use super::record_loop::{RecordLoop, Stop};
use crate::broker::{Broker, Record, RecordOf};
use crate::config::OnDuplicate;
use crate::record::{Timestamp, Verdict};

impl<B: Broker> RecordLoop<'_, B> {
    /// Takes the first records together. Returns how many these are, which may be none; or which of them makes it stop.
    pub(super) fn together(&mut self, messages: &[RecordOf<'_, B>], keys: &[Keyed]) -> Result<usize, (usize, Stop)> {
        let Some(latest) = self.together_until(messages) else { return Ok(0) };
        let (input, columns) = (&mut *self.input, &mut *self.columns);
        let room = self.outbox.room();
        if self.bytes > room.bytes {
            // The transaction is to end with the record that fills it.
            return Ok(0);
        }
        columns.take(&messages[..room.records.min(messages.len())], keys, latest);
        let (Some(state), Some(first)) = (self.state.as_deref_mut(), messages.first().map(Record::offset)) else { return Ok(0) };
        let Columns { fingerprints, times, seen } = columns;
        if fingerprints.is_empty() {
            return Ok(0);
        }
        let before = state.dedup.stream_time();
        state.changed = true;
        let judged = state.dedup.judge_each(fingerprints, times, seen);
        let records = seen.len();
        if records > 0 {
            state.pending.note_each(input.topic, first, fingerprints, before, times, seen);
            input.verdicts.carry_each(first, seen);
            let written = self.write_unseen(messages);
            let done = written.as_ref().map_or_else(|&(number, _)| number, |()| records);
            self.count(&messages[..done]);
            self.input.verdicts.give_back(records - done);
            written?;
            self.carried(records).map_err(|stop| (records - 1, stop))?;
        }
        judged.map(|()| records).map_err(|error| (records, Stop::Undecided(VerdictError::State(error))))
    }

    /// The latest time of records that may be taken together, as the topic is configured and as the partition stands; `None`
    /// if none may.
    fn together_until(&self, messages: &[RecordOf<'_, B>]) -> Option<Timestamp> {
        let (input, topic, state) = (&self.input, self.topic, self.state.as_deref()?);
        let is_usual = topic.config.on_duplicate == OnDuplicate::Drop && topic.forward.is_none();
        let is_read_on = !self.others_warm_up && !input.warming_up && input.verdicts.is_all_carried();
        if !is_usual || !is_read_on || !state.pending.goes_on(&state.dedup) {
            return None;
        }
        let known = input.position.max(input.warm_until).max(input.counted).max(input.logged);
        let is_new = messages.first().is_some_and(|first| first.offset() >= known);
        state.dedup.judges_each_until().filter(|_| is_new).map(|latest| latest.min(self.max_timestamp))
    }

    /// Writes the unseen of them. Returns which of them it could not write.
    fn write_unseen(&mut self, messages: &[RecordOf<'_, B>]) -> Result<(), (usize, Stop)> {
        let topic = self.topic;
        self.outbox.begin().map_err(|error| (0, Stop::Failed(error)))?;
        self.headers.clear();
        for (number, message) in messages.iter().enumerate().take(self.columns.seen.len()) {
            if self.columns.seen[number] {
                continue;
            }
            co_partitioning::watch(
                &self.shared.cross_partition_keys,
                &self.shared.stats,
                topic,
                self.columns.fingerprints[number],
                message.partition(),
            );
            if let Some((to, partition)) = topic.routes.output(message) {
                self.write(to, partition, message, Some(self.columns.times[number])).map_err(|stop| (number, stop))?;
            }
        }
        Ok(())
    }

    /// Counts records as read.
    fn count(&mut self, messages: &[RecordOf<'_, B>]) {
        let Some(end) = messages.last().map(|last| last.offset() + 1) else { return };
        (self.input.position, self.input.counted) = (end, end);
        self.tally.count_each(&self.columns.seen[..messages.len()]);
        if self.topic.config.count_by.is_some() || self.topic.keeps_content() {
            for (number, message) in messages.iter().enumerate() {
                let verdict = if self.columns.seen[number] { Verdict::Duplicate } else { Verdict::Unseen };
                self.look_into(message, Some(self.columns.fingerprints[number]), verdict);
            }
        }
    }
}
