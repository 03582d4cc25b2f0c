//! Formats of records: from the bytes of a record's key or value to the values at some places, or to everything in it.
//!
//! Owns the meaning of a place in each format, and which values of different formats are the same. Must never fetch a schema, know
//! of keys, or read past what a schema allows: a torn record is invalid.
//!
//! An [`Extractor`] is compiled once for a format, its schema if it has one, and a list of [`Places`]. It passes over everything
//! else without building a value, and allocates nothing.

#[cfg(feature = "formats")]
mod avro;
mod disguise;
mod encoding;
mod frame;
mod json;
mod places;
#[cfg(feature = "formats")]
mod protobuf;
mod record_format;
mod scalar;

pub(crate) use disguise::{compression, disguise};
pub(crate) use encoding::Decoded;
#[cfg(test)]
pub(crate) use encoding::gzip;
pub use encoding::{DECODED_MAX, Encoding};
pub(crate) use frame::is_likely as is_likely_framed;
pub use frame::{Frame, Head, KEY_HEADER, SchemaId, VALUE_HEADER};
pub use json::{Buffers, JsonExtractor};
pub(crate) use json::{missing_field as missing_field_in_json, unescape};
pub(crate) use places::Node;
pub use places::{Places, PointerError};
pub use record_format::{Formats, LocalSchema, Lookup, NoSchemas, RecordFormat, Schemas};
pub use scalar::Scalar;

use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum number of nested containers that are read.
pub const DEPTH_MAX: usize = 64;

/// Bytes of memory per byte of a Protobuf schema after it is linked.
const LINKED_BYTES: usize = 64;

/// What a record's key, or its value, is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A JSON text.
    #[default]
    Json,
    /// A JSON text behind a frame that names its schema.
    JsonSchema,
    /// Avro's binary encoding.
    Avro,
    /// Protocol Buffers' binary encoding.
    Protobuf,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Json => "JSON",
            Self::JsonSchema => "JSON Schema",
            Self::Avro => "Avro",
            Self::Protobuf => "Protobuf",
        })
    }
}

/// A schema, as a registry or a file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// What it describes.
    pub format: Format,
    /// The schema itself.
    pub body: Body,
    /// Other schemas that it names, each behind those that it needs itself.
    pub references: Vec<Reference>,
    /// What Protobuf links once, however many messages of it are compiled: frames may name any.
    #[cfg(feature = "formats")]
    linked: protobuf::Once,
}

impl Schema {
    /// A schema with those that it names.
    #[must_use]
    pub fn new(format: Format, body: Body, references: Vec<Reference>) -> Self {
        Self {
            format,
            body,
            references,
            #[cfg(feature = "formats")]
            linked: protobuf::Once::default(),
        }
    }

    /// The memory that it takes, in bytes, more or less: as it is written with those that it names, and what is linked of it.
    #[must_use]
    pub fn memory(&self) -> usize {
        let size = self.body.size() + self.references.iter().map(|reference| reference.body.size()).sum::<usize>();
        let linked = if self.format == Format::Protobuf { LINKED_BYTES } else { 0 };
        size * (1 + linked)
    }
}

/// A schema that another one names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// How it is named: a file to import in Protobuf, a full name in Avro.
    pub name: String,
    /// The schema itself.
    pub body: Body,
}

/// How a schema is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// As text: JSON for Avro; a `.proto` file, or a `FileDescriptorProto` in base64, for Protobuf.
    Text(String),
    /// A `FileDescriptorSet`, as `protoc --include_imports --descriptor_set_out` writes it.
    Descriptors(Vec<u8>),
}

impl Body {
    const fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Descriptors(bytes) => bytes.len(),
        }
    }
}

/// Which message of a Protobuf schema a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message<'a> {
    /// By its place: the number of a message in the file, then of one within that, and so on.
    Indexes(&'a [usize]),
    /// By its full name.
    Named(&'a str),
    /// The only one, or the first, of the file. Other formats have no more.
    First,
}

/// Why a schema cannot be used: one sentence, without the schema's name, which the caller knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(pub String);

/// Why a record is not of its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {what}")]
pub struct Malformed {
    /// Where in the record, behind its frame.
    pub offset: usize,
    /// What is wrong there, such as "the record ends within a string".
    pub what: &'static str,
}

/// Why a text cannot be read: a sentence without its subject.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// The text is not JSON.
    #[error("is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The text has more than [`DEPTH_MAX`] nested containers.
    #[error("has more than {DEPTH_MAX} JSON containers within each other")]
    Deep,
    /// The record is not of its schema.
    #[error("is not what its schema says: {0}")]
    Schema(#[from] Malformed),
}

/// Which of a record's two texts is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The record key.
    Key,
    /// The record value.
    Value,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "key",
            Self::Value => "value",
        })
    }
}

/// A value that has others in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Members with names: a JSON object, a record, a message, or a map.
    Object,
    /// Elements in order.
    Array,
}

/// Receives everything in a record, in the order in which it is written.
pub trait Visit {
    /// Takes a value that has no others in it. Strings have no escapes.
    fn scalar(&mut self, value: Scalar<'_>);
    /// Begins a container.
    fn open(&mut self, container: Container);
    /// Takes the name of the next member of an object.
    fn name(&mut self, name: &[u8]);
    /// Ends the innermost container.
    fn close(&mut self);
}

/// Reads the records of one format, and of one schema if the format has schemas.
pub trait Extract {
    /// Finds the values at the places, in their order. The others stay as they are. The whole text is checked.
    ///
    /// # Errors
    /// [`Unreadable`] if the text is not of the format.
    fn find<'a>(&'a self, text: &'a [u8], buffers: &mut Buffers, found: &mut [Option<Scalar<'a>>]) -> Result<(), Box<Unreadable>>;

    /// Visits everything in a text. If that fails, what was visited means nothing.
    ///
    /// # Errors
    /// [`Unreadable`] if the text is not of the format.
    fn visit(&self, text: &[u8], buffers: &mut Buffers, visitor: &mut impl Visit) -> Result<(), Box<Unreadable>>;
}

/// Reads the records of any format.
#[derive(Clone, Debug)]
pub struct Extractor(Of);

#[derive(Clone, Debug)]
enum Of {
    Json(JsonExtractor),
    #[cfg(feature = "formats")]
    Avro(avro::AvroExtractor),
    #[cfg(feature = "formats")]
    Protobuf(protobuf::ProtobufExtractor),
}

impl Default for Extractor {
    fn default() -> Self {
        Self::json(Places::default())
    }
}

impl Extractor {
    /// Creates an extractor for JSON.
    #[must_use]
    pub const fn json(places: Places) -> Self {
        Self(Of::Json(JsonExtractor::new(places)))
    }

    /// Compiles a schema for these places.
    ///
    /// # Errors
    /// [`SchemaError`] if the schema is wrong, or a place has something that no key can be made of.
    #[cfg(feature = "formats")]
    pub fn compile(schema: &Schema, message: Message<'_>, places: &Places) -> Result<Self, SchemaError> {
        Ok(Self(match schema.format {
            Format::Avro => Of::Avro(avro::AvroExtractor::compile(schema, places)?),
            Format::Protobuf => Of::Protobuf(protobuf::ProtobufExtractor::compile(schema, message, places)?),
            Format::Json | Format::JsonSchema => return Err(SchemaError("it is a schema for JSON".to_owned())),
        }))
    }

    /// Compiles a schema for these places.
    ///
    /// # Errors
    /// Always, because unseen was built without the other formats.
    #[cfg(not(feature = "formats"))]
    pub fn compile(_: &Schema, _: Message<'_>, _: &Places) -> Result<Self, SchemaError> {
        Err(SchemaError("unseen was built without the feature `formats`".to_owned()))
    }

    /// True if no record of the schema can have the place with this number.
    #[must_use]
    pub fn lacks(&self, place: usize) -> bool {
        let _ = place;
        match &self.0 {
            Of::Json(_) => false,
            #[cfg(feature = "formats")]
            Of::Avro(extractor) => extractor.lacks(place),
            #[cfg(feature = "formats")]
            Of::Protobuf(extractor) => extractor.lacks(place),
        }
    }
}

impl Extract for Extractor {
    fn find<'a>(&'a self, text: &'a [u8], buffers: &mut Buffers, found: &mut [Option<Scalar<'a>>]) -> Result<(), Box<Unreadable>> {
        match &self.0 {
            Of::Json(extractor) => extractor.find(text, buffers, found),
            #[cfg(feature = "formats")]
            Of::Avro(extractor) => extractor.find(text, buffers, found),
            #[cfg(feature = "formats")]
            Of::Protobuf(extractor) => extractor.find(text, buffers, found),
        }
    }

    fn visit(&self, text: &[u8], buffers: &mut Buffers, visitor: &mut impl Visit) -> Result<(), Box<Unreadable>> {
        match &self.0 {
            Of::Json(extractor) => extractor.visit(text, buffers, visitor),
            #[cfg(feature = "formats")]
            Of::Avro(extractor) => extractor.visit(text, buffers, visitor),
            #[cfg(feature = "formats")]
            Of::Protobuf(extractor) => extractor.visit(text, buffers, visitor),
        }
    }
}
