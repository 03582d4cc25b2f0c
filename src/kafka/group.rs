//! A group and its topics, seen from outside: how far it has read, and how far they reach.
//!
//! Owns how such a question is asked. Must never join the group, commit anything, or decide what an answer means.

use super::admin::partitions;
use super::client_config::{self as client, CALL_TIMEOUT};
use super::cluster;
use super::ffi::{GroupMetadata, LoggedIn, topic_ids};
use super::observer::Observer;
use super::source::{committed, unanswered};
use super::{Committed, Error};
use crate::config::Config;
use crate::record::{Offset, TopicPartition};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::BTreeMap;

/// Asks about a group and its topics.
pub struct GroupView {
    observer: LoggedIn<BaseConsumer<Observer>>,
    group: String,
}

impl GroupView {
    /// Waits for a broker. What is waited for is reported meanwhile.
    ///
    /// # Errors
    /// When none answers within `kafka.connect_timeout`, none lets us in, or `stop` says so.
    pub fn connect(config: &Config, stop: &dyn Fn() -> bool, report: &dyn Fn(&str)) -> Result<Self, Error> {
        let client = client::changelog_reader(config, "read_committed");
        let observer = client::create(&client, &config.kafka, Observer::new(config)).map_err(|error| client::property_error(&error))?;
        cluster::wait(&observer, config, false, stop, report)?;
        Ok(Self { observer, group: config.kafka.group_id.clone() })
    }

    /// Number of a topic's partitions; none if there is no such topic.
    ///
    /// # Errors
    /// When no answer came, or this user may not see the topic.
    pub fn partitions(&self, topic: &str) -> Result<u32, Error> {
        match partitions(&self.observer, topic) {
            Ok(count) => Ok(count),
            // Without any right, a topic that is not there looks the same.
            Err(KafkaError::MetadataFetch(RDKafkaErrorCode::TopicAuthorizationFailed)) => {
                Err(Error::Fatal(format!("this user may not see topic {topic:?}, if it exists; give the user Read on it")))
            }
            Err(error) => Err(unanswered(&format!("look at topic {topic:?}"), &error)),
        }
    }

    /// The ids of topics that exist, by name; none where brokers give none.
    ///
    /// # Errors
    /// When no answer came.
    pub fn topic_ids(&self, topics: &[&str]) -> Result<BTreeMap<String, String>, Error> {
        topic_ids(self.observer.client(), topics, CALL_TIMEOUT)
            .map_err(|code| unanswered(&format!("look at topics {topics:?}"), &KafkaError::MetadataFetch(code)))
    }

    /// What the group has committed, once no transaction on it is open any more; in the order asked for.
    ///
    /// # Errors
    /// When no answer came.
    pub fn committed(&self, partitions: &[TopicPartition]) -> Result<Vec<Committed>, Error> {
        committed(&self.observer, partitions)
    }

    /// What the group is doing, if it has members: in the brokers' own word.
    ///
    /// # Errors
    /// When no answer came.
    pub fn activity(&self) -> Result<Option<String>, Error> {
        let groups = self.observer.fetch_group_list(Some(&self.group), CALL_TIMEOUT);
        let groups = groups.map_err(|error| unanswered(&format!("look at group {:?}", self.group), &error))?;
        let found = groups.groups().iter().find(|group| group.name() == self.group);
        let is_idle = |state: &str| matches!(state, "" | "Empty" | "Dead");
        Ok(found.filter(|group| !is_idle(group.state()) || !group.members().is_empty()).map(|group| group.state().to_owned()))
    }

    /// The group, as one who is no member of it names it.
    pub(crate) fn outsider(&self) -> Option<GroupMetadata> {
        GroupMetadata::of(&self.observer)
    }

    /// The first offset that a partition still has, and the one after the last that a reader of committed records may have.
    ///
    /// # Errors
    /// When no answer came.
    pub fn watermarks(&self, of: &TopicPartition) -> Result<(Offset, Offset), Error> {
        let answer = self.observer.fetch_watermarks(&of.topic, of.partition, CALL_TIMEOUT);
        answer.map_err(|error| unanswered(&format!("read how far {of} reaches"), &error))
    }
}
