//! Internal topics: changelogs and repartition topics. Creates, reads, and trims them.
//!
//! Sets and checks the settings of these topics. The records are opaque to this module: `crate::changelog` interprets them.

use super::Error;
use super::admin::{block_on, invisible, only, partitions};
use super::client_config::{self as client, CALL_TIMEOUT};
use super::ffi::{LoggedIn, topic_ids};
use super::observer::Observer;
use super::tail::{ChangelogTail, one};
use crate::broker::{ChangelogReader as Reader, Cluster, Problem};
use crate::config::Config;
use crate::record::{Offset, SpaceId, TopicPartition};
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as Position, TopicPartitionListElem};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Settings that keep an internal topic from losing records. The worker itself deletes records that it no longer needs, so the broker's
/// retention must not delete any records.
const RETENTION: [(&str, &str); 3] = [("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1")];

/// The setting that lets records in a repartition topic keep their original times.
const TIMES: (&str, &str) = ("message.timestamp.type", "CreateTime");

/// Limits on record times. They are so large that the broker accepts any time.
const LIMITS: [(&str, &str); 2] =
    [("message.timestamp.before.max.ms", "9223372036854775807"), ("message.timestamp.after.max.ms", "9223372036854775807")];

/// Segment size in bytes (64 MiB). Kafka frees disk space only by whole segments, after the worker has deleted all records of a segment, so
/// segments of the default size (1 GiB) would keep deleted records for longer.
const SEGMENT: (&str, &str) = ("segment.bytes", "67108864");

/// The permissions that a worker needs on internal topics, for error messages.
pub(super) const ON_TOPICS: &str = "Create, Read, Write, Delete, and DescribeConfigs on topics";

/// Interval between two checks for a new topic.
const PAUSE: Duration = Duration::from_millis(50);

/// Checks the internal topics. If `make` is true, creates missing topics and adds missing partitions to changelogs. If `make` is false,
/// sends the same requests with `validate_only`, so the brokers change nothing. `cluster` must contain the partition count of each
/// configured topic. This function adds the partition counts of the internal topics and warnings about their settings.
///
/// # Errors
/// Returns an error if a retry may succeed, for example after a timeout, or if the process has run out of file descriptors. All other
/// problems are added to `problems`.
pub(super) fn ensure(
    config: &Config,
    observer: &BaseConsumer<Observer>,
    cluster: &mut Cluster,
    make: bool,
    problems: &mut Vec<Problem>,
) -> Result<(), Error> {
    let Cluster { partitions: known, warnings, .. } = cluster;
    // The partition count of each space, and the name of the topic that determined it.
    let mut judged: BTreeMap<SpaceId, (u32, String)> = BTreeMap::new();
    for topic in &config.topics {
        let Some(&input) = known.get(&topic.input) else { continue };
        let space = config.space_of(topic).id;
        let of_space = judged.get(&space).cloned();
        let mut report = |setting: &str, fault: Fault| {
            let message = |problem: &str| format!("{setting}: {problem}; {}", advice(problem));
            match fault {
                Fault::Problem(problem) => problems.push(Problem { input: topic.input.clone(), message: message(&problem) }),
                // Leave out the advice, because a retry may succeed. A shortage of file descriptors is different: the user must raise the
                // limit.
                Fault::Transient(problem) if is_short_of_files(&problem) => return Err(Error::Fatal(message(&problem))),
                Fault::Transient(problem) => return Err(Error::Fatal(format!("{setting}: {problem}"))),
            }
            Ok(())
        };
        let mut warn = |setting: &str, warning: Option<String>| warnings.extend(warning.map(|warning| format!("{setting}: {warning}")));
        let (count, name) = match config.repartitioned(topic) {
            None => (input, topic.input.clone()),
            Some(name) => {
                let setting = topic.setting("repartition");
                // An existing repartition topic keeps its partition count, because a different count would move keys to other partitions.
                let wanted = of_space.as_ref().map_or(input, |&(count, _)| count);
                let ensured = ensure_one(config, observer, &name, wanted, true, make);
                match ensured.and_then(|found| is_like(found.0, &name, of_space.as_ref()).map(|()| found)) {
                    Ok((count, warning)) => {
                        warn(&setting, warning);
                        (count, name)
                    }
                    Err(fault) => {
                        report(&setting, fault)?;
                        continue;
                    }
                }
            }
        };
        if let Some(changelog) = config.changelog(&topic.space).filter(|_| of_space.is_none()) {
            match ensure_one(config, observer, &changelog, count, false, make) {
                Ok((found, warning)) => {
                    warn("state.changelog", warning);
                    known.insert(changelog, found);
                }
                Err(fault) => report("state.changelog", fault)?,
            }
        }
        known.insert(name.clone(), count);
        judged.entry(space).or_insert((count, name));
    }
    Ok(())
}

enum Fault {
    /// The topic cannot be created, this user may not use it, or its settings or its partition count are wrong.
    Problem(String),
    Transient(String),
}

/// True if the brokers refuse to create a topic or to add partitions, and would refuse again after a retry.
const fn is_refusal(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{ClusterAuthorizationFailed, InvalidReplicationFactor, InvalidTopic, TopicAuthorizationFailed};
    let KafkaError::AdminOp(code) = error else { return false };
    refuses_settings(*code)
        || matches!(code, TopicAuthorizationFailed | ClusterAuthorizationFailed | InvalidReplicationFactor | InvalidTopic)
}

const RAISE_FILES: &str = "raise the limit of open files (`ulimit -n`, LimitNOFILE=) to 4096";

fn is_short_of_files(reason: &str) -> bool {
    reason.contains("Too many open files")
}

fn advice(problem: &str) -> &'static str {
    // Setting `repartition` or `state.changelog` to `false` would not help a process that is short of file descriptors.
    if is_short_of_files(problem) { RAISE_FILES } else { "or set this option to false" }
}

/// Returns an error message for a failed operation (`what`) on a topic. The message lists the required permissions, unless the process has
/// run out of file descriptors or the brokers refuse the topic's settings.
fn failure(what: &str, name: &str, wanted: u32, error: &KafkaError) -> String {
    let (reason, refuses) = match error {
        KafkaError::AdminOp(code) => (code.to_string(), what == "create" && refuses_settings(*code)),
        other => (other.to_string(), false),
    };
    let failed = format!("cannot {what} topic {name:?}: {reason}");
    if is_short_of_files(&reason) {
        return failed;
    }
    if refuses {
        return format!(
            "{failed}; the brokers reject the topic even with only the settings {}, which prevent data loss; allow these settings on the brokers, or create the topic with {wanted} partitions and these settings",
            RETENTION.map(|(setting, value)| format!("{setting}={value}")).join(", ")
        );
    }
    format!(
        "{failed}; if a permission is missing, give this user Create on the cluster (and Alter on the topic, to add partitions), or make sure that the topic has {wanted} partitions, cleanup.policy=delete, and retention.ms=-1"
    )
}

/// Checks that a repartition topic has the same partition count as another topic of its space.
fn is_like(count: u32, name: &str, other: Option<&(u32, String)>) -> Result<(), Fault> {
    match other {
        Some((wanted, other)) if *wanted != count => Err(Fault::Problem(format!(
            "topic {name:?} has {count} partitions, but {other:?} of the same space has {wanted}, and the counts must be equal; once unseen has read all records of {name:?}, delete that topic, and unseen recreates it"
        ))),
        _ => Ok(()),
    }
}

/// Checks one internal topic. If necessary, creates the topic or adds partitions to it. Returns the partition count that the topic has or
/// will have, and a warning about its settings, if any. `keeps` is true for a repartition topic, because an existing repartition topic
/// keeps its partition count even if `wanted` differs.
fn ensure_one(
    config: &Config,
    observer: &BaseConsumer<Observer>,
    name: &str,
    wanted: u32,
    keeps: bool,
    make: bool,
) -> Result<(u32, Option<String>), Fault> {
    let look = || {
        partitions(observer, name).map_err(|error| match error {
            KafkaError::MetadataFetch(RDKafkaErrorCode::TopicAuthorizationFailed) => {
                let advice = format!("give this user {ON_TOPICS} that start with \"{}-\"", config.kafka.group_id);
                Fault::Problem(invisible(name, &advice))
            }
            other => Fault::Transient(format!("cannot get metadata of topic {name:?}: {other}")),
        })
    };
    let check = || check(config, name).map(|limit| limit.filter(|_| keeps)).map_err(Fault::Problem);
    let found = look()?;
    if found == wanted || found > 0 && keeps {
        return Ok((found, check()?));
    }
    if found > wanted {
        return Err(Fault::Problem(format!(
            "topic {name:?} has {found} partitions, but its space has {wanted}, and the counts must be equal; keep the state directories, which then have the only copy of the keys, and delete the topic; unseen recreates it"
        )));
    }
    let (admin, options) = admin(config).map_err(|error| Fault::Transient(error.to_string()))?;
    let options = options.validate_only(!make);
    let (what, answer) = if found == 0 {
        ("create", create_internal(name, wanted, |topic| only(block_on(admin.create_topics([topic], &options)))))
    } else {
        let more = NewPartitions::new(name, wanted as usize);
        ("add partitions to", only(block_on(admin.create_partitions([&more], &options))).map(|()| None))
    };
    let refused = match answer {
        // Another process has created the topic or added the partitions first.
        Err(KafkaError::AdminOp(RDKafkaErrorCode::TopicAlreadyExists | RDKafkaErrorCode::InvalidPartitions)) => None,
        Err(error) => {
            let kind = if is_refusal(&error) { Fault::Problem } else { Fault::Transient };
            return Err(kind(failure(what, name, wanted, &error)));
        }
        Ok(refused) => {
            if make {
                let done = if found == 0 { "created the internal topic" } else { "added partitions to the internal topic" };
                tracing::info!(topic = name, partitions = wanted, "{done}");
            }
            refused.map(|code| left_out(name, code, keeps, make))
        }
    };
    if !make {
        return Ok((wanted, if found > 0 { check()? } else { refused }));
    }
    let asked = Instant::now();
    while look()? < wanted {
        if asked.elapsed() > CALL_TIMEOUT {
            return Err(Fault::Transient(format!("the brokers do not list the new partitions of topic {name:?} yet")));
        }
        std::thread::sleep(PAUSE);
    }
    // Another process may have created the repartition topic with a different count.
    let found = if keeps { look()? } else { wanted };
    let limit = check()?;
    Ok((found, refused.or(limit)))
}

/// Creates an internal topic. `send` sends the request. Some managed Kafka services refuse optional settings. Then this function creates
/// the topic with only the settings in [`RETENTION`] and returns the error code of the refused request.
pub(super) fn create_internal(
    name: &str,
    partitions: u32,
    send: impl Fn(&NewTopic<'_>) -> Result<(), KafkaError>,
) -> Result<Option<RDKafkaErrorCode>, KafkaError> {
    let count = i32::try_from(partitions).unwrap_or(i32::MAX);
    let send_with = |settings: &mut dyn Iterator<Item = (&'static str, &'static str)>| {
        let topic = NewTopic::new(name, count, TopicReplication::Fixed(-1));
        send(&settings.fold(topic, |topic, (setting, value)| topic.set(setting, value)))
    };
    match send_with(&mut RETENTION.into_iter().chain(optional())) {
        Err(KafkaError::AdminOp(code)) if refuses_settings(code) => send_with(&mut RETENTION.into_iter()).map(|()| Some(code)),
        answer => answer.map(|()| None),
    }
}

/// Returns the settings of an internal topic that brokers may refuse. Without these settings, the topic still loses no records.
fn optional() -> impl Iterator<Item = (&'static str, &'static str)> {
    [TIMES].into_iter().chain(LIMITS).chain([SEGMENT])
}

const fn refuses_settings(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::InvalidConfig | RDKafkaErrorCode::PolicyViolation | RDKafkaErrorCode::InvalidRequest)
}

/// Returns a warning about a topic that is created without its optional settings.
fn left_out(name: &str, code: RDKafkaErrorCode, is_repartition: bool, make: bool) -> String {
    let names = optional().map(|(setting, _)| setting).collect::<Vec<_>>().join(", ");
    let is = if make { "was" } else { "will be" };
    let times = if is_repartition {
        "the topic rejects records whose time is outside the brokers' limits, and the worker stops at such a record; "
    } else {
        ""
    };
    format!(
        "the brokers refuse a setting of topic {name:?} ({code}), so the topic {is} created without {names}: {times}records that the worker deletes take disk space until a segment of the brokers' default size is full"
    )
}

/// Checks that the topic's settings do not delete or change records. Returns a warning if the settings limit the times of records. If the
/// settings cannot be read, logs a warning.
fn check(config: &Config, name: &str) -> Result<Option<String>, String> {
    match wrong_settings(config, name) {
        Ok(WrongSettings { problem: Some(problem), .. }) => Err(problem),
        Ok(WrongSettings { limit, .. }) => Ok(limit),
        Err(error) => {
            tracing::warn!(
                topic = name,
                error = %error,
                "cannot check the settings of this internal topic; make sure that it has cleanup.policy=delete, retention.ms=-1, retention.bytes=-1, and message.timestamp.type=CreateTime. If a permission is missing, give this user DescribeConfigs on the topic"
            );
            Ok(None)
        }
    }
}

/// Messages about settings of an internal topic that have other values than unseen would set.
pub(super) struct WrongSettings {
    /// An error message about a setting that deletes or changes records.
    pub(super) problem: Option<String>,
    /// A warning about a setting that limits record times.
    limit: Option<String>,
}

/// Returns the first setting that deletes or changes records, and the first setting that limits record times.
pub(super) fn wrong_settings(config: &Config, name: &str) -> Result<WrongSettings, KafkaError> {
    let (admin, options) = admin(config)?;
    let answer = block_on(admin.describe_configs([&ResourceSpecifier::Topic(name)], &options))?;
    let found = answer.into_iter().next().unwrap_or(Err(RDKafkaErrorCode::UnknownTopicOrPartition)).map_err(KafkaError::AdminOp)?;
    let entries = found.entry_map();
    let wrong = |(setting, wanted): (&str, &str)| {
        let value = entries.get(setting)?.value.as_deref()?;
        (value != wanted).then(|| (format!("topic {name:?} has {setting}={value}"), format!("set it to {wanted}")))
    };
    let problem = RETENTION.into_iter().chain([TIMES]).find_map(wrong).map(|(has, remedy)| format!("{has}; {remedy}"));
    let limit = LIMITS.into_iter().find_map(wrong).map(|(has, remedy)| {
        format!(
            "{has}, so the topic rejects records whose time is further from the broker's clock, and the worker stops at such a record; {remedy}, if the brokers allow it"
        )
    });
    Ok(WrongSettings { problem, limit })
}

pub(super) fn admin(config: &Config) -> Result<(LoggedIn<AdminClient<Observer>>, AdminOptions), KafkaError> {
    let admin = client::create(&client::observer(&config.kafka), &config.kafka, Observer::new(config))?;
    Ok((admin, AdminOptions::new().request_timeout(Some(CALL_TIMEOUT)).operation_timeout(Some(CALL_TIMEOUT))))
}

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
    /// Returns an error if librdkafka rejects the configuration.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let tail = ChangelogTail::with(&client::changelog_reader(config, "read_committed"), config)?;
        let uncommitted = client::observe(config, &client::changelog_reader(config, "read_uncommitted"))?;
        let (admin, options) = admin(config).map_err(|error| client::property_error(&error))?;
        Ok(Self { tail, uncommitted, admin, options })
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
        let failed = |error: KafkaError| Error::Fatal(format!("cannot delete the records of {partition} before offset {offset}: {error}"));
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
    use std::cell::RefCell;

    #[test]
    fn exhausted_file_descriptors_are_not_reported_as_a_missing_permission() {
        // The first message is from librdkafka, and the second from the async runtime that waits for an answer.
        for error in [
            KafkaError::ClientCreation("Failed to create socket: Too many open files".to_owned()),
            KafkaError::AdminOpCreation("Too many open files (os error 24)".to_owned()),
        ] {
            let problem = failure("create", "news-changelog", 4, &error);
            assert_eq!(problem, format!("cannot create topic \"news-changelog\": {error}"));
            assert_eq!(advice(&problem), "raise the limit of open files (`ulimit -n`, LimitNOFILE=) to 4096");
        }
        let refused = RDKafkaErrorCode::TopicAuthorizationFailed;
        let problem = failure("create", "news-changelog", 4, &KafkaError::AdminOp(refused));
        assert!(
            problem.contains(&refused.to_string())
                && problem.contains("or make sure that the topic has 4 partitions, cleanup.policy=delete"),
            "{problem}"
        );
        assert_eq!(advice(&problem), "or set this option to false");
    }

    #[test]
    fn only_refusals_are_problems_of_a_topic() {
        use RDKafkaErrorCode::{NotController, PolicyViolation, RequestTimedOut, TopicAuthorizationFailed};
        for code in [TopicAuthorizationFailed, PolicyViolation] {
            assert!(is_refusal(&KafkaError::AdminOp(code)), "{code}");
        }
        for code in [RequestTimedOut, RDKafkaErrorCode::OperationTimedOut, NotController] {
            assert!(!is_refusal(&KafkaError::AdminOp(code)), "{code}");
        }
    }

    /// Returns the result of creating a topic on brokers that refuse these settings, and the number of settings in each request.
    fn created(refused: &[&str], code: RDKafkaErrorCode) -> (Result<Option<RDKafkaErrorCode>, KafkaError>, Vec<usize>) {
        let requests = RefCell::new(Vec::new());
        let answer = create_internal("news-changelog", 4, |topic| {
            requests.borrow_mut().push(topic.config.len());
            let is_refused = topic.config.iter().any(|(setting, _)| refused.contains(setting));
            if is_refused { Err(KafkaError::AdminOp(code)) } else { Ok(()) }
        });
        (answer, requests.into_inner())
    }

    #[test]
    fn only_settings_that_a_topic_can_do_without_are_left_out() {
        use RDKafkaErrorCode::{InvalidConfig, InvalidReplicationFactor, InvalidRequest, PolicyViolation};
        assert_eq!(created(&[], InvalidConfig), (Ok(None), vec![7]));
        for code in [InvalidConfig, PolicyViolation, InvalidRequest] {
            for setting in ["segment.bytes", "message.timestamp.type", "message.timestamp.after.max.ms"] {
                assert_eq!(created(&[setting], code), (Ok(Some(code)), vec![7, 3]), "{setting}");
            }
            for setting in ["cleanup.policy", "retention.ms", "retention.bytes"] {
                let (answer, requests) = created(&["segment.bytes", setting], code);
                assert_eq!(requests, [7, 3]);
                let problem = failure("create", "news-changelog", 4, &answer.unwrap_err());
                assert!(
                    problem.contains("even with only the settings cleanup.policy=delete, retention.ms=-1, retention.bytes=-1"),
                    "{problem}"
                );
                assert!(!problem.contains("give this user Create"), "{problem}");
            }
        }
        let other = InvalidReplicationFactor;
        assert_eq!(created(&["segment.bytes"], other), (Err(KafkaError::AdminOp(other)), vec![7]));
    }
}
