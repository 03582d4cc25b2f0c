//! The producer: its calls and librdkafka's state (`rdkafka_txnmgr.c`).

use super::super::cluster::{Header, Pid, StoredRecord};

use super::super::{ClientId, Micros, Signal, World, micros, millis};
use super::super::{SimBroker, Simulation};
use super::consumer::SimMembership;
use super::error::client_error;
use super::{Client, SimRecord};
use crate::broker::{
    ClientError, DeliveryFailure, ErrorCode, HeaderChanges, OutgoingRecord, OutgoingTime, ProducerClient, ProducerOptions, Record as _,
};
use crate::config::{Config, Delivery};
use crate::record::{Offset, TimestampType, TopicPartition};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const FAILURES_MAX: usize = 10_000;
/// The maximum number of records that are queued or in flight.
const QUEUED_MAX: usize = 100_000;

/// The states of a transactional producer (`rd_kafka_txn_state_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxnState {
    Init,
    Ready,
    InTransaction,
    BeginCommit,
    Committing,
    CommitNotAcked,
    BeginAbort,
    Aborting,
    AbortNotAcked,
    AbortableError,
    FatalError,
}

#[derive(Clone)]
pub(super) struct Message {
    pub(super) record: StoredRecord,
    pub(super) tag: usize,
    /// The deadline for writing the record (`message.timeout.ms`).
    pub(super) deadline: Micros,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) pending: VecDeque<Message>,
    pub(super) in_flight: Vec<Message>,
    /// The sequence number of the batch in flight, or of the next batch if none is in flight.
    pub(super) sequence: i32,
    /// The number of batches so far. A late answer to a purged batch must not count as the answer to the next batch.
    pub(super) batches: u64,
    /// The time of the first record since the queue was last empty. It stays the same if the client sends only some of the queued records.
    pub(super) since: Micros,
}

#[expect(clippy::struct_excessive_bools, reason = "librdkafka keeps them as flags that do not depend on each other")]
pub(in crate::sim) struct ProducerState {
    pub(super) process: usize,
    pub(super) signal: Signal,
    /// `None` for a producer without transactions.
    pub(super) transactional_id: Option<String>,
    pub(in crate::sim) timeout: Micros,
    pub(super) linger: Micros,
    pub(super) batch_bytes: usize,
    pub(super) one_record_per_batch: bool,
    pub(super) pid: Option<(Pid, i16)>,
    pub(super) state: TxnState,
    /// The error of the transaction or of the producer (`txn_err`).
    pub(super) error: Option<(ErrorCode, String)>,
    pub(super) queues: BTreeMap<TopicPartition, Queue>,
    /// The number of records that are queued or in flight.
    pub(super) waiting: usize,
    pub(super) registered: BTreeSet<TopicPartition>,
    pub(super) is_registering: bool,
    /// True if the client has sent a request to the coordinator in this transaction (`txn_req_cnt`).
    pub(super) has_requests: bool,
    /// The number of the current transaction. Answers to requests of earlier transactions are ignored.
    pub(super) transaction: u64,
    pub(super) began: Micros,
    /// The deadline of the application's flush. Until then, records do not linger.
    pub(super) flushes_until: Micros,
    pub(super) failed_records: usize,
    /// True if the producer epoch must be bumped after the abort. Either the sequence numbers may have a gap, or the coordinator has
    /// expired the transactional id (KIP-360).
    pub(super) needs_bump: bool,
    pub(in crate::sim) has_late_request: bool,
    pub(super) failures: Vec<DeliveryFailure>,
    pub(super) written: BTreeMap<TopicPartition, Vec<Offset>>,
}

impl ProducerState {
    fn new(process: usize, signal: Signal, transactional_id: Option<String>, timeout: Micros) -> Self {
        Self {
            process,
            signal,
            transactional_id,
            timeout,
            linger: millis(5),
            batch_bytes: 1_000_000,
            one_record_per_batch: false,
            pid: None,
            state: TxnState::Init,
            error: None,
            queues: BTreeMap::new(),
            waiting: 0,
            registered: BTreeSet::new(),
            is_registering: false,
            has_requests: false,
            transaction: 0,
            began: 0,
            flushes_until: 0,
            failed_records: 0,
            needs_bump: false,
            has_late_request: false,
            failures: Vec::new(),
            written: BTreeMap::new(),
        }
    }

    /// The error of a call that is not allowed in the current state (`rd_kafka_txn_require_states0`).
    pub(super) fn state_error(&self) -> ClientError {
        let (code, message) = self.error.clone().unwrap_or((ErrorCode::Other, String::new()));
        match self.state {
            TxnState::FatalError => ClientError { is_fatal: true, ..client_error(code, message) },
            TxnState::AbortableError => ClientError { requires_abort: true, ..client_error(code, message) },
            state => client_error(ErrorCode::State, format!("Operation not valid in state {state:?}")),
        }
    }

    /// Makes the producer unusable (`rd_kafka_txn_set_fatal_error`). Purges queued records.
    pub(super) fn set_fatal(&mut self, code: ErrorCode, message: String) {
        self.state = TxnState::FatalError;
        self.error = Some((code, message));
        self.purge_queued();
    }

    /// Requires the transaction to be aborted (`rd_kafka_txn_set_abortable_error0`). Purges queued records. Does nothing if the producer is
    /// not transactional or already has an error.
    pub(super) fn set_abortable(&mut self, code: ErrorCode, message: String) {
        if self.state == TxnState::FatalError || self.transactional_id.is_none() || self.error.is_some() {
            return;
        }
        self.error = Some((code, message));
        if matches!(self.state, TxnState::InTransaction | TxnState::BeginCommit | TxnState::Committing) {
            self.state = TxnState::AbortableError;
        }
        self.purge_queued();
    }

    pub(super) fn purge_queued(&mut self) {
        let mut purged = Vec::new();
        for (to, queue) in &mut self.queues {
            purged.extend(queue.pending.drain(..).map(|message| (to.topic.clone(), message)));
        }
        self.waiting -= purged.len();
        for (topic, message) in purged {
            self.report(&topic, &message, ErrorCode::PurgedQueue, "");
        }
    }

    /// Reports a record that was not written. If the record was purged or failed only because of another record, the report is kept only if
    /// it is the first one, to leave room for records that caused failures.
    pub(super) fn report(&mut self, topic: &str, message: &Message, code: ErrorCode, reason: &str) {
        self.failed_records += 1;
        let is_bystander = matches!(code, ErrorCode::PurgedQueue | ErrorCode::PurgedInFlight | ErrorCode::OtherRecord);
        if self.failures.is_empty() || self.failures.len() < FAILURES_MAX && !is_bystander {
            let len = |bytes: &Option<Box<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
            let bytes = len(&message.record.key) + len(&message.record.value);
            let (topic, error, reason) = (topic.to_owned(), format!("{code:?}"), reason.to_owned());
            self.failures.push(DeliveryFailure { tag: message.tag, topic, bytes, code, error, reason });
        }
    }
}

pub struct SimProducer {
    pub(super) simulation: Simulation,
    pub(super) id: ClientId,
}

impl SimProducer {
    pub(in crate::sim) fn new(simulation: &Simulation, config: &Config, options: &ProducerOptions<'_>) -> Self {
        let is_transactional = config.worker.delivery == Delivery::ExactlyOnce;
        let id = is_transactional.then(|| options.transactional_id.to_owned());
        let linger = config.worker.delivery.linger(config.worker.commit_interval, options.partitions);
        Self::with_id(simulation, id, config.worker.transaction_timeout, |producer| {
            producer.linger = micros(linger);
            (producer.batch_bytes, producer.one_record_per_batch) = (options.batch_bytes, options.one_record_per_batch);
        })
    }

    pub(in crate::sim) fn with_id(
        simulation: &Simulation,
        transactional_id: Option<String>,
        timeout: Duration,
        configure: impl FnOnce(&mut ProducerState),
    ) -> Self {
        let id = simulation.with(|world| {
            let pid = transactional_id.is_none().then(|| (world.cluster.transactions.new_pid(), 0));
            world.add_client(|process, signal| {
                let mut producer = ProducerState::new(process, signal, transactional_id, micros(timeout));
                producer.pid = pid;
                configure(&mut producer);
                Client::Producer(Box::new(producer))
            })
        });
        Self { simulation: simulation.clone(), id: id.unwrap_or(usize::MAX) }
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&mut ProducerState) -> T) -> Option<T> {
        self.simulation.with(|world| world.producer(self.id).map(look)).flatten()
    }

    /// Waits until `ready` returns `true`. Returns `false` after the timeout, or if the process was killed.
    pub(super) fn wait(&self, timeout: Duration, mut ready: impl FnMut(&mut ProducerState) -> bool) -> bool {
        let Some(world) = self.simulation.enter() else { return false };
        let (deadline, id) = (world.now.saturating_add(micros(timeout)), self.id);
        self.simulation.wait_until(world, Some(deadline), id, &mut |world| world.producer(id).is_none_or(&mut ready)).1
    }

    fn record<H: HeaderChanges>(world: &World, record: &OutgoingRecord<'_, SimRecord, H>) -> StoredRecord {
        let mut headers: Vec<Header> = Vec::new();
        if let Some((from, changes)) = &record.headers {
            let removed = changes.removed_positions();
            let kept = from.all_headers().enumerate().filter(|(at, _)| !removed.contains(at));
            headers.extend(kept.map(|(_, (name, value))| -> Header { (name.into(), value.map(Into::into)) }));
            for name in changes.removed() {
                headers.retain(|(own, _)| **own != *name.to_bytes());
            }
            headers.extend(changes.added().map(|(name, value)| -> Header { (name.to_bytes().into(), Some(value.into())) }));
        }
        let time = match record.time {
            OutgoingTime::At(0) => 1,
            OutgoingTime::At(time) => time,
            OutgoingTime::Now => world.wall_clock(world.current_process()),
            OutgoingTime::Never => -1,
        };
        let (key, value) = (record.key.map(Into::into), record.value.map(Into::into));
        StoredRecord { offset: 0, time, time_type: TimestampType::CreateTime, key, value, headers }
    }
}

impl ProducerClient<SimBroker> for SimProducer {
    fn init_transactions(&self, timeout: Duration) -> Result<(), ClientError> {
        self.init(timeout)
    }

    fn begin_transaction(&self) -> Result<(), ClientError> {
        self.begin()
    }

    fn send<H: HeaderChanges>(&self, record: &OutgoingRecord<'_, SimRecord, H>) -> Result<(), Box<ClientError>> {
        let refused = |code, message: &str| {
            // `kafka::producer::send_error` returns the same error.
            Err(Box::new(ClientError { requires_abort: true, ..client_error(code, message.to_owned()) }))
        };
        let Some(mut world) = self.simulation.enter() else { return refused(ErrorCode::Fatal, "the process was killed") };
        let is_full = {
            let often = world.faults.queue_full;
            world.random.chance(often)
        };
        let to = TopicPartition { topic: record.topic.to_owned(), partition: record.partition.unwrap_or(-1) };
        let stored = Self::record(&world, record);
        let now = world.now;
        let to = match record.partition {
            Some(_) => to,
            None => world.choose_partition(to, stored.key.as_deref()),
        };
        let Some(producer) = world.producer(self.id) else { return refused(ErrorCode::Fatal, "the client is gone") };
        match producer.state {
            TxnState::FatalError => return refused(ErrorCode::Fatal, "Local: Fatal error"),
            TxnState::InTransaction => {}
            _ if producer.transactional_id.is_some() => return refused(ErrorCode::State, "Local: Erroneous state"),
            _ => {}
        }
        if is_full || producer.waiting >= QUEUED_MAX {
            return refused(ErrorCode::QueueFull, "Local: Queue full");
        }
        let deadline = now.saturating_add(producer.timeout);
        let queue = producer.queues.entry(to).or_default();
        if queue.pending.is_empty() {
            queue.since = now;
        }
        queue.pending.push_back(Message { record: stored, tag: record.tag, deadline });
        producer.waiting += 1;
        let linger = producer.linger;
        let is_first = queue.pending.len() == 1;
        if is_first {
            let id = self.id;
            world.inside_after(linger, id, move |world| world.send_batches(id));
        }
        Ok(())
    }

    fn poll(&self, wait: Duration) {
        if wait.is_zero() {
            drop(self.simulation.enter());
        } else {
            self.wait(wait, |producer| !producer.failures.is_empty());
        }
    }

    fn flush(&self, timeout: Duration) -> bool {
        let deadline = self.simulation.deadline(timeout);
        self.simulation.with(|world| {
            if let Some(producer) = world.producer(self.id) {
                producer.flushes_until = deadline;
                world.send_batches(self.id);
            }
        });
        self.wait(timeout, |producer| producer.waiting == 0)
    }

    fn purge(&self) {
        self.with(|producer| {
            producer.purge_queued();
            let mut purged = Vec::new();
            for (to, queue) in &mut producer.queues {
                purged.extend(queue.in_flight.drain(..).map(|message| (to.topic.clone(), message)));
            }
            producer.waiting -= purged.len();
            producer.needs_bump |= !purged.is_empty();
            for (topic, message) in purged {
                producer.report(&topic, &message, ErrorCode::PurgedInFlight, "");
            }
        });
    }

    fn send_offsets(
        &self,
        offsets: &[(TopicPartition, Offset, String)],
        membership: &SimMembership,
        timeout: Duration,
    ) -> Result<(), ClientError> {
        self.add_offsets(offsets, membership, timeout)
    }

    fn commit_transaction(&self, timeout: Duration) -> Result<(), ClientError> {
        self.commit(timeout)
    }

    fn abort_transaction(&self, timeout: Duration) -> Result<(), ClientError> {
        self.abort(timeout)
    }

    fn take_failures(&self) -> Vec<DeliveryFailure> {
        self.with(|producer| std::mem::take(&mut producer.failures)).unwrap_or_default()
    }

    fn take_written(&self) -> BTreeMap<TopicPartition, Vec<Offset>> {
        self.with(|producer| std::mem::take(&mut producer.written)).unwrap_or_default()
    }

    fn has_late_request(&self) -> bool {
        self.with(|producer| producer.has_late_request).unwrap_or(false)
    }
}

impl Drop for SimProducer {
    fn drop(&mut self) {
        self.simulation.remove_client(self.id);
    }
}
