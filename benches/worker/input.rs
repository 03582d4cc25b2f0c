//! Reads a topic with librdkafka's batch call: the minimum cost of reading.

#![allow(unsafe_code)]

use rdkafka::bindings as rd;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::topic_partition_list::Offset;
use rdkafka::{ClientConfig, TopicPartitionList};
use std::ffi::CString;
use std::ptr::null_mut;
use std::time::Duration;

const BATCH: usize = 1024;

pub fn client(address: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", address);
    client
}

/// A consumer and the queue that receives the messages of its partitions.
pub struct Input {
    queue: *mut rd::rd_kafka_queue_t,
    messages: Vec<*mut rd::rd_kafka_message_t>,
    consumer: BaseConsumer,
}

// SAFETY: librdkafka's handles may be used from any thread. This type owns them, and one thread uses it at a time.
unsafe impl Send for Input {}

impl Input {
    /// Reads the committed records of all partitions of a topic, starting at `start`. The client does not join `group`, but librdkafka
    /// requires a group name. If `ends` is true, the end of a partition is reported as a message for which [`is_end`] returns true.
    pub fn open(broker: &str, topic: &str, partitions: i32, start: Offset, group: &str, ends: bool) -> Self {
        let mut client = client(broker);
        client.set("group.id", group).set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        client.set("isolation.level", "read_committed").set("fetch.queue.backoff.ms", "5").set("enable.partition.eof", ends.to_string());
        let consumer: BaseConsumer = client.create().expect("a consumer");
        let mut list = TopicPartitionList::new();
        let name = CString::new(topic).expect("a name");
        // SAFETY: the client lives as long as this value, which destroys the queue in `drop`. The loop below destroys its references to
        // the queues of partitions.
        let queue = unsafe { rd::rd_kafka_queue_new(consumer.client().native_ptr()) };
        for number in 0..partitions {
            list.add_partition_offset(topic, number, start).expect("an offset");
            // SAFETY: as above.
            unsafe {
                let partition = rd::rd_kafka_queue_get_partition(consumer.client().native_ptr(), name.as_ptr(), number);
                rd::rd_kafka_queue_forward(partition, queue);
                rd::rd_kafka_queue_destroy(partition);
            }
        }
        consumer.assign(&list).expect("the partitions exist");
        Self { queue, messages: vec![null_mut(); BATCH], consumer }
    }

    /// Returns the available messages, at most `BATCH`. If no message is available, waits up to 100 ms for one message.
    pub fn take(&mut self) -> Messages<'_> {
        for (wait, room) in [(0, BATCH), (100, 1)] {
            // SAFETY: the queue lives, and the buffer has room for `room` messages.
            let count = unsafe { rd::rd_kafka_consume_batch_queue(self.queue, wait, self.messages.as_mut_ptr(), room) };
            if count > 0 {
                return Messages(&self.messages[..count.unsigned_abs()]);
            }
            self.consumer.poll(Duration::ZERO);
        }
        Messages(&[])
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // SAFETY: the queue is not used any more, and the client is destroyed after it.
        unsafe { rd::rd_kafka_queue_destroy(self.queue) }
    }
}

/// Messages that are owned by this value until it is dropped.
pub struct Messages<'a>(&'a [*mut rd::rd_kafka_message_t]);

impl Messages<'_> {
    pub fn iter(&self) -> impl Iterator<Item = &rd::rd_kafka_message_t> {
        // SAFETY: the messages live as long as this value.
        self.0.iter().map(|&message| unsafe { &*message })
    }
}

impl Drop for Messages<'_> {
    fn drop(&mut self) {
        for &message in self.0 {
            // SAFETY: the message is owned by this value and destroyed once.
            unsafe { rd::rd_kafka_message_destroy(message) }
        }
    }
}

pub fn key(message: &rd::rd_kafka_message_t) -> &[u8] {
    if message.key.is_null() {
        return &[];
    }
    // SAFETY: librdkafka sets the pointer and the length, and the key lives as long as the message.
    unsafe { std::slice::from_raw_parts(message.key.cast(), message.key_len) }
}

/// The time of a message, in milliseconds since the epoch.
pub fn time(message: &rd::rd_kafka_message_t) -> i64 {
    let mut kind = rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
    // SAFETY: the message lives.
    unsafe { rd::rd_kafka_message_timestamp(message, &raw mut kind) }
}

/// True if the message only marks the end of a partition.
///
/// # Panics
/// Panics if the message reports any other error.
pub fn is_end(message: &rd::rd_kafka_message_t) -> bool {
    match message.err {
        rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => false,
        rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__PARTITION_EOF => true,
        error => panic!("reading failed: {error:?}"),
    }
}
