//! Options that compare the content of records: `emit`, which selects the records of a key to emit, and `key_conflicts`, which compares
//! duplicates with the records that they duplicate.

use super::error::Diagnostics;
use super::key;
use super::units::expected;
use crate::content::CompareContent;
use crate::filter::{Kind, Size};
use crate::key::{KeySpec, Part};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// Resolves `emit`. Returns `None` if only the first record of a key is emitted. Otherwise, returns the parts to compare: a record is
/// emitted if one of these parts has changed. `"on_change"` compares the whole value. After an error, returns the whole value. The topic
/// then still counts as `on_change`, so `check_spaces` does not report a second error if other topics of the space use `on_change`.
pub(super) fn emit(raw: Option<&Value>, kind: Kind, path: &str, diagnostics: &mut Diagnostics) -> Option<KeySpec> {
    let whole = || KeySpec::new(vec![Part::RecordValue]).ok();
    let content = match raw {
        None => return None,
        Some(Value::String(name)) if name == "first" => return None,
        Some(Value::String(name)) if name == "on_change" => None,
        Some(Value::Object(table)) if table.len() == 1 && table.get("on_change").is_some_and(|content| !content.is_string()) => {
            compared(&table["on_change"], &format!("{path}.on_change"), diagnostics)
        }
        Some(other) => {
            let what = "\"first\", \"on_change\", or { on_change = PARTS }, where PARTS selects what to compare, such as { except = [\"/updated_at\"] }";
            diagnostics.add(path, expected(what, other));
            return whole();
        }
    };
    if !kind.is_on_disk() {
        let (name, on_disk) = (kind.name(), Kind::list('"', |kind| kind.size == Size::Disk));
        diagnostics.add(
            path,
            format!("\"on_change\" requires filter.kind = {on_disk}, because only that kind stores each key's content; got kind {name:?}"),
        );
    }
    content.or_else(whole)
}

/// Resolves the parts to compare. `raw` has the syntax of a key or is `{ except = ["/pointer"] }`. A missing part counts as null.
fn compared(raw: &Value, path: &str, diagnostics: &mut Diagnostics) -> Option<KeySpec> {
    let mut raw = raw.clone();
    if let Some(table) = raw.as_object_mut().filter(|table| table.contains_key("except")) {
        table.entry("content").or_insert_with(|| json!("value"));
    }
    let spec = key::resolve(&raw, path, diagnostics)?;
    let optional = |part: &Part| match part {
        part @ (Part::Optional(_) | Part::RecordKey | Part::RecordValue) => part.clone(),
        part => Part::Optional(Box::new(part.clone())),
    };
    KeySpec::new(spec.parts().iter().map(optional).collect()).map_err(|error| diagnostics.add(path, error.to_string())).ok()
}

pub(super) fn emit_schema(generator: &mut SchemaGenerator) -> Schema {
    let names = json!({ "type": "string", "enum": ["first", "on_change"] });
    let mut parts = key::schema(generator).to_value();
    if let Some(forms) = parts["anyOf"].as_array_mut() {
        forms.retain(|form| form.get("const").is_none());
        forms.insert(
            0,
            json!({
                "type": "object",
                "properties": {
                    "except": { "description": "Everything in the value is compared, except for these fields.", "type": "array", "items": { "type": "string" } },
                },
                "required": ["except"],
                "additionalProperties": false,
            }),
        );
    }
    json_schema!({
        "anyOf": [
            names,
            { "type": "object", "properties": { "on_change": parts }, "required": ["on_change"], "additionalProperties": false },
        ],
        "default": "first",
    })
}

/// Resolves `key_conflicts`. `compares_all` is true if `emit` is `on_change`, which already compares all records of a key.
pub(super) fn key_conflicts(raw: Option<&Value>, compares_all: bool, path: &str, diagnostics: &mut Diagnostics) -> Option<CompareContent> {
    let compare = compare(raw?).map_err(|message| diagnostics.add(path, message)).ok()??;
    if compares_all {
        diagnostics.add(path, "remove key_conflicts, because emit = \"on_change\" already compares the records of each key");
    }
    Some(compare)
}

fn compare(value: &Value) -> Result<Option<CompareContent>, String> {
    let except = |table: &Map<String, Value>| {
        let pointers = table.get("except").filter(|_| table.len() == 1)?.as_array()?;
        pointers.iter().map(|pointer| pointer.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
    };
    match value {
        Value::Bool(is_on) => return Ok(is_on.then(CompareContent::default)),
        // Environment variables and `${...}` references set an option to text, so accept text, too.
        Value::String(text) if text == "true" || text == "false" => return Ok((text == "true").then(CompareContent::default)),
        _ => {}
    }
    let except = value.as_object().and_then(except).ok_or_else(|| expected("true, false, or { except = [\"/pointer\"] }", value))?;
    CompareContent::new(except).map(Some)
}
