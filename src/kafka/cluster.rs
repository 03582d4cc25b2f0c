//! What the cluster looks like, and whether that suits the configuration.

use super::Error;
use super::admin::{block_on, partitions};
use super::client_config::{self as client, BATCH_BYTES};
use super::ffi::{LoggedIn, Operation};
use super::observer::{Complaint, Observer};
use super::security;
use crate::broker::Cluster;
use crate::broker::throttle;
use crate::config::{Config, OnDuplicate, OnInvalid};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Room that a broker's limit on a batch leaves for the batch's own header.
const BATCH_OVERHEAD: usize = 512;

/// How long a broker is asked before a word is said about it.
const ASK: Duration = Duration::from_secs(2);

/// Waits for a broker, looks at the topics, and makes the internal ones that are missing.
///
/// # Errors
/// When no broker answers within `kafka.connect_timeout`, or none lets us in, a topic is missing, or
/// topics that share a space have different partition counts.
pub fn discover(config: &Config, stop: &dyn Fn() -> bool) -> Result<Cluster, Error> {
    look(config, true, stop, &|trouble| tracing::warn!("{trouble}"))
}

/// The same for a command, which says itself what is waited for.
///
/// # Errors
/// When no broker answers within `kafka.connect_timeout`, or none lets us in, a topic is missing, or
/// topics that share a space have different partition counts.
pub fn prepare(config: &Config, stop: &dyn Fn() -> bool, report: &dyn Fn(&str)) -> Result<Cluster, Error> {
    look(config, true, stop, report)
}

/// Says which of the topics that were there are not any more, each as a sentence. Says nothing of what the brokers do not
/// tell.
#[must_use]
pub fn missing(config: &Config, known: &Cluster) -> Vec<String> {
    let Ok(observer) = observe(config, &client::observer(&config.kafka)) else { return Vec::new() };
    // If no broker answers, that is the reason, and none of the topics.
    if ask(&observer, config).is_some() {
        return Vec::new();
    }
    let is_gone = |topic: &&String| matches!(partitions(&observer, topic), Ok(0));
    known.partitions.keys().filter(is_gone).map(|topic| format!("topic {topic:?} does not exist any more; create it again")).collect()
}

pub(super) fn look(config: &Config, insist: bool, stop: &dyn Fn() -> bool, report: &dyn Fn(&str)) -> Result<Cluster, Error> {
    let observer = observe(config, &client::observer(&config.kafka))?;
    wait(&observer, config, insist, stop, report)?;
    let (mut cluster, mut problems) = (Cluster { batch_bytes: BATCH_BYTES, ..Cluster::default() }, Vec::new());
    for Named { setting, topic, operation } in named(config) {
        match partitions(&observer, topic) {
            Ok(0) => {
                let like = if operation == Operation::Read { "" } else { ", with as many partitions as its input" };
                problems.push(format!("{setting}: topic {topic:?} does not exist; create it{like}"));
            }
            Ok(count) => drop(cluster.partitions.insert(topic.to_owned(), count)),
            // Without any right, a topic that is not there looks the same.
            Err(KafkaError::MetadataFetch(RDKafkaErrorCode::TopicAuthorizationFailed)) => {
                problems.push(format!("{setting}: this user may not see topic {topic:?}, if it exists; give the user {operation:?} on it"));
            }
            Err(error) => return Err(Error::Fatal(format!("{setting}: cannot look at topic {topic:?}: {error}"))),
        }
    }
    compare(config, &mut cluster, &mut problems);
    if problems.is_empty() {
        super::changelog::ensure(config, &observer, &mut cluster.partitions, insist, &mut problems);
    }
    if !problems.is_empty() {
        return Err(Error::Cluster(problems));
    }
    cluster.batch_bytes = batch_bytes(config);
    Ok(cluster)
}

pub(super) fn observe(config: &Config, client: &ClientConfig) -> Result<LoggedIn<BaseConsumer<Observer>>, Error> {
    client::create(client, &config.kafka, Observer::new(config)).map_err(|error| client::property_error(&error))
}

/// Asks for metadata once. `None` if there was an answer, else the complaint.
fn ask(observer: &BaseConsumer<Observer>, config: &Config) -> Option<Complaint> {
    let error = observer.fetch_metadata(Some(&config.topics[0].input), ASK).err()?;
    // Lets the client deliver its complaints; each ends a poll.
    while observer.poll(Duration::from_millis(10)).is_some() {}
    let complaint = observer.context().complaint();
    Some(if complaint.reason.is_empty() { Complaint { reason: error.to_string(), advice: None } } else { complaint })
}

/// Waits for a broker that answers.
pub(super) fn wait(
    observer: &BaseConsumer<Observer>,
    config: &Config,
    insist: bool,
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
        if started.elapsed() >= limit || advice.is_some() && !insist {
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
            report(&format!("no broker answers yet; waiting {give_up} s more for {servers} ({reason}){advice}"));
        });
    }
}

/// Whether it is by its name alone that a broker is not trusted: OpenSSL does not say. Asks by TLS
/// and nothing else, so that no password goes to a broker of that name.
fn only_the_name_differs(config: &Config) -> bool {
    let mut client = client::observer(&config.kafka);
    client.set("security.protocol", "ssl").set("ssl.endpoint.identification.algorithm", "none");
    let Ok(observer) = observe(config, &client) else { return false };
    ask(&observer, config).is_none_or(|complaint| !security::is_distrust(&complaint.reason))
}

/// A topic that is read or written.
pub(super) struct Named<'a> {
    /// The setting that names it.
    pub(super) setting: String,
    pub(super) topic: &'a str,
    /// The operation that the user needs permission for.
    pub(super) operation: Operation,
}

pub(super) fn named(config: &Config) -> Vec<Named<'_>> {
    let mut named = Vec::new();
    for (at, topic) in config.topics.iter().enumerate() {
        named.push(Named { setting: format!("topics[{at}].input"), topic: &topic.input, operation: Operation::Read });
        let outputs = outputs(topic).into_iter();
        named.extend(outputs.map(|(setting, topic)| Named {
            setting: format!("topics[{at}].{setting}"),
            topic,
            operation: Operation::Write,
        }));
    }
    named
}

pub(super) fn outputs(topic: &crate::config::Topic) -> Vec<(&'static str, &str)> {
    // Of a shadow, the other topics are not written to either.
    let Some(output) = &topic.output else { return Vec::new() };
    let mut outputs = vec![("output", output.as_str())];
    if let OnDuplicate::Topic(name) = &topic.on_duplicate {
        outputs.push(("on_duplicate.topic", name));
    }
    if let OnInvalid::Topic(name) = &topic.on_invalid {
        outputs.push(("on_invalid.topic", name));
    }
    outputs
}

fn compare(config: &Config, cluster: &mut Cluster, problems: &mut Vec<String>) {
    for (at, topic) in config.topics.iter().enumerate() {
        let Some(&input) = cluster.partitions.get(&topic.input) else { continue };
        for (setting, name) in outputs(topic) {
            if let Some(&output) = cluster.partitions.get(name).filter(|&&output| output < input) {
                cluster.warnings.push(format!(
                    "topics[{at}].{setting}: topic {name:?} has fewer partitions ({output}) than {:?} ({input}); records go by their keys there, not to the partition they came from",
                    topic.input
                ));
            }
        }
        if let Some(problem) = topic.filter.memory_problem(topic.window, input) {
            let problem = format!("topics[{at}].filter.max_memory: {problem}");
            if topic.window.length_ms().is_none() {
                problems.push(problem);
            } else if !topic.repartition {
                // Partitions may be added while it runs. `at_max_memory` says what becomes of what does not fit.
                cluster.warnings.push(problem);
            }
        }
        // Where records are brought to their partitions first, it is those that count.
        if topic.repartition {
            continue;
        }
        let space = config.space_of(topic);
        let mut known = space.topics.iter().filter_map(|other| Some((other, *cluster.partitions.get(&other.input)?)));
        if let Some((other, count)) = known.next().filter(|&(_, count)| count != input) {
            problems.push(format!(
                "topics[{at}].space: {:?} has {input} partitions and {:?} has {count}, but both are of space {:?}; give them as many, or an id's repeats meet in different partitions",
                topic.input, other.input, topic.space
            ));
        }
    }
}

/// The smallest limit on a batch among the outputs. A guess where the brokers do not let us ask.
fn batch_bytes(config: &Config) -> usize {
    let admin = client::create::<AdminClient<_>, _>(&client::observer(&config.kafka), &config.kafka, Observer::new(config));
    let Ok(admin) = admin else {
        return BATCH_BYTES;
    };
    // Asked for one twice, a broker answers for none.
    let names: BTreeSet<_> = config.topics.iter().flat_map(outputs).map(|(_, name)| name).collect();
    if names.is_empty() {
        return BATCH_BYTES;
    }
    let topics: Vec<_> = names.into_iter().map(ResourceSpecifier::Topic).collect();
    let options = AdminOptions::new().request_timeout(Some(client::CALL_TIMEOUT));
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

    /// Warnings and problems of a topic of so many partitions.
    fn compared(window: &str, filter: &str, partitions: u32) -> (usize, usize) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("unseen.toml");
        let topic = format!("input = \"in\"\nkey = {{ record = \"key\" }}\nwindow = {window}\nfilter = {{ {filter} }}\n");
        std::fs::write(&file, format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n[[topics]]\n{topic}")).unwrap();
        let config = Config::load(&file, &[]).unwrap();
        let mut cluster = Cluster { partitions: [("in".to_owned(), partitions)].into(), ..Cluster::default() };
        let mut problems = Vec::new();
        compare(&config, &mut cluster, &mut problems);
        (cluster.warnings.len(), problems.len())
    }

    #[test]
    fn partitions_whose_shares_are_whole_blocks_are_warned_of_and_not_refused() {
        let timed = |partitions| compared("\"24h\"", "capacity = \"10M\", max_memory = \"41MiB\"", partitions);
        assert_eq!([timed(1000), timed(3000)], [(0, 0), (1, 0)]);
        // Each partition has all of a window by count.
        let counted = |partitions| compared("{ keys = \"1M\" }", "max_memory = \"8MiB\"", partitions);
        assert_eq!([counted(1), counted(2)], [(0, 0), (0, 1)]);
    }
}
