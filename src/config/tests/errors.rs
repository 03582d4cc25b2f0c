//! Tests of the list of errors: it is complete, and each error contains the path of its option.

use super::{load, load_as, refused};

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
x.toml: worker.wokers: unknown field `wokers`; did you mean `workers`?
x.toml: worker.workers: expected a number from 1 to 64, got 100
x.toml: wroker: unknown field `wroker`; did you mean `worker`?"#;
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
