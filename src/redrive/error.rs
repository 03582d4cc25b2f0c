//! Errors of a redrive.

use crate::kafka;

/// Error of a redrive. What earlier transactions have redriven stays redriven.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The redrive cannot start or continue.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
}

/// The reason why a pass over a dead-letter topic ended early.
pub(super) enum Failure {
    /// A topic rejected a batch without naming the record.
    Batch,
    /// The command fails.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<kafka::Error> for Failure {
    fn from(error: kafka::Error) -> Self {
        Self::Error(error.into())
    }
}
