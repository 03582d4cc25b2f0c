//! Avro's binary encoding.
//!
//! Owns how a schema and the places of a key become a program, and what that program finds in a record. Must never build a
//! value, allocate for a record, or trust a length or a count that a record states.
//!
//! `parse` reads a schema, `compile` makes the program, `walk` runs it, `visit` visits everything in a record, and `cursor` reads
//! numbers, lengths, and blocks.
//!
//! - **A step** is the name of a record's field, the key of a map, or the index of an array's element. A field that was
//!   renamed is also found under its aliases; a field of the very name goes first.
//! - **A union** is no step of its own: the walk follows the branch that the record has. A branch without the place leaves
//!   the place's slot empty. Null at the end of a place is a value.
//! - **A place that can only end in what no key can be made of** is refused when it is compiled: a floating-point number, a
//!   record, an array, a map, a big-decimal. If it can also end in something else, because of a union, then a record that has
//!   the former there is malformed.
//! - **What is skipped is checked** for its lengths, counts, indexes and booleans. Two things are not: whether a text that
//!   no key asks for is UTF-8, and what is in a block that states its size, if nothing in the block is asked for.

mod compile;
mod cursor;
mod parse;
mod visit;
mod walk;

#[cfg(test)]
mod drawn;
#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;

use super::{Buffers, Extract, Malformed, Node, Places, Scalar, Schema, SchemaError, Unreadable, Visit};
use visit::Whole;

/// A schema and the places to find in its records.
#[derive(Clone, Debug)]
pub struct AvroExtractor {
    root: Op,
    /// The fields of each record that the program passes through, by the number in [`Op::Record`].
    records: Vec<Vec<Op>>,
    /// Slots whose places no record of the schema can have.
    lacking: Vec<usize>,
    /// Set if records are visited.
    whole: Option<Box<Whole>>,
}

/// One thing to do at one point of a record.
#[derive(Clone, Debug)]
enum Op {
    /// Skips so many bytes.
    Fixed(usize),
    /// Skips a boolean.
    Boolean,
    /// Skips a number of 32 bits.
    Int,
    /// Skips a number of 64 bits.
    Long,
    /// Skips a text, or bytes, behind their length.
    Sized,
    /// Skips the index of one of so many symbols.
    Index(usize),
    /// Does what the branch is that the record has.
    Union(Vec<Op>),
    /// Does the fields of a record, one after the other: by its number, for a record may be within itself.
    Record(usize),
    /// Does what `wanted` says for the elements with these indexes, and `items` for all others.
    Array { items: Box<Op>, wanted: Vec<(usize, Op)> },
    /// Does what `wanted` says for the values of these keys, and `values` for all others.
    Map { values: Box<Op>, wanted: Vec<Entry> },
    /// Keeps a value.
    Take { kind: Kind, slots: Vec<usize> },
    /// Does two things at the same point: two places lead here, one by a name and one by an alias.
    Twice(Box<[Op; 2]>),
    /// Refuses the record: it has something here that no key can be made of.
    Refuse(&'static str),
}

/// A key of a map that is asked for.
#[derive(Clone, Debug)]
struct Entry {
    key: String,
    /// What is forgotten if the key comes again.
    node: Node,
    op: Op,
}

/// How a value is written, and what is found when it is.
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
    /// A decimal behind its length, or of a fixed size.
    Decimal {
        size: Option<usize>,
        scale: u32,
    },
}

impl AvroExtractor {
    /// Compiles a schema for these places.
    pub(super) fn compile(schema: &Schema, places: &Places) -> Result<Self, SchemaError> {
        let wrapper = parse::parse(schema)?;
        let extractor = compile::compile(&wrapper, places.root())?;
        Ok(if places.reads_everything() { Self { whole: Some(Box::new(Whole::new(wrapper))), ..extractor } } else { extractor })
    }

    /// True if no record of the schema can have the place of this slot.
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
        let whole = self.whole.as_ref().expect("it was compiled for places that include everything");
        whole.visit(text, visitor).map_err(|malformed| Box::new(malformed.into()))
    }
}
