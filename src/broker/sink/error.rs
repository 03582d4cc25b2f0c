//! The reaction to a failure of the producer.
//!
//! Chooses the reaction. The worker carries it out. This module never treats a permanent failure as temporary, because the worker would
//! retry forever.

use super::Refused;
use crate::broker::{ClientError, ErrorCode};

/// The reaction to a failure. No reaction loses records, because records whose offsets are not committed are written again.
#[derive(Debug)]
#[non_exhaustive]
pub enum SinkError {
    /// Abort the transaction and write its records again.
    Abort(String),
    /// Like `Abort`, but the cause is known: topics have rejected these records or batches that contain them (see [`Refused::is_certain`]).
    Refused(Vec<Refused>),
    /// It is unknown whether the transaction was committed or, without transactions, whether all records were written. Create a new sink,
    /// and then use the group's committed offsets to find out which records to write again.
    Unknown(String),
    /// Another producer with this transactional id has started, or the coordinator has aborted a transaction that was open for too long.
    /// The reaction is the same as for `Unknown`, but a process that is fenced repeatedly stops.
    Fenced(String),
    /// Stop, because a retry would also fail.
    Exit(String),
}

/// Formats the error message for the case that another process seems to use the same transactional id.
#[must_use]
pub fn duplicate_producer(transactional_id: &str, reason: &str) -> String {
    format!(
        "another process uses transactional id {transactional_id:?} ({reason}), possibly because a state directory was copied; give each process its own kafka.instance_id, or delete the file \"instance\" in one of the state directories"
    )
}

pub(super) const fn may_repeat(error: &ClientError) -> bool {
    error.is_retriable && !error.requires_abort && !error.is_fatal
}

/// Returns the error for a missing permission to write. `message` has the form `to <topic>: <reason>`.
pub(super) fn not_allowed(message: &str) -> SinkError {
    SinkError::Exit(format!("the brokers do not allow this user to write {message}; give this user Write on that topic"))
}

/// Returns the reaction to an error that a retry of the same call cannot fix.
pub(super) fn next(error: &ClientError) -> SinkError {
    if let Some(right) = error.missing_permission {
        return SinkError::Exit(format!("the brokers deny access: {error}; give this user {right}"));
    }
    if error.code == ErrorCode::Fenced {
        return SinkError::Fenced(error.to_string());
    }
    if error.code == ErrorCode::OffsetMetadataTooLarge {
        return SinkError::Exit(format!(
            "{error}; set offset.metadata.max.bytes on the brokers to at least 256 (the default is 4096). If several [[topics]] entries read the same input, add 300 for each of these entries"
        ));
    }
    // If the error does not require an abort, it is a timeout or a fatal error of librdkafka, so the outcome of the transaction is unknown.
    if error.requires_abort { SinkError::Abort(error.to_string()) } else { SinkError::Unknown(error.to_string()) }
}
