//! A read-only view of a group and its topics: committed offsets and watermarks.
//!
//! Sends the requests. This module never joins the group or commits an offset, and the callers interpret the answers.

use super::admin::readable_partitions;
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
use std::time::Duration;

/// The maximum number of librdkafka events to search for the cause of a failed request.
const EVENTS_MAX: usize = 1000;

pub struct GroupView {
    observer: LoggedIn<BaseConsumer<Observer>>,
    group: String,
}

impl GroupView {
    /// Connects to the cluster. Calls `report` as long as no broker answers.
    ///
    /// # Errors
    /// Returns an error if no broker answers within `kafka.connect_timeout`, if all brokers reject the login, or if `stop` returns `true`.
    pub fn connect(config: &Config, stop: &dyn Fn() -> bool, report: &dyn Fn(&str)) -> Result<Self, Error> {
        let observer = client::observe(config, &client::changelog_reader(config, "read_committed"))?;
        cluster::wait(&observer, config, false, stop, report)?;
        Ok(Self { observer, group: config.kafka.group_id.clone() })
    }

    /// Returns the partition count of a topic, or 0 if the topic does not exist.
    ///
    /// # Errors
    /// Returns an error if no broker answers, or if this user lacks a permission on the topic.
    pub fn partitions(&self, topic: &str) -> Result<u32, Error> {
        readable_partitions(&self.observer, topic)
    }

    /// Returns the topic ids by topic name. Brokers before Kafka 2.8 return no ids.
    ///
    /// # Errors
    /// Returns an error if no broker answers, or if a topic does not exist.
    pub fn topic_ids(&self, topics: &[&str]) -> Result<BTreeMap<String, String>, Error> {
        topic_ids(self.observer.client(), topics, CALL_TIMEOUT)
            .map_err(|code| unanswered(&format!("get metadata of topics {topics:?}"), &KafkaError::MetadataFetch(code)))
    }

    /// Returns the group's committed offsets, in the order of `partitions`. Waits while an open transaction contains offsets for them.
    ///
    /// # Errors
    /// Returns an error if no broker answers, if the transaction stays open for too long, or if this user lacks Read on the group.
    pub fn committed(&self, partitions: &[TopicPartition]) -> Result<Vec<Committed>, Error> {
        let answer = committed(&self.observer, partitions, &format!("get the committed offsets of group {:?}", self.group));
        answer.map_err(|error| self.denied().unwrap_or(error))
    }

    /// Returns an error if the brokers have denied access to the group. The failed request itself reports only a timeout, because
    /// librdkafka keeps looking for the group's coordinator.
    fn denied(&self) -> Option<Error> {
        let is_denied =
            |event: Result<_, KafkaError>| matches!(event, Err(KafkaError::MessageConsumption(RDKafkaErrorCode::GroupAuthorizationFailed)));
        let mut events = std::iter::from_fn(|| self.observer.poll(Duration::ZERO).map(|event| event.map(drop))).take(EVENTS_MAX);
        events
            .any(is_denied)
            .then(|| Error::Fatal(format!("this user may not read group {:?}; give this user Read on the group", self.group)))
    }

    /// Returns the group's state, such as `Stable`. Returns `None` if the group does not exist, or if it has no members and its state is
    /// `Empty`, `Dead`, or blank.
    ///
    /// # Errors
    /// Returns an error if no broker answers.
    pub fn activity(&self) -> Result<Option<String>, Error> {
        let groups = self.observer.fetch_group_list(Some(&self.group), CALL_TIMEOUT);
        let groups = groups.map_err(|error| unanswered(&format!("get the state of group {:?}", self.group), &error))?;
        let found = groups.groups().iter().find(|group| group.name() == self.group);
        let is_idle = |state: &str| matches!(state, "" | "Empty" | "Dead");
        Ok(found.filter(|group| !is_idle(group.state()) || !group.members().is_empty()).map(|group| group.state().to_owned()))
    }

    pub(crate) fn outsider(&self) -> Result<GroupMetadata, Error> {
        GroupMetadata::of(&self.observer).ok_or_else(|| {
            Error::Fatal("librdkafka returned no group metadata, so offsets cannot be committed; run the command again".to_owned())
        })
    }

    /// Returns the log start offset and the last stable offset of a partition.
    ///
    /// # Errors
    /// Returns an error if no broker answers.
    pub fn watermarks(&self, of: &TopicPartition) -> Result<(Offset, Offset), Error> {
        let answer = self.observer.fetch_watermarks(&of.topic, of.partition, CALL_TIMEOUT);
        answer.map_err(|error| unanswered(&format!("get the offsets of {of}"), &error))
    }
}
