//! Checks that the Avro extractor accepts or rejects any bytes without a panic. If `apache-avro` decodes the bytes, the extractor must find
//! the same values.
#![no_main]

#[path = "../../src/format/avro/oracle_tests.rs"]
mod oracle;

use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::writer::datum::GenericDatumWriter;
use libfuzzer_sys::fuzz_target;
use oracle::compare;
use std::sync::LazyLock;
use unseen::format::{Body, Buffers, Extract, Extractor, Format, Malformed, Message, Places, Scalar, Schema, Unreadable};

/// Schemas and the fields to extract. The first two schemas have no arrays or maps, which Avro encodes in blocks, so the decoder and the
/// extractor read the same bytes.
const SCHEMAS: [(&str, &[&str]); 4] = [
    (
        r#"{"type": "record", "name": "flat", "fields": [
            {"name": "a", "type": ["null", "long", "string", {"type": "enum", "name": "e", "symbols": ["x", "y", "z"]}]},
            {"name": "b", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}},
            {"name": "c", "type": ["boolean", "double", {"type": "string", "logicalType": "uuid"}]},
            {"name": "d", "type": {"type": "fixed", "name": "f", "size": 3}},
            {"name": "g", "type": "int"}]}"#,
        &["/a", "/b", "/d", "/g", "/c/x"],
    ),
    (
        r#"{"type": "record", "name": "list", "fields": [
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}}, {"name": "next", "type": ["null", "list"]}]}"#,
        &["/id", "/next/id", "/next/next/id", "/next/next/next/next/id"],
    ),
    (
        r#"{"type": "map", "values": ["null", "string", {"type": "array", "items":
            {"type": "record", "name": "r", "fields": [{"name": "n", "type": "null"}, {"name": "i", "type": ["int", "bytes"]}]}}]}"#,
        &["/a/0/i", "/a/2/n", "/b", "/c/1/i"],
    ),
    (
        r#"{"type": "record", "name": "tree", "fields": [
            {"name": "nulls", "type": {"type": "array", "items": "null"}},
            {"name": "leaf", "type": ["null", "long", {"type": "fixed", "name": "f", "size": 16, "logicalType": "uuid"}]},
            {"name": "more", "type": {"type": "array", "items": ["tree", {"type": "map", "values": "tree"}]}}]}"#,
        &["/leaf", "/more/0/leaf", "/more/1/k/leaf", "/more/0/more/2/leaf", "/nulls/3"],
    ),
];
/// Number of schemas without arrays and maps, at the start of [`SCHEMAS`].
const WITHOUT_BLOCKS: usize = 2;

/// Errors that only the extractor reports, because it is stricter than the decoder or has a limit.
const STRICTER: [&str; 6] = [
    // The decoder returns null for a missing boolean, text, or union.
    "the record ends ",
    "a number has more than 64 bits",
    "a decimal has more than 128 bits",
    "a block does not have its declared size",
    "a block extends past the end of the record",
    DEEP,
];
const DEEP: &str = "more than 64 containers are nested";

struct Case {
    schema: apache_avro::Schema,
    places: &'static [&'static str],
    walk: Extractor,
}

static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    apache_avro::util::max_allocation_bytes(1 << 16);
    let case = |(text, places): (&str, &'static [&'static str])| {
        let all = Places::new(places).unwrap();
        let schema = Schema::new(Format::Avro, Body::Text(text.to_owned()), Vec::new());
        let walk = Extractor::compile(&schema, Message::First, &all).unwrap();
        Case { schema: apache_avro::Schema::parse_str(text).unwrap(), places, walk }
    };
    SCHEMAS.into_iter().map(case).collect()
});

fn find<'a>(walk: &'a Extractor, record: &'a [u8], found: &mut [Option<Scalar<'a>>]) -> Result<(), Malformed> {
    walk.find(record, &mut Buffers::default(), found).map_err(|error| match *error {
        Unreadable::Schema(malformed) => malformed,
        other => panic!("{other}"),
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, record)) = input.split_first() else { return };
    let number = usize::from(*choice) % CASES.len();
    let Case { schema, places, walk } = &CASES[number];
    let mut found = vec![None; places.len()];
    let walked = find(walk, record, &mut found);
    // The decoder has no nesting limit, so there is nothing to compare.
    if walked.is_err_and(|malformed| malformed.what == DEEP) {
        return;
    }
    let mut rest = record;
    let Ok(value) = GenericDatumReader::builder(schema).build().unwrap().read_value(&mut rest) else { return };
    if !rest.is_empty() {
        return;
    }
    match walked {
        Err(malformed) if number < WITHOUT_BLOCKS => {
            assert!(STRICTER.iter().any(|what| malformed.what.starts_with(what)), "{malformed}");
        }
        // A block can declare a size that differs from the size of its elements. The decoder then continues after the elements, and the
        // extractor continues after the declared size.
        Err(_) => {}
        Ok(()) if number < WITHOUT_BLOCKS => compare(places, &value, &found),
        Ok(()) => {}
    }
    // The extractor must accept everything that the encoder writes, except beyond its limits.
    let Ok(record) = GenericDatumWriter::builder(schema).build().unwrap().write_value_to_vec(value.clone()) else { return };
    let mut found = vec![None; places.len()];
    match find(walk, &record, &mut found) {
        Ok(()) => compare(places, &value, &found),
        // The field may be a union that has an array here, and the extractor does not accept an array as part of a key.
        Err(Malformed { what, .. }) if what.starts_with("the key has ") => {}
        Err(malformed) => assert!([STRICTER[2], DEEP].contains(&malformed.what), "{malformed}"),
    }
});
