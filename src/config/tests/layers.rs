//! Tests of the layers above the file, which are environment variables and flags, and of `${...}` references.

use super::{MINIMAL, load_as, refused};
use crate::config::{OnDuplicate, window_text};
use crate::filter::Window;
use std::fs;
use std::time::Duration;

#[test]
fn later_layers_override_earlier_layers() {
    let environment = [
        ("UNSEEN_CONFIG", "elsewhere.toml"),
        ("UNSEEN__WORKER__WORKERS", "3"),
        ("UNSEEN__WORKER__COMMIT_INTERVAL", "300ms"),
        ("UNSEEN__TOPICS__0__REFRESH", "true"),
        ("UNSEEN__TOPICS__0__FILTER__FALSE_POSITIVE_RATE", "0.001"),
        ("UNSEEN__TOPICS__0__FILTER__SLICES", "8"),
        ("UNSEEN__KAFKA__PROPERTIES__SASL__PASSWORD", "007$$${x}"),
        ("UNSEEN__KAFKA__PROPERTIES__SECURITY.PROTOCOL", "SSL"),
    ];
    let flags = [("worker.workers", "4"), ("topics[0].window.keys", "1M"), ("kafka.properties.client.id", "me")];
    let text = MINIMAL.replace("[[topics]]", "properties.security.protocol = \"PLAINTEXT\"\nproperties.\"client.id\" = \"x\"\n[[topics]]");
    let text = text.replace("filter = { capacity = \"10M\" }", "");
    let config = load_as("x.toml", &text, &environment, &flags).unwrap();
    assert_eq!((config.worker.workers, config.worker.commit_interval), (4, Duration::from_millis(300)));
    assert_eq!(config.topics[0].window, Window::keys(1_000_000, 8));
    assert!(config.topics[0].refresh && (config.topics[0].filter.false_positive_rate - 1e-3).abs() < 1e-9);
    let properties: Vec<_> = config.kafka.properties.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(properties, ["client.id=me", "sasl.password=007$$${x}", "security.protocol=SSL"]);
}

#[test]
fn errors_name_their_source() {
    let environment = [("UNSEEN__WORKER__WORKERS", "many"), ("UNSEEN__WROKER__X", "1"), ("UNSEEN__TOPICS__9999__X", "1")];
    let flags = [("worker.delivery", "never"), ("a..b", "1"), ("topics[99999999999]", "1"), ("topics[-1]", "1")];
    let errors = load_as("x.toml", MINIMAL, &environment, &flags).unwrap_err();
    let begins: Vec<_> = errors.lines().map(|line| line.splitn(3, ": ").take(2).collect::<Vec<_>>().join(": ")).collect();
    assert_eq!(
        begins,
        [
            "environment: UNSEEN__TOPICS__9999__X",
            "flags: a..b",
            "flags: topics[-1]",
            "flags: topics[99999999999]",
            "flags: worker.delivery",
            "environment: worker.workers",
            "environment: wroker",
        ]
    );
}

#[test]
fn variables_are_substituted_only_in_values() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "line\nsecret\n").unwrap();
    let set = |text: &str| MINIMAL.replace("[[topics]]", &format!("[kafka.properties]\nx = '{text}'\n[[topics]]"));
    let environment = [("A", "a\"\n[b]"), ("EMPTY", ""), ("DOLLAR", "${A}")];
    let file = format!("${{file:{}}}", secret.path().display());
    for (text, value) in [
        ("${A}", "a\"\n[b]"),
        ("<${A}${A}>", "<a\"\n[b]a\"\n[b]>"),
        ("${EMPTY}", ""),
        ("${EMPTY:-b}${NONE:-c:-d}${NONE:-}", "bc:-d"),
        ("${DOLLAR}", "${A}"),
        ("$${A} $$$$ $5 $", "${A} $$ $5 $"),
        (&file, "line\nsecret"),
    ] {
        let config = load_as("x.toml", &set(text), &environment, &[]).unwrap();
        assert_eq!(config.kafka.properties["x"], value, "{text}");
    }
    for (text, message) in [
        ("${NONE}", "environment variable NONE is not set"),
        ("${NONE:?ask Ann}", "environment variable NONE is not set or is empty: ask Ann"),
        ("${EMPTY:?}", "environment variable EMPTY is not set or is empty"),
        ("${A", "`${` has no closing `}`; for a dollar sign, write `$$`"),
        ("${}", "`${` is not followed by the name of an environment variable; for a dollar sign, write `$$`"),
        ("pass${w0rd!}", "`${` is not followed by the name of an environment variable; for a dollar sign, write `$$`"),
        ("${A:b}", "expected ${NAME}, ${NAME:-default}, or ${NAME:?message}"),
        ("${file:/no/such}", "cannot read /no/such: No such file or directory (os error 2)"),
    ] {
        let errors = load_as("x.toml", &set(text), &environment, &[]).unwrap_err();
        assert_eq!(errors, format!("x.toml: kafka.properties.x: {message}"));
    }
    // If a variable is not set, there is only this error: the option is not also reported as missing.
    assert_eq!(refused("\"24h\"", "\"${NONE}\""), "x.toml: topics[0].window: environment variable NONE is not set");
    let config = load_as("x.toml", &MINIMAL.replace("\"10M\"", "\"${N}\""), &[("N", "5_000")], &[]).unwrap();
    assert_eq!(config.topics[0].filter.capacity, Some(5000));
}

#[test]
fn misspelled_variables_are_rejected() {
    for (name, meant) in [
        ("UNSEEN_WORKER__WORKERS", "UNSEEN__WORKER__WORKERS"),
        ("UNSEEN_WORKER_WORKERS", "UNSEEN__WORKER__WORKERS"),
        ("UNSEEN__WORKER_WORKERS", "UNSEEN__WORKER__WORKERS"),
        ("UNSEEN_KAFKA_BOOTSTRAP_SERVERS", "UNSEEN__KAFKA__BOOTSTRAP_SERVERS"),
        ("UNSEEN_STATE__DIR", "UNSEEN__STATE__DIR"),
        ("UNSEEN_TOPICS__0__WINDOW", "UNSEEN__TOPICS__0__WINDOW"),
    ] {
        let error = load_as("x.toml", MINIMAL, &[(name, "4")], &[]).unwrap_err();
        assert!(error.contains(&format!("environment: {name}: not the name of an option; did you mean {meant}?")), "{error}");
    }
    // Kubernetes sets some of these variables for a service named `unseen`. The command line and our tests use the others.
    for name in [
        "UNSEEN_SERVICE_HOST",
        "UNSEEN_PORT_8080_TCP",
        "UNSEEN_KAFKA_SERVICE_HOST",
        "UNSEEN_CONFIG",
        "UNSEEN_FAULT",
        "UNSEEN_KAFKA_JVM",
        "UNSEEN_CHAOS_SEED",
        "UNSEENLY",
    ] {
        assert!(load_as("x.toml", MINIMAL, &[(name, "4")], &[]).is_ok(), "{name}");
    }
}

#[test]
fn a_variable_in_lowercase_is_rejected() {
    let error = load_as("x.toml", MINIMAL, &[("unseen__worker__workers", "4")], &[]).unwrap_err();
    assert_eq!(error, "environment: unseen__worker__workers: not the name of an option; did you mean UNSEEN__WORKER__WORKERS?");
}

#[test]
fn flags_accept_both_index_notations_and_inline_tables() {
    for (path, text, holds) in [
        ("topics[0].window", "2h", "2h, 10000000 keys"),
        ("topics.0.window", "2h", "2h, 10000000 keys"),
        ("topics[0].filter", "{ capacity = \"200K\" }", "1day, 200000 keys"),
    ] {
        let config = load_as("x.toml", MINIMAL, &[], &[(path, text)]).unwrap();
        let (window, capacity) = (window_text(config.topics[0].window), config.topics[0].filter.capacity);
        assert_eq!(format!("{window}, {} keys", capacity.unwrap()), holds, "{path}={text}");
    }
    let config = load_as("x.toml", MINIMAL, &[], &[("topics.0.on_duplicate", "{ topic = \"again\" }")]).unwrap();
    assert_eq!(config.topics[0].on_duplicate, OnDuplicate::Topic("again".to_owned()));
    let error = load_as("x.toml", MINIMAL, &[], &[("topics.0.on_duplicate", "{ topic }")]).unwrap_err();
    assert_eq!(error, "flags: topics[0].on_duplicate: expected \"drop\", \"mark\", or { topic = \"name\" }, got \"{ topic }\"");
}

#[test]
fn overrides_number_entries_and_reach_into_lists() {
    let text =
        format!("{MINIMAL}\n[[topics]]\ninput = \"last\"\nkey = {{ record = \"key\" }}\nwindow = \"1h\"\nfilter = {{ capacity = 10 }}");
    let text = text.replace("input = \"in\"", "input = [\"a\", \"b\"]");
    let loaded = |environment: &[(&str, &str)], flags: &[(&str, &str)]| {
        let topics = load_as("x.toml", &text, environment, flags).unwrap().topics;
        topics.into_iter().map(|topic| format!("{} {}", topic.input, window_text(topic.window))).collect::<Vec<_>>()
    };
    assert_eq!(loaded(&[], &[("topics.1.window", "2h"), ("topics.0.window", "3h")]), ["a 3h", "b 3h", "last 2h"]);
    assert_eq!(loaded(&[("UNSEEN__TOPICS__0__INPUT__1", "c")], &[]), ["a 1day", "c 1day", "last 1h"]);
    assert_eq!(loaded(&[], &[("topics.0.input", "[\"x\", \"y\", \"z\"]")]), ["x 1day", "y 1day", "z 1day", "last 1h"]);
    assert_eq!(loaded(&[("UNSEEN__TOPICS__0__INPUT", "x")], &[]), ["x 1day", "last 1h"]);
}
