//! Errors of replays.

use crate::filter;
use crate::format::{self, PointerError, SchemaId, Schemas};
use crate::key::Part;
use crate::record::Invalid;
use std::io;

/// Error of a replay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// [`Replay::of_rules`](super::Replay::of_rules) was called without a rule.
    #[error("there is no rule to replay; pass at least one [[topics]] entry of the input")]
    NoTopic,
    /// The key, or the content that `emit` compares, needs a part of the record that an ndjson line does not have.
    #[error(
        "the topic's key or `emit` needs {0}, which an ndjson line does not have; record with `unseen capture` and replay with --format capture"
    )]
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
    /// [`Options::time`](super::Options::time) is set, but the topic's `time` already specifies a field or header.
    #[error("--time: the topic's `time` already specifies {0}; leave out --time")]
    EventTime(String),
    /// [`Options::partitions`](super::Options::partitions) is greater than 1, but an ndjson line has no partition.
    #[error(
        "--partitions: ndjson lines have no partition, so only 1 partition is supported; record with `unseen capture` and replay with --format capture"
    )]
    Partitions,
    /// The topic's values have this format, but an ndjson line is JSON.
    #[error("ndjson lines are JSON, but the topic's values are {0}; record with `unseen capture` and replay with --format capture")]
    Format(format::Format),
    /// [`Options::time`](super::Options::time) is not a JSON pointer.
    #[error("--time")]
    Time(#[from] PointerError),
    /// [`Options::time`](super::Options::time) is set, but lines of a capture already have the record time.
    #[error("--time: lines of a capture already have the record time; remove --time")]
    SecondTime,
    /// A line cannot be read or evaluated.
    #[error("line {line}, at byte {offset}: {fault}")]
    Line {
        /// Line number, starting at 1.
        line: u64,
        /// Number of bytes before the line.
        offset: u64,
        /// The error of the line.
        fault: LineError,
    },
    /// The output cannot be written.
    #[error("cannot write the emitted records or the list of false positives")]
    Write(#[source] io::Error),
}

/// Error of a line that cannot be read or evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// Reading the input failed.
    #[error("cannot read the line: {0}")]
    Read(#[from] io::Error),
    /// The line is longer than the maximum, in bytes.
    #[error("the line is longer than {0} bytes; check that the input has one record per line")]
    Long(u64),
    /// The input starts like a file in this compression format.
    #[error("the input is compressed with {0}; decompress it first, for example with a pipe: `{0} -dc FILE | unseen ...`")]
    Compressed(&'static str),
    /// The line is not in the format [`Format::Kcat`](super::Format::Kcat). Contains the parse error.
    #[error("expected a record in the format of `unseen capture` or `kcat -J`: {0}")]
    Envelope(String),
    /// The record is from another topic, and [`Replay::reject_other_topics`](super::Replay::reject_other_topics) was called.
    #[error("the record is from topic {got:?}, not from {expected:?}")]
    Topic {
        /// The topic in the line.
        got: String,
        /// The input of the replayed rule.
        expected: String,
    },
    /// The topic does not have the record's partition.
    #[error(
        "partition {partition} does not exist; the number of partitions is {partitions}; set the topic's number of partitions with --partitions"
    )]
    Partition {
        /// The partition in the line.
        partition: i32,
        /// The value of [`Options::partitions`](super::Options::partitions).
        partitions: usize,
    },
    /// The record has no key, and the topic's `on_invalid` is `"fail"`.
    #[error("{0}; to continue after such records, set the topic's `on_invalid` to \"drop\", \"emit\", or {{ topic = \"...\" }}")]
    Invalid(Invalid),
    /// The record's schema is not available.
    #[error("the record needs schema {schema}, which is not available: {why}")]
    Awaits {
        /// The id of the schema: a number or a GUID.
        schema: SchemaId,
        /// The error of a request for a missing schema, or a message that the registry has not answered.
        why: String,
    },
    /// The state is full and cannot store the key, or its exact store cannot be read.
    #[error("{0}")]
    Verdict(filter::ExactError),
}

impl LineError {
    pub(crate) fn awaits(schema: SchemaId, schemas: &dyn Schemas) -> Self {
        Self::Awaits { schema, why: schemas.trouble().unwrap_or_else(|| "the schema registry has not answered".to_owned()) }
    }
}
