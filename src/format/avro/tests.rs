//! Tests of each type, with handwritten bytes.

use super::drawn::number;
use super::*;
use crate::format::{Body, Buffers, Container, DEPTH_MAX, Extract as _, Format, Reference, Visit};

pub(super) fn schema(text: &str) -> Schema {
    Schema::new(Format::Avro, Body::Text(text.to_owned()), Vec::new())
}

pub(super) fn key(places: &[impl AsRef<str>]) -> Places {
    Places::new(places).unwrap()
}

pub(super) fn compile(text: &str, places: &[impl AsRef<str>]) -> Result<AvroExtractor, SchemaError> {
    AvroExtractor::compile(&schema(text), &key(places))
}

/// Checks that a walk finds these values and rejects every truncated or extended record.
pub(super) fn finds(text: &str, places: &[&str], record: &[u8], expected: &[Option<Scalar<'_>>]) {
    let walk = compile(text, places).unwrap();
    let mut found = vec![None; places.len()];
    assert_eq!(walk.walk(record, &mut found), Ok(()), "{text} {places:?} {record:x?}");
    assert_eq!(found, expected, "{text} {places:?} {record:x?}");
    for end in 0..record.len() {
        assert!(walk.walk(&record[..end], &mut vec![None; places.len()]).is_err(), "{text} {end} of {record:x?}");
    }
    let longer = [record, &[0]].concat();
    let left = Malformed { offset: record.len(), what: "there are extra bytes after the record" };
    assert_eq!(walk.walk(&longer, &mut vec![None; places.len()]), Err(left), "{text}");
}

/// Checks the error for a malformed record, both if a value of the record is requested and if none is.
fn malformed(text: &str, place: &str, record: &[u8], offset: usize, what: &str) {
    for places in [&[place][..], &["/not there"]] {
        let error = compile(text, places).unwrap().walk(record, &mut [None]).unwrap_err();
        assert_eq!((error.offset, error.what), (offset, what), "{text} {places:?}");
    }
}

#[expect(clippy::unnecessary_wraps, reason = "an expected value is optional")]
pub(super) const fn text(text: &str) -> Option<Scalar<'_>> {
    Some(Scalar::String(text.as_bytes()))
}

#[expect(clippy::unnecessary_wraps, reason = "an expected value is optional")]
pub(super) const fn integer(number: i128) -> Option<Scalar<'static>> {
    Some(Scalar::Integer(number))
}

#[test]
fn examples_of_the_specification_are_read() {
    let record = r#"{"type": "record", "name": "test", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]}"#;
    finds(record, &["/a", "/b", "/c"], b"\x36\x06foo", &[integer(27), text("foo"), None]);
    finds(r#"{"type": "array", "items": "long"}"#, &["/0", "/1", "/2"], &[4, 6, 0x36, 0], &[integer(3), integer(27), None]);
    for (number, written) in [(0, &[0][..]), (-1, &[1]), (1, &[2]), (-2, &[3]), (2, &[4]), (-64, &[0x7f]), (64, &[0x80, 1])] {
        finds(r#""long""#, &[""], written, &[integer(number)]);
        finds(r#""int""#, &[""], written, &[integer(number)]);
    }
    finds(r#"["null", "string"]"#, &[""], &[0], &[Some(Scalar::Null)]);
    finds(r#"["null", "string"]"#, &[""], b"\x02\x02a", &[text("a")]);
    let symbols = r#"{"type": "enum", "name": "Foo", "symbols": ["A", "B", "C", "D"]}"#;
    finds(symbols, &[""], &[0], &[text("A")]);
    finds(symbols, &[""], &[6], &[text("D")]);
}

#[test]
fn each_type_has_the_same_value_as_in_json() {
    finds(r#""null""#, &[""], &[], &[Some(Scalar::Null)]);
    finds(r#""boolean""#, &[""], &[0], &[Some(Scalar::bool(false))]);
    finds(r#""boolean""#, &[""], &[1], &[Some(Scalar::bool(true))]);
    let lowest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    finds(r#""long""#, &[""], &lowest, &[integer(i64::MIN.into())]);
    finds(r#""int""#, &[""], &[0xff, 0xff, 0xff, 0xff, 0x0f], &[integer(i32::MIN.into())]);
    for logical in ["date", "time-millis"] {
        finds(&format!(r#"{{"type": "int", "logicalType": "{logical}"}}"#), &[""], &[3], &[integer(-2)]);
    }
    let of_64_bits = ["time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos"];
    let local = ["local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos", "no-such-type"];
    for logical in of_64_bits.into_iter().chain(local) {
        finds(&format!(r#"{{"type": "long", "logicalType": "{logical}"}}"#), &[""], &lowest, &[integer(i64::MIN.into())]);
    }
    finds(r#""bytes""#, &[""], &[4, 0xff, 0], &[Some(Scalar::String(&[0xff, 0]))]);
    finds(r#""string""#, &[""], "\nKäse".as_bytes(), &[text("Käse")]);
    finds(r#"{"type": "fixed", "name": "f", "size": 2}"#, &[""], b"ab", &[text("ab")]);
    let duration = r#"{"type": "fixed", "name": "f", "size": 12, "logicalType": "duration"}"#;
    finds(duration, &[""], b"123456789abc", &[text("123456789abc")]);
    finds(r#"{"type": "string", "logicalType": "uuid"}"#, &[""], b"\x06ABC", &[text("ABC")]);
    let id = *b"0123456789abcdef";
    finds(r#"{"type": "fixed", "name": "f", "size": 16, "logicalType": "uuid"}"#, &[""], &id, &[Some(Scalar::Uuid(id))]);
    finds(r#"{"type": "bytes", "logicalType": "uuid"}"#, &[""], b"\x06ABC", &[text("ABC")]);
}

#[test]
fn decimals_have_the_scale_of_the_schema() {
    let decimal = |unscaled, scale| [Some(Scalar::Decimal { unscaled, scale })];
    let bytes = r#"{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}"#;
    finds(bytes, &[""], &[4, 0x30, 0x39], &decimal(12345, 2));
    finds(bytes, &[""], &[2, 0xfb], &decimal(-5, 2));
    finds(bytes, &[""], &[0], &decimal(0, 2));
    finds(r#"{"type": "bytes", "logicalType": "decimal", "precision": 9}"#, &[""], &[2, 17], &decimal(17, 0));
    let fixed = r#"{"type": "fixed", "name": "f", "size": 17, "logicalType": "decimal", "precision": 39, "scale": 38}"#;
    let written = |sign, rest: i128| [&[sign], &rest.to_be_bytes()[..]].concat();
    finds(fixed, &[""], &written(0xff, i128::MIN), &decimal(i128::MIN, 38));
    finds(fixed, &[""], &written(0, i128::MAX), &decimal(i128::MAX, 38));
    for torn in [written(0xff, i128::MAX), written(0, i128::MIN), written(1, 0)] {
        let error = compile(fixed, &[""]).unwrap().walk(&torn, &mut [None]).unwrap_err();
        assert_eq!((error.offset, error.what), (0, "a decimal has more than 128 bits"));
    }
    // According to the specification, an invalid logical type is ignored, so this type is bytes.
    finds(r#"{"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}"#, &[""], b"\x02a", &[text("a")]);
}

struct Texts(Vec<Vec<u8>>);

impl Visit for Texts {
    fn scalar(&mut self, value: Scalar<'_>) {
        if let Scalar::String(text) = value {
            self.0.push(text.to_vec());
        }
    }

    fn open(&mut self, _: Container) {}

    fn name(&mut self, _: &[u8]) {}

    fn close(&mut self) {}
}

#[test]
fn visited_decimals_with_a_large_scale_have_the_size_of_their_type() {
    let decimal = |rest| format!(r#"{{{rest}, "logicalType": "decimal", "precision": 50, "scale": 39}}"#);
    let (fixed, sized) = (decimal(r#""type": "fixed", "name": "d", "size": 2"#), decimal(r#""type": "bytes""#));
    let record = format!(
        r#"{{"type": "record", "name": "r", "fields": [
        {{"name": "fixed", "type": {fixed}}}, {{"name": "sized", "type": {sized}}}, {{"name": "last", "type": "string"}}]}}"#
    );
    let extractor = AvroExtractor::compile(&schema(&record), &Places::default().and_everything()).unwrap();
    let mut texts = Texts(Vec::new());
    extractor.visit(b"\x08\x09\x04de\x02z", &mut Buffers::default(), &mut texts).unwrap();
    assert_eq!(texts.0, [&b"\x08\x09"[..], b"de", b"z"]);
}

const OF_ALL: &str = r#"{"type": "record", "name": "r", "fields": [
    {"name": "null", "type": "null"},
    {"name": "boolean", "type": "boolean"},
    {"name": "int", "type": "int"},
    {"name": "float", "type": "float"},
    {"name": "double", "type": "double"},
    {"name": "fixed", "type": {"type": "fixed", "name": "f", "size": 3}},
    {"name": "enum", "type": {"type": "enum", "name": "e", "symbols": ["A", "B"]}},
    {"name": "union", "type": ["null", "f", "e", "r", "bytes"]},
    {"name": "array", "type": {"type": "array", "items": "e"}},
    {"name": "map", "type": {"type": "map", "values": "f"}},
    {"name": "big", "type": {"type": "bytes", "logicalType": "big-decimal"}},
    {"name": "last", "type": "string"}]}"#;

#[test]
fn a_value_after_all_types_is_found() {
    let record = b"\x01\x02floadouble__fix\x02\x08\x02b\x03\x04\x00\x02\x02\x00\x00\x02\x02kval\x00\x04bd\x08last";
    finds(OF_ALL, &["/last"], record, &[text("last")]);
    let places = ["/last", "/null", "/map/k", "/array/2", "/array/3", "/union", "/fixed", "/array/03", "/array/-1"];
    let expected = [text("last"), Some(Scalar::Null), text("val"), text("A"), None, text("b"), text("fix"), None, None];
    finds(OF_ALL, &places, record, &expected);
}

#[test]
fn errors_of_malformed_records_have_an_offset() {
    malformed(r#""boolean""#, "", &[2], 0, "a boolean is neither 0 nor 1");
    malformed(r#""boolean""#, "", &[], 0, "the record ends before a boolean");
    malformed(r#""long""#, "", &[0x80; 9], 0, "the record ends within a number");
    malformed(r#""long""#, "", &[0x80; 11], 0, "a number has more than 64 bits");
    let wide = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
    malformed(r#""long""#, "", &wide, 0, "a number has more than 64 bits");
    malformed(r#""int""#, "", &[0x80, 0x80, 0x80, 0x80, 0x10], 0, "an int has more than 32 bits");
    malformed(r#""bytes""#, "", &[1], 0, "a length is negative");
    malformed(r#"["null", "boolean"]"#, "", &[4], 0, "a union has no branch with this index");
    malformed(r#"["null", "boolean"]"#, "", &[1], 0, "a union has no branch with this index");
    malformed(r#"{"type": "enum", "name": "e", "symbols": ["A"]}"#, "", &[2], 0, "an enum has no symbol with this index");
    malformed(r#"{"type": "enum", "name": "e", "symbols": ["A"]}"#, "", &[1], 0, "an enum has no symbol with this index");
    let fixed = r#"{"type": "fixed", "name": "f", "size": 2}"#;
    malformed(fixed, "", b"a", 0, "the record ends within a value of a fixed size");
    malformed(r#""string""#, "", b"\x02ab", 2, "there are extra bytes after the record");
    let array = r#"{"type": "array", "items": "int"}"#;
    malformed(array, "/1", &[3, 6, 0, 0], 0, "a block extends past the end of the record");
    malformed(array, "/1", &[3, 1, 0, 0], 0, "a block extends past the end of the record");
    malformed(array, "/1", &[2, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0], 13, "the record ends within a number");
    let map = r#"{"type": "map", "values": "int"}"#;
    malformed(map, "/a", b"\x02\x04a", 2, "the record ends within the key of a map");
    malformed(map, "/a", b"\x02\x02a", 3, "the record ends within a number");
}

#[test]
fn requested_strings_must_be_utf_8() {
    let walk = compile(r#"["null", "string"]"#, &[""]).unwrap();
    assert_eq!(walk.walk(&[2, 4, 0xc3, 0x28], &mut [None]), Err(Malformed { offset: 1, what: "a string is not UTF-8" }));
}

#[test]
fn blocks_can_declare_their_size() {
    let array = r#"{"type": "array", "items": "long"}"#;
    let places = ["/0", "/1", "/2", "/3"];
    let expected = [integer(1), integer(2), integer(3), None];
    finds(array, &places, &[6, 2, 4, 6, 0], &expected);
    finds(array, &places, &[5, 6, 2, 4, 6, 0], &expected);
    finds(array, &places, &[1, 2, 2, 2, 4, 1, 2, 6, 0], &expected);
    finds(array, &["/2"], &[1, 2, 2, 2, 4, 1, 2, 6, 0], &[integer(3)]);
    finds(array, &["/a"], &[5, 6, 2, 4, 6, 0], &[None]);
    let map = r#"{"type": "map", "values": "long"}"#;
    finds(map, &["/a", "/b"], b"\x03\x0c\x02a\x02\x02b\x04\x00", &[integer(1), integer(2)]);
    finds(map, &["/a/b"], b"\x03\x0c\x02a\x02\x02b\x04\x00", &[None]);
    // The declared size of a block must be correct if a value in the block is requested.
    let what = "a block does not have its declared size";
    for (record, offset) in [(&[5, 4, 2, 4, 6, 0][..], 5), (&[5, 8, 2, 4, 6, 0, 0], 5)] {
        let found = compile(array, &["/0"]).unwrap().walk(record, &mut [None]);
        assert_eq!(found, Err(Malformed { offset, what }));
    }
}

#[test]
fn the_last_of_equal_keys_wins() {
    let map = r#"{"type": "map", "values": ["null", "long", {"type": "map", "values": "long"}]}"#;
    finds(map, &["/a"], b"\x04\x02a\x02\x04\x02a\x02\x06\x00", &[integer(3)]);
    // Only the last value of the key `a` counts, and it does not have the field.
    finds(map, &["/a/b"], b"\x04\x02a\x04\x02\x02b\x02\x00\x02a\x00\x00", &[None]);
    finds(map, &["/a/b"], b"\x02\x02a\x00\x02\x02a\x04\x02\x02b\x02\x00\x00", &[integer(1)]);
}

const LIST: &str = r#"{"type": "record", "name": "List", "fields": [
    {"name": "value", "type": "long"}, {"name": "next", "type": ["null", "List"]}]}"#;

#[test]
fn a_record_can_contain_itself() {
    let places = ["/value", "/next/value", "/next/next/value", "/next/next/next/value"];
    let expected = [integer(1), integer(2), integer(3), None];
    finds(LIST, &places, &[2, 2, 4, 2, 6, 0], &expected);

    let list = |length| [[2].repeat(length * 2 - 1), vec![0]].concat();
    finds(LIST, &["/value"], &list(DEPTH_MAX), &[integer(1)]);
    let deep = "more than 64 containers are nested";
    malformed(LIST, "/value", &list(DEPTH_MAX + 1), 2 * DEPTH_MAX, deep);
    malformed(LIST, "/value", &list(1_000_000), 2 * DEPTH_MAX, deep);
    // A schema can define this type, although no finite record has it.
    let endless = r#"{"type": "record", "name": "E", "fields": [{"name": "a", "type": "E"}, {"name": "b", "type": "E"}]}"#;
    malformed(endless, "/a/x", &[], 0, deep);
}

fn count(elements: i64) -> Vec<u8> {
    let mut written = Vec::new();
    number(elements, &mut written);
    written
}

#[test]
fn values_without_bytes_are_limited() {
    let idle = "more than 65536 values have no bytes";
    let nothing = r#"{"type": "record", "name": "n", "fields": []}"#;
    for (items, place) in [(r#""null""#, "/5"), (nothing, "/5/a"), (r#"{"type": "fixed", "name": "f", "size": 0}"#, "/5")] {
        let array = format!(r#"{{"type": "array", "items": {items}}}"#);
        malformed(&array, place, &[count(1 << 60), vec![0]].concat(), 9, idle);
    }
    finds(r#"{"type": "array", "items": "null"}"#, &["/999", "/1000"], &[count(1000), vec![0]].concat(), &[Some(Scalar::Null), None]);
    let of_doubles = r#"{"type": "array", "items": "double"}"#;
    malformed(of_doubles, "/a", &[count(1 << 62), vec![0; 100]].concat(), 10, "the record ends within an array");

    // 30 nested levels of 100 fields each: 100^30 records without bytes.
    let record = |depth: usize| {
        let inner = if depth == 0 { "null".to_owned() } else { format!("r{}", depth - 1) };
        let fields = (0..100).map(|field| format!(r#"{{"name": "f{field}", "type": "{inner}"}}"#));
        let fields = fields.collect::<Vec<_>>().join(", ");
        Body::Text(format!(r#"{{"type": "record", "name": "r{depth}", "fields": [{fields}]}}"#))
    };
    let references = (0..30).map(|depth| Reference { name: format!("r{depth}"), body: record(depth) }).collect();
    let wide = Schema::new(Format::Avro, record(30), references);
    let walk = AvroExtractor::compile(&wide, &key(&["/not there"])).unwrap();
    assert_eq!(walk.walk(&[], &mut [None]), Err(Malformed { offset: 0, what: idle }));
}
