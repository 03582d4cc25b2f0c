//! Tests of the options of a topic that determine how its records are read, selected, and compared.

use super::{MINIMAL, load, refused};
use crate::format::Encoding;
use crate::key::TimeUnit;

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
            "emit.on_change: `except` excludes the whole value, so nothing is left to compare: exclude single fields instead",
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
            "x.toml: topics[0].key_conflicts: `/a/b/c/d/e` has more than 4 levels; the comparison treats everything below level 4 as one field, so use a parent with at most 4 levels"
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
