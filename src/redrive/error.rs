//! Errors of a redrive.

use crate::kafka;
use crate::record::Offset;

/// Error of a redrive. Dead letters in transactions that were committed before the error stay redriven.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The dead-letter topic.
    pub topic: String,
    pub partition: i32,
    pub offset: Offset,
    /// The topic that rejected the dead letter.
    pub target: String,
    pub error: String,
}

/// Reason for the early end of a pass over a dead-letter topic.
pub(super) enum Failure {
    /// A topic rejected a batch, and it is unknown which of its records the topic rejects.
    Batch,
    Rejected(Vec<Rejected>),
    /// The dead-letter topic cannot be redriven.
    Topic(String),
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Converts an error from reading a dead-letter topic. After a fatal error, the redrive continues with the next dead-letter topic.
impl From<kafka::Error> for Failure {
    fn from(error: kafka::Error) -> Self {
        match error {
            kafka::Error::Fatal(reason) => Self::Topic(reason),
            error => Self::Error(error.into()),
        }
    }
}
