//! From the text of a schema to the schema.
//!
//! Owns how a schema and its references become one, and which names are allowed. Must never know of places.

use crate::format::{Body, Schema, SchemaError};
use apache_avro::error::{Details, Error};
use apache_avro::schema::{RecordField, RecordSchema, Schema as Parsed};
use apache_avro::validator::{
    EnumSymbolNameValidator, RecordFieldNameValidator, SchemaNameValidator, SchemaNamespaceValidator, set_enum_symbol_name_validator,
    set_record_field_name_validator, set_schema_name_validator, set_schema_namespace_validator,
};
use serde_json::{Map, Value, json};
use std::sync::Once;

/// The attribute of a field that has its aliases.
const ALIASES: &str = "unseen_aliases";

/// A schema behind those that it names, as the fields of a record that nobody writes: so all are parsed as one, and a
/// name is known from where it is defined.
pub(super) fn parse(schema: &Schema) -> Result<RecordSchema, SchemaError> {
    allow_all_names();
    let references = schema.references.iter().map(|reference| {
        let body = json(&reference.body);
        body.map_err(|SchemaError(error)| SchemaError(format!("what it refers to as `{}`: {error}", reference.name)))
    });
    let bodies = references.chain([json(&schema.body)]).collect::<Result<Vec<_>, _>>()?;
    let field = |(number, body)| json!({ "name": format!("schema_{number}"), "type": body });
    let fields = bodies.into_iter().enumerate().map(field).collect::<Vec<_>>();
    match Parsed::parse(&json!({ "type": "record", "name": "unseen_schema_and_references", "fields": fields })) {
        Ok(Parsed::Record(record)) => Ok(record),
        Ok(_) => Err(SchemaError("it is no Avro schema".to_owned())),
        Err(error) => Err(SchemaError(match error.details() {
            Details::ParsePrimitive(name) => {
                format!("it names a type `{}` that neither it nor its references define", name.trim_end_matches(MARK))
            }
            error => format!("it is no Avro schema: {error}"),
        })),
    }
}

fn json(body: &Body) -> Result<Value, SchemaError> {
    let Body::Text(text) = body else {
        return Err(SchemaError("it is a Protobuf descriptor, and an Avro schema is JSON".to_owned()));
    };
    bare(serde_json::from_str(text).map_err(|error| SchemaError(format!("it is not JSON: {error}")))?)
}

/// The kinds of types, and what each must say. What does not say it names a type.
const KINDS: [(&str, &str); 6] =
    [("record", "fields"), ("error", "fields"), ("enum", "symbols"), ("fixed", "size"), ("array", "items"), ("map", "values")];

/// Stands behind the name of a type that is called after a kind: the parser would take one for the other.
const MARK: char = '\'';

/// Leaves of a schema what says where values are. Anything else may stand beside that: defaults from before they were
/// checked, and whatever a tool notes for itself. A type has no other names: the parser would copy it for each.
fn bare(json: Value) -> Result<Value, SchemaError> {
    match json {
        Value::String(name) => Ok(Value::String(marked(name))),
        Value::Array(branches) => branches.into_iter().map(bare).collect::<Result<_, _>>().map(Value::Array),
        Value::Object(mut members) => match members.remove("type") {
            Some(Value::String(name)) => {
                let kind = KINDS.iter().find(|(kind, member)| name == *kind && members.contains_key(*member));
                match kind {
                    Some((kind, _)) => of_kind(kind, members),
                    None => Ok(annotated(&mut members, marked(name))),
                }
            }
            Some(other) => Ok(kept(&mut members, &LOGICAL, [("type", bare(other)?)])),
            None => Err(SchemaError("it is no Avro schema: a type is an object without `type`".to_owned())),
        },
        other => Err(SchemaError(format!("it is no Avro schema: `{other}` is not a type"))),
    }
}

/// What says more of a type that is there without it.
const LOGICAL: [&str; 3] = ["logicalType", "precision", "scale"];

/// A type by its name. Only a primitive one can mean more by an annotation, and only without one is it not copied.
fn annotated(members: &mut Map<String, Value>, name: String) -> Value {
    if members.contains_key("logicalType") { kept(members, &LOGICAL, [("type", name.into())]) } else { name.into() }
}

/// A type that says of what it is made.
fn of_kind(kind: &str, mut members: Map<String, Value>) -> Result<Value, SchemaError> {
    let mut take = |member: &str| members.remove(member).unwrap_or_default();
    let made_of = match kind {
        "record" | "error" => ("fields", fields(take("fields"))?),
        "enum" => ("symbols", take("symbols")),
        "fixed" => ("size", take("size")),
        "array" => ("items", bare(take("items"))?),
        _ => ("values", bare(take("values"))?),
    };
    if let Some(Value::String(name)) = members.get_mut("name") {
        *name = marked(std::mem::take(name));
    }
    let named: &[&str] = match kind {
        "array" | "map" => &[],
        "fixed" => &["name", "namespace", "logicalType", "precision", "scale"],
        _ => &["name", "namespace"],
    };
    let kind = if kind == "error" { "record" } else { kind };
    Ok(kept(&mut members, named, [("type", kind.into()), made_of]))
}

fn fields(json: Value) -> Result<Value, SchemaError> {
    let Value::Array(fields) = json else {
        return Err(SchemaError("it is no Avro schema: the `fields` of a record are not a list".to_owned()));
    };
    fields.into_iter().map(field).collect::<Result<_, _>>().map(Value::Array)
}

/// A field. What it was called before is kept by another name: the parser refuses an alias that is another field's name.
fn field(json: Value) -> Result<Value, SchemaError> {
    let Value::Object(mut members) = json else {
        // The parser would pass over it, and the walk over everything behind it would go astray.
        return Err(SchemaError(format!("it is no Avro schema: `{json}` is not a field")));
    };
    let of = members.remove("type").ok_or_else(|| SchemaError("it is no Avro schema: a field has no `type`".to_owned()))?;
    let aliases = members.remove("aliases").unwrap_or_default();
    Ok(kept(&mut members, &["name"], [("type", bare(of)?), (ALIASES, aliases)]))
}

/// Some of the members, and others.
fn kept<const N: usize>(members: &mut Map<String, Value>, names: &[&str], others: [(&str, Value); N]) -> Value {
    let kept = names.iter().filter_map(|&name| Some((name, members.remove(name)?)));
    Value::Object(kept.chain(others).map(|(name, value)| (name.to_owned(), value)).collect())
}

/// A name that is told from the kinds.
fn marked(mut name: String) -> String {
    let last = name.rsplit('.').next().unwrap_or_default();
    if KINDS.iter().any(|(kind, _)| *kind == last) {
        name.push(MARK);
    }
    name
}

/// Whether a field was once called so.
pub(super) fn is_alias(field: &RecordField, name: &str) -> bool {
    let aliases = field.custom_attributes.get(ALIASES).and_then(Value::as_array);
    aliases.is_some_and(|aliases| aliases.iter().any(|alias| alias == name))
}

/// Any name that can be told from others. Java's library, which most schemas come from, allows letters of all alphabets, and
/// anything in a namespace. The parser has one such setting in a process; whoever sets it first wins.
pub(super) fn allow_all_names() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = set_schema_name_validator(Box::new(AnyName));
        let _ = set_schema_namespace_validator(Box::new(AnyName));
        let _ = set_record_field_name_validator(Box::new(AnyName));
        let _ = set_enum_symbol_name_validator(Box::new(AnyName));
    });
}

struct AnyName;

impl SchemaNameValidator for AnyName {
    fn validate(&self, name: &str) -> Result<usize, Error> {
        let start = name.rfind('.').map_or(0, |dot| dot + 1);
        if start == name.len() {
            return Err(Details::InvalidSchemaName(name.to_owned(), "a name behind the last point").into());
        }
        Ok(start)
    }
}

impl SchemaNamespaceValidator for AnyName {
    fn validate(&self, _namespace: &str) -> Result<(), Error> {
        Ok(())
    }
}

impl RecordFieldNameValidator for AnyName {
    fn validate(&self, _name: &str) -> Result<(), Error> {
        Ok(())
    }
}

impl EnumSymbolNameValidator for AnyName {
    fn validate(&self, _symbol: &str) -> Result<(), Error> {
        Ok(())
    }
}
