//! CloudEvents in Kafka: the mode of a record and the names of attribute headers.
//!
//! Decides the mode by the rules of the "Kafka Protocol Binding for CloudEvents", version 1.0.2. If the header `content-type` begins with
//! `application/cloudevents`, the value is the whole event or a batch of events. This module then never treats headers as attributes.

use crate::record::{Invalid, Reason};

/// The prefix of attribute headers in binary mode.
pub(super) const PREFIX: &str = "ce_";

const STRUCTURED: &[u8] = b"application/cloudevents";

/// True if the record value is the whole event in JSON (structured mode). False if the attributes are headers (binary mode).
///
/// # Errors
/// Returns [`Invalid`] if the value is the whole event in another format, or a batch of events.
pub(super) fn is_structured(headers: &[(&str, Option<&[u8]>)]) -> Result<bool, Box<Invalid>> {
    let header = headers.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    let Some(content_type) = header.and_then(|(_, value)| *value) else { return Ok(false) };
    let Some(format) = content_type.split_at_checked(STRUCTURED.len()).filter(|(start, _)| start.eq_ignore_ascii_case(STRUCTURED)) else {
        return Ok(false);
    };
    let end = format.1.iter().position(|byte| matches!(byte, b';' | b' ')).unwrap_or(format.1.len());
    if format.1[..end].eq_ignore_ascii_case(b"+json") {
        return Ok(true);
    }
    let message = format!(
        "the record has content type {:?}, but the only supported type of CloudEvents is application/cloudevents+json",
        String::from_utf8_lossy(content_type)
    );
    Err(Box::new(Invalid { reason: Reason::MissingKey, message }))
}

pub(super) fn not_json() -> Invalid {
    let message = "the record value is a CloudEvent in JSON, but value_format is another format; set value_format = \"json\"".to_owned();
    Invalid { reason: Reason::Malformed, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_type_determines_the_mode() {
        let of = |value: &str| is_structured(&[("Content-Type", Some(value.as_bytes()))]).map_err(|invalid| invalid.message);
        for structured in ["application/cloudevents+json", "application/cloudevents+json; charset=UTF-8", "Application/CloudEvents+JSON"] {
            assert_eq!(of(structured), Ok(true), "{structured}");
        }
        for binary in ["application/json", "", "application/cloudevent"] {
            assert_eq!(of(binary), Ok(false), "{binary}");
        }
        for other in ["application/cloudevents+avro", "application/cloudevents-batch+json", "application/cloudevents"] {
            assert!(of(other).is_err_and(|message| message.contains(other)), "{other}");
        }
        assert_eq!(is_structured(&[]).ok(), Some(false));
        assert_eq!(is_structured(&[("content-type", None)]).ok(), Some(false));
    }
}
