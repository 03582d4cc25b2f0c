//! The effective configuration: the values from all layers, and the defaults of the options that no layer sets. It never contains a secret.

use super::load;
use super::{Config, Diagnostics, Errors, schema, secrets};
use serde_json::{Value, json};
use std::path::Path;

impl Config {
    /// Returns the effective configuration as a tree of options: the values from the file, the environment, and the command line, and the
    /// defaults of the options that none of them sets. Secrets are hidden.
    ///
    /// # Errors
    /// Returns the errors of [`Config::load`].
    pub fn effective(path: &Path, overrides: &[(String, String)]) -> Result<Value, Errors> {
        Self::load(path, overrides)?;
        let mut diagnostics = Diagnostics::new(path.display().to_string());
        let tree = load::tree(path, &Self::environment(), overrides, &mut diagnostics);
        diagnostics.finish(tree).map(complete)
    }
}

fn complete(mut tree: Value) -> Value {
    let has_serve = tree.get("serve").is_some();
    fill(&schema(), &mut tree);
    // The table `[serve]` shows that the user wants to run `unseen serve`, so its defaults alone must not add the table.
    if let Some(table) = tree.as_object_mut().filter(|_| !has_serve) {
        table.remove("serve");
    }
    secrets::hide("", &mut tree);
    tree
}

/// Sets the options that are missing in `tree` to their defaults in `schema`.
fn fill(schema: &Value, tree: &mut Value) {
    match tree {
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    fill(schema, item);
                }
            }
        }
        Value::Object(table) => {
            for (name, option) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                if option.get("required").is_some_and(|required| required != &json!([])) && !table.contains_key(name) {
                    // Leave the table out. It has required options, so a table with only defaults would be invalid.
                } else if option.get("properties").is_some() {
                    let mut inner = table.remove(name).unwrap_or_else(|| json!({}));
                    fill(option, &mut inner);
                    if inner != json!({}) {
                        table.insert(name.clone(), inner);
                    }
                } else if let Some(default) = option.get("default") {
                    table.entry(name).or_insert_with(|| default.clone());
                } else if let Some(list) = table.get_mut(name) {
                    fill(option, list);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_configuration_hides_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("unseen.yaml");
        let text = "kafka: { bootstrap_servers: a, properties: { sasl.password: hunter2, ssl.ca.location: /ca } }\n\
            topics: [{ input: in, output: out, key: { record: key }, window: { keys: 10 }, hash: { siphash: 00112233445566778899aabbccddeeff } }]";
        std::fs::write(&file, text).unwrap();
        let shown = Config::effective(&file, &[("worker.workers".to_owned(), "3".to_owned())]).unwrap();
        for (path, value) in [
            ("/worker/workers", json!("3")),
            ("/worker/commit_interval", json!("200ms")),
            ("/kafka/properties/ssl.ca.location", json!("/ca")),
            ("/topics/0/input", json!("in")),
            ("/topics/0/filter/kind", json!("aging")),
            ("/topics/0/late", json!("emit")),
            ("/state/dir", json!("state")),
        ] {
            assert_eq!(shown.pointer(path), Some(&value), "{path} in {shown:#}");
        }
        assert_eq!(shown.get("serve"), None);
        let shown_with = |setting: &str| Config::effective(&file, &[(setting.to_owned(), "5".to_owned())]).unwrap();
        assert_eq!(shown_with("serve.threads").pointer("/serve/listen"), Some(&json!("127.0.0.1:6379")));
        let text = shown.to_string();
        assert!(!text.contains("hunter2") && !text.contains("aabbcc"), "{text}");
    }
}
