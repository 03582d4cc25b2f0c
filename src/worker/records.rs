//! The hot loop: judges and writes the records of a batch.
//!
//! Determines the processing order of the records in a batch. Never allocates per record. For consecutive records of a partition, looks up
//! the shared data once and keeps it in a [`RecordLoop`].

use super::ids::{InputId, StateId};
use super::input::Input;
use super::judge::judge_one;
use super::key_reader::Keyed;
use super::read_ahead::{ReadAhead, take_keys};
use super::record_loop::{RecordLoop, Stop, VerdictError};
use super::stall::Wait;
use super::verdicts::Recall;
use super::{Error, Flow, Worker};
use crate::broker::{Batch, Broker, Consumer as _, Record, RecordOf};
use crate::fault;
use crate::filter::ExactError;
use crate::key::{Fingerprint, NoKey, ValueReader};
use crate::record::{Invalid, Timestamp, TopicPartition, Verdict};
use crate::route;
use crate::runtime;
use std::ops::Range;
use std::slice;
use std::time::Duration;

/// The maximum number of keys that are extracted before the first of their records is judged.
const PREFETCH_RECORDS: usize = 64;

impl<B: Broker> Worker<B> {
    /// Judges and writes the records of a batch. The keys of the first records may already be extracted.
    pub(super) fn process(&mut self, source: &B::Consumer, ahead: &mut ReadAhead<'_, B>) -> Result<Flow, Error> {
        if ahead.batch.messages.is_empty() {
            return Ok(Flow::Continue);
        }
        let _span = tracing::debug_span!("batch", records = ahead.batch.messages.len()).entered();
        let now = runtime::wall_clock();
        ahead.runs.add_runs(&self.topics, &ahead.batch.messages);
        let (messages, runs) = (&ahead.batch.messages, &ahead.runs);
        let mut judged = Ok(Flow::Continue);
        let mut end = 0;
        while end < messages.len() && matches!(judged, Ok(Flow::Continue)) {
            let first = end;
            end = (first + PREFETCH_RECORDS).min(messages.len());
            let is_slow = !take_keys(&self.topics, &mut self.key_reader, messages, runs, &mut ahead.keys, end);
            end = end.min(ahead.keys.keyed.len());
            let keys = &ahead.keys;
            self.prefetch(runs.within(first..end).flat_map(|(of, numbers)| keys.by_rule(of, numbers)), &keys.keyed);
            let mut of_rules = runs.within(first..end).flat_map(|(of, numbers)| keys.by_rule(of, numbers));
            judged = of_rules.try_fold(Flow::Continue, |flow, (of, numbers)| match (flow, of) {
                (Flow::Continue, Some(of)) => self.take(source, of, &messages[numbers.clone()], &keys.keyed[numbers], now),
                (flow, _) => Ok(flow),
            });
            if is_slow && matches!(judged, Ok(Flow::Continue)) {
                // Decoding these records can take so long that the group would consider this member dead without a poll.
                let mut polled = Batch::default();
                judged = source.poll(&mut polled, 0, Duration::ZERO).map(|()| Flow::Continue).map_err(Error::from);
                ahead.batch.out_of_range |= polled.out_of_range;
                let is_due = self.commit_in().is_some_and(|due| due.is_zero());
                if is_due && self.assignment.is_replaying() || source.has_rebalance() || self.check_stop() {
                    self.pass_over(runs.within(end..messages.len()));
                    break;
                }
                if is_due && judged.is_ok() {
                    judged = self.commit(source);
                }
            }
        }
        ahead.keys.clear();
        // Counts are added even if the worker ends with an error, because some of the records may have been committed.
        self.reporter.count(&self.shared.stats);
        judged
    }

    /// Passes over the remaining records of a batch. They will be read again.
    fn pass_over(&mut self, runs: impl Iterator<Item = (Option<InputId>, Range<usize>)>) {
        for input in runs.filter_map(|(of, _)| of) {
            self.assignment.inputs.get_mut(&input).into_iter().for_each(Input::pass_over);
            self.assignment.holds_new_records = true;
        }
    }

    /// Prefetches the memory that judging these records will read, to overlap cache misses.
    fn prefetch(&mut self, runs: impl Iterator<Item = (Option<InputId>, Range<usize>)>, keys: &[Keyed]) {
        let (all, mut last) = (&mut self.buffers.prefetched, None);
        let mut load = |of: Option<StateId>, all: &mut Vec<Fingerprint>| {
            if let Some(state) = of.and_then(|id| self.assignment.states.get_mut(&id)) {
                state.dedup.prefetch(all);
            }
            all.clear();
        };
        for (of, numbers) in runs {
            let state = of.map(|of| StateId { space: self.topics[of.topic].space, partition: of.partition });
            if state != last {
                load(last, all);
                last = state;
            }
            all.extend(keys[numbers].iter().flatten().map(|keyed| keyed.fingerprint));
        }
        load(last, all);
    }

    /// Judges and writes consecutive records of one partition and rule. Skips them if they must not be processed now, for example because
    /// the state of the partition is not restored. Skipped records are read again, by this worker or by the next owner of the partition.
    fn take(
        &mut self,
        source: &B::Consumer,
        of: InputId,
        messages: &[RecordOf<'_, B>],
        keys: &[Keyed],
        now: Timestamp,
    ) -> Result<Flow, Error> {
        let mut at = 0;
        let bytes = messages.iter().map(Record::bytes).sum();
        self.reporter.tallies[self.topics[of.topic].read].bytes += bytes as u64;
        while let Some((stopped, stop)) = self.record_loop(of, now, bytes).and_then(|mut records| records.run(messages, keys, at)) {
            if let Flow::Rewound = self.handle_stop(source, of, &messages[stopped], &keys[stopped], stop)? {
                return Ok(Flow::Rewound);
            }
            at = stopped + 1;
        }
        Ok(Flow::Continue)
    }

    /// Returns the data that the records of an input's rule share, or `None` if these records must not be processed now.
    fn record_loop(&mut self, of: InputId, now: Timestamp, bytes: usize) -> Option<RecordLoop<'_, B>> {
        let id = self.topics.input_of(of);
        let others_warm_up = self.assignment.any_warm_up && self.assignment.others_warm_up(&self.topics, id);
        let input = self.assignment.inputs.get_mut(&id)?;
        if others_warm_up && !input.is_warm_up(input.position()) {
            input.pass_over();
            return None;
        }
        if input.blocked_on_schema.is_some() || self.assignment.holds_new_records && input.replay_complete() {
            input.pass_over();
        }
        // Records that were passed over come first, even if nothing blocks them any longer.
        if input.ends_worker || input.wait != Wait::No {
            return None;
        }
        let topic = &self.topics[of.topic];
        let state = StateId { space: topic.space, partition: of.partition };
        let state = self.assignment.states.get_mut(&state).filter(|_| topic.forward.is_none());
        if state.is_none() && topic.forward.is_none() {
            return None;
        }
        let values = &mut self.buffers.values;
        if values.len() <= of.topic.0 {
            values.resize_with(of.topic.0 + 1, ValueReader::default);
        }
        Some(RecordLoop {
            shared: &self.shared,
            holds_new_records: self.assignment.holds_new_records,
            of,
            topic,
            input,
            state,
            writer: &mut self.writer,
            tally: &mut self.reporter.tallies[topic.counted],
            headers: &mut self.buffers.headers,
            values: &mut values[of.topic.0],
            columns: &mut self.buffers.columns,
            bytes,
            others_warm_up,
            max_timestamp: if fault::defect("future_moves_window") { Timestamp::MAX } else { topic.config.max_timestamp(now) },
        })
    }

    fn handle_stop(
        &mut self,
        source: &B::Consumer,
        of: InputId,
        message: &RecordOf<'_, B>,
        keyed: &Keyed,
        stop: Stop,
    ) -> Result<Flow, Error> {
        let (partition, offset) = (TopicPartition { topic: message.topic().to_owned(), partition: message.partition() }, message.offset());
        match stop {
            // The transaction is full but cannot be committed before all records of the replay are in it. New records wait, because they
            // would make the transaction even larger.
            Stop::Full if self.assignment.is_replaying() && !fault::defect("full_transaction_not_held") => {
                self.assignment.holds_new_records = true;
                Ok(Flow::Continue)
            }
            Stop::Full => {
                let flow = self.commit(source)?;
                // Write due checkpoints here, because under full load there is rarely another moment without an open transaction.
                self.checkpoint(false);
                Ok(flow)
            }
            // Logging must wait for the replay. The warm-up must wait as well, because its unlogged changes would otherwise grow without
            // limit. The worker begins a transaction, because a replay is given up only when the open transaction is too old.
            Stop::Unlogged if self.assignment.is_replaying() => {
                self.assignment.holds_new_records = true;
                self.writer.begin().map_or_else(|failure| self.abort(source, failure).map(|()| Flow::Rewound), |()| Ok(Flow::Continue))
            }
            Stop::Unlogged if self.writer.is_open() => self.commit(source),
            Stop::Unlogged => self.log_warm_up(source),
            Stop::Waits => Ok(Flow::Continue),
            Stop::Failed(failure) => self.abort(source, failure).map(|()| Flow::Rewound),
            Stop::Undecided(VerdictError::Awaits(schema)) => {
                self.block_on_schema(of, schema);
                Ok(Flow::Continue)
            }
            Stop::Undecided(VerdictError::Gap(expected)) => {
                tracing::error!(partition = %partition, expected, got = offset, "records that the worker had already read are missing now, probably because they were deleted or a broker lost them; restoring the partition");
                self.restart_in_batch(source, partition, "records are missing")
            }
            Stop::Undecided(VerdictError::State(ExactError::Archive(error))) => {
                tracing::error!(partition = %partition, offset, error = %error, "the exact store cannot be read; restoring the partition");
                self.restart_in_batch(source, partition, "the exact store cannot be read")
            }
            Stop::Undecided(VerdictError::State(ExactError::Full(full))) => Err(Error::Full { partition, offset, full }),
            Stop::EndsWorker(reason) => {
                let input = self.assignment.inputs.values().find(|input| input.partition == partition);
                let refused = input.and_then(|input| input.verdicts().refused(offset));
                let invalid = match (refused, keyed) {
                    (Some(refused), _) => refused.clone(),
                    (None, Err(NoKey::Invalid(invalid))) => Invalid::clone(invalid),
                    (None, _) => Invalid { reason, message: reason.label().to_owned() },
                };
                // The records before this record are processed, so the worker commits them before it ends. If the commit fails, all these
                // records are read again.
                self.writer.ends_with.get_or_insert(Error::Invalid { partition, offset, invalid });
                if self.assignment.is_replaying() { Ok(Flow::Continue) } else { self.commit(source) }
            }
        }
    }
}

impl<B: Broker> RecordLoop<'_, B> {
    /// Processes records from index `at` on, until a record stops the loop. Returns the index of that record.
    fn run(&mut self, messages: &[RecordOf<'_, B>], keys: &[Keyed], mut at: usize) -> Option<(usize, Stop)> {
        while at < messages.len() {
            match self.process_next(&messages[at..], &keys[at..]) {
                Ok(processed) => at += processed,
                Err((number, stop)) => return Some((at + number, stop)),
            }
        }
        None
    }

    /// Processes the first records: a batch if possible, otherwise a single record. Returns the number of processed records, or the index
    /// of the record that stops the loop.
    fn process_next(&mut self, messages: &[RecordOf<'_, B>], keys: &[Keyed]) -> Result<usize, (usize, Stop)> {
        if self.holds_new_records && self.input.replay_complete() {
            self.input.pass_over();
            return Err((0, Stop::Waits));
        }
        let (judged, error) = self.judge_batch(messages, keys);
        if judged > 0 {
            let (verdicts, since) = (std::mem::take(&mut self.columns.verdicts), std::mem::take(&mut self.columns.since));
            let emitted = self.emit(&messages[..judged], &keys[..judged], &verdicts, &since);
            (self.columns.verdicts, self.columns.since) = (verdicts, since);
            if let Err((number, Stop::Failed(_))) = &emitted {
                self.input.give_back(judged - number);
            }
            emitted?;
        }
        match error {
            Some(error) => Err((judged, Stop::Undecided(VerdictError::State(error)))),
            None if judged > 0 => Ok(judged),
            None => self.process_one(&messages[0], &keys[0]).map(|()| 1).map_err(|stop| (0, stop)),
        }
    }

    fn process_one(&mut self, message: &RecordOf<'_, B>, keyed: &Keyed) -> Result<(), Stop> {
        let offset = message.offset();
        if offset < self.input.position() {
            // librdkafka resumed at an earlier offset than requested. This record is already processed.
            return Ok(());
        }
        let Some(state) = self.state.as_deref_mut() else { return self.process_forwarded(message, keyed) };
        if !self.input.is_warm_up(offset) {
            // The last offsets of the warm-up may hold no record, so the first record after them ends the warm-up.
            self.input.skip_warm_up();
            if self.others_warm_up {
                self.input.pass_over();
                return Err(Stop::Waits);
            }
        }
        if let Err(NoKey::Awaits(schema)) = keyed
            && self.topic.has_rules()
            // If the record was judged invalid before an abort, for example because its schema did not exist, it keeps that verdict.
            && !matches!(self.input.verdicts().recall(offset), Recall::Decided(Verdict::Invalid(_)))
        {
            // Until the schema is known, another rule may select the record. So this rule's state must not decide about the record.
            return Err(Stop::Undecided(VerdictError::Awaits(*schema)));
        }
        let id = StateId { space: self.topic.space, partition: self.of.partition };
        if self.topic.has_rules() && self.input.is_in(id, offset) {
            self.input.warmed_up(offset);
            return Ok(());
        }
        let verdict = judge_one(&self.topic.config, self.input, (id, state), offset, keyed, self.max_timestamp).map_err(Stop::Undecided)?;
        if self.input.is_warm_up(offset) && !fault::defect("warm_up_emits") {
            self.input.warmed_up(offset);
            self.tally.warmed_up += 1;
            fault::point("warm_up.record");
            let is_much = state.pending.len() >= self.shared.most_unlogged();
            return if is_much { Err(Stop::Unlogged) } else { Ok(()) };
        }
        // If a record is written again after an abort, the filter may report the time when this very record was inserted. The time is then
        // left out.
        let is_new = self.input.replay_complete();
        let since = match keyed {
            Ok(record) if verdict == Verdict::Duplicate && is_new && route::explains(&self.topic.config, verdict) => {
                let since = state.dedup.seen_since(record.fingerprint);
                since.map_err(|error| Stop::Undecided(VerdictError::State(ExactError::Archive(error))))?
            }
            _ => None,
        };
        self.input.remember(offset, &[verdict]);
        if self.input.end_warm_up() {
            tracing::info!(partition = %self.input.partition, offset, "warm-up finished");
            fault::point("warm_up.ended");
        }
        if !self.input.is_counted(offset)
            && let Some(time) = keyed.as_ref().ok().and_then(|record| record.time).filter(|&time| time > self.max_timestamp)
        {
            self.tally.count_future(time);
        }
        self.emit_one(message, keyed, verdict, since)
    }

    /// Forwards a record to the repartition topic, where it will be judged. A record without a key is not forwarded. Its verdict is
    /// remembered, because the output or dead-letter topic may reject the record.
    fn process_forwarded(&mut self, message: &RecordOf<'_, B>, keyed: &Keyed) -> Result<(), Stop> {
        let offset = message.offset();
        let verdict = match (keyed, &self.topic.forward) {
            (Ok(record), Some(to)) => return self.forward(to.target(record.fingerprint), message),
            (Err(NoKey::Awaits(schema)), _) => return Err(Stop::Undecided(VerdictError::Awaits(*schema))),
            (Err(NoKey::Invalid(invalid)), _) => self.topic.config.verdict_without_key(invalid.reason),
            (Err(NoKey::Passes), _) => Verdict::Passed,
            // Unreachable, because an input without a state forwards its records.
            (Ok(_), None) => Verdict::Unseen,
        };
        let verdict = match self.input.verdicts().recall(offset) {
            Recall::New => verdict,
            Recall::Decided(decided) => decided,
            Recall::Gap(decided) => return Err(Stop::Undecided(VerdictError::Gap(decided))),
        };
        self.input.remember(offset, &[verdict]);
        self.emit_one(message, keyed, verdict, None)
    }

    fn emit_one(&mut self, message: &RecordOf<'_, B>, keyed: &Keyed, verdict: Verdict, since: Option<Timestamp>) -> Result<(), Stop> {
        self.emit(slice::from_ref(message), slice::from_ref(keyed), &[verdict], &[since]).map_err(|(_, stop)| stop)
    }
}
