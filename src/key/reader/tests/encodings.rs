//! Tests of values that are encoded as a whole.

use super::*;
use crate::format::{Encoding, gzip};

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
fn the_content_of_an_encoded_event_is_decoded() {
    let (key, content) = (by(Part::RecordKey), by(Part::CloudEvent("type".to_owned())));
    let headers = [("content-type", Some(&b"application/cloudevents+json"[..]))];
    let read = |value: &[u8], formats: &Formats| {
        let spec = RecordSpec { key: &key, content: Some(&content), when: &[], retract: None, time: None, formats };
        let record = Record { key: Some(b"k"), value: Some(value), headers: &headers };
        Reader::default().read(spec, &record, Some(7), &mut Scratch::default(), &NoSchemas).map(|keyed| keyed.fingerprint).ok()
    };
    let event = br#"{"specversion":"1.0","id":"1","source":"/s","type":"opened"}"#;
    let plain = read(event, &formats(Format::Json));
    assert!(plain.is_some());
    assert_eq!(read(&encode(event), &encoded(Format::Json)), plain);
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
