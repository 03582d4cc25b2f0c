//! The hot loop: the records of a batch, judged and written.
//!
//! Owns the order in which records of one batch are taken. Must never allocate for a record, nor look anything up for
//! each of those that come together: what they have in common is a [`RecordLoop`].

use super::in_flight::InFlight;
use super::partition::{Input, PartitionState};
use super::routes::{AddedHeader, Route};
use super::topics::Plan;
use super::verdicts::{Keyed, VerdictError, decide, key_of};
use super::{Error, Flow, Shared, StateId, Transaction, Worker, co_partitioning, now};
use crate::fault;
use crate::filter::ExactError;
use crate::kafka::{Message, Outgoing, Sink, SinkError, Source};
use crate::key::{Fingerprint, Scratch};
use crate::record::{Invalid, Reason, Timestamp, TopicPartition, Verdict};
use crate::stats::Tally;

/// Records whose keys are taken together, before the first of them is judged.
const PREFETCH_RECORDS: usize = 64;

/// Buffers that is used again and again.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) scratch: Scratch,
    prefetched: Vec<Fingerprint>,
    headers: Vec<AddedHeader>,
}

/// The keys of a batch's records, in order, as far as they were taken.
pub(super) type Keys = Vec<Keyed>;

/// What the records of one partition have in common that come one after the other.
struct RecordLoop<'w> {
    shared: &'w Shared,
    topic: usize,
    plan: &'w Plan,
    input: &'w mut Input,
    /// None where records are brought elsewhere to be judged.
    state: Option<&'w mut PartitionState>,
    sink: &'w Sink,
    transaction: &'w mut Option<Transaction>,
    written: &'w mut InFlight,
    tallies: &'w mut [Tally],
    headers: &'w mut Vec<AddedHeader>,
    /// Whether other topics of the state still warm up.
    others_warm_up: bool,
    /// The latest record time that moves the window.
    max_timestamp: Timestamp,
}

/// Why a run stops at a record.
enum Halt {
    /// It is done, and the transaction can hold no more.
    Full,
    /// It is done, and what the warm-up remembers is to be logged.
    Unlogged,
    /// It is the first past a warm-up, and must wait for another topic of the state.
    WarmedUp,
    /// It could not be written.
    Failed(SinkError),
    /// It could not be decided.
    VerdictError(VerdictError),
    /// It is not to be written, nor passed over.
    Refused(Reason),
}

impl Worker {
    /// Judges and writes records. Of the first of them, `keys` are taken already; afterwards it is empty.
    pub(super) fn process(&mut self, source: &Source, messages: &[Message<'_>], keys: &mut Keys) -> Result<Flow, Error> {
        if messages.is_empty() {
            return Ok(Flow::On);
        }
        let _span = tracing::debug_span!("batch", records = messages.len()).entered();
        let now = now();
        let mut judged = Ok(Flow::On);
        for (number, chunk) in messages.chunks(PREFETCH_RECORDS).enumerate() {
            let first = number * PREFETCH_RECORDS;
            take_keys(&self.topics, &mut self.buffers.scratch, messages, keys, first + chunk.len());
            let keyed = &keys[first..first + chunk.len()];
            self.prefetch(chunk, keyed);
            judged = self.judge(source, chunk, keyed, now);
            if !matches!(judged, Ok(Flow::On)) {
                break;
            }
        }
        keys.clear();
        // What was committed before the worker ends counts, too.
        self.tallies.iter_mut().zip(&self.shared.stats.topics).for_each(|(tally, counts)| tally.report(counts));
        judged
    }

    /// Has the cache load what judging records will read: their misses then overlap, instead of coming one after the other.
    fn prefetch(&mut self, messages: &[Message<'_>], keys: &[Keyed]) {
        let (all, mut of) = (&mut self.buffers.prefetched, None);
        let load = |of: Option<StateId>, all: &mut Vec<Fingerprint>| {
            if let Some(state) = of.and_then(|id| self.states.get(&id)) {
                state.dedup.prefetch(all);
            }
            all.clear();
        };
        let mut keys = keys.iter();
        for beside in messages.chunk_by(Message::same_partition) {
            let state = topic_of(&self.topics, beside).map(|topic| (self.topics[topic].space, beside[0].partition()));
            if state != of {
                load(of, all);
                of = state;
            }
            all.extend(keys.by_ref().take(beside.len()).flatten().map(|&(fingerprint, _)| fingerprint));
        }
        load(of, all);
    }

    fn judge(&mut self, source: &Source, messages: &[Message<'_>], keys: &[Keyed], now: Timestamp) -> Result<Flow, Error> {
        let mut keys = keys.iter();
        for beside in messages.chunk_by(Message::same_partition) {
            let mut left = beside.iter().zip(keys.by_ref());
            if let Some(topic) = topic_of(&self.topics, beside) {
                self.tallies[self.topics[topic].read].bytes += beside.iter().map(|message| message.bytes() as u64).sum::<u64>();
                let of = (topic, beside[0].partition());
                while let Some((message, keyed, halt)) = self.record_loop(of, now).and_then(|mut records| records.run(&mut left)) {
                    if let Flow::Back = self.halt(source, message, keyed, halt)? {
                        return Ok(Flow::Back);
                    }
                }
            }
            // Those of a partition that is not ours, or whose state is not there yet, come again.
            left.for_each(drop);
        }
        Ok(Flow::On)
    }

    /// What records that come together have in common, by their topic's number and their partition; `None` if they are
    /// not to be judged.
    fn record_loop(&mut self, of: (usize, i32), now: Timestamp) -> Option<RecordLoop<'_>> {
        let topic = of.0;
        let others_warm_up = self.warming && self.others_warm_up(of);
        if let Some(input) = self.inputs.get_mut(&of).filter(|input| others_warm_up && !input.is_warm_up(input.position)) {
            input.pass_over();
            return None;
        }
        let plan = &self.topics[topic];
        let input = self.inputs.get_mut(&of);
        let state = input.as_ref().filter(|_| plan.forward.is_none()).and_then(|input| self.states.get_mut(&input.state));
        let input = input.filter(|input| (plan.forward.is_some() || state.is_some()) && !input.is_refused)?;
        Some(RecordLoop {
            shared: &self.shared,
            topic,
            plan,
            input,
            state,
            sink: &self.sink,
            transaction: &mut self.transaction,
            written: &mut self.written,
            tallies: &mut self.tallies,
            headers: &mut self.buffers.headers,
            others_warm_up,
            max_timestamp: now.saturating_add(i64::try_from(plan.topic.max_future.as_millis()).unwrap_or(i64::MAX)),
        })
    }

    /// Does what a run cannot do for itself.
    fn halt(&mut self, source: &Source, message: &Message<'_>, keyed: &Keyed, halt: Halt) -> Result<Flow, Error> {
        let (partition, offset) = (TopicPartition { topic: message.topic().to_owned(), partition: message.partition() }, message.offset());
        match halt {
            // What must be in it may come behind much that is new.
            Halt::Full if self.must_repeat() => {
                let most = 2 * self.shared.config.worker.max_transaction_records;
                let is_too_full = self.transaction.as_ref().is_some_and(|transaction| transaction.records >= most);
                if is_too_full { self.give_up_repeating(source).map(|()| Flow::Back) } else { Ok(Flow::On) }
            }
            Halt::Full => {
                let flow = self.commit(source)?;
                // While records come faster than transactions hold, there is hardly another moment without one.
                self.checkpoint(false);
                Ok(flow)
            }
            Halt::Unlogged => self.log_warm_up(source),
            Halt::WarmedUp => Ok(Flow::On),
            Halt::Failed(failure) => self.fail(source, failure).map(|()| Flow::Back),
            Halt::VerdictError(VerdictError::Gap(expected)) => {
                tracing::error!(partition = %partition, expected, got = offset, "records that were decided do not come again; restoring the partition");
                self.restart_at_hand(source, partition)
            }
            Halt::VerdictError(VerdictError::ExactError(ExactError::Archive(error))) => {
                tracing::error!(partition = %partition, offset, error = %error, "state is lost; restoring the partition");
                self.restart_at_hand(source, partition)
            }
            Halt::VerdictError(VerdictError::ExactError(ExactError::Full(full))) => Err(Error::Full { partition, offset, full }),
            Halt::Refused(reason) => {
                let input = self.inputs.values().find(|input| input.partition == partition);
                let refused = input.and_then(|input| input.verdicts.refused(offset));
                let invalid = match (refused, keyed) {
                    (Some(refused), _) => refused.clone(),
                    (None, Err(invalid)) => Invalid::clone(invalid),
                    (None, Ok(_)) => Invalid { reason, message: reason.label().to_owned() },
                };
                // What came before it is good, and stays: it ends with the commit. If that is to be written again, we come
                // by here again.
                self.refused.get_or_insert(Error::Invalid { partition, offset, invalid });
                if self.must_repeat() { Ok(Flow::On) } else { self.commit(source) }
            }
        }
    }

    /// Restores a partition whose records are at hand.
    fn restart_at_hand(&mut self, source: &Source, partition: TopicPartition) -> Result<Flow, Error> {
        if self.transaction.is_none() {
            // Those of other partitions at hand are given up, and must come again, too.
            self.rewind(source)?;
        }
        self.restart(source, &[partition]).map(|()| Flow::Back)
    }
}

/// Which of the topics records that come together are of.
fn topic_of(topics: &[Plan], beside: &[Message<'_>]) -> Option<usize> {
    let name = beside.first()?.topic();
    topics.iter().position(|plan| plan.topic.input == name)
}

/// Takes the keys of records up to the one of number `end`, as far as they are not taken.
pub(super) fn take_keys(topics: &[Plan], scratch: &mut Scratch, messages: &[Message<'_>], keys: &mut Keys, end: usize) {
    let Some(messages) = messages.get(keys.len()..end) else { return };
    for beside in messages.chunk_by(Message::same_partition) {
        match topic_of(topics, beside) {
            Some(topic) => keys.extend(beside.iter().map(|message| key_of(&topics[topic], message, scratch))),
            // Nobody will ask for them.
            None => keys.extend(beside.iter().map(|_| Ok((Fingerprint(0), false)))),
        }
    }
}

impl RecordLoop<'_> {
    /// Takes records until one makes it stop.
    fn run<'k, 'm>(&mut self, left: &mut impl Iterator<Item = (&'m Message<'m>, &'k Keyed)>) -> Option<(&'m Message<'m>, &'k Keyed, Halt)> {
        left.find_map(|(message, keyed)| self.record(message, keyed).err().map(|halt| (message, keyed, halt)))
    }

    fn record(&mut self, message: &Message<'_>, keyed: &Keyed) -> Result<(), Halt> {
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
                return Err(Halt::WarmedUp);
            }
        }
        let verdict = decide(&self.plan.topic, self.input, state, offset, time, keyed, self.max_timestamp).map_err(Halt::VerdictError)?;
        if self.input.is_warm_up(offset) {
            self.input.warmed_up(offset);
            self.tallies[self.plan.counted].warmed_up += 1;
            fault::point("warm_up.record");
            let is_much = state.pending.len() >= self.shared.config.worker.max_transaction_records;
            return if is_much { Err(Halt::Unlogged) } else { Ok(()) };
        }
        self.input.verdicts.carry(offset, verdict);
        if std::mem::take(&mut self.input.warming_up) {
            tracing::info!(partition = %self.input.partition, offset, "warmed up");
            fault::point("warm_up.ended");
        }
        if time.is_some_and(|time| time > self.max_timestamp) {
            self.tallies[self.plan.counted].future += 1;
        }
        if let (Verdict::Unseen, Ok((fingerprint, _))) = (verdict, keyed) {
            co_partitioning::watch(self.shared, self.plan, *fingerprint, message.partition());
        }
        self.emit(message, time, verdict, keyed)
    }

    /// Brings a record to the partition where it is judged.
    fn forward(&mut self, message: &Message<'_>, time: Option<Timestamp>, keyed: &Keyed) -> Result<(), Halt> {
        let (Some(to), Ok((fingerprint, _))) = (&self.plan.forward, keyed) else {
            let verdict = keyed.as_ref().map_or_else(|invalid| self.plan.topic.verdict_without_key(invalid.reason), |_| Verdict::Unseen);
            return self.emit(message, time, verdict, keyed);
        };
        self.begin()?;
        self.headers.clear();
        self.write(&to.topic, Some(to.partition(*fingerprint)), message, time)?;
        self.input.position = message.offset() + 1;
        self.carried()
    }

    /// Writes a decided record to where it goes, and counts it as read.
    fn emit(&mut self, message: &Message<'_>, time: Option<Timestamp>, verdict: Verdict, keyed: &Keyed) -> Result<(), Halt> {
        self.begin()?;
        let (plan, offset) = (self.plan, message.offset());
        let refused = if let Verdict::Invalid(reason) = verdict
            && reason.is_of_broker()
        {
            self.input.verdicts.refused(offset)
        } else {
            None
        };
        let invalid = refused.or(keyed.as_ref().err().map(|invalid| &**invalid));
        // A dead letter's topic may refuse its time, too; a header has it.
        let time = time.filter(|_| verdict != Verdict::Invalid(Reason::Refused));
        let is_written = match plan.routes.route(&plan.topic, verdict, invalid, message, self.headers) {
            Route::Drop => false,
            Route::Fail(reason) => {
                self.input.is_refused = true;
                return Err(Halt::Refused(reason));
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
            let tally = &mut self.tallies[plan.counted];
            tally.count(verdict);
            tally.dead_letters += u64::from(is_written && plan.routes.is_dead_letter(verdict));
        }
        self.carried()
    }

    fn begin(&mut self) -> Result<(), Halt> {
        if self.transaction.is_none() {
            self.sink.begin().map_err(Halt::Failed)?;
            *self.transaction = Some(Transaction::begun());
            fault::point("transaction.begun");
        }
        Ok(())
    }

    /// Writes a record, with the headers at hand added to its own.
    fn write(&mut self, topic: &str, partition: Option<i32>, message: &Message<'_>, time: Option<Timestamp>) -> Result<(), Halt> {
        let origin = self.written.push(self.topic, message.partition(), message.offset(), time);
        self.sink.send(&Outgoing { topic, partition, message, time, headers: self.headers, origin }).map_err(Halt::Failed)?;
        fault::point("transaction.sent");
        Ok(())
    }

    /// The transaction carries one record more.
    fn carried(&mut self) -> Result<(), Halt> {
        let most = self.shared.config.worker.max_transaction_records;
        let is_full = self.transaction.as_mut().is_some_and(|transaction| {
            transaction.records += 1;
            transaction.records >= most
        });
        if is_full { Err(Halt::Full) } else { Ok(()) }
    }
}
