//! Tests of options that contradict each other.

use super::{MINIMAL, load, refused};

#[test]
fn contradicting_options_of_topics_are_rejected() {
    let twice = |other: &str| load(&format!("{MINIMAL}\n[[topics]]\noutput = \"o\"\nkey = {{ record = \"key\" }}\n{other}"));
    let same = "window = \"24h\"\nfilter = { capacity = \"10M\" }";
    assert!(twice(&format!("input = \"b\"\nspace = \"in\"\n{same}")).is_ok());
    for (other, error) in [
        (
            format!("input = \"in\"\n{same}"),
            "topics[1].input: \"in\" is already the input of topics[0], which has no `when` and leaves no records for this entry; set `when` in topics[0], or move topics[0] after this entry",
        ),
        (
            format!("input = \"out\"\n{same}"),
            "topics[0].output: \"out\" is the input of topics[1], and a topic cannot be both an input and an output of one configuration; use another topic",
        ),
        (
            format!("input = \"b\"\non_duplicate = {{ topic = \"in\" }}\n{same}"),
            "topics[1].on_duplicate.topic: \"in\" is the input of topics[0], and a topic cannot be both an input and an output of one configuration; use another topic",
        ),
        (
            format!("input = \"b\"\non_invalid = {{ topic = \"b\" }}\n{same}"),
            "topics[1].on_invalid.topic: \"b\" is the input of topics[1], and a topic cannot be both an input and an output of one configuration; use another topic",
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
        "x.toml: topics[1].output: \"in\" and \"b\" share the space \"in\": set an output for both or for neither, because records whose keys only the shadow topic has seen would be lost"
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
    // The number of partitions is known only after the worker has connected, so loading checks `max_memory` for one partition. With a
    // window by count, each of the four partitions needs the full capacity, and together they need more than `max_memory`.
    let counted =
        load(&MINIMAL.replace("window = \"24h\"", "window = { keys = 100000 }").replace("capacity = \"10M\"", "max_memory = \"600kB\""));
    let topic = &counted.expect("a configuration").topics[0];
    assert_eq!(topic.filter.memory_problem(topic.window, 1), None);
    let problem = topic.filter.memory_problem(topic.window, 4).expect("they do not fit");
    assert!(problem.contains("each of the 4 partitions keeps a whole window by count") && problem.contains("is 600000"), "{problem}");
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
