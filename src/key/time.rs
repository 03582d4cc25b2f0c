//! Event times, read from a field or a header.
//!
//! Decides which texts and numbers are valid times. Never reads a clock.

use super::field::Field;
use super::normalize::instant_ms;
#[cfg(feature = "formats")]
use crate::format::{Extractor, Message, Schema, SchemaError};
use crate::format::{PointerError, Scalar, unescape};
use crate::record::Timestamp;
use std::fmt;

/// The smallest number that counts as each unit if no unit is configured. Smaller numbers count as seconds. A time between March 1973 and
/// the year 5138 is therefore recognized in every unit.
const LEAST: [(i128, TimeUnit); 3] = [
    (100_000_000_000_000_000, TimeUnit::Nanoseconds),
    (100_000_000_000_000, TimeUnit::Microseconds),
    (100_000_000_000, TimeUnit::Milliseconds),
];

/// If a mantissa reaches this value, further digits after the decimal point are ignored to prevent an overflow.
const MANTISSA_MAX: i128 = 10_i128.pow(30);

/// The place and the unit of a record's event time.
#[derive(Clone, Debug)]
pub struct EventTime {
    /// The header, or the field of the record value, that contains the time.
    pub place: TimePlace,
    /// The unit or format of the time, or `None` to detect it.
    pub unit: Option<TimeUnit>,
    /// True if Kafka's timestamp replaces a time that is missing or unusable. If false, a record without a usable time is invalid.
    pub optional: bool,
}

/// The place of a time in a record.
#[derive(Clone, Debug)]
pub enum TimePlace {
    /// The last header with this name.
    Header(String),
    /// A field of the record value.
    Field {
        /// The compiled field.
        field: Field,
        /// The RFC 6901 pointer to the field.
        pointer: String,
    },
}

impl TimePlace {
    /// Compiles an RFC 6901 pointer to a field of the record value.
    ///
    /// # Errors
    /// Returns [`PointerError`] if the pointer is malformed or too deep.
    pub fn field(pointer: &str) -> Result<Self, PointerError> {
        Ok(Self::Field { field: Field::new(pointer)?, pointer: pointer.to_owned() })
    }
}

impl fmt::Display for TimePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header `{name}`"),
            Self::Field { pointer, .. } => write!(f, "field `{pointer}`"),
        }
    }
}

/// The unit or format of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// A number of seconds since 1970.
    Seconds,
    /// A number of milliseconds since 1970.
    Milliseconds,
    /// A number of microseconds since 1970.
    Microseconds,
    /// A number of nanoseconds since 1970.
    Nanoseconds,
    /// An RFC 3339 timestamp with a zone, such as `2026-01-01T12:00:00.5+01:00`.
    Rfc3339,
}

impl TimeUnit {
    /// All names that [`Self::named`] accepts.
    pub const NAMES: [&'static str; 5] = ["s", "ms", "us", "ns", "rfc3339"];

    /// Returns the unit with this name in a configuration, or `None` if the name is unknown.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "s" => Self::Seconds,
            "ms" => Self::Milliseconds,
            "us" => Self::Microseconds,
            "ns" => Self::Nanoseconds,
            "rfc3339" => Self::Rfc3339,
            _ => return None,
        })
    }

    /// Returns the exponent of the power of ten that converts a number to milliseconds.
    const fn to_millis(self) -> i32 {
        match self {
            Self::Seconds => 3,
            Self::Milliseconds | Self::Rfc3339 => 0,
            Self::Microseconds => -3,
            Self::Nanoseconds => -6,
        }
    }

    const fn expected(unit: Option<Self>) -> &'static str {
        match unit {
            None => "a time after the start of 1970, as a number or as an RFC 3339 timestamp with a zone",
            Some(Self::Seconds) => "a number of seconds after the start of 1970",
            Some(Self::Milliseconds) => "a number of milliseconds after the start of 1970",
            Some(Self::Microseconds) => "a number of microseconds after the start of 1970",
            Some(Self::Nanoseconds) => "a number of nanoseconds after the start of 1970",
            Some(Self::Rfc3339) => "a time after the start of 1970, as an RFC 3339 timestamp with a zone",
        }
    }
}

impl EventTime {
    /// Returns the pointer to the field if the field is required, but no record of this schema can have it.
    ///
    /// # Errors
    /// Returns [`SchemaError`] if the schema cannot be used.
    #[cfg(feature = "formats")]
    pub fn missing_in(&self, schema: &Schema, message: Message<'_>) -> Result<Option<&str>, SchemaError> {
        let TimePlace::Field { field, pointer } = &self.place else { return Ok(None) };
        let is_missing = Extractor::compile(schema, message, field.places())?.lacks(0);
        Ok(Some(&**pointer).filter(|_| is_missing && !self.optional))
    }

    pub(super) fn of_scalar(&self, value: Scalar<'_>) -> Option<Timestamp> {
        let decimal = |mantissa, exponent| millis(self.unit, mantissa, exponent);
        match value {
            Scalar::String(text) | Scalar::Number(text) => self.of_text(str::from_utf8(text).ok()?),
            Scalar::Escaped(quoted) => self.of_text(&unescape(quoted).ok()?),
            Scalar::Integer(number) => decimal(number, 0),
            Scalar::Decimal { unscaled, scale } => decimal(unscaled, -i32::try_from(scale).ok()?),
            Scalar::Null | Scalar::Bool(_) | Scalar::Uuid(_) | Scalar::Container(_) => None,
        }
    }

    /// Converts a text to milliseconds since 1970, rounded down. Returns `None` if the text is not a time in the configured unit, or if
    /// the time is not after the start of 1970.
    #[must_use]
    pub fn of_text(&self, text: &str) -> Option<Timestamp> {
        match (self.unit, number(text)) {
            (None | Some(TimeUnit::Rfc3339), None) => instant_ms(text).filter(|&time| time > 0),
            (unit, Some((mantissa, exponent))) => millis(unit, mantissa, exponent),
            (Some(_), None) => None,
        }
    }

    pub(super) const fn expected(&self) -> &'static str {
        TimeUnit::expected(self.unit)
    }
}

/// Converts `mantissa` * 10^`exponent` to milliseconds. Without a unit, the magnitude of the number determines the unit. Returns `None` for
/// times before 1970 and for zero: Kafka cannot represent times before 1970, and zero is Protobuf's value for a missing field.
fn millis(unit: Option<TimeUnit>, mantissa: i128, exponent: i32) -> Option<Timestamp> {
    if unit == Some(TimeUnit::Rfc3339) || mantissa < 0 {
        return None;
    }
    let unit = if let Some(unit) = unit {
        unit
    } else {
        let whole = scaled(mantissa, exponent)?;
        LEAST.into_iter().find(|&(least, _)| whole >= least).map_or(TimeUnit::Seconds, |(_, unit)| unit)
    };
    i64::try_from(scaled(mantissa, exponent.checked_add(unit.to_millis())?)?).ok().filter(|&time| time > 0)
}

/// Returns `mantissa` * 10^`exponent`, rounded down, or `None` if it overflows. The mantissa must not be negative.
fn scaled(mantissa: i128, exponent: i32) -> Option<i128> {
    let power = 10_i128.checked_pow(exponent.unsigned_abs());
    match power {
        Some(power) if exponent >= 0 => mantissa.checked_mul(power),
        Some(power) => Some(mantissa / power),
        None if exponent < 0 || mantissa == 0 => Some(0),
        None => None,
    }
}

/// Parses a decimal number into a mantissa and a power of ten. The syntax is the same as in JSON, except that leading zeros are allowed.
fn number(text: &str) -> Option<(i128, i32)> {
    let bytes = text.as_bytes();
    let (is_negative, mut at) = if bytes.first() == Some(&b'-') { (true, 1) } else { (false, 0) };
    let (mut mantissa, mut exponent) = (0_i128, 0_i32);
    let first = at;
    while let Some(digit) = bytes.get(at).filter(|byte| byte.is_ascii_digit()) {
        mantissa = mantissa.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
        at += 1;
    }
    if at == first {
        return None;
    }
    if bytes.get(at) == Some(&b'.') {
        let point = at;
        at += 1;
        while let Some(digit) = bytes.get(at).filter(|byte| byte.is_ascii_digit()) {
            if mantissa < MANTISSA_MAX {
                mantissa = mantissa * 10 + i128::from(digit - b'0');
                exponent -= 1;
            }
            at += 1;
        }
        if at == point + 1 {
            return None;
        }
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        let digits = &text[at + 1..];
        // `parse` accepts one sign, so `1e++9` is rejected.
        exponent = exponent.checked_add(digits.parse().ok()?)?;
        at = bytes.len();
    }
    (at == bytes.len()).then_some((if is_negative { -mantissa } else { mantissa }, exponent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(unit: Option<TimeUnit>) -> EventTime {
        EventTime { place: TimePlace::field("/ts").unwrap(), unit, optional: false }
    }

    #[test]
    fn the_unit_of_a_number_is_detected_by_its_magnitude() {
        let time = 1_767_268_800_123;
        for (text, expected) in [
            ("1767268800", 1_767_268_800_000),
            ("1767268800.1239", time),
            ("1767268800123", time),
            ("1767268800123.9", time),
            ("1767268800123456", time),
            ("1767268800123456789", time),
            ("1.767268800123e9", time),
            ("1.767268800123E+12", time),
            ("17672688001230e-1", time),
            ("99999999999", 99_999_999_999_000),
            ("100000000000", 100_000_000_000),
            ("99999999999999", 99_999_999_999_999),
            ("100000000000000", 100_000_000_000),
            ("99999999999999999", 99_999_999_999_999),
            ("100000000000000000", 100_000_000_000),
            ("1767268800.12300000000000000000000000000000000000000000000000", time),
        ] {
            assert_eq!(of(None).of_text(text), Some(expected), "{text}");
            assert_eq!(of(None).of_scalar(Scalar::Number(text.as_bytes())), Some(expected), "{text}");
        }
        assert_eq!(of(None).of_scalar(Scalar::Integer(1_767_268_800_123_456)), Some(time));
        assert_eq!(of(None).of_scalar(Scalar::Decimal { unscaled: 1_767_268_800_123_456, scale: 6 }), Some(time));
        assert_eq!(of(None).of_scalar(Scalar::Escaped(br#""2026-01-01T12:00:00.123\u005a""#)), Some(time));
    }

    #[test]
    fn a_text_is_a_time_if_it_is_in_rfc_3339_with_a_zone() {
        for (text, expected) in [
            ("2026-01-01T12:00:00Z", 1_767_268_800_000),
            ("2026-01-01T12:00:00.1239Z", 1_767_268_800_123),
            ("2026-01-01t13:00:00.5+01:00", 1_767_268_800_500),
            ("2026-01-01 06:30:00-0530", 1_767_268_800_000),
            ("1970-01-01T00:00:00.001Z", 1),
        ] {
            for unit in [None, Some(TimeUnit::Rfc3339)] {
                assert_eq!(of(unit).of_text(text), Some(expected), "{text}");
            }
        }
    }

    #[test]
    fn a_configured_unit_is_the_only_one() {
        for (unit, text, expected) in [
            ("s", "1767268800123", Some(1_767_268_800_123_000)),
            ("ms", "1767268800", Some(1_767_268_800)),
            ("us", "1767268800123456", Some(1_767_268_800_123)),
            ("ns", "1767268800123456", Some(1_767_268_800)),
            ("rfc3339", "1767268800", None),
            ("ms", "2026-01-01T12:00:00Z", None),
        ] {
            assert_eq!(of(TimeUnit::named(unit)).of_text(text), expected, "{text} {unit}");
        }
        assert_eq!(TimeUnit::named("m"), None);
        assert!(TimeUnit::NAMES.iter().all(|name| TimeUnit::named(name).is_some()));
    }

    #[test]
    fn values_that_are_not_times_are_not_usable() {
        for text in [
            "",
            "now",
            "-1",
            "-0.5",
            "0",
            "0.0",
            "1970-01-01T00:00:00Z",
            "1969-12-31T23:59:59.999Z",
            "2026-01-01T12:00:00",
            "2026-01-01",
            "1 767 268 800",
            " 1767268800",
            "1767268800.",
            ".5",
            "1e",
            "1e++9",
            "1e99",
            "0x10",
            "99999999999999999999999999999999999999999999999999",
            "NaN",
        ] {
            assert_eq!(of(None).of_text(text), None, "{text}");
        }
        for value in
            [Scalar::Null, Scalar::bool(true), Scalar::Uuid([0; 16]), Scalar::Container(b"[1]"), Scalar::Integer(-1), Scalar::Integer(0)]
        {
            assert_eq!(of(None).of_scalar(value), None, "{value:?}");
        }
        assert_eq!(of(Some(TimeUnit::Seconds)).of_text("9223372036854775"), Some(9_223_372_036_854_775_000));
        assert_eq!(of(Some(TimeUnit::Seconds)).of_text("9223372036854776"), None, "more milliseconds than Kafka can count");
    }

    proptest! {
        #[test]
        fn every_unit_gives_the_same_time(millis in 100_000_000_000_i64..99_999_999_999_999, part in 0_i64..1_000_000) {
            for text in [
                format!("{}.{:03}", millis / 1_000, millis % 1_000),
                format!("{millis}.{part}"),
                format!("{millis}{:03}", part / 1_000),
                format!("{millis}{part:06}"),
            ] {
                // The seconds in the first text are below the smallest number of every other unit, so the unit is detected.
                prop_assert_eq!(of(None).of_text(&text), Some(millis), "{}", text);
            }
        }

        #[test]
        fn no_text_is_too_strange(text in "[-0-9.eE+TZ: ]{0,60}", any in any::<String>()) {
            for unit in [None, Some(TimeUnit::Seconds), Some(TimeUnit::Nanoseconds), Some(TimeUnit::Rfc3339)] {
                prop_assert!(of(unit).of_text(&text).is_none_or(|time| time > 0));
                prop_assert!(of(unit).of_text(&any).is_none_or(|time| time > 0));
            }
        }
    }
}
