//! A producer that hears of failures, and of the records that it watches.
//!
//! Owns the client, the handles of the topics that it writes to, and what it hears. Must never give up
//! a record in silence.

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

/// Whether it hears of a failure, or waits for nothing to be on its way, is looked at so often.
const TURN: Duration = Duration::from_millis(10);
/// Most news that are taken at a time.
const NEWS_MAX: usize = 10_000;
/// How long the brokers may take to say which partitions a topic has. Each attempt to write asks again.
const METADATA_PATIENCE: Duration = Duration::from_secs(1);
/// How long the last failures may take when it ends.
const END_PATIENCE: Duration = Duration::from_millis(500);

/// What becomes of records. Called by any thread.
pub(in crate::kafka) trait Reports: ClientContext {
    /// The tag of records whose place is to be reported.
    const WATCHED: usize;
    /// A watched record was written there.
    fn written(&self, topic: &str, partition: i32, offset: i64);
    /// A record was not written.
    fn failed(&self, undelivered: &Undelivered<'_>);
    /// A broker answered a request, except for those by which a client connects.
    fn answered(&self);
    /// A request of [`OF_ONE_TRANSACTION`] was sent to a broker.
    fn request_sent(&self);
    /// A broker answered a request of [`OF_ONE_TRANSACTION`]. librdkafka reports each answer twice: when it comes, and when it
    /// is handled.
    fn request_answered(&self);
}

/// A record that was not written.
pub(in crate::kafka) struct Undelivered<'a> {
    pub(in crate::kafka) tag: usize,
    pub(in crate::kafka) topic: &'a str,
    /// Of key and value.
    pub(in crate::kafka) bytes: usize,
    pub(in crate::kafka) code: RDKafkaErrorCode,
    /// The broker's own words, if it had any.
    pub(in crate::kafka) reason: &'a str,
}

/// A record to be written.
pub(in crate::kafka) struct ProducerRecord<'a> {
    pub(in crate::kafka) topic: &'a str,
    pub(in crate::kafka) partition: Option<i32>,
    pub(in crate::kafka) key: Option<&'a [u8]>,
    pub(in crate::kafka) value: Option<&'a [u8]>,
    pub(in crate::kafka) timestamp: Timestamped,
    /// Taken when the record is.
    pub(in crate::kafka) headers: Option<Headers>,
    /// What reports will name it by.
    pub(in crate::kafka) tag: usize,
}

/// The time of a record.
#[derive(Clone, Copy)]
pub(in crate::kafka) enum Timestamped {
    /// This one, in milliseconds.
    At(i64),
    /// That of this machine's clock when librdkafka takes it.
    Now,
    /// It has none.
    Never,
}

impl Timestamped {
    /// As librdkafka takes it: 0 is "now" to it, so that the epoch itself becomes the next millisecond.
    const fn native(self) -> i64 {
        match self {
            Self::At(0) => 1,
            Self::At(time) => time,
            Self::Now => 0,
            Self::Never => -1,
        }
    }
}

/// A producer. Fields are dropped in this order.
pub(in crate::kafka) struct Producer<C: Reports> {
    topics: RefCell<Vec<Topic>>,
    news: Queue,
    client: LoggedIn<Client<C>>,
}

/// A topic's handle.
struct Topic {
    name: String,
    handle: NonNull<rd::rd_kafka_topic_t>,
}

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and this is its end.
        unsafe { rd::rd_kafka_topic_destroy(self.handle.as_ptr()) }
    }
}

// SAFETY: a topic's handle may be used by any thread.
unsafe impl Send for Topic {}

impl<C: Reports> Producer<C> {
    /// A producer that has talked to no broker yet.
    pub(in crate::kafka) fn new(config: &ClientConfig, oauth: Option<&OAuth>, context: C) -> Result<Self, KafkaError> {
        let mut config = config.clone();
        config.set("delivery.report.only.error", "true");
        let native = config.create_native_config()?;
        // SAFETY: the configuration lives. What `created` asks of its caller, librdkafka keeps.
        unsafe {
            rd::rd_kafka_conf_set_events(native.ptr(), rd::RD_KAFKA_EVENT_DR | rd::RD_KAFKA_EVENT_ERROR);
            rd::rd_kafka_conf_interceptor_add_on_new(native.ptr(), c"unseen".as_ptr(), Some(created::<C>), null_mut());
        }
        let client = LoggedIn::new(Client::new(&config, native, RDKafkaType::RD_KAFKA_PRODUCER, context)?, oauth);
        // SAFETY: the client lives; the reference is ours, and is dropped before it.
        let news = unsafe { Queue::new(rd::rd_kafka_queue_get_main(client.native_ptr())) };
        let news = news.ok_or_else(|| KafkaError::ClientCreation("the producer has no queue".to_owned()))?;
        Ok(Self { topics: RefCell::default(), news, client })
    }

    /// What it reports to.
    pub(in crate::kafka) fn context(&self) -> &C {
        self.client.context()
    }

    /// Puts a record into librdkafka's queue, which copies it.
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
        // None is the last.
        let count = fields.len() - usize::from(headers.is_null());
        // SAFETY: client and handle live. Each tag is beside the field that librdkafka reads for it. Key and value are as
        // long as that says, and are copied. The answer is ours.
        let answer = unsafe { TransactionError::check(rd::rd_kafka_produceva(self.client.native_ptr(), fields.as_ptr(), count)) };
        if let Err(error) = answer {
            if error.code == RDKafkaErrorCode::UnknownPartition {
                // It was added recently. librdkafka stores the answer; without this request, it would refresh minutes later.
                let _ = self.client.fetch_metadata(Some(record.topic), METADATA_PATIENCE);
            }
            return Err(if error.is_fatal { RDKafkaErrorCode::Fatal } else { error.code });
        }
        // librdkafka has them now.
        std::mem::forget(record.headers.take());
        Ok(())
    }

    /// A topic's handle, which lives as long as this.
    fn topic(&self, name: &str) -> Result<*mut rd::rd_kafka_topic_t, RDKafkaErrorCode> {
        let mut topics = self.topics.borrow_mut();
        if let Some(topic) = topics.iter().find(|topic| topic.name == name) {
            return Ok(topic.handle.as_ptr());
        }
        let text = CString::new(name).map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
        // SAFETY: client and name live; without a configuration of its own, the topic has the client's.
        let handle = NonNull::new(unsafe { rd::rd_kafka_topic_new(self.client.native_ptr(), text.as_ptr(), null_mut()) });
        let handle = handle.ok_or_else(last_error)?;
        topics.push(Topic { name: name.to_owned(), handle });
        Ok(handle.as_ptr())
    }

    /// Takes what librdkafka reports, waiting for the first of it.
    pub(in crate::kafka) fn poll(&self, wait: Duration) {
        let mut wait = wait;
        for _ in 0..NEWS_MAX {
            // SAFETY: the queue lives; what it answers is ours.
            let Some(event) = NonNull::new(unsafe { rd::rd_kafka_queue_poll(self.news.ptr(), millis(wait)) }) else { return };
            self.handle(event.as_ptr());
            // SAFETY: it is ours, and this is its end.
            unsafe { rd::rd_kafka_event_destroy(event.as_ptr()) };
            wait = Duration::ZERO;
        }
    }

    fn handle(&self, event: *mut rd::rd_kafka_event_t) {
        let context = self.client.context();
        // SAFETY: all that is asked of the event lives until the caller destroys it.
        match unsafe { rd::rd_kafka_event_type(event) } {
            rd::RD_KAFKA_EVENT_LOG => {
                let (mut facility, mut line, mut level): (*const c_char, *const c_char, c_int) = (std::ptr::null(), std::ptr::null(), 0);
                // SAFETY: as above; the places are there to be written to.
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
            // What became of records was reported when the broker said it; that they are through must only be taken.
            _ => {}
        }
    }

    /// Waits until no record is on its way, and takes news meanwhile. Returns whether that was in time.
    pub(in crate::kafka) fn flush(&self, timeout: Duration) -> bool {
        let began = Instant::now();
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            // Of those that failed, librdkafka waits for us to take the news.
            // SAFETY: the client lives.
            let answer = unsafe { rd::rd_kafka_flush(self.client.native_ptr(), millis(left.min(TURN))) };
            self.poll(Duration::ZERO);
            if answer == rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    /// Gives up all records that are on their way; they are reported as failures.
    pub(in crate::kafka) fn purge(&self) {
        // SAFETY: the client lives. It refuses only flags that it does not know.
        unsafe { rd::rd_kafka_purge(self.client.native_ptr(), rd::RD_KAFKA_PURGE_F_QUEUE | rd::RD_KAFKA_PURGE_F_INFLIGHT) };
    }

    pub(in crate::kafka) fn init_transactions(&self, timeout: Duration) -> Result<(), TransactionError> {
        // SAFETY: the client lives; the answer is ours.
        unsafe { TransactionError::check(rd::rd_kafka_init_transactions(self.client.native_ptr(), millis(timeout))) }
    }

    pub(in crate::kafka) fn begin_transaction(&self) -> Result<(), TransactionError> {
        // SAFETY: the client lives; the answer is ours.
        unsafe { TransactionError::check(rd::rd_kafka_begin_transaction(self.client.native_ptr())) }
    }

    pub(in crate::kafka) fn send_offsets(
        &self,
        offsets: &TopicPartitionList,
        group: &GroupMetadata,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        let client = self.client.native_ptr();
        // SAFETY: client, list and group live, and are only read; the answer is ours.
        unsafe { TransactionError::check(rd::rd_kafka_send_offsets_to_transaction(client, offsets.ptr(), group.ptr(), millis(timeout))) }
    }

    /// Commits what was sent and flushed.
    pub(in crate::kafka) fn commit_transaction(&self, timeout: Duration) -> Result<(), TransactionError> {
        // SAFETY: the client lives; the answer is ours.
        unsafe { TransactionError::check(rd::rd_kafka_commit_transaction(self.client.native_ptr(), millis(timeout))) }
    }

    pub(in crate::kafka) fn abort_transaction(&self, timeout: Duration) -> Result<(), TransactionError> {
        // SAFETY: the client lives; the answer is ours.
        unsafe { TransactionError::check(rd::rd_kafka_abort_transaction(self.client.native_ptr(), millis(timeout))) }
    }
}

impl<C: Reports> Drop for Producer<C> {
    fn drop(&mut self) {
        self.purge();
        self.flush(END_PATIENCE);
    }
}

/// Called while a client is made: asks to hear of each answer of a broker, and of each record that was written or
/// refused, by the thread that hears of it. Only there do the broker's words on a refused record still exist.
unsafe extern "C" fn created<C: Reports>(
    client: *mut rd::rd_kafka_t,
    _: *const rd::rd_kafka_conf_t,
    _: *mut c_void,
    _: *mut c_char,
    _: usize,
) -> rd::rd_kafka_resp_err_t {
    // SAFETY: librdkafka calls this with the client that it makes.
    unsafe {
        rd::rd_kafka_interceptor_add_on_request_sent(client, c"unseen".as_ptr(), Some(sent::<C>), null_mut());
        rd::rd_kafka_interceptor_add_on_response_received(client, c"unseen".as_ptr(), Some(responded::<C>), null_mut());
        rd::rd_kafka_interceptor_add_on_acknowledgement(client, c"unseen".as_ptr(), Some(acknowledged::<C>), null_mut())
    }
}

/// Requests by which a client connects: `SaslHandshake`, `ApiVersions`, `SaslAuthenticate`. A broker that answers these may yet
/// let nobody in.
const OF_CONNECTING: [i16; 3] = [17, 18, 36];

/// Requests that would act on the next transaction if they came too late: `EndTxn` and `TxnOffsetCommit`. A transaction sends
/// them one after the other.
const OF_ONE_TRANSACTION: [i16; 2] = [26, 28];

/// Called for each request once it was sent.
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

/// Called for each request that a broker answered, and for each that none did.
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

/// Called for each record that was written, or was not.
unsafe extern "C" fn acknowledged<C: Reports>(
    client: *mut rd::rd_kafka_t,
    message: *mut rd::rd_kafka_message_t,
    _: *mut c_void,
) -> rd::rd_kafka_resp_err_t {
    let none = rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
    // SAFETY: librdkafka lends the message for the time of this call.
    let message = unsafe { &*message };
    let tag = message._private.addr();
    if message.err == none && tag != C::WATCHED {
        return none;
    }
    // SAFETY: a `Client<C>` makes its context librdkafka's opaque, keeps it until librdkafka's threads have ended,
    // and shares it: nobody has it for himself.
    let context = unsafe { &*rd::rd_kafka_opaque(client).cast::<C>() };
    if message.err == none {
        context.written(&topic_of(message), message.partition, message.offset);
    } else {
        // SAFETY: the message is a producer's; its text is null, or lives as long as this call.
        let reason = unsafe { text(rd::rd_kafka_message_produce_errstr(message)) };
        let bytes = message.key_len + message.len;
        context.failed(&Undelivered { tag, topic: &topic_of(message), bytes, code: message.err.into(), reason: &reason });
    }
    none
}

/// The name of a message's topic.
fn topic_of(message: &rd::rd_kafka_message_t) -> std::borrow::Cow<'_, str> {
    if message.rkt.is_null() {
        return "".into();
    }
    // SAFETY: the message holds a reference to its topic, and that has its name for life.
    unsafe { text(rd::rd_kafka_topic_name(message.rkt)) }
}

fn last_error() -> RDKafkaErrorCode {
    // SAFETY: asks for this thread's own.
    unsafe { rd::rd_kafka_last_error() }.into()
}

/// Syslog's numbers.
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
