//! The options `when` and `retract`: predicates that select the records to deduplicate and the retractions.

use super::error::Diagnostics;
use super::forms::{shared, whole};
use super::key::take_switch;
use super::units::expected;
use crate::format::Side;
use crate::key::Predicate;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

const PREDICATE: &str = "a field, key_field, header, or record = \"key\", with equals, one_of, or exists, such as { field = \"/type\", equals = \"order\" }, or { not = { … } } around such a predicate";

/// Parses a predicate, or a list of predicates that must all hold.
pub(super) fn when(raw: &Value, path: &str, diagnostics: &mut Diagnostics) -> Option<Vec<Predicate>> {
    let compiled = |raw: &Value, place: &str, diagnostics: &mut Diagnostics| {
        predicate(raw, false).map_err(|message| diagnostics.add(place, message)).ok()
    };
    match raw {
        Value::Array(list) if list.is_empty() => {
            diagnostics.add(path, expected("at least one predicate", raw));
            None
        }
        // Parse each predicate separately, so an error has the path of its predicate.
        Value::Array(list) => {
            let all: Vec<_> = list.iter().enumerate().map(|(index, raw)| compiled(raw, &format!("{path}[{index}]"), diagnostics)).collect();
            all.into_iter().collect()
        }
        single => Some(vec![compiled(single, path, diagnostics)?]),
    }
}

/// Parses a predicate. Also accepts `{ header = "name" }`, which holds if the record has this header.
pub(super) fn retract(value: &Value) -> Result<Predicate, String> {
    predicate(value, true)
}

/// Parses a predicate. If `may_just_exist`, also accepts a header without a test.
fn predicate(value: &Value, may_just_exist: bool) -> Result<Predicate, String> {
    let what = if may_just_exist { format!("{{ header = \"name\" }}, or {PREDICATE}") } else { PREDICATE.to_owned() };
    let unknown = || expected(&what, value);
    let mut table = value.as_object().ok_or_else(unknown)?.clone();
    if let Some(inner) = table.remove("not") {
        let is_plain = table.is_empty() && inner.get("not").is_none();
        return if is_plain { predicate(&inner, false).map(Predicate::negate) } else { Err(unknown()) };
    }
    let exists = table.contains_key("exists");
    let is_there = take_switch(&mut table, "exists")?;
    let values = match (table.remove("equals"), table.remove("one_of")) {
        (None, None) => None,
        (Some(value), None) => Some(vec![text(&value).ok_or_else(|| expected("a string, number, or boolean for equals", &value))?]),
        (None, Some(Value::Array(list))) if !list.is_empty() => Some(list.iter().map(text).collect::<Option<_>>().ok_or_else(unknown)?),
        _ => return Err(unknown()),
    };
    let is_header = table.contains_key("header");
    let place = place(&table)?.ok_or_else(unknown)?;
    match values {
        Some(values) if !exists => Ok(place.one_of(values)),
        None if exists => Ok(if is_there { place } else { place.negate() }),
        None if may_just_exist && is_header => Ok(place),
        _ => Err(unknown()),
    }
}

/// Parses the location that a predicate tests. Returns `None` if the location is unknown or if the table has other entries.
fn place(table: &Map<String, Value>) -> Result<Option<Predicate>, String> {
    let entry = table.iter().next().filter(|_| table.len() == 1).and_then(|(name, value)| Some((&**name, value.as_str()?)));
    let field = |side, pointer| Predicate::field(side, pointer).map(Some).map_err(|error| error.to_string());
    match entry {
        Some(("header", name)) => Ok(Some(Predicate::header(name))),
        Some(("record", "key")) => Ok(Some(Predicate::record_key())),
        Some(("field", pointer)) => field(Side::Value, pointer),
        Some(("key_field", pointer)) => field(Side::Key, pointer),
        _ => Ok(None),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

fn predicate_schema(generator: &mut SchemaGenerator) -> (Value, Value) {
    let pointer = |description: &str| json!({ "description": description, "type": "string", "pattern": whole("(/.*)?") });
    let places = json!({
        "field": pointer("A field of the record value, as an RFC 6901 JSON pointer."),
        "key_field": pointer("A field of the record key, as an RFC 6901 JSON pointer."),
        "header": { "description": "The last header with this name.", "type": "string" },
        "record": { "description": "The record key.", "type": "string", "const": "key" },
    });
    let value = json!({ "type": ["string", "number", "boolean"] });
    let tests = json!({
        "equals": { "description": "The value to compare with, written as in the record: 1 does not match 1.0.", "type": value["type"] },
        "one_of": { "description": "The values to compare with, written as in the record.", "type": "array", "items": value, "minItems": 1 },
        "exists": {
            "description": "True if the field or header must exist, false if it must not exist.",
            "type": ["boolean", "string"],
            "pattern": whole("true|false"),
        },
    });
    let required = |name: &str| json!({ "required": [name] });
    let names = |of: &Value| of.as_object().into_iter().flatten().map(|(name, _)| required(name)).collect::<Vec<_>>();
    let all: Map<_, _> = [&places, &tests].into_iter().flat_map(|of| of.as_object().cloned().unwrap_or_default()).collect();
    let plain = json!({
        "type": "object",
        "properties": all,
        "allOf": [{ "oneOf": names(&places) }, { "oneOf": names(&tests) }],
        "additionalProperties": false,
    });
    let plain = shared(generator, "predicate", plain);
    let not = json!({
        "type": "object",
        "properties": { "not": plain },
        "required": ["not"],
        "additionalProperties": false,
    });
    let not = shared(generator, "negated_predicate", not);
    (plain, not)
}

pub(super) fn when_schema(generator: &mut SchemaGenerator) -> Schema {
    let (plain, not) = predicate_schema(generator);
    let list = json!({
        "description": "Predicates that must all hold.",
        "type": "array",
        "items": { "anyOf": [plain, not] },
        "minItems": 1,
    });
    json_schema!({ "anyOf": [plain, not, list] })
}

pub(super) fn retract_schema(generator: &mut SchemaGenerator) -> Schema {
    let (plain, not) = predicate_schema(generator);
    let header = json!({
        "type": "object",
        "properties": { "header": { "description": "A header with this name and any value.", "type": "string" } },
        "required": ["header"],
        "additionalProperties": false,
    });
    json_schema!({ "anyOf": [header, plain, not] })
}
