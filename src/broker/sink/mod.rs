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

pub use error::{SinkError, duplicate_producer};
pub use refused::Refused;

use super::{
    Broker, ClientError, Consumer, DeliveryFailure, ErrorCode, HeaderChanges, MembershipOf, OutgoingRecord, OutgoingTime, ProducerClient,
    Record, RecordOf, throttle,
};
use crate::config::Delivery;
use crate::fault;
use crate::record::{Offset, Reason, Timestamp, TopicPartition};
use crate::route::AddedHeaders;
use crate::runtime;
use error::{may_repeat, next, not_allowed};
use offsets::{OffsetToCommit, flushed};
use origin::WrittenFrom;
use refused::{invalid, message, oversize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::time::Duration;

/// Timeout of one call to a broker.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long librdkafka may wait before we look at what has failed.
const TURN: Duration = Duration::from_millis(50);

/// How long librdkafka's threads are given to send what lingers.
const HEAD_START: Duration = Duration::from_millis(2);

/// How long a record waits for room in a full queue before it is tried again.
const FULL_TURN: Duration = Duration::from_millis(10);

/// A record that was read, to be written to another topic.
pub struct Outgoing<'a, R> {
    /// The topic and partition to write to.
    pub target: Target<'a>,
    /// The record that was read. Its key, value, and headers are written unchanged.
    pub message: &'a R,
    /// The time to write.
    pub time: Option<Timestamp>,
    /// Headers to add to those of the record.
    pub headers: &'a AddedHeaders,
    /// The number by which a failure names the record.
    pub origin: usize,
}

/// The topic and partition that a record is written to.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition; `None` lets the client choose it by the key.
    pub partition: Option<i32>,
}

/// What is done while a commit waits for the brokers, with a way to ask whether the wait is over.
pub type Meanwhile<'m> = &'m mut dyn FnMut(&dyn Fn() -> bool);

impl HeaderChanges for AddedHeaders {
    fn removed(&self) -> impl Iterator<Item = &CStr> {
        self.replaced().iter().copied()
    }

    fn added(&self) -> impl Iterator<Item = (&CStr, &[u8])> {
        self.iter().map(|(name, value)| (name, value.as_bytes()))
    }
}

/// A producer, and the state of its transaction.
pub struct Sink<B: Broker> {
    producer: B::Producer,
    delivery: Delivery,
    patience: Duration,
    /// True if every record has its own batch, so that an error of the batch is an error of the record.
    one_record_per_batch: bool,
    /// The largest batch, in bytes.
    batch_bytes: usize,
    group: String,
    /// Most estimated bytes of the offsets in one request. Shrinks when the group coordinator refuses a request as too large.
    offset_request_bytes: Cell<usize>,
    failures: RefCell<Vec<DeliveryFailure>>,
    /// True once a broker has shown that it names the records of a batch that it rejects. Brokers before Kafka 2.4 do not.
    names_records: Cell<bool>,
}

impl<B: Broker> Sink<B> {
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
        self.names_records.get()
    }

    /// Takes over what `previous` learned about the brokers.
    pub fn learn_from(&self, previous: &Self) {
        self.names_records.set(self.names_records() || previous.names_records());
        self.offset_request_bytes.set(previous.offset_request_bytes.get());
    }

    /// True if a request to commit offsets or to end a transaction was sent and never answered. librdkafka sent it again, but the
    /// first one may still arrive, and would act on the next transaction of this producer: only another producer has another
    /// epoch. Brokers tell transactions of one epoch apart for clients of transactions V2 (KIP-890), which librdkafka is not.
    #[must_use]
    pub fn has_late_request(&self) -> bool {
        self.producer.has_late_request()
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`SinkError`] says what to do.
    pub fn begin(&self) -> Result<(), SinkError> {
        self.producer.take_failures();
        self.failures.borrow_mut().clear();
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
    pub fn send(&self, outgoing: &Outgoing<'_, RecordOf<'_, B>>) -> Result<(), SinkError> {
        fault::step("transaction.send").map_err(SinkError::Abort)?;
        let &Outgoing { target: Target { topic, partition }, message, time, headers, origin } = outgoing;
        self.queue(&OutgoingRecord {
            topic,
            partition,
            key: message.key(),
            value: message.value(),
            time: time.map_or(OutgoingTime::Never, OutgoingTime::At),
            headers: Some((message, headers)),
            tag: WrittenFrom::Read(origin).tag(),
        })
    }

    /// Without transactions, waits until everything that was sent is written. Outputs come before the changelog, and that before
    /// the offsets: after a kill, none may know of more than was written before it.
    ///
    /// # Errors
    /// [`SinkError`] says what to do.
    pub fn flush_in_order(&self) -> Result<(), SinkError> {
        if self.transactional() || fault::defect("offsets_committed_before_outputs") {
            Ok(())
        } else {
            self.flush().map_err(|failure| self.explain(failure))
        }
    }

    /// Hands a record of a changelog to librdkafka.
    ///
    /// # Errors
    /// [`SinkError`] says what to do.
    pub fn write_changelog(&self, changelog: &TopicPartition, value: &[u8]) -> Result<(), SinkError> {
        self.queue(&OutgoingRecord {
            topic: &changelog.topic,
            partition: Some(changelog.partition),
            key: None,
            value: Some(value),
            time: OutgoingTime::Now,
            headers: None,
            tag: WrittenFrom::Changelog.tag(),
        })
    }

    /// Where the records of changelogs lie that were written since this was asked, if they were committed.
    pub fn take_logged(&self) -> BTreeMap<TopicPartition, Vec<Offset>> {
        self.producer.take_written()
    }

    #[inline]
    fn queue(&self, record: &OutgoingRecord<'_, RecordOf<'_, B>, AddedHeaders>) -> Result<(), SinkError> {
        let topic = record.topic;
        let mut waited = None;
        loop {
            let Err(error) = self.producer.send(record) else { return Ok(()) };
            match error.code {
                ErrorCode::QueueFull => {
                    if runtime::since(*waited.get_or_insert_with(runtime::now)) > self.patience {
                        return Err(SinkError::Abort(format!("the send queue stayed full for {:?}", self.patience)));
                    }
                    // Sends what lingers.
                    let _ = self.producer.flush(FULL_TURN);
                }
                ErrorCode::TooLarge => {
                    let invalid = oversize(record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len));
                    return Err(match WrittenFrom::of(record.tag) {
                        WrittenFrom::Read(origin) => {
                            SinkError::Refused(vec![Refused { origin, topic: topic.to_owned(), invalid, is_certain: true }])
                        }
                        WrittenFrom::Changelog => SinkError::Exit(invalid.message),
                    });
                }
                // The transaction has already failed.
                ErrorCode::State | ErrorCode::PurgedQueue => return Err(self.explain(self.why_failed())),
                ErrorCode::Fenced => return Err(SinkError::Fenced("the producer was fenced".to_owned())),
                ErrorCode::Fatal => return Err(self.why_ended()),
                ErrorCode::NotAuthorized => return Err(not_allowed(&format!("to {topic}: {error}"))),
                _ => return Err(SinkError::Abort(format!("cannot write to {topic}: {error}"))),
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
    pub fn commit(&mut self, offsets: &[OffsetToCommit], source: &B::Consumer, meanwhile: Option<Meanwhile<'_>>) -> Result<(), SinkError> {
        let requests = self.offset_requests(offsets);
        let committed = match (self.transactional(), meanwhile) {
            (false, _) => self.commit_plain(&requests, source),
            (true, _) if fault::defect("offsets_outside_transaction") => {
                self.commit_transaction(&[], source.membership()).and_then(|()| self.commit_plain(&requests, source))
            }
            (true, None) => self.commit_transaction(&requests, source.membership()),
            (true, Some(meanwhile)) => {
                let (group, this) = (source.membership(), &mut *self);
                let task = runtime::Task::new("commit");
                let done = task.done();
                std::thread::scope(|scope| {
                    let thread = std::thread::Builder::new().name("commit".to_owned());
                    let Ok(commit) = thread.spawn_scoped(scope, move || task.run(|| this.commit_transaction(&requests, group))) else {
                        return Err(SinkError::Abort("the system has no thread for the commit".to_owned()));
                    };
                    meanwhile(&|| done.is_done());
                    done.wait();
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
        self.collect_failures();
        let failures = self.failures.take();
        if let Some(failed) = failures.iter().find(|failed| failed.code == ErrorCode::NotAuthorized) {
            return not_allowed(&message(failed));
        }
        let refused: Vec<_> = failures.iter().filter_map(|failed| Some((failed, invalid(failed)?))).collect();
        if let Some((failed, invalid)) = refused.iter().find(|(failed, _)| WrittenFrom::of(failed.tag) == WrittenFrom::Changelog) {
            return SinkError::Exit(match invalid.reason {
                Reason::Oversize => format!(
                    "a changelog's record does not fit ({}); let the topic's max.message.bytes be at least 1000000",
                    message(failed)
                ),
                _ => format!("{} of a changelog; let it have cleanup.policy=delete", invalid.message),
            });
        }
        let SinkError::Abort(reason) = failure else { return failure };
        if refused.is_empty() {
            return SinkError::Abort(
                failures.into_iter().find(|failed| !is_given_up(failed.code)).map_or(reason, |failed| message(&failed)),
            );
        }
        // What is said of each in other words is of none else.
        let words: BTreeSet<_> = refused.iter().map(|(failed, _)| &failed.reason).collect();
        let is_named = self.names_records() || refused.len() > 1 && words.len() == refused.len();
        let refused = refused.into_iter().filter_map(|(failed, invalid)| {
            let WrittenFrom::Read(origin) = WrittenFrom::of(failed.tag) else { return None };
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
        let started = runtime::now();
        loop {
            // In short waits: behind a refused record, librdkafka may wait for ever with those that it will not send any more.
            let flushed = self.producer.flush(TURN);
            if self.collect_failures() && !fault::defect("failed_deliveries_ignored") {
                return Err(SinkError::Abort("a record could not be written".to_owned()));
            }
            if flushed {
                return Ok(());
            }
            if runtime::since(started) >= self.patience {
                return Err(SinkError::Unknown(format!("records were not written within {:?}", self.patience)));
            }
        }
    }

    /// Commits the open transaction with these requests of offsets. A warm-up commits without any.
    fn commit_transaction(&self, requests: &[&[OffsetToCommit]], group: Option<MembershipOf<B>>) -> Result<(), SinkError> {
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

    fn commit_plain(&self, requests: &[&[OffsetToCommit]], source: &B::Consumer) -> Result<(), SinkError> {
        if !fault::defect("offsets_committed_before_outputs") {
            self.flush()?;
        }
        flushed().map_err(SinkError::Abort)?;
        requests.iter().try_for_each(|request| {
            source.commit(request).map_err(|error| match error.code {
                ErrorCode::OffsetsTooLarge => self.shrink_offset_requests(),
                ErrorCode::Unknown if request.len() > 1 => self.shrink_offset_requests(),
                _ => match error.missing_permission {
                    Some(right) => SinkError::Exit(format!("the brokers do not allow offset commits: {error}; give this user {right}")),
                    None => SinkError::Abort(format!("offset commit failed: {error}")),
                },
            })
        })
    }

    /// Calls the client until it succeeds, as long as the call may be repeated and a transaction can live.
    fn attempt(&self, call: impl Fn() -> Result<(), ClientError>) -> Result<(), ClientError> {
        Self::attempt_for(self.patience, call)
    }

    fn attempt_for(patience: Duration, call: impl Fn() -> Result<(), ClientError>) -> Result<(), ClientError> {
        let started = runtime::now();
        loop {
            match call() {
                Ok(()) => return Ok(()),
                Err(error) if may_repeat(&error) && runtime::since(started) < patience => {
                    if runtime::since(started) > CALL_TIMEOUT / 2 {
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
        self.producer.take_failures();
        self.failures.borrow_mut().clear();
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

    /// Takes new delivery failures. Returns true if there are any, new or not.
    fn collect_failures(&self) -> bool {
        let new = self.producer.take_failures();
        if new.iter().any(|failed| failed.code == ErrorCode::OtherRecord) {
            self.names_records.set(true);
        }
        let mut failures = self.failures.borrow_mut();
        failures.extend(new);
        !failures.is_empty()
    }
}

/// True for records that failed only because others did.
const fn is_given_up(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::PurgedQueue | ErrorCode::PurgedInFlight | ErrorCode::OtherRecord)
}
