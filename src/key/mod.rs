//! Extracts a record's key, and computes its fingerprint.
//!
//! Owns the key's encoding, which must never change within a state format, because stored filters contain nothing but bits
//! derived from it. Pure: no I/O, no clock, no randomness.
//!
//! Each part is encoded as one tag byte, its length as a little-endian `u64`, and its bytes, so that no two different lists of
//! parts have the same encoding. The fingerprint is a hash of the encoding: XXH3-128, or SipHash with a secret if untrusted
//! parties choose the keys (see [`Hashing`]).

mod cloudevents;
mod content;
mod hashing;
mod invalid;
mod json;
mod lookup;
mod node;
mod scalar;
mod scan;
mod shown;
mod structural;
mod template;

pub use hashing::{HashKeyError, Hashing};
pub use lookup::LookupError;
pub use node::Node;
pub use scalar::Scalar;

use crate::record::{Invalid, Reason, Record};
use content::Content;
use invalid::{Side, broken, missing, missing_field, missing_header, tombstone};
pub(crate) use invalid::{compression, disguise};
use json::{Buffers, Pointers};
use scalar::unescape;
use std::borrow::Cow;
use std::fmt;

/// Hash of a key, 128 bits. Any two different keys have the same hash with a probability of 2^-128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// Returns the half that selects the key's block in a filter.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
    pub const fn low(self) -> u64 {
        self.0 as u64
    }

    /// Returns the half that selects the key's bits within its block.
    #[must_use]
    pub const fn high(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

/// Returns the partition to which a worker repartitions a key.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "below the number of partitions")]
pub fn partition(fingerprint: Fingerprint, partitions: u32) -> u32 {
    (fingerprint.0 % u128::from(partitions.max(1))) as u32
}

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The record key.
    RecordKey,
    /// The whole record value.
    RecordValue,
    /// The value of the last header with this name.
    Header(String),
    /// A field of the record value, as an RFC 6901 pointer. For duplicate fields, the last counts.
    Field(String),
    /// A field of the record key, as an RFC 6901 pointer. For duplicate fields, the last counts.
    KeyField(String),
    /// An attribute of a CloudEvent, in either mode of the record: a header, or a member of the JSON value.
    CloudEvent(String),
    /// The whole JSON value, except for these RFC 6901 pointers. White space and the order of members do not matter.
    Content {
        /// Pointers to leave out.
        except: Vec<String>,
    },
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordKey => f.write_str("the record key"),
            Self::RecordValue => f.write_str("the record value"),
            Self::Header(name) => write!(f, "header `{name}`"),
            Self::Field(pointer) => write!(f, "field `{pointer}`"),
            Self::KeyField(pointer) => write!(f, "field `{pointer}` of the record key"),
            Self::CloudEvent(name) => write!(f, "CloudEvents attribute `{name}`"),
            Self::Content { except } if except.is_empty() => f.write_str("the content of the record value"),
            Self::Content { except } => write!(f, "the content of the record value except `{}`", except.join("`, `")),
        }
    }
}

/// The parts of a record that make up its key, and how they are hashed. Compiled once, and used for every record of a topic. Its
/// `Debug` output contains no secret.
#[derive(Clone, Debug)]
pub struct KeySpec {
    parts: Vec<Part>,
    /// Pointers into the record value.
    pointers: Pointers,
    /// Pointers into the record value, including the attributes of an event that is the value.
    structured: Pointers,
    key_pointers: Pointers,
    /// Of each part that is the content of a value, in order.
    contents: Vec<Content>,
    /// True if any part is taken from the record value.
    needs_value: bool,
    /// True if any part is taken from a CloudEvent.
    reads_events: bool,
    hashing: Hashing,
}

/// An invalid key specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// There are no parts.
    #[error("a key needs at least one part")]
    Empty,
    /// A pointer that RFC 6901 does not allow, or that means another place than its spelling suggests.
    #[error("`{pointer}` is not a JSON pointer: {advice}")]
    Pointer {
        /// The pointer as it was given.
        pointer: String,
        /// What to write.
        advice: String,
    },
    /// A pointer that is deeper than the parser reads.
    #[error("a JSON pointer has at most {0} steps")]
    Deep(usize),
    /// A name that no attribute of a CloudEvent can have.
    #[error("`{0}` is not an attribute of a CloudEvent: their names have letters and digits only")]
    Attribute(String),
    /// A content key without content.
    #[error("a content key that leaves out the whole value has nothing left")]
    Everything,
}

/// The values of this many fields need no allocation.
pub(crate) const FEW: usize = 4;

/// Bytes at the start of a part's encoding: its tag and its length.
const HEAD: usize = 9;
/// Encodings of one part up to this many bytes need no allocation.
const SHORT: usize = 64;

/// Source of the fields of a record's key or value.
#[derive(Clone, Copy, Debug)]
pub enum Fields<'f, 'a> {
    /// A JSON text.
    Json,
    /// Fields already decoded from another format, in the order of the parts that name them.
    Found(&'f [Option<Scalar<'a>>]),
}

/// Working memory of [`KeySpec::fingerprint`], reused between records so that no record needs an allocation.
#[derive(Debug, Default)]
pub struct Scratch {
    encoded: Vec<u8>,
    json: Buffers,
}

/// Type of a part. The discriminants are part of the encoding.
#[derive(Clone, Copy)]
enum Tag {
    Null = 0,
    /// Bytes: the record key or value, a header, or a JSON string after its escapes are decoded.
    Bytes = 1,
    /// A JSON number as written, so that two different ids are never rounded to the same float.
    Number = 2,
    /// A JSON boolean.
    Bool = 3,
    /// A JSON object or array as written.
    Container = 4,
    /// The digest of a whole JSON value.
    Content = 5,
}

impl KeySpec {
    /// Compiles a key specification. Keys are hashed with [`Hashing::Xxh3`].
    ///
    /// # Errors
    /// [`SpecError`] if there are no parts or a pointer is malformed.
    pub fn new(parts: Vec<Part>) -> Result<Self, SpecError> {
        if parts.is_empty() {
            return Err(SpecError::Empty);
        }
        let (mut pointers, mut structured) = (Pointers::default(), Pointers::default());
        let (mut key_pointers, mut contents) = (Pointers::default(), Vec::new());
        for part in &parts {
            match part {
                Part::Field(pointer) => {
                    pointers.add(pointer)?;
                    structured.add(pointer)?;
                }
                Part::KeyField(pointer) => key_pointers.add(pointer)?,
                // Attribute names contain no characters that a pointer would have to escape.
                Part::CloudEvent(name) if name.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !name.is_empty() => {
                    structured.add(&format!("/{name}"))?;
                }
                Part::CloudEvent(name) => return Err(SpecError::Attribute(name.clone())),
                Part::Content { except } => contents.push(Content::new(except)?),
                Part::RecordKey | Part::RecordValue | Part::Header(_) => {}
            }
        }
        let needs_value = parts.iter().any(|part| matches!(part, Part::RecordValue | Part::Field(_) | Part::Content { .. }));
        let reads_events = parts.iter().any(|part| matches!(part, Part::CloudEvent(_)));
        Ok(Self { parts, pointers, structured, key_pointers, contents, needs_value, reads_events, hashing: Hashing::default() })
    }

    /// Sets the hash.
    #[must_use]
    pub fn with_hashing(self, hashing: Hashing) -> Self {
        Self { hashing, ..self }
    }

    /// Returns an id of how keys are hashed. Fingerprints stored under a different id are unusable. Like [`Hashing::id`], it
    /// contains no secret.
    #[must_use]
    pub fn hashing_id(&self) -> String {
        self.hashing.id()
    }

    /// Returns the parts, in order.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// True if any part needs a header, so that a caller may skip reading the headers.
    #[must_use]
    pub fn reads_headers(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Header(_) | Part::CloudEvent(_)))
    }

    /// True if any part is taken from the record key.
    #[must_use]
    pub fn reads_key(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::RecordKey | Part::KeyField(_)))
    }

    /// True if any part is taken from the record value.
    #[must_use]
    pub const fn reads_value(&self) -> bool {
        self.needs_value
    }

    /// True if the key has attributes of an event that is the whole record value.
    #[must_use]
    pub fn reads_event(&self, headers: &[(&str, Option<&[u8]>)]) -> bool {
        self.reads_events && cloudevents::is_structured(headers).is_ok_and(|is_structured| is_structured)
    }

    /// Returns the pointers into the record key, and their number.
    #[must_use]
    pub fn key_fields(&self) -> (&Node, usize) {
        self.key_pointers.places()
    }

    /// Returns the pointers into the record value, and their number.
    #[must_use]
    pub fn value_fields(&self) -> (&Node, usize) {
        self.pointers.places()
    }

    /// Computes the fingerprint of the key of a record whose fields are JSON.
    ///
    /// # Errors
    /// [`Invalid`] if the record has no such key. The error names the invalid part.
    #[inline]
    pub fn fingerprint(&self, record: &Record<'_>, scratch: &mut Scratch) -> Result<Fingerprint, Box<Invalid>> {
        match (record.value, &*self.parts) {
            (Some(json), [part @ Part::Field(_)]) => self.fingerprint_of_field(part, json, scratch),
            _ => self.fingerprint_of(record, Fields::Json, Fields::Json, scratch),
        }
    }

    /// Computes the fingerprint of a key that is a single field: a faster path with the same result.
    #[inline]
    fn fingerprint_of_field(&self, part: &Part, json: &[u8], scratch: &mut Scratch) -> Result<Fingerprint, Box<Invalid>> {
        let mut found = [None];
        self.pointers.find(Side::Value, json, &mut scratch.json, &mut found)?;
        let [Some(found)] = &found else { return Err(Box::new(missing_field(part, Some(json)))) };
        if let Scalar::Null = found {
            return Err(Box::new(self.null_key()));
        }
        let mut fingerprint = Fingerprint(0);
        let encoded = found.encoded(|(tag, bytes)| {
            let (mut short, end) = ([0; SHORT], HEAD + bytes.len());
            fingerprint = if let Some(body) = short.get_mut(HEAD..end) {
                body.copy_from_slice(bytes);
                short[..HEAD].copy_from_slice(&head(tag, bytes));
                self.hashing.fingerprint(&short[..end])
            } else {
                scratch.encoded.clear();
                encode(&mut scratch.encoded, tag, bytes);
                self.hashing.fingerprint(&scratch.encoded)
            };
        });
        encoded.map_err(|error| broken(Side::Value, &error))?;
        Ok(fingerprint)
    }

    /// Computes the fingerprint of the key of a record whose key and value have these fields.
    ///
    /// # Errors
    /// [`Invalid`] if the record has no such key. The error names the invalid part.
    // Inlined in each caller, because much of it is optimized away if both texts are JSON.
    #[inline]
    pub fn fingerprint_of(
        &self,
        record: &Record<'_>,
        key: Fields<'_, '_>,
        value: Fields<'_, '_>,
        scratch: &mut Scratch,
    ) -> Result<Fingerprint, Box<Invalid>> {
        let is_structured = self.reads_events && cloudevents::is_structured(record.headers)?;
        if self.needs_value || is_structured {
            record.value.ok_or_else(|| Box::new(tombstone()))?;
        }
        let pointers = if is_structured { &self.structured } else { &self.pointers };
        // Two statements, because in a single one the compiler creates both and then moves them.
        let mut few = [const { None }; FEW];
        let mut many = Vec::new();
        let room = room_for(pointers.places().1 + self.key_pointers.places().1, &mut few, &mut many);
        let (room, room_of_key) = room.split_at_mut(pointers.places().1);
        let mut fields = match value {
            Fields::Json => pointers.read(Side::Value, record.value, &mut scratch.json, room)?,
            Fields::Found(_) if is_structured => return Err(Box::new(cloudevents::not_json())),
            Fields::Found(found) => found,
        }
        .iter();
        let mut key_fields = match key {
            Fields::Json => self.key_pointers.read(Side::Key, record.key, &mut scratch.json, room_of_key)?,
            Fields::Found(found) => found,
        }
        .iter();
        let mut contents = self.contents.iter();
        let mut all_null = true;
        scratch.encoded.clear();
        let mut add = |(tag, bytes): (Tag, &[u8])| {
            all_null &= matches!(tag, Tag::Null);
            encode(&mut scratch.encoded, tag, bytes);
        };
        for part in &self.parts {
            match part {
                Part::RecordKey => add(raw(record.key)),
                Part::RecordValue => add(raw(record.value)),
                Part::Header(name) => {
                    let header = record.headers.iter().rev().find(|(key, _)| key == name);
                    add(raw(header.ok_or_else(|| missing_header(part, name, record.headers))?.1));
                }
                Part::Field(_) | Part::KeyField(_) => {
                    let found = if let Part::Field(_) = part { fields.next() } else { key_fields.next() };
                    let scalar = found.and_then(Option::as_ref).ok_or_else(|| match (part, value, key) {
                        (Part::Field(_), Fields::Json, _) => missing_field(part, record.value),
                        (Part::KeyField(_), _, Fields::Json) => missing_field(part, record.key),
                        _ => missing(part),
                    })?;
                    scalar.encoded(&mut add).map_err(|error| broken(Side::Value, &error))?;
                }
                Part::CloudEvent(_) if is_structured => {
                    // An attribute is the same text in both modes.
                    match *fields.next().and_then(Option::as_ref).ok_or_else(|| missing(part))? {
                        Scalar::String(text) | Scalar::Number(text) | Scalar::Bool(text) => add((Tag::Bytes, text)),
                        Scalar::Escaped(quoted) => {
                            add((Tag::Bytes, unescape(quoted).map_err(|error| broken(Side::Value, &error))?.as_bytes()));
                        }
                        _ => return Err(Box::new(missing(part))),
                    }
                }
                Part::CloudEvent(name) => {
                    let is_it = |header: &str| header.strip_prefix(cloudevents::PREFIX) == Some(name);
                    let header = record.headers.iter().rev().find(|(header, _)| is_it(header));
                    add(raw(Some(header.and_then(|(_, value)| *value).ok_or_else(|| missing(part))?)));
                }
                Part::Content { .. } => {
                    let content = contents.next().zip(record.value).ok_or_else(|| missing(part))?;
                    let (scan, room) = scratch.json.whole(content.1);
                    match content.0.digest(scan, &self.hashing, room)? {
                        None => add((Tag::Null, &[])),
                        Some(digest) => add((Tag::Content, &digest.to_le_bytes())),
                    }
                }
            }
        }
        if all_null {
            return Err(Box::new(self.null_key()));
        }
        Ok(self.hashing.fingerprint(&scratch.encoded))
    }

    fn null_key(&self) -> Invalid {
        let are = if self.parts.len() == 1 { "is" } else { "are" };
        Invalid { reason: Reason::NullKey, message: format!("{} {are} null, so the record has no identity", list(&self.parts)) }
    }
}

impl fmt::Display for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&list(&self.parts))
    }
}

/// A field of a JSON value, to be read separately.
#[derive(Clone, Debug)]
pub struct Field(Pointers);

impl Field {
    /// Compiles an RFC 6901 pointer.
    ///
    /// # Errors
    /// [`SpecError`] if the pointer is malformed.
    pub fn new(pointer: &str) -> Result<Self, SpecError> {
        let mut pointers = Pointers::default();
        pointers.add(pointer)?;
        Ok(Self(pointers))
    }

    /// Returns the string or number at this field, a number as written, or `None` for anything else, and if the value is not
    /// JSON.
    #[must_use]
    pub fn text<'a>(&self, value: &'a [u8]) -> Option<Cow<'a, str>> {
        self.text_in(value, &mut Scratch::default())
    }

    /// Returns the same as [`Field::text`], with working memory that is reused between records.
    #[must_use]
    pub fn text_in<'a>(&self, value: &'a [u8], scratch: &mut Scratch) -> Option<Cow<'a, str>> {
        let mut found = [None];
        self.0.find(Side::Value, value, &mut scratch.json, &mut found).ok()?;
        let [found] = found;
        match found? {
            Scalar::String(text) | Scalar::Number(text) => str::from_utf8(text).ok().map(Cow::Borrowed),
            Scalar::Escaped(quoted) => unescape(quoted).ok().map(Cow::Owned),
            _ => None,
        }
    }
}

/// Computes a digest of a JSON value that is independent of white space, the order of members, and escapes in strings. Numbers
/// are taken as written. None for null.
///
/// # Errors
/// [`Invalid`] if the value is not JSON, or has too many nested containers.
pub fn digest(json: &[u8], scratch: &mut Scratch) -> Result<Option<u128>, Box<Invalid>> {
    let (scan, room) = scratch.json.whole(json);
    Content::default().digest(scan, &Hashing::Xxh3, room)
}

/// Returns space for the values of fields, in `few` if they fit.
#[inline]
pub(crate) fn room_for<'r, T: Clone>(count: usize, few: &'r mut [Option<T>; FEW], many: &'r mut Vec<Option<T>>) -> &'r mut [Option<T>] {
    if count <= FEW {
        return &mut few[..count];
    }
    many.resize(count, None);
    many
}

/// Appends a part of a key.
#[inline(always)]
#[expect(clippy::inline_always, reason = "it is in the middle of what is done for each record")]
fn encode(encoded: &mut Vec<u8>, tag: Tag, bytes: &[u8]) {
    encoded.extend_from_slice(&head(tag, bytes));
    encoded.extend_from_slice(bytes);
}

/// Returns the start of a part's encoding.
#[inline]
fn head(tag: Tag, bytes: &[u8]) -> [u8; HEAD] {
    let mut head = [tag as u8; HEAD];
    head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    head
}

fn raw(bytes: Option<&[u8]>) -> (Tag, &[u8]) {
    bytes.map_or((Tag::Null, &[][..]), |bytes| (Tag::Bytes, bytes))
}

fn list(parts: &[Part]) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests;
