//! Reads many changelog partitions continuously.
//!
//! Keeps the position in each partition. This module never interprets a record, joins a group, or writes.

use super::Error;
use super::admin::partitions;
use super::client_config as client;
use super::client_config::CALL_TIMEOUT;
use super::fetch_error::{events, unexpected};
use super::ffi::{Fetcher, LoggedIn, Message, topic_ids};
use super::observer::Observer;
use crate::broker::throttle;
use crate::broker::{ChangelogEnds as Ends, ChangelogTail as Tail, Logged, Record as _, TailEvent};
use crate::config::Config;
use crate::record::{Offset, TopicPartition};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as Position, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::Duration;

pub struct ChangelogTail {
    fetcher: Fetcher<Observer>,
}

impl ChangelogTail {
    /// Creates a reader without partitions.
    ///
    /// # Errors
    /// Returns an error if librdkafka rejects the configuration.
    pub fn new(config: &Config) -> Result<Self, Error> {
        Self::with(&client::changelog_tail(config), config)
    }

    pub(super) fn with(client: &ClientConfig, config: &Config) -> Result<Self, Error> {
        let consumer = client::observe(config, client)?;
        let fetcher = Fetcher::new(consumer).ok_or_else(|| unexpected(format_args!("create a consumer"), &"it has no queue"))?;
        Ok(Self { fetcher })
    }

    pub(super) fn consumer(&self) -> &BaseConsumer<Observer> {
        self.fetcher.consumer()
    }
}

impl Tail for ChangelogTail {
    fn start(&self, partition: &TopicPartition, offset: Offset) -> Result<(), Error> {
        let failed = |error: &dyn std::fmt::Display| unexpected(format_args!("start to read {partition}"), error);
        self.fetcher.forward(std::iter::once(partition)).map_err(|error| failed(&error))?;
        let list = one(partition, Position::Offset(offset)).map_err(|error| failed(&error))?;
        self.fetcher.consumer().incremental_assign(&list).map_err(|error| failed(&error))
    }

    fn stop(&self, partition: &TopicPartition) -> Result<(), Error> {
        let failed = |error: KafkaError| unexpected(format_args!("stop reading {partition}"), &error);
        let list = one(partition, Position::Invalid).map_err(failed)?;
        self.fetcher.consumer().incremental_unassign(&list).map_err(failed)?;
        self.fetcher.retain(|other| other != partition);
        Ok(())
    }

    fn poll(&self, count: usize, wait: Duration, take: &mut dyn FnMut(&str, i32, TailEvent<'_>)) -> Result<(), Error> {
        for event in events(&self.fetcher) {
            match event? {
                Some(KafkaError::MessageConsumptionFatal(code)) => {
                    return Err(Error::Fatal(format!(
                        "the client that reads changelogs cannot continue: {code}; if a restart does not help, report a bug"
                    )));
                }
                Some(error) => report_error(&error.to_string()),
                None => {}
            }
        }
        let mut messages: Vec<Message<'_>> = Vec::new();
        self.fetcher.take(count, wait, &mut messages);
        for message in &messages {
            take(message.topic(), message.partition(), event(message));
        }
        Ok(())
    }
}

fn event<'m>(message: &'m Message<'_>) -> TailEvent<'m> {
    match message.error() {
        None => {
            let (offset, time) = (message.offset(), message.timestamp());
            TailEvent::Record(Logged { offset, time, value: message.value().unwrap_or_default() })
        }
        Some((RDKafkaErrorCode::PartitionEOF, _)) => TailEvent::End(message.offset()),
        Some((RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange, _)) => TailEvent::OutOfRange,
        Some((code, reason)) => {
            report_error(&format!("{}[{}]: {code}: {reason}", message.topic(), message.partition()));
            TailEvent::Error
        }
    }
}

fn report_error(error: &str) {
    throttle::report(&format!("following {error}"), |suppressed| {
        tracing::warn!(error, suppressed, "failed to read changelogs; retrying");
    });
}

pub struct ChangelogEnds {
    observer: LoggedIn<BaseConsumer<Observer>>,
    uncommitted: LoggedIn<BaseConsumer<Observer>>,
}

impl ChangelogEnds {
    /// Creates a client that has not connected to a broker yet.
    ///
    /// # Errors
    /// Returns an error if librdkafka rejects the configuration.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let observe = |isolation| client::observe(config, &client::changelog_reader(config, isolation));
        Ok(Self { observer: observe("read_committed")?, uncommitted: observe("read_uncommitted")? })
    }

    fn ask(client: &BaseConsumer<Observer>, partition: &TopicPartition, timeout: Duration) -> Result<(Offset, Offset), Error> {
        let answer = client.fetch_watermarks(&partition.topic, partition.partition, timeout);
        answer.map_err(|error| Self::unanswered(client, &format!("cannot get the offsets of {partition}"), &error))
    }

    /// Converts the error of a failed request. If the client has received an error from librdkafka, uses that error instead, because it is
    /// more informative.
    fn unanswered(client: &BaseConsumer<Observer>, what: &str, error: &KafkaError) -> Error {
        while client.poll(Duration::ZERO).is_some() {}
        let complaint = client.context().complaint();
        let reason = if complaint.reason.is_empty() { error.to_string() } else { complaint.reason };
        Error::Fatal(match complaint.advice {
            Some(advice) => format!("{what}: {advice} ({reason})"),
            None => format!("{what}: {reason}"),
        })
    }
}

impl Ends for ChangelogEnds {
    fn partitions(&self, topic: &str) -> Result<u32, Error> {
        // Each poll handles one event. Handle all events to pass every error to the observer.
        for client in [&self.observer, &self.uncommitted] {
            while client.poll(Duration::ZERO).is_some() {}
        }
        partitions(&self.observer, topic)
            .map_err(|error| Self::unanswered(&self.observer, &format!("cannot get metadata of topic {topic:?}"), &error))
    }

    fn ids(&self, topics: &[&str]) -> BTreeMap<String, String> {
        topic_ids(self.observer.client(), topics, CALL_TIMEOUT).unwrap_or_default()
    }

    fn of(&self, partition: &TopicPartition, timeout: Duration) -> Result<(Offset, Offset), Error> {
        Self::ask(&self.observer, partition, timeout)
    }

    fn high_watermark(&self, partition: &TopicPartition, timeout: Duration) -> Result<Offset, Error> {
        Self::ask(&self.uncommitted, partition, timeout).map(|(_, end)| end)
    }
}

pub(super) fn one(partition: &TopicPartition, position: Position) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&partition.topic, partition.partition, position).map(|()| list)
}
