//! Errors of seeding.

use crate::filter::ExactError;
use crate::format::PointerError;
use crate::kafka;
use crate::key::LookupError;
use crate::record::Invalid;
use crate::replay::LineError;

/// Error of a seed. After an error, the changelog contains none of the keys, unless the message states otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{0}")]
    Options(String),
    #[error("{option}")]
    Pointer {
        option: &'static str,
        #[source]
        error: PointerError,
    },
    #[error("line {line}: {fault}")]
    Line { line: u64, fault: Fault },
    #[error("{0}")]
    Refused(String),
    #[error("cannot add the keys of partition {partition} to the filter: {error}")]
    Memory { partition: u32, error: ExactError },
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The line cannot be read or has another format.
    #[error(transparent)]
    Line(#[from] LineError),
    #[error("{0}")]
    Table(String),
    #[error("{0}; use --skip-invalid to skip such lines")]
    Invalid(Invalid),
    #[error("{0}; use --skip-invalid to skip such lines")]
    Key(#[from] LookupError),
    #[error("the line has no time; set a default time with --at, or, unless the file is a capture, the location of the time with --time")]
    NoTime,
    #[error("expected a time in milliseconds since 1970 or in RFC 3339, got {0:?}")]
    Time(String),
    #[error("the time {0} is before March 1973; if the times are in seconds, convert them to milliseconds")]
    Past(String),
    #[error(
        "the time {0} is more than max_future ahead of this machine's clock; check that the clock is correct and that the times are in milliseconds"
    )]
    Future(String),
    #[error(
        "the partition of the key is unknown; set --partitioner to the partitioner of the producers and, unless the file is a capture, --record-key to the location of the record key, or add each key to every partition with --every-partition, which uses more memory"
    )]
    NoPartition,
    #[error(
        "the partition of the key is unknown: producers hash the record key with its schema registry frame (key_format), which the file may lack; seed from a capture of the input topic, or add each key to every partition with --every-partition, which uses more memory"
    )]
    FramedKey,
    #[error("partition {partition} does not exist; the topic has {partitions} partitions")]
    Partition { partition: i32, partitions: u32 },
    #[error("interrupted; nothing was written")]
    Stopped,
    #[error(
        "there are more than {0} keys, each counted once per partition that it goes to; raise --max-keys, which uses 32 bytes of memory per key"
    )]
    Many(u64),
}
