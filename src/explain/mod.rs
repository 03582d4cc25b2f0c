//! What became of a record, and why: told from the changelog of a group, or by a replay of what was captured.
//!
//! A filter's state is a function of a log, so what it said of a record can be told from that log: which commit decided the
//! record, whether that commit inserted its key, and which commit had inserted it before. Where none had, a drop was a false
//! positive.
//!
//! Owns that conclusion, its shape and its words. Must never guess: what cannot be told is said to be unknown. Must never join
//! a group, write anything, or keep more than one key.
//!
//! | file | owns |
//! |---|---|
//! | `history` | one key in a changelog |
//! | `fate` | which of the records of one commit came out |
//! | `judge` | why |
//! | `asker`, `state` | what brokers are asked |
//! | `live`, `recorded` | an explanation from brokers, and from a capture |
//! | `report`, `words` | the shape of an explanation, and its sentences |

mod asker;
mod fate;
mod history;
mod judge;
mod live;
mod recorded;
mod report;
mod state;
mod words;

pub use asker::Waiting;
pub use live::{key, record};
pub use recorded::{Captured, recorded};
pub use report::{
    Cause, ChangelogReach, Emission, ExplainedRecord, Explanation, Explanations, Forgetting, InputRange, InputStart, KeyPart, VerdictName,
};

use crate::kafka;
use crate::key::LookupError;
use crate::replay;

/// Why nothing can be explained. Each is a sentence for a person.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for is not there, or cannot be followed.
    #[error("{0}")]
    Question(String),
    /// The key that was asked for is none.
    #[error(transparent)]
    Key(#[from] LookupError),
    /// Kafka cannot be worked with.
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
    /// The capture cannot be replayed.
    #[error(transparent)]
    Replay(#[from] replay::Error),
}

#[cfg(test)]
mod tests;
