//! Produces records, as fast as possible or at a constant rate.

use super::topic::client;
use super::{PATIENCE, TestRecord};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use rdkafka::{ClientContext, Message};
use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub fn produce<R: Borrow<TestRecord>>(broker: &str, topic: &str, records: impl IntoIterator<Item = R>) {
    let producer = Idempotent::new(broker);
    for record in records {
        producer.send(topic, record.borrow());
    }
    producer.finish();
}

pub struct Feed {
    sent: Arc<AtomicUsize>,
    /// The number of records that the feed may send in total.
    allowed: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    pub fn start(broker: &str, topic: &str, records: Vec<TestRecord>, per_second: u32) -> Self {
        let feed = Self::start_gated(broker, topic, records, per_second);
        feed.allow(usize::MAX);
        feed
    }

    /// The same as [`Feed::start`], but the feed pauses when it has sent the number of records that [`Feed::allow`] permits. It sends whole
    /// bursts of `per_second / 100` records, so it may exceed that number by less than a burst.
    pub fn start_gated(broker: &str, topic: &str, records: Vec<TestRecord>, per_second: u32) -> Self {
        let (broker, topic) = (broker.to_owned(), topic.to_owned());
        let (sent, allowed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, gate) = (Arc::clone(&sent), Arc::clone(&allowed));
        let thread = std::thread::spawn(move || {
            let producer = Idempotent::new(&broker);
            let mut due = Instant::now();
            // The number of records that are due in 10 ms, rounded down, but at least one.
            let burst = (per_second / 100).max(1);
            for records in records.chunks(burst as usize) {
                while count.load(Ordering::Relaxed) >= gate.load(Ordering::Relaxed) {
                    producer.0.poll(Duration::from_millis(10));
                    due = Instant::now();
                }
                while let Some(early) = due.checked_duration_since(Instant::now()).filter(|early| !early.is_zero()) {
                    producer.0.poll(early.min(Duration::from_millis(10)));
                }
                for record in records {
                    producer.send(&topic, record);
                }
                count.fetch_add(records.len(), Ordering::Relaxed);
                due += Duration::from_secs(1) * burst / per_second;
            }
            producer.finish();
        });
        Self { sent, allowed, thread: Some(thread) }
    }

    /// Allows the feed to send `records` records in total. Does nothing if the feed is already allowed to send more.
    pub fn allow(&self, records: usize) {
        self.allowed.fetch_max(records, Ordering::Relaxed);
    }

    /// True if the feed has ended, because the broker has all records or because the feed has panicked.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The number of records that the feed has sent, including records that are still in the producer's queue.
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until the broker has all records. Panics if the feed has panicked.
    pub fn join(mut self) {
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // A failed test drops the feed without [`Feed::join`]. Without this call, the thread of a gated feed would then wait forever.
        self.allow(usize::MAX);
    }
}

/// An idempotent producer: its retries neither duplicate nor reorder records, unless a restarted broker has forgotten the producer.
struct Idempotent(BaseProducer<Failures>);

impl Idempotent {
    fn new(broker: &str) -> Self {
        let mut config = client(broker);
        config
            .set("enable.idempotence", "true")
            .set("compression.type", "lz4")
            .set("linger.ms", "20")
            .set("batch.num.messages", "10000")
            .set("queue.buffering.max.messages", "200000")
            // Some tests write records that are larger than librdkafka accepts by default.
            .set("message.max.bytes", "10000000");
        Self(config.create_with_context(Failures::default()).expect("a producer"))
    }

    fn send(&self, topic: &str, record: &TestRecord) {
        let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
        for (name, value) in &record.headers {
            headers = headers.insert(Header { key: name, value: value.as_deref() });
        }
        let mut out = BaseRecord::<[u8], [u8]>::to(topic).partition(record.partition).timestamp(record.timestamp).headers(headers);
        out.key = record.key.as_deref();
        out.payload = record.value.as_deref();
        while let Err((error, unsent)) = self.0.send(out) {
            assert!(error == KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), "a record cannot be produced: {error}");
            self.0.poll(Duration::from_millis(10));
            out = unsent;
        }
    }

    fn finish(self) {
        self.0.flush(2 * PATIENCE).expect("the broker takes all records");
        let failures = self.0.context().0.load(Ordering::Relaxed);
        assert!(failures == 0, "{failures} records did not reach the broker");
    }
}

#[derive(Default)]
struct Failures(AtomicUsize);

impl ClientContext for Failures {}

impl ProducerContext for Failures {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, message)) = result {
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            if number == 0 {
                eprintln!("{}[{}]: a record did not reach the broker: {error}", message.topic(), message.partition());
            }
        }
    }
}
