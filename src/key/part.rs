//! The parts of a key: their places in a record, and options such as `normalize` for the values at these places.
//!
//! Defines the description of a part as text. Checkpoints contain this text, and changelog records contain its hash, to detect a change of
//! the configured key. Never reads a record.

use super::{Normalizers, SpecError};
use crate::format::{JsonExtractor, Places, PointerError};
use std::fmt;

/// One part of a key.
///
/// The value of a field includes its JSON type: the number 5 and the string "5" are different keys. Pointers are checked when a
/// [`KeySpec`](super::KeySpec) is created from parts. Values are checked when a record is read.
///
/// ```
/// use unseen::key::{KeySpec, Normalizer, Normalizers, Part, Scratch};
/// use unseen::record::{Reason, Record};
///
/// let user = Part::Normalized(Box::new(Part::Field("/user".to_owned())), Normalizers::new(vec![Normalizer::Trim]));
/// let key = KeySpec::new(vec![user, Part::Optional(Box::new(Part::Header("tenant".to_owned())))])?;
/// let mut scratch = Scratch::default();
/// let mut fingerprint = |value: &[u8]| key.fingerprint(&Record { key: None, value: Some(value), headers: &[] }, &mut scratch);
///
/// assert_eq!(fingerprint(br#"{"user": "ann"}"#)?, fingerprint(br#"{"n": 2, "user": " ann "}"#)?);
/// assert_eq!(fingerprint(br#"{"name": "ann"}"#).unwrap_err().reason, Reason::MissingKey);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The whole record key, as bytes.
    RecordKey,
    /// The whole record value, as bytes.
    RecordValue,
    /// The value of the last header with this name.
    Header(String),
    /// The value of the last header with this name, ignoring ASCII case.
    HeaderInAnyCase(String),
    /// A field of the record value, as an RFC 6901 pointer. If an object has several members with the same name, the last one counts.
    Field(String),
    /// A field of the record key, as an RFC 6901 pointer. If an object has several members with the same name, the last one counts.
    KeyField(String),
    /// An attribute of a CloudEvent: a header in binary mode, or a member of the JSON value in structured mode.
    CloudEvent(String),
    /// The content of the record value, without the fields in `except`. White space, escapes, and the order of members do not matter.
    Content {
        /// RFC 6901 pointers to the fields to leave out.
        except: Vec<String>,
    },
    /// A part that may be absent. An absent part counts as null.
    Optional(Box<Part>),
    /// The first of these parts that exists in the record and is not null. The key is the same as if only the selected part were
    /// configured.
    FirstOf(Vec<Part>),
    /// A part whose value is normalized: different spellings are the same key.
    Normalized(Box<Part>, Normalizers),
    /// A field of the JSON text that is the value of another part.
    Embedded(Box<Part>, EmbeddedField),
}

/// The field that [`Part::Embedded`] reads from a JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedField {
    pub(super) pointer: String,
    pub(super) extractor: Box<JsonExtractor>,
}

impl EmbeddedField {
    /// Compiles an RFC 6901 pointer.
    ///
    /// # Errors
    /// Returns [`PointerError`] if the pointer is malformed or too deep.
    pub fn new(pointer: &str) -> Result<Self, PointerError> {
        Ok(Self { pointer: pointer.to_owned(), extractor: Box::new(JsonExtractor::new(Places::new([pointer])?)) })
    }

    /// Returns the RFC 6901 pointer to the field.
    #[must_use]
    pub fn pointer(&self) -> &str {
        &self.pointer
    }
}

impl Part {
    /// Returns the places of the part in a record, in order: the part without wrappers such as [`Part::Optional`], and all alternatives of
    /// [`Part::FirstOf`].
    #[must_use]
    pub fn leaves(&self) -> Vec<&Self> {
        match self {
            Self::Optional(part) | Self::Normalized(part, _) | Self::Embedded(part, _) => part.leaves(),
            Self::FirstOf(parts) => parts.iter().flat_map(Self::leaves).collect(),
            leaf => vec![leaf],
        }
    }

    /// True if the part is a single place without options such as `optional`, `normalize`, or `ignore_case`.
    pub(super) const fn is_plain(&self) -> bool {
        !matches!(self, Self::HeaderInAnyCase(_) | Self::Optional(_) | Self::FirstOf(_) | Self::Normalized(..) | Self::Embedded(..))
    }

    pub(super) const fn is_of_value(&self) -> bool {
        matches!(self, Self::RecordValue | Self::Field(_) | Self::Content { .. })
    }

    /// True if the part can only be in the record value. A tombstone then has no key, even if the part is optional, because the records
    /// that the tombstone deletes can have the part.
    pub(super) fn needs_value(&self) -> bool {
        match self {
            Self::FirstOf(parts) => parts.iter().all(Self::needs_value),
            Self::Optional(part) | Self::Normalized(part, _) | Self::Embedded(part, _) => part.needs_value(),
            leaf => leaf.is_of_value(),
        }
    }

    pub(super) fn check(&self) -> Result<(), SpecError> {
        match self {
            Self::FirstOf(parts) if parts.len() < 2 => Err(SpecError::Alternatives),
            Self::FirstOf(parts) => parts.iter().try_for_each(Self::check),
            Self::Normalized(part, _) | Self::Embedded(part, _) if matches!(**part, Self::Content { .. }) => {
                Err(SpecError::NormalizedContent)
            }
            Self::Optional(part) | Self::Normalized(part, _) | Self::Embedded(part, _) => part.check(),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordKey => f.write_str("the record key"),
            Self::RecordValue => f.write_str("the record value"),
            Self::Header(name) => write!(f, "header `{name}`"),
            Self::HeaderInAnyCase(name) => write!(f, "header `{name}` in any case"),
            Self::Field(pointer) => write!(f, "field `{pointer}`"),
            Self::KeyField(pointer) => write!(f, "field `{pointer}` of the record key"),
            Self::CloudEvent(name) => write!(f, "CloudEvents attribute `{name}`"),
            Self::Content { except } if except.is_empty() => f.write_str("the content of the record value"),
            Self::Content { except } => write!(f, "the content of the record value except `{}`", except.join("`, `")),
            Self::Optional(part) => write!(f, "optional {}", part.to_string().trim_start_matches("the ")),
            Self::FirstOf(parts) => {
                write!(f, "the first of {}", parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
            }
            Self::Normalized(part, steps) => write!(f, "{} ({steps})", Inner(part)),
            Self::Embedded(part, field) => write!(f, "field `{}` of the JSON in {}", field.pointer, Inner(part)),
        }
    }
}

/// A part within another part, in parentheses if necessary. Checkpoints and changelogs identify a key by its description or by the hash of
/// its description, so different keys must have different descriptions.
struct Inner<'p>(&'p Part);

impl fmt::Display for Inner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            part @ (Part::FirstOf(_) | Part::Normalized(..)) => write!(f, "({part})"),
            part => part.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Normalizer, Normalizers};

    #[test]
    fn different_keys_have_different_descriptions() {
        let [a, b, c] = ["/a", "/b", "/c"].map(|pointer| Part::Field(pointer.to_owned()));
        let first_of = |parts: &[Part]| Part::FirstOf(parts.to_vec());
        let trim = |part| Part::Normalized(Box::new(part), Normalizers::new(vec![Normalizer::Trim]));
        let within = |part| Part::Embedded(Box::new(part), EmbeddedField::new("/id").unwrap());
        let keys = [
            trim(first_of(&[a.clone(), b.clone()])),
            first_of(&[a.clone(), trim(b.clone())]),
            trim(within(a.clone())),
            within(trim(a.clone())),
            first_of(&[within(first_of(&[a.clone(), b.clone()])), c.clone()]),
            within(first_of(&[a, b, c])),
        ];
        let texts: std::collections::BTreeSet<_> = keys.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), keys.len(), "{texts:?}");
    }
}
