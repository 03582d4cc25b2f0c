//! What a walk does with each field: the messages that places lead through, as tables by the number of a field.
//!
//! Owns the shape of what is compiled. Must never know where a schema comes from.
//!
//! The tables make a tree, like the places: a message that contains itself has a table for each time that a place leads
//! through it.

use super::wire::Wire;
use crate::format::Scalar;
use std::ops::Range;

/// Fields with numbers below this are found by an index, which is as long as the largest of them.
const DENSE_MAX: u32 = 64;
/// No field, in the index.
const NONE: u32 = u32::MAX;

/// All tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) messages: Vec<Table>,
    pub(super) enums: Vec<Symbols>,
}

impl Plan {
    /// The message that a record is.
    pub(super) const ROOT: usize = 0;
}

/// The fields of a message that matter.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    fields: Box<[Field]>,
    /// A bit for each number below [`DENSE_MAX`] that is there.
    present: u64,
    /// Places in `fields`, by number.
    dense: Box<[u32]>,
    /// The numbers that are too large for that, in order.
    sparse: Box<[(u32, u32)]>,
    /// What fields have that are not on the wire.
    pub(super) defaults: Box<[(Constant, Box<[usize]>)]>,
}

impl Table {
    /// Of fields in the order of their numbers.
    pub(super) fn new(fields: Vec<(u32, Field)>, defaults: Vec<(Constant, Box<[usize]>)>) -> Self {
        let (mut present, mut dense, mut sparse) = (0, Vec::new(), Vec::new());
        for (place, &(number, _)) in (0..).zip(&fields) {
            if number < DENSE_MAX {
                dense.resize(number as usize, NONE);
                dense.push(place);
                present |= 1 << number;
            } else {
                sparse.push((number, place));
            }
        }
        let fields = fields.into_iter().map(|(_, field)| field).collect();
        Self { fields, present, dense: dense.into(), sparse: sparse.into(), defaults: defaults.into() }
    }

    /// Whether the field of a number may matter.
    #[inline]
    pub(super) fn matters(&self, number: u32) -> bool {
        if number < DENSE_MAX { self.present >> number & 1 == 1 } else { !self.sparse.is_empty() }
    }

    /// The field of a number, if it matters.
    #[inline]
    pub(super) fn field(&self, number: u32) -> Option<&Field> {
        let place = if number < DENSE_MAX {
            *self.dense.get(number as usize)?
        } else {
            self.sparse[self.sparse.binary_search_by_key(&number, |&(number, _)| number).ok()?].1
        };
        self.fields.get(place as usize)
    }
}

/// A field that matters.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// How a value of it is written.
    pub(super) wire: Wire,
    pub(super) shape: Shape,
    /// What is void when it comes: the other members of its oneof.
    pub(super) voids: Box<[Below]>,
}

/// What is to be done with a field.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// Nothing. It matters for what it makes void.
    Sibling,
    /// One value, the last.
    Single(Value),
    /// Some of its elements.
    Repeated {
        /// Which of the counts is its own.
        counter: usize,
        /// The values at these places in it.
        elements: Box<[(u32, Value)]>,
    },
    /// Some of its entries.
    Map(Box<Map>),
}

/// A map, some of whose entries matter.
#[derive(Clone, Debug)]
pub(super) struct Map {
    pub(super) key: Kind,
    pub(super) key_wire: Wire,
    /// The key of an entry without one.
    pub(super) key_default: Constant,
    pub(super) value_wire: Wire,
    /// The value of an entry without one, if it is a scalar.
    pub(super) value_default: Option<Constant>,
    pub(super) entries: Box<[Entry]>,
}

/// An entry of a map.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Constant,
    pub(super) value: Value,
    /// What is void when the key comes again.
    pub(super) below: Below,
}

/// What is to be found in a value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A place ends here.
    Scalar {
        /// What it is.
        kind: Kind,
        /// The places that end here.
        slots: Box<[usize]>,
    },
    /// Places lead through this message.
    Message(usize),
    /// The same, with its end marked instead of a length before it.
    Group(usize),
}

/// What a scalar is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Sint32,
    Sint64,
    Fixed32,
    Fixed64,
    Sfixed32,
    Sfixed64,
    String,
    Bytes,
    /// With the symbols of this number.
    Enum(usize),
}

/// A value that is of the schema, and not of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Constant {
    Bool(bool),
    Integer(i128),
    Text(Box<[u8]>),
}

impl Constant {
    pub(super) fn scalar(&self) -> Scalar<'_> {
        match *self {
            Self::Bool(value) => Scalar::bool(value),
            Self::Integer(number) => Scalar::Integer(number),
            Self::Text(ref text) => Scalar::String(text),
        }
    }
}

/// The symbols of an enum by their numbers, in order.
#[derive(Clone, Debug)]
pub(super) struct Symbols(Box<[(i32, Box<str>)]>);

impl Symbols {
    /// Of symbols as they are declared: of two with one number, the first counts.
    pub(super) fn new(mut declared: Vec<(i32, Box<str>)>) -> Self {
        declared.sort_by_key(|&(number, _)| number);
        declared.dedup_by_key(|&mut (number, _)| number);
        Self(declared.into())
    }

    /// The symbol of a number; a number that has none is a value all the same.
    pub(super) fn scalar(&self, number: i32) -> Scalar<'_> {
        let place = self.0.binary_search_by_key(&number, |&(number, _)| number);
        place.map_or_else(|_| Scalar::Integer(number.into()), |place| Scalar::String(self.0[place].1.as_bytes()))
    }

    /// The same, to keep.
    pub(super) fn constant(&self, number: i32) -> Constant {
        match self.scalar(number) {
            Scalar::String(symbol) => Constant::Text(symbol.into()),
            _ => Constant::Integer(number.into()),
        }
    }
}

/// Everything at and below a field.
#[derive(Clone, Debug)]
pub(super) struct Below {
    pub(super) slots: Box<[usize]>,
    /// The counts of its repeated fields.
    pub(super) counters: Range<usize>,
}
