//! The producer of a worker and its transactions.
//!
//! Begins, commits, and aborts transactions, and maps each failure to a reaction (see [`SinkError`]). If a call can be retried, retries it
//! for up to two transaction timeouts. Retries the initialization of transactions until the process stops. This module never decides what
//! is written.

mod connect;
mod error;
mod offsets;
mod origin;
mod outsider;
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
use std::time::{Duration, Instant};

pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait inside librdkafka before failures are checked.
const FLUSH_INTERVAL: Duration = Duration::from_millis(50);

/// The time that librdkafka's threads get to send lingering records.
const LINGER_WAIT: Duration = Duration::from_millis(2);

/// The time to wait for room in a full queue before a record is tried again.
const QUEUE_FULL_INTERVAL: Duration = Duration::from_millis(10);

/// A record to write, with the key and the value of an input record.
pub struct Outgoing<'a, R, H = AddedHeaders> {
    pub target: Target<'a>,
    pub message: &'a R,
    pub time: Option<Timestamp>,
    pub headers: &'a H,
    /// The number that identifies the record in failures.
    pub origin: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub topic: &'a str,
    /// The partition, or `None` to let the client choose it by the key.
    pub partition: Option<i32>,
}

/// A function that is called while a commit waits for the brokers. Its argument returns true when the wait is over.
pub type Meanwhile<'m> = &'m mut dyn FnMut(&dyn Fn() -> bool);

impl HeaderChanges for AddedHeaders {
    fn removed(&self) -> impl Iterator<Item = &CStr> {
        self.replaced().iter().copied()
    }

    fn added(&self) -> impl Iterator<Item = (&CStr, &[u8])> {
        self.iter().map(|(name, value)| (name, value.as_bytes()))
    }
}

pub struct Sink<B: Broker> {
    producer: B::Producer,
    delivery: Delivery,
    patience: Duration,
    /// True if every record has its own batch. If a broker rejects a batch, the rejected record is then known.
    one_record_per_batch: bool,
    batch_bytes: usize,
    group: String,
    /// The maximum estimated size of the offsets in one request. It shrinks when the group coordinator rejects a request as too large.
    offset_request_bytes: Cell<usize>,
    failures: RefCell<Vec<DeliveryFailure>>,
    /// The topics of the records that were not written when the last failure occurred, without the records that their own topics rejected.
    undelivered: RefCell<BTreeSet<String>>,
    /// True after a broker has listed the rejected records of a batch. Brokers before Kafka 2.4 do not list them.
    names_records: Cell<bool>,
}

impl<B: Broker> Sink<B> {
    #[must_use]
    pub const fn transactional(&self) -> bool {
        matches!(self.delivery, Delivery::ExactlyOnce)
    }

    #[must_use]
    pub const fn batch_bytes(&self) -> usize {
        self.batch_bytes
    }

    fn names_records(&self) -> bool {
        self.names_records.get()
    }

    /// Copies two facts about the brokers from the `previous` sink: whether they list rejected records, and the request size that they
    /// accept.
    pub fn learn_from(&self, previous: &Self) {
        self.names_records.set(self.names_records() || previous.names_records());
        self.offset_request_bytes.set(previous.offset_request_bytes.get());
    }

    /// True if a request to commit offsets or to end a transaction may still arrive at a broker, because one of its copies was never
    /// answered. The late copy could affect the next transaction of this producer, because all transactions of a producer have the same
    /// epoch. Only a new producer gets a new epoch. Transactions V2 (KIP-890) change the epoch with each transaction, but librdkafka does
    /// not support them.
    #[must_use]
    pub fn has_late_request(&self) -> bool {
        self.producer.has_late_request()
    }

    pub fn begin(&self) -> Result<(), SinkError> {
        self.producer.take_failures();
        self.failures.borrow_mut().clear();
        // The offsets of aborted changelog records are not needed.
        self.take_logged();
        fault::step("transaction.begin").map_err(SinkError::Unknown)?;
        if self.transactional() { self.producer.begin_transaction().map_err(|error| next(&error)) } else { Ok(()) }
    }

    /// Passes a record to librdkafka. Waits while its queue is full.
    #[inline]
    pub fn send<H: HeaderChanges>(&self, outgoing: &Outgoing<'_, RecordOf<'_, B>, H>) -> Result<(), SinkError> {
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

    /// Without transactions, waits until all sent records are written. The worker calls this method after it has sent the outputs and again
    /// after it has sent the changelog records. So after a crash, the changelog is never ahead of the outputs, and the offsets are never
    /// ahead of the outputs or the changelog.
    pub fn flush_in_order(&self) -> Result<(), SinkError> {
        if self.transactional() || fault::defect("offsets_committed_before_outputs") {
            Ok(())
        } else {
            self.flush().map_err(|failure| self.explain(failure))
        }
    }

    pub fn write_changelog(&self, changelog: &TopicPartition, value: &[u8]) -> Result<(), SinkError> {
        self.queue(&OutgoingRecord {
            topic: &changelog.topic,
            partition: Some(changelog.partition),
            key: None,
            value: Some(value),
            time: OutgoingTime::Now,
            headers: None::<(_, &AddedHeaders)>,
            tag: WrittenFrom::Changelog.tag(),
        })
    }

    /// Takes the offsets of the changelog records written since the last call. In a transaction, they are valid only after the commit.
    pub fn take_logged(&self) -> BTreeMap<TopicPartition, Vec<Offset>> {
        self.producer.take_written()
    }

    #[inline]
    fn queue<H: HeaderChanges>(&self, record: &OutgoingRecord<'_, RecordOf<'_, B>, H>) -> Result<(), SinkError> {
        let mut waited = None;
        while let Err(error) = self.producer.send(record) {
            self.make_room(record, &error, &mut waited)?;
        }
        Ok(())
    }

    /// Waits for room if librdkafka's queue is full. Returns an error if the record cannot be written. `waited` is the time when the queue
    /// was first found full.
    #[cold]
    fn make_room<H: HeaderChanges>(
        &self,
        record: &OutgoingRecord<'_, RecordOf<'_, B>, H>,
        error: &ClientError,
        waited: &mut Option<Instant>,
    ) -> Result<(), SinkError> {
        let topic = record.topic;
        Err(match error.code {
            ErrorCode::QueueFull => {
                if runtime::since(*waited.get_or_insert_with(runtime::now)) > self.patience {
                    return Err(SinkError::Abort(format!(
                        "librdkafka's send queue stayed full for {:?}, because the brokers did not accept the queued records in time",
                        self.patience
                    )));
                }
                // A flush also sends lingering records, which makes room in the queue.
                let _ = self.producer.flush(QUEUE_FULL_INTERVAL);
                return Ok(());
            }
            ErrorCode::TooLarge => {
                let invalid = oversize(topic, record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len));
                match WrittenFrom::of(record.tag) {
                    WrittenFrom::Read(origin) => {
                        SinkError::Refused(vec![Refused { origin, topic: topic.to_owned(), invalid, is_certain: true }])
                    }
                    WrittenFrom::Changelog => SinkError::Exit(invalid.message),
                }
            }
            // The transaction has already failed.
            ErrorCode::State | ErrorCode::PurgedQueue => self.explain(self.why_failed()),
            ErrorCode::Fenced => SinkError::Fenced("the producer was fenced".to_owned()),
            ErrorCode::Fatal => self.why_ended(),
            ErrorCode::NotAuthorized => not_allowed(&format!("to {topic}: {error}")),
            _ => SinkError::Abort(format!("cannot write to {topic}: {error}")),
        })
    }

    /// Lets librdkafka report failures of earlier records.
    pub fn poll(&self) {
        self.producer.poll(Duration::ZERO);
    }

    /// Commits the sent records together with the input offsets and their metadata. Without transactions, waits until the records are
    /// written and then commits the offsets. Calls `meanwhile` only while a transaction waits for the brokers.
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
                        return Err(SinkError::Abort(
                            "cannot start a thread for the commit; check the thread and memory limits of this process".to_owned(),
                        ));
                    };
                    meanwhile(&|| done.is_done());
                    done.wait();
                    commit.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
            }
        };
        committed.map_err(|failure| self.explain(failure))
    }

    /// True if a record for a topic that `is_of` selects was not written when the last failure occurred. Records that their own topics
    /// rejected do not count.
    pub fn failed_to_deliver(&self, is_of: impl Fn(&str) -> bool) -> bool {
        self.undelivered.borrow().iter().any(|topic| is_of(topic))
    }

    fn why_ended(&self) -> SinkError {
        match self.producer.begin_transaction().as_ref().map_err(next) {
            Err(failure @ SinkError::Fenced(_)) => failure,
            // Without transactions, `begin_transaction` fails for another reason, so its error is left out.
            Err(SinkError::Abort(why) | SinkError::Unknown(why) | SinkError::Exit(why)) if self.transactional() => {
                SinkError::Unknown(format!("the producer has failed: {why}"))
            }
            _ => SinkError::Unknown("the producer has failed".to_owned()),
        }
    }

    /// Returns the error of the open transaction, which has failed. librdkafka reports the error if the application tries to begin another
    /// transaction.
    fn why_failed(&self) -> SinkError {
        match self.producer.begin_transaction().as_ref().map_err(next) {
            Err(failure @ (SinkError::Abort(_) | SinkError::Exit(_))) => failure,
            Err(SinkError::Unknown(why) | SinkError::Fenced(why)) => SinkError::Abort(format!("the transaction has failed: {why}")),
            _ => SinkError::Abort("the transaction has failed".to_owned()),
        }
    }

    /// Replaces the failure of a call with its cause, if the delivery reports show it: a missing permission, rejected records, or a record
    /// that could not be written for another reason.
    fn explain(&self, failure: SinkError) -> SinkError {
        if !matches!(failure, SinkError::Abort(_) | SinkError::Exit(_)) {
            return failure;
        }
        // The error of the failed call does not contain the reason, but the delivery reports do.
        self.take_reports();
        self.collect_failures();
        let failures = self.failures.take();
        let other = failures.iter().filter(|failed| invalid(failed).is_none());
        *self.undelivered.borrow_mut() = other.map(|failed| failed.topic.clone()).collect();
        if let Some(failed) = failures.iter().find(|failed| failed.code == ErrorCode::NotAuthorized) {
            return not_allowed(&message(failed));
        }
        let refused: Vec<_> = failures.iter().filter_map(|failed| Some((failed, invalid(failed)?))).collect();
        if let Some((failed, invalid)) = refused.iter().find(|(failed, _)| WrittenFrom::of(failed.tag) == WrittenFrom::Changelog) {
            return SinkError::Exit(match invalid.reason {
                Reason::Oversize => {
                    format!("cannot write a changelog record {}; set max.message.bytes of that topic to at least 1000000", message(failed))
                }
                _ => format!(
                    "{}; set cleanup.policy=delete on this changelog topic, and check that this machine's clock is correct",
                    invalid.message
                ),
            });
        }
        let SinkError::Abort(reason) = failure else { return failure };
        if refused.is_empty() {
            return SinkError::Abort(
                failures
                    .into_iter()
                    .find(|failed| !is_given_up(failed.code))
                    .map_or(reason, |failed| format!("cannot write a record {}", message(&failed))),
            );
        }
        // A broker that rejects a whole batch reports the same message for each of its records. If all messages differ, the broker has
        // listed the rejected records.
        let words: BTreeSet<_> = refused.iter().map(|(failed, _)| &failed.reason).collect();
        let is_named = self.names_records() || refused.len() > 1 && words.len() == refused.len();
        let refused = refused.into_iter().filter_map(|(failed, invalid)| {
            let WrittenFrom::Read(origin) = WrittenFrom::of(failed.tag) else { return None };
            let is_certain = match invalid.reason {
                // A record of at least the maximum batch size was alone in its batch, so the record itself is too large.
                Reason::Oversize => failed.bytes >= self.batch_bytes,
                _ => is_named && !failed.reason.is_empty(),
            };
            Some(Refused { origin, topic: failed.topic.clone(), invalid, is_certain: self.one_record_per_batch || is_certain })
        });
        SinkError::Refused(refused.collect())
    }

    /// Waits until the brokers have accepted all sent records or until a record has failed.
    fn flush(&self) -> Result<(), SinkError> {
        let started = runtime::now();
        loop {
            // Waits are short, because after a rejected record, librdkafka may wait forever for records that it will not send.
            let flushed = self.producer.flush(FLUSH_INTERVAL);
            if self.collect_failures() && !fault::defect("failed_deliveries_ignored") {
                return Err(SinkError::Abort("a record could not be written".to_owned()));
            }
            if flushed {
                return Ok(());
            }
            if runtime::since(started) >= self.patience {
                return Err(SinkError::Unknown(format!("the brokers did not acknowledge all records within {:?}", self.patience)));
            }
        }
    }

    fn commit_transaction(&self, requests: &[&[OffsetToCommit]], group: Option<MembershipOf<B>>) -> Result<(), SinkError> {
        fault::step("commit.begin").map_err(SinkError::Abort)?;
        // A flush makes librdkafka send lingering records now, while this thread adds the offsets to the transaction.
        let _ = self.producer.flush(LINGER_WAIT);
        let group = group.ok_or_else(|| SinkError::Abort("the consumer is currently not a member of its group".to_owned()))?;
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
                ErrorCode::OffsetMetadataTooLarge => next(&error),
                _ => match error.missing_permission {
                    Some(right) => SinkError::Exit(format!("the brokers deny offset commits: {error}; give this user {right}")),
                    None => SinkError::Abort(format!("offset commit failed: {error}")),
                },
            })
        })
    }

    /// Repeats a call until it succeeds, fails permanently, or has been retried for two transaction timeouts.
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
                        throttle::report(&format!("writing {error}"), |suppressed| {
                            tracing::warn!(error = %error, suppressed, "a request to commit or abort the open transaction has not succeeded yet; retrying");
                        });
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Aborts the open transaction. Without transactions, drops the records that are still queued or in flight. Records that were already
    /// written stay.
    pub fn abort(&self) -> Result<(), SinkError> {
        fault::step("abort.begin").map_err(SinkError::Unknown)?;
        let aborted = if self.transactional() {
            self.abort_transaction(self.patience)
        } else {
            self.producer.purge();
            if self.producer.flush(self.patience) { Ok(()) } else { Err(SinkError::Unknown("records are still in flight".to_owned())) }
        };
        self.producer.take_failures();
        self.failures.borrow_mut().clear();
        match aborted {
            // The abort failed, so the transaction may still be open. `Unknown` makes the worker replace the producer, and initializing the
            // new producer ends the transaction.
            Err(SinkError::Abort(reason)) => Err(SinkError::Unknown(reason)),
            other => other,
        }
    }

    /// Aborts the open transaction. The producer must not be used afterward. If the brokers do not respond within ten seconds, the
    /// transaction stays open until they abort it after its timeout. Without transactions, this method does nothing.
    pub fn leave(&self) {
        if self.transactional()
            && let Err(failure) = self.abort_transaction(CALL_TIMEOUT)
        {
            tracing::debug!(?failure, "cannot abort the open transaction; the brokers abort it after its timeout");
        }
    }

    fn abort_transaction(&self, patience: Duration) -> Result<(), SinkError> {
        // librdkafka waits until the purged records are reported but reports them only when polled. So the call gets a short timeout and is
        // repeated with polls in between.
        let abort = || self.producer.abort_transaction(FLUSH_INTERVAL).inspect_err(|_| self.take_reports());
        Self::attempt_for(patience, abort).map_err(|error| next(&error))
    }

    /// Takes the delivery reports that are available or arrive within 50 ms.
    fn take_reports(&self) {
        // The result is not needed, because the next flush shows whether records are still in flight.
        let _ = self.producer.flush(FLUSH_INTERVAL);
    }

    /// Collects new delivery failures. Returns true if any delivery has failed since [`Sink::begin`] or since `explain` last took the
    /// failures.
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

/// True for records that failed only because other records failed.
const fn is_given_up(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::PurgedQueue | ErrorCode::PurgedInFlight | ErrorCode::OtherRecord)
}
