//! Where records go: one producer, and its transactions.
//!
//! Owns the life of a transaction and says of each failure what to do next: see [`SinkError`]. Calls
//! that may be repeated are repeated here, within bounds. Must never decide what is written.

mod connect;
mod error;
mod first;
mod offsets;
mod origin;
mod refused;

use super::client_config::CALL_TIMEOUT;
use super::client_log;
use super::ffi::{GroupMetadata, Headers, Message, Producer, ProducerRecord, Reports, Timestamped, TransactionError, Undelivered};
use super::security::{self, Login};
pub use error::{SinkError, has_twin};
pub use refused::Refused;

use super::{Source, throttle};
use crate::config::Delivery;
use crate::fault;
use crate::record::{Offset, Reason, Timestamp, TopicPartition};
use crate::route::AddedHeaders;
use crate::stats::Stats;
use error::{may_repeat, next, not_allowed};
use offsets::{OffsetToCommit, flushed};
use origin::WrittenFrom;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionList;
use refused::{BYSTANDER, Failed, oversize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most failed records that are kept apart; beyond it, the rest shows itself at the next try.
const FAILURES_MAX: usize = 10_000;

/// How long librdkafka may wait before we look at what has failed.
const TURN: Duration = Duration::from_millis(50);

/// How long librdkafka's threads are given to send what lingers.
const HEAD_START: Duration = Duration::from_millis(2);

/// How long a record waits for room in a full queue before it is tried again.
const FULL_TURN: Duration = Duration::from_millis(10);

/// A record to be written: one that was read, to another topic.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// Where it goes.
    pub topic: &'a str,
    /// To which partition; `None` for the one that its key asks for.
    pub partition: Option<i32>,
    /// What is written: key, value and headers as they were read.
    pub message: &'a Message<'a>,
    /// Its time.
    pub time: Option<Timestamp>,
    /// Headers added to its own.
    pub headers: &'a AddedHeaders,
    /// A number that a failure will name it by.
    pub origin: usize,
}

/// What is done while a commit waits for the brokers, with a way to ask whether the wait is over.
pub type Meanwhile<'m> = &'m mut dyn FnMut(&dyn Fn() -> bool);

/// A producer, and the state of its transaction.
pub struct Sink {
    producer: Producer<Context>,
    delivery: Delivery,
    patience: Duration,
    /// Whether each record travels alone, so that the broker's error of one is not that of its neighbours.
    one_record_per_batch: bool,
    /// Most bytes of a batch.
    batch_bytes: usize,
    group: String,
    /// Most estimated bytes of the offsets in one request. Shrinks when the group coordinator refuses a request as too large.
    offset_request_bytes: AtomicUsize,
}

struct Context {
    login: Login,
    stats: Arc<Stats>,
    failures: Mutex<Vec<Failed>>,
    /// Offsets of the records that were written to changelogs, in order.
    logged: Mutex<BTreeMap<TopicPartition, Vec<Offset>>>,
    /// Whether the brokers say which records of a batch they refuse: those before Kafka 2.4 do not.
    names_records: AtomicBool,
    /// True if the last `EndTxn` request is not answered yet.
    end_is_pending: AtomicBool,
    /// True if an `EndTxn` request was sent while an earlier one was not answered.
    end_was_repeated: AtomicBool,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client_log::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        client_log::report(&self.login, &error, reason);
    }
}

impl Reports for Context {
    const WATCHED: usize = WrittenFrom::Changelog.tag();

    fn written(&self, topic: &str, partition: i32, offset: Offset) {
        // A broker that got a batch twice does not tell its offset.
        if offset < 0 {
            return;
        }
        let partition = TopicPartition { topic: topic.to_owned(), partition };
        self.logged.lock().unwrap_or_else(PoisonError::into_inner).entry(partition).or_default().push(offset);
    }

    fn failed(&self, undelivered: &Undelivered<'_>) {
        let Undelivered { tag, topic, bytes, code, reason } = *undelivered;
        let is_bystander = code == RDKafkaErrorCode::InvalidDifferentRecord || reason.starts_with(BYSTANDER);
        if is_bystander {
            self.names_records.store(true, Ordering::Relaxed);
        }
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        // One that fails takes with it all that are queued: those must not crowd it out.
        let given_up = is_bystander || matches!(code, RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight);
        if failures.is_empty() || failures.len() < FAILURES_MAX && !given_up {
            let code = if is_bystander { RDKafkaErrorCode::InvalidDifferentRecord } else { code };
            failures.push(Failed {
                origin: WrittenFrom::of(tag),
                bytes,
                code,
                topic: topic.to_owned(),
                reason: reason.to_owned(),
                given_up,
            });
        }
    }

    fn answered(&self) {
        self.stats.broker_contact.note();
    }

    fn end_sent(&self) {
        let is_repeated = self.end_is_pending.swap(true, Ordering::Relaxed);
        self.end_was_repeated.fetch_or(is_repeated, Ordering::Relaxed);
    }

    fn end_answered(&self) {
        self.end_is_pending.store(false, Ordering::Relaxed);
    }
}

impl Sink {
    /// Returns true if transactions hold together what is written.
    #[must_use]
    pub const fn transactional(&self) -> bool {
        matches!(self.delivery, Delivery::ExactlyOnce)
    }

    /// Most bytes of a batch.
    #[must_use]
    pub const fn batch_bytes(&self) -> usize {
        self.batch_bytes
    }

    fn names_records(&self) -> bool {
        self.producer.context().names_records.load(Ordering::Relaxed)
    }

    /// Takes over what `previous` learned about the brokers.
    pub fn learn_from(&self, previous: &Self) {
        self.producer.context().names_records.fetch_or(previous.names_records(), Ordering::Relaxed);
        self.offset_request_bytes.store(previous.offset_request_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// True if a request to end a transaction was sent and never answered. librdkafka sent it again, but the first one may
    /// still arrive, and would end the next transaction of this producer: only another producer has another epoch. Brokers
    /// tell transactions of one epoch apart for clients of transactions V2 (KIP-890), which librdkafka is not.
    #[must_use]
    pub fn has_unanswered_end(&self) -> bool {
        let Context { end_is_pending, end_was_repeated, .. } = self.producer.context();
        end_is_pending.load(Ordering::Relaxed) || end_was_repeated.load(Ordering::Relaxed)
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`SinkError`] says what to do.
    pub fn begin(&self) -> Result<(), SinkError> {
        self.failures().clear();
        // What an aborted transaction wrote to changelogs lies nowhere.
        self.take_logged();
        fault::step("transaction.begin").map_err(SinkError::Unknown)?;
        if self.transactional() { self.producer.begin_transaction().map_err(|error| next(&error)) } else { Ok(()) }
    }

    /// Hands a record to librdkafka; waits while its queue is full.
    ///
    /// # Errors
    /// [`SinkError`] says what to do.
    #[inline]
    pub fn send(&self, outgoing: &Outgoing<'_>) -> Result<(), SinkError> {
        fault::step("transaction.send").map_err(SinkError::Abort)?;
        let Outgoing { topic, partition, message, time, headers, origin } = *outgoing;
        let mut all = Headers::copied(message);
        if !headers.is_empty() {
            all = all.or_else(|| Headers::with_room(headers.len()));
            let Some(all) = &mut all else { return Err(SinkError::Abort("librdkafka makes no headers".to_owned())) };
            headers.replaced().iter().for_each(|name| all.remove(name));
            for (name, value) in headers.iter() {
                all.add(name.to_bytes(), value.as_bytes());
            }
        }
        self.queue(ProducerRecord {
            topic,
            partition,
            key: message.key(),
            value: message.value(),
            timestamp: time.map_or(Timestamped::Never, Timestamped::At),
            headers: all,
            tag: WrittenFrom::Read(origin).tag(),
        })
    }

    /// Without transactions, waits until everything that was sent is written. Outputs come before the changelog, and that before
    /// the offsets: after a kill, none may know of more than was written before it.
    ///
    /// # Errors
    /// [`SinkError`] says what to do.
    pub fn flush_in_order(&self) -> Result<(), SinkError> {
        if self.transactional() { Ok(()) } else { self.flush().map_err(|failure| self.explain(failure)) }
    }

    /// Hands a record of a changelog to librdkafka.
    ///
    /// # Errors
    /// [`SinkError`] says what to do.
    pub fn write_changelog(&self, changelog: &TopicPartition, value: &[u8]) -> Result<(), SinkError> {
        self.queue(ProducerRecord {
            topic: &changelog.topic,
            partition: Some(changelog.partition),
            key: None,
            value: Some(value),
            timestamp: Timestamped::Now,
            headers: None,
            tag: WrittenFrom::Changelog.tag(),
        })
    }

    /// Where the records of changelogs lie that were written since this was asked, if they were committed.
    pub fn take_logged(&self) -> BTreeMap<TopicPartition, Vec<Offset>> {
        std::mem::take(&mut *self.producer.context().logged.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[inline]
    fn queue(&self, mut record: ProducerRecord<'_>) -> Result<(), SinkError> {
        let topic = record.topic;
        let mut waited = None;
        loop {
            match self.producer.send(&mut record) {
                Ok(()) => return Ok(()),
                Err(RDKafkaErrorCode::QueueFull) => {
                    if waited.get_or_insert_with(Instant::now).elapsed() > self.patience {
                        return Err(SinkError::Abort(format!("the send queue stayed full for {:?}", self.patience)));
                    }
                    // What lingers is sent now.
                    let _ = self.producer.flush(FULL_TURN);
                }
                Err(RDKafkaErrorCode::MessageSizeTooLarge) => {
                    let bytes = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
                    let invalid = oversize(bytes);
                    return Err(match WrittenFrom::of(record.tag) {
                        WrittenFrom::Read(origin) => {
                            SinkError::Refused(vec![Refused { origin, topic: topic.to_owned(), invalid, is_certain: true }])
                        }
                        WrittenFrom::Changelog => SinkError::Exit(invalid.message),
                    });
                }
                // In a transaction that has failed already.
                Err(RDKafkaErrorCode::State | RDKafkaErrorCode::PurgeQueue) => return Err(self.explain(self.why_failed())),
                Err(RDKafkaErrorCode::Fenced) => return Err(SinkError::Fenced("the producer was fenced".to_owned())),
                Err(RDKafkaErrorCode::Fatal) => return Err(self.why_ended()),
                Err(code) => {
                    let error = KafkaError::MessageProduction(code);
                    if code == RDKafkaErrorCode::TopicAuthorizationFailed {
                        return Err(not_allowed(&format!("to {topic}: {error}")));
                    }
                    return Err(SinkError::Abort(format!("cannot write to {topic}: {error}")));
                }
            }
        }
    }

    /// Lets librdkafka report which of the earlier records have failed.
    pub fn poll(&self) {
        self.producer.poll(Duration::ZERO);
    }

    /// Commits what was sent, together with the offsets up to which it was read, each with a note. While a transaction
    /// waits for the brokers, `meanwhile` is called.
    ///
    /// # Errors
    /// [`SinkError`] says what to do.
    pub fn commit(&mut self, offsets: &[OffsetToCommit], source: &Source, meanwhile: Option<Meanwhile<'_>>) -> Result<(), SinkError> {
        let requests = self.offset_requests(offsets)?;
        let committed = match (self.transactional(), meanwhile) {
            (false, _) => self.commit_plain(&requests, source),
            (true, None) => self.commit_transaction(&requests, source.group()),
            (true, Some(meanwhile)) => {
                let (group, this) = (source.group(), &mut *self);
                std::thread::scope(|scope| {
                    let thread = std::thread::Builder::new().name("commit".to_owned());
                    let Ok(commit) = thread.spawn_scoped(scope, move || this.commit_transaction(&requests, group)) else {
                        return Err(SinkError::Abort("the system has no thread for the commit".to_owned()));
                    };
                    meanwhile(&|| commit.is_finished());
                    commit.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
            }
        };
        committed.map_err(|failure| self.explain(failure))
    }

    /// Why the producer is of no use any more.
    fn why_ended(&self) -> SinkError {
        match self.producer.begin_transaction().as_ref().map_err(next) {
            Err(failure @ SinkError::Fenced(_)) => failure,
            _ => SinkError::Unknown("the producer has failed".to_owned()),
        }
    }

    /// Why the open transaction has failed. Asked to begin another, librdkafka refuses, and says it.
    fn why_failed(&self) -> SinkError {
        match self.producer.begin_transaction().as_ref().map_err(next) {
            Err(failure @ (SinkError::Abort(_) | SinkError::Exit(_))) => failure,
            _ => SinkError::Abort("the transaction has failed".to_owned()),
        }
    }

    /// Says of a failed transaction what the broker said of its records, if that is why.
    fn explain(&self, failure: SinkError) -> SinkError {
        if !matches!(failure, SinkError::Abort(_) | SinkError::Exit(_)) {
            return failure;
        }
        // The call that meets a failed transaction does not say why; the delivery reports do, and wait for us.
        self.take_reports();
        let failures = std::mem::take(&mut *self.failures());
        if let Some(failed) = failures.iter().find(|failed| failed.code == RDKafkaErrorCode::TopicAuthorizationFailed) {
            return not_allowed(&failed.message());
        }
        let refused: Vec<_> = failures.iter().filter_map(|failed| Some((failed, failed.invalid()?))).collect();
        if let Some((failed, invalid)) = refused.iter().find(|(failed, _)| failed.origin == WrittenFrom::Changelog) {
            return SinkError::Exit(match invalid.reason {
                Reason::Oversize => format!(
                    "a changelog's record does not fit ({}); let the topic's max.message.bytes be at least 1000000",
                    failed.message()
                ),
                _ => format!("{} of a changelog; let it have cleanup.policy=delete", invalid.message),
            });
        }
        let SinkError::Abort(reason) = failure else { return failure };
        if refused.is_empty() {
            return SinkError::Abort(failures.into_iter().find(|failed| !failed.given_up).map_or(reason, |failed| failed.message()));
        }
        // What is said of each in other words is of none else.
        let words: BTreeSet<_> = refused.iter().map(|(failed, _)| &failed.reason).collect();
        let is_named = self.names_records() || refused.len() > 1 && words.len() == refused.len();
        let refused = refused.into_iter().filter_map(|(failed, invalid)| {
            let WrittenFrom::Read(origin) = failed.origin else { return None };
            let is_certain = match invalid.reason {
                // Larger than a batch may be, a record was alone in its own.
                Reason::Oversize => failed.bytes >= self.batch_bytes,
                _ => is_named && !failed.reason.is_empty(),
            };
            Some(Refused { origin, topic: failed.topic.clone(), invalid, is_certain: self.one_record_per_batch || is_certain })
        });
        SinkError::Refused(refused.collect())
    }

    /// Waits until the broker has taken all that was sent, or refused any of it.
    fn flush(&self) -> Result<(), SinkError> {
        let started = Instant::now();
        loop {
            // In short waits: behind a refused record, librdkafka may wait for ever with those that it will not send any more.
            let flushed = self.producer.flush(TURN);
            if !self.failures().is_empty() {
                return Err(SinkError::Abort("a record could not be written".to_owned()));
            }
            if flushed {
                return Ok(());
            }
            if started.elapsed() >= self.patience {
                return Err(SinkError::Unknown(format!("records were not written within {:?}", self.patience)));
            }
        }
    }

    /// Commits the open transaction with these requests of offsets. A warm-up commits without any.
    fn commit_transaction(&self, requests: &[TopicPartitionList], group: Option<GroupMetadata>) -> Result<(), SinkError> {
        fault::step("commit.begin").map_err(SinkError::Abort)?;
        // librdkafka sends lingering records while we wait for the offset commits.
        let _ = self.producer.flush(HEAD_START);
        let group = group.ok_or_else(|| SinkError::Abort("the consumer has left its group".to_owned()))?;
        self.send_offsets(requests, &group)?;
        fault::step("commit.offsets_sent").map_err(SinkError::Abort)?;
        self.flush()?;
        flushed().map_err(SinkError::Unknown)?;
        self.attempt(|| self.producer.commit_transaction(CALL_TIMEOUT)).map_err(|error| next(&error))?;
        fault::step("commit.committed").map_err(SinkError::Unknown)
    }

    fn commit_plain(&self, requests: &[TopicPartitionList], source: &Source) -> Result<(), SinkError> {
        self.flush()?;
        flushed().map_err(SinkError::Abort)?;
        requests.iter().try_for_each(|request| {
            source.commit(request).map_err(|error| match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::InvalidCommitOffsetSize) => self.shrink_offset_requests(),
                Some(RDKafkaErrorCode::Unknown) if request.count() > 1 => self.shrink_offset_requests(),
                code => match code.and_then(security::missing_right) {
                    Some(right) => SinkError::Exit(format!("the brokers do not allow offset commits: {error}; give this user {right}")),
                    None => SinkError::Abort(format!("offset commit failed: {error}")),
                },
            })
        })
    }

    /// Calls librdkafka until it succeeds, as long as the call may be repeated and a transaction can live.
    fn attempt(&self, call: impl Fn() -> Result<(), TransactionError>) -> Result<(), TransactionError> {
        Self::attempt_for(self.patience, call)
    }

    fn attempt_for(patience: Duration, call: impl Fn() -> Result<(), TransactionError>) -> Result<(), TransactionError> {
        let started = Instant::now();
        loop {
            match call() {
                Ok(()) => return Ok(()),
                Err(error) if may_repeat(&error) && started.elapsed() < patience => {
                    if started.elapsed() > CALL_TIMEOUT / 2 {
                        throttle::report(&format!("writing {error}"), |left_out| {
                            tracing::warn!(error = %error, left_out, "no answer from the brokers yet; retrying");
                        });
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives up what was sent since [`Sink::begin`].
    ///
    /// # Errors
    /// [`SinkError`] says what to do.
    pub fn abort(&self) -> Result<(), SinkError> {
        fault::step("abort.begin").map_err(SinkError::Unknown)?;
        let aborted = if self.transactional() {
            self.abort_transaction(self.patience)
        } else {
            self.producer.purge();
            if self.producer.flush(self.patience) { Ok(()) } else { Err(SinkError::Unknown("records are still on their way".to_owned())) }
        };
        self.failures().clear();
        match aborted {
            // A transaction that cannot even be aborted is the next producer's to end.
            Err(SinkError::Abort(reason)) => Err(SinkError::Unknown(reason)),
            other => other,
        }
    }

    /// Gives up what was sent, and writes nothing ever after. Brokers that do not answer soon find out by the timeout.
    pub fn leave(&self) {
        if self.transactional()
            && let Err(failure) = self.abort_transaction(CALL_TIMEOUT)
        {
            tracing::debug!(?failure, "the open transaction is left to its timeout");
        }
    }

    fn abort_transaction(&self, patience: Duration) -> Result<(), SinkError> {
        // librdkafka waits until the purged records are reported, and reports only to who asks: so
        // it is given little time, again and again, and asked in between.
        let abort = || self.producer.abort_transaction(TURN).inspect_err(|_| self.take_reports());
        Self::attempt_for(patience, abort).map_err(|error| next(&error))
    }

    /// Takes the delivery reports that are there, and those that come in a moment.
    fn take_reports(&self) {
        // Whether any are still out is for the next call to find.
        let _ = self.producer.flush(TURN);
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, Vec<Failed>> {
        self.producer.context().failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
