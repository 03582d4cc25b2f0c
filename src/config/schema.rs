//! The JSON schema of a configuration, for editors and for the Helm chart.
//!
//! The schema is generated from the types of `raw` and from `forms`. It never rejects a valid configuration.

use super::forms::VARIABLE;
use super::raw::Raw;
use crate::filter::{Kind, Size};
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::transform_subschemas;
use serde_json::{Value, json};

/// Returns the schema of a configuration, in draft 7, which editors and Helm support.
#[must_use]
pub fn schema() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true).with_transform(tidy);
    settings.into_generator().into_root_schema_for::<Raw>().to_value()
}

/// Allows variables instead of fixed values, puts each description on one line and replaces its placeholders, allows empty tables, and
/// removes null defaults.
fn tidy(schema: &mut Schema) {
    transform_subschemas(&mut tidy, schema);
    if let Some(names) = schema.remove("enum") {
        schema.remove("type");
        schema.insert("oneOf".to_owned(), json!([{ "enum": names }]));
    }
    if let Some(Value::Array(forms)) = schema.get_mut("oneOf") {
        forms.push(json!({ "description": "A reference to a variable.", "type": "string", "pattern": VARIABLE }));
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = with_kinds(&text.replace('\n', " "));
    }
    let required = schema.get("required").cloned().unwrap_or_default();
    let is_required = |name: &String| required.as_array().is_some_and(|list| list.iter().any(|required| required == name));
    let Some(Value::Object(options)) = schema.get_mut("properties") else { return };
    for (name, option) in options {
        let Value::Object(option) = option else { continue };
        if option.get("default").is_some_and(Value::is_null) {
            option.remove("default");
        }
        // In YAML, a table whose lines are all comments is null, so null is valid unless the table is required.
        if !is_required(name) && option.get("type").is_some_and(|kind| kind == "object") {
            option.insert("type".to_owned(), json!(["object", "null"]));
        }
    }
}

/// Replaces placeholders such as `{grows}` with the kinds of filters that have this property, so descriptions need not list kinds.
fn with_kinds(text: &str) -> String {
    let kinds = [
        ("{retracts}", Kind::list('`', |kind| kind.can_retract)),
        ("{grows}", Kind::list('`', |kind| kind.grows)),
        ("{capacity}", Kind::list('`', |kind| kind.size == Size::Capacity)),
        ("{memory}", Kind::list('`', |kind| matches!(kind.size, Size::Memory { .. }))),
    ];
    kinds.iter().fold(text.to_owned(), |text, (placeholder, names)| text.replace(placeholder, names))
}

#[cfg(test)]
mod tests {
    use super::super::units::{Bytes, Count, Length, Rate, Span, Switch};
    use super::*;
    use schemars::JsonSchema;
    use serde::de::DeserializeOwned;

    fn verdicts<T: JsonSchema + DeserializeOwned>(value: &Value) -> (bool, bool) {
        let mut generator = SchemaSettings::draft07().with_transform(tidy).into_generator();
        let schema = generator.root_schema_for::<T>().to_value();
        (serde_json::from_value::<T>(value.clone()).is_ok(), jsonschema::draft7::is_valid(&schema, value))
    }

    #[test]
    fn schemas_accept_the_same_values_as_the_types() {
        let values = [
            json!("24h"),
            json!("1h 30m"),
            json!("1h30m"),
            json!("0"),
            json!("0.5 days"),
            json!(" 2weeks"),
            json!("3 months"),
            json!("24"),
            json!("h"),
            json!("1 fortnight"),
            json!("1.h"),
            json!(""),
            json!("10M"),
            json!("1_000 k"),
            json!("5"),
            json!("_"),
            json!("10m"),
            json!("64 KiB"),
            json!("64kib"),
            json!("64 GIB"),
            json!("5g"),
            json!("5b"),
            json!("5gb"),
            json!("5xb"),
            json!("1e-4"),
            json!("true"),
            json!("True"),
            json!(true),
            json!(0),
            json!(5),
            json!(-1),
            json!(0.5),
            json!(1.5),
            json!(null),
            json!([]),
            json!({}),
            json!({ "keys": 5 }),
            json!({ "keys": "5M" }),
            json!({ "keys": "5h" }),
            json!({ "keys": 5, "x": 1 }),
        ];
        for value in &values {
            for (taken, valid) in [
                verdicts::<Span>(value),
                verdicts::<Count>(value),
                verdicts::<Bytes>(value),
                verdicts::<Switch>(value),
                verdicts::<Length>(value),
            ] {
                assert_eq!(taken, valid, "{value}");
            }
            // A pattern cannot check the size of a number in text, so the schema may accept text that the type rejects.
            let (taken, valid) = verdicts::<Rate>(value);
            assert!(taken == valid || valid && value.is_string(), "{value}");
        }
    }

    #[test]
    fn defaults_are_in_the_syntax_of_options() {
        for (pointer, default) in [
            ("/kafka/properties/group_id", json!("unseen")),
            ("/kafka/properties/start", json!("earliest")),
            ("/kafka/properties/on_truncation", json!("fail")),
            ("/worker/properties/shutdown_timeout", json!("20s")),
            ("/worker/properties/max_transaction_records", json!("1M")),
            ("/state/properties/max_write_rate", json!("32MiB")),
            ("/topics/items/properties/on_invalid", json!("fail")),
            ("/topics/items/properties/filter/properties/false_positive_rate", json!(1e-4)),
        ] {
            assert_eq!(schema().pointer(&format!("/properties{pointer}/default")), Some(&default), "{pointer}");
        }
        assert_eq!(schema().pointer("/properties/kafka/properties/instance_id/default"), None);
    }
}
