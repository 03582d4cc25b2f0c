//! Promise: each documented use case behaves as its page describes, and its tests detect changes of the options that it relies on.

use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use unseen::config::{self, Config};
use unseen::format::{NoSchemas, Schemas};
use unseen::testing::{self, TestFile};

/// Options of a topic that change the outcome of a record. The test removes each of them in turn.
const OPTIONS: [&str; 12] = [
    "when",
    "emit",
    "space",
    "repartition",
    "refresh",
    "retract",
    "time",
    "value_encoding",
    "late",
    "on_duplicate",
    "on_tombstone",
    "on_invalid",
];
/// Options of a part of a key that change the outcome of a record.
const PART_OPTIONS: [&str; 3] = ["normalize", "then", "optional"];

fn gallery() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/use-cases")
}

fn folders() -> Vec<PathBuf> {
    let entries = fs::read_dir(gallery()).expect("the gallery");
    let mut folders: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

fn name(folder: &Path) -> &str {
    folder.file_name().and_then(|name| name.to_str()).expect("a name")
}

/// The tests of a use case that fail with this configuration, with their messages.
fn failed(folder: &Path, config: &Config, tests: &TestFile) -> Vec<String> {
    let open = |file: &Path| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(BufReader::new(File::open(folder.join(file))?))) };
    let schemas: Arc<dyn Schemas> = Arc::new(NoSchemas);
    let reports = tests.tests.iter().map(|test| testing::run(config, test, &schemas, &open));
    reports.filter(|report| !report.passed()).map(|report| testing::text(name(folder), &[report])).collect()
}

fn tests(folder: &Path) -> TestFile {
    let tree = config::document(&folder.join("unseen.test.toml")).expect("a file of tests");
    TestFile::new(&tree).unwrap_or_else(|message| panic!("{}: {message}", name(folder)))
}

#[test]
fn every_use_case_passes_its_tests() {
    assert_eq!(folders().len(), 15);
    for folder in folders() {
        let config = Config::load(&folder.join("unseen.toml"), &[]).unwrap_or_else(|errors| panic!("{errors}"));
        let tests = tests(&folder);
        assert!(tests.tests.iter().any(|test| test.file.is_some()), "{} has a test over its sample", name(&folder));
        assert_eq!(failed(&folder, &config, &tests), [""; 0]);
    }
}

#[test]
fn tests_detect_a_changed_window_key_or_option() {
    let mut unnoticed = Vec::new();
    for folder in folders() {
        let document = config::document(&folder.join("unseen.toml")).expect("a configuration");
        let tests = tests(&folder);
        for Mutant { what, document, may_be_refused } in mutants(&document) {
            let noticed = match load(&document) {
                Ok(config) => !failed(&folder, &config, &tests).is_empty(),
                Err(_) if may_be_refused => true,
                Err(errors) => panic!("{}: {what}: {errors}", name(&folder)),
            };
            unnoticed.extend((!noticed).then(|| format!("{}: no test fails with {what}", name(&folder))));
        }
    }
    assert_eq!(unnoticed, [""; 0]);
}

struct Mutant {
    what: String,
    document: Value,
    /// True if `unseen check` can detect the change instead of a test.
    may_be_refused: bool,
}

/// Loads a configuration in JSON, which is also YAML.
fn load(document: &Value) -> Result<Config, config::Errors> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("unseen.yaml");
    fs::write(&file, document.to_string()).expect("a file");
    Config::load(&file, &[])
}

fn mutants(document: &Value) -> Vec<Mutant> {
    let topics = document["topics"].as_array().expect("topics");
    let mut mutants = Vec::new();
    let mut change = |what: String, may_be_refused: bool, change: &dyn Fn(&mut Vec<Value>)| {
        let mut document = document.clone();
        change(document["topics"].as_array_mut().expect("topics"));
        mutants.push(Mutant { what, document, may_be_refused });
    };
    for (number, topic) in topics.iter().enumerate() {
        let input = topic["input"].as_str().expect("an input");
        // A stable filter guarantees no window, so no test depends on the length of the window.
        let is_stable = topic["filter"]["kind"] == "stable";
        let is_of_space = |other: &Value| other.get("space").is_some() && other.get("space") == topic.get("space");
        for (factor, word) in [(2.0, "twice"), (0.5, "half")].into_iter().filter(|_| !is_stable) {
            let window = topic["window"].as_str().expect("a window of time");
            let length = humantime::parse_duration(window).expect("a duration").mul_f64(factor);
            // All topics of a space must have the same window, so all of them change.
            change(format!("{word} the window of {input}"), false, &|topics| {
                for (other, topic) in topics.iter_mut().enumerate() {
                    if other == number || is_of_space(topic) {
                        topic["window"] = json!(format!("{}ms", length.as_millis()));
                    }
                }
            });
        }
        for key in keys(&topic["key"]) {
            change(format!("the key {key} for {input}"), false, &|topics| topics[number]["key"] = key.clone());
        }
        let changes_nothing = |option: &str| match option {
            "space" => topics.iter().filter(|topic| is_of_space(topic)).count() < 2,
            "refresh" => is_stable,
            "late" | "on_tombstone" => topic[option] == "emit",
            _ => false,
        };
        for option in OPTIONS.into_iter().filter(|&option| topic.get(option).is_some() && !changes_nothing(option)) {
            change(format!("no {option} for {input}"), true, &|topics| {
                topics[number].as_object_mut().expect("a table").remove(option);
            });
        }
    }
    mutants
}

/// Returns variants of a key. Each variant removes a part, replaces a part with the record key or value, removes an option of a part, or
/// removes a field from the `except` of a part.
fn keys(key: &Value) -> Vec<Value> {
    let parts = match key {
        Value::Array(parts) => parts.clone(),
        Value::String(_) => ["source", "id"].map(|attribute| json!({ "cloudevent": attribute })).to_vec(),
        part => vec![part.clone()],
    };
    let mut keys = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let mut with = |new: Option<Value>| {
            let mut parts = parts.clone();
            parts.splice(number..=number, new);
            keys.extend((!parts.is_empty()).then_some(Value::Array(parts)));
        };
        with(None);
        for other in ["key", "value"].map(|other| json!({ "record": other })) {
            if other != *part {
                with(Some(other));
            }
        }
        for option in PART_OPTIONS.into_iter().filter(|&option| part.get(option).is_some()) {
            let mut part = part.clone();
            part.as_object_mut().expect("a table").remove(option);
            with(Some(part));
        }
        let except = part.get("except").and_then(Value::as_array).cloned().unwrap_or_default();
        for field in 0..except.len() {
            let mut part = part.clone();
            part["except"].as_array_mut().expect("a list").remove(field);
            with(Some(part));
        }
    }
    keys
}

#[test]
fn samples_are_up_to_date() {
    let output = Command::new("python3").arg(gallery().join("samples")).arg("--check").output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn index_lists_every_use_case() {
    let index = fs::read_to_string(gallery().join("README.md")).expect("an index");
    for folder in folders() {
        let name = name(&folder);
        assert!(index.contains(&format!("]({name}/README.md)")), "the index links {name}");
        assert!(folder.join("README.md").exists(), "{name} has a page");
    }
}
