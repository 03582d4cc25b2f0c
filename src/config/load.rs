//! Merges the layers: flags override the environment, which overrides the file. `raw` has the defaults.
//!
//! Keeps track of the layer that each value comes from, so an error can name its source. `resolve` checks how the values of different
//! options fit together.

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
use std::sync::LazyLock;
use toml::de::{DeTable, DeValue};

const PREFIX: &str = "UNSEEN";
/// Separates the parts of an option's path in the name of a variable, as in `UNSEEN__WORKER__WORKERS`.
const SEPARATOR: &str = "__";
const NO_FILE: &str = "the file does not exist";
const FILE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of errors that are reported for the types and names of options.
const FAULTS_MAX: usize = 100;

/// Merges the layers and converts them to options. Reports and removes options with an unknown name or a wrong type. A removed option has
/// its default. Returns `None` if the file cannot be read, if it cannot be merged with the other layers, if the value that causes an error
/// cannot be removed, or after [`FAULTS_MAX`] errors.
pub(super) fn load(path: &Path, environment: &Environment, overrides: &[(String, String)], diagnostics: &mut Diagnostics) -> Option<Raw> {
    let mut tree = tree(path, environment, overrides, diagnostics)?;
    refuse_lists(&mut tree, diagnostics);
    let has_serve = tree.get("serve").is_some();
    let mut raw = deserialize(tree, diagnostics)?;
    raw.serve.is_set = has_serve;
    Some(raw)
}

pub(super) fn tree(path: &Path, environment: &Environment, overrides: &[(String, String)], diagnostics: &mut Diagnostics) -> Option<Json> {
    let tree = layers(path, environment, overrides, diagnostics)?;
    Some(to_json("", tree, environment, diagnostics))
}

type File = config::File<FileSourceString, FileFormat>;

fn layers(path: &Path, environment: &Environment, overrides: &[(String, String)], diagnostics: &mut Diagnostics) -> Option<Value> {
    let advise = |message: String| match &*message {
        NO_FILE => format!("{NO_FILE}; check the path in --config or UNSEEN_CONFIG, or write the file with `unseen init`"),
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

/// Converts indexes in a path to brackets: `topics.0.window` becomes `topics[0].window`.
fn with_brackets(path: &str) -> String {
    let is_index = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = path.split('.').map(|part| if is_index(&part) { format!("[{part}]") } else { format!(".{part}") });
    parts.collect::<String>().trim_start_matches('.').to_owned()
}

/// Parses a flag's value as a TOML inline table or array. Returns `None` for any other value.
fn inline(text: &str) -> Option<Value> {
    let is_inline = text.starts_with(['{', '[']);
    let parse = || File::from_str(&format!("value = {text}"), FileFormat::Toml).collect().ok()?.remove("value");
    let value = is_inline.then(parse)??;
    Some(Value::new(Some(&FLAGS.to_owned()), value.kind))
}

/// Reads a TOML or YAML file, without environment variables and without validation. The extension of the file determines the format.
///
/// # Errors
/// Returns an error message if the extension is unknown, or if the file cannot be read or parsed, is larger than 1 MiB, or has too many
/// values after its YAML aliases are expanded.
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
        _ => return Err("expected a file name that ends in .toml, .yaml, or .yml".to_owned()),
    };
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => NO_FILE.to_owned(),
        ErrorKind::InvalidData => "the file is not UTF-8 text".to_owned(),
        _ => format!("cannot read the file: {error}"),
    })?;
    if text.len() > FILE_BYTES_MAX {
        return Err(format!("the file has {} bytes, more than the maximum of {FILE_BYTES_MAX}", text.len()));
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
        Some(key) => Err(format!("`{key}` is not the name of an option")),
        None => Ok(file),
    }
}

/// Returns the path of a number in a TOML text that does not fit into an `i64` or `f64`, if there is one. The parser's own message has
/// neither a path nor a line.
fn large_number(text: &str) -> Option<String> {
    let table = DeTable::parse(text).ok()?.into_inner();
    large_number_in("", &DeValue::Table(table))
}

fn large_number_in(path: &str, value: &DeValue<'_>) -> Option<String> {
    let is_large = match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).is_err(),
        // `inf` also parses as infinite, but it is a TOML literal and not a number that is too large.
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

/// Returns a parser's message on one line, without the excerpt of the file, which may contain a secret.
fn one_line(message: &str) -> String {
    // An excerpt looks like this: `  |`, `3 | text of the line`, `  | ^^^`.
    let is_excerpt = |line: &&str| line.split_once('|').is_some_and(|(number, _)| number.chars().all(|c| c == ' ' || c.is_ascii_digit()));
    let mut message = message.lines().filter(|line| !is_excerpt(line)).map(str::trim).collect::<Vec<_>>().join(": ");
    // A malformed number is usually meant as text, such as a hexadecimal key that starts with digits.
    if ["leading zero", "invalid float", "invalid integer"].iter().any(|fault| message.contains(fault)) {
        message += "; if this is text, put it in quotes";
    }
    message
}

/// Collects the options that environment variables set. In the name of a variable, a number between separators is the index of a list
/// element, as in `UNSEEN__TOPICS__0__WINDOW`.
fn settings(environment: &Environment, diagnostics: &mut Diagnostics) -> config::Environment {
    let mut settings = config::Map::new();
    for (name, value) in environment {
        if let Some(meant) = meant(name) {
            diagnostics.add_from(ENVIRONMENT, name, format!("not the name of an option; did you mean {meant}?"));
            continue;
        }
        let Some(path) = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(SEPARATOR)) else {
            let upper = name.to_ascii_uppercase();
            if upper.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with(SEPARATOR)) {
                diagnostics.add_from(ENVIRONMENT, name, format!("not the name of an option; did you mean {upper}?"));
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
    // Leave the values as text, because each option parses its own value. A password of digits must keep its leading zeros.
    config::Environment::with_prefix(PREFIX).separator(SEPARATOR).source(Some(settings))
}

/// Returns the correct name of a variable that has the path of an option but wrong separators, such as `UNSEEN_WORKER_WORKERS`.
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

/// Joins `words` with underscores. Returns the result if it is the name of an option in this part of the schema.
fn known(part: &str, words: &[&str]) -> Option<String> {
    static SCHEMA: LazyLock<Json> = LazyLock::new(super::schema);
    let option = words.join("_");
    let place = format!("/properties{part}/properties/{}", option.to_ascii_lowercase());
    SCHEMA.pointer(&place).map(|_| option)
}

/// True if all indexes in a path are numbers below 1000. A list becomes as long as its largest index, so a large index would use all
/// memory.
fn indices_are_small(path: &str) -> bool {
    path.split('[').skip(1).all(|part| {
        let index = part.split_once(']').map_or(part, |(index, _)| index);
        (1..=3).contains(&index.len()) && index.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Substitutes variables, remembers the source of each value, and removes null entries from tables.
fn to_json(path: &str, value: Value, environment: &Environment, diagnostics: &mut Diagnostics) -> Json {
    let source = value.origin().map(|origin| if origin == FLAGS { FLAGS } else { ENVIRONMENT });
    if let Some(source) = source {
        diagnostics.came_from(path, source);
    }
    match value.kind {
        ValueKind::Float(value) if !value.is_finite() => value.to_string().into(),
        // Only the file can refer to variables. A shell or an orchestrator has already expanded the values of the other layers.
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
                        // Without this error, the entry would be removed as null, and the option would keep its default. For example, a
                        // server would not require a password.
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

/// True if an entry looks like `{name:value}` in YAML. Without a space after the colon, YAML reads `name:value` as a name without a value.
fn lacks_space(name: &str, value: &Value) -> bool {
    name.contains(':') && matches!(value.kind, ValueKind::Nil)
}

/// Flattens nested tables into names with dots, because TOML, the environment, and flags split an unquoted name such as `ssl.key.location`
/// into nested tables. Sorts the entries by layer (file, environment, flags), because the last entry with a name overrides the others.
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

/// Reports lists in places where tables are expected. Serde would otherwise accept such a list and assign its values to the options in
/// order.
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

/// Deserializes the tree. Reports each error, removes the value that caused it, and tries again.
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

/// Rewords an error message of Serde to match our own messages.
fn plain(message: &str) -> String {
    let reworded = ["invalid type: ", "unknown variant "].iter().find_map(|prefix| {
        let (got, wanted) = message.strip_prefix(prefix)?.split_once(", expected ")?;
        // Text instead of a table may contain a secret: an address with a password, or `password:…` without a space in YAML.
        let got = if wanted == "a table" && got.starts_with("string ") { "a string" } else { got };
        Some(format!("expected {wanted}, got {got}"))
    });
    let message = reworded.or_else(|| suggestion(message)).unwrap_or_else(|| message.to_owned());
    message.replace("a sequence", "a list").replace("got sequence", "got a list").replace("got map", "got a table")
}

/// Rewords Serde's error for an unknown field if a known field has a similar name.
fn suggestion(message: &str) -> Option<String> {
    let (unknown, known) = message.strip_prefix("unknown field `")?.split_once("`, expected ")?;
    let known = known.split('`').skip(1).step_by(2);
    let (edits, similar) = known.map(|known| (strsim::damerau_levenshtein(unknown, known), known)).min()?;
    (edits <= 2 && edits < unknown.len() / 2).then(|| format!("unknown field `{unknown}`; did you mean `{similar}`?"))
}

/// Removes the deepest existing value on the path. A list element is not removed but becomes null, so the other elements keep their
/// indexes. Returns false if nothing was removed.
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
