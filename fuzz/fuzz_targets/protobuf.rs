//! Checks that the Protobuf extractor terminates for any bytes. If prost-reflect decodes them as a message, the extractor must find the
//! same values.
//!
//! There is one exception, in `found`: prost-reflect accepts more nested groups than the extractor.
#![no_main]

#[path = "../../src/format/protobuf/oracle_tests.rs"]
mod oracle;

use libfuzzer_sys::fuzz_target;
use oracle::{OLD, SCHEMA, Truth, descriptor, place, repacked, truth};
use prost_reflect::{DynamicMessage, MessageDescriptor};
use std::sync::OnceLock;
use unseen::format::{Body, Buffers, Extract, Extractor, Format, Malformed, Message, Places, Reference, Scalar, Schema, Unreadable};

/// Number of extractors for different places. The first byte of an input selects one of them.
const WALKS: usize = 256;

struct Setting {
    maps: MessageDescriptor,
    /// The same message with repeated entries instead of maps. prost-reflect checks the wire types of entries only in this form.
    entries: MessageDescriptor,
    walks: Vec<(Vec<String>, Extractor)>,
}

fn setting() -> &'static Setting {
    static SETTING: OnceLock<Setting> = OnceLock::new();
    SETTING.get_or_init(|| {
        let maps = descriptor(true);
        let walks = (0..WALKS as u64).map(|seed| walk(&maps, seed)).collect();
        Setting { maps, entries: descriptor(false), walks }
    })
}

/// Returns a few places and their extractor, which depend only on the seed.
fn walk(message: &MessageDescriptor, seed: u64) -> (Vec<String>, Extractor) {
    let mut state = seed;
    let mut choices = || {
        [0; 12].map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
    };
    let places: Vec<_> = (0..12).filter_map(|_| place(message, &choices())).collect();
    let text = |text: &str| Body::Text(if seed % 2 == 0 { text.to_owned() } else { repacked(text) });
    let references = vec![Reference { name: "old.proto".to_owned(), body: text(OLD) }];
    let schema = Schema::new(Format::Protobuf, text(SCHEMA), references);
    let all = Places::new(&places).unwrap();
    let walk = Extractor::compile(&schema, Message::Named("truth.All"), &all).unwrap();
    (places, walk)
}

/// Returns the values that the extractor finds, or `None` if it rejects nested groups that prost-reflect accepts.
fn found(walk: &Extractor, places: &[String], record: &[u8]) -> Option<Vec<Option<Truth>>> {
    let mut found = vec![None; places.len()];
    match find(walk, record, &mut found) {
        Err(error) if error.what == "too many groups are nested" => return None,
        result => result.expect("prost-reflect decodes the record as a message"),
    }
    let owned = |scalar: Scalar<'_>| match scalar {
        Scalar::Integer(number) => Truth::Integer(number),
        Scalar::Bool(text) => Truth::Bool(text == b"true"),
        Scalar::String(text) => Truth::Text(text.to_vec()),
        other => panic!("{other:?} is not a Protobuf value"),
    };
    Some(found.into_iter().map(|found| found.map(owned)).collect())
}

fn find<'a>(walk: &'a Extractor, record: &'a [u8], found: &mut [Option<Scalar<'a>>]) -> Result<(), Malformed> {
    walk.find(record, &mut Buffers::default(), found).map_err(|error| match *error {
        Unreadable::Schema(malformed) => malformed,
        other => panic!("{other}"),
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, record)) = input.split_first() else { return };
    let Setting { maps, entries, walks } = setting();
    let (places, walk) = &walks[usize::from(choice)];
    let _ = find(walk, record, &mut vec![None; places.len()]);
    let Ok(message) = DynamicMessage::decode(maps.clone(), record) else { return };
    if DynamicMessage::decode(entries.clone(), record).is_ok() {
        if let Some(found) = found(walk, places, record) {
            let expected: Vec<_> = places.iter().map(|place| truth(&message, place)).collect();
            assert_eq!(found, expected, "{places:?}");
        }
    }
});
