//! A producer that reports failed records and the offsets of records with a certain tag.
//!
//! Keeps the client, its topic handles, and its event queue. A record is never dropped silently: a failed record causes an error from
//! `send` or a call of `Reports::failed`.

use super::login::LoggedIn;
use super::queue::Queue;
use super::{GroupMetadata, Headers, TransactionError, millis, raw, text};
use crate::config::OAuth;
use rdkafka::bindings as rd;
use rdkafka::bindings::{rd_kafka_vtype_t as V, rd_kafka_vu_s__bindgen_ty_1 as U};
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::RDKafkaType;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::time::{Duration, Instant};

/// The longest time that a flush waits before it handles events.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const EVENTS_MAX: usize = 10_000;
/// Timeout of a request for a topic's partitions. The timeout is short, because each attempt to write to an unknown partition repeats the
/// request.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);
/// Time to wait for the last failure reports when the producer is dropped.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// A receiver of delivery reports and broker responses. Its methods may be called from any thread.
pub(in crate::kafka) trait Reports: ClientContext {
    /// The tag of records whose offsets are reported.
    const WATCHED: usize;
    /// Called when a record with the tag `WATCHED` was written.
    fn written(&self, topic: &str, partition: i32, offset: i64);
    fn failed(&self, undelivered: &Undelivered<'_>);
    /// Called when a broker answered a request, except for requests that set up a connection.
    fn answered(&self);
    /// Called when a request with an API key in [`OF_ONE_TRANSACTION`] was sent to a broker.
    fn request_sent(&self);
    /// Called when a broker answered a request with an API key in [`OF_ONE_TRANSACTION`]. librdkafka reports each answer twice, when the
    /// answer arrives and when librdkafka handles the answer, so an implementation must not count the calls.
    fn request_answered(&self);
}

pub(in crate::kafka) struct Undelivered<'a> {
    pub(in crate::kafka) tag: usize,
    pub(in crate::kafka) topic: &'a str,
    /// The size of the key and the value in bytes.
    pub(in crate::kafka) bytes: usize,
    pub(in crate::kafka) code: RDKafkaErrorCode,
    /// The broker's error message. Empty if the broker has not sent a message.
    pub(in crate::kafka) reason: &'a str,
}

pub(in crate::kafka) struct ProducerRecord<'a> {
    pub(in crate::kafka) topic: &'a str,
    pub(in crate::kafka) partition: Option<i32>,
    pub(in crate::kafka) key: Option<&'a [u8]>,
    pub(in crate::kafka) value: Option<&'a [u8]>,
    pub(in crate::kafka) timestamp: Timestamped,
    /// The headers. `send` takes ownership of them if it succeeds.
    pub(in crate::kafka) headers: Option<Headers>,
    /// A number that identifies the record in delivery reports.
    pub(in crate::kafka) tag: usize,
}

#[derive(Clone, Copy)]
pub(in crate::kafka) enum Timestamped {
    /// A fixed time, in milliseconds since the epoch.
    At(i64),
    /// The time of this machine's clock when librdkafka accepts the record.
    Now,
    Never,
}

impl Timestamped {
    /// Converts to librdkafka's representation. librdkafka takes 0 as "now", so the epoch itself becomes the next millisecond.
    const fn native(self) -> i64 {
        match self {
            Self::At(0) => 1,
            Self::At(time) => time,
            Self::Now => 0,
            Self::Never => -1,
        }
    }
}

/// A producer. Rust drops fields in declaration order. The client must be the last field, because librdkafka's topic handles and queues
/// must be destroyed before their client.
pub(in crate::kafka) struct Producer<C: Reports> {
    topics: RefCell<Vec<Topic>>,
    events: Queue,
    client: LoggedIn<Client<C>>,
}

struct Topic {
    name: String,
    handle: NonNull<rd::rd_kafka_topic_t>,
}

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: we own the handle, and nobody uses it after this call.
        unsafe { rd::rd_kafka_topic_destroy(self.handle.as_ptr()) }
    }
}

// SAFETY: any thread may use a topic handle.
unsafe impl Send for Topic {}

impl<C: Reports> Producer<C> {
    pub(in crate::kafka) fn new(config: &ClientConfig, oauth: Option<&OAuth>, context: C) -> Result<Self, KafkaError> {
        let mut config = config.clone();
        config.set("delivery.report.only.error", "true");
        let native = config.create_native_config()?;
        // SAFETY: the configuration is alive. librdkafka fulfills the contract of `created`.
        unsafe {
            rd::rd_kafka_conf_set_events(native.ptr(), rd::RD_KAFKA_EVENT_DR | rd::RD_KAFKA_EVENT_ERROR);
            rd::rd_kafka_conf_interceptor_add_on_new(native.ptr(), c"unseen".as_ptr(), Some(created::<C>), null_mut());
        }
        let client = LoggedIn::new(Client::new(&config, native, RDKafkaType::RD_KAFKA_PRODUCER, context)?, oauth);
        // SAFETY: the client is alive. We own the reference and drop it before the client.
        let events = unsafe { Queue::new(rd::rd_kafka_queue_get_main(client.native_ptr())) };
        let events = events.ok_or_else(|| KafkaError::ClientCreation("the producer has no queue".to_owned()))?;
        Ok(Self { topics: RefCell::default(), events, client })
    }

    pub(in crate::kafka) fn context(&self) -> &C {
        self.client.context()
    }

    #[expect(clippy::inline_always, reason = "a call would copy all fields of each written record twice")]
    #[inline(always)]
    pub(in crate::kafka) fn send(&self, record: &mut ProducerRecord<'_>) -> Result<(), RDKafkaErrorCode> {
        let topic = self.topic(record.topic)?;
        let mem = |bytes| {
            let (ptr, size) = raw(bytes);
            U { mem: rd::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1 { ptr, size } }
        };
        let headers = record.headers.as_ref().map_or(null_mut(), Headers::ptr);
        let field = |vtype, u| rd::rd_kafka_vu_t { vtype, u };
        let fields = [
            field(V::RD_KAFKA_VTYPE_RKT, U { rkt: topic }),
            field(V::RD_KAFKA_VTYPE_PARTITION, U { i32_: record.partition.unwrap_or(-1) }),
            field(V::RD_KAFKA_VTYPE_MSGFLAGS, U { i: rd::RD_KAFKA_MSG_F_COPY }),
            field(V::RD_KAFKA_VTYPE_VALUE, mem(record.value)),
            field(V::RD_KAFKA_VTYPE_KEY, mem(record.key)),
            field(V::RD_KAFKA_VTYPE_OPAQUE, U { ptr: std::ptr::without_provenance_mut(record.tag) }),
            field(V::RD_KAFKA_VTYPE_TIMESTAMP, U { i64_: record.timestamp.native() }),
            field(V::RD_KAFKA_VTYPE_HEADERS, U { headers }),
        ];
        // The headers are the last field. Leave the field out if the record has no headers.
        let count = fields.len() - usize::from(headers.is_null());
        // SAFETY: the client and the handle are alive. Each tag matches the union field that librdkafka reads for it. The key and the value
        // have the given lengths, and librdkafka copies them. We own the result.
        let answer = unsafe { TransactionError::check(rd::rd_kafka_produceva(self.client.native_ptr(), fields.as_ptr(), count)) };
        if let Err(error) = answer {
            if error.code == RDKafkaErrorCode::UnknownPartition {
                // The partition may be new. librdkafka stores the metadata that this request returns. Without the request, librdkafka would
                // learn about the partition only at its next periodic refresh.
                let _ = self.client.fetch_metadata(Some(record.topic), METADATA_TIMEOUT);
            }
            return Err(if error.is_fatal { RDKafkaErrorCode::Fatal } else { error.code });
        }
        // librdkafka owns the headers now.
        std::mem::forget(record.headers.take());
        Ok(())
    }

    /// Returns a topic's handle, which lives as long as the producer.
    fn topic(&self, name: &str) -> Result<*mut rd::rd_kafka_topic_t, RDKafkaErrorCode> {
        let mut topics = self.topics.borrow_mut();
        if let Some(topic) = topics.iter().find(|topic| topic.name == name) {
            return Ok(topic.handle.as_ptr());
        }
        let text = CString::new(name).map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
        // SAFETY: the client and the name are alive. With a null configuration, the topic uses the client's.
        let handle = NonNull::new(unsafe { rd::rd_kafka_topic_new(self.client.native_ptr(), text.as_ptr(), null_mut()) });
        let handle = handle.ok_or_else(last_error)?;
        topics.push(Topic { name: name.to_owned(), handle });
        Ok(handle.as_ptr())
    }

    /// Handles librdkafka's events. Waits up to `wait` for the first event.
    pub(in crate::kafka) fn poll(&self, wait: Duration) {
        let mut wait = wait;
        for _ in 0..EVENTS_MAX {
            // SAFETY: the queue is alive, and we own the result.
            let Some(event) = NonNull::new(unsafe { rd::rd_kafka_queue_poll(self.events.ptr(), millis(wait)) }) else { return };
            self.handle(event.as_ptr());
            // SAFETY: we own the event, and nobody uses it after this call.
            unsafe { rd::rd_kafka_event_destroy(event.as_ptr()) };
            wait = Duration::ZERO;
        }
    }

    fn handle(&self, event: *mut rd::rd_kafka_event_t) {
        let context = self.client.context();
        // SAFETY: everything that is read from the event lives until the caller destroys it.
        match unsafe { rd::rd_kafka_event_type(event) } {
            rd::RD_KAFKA_EVENT_LOG => {
                let (mut facility, mut line, mut level): (*const c_char, *const c_char, c_int) = (std::ptr::null(), std::ptr::null(), 0);
                // SAFETY: as above, and the three variables are writable.
                let (facility, line) = unsafe {
                    if rd::rd_kafka_event_log(event, &raw mut facility, &raw mut line, &raw mut level) != 0 {
                        return;
                    }
                    (text(facility), text(line))
                };
                context.log(severity(level), facility.trim(), line.trim());
            }
            rd::RD_KAFKA_EVENT_ERROR => {
                // SAFETY: as above.
                let (code, reason) = unsafe { (rd::rd_kafka_event_error(event), text(rd::rd_kafka_event_error_string(event))) };
                context.error(KafkaError::Global(code.into()), reason.trim());
            }
            // `acknowledged` has already handled the delivery reports. They must be taken from the queue anyway, because librdkafka counts
            // a record as delivered only then.
            _ => {}
        }
    }

    /// Handles events until all records are written or have failed. Returns `false` on a timeout.
    pub(in crate::kafka) fn flush(&self, timeout: Duration) -> bool {
        let began = Instant::now();
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            // The timeout is short, because a flush does not end until `poll` has taken the reports of failed records.
            // SAFETY: the client is alive.
            let answer = unsafe { rd::rd_kafka_flush(self.client.native_ptr(), millis(left.min(POLL_INTERVAL))) };
            self.poll(Duration::ZERO);
            if answer == rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    /// Drops all undelivered records and reports them as failed.
    pub(in crate::kafka) fn purge(&self) {
        // SAFETY: the client is alive. The call fails only for unknown flags.
        unsafe { rd::rd_kafka_purge(self.client.native_ptr(), rd::RD_KAFKA_PURGE_F_QUEUE | rd::RD_KAFKA_PURGE_F_INFLIGHT) };
    }

    pub(in crate::kafka) fn init_transactions(&self, timeout: Duration) -> Result<(), TransactionError> {
        // SAFETY: the client is alive, and we own the result.
        unsafe { TransactionError::check(rd::rd_kafka_init_transactions(self.client.native_ptr(), millis(timeout))) }
    }

    pub(in crate::kafka) fn begin_transaction(&self) -> Result<(), TransactionError> {
        // SAFETY: the client is alive, and we own the result.
        unsafe { TransactionError::check(rd::rd_kafka_begin_transaction(self.client.native_ptr())) }
    }

    pub(in crate::kafka) fn send_offsets(
        &self,
        offsets: &TopicPartitionList,
        group: &GroupMetadata,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        let client = self.client.native_ptr();
        // SAFETY: the client, the list, and the group are alive, and librdkafka only reads them. We own the result.
        unsafe { TransactionError::check(rd::rd_kafka_send_offsets_to_transaction(client, offsets.ptr(), group.ptr(), millis(timeout))) }
    }

    /// Commits the transaction. All of its records must have been flushed.
    pub(in crate::kafka) fn commit_transaction(&self, timeout: Duration) -> Result<(), TransactionError> {
        // SAFETY: the client is alive, and we own the result.
        unsafe { TransactionError::check(rd::rd_kafka_commit_transaction(self.client.native_ptr(), millis(timeout))) }
    }

    pub(in crate::kafka) fn abort_transaction(&self, timeout: Duration) -> Result<(), TransactionError> {
        // SAFETY: the client is alive, and we own the result.
        unsafe { TransactionError::check(rd::rd_kafka_abort_transaction(self.client.native_ptr(), millis(timeout))) }
    }
}

impl<C: Reports> Drop for Producer<C> {
    fn drop(&mut self) {
        self.purge();
        self.flush(END_TIMEOUT);
    }
}

/// Called by librdkafka while it creates a client. Registers callbacks for each request that is sent, each response, and each record that
/// was written or has failed. The callbacks may run on any thread, usually on a broker thread of librdkafka. Only these callbacks can read
/// the broker's error message.
unsafe extern "C" fn created<C: Reports>(
    client: *mut rd::rd_kafka_t,
    _: *const rd::rd_kafka_conf_t,
    _: *mut c_void,
    _: *mut c_char,
    _: usize,
) -> rd::rd_kafka_resp_err_t {
    // SAFETY: librdkafka calls this function with the client that it creates.
    unsafe {
        rd::rd_kafka_interceptor_add_on_request_sent(client, c"unseen".as_ptr(), Some(sent::<C>), null_mut());
        rd::rd_kafka_interceptor_add_on_response_received(client, c"unseen".as_ptr(), Some(responded::<C>), null_mut());
        rd::rd_kafka_interceptor_add_on_acknowledgement(client, c"unseen".as_ptr(), Some(acknowledged::<C>), null_mut())
    }
}

/// API keys of requests that set up a connection: `SaslHandshake`, `ApiVersions`, `SaslAuthenticate`. Answers to these requests do not
/// count as contact with a broker, because the broker may still reject the login.
const OF_CONNECTING: [i16; 3] = [17, 18, 36];

/// API keys of requests that would affect the next transaction if they arrived late: `EndTxn` and `TxnOffsetCommit`. During a transaction,
/// at most one such request is unanswered at a time, unless librdkafka sends a request again. So a request that is sent while another one
/// is unanswered is a repetition.
const OF_ONE_TRANSACTION: [i16; 2] = [26, 28];

unsafe extern "C" fn sent<C: Reports>(
    client: *mut rd::rd_kafka_t,
    _: c_int,
    _: *const c_char,
    _: i32,
    api: i16,
    _: i16,
    _: i32,
    _: usize,
    _: *mut c_void,
) -> rd::rd_kafka_resp_err_t {
    if OF_ONE_TRANSACTION.contains(&api) {
        // SAFETY: as in `acknowledged`.
        unsafe { &*rd::rd_kafka_opaque(client).cast::<C>() }.request_sent();
    }
    rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR
}

/// Called for each request that a broker answered, or that failed without an answer.
unsafe extern "C" fn responded<C: Reports>(
    client: *mut rd::rd_kafka_t,
    _: c_int,
    _: *const c_char,
    _: i32,
    api: i16,
    _: i16,
    _: i32,
    _: usize,
    _: i64,
    error: rd::rd_kafka_resp_err_t,
    _: *mut c_void,
) -> rd::rd_kafka_resp_err_t {
    let none = rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
    if error == none && !OF_CONNECTING.contains(&api) {
        // SAFETY: as in `acknowledged`.
        let context = unsafe { &*rd::rd_kafka_opaque(client).cast::<C>() };
        context.answered();
        if OF_ONE_TRANSACTION.contains(&api) {
            context.request_answered();
        }
    }
    none
}

/// Called for each record that was written or failed.
unsafe extern "C" fn acknowledged<C: Reports>(
    client: *mut rd::rd_kafka_t,
    message: *mut rd::rd_kafka_message_t,
    _: *mut c_void,
) -> rd::rd_kafka_resp_err_t {
    let none = rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
    // SAFETY: librdkafka keeps the message alive during this call.
    let message = unsafe { &*message };
    let tag = message._private.addr();
    if message.err == none && tag != C::WATCHED {
        return none;
    }
    // SAFETY: a `Client<C>` sets its context as librdkafka's opaque pointer and keeps the context until librdkafka's threads have ended.
    // Only shared references to the context exist.
    let context = unsafe { &*rd::rd_kafka_opaque(client).cast::<C>() };
    if message.err == none {
        context.written(&topic_of(message), message.partition, message.offset);
    } else {
        // SAFETY: the message belongs to a producer. Its text is null or lives as long as this call.
        let reason = unsafe { text(rd::rd_kafka_message_produce_errstr(message)) };
        let bytes = message.key_len + message.len;
        context.failed(&Undelivered { tag, topic: &topic_of(message), bytes, code: message.err.into(), reason: &reason });
    }
    none
}

fn topic_of(message: &rd::rd_kafka_message_t) -> std::borrow::Cow<'_, str> {
    if message.rkt.is_null() {
        return "".into();
    }
    // SAFETY: the message holds a reference to its topic, and the topic keeps its name.
    unsafe { text(rd::rd_kafka_topic_name(message.rkt)) }
}

fn last_error() -> RDKafkaErrorCode {
    // SAFETY: the call reads a thread-local variable.
    unsafe { rd::rd_kafka_last_error() }.into()
}

const fn severity(level: c_int) -> RDKafkaLogLevel {
    match level {
        ..=0 => RDKafkaLogLevel::Emerg,
        1 => RDKafkaLogLevel::Alert,
        2 => RDKafkaLogLevel::Critical,
        3 => RDKafkaLogLevel::Error,
        4 => RDKafkaLogLevel::Warning,
        5 => RDKafkaLogLevel::Notice,
        6 => RDKafkaLogLevel::Info,
        _ => RDKafkaLogLevel::Debug,
    }
}
