//! What to do after a failure of the producer.
//!
//! Owns the answer, and nothing that is done. Must never call a failure passing that another try would meet again.

use super::Refused;
use crate::broker::{ClientError, ErrorCode};

/// What to do after a failure. Nothing is lost by any: what is not committed is written again.
#[derive(Debug)]
#[non_exhaustive]
pub enum SinkError {
    /// Abort the transaction, and write what was in it again.
    Abort(String),
    /// Like `Abort`, but these records are why: their topics will never take them.
    Refused(Vec<Refused>),
    /// Nobody knows whether the transaction was committed. Make a new sink, and let the group's
    /// committed offsets decide.
    Unknown(String),
    /// Like `Unknown`: another producer of this transactional id has begun, or the coordinator gave the transaction up.
    Fenced(String),
    /// Stop: another try would fail too.
    Exit(String),
}

/// What a person is told where another process, by all appearances, has this one's transactional id.
#[must_use]
pub fn duplicate_producer(transactional_id: &str, reason: &str) -> String {
    format!(
        "another process runs as transactional id {transactional_id:?} ({reason}), as where a state directory was copied; give each its own kafka.instance_id, or delete the file \"instance\" in one of the state directories"
    )
}

/// Whether the same call may yet succeed.
pub(super) const fn may_repeat(error: &ClientError) -> bool {
    error.is_retriable && !error.requires_abort && !error.is_fatal
}

/// Writing to a topic needs a right that another try would lack too.
pub(super) fn not_allowed(message: &str) -> SinkError {
    SinkError::Exit(format!("the brokers do not allow to write {message}; give this user Write on that topic"))
}

/// What to do after an error of the producer that a repetition would not mend.
pub(super) fn next(error: &ClientError) -> SinkError {
    if let Some(right) = error.missing_permission {
        return SinkError::Exit(format!("the brokers do not allow it: {error}; give this user {right}"));
    }
    if error.code == ErrorCode::Fenced {
        return SinkError::Fenced(error.to_string());
    }
    if error.code == ErrorCode::OffsetMetadataTooLarge {
        return SinkError::Exit(format!("{error}; set offset.metadata.max.bytes of the brokers to at least 256 (the default is 4096)"));
    }
    // Else it has timed out, or there is something that librdkafka has no way back from.
    if error.requires_abort { SinkError::Abort(error.to_string()) } else { SinkError::Unknown(error.to_string()) }
}
