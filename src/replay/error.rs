//! Errors of replays.

use crate::filter;
use crate::format::{self, PointerError, SchemaId, Schemas};
use crate::key::Part;
use crate::record::Invalid;
use std::io;

/// Reason why a replay cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no topic to replay.
    #[error("there is no topic to replay")]
    NoTopic,
    /// The key needs a part of the record that an ndjson line does not have.
    #[error("the topic's key needs {0}, which an ndjson line does not have; record with `unseen capture` and replay with --format capture")]
    Part(Part),
    /// `when` or `retract` tests a part of the record that an ndjson line does not have.
    #[error(
        "the topic's `{option}` tests {place}, which an ndjson line does not have; record with `unseen capture` and replay with --format capture"
    )]
    Predicate {
        /// The option: `when` or `retract`.
        option: &'static str,
        /// The part of the record that the option tests.
        place: String,
    },
    /// The topic's records have their time in a header, and an ndjson line has no headers.
    #[error(
        "the topic's `time` is header `{0}`, which an ndjson line does not have; record with `unseen capture` and replay with --format capture"
    )]
    TimeHeader(String),
    /// A time field was given, but the topic's `time` already names one.
    #[error("--time: the topic's `time` already names {0}; leave out --time")]
    EventTime(String),
    /// More than one partition was given, but an ndjson line has no partition.
    #[error(
        "--partitions: ndjson lines have no partition, so only 1 partition is supported; record with `unseen capture` and replay with --format capture"
    )]
    Partitions,
    /// The topic's values are not JSON.
    #[error("ndjson lines are JSON, but the topic's values are {0}; record with `unseen capture` and replay with --format capture")]
    Format(format::Format),
    /// The JSON pointer of the time is malformed.
    #[error("--time")]
    Time(#[from] PointerError),
    /// A time field was given, but lines of a capture already have the record time.
    #[error("--time: lines of a capture already have the record time; remove --time")]
    SecondTime,
    /// A line is malformed.
    #[error("line {line}, at byte {offset}: {fault}")]
    Line {
        /// Line number, starting at 1.
        line: u64,
        /// Number of bytes before the line.
        offset: u64,
        /// The error in the line.
        fault: LineError,
    },
    /// The output cannot be written.
    #[error("cannot write the output")]
    Write(#[source] io::Error),
}

/// Error in a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The line cannot be read.
    #[error("cannot read the line: {0}")]
    Read(#[from] io::Error),
    /// The line is longer than this number of bytes.
    #[error("expected at most {0} bytes in a line, got more")]
    Long(u64),
    /// The whole input is compressed.
    #[error("the input is compressed with {0}; decompress it first, for example with a pipe: `{0} -dc FILE | unseen ...`")]
    Compressed(&'static str),
    /// The line is not in the given format.
    #[error("expected a record in the format of `unseen capture` or `kcat -J`: {0}")]
    Envelope(String),
    /// The record belongs to another topic.
    #[error("the record belongs to topic {got:?}, not to {expected:?}")]
    Topic {
        /// Topic of the record.
        got: String,
        /// Topic that is replayed.
        expected: String,
    },
    /// The topic does not have the record's partition.
    #[error(
        "partition {partition} does not exist; the number of partitions is {partitions}; set the topic's number of partitions with --partitions"
    )]
    Partition {
        /// Number of the partition.
        partition: i32,
        /// Number of partitions.
        partitions: usize,
    },
    /// The record has no key, and the topic is configured to stop in that case.
    #[error("{0}; to continue after such records, set the topic's `on_invalid` to \"drop\", \"emit\", or {{ topic = \"...\" }}")]
    Invalid(Invalid),
    /// The schema that the record names is not available.
    #[error("the record needs schema {schema}, which is not available: {why}")]
    Awaits {
        /// The schema.
        schema: SchemaId,
        /// The reason, as an error message.
        why: String,
    },
    /// The exact store failed to look up the key.
    #[error("{0}")]
    Verdict(filter::ExactError),
}

impl LineError {
    /// Creates the error for a schema that is not available.
    pub(crate) fn awaits(schema: SchemaId, schemas: &dyn Schemas) -> Self {
        Self::Awaits { schema, why: schemas.trouble().unwrap_or_else(|| "the schema registry has not answered".to_owned()) }
    }
}
