//! Predicates on a record: which records are deduplicated, and which retract their key.
//!
//! Defines the places and tests of predicates. Never reads a record: the reader evaluates predicates.

use super::Field;
use crate::format::{PointerError, Side};
use std::fmt;

/// A condition on one place in a record: the place exists, or its value is in a list. The condition can be negated.
#[derive(Clone, Debug)]
pub struct Predicate {
    pub(super) place: Place,
    pub(super) test: Test,
    /// True if the predicate holds when the test fails.
    pub(super) is_negated: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Place {
    /// The last header with this name.
    Header(String),
    RecordKey,
    /// A field of the record key or value and its RFC 6901 pointer.
    Field(Side, Field, String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header `{name}`"),
            Self::RecordKey => f.write_str("the record key"),
            Self::Field(Side::Key, _, pointer) => write!(f, "field `{pointer}` of the record key"),
            Self::Field(Side::Value, _, pointer) => write!(f, "field `{pointer}`"),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Test {
    /// The place exists. A header with a null value exists. A field or a record key that is null does not exist.
    Exists,
    /// The text at the place is one of these texts. Numbers and booleans are compared as written, and strings are compared without quotes
    /// and escapes.
    OneOf(Vec<String>),
}

impl Predicate {
    const fn new(place: Place) -> Self {
        Self { place, test: Test::Exists, is_negated: false }
    }

    /// Creates a predicate that holds if a record has a header with this name, even if the header's value is null.
    #[must_use]
    pub fn header(name: &str) -> Self {
        Self::new(Place::Header(name.to_owned()))
    }

    /// Creates a predicate that holds if the record key is not null.
    #[must_use]
    pub const fn record_key() -> Self {
        Self::new(Place::RecordKey)
    }

    /// Creates a predicate that holds if a field of the record key or value exists and is not null. `pointer` is an RFC 6901 pointer.
    ///
    /// # Errors
    /// Returns [`PointerError`] if the pointer is malformed or too deep.
    pub fn field(side: Side, pointer: &str) -> Result<Self, PointerError> {
        Ok(Self::new(Place::Field(side, Field::new(pointer)?, pointer.to_owned())))
    }

    /// Changes the test: the text at the place must be one of these texts. Numbers and booleans are compared as written, and strings are
    /// compared without quotes and escapes.
    #[must_use]
    pub fn one_of(self, values: Vec<String>) -> Self {
        Self { test: Test::OneOf(values), ..self }
    }

    /// Returns a predicate that holds if this predicate does not hold.
    #[must_use]
    pub fn negate(self) -> Self {
        Self { is_negated: !self.is_negated, ..self }
    }

    /// Returns the place that the predicate tests, for messages.
    #[must_use]
    pub fn place(&self) -> impl fmt::Display {
        &self.place
    }

    /// True if the predicate tests a header.
    #[must_use]
    pub const fn reads_headers(&self) -> bool {
        matches!(self.place, Place::Header(_))
    }

    /// True if the predicate tests the record key or a field of the record key.
    #[must_use]
    pub const fn reads_key(&self) -> bool {
        matches!(self.place, Place::RecordKey | Place::Field(Side::Key, ..))
    }

    pub(super) const fn reads_value(&self) -> bool {
        matches!(self.place, Place::Field(Side::Value, ..))
    }

    /// Returns the name and value of a header that makes the predicate hold. Returns `None` if the predicate is negated, does not test a
    /// header, or accepts no value.
    #[must_use]
    pub fn as_header(&self) -> Option<(&str, &str)> {
        match (&self.place, &self.test) {
            (Place::Header(name), Test::Exists) if !self.is_negated => Some((name, "")),
            (Place::Header(name), Test::OneOf(values)) if !self.is_negated => Some((name, values.first()?)),
            _ => None,
        }
    }
}
