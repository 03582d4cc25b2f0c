//! Record formats. Finds fields in the bytes of record keys and values, or visits everything in them.
//!
//! Resolves JSON pointers in each format and decides which values of different formats are equal. This module never fetches a schema and
//! never depends on the module `key`. It rejects every record that is recognizably truncated.
//!
//! In this module, a *text* is a record key or value without its frame and its encodings, even in a binary format. A *place* is the
//! location of a field in a text, and a *slot* is the index of a place in a list of [`Places`].
//!
//! An [`Extractor`] is compiled once for a format, a schema if the format has schemas, and a list of [`Places`]. [`Extract::find`] finds
//! the values at these places and skips everything else without building values. It allocates memory per record only for unusual JSON.
//! [`Extract::visit`] passes all values to a visitor.

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

/// Maximum depth of nested containers in Avro and in visited JSON, and of skipped groups in Protobuf. [`Extract::find`] accepts JSON of any
/// depth. Pointers have fewer steps than this maximum.
pub const DEPTH_MAX: usize = 64;

/// Estimated memory of a linked Protobuf schema, in bytes per byte of its source.
const LINKED_BYTES: usize = 64;

/// The format of record keys or values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// JSON text.
    #[default]
    Json,
    /// JSON text after a frame with the id of its schema.
    JsonSchema,
    /// Avro's binary encoding.
    Avro,
    /// Protocol Buffers' binary encoding.
    Protobuf,
}

// Other code uses these properties to distinguish formats. Each property is a `match` of all variants, so the compiler reports each new
// format until all of its properties are set.
impl Format {
    /// All formats, the default first.
    pub const ALL: [Self; 4] = [Self::Json, Self::JsonSchema, Self::Avro, Self::Protobuf];

    /// True if the text of a record is JSON.
    #[must_use]
    pub const fn is_json(self) -> bool {
        match self {
            Self::Json | Self::JsonSchema => true,
            Self::Avro | Self::Protobuf => false,
        }
    }

    /// True if records have the [`Frame`] of a schema registry, unless their schema is in a file.
    #[must_use]
    pub const fn has_frame(self) -> bool {
        match self {
            Self::Json => false,
            Self::JsonSchema | Self::Avro | Self::Protobuf => true,
        }
    }

    /// True if a record cannot be read without its schema. Otherwise, one extractor reads all records (`Extractor::without_schema`).
    #[must_use]
    pub const fn needs_schema(self) -> bool {
        match self {
            Self::Json | Self::JsonSchema => false,
            Self::Avro | Self::Protobuf => true,
        }
    }

    /// True if a schema can have several message types. A frame then also contains the [`Message`] of the record, and the configuration
    /// has the option `message`.
    #[must_use]
    pub const fn has_messages(self) -> bool {
        match self {
            Self::Json | Self::JsonSchema | Self::Avro => false,
            Self::Protobuf => true,
        }
    }

    /// Returns the name of the format in the API of a schema registry, or `None` if registries have no schemas of the format.
    #[must_use]
    pub const fn schema_type(self) -> Option<&'static str> {
        match self {
            Self::Json => None,
            Self::JsonSchema => Some("JSON"),
            Self::Avro => Some("AVRO"),
            Self::Protobuf => Some("PROTOBUF"),
        }
    }

    /// True if this build can read records of the format.
    #[must_use]
    pub const fn is_supported(self) -> bool {
        match self {
            Self::Json | Self::JsonSchema => true,
            Self::Avro | Self::Protobuf => cfg!(feature = "formats"),
        }
    }

    /// Returns the quoted names of the formats that pass the test, as configurations have them: `"avro", "protobuf"`.
    #[must_use]
    pub fn list(test: impl Fn(Self) -> bool) -> String {
        let names = Self::ALL.into_iter().filter(|&format| test(format)).map(|format| serde_json::json!(format).to_string());
        names.collect::<Vec<_>>().join(", ")
    }
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

/// A schema from a registry or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// The format of the records that the schema describes.
    pub format: Format,
    /// The schema without its references.
    pub body: Body,
    /// The direct and indirect references of this schema. Each schema comes after its own references.
    pub references: Vec<Reference>,
    /// The Protobuf schema after its type names are resolved. It is cached here, because frames can refer to several messages of a schema.
    #[cfg(feature = "formats")]
    linked: protobuf::Once,
}

impl Schema {
    /// Combines a schema with its references, which must be in the order of [`Self::references`].
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

    /// Estimates the memory of the schema, its references, and the linked schema, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let size = self.body.size() + self.references.iter().map(|reference| reference.body.size()).sum::<usize>();
        let linked = if self.format.has_messages() { LINKED_BYTES } else { 0 };
        size * (1 + linked)
    }
}

/// A schema that another schema refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The name of the reference: the path of an import in Protobuf and usually the full name of a type in Avro.
    pub name: String,
    /// The schema without its own references.
    pub body: Body,
}

/// The source of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Text. For Avro and JSON Schema, the text is JSON. For Protobuf, it is a `.proto` file or a `FileDescriptorProto` in base64.
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

/// The message type of a record in a Protobuf schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message<'a> {
    /// The path to the type: the index of a message in the file, then of a message nested in it, and so on.
    Indexes(&'a [usize]),
    /// The full name of the type.
    Named(&'a str),
    /// The first message in the `.proto` file, or the only message in the last file of a descriptor set. Formats with a single type per
    /// schema also use this variant.
    First,
}

/// An error message about a schema. The caller adds the name of the schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(pub String);

/// The error for a record that does not match its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {what}")]
pub struct Malformed {
    /// The position of the problem, in bytes from the start of the record key or value without its frame and its encodings.
    pub offset: usize,
    /// The problem at this offset, such as "the record ends within a string".
    pub what: &'static str,
}

/// The error for a key or value that cannot be read. The caller puts `the record key` or `the record value` before the error message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// The text is not JSON.
    #[error("is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A JSON text that is visited has more than [`DEPTH_MAX`] nested containers.
    #[error("has more than {DEPTH_MAX} levels of nested JSON objects and arrays")]
    Deep,
    /// The Avro or Protobuf record does not match its schema.
    #[error("does not match its schema: {0}")]
    Schema(#[from] Malformed),
}

/// One of the two sides of a record: its key or its value.
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

/// A value that contains other values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Named members: a JSON object, a record, a message, or a map.
    Object,
    /// Elements in order.
    Array,
}

/// Receives everything in a record. The members of an object arrive in the order of the record, except in Protobuf.
pub trait Visit {
    /// Receives a value that is not a container. Strings are already unescaped.
    fn scalar(&mut self, value: Scalar<'_>);
    /// Starts a container, which can be the whole record.
    fn open(&mut self, container: Container);
    /// Receives the name of the next member of an object.
    fn name(&mut self, name: &[u8]);
    /// Ends the innermost container.
    fn close(&mut self);
}

/// Reads the records of one format and, if the format has schemas, of one schema.
pub trait Extract {
    /// Finds the values at the extractor's places and stores each value in the slot of its place. The caller sets all slots to `None`
    /// before the call. Slots of missing values stay `None`. Also validates the rest of the text, except for the UTF-8 of strings that are
    /// not requested and for parts that are skipped by their length.
    ///
    /// # Errors
    /// Returns [`Unreadable`] if the text is not in the extractor's format.
    fn find<'a>(&'a self, text: &'a [u8], buffers: &mut Buffers, found: &mut [Option<Scalar<'a>>]) -> Result<(), Box<Unreadable>>;

    /// Visits everything in a text. If this method returns an error, the caller must discard the visited values.
    ///
    /// # Errors
    /// Returns [`Unreadable`] if the text is not in the extractor's format.
    fn visit(&self, text: &[u8], buffers: &mut Buffers, visitor: &mut impl Visit) -> Result<(), Box<Unreadable>>;
}

/// Finds the values at places in the records of any format.
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
    /// Creates an extractor for places in JSON.
    #[must_use]
    pub const fn json(places: Places) -> Self {
        Self(Of::Json(JsonExtractor::new(places)))
    }

    /// Creates an extractor for places in records that can be read without their schema. Returns `None` if the format needs a schema.
    #[must_use]
    pub fn without_schema(format: Format, places: &Places) -> Option<Self> {
        match format {
            Format::Json | Format::JsonSchema => Some(Self::json(places.clone())),
            Format::Avro | Format::Protobuf => None,
        }
    }

    /// Compiles an extractor for places in the records of a schema. Only Protobuf uses `message`.
    ///
    /// # Errors
    /// Returns [`SchemaError`] if the schema is invalid, if the value at a place cannot be part of a key, or if the format is JSON.
    #[cfg(feature = "formats")]
    pub fn compile(schema: &Schema, message: Message<'_>, places: &Places) -> Result<Self, SchemaError> {
        Ok(Self(match schema.format {
            Format::Avro => Of::Avro(avro::AvroExtractor::compile(schema, places)?),
            Format::Protobuf => Of::Protobuf(protobuf::ProtobufExtractor::compile(schema, message, places)?),
            Format::Json | Format::JsonSchema => return Err(SchemaError("JSON records are read without a schema".to_owned())),
        }))
    }

    /// Compiles an extractor for places in the records of a schema.
    ///
    /// # Errors
    /// Always returns an error, because this build supports only JSON.
    #[cfg(not(feature = "formats"))]
    pub fn compile(_: &Schema, _: Message<'_>, _: &Places) -> Result<Self, SchemaError> {
        Err(SchemaError("this build of unseen supports only JSON; build it with the Cargo feature `formats`".to_owned()))
    }

    /// True if no record of the schema can have a value at the place with this index. Always false for JSON.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_formats_are_listed_with_their_names() {
        let error = serde_json::from_str::<Format>("\"\"").unwrap_err().to_string();
        let names = Format::list(|_| true).replace('"', "`");
        assert!(error.contains(&format!("expected one of {names} at")), "{error}");
        assert_eq!(Format::ALL[0], Format::default());
    }

    #[test]
    fn formats_that_need_a_schema_have_a_frame_and_no_extractor_without_schema() {
        for format in Format::ALL {
            let needs_schema = format.needs_schema();
            assert_eq!(Extractor::without_schema(format, &Places::default()).is_none(), needs_schema, "{format}");
            assert!(format.has_frame() || !needs_schema && format.schema_type().is_none(), "{format}");
        }
    }
}
