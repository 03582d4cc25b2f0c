//! The tables that drive a walk. Each message that pointers lead through has a table with the action for each field number.
//!
//! The tables form a tree, like the pointers. A message type that contains itself has one table per level of the pointers.

use super::wire::Wire;
use crate::format::Scalar;
use std::ops::Range;

/// Field numbers below this limit are looked up in an array, the dense index. Larger numbers require a binary search.
const DENSE_MAX: u32 = 64;
/// Marks the numbers in the dense index that have no field.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) messages: Vec<Table>,
    pub(super) enums: Vec<Symbols>,
}

impl Plan {
    /// The index of the table for the record itself.
    pub(super) const ROOT: usize = 0;
}

/// The fields of a message that a walk does not just skip.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    fields: Box<[Field]>,
    /// A bit set of the field numbers below [`DENSE_MAX`].
    present: u64,
    /// Indexes in `fields`, by field number.
    dense: Box<[u32]>,
    /// Larger field numbers and their indexes in `fields`, sorted by number.
    sparse: Box<[(u32, u32)]>,
    /// Default values for fields that are not on the wire, and the slots of these fields.
    pub(super) defaults: Box<[(Constant, Box<[usize]>)]>,
}

impl Table {
    /// Creates a table. The fields must be sorted by number.
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

    /// True if [`Self::field`] may return a field for this number. If false, no field has this number.
    #[inline]
    pub(super) fn matters(&self, number: u32) -> bool {
        if number < DENSE_MAX { self.present >> number & 1 == 1 } else { !self.sparse.is_empty() }
    }

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

#[derive(Clone, Debug)]
pub(super) struct Field {
    /// The wire type of a single value.
    pub(super) wire: Wire,
    pub(super) shape: Shape,
    /// The places of the other members of the field's oneof. They are cleared when the field occurs.
    pub(super) voids: Box<[Below]>,
}

/// The action for a field.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// A member of a oneof that is not requested. The walk ignores its value, but clears the other members of the oneof.
    Sibling,
    /// A single value. The last occurrence counts.
    Single(Value),
    /// Some elements of a repeated field.
    Repeated {
        /// The index of the field's element counter.
        counter: usize,
        /// The requested elements by index.
        elements: Box<[(u32, Value)]>,
    },
    Map(Box<Map>),
}

#[derive(Clone, Debug)]
pub(super) struct Map {
    pub(super) key: Kind,
    pub(super) key_wire: Wire,
    /// The key of an entry that has no key on the wire.
    pub(super) key_default: Constant,
    pub(super) value_wire: Wire,
    /// The value of an entry that has no value on the wire, if it is a scalar.
    pub(super) value_default: Option<Constant>,
    pub(super) entries: Box<[Entry]>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Constant,
    pub(super) value: Value,
    /// The places to clear when the key occurs again.
    pub(super) below: Below,
}

/// The action for a value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Stores a scalar.
    Scalar {
        kind: Kind,
        /// The slots of the pointers that end here.
        slots: Box<[usize]>,
    },
    /// Walks a message, with the table at this index.
    Message(usize),
    /// Walks a group, with the table at this index.
    Group(usize),
}

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
    /// An enum, with the value names at this index.
    Enum(usize),
}

/// A value that is not from a record: a default from the schema, or a map key from a pointer.
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

/// The numbers and names of an enum's values, sorted by number.
#[derive(Clone, Debug)]
pub(super) struct Symbols(Box<[(i32, Box<str>)]>);

impl Symbols {
    /// Sorts the values by number. If several values have the same number (`allow_alias`), keeps the first of them.
    pub(super) fn new(mut declared: Vec<(i32, Box<str>)>) -> Self {
        declared.sort_by_key(|&(number, _)| number);
        declared.dedup_by_key(|&mut (number, _)| number);
        Self(declared.into())
    }

    /// Returns the name of the value with this number, or the number itself if the enum has no such value.
    pub(super) fn scalar(&self, number: i32) -> Scalar<'_> {
        let place = self.0.binary_search_by_key(&number, |&(number, _)| number);
        place.map_or_else(|_| Scalar::Integer(number.into()), |place| Scalar::String(self.0[place].1.as_bytes()))
    }

    pub(super) fn constant(&self, number: i32) -> Constant {
        match self.scalar(number) {
            Scalar::String(symbol) => Constant::Text(symbol.into()),
            _ => Constant::Integer(number.into()),
        }
    }
}

/// All places at and below a field.
#[derive(Clone, Debug)]
pub(super) struct Below {
    pub(super) slots: Box<[usize]>,
    /// The element counters of the repeated fields at or below the field.
    pub(super) counters: Range<usize>,
}
