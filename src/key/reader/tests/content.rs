//! Tests of fields and contents of values, in all formats.

use super::*;
use crate::key::EmbeddedField;

const WIDE: &str = r#"{"type":"record","name":"Wide","fields":[
    {"name":"id","type":"string"},{"name":"user","type":["null",{"type":"record","name":"User","fields":[{"name":"n","type":"long"},{"name":"next","type":["null","User"]}]}]},
    {"name":"tags","type":{"type":"array","items":"string"}},{"name":"score","type":"double"},
    {"name":"attributes","type":{"type":"map","values":"boolean"}},{"name":"kind","type":{"type":"enum","name":"Kind","symbols":["a","b"]}},
    {"name":"cents","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}}]}"#;
const WIDE_MESSAGE: &str = r#"syntax = "proto3"; message Wide { string id = 1; User user = 2; repeated string tags = 3; double score = 4;
    map<string, bool> attributes = 5; Kind kind = 6; } enum Kind { a = 0; b = 1; } message User { int64 n = 1; User next = 2; }"#;

/// Returns a record in Avro and in Protobuf, each with its schema and with the same record in JSON.
fn wide(id: u8) -> [(Format, &'static str, Vec<u8>, String); 2] {
    let score = 0.75_f64.to_le_bytes();
    let avro = [&[2, id, 2, 14, 2, 16, 0, 4, 2, b'x', 2, b'y', 0][..], &score, &[2, 2, b'k', 1, 0, 2, 4, 0x30, 0x39]].concat();
    let protobuf =
        [&[10, 1, id, 18, 6, 8, 7, 18, 2, 8, 8, 26, 1, b'x', 26, 1, b'y', 33][..], &score, &[42, 5, 10, 1, b'k', 16, 1, 48, 1]].concat();
    let id = char::from(id);
    let rest = r#""tags": ["x", "y"], "score": 0.75, "attributes": {"k": true}, "kind": "b""#;
    [
        (
            Format::Avro,
            WIDE,
            avro,
            format!(r#"{{ "id": "{id}", "user": {{"next": {{"n": 8, "next": null}}, "n": 7}}, "cents": 123.45, {rest} }}"#),
        ),
        (Format::Protobuf, WIDE_MESSAGE, protobuf, format!(r#"{{ "id": "{id}", "user": {{"next": {{"n": 8}}, "n": 7}}, {rest} }}"#)),
    ]
}

#[test]
fn content_is_the_same_in_every_format() {
    let content = |except: &[&str]| by(Part::Content { except: except.iter().map(|&pointer| pointer.to_owned()).collect() });
    for (format, schema, value, json) in wide(b'1') {
        let formats = of_schema(format, schema);
        let take = |spec: &KeySpec, value: &[u8]| of(&mut Reader::default(), spec, &formats, value, &NoSchemas);
        let as_json = |spec: &KeySpec| of(&mut Reader::default(), spec, &Formats::default(), json.as_bytes(), &NoSchemas);
        for except in [&[][..], &["/score"], &["/user/next/n", "/tags/1", "/attributes"]] {
            assert_eq!(take(&content(except), &value), as_json(&content(except)), "{format} without {except:?}");
        }
        let other = wide(b'2').into_iter().find(|other| other.0 == format).unwrap().2;
        assert_ne!(take(&content(&[]), &value), take(&content(&[]), &other));
        assert_eq!(take(&content(&["/id"]), &value), take(&content(&["/id"]), &other));
        let both = KeySpec::new(vec![Part::Field("/id".into()), Part::Content { except: vec![] }]).unwrap();
        assert_eq!(take(&both, &value), as_json(&both));
        for end in 0..value.len() {
            // A truncated Protobuf message can be valid but is then a different message.
            let torn = take(&content(&[]), &value[..end]);
            assert!(torn.is_err() || format == Format::Protobuf && torn != take(&content(&[]), &value), "{format}: {end}");
        }
    }
}

#[test]
fn unknown_fields_of_a_message_are_content() {
    let formats = of_schema(Format::Protobuf, "syntax = \"proto3\"; message M { string id = 1; }");
    let take = |value: &[u8]| of(&mut Reader::default(), &by(Part::Content { except: vec![] }), &formats, value, &NoSchemas).unwrap();
    assert_ne!(take(&[10, 1, b'a', 16, 1]), take(&[10, 1, b'a', 16, 2]));
    assert_eq!(take(&[10, 1, b'a', 16, 1]), take(&[16, 1, 10, 1, b'a']));
}

#[test]
fn fields_are_read_from_values_of_every_format() {
    for (format, schema, value, json) in wide(b'1') {
        let formats = of_schema(format, schema);
        for (pointer, expected) in [("/id", Some("1")), ("/user/next/n", Some("8")), ("/kind", Some("b")), ("/no", None)] {
            let field = Field::new(pointer).unwrap();
            let text = |formats: &Formats, value: &[u8]| {
                let mut reader = ValueReader::default();
                reader.text(&field, formats.value(), value, std::iter::empty(), &NoSchemas).map(Cow::into_owned)
            };
            assert_eq!(text(&formats, &value).as_deref(), expected, "{format} {pointer}");
            assert_eq!(text(&Formats::default(), json.as_bytes()).as_deref(), expected, "{format} {pointer}");
        }
        let leaves = |formats: &Formats, value: &[u8]| {
            let (mut reader, mut leaves) = (ValueReader::default(), Vec::new());
            let mut opened = reader.open(formats.value(), Some(value), std::iter::empty(), &NoSchemas).unwrap();
            assert!(opened.leaves(2, |leaf| leaves.push((leaf.pointer.to_owned(), leaf.digest))));
            leaves.sort_unstable();
            leaves
        };
        let found = leaves(&formats, &value);
        assert_eq!(found, leaves(&Formats::default(), json.as_bytes()), "{format}");
        let pointers: Vec<_> = found.iter().map(|(pointer, _)| pointer.as_str()).filter(|pointer| *pointer != "/cents").collect();
        assert_eq!(pointers, ["/attributes/k", "/id", "/kind", "/score", "/tags", "/user/n", "/user/next"]);
    }
}

#[test]
fn a_value_whose_schema_is_requested_is_not_compared() {
    let schemas = Few::with(1, Lookup::Awaited);
    let (mut reader, format) = (ValueReader::default(), formats(Format::Avro).value().clone());
    assert!(reader.open(&format, Some(&[0, 0, 0, 0, 1, 8, 2, b'a']), std::iter::empty(), &schemas).is_none());
    schemas.set(1, avro(EVENT));
    let mut opened = reader.open(&format, Some(&[0, 0, 0, 0, 1, 8, 2, b'a']), std::iter::empty(), &schemas).unwrap();
    assert_eq!((opened.text, opened.leaves(1, |_| ())), (Some(&[8, 2, b'a'][..]), true));
}

#[test]
fn a_part_can_be_in_the_json_of_a_text_field() {
    let formats = of_schema(Format::Avro, r#"{"type":"record","name":"R","fields":[{"name":"body","type":"string"}]}"#);
    let text = br#"{"id":"a"}"#;
    let value = [&[u8::try_from(text.len()).unwrap() * 2], &text[..]].concat();
    let within = Part::Embedded(Box::new(Part::Field("/body".into())), EmbeddedField::new("/id").unwrap());
    assert_eq!(of(&mut Reader::default(), &by(within), &formats, &value, &NoSchemas), Ok(json_id()));
}

#[test]
fn contents_are_compared_regardless_of_what_is_not_compared() {
    let (key, retract, schemas) = (by(Part::RecordKey), Predicate::header("gone"), Few::with(1, avro(EVENT)));
    let optional = |part: Part| Part::Optional(Box::new(part));
    let field = || KeySpec::new(vec![optional(Part::Field("/state".to_owned()))]).unwrap();
    let all_but = || KeySpec::new(vec![optional(Part::Content { except: vec!["/ts".to_owned()] })]).unwrap();
    let whole = || KeySpec::new(vec![Part::RecordValue]).unwrap();
    let json = Formats::default();
    let of = |content: &KeySpec, value: Option<&[u8]>, headers: &[(&str, Option<&[u8]>)]| {
        let spec = RecordSpec { key: &key, content: Some(content), when: &[], retract: Some(&retract), time: None, formats: &json };
        let record = Record { key: Some(b"k"), value, headers };
        Reader::default().read(spec, &record, None, &mut Scratch::default(), &schemas).map(|keyed| keyed.fingerprint)
    };
    let (on, on_later, off): (&[u8], &[u8], &[u8]) =
        (br#"{"state":"on","ts":1}"#, br#"{ "ts":2, "state":"on" }"#, br#"{"state":"off","ts":1}"#);
    for (content, is_same) in [(field(), true), (all_but(), true), (whole(), false)] {
        assert_eq!(of(&content, Some(on), &[]) == of(&content, Some(on_later), &[]), is_same, "{content}");
        let contents = [Some(on), Some(off), Some(&b"{}"[..]), None].map(|value| of(&content, value, &[]).unwrap());
        let distinct: std::collections::HashSet<_> = contents.into_iter().collect();
        assert_eq!(distinct.len(), 4, "{content}: a null value is a content of its own");
        assert!(contents.iter().all(|content| content.low() == contents[0].low()), "the key is the same");
    }
    assert_eq!(of(&field(), Some(br#"{"state":null}"#), &[]), of(&field(), Some(b"{}"), &[]), "missing and null are the same");
    assert_ne!(of(&all_but(), Some(b"null"), &[]), of(&all_but(), None, &[]));
    assert!(matches!(of(&field(), Some(b"on"), &[]), Err(NoKey::Invalid(invalid)) if invalid.reason == Reason::Malformed));
    assert!(of(&field(), Some(b"on"), &[("gone", None)]).is_ok(), "a retraction needs no content");
}

#[test]
fn contents_without_any_part_are_counted() {
    let (key, formats, mut reader) = (by(Part::RecordKey), Formats::default(), Reader::default());
    let content = KeySpec::new(vec![Part::Optional(Box::new(Part::Field("/stat".to_owned())))]).unwrap();
    let mut counts = |values: &[Option<&[u8]>]| {
        for &value in values {
            let spec = RecordSpec { key: &key, content: Some(&content), when: &[], retract: None, time: None, formats: &formats };
            let record = Record { key: Some(b"k"), value, headers: &[] };
            reader.read(spec, &record, None, &mut Scratch::default(), &NoSchemas).unwrap();
        }
        let ContentCounts { read, with_parts } = reader.take_content_counts();
        (read, with_parts)
    };
    assert_eq!(counts(&[Some(br#"{"state":"on"}"#), Some(br#"{"stat":null}"#), Some(br#"{"stat":1}"#)]), (3, 1));
    assert_eq!(counts(&[None]), (0, 0), "a null value has no parts at all");
}
