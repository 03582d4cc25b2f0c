//! The value of a field.
//!
//! Defines the text form of numbers and UUIDs, which makes equal values of different formats the same key. Never allocates.

use std::fmt::{self, Write as _};

/// The value of a field. Text is borrowed from the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar<'a> {
    /// Null, or the branch `null` of an Avro union.
    Null,
    /// The text `true` or `false`.
    Bool(&'a [u8]),
    /// A number as written: `1`, `1.0`, and `1e0` are three different keys.
    Number(&'a [u8]),
    /// An integer, equal to a `Number` with the same text.
    Integer(i128),
    /// The number `unscaled` / 10^`scale`. Its text has `scale` digits after the decimal point. Equal to a `Number` with the same text.
    Decimal {
        /// The number without its decimal point.
        unscaled: i128,
        /// Number of digits after the decimal point, at most [`Scalar::SCALE_MAX`].
        scale: u32,
    },
    /// UTF-8 text or bytes, without escapes.
    String(&'a [u8]),
    /// A JSON string as written, with quotes and valid escapes.
    Escaped(&'a [u8]),
    /// A UUID, equal to its lowercase text with hyphens.
    Uuid([u8; 16]),
    /// A JSON object or array as written, including white space and the order of fields.
    Container(&'a [u8]),
}

/// A buffer for the text of a number or a UUID.
pub(crate) struct Written {
    bytes: [u8; Self::MAX],
    length: usize,
}

impl Written {
    /// Upper bound for the length of a text: a sign, a zero, a decimal point, and all 39 digits of the largest number.
    const MAX: usize = 3 + 39;

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Write for Written {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

impl Scalar<'_> {
    /// Maximum number of digits after the decimal point. An `i128` can hold every number of up to 38 digits.
    pub const SCALE_MAX: u32 = 38;

    /// Returns the text `true` or `false`.
    #[must_use]
    pub const fn bool(value: bool) -> Self {
        Self::Bool(if value { b"true" } else { b"false" })
    }

    /// Formats an integer, a decimal, or a UUID. The result is empty for all other values.
    pub(crate) fn written(&self) -> Written {
        let mut room = Written { bytes: [0; Written::MAX], length: 0 };
        self.write(&mut room).expect("the buffer is large enough for any number and UUID");
        room
    }

    fn write(&self, room: &mut Written) -> fmt::Result {
        match *self {
            // Formatting an `i128` takes several times as long as formatting an `i64`.
            Self::Integer(number) => match i64::try_from(number) {
                Ok(number) => write!(room, "{number}"),
                Err(_) => write!(room, "{number}"),
            },
            Self::Decimal { unscaled, scale: 0 } => write!(room, "{unscaled}"),
            Self::Decimal { unscaled, scale } => {
                let (sign, one) = (if unscaled < 0 { "-" } else { "" }, 10_u128.pow(scale.min(Self::SCALE_MAX)));
                let (whole, part, width) = (unscaled.unsigned_abs() / one, unscaled.unsigned_abs() % one, scale as usize);
                write!(room, "{sign}{whole}.{part:0width$}")
            }
            Self::Uuid(id) => {
                let id = u128::from_be_bytes(id);
                let groups = [(id >> 96, 8), (id >> 80 & 0xffff, 4), (id >> 64 & 0xffff, 4), (id >> 48 & 0xffff, 4)];
                groups.into_iter().try_for_each(|(group, width)| write!(room, "{group:0width$x}-"))?;
                write!(room, "{:012x}", id & 0xffff_ffff_ffff)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(scalar: Scalar<'_>) -> String {
        String::from_utf8(scalar.written().bytes().to_vec()).unwrap()
    }

    #[test]
    fn numbers_and_uuids_have_the_same_text_as_in_json() {
        assert_eq!(written(Scalar::Integer(-17)), "-17");
        assert_eq!(written(Scalar::Integer(i128::MIN)), i128::MIN.to_string());
        let decimal = |unscaled, scale| written(Scalar::Decimal { unscaled, scale });
        assert_eq!(decimal(12345, 2), "123.45");
        assert_eq!(decimal(-5, 2), "-0.05");
        assert_eq!(decimal(0, 2), "0.00");
        assert_eq!(decimal(17, 0), "17");
        assert_eq!(decimal(i128::MIN, 38), "-1.70141183460469231731687303715884105728");
        let id = 0x0123_4567_89ab_cdef_0011_2233_4455_6677_u128.to_be_bytes();
        assert_eq!(written(Scalar::Uuid(id)), "01234567-89ab-cdef-0011-223344556677");
    }
}
