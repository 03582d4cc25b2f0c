//! Topic creation for `unseen init --create-topics`. A worker never uses this module, because a worker creates only internal topics.

use super::Error;
use super::admin::block_on;
use super::changelog::admin;
use crate::config::Config;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::error::RDKafkaErrorCode;

/// Creates the topics that do not exist, with the brokers' default replication and settings. Returns the names of the created topics.
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
    Ok(created)
}
