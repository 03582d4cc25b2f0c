//! Puts the layers together: file < environment < flags; the defaults are `raw`'s.
//!
//! Owns how a value is found and where it came from; what it means is not known here.

use super::aliases;
use super::error::{Diagnostics, ENVIRONMENT, FLAGS};
use super::properties;
use super::raw::Raw;
use super::secrets;
use super::vars::{Environment, substitute};
use config::{FileFormat, FileSourceString, Source, Value, ValueKind};
use serde_json::Value as Json;
use serde_path_to_error::Segment;
use std::io::ErrorKind;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// What a variable must begin with to be a setting.
const PREFIX: &str = "UNSEEN";
/// What stands between the names of a setting's path in a variable.
const SEPARATOR: &str = "__";
/// What is said of a file that is not there.
const NO_FILE: &str = "there is no such file";
/// Most bytes of a file.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Most faults of form that are looked for.
const FAULTS_MAX: usize = 100;

/// Reads all layers. Faults go to the diagnostics; `None` when there is nothing left to look at.
pub(super) fn load(path: &Path, environment: &Environment, overrides: &[(String, String)], diagnostics: &mut Diagnostics) -> Option<Raw> {
    let mut tree = tree(path, environment, overrides, diagnostics)?;
    refuse_lists(&mut tree, diagnostics);
    let has_serve = tree.get("serve").is_some();
    let mut raw = deserialize(tree, diagnostics)?;
    raw.serve.is_set = has_serve;
    Some(raw)
}

/// What all layers say together, without defaults.
pub(super) fn tree(path: &Path, environment: &Environment, overrides: &[(String, String)], diagnostics: &mut Diagnostics) -> Option<Json> {
    let tree = layers(path, environment, overrides, diagnostics)?;
    Some(to_json("", tree, environment, diagnostics))
}

type File = config::File<FileSourceString, FileFormat>;

fn layers(path: &Path, environment: &Environment, overrides: &[(String, String)], diagnostics: &mut Diagnostics) -> Option<Value> {
    let advise = |message: String| match &*message {
        NO_FILE => format!("{NO_FILE}; name one with --config, or write one: config/example.toml has every option"),
        _ => message,
    };
    let file = read(path).map_err(|message| diagnostics.add("", advise(message))).ok()?;
    let mut builder = config::Config::builder().add_source(file).add_source(settings(environment, diagnostics));
    for (path, text) in overrides {
        let path = &with_brackets(path);
        let value = inline(text).unwrap_or_else(|| Value::new(Some(&FLAGS.to_owned()), text.as_str()));
        match indices_are_small(path).then(|| builder.clone().set_override(path, value)) {
            Some(Ok(next)) => builder = next,
            _ => diagnostics.add_from(FLAGS, path, "expected a path such as worker.workers or topics[0].window"),
        }
    }
    let layered = builder.build().map_err(|error| diagnostics.add("", one_line(&error.to_string()))).ok()?;
    Some(layered.cache)
}

/// A path in which places of lists are in brackets: `topics.0.window` is `topics[0].window`.
fn with_brackets(path: &str) -> String {
    let is_index = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = path.split('.').map(|part| if is_index(&part) { format!("[{part}]") } else { format!(".{part}") });
    parts.collect::<String>().trim_start_matches('.').to_owned()
}

/// A table or list as a flag has it, in TOML.
fn inline(text: &str) -> Option<Value> {
    let is_inline = text.starts_with(['{', '[']);
    let parse = || File::from_str(&format!("value = {text}"), FileFormat::Toml).collect().ok()?.remove("value");
    let value = is_inline.then(parse)??;
    Some(Value::new(Some(&FLAGS.to_owned()), value.kind))
}

/// What a file says, TOML or YAML by its ending, without any meaning.
///
/// # Errors
/// A sentence about what cannot be read.
pub fn document(path: &Path) -> Result<Json, String> {
    let tree = read(path)?.collect().map_err(|error| one_line(&error.to_string()))?;
    Ok(tree.into_iter().map(|(name, value)| (name, as_it_is(value.kind))).collect())
}

fn as_it_is(kind: ValueKind) -> Json {
    match kind {
        ValueKind::Nil => Json::Null,
        ValueKind::Boolean(value) => value.into(),
        ValueKind::I64(value) => value.into(),
        ValueKind::U64(value) => value.into(),
        ValueKind::Float(value) => value.into(),
        ValueKind::I128(value) => value.to_string().into(),
        ValueKind::U128(value) => value.to_string().into(),
        ValueKind::String(text) => text.into(),
        ValueKind::Array(items) => items.into_iter().map(|item| as_it_is(item.kind)).collect(),
        ValueKind::Table(table) => table.into_iter().map(|(name, value)| (name, as_it_is(value.kind))).collect(),
    }
}

fn read(path: &Path) -> Result<File, String> {
    let format = match path.extension().and_then(|ending| ending.to_str()) {
        Some("toml") => FileFormat::Toml,
        Some("yaml" | "yml") => FileFormat::Yaml,
        _ => return Err("expected a file that ends in .toml, .yaml or .yml".to_owned()),
    };
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => NO_FILE.to_owned(),
        ErrorKind::InvalidData => "the file is no text in UTF-8".to_owned(),
        _ => format!("cannot read the file: {error}"),
    })?;
    if text.len() > FILE_BYTES_MAX {
        return Err(format!("the file has {} bytes; at most {FILE_BYTES_MAX} are taken", text.len()));
    }
    if format == FileFormat::Yaml {
        aliases::check(&text)?;
    }
    let file = File::from_str(&text, format);
    let tree = file.collect().map_err(|error| match large_number(&text).filter(|_| format == FileFormat::Toml) {
        Some(path) => format!("{path}: the number is too large; if it is text, such as a siphash key, put it in quotes"),
        None => one_line(&error.to_string()),
    })?;
    match tree.keys().find(|key| !indices_are_small(key)) {
        Some(key) => Err(format!("`{key}` is no name of a setting")),
        None => Ok(file),
    }
}

/// Returns the path of the first number in TOML that is too large to be read. The parser's message has neither path nor line.
fn large_number(text: &str) -> Option<String> {
    let table = DeTable::parse(text).ok()?.into_inner();
    large_number_in("", &DeValue::Table(table))
}

fn large_number_in(path: &str, value: &DeValue<'_>) -> Option<String> {
    let is_large = match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).is_err(),
        // TOML spells infinity in letters.
        DeValue::Float(number) => !number.as_str().contains("inf") && number.as_str().parse().is_ok_and(f64::is_infinite),
        DeValue::Array(items) => {
            return items.iter().enumerate().find_map(|(index, item)| large_number_in(&format!("{path}[{index}]"), item.get_ref()));
        }
        DeValue::Table(table) => {
            let place = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            return table.iter().find_map(|(name, item)| large_number_in(&place(name.get_ref()), item.get_ref()));
        }
        DeValue::String(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => false,
    };
    is_large.then(|| path.to_owned())
}

/// A parser's message without the excerpt of the file, which may hold a secret.
fn one_line(message: &str) -> String {
    // `  |`, `3 | text of the line`, `  | ^^^`.
    let is_excerpt = |line: &&str| line.split_once('|').is_some_and(|(number, _)| number.chars().all(|c| c == ' ' || c.is_ascii_digit()));
    let mut message = message.lines().filter(|line| !is_excerpt(line)).map(str::trim).collect::<Vec<_>>().join(": ");
    // Most often, that is text in hexadecimal digits.
    if ["leading zero", "invalid float", "invalid integer"].iter().any(|fault| message.contains(fault)) {
        message += "; if this is text, put it in quotes";
    }
    message
}

/// The settings in the environment. In variables, places in a list are numbers between separators.
fn settings(environment: &Environment, diagnostics: &mut Diagnostics) -> config::Environment {
    let mut settings = config::Map::new();
    for (name, value) in environment {
        if let Some(meant) = meant(name) {
            diagnostics.add_from(ENVIRONMENT, name, format!("no setting; {meant} is one"));
            continue;
        }
        let Some(path) = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(SEPARATOR)) else {
            let upper = name.to_ascii_uppercase();
            if upper.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with(SEPARATOR)) {
                diagnostics.add_from(ENVIRONMENT, name, format!("no setting; {upper} is one"));
            }
            continue;
        };
        let parts = path.split(SEPARATOR).map(|part| {
            let is_index = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            if is_index { format!("[{part}]") } else { format!("{SEPARATOR}{part}") }
        });
        let key = PREFIX.to_owned() + &parts.collect::<String>();
        if indices_are_small(&key) {
            settings.insert(key, value.clone());
        } else {
            diagnostics.add_from(ENVIRONMENT, name, "expected a name such as UNSEEN__WORKER__WORKERS or UNSEEN__TOPICS__0__WINDOW");
        }
    }
    // Values stay text, and each option reads its own: a password of digits must keep its zeros.
    config::Environment::with_prefix(PREFIX).separator(SEPARATOR).source(Some(settings))
}

/// The setting that a variable means which is not written as one: with other separators than settings have.
fn meant(name: &str) -> Option<String> {
    let words: Vec<_> = name.strip_prefix(PREFIX)?.strip_prefix('_')?.split('_').filter(|word| !word.is_empty()).collect();
    let path = match words[..] {
        ["KAFKA", "PROPERTIES", ref property @ ..] if !property.is_empty() => {
            if name.starts_with("UNSEEN__KAFKA__PROPERTIES__") {
                return None;
            }
            [&words[..2], property].concat().join(SEPARATOR)
        }
        ["TOPICS", index, "FILTER", ref option @ ..] if !option.is_empty() => {
            let option = known("/topics/items/properties/filter", option)?;
            ["TOPICS", index, "FILTER", &option].join(SEPARATOR)
        }
        ["TOPICS", index, ref option @ ..] => ["TOPICS", index, &known("/topics/items", option)?].join(SEPARATOR),
        [section, ref option @ ..] => [section, &known(&format!("/{}", section.to_ascii_lowercase()), option)?].join(SEPARATOR),
        [] => return None,
    };
    Some([PREFIX, &path].join(SEPARATOR)).filter(|meant| meant != name)
}

/// The option of these words, if the part of the schema has it.
fn known(part: &str, words: &[&str]) -> Option<String> {
    let option = words.join("_");
    let place = format!("/properties{part}/properties/{}", option.to_ascii_lowercase());
    super::schema().pointer(&place).map(|_| option)
}

/// A list is made as long as the largest index in a path asks for, so it must be small.
fn indices_are_small(path: &str) -> bool {
    path.split('[').skip(1).all(|part| {
        let index = part.split_once(']').map_or(part, |(index, _)| index);
        (1..=3).contains(&index.len()) && index.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The tree without its layers: variables put in, sources noted, empty entries left out.
fn to_json(path: &str, value: Value, environment: &Environment, diagnostics: &mut Diagnostics) -> Json {
    let source = value.origin().map(|origin| if origin == FLAGS { FLAGS } else { ENVIRONMENT });
    if let Some(source) = source {
        diagnostics.came_from(path, source);
    }
    match value.kind {
        ValueKind::Float(value) if !value.is_finite() => value.to_string().into(),
        // Only the file is written by hand; the other layers were expanded by whoever set them.
        ValueKind::String(text) if source.is_none() => match substitute(&text, environment) {
            Ok(text) => text.into(),
            Err(message) => {
                diagnostics.add(path, secrets::withhold(path, &text, message));
                Json::Null
            }
        },
        ValueKind::Array(items) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| to_json(&format!("{path}[{index}]"), item, environment, diagnostics))
            .collect(),
        ValueKind::Table(table) => {
            let entries = if path == properties::PATH { flatten(table) } else { table.into_iter().collect() };
            entries
                .into_iter()
                .map(|(name, item)| {
                    let place = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    if lacks_space(&name, &item) {
                        // Left out as empty, the option would keep its default: a server would ask for no password.
                        diagnostics.add(path, "expected a space after the colon: write `name: value`");
                    }
                    (name, to_json(&place, item, environment, diagnostics))
                })
                .filter(|(_, item)| !item.is_null())
                .collect()
        }
        other => as_it_is(other),
    }
}

/// True for `{name:value}` in YAML, which is a name without a value.
fn lacks_space(name: &str, value: &Value) -> bool {
    name.contains(':') && matches!(value.kind, ValueKind::Nil)
}

/// Names with dots are tables within tables to TOML, if not quoted, and to the environment and flags.
/// The file's come first, so that the layers above prevail.
fn flatten(table: config::Map<String, Value>) -> Vec<(String, Value)> {
    let mut entries = Vec::new();
    for (name, value) in table {
        match value.kind {
            ValueKind::Table(inner) => {
                entries.extend(flatten(inner).into_iter().map(|(rest, value)| (format!("{name}.{rest}"), value)));
            }
            _ => entries.push((name, value)),
        }
    }
    entries.sort_by_key(|(_, value)| match value.origin() {
        None => 0,
        Some(FLAGS) => 2,
        Some(_) => 1,
    });
    entries
}

/// Serde would take a list for a table, one option after the other.
fn refuse_lists(tree: &mut Json, diagnostics: &mut Diagnostics) {
    let topics = tree.get("topics").and_then(Json::as_array).map_or(0, Vec::len);
    let sections =
        ["kafka", "worker", "state", "http", "log", "schema_registry", "serve"].map(|name| (format!("/{name}"), name.to_owned()));
    let topics = (0..topics).flat_map(|index| {
        let (pointer, path) = (format!("/topics/{index}"), format!("topics[{index}]"));
        [(format!("{pointer}/filter"), format!("{path}.filter")), (pointer, path)]
    });
    for (pointer, path) in sections.into_iter().chain(topics) {
        if let Some(list) = tree.pointer_mut(&pointer).filter(|value| value.is_array()) {
            diagnostics.add(&path, "expected a table, got a list");
            *list = Json::Object(serde_json::Map::new());
        }
    }
}

/// Reads the tree. Reports each fault, takes it out, and reads again.
fn deserialize(mut tree: Json, diagnostics: &mut Diagnostics) -> Option<Raw> {
    for _ in 0..FAULTS_MAX {
        let error = match serde_path_to_error::deserialize::<_, Raw>(&tree) {
            Ok(raw) => return Some(raw),
            Err(error) => error,
        };
        let segments: Vec<Segment> = error.path().iter().cloned().collect();
        let path = error.path().to_string();
        let message = plain(&error.into_inner().to_string());
        diagnostics.add(&path, secrets::withhold_value(&path, message));
        if !remove(&mut tree, &segments) {
            break;
        }
    }
    None
}

/// Serde's message in the words of the others.
fn plain(message: &str) -> String {
    let reworded = ["invalid type: ", "unknown variant "].iter().find_map(|prefix| {
        let (got, wanted) = message.strip_prefix(prefix)?.split_once(", expected ")?;
        // Text in place of a section may hold a secret: an address with a password, or `password:…` without a space in YAML.
        let got = if wanted == "a table" && got.starts_with("string ") { "a string" } else { got };
        Some(format!("expected {wanted}, got {got}"))
    });
    let message = reworded.unwrap_or_else(|| message.to_owned());
    message.replace("a sequence", "a list").replace("got sequence", "got a list").replace("got map", "got a table")
}

/// Takes the deepest value on the path out. A place in a list is emptied, so that the others keep their numbers.
fn remove(tree: &mut Json, path: &[Segment]) -> bool {
    match (path.split_first(), tree) {
        (Some((Segment::Map { key }, rest)), Json::Object(table)) => {
            table.get_mut(key).is_some_and(|inner| remove(inner, rest)) || table.remove(key).is_some()
        }
        (Some((Segment::Seq { index }, rest)), Json::Array(list)) => match list.get_mut(*index) {
            Some(item) if !item.is_null() => {
                if !remove(item, rest) {
                    *item = Json::Null;
                }
                true
            }
            _ => false,
        },
        _ => false,
    }
}
