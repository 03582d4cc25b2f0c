//! Records that retract their key.

use super::Field;
use crate::format::PointerError;

/// How a record retracts its key.
#[derive(Clone, Debug)]
pub enum Retract {
    /// By a header with this name.
    Header {
        /// Name of the header.
        name: String,
        /// The values of the last such header that retract the key, or `None` for any value.
        one_of: Option<Vec<String>>,
    },
    /// By a field of the record value.
    Field {
        /// The field.
        field: Field,
        /// The values that retract the key.
        one_of: Vec<String>,
    },
}

impl Retract {
    /// Retracts a key by a header with any value.
    #[must_use]
    pub fn header(name: &str) -> Self {
        Self::Header { name: name.to_owned(), one_of: None }
    }

    /// Retracts a key by the value at an RFC 6901 pointer.
    ///
    /// # Errors
    /// [`PointerError`] if the pointer is malformed.
    pub fn field(pointer: &str, one_of: Vec<String>) -> Result<Self, PointerError> {
        Ok(Self::Field { field: Field::new(pointer)?, one_of })
    }

    /// Returns the name of the header, and its value, that a record needs to retract its key, if it is a header.
    #[must_use]
    pub fn as_header(&self) -> Option<(&str, &str)> {
        match self {
            Self::Header { name, one_of } => Some((name, one_of.as_ref().and_then(|values| values.first()).map_or("", String::as_str))),
            Self::Field { .. } => None,
        }
    }

    /// True if headers retract a key.
    pub(super) fn is_in(&self, headers: &[(&str, Option<&[u8]>)]) -> bool {
        match self {
            Self::Header { name, one_of: None } => headers.iter().any(|(header, _)| header == name),
            Self::Header { name, one_of: Some(values) } => {
                let last = headers.iter().rev().find(|(header, _)| header == name).and_then(|(_, value)| *value);
                last.is_some_and(|last| values.iter().any(|value| value.as_bytes() == last))
            }
            Self::Field { .. } => false,
        }
    }
}
