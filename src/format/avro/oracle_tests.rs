//! The expected values of a record, as `apache-avro` decodes them. The fuzz target also includes this file.

use super::Scalar;
use apache_avro::types::Value;
use apache_avro::{Decimal, Uuid};

/// Number of digits after the decimal point in every decimal of the tests.
pub const SCALE: u32 = 2;

pub fn compare(places: &[impl AsRef<str>], value: &Value, found: &[Option<Scalar<'_>>]) {
    for (place, found) in places.iter().map(AsRef::as_ref).zip(found) {
        let expected = look(value, place);
        let is_right = found.as_ref().map_or(expected.is_none(), |found| expected.is_some_and(|value| is_same(found, value)));
        assert!(is_right, "{place}: {found:?}, not {expected:?}");
    }
}

/// Returns the value at a place, with the rules in the documentation of the module `avro`.
pub fn look<'v>(value: &'v Value, place: &str) -> Option<&'v Value> {
    let value = if let Value::Union(_, value) = value { value } else { value };
    let Some(rest) = place.strip_prefix('/') else { return Some(value) };
    let (step, rest) = rest.split_once('/').map_or((rest, ""), |(step, _)| (step, &rest[step.len()..]));
    let step = step.replace("~1", "/").replace("~0", "~");
    let inner = match value {
        Value::Record(fields) => {
            let name = step.strip_prefix("old_").unwrap_or(&step);
            &fields.iter().find(|(field, _)| field == name)?.1
        }
        Value::Map(entries) => entries.get(&step)?,
        Value::Array(elements) => elements.get(step.parse::<usize>().ok()?)?,
        _ => return None,
    };
    look(inner, rest)
}

fn is_same(found: &Scalar<'_>, value: &Value) -> bool {
    match (found, value) {
        (Scalar::Null, Value::Null) => true,
        (Scalar::Bool(text), Value::Boolean(value)) => *text == value.to_string().as_bytes(),
        (Scalar::Integer(number), Value::Int(value) | Value::Date(value)) => *number == i128::from(*value),
        (Scalar::Integer(number), Value::Long(value) | Value::TimestampMicros(value)) => *number == i128::from(*value),
        (Scalar::String(text), Value::String(value) | Value::Enum(_, value)) => *text == value.as_bytes(),
        (Scalar::String(bytes), Value::Bytes(value) | Value::Fixed(_, value)) => *bytes == value,
        // The decoder parses any spelling of a UUID, but a key contains the text as written.
        (Scalar::String(text), Value::Uuid(value)) => str::from_utf8(text).is_ok_and(|text| Uuid::parse_str(text).as_ref() == Ok(value)),
        (Scalar::String(bytes), Value::Duration(value)) => *bytes == <[u8; 12]>::from(*value),
        (Scalar::Uuid(id), Value::Uuid(value)) => id == value.as_bytes(),
        (Scalar::Decimal { unscaled, scale }, Value::Decimal(value)) => *scale == SCALE && Decimal::from(unscaled.to_be_bytes()) == *value,
        _ => false,
    }
}
