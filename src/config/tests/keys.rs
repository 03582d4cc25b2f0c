//! Tests of key parts.

use super::{MINIMAL, load, refused};

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
            "x.toml: topics[0].key: `except` excludes the whole value, so nothing is left to compare: exclude single fields instead"
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
fn the_cloudevents_preset_is_the_source_and_the_id() {
    let with = |key: &str| MINIMAL.replace("{ record = \"key\" }", key);
    let preset = load(&with("\"cloudevents\"")).unwrap().topics[0].key.to_string();
    assert_eq!(preset, "CloudEvents attribute `source` and CloudEvents attribute `id`");
    assert_eq!(load(&with("[{ cloudevent = \"source\" }, { cloudevent = \"id\" }]")).unwrap().topics[0].key.to_string(), preset);
    assert!(load(&with("\"cloudevent\"")).is_err());
    let error = load(&with("{ cloudevent = \"ce-id\" }")).unwrap_err();
    assert_eq!(
        error.trim(),
        "x.toml: topics[0].key: `ce-id` is not the name of a CloudEvents attribute: such names consist of ASCII letters and digits"
    );
}
