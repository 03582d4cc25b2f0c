//! Keys and fields of the records of one topic, regardless of their format.
//!
//! Owns the extractors that were compiled for the topic's schemas. Must never guess: while a schema is requested, a record has no
//! key, and is not invalid either.
//!
//! An encoding or a frame is not part of a key or value. The same content under two schemas is therefore the same to `record` and
//! `content` parts.

use super::field::{self, Field, Leaf};
use super::invalid::{no_time, no_time_field, unreadable};
use super::{EventTime, Fingerprint, KeySpec, Retract, Scratch, Source, TimePlace};
use crate::format::{
    Decoded, Extract, Extractor, Format, Formats, Frame, Head, KEY_HEADER, Lookup, Message, Places, RecordFormat, Scalar, Schema, SchemaId,
    Schemas, Side, VALUE_HEADER, disguise,
};
use crate::record::{Invalid, Reason, Record, Timestamp};
use std::borrow::Cow;
use std::collections::HashMap;

/// Maximum number of extractors that a reader keeps for each of key and value. If there are more, it compiles them again.
const EXTRACTORS_MAX: usize = 1024;

/// Why a record has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoKey {
    /// It never will have one.
    Invalid(Box<Invalid>),
    /// It has one once this schema is known.
    Awaits(SchemaId),
}

impl From<Box<Invalid>> for NoKey {
    fn from(invalid: Box<Invalid>) -> Self {
        Self::Invalid(invalid)
    }
}

/// Everything that a verdict depends on, and where the records of a topic have it.
#[derive(Clone, Copy, Debug)]
pub struct RecordSpec<'t> {
    /// The key.
    pub key: &'t KeySpec,
    /// The rule by which a record retracts its key, if there is one.
    pub retract: Option<&'t Retract>,
    /// The time of the event, or `None` for Kafka's timestamp.
    pub time: Option<&'t EventTime>,
    /// The formats of keys and values.
    pub formats: &'t Formats,
}

impl RecordSpec<'_> {
    /// True if a key or a retraction is read from the value of a record with these headers.
    fn needs_value(&self, headers: &[(&str, Option<&[u8]>)]) -> bool {
        self.key.reads_value() || self.key.reads_event(headers) || matches!(self.retract, Some(Retract::Field { .. }))
    }
}

/// Everything in a record that its verdict depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedRecord {
    /// The fingerprint of its key.
    pub fingerprint: Fingerprint,
    /// True if it retracts its key.
    pub retracts: bool,
    /// The time that the window goes by, if the record has one.
    pub time: Option<Timestamp>,
}

/// Reads the keys of one topic's records; kept between records.
#[derive(Debug, Default)]
pub struct Reader {
    key: Extractors,
    value: Extractors,
    retract: Extractors,
    time: Extractors,
    decoded: Decoded,
}

impl Reader {
    /// Reads everything that a record's verdict depends on. `timestamp` is Kafka's.
    ///
    /// # Errors
    /// [`NoKey`] if the record has no key or no time, or does not have them yet.
    #[inline]
    pub fn read(
        &mut self,
        spec: RecordSpec<'_>,
        record: &Record<'_>,
        timestamp: Option<Timestamp>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<KeyedRecord, NoKey> {
        let fingerprint = if spec.formats.is_plain_json() {
            spec.key.fingerprint(record, scratch)?
        } else if spec.formats.value().encodings.is_empty() {
            self.fingerprint_of(spec.key, spec.formats, record, scratch, schemas)?
        } else {
            return self.read_encoded(spec, record, timestamp, scratch, schemas);
        };
        self.complete(fingerprint, spec, record, timestamp, scratch, schemas)
    }

    /// Reads a record whose value is encoded. The value is decoded once, and only if it is read.
    #[inline(never)]
    fn read_encoded(
        &mut self,
        spec: RecordSpec<'_>,
        record: &Record<'_>,
        timestamp: Option<Timestamp>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<KeyedRecord, NoKey> {
        let needs_value = spec.needs_value(record.headers);
        let reads_time = matches!(spec.time, Some(EventTime { place: TimePlace::Field { .. }, .. }));
        let mut room = std::mem::take(&mut self.decoded);
        let decoded = record.value.filter(|_| needs_value || reads_time).map(|value| room.decode(&spec.formats.value().encodings, value));
        let keyed = match decoded.transpose() {
            Err(what) if needs_value || spec.time.is_some_and(|time| !time.optional) => Err(invalid(Side::Value, Reason::Malformed, &what)),
            decoded => {
                let decoded = Record { value: decoded.unwrap_or_default(), ..*record };
                let fingerprint = self.fingerprint_of(spec.key, spec.formats, &decoded, scratch, schemas);
                fingerprint.and_then(|fingerprint| self.complete(fingerprint, spec, &decoded, timestamp, scratch, schemas))
            }
        };
        self.decoded = room;
        keyed
    }

    /// Adds everything except the key.
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
        if spec.retract.is_none() && spec.time.is_none() {
            return Ok(KeyedRecord { fingerprint, retracts: false, time: timestamp });
        }
        let retracts = self.retracts(spec.retract, spec.formats, record, scratch, schemas)?;
        Ok(KeyedRecord { fingerprint, retracts, time: self.time(spec.time, spec.formats, record, timestamp, scratch, schemas)? })
    }

    /// Computes the fingerprint of a record's key.
    ///
    /// # Errors
    /// [`NoKey`] if the record has no such key, or does not have it yet.
    pub fn fingerprint(
        &mut self,
        key: &KeySpec,
        formats: &Formats,
        record: &Record<'_>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<Fingerprint, NoKey> {
        let spec = RecordSpec { key, retract: None, time: None, formats };
        self.read(spec, record, None, scratch, schemas).map(|keyed| keyed.fingerprint)
    }

    /// Computes the fingerprint of a record's key. The value is already decoded.
    fn fingerprint_of(
        &mut self,
        spec: &KeySpec,
        formats: &Formats,
        record: &Record<'_>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<Fingerprint, NoKey> {
        let (mut key, mut value) = (Opened::bare(record.key), Opened::bare(record.value));
        if let (Some(text), true) = (record.key, spec.reads_key()) {
            let header = header(record, KEY_HEADER);
            key = self.key.open(Side::Key, formats.key(), spec.places(Side::Key), text, header, schemas)?;
        }
        if let Some(text) = record.value
            && (spec.reads_value() || spec.reads_event(record.headers))
        {
            let header = header(record, VALUE_HEADER);
            value = self.value.open(Side::Value, formats.value(), spec.places(Side::Value), text, header, schemas)?;
        }
        let bare = Record { key: key.text, value: value.text, headers: record.headers };
        let key = self.key.source(Side::Key, formats.key(), key)?;
        let value = self.value.source(Side::Value, formats.value(), value)?;
        spec.fingerprint_of(&bare, &key, &value, scratch).map_err(NoKey::Invalid)
    }

    /// Returns whether a record retracts its key.
    #[inline]
    fn retracts(
        &mut self,
        retract: Option<&Retract>,
        formats: &Formats,
        record: &Record<'_>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<bool, NoKey> {
        match retract {
            None => Ok(false),
            Some(Retract::Field { field, one_of }) => {
                let Some(value) = record.value else { return Ok(false) };
                let frame = header(record, VALUE_HEADER);
                let opened = self.retract.open(Side::Value, formats.value(), field.places(), value, frame, schemas)?;
                let extractor = self.retract.extractor(opened.number);
                let extractor = extractor.map_err(|error| invalid(Side::Value, Reason::UnknownSchema, error))?;
                let text = opened.text.unwrap_or_default();
                let found = field::text(extractor, text, &mut scratch.buffers);
                let found = found.map_err(|error| Box::new(unreadable(Side::Value, formats.value().is_framed(), text, &error)))?;
                Ok(found.is_some_and(|found| one_of.iter().any(|value| *value == found)))
            }
            Some(by_header) => Ok(by_header.is_in(record.headers)),
        }
    }

    /// Returns the time that the window goes by. `timestamp` is Kafka's.
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
                let is_json = matches!(formats.value().format, Format::Json | Format::JsonSchema);
                Err(NoKey::Invalid(Box::new(no_time_field(pointer, Some(text).filter(|_| is_json)))))
            }
            [Some(Scalar::Null)] => Err(unusable("is null")),
            [Some(value)] => time.of_scalar(value).ok_or_else(not_a_time),
        }
    }
}

fn header<'a>(record: &Record<'a>, name: &str) -> Option<&'a [u8]> {
    record.headers.iter().rev().find(|(header, _)| *header == name).and_then(|(_, value)| *value)
}

/// Reads the values of one topic's records for something other than their keys; kept between records.
#[derive(Debug, Default)]
pub struct ValueReader {
    field: Extractors,
    whole: Extractors,
    scratch: Scratch,
    decoded: Decoded,
}

/// A record value that is decoded, and without its frame.
#[derive(Debug)]
pub struct OpenValue<'v> {
    /// The bytes of the value, which may be null.
    pub text: Option<&'v [u8]>,
    extractor: &'v Extractor,
    scratch: &'v mut Scratch,
}

impl ValueReader {
    /// Returns the string or number at a field, if the value has it, and its schema is known.
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

    /// Decodes a value, and takes it out of its frame, unless its schema is not known.
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
                Err(NoKey::Invalid(_)) => {}
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
    /// Visits the fields that are not objects, by JSON pointer. Below `depth_max` names, an object is a single field, too. Returns
    /// whether the value is an object that can be read. If it is not, what was visited means nothing.
    pub fn leaves(&mut self, depth_max: usize, visit: impl FnMut(Leaf<'_>)) -> bool {
        self.text.is_some_and(|text| field::leaves(self.extractor, text, depth_max, self.scratch, visit).unwrap_or(false))
    }
}

/// Compiled extractors, by the frames that name their schemas.
#[derive(Debug, Default)]
struct Extractors {
    /// The extractor that was used last. The next record usually needs the same one.
    last: usize,
    known: Vec<Known>,
    numbers: HashMap<Box<[u8]>, usize>,
    /// For texts of which nothing is read.
    none: Extractor,
}

/// The meaning of a frame.
#[derive(Debug)]
struct Known {
    head: Box<[u8]>,
    /// Or why there is no extractor: a sentence without its subject.
    extractor: Result<Extractor, String>,
}

/// A text without its frame, and the number of its extractor, if it is read.
#[derive(Clone, Copy)]
struct Opened<'a> {
    text: Option<&'a [u8]>,
    number: Option<usize>,
}

impl<'a> Opened<'a> {
    const fn bare(text: Option<&'a [u8]>) -> Self {
        Self { text, number: None }
    }
}

impl Extractors {
    /// Takes a text out of its frame, and prepares its extractor.
    fn open<'a>(
        &mut self,
        side: Side,
        format: &RecordFormat,
        places: &Places,
        text: &'a [u8],
        header: Option<&'a [u8]>,
        schemas: &dyn Schemas,
    ) -> Result<Opened<'a>, NoKey> {
        let mut frame = Frame { head: &[], body: text };
        if format.is_framed() {
            frame = Frame::split(format.format, text, header).map_err(|what| unframed(side, text, what))?;
        }
        if places.reads_nothing() {
            return Ok(Opened::bare(Some(frame.body)));
        }
        // The schema of a JSON text does not matter.
        let head = if matches!(format.format, Format::JsonSchema) { &[] } else { frame.head };
        if self.known.get(self.last).is_none_or(|known| *known.head != *head) {
            self.last = match self.numbers.get(head) {
                Some(&number) => number,
                None => self.compile(side, format, places, head, schemas)?,
            };
        }
        Ok(Opened { text: Some(frame.body), number: Some(self.last) })
    }

    /// Returns the extractor of a text that was opened.
    fn extractor(&self, number: Option<usize>) -> Result<&Extractor, &String> {
        match number.and_then(|number| self.known.get(number)) {
            Some(known) => known.extractor.as_ref(),
            None => Ok(&self.none),
        }
    }

    /// Returns what the key is read by.
    fn source(&self, side: Side, format: &RecordFormat, opened: Opened<'_>) -> Result<Source<'_, Extractor>, NoKey> {
        let extractor = self.extractor(opened.number).map_err(|error| invalid(side, Reason::UnknownSchema, error))?;
        let is_json = matches!(format.format, Format::Json | Format::JsonSchema);
        Ok(Source { extractor, is_json, is_framed: format.is_framed() })
    }

    /// Adds the extractor of a schema, and returns its number.
    fn compile(&mut self, side: Side, format: &RecordFormat, places: &Places, head: &[u8], schemas: &dyn Schemas) -> Result<usize, NoKey> {
        let extractor = if let Format::Json | Format::JsonSchema = format.format {
            Ok(Extractor::json(places.clone()))
        } else if let Some(local) = &format.schema {
            compiled(&local.schema, local.message(), places).map_err(|error| format!("has a schema that cannot be used: {error}"))
        } else {
            named(side, format.format, places, head, schemas)?
        };
        if self.known.len() == EXTRACTORS_MAX {
            self.known.clear();
            self.numbers.clear();
        }
        self.known.push(Known { head: head.into(), extractor });
        self.numbers.insert(head.into(), self.known.len() - 1);
        Ok(self.known.len() - 1)
    }
}

fn compiled(schema: &Schema, message: Message<'_>, places: &Places) -> Result<Extractor, String> {
    Extractor::compile(schema, message, places).map_err(|error| error.to_string())
}

/// Compiles the schema that a frame names.
fn named(side: Side, format: Format, places: &Places, head: &[u8], schemas: &dyn Schemas) -> Result<Result<Extractor, String>, NoKey> {
    let broken = || invalid(side, Reason::Malformed, "has a frame that cannot be read");
    let Head { schema: id, indexes } = Head::of(format, head).ok_or_else(broken)?;
    let schema = match schemas.get(id) {
        Lookup::Known(schema) => schema,
        Lookup::Unknown(why) => return Err(invalid(side, Reason::UnknownSchema, &format!("has schema {id}, but {why}"))),
        Lookup::Awaited => return Err(NoKey::Awaits(id)),
    };
    let extractor = if schema.format == format {
        compiled(&schema, Message::Indexes(&indexes), places)
    } else {
        Err(format!("it is a schema for {}, not for {format}", schema.format))
    };
    Ok(extractor.map_err(|error| format!("has schema {id}, which cannot be used: {error}")))
}

/// A text without the frame that its format has.
fn unframed(side: Side, text: &[u8], what: &str) -> NoKey {
    match disguise(side, text) {
        Some(disguise) => invalid(side, Reason::Malformed, &format!("does not begin with the frame of a schema registry: {disguise}")),
        None => invalid(side, Reason::Malformed, what),
    }
}

fn invalid(side: Side, reason: Reason, what: &str) -> NoKey {
    NoKey::Invalid(Box::new(Invalid { reason, message: format!("the record {side} {what}") }))
}

#[cfg(all(test, feature = "formats"))]
mod tests;
