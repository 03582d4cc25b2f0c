//! Kafka, as the worker needs it: a source of records, a sink of transactions, and what the cluster looks like.
//!
//! The only place that names rdkafka. Owns how librdkafka is configured and what its errors mean;
//! must never decide what becomes of a record.

mod admin;
mod capture;
mod changelog;
mod client_config;
mod client_log;
mod cluster;
mod embedded;
mod fetch_error;
mod ffi;
mod group;
mod input_writer;
mod newest;
mod note;
mod observer;
mod security;
mod sink;
mod source;
mod tail;
pub(crate) mod throttle;

pub use capture::{Capture, Wanted};
pub use changelog::{ChangelogReader, Logged};
pub use client_config::{check_properties, delivery_timeout};
pub use cluster::{Cluster, check, discover, missing, prepare};
pub use embedded::{Embedded, Generator, Reader};
pub use ffi::Message;
pub use group::GroupView;
pub use input_writer::{InputWriter, NewRecord, Written};
pub use note::Note;
pub use sink::{Meanwhile, Outgoing, Refused, Sink, SinkError, has_twin};
pub use source::{Batch, Committed, Rebalance, Source};
pub use tail::{ChangelogEnds, ChangelogTail, Event};

/// Why Kafka cannot be worked with. Each is a sentence for a person; none is worth a retry with the same client.
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
        /// How long.
        waited: std::time::Duration,
        /// What librdkafka said last.
        reason: String,
    },
    /// Brokers answer, but not to us.
    #[error("{advice} ({reason})")]
    Refused {
        /// What to do about it.
        advice: String,
        /// What librdkafka said.
        reason: String,
    },
    /// The topics are not as the configuration needs them.
    #[error("{}", .0.join("\n       "))]
    Cluster(Vec<String>),
    /// The client cannot go on.
    #[error("{0}")]
    Fatal(String),
    /// The group has another member of this consumer's static name, or takes this one for another. This consumer
    /// cannot go on; a new one can find out which it is.
    #[error("another process has joined the group as the same member; give each process its own kafka.instance_id")]
    Fenced,
    /// Trouble to stop while waiting.
    #[error("told to stop")]
    Stopped,
}

/// Which librdkafka this is linked with.
#[must_use]
pub fn librdkafka_version() -> String {
    rdkafka::util::get_rdkafka_version().1
}
