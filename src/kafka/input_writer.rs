//! Records that are written to input topics, as any producer would write them.
//!
//! Owns how long a write may take, and who hears how it ended. Must never write in a transaction: what it writes is input.

use super::Error;
use super::client_config as client;
use super::ffi::LoggedIn;
use super::observer::{Complaint, Observer};
use crate::broker::throttle;
use crate::config::{Config, Partitioner};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use std::borrow::Cow;
use std::time::Duration;
use tokio::sync::oneshot::{Receiver, Sender, channel};

/// How a write ended; on failure, a sentence says why.
pub type Written = Result<(), String>;

/// A record to write.
#[derive(Clone, Debug)]
pub struct NewRecord<'r> {
    /// The topic.
    pub topic: &'r str,
    /// The record key. The producer chooses the partition by it, and compacted topics refuse records without one.
    pub key: Cow<'r, [u8]>,
    /// Its value.
    pub value: &'r [u8],
    /// Its headers.
    pub headers: Vec<(&'r str, &'r [u8])>,
}

/// Writes records.
pub struct InputWriter {
    producer: LoggedIn<ThreadedProducer<Deliveries>>,
}

impl std::fmt::Debug for InputWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InputWriter")
    }
}

impl InputWriter {
    /// Has written nothing yet, and puts records where other producers of this `partitioner` do.
    ///
    /// # Errors
    /// When librdkafka refuses the configuration.
    pub fn new(config: &Config, partitioner: Partitioner) -> Result<Self, Error> {
        let deliveries = Deliveries { observer: Observer::new(config) };
        let producer = client::create(&client::input_writer(config, partitioner), &config.kafka, deliveries);
        Ok(Self { producer: producer.map_err(|error| client::property_error(&error))? })
    }

    /// Begins to write a record. All replicas will have it once what is returned says so.
    ///
    /// # Errors
    /// A sentence, when it is not written.
    pub fn write(&self, record: &NewRecord<'_>) -> Result<Receiver<Written>, String> {
        let (done, written) = channel();
        let headers = record.headers.iter().fold(OwnedHeaders::new_with_capacity(record.headers.len()), |headers, (name, value)| {
            headers.insert(Header { key: name, value: Some(*value) })
        });
        let mut message = BaseRecord::with_opaque_to(record.topic, Box::new(done)).payload(record.value).headers(headers);
        message.key = Some(&*record.key);
        self.producer.send(message).map_err(|(error, _)| match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::QueueFull) => "too many writes are under way; try again".to_owned(),
            _ => self.producer.context().sentence(record.topic, &error),
        })?;
        Ok(written)
    }

    /// Waits until every write has ended, for at most `timeout`.
    ///
    /// # Errors
    /// The number of writes that have not.
    pub fn flush(&self, timeout: Duration) -> Result<(), i32> {
        self.producer.flush(timeout).map_err(|_| self.producer.in_flight_count())
    }
}

/// Tells each write how it ended.
struct Deliveries {
    observer: Observer,
}

impl Deliveries {
    /// What a client hears, who need not know how brokers are reached; the log says that.
    fn sentence(&self, topic: &str, error: &KafkaError) -> String {
        let complaint = self.observer.complaint();
        throttle::report(&format!("writing {error}"), |left_out| {
            let Complaint { reason, advice } = complaint;
            tracing::warn!(topic, error = %error, reason, advice, left_out, "a write of a client failed");
        });
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::MessageTimedOut | RDKafkaErrorCode::PurgeInflight | RDKafkaErrorCode::Fatal) => {
                format!("{topic} did not acknowledge the write, and may have it all the same")
            }
            _ => format!("{topic} was not written: {error}"),
        }
    }
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.observer.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.observer.error(error, reason);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<Sender<Written>>;

    fn delivery(&self, result: &DeliveryResult<'_>, done: Self::DeliveryOpaque) {
        // The client may be gone.
        let _ = done.send(result.as_ref().map(|_| ()).map_err(|(error, message)| {
            use rdkafka::message::Message as _;
            self.sentence(message.topic(), error)
        }));
    }
}
