//! The schemas that are kept: of a configuration, for editors, of the Helm chart's values, and of what is served and
//! printed.
//!
//! With `WRITE_SCHEMAS=1` they are written instead of compared.

use config::{Config, File, FileFormat};
use schemars::schema_for;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use unseen::checkpoint::inspect::Inspection;
use unseen::explain::Explanations;
use unseen::status::Status;

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(place(name)).expect("a file of the repository")
}

/// The schema in a file, which `update` must leave as it is.
fn is_kept(name: &str, update: impl Fn(&mut Value)) {
    let kept: Value = serde_json::from_str(&read(name)).unwrap_or_default();
    let mut wanted = kept.clone();
    update(&mut wanted);
    if std::env::var_os("WRITE_SCHEMAS").is_some() {
        fs::write(place(name), format!("{wanted:#}\n")).expect("a file of the repository can be written");
    } else {
        assert!(kept == wanted, "{name} is not of these types; write it anew: WRITE_SCHEMAS=1 cargo test --release --test schemas");
    }
}

#[test]
fn editors_know_the_options() {
    is_kept("config/schema.json", |schema| *schema = unseen::config::schema());
}

#[test]
fn the_status_is_as_documented() {
    is_kept("docs/status.schema.json", |schema| *schema = schema_for!(Status).to_value());
    is_kept("docs/inspect.schema.json", |schema| *schema = schema_for!(Inspection).to_value());
    is_kept("docs/explain.schema.json", |schema| *schema = schema_for!(Explanations).to_value());
}

#[test]
fn the_chart_knows_the_options() {
    is_kept("helm/unseen/values.schema.json", |values| {
        let mut config = unseen::config::schema();
        // Values start empty, and a chart must be linted without any: what is required, its templates say.
        for (table, name) in
            [("", "required"), ("", "$schema"), ("", "title"), ("/properties/kafka", "required"), ("/properties/topics", "minItems")]
        {
            config.pointer_mut(table).and_then(Value::as_object_mut).expect("a table of the schema").remove(name);
        }
        values["properties"]["config"] = config;
    });
}

fn parse(text: &str, format: FileFormat) -> Value {
    let config = Config::builder().add_source(File::from_str(text, format)).build().expect("a configuration");
    config.try_deserialize().expect("a tree")
}

/// A configuration with another value at a place. An option that it leaves at its default is added.
fn with(config: &Value, path: &str, value: Value) -> Value {
    let mut config = config.clone();
    if let Some(place) = config.pointer_mut(path) {
        *place = value;
    } else {
        let (table, name) = path.rsplit_once('/').expect("a path");
        config.pointer_mut(table).and_then(Value::as_object_mut).expect("a table").insert(name.to_owned(), value);
    }
    config
}

/// The places of faults.
fn faults(config: &Value) -> Vec<String> {
    let schema = jsonschema::draft7::new(&unseen::config::schema()).expect("a schema");
    let mut places: Vec<_> = schema.iter_errors(config).map(|error| error.instance_path().to_string()).collect();
    places.sort();
    places
}

#[test]
fn the_examples_are_valid() {
    for (name, format) in
        [("config/example.toml", FileFormat::Toml), ("config/example.yaml", FileFormat::Yaml), ("config/compose.toml", FileFormat::Toml)]
    {
        assert_eq!(faults(&parse(&read(name), format)), [""; 0], "{name}");
    }
}

#[test]
fn faults_have_their_place() {
    let example = parse(&read("config/example.toml"), FileFormat::Toml);
    for (path, value, faulty) in [
        ("/topics/0/window", json!("1 fortnight"), "/topics/0/window"),
        ("/topics/0/window", json!({ "keys": "many" }), "/topics/0/window"),
        ("/topics/0/key", json!([{ "jsn": "/a" }]), "/topics/0/key"),
        ("/topics/1/filter", json!({ "kind": "bloom" }), "/topics/1/filter/kind"),
        ("/topics/0/filter/capacity", json!("ten"), "/topics/0/filter/capacity"),
        ("/topics/0/on_invalid", json!({ "topik": "news.dead" }), "/topics/0/on_invalid"),
        ("/topics/2/retract", json!("retract"), "/topics/2/retract"),
        ("/topics/0/when", json!({ "field": "/type" }), "/topics/0/when"),
        ("/topics/0/when", json!({ "field": "/type", "equals": 1, "exists": true }), "/topics/0/when"),
        ("/topics/0/when", json!([]), "/topics/0/when"),
        ("/topics/2", json!({}), "/topics/2"),
        ("/topics", json!([]), "/topics"),
        ("/kafka", json!({}), "/kafka"),
        ("/kafka", json!({ "bootstrap_servers": 9092 }), "/kafka/bootstrap_servers"),
        ("/kafka", json!({ "bootstrap_servers": "a", "properties": { "group.id": "a" } }), "/kafka/properties/group.id"),
        ("/kafka", json!({ "bootstrap_servers": "a", "grup_id": "a" }), "/kafka"),
    ] {
        let places = faults(&with(&example, path, value));
        assert!(!places.is_empty() && places.iter().all(|place| place == faulty), "{path}: {places:?}");
    }
}

#[test]
fn variables_go_for_any_text() {
    let example = parse(&read("config/example.toml"), FileFormat::Toml);
    for path in [
        "/topics/0/window",
        "/topics/0/late",
        "/topics/0/filter/capacity",
        "/topics/0/key/0/field",
        "/topics/0/on_invalid",
        "/kafka/bootstrap_servers",
    ] {
        let config = with(&example, path, json!("${SOME:-thing}"));
        assert_eq!(faults(&config), [""; 0], "{path}");
    }
}
