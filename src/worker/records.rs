//! The hot loop: judges and writes the records of a batch.
//!
//! Owns the order in which the records of a batch are processed. Must never allocate for a record, or look anything up that consecutive
//! records of a partition share: a [`RecordLoop`] has it.

use super::ids::{InputId, StateId};
use super::input::Wait;
use super::judge::judge_one;
use super::key_reader::Keyed;
use super::read_ahead::{ReadAhead, take_keys};
use super::record_loop::{RecordLoop, Stop, VerdictError};
use super::{Error, Flow, Worker};
use crate::broker::{Broker, Record, RecordOf};
use crate::fault;
use crate::filter::ExactError;
use crate::format::NoKey;
use crate::key::Fingerprint;
use crate::record::{Invalid, Timestamp, TopicPartition, Verdict};
use crate::route;
use crate::runtime;
use std::ops::Range;
use std::slice;

/// Records whose keys are taken together, before the first of them is judged.
const PREFETCH_RECORDS: usize = 64;

impl<B: Broker> Worker<B> {
    /// Judges and writes the records of a batch. Of the first of them, the keys may be taken already.
    pub(super) fn process(&mut self, source: &B::Consumer, ahead: &mut ReadAhead<'_, B>) -> Result<Flow, Error> {
        if ahead.batch.messages.is_empty() {
            return Ok(Flow::On);
        }
        let _span = tracing::debug_span!("batch", records = ahead.batch.messages.len()).entered();
        let now = runtime::wall_clock();
        ahead.groups.add_runs(&self.topics, &ahead.batch.messages);
        let (messages, groups) = (&ahead.batch.messages, &ahead.groups);
        let mut judged = Ok(Flow::On);
        for first in (0..messages.len()).step_by(PREFETCH_RECORDS) {
            let end = (first + PREFETCH_RECORDS).min(messages.len());
            take_keys(&self.topics, &mut self.key_reader, messages, groups, &mut ahead.keys, end);
            self.prefetch(groups.within(first..end), &ahead.keys);
            judged = groups.within(first..end).try_fold(Flow::On, |flow, (of, numbers)| match (flow, of) {
                (Flow::On, Some(of)) => self.take(source, of, &messages[numbers.clone()], &ahead.keys[numbers], now),
                (flow, _) => Ok(flow),
            });
            if !matches!(judged, Ok(Flow::On)) {
                break;
            }
        }
        ahead.keys.clear();
        // What was committed before the worker ends counts, too.
        self.reporter.count(&self.shared.stats);
        judged
    }

    /// Has the cache load what judging records will read: their misses then overlap, instead of coming one after the other.
    fn prefetch(&mut self, groups: impl Iterator<Item = (Option<InputId>, Range<usize>)>, keys: &[Keyed]) {
        let (all, mut last) = (&mut self.buffers.prefetched, None);
        let mut load = |of: Option<StateId>, all: &mut Vec<Fingerprint>| {
            if let Some(state) = of.and_then(|id| self.assignment.states.get_mut(&id)) {
                state.dedup.prefetch(all);
            }
            all.clear();
        };
        for (of, numbers) in groups {
            let state = of.map(|of| StateId { space: self.topics[of.topic].space, partition: of.partition });
            if state != last {
                load(last, all);
                last = state;
            }
            all.extend(keys[numbers].iter().flatten().map(|&(fingerprint, _)| fingerprint));
        }
        load(last, all);
    }

    /// Judges and writes records of one partition. Those of a partition that is another member's, or whose state is not
    /// there yet, come again.
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
            if let Flow::Back = self.stopped(source, of, &messages[stopped], &keys[stopped], stop)? {
                return Ok(Flow::Back);
            }
            at = stopped + 1;
        }
        Ok(Flow::On)
    }

    /// What records of that partition have in common; `None` if they are not to be judged.
    fn record_loop(&mut self, of: InputId, now: Timestamp, bytes: usize) -> Option<RecordLoop<'_, B>> {
        let others_warm_up = self.assignment.warming && self.assignment.others_warm_up(&self.topics, of);
        let input = self.assignment.inputs.get_mut(&of)?;
        if others_warm_up && !input.is_warm_up(input.position()) {
            input.pass_over();
            return None;
        }
        if input.awaits.is_some() || self.assignment.holding && input.replay_complete() {
            input.pass_over();
        }
        // What was passed over comes first, though nothing may be in its way any more.
        if input.ends_worker || input.wait != Wait::No {
            return None;
        }
        let topic = &self.topics[of.topic];
        let state = self.assignment.states.get_mut(&input.state).filter(|_| topic.forward.is_none());
        if state.is_none() && topic.forward.is_none() {
            return None;
        }
        Some(RecordLoop {
            shared: &self.shared,
            of,
            topic,
            input,
            state,
            outbox: &mut self.outbox,
            tally: &mut self.reporter.tallies[topic.counted],
            headers: &mut self.buffers.headers,
            scratch: &mut self.buffers.scratch,
            columns: &mut self.buffers.columns,
            bytes,
            others_warm_up,
            max_timestamp: if fault::defect("future_moves_window") { Timestamp::MAX } else { topic.config.max_timestamp(now) },
        })
    }

    /// Does what a loop cannot do for itself.
    fn stopped(&mut self, source: &B::Consumer, of: InputId, message: &RecordOf<'_, B>, keyed: &Keyed, stop: Stop) -> Result<Flow, Error> {
        let (partition, offset) = (TopicPartition { topic: message.topic().to_owned(), partition: message.partition() }, message.offset());
        match stop {
            // What must be in it may come behind much that is new, which has to wait.
            Stop::Full if self.assignment.must_repeat() && !fault::defect("full_transaction_not_held") => {
                self.assignment.holding = true;
                Ok(Flow::On)
            }
            Stop::Full => {
                let flow = self.commit(source)?;
                // While records come faster than transactions hold, there is hardly another moment without one.
                self.checkpoint(false);
                Ok(flow)
            }
            // What is to be logged must wait, and the warm-up with it: it would remember more all the while. With a transaction
            // open, records that do not come again are given up in time.
            Stop::Unlogged if self.assignment.must_repeat() => {
                self.assignment.holding = true;
                self.outbox.begin().map_or_else(|failure| self.abort(source, failure).map(|()| Flow::Back), |()| Ok(Flow::On))
            }
            Stop::Unlogged if self.outbox.is_open() => self.commit(source),
            Stop::Unlogged => self.log_warm_up(source),
            Stop::WarmedUp => Ok(Flow::On),
            Stop::Failed(failure) => self.abort(source, failure).map(|()| Flow::Back),
            Stop::Undecided(VerdictError::Awaits(schema)) => {
                self.await_schema(of, schema);
                Ok(Flow::On)
            }
            Stop::Undecided(VerdictError::Gap(expected)) => {
                tracing::error!(partition = %partition, expected, got = offset, "records that were decided do not come again; restoring the partition");
                self.restart_in_batch(source, partition)
            }
            Stop::Undecided(VerdictError::State(ExactError::Archive(error))) => {
                tracing::error!(partition = %partition, offset, error = %error, "state is lost; restoring the partition");
                self.restart_in_batch(source, partition)
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
                // What came before it is good, and stays: it ends with the commit. If that is to be written again, we come
                // by here again.
                self.outbox.ends_with.get_or_insert(Error::Invalid { partition, offset, invalid });
                if self.assignment.must_repeat() { Ok(Flow::On) } else { self.commit(source) }
            }
        }
    }
}

impl<B: Broker> RecordLoop<'_, B> {
    /// Processes records from number `at` on, until one stops the loop. Returns the number of that record.
    fn run(&mut self, messages: &[RecordOf<'_, B>], keys: &[Keyed], mut at: usize) -> Option<(usize, Stop)> {
        while at < messages.len() {
            match self.process_next(&messages[at..], &keys[at..]) {
                Ok(processed) => at += processed,
                Err((number, stop)) => return Some((at + number, stop)),
            }
        }
        None
    }

    /// Processes the first records: a batch if possible, otherwise one record. Returns how many, or the number of the record that stops
    /// the loop.
    fn process_next(&mut self, messages: &[RecordOf<'_, B>], keys: &[Keyed]) -> Result<usize, (usize, Stop)> {
        let (judged, error) = self.judge_batch(messages, keys);
        if judged > 0 {
            let verdicts = std::mem::take(&mut self.columns.verdicts);
            let emitted = self.emit(&messages[..judged], &keys[..judged], &verdicts, None);
            self.columns.verdicts = verdicts;
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

    /// Processes a record that cannot be judged in a batch.
    fn process_one(&mut self, message: &RecordOf<'_, B>, keyed: &Keyed) -> Result<(), Stop> {
        let offset = message.offset();
        if offset < self.input.position() {
            // librdkafka went back further than it was asked to.
            return Ok(());
        }
        let Some(state) = self.state.as_deref_mut() else { return self.process_forwarded(message, keyed) };
        if !self.input.is_warm_up(offset) {
            // The warm-up may end without a record.
            self.input.skip_warm_up();
            if self.others_warm_up {
                self.input.pass_over();
                return Err(Stop::WarmedUp);
            }
        }
        let time = message.timestamp();
        let verdict = judge_one(&self.topic.config, self.input, state, offset, time, keyed, self.max_timestamp).map_err(Stop::Undecided)?;
        if self.input.is_warm_up(offset) && !fault::defect("warm_up_emits") {
            self.input.warmed_up(offset);
            self.tally.warmed_up += 1;
            fault::point("warm_up.record");
            let is_much = state.pending.len() >= self.shared.most_unlogged();
            return if is_much { Err(Stop::Unlogged) } else { Ok(()) };
        }
        // When a record is written again, its key may have been inserted again since.
        let is_new = self.input.replay_complete();
        let since = match keyed {
            Ok((fingerprint, _)) if verdict == Verdict::Duplicate && is_new && route::explains(&self.topic.config, verdict) => {
                let since = state.dedup.seen_since(*fingerprint);
                since.map_err(|error| Stop::Undecided(VerdictError::State(ExactError::Archive(error))))?
            }
            _ => None,
        };
        self.input.remember(offset, &[verdict]);
        if self.input.end_warm_up() {
            tracing::info!(partition = %self.input.partition, offset, "warmed up");
            fault::point("warm_up.ended");
        }
        if !self.input.is_counted(offset)
            && let Some(time) = time.filter(|&time| time > self.max_timestamp)
        {
            self.tally.count_future(time);
        }
        self.emit_one(message, keyed, verdict, since)
    }

    /// Forwards a record to the repartition topic, where it is judged. A record without a key is not forwarded.
    fn process_forwarded(&mut self, message: &RecordOf<'_, B>, keyed: &Keyed) -> Result<(), Stop> {
        let verdict = match (keyed, &self.topic.forward) {
            (Ok((fingerprint, _)), Some(to)) => return self.forward(to.target(*fingerprint), message),
            (Err(NoKey::Awaits(schema)), _) => return Err(Stop::Undecided(VerdictError::Awaits(*schema))),
            (Err(NoKey::Invalid(invalid)), _) => self.topic.config.verdict_without_key(invalid.reason),
            // Unreachable: an input without a state forwards its records.
            (Ok(_), None) => Verdict::Unseen,
        };
        self.emit_one(message, keyed, verdict, None)
    }

    fn emit_one(&mut self, message: &RecordOf<'_, B>, keyed: &Keyed, verdict: Verdict, since: Option<Timestamp>) -> Result<(), Stop> {
        self.emit(slice::from_ref(message), slice::from_ref(keyed), &[verdict], since).map_err(|(_, stop)| stop)
    }
}
