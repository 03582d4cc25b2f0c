//! Checks that any bytes have a fingerprint or are rejected, and that the result is always the same. Reading a field without building a DOM
//! must give the same value as reading the field from a DOM.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use std::ops::Range;
use unseen::key::{Field, KeySpec, Normalizer, Normalizers, Part, Scratch};
use unseen::record::Record;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    parts: Vec<AnyPart>,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: Vec<(&'a str, Option<&'a [u8]>)>,
    /// A range of the value to replace in a later record and the new bytes.
    change: (Range<u16>, &'a [u8]),
}

#[derive(Arbitrary, Debug)]
enum AnyPart {
    RecordKey,
    RecordValue,
    Header(String),
    Field(String),
    /// A valid pointer. Most random texts are not valid pointers.
    Pointer(Vec<String>),
    KeyPointer(Vec<String>),
    Content(Vec<Vec<String>>),
    CloudEvent(String),
    HeaderInAnyCase(String),
    Optional(Box<AnyPart>),
    FirstOf(Box<[AnyPart; 2]>),
    /// One bit for each of [`STEPS`]. The highest bit adds a `url` step that drops these query parameters.
    Normalized(Box<AnyPart>, u8, Vec<String>),
}

const STEPS: [&str; 7] = ["to_string", "trim", "unquote", "lowercase", "nfc", "timestamp", "url"];

fn pointer(tokens: &[String]) -> String {
    tokens.iter().map(|token| format!("/{}", token.replace('~', "~0").replace('/', "~1"))).collect()
}

fn part(any: AnyPart) -> Part {
    match any {
        AnyPart::RecordKey => Part::RecordKey,
        AnyPart::RecordValue => Part::RecordValue,
        AnyPart::Header(name) => Part::Header(name),
        AnyPart::Field(pointer) => Part::Field(pointer),
        AnyPart::Pointer(tokens) => Part::Field(pointer(&tokens)),
        AnyPart::KeyPointer(tokens) => Part::KeyField(pointer(&tokens)),
        AnyPart::CloudEvent(name) => Part::CloudEvent(name),
        AnyPart::HeaderInAnyCase(name) => Part::HeaderInAnyCase(name),
        AnyPart::Optional(inner) => Part::Optional(Box::new(part(*inner))),
        AnyPart::FirstOf(parts) => Part::FirstOf((*parts).map(part).into()),
        AnyPart::Normalized(inner, bits, drop_query) => {
            let steps = STEPS.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).filter_map(|(_, name)| Normalizer::named(name));
            let steps = steps.chain((bits >> 7 == 1).then_some(Normalizer::Url { drop_query })).collect();
            Part::Normalized(Box::new(part(*inner)), Normalizers::new(steps))
        }
        AnyPart::Content(except) => Part::Content { except: except.iter().map(|tokens| pointer(tokens)).collect() },
    }
}

fuzz_target!(|input: Input| {
    let parts: Vec<_> = input.parts.into_iter().take(8).map(part).collect();
    let record = Record { key: input.key, value: input.value, headers: &input.headers };
    if let (Some(value), Some(Part::Field(pointer))) = (record.value, parts.first()) {
        same_as_a_dom(value, pointer);
    }
    let Ok(spec) = KeySpec::new(parts) else { return };
    let first = spec.fingerprint(&record, &mut Scratch::default());
    let mut scratch = Scratch::default();
    let _ = spec.fingerprint(&Record::default(), &mut scratch);
    // After 16 records, the reader learns the template of the value.
    for _ in 0..20 {
        assert_eq!(first, spec.fingerprint(&record, &mut scratch), "the scratch of another record changes the fingerprint");
    }
    let changed = record.value.map(|value| change(value, &input.change));
    let later = Record { value: changed.as_deref(), ..record };
    assert_eq!(spec.fingerprint(&later, &mut Scratch::default()), spec.fingerprint(&later, &mut scratch), "the scratch of many records changes the fingerprint");
});

/// Returns the value with a range of bytes replaced. Often, only a scalar differs.
fn change(value: &[u8], (place, with): &(Range<u16>, &[u8])) -> Vec<u8> {
    let at = |place: u16| usize::from(place) % (value.len() + 1);
    let start = at(place.start);
    [&value[..start], with, &value[at(place.end).max(start)..]].concat()
}

fn same_as_a_dom(value: &[u8], pointer: &str) {
    let (Ok(field), Ok(dom)) = (Field::new(pointer), serde_json::from_slice::<Value>(value)) else { return };
    if let Some(Value::String(text)) = dom.pointer(pointer) {
        assert_eq!(field.text(value).as_deref(), Some(&**text));
    }
}
