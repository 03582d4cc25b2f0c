//! An embedded broker for the demo: librdkafka's mock cluster, with a writer and a reader.
//!
//! The mock cluster accepts transactions, but consumers see the records of aborted transactions, and offsets that are committed in a
//! transaction are lost. So the mock cluster cannot be used to test exactly-once delivery. The cluster keeps at most 5 MiB per partition.

use super::client_config::BATCH_BYTES;
use super::{Cluster, Error};
use crate::record::Timestamp;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, DefaultConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::time::Duration;

/// A running embedded broker, which stops when this value is dropped.
pub struct Embedded {
    cluster: MockCluster<'static, DefaultProducerContext>,
    metadata: Cluster,
}

fn failed(error: &KafkaError) -> Error {
    Error::Fatal(format!("the embedded broker failed: {error}"))
}

impl Embedded {
    /// Starts a broker with these topics.
    ///
    /// # Errors
    /// Returns an error if the broker cannot listen on a loopback port.
    pub fn start(topics: &[&str], partitions: i32) -> Result<Self, Error> {
        let cluster = MockCluster::new(1).map_err(|error| failed(&error))?;
        for topic in topics {
            cluster.create_topic(topic, partitions, 1).map_err(|error| failed(&error))?;
        }
        let counts = topics.iter().map(|topic| ((*topic).to_owned(), partitions.unsigned_abs()));
        let metadata = Cluster { partitions: counts.collect(), batch_bytes: BATCH_BYTES, warnings: Vec::new() };
        Ok(Self { cluster, metadata })
    }

    #[must_use]
    pub fn address(&self) -> String {
        self.cluster.bootstrap_servers()
    }

    /// Returns the topics of the broker. A metadata request to the mock cluster would not return all topics.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        self.metadata.clone()
    }

    /// Creates a writer for a topic.
    ///
    /// # Errors
    /// Returns an error if librdkafka rejects the producer.
    pub fn generator(&self, topic: &str) -> Result<Generator, Error> {
        let producer =
            ClientConfig::new().set("bootstrap.servers", self.address()).set("linger.ms", "5").create().map_err(|error| failed(&error))?;
        Ok(Generator { producer, topic: topic.to_owned() })
    }

    /// Creates a reader that starts at the beginning of a topic.
    ///
    /// # Errors
    /// Returns an error if librdkafka rejects the consumer.
    pub fn reader(&self, topic: &str, partitions: i32) -> Result<Reader, Error> {
        let consumer: BaseConsumer<DefaultConsumerContext> = ClientConfig::new()
            .set("bootstrap.servers", self.address())
            .set("group.id", "unseen-demo-reader")
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", "10")
            .create()
            .map_err(|error| failed(&error))?;
        let mut list = TopicPartitionList::new();
        list.add_partition_range(topic, 0, partitions - 1);
        list.set_all_offsets(Offset::Beginning).map_err(|error| failed(&error))?;
        consumer.assign(&list).map_err(|error| failed(&error))?;
        Ok(Reader { consumer })
    }
}

pub struct Generator {
    producer: BaseProducer,
    topic: String,
}

impl Generator {
    /// Writes a record. Waits while the queue is full.
    ///
    /// # Errors
    /// Returns an error if the record cannot be queued.
    pub fn write(&self, partition: i32, key: &str, value: &[u8], time: Timestamp) -> Result<(), Error> {
        let mut record = BaseRecord::to(&self.topic).partition(partition).key(key).payload(value).timestamp(time);
        loop {
            match self.producer.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), refused)) => {
                    record = refused;
                    self.producer.poll(Duration::from_millis(10));
                }
                Err((error, _)) => return Err(failed(&error)),
            }
        }
        self.producer.poll(Duration::ZERO);
        Ok(())
    }

    /// Waits until all records are written.
    ///
    /// # Errors
    /// Returns an error if some records are not written within ten seconds.
    pub fn flush(&self) -> Result<(), Error> {
        self.producer.flush(Duration::from_secs(10)).map_err(|error| failed(&error))
    }
}

pub struct Reader {
    consumer: BaseConsumer,
}

impl Reader {
    /// Returns the key of the next record. Returns `None` if no record arrives within `timeout`, if the record has no key, or if reading
    /// fails.
    #[must_use]
    pub fn read(&self, timeout: Duration) -> Option<Vec<u8>> {
        self.consumer.poll(timeout)?.ok()?.key().map(<[u8]>::to_vec)
    }
}
