//! The formats of a topic's records, and where their schemas come from.

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

    /// Whether the schemas that frames name are needed. The schema of a JSON text says nothing that its text does not.
    #[must_use]
    pub const fn needs_registry(&self) -> bool {
        self.is_framed() && !matches!(self.format, Format::JsonSchema)
    }
}
