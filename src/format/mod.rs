//! Records that are of a schema: from their bytes to the fields that a key asks for.
//!
//! Owns what a place in a record means in each format, and which values of different formats are the same id. Must never
//! fetch a schema, and never read past what the schema says: a torn record is invalid.
//!
//! A schema and the places that a key asks for are compiled once, into a [`Walk`]. A walk passes over everything else
//! without building a value, and allocates nothing.

#[cfg(feature = "formats")]
mod avro;
mod frame;
#[cfg(feature = "formats")]
mod protobuf;
mod reader;

pub use frame::{Frame, Head, KEY_HEADER, SchemaId, VALUE_HEADER};
pub use reader::{Formats, LocalSchema, Lookup, NoKey, NoSchemas, Reader, RecordFormat, Schemas};

use crate::key::Scalar;
#[cfg(feature = "formats")]
use crate::key::{KeySpec, Node, Part};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most containers within each other that are walked through.
pub const DEPTH_MAX: usize = 64;

/// What one byte of a Protobuf schema becomes when it is linked.
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

/// A schema and the places to find in its records.
#[derive(Clone, Debug)]
pub struct Walk(Of);

#[derive(Clone, Debug)]
enum Of {
    /// Through Avro's binary encoding.
    #[cfg(feature = "formats")]
    Avro(avro::Walk),
    /// Through Protocol Buffers.
    #[cfg(feature = "formats")]
    Protobuf(protobuf::Walk),
}

impl Walk {
    /// Compiles a schema for the `places` of a key.
    ///
    /// # Errors
    /// [`SchemaError`] when the schema is wrong, or one of the places is something that no key can be made of.
    #[cfg(feature = "formats")]
    pub fn compile(schema: &Schema, message: Message<'_>, places: &Node) -> Result<Self, SchemaError> {
        match schema.format {
            Format::Avro => avro::Walk::compile(schema, places).map(|walk| Self(Of::Avro(walk))),
            Format::Protobuf => protobuf::Walk::compile(schema, message, places).map(|walk| Self(Of::Protobuf(walk))),
            Format::Json | Format::JsonSchema => Err(SchemaError("it is a schema for JSON".to_owned())),
        }
    }

    /// Whether no record of the schema can have the place with this slot.
    #[must_use]
    #[cfg_attr(not(feature = "formats"), expect(unused_variables, reason = "there is no walk"))]
    pub fn lacks(&self, slot: usize) -> bool {
        match self.0 {
            #[cfg(feature = "formats")]
            Of::Avro(ref walk) => walk.lacks(slot),
            #[cfg(feature = "formats")]
            Of::Protobuf(ref walk) => walk.lacks(slot),
        }
    }

    /// Finds the values at the places, by the numbers of their slots; what is not there stays as it is. The whole record is
    /// checked.
    ///
    /// # Errors
    /// [`Malformed`] when the record is not of the schema.
    #[cfg_attr(not(feature = "formats"), expect(unused_variables, reason = "there is no walk"))]
    pub fn find<'a>(&'a self, record: &'a [u8], found: &mut [Option<Scalar<'a>>]) -> Result<(), Malformed> {
        match self.0 {
            #[cfg(feature = "formats")]
            Of::Avro(ref walk) => walk.find(record, found),
            #[cfg(feature = "formats")]
            Of::Protobuf(ref walk) => walk.find(record, found),
        }
    }
}

/// The places of a key that no record of a schema can have: those of the record key, or of the value.
///
/// # Errors
/// [`SchemaError`] as of [`Walk::compile`].
#[cfg(feature = "formats")]
pub fn missing_fields(schema: &Schema, message: Message<'_>, spec: &KeySpec, is_key: bool) -> Result<Vec<String>, SchemaError> {
    let (places, _) = if is_key { spec.key_fields() } else { spec.value_fields() };
    let walk = Walk::compile(schema, message, places)?;
    let pointers = spec.parts().iter().filter_map(|part| match part {
        Part::Field(pointer) if !is_key => Some(pointer),
        Part::KeyField(pointer) if is_key => Some(pointer),
        _ => None,
    });
    Ok(pointers.enumerate().filter(|&(slot, _)| walk.lacks(slot)).map(|(_, pointer)| pointer.clone()).collect())
}
