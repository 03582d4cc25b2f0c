//! Waits for a broker and compares the topics of the cluster with the configuration.
//!
//! Creates only internal topics. Users create all other topics, themselves or with `unseen init --create-topics`.

use super::Error;
use super::admin::{all_partitions, block_on, invisible, partitions};
use super::changelog::admin;
use super::client_config::{self as client, BATCH_BYTES};
use super::ffi::{Operation, describe_topics};
use super::observer::{Complaint, Observer};
use super::security;
use crate::broker::{Cluster, Problem, throttle};
use crate::config::{Config, Topic};
use rdkafka::admin::ResourceSpecifier;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Bytes of a topic's `max.message.bytes` that are reserved for the header of a batch.
const BATCH_OVERHEAD: usize = 512;

/// Maximum number of topics to request one by one. If there are more, one request asks for all topics of the cluster.
const TOPICS_MANY: usize = 20;

/// The timeout of a metadata request. A broker that takes longer counts as not answering.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits for a broker, checks the topics, creates missing internal topics, and adds missing partitions to changelogs.
///
/// # Errors
/// Returns an error if no broker accepts this client within `kafka.connect_timeout`, if `stop` returns true during the wait, or if the
/// topics do not fit the configuration.
pub fn discover(config: &Config, stop: &dyn Fn() -> bool) -> Result<Cluster, Error> {
    look(config, true, stop, &|message| tracing::warn!("{message}"))
}

/// Does the same as `discover` but passes progress messages to `report` instead of logging them.
///
/// # Errors
/// Fails like `discover`.
pub fn prepare(config: &Config, stop: &dyn Fn() -> bool, report: &dyn Fn(&str)) -> Result<Cluster, Error> {
    look(config, true, stop, report)
}

/// Waits for a broker and returns the names of all topics that this user may see.
///
/// # Errors
/// Returns an error if no broker accepts this client within `kafka.connect_timeout`, or if `stop` returns true during the wait.
pub fn topics(config: &Config, stop: &dyn Fn() -> bool) -> Result<BTreeSet<String>, Error> {
    list(config, true, stop, &|message| tracing::warn!("{message}"))
}

/// Does the same as `topics` but passes progress messages to `report`. If the user must fix a problem, for example a rejected login, only a
/// worker waits for the fix. If `is_worker` is false, this function fails immediately.
pub(super) fn list(config: &Config, is_worker: bool, stop: &dyn Fn() -> bool, report: &dyn Fn(&str)) -> Result<BTreeSet<String>, Error> {
    let observer = client::observe(config, &client::observer(&config.kafka))?;
    wait(&observer, config, is_worker, stop, report)?;
    let metadata = observer.fetch_metadata(None, client::CALL_TIMEOUT).map_err(|error| {
        let (servers, reason) = (config.kafka.bootstrap_servers.clone(), error.to_string());
        Error::NoBroker { servers, waited: client::CALL_TIMEOUT, reason }
    })?;
    Ok(metadata.topics().iter().map(|topic| topic.name().to_owned()).collect())
}

/// Returns an error message for each known topic that no longer exists. Leaves out topics if the brokers do not reveal whether they exist.
#[must_use]
pub fn missing(config: &Config, known: &Cluster) -> Vec<String> {
    let Ok(observer) = client::observe(config, &client::observer(&config.kafka)) else { return Vec::new() };
    // If `ask` returns a reason, no broker has answered, and no topic can be reported as missing.
    if ask(&observer, config).is_some() {
        return Vec::new();
    }
    let named: BTreeSet<_> = named_topics(config).into_iter().map(|named| named.topic).collect();
    let gone = known.partitions.iter().filter(|(topic, _)| matches!(partitions(&observer, topic), Ok(0)));
    gone.map(|(topic, count)| {
        if named.contains(topic.as_str()) {
            format!("topic {topic:?} no longer exists; recreate it with {count} partitions")
        } else {
            format!("internal topic {topic:?} no longer exists; restart the worker, which recreates it")
        }
    })
    .collect()
}

pub(super) fn look(config: &Config, is_worker: bool, stop: &dyn Fn() -> bool, report: &dyn Fn(&str)) -> Result<Cluster, Error> {
    let observer = client::observe(config, &client::observer(&config.kafka))?;
    let began = Instant::now();
    loop {
        wait(&observer, config, is_worker, stop, report)?;
        let found = find_topics(config, &observer, is_worker);
        let may_retry = is_worker && found.is_err() && began.elapsed() < config.kafka.connect_timeout;
        if !may_retry || ask(&observer, config).is_none() {
            return found;
        }
        // The brokers became unreachable after they had answered, so wait for them again.
    }
}

fn find_topics(config: &Config, observer: &BaseConsumer<Observer>, is_worker: bool) -> Result<Cluster, Error> {
    let (mut cluster, mut problems) = (Cluster { batch_bytes: BATCH_BYTES, ..Cluster::default() }, Vec::new());
    let all = if config.topics.len() > TOPICS_MANY { all_partitions(observer) } else { BTreeMap::new() };
    for NamedTopic { setting, input, topic, operation } in named_topics(config) {
        let problem = match all.get(topic).map_or_else(|| partitions(observer, topic), |&count| Ok(count)) {
            Ok(0) => {
                let like = if operation == Operation::Read { "" } else { " with no fewer partitions than its input" };
                format!("{setting}: topic {topic:?} does not exist; check the name, or create the topic{like}")
            }
            Ok(count) => {
                cluster.partitions.insert(topic.to_owned(), count);
                continue;
            }
            Err(KafkaError::MetadataFetch(RDKafkaErrorCode::TopicAuthorizationFailed)) => {
                let advice = format!("create the topic, or give this user {operation:?} on it");
                format!("{setting}: {}", invisible(topic, &advice))
            }
            // A topic that matches a pattern may be so new that it has no leader yet. Such a topic must not stop the others.
            Err(error @ KafkaError::MetadataFetch(RDKafkaErrorCode::LeaderNotAvailable)) if config.is_matched(input) => {
                format!("{setting}: cannot get metadata of topic {topic:?}: {error}")
            }
            Err(error) => return Err(Error::Fatal(format!("{setting}: cannot get metadata of topic {topic:?}: {error}"))),
        };
        problems.push(Problem { input: input.input.clone(), message: problem });
    }
    // If this user lacks a permission on a topic that matches a pattern, report a problem, so that the worker leaves out only this topic.
    // If the worker read the topic anyway, the missing permission would stop all topics.
    let matched: Vec<_> = named_topics(config).into_iter().filter(|named| config.is_matched(named.input)).collect();
    if !matched.is_empty() {
        problems.extend(denied(observer, &matched));
    }
    compare(config, &mut cluster, &mut problems);
    if problems.is_empty() {
        super::changelog::ensure(config, observer, &mut cluster, is_worker, &mut problems)?;
    }
    if !problems.is_empty() {
        return Err(Error::Cluster(problems));
    }
    cluster.batch_bytes = batch_bytes(config);
    Ok(cluster)
}

/// Requests metadata once. Returns `None` if a broker answered, and otherwise the most informative error.
fn ask(observer: &BaseConsumer<Observer>, config: &Config) -> Option<Complaint> {
    // Name a topic, because a request without a topic returns all topics of the cluster.
    let topic = config.topics.first().map(|topic| topic.input.as_str());
    let error = observer.fetch_metadata(topic, METADATA_TIMEOUT).err()?;
    // Each poll handles one event. Handle all events to pass every error to the observer.
    while observer.poll(Duration::from_millis(10)).is_some() {}
    let complaint = observer.context().complaint();
    Some(if complaint.reason.is_empty() { Complaint { reason: error.to_string(), advice: None } } else { complaint })
}

pub(super) fn wait(
    observer: &BaseConsumer<Observer>,
    config: &Config,
    is_worker: bool,
    stop: &dyn Fn() -> bool,
    report: &dyn Fn(&str),
) -> Result<(), Error> {
    let (started, limit) = (Instant::now(), config.kafka.connect_timeout);
    let servers = &config.kafka.bootstrap_servers;
    loop {
        let Some(Complaint { reason, advice }) = ask(observer, config) else { return Ok(()) };
        if stop() {
            return Err(Error::Stopped);
        }
        if started.elapsed() >= limit || advice.is_some() && !is_worker {
            return Err(match advice {
                Some(_) if security::is_distrust(&reason) => {
                    Error::Refused { advice: security::advise_trust(only_the_name_differs(config)).to_owned(), reason }
                }
                Some(advice) => Error::Refused { advice, reason },
                None => Error::NoBroker { servers: servers.clone(), waited: limit, reason },
            });
        }
        let give_up = limit.saturating_sub(started.elapsed()).as_secs();
        throttle::report(&format!("no broker at {servers}: {reason}"), |_| {
            let advice = advice.map_or_else(String::new, |advice| format!("; {advice}"));
            report(&format!("no broker can be used yet; waiting {give_up} s more for {servers} ({reason}){advice}"));
        });
    }
}

/// True if a broker's certificate is trusted except for its name. OpenSSL's error does not show whether the name is the problem, so this
/// function connects again without checking the name. The second connection uses TLS without SASL, because a broker with the wrong name
/// must not receive a password.
fn only_the_name_differs(config: &Config) -> bool {
    let mut client = client::observer(&config.kafka);
    client.set("security.protocol", "ssl").set("ssl.endpoint.identification.algorithm", "none");
    let Ok(observer) = client::observe(config, &client) else { return false };
    ask(&observer, config).is_none_or(|complaint| !security::is_distrust(&complaint.reason))
}

pub(super) struct NamedTopic<'a> {
    /// The option that contains the topic name.
    pub(super) setting: String,
    /// The configuration entry that contains the option.
    pub(super) input: &'a Topic,
    pub(super) topic: &'a str,
    pub(super) operation: Operation,
}

pub(super) fn named_topics(config: &Config) -> Vec<NamedTopic<'_>> {
    let mut named_topics = Vec::new();
    for input in &config.topics {
        if config.rules(&input.input).next().is_some_and(|(_, first)| first.entry == input.entry) {
            named_topics.push(NamedTopic { setting: input.setting("input"), input, topic: &input.input, operation: Operation::Read });
        }
        let outputs = input.outputs().into_iter();
        named_topics.extend(outputs.map(|(setting, topic)| NamedTopic {
            setting: input.setting(setting),
            input,
            topic,
            operation: Operation::Write,
        }));
    }
    named_topics
}

/// Returns a problem for each permission that this user lacks on a topic in `all`. Returns an empty list if the brokers do not report
/// permissions.
pub(super) fn denied(observer: &BaseConsumer<Observer>, all: &[NamedTopic<'_>]) -> Vec<Problem> {
    let names: Vec<_> = all.iter().map(|named| named.topic).collect::<BTreeSet<_>>().into_iter().collect();
    let Ok(described) = describe_topics(observer.client(), &names, true, client::CALL_TIMEOUT) else { return Vec::new() };
    let denied = |named: &&NamedTopic<'_>| described.get(named.topic).is_some_and(|topic| topic.denies(named.operation));
    let problem = |NamedTopic { setting, input, topic, operation }: &NamedTopic<'_>| Problem {
        input: input.input.clone(),
        message: format!("{setting}: this user lacks the permission {operation:?} on topic {topic:?}; give this user {operation:?} on it"),
    };
    all.iter().filter(denied).map(problem).collect()
}

fn compare(config: &Config, cluster: &mut Cluster, problems: &mut Vec<Problem>) {
    for topic in &config.topics {
        let mut report = |message: String| problems.push(Problem { input: topic.input.clone(), message });
        let Some(&input) = cluster.partitions.get(&topic.input) else { continue };
        for (setting, name) in topic.outputs() {
            if let Some(&output) = cluster.partitions.get(name).filter(|&&output| output < input) {
                cluster.warnings.push(format!(
                    "{}: topic {name:?} has fewer partitions ({output}) than {:?} ({input}), so its records are partitioned by key and do not keep the partition of the input",
                    topic.setting(setting),
                    topic.input
                ));
            }
        }
        if let Some(problem) = topic.filter.memory_problem(topic.window, input) {
            let problem = format!("{}: {problem}", topic.setting("filter.max_memory"));
            if topic.window.length_ms().is_none() {
                report(problem);
            } else if !topic.repartition {
                // Only warn, because adding partitions can reduce the memory per partition at any time, and `at_max_memory` sets what the
                // worker does if its memory does not suffice.
                cluster.warnings.push(problem);
            }
        }
        // With `repartition`, the partitions of the input do not matter: the worker deduplicates the records of the repartition topic.
        if topic.repartition {
            continue;
        }
        let space = config.space_of(topic);
        let mut known = space.topics.iter().filter_map(|other| Some((other, *cluster.partitions.get(&other.input)?)));
        if let Some((other, count)) = known.next().filter(|&(_, count)| count != input) {
            report(format!(
                "{}: {:?} has {input} partitions and {:?} has {count}, but both are in space {:?}, so records with the same key would be in different partitions; give both topics the same number of partitions",
                topic.setting("space"),
                topic.input,
                other.input,
                topic.space
            ));
        }
    }
}

/// Returns the largest batch size in bytes that all outputs accept, but at most [`BATCH_BYTES`]. Returns [`BATCH_BYTES`] if the brokers do
/// not report their limits.
fn batch_bytes(config: &Config) -> usize {
    let Ok((admin, options)) = admin(config) else { return BATCH_BYTES };
    // Use a set, because brokers return nothing if the request contains a topic twice.
    let names: BTreeSet<_> = config.topics.iter().flat_map(Topic::outputs).map(|(_, name)| name).collect();
    if names.is_empty() {
        return BATCH_BYTES;
    }
    let topics: Vec<_> = names.into_iter().map(ResourceSpecifier::Topic).collect();
    let answer = block_on(admin.describe_configs(&topics, &options)).unwrap_or_default();
    let limits = answer
        .into_iter()
        .flatten()
        .filter_map(|resource| resource.entry_map().get("max.message.bytes").and_then(|entry| entry.value.as_ref()?.parse::<usize>().ok()));
    limits.map(|limit| limit.saturating_sub(BATCH_OVERHEAD).max(1)).fold(BATCH_BYTES, usize::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of warnings and of problems for a topic with this partition count.
    fn compared(window: &str, filter: &str, partitions: u32) -> (usize, usize) {
        let topic = format!("input = \"in\"\nkey = {{ record = \"key\" }}\nwindow = {window}\nfilter = {{ {filter} }}\n");
        let config = Config::of_text(&format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n[[topics]]\n{topic}"));
        let mut cluster = Cluster { partitions: [("in".to_owned(), partitions)].into(), ..Cluster::default() };
        let mut problems = Vec::new();
        compare(&config, &mut cluster, &mut problems);
        (cluster.warnings.len(), problems.len())
    }

    #[test]
    fn too_little_memory_per_partition_is_a_warning_unless_the_window_is_by_count() {
        let timed = |partitions| compared("\"24h\"", "capacity = \"10M\", max_memory = \"41MiB\"", partitions);
        assert_eq!([timed(1000), timed(3000)], [(0, 0), (1, 0)]);
        // With a window by count, every partition holds a whole window.
        let counted = |partitions| compared("{ keys = \"1M\" }", "max_memory = \"8MiB\"", partitions);
        assert_eq!([counted(1), counted(2)], [(0, 0), (0, 1)]);
    }
}
