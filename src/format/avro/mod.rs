//! Avro's binary encoding.
//!
//! A schema and the requested places are compiled to a program that finds the values in a record. The program never builds other values and
//! never trusts a length or a count in a record.
//!
//! `parse` parses a schema, `compile` compiles the program, `walk` runs it, `visit` visits everything in a record, and `cursor`
//! reads numbers, lengths, and blocks.
//!
//! - **A step of a pointer** is the name of a record's field, the key of a map, or the index of an array element. A field is also
//!   found by its aliases, unless another field has the alias as its name.
//! - **A union** is not a step: the walk follows the branch that the record selects. If the branch does not have the place, the value
//!   is missing. Null is a value.
//! - **Some types cannot be part of a key:** floating-point numbers, records, arrays, maps, big-decimals, and decimals with a scale above
//!   38. If a place can only have such types, or only such types and null, the schema is rejected. If a union also allows other types, only
//!   records with an unsupported type at the place are rejected.
//! - **Skipped values are validated:** their lengths, counts, indexes, and booleans. There are two exceptions: skipped strings are not
//!   checked for valid UTF-8, and a block with a declared size is skipped as a whole if no pointer can lead into it.

mod compile;
mod cursor;
mod parse;
mod visit;
mod walk;

#[cfg(test)]
mod drawn;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;

use super::{Buffers, Extract, Malformed, Node, Places, Scalar, Schema, SchemaError, Unreadable, Visit};
use visit::Whole;

/// The compiled program for a schema and the places to find in its records.
#[derive(Clone, Debug)]
pub struct AvroExtractor {
    root: Op,
    /// The operations for the fields of each record type, by the index in [`Op::Record`].
    records: Vec<Vec<Op>>,
    /// The slots of places that no record of the schema can have.
    lacking: Vec<usize>,
    /// The schema for visiting whole records. `None` unless [`Places::and_everything`] was called.
    whole: Option<Box<Whole>>,
}

/// An operation on the next value of a record.
#[derive(Clone, Debug)]
enum Op {
    /// Skips a fixed number of bytes.
    Fixed(usize),
    /// Skips a boolean.
    Boolean,
    /// Skips a number of up to 32 bits.
    Int,
    /// Skips a number of up to 64 bits.
    Long,
    /// Skips a length-prefixed string or bytes.
    Sized,
    /// Skips an enum, which is encoded as an index. The field is the number of symbols.
    Index(usize),
    /// Runs the operation of the union branch that the record selects.
    Union(Vec<Op>),
    /// Runs the operations of a record's fields. The operations are in `records`, at this index, because a record type can contain itself.
    Record(usize),
    /// Runs an operation of `wanted` for the elements with these indexes, and `items` for all other elements.
    Array { items: Box<Op>, wanted: Vec<(usize, Op)> },
    /// Runs an operation of `wanted` for the values of these keys, and `values` for all other values.
    Map { values: Box<Op>, wanted: Vec<Entry> },
    /// Stores a value in its slots.
    Take { kind: Kind, slots: Vec<usize> },
    /// Runs two operations on the same value, because pointers can use several names of one field: its own name and its aliases.
    Twice(Box<[Op; 2]>),
    /// Rejects the record with this error message, because the value cannot be part of a key.
    Refuse(&'static str),
}

#[derive(Clone, Debug)]
struct Entry {
    key: String,
    /// The node whose values are discarded if the key occurs again.
    node: Node,
    op: Op,
}

/// The type of a requested value, which determines its encoding and its scalar.
#[derive(Clone, Debug)]
enum Kind {
    Null,
    Boolean,
    Int,
    Long,
    Text,
    Bytes,
    Fixed(usize),
    Uuid,
    Enum(Vec<String>),
    /// A decimal of `size` bytes. If `size` is `None`, the record contains the length before the decimal.
    Decimal {
        size: Option<usize>,
        scale: u32,
    },
}

impl AvroExtractor {
    pub(super) fn compile(schema: &Schema, places: &Places) -> Result<Self, SchemaError> {
        let wrapper = parse::parse(schema)?;
        let extractor = compile::compile(&wrapper, places.root())?;
        Ok(if places.reads_everything() { Self { whole: Some(Box::new(Whole::new(wrapper))), ..extractor } } else { extractor })
    }

    pub(super) fn lacks(&self, slot: usize) -> bool {
        self.lacking.contains(&slot)
    }

    fn walk<'a>(&'a self, record: &'a [u8], found: &mut [Option<Scalar<'a>>]) -> Result<(), Malformed> {
        walk::walk(&self.root, &self.records, record, found)
    }
}

impl Extract for AvroExtractor {
    fn find<'a>(&'a self, text: &'a [u8], _: &mut Buffers, found: &mut [Option<Scalar<'a>>]) -> Result<(), Box<Unreadable>> {
        self.walk(text, found).map_err(|malformed| Box::new(malformed.into()))
    }

    fn visit(&self, text: &[u8], _: &mut Buffers, visitor: &mut impl Visit) -> Result<(), Box<Unreadable>> {
        let whole = self.whole.as_ref().expect("the extractor was compiled for visits");
        whole.visit(text, visitor).map_err(|malformed| Box::new(malformed.into()))
    }
}
