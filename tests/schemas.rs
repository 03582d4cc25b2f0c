//! The JSON schemas in the repository match the code. They describe the configuration (for editors), the values of the Helm chart, and the
//! JSON that unseen serves or prints.
//!
//! `WRITE_SCHEMAS=1` writes the schemas instead of comparing them.

use config::{Config, File, FileFormat};
use schemars::schema_for;
use serde_json::{Value, json};
use std::fmt::Write as _;
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

/// Asserts that a generated file is up to date, or writes it if `WRITE_SCHEMAS` is set.
fn keep(name: &str, is_current: bool, text: &str) {
    if std::env::var_os("WRITE_SCHEMAS").is_some() {
        fs::write(place(name), text).expect("a file of the repository can be written");
    } else {
        assert!(is_current, "{name} is out of date; generate it again: WRITE_SCHEMAS=1 cargo test --release --test schemas");
    }
}

/// Checks that the schema in a file is up to date. `update` writes the generated parts into the schema and must not change it.
fn is_kept(name: &str, update: impl Fn(&mut Value)) {
    let kept: Value = serde_json::from_str(&read(name)).unwrap_or_default();
    let mut wanted = kept.clone();
    update(&mut wanted);
    keep(name, kept == wanted, &format!("{wanted:#}\n"));
}

#[test]
fn configuration_schema_is_up_to_date() {
    is_kept("config/schema.json", |schema| *schema = unseen::config::schema());
}

/// Returns the sections of docs/reference/options.md for a table of the schema and for the tables inside it.
fn options(title: &str, table: &Value) -> String {
    let text = |value: &Value| value["description"].as_str().unwrap_or_default().trim_end_matches(" Required.").to_owned();
    let (mut rows, mut tables) = (String::new(), String::new());
    for (name, option) in table["properties"].as_object().expect("options") {
        let entries = if option["items"].is_object() { &option["items"] } else { option };
        if entries["properties"].is_object() && entries.get("oneOf").is_none() && name != "properties" {
            let path = format!("{title}.{name}");
            tables += &options(path.trim_start_matches('.'), entries);
        } else {
            let is_required = table["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name));
            let default = option.get("default").map(|value| format!("`{value}`"));
            let default = default.unwrap_or_else(|| (if is_required { "required" } else { "" }).to_owned());
            let choices = option.get("oneOf").or(option.pointer("/anyOf/0/oneOf")).and_then(Value::as_array).into_iter().flatten();
            let choice = |choice: &Value| {
                let form = match choice["properties"].as_object() {
                    Some(table) => table.keys().map(|name| format!("{{ {name} = \"…\" }}")).collect::<Vec<_>>().concat(),
                    None => choice.get("const")?.to_string(),
                };
                Some(format!("<br>`{form}`: {}", text(choice))).filter(|_| choice["description"].is_string())
            };
            let choices = choices.filter_map(choice).collect::<String>();
            let _ = writeln!(rows, "| `{name}` | {default} | {}{choices} |", text(option));
        }
    }
    let title = if title == "topics" { "[[topics]]".to_owned() } else { format!("[{title}]") };
    let head = format!("\n## `{title}`\n\n{}\n\n| option | default | meaning |\n|---|---|---|\n{rows}", text(table));
    if rows.is_empty() { tables } else { head + &tables }
}

#[test]
fn the_options_page_lists_the_schema() {
    let name = "docs/reference/options.md";
    let kept = fs::read_to_string(place(name)).unwrap_or_default();
    let introduction = kept.split_once("\n## ").map_or(&*kept, |(introduction, _)| introduction);
    let wanted = format!("{introduction}{}", options("", &unseen::config::schema()));
    keep(name, kept == wanted, &wanted);
}

#[test]
fn status_matches_its_schema() {
    is_kept("docs/reference/status.schema.json", |schema| *schema = schema_for!(Status).to_value());
    is_kept("docs/reference/inspect.schema.json", |schema| *schema = schema_for!(Inspection).to_value());
    is_kept("docs/reference/explain.schema.json", |schema| *schema = schema_for!(Explanations).to_value());
}

#[test]
fn chart_schema_is_up_to_date() {
    is_kept("helm/unseen/values.schema.json", |values| {
        let mut config = unseen::config::schema();
        // The values are empty by default, and `helm lint` must pass with them, so the chart's templates check for required values instead.
        for (table, name) in
            [("", "required"), ("", "$schema"), ("", "title"), ("/properties/kafka", "required"), ("/properties/topics", "minItems")]
        {
            config.pointer_mut(table).and_then(Value::as_object_mut).expect("a table of the schema").remove(name);
        }
        // References are resolved from the root of the document, so the definitions must be there.
        values["definitions"] = config["definitions"].take();
        config.as_object_mut().expect("a table").remove("definitions");
        values["properties"]["config"] = config;
    });
}

fn parse(text: &str, format: FileFormat) -> Value {
    let config = Config::builder().add_source(File::from_str(text, format)).build().expect("a configuration");
    config.try_deserialize().expect("a tree")
}

/// A configuration with another value at a path. Adds the option if it is missing.
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
fn errors_have_the_right_path() {
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
fn variables_are_valid_for_any_text() {
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
