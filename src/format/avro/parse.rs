//! Parses a schema and its references.
//!
//! Combines a schema with its references and decides which names are valid. Never depends on places.

use crate::format::{Body, Schema, SchemaError};
use apache_avro::error::{Details, Error};
use apache_avro::schema::{RecordField, RecordSchema, Schema as Parsed};
use apache_avro::validator::{
    EnumSymbolNameValidator, RecordFieldNameValidator, SchemaNameValidator, SchemaNamespaceValidator, set_enum_symbol_name_validator,
    set_record_field_name_validator, set_schema_name_validator, set_schema_namespace_validator,
};
use serde_json::{Map, Value, json};
use std::sync::Once;

/// The attribute that stores the aliases of a field.
const ALIASES: &str = "unseen_aliases";

/// Parses the references and the schema as the fields of an artificial record. The schema is its last field, because a field can use the
/// names that earlier fields define.
pub(super) fn parse(schema: &Schema) -> Result<RecordSchema, SchemaError> {
    allow_all_names();
    let references = schema.references.iter().map(|reference| {
        let body = json(&reference.body);
        body.map_err(|SchemaError(error)| SchemaError(format!("in its reference `{}`, {error}", reference.name)))
    });
    let bodies = references.chain([json(&schema.body)]).collect::<Result<Vec<_>, _>>()?;
    let field = |(number, body)| json!({ "name": format!("schema_{number}"), "type": body });
    let fields = bodies.into_iter().enumerate().map(field).collect::<Vec<_>>();
    match Parsed::parse(&json!({ "type": "record", "name": "unseen_schema_and_references", "fields": fields })) {
        Ok(Parsed::Record(record)) => Ok(record),
        Ok(_) => Err(SchemaError("the schema is not valid Avro".to_owned())),
        Err(error) => Err(SchemaError(match error.details() {
            Details::ParsePrimitive(name) => {
                format!("neither the schema nor its references define the type `{}`", name.trim_end_matches(MARK))
            }
            error => format!("the schema is not valid Avro: {error}"),
        })),
    }
}

fn json(body: &Body) -> Result<Value, SchemaError> {
    let Body::Text(text) = body else {
        return Err(SchemaError("the schema is a Protobuf descriptor, but an Avro schema is JSON".to_owned()));
    };
    bare(serde_json::from_str(text).map_err(|error| SchemaError(format!("the schema is not JSON: {error}")))?)
}

/// The kinds of types, each with its required attribute. If an object lacks this attribute, its `type` is the name of a user-defined type.
const KINDS: [(&str, &str); 6] =
    [("record", "fields"), ("error", "fields"), ("enum", "symbols"), ("fixed", "size"), ("array", "items"), ("map", "values")];

/// A suffix for user-defined types with the name of a kind. Without it, the parser would mistake their names for the kind.
const MARK: char = '\'';

/// Removes attributes that do not affect the encoding. With them, the parser would reject the invalid defaults of old schemas and copy a
/// type for each of its aliases. The aliases of fields stay, because pointers can contain them.
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
            None => Err(SchemaError("the schema is not valid Avro: a type has no attribute `type`".to_owned())),
        },
        other => Err(SchemaError(format!("the schema is not valid Avro: `{other}` is not a type"))),
    }
}

const LOGICAL: [&str; 3] = ["logicalType", "precision", "scale"];

/// Converts an object that only refers to a type, such as `{"type": "int"}`. Without a logical type, the result is the plain name, because
/// the parser would copy the type otherwise. With a logical type, the result is an object. The parser copies nothing in this case, because
/// the type is primitive.
fn annotated(members: &mut Map<String, Value>, name: String) -> Value {
    if members.contains_key("logicalType") { kept(members, &LOGICAL, [("type", name.into())]) } else { name.into() }
}

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
        return Err(SchemaError("the schema is not valid Avro: the `fields` of a record are not a list".to_owned()));
    };
    fields.into_iter().map(field).collect::<Result<_, _>>().map(Value::Array)
}

/// Converts a field. Moves its aliases to the attribute [`ALIASES`], because the parser rejects an alias that is the name of another field.
fn field(json: Value) -> Result<Value, SchemaError> {
    let Value::Object(mut members) = json else {
        // The parser would skip this field, and the walk would then read the wrong bytes.
        return Err(SchemaError(format!("the schema is not valid Avro: `{json}` is not a field")));
    };
    let of =
        members.remove("type").ok_or_else(|| SchemaError("the schema is not valid Avro: a field has no attribute `type`".to_owned()))?;
    let aliases = members.remove("aliases").unwrap_or_default();
    Ok(kept(&mut members, &["name"], [("type", bare(of)?), (ALIASES, aliases)]))
}

/// Returns an object with the `members` that are listed in `names`, and with `others`.
fn kept<const N: usize>(members: &mut Map<String, Value>, names: &[&str], others: [(&str, Value); N]) -> Value {
    let kept = names.iter().filter_map(|&name| Some((name, members.remove(name)?)));
    Value::Object(kept.chain(others).map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Adds [`MARK`] to a name that is equal to the name of a kind.
fn marked(mut name: String) -> String {
    let last = name.rsplit('.').next().unwrap_or_default();
    if KINDS.iter().any(|(kind, _)| *kind == last) {
        name.push(MARK);
    }
    name
}

pub(super) fn is_alias(field: &RecordField, name: &str) -> bool {
    let aliases = field.custom_attributes.get(ALIASES).and_then(Value::as_array);
    aliases.is_some_and(|aliases| aliases.iter().any(|alias| alias == name))
}

/// Makes the parser accept all names, except for empty names of types. Avro's Java library, which writes most schemas, allows letters of
/// all alphabets and any namespace. The setting applies to the whole process. Only the first call in a process has an effect.
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
            return Err(Details::InvalidSchemaName(name.to_owned(), "a name after the last dot").into());
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
