//! Records that brokers reject, with the reasons.
//!
//! Formats the error messages. This module never decides how to handle a rejected record.

use crate::broker::{DeliveryFailure, ErrorCode};
use crate::record::{Invalid, Reason};

/// A record that its topic has rejected, or whose batch was rejected.
#[derive(Debug)]
pub struct Refused {
    /// The value given to [`Outgoing::origin`](super::Outgoing::origin).
    pub origin: usize,
    pub topic: String,
    pub invalid: Invalid,
    /// False if another record of the same batch may be the cause. This record may then be accepted in a batch of its own.
    pub is_certain: bool,
}

/// Describes a record that was not written, as the end of an error message: `to <topic>: <error>`.
pub(super) fn message(DeliveryFailure { topic, error, .. }: &DeliveryFailure) -> String {
    format!("to {topic}: {error}")
}

/// Returns the reason if the topic will never accept the record in its present form.
pub(super) fn invalid(failed: &DeliveryFailure) -> Option<Invalid> {
    let DeliveryFailure { topic, bytes, code, error, reason, .. } = failed;
    match code {
        ErrorCode::TooLarge => Some(oversize(topic, *bytes)),
        ErrorCode::InvalidRecord | ErrorCode::InvalidTimestamp => {
            let why = if reason.is_empty() { error } else { reason.trim_end_matches('.') };
            Some(Invalid { reason: Reason::Refused, message: format!("topic {topic:?} rejected the record: {why}") })
        }
        _ => None,
    }
}

pub(super) fn oversize(topic: &str, bytes: usize) -> Invalid {
    let message = format!(
        "the record has {bytes} bytes without its headers and is larger than topic {topic:?} accepts; raise max.message.bytes of that topic"
    );
    Invalid { reason: Reason::Oversize, message }
}
