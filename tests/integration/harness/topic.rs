//! Topics and groups: creation, deletion, and committed offsets.

use super::{PATIENCE, unique, wait_until};
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};
use std::time::Duration;

/// Creates a topic with a unique name that starts with `hint`.
pub fn topic(broker: &str, hint: &str, partitions: u32) -> String {
    topic_with(broker, hint, partitions, &[])
}

/// The same as [`topic`], with topic settings such as `("max.message.bytes", "1000")`.
pub fn topic_with(broker: &str, hint: &str, partitions: u32, properties: &[(&str, &str)]) -> String {
    let name = unique(hint);
    create(broker, &name, partitions, properties);
    name
}

/// Creates a topic with this name. If the broker is still deleting a topic with the same name, waits for the end of the deletion.
pub fn make_topic(broker: &str, name: &str, partitions: u32) {
    create(broker, name, partitions, &[]);
}

pub fn make_topic_with(broker: &str, name: &str, partitions: u32, properties: &[(&str, &str)]) {
    create(broker, name, partitions, properties);
}

/// The same as [`topic_with`], with four partitions. The replicas of each partition are on the brokers with these IDs.
pub fn topic_on(broker: &str, hint: &str, replicas: &[i32], properties: &[(&str, &str)]) -> String {
    let name = unique(hint);
    create_with(broker, &name, 4, TopicReplication::Variable(&[replicas; 4]), properties);
    name
}

fn create(broker: &str, name: &str, partitions: u32, properties: &[(&str, &str)]) {
    // -1 means the broker's `default.replication.factor`.
    create_with(broker, name, partitions, TopicReplication::Fixed(-1), properties);
}

fn create_with(broker: &str, name: &str, partitions: u32, replication: TopicReplication<'_>, properties: &[(&str, &str)]) {
    // With the broker's default retention, all test records would be deleted, because their timestamps are too old.
    let mut topic = NewTopic::new(name, partitions.cast_signed(), replication).set("retention.ms", "-1");
    for (key, value) in properties {
        topic = topic.set(key, value);
    }
    wait_until(&format!("topic {name} is created"), PATIENCE, || {
        let results = block_on(admin(broker).create_topics([&topic], &options())).expect("the broker answers");
        match results.first().expect("an answer for the topic") {
            Ok(_) => Some(()),
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => None,
            Err((name, code)) => panic!("topic {name} could not be created: {code}"),
        }
    });
    wait_for_partitions(broker, name, partitions);
}

fn wait_for_partitions(broker: &str, name: &str, partitions: u32) {
    let consumer: BaseConsumer = client(broker).create().expect("a consumer");
    // A busy broker creates a few dozen partitions per second.
    let limit = PATIENCE.max(Duration::from_millis(50) * partitions);
    wait_until(&format!("topic {name} has all its partitions"), limit, || {
        let metadata = consumer.fetch_metadata(Some(name), PATIENCE).ok()?;
        let found = metadata.topics().first()?.partitions();
        (found.len() == partitions as usize && found.iter().all(|partition| partition.leader() >= 0)).then_some(())
    });
}

/// Increases the number of partitions of a topic to `partitions`.
pub fn add_partitions(broker: &str, name: &str, partitions: u32) {
    let wanted = NewPartitions::new(name, partitions as usize);
    for result in block_on(admin(broker).create_partitions([&wanted], &options())).expect("the broker answers") {
        result.unwrap_or_else(|(name, code)| panic!("topic {name} got no more partitions: {code}"));
    }
    wait_for_partitions(broker, name, partitions);
}

pub fn delete_topic(broker: &str, name: &str) {
    for result in block_on(admin(broker).delete_topics(&[name], &options())).expect("the broker answers") {
        result.unwrap_or_else(|(name, code)| panic!("topic {name} could not be deleted: {code}"));
    }
}

pub fn delete_topics(broker: &str, prefix: &str) {
    let consumer: BaseConsumer = client(broker).create().expect("a consumer");
    let metadata = wait_until("the broker lists its topics", PATIENCE, || consumer.fetch_metadata(None, PATIENCE).ok());
    for topic in metadata.topics().iter().filter(|topic| topic.name().starts_with(prefix)) {
        delete_topic(broker, topic.name());
    }
}

pub fn alter_topic(broker: &str, topic: &str, property: &str, value: &str) {
    // The request resets each setting that it does not contain to the broker's default, so it repeats `retention.ms`.
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(property, value).set("retention.ms", "-1");
    let results = block_on(admin(broker).alter_configs([&change], &options())).expect("the broker answers");
    assert!(results.iter().all(Result::is_ok), "topic {topic} could not be changed: {results:?}");
}

/// Deletes the records below `offset`, as retention would.
pub fn delete_records_before(broker: &str, topic: &str, partition: i32, offset: i64) {
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(topic, partition, Offset::Offset(offset)).expect("a valid offset");
    let results = block_on(admin(broker).delete_records(&offsets, &options())).expect("the broker answers");
    for result in results.elements() {
        result.error().unwrap_or_else(|error| panic!("{topic}[{partition}]: records not deleted: {error}"));
    }
}

pub fn first_offset(broker: &str, topic: &str, partition: i32) -> i64 {
    let consumer: BaseConsumer = client(broker).create().expect("a consumer");
    consumer.fetch_watermarks(topic, partition, PATIENCE).expect("the broker answers").0
}

/// The committed offset of a partition. `None` if the group has not committed an offset for the partition.
pub fn committed_offset(broker: &str, group: &str, topic: &str, partition: i32) -> Option<i64> {
    let consumer: BaseConsumer = client(broker).set("group.id", group).create().expect("a consumer");
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition(topic, partition);
    // After a broker restart and after the creation of the offsets topic, requests fail until the coordinator has loaded the group's
    // offsets.
    let committed = wait_until("the broker answers", PATIENCE, || consumer.committed_offsets(partitions.clone(), PATIENCE).ok());
    committed.find_partition(topic, partition)?.offset().to_raw().filter(|&offset| offset >= 0)
}

/// Commits an offset without metadata, as an operator would. The group must not have members.
pub fn reset_offset(broker: &str, group: &str, topic: &str, partition: i32, offset: i64) {
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(topic, partition, Offset::Offset(offset)).expect("a valid offset");
    commit(broker, group, &offsets);
}

fn commit(broker: &str, group: &str, offsets: &TopicPartitionList) {
    let consumer: BaseConsumer = client(broker).set("group.id", group).create().expect("a consumer");
    wait_until("the group takes the offset", PATIENCE, || consumer.commit(offsets, CommitMode::Sync).ok());
}

/// Commits `offset` and keeps the metadata of the committed offset. The group must not have members.
pub fn move_offset(broker: &str, group: &str, topic: &str, partition: i32, offset: i64) {
    let consumer: BaseConsumer = client(broker).set("group.id", group).create().expect("a consumer");
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition(topic, partition);
    let mut committed = wait_until("the broker answers", PATIENCE, || consumer.committed_offsets(partitions.clone(), PATIENCE).ok());
    committed.set_partition_offset(topic, partition, Offset::Offset(offset)).expect("a valid offset");
    commit(broker, group, &committed);
}

/// Waits until the group has no members and deletes it with its offsets.
pub fn delete_group(broker: &str, group: &str) {
    wait_until(&format!("group {group} is deleted"), PATIENCE, || {
        let results = block_on(admin(broker).delete_groups(&[group], &options())).expect("the broker answers");
        match results.first().expect("an answer for the group") {
            Ok(_) | Err((_, RDKafkaErrorCode::GroupIdNotFound)) => Some(()),
            Err((_, RDKafkaErrorCode::NonEmptyGroup)) => None,
            Err((name, code)) => panic!("group {name} could not be deleted: {code}"),
        }
    });
}

/// A consumer for repeated queries of a group's committed offsets.
pub struct Group {
    consumer: BaseConsumer,
    topic: String,
    partitions: TopicPartitionList,
}

impl Group {
    pub fn new(broker: &str, group: &str, topic: &str, partitions: usize) -> Self {
        // With `read_uncommitted`, the consumer does not wait for open transactions that contain offsets of the group.
        let consumer = client(broker).set("group.id", group).set("isolation.level", "read_uncommitted").create().expect("a consumer");
        let mut all = TopicPartitionList::new();
        for partition in (0..).take(partitions) {
            all.add_partition(topic, partition);
        }
        Self { consumer, topic: topic.to_owned(), partitions: all }
    }

    /// The committed offset of each partition, or 0 before the first commit. `None` if the request fails.
    pub fn committed(&self) -> Option<Vec<i64>> {
        let committed = self.consumer.committed_offsets(self.partitions.clone(), Duration::from_secs(1)).ok()?;
        committed.elements().iter().map(|element| element.error().ok().map(|()| element.offset().to_raw().unwrap_or(0).max(0))).collect()
    }

    pub fn has_read_all(&self) -> bool {
        let Some(committed) = self.committed() else { return false };
        (0..).zip(committed).all(|(partition, committed)| {
            let ends = self.consumer.fetch_watermarks(&self.topic, partition, Duration::from_secs(1));
            ends.is_ok_and(|(_, end)| committed >= end)
        })
    }
}

pub fn client(broker: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    // If a partition has no leader, requests for its watermarks fail until the cached metadata expires, by default after 15 minutes.
    config.set("bootstrap.servers", broker).set("metadata.max.age.ms", "1000");
    config
}

fn admin(broker: &str) -> AdminClient<DefaultClientContext> {
    client(broker).create().expect("an admin client")
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE))
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}
