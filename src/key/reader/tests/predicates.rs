//! Tests of predicates that select records.

use super::*;

/// Returns true if `when` selects a record. Returns the reason if a predicate cannot be tested.
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
        // Negation inverts every result, so a negated predicate also holds if the place is absent.
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
