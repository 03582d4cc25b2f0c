//! Records that brokers do not take, and what is wrong with them.
//!
//! Owns the words. Must never decide what becomes of such a record.

use crate::broker::{DeliveryFailure, ErrorCode};
use crate::record::{Invalid, Reason};

/// A record that its topic does not take.
#[derive(Debug)]
pub struct Refused {
    /// The value given to [`Outgoing::origin`](super::Outgoing::origin).
    pub origin: usize,
    /// The topic that does not take it.
    pub topic: String,
    /// What is wrong with it.
    pub invalid: Invalid,
    /// Whether it is this record. Otherwise it may be another of the same batch, and written alone it may be taken.
    pub is_certain: bool,
}

/// The error of a record, for a person.
pub(super) fn message(DeliveryFailure { topic, error, .. }: &DeliveryFailure) -> String {
    format!("to {topic}: {error}")
}

/// What is wrong with the record, if its topic will never accept it.
pub(super) fn invalid(failed: &DeliveryFailure) -> Option<Invalid> {
    let DeliveryFailure { topic, bytes, code, error, reason, .. } = failed;
    match code {
        ErrorCode::TooLarge => Some(oversize(*bytes)),
        ErrorCode::InvalidRecord | ErrorCode::InvalidTimestamp => {
            let why = if reason.is_empty() { error } else { reason.trim_end_matches('.') };
            Some(Invalid { reason: Reason::Refused, message: format!("topic {topic:?} does not take the record: {why}") })
        }
        _ => None,
    }
}

/// What is wrong with a record that is larger than its topic takes.
pub(super) fn oversize(bytes: usize) -> Invalid {
    let message = format!("the record of {bytes} bytes is larger than the output topic takes; raise max.message.bytes of that topic");
    Invalid { reason: Reason::Oversize, message }
}
