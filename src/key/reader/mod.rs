//! Keys and fields of the records of one topic, regardless of their format.
//!
//! Must never guess: while a schema is requested, a record has no key, and is not invalid either.
//!
//! A frame is not part of a key or value. The same content under two schemas is therefore the same to `record` and `content` parts.

mod extractors;
mod holds;

use super::field::{self, Field, Leaf};
use super::invalid::{no_time, no_time_field, unreadable};
use super::{EventTime, Fingerprint, KeySpec, Predicate, Scratch, TimePlace};
use crate::format::{Extract, Extractor, Format, Formats, KEY_HEADER, Places, RecordFormat, Scalar, SchemaId, Schemas, Side, VALUE_HEADER};
use crate::record::{Invalid, Reason, Record, Timestamp};
use extractors::{Extractors, Opened, header, invalid};
use std::borrow::Cow;

/// Why a record has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoKey {
    /// It never will have one.
    Invalid(Box<Invalid>),
    /// It has one once this schema is known.
    Awaits(SchemaId),
    /// It is not deduplicated, because a predicate of `when` does not hold.
    Passes,
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
    /// The predicates that all hold for the records that are deduplicated.
    pub when: &'t [Predicate],
    /// The predicate that holds for a record that retracts its key, if there is one.
    pub retract: Option<&'t Predicate>,
    /// The time of the event, or `None` for Kafka's timestamp.
    pub time: Option<&'t EventTime>,
    /// The formats of keys and values.
    pub formats: &'t Formats,
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
    /// One for each predicate.
    when: Vec<Extractors>,
    retract: Extractors,
    time: Extractors,
}

impl Reader {
    /// Reads everything that a record's verdict depends on. `timestamp` is Kafka's.
    ///
    /// # Errors
    /// [`NoKey`] if the record passes through, has no key or no time, or does not have them yet.
    pub fn read(
        &mut self,
        spec: RecordSpec<'_>,
        record: &Record<'_>,
        timestamp: Option<Timestamp>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<KeyedRecord, NoKey> {
        if self.when.len() < spec.when.len() {
            self.when.resize_with(spec.when.len(), Extractors::default);
        }
        for (predicate, extractors) in spec.when.iter().zip(&mut self.when) {
            if !predicate.holds(extractors, spec.formats, record, scratch, schemas)? {
                return Err(NoKey::Passes);
            }
        }
        self.read_selected(spec, record, timestamp, scratch, schemas)
    }

    /// Reads a record without looking at `when`.
    ///
    /// # Errors
    /// [`NoKey`] if the record has no key or no time, or does not have them yet.
    #[inline]
    pub fn read_selected(
        &mut self,
        spec: RecordSpec<'_>,
        record: &Record<'_>,
        timestamp: Option<Timestamp>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<KeyedRecord, NoKey> {
        let formats = spec.formats;
        let fingerprint = self.fingerprint(spec.key, formats, record, scratch, schemas)?;
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
    /// [`NoKey`] if the record has no such key, or does not have it yet.
    #[inline]
    pub fn fingerprint(
        &mut self,
        spec: &KeySpec,
        formats: &Formats,
        record: &Record<'_>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<Fingerprint, NoKey> {
        if formats.is_json() {
            return spec.fingerprint(record, scratch).map_err(NoKey::Invalid);
        }
        self.fingerprint_of(spec, formats, record, scratch, schemas)
    }

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
            key = self.key.open(Side::Key, &formats.key, spec.places(Side::Key), text, header, schemas)?;
        }
        if let Some(text) = record.value
            && (spec.reads_value() || spec.reads_event(record.headers))
        {
            let header = header(record, VALUE_HEADER);
            value = self.value.open(Side::Value, &formats.value, spec.places(Side::Value), text, header, schemas)?;
        }
        let bare = Record { key: key.text, value: value.text, headers: record.headers };
        let key = self.key.source(Side::Key, &formats.key, key)?;
        let value = self.value.source(Side::Value, &formats.value, value)?;
        spec.fingerprint_of(&bare, &key, &value, scratch).map_err(NoKey::Invalid)
    }

    /// Returns the time that the window goes by. `timestamp` is Kafka's.
    ///
    /// # Errors
    /// [`NoKey`] if the record must have the time of its event and does not, or if its schema is not known yet.
    pub fn time(
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
        let opened = self.time.open(Side::Value, &formats.value, field.places(), value, frame, schemas)?;
        let extractor = self.time.extractor(opened.number).map_err(|error| invalid(Side::Value, Reason::UnknownSchema, error))?;
        let (text, mut found) = (opened.text.unwrap_or_default(), [None]);
        extractor
            .find(text, &mut scratch.buffers, &mut found)
            .map_err(|error| Box::new(unreadable(Side::Value, formats.value.is_framed(), text, &error)))?;
        match found {
            [None] => {
                let is_json = matches!(formats.value.format, Format::Json | Format::JsonSchema);
                Err(NoKey::Invalid(Box::new(no_time_field(pointer, Some(text).filter(|_| is_json)))))
            }
            [Some(Scalar::Null)] => Err(unusable("is null")),
            [Some(value)] => time.of_scalar(value).ok_or_else(not_a_time),
        }
    }
}

/// Reads the values of one topic's records for something other than their keys; kept between records.
#[derive(Debug, Default)]
pub struct ValueReader {
    field: Extractors,
    whole: Extractors,
    scratch: Scratch,
}

/// A record value without its frame.
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
        let opened = self.field.open(Side::Value, format, field.places(), value, header, schemas).ok()?;
        let extractor = self.field.extractor(opened.number).ok()?;
        field::text(extractor, opened.text?, &mut self.scratch.buffers).ok()?
    }

    /// Takes a value out of its frame, unless its schema is not known.
    pub fn open<'a>(
        &'a mut self,
        format: &RecordFormat,
        value: Option<&'a [u8]>,
        headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
        schemas: &dyn Schemas,
    ) -> Option<OpenValue<'a>> {
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
    /// Visits the fields that are not objects, by JSON pointer. Below `depth_max` names, an object is a single field, too. Returns
    /// whether the value is an object that can be read. If it is not, what was visited means nothing.
    pub fn leaves(&mut self, depth_max: usize, visit: impl FnMut(Leaf<'_>)) -> bool {
        self.text.is_some_and(|text| field::leaves(self.extractor, text, depth_max, self.scratch, visit).unwrap_or(false))
    }
}

#[cfg(all(test, feature = "formats"))]
mod tests;
