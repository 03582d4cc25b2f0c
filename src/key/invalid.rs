//! What is said of a text that is not JSON.
//!
//! Owns the words. Must never decide which text that is.

use crate::record::{Invalid, Reason};

/// Which of a record's two texts is read.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Key,
    Value,
}

/// A record whose key or value cannot be read.
pub(super) fn broken(side: Side, error: &serde_json::Error) -> Invalid {
    let side = match side {
        Side::Key => "key",
        Side::Value => "value",
    };
    Invalid { reason: Reason::Malformed, message: format!("the record {side} is not JSON: {error}") }
}

/// The same of a text, which may have been meant otherwise.
pub(super) fn unread(side: Side, text: &[u8], error: &serde_json::Error) -> Invalid {
    let mut invalid = broken(side, error);
    // The frame of a schema registry: a zero and an id, or a one and a GUID.
    if matches!((text.first(), text.len()), (Some(0), 5..) | (Some(1), 17..)) {
        let option = match side {
            Side::Key => "key_format",
            Side::Value => "value_format",
        };
        invalid.message += "; it begins like a record that names its schema: set ";
        invalid.message += option;
        invalid.message += " to \"avro\", \"protobuf\" or \"json_schema\"";
    }
    invalid
}
