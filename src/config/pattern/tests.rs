use super::super::Config;
use super::*;
use crate::config::tests::{MINIMAL, load};
use proptest::prelude::*;

/// Loads a configuration whose first entry has this pattern and these `lines`. `more` has further entries.
fn with(pattern: &str, lines: &str, more: &str) -> Result<Config, String> {
    let text = MINIMAL.replace("input = \"in\"", &format!("input = {{ pattern = '{pattern}' }}")).replace("output = \"out\"", lines);
    load(&format!("{text}\n{more}"))
}

fn entry(input: &str, lines: &str) -> String {
    format!("[[topics]]\ninput = {input}\nkey = {{ record = \"key\" }}\nwindow = \"24h\"\nfilter = {{ capacity = \"10M\" }}\n{lines}\n")
}

fn expanded(config: &Config, names: &[&str]) -> (Vec<String>, Vec<String>) {
    let (config, left_out) = config.expand(names.iter().copied()).unwrap();
    let topics = config.topics.iter().map(|topic| format!("{}>{}", topic.input, topic.output.as_deref().unwrap_or("-")));
    (topics.collect(), left_out.iter().map(ToString::to_string).collect())
}

#[test]
fn a_pattern_matches_whole_names() {
    let config = with("orders\\.|b", "output = \"{input}.x\"\nspace = \"ids-{input}\"", "").unwrap();
    assert!(config.topics.is_empty());
    assert_eq!(expanded(&config, &["orders.eu", "orders.", "ab", "b"]).0, ["b>b.x", "orders.>orders..x"]);
    let (expanded, _) = config.expand(["b"]).unwrap();
    assert_eq!(expanded.topics[0].space, "ids-b");
    // A second expansion replaces the topics that matched in the first expansion.
    assert_eq!(super::super::Config::expand(&expanded, ["orders."]).unwrap().0.topics.len(), 1);
    // Topic names are ASCII, so `\d` and `\w` match only ASCII.
    assert_eq!(self::expanded(&with("a\\d\\w.", "", "").unwrap(), &["a1bc", "a1b", "abbb"]).0, ["a1bc>-"]);
}

#[test]
fn topics_that_the_worker_may_write_to_are_never_matched() {
    let lines = "output = \"{input}.unseen\"\non_duplicate = { topic = \"again.{input}.x\" }\non_invalid = { topic = \"dead\" }";
    let more = entry("\"named\"", "output = \"named.out\"") + &entry("{ pattern = \"z.*\" }", "output = \"of-{input}\"");
    let config = with(".*", lines, &more).unwrap();
    let names = [
        "__consumer_offsets",
        "a",
        "a.unseen",
        "a.unseen.unseen",
        ".unseen",
        "again.a.x",
        "again..x",
        "dead",
        "dead2",
        "named",
        "named.out",
        "of-",
        "of-z",
        "unseen-a-changelog",
        "unseen-a-repartition",
        "unseen-check-19ac-1f",
        "unseen-check-other",
        "other-a-changelog",
    ];
    let read = [".unseen", "a", "again..x", "dead2", "of-", "other-a-changelog", "unseen-check-other"];
    let (topics, left_out) = expanded(&config, &names);
    let inputs: Vec<_> = topics.iter().filter_map(|topic| topic.split('>').next()).filter(|input| *input != "named").collect();
    assert_eq!((inputs, left_out), (read.to_vec(), Vec::new()));
}

#[test]
fn the_first_pattern_that_matches_a_topic_wins() {
    let config = with("a.*", "output = \"{input}.one\"", &entry("{ pattern = \".*\" }", "output = \"{input}.two\"")).unwrap();
    assert_eq!(expanded(&config, &["b", "ab"]).0, ["ab>ab.one", "b>b.two"]);
}

#[test]
fn the_patterns_that_match_a_topic_are_its_entries() {
    let lines = "output = \"{input}.one\"\nspace = \"one-{input}\"\nwhen = { field = \"/type\", equals = \"a\" }";
    let second = entry("{ pattern = \".*\" }", "output = \"{input}.two\"");
    let third = entry("{ pattern = \".*\" }", "output = \"{input}.three\"\nspace = \"three-{input}\"");
    let config = with("a.*", lines, &(second + &third)).unwrap();
    // The second entry takes all records that the first entry leaves. The third entry gets no records.
    assert_eq!(expanded(&config, &["b", "ab"]).0, ["ab>ab.one", "ab>ab.two", "b>b.two"]);
    let lines = lines.replace("one-", "");
    let config = with("a.*", &lines, &entry("{ pattern = \".*\" }", "output = \"{input}.two\"")).unwrap();
    let (topics, left_out) = expanded(&config, &["b", "ab"]);
    assert_eq!((topics, left_out.len()), (vec!["b>b.two".to_owned()], 1));
    assert!(left_out[0].contains("topics[1].space: topics[0] also has the input \"ab\""), "{left_out:?}");
}

#[test]
fn a_matching_topic_that_cannot_be_read_is_left_out_alone() {
    let long = "a".repeat(240);
    let more = entry("\"a.unseen\"", "") + &entry("\"b\"", "space = \"taken\"");
    let config = with(".*", "output = \"{input}.unseen\"", &more).unwrap();
    let (topics, left_out) = expanded(&config, &["ok", "a", "taken", &long, "a b"]);
    assert_eq!(topics, ["ok>ok.unseen", "a.unseen>-", "b>-"]);
    let reasons = [
        "topics[0].output: \"a.unseen\" is the input of topics[1], and a topic cannot be both an input and an output of one configuration; use another topic".to_owned(),
        "topics[0].output: expected a topic name of 1 to 249 characters from a-z, A-Z, 0-9, '.', '_', and '-', got \"a b.unseen\""
            .to_owned(),
        format!(
            "topics[0].space: the changelog topic \"unseen-{long}-changelog\" is not a valid topic name (at most 249 letters, digits, '.', '_', and '-'); change the space or kafka.group_id"
        ),
        "topics[0].space: another topic has the space \"taken\"; set `space` to a name such as \"NAME-{input}\"".to_owned(),
    ];
    let names = ["a", "a b", &long, "taken"];
    let expected = names.iter().zip(reasons).map(|(name, reason)| format!("topic {name:?} matches a pattern but is not read: {reason}"));
    assert_eq!(left_out, expected.collect::<Vec<_>>());
}

#[test]
fn the_number_of_matching_topics_has_a_limit() {
    let config = with("t\\d+", "", "").unwrap();
    let names: Vec<_> = (0..=MATCHED_MAX).map(|number| format!("t{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    assert_eq!(config.expand(names[1..].iter().copied()).unwrap().0.topics.len(), MATCHED_MAX);
    let error = config.expand(names).map(drop).unwrap_err();
    assert!(error.starts_with("1001 topics match the patterns in `input`, and the maximum is 1000; use patterns"), "{error}");
}

#[test]
fn faults_of_a_pattern_name_the_option() {
    let input = "topics[0].input";
    for (pattern, lines, error) in [
        ("a(", "", format!("{input}.pattern: expected a regular expression, such as \"orders\\\\..*\", got \"a(\": unclosed group")),
        ("a)|(b", "", format!("{input}.pattern: expected a regular expression, such as \"orders\\\\..*\", got \"a)|(b\": unopened group")),
        ("", "", format!("{input}.pattern: must not be empty")),
        (
            ".*",
            "space = \"ids\"",
            "topics[0].space: topics that match a pattern cannot share a space, because they would need the same number of partitions: add {input}, such as \"ids-{input}\", or remove the option".to_owned(),
        ),
        (
            ".*",
            "output = \"{input}\"",
            "topics[0].output: \"{input}\" expands to the name of the input itself, so the worker would read its own output in an endless loop; use a name such as \"{input}.unseen\"".to_owned(),
        ),
        (
            ".*",
            "output = \"{topic}.x\"",
            "topics[0].output: expected a topic name of 1 to 249 characters from a-z, A-Z, 0-9, '.', '_', and '-', got \"{topic}.x\"; the only placeholder is {input}, for the topic that is read".to_owned(),
        ),
        (
            ".*",
            "[kafka]\nstart = \"latest\"\ninstance_id = \"a\"",
            "kafka.instance_id: topics[0].input is a pattern: the group assigns no partitions of new topics to static members (KAFKA-12759); remove this option, and the worker uses the id in state.dir instead of a static name\nx.toml: kafka.start: topics[0].input is a pattern: with \"latest\", the records that are written to a new topic before the worker finds it would be lost; use \"earliest\"".to_owned(),
        ),
    ] {
        let (lines, kafka) = lines.split_once("[kafka]").unwrap_or((lines, ""));
        let text = MINIMAL.replace("input = \"in\"", &format!("input = {{ pattern = '{pattern}' }}")).replace("output = \"out\"", lines);
        let text = text.replace("[kafka]", &format!("[kafka]{kafka}"));
        assert_eq!(load(&text).map(drop).unwrap_err(), format!("x.toml: {error}"), "{pattern} {lines}");
    }
    for input in ["{ pattern = 1 }", "{ pattern = \"a\", more = 1 }", "{ regex = \"a\" }"] {
        let error = load(&MINIMAL.replace("input = \"in\"", &format!("input = {input}"))).map(drop).unwrap_err();
        let wanted = "x.toml: topics[0].input: expected { pattern = \"…\" } with a regular expression, and nothing else, got {";
        assert!(error.starts_with(wanted), "{error}");
    }
}

#[test]
fn a_server_may_have_its_own_filter_for_a_topic_that_matches() {
    let serve = |space: &str| format!("[serve.filters.{space}]\nkind = \"cuckoo\"\ncapacity = 10");
    let with = |space| with("a.*", "space = \"ids-{input}\"", &serve(space));
    with("ids-abc").unwrap();
    for space in ["ids-b", "abc", "ids-"] {
        let error = with(space).map(drop).unwrap_err();
        assert!(error.contains(&format!("no topic has the space {space:?}")), "{error}");
    }
}

fn template() -> impl Strategy<Value = String> {
    prop_oneof![Just("x".to_owned()), "[ab.]{0,2}\\{input\\}[ab.]{1,2}", "[ab.]{1,2}\\{input\\}[ab.]{0,2}", "a\\{input\\}b\\{input\\}"]
}

proptest! {
    #[test]
    fn no_input_is_also_written(
        templates in proptest::collection::vec((template(), template()), 1..3),
        names in proptest::collection::btree_set("[ab.x]{1,5}", 0..40),
    ) {
        let entry = |(output, dead): &(String, String)| {
            entry("{ pattern = \".*\" }", &format!("output = \"{output}\"\non_invalid = {{ topic = \"{dead}\" }}"))
        };
        let (head, _) = MINIMAL.split_once("[[topics]]").unwrap();
        let config = load(&(head.to_owned() + &templates.iter().map(entry).collect::<String>())).unwrap();
        let (config, _) = config.expand(names.iter().map(String::as_str)).unwrap();
        let inputs: BTreeSet<_> = config.topics.iter().map(|topic| topic.input.as_str()).collect();
        let written: BTreeSet<_> = config.topics.iter().flat_map(Topic::outputs).map(|(_, name)| name).collect();
        prop_assert_eq!(inputs.intersection(&written).next(), None);
        prop_assert_eq!(inputs.len(), config.topics.len());
        prop_assert_eq!(config.spaces().len(), config.topics.len());
    }
}
