//! The formats of a topic's records, and where their schemas come from.

use super::encoding::Encoding;
use super::frame::SchemaId;
use super::{Format, Message, Schema};
use std::fmt;
use std::sync::Arc;

/// A source of schemas.
pub trait Schemas: fmt::Debug + Send + Sync {
    /// Looks a schema up. Must not block for long, because the worker asks for every record whose schema is new.
    fn get(&self, id: SchemaId) -> Lookup;

    /// Why schemas are still being asked for, as a sentence.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// The result of a schema lookup.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// This is it.
    Known(Arc<Schema>),
    /// The schema does not exist or cannot be used, with an error message.
    Unknown(Arc<str>),
    /// It is being asked for.
    Awaited,
}

/// Without a registry: has no schemas.
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
    /// The encodings of the whole value, the outermost first. Record keys have none.
    pub encodings: Vec<Encoding>,
}

/// A schema out of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSchema {
    /// The content of the file.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formats {
    key: RecordFormat,
    value: RecordFormat,
    /// Looked up for every record, so it is computed once.
    is_plain_json: bool,
}

impl Default for Formats {
    fn default() -> Self {
        Self::new(RecordFormat::default(), RecordFormat::default())
    }
}

impl Formats {
    /// Combines the formats of record keys and values.
    #[must_use]
    pub fn new(key: RecordFormat, value: RecordFormat) -> Self {
        let is_plain_json = [&key, &value].iter().all(|side| side.format == Format::Json && side.encodings.is_empty());
        Self { key, value, is_plain_json }
    }

    /// Returns the format of record keys.
    #[must_use]
    pub const fn key(&self) -> &RecordFormat {
        &self.key
    }

    /// Returns the format of record values.
    #[must_use]
    pub const fn value(&self) -> &RecordFormat {
        &self.value
    }

    /// True if neither key nor value needs more than a JSON parser.
    #[must_use]
    #[inline]
    pub const fn is_plain_json(&self) -> bool {
        self.is_plain_json
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

    /// Whether the schemas that frames name are needed. The schema of a JSON text says nothing that its text does not.
    #[must_use]
    pub const fn needs_registry(&self) -> bool {
        self.is_framed() && !matches!(self.format, Format::JsonSchema)
    }
}
