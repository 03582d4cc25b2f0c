//! A key in a query, given by the texts of its parts.
//!
//! Interprets these texts. For a field, `1` can be the number 1 or the string "1", so a query looks up both keys. Never omits a possible
//! key, because the answer "not seen" could then be wrong.

use super::encoding::{Tag, encode};
use super::{Fingerprint, KeySpec, Part, Scratch};
use crate::format::{Extract as _, JsonExtractor, unescape};
use serde::de::IgnoredAny;
use std::borrow::Cow;

/// Binary logarithm of the maximum number of keys that the texts of a query can mean. Each text with two interpretations doubles the number
/// of keys.
pub(super) const AMBIGUOUS_MAX: u32 = 4;

/// Error of a lookup by the texts of a key's parts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The number of texts differs from the number of parts.
    #[error("the key has {wanted} {}, {parts}; got {got}", if *.wanted == 1 { "part" } else { "parts" })]
    Parts {
        /// The number of parts of the key.
        wanted: usize,
        /// The number of texts that were passed.
        got: usize,
        /// The parts of the key, such as ``the record key and header `h` ``.
        parts: String,
    },
    /// A part of the key is the content of the record value, but the text for this part is not JSON.
    #[error("a part of the key is the content of the record value, so the text for that part must be JSON, such as {{\"id\":1}}")]
    Content,
    /// All parts are null. No record has such a key.
    #[error("all parts are null, and no record has such a key; give a value for at least one part")]
    Null,
    /// The texts can mean more than 16 keys. For example, the text `1` for a field can be a number or a string.
    #[error(
        "this key cannot be looked up: its texts can mean more than 16 different keys, because a text such as 1 can be a number or a string"
    )]
    Ambiguous,
}

/// Interpretations of a field's text in a query. If there are two, the first is a JSON value, and the second is the text as a string.
pub(super) struct Readings<'t> {
    pub(super) first: (Tag, Cow<'t, [u8]>),
    pub(super) second: Option<&'t [u8]>,
}

impl<'t> Readings<'t> {
    pub(super) fn of(text: &'t [u8]) -> Self {
        let bytes = Self { first: (Tag::Bytes, Cow::Borrowed(text)), second: None };
        let tag = match text.first() {
            Some(b'-' | b'0'..=b'9') if is_number(text) => Tag::Number,
            Some(b't' | b'f') if matches!(text, b"true" | b"false") => Tag::Bool,
            Some(b'n') if text == b"null" => return Self { first: (Tag::Null, Cow::Borrowed(b"")), second: Some(text) },
            Some(b'{' | b'[') if serde_json::from_slice::<IgnoredAny>(text).is_ok() => Tag::Container,
            // The quotes either delimit a string or are part of the string.
            Some(b'"') => match unescape(text) {
                Ok(inner) => return Self { first: (Tag::Bytes, Cow::Owned(inner.into_bytes())), second: Some(text) },
                Err(_) => return bytes,
            },
            _ => return bytes,
        };
        Self { first: (tag, Cow::Borrowed(text)), second: Some(text) }
    }
}

/// True if a text is exactly one JSON number (RFC 8259, section 6).
fn is_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits(rest);
    if whole == 0 || (whole > 1 && rest[0] == b'0') {
        return false;
    }
    let mut rest = &rest[whole..];
    if let Some(after) = rest.strip_prefix(b".") {
        let decimals = digits(after);
        if decimals == 0 {
            return false;
        }
        rest = &after[decimals..];
    }
    if let Some(after) = rest.strip_prefix(b"e").or_else(|| rest.strip_prefix(b"E")) {
        let after = after.strip_prefix(b"+").or_else(|| after.strip_prefix(b"-")).unwrap_or(after);
        let exponent = digits(after);
        return exponent > 0 && exponent == after.len();
    }
    rest.is_empty()
}

impl KeySpec {
    /// Appends the fingerprints of the keys that these texts can mean, one text per part, in order. The text of a field is a JSON value as
    /// written, or a string without quotes. If a text can be a JSON value or a string, appends the keys of both interpretations.
    ///
    /// # Errors
    /// Returns [`LookupError`] if the number of texts is not the number of parts, if no record has such a key, if the text for the
    /// content of a value is not JSON, or if the texts can mean too many keys.
    pub fn fingerprints_of_texts<'t>(
        &self,
        texts: impl ExactSizeIterator<Item = &'t [u8]> + Clone,
        scratch: &mut Scratch,
        found: &mut Vec<Fingerprint>,
    ) -> Result<(), LookupError> {
        if texts.len() != self.parts.len() {
            return Err(LookupError::Parts { wanted: self.parts.len(), got: texts.len(), parts: self.to_string() });
        }
        if !self.parts.iter().all(Part::is_plain) {
            return self.fingerprints_of_readings(texts, scratch, found);
        }
        let before = found.len();
        // Most keys are not ambiguous. So `choose` interprets each text while it encodes the key and allocates no memory for
        // interpretations.
        let (first, ambiguous) = self.choose(texts.clone(), 0, scratch)?;
        if ambiguous > AMBIGUOUS_MAX {
            return Err(LookupError::Ambiguous);
        }
        found.extend(first);
        for choice in 1..1_u32 << ambiguous {
            found.extend(self.choose(texts.clone(), choice, scratch)?.0);
        }
        if found.len() == before { Err(LookupError::Null) } else { Ok(()) }
    }

    /// Computes the fingerprint of one combination of interpretations. Bit n of `choice` selects the second interpretation of the n-th
    /// ambiguous part, counted from 0. Returns the fingerprint (`None` if all parts are null) and the number of ambiguous parts.
    fn choose<'t>(
        &self,
        texts: impl Iterator<Item = &'t [u8]>,
        choice: u32,
        scratch: &mut Scratch,
    ) -> Result<(Option<Fingerprint>, u32), LookupError> {
        scratch.encoded.clear();
        let (mut all_null, mut ambiguous) = (true, 0);
        let mut contents = self.contents.iter();
        for (part, text) in self.parts.iter().zip(texts) {
            let mut add = |tag: Tag, bytes: &[u8]| {
                all_null &= matches!(tag, Tag::Null);
                encode(&mut scratch.encoded, tag, bytes);
            };
            match part {
                Part::Field(_) | Part::KeyField(_) => {
                    let Readings { first: (tag, bytes), second } = Readings::of(text);
                    match second {
                        Some(text) if choice.checked_shr(ambiguous).is_some_and(|bits| bits & 1 == 1) => add(Tag::Bytes, text),
                        _ => add(tag, &bytes),
                    }
                    ambiguous += u32::from(second.is_some());
                }
                Part::RecordKey | Part::RecordValue | Part::Header(_) | Part::CloudEvent(_) => add(Tag::Bytes, text),
                Part::HeaderInAnyCase(_) | Part::Optional(_) | Part::FirstOf(_) | Part::Normalized(..) | Part::Embedded(..) => {
                    unreachable!("the key is looked up by the readings of its parts")
                }
                Part::Content { .. } => {
                    let content = contents.next().ok_or(LookupError::Content)?;
                    let mut digest = content.digest(&self.hashing, &mut scratch.room);
                    let visited = JsonExtractor::default().visit(text, &mut scratch.buffers, &mut digest);
                    match visited.map(|()| digest.finish()).map_err(|_| LookupError::Content)? {
                        Some(digest) => add(Tag::Content, &digest.to_le_bytes()),
                        None => add(Tag::Null, &[]),
                    }
                }
            }
        }
        Ok(((!all_null).then(|| self.hashing.fingerprint(&scratch.encoded)), ambiguous))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn of_texts(spec: &KeySpec, texts: &[&str]) -> Result<Vec<Fingerprint>, LookupError> {
        let mut found = Vec::new();
        spec.fingerprints_of_texts(texts.iter().map(|text| text.as_bytes()), &mut Scratch::default(), &mut found)?;
        Ok(found)
    }

    fn of_record(spec: &KeySpec, key: &str, value: &str, headers: &[(&str, Option<&[u8]>)]) -> Fingerprint {
        let record = Record { key: Some(key.as_bytes()), value: Some(value.as_bytes()), headers };
        spec.fingerprint(&record, &mut Scratch::default()).unwrap()
    }

    #[test]
    fn a_text_means_every_value_that_is_written_so() {
        let spec = KeySpec::new(vec![Part::Field("/id".to_owned())]).unwrap();
        for (text, values) in [
            ("n1", &["\"n1\"", "\"\\u006e1\""][..]),
            ("1", &["1", "\"1\""]),
            ("-0.5e+7", &["-0.5e+7", "\"-0.5e+7\""]),
            ("007", &["\"007\""]),
            ("1.", &["\"1.\""]),
            ("true", &["true", "\"true\""]),
            ("null", &["\"null\""]),
            ("\"1\"", &["\"1\"", "\"\\\"1\\\"\""]),
            ("\"a\\nb\"", &["\"a\\nb\""]),
            ("\"open", &["\"\\\"open\""]),
            ("{\"a\": 1}", &["{\"a\": 1}", "\"{\\\"a\\\": 1}\""]),
            ("", &["\"\""]),
        ] {
            let meant = of_texts(&spec, &[text]).unwrap();
            for value in values {
                let fingerprint = of_record(&spec, "", &format!("{{\"id\":{value}}}"), &[]);
                assert!(meant.contains(&fingerprint), "{text} does not mean {value}");
            }
            assert!(meant.len() <= 2, "{text}");
        }
    }

    #[test]
    fn every_part_has_its_text() {
        let spec = KeySpec::new(vec![
            Part::RecordKey,
            Part::Header("h".to_owned()),
            Part::Field("/user/id".to_owned()),
            Part::Content { except: vec!["/time".to_owned()] },
        ])
        .unwrap();
        let value = r#"{ "user": {"id": 42}, "time": 7 }"#;
        let record = of_record(&spec, "1", value, &[("h", Some(b"x"))]);
        let meant = of_texts(&spec, &["1", "x", "42", r#"{"user":{"id":42}}"#]).unwrap();
        assert!(meant.contains(&record));
        assert_eq!(meant.len(), 2, "the record key and the header are bytes, and a digest is one");
        assert_eq!(
            of_texts(&spec, &["1"]).unwrap_err().to_string(),
            "the key has 4 parts, the record key and header `h` and field `/user/id` and the content of the record value except `/time`; got 1"
        );
        assert_eq!(of_texts(&spec, &["1", "x", "42", "{"]), Err(LookupError::Content));
        let many = KeySpec::new((0..5).map(|part| Part::Field(format!("/{part}"))).collect()).unwrap();
        assert_eq!(of_texts(&many, &["1"; 5]), Err(LookupError::Ambiguous));
        assert_eq!(of_texts(&many, &["1", "1", "1", "1", "a"]).map(|meant| meant.len()), Ok(16));
    }

    #[test]
    fn numbers_are_those_of_json() {
        for text in ["0", "-1", "1.5", "10e2", "1E-7", "0.0", "-0"] {
            assert!(is_number(text.as_bytes()), "{text}");
            assert!(serde_json::from_str::<IgnoredAny>(text).is_ok());
        }
        for text in ["", "-", "01", "1.", ".5", "1e", "1e+", "+1", "1 ", "1x", "0x1", "--1", "1.2.3", "NaN"] {
            assert!(!is_number(text.as_bytes()), "{text}");
            assert!(text.ends_with(' ') || serde_json::from_str::<IgnoredAny>(text).is_err());
        }
    }
}
