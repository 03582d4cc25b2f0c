//! Topic descriptions from the brokers: the topic id, which changes if the topic is recreated, and this user's permissions on the topic.
//!
//! Sends a new request each time and never caches the answer, because a topic may be recreated at any time.

use super::error::TransactionError;
use super::queue::Queue;
use super::{millis, text};
use rdkafka::bindings as rd;
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::ptr::NonNull;
use std::time::Duration;

/// A librdkafka object that we own.
struct Owned<T>(NonNull<T>, unsafe extern "C" fn(*mut T));

impl<T> Owned<T> {
    /// # Safety
    /// `made` is null or an object that we own, and `destroy` is its destructor.
    unsafe fn new(made: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Result<Self, RDKafkaErrorCode> {
        NonNull::new(made).map(|made| Self(made, destroy)).ok_or(RDKafkaErrorCode::Fail)
    }

    const fn ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: we own the object, and nobody uses it after this call.
        unsafe { (self.1)(self.ptr()) }
    }
}

pub(in crate::kafka) struct Described {
    /// The id, in the format of Kafka's tools. `None` with brokers before Kafka 2.8.
    pub(in crate::kafka) id: Option<String>,
    /// The operations that this user may perform, as numbers of Kafka's protocol. `None` if the brokers do not return them.
    operations: Option<Vec<u32>>,
}

/// An operation that an ACL can allow, with its number in Kafka's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kafka) enum Operation {
    Read = 3,
    Write = 4,
    Delete = 6,
}

impl Described {
    /// True if the brokers report that this user may not perform the operation.
    pub(in crate::kafka) fn denies(&self, operation: Operation) -> bool {
        self.operations.as_ref().is_some_and(|allowed| !allowed.contains(&(operation as u32)))
    }
}

/// Returns the ids of topics by name, in the format of Kafka's tools. Returns an error if a topic does not exist. Brokers before Kafka 2.8
/// return no ids.
pub(in crate::kafka) fn topic_ids<C: ClientContext>(
    client: &Client<C>,
    topics: &[&str],
    timeout: Duration,
) -> Result<BTreeMap<String, String>, RDKafkaErrorCode> {
    let described = describe_topics(client, topics, false, timeout)?;
    Ok(described.into_iter().filter_map(|(name, topic)| Some((name, topic.id?))).collect())
}

/// Describes topics, by name. Returns an error if a topic does not exist.
pub(in crate::kafka) fn describe_topics<C: ClientContext>(
    client: &Client<C>,
    topics: &[&str],
    with_operations: bool,
    timeout: Duration,
) -> Result<BTreeMap<String, Described>, RDKafkaErrorCode> {
    let Some(first) = topics.first() else { return Ok(BTreeMap::new()) };
    // Send the request to the broker that has just answered a metadata request. Every broker knows the ids, but without an explicit broker,
    // librdkafka would wait for the controller.
    let code = |error: KafkaError| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
    let broker = client.fetch_metadata(Some(first), timeout).map_err(code)?.orig_broker_id();
    let names: Vec<_> =
        topics.iter().map(|&name| CString::new(name)).collect::<Result<_, _>>().map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
    let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    let client = client.native_ptr();
    // SAFETY: the client outlives this function. Names and pointers live as long as librdkafka reads them. Each object is destroyed by its
    // own destructor, after everything that is needed from it was copied.
    unsafe {
        let asked = Owned::new(
            rd::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len()),
            rd::rd_kafka_TopicCollection_destroy,
        )?;
        let options = Owned::new(
            rd::rd_kafka_AdminOptions_new(client, rd::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS),
            rd::rd_kafka_AdminOptions_destroy,
        )?;
        let mut error: [c_char; 256] = [0; 256];
        rd::rd_kafka_AdminOptions_set_request_timeout(options.ptr(), millis(timeout), error.as_mut_ptr(), error.len());
        rd::rd_kafka_AdminOptions_set_broker(options.ptr(), broker, error.as_mut_ptr(), error.len());
        let error = rd::rd_kafka_AdminOptions_set_include_authorized_operations(options.ptr(), c_int::from(with_operations));
        TransactionError::check(error).map_err(|error| error.code)?;
        let queue = Queue::new(rd::rd_kafka_queue_new(client)).ok_or(RDKafkaErrorCode::Fail)?;
        rd::rd_kafka_DescribeTopics(client, asked.ptr(), options.ptr(), queue.ptr());
        // librdkafka answers within `timeout`, even if the brokers do not respond. The answer is then an error.
        let answer = Owned::new(rd::rd_kafka_queue_poll(queue.ptr(), millis(timeout * 2)), rd::rd_kafka_event_destroy)
            .map_err(|_| RDKafkaErrorCode::OperationTimedOut)?;
        let code: RDKafkaErrorCode = rd::rd_kafka_event_error(answer.ptr()).into();
        let result = rd::rd_kafka_event_DescribeTopics_result(answer.ptr());
        if code != RDKafkaErrorCode::NoError || result.is_null() {
            return Err(code);
        }
        let mut count = 0;
        let found = rd::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        let mut described = BTreeMap::new();
        for at in 0..count {
            let topic = *found.add(at);
            let error = rd::rd_kafka_TopicDescription_error(topic);
            if !error.is_null() && rd::rd_kafka_error_code(error) != rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                return Err(rd::rd_kafka_error_code(error).into());
            }
            let name = text(rd::rd_kafka_TopicDescription_name(topic)).into_owned();
            let id = rd::rd_kafka_TopicDescription_topic_id(topic);
            let is_zero = (rd::rd_kafka_Uuid_most_significant_bits(id), rd::rd_kafka_Uuid_least_significant_bits(id)) == (0, 0);
            let id = (!is_zero).then(|| text(rd::rd_kafka_Uuid_base64str(id)).into_owned());
            let mut count = 0;
            // The pointer is null if the brokers did not return operations. The operations are read as numbers, because brokers may return
            // operations that the Rust enum of the bindings does not have.
            let operations = rd::rd_kafka_TopicDescription_authorized_operations(topic, &raw mut count).cast::<u32>();
            let operations = (!operations.is_null()).then(|| (0..count).map(|at| *operations.add(at)).collect());
            described.insert(name, Described { id, operations });
        }
        Ok(described)
    }
}
