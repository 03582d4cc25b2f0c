//! Internal topics: changelogs, and those that bring records to their partitions. Made, read and trimmed.
//!
//! Owns how such a topic must be set up, and when all of one is read. Must never decide what a
//! record of it means.

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

/// How such a topic is set up. It is trimmed by what is still needed, and by nothing else. Records on their way to
/// another partition keep their times, whatever these are.
const SETTINGS: [(&str, &str); 6] = [
    ("cleanup.policy", "delete"),
    ("retention.ms", "-1"),
    ("retention.bytes", "-1"),
    ("message.timestamp.type", "CreateTime"),
    ("message.timestamp.before.max.ms", "9223372036854775807"),
    ("message.timestamp.after.max.ms", "9223372036854775807"),
];

/// Files of this size are dropped as a whole once they are trimmed.
const SEGMENT_BYTES: &str = "67108864";

/// The permissions that a worker needs on these topics.
pub(super) const ON_TOPICS: &str = "Create, Read, Write, Delete, and DescribeConfigs on topics";

/// How long to wait before it is checked again whether the brokers show a topic.
const PAUSE: Duration = Duration::from_millis(50);

/// Makes sure that the internal topics are there as they must be; with `make`, by making them. Without `make`, the brokers only
/// check whether the topics could be made. `known` is how many partitions each topic has, and gets theirs.
pub(super) fn ensure(
    config: &Config,
    observer: &BaseConsumer<Observer>,
    known: &mut BTreeMap<String, u32>,
    make: bool,
    problems: &mut Vec<String>,
) {
    // How many partitions the topics of a space are judged in, and one of them.
    let mut judged: BTreeMap<SpaceId, (u32, String)> = BTreeMap::new();
    for (at, topic) in config.topics.iter().enumerate() {
        let Some(&input) = known.get(&topic.input) else { continue };
        let space = config.space_of(topic).id;
        let of_space = judged.get(&space).cloned();
        let mut report = |setting: &str, problem: &str| problems.push(format!("{setting}: {problem}; {}", advice(problem)));
        let (count, name) = match config.repartitioned(topic) {
            None => (input, topic.input.clone()),
            Some(name) => {
                let setting = format!("topics[{at}].repartition");
                // It keeps the partitions that it has: with others, keys would move.
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

/// What to do where there are too few descriptors.
const RAISE_FILES: &str = "raise the limit of open files (`ulimit -n`, LimitNOFILE=), 4096 is ample";

/// Whether that is the reason, by the system's words for it.
fn is_short_of_files(reason: &str) -> bool {
    reason.contains("Too many open files")
}

/// What to do about a topic that cannot be had, beside what the problem says itself.
fn advice(problem: &str) -> &'static str {
    // Without the topic, there would be as few descriptors.
    if is_short_of_files(problem) { RAISE_FILES } else { "or set it to false" }
}

/// That something cannot be done to a topic, and how it could. More rights are no help against too few descriptors.
fn failure(what: &str, name: &str, wanted: u32, reason: &str) -> String {
    let failed = format!("cannot {what} topic {name:?}: {reason}");
    if is_short_of_files(reason) {
        return failed;
    }
    format!("{failed}; let this user create topics, or create it with {wanted} partitions, cleanup.policy=delete and retention.ms=-1")
}

/// Whether a topic in between has as many partitions as another one of its space.
fn is_like(count: u32, name: &str, other: Option<&(u32, String)>) -> Result<(), String> {
    match other {
        Some((wanted, other)) if *wanted != count => Err(format!(
            "topic {name:?} has {count} partitions and {other:?} of the same space {wanted}; they must be as many, so delete {name:?} once all of it is read, to have it made anew"
        )),
        _ => Ok(()),
    }
}

/// Returns how many partitions it has, or is to have. One that `keeps` its number may have another than is wanted.
fn ensure_one(config: &Config, observer: &BaseConsumer<Observer>, name: &str, wanted: u32, keeps: bool, make: bool) -> Result<u32, String> {
    let look = || {
        partitions(observer, name).map_err(|error| match error {
            KafkaError::MetadataFetch(RDKafkaErrorCode::TopicAuthorizationFailed) => format!(
                "this user may not see topic {name:?}, if it exists; give this user {ON_TOPICS} that start with \"{}-\"",
                config.kafka.group_id
            ),
            other => format!("cannot look at topic {name:?}: {other}"),
        })
    };
    let found = look()?;
    if found == wanted || found > 0 && keeps {
        return check(config, name).map(|()| found);
    }
    if found > wanted {
        return Err(format!(
            "topic {name:?} has {found} partitions and what it logs {wanted}; they must be as many, so delete it to have it made anew"
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
        // Somebody else was faster.
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists | RDKafkaErrorCode::InvalidPartitions))) => {}
        Some(Err((_, code))) => return Err(failure(what, name, wanted, &code.to_string())),
        _ if !make => {}
        _ => tracing::info!(topic = name, partitions = wanted, "topic made ready"),
    }
    if !make {
        return if found > 0 { check(config, name).map(|()| wanted) } else { Ok(wanted) };
    }
    let asked = Instant::now();
    while look()? < wanted {
        if asked.elapsed() > CALL_TIMEOUT {
            return Err(format!("topic {name:?} was made, but the brokers do not show it"));
        }
        std::thread::sleep(PAUSE);
    }
    // Somebody else may have been faster, and have known of more.
    let found = if keeps { look()? } else { wanted };
    check(config, name).map(|()| found)
}

/// An internal topic that does not exist yet.
pub(super) fn internal_topic(name: &str, partitions: u32) -> NewTopic<'_> {
    let count = i32::try_from(partitions).unwrap_or(i32::MAX);
    let topic = NewTopic::new(name, count, TopicReplication::Fixed(-1)).set("segment.bytes", SEGMENT_BYTES);
    SETTINGS.into_iter().fold(topic, |topic, (setting, value)| topic.set(setting, value))
}

/// Whether a topic keeps what it is given.
fn check(config: &Config, name: &str) -> Result<(), String> {
    match wrong_setting(config, name) {
        Ok(None) => Ok(()),
        Ok(Some(wrong)) => Err(format!("{wrong}; alter it")),
        Err(_) => {
            tracing::warn!(
                topic = name,
                "the brokers do not say how the topic is set up; make sure that it has cleanup.policy=delete and retention.ms=-1"
            );
            Ok(())
        }
    }
}

/// Describes the first setting of an internal topic that is wrong.
pub(super) fn wrong_setting(config: &Config, name: &str) -> Result<Option<String>, KafkaError> {
    let (admin, options) = admin(config)?;
    let answer = block_on(admin.describe_configs([&ResourceSpecifier::Topic(name)], &options))?;
    let found = answer.into_iter().next().unwrap_or(Err(RDKafkaErrorCode::UnknownTopicOrPartition)).map_err(KafkaError::AdminOp)?;
    let entries = found.entry_map();
    for (setting, wanted) in SETTINGS {
        let value = entries.get(setting).and_then(|entry| entry.value.as_deref());
        if let Some(value) = value.filter(|&value| value != wanted) {
            return Ok(Some(format!("topic {name:?} has {setting}={value}, and must have {setting}={wanted}")));
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
    /// A reader. It joins no group.
    ///
    /// # Errors
    /// When librdkafka refuses the configuration.
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
                .map_err(|error| Error::Fatal(format!("cannot read how far {changelog} reaches: {error}")))
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
        let mut ids = ids.map_err(|code| Error::Fatal(format!("cannot look at topic {topic:?}: {code}")))?;
        Ok(ids.remove(topic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_descriptors_are_not_taken_for_a_missing_right() {
        // In librdkafka's words, and in those of the runtime that waits for its answer.
        for error in [
            KafkaError::ClientCreation("Failed to create socket: Too many open files".to_owned()),
            KafkaError::AdminOpCreation("Too many open files (os error 24)".to_owned()),
        ] {
            let problem = failure("create", "news-changelog", 4, &error.to_string());
            assert_eq!(problem, format!("cannot create topic \"news-changelog\": {error}"));
            assert_eq!(advice(&problem), "raise the limit of open files (`ulimit -n`, LimitNOFILE=), 4096 is ample");
        }
        let refused = RDKafkaErrorCode::TopicAuthorizationFailed.to_string();
        let problem = failure("create", "news-changelog", 4, &refused);
        assert!(
            problem.contains(&refused) && problem.contains("; let this user create topics, or create it with 4 partitions"),
            "{problem}"
        );
        assert_eq!(advice(&problem), "or set it to false");
    }
}
