//! Topic creation for `unseen init --create-topics`. A worker never uses this module, because a worker creates only internal topics.

use super::Error;
use super::admin::block_on;
use super::changelog::admin;
use super::client_config::CALL_TIMEOUT;
use crate::config::Config;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::error::RDKafkaErrorCode;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(50);

/// Creates the topics that do not exist, with the brokers' default replication and settings, and waits until the brokers list them. Returns
/// the names of the created topics.
///
/// # Errors
/// Returns [`Error::Fatal`] if the brokers reject a topic or do not answer.
pub fn create_topics(config: &Config, names: &[&str], partitions: u32) -> Result<Vec<String>, Error> {
    let failure = |name: &str, error: &dyn std::fmt::Display| {
        Error::Fatal(format!("cannot create topic {name:?}: {error}; create the topic yourself, with {partitions} partitions"))
    };
    let (admin, options) = admin(config).map_err(|error| failure(names[0], &error))?;
    let count = i32::try_from(partitions).unwrap_or(i32::MAX);
    let mut created = Vec::new();
    for name in names {
        let topic = NewTopic::new(name, count, TopicReplication::Fixed(-1));
        let answer = block_on(admin.create_topics([&topic], &options)).map_err(|error| failure(name, &error))?;
        match answer.into_iter().next() {
            Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => {}
            Some(Err((_, code))) => return Err(failure(name, &code)),
            _ => created.push((*name).to_owned()),
        }
    }
    // The brokers learn of a new topic after the answer. The next command of the user must find the topics.
    let is_known = |name: &String| {
        let metadata = admin.inner().fetch_metadata(Some(name), CALL_TIMEOUT);
        metadata.is_ok_and(|metadata| metadata.topics().iter().any(|topic| topic.name() == name && !topic.partitions().is_empty()))
    };
    let began = Instant::now();
    while !created.iter().all(is_known) && began.elapsed() < CALL_TIMEOUT {
        std::thread::sleep(PAUSE);
    }
    Ok(created)
}
