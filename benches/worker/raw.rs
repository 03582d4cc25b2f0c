//! The minimum cost of Kafka: a separate process that only makes librdkafka's own calls and exits when it receives a signal.

#![allow(unsafe_code)]

use crate::input::{self, Input, client};
use rdkafka::TopicPartitionList;
use rdkafka::bindings as rd;
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::topic_partition_list::Offset;
use std::ffi::CString;
use std::io::Write;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Number of records between two progress reports.
const STEP: usize = 20_000;

#[derive(clap::Args)]
pub struct Arguments {
    #[arg(long)]
    pub broker: String,
    #[arg(long)]
    pub topic: String,
    #[arg(long)]
    pub partitions: i32,
    #[arg(long)]
    pub group: String,
    /// Topic for forwarded records. Without it, records are only read.
    #[arg(long)]
    pub output: Option<String>,
    /// Number of records per forwarded record.
    #[arg(long, default_value_t = 1)]
    pub every: usize,
    #[arg(long, default_value_t = 1000)]
    pub commit_ms: u64,
}

pub fn work(arguments: &Arguments) {
    let Arguments { broker, topic, partitions, group, .. } = arguments;
    let input = Input::open(broker, topic, *partitions, Offset::Beginning, group, false);
    match &arguments.output {
        None => consume(input),
        Some(output) => pass_on(input, arguments, output),
    }
}

fn consume(mut input: Input) {
    let (mut read, mut told) = (0, 0);
    loop {
        let count = input.take().iter().count();
        read += count;
        if read >= told + STEP || (count == 0 && read > told) {
            told = read;
            let mut stdout = std::io::stdout().lock();
            writeln!(stdout, "{read}").and_then(|()| stdout.flush()).expect("stdout is open");
        }
    }
}

fn pass_on(mut input: Input, arguments: &Arguments, output: &str) {
    let mut client = client(&arguments.broker);
    // The same value as `Delivery::linger` in the worker. This program does not link the worker's crate, because it should contain only
    // librdkafka.
    let linger = (arguments.commit_ms / 4).min(arguments.partitions.unsigned_abs().into()).clamp(5, 250).to_string();
    client.set("transactional.id", output).set("linger.ms", linger).set("compression.type", "lz4").set("batch.size", "1000000");
    client.set("queue.buffering.max.messages", "1000000").set("queue.buffering.max.kbytes", "262144");
    let producer: BaseProducer = client.set("delivery.report.only.error", "true").create().expect("a producer");
    producer.init_transactions(Duration::from_secs(30)).expect("a coordinator");
    let native = producer.client().native_ptr();
    let name = CString::new(output).expect("a name");
    // SAFETY: the client lives as long as this process, and so does the handle.
    let topic = unsafe { rd::rd_kafka_topic_new(native, name.as_ptr(), null_mut()) };
    let (mut read, mut begun) = (0, None::<Instant>);
    let mut positions = vec![0; arguments.partitions.unsigned_abs() as usize];
    loop {
        let messages = input.take();
        for message in messages.iter() {
            begun.get_or_insert_with(|| {
                producer.begin_transaction().expect("the transaction begins");
                Instant::now()
            });
            positions[usize::try_from(message.partition).expect("a number")] = message.offset + 1;
            if read % arguments.every == 0 {
                // SAFETY: the topic and the client are alive.
                unsafe { pass(native, topic, message) }
            }
            read += 1;
        }
        if begun.is_some_and(|begun| begun.elapsed() >= Duration::from_millis(arguments.commit_ms)) {
            commit(&producer, arguments, &positions);
            begun = None;
        }
    }
}

/// Produces a message unchanged, including its headers.
unsafe fn pass(native: *mut rd::rd_kafka_t, topic: *mut rd::rd_kafka_topic_t, message: &rd::rd_kafka_message_t) {
    use rd::rd_kafka_vtype_t as V;
    let mut headers = null_mut();
    // SAFETY: the caller guarantees that all pointers are valid. Each tag is followed by the value that librdkafka reads for it. After the
    // call, librdkafka owns the headers again, if there are any.
    let answer = unsafe {
        rd::rd_kafka_message_detach_headers(std::ptr::from_ref(message).cast_mut(), &raw mut headers);
        rd::rd_kafka_producev(
            native,
            V::RD_KAFKA_VTYPE_RKT,
            topic,
            V::RD_KAFKA_VTYPE_PARTITION,
            message.partition,
            V::RD_KAFKA_VTYPE_MSGFLAGS,
            rd::RD_KAFKA_MSG_F_COPY,
            V::RD_KAFKA_VTYPE_KEY,
            message.key,
            message.key_len,
            V::RD_KAFKA_VTYPE_VALUE,
            message.payload,
            message.len,
            V::RD_KAFKA_VTYPE_TIMESTAMP,
            input::time(message),
            V::RD_KAFKA_VTYPE_HEADERS,
            headers,
            V::RD_KAFKA_VTYPE_END,
        )
    };
    assert!(answer == rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR, "not produced: {answer:?}");
}

fn commit(producer: &BaseProducer, arguments: &Arguments, positions: &[i64]) {
    let mut list = TopicPartitionList::new();
    for (number, &position) in (0..).zip(positions) {
        list.add_partition_offset(&arguments.topic, number, Offset::Offset(position)).expect("an offset");
    }
    let (native, group) = (producer.client().native_ptr(), CString::new(arguments.group.as_str()).expect("a name"));
    // SAFETY: the client, the list, and the group are alive during the calls. Sending offsets and committing return null if they succeed.
    unsafe {
        let group = rd::rd_kafka_consumer_group_metadata_new(group.as_ptr());
        assert!(rd::rd_kafka_send_offsets_to_transaction(native, list.ptr(), group, 10_000).is_null(), "sending offsets failed");
        assert!(rd::rd_kafka_commit_transaction(native, 10_000).is_null(), "the commit failed");
        rd::rd_kafka_consumer_group_metadata_destroy(group);
    }
}
