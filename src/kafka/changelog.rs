//! Internal topics: changelogs and repartition topics. Creates, reads, and trims them.
//!
//! Owns the settings of these topics. Must never interpret their records.

use super::Error;
use super::admin::{block_on, partitions};
use super::client_config::{self as client, CALL_TIMEOUT};
use super::ffi::{LoggedIn, topic_ids};
use super::observer::Observer;
use super::tail::{ChangelogTail, one};
use crate::broker::ChangelogReader as Reader;
use crate::config::Config;
use crate::record::{Offset, SpaceId, TopicPartition};
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as Position, TopicPartitionListElem};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Settings of an internal topic. The worker deletes records that it no longer needs, so the broker must not apply a retention of its own.
/// Records in a repartition topic keep their original times, so the broker must accept any time.
const SETTINGS: [(&str, &str); 6] = [
    ("cleanup.policy", "delete"),
    ("retention.ms", "-1"),
    ("retention.bytes", "-1"),
    ("message.timestamp.type", "CreateTime"),
    ("message.timestamp.before.max.ms", "9223372036854775807"),
    ("message.timestamp.after.max.ms", "9223372036854775807"),
];

/// Segment size. Kafka deletes a segment as a whole, once all of its records are trimmed.
const SEGMENT_BYTES: &str = "67108864";

/// The permissions that a worker needs on these topics.
pub(super) const ON_TOPICS: &str = "Create, Read, Write, Delete, and DescribeConfigs on topics";

/// Interval between checks of whether a new topic is visible.
const PAUSE: Duration = Duration::from_millis(50);

/// Checks the internal topics, and creates those that are missing if `make` is true. Otherwise, the brokers
/// only validate their creation. `known` contains the partition count of each topic,
/// and gets an entry for each internal topic.
pub(super) fn ensure(
    config: &Config,
    observer: &BaseConsumer<Observer>,
    known: &mut BTreeMap<String, u32>,
    make: bool,
    problems: &mut Vec<String>,
) {
    // The partition count of each space, and a topic that has it.
    let mut judged: BTreeMap<SpaceId, (u32, String)> = BTreeMap::new();
    for topic in &config.topics {
        let Some(&input) = known.get(&topic.input) else { continue };
        let space = config.space_of(topic).id;
        let of_space = judged.get(&space).cloned();
        let mut report = |setting: &str, problem: &str| problems.push(format!("{setting}: {problem}; {}", advice(problem)));
        let (count, name) = match config.repartitioned(topic) {
            None => (input, topic.input.clone()),
            Some(name) => {
                let setting = topic.setting("repartition");
                // An existing repartition topic keeps its partition count, because a different count would move keys.
                let wanted = of_space.as_ref().map_or(input, |&(count, _)| count);
                let ensured = ensure_one(config, observer, &name, wanted, true, make);
                match ensured.and_then(|count| is_like(count, &name, of_space.as_ref()).map(|()| count)) {
                    Ok(count) => (count, name),
                    Err(problem) => {
                        report(&setting, &problem);
                        continue;
                    }
                }
            }
        };
        if let Some(changelog) = config.changelog(&topic.space).filter(|_| of_space.is_none()) {
            match ensure_one(config, observer, &changelog, count, false, make) {
                Ok(found) => drop(known.insert(changelog, found)),
                Err(problem) => report("state.changelog", &problem),
            }
        }
        known.insert(name.clone(), count);
        judged.entry(space).or_insert((count, name));
    }
}

/// Advice if the process has run out of file descriptors.
const RAISE_FILES: &str = "raise the limit of open files (`ulimit -n`, LimitNOFILE=) to 4096";

/// True if the operating system reports too many open files.
fn is_short_of_files(reason: &str) -> bool {
    reason.contains("Too many open files")
}

/// Advice to add to the problem of a topic.
fn advice(problem: &str) -> &'static str {
    // Without the topic, the process would still be short of file descriptors.
    if is_short_of_files(problem) { RAISE_FILES } else { "or set it to false" }
}

/// Describes a failed operation on a topic, and what to do. More permissions do not help if file descriptors are exhausted.
fn failure(what: &str, name: &str, wanted: u32, reason: &str) -> String {
    let failed = format!("cannot {what} topic {name:?}: {reason}");
    if is_short_of_files(reason) {
        return failed;
    }
    format!(
        "{failed}; give this user Create on the cluster, or create the topic with {wanted} partitions, cleanup.policy=delete, and retention.ms=-1"
    )
}

/// Checks that a repartition topic has the same partition count as another topic of its space.
fn is_like(count: u32, name: &str, other: Option<&(u32, String)>) -> Result<(), String> {
    match other {
        Some((wanted, other)) if *wanted != count => Err(format!(
            "topic {name:?} has {count} partitions, but {other:?} of the same space has {wanted}, and the counts must be equal; once all records of {name:?} are read, delete it, and unseen recreates it"
        )),
        _ => Ok(()),
    }
}

/// Returns the topic's partition count, or the count it will be created with. A topic that `keeps` its count may have a different one than
/// `wanted`.
fn ensure_one(config: &Config, observer: &BaseConsumer<Observer>, name: &str, wanted: u32, keeps: bool, make: bool) -> Result<u32, String> {
    let look = || {
        partitions(observer, name).map_err(|error| match error {
            KafkaError::MetadataFetch(RDKafkaErrorCode::TopicAuthorizationFailed) => format!(
                "topic {name:?} does not exist, or this user may not see it; give this user {ON_TOPICS} that start with \"{}-\"",
                config.kafka.group_id
            ),
            other => format!("cannot get metadata of topic {name:?}: {other}"),
        })
    };
    let found = look()?;
    if found == wanted || found > 0 && keeps {
        return check(config, name).map(|()| found);
    }
    if found > wanted {
        return Err(format!(
            "topic {name:?} has {found} partitions, but its input has {wanted}, and the counts must be equal; delete the topic, and unseen recreates it"
        ));
    }
    let (admin, options) = admin(config).map_err(|error| error.to_string())?;
    let options = options.validate_only(!make);
    let answer = if found == 0 {
        block_on(admin.create_topics([&internal_topic(name, wanted)], &options))
    } else {
        block_on(admin.create_partitions([&NewPartitions::new(name, wanted as usize)], &options))
    };
    let what = if found == 0 { "create" } else { "add partitions to" };
    match answer.map_err(|error| failure(what, name, wanted, &error.to_string()))?.into_iter().next() {
        // Another process created it first.
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists | RDKafkaErrorCode::InvalidPartitions))) => {}
        Some(Err((_, code))) => return Err(failure(what, name, wanted, &code.to_string())),
        _ if !make => {}
        _ => tracing::info!(topic = name, partitions = wanted, "prepared internal topic"),
    }
    if !make {
        return if found > 0 { check(config, name).map(|()| wanted) } else { Ok(wanted) };
    }
    let asked = Instant::now();
    while look()? < wanted {
        if asked.elapsed() > CALL_TIMEOUT {
            return Err(format!("topic {name:?} was created, but the brokers do not list it"));
        }
        std::thread::sleep(PAUSE);
    }
    // Another process may have created it with a different count.
    let found = if keeps { look()? } else { wanted };
    check(config, name).map(|()| found)
}

/// Returns an internal topic to be created.
pub(super) fn internal_topic(name: &str, partitions: u32) -> NewTopic<'_> {
    let count = i32::try_from(partitions).unwrap_or(i32::MAX);
    let topic = NewTopic::new(name, count, TopicReplication::Fixed(-1)).set("segment.bytes", SEGMENT_BYTES);
    SETTINGS.into_iter().fold(topic, |topic, (setting, value)| topic.set(setting, value))
}

/// Checks that the topic's settings do not delete or change records.
fn check(config: &Config, name: &str) -> Result<(), String> {
    match wrong_setting(config, name) {
        Ok(None) => Ok(()),
        Ok(Some(wrong)) => Err(wrong),
        Err(_) => {
            tracing::warn!(
                topic = name,
                "failed to read the topic's settings; make sure that it has cleanup.policy=delete and retention.ms=-1"
            );
            Ok(())
        }
    }
}

/// Describes the first wrong setting of an internal topic.
pub(super) fn wrong_setting(config: &Config, name: &str) -> Result<Option<String>, KafkaError> {
    let (admin, options) = admin(config)?;
    let answer = block_on(admin.describe_configs([&ResourceSpecifier::Topic(name)], &options))?;
    let found = answer.into_iter().next().unwrap_or(Err(RDKafkaErrorCode::UnknownTopicOrPartition)).map_err(KafkaError::AdminOp)?;
    let entries = found.entry_map();
    for (setting, wanted) in SETTINGS {
        let value = entries.get(setting).and_then(|entry| entry.value.as_deref());
        if let Some(value) = value.filter(|&value| value != wanted) {
            return Ok(Some(format!("topic {name:?} has {setting}={value}; set it to {wanted}")));
        }
    }
    Ok(None)
}

pub(super) fn admin(config: &Config) -> Result<(LoggedIn<AdminClient<Observer>>, AdminOptions), KafkaError> {
    let admin = client::create(&client::observer(&config.kafka), &config.kafka, Observer::new(config))?;
    Ok((admin, AdminOptions::new().request_timeout(Some(CALL_TIMEOUT)).operation_timeout(Some(CALL_TIMEOUT))))
}

/// Reads changelogs, one partition at a time.
pub struct ChangelogReader {
    tail: ChangelogTail,
    uncommitted: LoggedIn<BaseConsumer<Observer>>,
    admin: LoggedIn<AdminClient<Observer>>,
    options: AdminOptions,
}

impl ChangelogReader {
    /// Creates a reader that joins no group.
    ///
    /// # Errors
    /// If librdkafka rejects the configuration.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let tail = ChangelogTail::with(&client::changelog_reader(config, "read_committed"), config)?;
        let uncommitted = client::changelog_reader(config, "read_uncommitted");
        let uncommitted = client::create(&uncommitted, &config.kafka, Observer::new(config));
        let (admin, options) = admin(config).map_err(|error| client::property_error(&error))?;
        Ok(Self { tail, uncommitted: uncommitted.map_err(|error| client::property_error(&error))?, admin, options })
    }
}

impl Reader for ChangelogReader {
    type Tail = ChangelogTail;

    fn tail(&self) -> &ChangelogTail {
        &self.tail
    }

    fn ends(&self, changelog: &TopicPartition) -> Result<Option<(Offset, Offset)>, Error> {
        let ask = |consumer: &BaseConsumer<Observer>| {
            consumer
                .fetch_watermarks(&changelog.topic, changelog.partition, CALL_TIMEOUT)
                .map_err(|error| Error::Fatal(format!("cannot get the offsets of {changelog}: {error}")))
        };
        let (_, end) = ask(&self.uncommitted)?;
        let (low, stable) = ask(self.tail.consumer())?;
        Ok((stable >= end).then_some((low, stable)))
    }

    fn delete_before(&self, partition: &TopicPartition, offset: Offset) -> Result<(), Error> {
        let failed = |error: KafkaError| Error::Fatal(format!("cannot trim {partition}: {error}"));
        let answer = block_on(self.admin.delete_records(&one(partition, Position::Offset(offset)).map_err(failed)?, &self.options))
            .map_err(failed)?;
        answer.elements().iter().try_for_each(TopicPartitionListElem::error).map_err(failed)
    }

    fn topic_id(&self, topic: &str) -> Result<Option<String>, Error> {
        let ids = topic_ids(self.tail.consumer().client(), &[topic], CALL_TIMEOUT);
        let mut ids = ids.map_err(|code| Error::Fatal(format!("cannot get metadata of topic {topic:?}: {code}")))?;
        Ok(ids.remove(topic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_file_descriptors_are_not_reported_as_a_missing_permission() {
        // The first message is librdkafka's. The second is from the async runtime that waits for an answer.
        for error in [
            KafkaError::ClientCreation("Failed to create socket: Too many open files".to_owned()),
            KafkaError::AdminOpCreation("Too many open files (os error 24)".to_owned()),
        ] {
            let problem = failure("create", "news-changelog", 4, &error.to_string());
            assert_eq!(problem, format!("cannot create topic \"news-changelog\": {error}"));
            assert_eq!(advice(&problem), "raise the limit of open files (`ulimit -n`, LimitNOFILE=) to 4096");
        }
        let refused = RDKafkaErrorCode::TopicAuthorizationFailed.to_string();
        let problem = failure("create", "news-changelog", 4, &refused);
        assert!(
            problem.contains(&refused) && problem.contains("; give this user Create on the cluster, or create the topic with 4 partitions"),
            "{problem}"
        );
        assert_eq!(advice(&problem), "or set it to false");
    }
}
