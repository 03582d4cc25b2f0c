//! The hot loop: the records of a batch, judged and written.
//!
//! Owns the order in which records of one batch are taken. Must never allocate for a record, nor look anything up for
//! each of those that come together: what they have in common is a [`RecordLoop`].

use super::columns::Columns;
use super::decide::{VerdictError, decide};
use super::ids::{InputId, StateId};
use super::input::{Input, Wait};
use super::key_reader::Keyed;
use super::outbox::Outbox;
use super::partition::PartitionState;
use super::read_ahead::{ReadAhead, take_keys};
use super::routes::Route;
use super::topics::InputTopic;
use super::{Error, Flow, Shared, Worker, co_partitioning, key_conflicts};
use crate::broker::{Broker, Outgoing, Record, RecordOf, SinkError};
use crate::fault;
use crate::filter::ExactError;
use crate::key::{Fingerprint, NoKey, ValueReader};
use crate::record::{Invalid, Offset, Reason, Timestamp, TopicPartition, Verdict};
use crate::route::{self, AddedHeaders, Detail};
use crate::runtime;
use crate::stats::Tally;
use crate::values::CountBy;
use std::ops::Range;
use std::sync::PoisonError;

/// Records whose keys are taken together, before the first of them is judged.
const PREFETCH_RECORDS: usize = 64;

/// Whether the record there is one of the sample of one in 32 that are counted by a value: to look for it in each would cost as
/// much as the key does. They are chosen by a hash, for producers may take turns.
const fn is_counted_by_value(offset: Offset) -> bool {
    offset.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59 == 0
}

/// Memory that is used again and again.
#[derive(Default)]
pub(super) struct Buffers {
    prefetched: Vec<Fingerprint>,
    headers: AddedHeaders,
    /// By topic, for values that are counted by, or compared.
    values: Vec<ValueReader>,
    columns: Columns,
}

/// What the records of one partition have in common that come one after the other.
pub(super) struct RecordLoop<'w, B: Broker> {
    pub(super) shared: &'w Shared<B>,
    of: InputId,
    pub(super) topic: &'w InputTopic,
    pub(super) input: &'w mut Input,
    /// None where records are brought elsewhere to be judged.
    pub(super) state: Option<&'w mut PartitionState>,
    pub(super) outbox: &'w mut Outbox<B>,
    /// Of the configured topic.
    pub(super) tally: &'w mut Tally,
    pub(super) headers: &'w mut AddedHeaders,
    values: &'w mut ValueReader,
    pub(super) columns: &'w mut Columns,
    /// Bytes of the records at hand, at most.
    pub(super) bytes: usize,
    /// Whether other topics of the state still warm up.
    pub(super) others_warm_up: bool,
    /// The latest record time that moves the window.
    pub(super) max_timestamp: Timestamp,
}

/// Why the loop stops at a record.
pub(super) enum Stop {
    /// It is done, and the transaction can hold no more.
    Full,
    /// It is done, and what the warm-up remembers is to be logged.
    Unlogged,
    /// It is the first past a warm-up, and must wait for another topic of the state.
    WarmedUp,
    /// It could not be written.
    Failed(SinkError),
    /// It could not be decided.
    Undecided(VerdictError),
    /// It is not to be written, nor passed over.
    EndsWorker(Reason),
}

impl<B: Broker> Worker<B> {
    /// Judges and writes the records of a batch. Of the first of them, the keys may be taken already.
    pub(super) fn process(&mut self, source: &B::Consumer, ahead: &mut ReadAhead<'_, B>) -> Result<Flow, Error> {
        if ahead.batch.messages.is_empty() {
            return Ok(Flow::On);
        }
        let _span = tracing::debug_span!("batch", records = ahead.batch.messages.len()).entered();
        let now = runtime::wall_clock();
        ahead.groups.extend(&self.topics, &ahead.batch.messages);
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
        if others_warm_up && !input.is_warm_up(input.position) {
            input.pass_over();
            return None;
        }
        if input.awaits.is_some() || self.assignment.holding && input.verdicts.is_all_carried() {
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
        let values = &mut self.buffers.values;
        if values.len() <= of.topic.0 {
            values.resize_with(of.topic.0 + 1, ValueReader::default);
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
            values: &mut values[of.topic.0],
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
                self.restart_at_hand(source, partition)
            }
            Stop::Undecided(VerdictError::State(ExactError::Archive(error))) => {
                tracing::error!(partition = %partition, offset, error = %error, "state is lost; restoring the partition");
                self.restart_at_hand(source, partition)
            }
            Stop::Undecided(VerdictError::State(ExactError::Full(full))) => Err(Error::Full { partition, offset, full }),
            Stop::EndsWorker(reason) => {
                let input = self.assignment.inputs.values().find(|input| input.partition == partition);
                let refused = input.and_then(|input| input.verdicts.refused(offset));
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

    /// Restores a partition whose records are at hand.
    fn restart_at_hand(&mut self, source: &B::Consumer, partition: TopicPartition) -> Result<Flow, Error> {
        if !self.outbox.is_open() {
            // Those of other partitions at hand are given up, and must come again, too.
            self.rewind(source)?;
        }
        self.restart(source, &[partition]).map(|()| Flow::Back)
    }
}

impl<B: Broker> RecordLoop<'_, B> {
    /// Takes records from that number on, until one makes it stop: returns its number.
    fn run(&mut self, messages: &[RecordOf<'_, B>], keys: &[Keyed], mut at: usize) -> Option<(usize, Stop)> {
        while at < messages.len() {
            let taken = match self.together(&messages[at..], &keys[at..]) {
                Ok(0) => self.record(&messages[at], &keys[at]).map(|()| 1).map_err(|stop| (0, stop)),
                taken => taken,
            };
            match taken {
                Ok(taken) => at += taken,
                Err((number, stop)) => return Some((at + number, stop)),
            }
        }
        None
    }

    fn record(&mut self, message: &RecordOf<'_, B>, keyed: &Keyed) -> Result<(), Stop> {
        let offset = message.offset();
        if offset < self.input.position {
            // librdkafka went back further than it was asked to.
            return Ok(());
        }
        let time = message.timestamp();
        let Some(state) = self.state.as_deref_mut() else { return self.forward(message, time, keyed) };
        if !self.input.is_warm_up(offset) {
            if self.input.is_warm_up(self.input.position) {
                // The stretch ends without a record.
                self.input.warmed_up(self.input.warm_until - 1);
            }
            // Others of the state may still have some of theirs to come.
            if self.others_warm_up {
                self.input.pass_over();
                return Err(Stop::WarmedUp);
            }
        }
        let verdict = decide(&self.topic.config, self.input, state, offset, time, keyed, self.max_timestamp).map_err(Stop::Undecided)?;
        if self.input.is_warm_up(offset) && !fault::defect("warm_up_emits") {
            self.input.warmed_up(offset);
            self.tally.warmed_up += 1;
            fault::point("warm_up.record");
            let is_much = state.pending.len() >= self.shared.most_unlogged();
            return if is_much { Err(Stop::Unlogged) } else { Ok(()) };
        }
        // Of a record that is written again, the state may have changed since.
        let is_new = self.input.verdicts.is_all_carried();
        let since = match keyed {
            Ok((fingerprint, _)) if verdict == Verdict::Duplicate && is_new && route::explains(&self.topic.config, verdict) => {
                let since = state.dedup.seen_since(*fingerprint);
                since.map_err(|error| Stop::Undecided(VerdictError::State(ExactError::Archive(error))))?
            }
            _ => None,
        };
        self.input.verdicts.carry(offset, verdict);
        if std::mem::take(&mut self.input.warming_up) {
            tracing::info!(partition = %self.input.partition, offset, "warmed up");
            fault::point("warm_up.ended");
        }
        // A record that is written again after an abort was counted before.
        if offset >= self.input.counted
            && let Some(time) = time.filter(|&time| time > self.max_timestamp)
        {
            self.tally.count_future(time);
        }
        if let (Verdict::Unseen, Ok((fingerprint, _))) = (verdict, keyed) {
            co_partitioning::watch(self.shared, self.topic, *fingerprint, message.partition());
        }
        self.emit(message, time, verdict, since, keyed)
    }

    /// Brings a record to the partition where it is judged.
    fn forward(&mut self, message: &RecordOf<'_, B>, time: Option<Timestamp>, keyed: &Keyed) -> Result<(), Stop> {
        let (Some(to), Ok((fingerprint, _))) = (&self.topic.forward, keyed) else {
            let verdict = match keyed {
                Err(NoKey::Awaits(schema)) => return Err(Stop::Undecided(VerdictError::Awaits(*schema))),
                Err(NoKey::Invalid(invalid)) => self.topic.config.verdict_without_key(invalid.reason),
                // Never taken: this topic is forwarded, so only a record without a key comes by here.
                Ok(_) => Verdict::Unseen,
            };
            return self.emit(message, time, verdict, None, keyed);
        };
        self.outbox.begin().map_err(Stop::Failed)?;
        self.headers.clear();
        self.write(&to.topic, Some(to.partition(*fingerprint)), message, time)?;
        self.input.position = message.offset() + 1;
        self.carried(1)
    }

    /// Writes a decided record to where it goes, and counts it as read.
    fn emit(
        &mut self,
        message: &RecordOf<'_, B>,
        time: Option<Timestamp>,
        verdict: Verdict,
        since: Option<Timestamp>,
        keyed: &Keyed,
    ) -> Result<(), Stop> {
        self.outbox.begin().map_err(Stop::Failed)?;
        let (topic, offset) = (self.topic, message.offset());
        let refused = self.input.verdicts.refused(offset);
        let detail = if refused.is_some() { Detail::Brief } else { Detail::Full(since) };
        let invalid = refused.or(match keyed {
            Err(NoKey::Invalid(invalid)) => Some(&**invalid),
            _ => None,
        });
        // A dead letter's topic may refuse its time, too; a header has it.
        let time = time.filter(|_| verdict != Verdict::Invalid(Reason::Refused));
        let is_written = match topic.routes.route(&topic.config, verdict, invalid, detail, message, self.headers) {
            Route::Drop => false,
            Route::Fail(reason) => {
                self.input.ends_worker = true;
                return Err(Stop::EndsWorker(reason));
            }
            Route::Write { topic, partition } => {
                self.write(topic, partition, message, time)?;
                true
            }
        };
        self.input.position = offset + 1;
        // What is written again after an abort was counted.
        if offset >= self.input.counted {
            self.input.counted = offset + 1;
            self.tally.count(verdict);
            self.tally.dead_letters += u64::from(is_written && topic.routes.is_dead_letter(verdict));
            self.look_into(message, keyed.as_ref().ok().map(|&(fingerprint, _)| fingerprint), verdict);
        }
        self.carried(1)
    }

    /// Looks at more of a record than its key, where that is asked for.
    #[inline]
    pub(super) fn look_into(&mut self, message: &RecordOf<'_, B>, fingerprint: Option<Fingerprint>, verdict: Verdict) {
        let topic = self.topic;
        if let Some(by) = &topic.config.count_by
            && is_counted_by_value(message.offset())
        {
            self.count_by(by, message, verdict);
        }
        if topic.keeps_content()
            && let Some(fingerprint) = fingerprint
        {
            key_conflicts::watch(self.shared, topic, fingerprint, verdict, message, self.values);
        }
    }

    /// Counts a record by its value.
    fn count_by(&mut self, by: &CountBy, message: &RecordOf<'_, B>, verdict: Verdict) {
        let topic = self.topic;
        let Some(values) = &self.shared.stats.topics[topic.counted.0].values else { return };
        let format = &topic.config.formats.value;
        let text = by.text(format, message.value(), message.headers(), self.values, &*self.shared.schemas);
        values.lock().unwrap_or_else(PoisonError::into_inner).add(text.as_deref(), verdict == Verdict::Duplicate);
    }

    /// Writes a record, with the headers at hand added to its own.
    pub(super) fn write(
        &mut self,
        topic: &str,
        partition: Option<i32>,
        message: &RecordOf<'_, B>,
        time: Option<Timestamp>,
    ) -> Result<(), Stop> {
        let outgoing = Outgoing { topic, partition, message, time, headers: self.headers, origin: 0 };
        self.outbox.write(self.of, outgoing).map_err(Stop::Failed)
    }

    /// The transaction carries some records more.
    pub(super) fn carried(&mut self, records: usize) -> Result<(), Stop> {
        if self.outbox.carry(records) { Err(Stop::Full) } else { Ok(()) }
    }
}
