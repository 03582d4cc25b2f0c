//! Tests of secrets. They must be text, and neither errors nor debug output show them.

use super::{MINIMAL, load, load_as, refused};
use crate::config::schema;
use crate::config::secrets::is_secret;

#[test]
fn siphash_keys_without_quotes_are_rejected_with_their_location() {
    let too_large = "x.toml: topics[0].hash.siphash: the number is too large; if it is text, such as a siphash key, put it in quotes";
    let refused = |key: &str| load(&MINIMAL.replace("window =", &format!("hash = {{ siphash = {key} }}\nwindow ="))).map(drop).unwrap_err();
    for key in ["12345678901234567890123456789012", "0x112233445566778899001122334455ff", "1234567890123e671234567890123456"] {
        assert_eq!(refused(key), too_large, "{key}");
    }
    assert_eq!(refused("1234567890123456"), "x.toml: topics[0].hash: the siphash key is not text: put it in quotes");
    for key in ["00112233445566778899aabbccddeeff", "1234567890abcdef1234567890abcdef"] {
        let errors = refused(key);
        assert!(
            errors.contains("at line ") && errors.ends_with("; if this is text, put it in quotes") && !errors.contains(key),
            "{errors}"
        );
    }
    let text = "topics: [{ hash: { siphash: 12345678901234567890123456789012 } }]";
    let errors = load_as("x.yaml", text, &[], &[]).unwrap_err();
    assert!(errors.contains("x.yaml: topics[0].hash: the siphash key is not text: put it in quotes"), "{errors}");
}

#[test]
fn debug_output_contains_no_secret() {
    let config = load(&MINIMAL.replace("[[topics]]", "[kafka.properties]\n\"sasl.password\" = \"hunter2\"\n[[topics]]")).unwrap();
    let shown = format!("{config:?}");
    assert!(shown.contains("sasl.password") && !shown.contains("hunter2"));
}

/// If a password contains `${` by chance, the name that follows is a part of the password.
#[test]
fn errors_of_invalid_references_do_not_show_secrets() {
    for (name, setting) in [
        ("[kafka.properties]\n\"sasl.password\"", "kafka.properties.sasl.password"),
        ("[kafka.properties]\nssl.key.password", "kafka.properties.ssl.key.password"),
        ("[kafka.properties]\n\"sasl.jaas.config\"", "kafka.properties.sasl.jaas.config"),
    ] {
        for text in ["ab${hunter}ef", "${hunter}ef", "ab${hunter:?hunter}", "ab${hunter:x}", "ab${file:/hunter}", "${hunter}${hunter}"] {
            let errors = load(&MINIMAL.replace("[[topics]]", &format!("{name} = '{text}'\n[[topics]]"))).unwrap_err();
            assert!(errors.starts_with(&format!("x.toml: {setting}: ")) && errors.ends_with("for a dollar sign, write `$$`"), "{errors}");
            assert!(!errors.contains("hunter"), "{text}: {errors}");
        }
        // A value that is only a reference is not itself a password, so the error shows the name of the variable.
        let errors = load(&MINIMAL.replace("[[topics]]", &format!("{name} = '${{PASSWORD}}'\n[[topics]]"))).unwrap_err();
        assert_eq!(errors, format!("x.toml: {setting}: environment variable PASSWORD is not set"));
    }
    let errors = load(&MINIMAL.replace("window =", "hash = { siphash = \"0123${hunter}\" }\nwindow =")).unwrap_err();
    assert!(errors.contains("x.toml: topics[0].hash.siphash: it has an invalid `${...}`") && !errors.contains("hunter"), "{errors}");
}

/// Returns the paths of all options of a schema that contain a secret. Indexes of lists are 0.
fn secrets(schema: &serde_json::Value, path: &str) -> Vec<String> {
    let options = schema["properties"].as_object().into_iter().flatten();
    let options = options.map(|(name, option)| (if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, option));
    let mut found: Vec<_> = options.flat_map(|(path, option)| secrets(option, &path)).collect();
    found.extend(schema.get("items").into_iter().flat_map(|item| secrets(item, &format!("{path}[0]"))));
    if is_secret(path) {
        found.push(path.to_owned());
    }
    found
}

#[test]
fn errors_do_not_show_secrets_of_any_type() {
    let mut paths = secrets(&schema(), "");
    assert!(paths.contains(&"schema_registry.password".to_owned()) && paths.contains(&"serve.password".to_owned()), "{paths:?}");
    paths.push("topics[0].hash.siphash".to_owned());
    paths.extend(["sasl.password", "ssl.key.password", "sasl.jaas.config"].map(|name| format!("kafka.properties.{name}")));
    for path in paths {
        for value in ["47114711", "4711.4711", "-47114711", "[47114711]", "{ x: 47114711 }", "0x47114711", "47114711e9"] {
            let (parent, name) = match path.split_once("kafka.properties.") {
                Some((_, name)) => ("kafka.properties".to_owned(), name),
                None => path.rsplit_once('.').map(|(parent, name)| (parent.to_owned(), name)).unwrap(),
            };
            let text = parent.replace("[0]", "").split('.').rev().fold(format!("{{ {name}: {value} }}"), |inner, section| {
                let inner = if section == "topics" { format!("[{inner}]") } else { inner };
                format!("{{ {section}: {inner} }}")
            });
            let errors = load_as("x.yaml", &text, &[], &[]).unwrap_err();
            assert!(errors.lines().any(|line| line.starts_with(&format!("x.yaml: {}", path.replace(".siphash", "")))), "{text}: {errors}");
            assert!(!errors.contains("47114711") && !errors.contains("4711.4711") && !errors.contains("1192314641"), "{text}: {errors}");
        }
    }
}

#[test]
fn errors_do_not_show_text_instead_of_a_table() {
    for (text, path) in [
        ("serve:\n  password:hunter2", "serve"),
        ("serve: { tls: hunter2 }", "serve.tls"),
        ("schema_registry: http://ann:hunter2@registry:8081", "schema_registry"),
        ("topics: [hunter2]", "topics[0]"),
    ] {
        let errors = load_as("x.yaml", text, &[], &[]).unwrap_err();
        assert!(errors.lines().any(|line| line == format!("x.yaml: {path}: expected a table, got a string")), "{errors}");
        assert!(!errors.contains("hunter"), "{errors}");
    }
}

#[test]
fn a_missing_space_after_a_colon_is_rejected() {
    let errors = load_as("x.yaml", "serve: {password:hunter2}", &[], &[]).unwrap_err();
    assert!(errors.contains("x.yaml: serve: expected a space after the colon: write `name: value`"), "{errors}");
    assert!(!errors.contains("hunter"), "{errors}");
}

#[test]
fn errors_do_not_show_addresses_with_a_password() {
    for servers in
        ["SASL_SSL://ann:hunter2@broker:9092", "ann:hunter2@broker:9092", "a:1, ann:hunter2@broker:9092", "SSL://ann:hunter2,@b:1"]
    {
        let errors = refused("\"localhost:9092\"", &format!("{servers:?}"));
        assert!(
            errors.starts_with("x.toml: kafka.bootstrap_servers: expected host:port; remove the part before the host")
                && !errors.contains("hunter2"),
            "{errors}"
        );
    }
}

#[test]
fn a_password_must_be_text() {
    let yaml = |value: &str| {
        let text = "kafka: { bootstrap_servers: a, properties: { sasl.password: VALUE } }\n\
            topics: [{ input: a, output: b, key: { record: key }, window: 1h, filter: { capacity: 1k } }]";
        load_as("x.yaml", &text.replace("VALUE", value), &[], &[])
    };
    for value in ["0123456", "1e5", "true"] {
        let expected = "x.yaml: kafka.properties.sasl.password: expected text in quotes, because YAML reads 0123 as 123";
        assert_eq!(yaml(value).unwrap_err(), expected, "{value}");
    }
    assert_eq!(yaml("\"0123456\"").unwrap().kafka.properties["sasl.password"], "0123456");
    let environment = [("UNSEEN__KAFKA__PROPERTIES__SASL__PASSWORD", "0123456")];
    assert_eq!(load_as("x.toml", MINIMAL, &environment, &[]).unwrap().kafka.properties["sasl.password"], "0123456");
}
