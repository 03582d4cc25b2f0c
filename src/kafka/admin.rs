//! Broker requests that several modules of `kafka` use.
//!
//! Sends requests and waits for the answers. The callers decide what an answer means for a worker.

use super::Error;
use super::client_config::CALL_TIMEOUT;
use super::observer::Observer;
use super::source::unanswered;
use crate::broker::Problem;
use rdkafka::admin::TopicResult;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::BTreeMap;

/// Returns the partition count of a topic, or 0 if the topic does not exist.
pub(super) fn partitions(observer: &BaseConsumer<Observer>, topic: &str) -> Result<u32, KafkaError> {
    let metadata = observer.fetch_metadata(Some(topic), CALL_TIMEOUT)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else { return Ok(0) };
    match found.error().map(RDKafkaErrorCode::from) {
        None | Some(RDKafkaErrorCode::UnknownTopicOrPartition) => Ok(u32::try_from(found.partitions().len()).unwrap_or(0)),
        Some(code) => Err(KafkaError::MetadataFetch(code)),
    }
}

/// Returns the partition count of a topic, or 0 if the topic does not exist. If this user cannot see the topic, the error message asks for
/// the permission Read.
pub(super) fn readable_partitions(observer: &BaseConsumer<Observer>, topic: &str) -> Result<u32, Error> {
    partitions(observer, topic).map_err(|error| match error {
        KafkaError::MetadataFetch(RDKafkaErrorCode::TopicAuthorizationFailed) => {
            let message = invisible(topic, "check its name, or give this user Read on the topic");
            Error::Cluster(vec![Problem { input: topic.to_owned(), message }])
        }
        error => unanswered(&format!("get metadata of topic {topic:?}"), &error),
    })
}

/// Returns an error message for a topic on which this user has no permissions. Brokers do not reveal whether such a topic exists.
pub(super) fn invisible(topic: &str, advice: &str) -> String {
    format!("topic {topic:?} does not exist, or this user may not see it; {advice}")
}

/// Returns the partition counts of all topics that this user may see, except topics with an error. The result is empty if no broker
/// answers.
pub(super) fn all_partitions(observer: &BaseConsumer<Observer>) -> BTreeMap<String, u32> {
    let Ok(metadata) = observer.fetch_metadata(None, CALL_TIMEOUT) else { return BTreeMap::new() };
    let sound = metadata.topics().iter().filter(|topic| topic.error().is_none() && !topic.partitions().is_empty());
    sound.map(|topic| (topic.name().to_owned(), u32::try_from(topic.partitions().len()).unwrap_or(u32::MAX))).collect()
}

pub(super) fn block_on<T>(answer: impl Future<Output = Result<T, KafkaError>>) -> Result<T, KafkaError> {
    match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime.block_on(answer),
        Err(error) => Err(KafkaError::AdminOpCreation(error.to_string())),
    }
}

/// Returns the result of an admin request for exactly one topic.
pub(super) fn only(answer: Result<Vec<TopicResult>, KafkaError>) -> Result<(), KafkaError> {
    match answer?.into_iter().next() {
        Some(Err((_, code))) => Err(KafkaError::AdminOp(code)),
        _ => Ok(()),
    }
}
