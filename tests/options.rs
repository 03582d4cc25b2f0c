//! A table of all topic options. For each option, the table shows whether all topics of a key space must have the same value, and whether a
//! new value invalidates stored state. Each `No` has a reason.

use std::collections::{BTreeMap, BTreeSet};
use unseen::checkpoint::Settings;
use unseen::config::{self, Config};

#[derive(Clone, Copy, Debug)]
enum Depends {
    Yes,
    No(&'static str),
}
use Depends::{No, Yes};

struct Row {
    option: &'static str,
    values: [&'static str; 2],
    /// Other options that this option requires. An empty value removes the other option.
    with: &'static [(&'static str, &'static str)],
    /// `Yes` if topics of one space must have the same value.
    agree: Depends,
    /// `Yes` if a new value changes the meaning of the stored state, which must then be discarded.
    stored: Depends,
}

const fn row(option: &'static str, values: [&'static str; 2], agree: Depends, stored: Depends) -> Row {
    Row { option, values, with: &[], agree, stored }
}

const OF_TOPIC: Depends = No("each topic has its own");
const OF_RECORD: Depends = No("it determines the handling of a record, not of its key");
const NEXT_SLICE: Depends = No("a new value applies from the next slice, or in a `cuckoo` filter from the next new key");
const ONE_ID: Depends = No("a text or a number is the same id in every format");
const EXACT: &[(&str, &str)] = &[("filter.kind", "\"exact\""), ("filter.capacity", "")];
const STABLE: &[(&str, &str)] = &[("filter.kind", "\"stable\""), ("filter.capacity", "")];

/// All options of a topic, in the order of the configuration.
const ROWS: [Row; 36] = [
    row("input", ["\"in\"", "\"other\""], OF_TOPIC, Yes),
    row("output", ["\"out\"", "\"other\""], OF_TOPIC, OF_RECORD),
    row("space", ["\"s\"", "\"s\""], No("it names the space"), No("a state is stored under the name of its space")),
    row(
        "when",
        ["{ header = \"x\", exists = true }", "{ field = \"/x\", equals = 1 }"],
        OF_TOPIC,
        No("it decides which keys are stored, not what a key means"),
    ),
    row("key", ["{ record = \"key\" }", "{ field = \"/id\" }"], OF_TOPIC, Yes),
    row("key", ["{ field = \"/id\" }", "{ field = \"/id\", normalize = [\"trim\"] }"], OF_TOPIC, Yes),
    row("key", ["{ field = \"/id\", normalize = [\"trim\"] }", "{ field = \"/id\", normalize = [\"trim\", \"nfc\"] }"], OF_TOPIC, Yes),
    row("key", ["{ field = \"/id\" }", "{ field = \"/id\", then = \"/id\" }"], OF_TOPIC, Yes),
    row("key_format", ["\"json\"", "\"json_schema\""], OF_TOPIC, ONE_ID),
    row("value_format", ["\"json\"", "\"json_schema\""], OF_TOPIC, ONE_ID),
    row("value_encoding", ["\"gzip\"", "[\"base64\", \"gzip\"]"], OF_TOPIC, No("a decoded value has the same ids")),
    row("hash", ["\"xxh3\"", "{ siphash = \"000102030405060708090a0b0c0d0e0f\" }"], Yes, Yes),
    Row {
        with: &[("filter.confirm", "true")],
        ..row(
            "retract",
            ["{ header = \"x\" }", "{ header = \"y\" }"],
            No("each topic decides which of its records retract a key"),
            No("a retracted key is deleted, and the header is not stored"),
        )
    },
    row("repartition", ["true", "false"], Yes, No("the repartition topic keeps its partition count")),
    row("window", ["\"24h\"", "\"12h\""], Yes, Yes),
    row("refresh", ["true", "false"], Yes, No("a refreshed key is stored like a new key of the current slice")),
    row(
        "time",
        ["{ field = \"/ts\" }", "{ header = \"ts\" }"],
        No("the time of an event is the same instant in each topic"),
        No("it decides what advances stream time, but stream time itself is stored"),
    ),
    row(
        "max_future",
        ["\"5m\"", "\"1h\""],
        No("each record is compared with the limit of its own topic"),
        No("it decides what advances stream time, but stream time itself is stored"),
    ),
    row("late", ["\"emit\"", "\"drop\""], Yes, OF_RECORD),
    Row { with: EXACT, ..row("emit", ["\"first\"", "\"on_change\""], Yes, Yes) },
    Row { with: EXACT, ..row("emit", ["\"on_change\"", "{ on_change = { field = \"/x\" } }"], OF_TOPIC, Yes) },
    row("on_duplicate", ["\"drop\"", "\"mark\""], OF_TOPIC, OF_RECORD),
    row("on_tombstone", ["\"emit\"", "\"drop\""], OF_TOPIC, OF_RECORD),
    row("on_invalid", ["\"emit\"", "\"drop\""], OF_TOPIC, OF_RECORD),
    row("count_by", ["{ header = \"x\" }", "{ field = \"/x\" }"], OF_TOPIC, No("it determines what is counted")),
    row("key_conflicts", ["true", "false"], OF_TOPIC, No("it determines what is counted")),
    row("filter.kind", ["\"aging\"", "\"cuckoo\""], Yes, Yes),
    row("filter.capacity", ["\"10M\"", "\"20M\""], Yes, NEXT_SLICE),
    row("filter.false_positive_rate", ["1e-4", "1e-5"], Yes, NEXT_SLICE),
    // Other filters use the new rate for their next slice. A stable filter has no slices and cannot rearrange its cells.
    Row { with: STABLE_SIZED, ..row("filter.false_positive_rate", ["1e-4", "1e-5"], Yes, Yes) },
    row("filter.slices", ["4", "8"], Yes, Yes),
    Row { with: STABLE, ..row("filter.memory", ["\"1MiB\"", "\"2MiB\""], Yes, Yes) },
    row("filter.confirm", ["true", "false"], Yes, Yes),
    row("filter.adapt", ["true", "false"], Yes, NEXT_SLICE),
    row("filter.max_memory", ["\"1GiB\"", "\"2GiB\""], Yes, NEXT_SLICE),
    Row { with: &[("filter.max_memory", "\"1GiB\"")], ..row("filter.at_max_memory", ["\"stop\"", "\"saturate\""], Yes, NEXT_SLICE) },
];
const STABLE_SIZED: &[(&str, &str)] = &[("filter.kind", "\"stable\""), ("filter.capacity", ""), ("filter.memory", "\"1MiB\"")];

/// Loads a configuration of these topics, all in one space.
fn load(topics: &[Vec<(&str, &str)>]) -> Result<Config, String> {
    let mut text = "[kafka]\nbootstrap_servers = \"localhost:9092\"\n".to_owned();
    for topic in topics {
        let usual = [
            ("input", "\"in\""),
            ("output", "\"out\""),
            ("space", "\"s\""),
            ("key", "{ record = \"key\" }"),
            ("window", "\"24h\""),
            ("filter.capacity", "\"10M\""),
        ];
        let options: BTreeMap<_, _> = usual.iter().chain(topic).copied().filter(|(_, value)| !value.is_empty()).collect();
        let left_out = |option: &str| topic.iter().any(|(name, value)| *name == option && value.is_empty());
        let lines = options.iter().filter(|(option, _)| !left_out(option)).map(|(option, value)| format!("{option} = {value}\n"));
        text.extend(std::iter::once("[[topics]]\n".to_owned()).chain(lines));
    }
    let file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a file");
    std::fs::write(file.path(), text).expect("the file can be written");
    Config::load(file.path(), &[]).map_err(|errors| errors.to_string())
}

fn topic<'a>(row: &Row, value: &'a str) -> Vec<(&'a str, &'a str)> {
    row.with.iter().copied().chain([(row.option, value)]).collect()
}

#[test]
fn every_option_of_a_topic_is_listed() {
    let schema = config::schema();
    let of = |place: &str| {
        let options = schema.pointer(place).and_then(|options| options.as_object()).expect("options");
        options.keys().cloned().collect::<Vec<_>>()
    };
    let filter = of("/properties/topics/items/properties/filter/properties").into_iter().map(|option| format!("filter.{option}"));
    let topic = of("/properties/topics/items/properties").into_iter().filter(|option| option != "filter");
    let options: BTreeSet<_> = topic.chain(filter).collect();
    let listed: BTreeSet<_> = ROWS.iter().map(|row| row.option.to_owned()).collect();
    assert_eq!(options, listed, "add new options to ROWS");
}

#[test]
fn topics_of_a_space_must_have_equal_shared_options() {
    for row in ROWS {
        let [one, other] = row.values;
        let second = [("input", "\"second\"")].into_iter().chain(topic(&row, other)).collect();
        let loaded = load(&[topic(&row, one), second]);
        match (row.agree, loaded) {
            (Yes, Err(errors)) => {
                assert!(errors.contains("share the space \"s\" and must have the same value"), "{}: {errors}", row.option);
            }
            (Yes, Ok(_)) => panic!("{}: add it to rules() in src/config/topics.rs", row.option),
            (No(_), loaded) => assert!(loaded.is_ok(), "{}: {loaded:?}", row.option),
        }
    }
}

#[test]
fn stored_state_is_discarded_if_an_option_it_depends_on_changes() {
    for row in ROWS {
        let [one, other] = row.values.map(|value| {
            let config = load(&[topic(&row, value)]).unwrap_or_else(|errors| panic!("{}: {errors}", row.option));
            Settings::of(&config, &config.topics[0])
        });
        match row.stored {
            Yes => assert_ne!(one, other, "{}: add it to checkpoint::Settings", row.option),
            No(reason) => assert_eq!(one, other, "{}: {reason}", row.option),
        }
    }
}
