//! Tests of entries with several inputs and of inputs with several entries.

use super::{MINIMAL, load};
use crate::config::Config;

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
    // An entry whose list has only one input can also use `{input}` in other names.
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
        (
            "[\"a\", \"b\", \"a\"]",
            "",
            "topics[0].input[2]: \"a\" is already the input at topics[0].input[0]; remove one of the two".to_owned(),
        ),
        (
            "[\"a\", \"b\"]",
            "output = \"{topic}.x\"",
            format!("topics[0].output: {characters} \"{{topic}}.x\"; the only placeholder is {{input}}, for the topic that is read"),
        ),
        (
            "[\"a\", \"a.x\"]",
            "output = \"{input}.x\"",
            "topics[0].output: \"a.x\" is the input of topics[0], and a topic cannot be both an input and an output of one configuration; use another topic".to_owned(),
        ),
    ] {
        assert_eq!(listed(inputs, lines), error, "{inputs} {lines}");
    }
    // Both topics of the entry have this error, but it is reported only once.
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
            "topics[1].repartition: topics[0] has the same input, \"in\", and must have the same value, because repartitioning applies to the whole input",
        ),
        (
            "output = \"out\"\nspace = \"in-2\"\nkey_format = \"json\"\nvalue_encoding = \"gzip\"",
            "topics[1].value_encoding: topics[0] has the same input, \"in\", and must have the same value, because each record has one encoding",
        ),
        (
            "space = \"in-2\"",
            "topics[1].output: topics[0] also has the input \"in\": set an output for both or for neither, because unseen records of the entry without an output would be lost",
        ),
    ] {
        assert_eq!(with(second).unwrap_err(), format!("x.toml: {error}"), "{second}");
    }
    // The second entry takes all records that the first entry leaves, so a third entry would get none.
    let third = "input = \"in\"\noutput = \"out\"\nspace = \"in-3\"";
    assert_eq!(
        load_all(&[FIRST, "input = \"in\"\noutput = \"out\"\nspace = \"in-2\"", third]).unwrap_err(),
        "x.toml: topics[2].input: \"in\" is already the input of topics[1], which has no `when` and leaves no records for this entry; set `when` in topics[1], or move topics[1] after this entry"
    );
    let many: Vec<_> = (0..9).map(|number| format!("{FIRST}\nspace = \"s{number}\"")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(load_all(&many[..8]).is_ok());
    assert_eq!(
        load_all(&many).unwrap_err(),
        "x.toml: topics[8].input: \"in\" already has 8 entries and cannot have more; combine some of them"
    );
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
