//! Tests of event times.

use super::*;

/// Returns the time of a record, or the message of the error.
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
    let form = "is not a time after the start of 1970, as a number or as an RFC 3339 timestamp with a zone";
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
