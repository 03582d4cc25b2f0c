//! JSON schemas of options whose values have several forms.
//!
//! A schema can accept a value that `resolve` rejects, because only `resolve` compares options with each other. A schema must never reject
//! a valid value.

use super::format::{EncodingOption, FormatOption};
use super::inputs::Inputs;
use super::properties::{OWNED, Properties};
use super::units::{BYTE_UNITS, Bytes, COUNT_UNITS, Count, Length, Rate, Span, Switch, Unit};
use crate::format::Format;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};
use std::borrow::Cow;

/// A regular expression for the start of a reference to a variable. The JSON schema cannot check the variable's value, so it accepts any
/// text that contains a reference.
pub(super) const VARIABLE: &str = r"\$\{";

const DURATION: &str = r"0|(\s*[0-9][0-9\s]*(\.[0-9\s]+)?(nanos|nsec|ns|usec|us|µs|millis|msec|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|wks?|w|months?|M|years?|yrs?|y)\s*)+";

pub(super) fn whole(pattern: &str) -> String {
    format!("^({pattern})$|{VARIABLE}")
}

/// Defines a JSON schema that several options use and returns a reference to it.
pub(super) fn shared(generator: &mut SchemaGenerator, name: &str, schema: Value) -> Value {
    generator.definitions_mut().insert(name.to_owned(), schema);
    json!({ "$ref": format!("#/definitions/{name}") })
}

fn quantity(units: &[Unit]) -> Schema {
    let units: Vec<_> = units.iter().map(|unit| unit.pattern()).collect();
    let pattern = whole(&format!(r"[0-9_]*[0-9][0-9_]*\s*({})", units.join("|")));
    json_schema!({ "type": ["integer", "string"], "minimum": 0, "pattern": pattern })
}

fn duration() -> Schema {
    json_schema!({ "type": "string", "pattern": whole(DURATION) })
}

fn entry(name: &str, value: &Schema) -> Schema {
    json_schema!({ "type": "object", "properties": { name: value }, "required": [name], "additionalProperties": false })
}

fn inputs() -> Schema {
    let pattern = entry("pattern", &json_schema!({ "description": "A regular expression that matches whole names.", "type": "string" }));
    json_schema!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" }, "minItems": 1 }, pattern] })
}

fn format() -> Schema {
    let kinds = json!({ "type": "string", "enum": Format::ALL });
    let table = json!({
        "type": "object",
        "properties": {
            "kind": kinds,
            "schema": { "description": "The schema file of all records: for Avro, a JSON file; for Protobuf, a .proto file or a descriptor set.", "type": "string" },
            "message": { "description": "The full name of the records' message type in a Protobuf schema.", "type": "string" },
        },
        "required": ["kind"],
        "additionalProperties": false,
    });
    json_schema!({ "anyOf": [kinds, table], "default": "json" })
}

fn encoding() -> Schema {
    let name = json!({ "type": "string", "enum": ["gzip", "base64"] });
    json_schema!({ "anyOf": [name, { "type": "array", "items": name }], "default": [] })
}

pub(super) fn hash(_: &mut SchemaGenerator) -> Schema {
    let secret = json_schema!({ "type": "string", "pattern": whole("[0-9a-fA-F]{32}") });
    json_schema!({ "oneOf": [{ "const": "xxh3" }, entry("siphash", &secret)], "default": "xxh3" })
}

pub(super) fn count_by(_: &mut SchemaGenerator) -> Schema {
    let field = json_schema!({ "type": "string", "pattern": whole("(/.*)?") });
    json_schema!({ "anyOf": [entry("header", &json_schema!({ "type": "string" })), entry("field", &field)] })
}

pub(super) fn key_conflicts(_: &mut SchemaGenerator) -> Schema {
    let except = json_schema!({ "type": "array", "items": { "type": "string", "pattern": whole("/.*") } });
    let switch = json_schema!({ "type": ["boolean", "string"], "pattern": whole("true|false") });
    json_schema!({ "anyOf": [switch, entry("except", &except)], "default": false })
}

/// Implements `JsonSchema` for types with several forms.
macro_rules! written {
    ($($type:ident: $schema:expr;)*) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )*};
}

written! {
    Inputs: inputs();
    Span: duration();
    Count: quantity(&COUNT_UNITS);
    Bytes: quantity(&BYTE_UNITS);
    Rate: json_schema!({
        "type": ["number", "string"], "exclusiveMinimum": 0, "exclusiveMaximum": 1, "pattern": whole(r"\+?[0-9.]+([eE][-+]?[0-9]+)?"),
    });
    FormatOption: format();
    EncodingOption: encoding();
    Switch: json_schema!({ "type": ["boolean", "string"], "pattern": whole("true|false") });
    Length: json_schema!({ "anyOf": [duration(), entry("keys", &quantity(&COUNT_UNITS))] });
    Properties: json_schema!({
        "type": "object",
        "properties": OWNED.iter().map(|(name, _)| ((*name).to_owned(), Value::Bool(false))).collect::<serde_json::Map<_, _>>(),
        // In TOML, a name with dots is a nested table unless the name is in quotes, so a value can be an object.
        "additionalProperties": { "type": ["string", "number", "boolean", "object", "null"] },
    });
}
