//! Which settings are secrets.
//!
//! Owns the list of their names, and hides their values. Nobody else must list them; the Helm chart alone has a copy
//! (`_checks.tpl`), for it cannot ask here.

use serde_json::{Value, json};

/// Stands for a secret.
const HIDDEN: &str = "(hidden)";

/// Parts of the paths whose values are secrets: of librdkafka's properties, of a schema registry, and of a hash.
const SECRETS: [&str; 7] = ["password", "passphrase", "secret", "key.pem", "sasl.oauthbearer.config", "sasl.jaas.config", "siphash"];

/// True if the value at a path, such as `kafka.properties.sasl.password`, is a secret.
pub(crate) fn is_secret(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    SECRETS.iter().any(|part| path.contains(part))
}

/// What to say of a text with a `${...}` that stands for nothing, in place of `message`, which names what stands there.
/// A text that is one reference and nothing else is named: no password looks so.
pub(super) fn withhold(path: &str, text: &str, message: String) -> String {
    let inner = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    if !is_secret(path) || inner.is_some_and(|inner| !inner.contains(['$', '{', '}'])) {
        return message;
    }
    "a `${...}` in it stands for nothing; it is not shown, for it may be part of the secret; write `$$` for a dollar sign".to_owned()
}

/// Returns what is wrong with a value, without showing it if it is a secret.
pub(super) fn withhold_value(path: &str, message: String) -> String {
    if !is_secret(path) {
        return message;
    }
    "expected text in quotes; what is there is not shown, because it may be the secret".to_owned()
}

/// Hides the secrets below a path of a tree; the path of the whole is empty.
pub(super) fn hide(path: &str, tree: &mut Value) {
    match tree {
        // None was set where an option has no default.
        Value::Null => {}
        value if is_secret(path) => *value = json!(HIDDEN),
        Value::Array(items) => items.iter_mut().for_each(|item| hide(path, item)),
        Value::Object(table) => table.iter_mut().for_each(|(name, item)| hide(&format!("{path}.{name}"), item)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_wherever_they_stand() {
        for path in [
            "kafka.properties.sasl.password",
            "kafka.properties.SASL.Password",
            "kafka.properties.ssl.key.password",
            "kafka.properties.ssl.keystore.password",
            "kafka.properties.ssl.key.pem",
            "kafka.properties.topic.sasl.oauthbearer.client.secret",
            "kafka.properties.sasl.oauthbearer.assertion.private.key.passphrase",
            "kafka.properties.sasl.oauthbearer.config",
            "kafka.properties.sasl.jaas.config",
            "topics[3].hash.siphash",
            "schema_registry.password",
        ] {
            assert!(is_secret(path), "{path}");
        }
        for path in ["kafka.properties.sasl.username", "kafka.properties.ssl.ca.pem", "kafka.properties.ssl.key.location", "topics[0].key"]
        {
            assert!(!is_secret(path), "{path}");
        }
    }

    #[test]
    fn secrets_are_hidden_wherever_they_stand() {
        let mut tree = json!({ "kafka": { "properties": { "sasl.jaas.config": "hunter2", "client.id": "a" } }, "topics": [{ "hash": { "siphash": 7 } }] });
        hide("", &mut tree);
        let wanted = json!({ "kafka": { "properties": { "sasl.jaas.config": HIDDEN, "client.id": "a" } }, "topics": [{ "hash": { "siphash": HIDDEN } }] });
        assert_eq!(tree, wanted);
    }
}
