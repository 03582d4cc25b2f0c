//! Extracts a record's key and computes its fingerprint.
//!
//! Defines the encoding of a key. The encoding must not change within a version of the state format, because stored states contain only
//! values that are computed from encoded keys. The module does no I/O and uses neither a clock nor randomness.
//!
//! Each part is encoded as one tag byte, its length as a little-endian `u64`, and its bytes. Different lists of parts therefore have
//! different encodings. The fingerprint is a hash of the encoding: XXH3-128, or SipHash with a secret if untrusted parties choose the keys
//! (see [`Hashing`]).

mod cloudevents;
mod composite;
mod content;
mod encoding;
mod field;
mod hashing;
mod invalid;
mod lookup;
mod normalize;
mod part;
mod predicate;
mod reader;
mod shown;
mod time;

pub use field::{Field, Leaf};
#[cfg(test)]
pub(crate) use hashing::numbered;
pub use hashing::{HashKeyError, Hashing};
pub use lookup::LookupError;
pub(crate) use normalize::instant_ms;
pub use normalize::{Normalizer, Normalizers};
pub use part::{EmbeddedField, Part};
pub use predicate::Predicate;
pub use reader::{ContentCounts, KeyedRecord, NoKey, OpenValue, Reader, RecordSpec, ValueReader};
pub use time::{EventTime, TimePlace, TimeUnit};

use crate::format::{Buffers, Extract, JsonExtractor, Places, PointerError, Scalar, Side, Visit, unescape};
#[cfg(feature = "formats")]
use crate::format::{Extractor, Message, Schema, SchemaError};
use crate::record::{Invalid, Reason, Record};
use content::Content;
use encoding::{HEAD, Tag, encode, encode_scalar, head, raw};
use invalid::{missing, missing_field, missing_header, tombstone, unreadable};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64;

/// The 128-bit hash of a key. Any two different keys have the same hash with a probability of 2^-128. With `emit = "on_change"`, the high
/// half also depends on the compared content (see [`Self::with_content`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// Returns the low 64 bits, which [`Self::with_content`] keeps.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
    pub const fn low(self) -> u64 {
        self.0 as u64
    }

    /// Returns the high 64 bits, which [`Self::with_content`] replaces.
    #[must_use]
    pub const fn high(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// Combines the fingerprint of a key with the fingerprint of its content. The low half is the key's low half. The high half is a hash
    /// of both fingerprints.
    ///
    /// With a probability of 2^-64, two different keys have the same low half and count as one key. Their high halves then still differ,
    /// except with another probability of 2^-64. So a record of one key counts as a change of the other key, not as its duplicate.
    #[must_use]
    pub fn with_content(self, content: Self) -> Self {
        let mut both = [0; 32];
        both[..16].copy_from_slice(&self.0.to_le_bytes());
        both[16..].copy_from_slice(&content.0.to_le_bytes());
        Self(u128::from(self.low()) | u128::from(xxh3_64(&both)) << 64)
    }
}

/// Returns the partition of a key in a repartition topic with `partitions` partitions. With 0 partitions, the result is 0.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "below the number of partitions")]
pub fn partition(fingerprint: Fingerprint, partitions: u32) -> u32 {
    (fingerprint.0 % u128::from(partitions.max(1))) as u32
}

/// The parts of a record that form its key, and the hash function. Compiled once per topic. The `Debug` output contains no secret.
#[derive(Clone, Debug)]
pub struct KeySpec {
    parts: Vec<Part>,
    value: JsonExtractor,
    /// The extractor to use instead of `value` if the record value is a whole CloudEvent. It also finds the attributes of the event.
    event: JsonExtractor,
    key: JsonExtractor,
    /// One per [`Part::Content`] of the key, in the order of the parts.
    contents: Vec<Content>,
    /// True if a record without a value cannot have a key, regardless of its headers and its record key.
    needs_value: bool,
    reads: Reads,
    reads_events: bool,
    hashing: Hashing,
}

/// The parts of a record that the key needs. For CloudEvents attributes in the record value, see [`KeySpec::reads_value_of`].
#[derive(Clone, Copy, Debug)]
struct Reads {
    headers: bool,
    key: bool,
    value: bool,
}

/// Error of [`KeySpec::new`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The list of parts is empty.
    #[error("a key needs at least one part")]
    Empty,
    /// A pointer to a field is not an RFC 6901 pointer or has too many steps.
    #[error(transparent)]
    Pointer(#[from] PointerError),
    /// The name of a CloudEvents attribute is empty or has a character that is not an ASCII letter or digit.
    #[error("`{0}` is not the name of a CloudEvents attribute: such names consist of ASCII letters and digits")]
    Attribute(String),
    /// A [`Part::FirstOf`] has fewer than two alternatives.
    #[error("first_of needs at least two parts")]
    Alternatives,
    /// A [`Part::Normalized`] or [`Part::Embedded`] directly contains a [`Part::Content`].
    #[error("`content` cannot be combined with `normalize` or `then`: use fields of the value instead")]
    NormalizedContent,
    /// A pointer in `except` of a [`Part::Content`] is empty, so it excludes the whole value.
    #[error("`except` excludes the whole value, so nothing is left to compare: exclude single fields instead")]
    Everything,
}

/// Maximum number of field values that are stored on the stack instead of the heap.
pub(crate) const FEW: usize = 4;

/// Maximum encoded length, in bytes, of a single-field key that is encoded on the stack.
const SHORT: usize = 64;

/// Buffers for computing fingerprints, reused between records to avoid allocations.
#[derive(Debug, Default)]
pub struct Scratch {
    encoded: Vec<u8>,
    buffers: Buffers,
    room: content::Room,
}

impl KeySpec {
    /// Compiles a key specification that hashes keys with [`Hashing::Xxh3`].
    ///
    /// # Errors
    /// Returns [`SpecError`] if there are no parts, or if a part is invalid.
    pub fn new(parts: Vec<Part>) -> Result<Self, SpecError> {
        if parts.is_empty() {
            return Err(SpecError::Empty);
        }
        let (mut value, mut event) = (Places::default(), Places::default());
        let (mut key, mut contents) = (Places::default(), Vec::new());
        parts.iter().try_for_each(Part::check)?;
        let leaves: Vec<_> = parts.iter().flat_map(Part::leaves).collect();
        for part in &leaves {
            match part {
                Part::Field(pointer) => {
                    value.add(pointer)?;
                    event.add(pointer)?;
                }
                Part::KeyField(pointer) => key.add(pointer)?,
                // Attribute names do not contain characters that must be escaped in a pointer.
                Part::CloudEvent(name) if name.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !name.is_empty() => {
                    event.add(&format!("/{name}"))?;
                }
                Part::CloudEvent(name) => return Err(SpecError::Attribute(name.clone())),
                Part::Content { except } => contents.push(Content::new(except)?),
                _ => {}
            }
        }
        let value = if contents.is_empty() { value } else { value.and_everything() };
        let [value, event, key] = [value, event, key].map(JsonExtractor::new);
        let any = |is_it: fn(&Part) -> bool| leaves.iter().any(|leaf| is_it(leaf));
        let reads = Reads {
            headers: any(|leaf| matches!(leaf, Part::Header(_) | Part::HeaderInAnyCase(_) | Part::CloudEvent(_))),
            key: any(|leaf| matches!(leaf, Part::RecordKey | Part::KeyField(_))),
            value: any(Part::is_of_value),
        };
        let needs_value = parts.iter().any(Part::needs_value) || leaves.iter().all(|leaf| leaf.is_of_value());
        let reads_events = any(|leaf| matches!(leaf, Part::CloudEvent(_)));
        Ok(Self { parts, value, event, key, contents, needs_value, reads, reads_events, hashing: Hashing::default() })
    }

    /// Replaces the hash function, which is [`Hashing::Xxh3`] by default.
    #[must_use]
    pub fn with_hashing(self, hashing: Hashing) -> Self {
        Self { hashing, ..self }
    }

    /// Returns an id of the hash function and its secret. Fingerprints that were stored with a different id are unusable. The id does
    /// not reveal the secret (see [`Hashing::id`]).
    #[must_use]
    pub fn hashing_id(&self) -> String {
        self.hashing.id()
    }

    /// Returns the parts as they were passed to [`Self::new`].
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// True if any part needs a header. If false, the caller need not read the headers.
    #[must_use]
    pub const fn reads_headers(&self) -> bool {
        self.reads.headers
    }

    /// True if any part is the record key or a field of the record key.
    #[must_use]
    pub const fn reads_key(&self) -> bool {
        self.reads.key
    }

    /// True if any part is the record value, its content, or one of its fields. For CloudEvents attributes, see [`Self::reads_value_of`].
    #[must_use]
    pub const fn reads_value(&self) -> bool {
        self.reads.value
    }

    /// True if the key reads the value of a record with these headers: if [`Self::reads_value`] is true, or if the key has CloudEvents
    /// attributes and the headers show that the value is a whole CloudEvent in JSON.
    #[must_use]
    pub fn reads_value_of(&self, headers: &[(&str, Option<&[u8]>)]) -> bool {
        self.reads.value || self.reads_events && cloudevents::is_structured(headers).is_ok_and(|is_structured| is_structured)
    }

    /// Returns the places of the key in a record, in order: the parts without wrappers such as [`Part::Optional`], and all alternatives of
    /// [`Part::FirstOf`].
    pub fn leaves(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().flat_map(Part::leaves)
    }

    /// Returns the places of the key's fields in the record key or in the record value.
    #[must_use]
    #[inline]
    pub const fn places(&self, side: Side) -> &Places {
        match side {
            Side::Key => self.key.places(),
            Side::Value => self.value.places(),
        }
    }

    /// Returns the pointers of the key's fields that no record with this schema can have.
    ///
    /// # Errors
    /// Returns [`SchemaError`] if the schema cannot be used for the key.
    #[cfg(feature = "formats")]
    pub fn missing_in(&self, schema: &Schema, message: Message<'_>, side: Side) -> Result<Vec<String>, SchemaError> {
        let extractor = Extractor::compile(schema, message, self.places(side))?;
        let pointers = self.leaves().filter_map(|part| match part {
            Part::Field(pointer) if side == Side::Value => Some(pointer),
            Part::KeyField(pointer) if side == Side::Key => Some(pointer),
            _ => None,
        });
        Ok(pointers.enumerate().filter(|&(place, _)| extractor.lacks(place)).map(|(_, pointer)| pointer.clone()).collect())
    }

    /// Computes the fingerprint of a record's key. Fields and content are read from a record key and a record value in plain JSON.
    ///
    /// # Errors
    /// Returns [`Invalid`] if a part of the key is missing or cannot be read, or if all parts are null.
    #[inline]
    pub fn fingerprint(&self, record: &Record<'_>, scratch: &mut Scratch) -> Result<Fingerprint, Box<Invalid>> {
        match (record.value, &*self.parts) {
            (Some(json), [part @ Part::Field(_)]) => self.fingerprint_of_field(part, json, scratch),
            _ => self.fingerprint_with_texts(record, scratch),
        }
    }

    /// Computes the fingerprint as [`Self::fingerprint`] does, but always keeps the parts of the key for [`Scratch::texts`].
    pub(crate) fn fingerprint_with_texts(&self, record: &Record<'_>, scratch: &mut Scratch) -> Result<Fingerprint, Box<Invalid>> {
        self.fingerprint_of(record, &Source::json(&self.key), &Source::json(&self.value), scratch)
    }

    /// Computes the fingerprint of a key that is a single field of the record value. Faster than [`Self::fingerprint_of`].
    #[inline]
    fn fingerprint_of_field(&self, part: &Part, json: &[u8], scratch: &mut Scratch) -> Result<Fingerprint, Box<Invalid>> {
        let mut found = [None];
        self.value.find(json, &mut scratch.buffers, &mut found).map_err(|error| unreadable(Side::Value, false, json, &error))?;
        let [Some(found)] = &found else { return Err(Box::new(missing_field(part, Some(json)))) };
        if let Scalar::Null = found {
            return Err(Box::new(self.null_key()));
        }
        let mut fingerprint = Fingerprint(0);
        let encoded = encode_scalar(found, |(tag, bytes)| {
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
        encoded.map_err(|error| unreadable(Side::Value, false, json, &error.into()))?;
        Ok(fingerprint)
    }

    // Inlined into each caller, because the compiler removes much of the code for callers that read only JSON.
    #[inline]
    fn fingerprint_of<K: Extract, V: Extract>(
        &self,
        record: &Record<'_>,
        key: &Source<'_, K>,
        value: &Source<'_, V>,
        scratch: &mut Scratch,
    ) -> Result<Fingerprint, Box<Invalid>> {
        let is_structured = self.reads_events && cloudevents::is_structured(record.headers)?;
        if is_structured {
            if !value.is_json {
                return Err(Box::new(cloudevents::not_json()));
            }
            return self.fingerprint_of_event(record, key, scratch);
        }
        self.fingerprint_in(record, key, value, false, scratch)
    }

    #[inline(never)]
    fn fingerprint_of_event<K: Extract>(
        &self,
        record: &Record<'_>,
        key: &Source<'_, K>,
        scratch: &mut Scratch,
    ) -> Result<Fingerprint, Box<Invalid>> {
        self.fingerprint_in(record, key, &Source::json(&self.event), true, scratch)
    }

    /// If `is_structured` is true, the record value is a whole CloudEvent, and `value` must be the source for `self.event`.
    #[inline]
    fn fingerprint_in<K: Extract, V: Extract>(
        &self,
        record: &Record<'_>,
        key: &Source<'_, K>,
        value: &Source<'_, V>,
        is_structured: bool,
        scratch: &mut Scratch,
    ) -> Result<Fingerprint, Box<Invalid>> {
        if self.needs_value || is_structured {
            record.value.ok_or_else(|| Box::new(tombstone()))?;
        }
        let places = if is_structured { self.event.places() } else { self.value.places() }.len();
        // `few` and `many` are declared separately. In a single `let`, the compiler creates both buffers and then moves them.
        let mut few = [const { None }; FEW];
        let mut many = Vec::new();
        let room = room_for(places + self.key.places().len(), &mut few, &mut many);
        let (found, found_in_key) = room.split_at_mut(places);
        value.find(Side::Value, record.value, &mut scratch.buffers, found)?;
        key.find(Side::Key, record.key, &mut scratch.buffers, found_in_key)?;
        let (mut fields, mut key_fields) = (found.iter(), found_in_key.iter());
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
                Part::Header(name) => add(raw(header(part, name, record)?)),
                Part::Field(_) | Part::KeyField(_) => {
                    let side = if matches!(part, Part::Field(_)) { Side::Value } else { Side::Key };
                    let found = if side == Side::Value { fields.next() } else { key_fields.next() };
                    let scalar = found.and_then(Option::as_ref).ok_or_else(|| {
                        let json = if side == Side::Value { value.json_text(record.value) } else { key.json_text(record.key) };
                        missing_field(part, json)
                    })?;
                    encode_scalar(scalar, &mut add).map_err(|error| unreadable(side, false, &[], &error.into()))?;
                }
                Part::CloudEvent(_) if is_structured => {
                    // In binary mode, attributes are text in headers. Adding scalars as text here gives the same key in both modes.
                    match *fields.next().and_then(Option::as_ref).ok_or_else(|| missing(part))? {
                        Scalar::String(text) | Scalar::Number(text) | Scalar::Bool(text) => add((Tag::Bytes, text)),
                        Scalar::Escaped(quoted) => {
                            let text = unescape(quoted).map_err(|error| unreadable(Side::Value, false, &[], &error.into()))?;
                            add((Tag::Bytes, text.as_bytes()));
                        }
                        _ => return Err(Box::new(missing(part))),
                    }
                }
                Part::CloudEvent(name) => add(raw(Some(attribute(part, name, record)?))),
                Part::Content { .. } => {
                    let (content, text) = contents.next().zip(record.value).ok_or_else(|| missing(part))?;
                    let mut digest = content.digest(&self.hashing, &mut scratch.room);
                    value.visit(Side::Value, text, &mut scratch.buffers, &mut digest)?;
                    match digest.finish() {
                        None => add((Tag::Null, &[])),
                        Some(digest) => add((Tag::Content, &digest.to_le_bytes())),
                    }
                }
                Part::HeaderInAnyCase(_) | Part::Optional(_) | Part::FirstOf(_) | Part::Normalized(..) | Part::Embedded(..) => {
                    return self.fingerprint_of_composite(record, (key, found_in_key), (value, found), is_structured, scratch);
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
        Invalid { reason: Reason::NullKey, message: format!("{} {are} null, so the record has no key", list(&self.parts)) }
    }
}

impl fmt::Display for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&list(&self.parts))
    }
}

#[inline]
fn header<'a>(part: &Part, name: &str, record: &Record<'a>) -> Result<Option<&'a [u8]>, Box<Invalid>> {
    let header = record.headers.iter().rev().find(|(key, _)| *key == name);
    Ok(header.ok_or_else(|| missing_header(part, name, record.headers))?.1)
}

/// Returns the attribute of a CloudEvent in binary mode, in which the attributes are headers.
#[inline]
fn attribute<'a>(part: &Part, name: &str, record: &Record<'a>) -> Result<&'a [u8], Box<Invalid>> {
    let is_it = |header: &str| header.strip_prefix(cloudevents::PREFIX) == Some(name);
    let header = record.headers.iter().rev().find(|(header, _)| is_it(header));
    header.and_then(|(_, value)| *value).ok_or_else(|| Box::new(missing(part)))
}

/// The extractor for a record key or value, with properties of its format.
struct Source<'e, E> {
    extractor: &'e E,
    is_json: bool,
    /// True if the key or value had a frame with a schema id, which has been removed.
    is_framed: bool,
}

impl<'e> Source<'e, JsonExtractor> {
    #[inline]
    const fn json(extractor: &'e JsonExtractor) -> Self {
        Self { extractor, is_json: true, is_framed: false }
    }
}

impl<'e, E: Extract> Source<'e, E> {
    /// Fills `found` with the values at the extractor's places. If the extractor has no places, does not parse `text`.
    #[inline]
    fn find<'a>(
        &self,
        side: Side,
        text: Option<&'a [u8]>,
        buffers: &mut Buffers,
        found: &mut [Option<Scalar<'a>>],
    ) -> Result<(), Box<Invalid>>
    where
        'e: 'a,
    {
        match text {
            Some(text) if !found.is_empty() => {
                self.extractor.find(text, buffers, found).map_err(|error| Box::new(unreadable(side, self.is_framed, text, &error)))
            }
            _ => Ok(()),
        }
    }

    fn visit(&self, side: Side, text: &[u8], buffers: &mut Buffers, visitor: &mut impl Visit) -> Result<(), Box<Invalid>> {
        self.extractor.visit(text, buffers, visitor).map_err(|error| Box::new(unreadable(side, self.is_framed, text, &error)))
    }

    fn json_text<'t>(&self, text: Option<&'t [u8]>) -> Option<&'t [u8]> {
        text.filter(|_| self.is_json)
    }
}

/// Returns a slice for `count` values: the start of `few` if `few` is long enough, otherwise `many`.
#[inline]
pub(crate) fn room_for<'r, T: Clone>(count: usize, few: &'r mut [Option<T>; FEW], many: &'r mut Vec<Option<T>>) -> &'r mut [Option<T>] {
    if count <= FEW {
        return &mut few[..count];
    }
    many.resize(count, None);
    many
}

fn list(parts: &[Part]) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests;
