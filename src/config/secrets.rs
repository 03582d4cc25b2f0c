//! Recognizes options that contain secrets and hides their values.
//!
//! The names of these options are listed only here and in the Helm chart (`_checks.tpl`), which cannot call Rust.

use serde_json::{Value, json};

const HIDDEN: &str = "(hidden)";

/// Parts of the names of secret options: librdkafka properties, and options of the schema registry, the servers, and the hash. An option is
/// secret if its path contains one of these texts.
const SECRETS: [&str; 7] = ["password", "passphrase", "secret", "key.pem", "sasl.oauthbearer.config", "sasl.jaas.config", "siphash"];

/// True if the value at a path, such as `kafka.properties.sasl.password`, is a secret.
pub(crate) fn is_secret(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    SECRETS.iter().any(|part| path.contains(part))
}

/// Returns `message`, which describes an invalid `${...}` in a value and can show a part of this value. If the option is a secret, returns
/// another message without any part of the value. Also returns `message` if the whole value is a single reference, such as `${PASSWORD}`,
/// because such a value contains no part of a secret.
pub(super) fn withhold(path: &str, text: &str, message: String) -> String {
    let inner = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    if !is_secret(path) || inner.is_some_and(|inner| !inner.contains(['$', '{', '}'])) {
        return message;
    }
    "it has an invalid `${...}`: its syntax is wrong, or its variable or file is missing; the reference is not shown because it may be part of the secret; for a dollar sign, write `$$`".to_owned()
}

/// Returns `message`. If the option is a secret, returns another message that does not show the value.
pub(super) fn withhold_value(path: &str, message: String) -> String {
    if !is_secret(path) {
        return message;
    }
    "expected text in quotes; the value is not shown because it may be a secret".to_owned()
}

/// Hides the secrets in a tree. `path` is the path of the tree and is empty for the whole configuration.
pub(super) fn hide(path: &str, tree: &mut Value) {
    match tree {
        // An option that is not set has no secret to hide.
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
    fn secrets_are_recognized_by_their_paths() {
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
    fn secrets_are_hidden_at_any_depth() {
        let mut tree = json!({ "kafka": { "properties": { "sasl.jaas.config": "hunter2", "client.id": "a" } }, "topics": [{ "hash": { "siphash": 7 } }] });
        hide("", &mut tree);
        let wanted = json!({ "kafka": { "properties": { "sasl.jaas.config": HIDDEN, "client.id": "a" } }, "topics": [{ "hash": { "siphash": HIDDEN } }] });
        assert_eq!(tree, wanted);
    }
}
