//! Keys out of the records of one topic, whatever format they have.
//!
//! Owns the walks that were compiled for the topic's schemas. Must never guess: while a schema is asked for, a record has
//! no key, and is not invalid either.
//!
//! A frame is no part of a key or value. So the same content under two schemas is the same to `record` and `content` parts.

use super::frame::{self, Frame, Head, KEY_HEADER, SchemaId, VALUE_HEADER};
use super::{Format, Message, Schema, Walk};
use crate::key::{FEW, Fields, Fingerprint, KeySpec, Node, Scalar, Scratch, disguise, room_for};
use crate::record::{Invalid, Reason, Record};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Walks that a reader keeps for each of key and value. Past that, it compiles them anew.
const WALKS_MAX: usize = 1024;

/// Who has schemas.
pub trait Schemas: fmt::Debug + Send + Sync {
    /// What is known of a schema. Must not block for long: it is asked for each record whose schema was not seen yet.
    fn get(&self, id: SchemaId) -> Lookup;

    /// Why schemas are still being asked for, as a sentence.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// What is known of a schema.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// This is it.
    Known(Arc<Schema>),
    /// There is none, or it cannot be used, as a sentence.
    Unknown(Arc<str>),
    /// It is being asked for.
    Awaited,
}

/// Where there is no registry: knows none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSchemas;

impl Schemas for NoSchemas {
    fn get(&self, id: SchemaId) -> Lookup {
        Lookup::Unknown(format!("there is no schema registry to ask for schema {id}: set schema_registry.url").into())
    }
}

/// The format of a topic's keys, or of its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordFormat {
    /// The format.
    pub format: Format,
    /// The schema of all of them, which have no frame then. Without it, each names one.
    pub schema: Option<Arc<LocalSchema>>,
}

/// A schema out of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSchema {
    /// What the file says.
    pub schema: Schema,
    /// Which message of it a record is, for Protobuf.
    pub message: Option<String>,
}

impl LocalSchema {
    /// Which message of it a record is.
    #[must_use]
    pub fn message(&self) -> Message<'_> {
        self.message.as_deref().map_or(Message::First, Message::Named)
    }
}

/// The formats of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    /// Of the records' keys.
    pub key: RecordFormat,
    /// Of their values.
    pub value: RecordFormat,
}

impl Formats {
    /// Whether neither key nor value needs more than a JSON parser.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.key.format == Format::Json && self.value.format == Format::Json
    }

    /// Whether schemas of a registry are needed.
    #[must_use]
    pub fn needs_registry(&self) -> bool {
        [&self.key, &self.value].into_iter().any(RecordFormat::needs_registry)
    }

    /// Whether a record's headers may have a frame.
    #[must_use]
    pub fn reads_headers(&self) -> bool {
        [&self.key, &self.value].into_iter().any(RecordFormat::is_framed)
    }
}

impl RecordFormat {
    /// Whether records are within a frame.
    #[must_use]
    pub const fn is_framed(&self) -> bool {
        !matches!(self.format, Format::Json) && self.schema.is_none()
    }

    /// A value without the frame that names its schema, which is in a header or before it. What has no frame stays as it is.
    #[must_use]
    pub fn bare_value<'a>(&self, value: &'a [u8], headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>) -> &'a [u8] {
        if !self.is_framed() {
            return value;
        }
        let header = headers.filter(|(name, _)| *name == VALUE_HEADER).last().and_then(|(_, frame)| frame);
        Frame::split(self.format, value, header).map_or(value, |frame| frame.body)
    }

    /// Whether the schemas that frames name are needed. The schema of a JSON text says nothing that its text does not.
    #[must_use]
    pub const fn needs_registry(&self) -> bool {
        self.is_framed() && !matches!(self.format, Format::JsonSchema)
    }
}

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

/// What reads the records of one topic; kept between records.
#[derive(Debug, Default)]
pub struct Reader {
    key: Walks,
    value: Walks,
}

/// Compiled walks, by the frames that name them.
#[derive(Debug, Default)]
struct Walks {
    /// The one that was used last, of which the next record is, too.
    last: usize,
    known: Vec<Known>,
    numbers: HashMap<Box<[u8]>, usize>,
}

/// What a frame stands for.
#[derive(Debug)]
struct Known {
    head: Box<[u8]>,
    /// Or why there is no walk, without its subject.
    walk: Result<Walk, String>,
}

/// Which of a record's two texts is read.
#[derive(Clone, Copy)]
enum Side {
    Key,
    Value,
}

/// A text without its frame, and the number of the walk through it, if there is one.
type Opened<'a> = (Option<&'a [u8]>, Option<usize>);

impl Reader {
    /// The fingerprint of a record's key.
    ///
    /// # Errors
    /// [`NoKey`] when the record has no such key, or not yet.
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
        let (key_places, value_places) = (spec.key_fields(), spec.value_fields());
        let (mut key, mut value) = ((record.key, None), (record.value, None));
        if spec.reads_key() {
            key = self.key.open(Side::Key, &formats.key, key_places, record, schemas)?;
        }
        if spec.reads_value() || spec.reads_event(record.headers) {
            value = self.value.open(Side::Value, &formats.value, value_places, record, schemas)?;
        }
        let (mut few_of_key, mut many_of_key) = ([const { None }; FEW], Vec::new());
        let (mut few, mut many) = ([const { None }; FEW], Vec::new());
        let found_of_key = room_for(key_places.1, &mut few_of_key, &mut many_of_key);
        let found = room_for(value_places.1, &mut few, &mut many);
        let key_fields = self.key.walk(Side::Key, key, found_of_key)?;
        let value_fields = self.value.walk(Side::Value, value, found)?;
        let bare = Record { key: key.0, value: value.0, headers: record.headers };
        spec.fingerprint_of(&bare, key_fields, value_fields, scratch).map_err(NoKey::Invalid)
    }
}

impl Walks {
    /// Takes a text out of its frame, and has the walk through it ready.
    fn open<'a>(
        &mut self,
        side: Side,
        format: &RecordFormat,
        places: (&Node, usize),
        record: &Record<'a>,
        schemas: &dyn Schemas,
    ) -> Result<Opened<'a>, NoKey> {
        let Some(text) = side.text(record) else { return Ok((None, None)) };
        let mut frame = Frame { head: &[], body: text };
        if format.is_framed() {
            frame = Frame::split(format.format, text, side.header(record)).map_err(|what| side.unframed(text, what))?;
        }
        if matches!(format.format, Format::Json | Format::JsonSchema) || places.1 == 0 {
            return Ok((Some(frame.body), None));
        }
        if self.known.get(self.last).is_none_or(|known| *known.head != *frame.head) {
            self.last = match self.numbers.get(frame.head) {
                Some(&number) => number,
                None => self.compile(side, format, places.0, frame.head, schemas)?,
            };
        }
        Ok((Some(frame.body), Some(self.last)))
    }

    /// Finds the fields in a text that there is a walk through.
    fn walk<'f, 'a>(
        &'a self,
        side: Side,
        (text, number): Opened<'a>,
        found: &'f mut [Option<Scalar<'a>>],
    ) -> Result<Fields<'f, 'a>, NoKey> {
        let Some(Known { head, walk }) = number.and_then(|number| self.known.get(number)) else {
            // Where there is no text, there are no fields; otherwise, it is JSON.
            return Ok(if text.is_none() { Fields::Found(found) } else { Fields::Json });
        };
        let walk = walk.as_ref().map_err(|error| side.invalid(Reason::UnknownSchema, error))?;
        let text = text.unwrap_or_default();
        if let Err(malformed) = walk.find(text, found) {
            let hint = match disguise(text).filter(|_| head.is_empty()) {
                Some(disguise) => format!("; {disguise}"),
                None if head.is_empty() && frame::is_likely(text) => {
                    "; it begins like a record that names its schema: leave out `schema` of the format to ask the registry for it"
                        .to_owned()
                }
                None => String::new(),
            };
            return Err(side.invalid(Reason::Malformed, &format!("is not what its schema says: {malformed}{hint}")));
        }
        Ok(Fields::Found(found))
    }

    /// Adds the walk through a schema, and returns its number.
    fn compile(&mut self, side: Side, format: &RecordFormat, places: &Node, head: &[u8], schemas: &dyn Schemas) -> Result<usize, NoKey> {
        let walk = if let Some(local) = &format.schema {
            compiled(&local.schema, local.message(), places).map_err(|error| format!("has a schema that cannot be used: {error}"))
        } else {
            side.named(format.format, places, head, schemas)?
        };
        if self.known.len() == WALKS_MAX {
            self.known.clear();
            self.numbers.clear();
        }
        self.known.push(Known { head: head.into(), walk });
        self.numbers.insert(head.into(), self.known.len() - 1);
        Ok(self.known.len() - 1)
    }
}

#[cfg(feature = "formats")]
fn compiled(schema: &Schema, message: Message<'_>, places: &Node) -> Result<Walk, String> {
    Walk::compile(schema, message, places).map_err(|error| error.to_string())
}

#[cfg(not(feature = "formats"))]
fn compiled(_: &Schema, _: Message<'_>, _: &Node) -> Result<Walk, String> {
    Err("unseen was built without the feature `formats`".to_owned())
}

impl Side {
    const fn text<'a>(self, record: &Record<'a>) -> Option<&'a [u8]> {
        match self {
            Self::Key => record.key,
            Self::Value => record.value,
        }
    }

    /// The header that may have the frame.
    fn header<'a>(self, record: &Record<'a>) -> Option<&'a [u8]> {
        let name = match self {
            Self::Key => KEY_HEADER,
            Self::Value => VALUE_HEADER,
        };
        record.headers.iter().rev().find(|(header, _)| *header == name).and_then(|(_, value)| *value)
    }

    /// The walk through the schema that a frame names.
    fn named(self, format: Format, places: &Node, head: &[u8], schemas: &dyn Schemas) -> Result<Result<Walk, String>, NoKey> {
        let broken = || self.invalid(Reason::Malformed, "has a frame that cannot be read");
        let Head { schema: id, indexes } = Head::of(format, head).ok_or_else(broken)?;
        let schema = match schemas.get(id) {
            Lookup::Known(schema) => schema,
            Lookup::Unknown(why) => return Err(self.invalid(Reason::UnknownSchema, &format!("has schema {id}, but {why}"))),
            Lookup::Awaited => return Err(NoKey::Awaits(id)),
        };
        let walk = if schema.format == format {
            compiled(&schema, Message::Indexes(&indexes), places)
        } else {
            Err(format!("it is a schema for {}, not for {format}", schema.format))
        };
        Ok(walk.map_err(|error| format!("has schema {id}, which cannot be used: {error}")))
    }

    /// A text without the frame that its format has.
    fn unframed(self, text: &[u8], what: &str) -> NoKey {
        match disguise(text) {
            Some(disguise) => self.invalid(Reason::Malformed, &format!("does not begin with the frame of a schema registry: {disguise}")),
            None => self.invalid(Reason::Malformed, what),
        }
    }

    fn invalid(self, reason: Reason, what: &str) -> NoKey {
        let side = match self {
            Self::Key => "key",
            Self::Value => "value",
        };
        NoKey::Invalid(Box::new(Invalid { reason, message: format!("the record {side} {what}") }))
    }
}

#[cfg(all(test, feature = "formats"))]
mod tests;
