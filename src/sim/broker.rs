//! The broker traits that the worker uses, implemented for the simulated cluster.

use super::client::{Asking, SimConsumer, SimEnds, SimProducer, SimReader, SimTail};
use super::cluster::TopicOptions;
use super::faults::Api;
use super::network::Code;
use super::{ClientId, World};
use super::{SimBroker, Simulation, TIMEOUT};
use crate::broker::{Broker, Cluster, Error, Problem, ProducerOptions};
use crate::config::{Config, Topic};
use crate::record::SpaceId;
use crate::runtime;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The maximum size of a produce batch, in bytes, unless an output allows less (`kafka::client_config::BATCH_BYTES`).
const BATCH_BYTES: usize = 1_000_000;
/// The bytes of a topic's `max.message.bytes` that are reserved for the batch header.
const BATCH_OVERHEAD: usize = 512;

impl Simulation {
    #[must_use]
    pub fn broker(&self) -> SimBroker {
        SimBroker(self.clone())
    }

    /// Sends a metadata request to the first available broker that the client can reach, or to broker 0 if the client cannot reach any
    /// broker.
    fn ask<T: Send + 'static>(
        &self,
        client: ClientId,
        timeout: Duration,
        serve: impl Fn(&mut World) -> Result<T, Code> + Clone + Send + 'static,
    ) -> Result<T, Code> {
        let any = |world: &World| {
            let is_reached = |&node: &usize| !world.cluster.is_down(node, world.now) && world.cut_off_for(client, node).is_none();
            (0..world.cluster.nodes.len()).find(is_reached).unwrap_or(0)
        };
        self.call(client, Api::Metadata, timeout, any, serve)
    }

    pub(super) fn topic_ids(&self, client: ClientId, topics: &[&str]) -> Result<BTreeMap<String, String>, Code> {
        let names: Vec<_> = topics.iter().map(|&topic| topic.to_owned()).collect();
        self.ask(client, TIMEOUT, move |world| {
            let ids = names.iter().filter_map(|name| Some((name.clone(), world.cluster.topics.get(name)?.id.clone())));
            Ok(ids.collect())
        })
    }

    pub(super) fn partition_count(&self, client: ClientId, topic: &str) -> Result<u32, Code> {
        let name = topic.to_owned();
        self.ask(client, TIMEOUT, move |world| {
            Ok(world.cluster.topics.get(&name).map_or(0, |topic| u32::try_from(topic.partitions.len()).unwrap_or(0)))
        })
    }
}

impl SimBroker {
    /// Asks brokers until one of them answers, `stop` returns `true`, or `connect_timeout` has passed.
    fn wait<T: Send + 'static>(
        &self,
        config: &Config,
        client: &Asking,
        stop: &dyn Fn() -> bool,
        serve: impl Fn(&mut World) -> Result<T, Code> + Clone + Send + 'static,
    ) -> Result<T, Error> {
        let began = runtime::now();
        loop {
            let code = match self.0.ask(client.id, Duration::from_secs(2), serve.clone()) {
                Ok(answer) => return Ok(answer),
                Err(code) => code,
            };
            if stop() {
                return Err(Error::Stopped);
            }
            let limit = config.kafka.connect_timeout;
            if runtime::since(began) >= limit {
                let servers = config.kafka.bootstrap_servers.clone();
                return Err(Error::NoBroker { servers, waited: limit, reason: format!("{code:?}") });
            }
        }
    }
}

impl Broker for SimBroker {
    type Consumer = SimConsumer;
    type Producer = SimProducer;
    type ChangelogReader = SimReader;
    type ChangelogTail = SimTail;
    type ChangelogEnds = SimEnds;

    fn consumer(&self, config: &Config, number: usize) -> Result<SimConsumer, Error> {
        SimConsumer::new(&self.0, config, number)
    }

    fn producer(&self, config: &Config, options: &ProducerOptions<'_>) -> Result<SimProducer, Error> {
        Ok(SimProducer::new(&self.0, config, options))
    }

    fn changelog_reader(&self, _: &Config) -> Result<SimReader, Error> {
        Ok(SimReader::new(&self.0))
    }

    fn changelog_tail(&self, _: &Config) -> Result<SimTail, Error> {
        Ok(SimTail::new(&self.0))
    }

    fn changelog_ends(&self, _: &Config) -> Result<SimEnds, Error> {
        Ok(SimEnds::new(&self.0))
    }

    fn topics(&self, config: &Config, stop: &dyn Fn() -> bool) -> Result<BTreeSet<String>, Error> {
        self.wait(config, &Asking::new(&self.0), stop, |world| Ok(world.cluster.topics.keys().cloned().collect()))
    }

    fn discover(&self, config: &Config, stop: &dyn Fn() -> bool) -> Result<Cluster, Error> {
        let client = Asking::new(&self.0);
        self.wait(config, &client, stop, |_| Ok(()))?;
        let (mut cluster, mut problems) = (Cluster { batch_bytes: BATCH_BYTES, ..Cluster::default() }, Vec::new());
        let count = |topic: &str| {
            let found = self.0.partition_count(client.id, topic);
            found.map_err(|code| Error::Fatal(format!("cannot get metadata of topic {topic:?}: {code:?}")))
        };
        for topic in &config.topics {
            for (setting, name) in named(topic) {
                match count(name)? {
                    0 => problems.push(problem(
                        topic,
                        format!("{}: topic {name:?} does not exist; check the name, or create the topic", topic.setting(setting)),
                    )),
                    partitions => drop(cluster.partitions.insert(name.to_owned(), partitions)),
                }
            }
        }
        if !problems.is_empty() {
            return Err(Error::Cluster(problems));
        }
        for (name, (owner, wanted)) in internal(config, &cluster, &count)? {
            let found = count(&name)?;
            let topic = name.clone();
            let made = match found {
                0 => self.0.ask(client.id, TIMEOUT, move |world| match world.cluster.create_topic(&topic, wanted, changelog_options()) {
                    // Another process created the topic first.
                    Err(Code::TopicExists) => Ok(()),
                    made => made,
                }),
                found if found < wanted => self.0.ask(client.id, TIMEOUT, move |world| world.cluster.add_partitions(&topic, wanted)),
                found if found > wanted => {
                    let message = format!("topic {name:?} has {found} partitions and needs {wanted}; delete it, and unseen recreates it");
                    problems.push(problem(owner, message));
                    Ok(())
                }
                _ => Ok(()),
            };
            made.map_err(|code| Error::Fatal(format!("cannot create topic {name:?}: {code:?}")))?;
            cluster.partitions.insert(name, wanted);
        }
        if !problems.is_empty() {
            return Err(Error::Cluster(problems));
        }
        let outputs: Vec<_> =
            config.topics.iter().flat_map(|topic| named(topic).into_iter().skip(1)).map(|(_, name)| name.to_owned()).collect();
        let limit = self.0.ask(client.id, TIMEOUT, move |world| {
            Ok(outputs.iter().filter_map(|name| Some(world.cluster.topics.get(name)?.options.max_message_bytes)).min())
        });
        if let Ok(Some(limit)) = limit {
            cluster.batch_bytes = cluster.batch_bytes.min(limit.saturating_sub(BATCH_OVERHEAD).max(1));
        }
        Ok(cluster)
    }

    fn missing(&self, _: &Config, known: &Cluster) -> Vec<String> {
        let client = Asking::new(&self.0);
        let topics: Vec<_> = known.partitions.keys().map(|topic| &**topic).collect();
        let Ok(found) = self.0.topic_ids(client.id, &topics) else { return Vec::new() };
        let gone = topics.into_iter().filter(|topic| !found.contains_key(*topic));
        gone.map(|topic| format!("topic {topic:?} no longer exists; recreate it")).collect()
    }
}

/// Returns the input and the outputs of a topic, each with the name of its option.
fn named(topic: &Topic) -> Vec<(&'static str, &str)> {
    [("input", topic.input.as_str())].into_iter().chain(topic.outputs()).collect()
}

fn problem(topic: &Topic, message: String) -> Problem {
    Problem { input: topic.input.clone(), message }
}

/// Returns the internal topics, each with its partition count and the configured topic that needs it. The rules are those of
/// `kafka::changelog::ensure`: for example, an existing repartition topic keeps its partition count.
fn internal<'c>(
    config: &'c Config,
    cluster: &Cluster,
    existing: &dyn Fn(&str) -> Result<u32, Error>,
) -> Result<BTreeMap<String, (&'c Topic, u32)>, Error> {
    let mut judged: BTreeMap<SpaceId, u32> = BTreeMap::new();
    let mut internal = BTreeMap::new();
    for topic in &config.topics {
        let Some(&input) = cluster.partitions.get(&topic.input) else { continue };
        let space = config.space_of(topic).id;
        let mut count = input;
        if let Some(name) = config.repartitioned(topic) {
            count = match existing(&name)? {
                0 => judged.get(&space).copied().unwrap_or(input),
                found => found,
            };
            internal.insert(name, (topic, count));
        }
        if let Some(changelog) = config.changelog(&topic.space).filter(|_| !judged.contains_key(&space)) {
            internal.insert(changelog, (topic, count));
        }
        judged.entry(space).or_insert(count);
    }
    Ok(internal)
}

/// Options that accept any timestamp, because records in a repartition topic keep their timestamps.
fn changelog_options() -> TopicOptions {
    TopicOptions { after_max_ms: i64::MAX, ..TopicOptions::default() }
}
