//! Visits everything in a message.
//!
//! The message is decoded first, because later parts of a message can replace or extend earlier parts. If readers cannot distinguish the
//! default of a field from an absent field, the default counts as absent. Unknown fields are visited, too. Otherwise, two messages that
//! differ only in unknown fields would be equal.

use crate::format::{Container, Malformed, Scalar, Visit};
use prost_reflect::{DynamicMessage, Kind, MapKey, MessageDescriptor, Value};

/// All unknown fields are visited as one field with this name. No field of a schema can have an empty name.
const UNKNOWN: &[u8] = b"";

pub(super) fn visit(message: &MessageDescriptor, record: &[u8], visitor: &mut impl Visit) -> Result<(), Malformed> {
    let decoded = DynamicMessage::decode(message.clone(), record);
    let message = decoded.map_err(|_| Malformed { offset: 0, what: "the message cannot be decoded" })?;
    fields(&message, visitor);
    Ok(())
}

fn fields(message: &DynamicMessage, visitor: &mut impl Visit) {
    visitor.open(Container::Object);
    for (field, fields_value) in message.fields() {
        visitor.name(field.name().as_bytes());
        value(fields_value, &field.kind(), visitor);
    }
    let mut unknown = Vec::new();
    message.unknown_fields().for_each(|field| field.encode(&mut unknown));
    if !unknown.is_empty() {
        visitor.name(UNKNOWN);
        visitor.scalar(Scalar::String(&unknown));
    }
    visitor.close();
}

fn value(value: &Value, kind: &Kind, visitor: &mut impl Visit) {
    match value {
        Value::Bool(value) => visitor.scalar(Scalar::bool(*value)),
        Value::I32(number) => visitor.scalar(Scalar::Integer((*number).into())),
        Value::I64(number) => visitor.scalar(Scalar::Integer((*number).into())),
        Value::U32(number) => visitor.scalar(Scalar::Integer((*number).into())),
        Value::U64(number) => visitor.scalar(Scalar::Integer((*number).into())),
        Value::F32(number) => visitor.scalar(Scalar::Number(format!("{number:?}").as_bytes())),
        Value::F64(number) => visitor.scalar(Scalar::Number(format!("{number:?}").as_bytes())),
        Value::String(text) => visitor.scalar(Scalar::String(text.as_bytes())),
        Value::Bytes(bytes) => visitor.scalar(Scalar::String(bytes)),
        Value::EnumNumber(number) => {
            let symbol = if let Kind::Enum(symbols) = kind { symbols.get_value(*number) } else { None };
            match symbol {
                Some(symbol) => visitor.scalar(Scalar::String(symbol.name().as_bytes())),
                None => visitor.scalar(Scalar::Integer((*number).into())),
            }
        }
        Value::Message(message) => fields(message, visitor),
        Value::List(elements) => {
            visitor.open(Container::Array);
            for element in elements {
                self::value(element, kind, visitor);
            }
            visitor.close();
        }
        Value::Map(entries) => {
            let kind = if let Kind::Message(entry) = kind { entry.map_entry_value_field().kind() } else { kind.clone() };
            visitor.open(Container::Object);
            for (key, entry) in entries {
                visitor.name(text(key).as_bytes());
                self::value(entry, &kind, visitor);
            }
            visitor.close();
        }
    }
}

fn text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}
