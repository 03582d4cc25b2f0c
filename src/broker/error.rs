//! Errors of the seam.

/// Why a client cannot continue. Retrying with the same client is useless, unless the method says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// librdkafka refuses a property, or its value.
    #[error("kafka.properties: {0}")]
    Property(String),
    /// No broker answered in time.
    #[error("no broker answered at {servers} within {waited:?}; is Kafka running there, and is kafka.bootstrap_servers right? ({reason})")]
    NoBroker {
        /// The addresses that were tried.
        servers: String,
        /// The time it waited.
        waited: std::time::Duration,
        /// librdkafka's last message.
        reason: String,
    },
    /// Brokers answer, but not to us.
    #[error("{advice} ({reason})")]
    Refused {
        /// The remedy.
        advice: String,
        /// librdkafka's message.
        reason: String,
    },
    /// The topics are not as the configuration needs them.
    #[error("{}", .0.join("\n       "))]
    Cluster(Vec<String>),
    /// The client failed for good.
    #[error("{0}")]
    Fatal(String),
    /// The group has another member of this consumer's static name, or takes this one for another. This consumer
    /// cannot go on; a new one can find out which it is.
    #[error("another process has joined the group as the same member; give each process its own kafka.instance_id")]
    Fenced,
    /// The process was told to stop while it waited.
    #[error("told to stop")]
    Stopped,
}
