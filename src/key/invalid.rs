//! Error messages for records without a usable key or event time.
//!
//! Only writes messages: the callers decide that a record is invalid. A message never contains a value of a record.

use super::encoding::Tag;
use super::{EmbeddedField, Part};
use crate::format::{Format, Side, Unreadable, disguise, is_likely_framed, missing_field_in_json};
use crate::record::{Invalid, Reason};
use serde::de::IgnoredAny;

/// `text` is the record key or value without its frame.
#[cold]
pub(super) fn unreadable(side: Side, is_framed: bool, text: &[u8], error: &Unreadable) -> Invalid {
    let what = match disguise(side, text).filter(|_| !is_framed) {
        Some(disguise) if matches!(error, Unreadable::Json(_)) => format!("is not JSON: {disguise}"),
        Some(disguise) => format!("{error}; {disguise}"),
        None if is_framed || !is_likely_framed(text) => error.to_string(),
        None => {
            let advice = match error {
                Unreadable::Json(_) | Unreadable::Deep => format!("set {side}_format to one of {}", Format::list(Format::has_frame)),
                Unreadable::Schema(_) => "remove `schema` from the format to use the registry's schema".to_owned(),
            };
            format!("{error}; it begins like a record with a schema id: {advice}")
        }
    };
    Invalid { reason: Reason::Malformed, message: format!("the record {side} {what}") }
}

pub(super) fn tombstone() -> Invalid {
    Invalid { reason: Reason::Tombstone, message: "the record value is null, but the key needs it".to_owned() }
}

pub(super) fn missing(part: &Part) -> Invalid {
    let part = part.to_string();
    let message = match part.strip_prefix("the first of ") {
        Some(parts) => format!("the record does not have any of these: {parts}"),
        None => format!("the record has no {}", part.trim_start_matches("the ")),
    };
    Invalid { reason: Reason::MissingKey, message }
}

/// If the record has the header in another case, the message shows the other spelling, because gateways can change the case of header
/// names.
pub(super) fn missing_header(part: &Part, name: &str, headers: &[(&str, Option<&[u8]>)]) -> Invalid {
    let mut invalid = missing(part);
    if let Some((other, _)) = headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)) {
        invalid.message =
            format!("{}, but it has header `{other}`: header names are case-sensitive without ignore_case = true", invalid.message);
    }
    invalid
}

/// `json` is the record key or value, if its format is JSON.
pub(super) fn missing_field(part: &Part, json: Option<&[u8]>) -> Invalid {
    let mut invalid = missing(part);
    let hint = json.and_then(|json| match part {
        Part::Field(pointer) => missing_field_in_json(Side::Value, Some("field"), pointer, json),
        Part::KeyField(pointer) => missing_field_in_json(Side::Key, Some("key_field"), pointer, json),
        _ => None,
    });
    invalid.message += &hint.unwrap_or_default();
    invalid
}

/// `tag` and `text` are the value of `part`. The message states why the field was not found in the value.
#[cold]
pub(super) fn missing_embedded(part: &Part, field: &EmbeddedField, tag: Tag, text: &[u8]) -> Invalid {
    let mut invalid = missing(&Part::Embedded(Box::new(part.clone()), field.clone()));
    let why = match tag {
        Tag::Null => format!(": {part} is null"),
        Tag::Number | Tag::Bool => format!(": {part} is not a string"),
        _ if serde_json::from_slice::<IgnoredAny>(text).is_err() => format!(": {part} is not JSON"),
        _ => missing_field_in_json(Side::Value, None, field.pointer(), text).unwrap_or_default(),
    };
    invalid.message += &why;
    invalid
}

#[cold]
pub(super) fn no_time(what: &str) -> Invalid {
    let message = format!("no event time: {what}; to use Kafka's timestamp instead, set optional = true in `time`");
    Invalid { reason: Reason::Malformed, message }
}

/// `json` is the record value, if its format is JSON.
#[cold]
pub(super) fn no_time_field(pointer: &str, json: Option<&[u8]>) -> Invalid {
    let hint = json.and_then(|json| missing_field_in_json(Side::Value, None, pointer, json)).unwrap_or_default();
    no_time(&format!("the record has no field `{pointer}`{hint}"))
}
