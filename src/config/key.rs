//! Options for keys and event times: where a record contains them, and how keys are normalized.

use super::error::Diagnostics;
use super::forms::{VARIABLE, shared, whole};
use super::units::expected;
use crate::key::{EmbeddedField, EventTime, KeySpec, Normalizer, Normalizers, Part, TimePlace, TimeUnit};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

const NORMALIZERS: [&str; 7] = ["to_string", "trim", "unquote", "lowercase", "nfc", "timestamp", "url"];

/// Resolves a key: a part, a list of parts, or the preset `"cloudevents"`.
pub(super) fn resolve(raw: &Value, path: &str, diagnostics: &mut Diagnostics) -> Option<KeySpec> {
    let compiled = |raw: &Value, place: &str, diagnostics: &mut Diagnostics| {
        let part = part(raw).and_then(|part| match KeySpec::new(vec![part.clone()]) {
            Ok(_) => Ok(part),
            Err(error) => Err(error.to_string()),
        });
        part.map_err(|message| diagnostics.add(place, message)).ok()
    };
    let parts: Vec<_> = match raw {
        // The attributes that identify an event, according to the CloudEvents specification.
        Value::String(preset) if preset == "cloudevents" => ["source", "id"].map(|name| Some(Part::CloudEvent(name.to_owned()))).into(),
        Value::Array(list) => {
            let parts = list.iter().enumerate();
            parts.map(|(index, raw)| compiled(raw, &format!("{path}[{index}]"), diagnostics)).collect()
        }
        single => vec![compiled(single, path, diagnostics)],
    };
    let parts = parts.into_iter().collect::<Option<Vec<_>>>()?;
    KeySpec::new(parts).map_err(|error| diagnostics.add(path, error.to_string())).ok()
}

fn part(value: &Value) -> Result<Part, String> {
    let Some(table) = value.as_object() else { return Err(unknown_part(value)) };
    let mut place = table.clone();
    let is_optional = take_switch(&mut place, "optional")?;
    let steps = place.remove("normalize").map(|steps| normalizers(&steps)).transpose()?;
    let then = place.remove("then").map(|then| embedded(&then)).transpose()?.unwrap_or_default();
    let mut part = match place.get("first_of") {
        Some(alternatives) if place.len() == 1 => first_of(alternatives)?,
        _ => leaf(place)?,
    };
    if !then.is_empty() && matches!(part, Part::FirstOf(_) | Part::Content { .. } | Part::RecordKey | Part::RecordValue) {
        return Err(format!("`then` requires a field, key_field, header, or cloudevent, got {value}"));
    }
    for field in then {
        part = Part::Embedded(Box::new(part), field);
    }
    if let Some(steps) = steps {
        part = Part::Normalized(Box::new(part), steps);
    }
    Ok(if is_optional { Part::Optional(Box::new(part)) } else { part })
}

/// Parses `then`: a JSON pointer, or a list of pointers. Each pointer is applied to the JSON text that the previous pointer found.
fn embedded(then: &Value) -> Result<Vec<EmbeddedField>, String> {
    let list = match then {
        Value::Array(list) if !list.is_empty() => list.as_slice(),
        single => std::slice::from_ref(single),
    };
    let field = |pointer: &Value| {
        let text = pointer.as_str().ok_or_else(|| expected("a JSON pointer, or a list of pointers, for then", pointer))?;
        EmbeddedField::new(text).map_err(|error| error.to_string())
    };
    list.iter().map(field).collect()
}

fn first_of(alternatives: &Value) -> Result<Part, String> {
    let list = alternatives.as_array().ok_or_else(|| expected("a list of parts for first_of", alternatives))?;
    let nested = |part: &&Value| part.get("first_of").is_some() || part.get("optional").is_some();
    if let Some(part) = list.iter().find(nested) {
        return Err(format!(
            "a part within first_of cannot have first_of or optional: list all parts in one first_of, with optional next to it, got {part}"
        ));
    }
    list.iter().map(part).collect::<Result<_, _>>().map(Part::FirstOf)
}

/// Parses a part without `first_of`, `then`, `normalize`, or `optional`.
fn leaf(mut place: Map<String, Value>) -> Result<Part, String> {
    if place.contains_key("content") {
        return content(&place).ok_or_else(|| expected("{ content = \"value\", except = [\"/pointer\"] }", &Value::Object(place)));
    }
    if place.contains_key("header") && take_switch(&mut place, "ignore_case")? {
        let name = place.get("header").filter(|_| place.len() == 1).and_then(Value::as_str);
        return name.map(|name| Part::HeaderInAnyCase(name.to_owned())).ok_or_else(|| unknown_part(&Value::Object(place)));
    }
    let entry = place.iter().next().filter(|_| place.len() == 1).and_then(|(name, value)| Some((&**name, value.as_str()?)));
    match entry {
        Some(("record", "key")) => Ok(Part::RecordKey),
        Some(("record", "value")) => Ok(Part::RecordValue),
        Some(("header", name)) => Ok(Part::Header(name.to_owned())),
        Some(("field", pointer)) => Ok(Part::Field(pointer.to_owned())),
        Some(("key_field", pointer)) => Ok(Part::KeyField(pointer.to_owned())),
        Some(("cloudevent", name)) => Ok(Part::CloudEvent(name.to_owned())),
        _ => Err(unknown_part(&Value::Object(place))),
    }
}

fn unknown_part(value: &Value) -> String {
    expected(
        "{ field = \"/pointer\" }, { key_field = \"/pointer\" }, { record = \"key\" }, { record = \"value\" }, { header = \"name\" }, { cloudevent = \"attribute\" }, { content = \"value\" }, or { first_of = [...] }",
        value,
    )
}

fn content(table: &Map<String, Value>) -> Option<Part> {
    let except = match table.get("except") {
        None => Vec::new(),
        Some(pointers) => pointers.as_array()?.iter().map(|pointer| pointer.as_str().map(str::to_owned)).collect::<Option<_>>()?,
    };
    let is_known = table.keys().all(|name| matches!(&**name, "content" | "except"));
    (is_known && table["content"] == "value").then_some(Part::Content { except })
}

/// Removes a boolean option from a table and returns its value, or false if the table does not have the option. Accepts `true` and `false`
/// as text, because the values of variables are text.
pub(super) fn take_switch(table: &mut Map<String, Value>, name: &str) -> Result<bool, String> {
    match table.remove(name) {
        None => Ok(false),
        Some(Value::Bool(is_on)) => Ok(is_on),
        Some(Value::String(text)) if text == "true" || text == "false" => Ok(text == "true"),
        Some(other) => Err(expected(&format!("true or false for {name}"), &other)),
    }
}

fn normalizers(value: &Value) -> Result<Normalizers, String> {
    let names = NORMALIZERS.map(|name| format!("{name:?}")).join(", ");
    let step = |step: &Value| match step {
        Value::String(name) => Normalizer::named(name),
        Value::Object(table) if table.len() == 1 => {
            let drop_query =
                table.get("drop_query")?.as_array()?.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>()?;
            Some(Normalizer::Url { drop_query })
        }
        _ => None,
    };
    let is_list = |list: &&Vec<Value>| !list.is_empty();
    let list = value.as_array().filter(is_list).ok_or_else(|| expected(&format!("a list of {names}"), value))?;
    let steps = list.iter().map(|raw| step(raw).ok_or_else(|| expected(&format!("one of {names}, or {{ drop_query = [\"name\"] }}"), raw)));
    steps.collect::<Result<_, _>>().map(Normalizers::new)
}

pub(super) fn time(value: &Value) -> Result<EventTime, String> {
    let unknown = || expected("{ field = \"/pointer\" } or { header = \"name\" }, optionally with unit and optional", value);
    let mut table = value.as_object().ok_or_else(unknown)?.clone();
    let optional = take_switch(&mut table, "optional")?;
    let unit = |unit: Value| {
        let known = unit.as_str().and_then(TimeUnit::named);
        let names = TimeUnit::NAMES.map(|name| format!("{name:?}")).join(", ");
        known.ok_or_else(|| expected(&format!("one of {names} for unit"), &unit))
    };
    let unit = table.remove("unit").map(unit).transpose()?;
    let place = match table.iter().next().filter(|_| table.len() == 1).map(|(name, value)| (&**name, value)) {
        Some(("header", Value::String(name))) => TimePlace::Header(name.clone()),
        Some(("field", Value::String(pointer))) => TimePlace::field(pointer).map_err(|error| error.to_string())?,
        _ => return Err(unknown()),
    };
    Ok(EventTime { place, unit, optional })
}

pub(super) fn schema(generator: &mut SchemaGenerator) -> Schema {
    let pointer = |description: &str| json!({ "description": description, "type": "string", "pattern": whole("(/.*)?") });
    let switch = |description: &str| json!({ "description": description, "type": ["boolean", "string"], "pattern": whole("true|false") });
    let optional = switch("True if a record has a key even if this part is missing or null.");
    let normalize = json!({
        "description": "Normalizations, which make different spellings the same key. Their order does not matter.",
        "type": "array",
        "items": { "anyOf": [
            { "type": "string", "anyOf": [{ "enum": NORMALIZERS }, { "pattern": VARIABLE }] },
            {
                "type": "object",
                "properties": {
                    "drop_query": {
                        "description": "Normalize a URL like `url` and remove these query parameters. A name may end in `*`.",
                        "type": "array",
                        "items": { "type": "string" },
                    },
                },
                "required": ["drop_query"],
                "additionalProperties": false,
            },
        ] },
        "minItems": 1,
    });
    let normalize = shared(generator, "normalize", normalize);
    let places = ["record", "header", "field", "key_field", "cloudevent"].map(|name| json!({ "required": [name] }));
    let part = json!({
        "type": "object",
        "properties": {
            "record": { "description": "The record key, or the whole record value.", "type": "string", "enum": ["key", "value"] },
            "header": { "description": "The value of the last header with this name.", "type": "string" },
            "ignore_case": switch("True to ignore case in the name of the header."),
            "field": pointer("A field of the record value, as an RFC 6901 JSON pointer."),
            "key_field": pointer("A field of the record key, as an RFC 6901 JSON pointer."),
            "cloudevent": { "description": "An attribute of a CloudEvent, in binary or structured mode.", "type": "string", "pattern": whole("[a-zA-Z0-9]+") },
            "then": {
                "description": "A field of the JSON text in the string, as an RFC 6901 JSON pointer. In a list, each pointer leads into the JSON text that the previous pointer found.",
                "anyOf": [
                    { "type": "string", "pattern": whole("(/.*)?") },
                    { "type": "array", "items": { "type": "string", "pattern": whole("(/.*)?") }, "minItems": 1 },
                ],
            },
            "optional": optional,
            "normalize": normalize,
        },
        "oneOf": places,
        "additionalProperties": false,
    });
    let part = shared(generator, "key_part", part);
    let content = json!({
        "type": "object",
        "properties": {
            "content": { "description": "The content of the value, regardless of white space and the order of members.", "type": "string", "const": "value" },
            "except": {
                "description": "Fields to ignore, as RFC 6901 JSON pointers.",
                "type": "array",
                "items": { "type": "string", "pattern": whole("/.*") },
            },
            "optional": optional,
        },
        "required": ["content"],
        "additionalProperties": false,
    });
    let content = shared(generator, "key_content", content);
    let first_of = json!({
        "type": "object",
        "properties": {
            "first_of": {
                "description": "Alternative parts. The key contains the first part that the record has.",
                "type": "array",
                "items": { "anyOf": [part, content] },
                "minItems": 2,
            },
            "optional": optional,
            "normalize": normalize,
        },
        "required": ["first_of"],
        "additionalProperties": false,
    });
    let first_of = shared(generator, "key_first_of", first_of);
    let preset = json!({ "description": "The source and the ID of a CloudEvent.", "const": "cloudevents" });
    let list = json!({ "type": "array", "items": { "anyOf": [part, content, first_of] }, "minItems": 1 });
    json_schema!({ "anyOf": [preset, part, content, first_of, list] })
}

pub(super) fn time_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "field": { "description": "A field of the record value, as an RFC 6901 JSON pointer.", "type": "string", "pattern": whole("(/.*)?") },
            "header": { "description": "The last header with this name.", "type": "string" },
            "unit": {
                "description": "Unit or format of the time. By default, the unit of a number follows from its magnitude, and other text is in RFC 3339.",
                "type": "string",
                "anyOf": [{ "enum": TimeUnit::NAMES }, { "pattern": VARIABLE }],
            },
            "optional": {
                "description": "True to use Kafka's timestamp for records without a usable time, instead of treating them as invalid.",
                "type": ["boolean", "string"],
                "pattern": whole("true|false"),
            },
        },
        "oneOf": [{ "required": ["field"] }, { "required": ["header"] }],
        "additionalProperties": false,
    })
}
