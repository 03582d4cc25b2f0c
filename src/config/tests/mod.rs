//! Tests of valid configurations and of the error messages for invalid configurations.

mod contradictions;
mod entries;
mod errors;
mod examples;
mod files;
mod keys;
mod layers;
mod properties;
mod secrets;
mod topics;
mod values;

use super::Config;
use std::collections::BTreeMap;
use std::fs;

pub(super) const MINIMAL: &str = r#"
    [kafka]
    bootstrap_servers = "localhost:9092"
    [[topics]]
    input = "in"
    output = "out"
    key = { record = "key" }
    window = "24h"
    filter = { capacity = "10M" }
"#;

impl Config {
    /// Loads a text in TOML, or in YAML if it begins with `kafka:`.
    pub(crate) fn of_text(text: &str) -> Self {
        let name = if text.starts_with("kafka:") { "unseen.yaml" } else { "unseen.toml" };
        load_as(name, text, &[], &[]).unwrap()
    }
}

/// Loads a file with this name and text. In the errors, the path of the file is only `name`.
fn load_as(name: &str, text: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    let owned = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>();
    let environment: BTreeMap<_, _> = owned(environment).into_iter().collect();
    let directory = format!("{}/", directory.path().display());
    Config::load_with(&path, &environment, &owned(flags)).map_err(|errors| errors.to_string().replace(&directory, ""))
}

pub(super) fn load(text: &str) -> Result<Config, String> {
    load_as("x.toml", text, &[], &[])
}

/// Replaces a part of the minimal configuration and returns the errors of the result.
fn refused(piece: &str, by: &str) -> String {
    assert!(MINIMAL.contains(piece));
    load(&MINIMAL.replace(piece, by)).unwrap_err()
}
