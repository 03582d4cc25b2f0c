//! Errors of Kafka clients, and requirements that topics do not meet.
//!
//! Owns the error messages for the operator. Must never name a type of librdkafka.

/// A requirement of the configuration that a topic of the cluster does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The input topic that cannot be read because of this problem.
    pub input: String,
    /// The problem and its solution.
    pub message: String,
}

/// The reason why a client cannot continue. Retrying with the same client is useless, unless the documentation of the method says
/// otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// librdkafka rejected a property or its value.
    #[error("kafka.properties: {0}")]
    Property(String),
    /// No broker responded in time.
    #[error(
        "no broker at {servers} answered within {waited:?}; check that Kafka is running there, and that kafka.bootstrap_servers is correct ({reason})"
    )]
    NoBroker {
        /// The addresses that were tried.
        servers: String,
        /// The time spent waiting.
        waited: std::time::Duration,
        /// The last error message of librdkafka.
        reason: String,
    },
    /// The brokers respond, but reject this client.
    #[error("{advice} ({reason})")]
    Refused {
        /// The action for the operator, such as granting a permission.
        advice: String,
        /// The error message of librdkafka.
        reason: String,
    },
    /// The topics do not meet the requirements of the configuration.
    #[error("{}", .0.iter().map(|problem| &*problem.message).collect::<Vec<_>>().join("\n       "))]
    Cluster(Vec<Problem>),
    #[error("{0}")]
    Fatal(String),
    /// Another process has joined the group with this consumer's static name (`group.instance.id`), or the group mistakes this consumer for
    /// another process. The consumer can no longer be used. `worker/rejoin.rs` distinguishes the two cases.
    #[error("another process joined the group with the same kafka.instance_id; give each process its own kafka.instance_id")]
    Fenced,
    /// The process had to stop while it was waiting.
    #[error("interrupted, because the process is stopping")]
    Stopped,
}
