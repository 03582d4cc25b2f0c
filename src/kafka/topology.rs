//! What the cluster looks like, and whether that suits the configuration.

use super::Error;
use super::client::{self, BATCH_BYTES};
use crate::config::{Config, OnDuplicate, OnInvalid};
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Room that a broker's limit on a batch leaves for the batch's own header.
const BATCH_OVERHEAD: usize = 512;

/// The topics that the configuration names, as they are.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// Number of partitions of each topic that exists.
    pub partitions: BTreeMap<String, u32>,
    /// Most bytes that every output takes in one batch.
    pub batch_bytes: usize,
    /// What a person should know, though it can be worked with.
    pub warnings: Vec<String>,
}

/// Keeps librdkafka's last complaint, to be told if no broker answers.
#[derive(Default)]
pub(super) struct Observer {
    complaint: Mutex<String>,
}

impl ClientContext for Observer {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if facility == "CONFWARN" || facility == "FAIL" {
            return; // `error` has it too.
        }
        client::log(level, facility, message);
    }

    fn error(&self, _: KafkaError, reason: &str) {
        reason.clone_into(&mut self.complaint.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl ConsumerContext for Observer {}

/// Waits for a broker, and looks at the topics. With `make`, changelog topics that are missing are made.
///
/// # Errors
/// When no broker answers within `kafka.connect_timeout`, a topic is missing, or topics that share a
/// space have different partition counts.
pub fn discover(config: &Config, make: bool, stop: &dyn Fn() -> bool) -> Result<Topology, Error> {
    let observer: BaseConsumer<Observer> = BaseConsumer::from_config_and_context(&client::observer(&config.kafka), Observer::default())
        .map_err(|error| client::property_error(&error))?;
    wait(&observer, config, stop)?;
    let (mut topology, mut problems) = (Topology { batch_bytes: BATCH_BYTES, ..Topology::default() }, Vec::new());
    for (setting, topic) in named(config) {
        match partitions(&observer, topic) {
            Ok(0) => problems.push(format!("{setting}: topic {topic:?} does not exist; create it, with as many partitions as its input")),
            Ok(count) => drop(topology.partitions.insert(topic.to_owned(), count)),
            Err(error) => problems.push(format!("{setting}: cannot look at topic {topic:?}: {error}")),
        }
    }
    compare(config, &mut topology, &mut problems);
    if problems.is_empty() {
        super::changelog::ensure(config, &observer, &mut topology, make, &mut problems);
    }
    if !problems.is_empty() {
        return Err(Error::Topology(problems));
    }
    topology.batch_bytes = batch_bytes(config);
    Ok(topology)
}

/// What `unseen check --connect` says: warnings, or everything that is wrong.
///
/// # Errors
/// One sentence for each thing that is wrong.
pub fn check(config: &Config) -> Result<Vec<String>, Vec<String>> {
    match discover(config, false, &|| false) {
        Ok(topology) => Ok(topology.warnings),
        Err(Error::Topology(problems)) => Err(problems),
        Err(other) => Err(vec![other.to_string()]),
    }
}

fn wait(observer: &BaseConsumer<Observer>, config: &Config, stop: &dyn Fn() -> bool) -> Result<(), Error> {
    let (started, limit) = (Instant::now(), config.kafka.connect_timeout);
    let servers = &config.kafka.bootstrap_servers;
    loop {
        let Err(error) = observer.fetch_metadata(Some(&config.topics[0].input), Duration::from_secs(2)) else { return Ok(()) };
        if stop() {
            return Err(Error::Stopped);
        }
        // Lets the client deliver its complaints.
        let _ = observer.poll(Duration::from_millis(10));
        let complaint = observer.context().complaint.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let reason = if complaint.is_empty() { error.to_string() } else { complaint };
        if started.elapsed() >= limit {
            return Err(Error::NoBroker { servers: servers.clone(), waited: limit, reason });
        }
        tracing::warn!(servers, reason, give_up_in_s = limit.saturating_sub(started.elapsed()).as_secs(), "no broker answers yet; waiting");
    }
}

/// Each topic that is read or written, with the setting that names it.
fn named(config: &Config) -> Vec<(String, &str)> {
    let mut named = Vec::new();
    for (at, topic) in config.topics.iter().enumerate() {
        named.push((format!("topics[{at}].input"), &*topic.input));
        named.extend(outputs(topic).into_iter().map(|(setting, name)| (format!("topics[{at}].{setting}"), name)));
    }
    named
}

fn outputs(topic: &crate::config::Topic) -> Vec<(&'static str, &str)> {
    let mut outputs = vec![("output", &*topic.output)];
    if let OnDuplicate::Topic(name) = &topic.on_duplicate {
        outputs.push(("on_duplicate.topic", name));
    }
    if let OnInvalid::Topic(name) = &topic.on_invalid {
        outputs.push(("on_invalid.topic", name));
    }
    outputs
}

/// Number of partitions; none if there is no such topic.
pub(super) fn partitions(observer: &BaseConsumer<Observer>, topic: &str) -> Result<u32, KafkaError> {
    let metadata = observer.fetch_metadata(Some(topic), client::CALL_TIMEOUT)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else { return Ok(0) };
    match found.error().map(RDKafkaErrorCode::from) {
        None | Some(RDKafkaErrorCode::UnknownTopicOrPartition) => Ok(u32::try_from(found.partitions().len()).unwrap_or(0)),
        Some(code) => Err(KafkaError::MetadataFetch(code)),
    }
}

fn compare(config: &Config, topology: &mut Topology, problems: &mut Vec<String>) {
    for (at, topic) in config.topics.iter().enumerate() {
        let Some(&input) = topology.partitions.get(&topic.input) else { continue };
        for (setting, name) in outputs(topic) {
            if let Some(&output) = topology.partitions.get(name).filter(|&&output| output < input) {
                topology.warnings.push(format!(
                    "topics[{at}].{setting}: topic {name:?} has fewer partitions ({output}) than {:?} ({input}); records go by their keys there, not to the partition they came from",
                    topic.input
                ));
            }
        }
        let shared = config.topics[..at].iter().find(|other| other.space == topic.space);
        if let Some((other, &count)) = shared.and_then(|other| Some((other, topology.partitions.get(&other.input)?)))
            && count != input
        {
            problems.push(format!(
                "topics[{at}].space: {:?} has {input} partitions and {:?} has {count}, but both are of space {:?}; give them as many, or an id's repeats meet in different partitions",
                topic.input, other.input, topic.space
            ));
        }
    }
}

/// The smallest limit on a batch among the outputs. A guess where the brokers do not let us ask.
fn batch_bytes(config: &Config) -> usize {
    let Ok(admin) = AdminClient::from_config_and_context(&client::observer(&config.kafka), Observer::default()) else { return BATCH_BYTES };
    let topics: Vec<_> = config.topics.iter().flat_map(outputs).map(|(_, name)| ResourceSpecifier::Topic(name)).collect();
    let options = AdminOptions::new().request_timeout(Some(client::CALL_TIMEOUT));
    let answer = block_on(admin.describe_configs(&topics, &options)).unwrap_or_default();
    let limits = answer
        .into_iter()
        .flatten()
        .filter_map(|resource| resource.entry_map().get("max.message.bytes").and_then(|entry| entry.value.as_ref()?.parse::<usize>().ok()));
    limits.map(|limit| limit.saturating_sub(BATCH_OVERHEAD).max(1)).fold(BATCH_BYTES, usize::min)
}

/// Waits for an answer of the brokers.
pub(super) fn block_on<T>(answer: impl Future<Output = Result<T, KafkaError>>) -> Result<T, KafkaError> {
    match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime.block_on(answer),
        Err(error) => Err(KafkaError::AdminOpCreation(error.to_string())),
    }
}
