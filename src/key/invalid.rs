//! Messages about records that no key can be taken from.
//!
//! Owns the words, and finds out what a person has to fix. Called for invalid records only, so it may parse a text again.
//! Must never decide that a record is invalid, nor put a value of it into a message.

use super::Part;
use super::scalar::unescape;
use crate::record::{Invalid, Reason};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Which of a record's two texts is read.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Key,
    Value,
}

impl Side {
    const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Value => "value",
        }
    }
}

/// The first bytes of compressed data, and what compressed it.
const COMPRESSIONS: [(&[u8], &str); 5] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\xff\x06\x00\x00sNaPpY", "snappy"),
    (b"\x82SNAPPY\x00", "snappy"),
];

/// The first bytes of text in another encoding than JSON allows, and what to do.
const ENCODINGS: [(&[u8], &str); 3] = [
    (b"\xef\xbb\xbf", "it begins with a byte-order mark; make the producer write UTF-8 without one"),
    (b"\xff\xfe", "it is in UTF-16; make the producer write UTF-8"),
    (b"\xfe\xff", "it is in UTF-16; make the producer write UTF-8"),
];

/// Returns what compressed some bytes, if their first bytes tell.
pub(crate) fn compression(bytes: &[u8]) -> Option<&'static str> {
    COMPRESSIONS.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|&(_, name)| name)
}

/// Returns what a text is by its first bytes, and what to do, if it is compressed or in another encoding than UTF-8.
pub(crate) fn disguise(text: &[u8]) -> Option<String> {
    if let Some(name) = compression(text) {
        return Some(format!("it is compressed with {name}; send it as it is, and let the producer compress (compression.type = {name})"));
    }
    ENCODINGS.iter().find(|(magic, _)| text.starts_with(magic)).map(|&(_, words)| words.to_owned())
}

/// A record whose key or value cannot be read.
pub(super) fn broken(side: Side, error: &serde_json::Error) -> Invalid {
    Invalid { reason: Reason::Malformed, message: format!("the record {} is not JSON: {error}", side.name()) }
}

/// The same for a whole text, which may be in another format.
pub(super) fn unread(side: Side, text: &[u8], error: &serde_json::Error) -> Invalid {
    let mut invalid = broken(side, error);
    if let Some(disguise) = disguise(text) {
        invalid.message = format!("the record {} is not JSON: {disguise}", side.name());
    } else if matches!((text.first(), text.len()), (Some(0), 5..) | (Some(1), 17..)) {
        // The frame of a schema registry: a zero and an id, or a one and a GUID.
        let side = side.name();
        let hint = "it begins like a record that names its schema";
        invalid.message = format!("{}; {hint}: set {side}_format to \"avro\", \"protobuf\" or \"json_schema\"", invalid.message);
    }
    invalid
}

/// A record without the value that the key is made of.
pub(super) fn tombstone() -> Invalid {
    Invalid { reason: Reason::Tombstone, message: "the record value is null, and the key is made of it".to_owned() }
}

/// A record without a part of its key.
pub(super) fn missing(part: &Part) -> Invalid {
    Invalid { reason: Reason::MissingKey, message: format!("the record has no {}", part.to_string().trim_start_matches("the ")) }
}

/// A record without a header. Gateways change the case of header names.
pub(super) fn missing_header(part: &Part, name: &str, headers: &[(&str, Option<&[u8]>)]) -> Invalid {
    let mut invalid = missing(part);
    if let Some((other, _)) = headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)) {
        invalid.message = format!("{}, but header `{other}`: header names are case-sensitive", invalid.message);
    }
    invalid
}

/// A record without a field in its JSON key or value.
pub(super) fn missing_field(part: &Part, json: Option<&[u8]>) -> Invalid {
    let mut invalid = missing(part);
    let (Part::Field(pointer) | Part::KeyField(pointer)) = part else { return invalid };
    let side = if let Part::KeyField(_) = part { Side::Key } else { Side::Value };
    let text = json.and_then(|json| str::from_utf8(json).ok());
    if let Some(hint) = text.and_then(|text| dead_end(side, pointer, text)) {
        invalid.message += &hint;
    }
    invalid
}

/// Follows a pointer as far as it leads, and returns why it does not lead further, where that is not plain.
fn dead_end(side: Side, pointer: &str, json: &str) -> Option<String> {
    let (mut text, mut at) = (json.trim(), String::new());
    for token in pointer.split('/').skip(1) {
        let step = token.replace("~1", "/").replace("~0", "~");
        match child(text, &step) {
            Some(found) => text = found,
            None => return explain(side, &at, &step, text),
        }
        at = at + "/" + token;
    }
    None
}

/// The member or element of a container, as it is written.
fn child<'j>(text: &'j str, step: &str) -> Option<&'j str> {
    let found = match text.as_bytes().first()? {
        b'{' => serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(text).ok()?.remove(step),
        b'[' => serde_json::from_str::<Vec<&RawValue>>(text).ok()?.get(step.parse::<usize>().ok()?).copied(),
        _ => None,
    };
    found.map(RawValue::get)
}

/// Why there is no `step` in the value at `at`.
fn explain(side: Side, at: &str, step: &str, text: &str) -> Option<String> {
    let kind = match text.as_bytes().first()? {
        b'"' => {
            let inner = unescape(text.as_bytes()).ok()?;
            let is_json = inner.trim_start().starts_with(['{', '[']) && serde_json::from_str::<IgnoredAny>(&inner).is_ok();
            return match (is_json, at) {
                (true, "") => Some(format!(
                    ": the record {} is a JSON string with JSON in it; the producer encodes it twice, and should send the object itself",
                    side.name()
                )),
                (true, at) => Some(format!(": `{at}` is a string with JSON in it, and a pointer does not lead into a string")),
                (false, "") => None,
                (false, at) => Some(format!(": `{at}` is a string")),
            };
        }
        b'{' => {
            let members = serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(text).ok()?;
            let other = members.keys().find(|name| name.eq_ignore_ascii_case(step))?;
            let other = other.replace('~', "~0").replace('/', "~1");
            return Some(format!(", but `{at}/{other}`: field names are case-sensitive"));
        }
        b'[' => "a list",
        b'n' => "null",
        b't' | b'f' => "a boolean",
        _ => "a number",
    };
    (!at.is_empty()).then(|| format!(": `{at}` is {kind}"))
}
