//! The formats of a topic's records and the source of their schemas.

use super::encoding::Encoding;
use super::frame::SchemaId;
use super::{Format, Message, Schema};
use std::fmt;
use std::sync::Arc;

/// A source of schemas, such as a schema registry.
pub trait Schemas: fmt::Debug + Send + Sync {
    /// Looks up a schema. The worker calls this method for every record whose schema has no extractor yet, so it must not block for long.
    fn get(&self, id: SchemaId) -> Lookup;

    /// Returns an error message if pending requests for schemas fail.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// The result of a schema lookup.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// The schema exists and can be used.
    Known(Arc<Schema>),
    /// The schema does not exist or cannot be used, with an error message.
    Unknown(Arc<str>),
    /// The schema has not arrived yet. A later lookup can find it.
    Awaited,
}

/// An empty source of schemas, for configurations without a registry.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSchemas;

impl Schemas for NoSchemas {
    fn get(&self, _: SchemaId) -> Lookup {
        Lookup::Unknown("the configuration has no schema registry; set schema_registry.url".into())
    }
}

/// The format of a topic's keys, or of its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordFormat {
    /// The serialization format, after frames and encodings are removed.
    pub format: Format,
    /// The schema of all records, from a file. If it is `None`, each record has a frame with the id of its schema. Records in plain JSON
    /// have neither.
    pub schema: Option<Arc<LocalSchema>>,
    /// The encodings of the whole value, outermost first. Record keys have no encodings.
    pub encodings: Vec<Encoding>,
}

/// A schema from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSchema {
    /// The schema that the file contains.
    pub schema: Schema,
    /// The full name of the message type of the records. `None` for the default (see [`Self::message()`]), and for other formats.
    pub message: Option<String>,
}

impl LocalSchema {
    /// Returns the message type of the records. By default, this is the first message of a `.proto` file, or the only message in the last
    /// file of a descriptor set.
    #[must_use]
    pub fn message(&self) -> Message<'_> {
        self.message.as_deref().map_or(Message::First, Message::Named)
    }
}

/// The formats of a topic's record keys and record values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formats {
    key: RecordFormat,
    value: RecordFormat,
    /// Precomputed, because readers need this flag for every record.
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

    /// True if keys and values are both JSON without a frame or an encoding.
    #[must_use]
    #[inline]
    pub const fn is_plain_json(&self) -> bool {
        self.is_plain_json
    }

    /// True if record keys or values need schemas from a registry.
    #[must_use]
    pub fn needs_registry(&self) -> bool {
        [&self.key, &self.value].into_iter().any(RecordFormat::needs_registry)
    }

    /// True if a record can have a frame with a schema id in a header.
    #[must_use]
    pub fn reads_headers(&self) -> bool {
        [&self.key, &self.value].into_iter().any(RecordFormat::is_framed)
    }
}

impl RecordFormat {
    /// True if records have a frame with the id of their schema.
    #[must_use]
    pub const fn is_framed(&self) -> bool {
        self.format.has_frame() && self.schema.is_none()
    }

    /// True if records need schemas from a registry. JSON with a frame does not, because JSON can be read without its schema.
    #[must_use]
    pub const fn needs_registry(&self) -> bool {
        self.is_framed() && self.format.needs_schema()
    }
}
