//! A producer that writes to input topics on behalf of the clients of `unseen serve`.
//!
//! Returns the result of each write to its client. The producer does not use transactions, because the writes of different clients succeed
//! or fail independently.

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

/// The result of a write, with an error message for the client.
pub type Written = Result<(), String>;

#[derive(Clone, Debug)]
pub struct NewRecord<'r> {
    pub topic: &'r str,
    /// The record key, which determines the partition. The key is mandatory, because compacted topics reject records without a key.
    pub key: Cow<'r, [u8]>,
    pub value: &'r [u8],
    pub headers: Vec<(&'r str, &'r [u8])>,
}

pub struct InputWriter {
    producer: LoggedIn<ThreadedProducer<Deliveries>>,
}

impl std::fmt::Debug for InputWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InputWriter")
    }
}

impl InputWriter {
    /// Creates a writer that chooses partitions like other producers with this `partitioner`.
    ///
    /// # Errors
    /// Returns an error if librdkafka rejects the configuration.
    pub fn new(config: &Config, partitioner: Partitioner) -> Result<Self, Error> {
        let deliveries = Deliveries { observer: Observer::new(config) };
        let producer = client::create(&client::input_writer(config, partitioner), &config.kafka, deliveries);
        Ok(Self { producer: producer.map_err(|error| client::property_error(&error))? })
    }

    /// Starts to write a record. The receiver gets the result when all in-sync replicas have the record, or when the write has failed.
    ///
    /// # Errors
    /// Returns an error message if the record cannot be queued.
    pub fn write(&self, record: &NewRecord<'_>) -> Result<Receiver<Written>, String> {
        let (done, written) = channel();
        let headers = record.headers.iter().fold(OwnedHeaders::new_with_capacity(record.headers.len()), |headers, (name, value)| {
            headers.insert(Header { key: name, value: Some(*value) })
        });
        let mut message = BaseRecord::with_opaque_to(record.topic, Box::new(done)).payload(record.value).headers(headers);
        message.key = Some(&*record.key);
        self.producer.send(message).map_err(|(error, _)| match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::QueueFull) => "too many writes are in progress; try again".to_owned(),
            _ => self.producer.context().client_message(record.topic, &error),
        })?;
        Ok(written)
    }

    /// Waits up to `timeout` until all writes have ended.
    ///
    /// # Errors
    /// Returns the number of writes that have not ended.
    pub fn flush(&self, timeout: Duration) -> Result<(), i32> {
        self.producer.flush(timeout).map_err(|_| self.producer.in_flight_count())
    }
}

struct Deliveries {
    observer: Observer,
}

impl Deliveries {
    /// Logs a failed write and returns an error message for the client. The message does not contain librdkafka's reason, which may reveal
    /// broker addresses.
    fn client_message(&self, topic: &str, error: &KafkaError) -> String {
        let complaint = self.observer.complaint();
        throttle::report(&format!("writing {error}"), |suppressed| {
            let Complaint { reason, advice } = complaint;
            tracing::warn!(
                topic,
                error = %error,
                reason,
                advice,
                suppressed,
                "failed to write a client's record; the client receives an error message"
            );
        });
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::MessageTimedOut | RDKafkaErrorCode::PurgeInflight | RDKafkaErrorCode::Fatal) => {
                format!("the brokers did not acknowledge the write to {topic}, but the record may be in the topic anyway")
            }
            _ => format!("the record was not written to {topic}: {error}"),
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
        // Sending fails if the client no longer waits for the result.
        let _ = done.send(result.as_ref().map(|_| ()).map_err(|(error, message)| {
            use rdkafka::message::Message as _;
            self.client_message(message.topic(), error)
        }));
    }
}
