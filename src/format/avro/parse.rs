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
            Details::ParsePrimitive(name) => format!("it names a type `{name}` that neither it nor its references define"),
            error => format!("it is no Avro schema: {error}"),
        })),
    }
}

fn json(body: &Body) -> Result<Value, SchemaError> {
    let Body::Text(text) = body else {
        return Err(SchemaError("it is a Protobuf descriptor, and an Avro schema is JSON".to_owned()));
    };
    let mut json = serde_json::from_str(text).map_err(|error| SchemaError(format!("it is not JSON: {error}")))?;
    strip(&mut json)?;
    Ok(json)
}

/// Leaves out what a walk does not need. Registries have schemas from before defaults were checked.
fn strip(json: &mut Value) -> Result<(), SchemaError> {
    match json {
        Value::Array(elements) => elements.iter_mut().try_for_each(strip),
        Value::Object(members) => {
            members.remove("default");
            members.remove("doc");
            is_whole(members)?;
            if let Some(Value::Array(fields)) = members.get_mut("fields") {
                fields.iter_mut().try_for_each(set_aliases_aside)?;
            }
            members.values_mut().try_for_each(strip)
        }
        _ => Ok(()),
    }
}

/// The types that have a name, and what each must say beside it.
const NAMED: [(&str, &str); 4] = [("record", "fields"), ("error", "fields"), ("enum", "symbols"), ("fixed", "size")];

/// Whether a named type says all that it must. The parser would take one that does not for another of that name, and copy
/// that: a few such copies within each other are more than memory holds.
fn is_whole(members: &Map<String, Value>) -> Result<(), SchemaError> {
    let named = |text: &Value| NAMED.iter().find(|(kind, _)| text == kind);
    if let Some((kind, member)) = members.get("type").and_then(named)
        && !members.contains_key(*member)
    {
        return Err(SchemaError(format!("it is no Avro schema: a type `{kind}` has no `{member}`")));
    }
    if let Some((kind, _)) = members.get("name").and_then(named)
        && members.contains_key("type")
        && NAMED.iter().any(|(_, member)| members.contains_key(*member))
    {
        return Err(SchemaError(format!("it is no Avro schema: a type is called `{kind}`")));
    }
    Ok(())
}

/// What a field was called before is kept by another name: the parser refuses an alias that is another field's name.
fn set_aliases_aside(field: &mut Value) -> Result<(), SchemaError> {
    // The parser would pass over what is no field, and the walk over everything behind it would go astray.
    let Value::Object(members) = field else {
        return Err(SchemaError(format!("it is no Avro schema: `{field}` is not a field")));
    };
    if let Some(aliases) = members.remove("aliases") {
        members.insert(ALIASES.to_owned(), aliases);
    }
    Ok(())
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
