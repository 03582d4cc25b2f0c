//! Records that brokers do not take, and what is wrong with them.
//!
//! Owns the words. Must never decide what becomes of such a record.

use super::origin::WrittenFrom;
use crate::record::{Invalid, Reason};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

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

/// A record that the broker did not take.
pub(super) struct Failed {
    pub(super) origin: WrittenFrom,
    pub(super) bytes: usize,
    pub(super) code: RDKafkaErrorCode,
    pub(super) topic: String,
    /// The broker's words on this record; empty if it had none.
    pub(super) reason: String,
    /// Whether it did not fail by itself.
    pub(super) given_up: bool,
}

impl Failed {
    pub(super) fn message(&self) -> String {
        let Self { topic, code, .. } = self;
        format!("to {topic}: {}", KafkaError::MessageProduction(*code))
    }

    /// What is wrong with the record, if its topic will never take it.
    pub(super) fn invalid(&self) -> Option<Invalid> {
        let (topic, bytes) = (&self.topic, self.bytes);
        match self.code {
            RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::MessageBatchTooLarge => Some(oversize(bytes)),
            RDKafkaErrorCode::InvalidRecord | RDKafkaErrorCode::InvalidTimestamp => {
                let code = KafkaError::MessageProduction(self.code).to_string();
                let why = if self.reason.is_empty() { &code } else { self.reason.trim_end_matches('.') };
                Some(Invalid { reason: Reason::Refused, message: format!("topic {topic:?} does not take the record: {why}") })
            }
            _ => None,
        }
    }
}

/// What is wrong with a record that is larger than its topic takes.
pub(super) fn oversize(bytes: usize) -> Invalid {
    let message = format!("the record of {bytes} bytes is larger than the output topic takes; raise max.message.bytes of that topic");
    Invalid { reason: Reason::Oversize, message }
}

/// How librdkafka's words begin on a record that failed with the others of its batch: where one was refused, it gives
/// that one's code to all.
pub(super) const BYSTANDER: &str = "Failed to append record because it was part of a batch";
