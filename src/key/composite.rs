//! Keys with parts that are optional, have fallbacks, are normalized, ignore the case of a header name, or are in the JSON of another part.
//!
//! Reads such parts from records and from the texts of a lookup. Never handles other keys, because `key/mod.rs` reads them faster.

use super::content::{Content, Room};
use super::encoding::{Tag, encode, encode_scalar, raw};
use super::invalid::{missing, missing_embedded, missing_field, tombstone, unreadable};
use super::lookup::{AMBIGUOUS_MAX, LookupError, Readings};
use super::{EmbeddedField, Fingerprint, KeySpec, Part, Scratch, Source, attribute, header};
use crate::format::{Buffers, Extract, JsonExtractor, Scalar, Side};
use crate::record::{Invalid, Reason, Record};
use std::borrow::Cow;
use std::slice::Iter;

type Value<'a> = (Tag, Cow<'a, [u8]>);

/// Takes the values of parts from one record. Each part of a key must be taken once, in order, because the values of fields and contents
/// come from iterators.
struct Taker<'t, 'a, K, V> {
    spec: &'t KeySpec,
    record: &'t Record<'a>,
    key: &'t Source<'t, K>,
    value: &'t Source<'t, V>,
    /// The values found for the fields of the record value. `key_fields` has the values for the fields of the record key.
    fields: Iter<'t, Option<Scalar<'a>>>,
    key_fields: Iter<'t, Option<Scalar<'a>>>,
    contents: Iter<'t, Content>,
    is_structured: bool,
    buffers: &'t mut Buffers,
    room: &'t mut Room,
}

impl KeySpec {
    #[inline(never)]
    pub(super) fn fingerprint_of_composite<K: Extract, V: Extract>(
        &self,
        record: &Record<'_>,
        (key, key_fields): (&Source<'_, K>, &[Option<Scalar<'_>>]),
        (value, fields): (&Source<'_, V>, &[Option<Scalar<'_>>]),
        is_structured: bool,
        scratch: &mut Scratch,
    ) -> Result<Fingerprint, Box<Invalid>> {
        let Scratch { encoded, buffers, room } = scratch;
        let (fields, key_fields, contents) = (fields.iter(), key_fields.iter(), self.contents.iter());
        let mut taker = Taker { spec: self, record, key, value, fields, key_fields, contents, is_structured, buffers, room };
        let mut all_null = true;
        encoded.clear();
        for part in &self.parts {
            let (tag, bytes) = taker.take(part).map_err(|invalid| Box::new(self.explain(record, *invalid)))?;
            all_null &= tag == Tag::Null;
            encode(encoded, tag, &bytes);
        }
        if all_null {
            return Err(Box::new(self.explain(record, self.null_key())));
        }
        Ok(self.hashing.fingerprint(encoded))
    }

    /// If a tombstone has no key, and a part of the key is read from the value, returns the error for a tombstone. Returns all other
    /// errors unchanged.
    fn explain(&self, record: &Record<'_>, invalid: Invalid) -> Invalid {
        let is_absent = matches!(invalid.reason, Reason::MissingKey | Reason::NullKey);
        if is_absent && record.value.is_none() && self.reads.value { tombstone() } else { invalid }
    }

    pub(super) fn fingerprints_of_readings<'t>(
        &self,
        texts: impl Iterator<Item = &'t [u8]>,
        scratch: &mut Scratch,
        found: &mut Vec<Fingerprint>,
    ) -> Result<(), LookupError> {
        let mut contents = self.contents.iter();
        let readings = self.parts.iter().zip(texts).map(|(part, text)| self.readings(part, text, &mut contents, scratch));
        let readings = readings.collect::<Result<Vec<_>, _>>()?;
        let combinations = readings.iter().try_fold(1_usize, |all, part| all.checked_mul(part.len())).unwrap_or(usize::MAX);
        if combinations > 1 << AMBIGUOUS_MAX {
            return Err(LookupError::Ambiguous);
        }
        let before = found.len();
        for mut choice in 0..combinations {
            scratch.encoded.clear();
            let mut all_null = true;
            for part in &readings {
                let (tag, bytes) = &part[choice % part.len()];
                choice /= part.len();
                all_null &= *tag == Tag::Null;
                encode(&mut scratch.encoded, *tag, bytes);
            }
            if !all_null {
                found.push(self.hashing.fingerprint(&scratch.encoded));
            }
        }
        if found.len() == before { Err(LookupError::Null) } else { Ok(()) }
    }

    /// Returns all values that a text can mean for this part, without duplicates. For a field, `1` can be a number or a string.
    fn readings<'t>(
        &self,
        part: &Part,
        text: &'t [u8],
        contents: &mut Iter<'_, Content>,
        scratch: &mut Scratch,
    ) -> Result<Vec<Value<'t>>, LookupError> {
        let all = match part {
            Part::Field(_) | Part::KeyField(_) | Part::Embedded(..) => {
                let Readings { first, second } = Readings::of(text);
                let mut all = vec![first];
                all.extend(second.map(|text| (Tag::Bytes, Cow::Borrowed(text))));
                all
            }
            Part::RecordKey | Part::RecordValue | Part::Header(_) | Part::HeaderInAnyCase(_) | Part::CloudEvent(_) => {
                vec![(Tag::Bytes, Cow::Borrowed(text))]
            }
            Part::Content { .. } => {
                let content = contents.next().ok_or(LookupError::Content)?;
                let mut digest = content.digest(&self.hashing, &mut scratch.room);
                let visited = JsonExtractor::default().visit(text, &mut scratch.buffers, &mut digest);
                vec![of_digest(visited.map(|()| digest.finish()).map_err(|_| LookupError::Content)?)]
            }
            Part::Optional(inner) => {
                let mut all = self.readings(inner, text, contents, scratch)?;
                if text == b"null" {
                    all.push((Tag::Null, Cow::Borrowed(&[])));
                }
                all
            }
            Part::FirstOf(parts) => {
                let mut all = Vec::new();
                for part in parts {
                    // A text that is not JSON cannot be the content of a value, but it can be the value of another alternative.
                    match self.readings(part, text, contents, scratch) {
                        Err(LookupError::Content) => {}
                        readings => all.extend(readings?),
                    }
                }
                all
            }
            Part::Normalized(inner, steps) => {
                self.readings(inner, text, contents, scratch)?.into_iter().map(|value| steps.apply(value)).collect()
            }
        };
        let mut distinct = Vec::with_capacity(all.len());
        for value in all {
            if !distinct.contains(&value) {
                distinct.push(value);
            }
        }
        if distinct.is_empty() { Err(LookupError::Content) } else { Ok(distinct) }
    }
}

impl<'a, K: Extract, V: Extract> Taker<'_, 'a, K, V> {
    fn take(&mut self, part: &Part) -> Result<Value<'a>, Box<Invalid>> {
        let borrowed = |bytes| {
            let (tag, bytes) = raw(bytes);
            Ok((tag, Cow::Borrowed(bytes)))
        };
        match part {
            Part::RecordKey => borrowed(self.record.key),
            Part::RecordValue => borrowed(self.record.value),
            Part::Header(name) => borrowed(header(part, name, self.record)?),
            Part::HeaderInAnyCase(name) => {
                let header = self.record.headers.iter().rev().find(|(header, _)| header.eq_ignore_ascii_case(name));
                borrowed(header.ok_or_else(|| missing(part))?.1)
            }
            Part::Field(_) => self.find(part)?.ok_or_else(|| Box::new(missing_field(part, self.value.json_text(self.record.value)))),
            Part::KeyField(_) => self.find(part)?.ok_or_else(|| Box::new(missing_field(part, self.key.json_text(self.record.key)))),
            Part::CloudEvent(_) if self.is_structured => {
                let found = self.fields.next().and_then(Option::as_ref);
                match scalar(found.ok_or_else(|| missing(part))?, Side::Value)? {
                    // In binary mode, attributes are text in headers. Converting scalars to text here gives the same key in both modes.
                    (Tag::Bytes | Tag::Number | Tag::Bool, text) => Ok((Tag::Bytes, text)),
                    _ => Err(Box::new(missing(part))),
                }
            }
            Part::CloudEvent(name) => borrowed(Some(attribute(part, name, self.record)?)),
            Part::Content { .. } => {
                let (content, text) = self.contents.next().zip(self.record.value).ok_or_else(|| missing(part))?;
                let mut digest = content.digest(&self.spec.hashing, self.room);
                self.value.visit(Side::Value, text, self.buffers, &mut digest)?;
                Ok(of_digest(digest.finish()))
            }
            Part::Optional(inner) => Ok(self.find(inner)?.unwrap_or((Tag::Null, Cow::Borrowed(&[])))),
            Part::FirstOf(parts) => {
                let mut first = None;
                for part in parts {
                    match self.take_or_skip(part, first.is_some())? {
                        Some(value) if first.is_none() => first = Some(value),
                        _ => {}
                    }
                }
                first.ok_or_else(|| Box::new(missing(part)))
            }
            Part::Normalized(inner, steps) => Ok(steps.apply(self.take(inner)?)),
            Part::Embedded(inner, field) => {
                let text = self.take(inner)?;
                embedded(field, &text, self.buffers)?.ok_or_else(|| Box::new(missing_embedded(inner, field, text.0, &text.1)))
            }
        }
    }

    /// Takes an alternative of `first_of`. Returns `None` if the alternative is missing or null. If an earlier alternative was taken,
    /// `skips` is true. The method then moves the iterators past this alternative without reading a value, and returns `None`.
    fn take_or_skip(&mut self, part: &Part, skips: bool) -> Result<Option<Value<'a>>, Box<Invalid>> {
        if skips {
            for leaf in part.leaves() {
                match leaf {
                    Part::Field(_) => _ = self.fields.next(),
                    Part::CloudEvent(_) if self.is_structured => _ = self.fields.next(),
                    Part::KeyField(_) => _ = self.key_fields.next(),
                    Part::Content { .. } => _ = self.contents.next(),
                    _ => {}
                }
            }
            return Ok(None);
        }
        Ok(self.find(part)?.filter(|(tag, _)| *tag != Tag::Null))
    }

    /// Takes a part. Returns `None` if the record does not have the part. For fields, this is faster than [`Self::take`], because no error
    /// message is formatted.
    fn find(&mut self, part: &Part) -> Result<Option<Value<'a>>, Box<Invalid>> {
        let (found, side) = match part {
            Part::Field(_) => (self.fields.next(), Side::Value),
            Part::KeyField(_) => (self.key_fields.next(), Side::Key),
            Part::Normalized(inner, steps) => return Ok(self.find(inner)?.map(|value| steps.apply(value))),
            Part::Embedded(inner, field) => {
                return self.find(inner)?.map_or(Ok(None), |text| embedded(field, &text, self.buffers));
            }
            _ => {
                return match self.take(part) {
                    Err(invalid) if invalid.reason == Reason::MissingKey => Ok(None),
                    taken => taken.map(Some),
                };
            }
        };
        found.and_then(Option::as_ref).map(|found| scalar(found, side)).transpose()
    }
}

fn of_digest<'a>(digest: Option<u128>) -> Value<'a> {
    digest.map_or((Tag::Null, Cow::Borrowed(&[][..])), |digest| (Tag::Content, Cow::Owned(digest.to_le_bytes().into())))
}

/// Returns a field of the JSON in the value of a part. The value is a string that contains JSON, or a JSON object or array. Returns `None`
/// if the value is not JSON or does not have the field.
fn embedded<'a>(field: &EmbeddedField, (tag, text): &Value<'_>, buffers: &mut Buffers) -> Result<Option<Value<'a>>, Box<Invalid>> {
    let mut found = [None];
    if !matches!(tag, Tag::Bytes | Tag::Container) || field.extractor.find(text, buffers, &mut found).is_err() {
        return Ok(None);
    }
    let [found] = found;
    found.map(|found| scalar(&found, Side::Value).map(|(tag, bytes)| (tag, Cow::Owned(bytes.into_owned())))).transpose()
}

/// Returns the encoding of a scalar. Borrows strings without escapes and JSON numbers, which are the most common values.
fn scalar<'a>(found: &Scalar<'a>, side: Side) -> Result<Value<'a>, Box<Invalid>> {
    match *found {
        Scalar::Null => Ok((Tag::Null, Cow::Borrowed(&[]))),
        Scalar::String(text) => Ok((Tag::Bytes, Cow::Borrowed(text))),
        Scalar::Number(text) => Ok((Tag::Number, Cow::Borrowed(text))),
        _ => {
            let mut value = (Tag::Null, Cow::Borrowed(&[][..]));
            let encoded = encode_scalar(found, |(tag, bytes)| value = (tag, Cow::Owned(bytes.to_owned())));
            encoded.map_err(|error| unreadable(side, false, &[], &error.into()))?;
            Ok(value)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Normalizer, Normalizers, SpecError};
    use super::*;

    fn field(name: &str) -> Part {
        Part::Field(format!("/{name}"))
    }

    fn optional(part: Part) -> Part {
        Part::Optional(Box::new(part))
    }

    fn normalized(part: Part, steps: &[&str]) -> Part {
        let steps = steps.iter().map(|name| Normalizer::named(name).unwrap()).collect();
        Part::Normalized(Box::new(part), Normalizers::new(steps))
    }

    fn of(parts: Vec<Part>, value: Option<&str>, headers: &[(&str, &str)]) -> Result<Fingerprint, (Reason, String)> {
        let headers: Vec<_> = headers.iter().map(|&(name, value)| (name, Some(value.as_bytes()))).collect();
        let record = Record { key: Some(b"k"), value: value.map(str::as_bytes), headers: &headers };
        KeySpec::new(parts).unwrap().fingerprint(&record, &mut Scratch::default()).map_err(|invalid| (invalid.reason, invalid.message))
    }

    fn within(part: Part, pointer: &str) -> Part {
        Part::Embedded(Box::new(part), EmbeddedField::new(pointer).unwrap())
    }

    fn id(parts: &[Part], value: &str) -> Result<Fingerprint, (Reason, String)> {
        of(parts.to_vec(), Some(value), &[])
    }

    #[test]
    fn an_optional_part_is_null_if_it_is_absent() {
        let parts = [field("id"), optional(field("sub"))];
        let null = id(&parts, r#"{"id":1,"sub":null}"#).unwrap();
        assert_eq!(id(&parts, r#"{"id":1}"#), Ok(null));
        // Making a part optional does not change the keys of records that have the part.
        assert_eq!(id(&[field("id"), field("sub")], r#"{"id":1,"sub":null}"#), Ok(null));
        assert_ne!(id(&parts, r#"{"id":1,"sub":""}"#), Ok(null));
        assert_eq!(id(&parts, r#"{"sub":1}"#).unwrap_err().0, Reason::MissingKey);
        assert_eq!(id(&parts, "{").unwrap_err().0, Reason::Malformed);
        let header = optional(Part::Header("h".to_owned()));
        assert_ne!(of(vec![Part::RecordKey, header.clone()], None, &[]), of(vec![Part::RecordKey, header], None, &[("h", "")]));
        assert_eq!(id(&[optional(field("a")), optional(field("b"))], "{}").unwrap_err().0, Reason::NullKey);
        assert_eq!(of(vec![optional(field("a"))], None, &[]).unwrap_err().0, Reason::Tombstone);
        // The reason must be `Tombstone`: if tombstones were dropped as invalid, a compacted topic would keep the deleted records.
        assert_eq!(of(vec![Part::RecordKey, optional(field("a"))], None, &[]).unwrap_err().0, Reason::Tombstone);
        let header = || optional(Part::Header("h".to_owned()));
        assert_eq!(of(vec![header(), optional(field("a"))], None, &[]).unwrap_err().0, Reason::Tombstone);
        assert_eq!(of(vec![Part::FirstOf(vec![Part::Header("h".to_owned()), field("a")])], None, &[]).unwrap_err().0, Reason::Tombstone);
    }

    #[test]
    fn the_first_present_alternative_is_used() {
        let content = || Part::Content { except: Vec::new() };
        let parts = [Part::FirstOf(vec![field("id"), field("uuid"), content()]), field("n")];
        let alone = |part: Part, value| id(&[part, field("n")], value);
        for (value, part) in [
            (r#"{"id":1,"uuid":2,"n":3}"#, field("id")),
            (r#"{"id":null,"uuid":2,"n":3}"#, field("uuid")),
            (r#"{"uuid":2,"n":3}"#, field("uuid")),
            (r#"{"n":3}"#, content()),
        ] {
            assert_eq!(id(&parts, value), alone(part, value), "{value}");
        }
        // The key does not depend on which alternative has the value.
        assert_eq!(id(&parts, r#"{"id":2,"n":3}"#), id(&parts, r#"{"uuid":2,"n":3}"#));
        let none = id(&[Part::FirstOf(vec![field("id"), Part::Header("h".to_owned())])], "{}").unwrap_err();
        assert_eq!(none, (Reason::MissingKey, "the record does not have any of these: field `/id`, header `h`".to_owned()));
        assert_eq!(of(vec![Part::FirstOf(vec![field("id"), content()])], None, &[]).unwrap_err().0, Reason::Tombstone);
        let of_header = of(vec![Part::FirstOf(vec![Part::Header("h".to_owned()), content()])], None, &[("h", "x")]);
        assert_eq!(of_header, of(vec![Part::Header("h".to_owned())], None, &[("h", "x")]));
        // An alternative that cannot be read does not count as absent.
        assert_eq!(id(&[Part::FirstOf(vec![field("id"), Part::RecordKey])], "{").unwrap_err().0, Reason::Malformed);
    }

    #[test]
    fn header_names_match_in_any_case_if_configured() {
        let part = || vec![Part::HeaderInAnyCase("X-Event-Id".to_owned())];
        let plain = of(vec![Part::Header("X-Event-Id".to_owned())], None, &[("X-Event-Id", "e")]);
        for name in ["X-Event-Id", "x-event-id", "X-EVENT-ID"] {
            assert_eq!(of(part(), None, &[("other", "o"), (name, "e")]), plain);
        }
        assert_ne!(of(part(), None, &[("x-event-id", "E")]), plain, "values keep their case");
        assert_eq!(of(part(), None, &[("X_Event_Id", "e")]).unwrap_err().0, Reason::MissingKey);
    }

    #[test]
    fn normalized_parts_are_one_id_wherever_they_come_from() {
        let email = normalized(field("email"), &["trim", "lowercase"]);
        let usual = id(&[field("email")], r#"{"email":"a@example.org"}"#);
        for value in [r#"{"email":" A@Example.org"}"#, r#"{"email":"\u0041@example.org\n"}"#, r#"{"email":"a@example.org"}"#] {
            assert_eq!(id(std::slice::from_ref(&email), value), usual, "{value}");
        }
        let number = [normalized(field("id"), &["to_string"])];
        assert_eq!(id(&number, r#"{"id":17}"#), id(&number, r#"{"id":"17"}"#));
        assert_ne!(id(&number, r#"{"id":17}"#), id(&number, r#"{"id":17.0}"#));
        assert_eq!(id(&number, r#"{"id":null}"#).unwrap_err().0, Reason::NullKey);
        let record_key = of(vec![normalized(Part::RecordKey, &["lowercase"])], None, &[]);
        assert_eq!(record_key, of(vec![Part::RecordKey], None, &[]));
        let both = optional(normalized(Part::FirstOf(vec![field("a"), field("b")]), &["trim"]));
        assert_eq!(id(&[both.clone(), Part::RecordKey], r#"{"b":" x "}"#), id(&[field("b"), Part::RecordKey], r#"{"b":"x"}"#));
        assert_eq!(id(&[both, Part::RecordKey], "{}"), id(&[field("a"), Part::RecordKey], r#"{"a":null}"#));
    }

    #[test]
    fn a_part_can_be_in_the_json_of_a_text() {
        let parts = [within(field("Message"), "/id"), field("n")];
        let plain = id(&[field("id"), field("n")], r#"{"id":"a/1","n":2}"#);
        for value in [
            r#"{"n":2,"Message":"{\"id\":\"a/1\"}"}"#,
            r#"{"n":2,"Message":"{\n \"other\": {\"id\": 3}, \"id\" : \"\\u0061\\/1\" }"}"#,
            // The key stays the same if the producer starts to write the object as JSON instead of as a string.
            r#"{"n":2,"Message":{"id":"a/1"}}"#,
        ] {
            assert_eq!(id(&parts, value), plain, "{value}");
        }
        assert_eq!(
            id(&[within(field("Message"), "/id"), field("n")], r#"{"n":2,"Message":"{\"id\":1}"}"#),
            id(&[field("id"), field("n")], r#"{"id":1,"n":2}"#)
        );
        // JSON text on two levels: the value is a string that contains JSON, and the field `Message` of this JSON is also such a string.
        let deep = [within(within(Part::Field(String::new()), "/Message"), "/id"), Part::RecordKey];
        let value = serde_json::Value::from(r#"{"Message":"{\"id\":7}"}"#).to_string();
        assert_eq!(id(&deep, &value), id(&[field("id"), Part::RecordKey], r#"{"id":7}"#));
        // JSON text in a header. Its field gives the same key as the record key `k`.
        let header = of(vec![within(Part::Header("h".to_owned()), "/id")], None, &[("h", r#"{"id":"k"}"#)]);
        assert_eq!(header, of(vec![Part::RecordKey], None, &[]));
        assert_eq!(id(&[within(field("Message"), "/id")], r#"{"Message":"{\"id\":null}"}"#).unwrap_err().0, Reason::NullKey);
    }

    #[test]
    fn a_text_without_the_field_is_a_missing_part() {
        let part = || within(field("Message"), "/id");
        let fallbacks = [Part::FirstOf(vec![normalized(part(), &["trim"]), field("Message")])];
        let has_no = "the record has no field `/id` of the JSON in field `/Message`";
        for (message, hint) in [
            ("\"hello\"", ": field `/Message` is not JSON"),
            (r#""{\"id\":1""#, ": field `/Message` is not JSON"),
            ("\"{}\"", ""),
            (r#""{\"ID\":1}""#, ", but it has `/ID`: field names are case-sensitive"),
            ("17", ": field `/Message` is not a string"),
            ("null", ": field `/Message` is null"),
        ] {
            let value = format!("{{\"Message\":{message},\"n\":1}}");
            assert_eq!(id(&[part()], &value), Err((Reason::MissingKey, format!("{has_no}{hint}"))));
            assert_eq!(id(&[optional(part()), field("n")], &value), id(&[optional(field("id")), field("n")], r#"{"n":1}"#));
            assert_eq!(id(&fallbacks, &value).is_ok(), message != "null", "the text itself");
        }
        assert_eq!(id(&[part()], "{}").unwrap_err().1, "the record has no field `/Message`");
        assert_eq!(id(&[part()], "{").unwrap_err().0, Reason::Malformed);
        let first = id(&fallbacks, r#"{"Message":"{\"id\":\" x \"}"}"#);
        assert_eq!(first, id(&[field("id")], r#"{"id":"x"}"#));
        let content = within(Part::Content { except: Vec::new() }, "/id");
        assert_eq!(KeySpec::new(vec![content]).err(), Some(SpecError::NormalizedContent));
    }

    #[test]
    fn attributes_of_events_are_the_same_in_both_modes() {
        let parts = || {
            let attribute = |name: &str| Part::CloudEvent(name.to_owned());
            vec![
                attribute("source"),
                Part::FirstOf(vec![attribute("subject"), field("data/id"), attribute("id")]),
                optional(attribute("key")),
            ]
        };
        let whole = |value| of(parts(), Some(value), &[("content-type", "application/cloudevents+json")]);
        let binary = of(parts(), Some("{}"), &[("ce_source", "s"), ("ce_id", "7")]).unwrap();
        assert_eq!(whole(r#"{"source":"s","id":7,"data":{}}"#), Ok(binary));
        assert_eq!(whole(r#"{"source":"s","subject":"7","id":8,"data":{"id":9}}"#), Ok(binary));
        assert_ne!(whole(r#"{"source":"s","id":7,"key":"x"}"#), Ok(binary));
    }

    /// Checkpoints store the description of a key, and changelog records its hash. If an option were missing in the description, a change
    /// of the option would not be detected.
    #[test]
    fn the_description_of_a_key_has_everything_that_its_identity_depends_on() {
        let parts = vec![
            normalized(field("email"), &["trim", "lowercase"]),
            optional(Part::HeaderInAnyCase("h".to_owned())),
            Part::FirstOf(vec![field("a"), Part::Content { except: Vec::new() }]),
            normalized(within(within(field("b"), "/c"), "/d"), &["trim"]),
        ];
        let spec = KeySpec::new(parts).unwrap();
        let expected = "field `/email` (trim, lowercase) and optional header `h` in any case and the first of field `/a`, the content of the record value and field `/d` of the JSON in field `/c` of the JSON in field `/b` (trim)";
        assert_eq!(spec.to_string(), expected);
    }

    #[test]
    fn a_key_is_looked_up_by_every_text_that_means_it() {
        let parts = vec![
            normalized(field("email"), &["trim", "lowercase"]),
            optional(Part::Header("h".to_owned())),
            Part::FirstOf(vec![within(field("a"), ""), Part::Content { except: vec!["/email".to_owned()] }]),
        ];
        let spec = KeySpec::new(parts.clone()).unwrap();
        let look_up = |texts: [&str; 3]| {
            let mut found = Vec::new();
            let looked_up = spec.fingerprints_of_texts(texts.iter().map(|text| text.as_bytes()), &mut Scratch::default(), &mut found);
            looked_up.map(|()| found)
        };
        let is_found =
            |texts, value, headers: &[(&str, &str)]| look_up(texts).unwrap().contains(&of(parts.clone(), Some(value), headers).unwrap());
        assert!(is_found([" A@b", "x", "1"], r#"{"email":"a@B ","a":"1"}"#, &[("h", "x")]));
        assert!(is_found(["a@b", "null", "1"], r#"{"email":"a@b","a":"\"1\""}"#, &[]));
        assert!(is_found(["a@b", "null", r#"{"n":2}"#], r#"{"n":2,"email":"a@b"}"#, &[]));
        assert!(!is_found(["a@b", "x", "1"], r#"{"email":"a@b","a":"1"}"#, &[]));
        // A lookup with the printed parts of a key finds the key.
        let (mut scratch, value) = (Scratch::default(), br#"{"email":" A@B","a":"true"}"#);
        let shown = spec.fingerprint(&Record { value: Some(value), ..Record::default() }, &mut scratch).unwrap();
        let texts = scratch.texts();
        assert_eq!(texts, ["\"a@b\"", "null", "true"]);
        assert!(look_up([&texts[0], &texts[1], &texts[2]]).unwrap().contains(&shown));
        let many = KeySpec::new((0..5).map(|number| normalized(field(&number.to_string()), &["trim"])).collect()).unwrap();
        let ambiguous = many.fingerprints_of_texts([&b"1"[..]; 5].into_iter(), &mut Scratch::default(), &mut Vec::new());
        assert_eq!(ambiguous, Err(LookupError::Ambiguous));
    }
}
