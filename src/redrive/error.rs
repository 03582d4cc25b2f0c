//! Errors of a redrive.

use crate::kafka;
use crate::record::Offset;

/// Error of a redrive. Dead letters in transactions that were committed before the error stay redriven.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The redrive cannot start or continue.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
}

/// A dead letter that a topic rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Dead-letter topic.
    pub topic: String,
    /// Partition of the dead letter.
    pub partition: i32,
    /// Offset of the dead letter.
    pub offset: Offset,
    /// Topic that rejected the dead letter.
    pub target: String,
    /// Error message.
    pub error: String,
}

/// The reason why a pass over a dead-letter topic ended early.
pub(super) enum Failure {
    /// A topic rejected a batch without naming the record.
    Batch,
    /// Topics rejected these dead letters.
    Rejected(Vec<Rejected>),
    /// The dead-letter topic cannot be redriven.
    Topic(String),
    /// The command fails.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Converts an error from reading a dead-letter topic. A fatal error concerns only this topic.
impl From<kafka::Error> for Failure {
    fn from(error: kafka::Error) -> Self {
        match error {
            kafka::Error::Fatal(reason) => Self::Topic(reason),
            error => Self::Error(error.into()),
        }
    }
}
