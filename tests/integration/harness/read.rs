//! Reads topics as a `read_committed` consumer.

use super::record::index;
use super::topic::client;
use super::{PATIENCE, TestRecord, Worker, wait_until};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::error::RDKafkaErrorCode::{AllBrokersDown, AutoOffsetReset, BrokerTransportFailure, OperationTimedOut};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::{Message, Offset, TopicPartitionList};
use std::time::{Duration, Instant};

/// Waits until no transaction is open and returns all committed records of the topic, by partition and in order.
pub fn read_committed(broker: &str, topic: &str, partitions: usize) -> Vec<Vec<TestRecord>> {
    let mut reader = Reader::new(broker, topic, partitions);
    reader.read_to_end(PATIENCE);
    reader.records
}

/// Reads until there are `total` committed records and no transaction is open. Returns all committed records. Panics if the topic still
/// has fewer than `total` records after `timeout` or after the worker has exited.
pub fn wait_for_output(
    broker: &str,
    topic: &str,
    total: usize,
    partitions: usize,
    timeout: Duration,
    worker: &mut Worker,
) -> Vec<Vec<TestRecord>> {
    let deadline = Instant::now() + timeout;
    let mut reader = Reader::new(broker, topic, partitions);
    while reader.count() < total {
        reader.poll(Duration::from_millis(100));
        if !worker.runs() {
            reader.read_to_end(PATIENCE);
            assert!(reader.count() >= total, "{} of {total} records were emitted before the worker exited", reader.count());
        }
        assert!(
            Instant::now() < deadline || reader.count() >= total,
            "{} of {total} records were emitted within {timeout:?}",
            reader.count()
        );
    }
    reader.read_to_end(PATIENCE);
    reader.records
}

pub struct Reader {
    committed: BaseConsumer,
    uncommitted: BaseConsumer,
    topic: String,
    pub records: Vec<Vec<TestRecord>>,
    next: Vec<Offset>,
    at_end: Vec<bool>,
}

impl Reader {
    pub fn new(broker: &str, topic: &str, partitions: usize) -> Self {
        let reader = Self {
            committed: consumer(broker, "read_committed"),
            uncommitted: consumer(broker, "read_uncommitted"),
            topic: topic.to_owned(),
            records: vec![Vec::new(); partitions],
            next: vec![Offset::Beginning; partitions],
            at_end: vec![false; partitions],
        };
        reader.assign();
        reader
    }

    fn assign(&self) {
        let mut assignment = TopicPartitionList::new();
        for (partition, &next) in (0..).zip(&self.next) {
            assignment.add_partition_offset(&self.topic, partition, next).expect("a valid offset");
        }
        self.committed.assign(&assignment).expect("an assignment");
    }

    pub fn count(&self) -> usize {
        self.records.iter().map(Vec::len).sum()
    }

    /// Reads the available records. If there are none, waits up to `timeout`.
    pub fn poll(&mut self, timeout: Duration) {
        let mut wait = timeout;
        while let Some(result) = self.committed.poll(wait) {
            wait = Duration::ZERO;
            match result {
                Ok(message) => {
                    let partition = index(message.partition());
                    self.next[partition] = Offset::Offset(message.offset() + 1);
                    self.records[partition].push(record(&message));
                }
                Err(KafkaError::PartitionEOF(partition)) => self.at_end[index(partition)] = true,
                // The broker may become available again. If not, the caller's deadline ends the wait.
                Err(KafkaError::MessageConsumption(BrokerTransportFailure | AllBrokersDown | OperationTimedOut)) => {}
                // The worker can delete the first records of an internal topic after this consumer has looked up the first offset. After a
                // new assignment, the consumer looks up the first offset again, unless it has already read a record.
                Err(KafkaError::MessageConsumption(AutoOffsetReset)) => self.assign(),
                Err(error) => panic!("{} cannot be read: {error}", self.topic),
            }
        }
    }

    /// True if a transaction is open in any partition. `None` if the broker does not respond.
    pub fn has_open_transaction(&self) -> Option<bool> {
        let stable = self.ends(&self.committed)?;
        Some(stable != self.ends(&self.uncommitted)?)
    }

    /// Waits until no transaction is open and reads to the end.
    pub fn read_to_end(&mut self, timeout: Duration) {
        wait_until(&format!("{} has no open transaction", self.topic), timeout, || (!self.has_open_transaction()?).then_some(()));
        // A consumer does not report the end of a partition again while its position stays there, so the partitions must be assigned again.
        self.at_end.fill(false);
        self.assign();
        wait_until(&format!("{} is read to its end", self.topic), timeout, || {
            self.poll(Duration::from_millis(100));
            self.at_end.iter().all(|&at_end| at_end).then_some(())
        });
    }

    /// The end offset of each partition: the last stable offset for a `read_committed` consumer, or the high watermark for a
    /// `read_uncommitted` consumer. `None` if the broker does not respond.
    fn ends(&self, consumer: &BaseConsumer) -> Option<Vec<i64>> {
        let end = |partition| consumer.fetch_watermarks(&self.topic, partition, PATIENCE).ok().map(|(_, end)| end);
        (0..).zip(&self.next).map(|(partition, _)| end(partition)).collect()
    }
}

fn consumer(broker: &str, isolation: &str) -> BaseConsumer {
    let mut config = client(broker);
    config
        .set("group.id", "unseen-tests")
        .set("isolation.level", isolation)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "error")
        .set("enable.partition.eof", "true")
        .set("fetch.queue.backoff.ms", "5")
        // A broker delays its response by this time if all new records belong to an open transaction, so a long time would slow down the
        // tests.
        .set("fetch.wait.max.ms", "20");
    config.create().expect("a consumer")
}

fn record(message: &BorrowedMessage<'_>) -> TestRecord {
    let headers = message.headers().into_iter().flat_map(Headers::iter);
    TestRecord {
        partition: message.partition(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: headers.map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect(),
        timestamp: message.timestamp().to_millis().unwrap_or(-1),
    }
}
