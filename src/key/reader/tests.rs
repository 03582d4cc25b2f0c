use super::extractors::EXTRACTORS_MAX;
use super::*;
use crate::format::{Body, Encoding, LocalSchema, Lookup, Message, NoSchemas, Schema, SchemaError, gzip};
use crate::key::{EmbeddedField, Part};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A schema registry with these lookup results by id. All other schemas are unknown.
#[derive(Debug, Default)]
struct Few(Mutex<HashMap<SchemaId, Lookup>>);

impl Few {
    fn with(id: u32, lookup: Lookup) -> Self {
        let few = Self::default();
        few.set(id, lookup);
        few
    }

    fn set(&self, id: u32, lookup: Lookup) {
        self.0.lock().unwrap().insert(SchemaId::Number(id), lookup);
    }
}

impl Schemas for Few {
    fn get(&self, id: SchemaId) -> Lookup {
        self.0.lock().unwrap().get(&id).cloned().unwrap_or_else(|| Lookup::Unknown("it is not there".into()))
    }
}

fn avro(text: &str) -> Lookup {
    Lookup::Known(Arc::new(Schema::new(Format::Avro, Body::Text(text.to_owned()), Vec::new())))
}

const EVENT: &str = r#"{"type":"record","name":"Event","fields":[{"name":"at","type":"long"},{"name":"id","type":"string"}]}"#;
const LATER: &str = r#"{"type":"record","name":"Event","fields":[{"name":"id","type":"string"},{"name":"at","type":"long"}]}"#;

fn formats(format: Format) -> Formats {
    Formats::new(RecordFormat::default(), RecordFormat { format, ..RecordFormat::default() })
}

fn by(part: Part) -> KeySpec {
    KeySpec::new(vec![part]).unwrap()
}

fn by_id() -> KeySpec {
    by(Part::Field("/id".into()))
}

fn of(
    reader: &mut Reader,
    spec: &KeySpec,
    formats: &Formats,
    value: &[u8],
    schemas: &dyn Schemas,
) -> Result<Fingerprint, (Reason, String)> {
    let record = Record { value: Some(value), ..Record::default() };
    reader.fingerprint(spec, formats, &record, &mut Scratch::default(), schemas).map_err(|error| match error {
        NoKey::Invalid(invalid) => (invalid.reason, invalid.message),
        other => panic!("{other:?}"),
    })
}

fn json_id() -> Fingerprint {
    let value = Record { value: Some(br#"{"id":"a"}"#), ..Record::default() };
    by_id().fingerprint(&value, &mut Scratch::default()).unwrap()
}

#[test]
fn an_id_is_the_same_in_every_format_and_schema() {
    let schemas = Few::with(1, avro(EVENT));
    schemas.set(2, avro(LATER));
    let mut reader = Reader::default();
    let mut avro = |value: &[u8]| of(&mut reader, &by_id(), &formats(Format::Avro), value, &schemas);
    // Records with two schemas alternate, and each record is read with its own schema.
    for _ in 0..3 {
        assert_eq!(avro(&[0, 0, 0, 0, 1, 8, 2, b'a']), Ok(json_id()));
        assert_eq!(avro(&[0, 0, 0, 0, 2, 2, b'a', 8]), Ok(json_id()));
    }
    let framed = [&[0, 0, 0, 0, 9][..], br#" {"id": "a"}"#].concat();
    assert_eq!(of(&mut Reader::default(), &by_id(), &formats(Format::JsonSchema), &framed, &NoSchemas), Ok(json_id()));
}

#[test]
fn a_record_waits_for_its_schema_and_for_nothing_else() {
    let schemas = Few::with(1, Lookup::Awaited);
    let (mut reader, spec, formats) = (Reader::default(), by_id(), formats(Format::Avro));
    let record = Record { value: Some(&[0, 0, 0, 0, 1, 8, 2, b'a']), ..Record::default() };
    let mut read = |schemas: &Few| reader.fingerprint(&spec, &formats, &record, &mut Scratch::default(), schemas);
    assert_eq!(read(&schemas), Err(NoKey::Awaits(SchemaId::Number(1))));
    schemas.set(1, avro(EVENT));
    assert_eq!(read(&schemas), Ok(json_id()));
    // A compiled schema is not requested again.
    schemas.set(1, Lookup::Awaited);
    assert_eq!(read(&schemas), Ok(json_id()));
}

#[test]
fn unreadable_values_are_invalid_with_the_reason() {
    let schemas = Few::with(1, avro(EVENT));
    schemas.set(3, avro("{}"));
    schemas.set(4, Lookup::Known(Arc::new(Schema::new(Format::JsonSchema, Body::Text("{}".into()), vec![]))));
    let mut reader = Reader::default();
    let mut fault = |value: &[u8]| of(&mut reader, &by_id(), &formats(Format::Avro), value, &schemas).unwrap_err();
    for (value, reason, words) in [
        (&b"{\"id\":\"a\"}"[..], Reason::Malformed, "does not begin with the frame of a schema registry"),
        (b"\x1f\x8b\x08\x00", Reason::Malformed, "does not begin with the frame of a schema registry: it is compressed with gzip"),
        (b"", Reason::Malformed, "is empty"),
        (&[0, 0, 0], Reason::Malformed, "ends within the frame"),
        (&[0, 0, 0, 0, 1, 8, 2], Reason::Malformed, "does not match its schema: at byte"),
        (&[0, 0, 0, 0, 2, 8], Reason::UnknownSchema, "has schema 2, but it is not there"),
        (&[0, 0, 0, 0, 3, 8], Reason::UnknownSchema, "has schema 3, which cannot be used"),
        (&[0, 0, 0, 0, 4, 8], Reason::UnknownSchema, "a schema for JSON Schema, not for Avro"),
    ] {
        // The second read uses the cached extractor.
        for _ in 0..2 {
            let (found, message) = fault(value);
            assert!(found == reason && message.contains(words), "{value:?}: {found:?}: {message}");
        }
    }
}

#[test]
fn a_frame_is_no_part_of_what_it_is_around() {
    let plain = br#"{"id":1,"at":2}"#;
    for part in [Part::RecordValue, Part::Content { except: vec!["/at".into()] }] {
        let bare = of(&mut Reader::default(), &by(part.clone()), &Formats::default(), plain, &NoSchemas);
        for id in [1, 2] {
            let framed = [&[0, 0, 0, 0, id][..], plain].concat();
            assert_eq!(of(&mut Reader::default(), &by(part.clone()), &formats(Format::JsonSchema), &framed, &NoSchemas), bare, "{part}");
        }
    }
}

#[test]
fn the_schema_id_can_be_in_a_header() {
    #[derive(Debug)]
    struct ByGuid;
    impl Schemas for ByGuid {
        fn get(&self, id: SchemaId) -> Lookup {
            if id == SchemaId::Guid([7; 16]) { avro(EVENT) } else { Lookup::Awaited }
        }
    }
    let head = [&[1][..], &[7; 16]].concat();
    let record = Record { key: None, value: Some(&[8, 2, b'a']), headers: &[(VALUE_HEADER, Some(&head))] };
    let read = Reader::default().fingerprint(&by_id(), &formats(Format::Avro), &record, &mut Scratch::default(), &ByGuid);
    assert_eq!(read, Ok(json_id()));
    // A frame in the header for the key does not apply to the value.
    let record = Record { headers: &[(KEY_HEADER, Some(&head))], ..record };
    let read = Reader::default().fingerprint(&by_id(), &formats(Format::Avro), &record, &mut Scratch::default(), &ByGuid);
    assert!(matches!(read, Err(NoKey::Invalid(_))), "{read:?}");
}

#[test]
fn a_tombstone_has_no_frame() {
    let record = Record { key: Some(b"k"), ..Record::default() };
    let read = |part| Reader::default().fingerprint(&by(part), &formats(Format::Avro), &record, &mut Scratch::default(), &NoSchemas);
    assert!(matches!(read(Part::Field("/id".into())), Err(NoKey::Invalid(invalid)) if invalid.reason == Reason::Tombstone));
    assert!(read(Part::RecordKey).is_ok(), "its value is not looked at");
}

#[test]
fn records_without_a_frame_are_of_one_schema() {
    let schema = Schema::new(Format::Avro, Body::Text(EVENT.into()), vec![]);
    let local = Some(Arc::new(LocalSchema { schema, message: None }));
    let formats = Formats::new(RecordFormat::default(), RecordFormat { format: Format::Avro, schema: local, ..RecordFormat::default() });
    let mut reader = Reader::default();
    assert_eq!(of(&mut reader, &by_id(), &formats, &[8, 2, b'a'], &NoSchemas), Ok(json_id()));
    for (value, hint) in [
        (&[0, 0, 0, 0, 1, 8, 2, b'a'][..], "it begins like a record with a schema id"),
        (b"\x1f\x8b\x08\x00", "it is compressed with gzip"),
    ] {
        let (reason, message) = of(&mut reader, &by_id(), &formats, value, &NoSchemas).unwrap_err();
        assert!(reason == Reason::Malformed && message.contains(hint), "{message}");
    }
}

#[test]
fn the_number_of_cached_extractors_is_bounded() {
    #[derive(Debug)]
    struct All;
    impl Schemas for All {
        fn get(&self, _: SchemaId) -> Lookup {
            avro(r#"{"type":"record","name":"E","fields":[{"name":"id","type":"string"}]}"#)
        }
    }
    let mut reader = Reader::default();
    for id in 0..2 * u32::try_from(EXTRACTORS_MAX).unwrap() + 5 {
        let value = [&[0][..], &id.to_be_bytes(), &[2, b'a']].concat();
        assert_eq!(of(&mut reader, &by_id(), &formats(Format::Avro), &value, &All), Ok(json_id()));
        assert!(reader.value.known.len() <= EXTRACTORS_MAX && reader.value.numbers.len() <= EXTRACTORS_MAX);
    }
}

#[test]
fn places_that_no_record_can_have_are_found() -> Result<(), SchemaError> {
    let schema = Schema::new(Format::Avro, Body::Text(EVENT.into()), vec![]);
    let spec = KeySpec::new(vec![Part::Field("/id".into()), Part::KeyField("/k".into()), Part::Field("/no/where".into())]).unwrap();
    assert_eq!(spec.missing_in(&schema, Message::First, Side::Value)?, ["/no/where"]);
    assert_eq!(spec.missing_in(&schema, Message::First, Side::Key)?, ["/k"]);
    Ok(())
}

const WIDE: &str = r#"{"type":"record","name":"Wide","fields":[
    {"name":"id","type":"string"},{"name":"user","type":["null",{"type":"record","name":"User","fields":[{"name":"n","type":"long"},{"name":"next","type":["null","User"]}]}]},
    {"name":"tags","type":{"type":"array","items":"string"}},{"name":"score","type":"double"},
    {"name":"attributes","type":{"type":"map","values":"boolean"}},{"name":"kind","type":{"type":"enum","name":"Kind","symbols":["a","b"]}},
    {"name":"cents","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}}]}"#;
const WIDE_MESSAGE: &str = r#"syntax = "proto3"; message Wide { string id = 1; User user = 2; repeated string tags = 3; double score = 4;
    map<string, bool> attributes = 5; Kind kind = 6; } enum Kind { a = 0; b = 1; } message User { int64 n = 1; User next = 2; }"#;

/// Returns a record in Avro and in Protobuf, each with its schema and the equal JSON.
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

fn of_schema(format: Format, text: &str) -> Formats {
    let schema = Schema::new(format, Body::Text(text.to_owned()), Vec::new());
    Formats::new(
        RecordFormat::default(),
        RecordFormat { format, schema: Some(Arc::new(LocalSchema { schema, message: None })), ..RecordFormat::default() },
    )
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
            // A truncated Protobuf message can be valid, but is then a different message.
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

fn encoded(format: Format) -> Formats {
    let value = RecordFormat { format, encodings: vec![Encoding::Base64, Encoding::Gzip], ..RecordFormat::default() };
    Formats::new(RecordFormat::default(), value)
}

fn encode(value: &[u8]) -> Vec<u8> {
    data_encoding::BASE64.encode(&gzip(value)).into_bytes()
}

#[test]
fn an_encoded_value_is_decoded_before_it_is_read() {
    let (schemas, mut reader) = (Few::with(1, avro(EVENT)), Reader::default());
    let json = br#"{"id":"a","at":4}"#;
    for (format, value) in [(Format::Json, &json[..]), (Format::Avro, &[0, 0, 0, 0, 1, 8, 2, b'a'])] {
        for part in [Part::Field("/id".into()), Part::RecordValue, Part::Content { except: Vec::new() }] {
            let bare = of(&mut Reader::default(), &by(part.clone()), &formats(format), value, &schemas);
            assert!(bare.is_ok());
            assert_eq!(
                of(&mut Reader::default(), &by(part.clone()), &encoded(format), &encode(value), &schemas),
                bare,
                "{part} of {format}"
            );
        }
    }
    for (value, message) in [
        (json.to_vec(), "the record value is not base64: "),
        (data_encoding::BASE64.encode(json).into_bytes(), "the record value is not gzip: it does not begin with 0x1f 0x8b"),
        (encode(b"{"), "the record value is not JSON: "),
    ] {
        let (reason, got) = of(&mut reader, &by_id(), &encoded(Format::Json), &value, &schemas).unwrap_err();
        assert!(reason == Reason::Malformed && got.starts_with(message), "{got}");
    }
    let null = reader.fingerprint(&by_id(), &encoded(Format::Json), &Record::default(), &mut Scratch::default(), &schemas);
    assert!(matches!(null, Err(NoKey::Invalid(invalid)) if invalid.reason == Reason::Tombstone));
    // This key does not need the value, so an invalid encoding of the value is not an error.
    assert!(
        of(&mut reader, &KeySpec::new(vec![Part::RecordKey]).unwrap(), &encoded(Format::Json), b"{", &schemas)
            .is_err_and(|error| error.0 == Reason::NullKey)
    );
}

#[test]
fn retractions_and_times_are_in_the_decoded_value() {
    let (key, retract) = (by(Part::RecordKey), Predicate::field(Side::Value, "/op").unwrap().one_of(vec!["d".to_owned()]));
    let read = |value: &[u8], retract, optional| {
        let time = EventTime { place: TimePlace::field("/at").unwrap(), unit: None, optional };
        let formats = encoded(Format::Json);
        let spec = RecordSpec { key: &key, content: None, when: &[], retract, time: Some(&time), formats: &formats };
        let record = Record { key: Some(b"k"), value: Some(value), headers: &[] };
        Reader::default().read(spec, &record, Some(7), &mut Scratch::default(), &NoSchemas).map(|keyed| (keyed.retracts, keyed.time)).ok()
    };
    let value = encode(br#"{"op":"d","at":1767268800}"#);
    assert_eq!(read(&value, Some(&retract), false), Some((true, Some(1_767_268_800_000))));
    // Only the event time needs the value, so the invalid value is an error only if the time is required.
    assert_eq!(read(b"{", None, true), Some((false, Some(7))));
    assert_eq!(read(b"{", None, false), None);
    assert_eq!(read(b"{", Some(&retract), true), None);
}

#[test]
fn fields_and_contents_are_those_of_the_decoded_value() {
    let (mut reader, formats, field) = (ValueReader::default(), encoded(Format::Json), Field::new("/id").unwrap());
    let value = encode(br#"{"id":"a"}"#);
    let found = reader.text(&field, formats.value(), &value, std::iter::empty(), &NoSchemas).map(Cow::into_owned);
    assert_eq!(found.as_deref(), Some("a"));
    assert_eq!(reader.text(&field, formats.value(), b"{}", std::iter::empty(), &NoSchemas), None);
    for (value, text) in [(&value[..], &br#"{"id":"a"}"#[..]), (b"plain text", b"plain text")] {
        let opened = reader.open(formats.value(), Some(value), std::iter::empty(), &NoSchemas).unwrap();
        assert_eq!(opened.text, Some(text), "a value that cannot be decoded is compared as it is");
    }
}

#[test]
fn a_part_can_be_in_the_json_of_a_text_field() {
    let formats = of_schema(Format::Avro, r#"{"type":"record","name":"R","fields":[{"name":"body","type":"string"}]}"#);
    let text = br#"{"id":"a"}"#;
    let value = [&[u8::try_from(text.len()).unwrap() * 2], &text[..]].concat();
    let within = Part::Embedded(Box::new(Part::Field("/body".into())), EmbeddedField::new("/id").unwrap());
    assert_eq!(of(&mut Reader::default(), &by(within), &formats, &value, &NoSchemas), Ok(json_id()));
}

/// Returns the time of a record with this value and these headers, or the error message.
fn time_of(
    place: TimePlace,
    optional: bool,
    formats: &Formats,
    value: Option<&[u8]>,
    headers: &[(&str, Option<&[u8]>)],
) -> Result<Option<i64>, String> {
    let schemas = Few::with(1, avro(EVENT));
    let time = EventTime { place, unit: None, optional };
    let record = Record { key: Some(b"k"), value, headers };
    let key = by(Part::RecordKey);
    let spec = RecordSpec { key: &key, content: None, when: &[], retract: None, time: Some(&time), formats };
    let read = Reader::default().read(spec, &record, Some(7), &mut Scratch::default(), &schemas);
    read.map(|keyed| keyed.time).map_err(|error| match error {
        NoKey::Invalid(invalid) => {
            assert_eq!(invalid.reason, Reason::Malformed);
            invalid.message
        }
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_time_is_found_in_any_format_and_in_headers() {
    let (json, framed) = (Formats::default(), formats(Format::Avro));
    let at = || TimePlace::field("/at").unwrap();
    // 1,767,268,800,123,456 microseconds, in zigzag encoding.
    let avro = [0, 0, 0, 0, 1, 0x80, 0xc9, 0xee, 0xd0, 0xca, 0xd4, 0xa3, 6, 2, b'a'];
    assert_eq!(time_of(at(), false, &framed, Some(&avro), &[]), Ok(Some(1_767_268_800_123)));
    assert_eq!(time_of(at(), false, &json, Some(br#"{"at":"2026-01-01T12:00:00.5Z"}"#), &[]), Ok(Some(1_767_268_800_500)));
    assert_eq!(time_of(at(), false, &json, Some(br#"{"at":1,"at":1767268800}"#), &[]), Ok(Some(1_767_268_800_000)), "the last counts");
    let headers: [(&str, Option<&[u8]>); 2] = [("at", Some(b"1")), ("at", Some(b"1767268800123"))];
    assert_eq!(time_of(TimePlace::Header("at".into()), false, &json, None, &headers), Ok(Some(1_767_268_800_123)));
}

#[test]
fn a_record_without_a_usable_time_is_invalid_or_has_that_of_kafka() {
    let (json, framed) = (Formats::default(), formats(Format::Avro));
    let (at, header) = (|| TimePlace::field("/at").unwrap(), || TimePlace::Header("at".into()));
    let null: [(&str, Option<&[u8]>); 1] = [("at", None)];
    let text: [(&str, Option<&[u8]>); 1] = [("at", Some(b"noon"))];
    let advice = "; to use Kafka's timestamp instead, set optional = true in `time`";
    let form = "is not a number since 1970, or an RFC 3339 timestamp with a zone";
    for (place, formats, value, headers, message) in [
        (at(), &json, Some(&br#"{"t":1}"#[..]), &[][..], "no event time: the record has no field `/at`".to_owned()),
        (at(), &json, Some(br#"{"at":null}"#), &[], format!("no event time: field `/at` is null{advice}")),
        (at(), &json, Some(br#"{"at":true}"#), &[], format!("no event time: field `/at` {form}{advice}")),
        (at(), &json, Some(br#"{"at":-1}"#), &[], format!("no event time: field `/at` {form}{advice}")),
        (at(), &json, None, &[], format!("no event time: the record value is null{advice}")),
        (at(), &json, Some(b"{"), &[], "the record value is not JSON".to_owned()),
        (at(), &framed, Some(&[0, 0, 0, 0, 1]), &[], "the record value does not match its schema".to_owned()),
        (at(), &framed, Some(b"x"), &[], "the record value".to_owned()),
        (header(), &json, None, &[], format!("no event time: the record has no header `at`{advice}")),
        (header(), &json, None, &null, format!("no event time: header `at` is null{advice}")),
        (header(), &json, None, &text, format!("no event time: header `at` {form}{advice}")),
    ] {
        let invalid = time_of(place.clone(), false, formats, value, headers).unwrap_err();
        assert!(invalid.starts_with(&message), "{invalid}");
        assert_eq!(time_of(place, true, formats, value, headers), Ok(Some(7)));
    }
}

/// Returns true if `when` selects a record, or the reason why a predicate cannot be tested.
fn selects(when: &[Predicate], formats: &Formats, record: &Record<'_>) -> Result<bool, Reason> {
    let (key, schemas) = (by(Part::RecordKey), Few::with(1, avro(EVENT)));
    let spec = RecordSpec { key: &key, content: None, when, retract: None, time: None, formats };
    let mut reader = Reader::default();
    // The second read uses the cached extractors.
    let [first, second] = [(); 2].map(|()| reader.read(spec, record, None, &mut Scratch::default(), &schemas));
    assert_eq!(first, second);
    match first {
        Ok(_) => Ok(true),
        Err(NoKey::Passes) => Ok(false),
        // `NullKey` is reported only for selected records.
        Err(NoKey::Invalid(invalid)) if invalid.reason == Reason::NullKey => Ok(true),
        Err(NoKey::Invalid(invalid)) => Err(invalid.reason),
        Err(NoKey::Awaits(schema)) => panic!("awaits {schema}"),
    }
}

#[test]
fn a_predicate_tests_a_field_a_header_or_the_record_key() {
    let (json, framed) = (Formats::default(), formats(Format::Avro));
    let field = |pointer: &str| Predicate::field(Side::Value, pointer).unwrap();
    let one_of = |predicate: Predicate, values: &[&str]| predicate.one_of(values.iter().map(|&value| value.to_owned()).collect());
    let headers: [(&str, Option<&[u8]>); 3] = [("h", Some(b"a")), ("h", Some(b"b")), ("null", None)];
    let value = br#"{"type":"or\u0064er","n":1.50,"ok":true,"none":null,"list":[0],"id":7}"#;
    let avro = [0, 0, 0, 0, 1, 2, 2, b'a'];
    let record = Record { key: Some(br#"{"k":1}"#), value: Some(value), headers: &headers };
    let framed_record = Record { value: Some(&avro), ..record };
    for (predicate, formats, record, holds) in [
        (one_of(field("/type"), &["a", "order"]), &json, record, true),
        (one_of(field("/type"), &["orde", "orders"]), &json, record, false),
        (one_of(field("/n"), &["1.50"]), &json, record, true),
        (one_of(field("/n"), &["1.5"]), &json, record, false),
        (one_of(field("/ok"), &["true"]), &json, record, true),
        (one_of(field("/none"), &["null"]), &json, record, false),
        (one_of(field("/list"), &["[0]"]), &json, record, false),
        (one_of(field("/absent"), &["a"]), &json, record, false),
        (field("/none"), &json, record, false),
        (field("/list"), &json, record, true),
        (field("/absent"), &json, record, false),
        (one_of(field("/id"), &["a"]), &framed, framed_record, true),
        (one_of(field("/at"), &["1"]), &framed, framed_record, true),
        (field("/absent"), &framed, framed_record, false),
        (one_of(Predicate::field(Side::Key, "/k").unwrap(), &["1"]), &json, record, true),
        (one_of(Predicate::header("h"), &["b"]), &json, record, true),
        (one_of(Predicate::header("h"), &["a"]), &json, record, false),
        (one_of(Predicate::header("null"), &[""]), &json, record, false),
        (Predicate::header("null"), &json, record, true),
        (Predicate::header("H"), &json, record, false),
        (one_of(Predicate::record_key(), &["{\"k\":1}"]), &json, record, true),
        (Predicate::record_key(), &json, Record { key: None, ..record }, false),
    ] {
        assert_eq!(selects(std::slice::from_ref(&predicate), formats, &record), Ok(holds), "{predicate:?}");
        // A negated predicate holds if a place is absent.
        assert_eq!(selects(&[predicate.clone().negate()], formats, &record), Ok(!holds), "not {predicate:?}");
    }
}

#[test]
fn all_predicates_hold_and_the_first_that_does_not_decides() {
    let (json, framed) = (Formats::default(), formats(Format::Avro));
    let (yes, no) = (Predicate::record_key, || Predicate::header("h"));
    let field = |side| Predicate::field(side, "/type").unwrap();
    let record = Record { key: Some(b"{"), value: Some(b"{"), headers: &[] };
    assert_eq!(selects(&[], &json, &record), Ok(true));
    assert_eq!(selects(&[yes(), no().negate()], &json, &record), Ok(true));
    assert_eq!(selects(&[yes(), no()], &json, &record), Ok(false));
    for side in [Side::Key, Side::Value] {
        assert_eq!(selects(&[yes(), field(side)], &json, &record), Err(Reason::Malformed));
        assert_eq!(selects(&[field(side).negate()], &json, &record), Err(Reason::Malformed));
        assert_eq!(selects(&[no(), field(side)], &json, &record), Ok(false), "the value does not matter");
    }
    for (value, reason) in [(&[0, 0, 0, 0, 2, 2, 2, b'a'][..], Reason::UnknownSchema), (b"x", Reason::Malformed)] {
        let record = Record { value: Some(value), ..record };
        assert_eq!(selects(&[field(Side::Value)], &framed, &record), Err(reason));
    }
    // A null value has no fields.
    let null = Record { key: Some(b"k"), value: None, headers: &[] };
    assert_eq!(selects(&[field(Side::Value)], &json, &null), Ok(false));
    assert_eq!(selects(&[field(Side::Value).negate()], &json, &null), Ok(true));
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
