//! The least that Kafka costs: librdkafka's own calls, and nothing else.

#![allow(unsafe_code)]

use super::broker::{Broker, PARTITIONS, TOPIC};
use super::{Clock, Cost};
use rdkafka::TopicPartitionList;
use rdkafka::bindings as rd;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::topic_partition_list::Offset;
use std::ffi::CString;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const BATCH: usize = 1024;

/// A consumer, and the queue that its partitions are forwarded to.
struct Input {
    queue: *mut rd::rd_kafka_queue_t,
    messages: Vec<*mut rd::rd_kafka_message_t>,
    group: String,
    consumer: BaseConsumer,
}

impl Input {
    fn open(broker: &Broker) -> Self {
        let group = broker.new_name("ceiling");
        let mut client = broker.client();
        client.set("group.id", &group).set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        let consumer: BaseConsumer =
            client.set("isolation.level", "read_committed").set("fetch.queue.backoff.ms", "5").create().expect("a consumer");
        let mut list = TopicPartitionList::new();
        let name = CString::new(TOPIC).expect("a name");
        // SAFETY: the client lives until `close`, which destroys the queue; references to partitions are destroyed here.
        let queue = unsafe { rd::rd_kafka_queue_new(consumer.client().native_ptr()) };
        for number in 0..PARTITIONS {
            list.add_partition_offset(TOPIC, number, Offset::Beginning).expect("an offset");
            // SAFETY: as above.
            unsafe {
                let partition = rd::rd_kafka_queue_get_partition(consumer.client().native_ptr(), name.as_ptr(), number);
                rd::rd_kafka_queue_forward(partition, queue);
                rd::rd_kafka_queue_destroy(partition);
            }
        }
        consumer.assign(&list).expect("the partitions are there");
        Self { queue, messages: vec![null_mut(); BATCH], group, consumer }
    }

    /// Takes some messages; waits until there are any.
    fn take(&mut self) -> &[*mut rd::rd_kafka_message_t] {
        for wait in [0, 100].into_iter().cycle() {
            let room = if wait == 0 { BATCH } else { 1 };
            // SAFETY: the queue lives, and there is room for so many.
            let count = unsafe { rd::rd_kafka_consume_batch_queue(self.queue, wait, self.messages.as_mut_ptr(), room) };
            if count > 0 {
                return &self.messages[..count.unsigned_abs()];
            }
            self.consumer.poll(Duration::ZERO);
        }
        unreachable!("it goes on for ever")
    }

    fn close(self) {
        // SAFETY: it is used no more.
        unsafe { rd::rd_kafka_queue_destroy(self.queue) }
    }
}

/// Reads all records.
pub fn consume(broker: &Broker, records: usize) -> Cost {
    let mut input = Input::open(broker);
    let (mut read, mut clock) = (0, None);
    while read < records {
        let messages = input.take();
        if clock.is_none() {
            clock = Some((Clock::start(), messages.len()));
        }
        read += messages.len();
        for &message in messages {
            // SAFETY: it is ours.
            unsafe { rd::rd_kafka_message_destroy(message) }
        }
    }
    let (clock, before) = clock.expect("something was read");
    let cost = clock.stop(records - before);
    input.close();
    cost
}

/// Reads all records, and passes every second one on, in transactions.
pub fn pass_on(broker: &Broker, records: usize, commit_interval: Duration) -> Cost {
    let output = broker.new_name("out");
    broker.create(&output);
    let mut client = broker.client();
    client.set("transactional.id", &output).set("linger.ms", "5").set("compression.type", "lz4").set("batch.size", "1000000");
    client.set("queue.buffering.max.messages", "1000000").set("queue.buffering.max.kbytes", "262144");
    let producer: BaseProducer = client.set("delivery.report.only.error", "true").create().expect("a producer");
    producer.init_transactions(Duration::from_secs(30)).expect("a coordinator");
    let native = producer.client().native_ptr();
    let name = CString::new(output).expect("a name");
    // SAFETY: the client lives until the end of this, and the handle is destroyed before.
    let topic = unsafe { rd::rd_kafka_topic_new(native, name.as_ptr(), null_mut()) };
    let mut input = Input::open(broker);
    let (mut read, mut clock, mut begun) = (0, None, None::<Instant>);
    let mut positions = [0; PARTITIONS as usize];
    while read < records {
        begun.get_or_insert_with(|| {
            producer.begin_transaction().expect("it begins");
            Instant::now()
        });
        let messages = input.take();
        if clock.is_none() {
            clock = Some((Clock::start(), messages.len()));
        }
        for &message in messages {
            // SAFETY: the message is ours until it is destroyed here; topic and client live.
            unsafe {
                let at = &*message;
                positions[usize::try_from(at.partition).expect("a number")] = at.offset + 1;
                if read % 2 == 0 {
                    pass(native, topic, at);
                }
                rd::rd_kafka_message_destroy(message);
            }
            read += 1;
        }
        if begun.is_some_and(|begun| begun.elapsed() >= commit_interval) {
            commit(&producer, &input.group, &positions);
            begun = None;
        }
    }
    let (clock, before) = clock.expect("something was read");
    let cost = clock.stop(records - before);
    if begun.is_some() {
        commit(&producer, &input.group, &positions);
    }
    input.close();
    // SAFETY: it is used no more.
    unsafe { rd::rd_kafka_topic_destroy(topic) }
    cost
}

/// Produces a message as it was read.
unsafe fn pass(native: *mut rd::rd_kafka_t, topic: *mut rd::rd_kafka_topic_t, message: &rd::rd_kafka_message_t) {
    use rd::rd_kafka_vtype_t as V;
    let mut kind = rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
    // SAFETY: as promised by the caller; each tag is followed by what librdkafka reads for it.
    let answer = unsafe {
        rd::rd_kafka_producev(
            native,
            V::RD_KAFKA_VTYPE_RKT,
            topic,
            V::RD_KAFKA_VTYPE_PARTITION,
            message.partition,
            V::RD_KAFKA_VTYPE_MSGFLAGS,
            rd::RD_KAFKA_MSG_F_COPY,
            V::RD_KAFKA_VTYPE_VALUE,
            message.payload,
            message.len,
            V::RD_KAFKA_VTYPE_TIMESTAMP,
            rd::rd_kafka_message_timestamp(message, &raw mut kind),
            V::RD_KAFKA_VTYPE_END,
        )
    };
    assert!(answer == rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR, "not produced: {answer:?}");
}

fn commit(producer: &BaseProducer, group: &str, positions: &[i64]) {
    let mut list = TopicPartitionList::new();
    for (number, &position) in (0..).zip(positions) {
        list.add_partition_offset(TOPIC, number, Offset::Offset(position)).expect("an offset");
    }
    let (native, group) = (producer.client().native_ptr(), CString::new(group).expect("a name"));
    // SAFETY: client, list and group live; the answers are null, for all goes well.
    unsafe {
        let group = rd::rd_kafka_consumer_group_metadata_new(group.as_ptr());
        assert!(rd::rd_kafka_send_offsets_to_transaction(native, list.ptr(), group, 10_000).is_null(), "offsets are taken");
        assert!(rd::rd_kafka_commit_transaction(native, 10_000).is_null(), "it is committed");
        rd::rd_kafka_consumer_group_metadata_destroy(group);
    }
}
