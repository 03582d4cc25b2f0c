//! Tests of waiting for schemas, of frames, and of the cache of extractors.

use super::*;
use crate::format::{Message, SchemaError};
use crate::key::reader::extractors::EXTRACTORS_MAX;

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
