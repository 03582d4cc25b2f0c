//! Why a group is not seeded. Each is a sentence for a person.

use crate::filter::ExactError;
use crate::format::PointerError;
use crate::kafka;
use crate::key::LookupError;
use crate::record::Invalid;
use crate::replay::LineError;

/// Why a group is not seeded. Nothing of the file is in its changelog then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options do not fit the configuration.
    #[error("{0}")]
    Options(String),
    /// A pointer is malformed.
    #[error("{option}")]
    Pointer {
        option: &'static str,
        /// What is wrong with it.
        #[source]
        error: PointerError,
    },
    /// A line is at fault.
    #[error("line {line}: {fault}")]
    Line {
        line: u64,
        /// What is wrong with it.
        fault: Fault,
    },
    /// The group, or what it has left behind, does not allow it.
    #[error("{0}")]
    Refused(String),
    /// The filter has no room.
    #[error("partition {partition}: {error}; give topics.filter more room")]
    Memory {
        /// Of the changelog.
        partition: u32,
        /// What is short.
        error: ExactError,
    },
    /// Kafka cannot be worked with.
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It cannot be read, or is of another format.
    #[error(transparent)]
    Line(#[from] LineError),
    /// It is no line of such a table.
    #[error("{0}")]
    Table(String),
    /// It has no key.
    #[error("{0}; --skip-invalid leaves such lines out")]
    Invalid(Invalid),
    /// Its texts are no key.
    #[error("{0}; --skip-invalid leaves such lines out")]
    Key(#[from] LookupError),
    /// It does not say when its key was seen.
    #[error("it has no time; say where it is with --time, or with --at which time is meant")]
    NoTime,
    /// Its time cannot be read.
    #[error("expected a time in milliseconds since 1970 or in RFC 3339, got {0:?}")]
    Time(String),
    /// It was seen before there was Kafka.
    #[error("its time, {0}, lies long ago; are its times in seconds? They must be in milliseconds")]
    Past(String),
    /// It was seen later than now.
    #[error("its time, {0}, lies ahead; are its times in milliseconds?")]
    Future(String),
    /// The partition of its record is not known.
    #[error(
        "the partition of its key is not known: set --record-key to the place of the record key, and --partitioner to the way in which producers choose a partition; or put each key into every partition with --every-partition, which takes more memory"
    )]
    NoPartition,
    /// The partition depends on the frame that a producer puts before the record key.
    #[error(
        "the partition of its key is not known: producers hash the record key with the frame of the schema registry (key_format), which the file does not have, so a partitioner cannot find it; seed from a capture of the input topic, or put each key into every partition with --every-partition, which takes more memory"
    )]
    FramedKey,
    /// It names a partition that the topic does not have.
    #[error("it is of partition {partition}, and the topic has {partitions}")]
    Partition {
        partition: i32,
        /// How many there are.
        partitions: u32,
    },
    /// Whoever asked wants no more.
    #[error("told to stop; nothing was written")]
    Stopped,
    /// There are more keys than were agreed on.
    #[error("there are more than {0} keys; each takes 32 bytes of memory while they are sorted, and --max-keys allows more")]
    Many(u64),
}
