//! Errors of seeding.

use crate::filter::ExactError;
use crate::format::PointerError;
use crate::kafka;
use crate::key::LookupError;
use crate::record::Invalid;
use crate::replay::LineError;

/// Error of seeding. None of the keys are in the changelog, unless the message states otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options do not match the configuration.
    #[error("{0}")]
    Options(String),
    /// A pointer is malformed.
    #[error("{option}")]
    Pointer {
        option: &'static str,
        /// The parse error.
        #[source]
        error: PointerError,
    },
    /// A line is invalid.
    #[error("line {line}: {fault}")]
    Line {
        line: u64,
        /// The error in the line.
        fault: Fault,
    },
    /// The group cannot be seeded.
    #[error("{0}")]
    Refused(String),
    /// The filter does not have enough memory.
    #[error("cannot add the keys of partition {partition} to the filter: {error}")]
    Memory {
        /// Partition of the changelog.
        partition: u32,
        /// The error of the filter.
        error: ExactError,
    },
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
}

/// Error in a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The line cannot be read, or has another format.
    #[error(transparent)]
    Line(#[from] LineError),
    /// The line is not a valid row of the table.
    #[error("{0}")]
    Table(String),
    /// The record has no valid key.
    #[error("{0}; use --skip-invalid to skip such lines")]
    Invalid(Invalid),
    /// The columns do not form a valid key.
    #[error("{0}; use --skip-invalid to skip such lines")]
    Key(#[from] LookupError),
    /// The line has no time.
    #[error("the line has no time; set the location of the time with --time, or a default time with --at")]
    NoTime,
    /// The time is invalid.
    #[error("expected a time in milliseconds since 1970 or in RFC 3339, got {0:?}")]
    Time(String),
    /// The time is before 1973.
    #[error("the time {0} is before March 1973; if the times are in seconds, convert them to milliseconds")]
    Past(String),
    /// The time is too far ahead of the clock.
    #[error(
        "the time {0} is more than max_future ahead of this machine's clock; check that the clock is correct, and that the times are in milliseconds"
    )]
    Future(String),
    /// The partition of the key is unknown.
    #[error(
        "the partition of the key is unknown; set --record-key to the location of the record key and --partitioner to the partitioner of the producers, or add each key to every partition with --every-partition, which takes more memory"
    )]
    NoPartition,
    /// The partition depends on the schema registry frame of the record key.
    #[error(
        "the partition of the key is unknown: producers hash the record key with its schema registry frame (key_format), which the file does not have; seed from a capture of the input topic, or add each key to every partition with --every-partition, which takes more memory"
    )]
    FramedKey,
    /// The partition of the record does not exist in the topic.
    #[error("partition {partition} does not exist; the topic has {partitions} partitions")]
    Partition {
        partition: i32,
        /// Number of partitions of the topic.
        partitions: u32,
    },
    /// The command was interrupted.
    #[error("interrupted; nothing was written")]
    Stopped,
    /// The file has more keys than `max_keys`.
    #[error("the file has more than {0} keys; raise --max-keys, which takes 32 bytes of memory per key")]
    Many(u64),
}
