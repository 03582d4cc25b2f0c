//! Tests of valid configurations, and of the error messages for invalid ones.

use super::raw::{Filter, Http, Kafka, Log, Raw, SchemaRegistry, Serve, State, Topic, Worker};
use super::{Config, OnDuplicate, OnInvalid};
use crate::filter::Window;
use crate::format::Encoding;
use crate::key::TimeUnit;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// Loads a file with this name and text. Errors contain only the name of the file, not its directory.
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

/// Returns the errors of the minimal configuration after a part of it is replaced.
fn refused(piece: &str, by: &str) -> String {
    assert!(MINIMAL.contains(piece));
    load(&MINIMAL.replace(piece, by)).unwrap_err()
}

fn example(name: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
    let text = fs::read_to_string(&path).unwrap();
    (path, text)
}

/// Returns the names of a struct's fields, which Serde lists in its error for an unknown field.
fn names<T: DeserializeOwned>() -> Vec<String> {
    let message = serde_json::from_str::<T>(r#"{"?": 0}"#).map(drop).unwrap_err().to_string();
    message.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

#[test]
fn examples_mention_every_option() {
    let all = [
        names::<Raw>(),
        names::<Kafka>(),
        names::<Worker>(),
        names::<State>(),
        names::<Http>(),
        names::<Log>(),
        names::<SchemaRegistry>(),
        names::<Serve>(),
        names::<Topic>(),
        names::<Filter>(),
    ];
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [8, 7, 7, 4, 1, 2, 6, 11, 23, 9]);
    for name in all.iter().flatten() {
        for (file, assigned) in [("example.toml", " ="), ("example.yaml", ":")] {
            let known = example(file).1.lines().any(|line| {
                let line = line.trim_start().trim_start_matches(['#', ' ', '-']);
                let header = line.trim_matches(['[', ']']).rsplit('.').next() == Some(name);
                header || line.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(assigned))
            });
            assert!(known, "{file} does not mention {name}");
        }
    }
}

#[test]
fn examples_are_equal_and_show_the_defaults() {
    let mut shown = Vec::new();
    for name in ["example.toml", "example.yaml"] {
        let (path, text) = example(name);
        shown.push(format!("{:#?}", Config::load_with(&path, &BTreeMap::new(), &[]).unwrap()));
        // In the example file, `#name` is an option with its default, and `# text` is a comment.
        let stated: Vec<_> = text
            .lines()
            .map(|line| match line.split_once('#') {
                Some((indent, rest)) if indent.trim().is_empty() && rest.starts_with(|c: char| c.is_ascii_lowercase()) => {
                    format!("{indent}{rest}")
                }
                _ => line.to_owned(),
            })
            .collect();
        let changed = stated.iter().zip(text.lines()).filter(|(a, b)| a != b).count();
        assert_eq!(changed, 47, "{name}: defaults that are stated");
        shown.push(format!("{:#?}", load_as(name, &stated.join("\n"), &[], &[]).unwrap()));
    }
    for other in &shown[1..] {
        assert_eq!(&shown[0], other);
    }
}

#[test]
fn defaults_are_as_documented() {
    let config = load(MINIMAL).unwrap();
    assert_eq!(config.kafka.group_id, "unseen");
    assert_eq!(config.kafka.connect_timeout, Duration::from_secs(60));
    assert_eq!(config.worker.max_transaction_records, 1_000_000);
    assert_eq!(config.state.max_write_rate, 32 << 20);
    let topic = &config.topics[0];
    assert_eq!((&*topic.space, topic.filter.capacity), ("in", Some(10_000_000)));
    assert_eq!(topic.window, Window::time(24 * 60 * 60 * 1000, 4));
    assert_eq!(
        (&topic.on_duplicate, topic.on_tombstone, &topic.on_invalid),
        (&OnDuplicate::Drop, super::OnTombstone::Emit, &OnInvalid::Fail)
    );
}

#[test]
fn tls_requires_a_certificate_and_a_private_key() {
    let tls = |text: &str| load(&format!("{MINIMAL}\n[serve]\ntls = {text}"));
    assert_eq!(load(MINIMAL).unwrap().serve.tls, None);
    // A worker with the same configuration may not have the files, so they need not exist.
    let both = "certificate_location = \"/no/crt\", key_location = \"/no/key\"";
    assert!(tls(&format!("{{ {both}, client_ca_location = \"/no/ca\" }}")).is_ok());
    let error = tls("{ client_ca_location = \"/no/ca\" }").unwrap_err();
    assert!(error.contains("serve.tls.certificate_location: required") && error.contains("serve.tls.key_location: required"), "{error}");
}

#[test]
fn listen_is_an_address_or_off() {
    let listen = |to: &str| load(&format!("{MINIMAL}\n[http]\nlisten = {to:?}")).map(|config| config.http.listen);
    assert_eq!(load(MINIMAL).unwrap().http.listen, "127.0.0.1:8080".parse().ok());
    assert_eq!(listen("[::]:0").unwrap(), "[::]:0".parse().ok());
    assert_eq!(listen("off").unwrap(), None);
    for wrong in ["8080", "localhost", "", "on"] {
        assert!(listen(wrong).unwrap_err().contains("http.listen: expected an address and a port"), "{wrong}");
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = r#"
        wroker = 1
        [kafka]
        group_id = 7
        [kafka.properties]
        "group.id" = "mine"
        "sasl.password" = ["hidden"]
        [worker]
        wokers = 2
        workers = 100
        commit_interval = "soon"
        delivery = "twice"
        [log]
        level = "wran"
        [[topics]]
        input = "in"
        key = [{ field = "user" }, { feld = "/a" }]
        window = "1 fortnight"
        filter = { capacity = "ten", false_positive_rate = 2 }
        [[topics]]
        input = "in 2"
        output = "in"
        key = { record = "key" }
        window = { keys = 1000 }
        late = "drop"
        on_duplicate = "skip"
        filter = { capacity = 5, slices = 100 }
    "#;
    let expected = r#"
x.toml: kafka.bootstrap_servers: required: the initial brokers, such as "localhost:9092"
x.toml: kafka.group_id: expected a string, got integer `7`
x.toml: kafka.properties.group.id: unseen sets this property itself; use kafka.group_id
x.toml: kafka.properties.sasl.password: expected text, a number, true, or false
x.toml: log.level: expected a level such as "info", or "info,unseen=debug"; got "wran"
x.toml: topics[0].filter.capacity: expected a whole number such as 5000, "200k", or "10M", got "ten"
x.toml: topics[0].filter.false_positive_rate: expected a rate between 0 and 1, such as 1e-4, got 2
x.toml: topics[0].key[0]: `user` is not a JSON pointer: write `/user`
x.toml: topics[0].key[1]: expected { field = "/pointer" }, { key_field = "/pointer" }, { record = "key" }, { record = "value" }, { header = "name" }, { cloudevent = "attribute" }, { content = "value" }, or { first_of = [...] }, got {"feld":"/a"}
x.toml: topics[0].window: expected a duration such as "24h" or { keys = 1000000 }, got "1 fortnight"
x.toml: topics[1].filter.capacity: remove it: the capacity of a window by count is its number of keys
x.toml: topics[1].filter.slices: expected a number from 1 to 64, got 100
x.toml: topics[1].input: expected a topic name of 1 to 249 characters from a-z, A-Z, 0-9, '.', '_', and '-', got "in 2"
x.toml: topics[1].late: a window by count has no late records: use "emit", or remove it
x.toml: topics[1].on_duplicate: expected "drop", "mark", or { topic = "name" }, got "skip"
x.toml: worker.commit_interval: expected a duration of at most ten years, such as "24h", got "soon"
x.toml: worker.delivery: expected `exactly_once` or `at_least_once`, got `twice`
x.toml: worker.wokers: unknown field `wokers`, expected one of `workers`, `delivery`, `commit_interval`, `checkpoint_interval`, `transaction_timeout`, `max_transaction_records`, `shutdown_timeout`
x.toml: worker.workers: expected a number from 1 to 64, got 100
x.toml: wroker: unknown field `wroker`, expected one of `kafka`, `worker`, `state`, `http`, `log`, `schema_registry`, `serve`, `topics`"#;
    assert_eq!(load(text).unwrap_err(), expected.trim_start());
}

#[test]
fn values_of_the_wrong_type_are_rejected() {
    let text = "kafka = 3\nworker = []\n[topics]\ninput = \"a\"";
    let expected = "x.toml: kafka: expected a table, got integer `3`\n\
        x.toml: topics: expected a list, got a table\n\
        x.toml: worker: expected a table, got a list";
    assert_eq!(load(text).unwrap_err(), expected);
    assert_eq!(load("topics = [1]").unwrap_err().lines().last().unwrap(), "x.toml: topics[0]: expected a table, got integer `1`");
    assert_eq!(load("topics = [[1]]").unwrap_err().lines().last().unwrap(), "x.toml: topics[0]: expected a table, got a list");
    assert_eq!(refused("{ capacity = \"10M\" }", "[]"), "x.toml: topics[0].filter: expected a table, got a list");
    assert_eq!(
        load_as("x.yaml", "kafka: { bootstrap_servers: a, properties: secret }\ntopics: [~]", &[], &[]).unwrap_err(),
        "x.yaml: kafka.properties: expected a table of librdkafka properties\nx.yaml: topics[0]: required: a topic"
    );
}

#[test]
fn errors_are_limited_to_a_hundred() {
    let text: Vec<_> = (0..500).map(|n| format!("x{n} = 1")).collect();
    assert_eq!(load(&text.join("\n")).unwrap_err().lines().count(), 100);
}

#[test]
fn unreadable_files_are_reported_on_one_line() {
    let missing = Config::load(Path::new("no/such/file.toml"), &[]).unwrap_err().to_string();
    assert_eq!(
        missing,
        "no/such/file.toml: the file does not exist; set --config, or create the file: config/example.toml shows every option"
    );
    assert_eq!(load_as("x.json", "{}", &[], &[]).unwrap_err(), "x.json: expected a file name that ends in .toml, .yaml, or .yml");
    for (name, text) in [
        ("x.toml", "[kafka]\npassword = \"secret"),
        ("x.toml", "a = 1\na = 2"),
        ("x.toml", "\"a[99999999999]\" = 1"),
        ("x.yaml", "a: [1, 2"),
        ("x.yaml", "a: 1\n b: secret\n"),
        ("x.yaml", "- 1"),
        ("x.yaml", "a: 1\n---\nb: 2"),
    ] {
        let errors = load_as(name, text, &[], &[]).unwrap_err();
        assert!(!errors.contains('\n') && !errors.contains("secret") && errors.starts_with(name), "{errors}");
    }
}

/// The lines of this test expand to half a million values. A few more lines would expand to more than fits into memory.
#[test]
fn aliases_that_expand_to_too_many_values_are_rejected() {
    let lists = (1..6).map(|depth| format!("a{depth}: &a{depth} [{}]\n", vec![format!("*a{}", depth - 1); 9].join(", ")));
    let bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned() + &lists.collect::<String>();
    let refusal = load_as("x.yaml", &bomb, &[], &[]).unwrap_err();
    assert_eq!(refusal, "x.yaml: its aliases (`*name`) expand to more than 100000 values; use fewer aliases");
}

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
        ("${NONE:?ask Ann}", "environment variable NONE is not set: ask Ann"),
        ("${EMPTY:?}", "environment variable EMPTY is not set"),
        ("${A", "`${` has no closing `}`; for a dollar sign, write `$$`"),
        ("${}", "`${` is not followed by the name of an environment variable; for a dollar sign, write `$$`"),
        ("pass${w0rd!}", "`${` is not followed by the name of an environment variable; for a dollar sign, write `$$`"),
        ("${A:b}", "expected ${NAME}, ${NAME:-default}, or ${NAME:?message}"),
        ("${file:/no/such}", "cannot read /no/such: No such file or directory (os error 2)"),
    ] {
        let errors = load_as("x.toml", &set(text), &environment, &[]).unwrap_err();
        assert_eq!(errors, format!("x.toml: kafka.properties.x: {message}"));
    }
    // An option with an unset variable is not also reported as missing.
    assert_eq!(refused("\"24h\"", "\"${NONE}\""), "x.toml: topics[0].window: environment variable NONE is not set");
    let config = load_as("x.toml", &MINIMAL.replace("\"10M\"", "\"${N}\""), &[("N", "5_000")], &[]).unwrap();
    assert_eq!(config.topics[0].filter.capacity, Some(5000));
}

#[test]
fn quantities_have_units() {
    for (written, keys) in [
        ("5000", 5000),
        ("\"1_000_000\"", 1_000_000),
        ("1_000", 1000),
        ("\"10 k\"", 10_000),
        ("\"10K\"", 10_000),
        ("\"2g\"", 2_000_000_000),
        ("\"1G\"", 1_000_000_000),
    ] {
        assert_eq!(load(&MINIMAL.replace("\"10M\"", written)).unwrap().topics[0].filter.capacity, Some(keys), "{written}");
    }
    for written in ["-1", "1.5", "\"\"", "\"k\"", "\"10m\"", "\"1e3\"", "\"99999999999G\"", "true", "[]"] {
        let errors = refused("\"10M\"", written);
        assert!(errors.starts_with("x.toml: topics[0].filter.capacity: expected a whole number"), "{written}: {errors}");
    }
    for written in ["0", "\"200G\"", "9223372036854775807"] {
        assert!(refused("\"10M\"", written).contains("expected a number from 1 to 100000000000"), "{written}");
    }
    for written in ["0", "1", "nan", "\"x\"", "-0.1"] {
        let errors = refused("capacity = \"10M\"", &format!("capacity = 1, false_positive_rate = {written}"));
        assert!(errors.contains("false_positive_rate: expected a rate between 0 and 1"), "{written}: {errors}");
    }
    assert_eq!(
        refused("\"10M\"", "\"10m\""),
        "x.toml: topics[0].filter.capacity: expected a whole number such as 5000, \"200k\", or \"10M\", got \"10m\"; for millions, write M instead of m"
    );
    for (written, bytes) in [
        ("\"64kB\"", 64_000),
        ("\"64kb\"", 64_000),
        ("\"1 GiB\"", 1 << 30),
        ("\"1GIB\"", 1 << 30),
        ("\"1mib\"", 1 << 20),
        ("5", 5),
        ("\"5b\"", 5),
    ] {
        let config = load(&format!("state.max_write_rate = {written}\n{MINIMAL}")).unwrap();
        assert_eq!(config.state.max_write_rate, bytes);
    }
    for written in ["24", "\"24\"", "\"-1h\"", "\"11years\"", "{ keys = 5, x = 1 }", "{ keys = -1 }", "{}", "[]"] {
        let errors = refused("\"24h\"", written);
        assert!(errors.starts_with("x.toml: topics[0].window: expected a duration such as"), "{written}: {errors}");
    }
}

#[test]
fn contradicting_options_of_topics_are_rejected() {
    let twice = |other: &str| load(&format!("{MINIMAL}\n[[topics]]\noutput = \"o\"\nkey = {{ record = \"key\" }}\n{other}"));
    let same = "window = \"24h\"\nfilter = { capacity = \"10M\" }";
    assert!(twice(&format!("input = \"b\"\nspace = \"in\"\n{same}")).is_ok());
    for (other, error) in [
        (
            format!("input = \"in\"\n{same}"),
            "topics[1].input: \"in\" is already the input of topics[0], which has no `when` and takes all records, so this entry would get none; set `when` in topics[0], or move topics[0] after this entry",
        ),
        (
            format!("input = \"out\"\n{same}"),
            "topics[0].output: \"out\" is the input of topics[1], so records would be read again forever; use another topic",
        ),
        (
            format!("input = \"b\"\non_duplicate = {{ topic = \"in\" }}\n{same}"),
            "topics[1].on_duplicate.topic: \"in\" is the input of topics[0], so records would be read again forever; use another topic",
        ),
        (
            format!("input = \"b\"\non_invalid = {{ topic = \"b\" }}\n{same}"),
            "topics[1].on_invalid.topic: \"b\" is the input of topics[1], so records would be read again forever; use another topic",
        ),
        (
            "input = \"b\"\nspace = \"in\"\nwindow = \"12h\"\nfilter = { capacity = \"10M\" }".to_owned(),
            "topics[1].window: \"in\" and \"b\" share the space \"in\" and must have the same value: topics[0] has 1day, but this topic has 12h",
        ),
        (
            format!("input = \"b\"\nspace = \"in\"\nrepartition = true\n{same}"),
            "topics[1].repartition: \"in\" and \"b\" share the space \"in\" and must have the same value: topics[0] has false, but this topic has true",
        ),
        (
            format!("input = \"b\"\nspace = \"in\"\nlate = \"drop\"\n{same}"),
            "topics[1].late: \"in\" and \"b\" share the space \"in\" and must have the same value: topics[0] has \"emit\", but this topic has \"drop\"",
        ),
    ] {
        assert_eq!(twice(&other).unwrap_err(), format!("x.toml: {error}"));
    }
    let shadow = load(&format!("{MINIMAL}\n[[topics]]\nkey = {{ record = \"key\" }}\ninput = \"b\"\nspace = \"in\"\n{same}"));
    assert_eq!(
        shadow.unwrap_err(),
        "x.toml: topics[1].output: \"in\" and \"b\" share the space \"in\": set an output for both or for none, because records whose keys only the shadow topic has seen would be lost"
    );
    for (piece, by, error) in [
        ("\"24h\"", "\"3ms\"", "topics[0].window: expected at least one millisecond per slice, got 3ms for 4 slices"),
        ("capacity = \"10M\"", "", "topics[0].filter.capacity: required: the number of distinct keys in a window, such as \"10M\""),
        (
            "window =",
            "late = \"dead_letter\"\nwindow =",
            "topics[0].late: \"dead_letter\" requires a dead-letter topic: set on_invalid = { topic = \"name\" }",
        ),
        ("{ record = \"key\" }", "[]", "topics[0].key: a key needs at least one part"),
        (
            "[kafka]",
            "worker.commit_interval = \"6s\"\n[kafka]",
            "worker.commit_interval: expected at most 5s, which is half of worker.transaction_timeout, got 6s; otherwise, the broker could abort a slow commit",
        ),
        (
            "[kafka]",
            "worker.transaction_timeout = \"1h\"\n[kafka]",
            "worker.transaction_timeout: expected a duration from 1s to 15m, got 1h",
        ),
        (
            "[kafka]",
            "worker.checkpoint_interval = \"9ms\"\n[kafka]",
            "worker.checkpoint_interval: expected a duration of at least 100ms, got 9ms",
        ),
        ("\"localhost:9092\"", "\" \"", "kafka.bootstrap_servers: must not be empty"),
    ] {
        assert_eq!(refused(piece, by), format!("x.toml: {error}"));
    }
    assert_eq!(load("[kafka]\nbootstrap_servers = \"a\"").unwrap_err(), "x.toml: topics: required: at least one topic to deduplicate");
}

#[test]
fn contradicting_options_of_filters_are_rejected() {
    for (filter, error) in [
        ("kind = \"exact\", capacity = 5", "capacity: remove it: kind \"exact\" has no capacity"),
        ("kind = \"exact\", confirm = true", "confirm: remove it: kind \"exact\" has no false positives to confirm"),
        ("kind = \"exact\", max_memory = \"1GiB\"", "max_memory: only kind \"aging\" has this option, got kind \"exact\""),
        (
            "capacity = \"10M\", at_max_memory = \"saturate\"",
            "at_max_memory: has no effect without max_memory: remove it, or set max_memory",
        ),
        ("capacity = 9000000000000000000", "capacity: expected a number from 1 to 100000000000, got 9000000000000000000"),
        ("capacity = 5, false_positive_rate = 1e-10", "false_positive_rate: expected a rate of at least 1e-9, got 1e-10"),
    ] {
        let refusal = refused("{ capacity = \"10M\" }", &format!("{{ {filter} }}"));
        assert_eq!(refusal, format!("x.toml: topics[0].filter.{error}"));
    }
    let refusal = refused("capacity = \"10M\"", "capacity = \"10M\", max_memory = \"1MiB\"");
    assert!(refusal.starts_with("x.toml: topics[0].filter.max_memory: the filter needs ") && refusal.contains("1048576"), "{refusal}");
    // The number of partitions is known after the worker has connected. With a window by count, each partition needs the full capacity.
    let counted =
        load(&MINIMAL.replace("window = \"24h\"", "window = { keys = 100000 }").replace("capacity = \"10M\"", "max_memory = \"600kB\""));
    let topic = &counted.expect("a configuration").topics[0];
    assert_eq!(topic.filter.memory_problem(topic.window, 1), None);
    let problem = topic.filter.memory_problem(topic.window, 4).expect("they do not fit");
    assert!(problem.contains("each of the 4 partitions keeps a whole window by count") && problem.contains("got 600000"), "{problem}");
    let with = |line: &str| load(&MINIMAL.replace("window =", &format!("{line}\nwindow =")));
    let refusal = with("retract = { header = \"x\" }").unwrap_err();
    assert!(refusal.starts_with("x.toml: topics[0].retract: filter kind \"aging\" cannot retract keys"), "{refusal}");
    assert!(with("retract = \"x\"").unwrap_err().contains("topics[0].retract: expected { header = \"name\" }"));
    assert!(with("hash = { siphash = \"hunter2\" }").unwrap_err().starts_with("x.toml: topics[0].hash: "));
    assert!(!with("hash = { siphash = \"hunter2\" }").unwrap_err().contains("hunter2"));
    let config = with("hash = { siphash = \"000102030405060708090a0b0c0d0e0f\" }").unwrap();
    assert!(config.topics[0].key.hashing_id().starts_with("siphash "));
    assert!(!format!("{config:?}").contains("[0, 1, 2, 3"));
}

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

/// If a password contains `${`, the text that looks like the name of a variable is a part of the password.
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
    if super::secrets::is_secret(path) {
        found.push(path.to_owned());
    }
    found
}

#[test]
fn errors_do_not_show_secrets_of_any_type() {
    let mut paths = secrets(&super::schema(), "");
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
fn properties_of_java_clients_are_rejected_with_an_alternative() {
    let with = |lines: &str| load(&MINIMAL.replace("[[topics]]", &format!("[kafka.properties]\n{lines}\n[[topics]]"))).unwrap_err();
    let java = "only Kafka's Java clients have this property";
    assert_eq!(
        with("\"security.protocol\" = \"SSL\"\n\"ssl.truststore.location\" = \"/etc/t.jks\"\n\"ssl.truststore.password\" = \"s3cret\""),
        format!(
            "x.toml: kafka.properties.ssl.truststore.location: {java}; use ssl.ca.location with the CA certificate in PEM, which `keytool -exportcert -rfc` prints\n\
             x.toml: kafka.properties.ssl.truststore.password: {java}; remove it: the file in ssl.ca.location has no password"
        )
    );
    for rest in ["", "\"sasl.username\" = \"a\"\n\"sasl.password\" = \"p\""] {
        let module = "org.apache.kafka.common.security.plain.PlainLoginModule required username='a' password='s3cret';";
        let errors = with(&format!(
            "\"sasl.jaas.config\" = \"{module}\"\n\"security.protocol\" = \"SASL_SSL\"\n\"sasl.mechanism\" = \"PLAIN\"\n{rest}"
        ));
        assert_eq!(
            errors,
            format!(
                "x.toml: kafka.properties.sasl.jaas.config: {java}; use sasl.mechanism with sasl.username and sasl.password, sasl.mechanism OAUTHBEARER with sasl.oauthbearer.*, or sasl.mechanism AWS_MSK_IAM"
            )
        );
    }
    assert_eq!(
        with("\"max.request.size\" = 12000000\n\"max.partition.fetch.bytes\" = 12000000"),
        format!("x.toml: kafka.properties.max.request.size: {java}; remove it: unseen uses the output topics' max.message.bytes")
    );
}

#[test]
fn fields_in_other_notations_are_rejected_with_the_correct_pointer() {
    for (field, advice) in [
        ("/data[0]/id", "write `/data/0/id`"),
        ("/data/*/id", "wildcards are not supported; name one element, such as `/data/0/id`"),
        ("$.event.id", "write `/event/id`"),
        ("event.id", "write `/event/id`"),
        ("id", "write `/id`"),
    ] {
        let errors = refused("{ record = \"key\" }", &format!("{{ field = \"{field}\" }}"));
        assert_eq!(errors, format!("x.toml: topics[0].key: `{field}` is not a JSON pointer: {advice}"));
    }
}

#[test]
fn the_configuration_in_the_readme_is_accepted() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, after) = readme.split_once("```toml\n").unwrap();
    let (block, _) = after.split_once("```").unwrap();
    assert_eq!(load(block).unwrap().topics[0].output.as_deref(), Some("news.unseen"));
}

#[test]
fn a_syntax_error_has_a_line_number_but_not_the_line() {
    let error = load("[kafka]\ngroup_id = \"a\"\ngroup_id = \"hidden\"\n").unwrap_err();
    assert!(error.starts_with("x.toml: ") && error.contains("line 3") && error.contains("duplicate key"), "{error}");
    assert!(!error.contains("hidden"), "{error}");
}

/// Returns the errors of the minimal configuration with these properties.
fn refused_properties(properties: &str) -> String {
    load(&MINIMAL.replace("[[topics]]", &format!("[kafka.properties]\n{properties}\n[[topics]]"))).map(drop).unwrap_err()
}

#[test]
fn properties_are_recognized_by_all_their_names() {
    for (name, first) in [
        ("topic.auto.offset.reset", "use kafka.start"),
        ("topic.acks", "remove it: unseen always waits for all in-sync replicas"),
        ("topic.request.required.acks", "remove it: unseen always waits for all in-sync replicas"),
        ("auto.commit.enable", "remove it: unseen commits offsets together with its outputs, every worker.commit_interval"),
        ("metadata.broker.list", "use kafka.bootstrap_servers"),
        (
            "group.protocol",
            "remove it: unseen uses the classic protocol, and will support \"consumer\" (KIP-848) after its crash tests pass with librdkafka 2.15 or newer, which fixes errors in that protocol",
        ),
    ] {
        let expected = format!("x.toml: kafka.properties.{name}: unseen sets this property itself; {first}");
        assert_eq!(refused_properties(&format!("\"{name}\" = \"1\"")), expected);
    }
    for (one, other) in [("linger.ms", "queue.buffering.max.ms"), ("message.timeout.ms", "topic.delivery.timeout.ms")] {
        let expected = format!("x.toml: kafka.properties.{other}: sets the same property as {one:?}; remove one of the two");
        assert_eq!(refused_properties(&format!("\"{one}\" = 1\n\"{other}\" = 1")), expected);
    }
    let config = load(&MINIMAL.replace("[[topics]]", "[kafka.properties]\n\"linger.ms\" = 3\n[[topics]]")).unwrap();
    assert_eq!(config.kafka.properties, [("queue.buffering.max.ms".to_owned(), "3".to_owned())].into());
}

#[test]
fn brokers_with_a_protocol_are_rejected() {
    for (servers, got) in
        [("http://a:9092", "http://a:9092"), ("a:9092, kafka://b:9092", "kafka://b:9092"), ("PLAINTEXT://a:9092", "PLAINTEXT://a:9092")]
    {
        let expected = format!(
            "x.toml: kafka.bootstrap_servers: expected host:port, got {got:?}; remove the part before the host: security.protocol in kafka.properties sets the protocol"
        );
        let text = MINIMAL.replace("localhost:9092", servers);
        assert_eq!(load(&text).unwrap_err(), expected);
    }
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
fn a_password_must_be_text() {
    let yaml = |value: &str| {
        let text = "kafka: { bootstrap_servers: a, properties: { sasl.password: VALUE } }\n\
            topics: [{ input: a, output: b, key: { record: key }, window: 1h, filter: { capacity: 1k } }]";
        load_as("x.yaml", &text.replace("VALUE", value), &[], &[])
    };
    for value in ["0123456", "1e5", "true"] {
        let expected = "x.yaml: kafka.properties.sasl.password: expected text in quotes, because YAML reads 0123 as 123, and yes as true";
        assert_eq!(yaml(value).unwrap_err(), expected, "{value}");
    }
    assert_eq!(yaml("\"0123456\"").unwrap().kafka.properties["sasl.password"], "0123456");
    let environment = [("UNSEEN__KAFKA__PROPERTIES__SASL__PASSWORD", "0123456")];
    assert_eq!(load_as("x.toml", MINIMAL, &environment, &[]).unwrap().kafka.properties["sasl.password"], "0123456");
}

#[test]
fn a_file_that_is_too_large_is_rejected() {
    let error = load(&format!("{MINIMAL}#{}", " ".repeat(1 << 20))).unwrap_err();
    assert!(error.contains("more than the maximum of 1048576"), "{error}");
}

#[test]
fn flags_accept_both_index_notations_and_inline_tables() {
    for (path, text, holds) in [
        ("topics[0].window", "2h", "2h, 10000000 keys"),
        ("topics.0.window", "2h", "2h, 10000000 keys"),
        ("topics[0].filter", "{ capacity = \"200K\" }", "1day, 200000 keys"),
    ] {
        let config = load_as("x.toml", MINIMAL, &[], &[(path, text)]).unwrap();
        let (window, capacity) = (super::window_text(config.topics[0].window), config.topics[0].filter.capacity);
        assert_eq!(format!("{window}, {} keys", capacity.unwrap()), holds, "{path}={text}");
    }
    let config = load_as("x.toml", MINIMAL, &[], &[("topics.0.on_duplicate", "{ topic = \"again\" }")]).unwrap();
    assert_eq!(config.topics[0].on_duplicate, OnDuplicate::Topic("again".to_owned()));
    let error = load_as("x.toml", MINIMAL, &[], &[("topics.0.on_duplicate", "{ topic }")]).unwrap_err();
    assert_eq!(error, "flags: topics[0].on_duplicate: expected \"drop\", \"mark\", or { topic = \"name\" }, got \"{ topic }\"");
}

#[test]
fn a_content_key_can_ignore_fields() {
    let with = |part: &str| MINIMAL.replace("{ record = \"key\" }", part);
    let config = load(&with("{ content = \"value\", except = [\"/ts\", \"/a/b\"] }")).unwrap();
    assert_eq!(config.topics[0].key.to_string(), "the content of the record value except `/ts`, `/a/b`");
    assert!(load(&with("[{ record = \"key\" }, { content = \"value\" }]")).is_ok());
    let expected = |got: &str| format!("x.toml: topics[0].key: expected {{ content = \"value\", except = [\"/pointer\"] }}, got {got}");
    for (part, error) in [
        ("{ content = \"key\" }", expected(r#"{"content":"key"}"#)),
        ("{ content = \"value\", except = \"/a\" }", expected(r#"{"content":"value","except":"/a"}"#)),
        ("{ content = \"value\", field = \"/a\" }", expected(r#"{"content":"value","field":"/a"}"#)),
        (
            "{ content = \"value\", except = [\"\"] }",
            "x.toml: topics[0].key: `except` excludes the whole value, so nothing is left for the key: exclude single fields instead"
                .to_owned(),
        ),
        ("{ content = \"value\", except = [\"a\"] }", "x.toml: topics[0].key: `a` is not a JSON pointer: write `/a`".to_owned()),
    ] {
        assert_eq!(load(&with(part)).unwrap_err().trim(), error);
    }
}

#[test]
fn parts_can_be_optional_have_alternatives_and_be_normalized() {
    let with = |key: &str| load(&MINIMAL.replace("{ record = \"key\" }", key)).map(|config| config.topics[0].key.to_string());
    for (key, description) in [
        ("{ field = \"/sub\", optional = true }", "optional field `/sub`"),
        ("{ field = \"/sub\", optional = \"false\" }", "field `/sub`"),
        ("{ header = \"h\", ignore_case = true }", "header `h` in any case"),
        ("{ record = \"key\", normalize = [\"trim\"] }", "the record key (trim)"),
        (
            "{ field = \"/u\", normalize = [{ drop_query = [\"b\", \"a\"] }, \"trim\", \"url\"], optional = true }",
            "optional field `/u` (trim, url without `a`, `b`)",
        ),
        ("{ field = \"/a\", then = \"/b\", normalize = [\"trim\"] }", "field `/b` of the JSON in field `/a` (trim)"),
        ("{ header = \"h\", then = [\"/a\", \"\"] }", "field `` of the JSON in field `/a` of the JSON in header `h`"),
        (
            "[{ first_of = [{ field = \"/a\", then = \"/b\" }, { field = \"/a\" }] }]",
            "the first of field `/b` of the JSON in field `/a`, field `/a`",
        ),
        (
            "[{ first_of = [{ field = \"/a\" }, { content = \"value\" }], normalize = [\"nfc\"] }, { record = \"key\" }]",
            "(the first of field `/a`, the content of the record value) (nfc) and the record key",
        ),
    ] {
        assert_eq!(with(key).as_deref(), Ok(description));
    }
    for (key, error) in [
        ("{ field = \"/a\", normalize = [] }", "expected a list of \"to_string\", "),
        ("{ field = \"/a\", normalize = [\"upper\"] }", "expected one of \"to_string\", "),
        ("{ field = \"/a\", normalize = [{ drop_query = \"a\" }] }", "got {\"drop_query\":\"a\"}"),
        ("{ field = \"/a\", optional = 1 }", "expected true or false for optional, got 1"),
        ("{ field = \"/a\", ignore_case = true }", "expected { field = \"/pointer\" }, "),
        ("{ first_of = [{ field = \"/a\" }] }", "first_of needs at least two parts"),
        ("{ first_of = { field = \"/a\" } }", "expected a list of parts for first_of"),
        (
            "{ first_of = [{ field = \"/a\", optional = true }, { record = \"key\" }] }",
            "a part within first_of cannot have first_of or optional",
        ),
        ("{ first_of = [{ field = \"a\" }, { record = \"key\" }] }", "`a` is not a JSON pointer: write `/a`"),
        ("{ field = \"/a\", then = \"b\" }", "`b` is not a JSON pointer: write `/b`"),
        ("{ field = \"/a\", then = [] }", "expected a JSON pointer, or a list of pointers, for then"),
        ("{ field = \"/a\", then = { field = \"/b\" } }", "expected a JSON pointer, or a list of pointers, for then"),
        ("{ record = \"value\", then = \"/a\" }", "`then` requires a field, key_field, header, or cloudevent"),
        ("{ content = \"value\", normalize = [\"trim\"] }", "`content` cannot be combined with `normalize` or `then`"),
    ] {
        let shown = with(key).unwrap_err();
        assert!(shown.starts_with("x.toml: topics[0].key: ") && shown.contains(error), "{key}: {shown}");
    }
}

#[test]
fn keys_are_retracted_by_headers_or_fields() {
    let with = |retract: &str| {
        let filter = format!("filter = {{ kind = \"exact\" }}\nretract = {retract}");
        load(&MINIMAL.replace("filter = { capacity = \"10M\" }", &filter)).map(|_| ())
    };
    for retract in [
        "{ header = \"x\" }",
        "{ header = \"x\", one_of = [\"d\", 1] }",
        "{ field = \"/op\", one_of = [\"d\", true] }",
        "{ key_field = \"/op\", equals = \"d\" }",
    ] {
        assert_eq!(with(retract), Ok(()), "{retract}");
    }
    for retract in [
        "{ field = \"/op\" }",
        "{ header = \"x\", one_of = [] }",
        "{ header = \"x\", one_of = \"d\" }",
        "{ header = \"x\", field = \"/op\", one_of = [\"d\"] }",
        "{ one_of = [\"d\"] }",
        "\"x\"",
    ] {
        assert!(with(retract).unwrap_err().contains("topics[0].retract: expected { header = \"name\" }, "), "{retract}");
    }
    assert!(with("{ field = \"op\", one_of = [\"d\"] }").unwrap_err().contains("write `/op`"));
}

#[test]
fn when_is_a_predicate_or_a_list_of_predicates() {
    let with = |when: &str| load(&MINIMAL.replace("[[topics]]", &format!("[[topics]]\nwhen = {when}")));
    for (when, predicates, reads_headers) in [
        ("{ field = \"/type\", equals = \"order\" }", 1, false),
        ("{ header = \"type\", one_of = [\"a\", 1, true] }", 1, true),
        ("{ record = \"key\", exists = \"false\" }", 1, false),
        ("[{ key_field = \"/type\", equals = 1.5 }, { not = { header = \"x\", exists = true } }]", 2, true),
    ] {
        let topic = with(when).unwrap_or_else(|errors| panic!("{when}: {errors}")).topics.remove(0);
        assert_eq!((topic.when.len(), topic.reads_headers()), (predicates, reads_headers), "{when}");
    }
    for (when, error) in [
        ("[]", "topics[0].when: expected at least one predicate, got []"),
        ("\"order\"", "topics[0].when: expected a field, key_field, header, or record = \"key\", with equals, one_of, or exists"),
        ("{ field = \"/type\" }", "topics[0].when: expected a field"),
        ("{ header = \"type\" }", "topics[0].when: expected a field"),
        ("{ field = \"/type\", equals = \"a\", exists = true }", "topics[0].when: expected a field"),
        ("{ field = \"/type\", equals = \"a\", one_of = [\"b\"] }", "topics[0].when: expected a field"),
        ("{ field = \"/type\", one_of = [] }", "topics[0].when: expected a field"),
        ("{ field = \"/type\", equals = {} }", "topics[0].when: expected a string, number, or boolean for equals, got {}"),
        ("{ record = \"value\", equals = \"a\" }", "topics[0].when: expected a field"),
        ("{ not = { not = { header = \"x\", exists = true } } }", "topics[0].when: expected a field"),
        ("{ not = { header = \"x\", exists = true }, header = \"y\" }", "topics[0].when: expected a field"),
        ("{ header = \"x\", exists = 1 }", "topics[0].when: expected true or false for exists, got 1"),
        (
            "[{ header = \"x\", exists = true }, { field = \"type\", equals = 1 }]",
            "topics[0].when[1]: `type` is not a JSON pointer: write `/type`",
        ),
    ] {
        let shown = with(when).unwrap_err();
        assert!(shown.starts_with("x.toml: ") && shown.contains(error), "{when}: {shown}");
    }
}

#[test]
fn event_times_are_fields_or_headers_with_a_unit() {
    let with = |time: &str| load(&MINIMAL.replace("[[topics]]", &format!("[[topics]]\ntime = {time}")));
    for (time, place, unit, optional) in [
        ("{ field = \"/ts\" }", "field `/ts`", None, false),
        ("{ header = \"ts\", unit = \"us\" }", "header `ts`", Some(TimeUnit::Microseconds), false),
        ("{ field = \"/ts\", unit = \"rfc3339\", optional = true }", "field `/ts`", Some(TimeUnit::Rfc3339), true),
        ("{ field = \"/ts\", optional = \"false\" }", "field `/ts`", None, false),
    ] {
        let topic = with(time).unwrap().topics.remove(0);
        assert_eq!(topic.reads_headers(), time.contains("header"));
        let time = topic.time.unwrap();
        assert_eq!((&*time.place.to_string(), time.unit, time.optional), (place, unit, optional));
    }
    for (time, error) in [
        ("\"/ts\"", "expected { field = \"/pointer\" } or { header = \"name\" }, optionally with unit and optional, got \"/ts\""),
        ("{ unit = \"ms\" }", "expected { field = \"/pointer\" } or "),
        ("{ field = \"/ts\", header = \"ts\" }", "expected { field = \"/pointer\" } or "),
        ("{ field = \"/ts\", zone = \"UTC\" }", "expected { field = \"/pointer\" } or "),
        ("{ field = \"ts\" }", "`ts` is not a JSON pointer: write `/ts`"),
        ("{ field = \"/ts\", unit = \"m\" }", "expected one of \"s\", \"ms\", \"us\", \"ns\", \"rfc3339\" for unit, got \"m\""),
        ("{ field = \"/ts\", optional = 1 }", "expected true or false for optional, got 1"),
    ] {
        let shown = with(time).unwrap_err();
        assert!(shown.starts_with("x.toml: topics[0].time: ") && shown.contains(error), "{time}: {shown}");
    }
}

#[test]
fn changes_can_be_emitted() {
    let exact = MINIMAL.replace("capacity = \"10M\"", "kind = \"exact\"");
    let with = |line: &str| load(&exact.replace("[[topics]]", &format!("[[topics]]\nemit = {line}")));
    let content = |line: &str| with(line).unwrap().topics[0].on_change.as_ref().map(ToString::to_string);
    assert_eq!(content("\"first\""), None);
    for (line, parts) in [
        ("\"on_change\"", "the record value"),
        ("{ on_change = { except = [\"/ts\"] } }", "optional content of the record value except `/ts`"),
        ("{ on_change = { content = \"value\", except = [\"/ts\"] } }", "optional content of the record value except `/ts`"),
        ("{ on_change = [{ field = \"/a\" }, { header = \"b\" }] }", "optional field `/a` and optional header `b`"),
    ] {
        assert_eq!(content(line).as_deref(), Some(parts), "{line}");
    }
    for (line, error) in [
        ("\"changes\"", "emit: expected \"first\", \"on_change\", or { on_change = PARTS }"),
        ("{ on_change = \"value\" }", "emit: expected \"first\", \"on_change\", or { on_change = PARTS }"),
        ("{ on_change = { field = \"a\" } }", "emit.on_change: `a` is not a JSON pointer: write `/a`"),
        ("{ on_change = [{ field = \"/a\" }, { ignore = 1 }] }", "emit.on_change[1]: expected { field = "),
        (
            "{ on_change = { except = [\"\"] } }",
            "emit.on_change: `except` excludes the whole value, so nothing is left for the key: exclude single fields instead",
        ),
        ("\"on_change\"\nkey_conflicts = true", "key_conflicts: remove key_conflicts, because emit = \"on_change\""),
    ] {
        let shown = with(line).unwrap_err();
        assert!(shown.starts_with("x.toml: topics[0].") && shown.contains(error), "{line}: {shown}");
        assert_eq!(shown.trim().lines().count(), 1, "{shown}");
    }
    let aging = refused("[[topics]]", "[[topics]]\nemit = \"on_change\"");
    assert!(
        aging.contains("topics[0].emit: \"on_change\" requires filter.kind = \"exact\"") && aging.contains("got kind \"aging\""),
        "{aging}"
    );
    let shared = |more: &str| {
        let text = exact
            .replace("[[topics]]", "[[topics]]\nemit = \"on_change\"")
            .replace("input = \"in\"", "input = [\"in\", \"b\"]\nspace = \"s\"");
        load(&(text + more)).map(drop)
    };
    assert_eq!(shared(""), Ok(()));
    let unlogged = shared("\n[state]\nchangelog = false\n").unwrap_err();
    assert!(
        unlogged.starts_with("x.toml: topics[0].emit: \"on_change\" requires state.changelog = true, because \"in\" and \"b\" share"),
        "{unlogged}"
    );
    let served = "[[topics]]\nspace = \"in\"\nemit = \"on_change\"";
    let served = exact.replace("[[topics]]", served) + "\n[serve.filters.in]\nkind = \"cuckoo\"\ncapacity = 10\n";
    assert!(load(&served).unwrap_err().contains("serve.filters.in: remove it: `unseen serve` does not follow"));
}

#[test]
fn key_conflicts_can_ignore_fields() {
    let with = |line: &str| MINIMAL.replace("[[topics]]", &format!("[[topics]]\nkey_conflicts = {line}"));
    let except = |line: &str| load(&with(line)).unwrap().topics[0].key_conflicts.clone().map(|compare| compare.except);
    assert_eq!((except("true"), except("\"true\""), except("false")), (Some(vec![]), Some(vec![]), None));
    assert_eq!(except("{ except = [\"/a\", \"/b/c\"] }"), Some(vec!["/a".to_owned(), "/b/c".to_owned()]));
    let expected =
        |got: &str| format!("x.toml: topics[0].key_conflicts: expected true, false, or {{ except = [\"/pointer\"] }}, got {got}");
    for (line, error) in [
        ("\"yes\"", expected("\"yes\"")),
        ("{ except = \"/a\" }", expected(r#"{"except":"/a"}"#)),
        ("{ ignore = [\"/a\"] }", expected(r#"{"ignore":["/a"]}"#)),
        (
            "{ except = [\"\"] }",
            "x.toml: topics[0].key_conflicts: the pointer \"\" is the whole value, which leaves nothing to compare".to_owned(),
        ),
        (
            "{ except = [\"/a/b/c/d/e\"] }",
            "x.toml: topics[0].key_conflicts: `/a/b/c/d/e` is deeper than 4 levels, where fields are not distinguished; use a parent of this field"
                .to_owned(),
        ),
        (
            "{ except = [\"a\"] }",
            "x.toml: topics[0].key_conflicts: `a` is not a JSON pointer: write `/a`"
                .to_owned(),
        ),
    ] {
        assert_eq!(load(&with(line)).unwrap_err().trim(), error);
    }
}

#[cfg(feature = "formats")]
#[test]
fn content_keys_and_count_by_work_in_any_format() {
    for format in ["json_schema", "avro", "protobuf"] {
        let topic = format!(
            "[schema_registry]\nurl = \"http://registry\"\n[[topics]]\nvalue_format = \"{format}\"\ncount_by = {{ field = \"/a\" }}\nkey_conflicts = {{ except = [\"/a\"] }}"
        );
        let text = MINIMAL.replace("[[topics]]", &topic).replace("{ record = \"key\" }", "{ content = \"value\" }");
        assert!(load(&text).is_ok(), "{format}");
    }
}

#[test]
fn encodings_are_listed_outermost_first() {
    let with = |encoding: &str| MINIMAL.replace("window", &format!("value_encoding = {encoding}\nwindow"));
    for (encoding, encodings) in
        [("\"gzip\"", &[Encoding::Gzip][..]), ("[\"base64\", \"gzip\"]", &[Encoding::Base64, Encoding::Gzip]), ("[]", &[])]
    {
        let formats = load(&with(encoding)).unwrap().topics.remove(0).formats;
        assert_eq!((formats.value().encodings.as_slice(), formats.is_plain_json()), (encodings, encodings.is_empty()));
    }
    for encoding in ["\"zstd\"", "[\"gzip\", \"none\"]", "true"] {
        let error = load(&with(encoding)).unwrap_err();
        assert!(
            error.contains("value_encoding: expected \"gzip\", \"base64\", or a list of them with the outermost encoding first, got "),
            "{error}"
        );
    }
}

#[test]
fn the_cloudevents_preset_is_the_source_and_the_id() {
    let with = |key: &str| MINIMAL.replace("{ record = \"key\" }", key);
    let preset = load(&with("\"cloudevents\"")).unwrap().topics[0].key.to_string();
    assert_eq!(preset, "CloudEvents attribute `source` and CloudEvents attribute `id`");
    assert_eq!(load(&with("[{ cloudevent = \"source\" }, { cloudevent = \"id\" }]")).unwrap().topics[0].key.to_string(), preset);
    assert!(load(&with("\"cloudevent\"")).is_err());
    let error = load(&with("{ cloudevent = \"ce-id\" }")).unwrap_err();
    assert_eq!(
        error.trim(),
        "x.toml: topics[0].key: `ce-id` is not the name of a CloudEvents attribute: such names consist of letters and digits"
    );
}

#[test]
fn an_entry_with_several_inputs_is_an_entry_for_each() {
    const LIST: &str = r#"
        input = ["in", "b.c"]
        output = "{input}.unseen"
        space = "ids-{input}-{input}"
        on_duplicate = { topic = "again.{input}" }
        on_invalid = { topic = "dead" }
    "#;
    let same = "key = { record = \"key\" }\nwindow = \"24h\"\nfilter = { capacity = \"10M\" }";
    let (head, _) = MINIMAL.split_once("[[topics]]").unwrap();
    let entry = |text: &str| format!("[[topics]]\n{text}\n{same}\n");
    let shown = |text: String| {
        let mut topics = load(&text).unwrap().topics;
        let entries: Vec<_> = topics.iter_mut().map(|topic| std::mem::take(&mut topic.entry)).collect();
        (entries, format!("{topics:#?}"))
    };
    let one = |input: &str| entry(&LIST.replace("[\"in\", \"b.c\"]", &format!("\"{input}\"")).replace("{input}", input));
    let first = entry("input = \"first\"");
    let (entries, list) = shown([head, &first, &entry(LIST)].concat());
    assert_eq!((entries, list), (vec![0, 1, 1], shown([head, &first, &one("in"), &one("b.c")].concat()).1));
    // A list with one input may also use `{input}` in other names.
    assert_eq!(shown([head, &entry(&LIST.replace(", \"b.c\"", ""))].concat()).1, shown([head, &one("in")].concat()).1);

    let of = |lines: &str| load(&[head, &entry(lines)].concat()).unwrap();
    let spaces = |config: &Config| config.spaces().iter().map(|space| (space.name.to_owned(), space.topics.len())).collect::<Vec<_>>();
    let apart = of("input = [\"a\", \"b\"]\noutput = \"out\"");
    assert_eq!(spaces(&apart), [("a".to_owned(), 1), ("b".to_owned(), 1)]);
    assert!(apart.topics.iter().all(|topic| topic.output.as_deref() == Some("out")));
    assert_eq!(spaces(&of("input = [\"a\", \"b\"]\nspace = \"ids\"")), [("ids".to_owned(), 2)]);
    assert_eq!(of("input = [\"a\", \"b\"]").shadows().filter(|warning| warning.starts_with("topics[0]: ")).count(), 2);
}

#[test]
fn faults_of_a_list_name_the_entry_and_the_input() {
    let listed = |inputs: &str, lines: &str| {
        let text = MINIMAL.replace("input = \"in\"", &format!("input = {inputs}")).replace("output = \"out\"", lines);
        load(&text).map(drop).unwrap_err().replace("x.toml: ", "")
    };
    let characters = "expected a topic name of 1 to 249 characters from a-z, A-Z, 0-9, '.', '_', and '-', got";
    for (inputs, lines, error) in [
        ("[]", "", "topics[0].input: expected at least one topic, got an empty list".to_owned()),
        ("[1]", "", "topics[0].input: expected a topic, a list of topics, or { pattern = \"…\" }, got [1]".to_owned()),
        ("[\"a\", \"b c\"]", "output = \"{input}.x\"", format!("topics[0].input[1]: {characters} \"b c\"")),
        ("[\"a\", \"${NONE}\"]", "", "topics[0].input[1]: environment variable NONE is not set".to_owned()),
        ("[\"a\", \"b\", \"a\"]", "", "topics[0].input[2]: \"a\" is already the input at topics[0].input[0]".to_owned()),
        (
            "[\"a\", \"b\"]",
            "output = \"{topic}.x\"",
            format!("topics[0].output: {characters} \"{{topic}}.x\"; the only placeholder is {{input}}, for the topic that is read"),
        ),
        (
            "[\"a\", \"a.x\"]",
            "output = \"{input}.x\"",
            "topics[0].output: \"a.x\" is the input of topics[0], so records would be read again forever; use another topic".to_owned(),
        ),
    ] {
        assert_eq!(listed(inputs, lines), error, "{inputs} {lines}");
    }
    // All topics of the entry have this error, which is reported once.
    #[cfg(feature = "formats")]
    assert_eq!(
        listed("[\"a\", \"b\"]", "value_format = \"avro\""),
        "topics[0].value_format: requires schema_registry.url; for records without a registry's frame, set { kind = \"avro\", schema = \"file\" } instead"
    );
    let second = "[[topics]]\noutput = \"o\"\nkey = { record = \"key\" }\nwindow = \"24h\"\nfilter = { capacity = \"10M\" }";
    let of_second = |lines: &str| load(&format!("{MINIMAL}\n{second}\n{lines}")).unwrap_err();
    assert_eq!(
        of_second("input = [\"b\", \"c\"]\nspace = \"in\"\nlate = \"drop\""),
        "x.toml: topics[1].late: \"in\" and \"b\" share the space \"in\" and must have the same value: topics[0] has \"emit\", but this topic has \"drop\""
    );
    assert!(of_second("input = [\"b\", \"in\"]").starts_with("x.toml: topics[1].input[1]: \"in\" is already the input of topics[0]"));
}

#[test]
fn overrides_number_entries_and_reach_into_lists() {
    let text =
        format!("{MINIMAL}\n[[topics]]\ninput = \"last\"\nkey = {{ record = \"key\" }}\nwindow = \"1h\"\nfilter = {{ capacity = 10 }}");
    let text = text.replace("input = \"in\"", "input = [\"a\", \"b\"]");
    let loaded = |environment: &[(&str, &str)], flags: &[(&str, &str)]| {
        let topics = load_as("x.toml", &text, environment, flags).unwrap().topics;
        topics.into_iter().map(|topic| format!("{} {}", topic.input, super::window_text(topic.window))).collect::<Vec<_>>()
    };
    assert_eq!(loaded(&[], &[("topics.1.window", "2h"), ("topics.0.window", "3h")]), ["a 3h", "b 3h", "last 2h"]);
    assert_eq!(loaded(&[("UNSEEN__TOPICS__0__INPUT__1", "c")], &[]), ["a 1day", "c 1day", "last 1h"]);
    assert_eq!(loaded(&[], &[("topics.0.input", "[\"x\", \"y\", \"z\"]")]), ["x 1day", "y 1day", "z 1day", "last 1h"]);
    assert_eq!(loaded(&[("UNSEEN__TOPICS__0__INPUT", "x")], &[]), ["x 1day", "last 1h"]);
}

#[test]
fn an_input_has_several_entries_if_they_fit_together() {
    const FIRST: &str = "input = \"in\"\noutput = \"out\"\nwhen = { header = \"a\", exists = true }";
    let entry =
        |lines: &str| format!("[[topics]]\nkey = {{ record = \"key\" }}\nwindow = \"24h\"\nfilter = {{ capacity = \"10M\" }}\n{lines}\n");
    let load_all = |entries: &[&str]| {
        let entries: String = entries.iter().map(|lines| entry(lines)).collect();
        load(&format!("[kafka]\nbootstrap_servers = \"localhost:9092\"\n{entries}"))
    };
    let with = |second: &str| load_all(&[FIRST, &format!("input = \"in\"\n{second}")]);
    let config = with("output = \"out\"\nspace = \"in-2\"\nlate = \"drop\"").unwrap();
    assert_eq!(config.rules("in").map(|(id, topic)| (id.0, &*topic.space)).collect::<Vec<_>>(), [(0, "in"), (1, "in-2")]);
    assert_eq!((config.inputs(), config.only_input().map(|topic| &*topic.space)), ("in".to_owned(), Some("in")));
    assert_eq!(config.rule("in-2").map(|topic| topic.entry), Ok(1));
    assert_eq!(config.rule("in").map(|topic| topic.entry), Ok(0), "the default space is the name of the input");
    assert_eq!(config.only_rule("in").map(drop), Err("`in` has several entries; choose one by its space: in, in-2".to_owned()));
    assert_eq!(config.rule("out").map(drop), Err("expected one of in, got `out`".to_owned()));
    let named = load_all(&[&format!("{FIRST}\nspace = \"in-1\""), "input = \"in\"\noutput = \"out\"\nspace = \"in-2\""]).unwrap();
    assert_eq!(named.rule("in").map(drop), Err("`in` has several entries; choose one by its space: in-1, in-2".to_owned()));
    for (second, error) in [
        (
            "output = \"out\"",
            "topics[1].space: topics[0] also has the input \"in\" and the space \"in\", but entries of one input do not share their keys; give this entry its own space, such as space = \"{input}-2\"",
        ),
        (
            "output = \"out\"\nspace = \"in-2\"\nrepartition = true",
            "topics[1].repartition: topics[0] has the same input, \"in\", and must have the same value, because either all records of an input are repartitioned, or none",
        ),
        (
            "output = \"out\"\nspace = \"in-2\"\nkey_format = \"json\"\nvalue_encoding = \"gzip\"",
            "topics[1].value_encoding: topics[0] has the same input, \"in\", and must have the same value, because each record has one encoding",
        ),
        (
            "space = \"in-2\"",
            "topics[1].output: topics[0] also has the input \"in\": set an output for both or for none, because unseen records of the entry without an output would be lost",
        ),
    ] {
        assert_eq!(with(second).unwrap_err(), format!("x.toml: {error}"), "{second}");
    }
    // The second entry takes all records that the first entry leaves.
    let third = "input = \"in\"\noutput = \"out\"\nspace = \"in-3\"";
    assert_eq!(
        load_all(&[FIRST, "input = \"in\"\noutput = \"out\"\nspace = \"in-2\"", third]).unwrap_err(),
        "x.toml: topics[2].input: \"in\" is already the input of topics[1], which has no `when` and takes all records, so this entry would get none; set `when` in topics[1], or move topics[1] after this entry"
    );
    let many: Vec<_> = (0..9).map(|number| format!("{FIRST}\nspace = \"s{number}\"")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(load_all(&many[..8]).is_ok());
    assert_eq!(
        load_all(&many).unwrap_err(),
        "x.toml: topics[8].input: \"in\" already has 8 entries, and cannot have more; combine some of them"
    );
    // The lists of inputs of two entries may overlap.
    let lists = [
        "input = [\"a\", \"b\"]\noutput = \"{input}.out\"\nwhen = { header = \"x\", exists = true }",
        "input = [\"b\", \"c\"]\noutput = \"{input}.out\"\nspace = \"{input}-2\"",
    ];
    let config = load_all(&lists).unwrap();
    let spaces = |input| config.rules(input).map(|(_, topic)| &*topic.space).collect::<Vec<_>>();
    assert_eq!((spaces("a"), spaces("b"), spaces("c"), config.inputs()), (vec!["a"], vec!["b", "b-2"], vec!["c-2"], "a, b, c".to_owned()));
    let same = lists[1].replace("space = \"{input}-2\"", "");
    assert_eq!(load_all(&[lists[0], &same]).unwrap_err().lines().count(), 1);
}
