//! The producer of a worker.
//!
//! Keeps delivery failures and the offsets of written changelog records until the worker takes them. The worker decides how to handle a
//! failure.

use super::client_config as client;
use super::client_log;
use super::ffi::{GroupMetadata, Headers, Message, Producer, ProducerRecord, Reports, Timestamped, TransactionError, Undelivered};
use super::security::{self, Login};
use super::{Error, KafkaBroker};
use crate::broker::{
    ClientError, DeliveryFailure, ErrorCode, HeaderChanges, OutgoingRecord, OutgoingTime, ProducerClient, ProducerOptions,
};
use crate::config::Config;
use crate::record::{Offset, TopicPartition};
use crate::stats::Stats;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as Position, TopicPartitionList};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Expected number of added headers. If there are more, librdkafka reallocates its list.
const ADDED_HEADERS: usize = 8;

/// Maximum number of failures to keep. The worker retries all records, so the next attempt shows further failures.
const FAILURES_MAX: usize = 10_000;

/// The start of librdkafka's message for a record that failed because another record of its batch was rejected.
const BYSTANDER: &str = "Failed to append record because it was part of a batch";

/// The producer of a worker or of `unseen dlq redrive`. Transactional if the given configuration has `delivery = "exactly_once"`, which a
/// redrive always sets.
pub struct KafkaProducer(Producer<Context>);

struct Context {
    login: Login,
    stats: Arc<Stats>,
    failures: Mutex<Vec<DeliveryFailure>>,
    /// Offsets of written changelog records, in write order.
    written: Mutex<BTreeMap<TopicPartition, Vec<Offset>>>,
    /// True if the last `TxnOffsetCommit` or `EndTxn` request is unanswered.
    is_unanswered: AtomicBool,
    /// True if a `TxnOffsetCommit` or `EndTxn` request was sent while an earlier request of either kind was unanswered.
    was_repeated: AtomicBool,
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
    const WATCHED: usize = 0;

    fn written(&self, topic: &str, partition: i32, offset: Offset) {
        // If a broker receives a batch twice, it does not report an offset for the second copy, so the offsets of its records are unknown.
        if offset < 0 {
            return;
        }
        let partition = TopicPartition { topic: topic.to_owned(), partition };
        self.written.lock().unwrap_or_else(PoisonError::into_inner).entry(partition).or_default().push(offset);
    }

    fn failed(&self, undelivered: &Undelivered<'_>) {
        let Undelivered { tag, topic, bytes, code, reason } = *undelivered;
        let is_bystander = code == RDKafkaErrorCode::InvalidDifferentRecord || reason.starts_with(BYSTANDER);
        let error = if is_bystander { ErrorCode::OtherRecord } else { error_code(code) };
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        // If a record fails, the other records of its batch and all queued records fail with it. These failures must not displace their
        // cause, so keep one of them only if the list is empty.
        let follows = matches!(error, ErrorCode::OtherRecord | ErrorCode::PurgedQueue | ErrorCode::PurgedInFlight);
        if failures.is_empty() || failures.len() < FAILURES_MAX && !follows {
            failures.push(DeliveryFailure {
                tag,
                topic: topic.to_owned(),
                bytes,
                code: error,
                error: KafkaError::MessageProduction(code).to_string(),
                reason: reason.to_owned(),
            });
        }
    }

    fn answered(&self) {
        self.stats.broker_contact.note();
    }

    fn request_sent(&self) {
        let is_repeated = self.is_unanswered.swap(true, Ordering::Relaxed);
        self.was_repeated.fetch_or(is_repeated, Ordering::Relaxed);
    }

    fn request_answered(&self) {
        self.is_unanswered.store(false, Ordering::Relaxed);
    }
}

pub(super) fn error_code(code: RDKafkaErrorCode) -> ErrorCode {
    use RDKafkaErrorCode as Code;
    match code {
        Code::TopicAuthorizationFailed => ErrorCode::NotAuthorized,
        Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch => ErrorCode::Fenced,
        Code::QueueFull => ErrorCode::QueueFull,
        Code::State => ErrorCode::State,
        Code::Fatal => ErrorCode::Fatal,
        Code::PurgeQueue => ErrorCode::PurgedQueue,
        Code::PurgeInflight => ErrorCode::PurgedInFlight,
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => ErrorCode::TooLarge,
        Code::InvalidRecord => ErrorCode::InvalidRecord,
        Code::InvalidTimestamp => ErrorCode::InvalidTimestamp,
        Code::OffsetMetadataTooLarge => ErrorCode::OffsetMetadataTooLarge,
        Code::InvalidCommitOffsetSize => ErrorCode::OffsetsTooLarge,
        Code::Unknown => ErrorCode::Unknown,
        _ => ErrorCode::Other,
    }
}

impl From<TransactionError> for ClientError {
    fn from(error: TransactionError) -> Self {
        Self {
            code: error_code(error.code),
            message: error.to_string(),
            missing_permission: security::missing_permission(error.code),
            is_fatal: error.is_fatal,
            is_retriable: error.may_repeat,
            requires_abort: error.must_abort,
        }
    }
}

impl KafkaProducer {
    pub(super) fn new(config: &Config, options: &ProducerOptions<'_>, stats: &Arc<Stats>) -> Result<Self, Error> {
        let &ProducerOptions { transactional_id, partitions, batch_bytes, one_record_per_batch } = options;
        let most = batch_bytes.min(client::BATCH_BYTES);
        let client = client::producer(config, transactional_id, partitions, most, one_record_per_batch.then_some(1));
        let (login, stats) = (Login::of(&config.kafka), Arc::clone(stats));
        let context = Context {
            login,
            stats,
            failures: Mutex::default(),
            written: Mutex::default(),
            is_unanswered: AtomicBool::new(false),
            was_repeated: AtomicBool::new(false),
        };
        Producer::new(&client, config.kafka.oauth.as_ref(), context).map(Self).map_err(|error| client::property_error(&error))
    }
}

impl ProducerClient<KafkaBroker> for KafkaProducer {
    fn init_transactions(&self, timeout: Duration) -> Result<(), ClientError> {
        Ok(self.0.init_transactions(timeout)?)
    }

    fn begin_transaction(&self) -> Result<(), ClientError> {
        Ok(self.0.begin_transaction()?)
    }

    #[inline]
    fn send<H: HeaderChanges>(&self, record: &OutgoingRecord<'_, Message<'_>, H>) -> Result<(), Box<ClientError>> {
        let &OutgoingRecord { topic, partition, key, value, time, headers, tag } = record;
        let headers = match headers {
            Some((message, changes)) => changed(message, changes)?,
            None => None,
        };
        let timestamp = match time {
            OutgoingTime::At(time) => Timestamped::At(time),
            OutgoingTime::Now => Timestamped::Now,
            OutgoingTime::Never => Timestamped::Never,
        };
        self.0
            .send(&mut ProducerRecord { topic, partition, key, value, timestamp, headers, tag })
            .map_err(|code| send_error(code, KafkaError::MessageProduction(code).to_string()))
    }

    fn poll(&self, wait: Duration) {
        self.0.poll(wait);
    }

    fn flush(&self, timeout: Duration) -> bool {
        self.0.flush(timeout)
    }

    fn purge(&self) {
        self.0.purge();
    }

    fn send_offsets(
        &self,
        offsets: &[(TopicPartition, Offset, String)],
        membership: &GroupMetadata,
        timeout: Duration,
    ) -> Result<(), ClientError> {
        let list = offset_list(offsets)?;
        Ok(self.0.send_offsets(&list, membership, timeout)?)
    }

    fn commit_transaction(&self, timeout: Duration) -> Result<(), ClientError> {
        Ok(self.0.commit_transaction(timeout)?)
    }

    fn abort_transaction(&self, timeout: Duration) -> Result<(), ClientError> {
        Ok(self.0.abort_transaction(timeout)?)
    }

    fn take_failures(&self) -> Vec<DeliveryFailure> {
        std::mem::take(&mut *self.0.context().failures.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take_written(&self) -> BTreeMap<TopicPartition, Vec<Offset>> {
        std::mem::take(&mut *self.0.context().written.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn has_late_request(&self) -> bool {
        let Context { is_unanswered, was_repeated, .. } = self.0.context();
        is_unanswered.load(Ordering::Relaxed) || was_repeated.load(Ordering::Relaxed)
    }
}

#[cold]
#[expect(clippy::unnecessary_box_returns, reason = "the hot path returns the boxed error, which keeps its result small")]
fn send_error(code: RDKafkaErrorCode, message: String) -> Box<ClientError> {
    let missing_permission = security::missing_permission(code);
    Box::new(ClientError {
        code: error_code(code),
        message,
        missing_permission,
        is_fatal: false,
        is_retriable: false,
        requires_abort: true,
    })
}

/// Copies a message's headers and applies the changes to the copy. If no headers are left, returns `None` or an empty list.
#[inline]
fn changed<H: HeaderChanges>(message: &Message<'_>, changes: &H) -> Result<Option<Headers>, Box<ClientError>> {
    let removed = changes.removed_positions();
    let mut headers = if removed.is_empty() { Headers::copied(message) } else { Headers::without(message, &removed) };
    if let Some(headers) = &mut headers {
        changes.removed().for_each(|name| headers.remove(name));
    }
    for (name, value) in changes.added() {
        if headers.is_none() {
            headers = Some(
                Headers::with_room(ADDED_HEADERS)
                    .ok_or_else(|| send_error(RDKafkaErrorCode::Fail, "librdkafka could not allocate headers".to_owned()))?,
            );
        }
        if let Some(headers) = &mut headers {
            headers.add(name.to_bytes(), Some(value));
        }
    }
    Ok(headers)
}

pub(super) fn offset_list(offsets: &[(TopicPartition, Offset, String)]) -> Result<TopicPartitionList, ClientError> {
    let mut list = TopicPartitionList::new();
    for (partition, offset, note) in offsets {
        let mut element = list.add_partition(&partition.topic, partition.partition);
        element.set_offset(Position::Offset(*offset)).map_err(|error| ClientError {
            code: ErrorCode::Other,
            message: format!("{partition} has an invalid offset: {error}"),
            missing_permission: None,
            is_fatal: true,
            is_retriable: false,
            requires_abort: false,
        })?;
        element.set_metadata(note);
    }
    Ok(list)
}
