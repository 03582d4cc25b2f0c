//! Explains the verdict on a record, from the changelog of a group or by replaying a capture of the topic.
//!
//! The state of a filter is a function of its changelog. The changelog shows which commit processed a record, whether that commit inserted
//! the record's key, and whether an earlier commit had inserted the key. If the record was dropped although no earlier commit had inserted
//! its key, the drop was a false positive.
//!
//! This module never guesses: it reports what it cannot determine as unknown. It never joins a group, writes anything, or keeps more
//! than one key.
//!
//! | file | content |
//! |---|---|
//! | `history` | the history of one key in a changelog |
//! | `outcome` | which records of a commit were emitted |
//! | `judge` | the cause of a verdict |
//! | `client`, `state` | requests to the brokers, and what they return about a state |
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

/// Error that prevents an explanation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The record or changelog does not exist or cannot be read.
    #[error("{0}")]
    Question(String),
    /// The requested key is invalid.
    #[error(transparent)]
    Key(#[from] LookupError),
    /// Kafka returned an error.
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
    /// The capture cannot be replayed.
    #[error(transparent)]
    Replay(#[from] replay::Error),
}

#[cfg(test)]
mod tests;
