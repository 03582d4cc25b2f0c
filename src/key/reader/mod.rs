//! Reads the keys and fields of one topic's records, in any format.
//!
//! Never guesses: until the schema of a record arrives, the record has no key but is not invalid either.
//!
//! Encodings such as gzip, and frames with a schema id, are removed before a key or value is read. So `record` and `content` parts do
//! not depend on the schema id.

mod extractors;
mod holds;

use super::field::{self, Field, Leaf};
use super::invalid::{no_time, no_time_field, unreadable};
use super::{EventTime, Fingerprint, KeySpec, Predicate, Scratch, TimePlace};
use crate::format::{
    Decoded, Extract, Extractor, Formats, KEY_HEADER, Places, RecordFormat, Scalar, SchemaId, Schemas, Side, VALUE_HEADER,
};
use crate::record::{Invalid, Reason, Record, Timestamp};
use extractors::{Extractors, Opened, header, invalid};
use std::borrow::Cow;

/// Error of [`Reader::read`] for a record without a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoKey {
    /// The record is invalid: it has no usable key, content, or time, or a predicate cannot be tested.
    Invalid(Box<Invalid>),
    /// The record needs this schema, which has not arrived yet.
    Awaits(SchemaId),
    /// The record is not deduplicated, because a predicate of `when` does not hold.
    Passes,
}

impl From<Box<Invalid>> for NoKey {
    fn from(invalid: Box<Invalid>) -> Self {
        Self::Invalid(invalid)
    }
}

/// The places in a topic's records that a verdict depends on.
#[derive(Clone, Copy, Debug)]
pub struct RecordSpec<'t> {
    /// The parts of the key and the hash function.
    pub key: &'t KeySpec,
    /// The parts to compare with the previous record of the key. Only set with `emit = "on_change"`.
    pub content: Option<&'t KeySpec>,
    /// The predicates that must all hold for a record to be deduplicated.
    pub when: &'t [Predicate],
    /// The predicate that marks a record as a retraction of its key, if one is configured.
    pub retract: Option<&'t Predicate>,
    /// The time of the event, or `None` for Kafka's timestamp.
    pub time: Option<&'t EventTime>,
    /// The formats and encodings of record keys and values.
    pub formats: &'t Formats,
}

#[cfg(feature = "worker")]
impl<'t> RecordSpec<'t> {
    /// Returns the key if nothing else is read from records and if record keys and values are plain JSON.
    pub(crate) fn only_key(&self) -> Option<&'t KeySpec> {
        let reads_more = self.content.is_some() || !self.when.is_empty() || self.retract.is_some() || self.time.is_some();
        (self.formats.is_plain_json() && !reads_more).then_some(self.key)
    }
}

impl RecordSpec<'_> {
    /// True if the key or a predicate reads the value of a record with these headers.
    fn needs_value(&self, headers: &[(&str, Option<&[u8]>)]) -> bool {
        self.key.reads_value_of(headers) || self.when.iter().chain(self.retract).any(Predicate::reads_value)
    }
}

/// Everything in a record that its verdict depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedRecord {
    /// The fingerprint of the record's key. With `emit = "on_change"`, the fingerprint is combined with the content, except for a
    /// retraction.
    pub fingerprint: Fingerprint,
    /// True if [`RecordSpec::retract`] holds.
    pub retracts: bool,
    /// The time that the window uses, or `None` if the record has no time.
    pub time: Option<Timestamp>,
}

/// Reads the keys of one topic's records. Must be kept between records, because it caches extractors and buffers.
#[derive(Debug, Default)]
pub struct Reader {
    key: Extractors,
    value: Extractors,
    /// One per predicate in [`RecordSpec::when`], in the same order.
    when: Vec<Extractors>,
    retract: Extractors,
    time: Extractors,
    decoded: Decoded,
    content: ContentReader,
}

/// Reads the content that is compared with the previous record of a key.
#[derive(Debug, Default)]
struct ContentReader {
    key: Extractors,
    value: Extractors,
    /// Separate from the caller's [`Scratch`], which still holds the parts of the key.
    scratch: Scratch,
    counts: ContentCounts,
}

/// Counts of record contents that were read. If the content is in the value, tombstones are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContentCounts {
    /// The number of contents, including contents whose parts are all missing or null.
    pub read: u64,
    /// The number of contents with at least one part that is neither missing nor null.
    pub with_parts: u64,
}

/// The content of a tombstone if the compared parts are in the value.
const NO_VALUE: Fingerprint = Fingerprint(0);
/// The content of a record whose parts are all null or missing.
const NOTHING: Fingerprint = Fingerprint(1);

impl Reader {
    #[cfg(feature = "worker")]
    pub(crate) const fn decoded_bytes(&self) -> u64 {
        self.decoded.total
    }

    #[cfg(feature = "worker")]
    pub(crate) fn take_content_counts(&mut self) -> ContentCounts {
        std::mem::take(&mut self.content.counts)
    }

    /// Reads everything that a record's verdict depends on. `timestamp` is Kafka's timestamp of the record.
    ///
    /// # Errors
    /// Returns [`NoKey`] if the record passes through, if it has no usable key, content, or time, if a predicate cannot be tested, or if
    /// its schema has not arrived yet.
    pub fn read(
        &mut self,
        spec: RecordSpec<'_>,
        record: &Record<'_>,
        timestamp: Option<Timestamp>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<KeyedRecord, NoKey> {
        let keyed = self.read_without_content(spec, record, timestamp, scratch, schemas)?;
        match spec.content {
            // A retraction removes its key regardless of the content.
            Some(content) if !keyed.retracts => {
                let content = self.content(content, spec.formats, record, schemas)?;
                Ok(KeyedRecord { fingerprint: keyed.fingerprint.with_content(content), ..keyed })
            }
            _ => Ok(keyed),
        }
    }

    fn content(&mut self, spec: &KeySpec, formats: &Formats, record: &Record<'_>, schemas: &dyn Schemas) -> Result<Fingerprint, NoKey> {
        let encodings = &formats.value().encodings;
        let value = match record.value.filter(|_| !encodings.is_empty() && spec.reads_value_of(record.headers)) {
            Some(value) => Some(self.decoded.decode(encodings, value).map_err(|what| invalid(Side::Value, Reason::Malformed, &what))?),
            None => record.value,
        };
        let ContentReader { key, value: values, scratch, counts } = &mut self.content;
        let (content, with_parts) = match fingerprint_of(spec, (key, values), formats, &Record { value, ..*record }, scratch, schemas) {
            Err(NoKey::Invalid(invalid)) if invalid.reason == Reason::Tombstone => return Ok(NO_VALUE),
            Err(NoKey::Invalid(invalid)) if invalid.reason == Reason::NullKey => (NOTHING, 0),
            content => (content?, 1),
        };
        counts.read += 1;
        counts.with_parts += with_parts;
        Ok(content)
    }

    fn read_without_content(
        &mut self,
        spec: RecordSpec<'_>,
        record: &Record<'_>,
        timestamp: Option<Timestamp>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<KeyedRecord, NoKey> {
        let formats = spec.formats;
        if !formats.value().encodings.is_empty() {
            return self.read_encoded(spec, record, timestamp, scratch, schemas);
        }
        if !spec.when.is_empty() {
            self.select(spec, |_| true, record, scratch, schemas)?;
        }
        let fingerprint = if formats.is_plain_json() {
            spec.key.fingerprint_with_texts(record, scratch)?
        } else {
            self.fingerprint_of(spec.key, formats, record, scratch, schemas)?
        };
        self.complete(fingerprint, spec, record, timestamp, scratch, schemas)
    }

    /// Reads a record whose value is encoded. Decodes the value at most once for the key, the predicates, and the time, and only if one of
    /// them needs the value.
    #[inline(never)]
    fn read_encoded(
        &mut self,
        spec: RecordSpec<'_>,
        record: &Record<'_>,
        timestamp: Option<Timestamp>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<KeyedRecord, NoKey> {
        self.select(spec, |predicate| !predicate.reads_value(), record, scratch, schemas)?;
        let needs_value = spec.needs_value(record.headers);
        let reads_time = matches!(spec.time, Some(EventTime { place: TimePlace::Field { .. }, .. }));
        let mut room = std::mem::take(&mut self.decoded);
        let decoded = record.value.filter(|_| needs_value || reads_time).map(|value| room.decode(&spec.formats.value().encodings, value));
        let keyed = match decoded.transpose() {
            Err(what) if needs_value || spec.time.is_some_and(|time| !time.optional) => Err(invalid(Side::Value, Reason::Malformed, &what)),
            decoded => {
                let decoded = Record { value: decoded.unwrap_or_default(), ..*record };
                let selected = self.select(spec, Predicate::reads_value, &decoded, scratch, schemas);
                let fingerprint = selected.and_then(|()| self.fingerprint_of(spec.key, spec.formats, &decoded, scratch, schemas));
                fingerprint.and_then(|fingerprint| self.complete(fingerprint, spec, &decoded, timestamp, scratch, schemas))
            }
        };
        self.decoded = room;
        keyed
    }

    /// Tests the predicates of `when` that `due` selects. Fails with [`NoKey::Passes`] if one of them does not hold.
    fn select(
        &mut self,
        spec: RecordSpec<'_>,
        due: impl Fn(&Predicate) -> bool,
        record: &Record<'_>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<(), NoKey> {
        if self.when.len() < spec.when.len() {
            self.when.resize_with(spec.when.len(), Extractors::default);
        }
        for (predicate, extractors) in spec.when.iter().zip(&mut self.when).filter(|(predicate, _)| due(predicate)) {
            if !predicate.holds(extractors, spec.formats, record, scratch, schemas)? {
                return Err(NoKey::Passes);
            }
        }
        Ok(())
    }

    /// Tests only the predicates of `when`, without reading the key.
    ///
    /// # Errors
    /// Returns [`NoKey`] if the record passes through, or if a field of `when` cannot be read or its schema has not arrived yet.
    pub fn check_selected(
        &mut self,
        spec: RecordSpec<'_>,
        record: &Record<'_>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<(), NoKey> {
        let encodings = &spec.formats.value().encodings;
        if encodings.is_empty() || !spec.when.iter().any(Predicate::reads_value) {
            return self.select(spec, |_| true, record, scratch, schemas);
        }
        self.select(spec, |predicate| !predicate.reads_value(), record, scratch, schemas)?;
        let mut room = std::mem::take(&mut self.decoded);
        let selected = match record.value.map(|value| room.decode(encodings, value)).transpose() {
            Err(what) => Err(invalid(Side::Value, Reason::Malformed, &what)),
            Ok(value) => self.select(spec, Predicate::reads_value, &Record { value, ..*record }, scratch, schemas),
        };
        self.decoded = room;
        selected
    }

    /// Adds the time and the result of the `retract` predicate to a fingerprint.
    #[inline]
    fn complete(
        &mut self,
        fingerprint: Fingerprint,
        spec: RecordSpec<'_>,
        record: &Record<'_>,
        timestamp: Option<Timestamp>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<KeyedRecord, NoKey> {
        let formats = spec.formats;
        if spec.retract.is_none() && spec.time.is_none() {
            return Ok(KeyedRecord { fingerprint, retracts: false, time: timestamp });
        }
        let retracts = match spec.retract {
            Some(retract) => retract.holds(&mut self.retract, formats, record, scratch, schemas)?,
            None => false,
        };
        Ok(KeyedRecord { fingerprint, retracts, time: self.time(spec.time, formats, record, timestamp, scratch, schemas)? })
    }

    /// Computes the fingerprint of a record's key.
    ///
    /// # Errors
    /// Returns [`NoKey`] if the record has no usable key, or if its schema has not arrived yet.
    pub fn fingerprint(
        &mut self,
        key: &KeySpec,
        formats: &Formats,
        record: &Record<'_>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<Fingerprint, NoKey> {
        let spec = RecordSpec { key, content: None, when: &[], retract: None, time: None, formats };
        self.read(spec, record, None, scratch, schemas).map(|keyed| keyed.fingerprint)
    }

    /// The value of `record` must already be decoded.
    fn fingerprint_of(
        &mut self,
        spec: &KeySpec,
        formats: &Formats,
        record: &Record<'_>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<Fingerprint, NoKey> {
        fingerprint_of(spec, (&mut self.key, &mut self.value), formats, record, scratch, schemas)
    }

    fn time(
        &mut self,
        time: Option<&EventTime>,
        formats: &Formats,
        record: &Record<'_>,
        timestamp: Option<Timestamp>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<Option<Timestamp>, NoKey> {
        let Some(time) = time else { return Ok(timestamp) };
        match self.event_time(time, formats, record, scratch, schemas) {
            Ok(time) => Ok(Some(time)),
            Err(NoKey::Invalid(_)) if time.optional => Ok(timestamp),
            Err(no_time) => Err(no_time),
        }
    }

    fn event_time(
        &mut self,
        time: &EventTime,
        formats: &Formats,
        record: &Record<'_>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<Timestamp, NoKey> {
        let unusable = |what: &str| NoKey::Invalid(Box::new(no_time(&format!("{} {what}", time.place))));
        let not_a_time = || unusable(&format!("is not {}", time.expected()));
        let (field, pointer) = match &time.place {
            TimePlace::Header(name) => {
                let named = record.headers.iter().rev().find(|(header, _)| header == name);
                let (_, value) = named.ok_or_else(|| NoKey::Invalid(Box::new(no_time(&format!("the record has no {}", time.place)))))?;
                let value = value.ok_or_else(|| unusable("is null"))?;
                return str::from_utf8(value).ok().and_then(|text| time.of_text(text)).ok_or_else(not_a_time);
            }
            TimePlace::Field { field, pointer } => (field, pointer),
        };
        let value = record.value.ok_or_else(|| NoKey::Invalid(Box::new(no_time("the record value is null"))))?;
        let frame = header(record, VALUE_HEADER);
        let opened = self.time.open(Side::Value, formats.value(), field.places(), value, frame, schemas)?;
        let extractor = self.time.extractor(opened.number).map_err(|error| invalid(Side::Value, Reason::UnknownSchema, error))?;
        let (text, mut found) = (opened.text.unwrap_or_default(), [None]);
        extractor
            .find(text, &mut scratch.buffers, &mut found)
            .map_err(|error| Box::new(unreadable(Side::Value, formats.value().is_framed(), text, &error)))?;
        match found {
            [None] => {
                let is_json = formats.value().format.is_json();
                Err(NoKey::Invalid(Box::new(no_time_field(pointer, Some(text).filter(|_| is_json)))))
            }
            [Some(Scalar::Null)] => Err(unusable("is null")),
            [Some(value)] => time.of_scalar(value).ok_or_else(not_a_time),
        }
    }
}

/// The value of `record` must already be decoded.
#[inline]
fn fingerprint_of(
    spec: &KeySpec,
    (keys, values): (&mut Extractors, &mut Extractors),
    formats: &Formats,
    record: &Record<'_>,
    scratch: &mut Scratch,
    schemas: &dyn Schemas,
) -> Result<Fingerprint, NoKey> {
    let (mut key, mut value) = (Opened::bare(record.key), Opened::bare(record.value));
    if let (Some(text), true) = (record.key, spec.reads_key()) {
        let header = header(record, KEY_HEADER);
        key = keys.open(Side::Key, formats.key(), spec.places(Side::Key), text, header, schemas)?;
    }
    if let Some(text) = record.value
        && spec.reads_value_of(record.headers)
    {
        let header = header(record, VALUE_HEADER);
        value = values.open(Side::Value, formats.value(), spec.places(Side::Value), text, header, schemas)?;
    }
    let bare = Record { key: key.text, value: value.text, headers: record.headers };
    let key = keys.source(Side::Key, formats.key(), key)?;
    let value = values.source(Side::Value, formats.value(), value)?;
    spec.fingerprint_of(&bare, &key, &value, scratch).map_err(NoKey::Invalid)
}

/// Reads the values of one topic's records for purposes other than their keys. Must be kept between records, because it caches extractors
/// and buffers.
#[derive(Debug, Default)]
pub struct ValueReader {
    field: Extractors,
    whole: Extractors,
    scratch: Scratch,
    decoded: Decoded,
}

/// A decoded record value without its frame.
#[derive(Debug)]
pub struct OpenValue<'v> {
    /// The bytes of the value, or `None` if the value is null.
    pub text: Option<&'v [u8]>,
    extractor: &'v Extractor,
    scratch: &'v mut Scratch,
}

impl ValueReader {
    /// Returns the string, number, or boolean at a field. Returns `None` if the value does not have the field or cannot be read, or if
    /// the schema of the value is not known.
    pub fn text<'a>(
        &'a mut self,
        field: &Field,
        format: &RecordFormat,
        value: &'a [u8],
        headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
        schemas: &dyn Schemas,
    ) -> Option<Cow<'a, str>> {
        let header = schema_header(format, headers);
        let value = if format.encodings.is_empty() { value } else { self.decoded.decode(&format.encodings, value).ok()? };
        let opened = self.field.open(Side::Value, format, field.places(), value, header, schemas).ok()?;
        let extractor = self.field.extractor(opened.number).ok()?;
        field::text(extractor, opened.text?, &mut self.scratch.buffers).ok()?
    }

    /// Decodes a value and removes its frame. If the value cannot be decoded, it stays encoded. If its frame is invalid or its schema does
    /// not exist, the frame stays. Returns `None` if the schema of the value has not arrived yet.
    pub fn open<'a>(
        &'a mut self,
        format: &RecordFormat,
        value: Option<&'a [u8]>,
        headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
        schemas: &dyn Schemas,
    ) -> Option<OpenValue<'a>> {
        let value = match value {
            Some(value) if !format.encodings.is_empty() => Some(self.decoded.decode(&format.encodings, value).unwrap_or(value)),
            value => value,
        };
        let mut opened = Opened::bare(value);
        if let Some(text) = value {
            let header = schema_header(format, headers);
            let everything = Places::default().and_everything();
            match self.whole.open(Side::Value, format, &everything, text, header, schemas) {
                Ok(open) => opened = open,
                Err(NoKey::Awaits(_)) => return None,
                Err(NoKey::Invalid(_) | NoKey::Passes) => {}
            }
        }
        let extractor = self.whole.extractor(opened.number).unwrap_or(&self.whole.none);
        Some(OpenValue { text: opened.text, extractor, scratch: &mut self.scratch })
    }
}

fn schema_header<'a>(format: &RecordFormat, mut headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>) -> Option<&'a [u8]> {
    if format.is_framed() { headers.by_ref().filter(|(name, _)| *name == VALUE_HEADER).last().and_then(|(_, frame)| frame) } else { None }
}

impl OpenValue<'_> {
    /// Visits the fields of the value, each with its JSON pointer. An object at depth `depth_max` is visited as a single field. Returns
    /// false if the value is not an object or cannot be read. The caller must then discard the visited fields.
    pub fn leaves(&mut self, depth_max: usize, visit: impl FnMut(Leaf<'_>)) -> bool {
        self.text.is_some_and(|text| field::leaves(self.extractor, text, depth_max, self.scratch, visit).unwrap_or(false))
    }
}

#[cfg(all(test, feature = "formats"))]
mod tests;
