//! Explains the verdict on a record, or the state of a key, from the changelog of a group. A record can also be explained from a capture of
//! the topic.
//!
//! The changelog shows which commit processed a record, whether that commit inserted the record's key, and whether an earlier commit had
//! inserted the key. If the record was dropped as a duplicate although no commit within the window had inserted its key, the drop was a
//! false positive.
//!
//! This module never guesses: a verdict or cause that it cannot determine is reported as unknown or marked as uncertain. It never joins a
//! group or writes to a topic. It keeps only the history of the requested key in memory.
//!
//! | file | content |
//! |---|---|
//! | `history` | the history of one key in a changelog |
//! | `outcome` | which records of a commit were emitted |
//! | `judge` | the cause of a verdict |
//! | `client` | requests to the brokers |
//! | `state` | the committed offsets and the rules of the state that a changelog describes |
//! | `live`, `recorded` | explanations from the brokers and from a capture |
//! | `report`, `render` | the structure of an explanation, and its sentences |

mod client;
mod history;
mod judge;
mod live;
mod outcome;
mod recorded;
mod render;
mod report;
mod state;

pub use client::Waiting;
pub use live::{key, record};
pub use recorded::{Captured, recorded};
pub use report::{
    Cause, ChangelogReach, Emission, ExplainedRecord, Explanation, Explanations, Forgetting, InputRange, InputStart, KeyPart, VerdictName,
};

use crate::kafka;
use crate::key::LookupError;
use crate::replay;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The record, its schema, the topic, the partition, or the changelog does not exist or cannot be used. The message states the reason
    /// and what to do.
    #[error("{0}")]
    Question(String),
    #[error(transparent)]
    Key(#[from] LookupError),
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
    #[error(transparent)]
    Replay(#[from] replay::Error),
}

#[cfg(test)]
mod tests;
