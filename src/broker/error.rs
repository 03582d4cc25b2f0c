//! Errors of Kafka clients, and requirements that topics do not meet.
//!
//! Contains the error messages for the operator. This module never refers to a type of librdkafka, because `sim` returns the same errors.

/// A requirement of the configuration that a topic of the cluster does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The input topic that cannot be read because of this problem.
    pub input: String,
    pub message: String,
}

/// An error of a Kafka client. Do not repeat the call with the same client, unless the method's documentation says that a failed call can
/// be retried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// librdkafka rejected a property or its value.
    #[error("kafka.properties: {0}")]
    Property(String),
    #[error(
        "no broker at {servers} answered within {waited:?}; check that Kafka is running there and that kafka.bootstrap_servers is correct ({reason})"
    )]
    NoBroker {
        servers: String,
        waited: std::time::Duration,
        /// The error message of librdkafka.
        reason: String,
    },
    /// The brokers respond but reject this client. Retrying does not help.
    #[error("{advice} ({reason})")]
    Refused {
        /// Advice for the operator, for example to grant a permission.
        advice: String,
        reason: String,
    },
    #[error("{}", .0.iter().map(|problem| &*problem.message).collect::<Vec<_>>().join("\n       "))]
    Cluster(Vec<Problem>),
    #[error("{0}")]
    Fatal(String),
    /// Another process has joined the group with this consumer's static name (`group.instance.id`), or the group mistakes this consumer for
    /// another process. The consumer can no longer be used. `worker/rejoin.rs` distinguishes the two cases.
    #[error("another process joined the group with the same kafka.instance_id; give each process its own kafka.instance_id")]
    Fenced,
    #[error("interrupted, because the process is stopping")]
    Stopped,
}
