//! Changelogs as they are written: many partitions at once, read for ever.
//!
//! Owns where each is read, and how far it reaches. Must never decide what a record means, join a group, or write.

use super::Error;
use super::admin::partitions;
use super::changelog::one;
use super::client_config as client;
use super::client_config::CALL_TIMEOUT;
use super::ffi::{Fetcher, Message, topic_ids};
use super::observer::Observer;
use super::throttle;
use crate::config::Config;
use crate::record::{Offset, TopicPartition};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::Offset as Position;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most events, lines of the log above all, that are heard before records are looked at again.
const EVENTS_MAX: usize = 1000;

/// What happened to a partition that is read.
#[derive(Debug)]
pub enum Event<'m> {
    /// A committed record.
    Record {
        /// Its offset.
        offset: Offset,
        /// What it says.
        value: &'m [u8],
    },
    /// All below this offset was read, whether it was committed, aborted or a mark of that; nothing else is there yet.
    End(Offset),
    /// The partition does not reach back, or forward, to where it is read. It is not read any more.
    OutOfRange,
    /// There was trouble reading it. It is to be started anew where it was read up to.
    Trouble,
}

/// Reads changelogs.
pub struct ChangelogTail {
    fetcher: Fetcher<Observer>,
}

impl ChangelogTail {
    /// Reads nothing yet.
    ///
    /// # Errors
    /// When librdkafka refuses the configuration.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let consumer = BaseConsumer::from_config_and_context(&client::changelog_tail(config), Observer::new(config))
            .map_err(|error| client::property_error(&error))?;
        let fetcher = Fetcher::new(consumer).ok_or_else(|| Error::Fatal("librdkafka has no queue for the consumer".to_owned()))?;
        Ok(Self { fetcher })
    }

    /// Reads a partition from an offset on. It is not being read.
    ///
    /// # Errors
    /// When librdkafka refuses.
    pub fn start(&self, partition: &TopicPartition, offset: Offset) -> Result<(), Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Fatal(format!("cannot read {partition}: {error}"));
        self.fetcher.forward(std::iter::once(partition)).map_err(|error| failed(&error))?;
        let list = one(partition, Position::Offset(offset)).map_err(|error| failed(&error))?;
        self.fetcher.consumer().incremental_assign(&list).map_err(|error| failed(&error))
    }

    /// Ends that. What came of it already may still be handed over by the same [`ChangelogTail::poll`].
    ///
    /// # Errors
    /// When librdkafka refuses.
    pub fn stop(&self, partition: &TopicPartition) -> Result<(), Error> {
        let failed = |error: KafkaError| Error::Fatal(format!("cannot stop to read {partition}: {error}"));
        let list = one(partition, Position::Invalid).map_err(failed)?;
        self.fetcher.consumer().incremental_unassign(&list).map_err(failed)?;
        self.fetcher.retain(|other| other != partition);
        Ok(())
    }

    /// Hands over what is there, in order within each partition, at most `count` events; if there is nothing, waits
    /// for some.
    ///
    /// # Errors
    /// When the client can never read again.
    pub fn poll(&self, count: usize, wait: Duration, take: &mut dyn FnMut(&str, i32, Event<'_>)) -> Result<(), Error> {
        for _ in 0..EVENTS_MAX {
            match self.fetcher.consumer().poll(Duration::ZERO) {
                None => {}
                // It would be missing in a state.
                Some(Ok(message)) => {
                    let (topic, partition) = (message.topic(), message.partition());
                    let sentence =
                        format!("a record of {topic}[{partition}] came by another way than it was asked to; please report this as a bug");
                    return Err(Error::Fatal(sentence));
                }
                Some(Err(KafkaError::MessageConsumptionFatal(code))) => {
                    return Err(Error::Fatal(format!("the client that reads changelogs cannot go on: {code}")));
                }
                Some(Err(error)) => trouble(&error.to_string()),
            }
            if !self.fetcher.has_events() {
                break;
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

/// What a message stands for.
fn event<'m>(message: &'m Message<'_>) -> Event<'m> {
    match message.error() {
        None => Event::Record { offset: message.offset(), value: message.value().unwrap_or_default() },
        Some((RDKafkaErrorCode::PartitionEOF, _)) => Event::End(message.offset()),
        Some((RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange, _)) => Event::OutOfRange,
        Some((code, reason)) => {
            trouble(&format!("{}[{}]: {code}: {reason}", message.topic(), message.partition()));
            Event::Trouble
        }
    }
}

fn trouble(error: &str) {
    throttle::report(&format!("following {error}"), |left_out| {
        tracing::warn!(error, left_out, "trouble reading changelogs; still trying");
    });
}

/// Asks how far changelogs reach. It reads nothing.
pub struct ChangelogEnds {
    observer: BaseConsumer<Observer>,
}

impl ChangelogEnds {
    /// Has asked nothing yet.
    ///
    /// # Errors
    /// When librdkafka refuses the configuration.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let client = client::changelog_reader(config, "read_committed");
        let observer =
            BaseConsumer::from_config_and_context(&client, Observer::new(config)).map_err(|error| client::property_error(&error))?;
        Ok(Self { observer })
    }

    /// Number of a topic's partitions; none if there is no such topic.
    ///
    /// # Errors
    /// When no answer came; worth another try.
    pub fn partitions(&self, topic: &str) -> Result<u32, Error> {
        // Lets the client deliver its complaints; each ends a poll.
        while self.observer.poll(Duration::ZERO).is_some() {}
        partitions(&self.observer, topic).map_err(|error| self.unanswered(&format!("cannot look at topic {topic:?}"), &error))
    }

    /// The ids of topics that exist, by name: another of the same name has another. None where brokers give none, or do not
    /// answer.
    #[must_use]
    pub fn ids(&self, topics: &[&str]) -> BTreeMap<String, String> {
        topic_ids(self.observer.client(), topics, CALL_TIMEOUT).unwrap_or_default()
    }

    /// The first offset of a partition, and the one after the last that a reader of committed records may have.
    ///
    /// # Errors
    /// If there is no answer within `timeout`. The next call may get one.
    pub fn of(&self, partition: &TopicPartition, timeout: Duration) -> Result<(Offset, Offset), Error> {
        let answer = self.observer.fetch_watermarks(&partition.topic, partition.partition, timeout);
        answer.map_err(|error| self.unanswered(&format!("cannot read how far {partition} reaches"), &error))
    }

    /// What keeps us from an answer, with what librdkafka complained of, which says more.
    fn unanswered(&self, what: &str, error: &KafkaError) -> Error {
        while self.observer.poll(Duration::ZERO).is_some() {}
        let complaint = self.observer.context().complaint();
        let reason = if complaint.reason.is_empty() { error.to_string() } else { complaint.reason };
        Error::Fatal(match complaint.advice {
            Some(advice) => format!("{what}: {advice} ({reason})"),
            None => format!("{what}: {reason}"),
        })
    }
}
