//! Tests of each type, rule, and error, with handwritten bytes, most of them from the specification.

use super::*;
use crate::format::{Body, Format};

fn schema(text: &str) -> Schema {
    Schema::new(Format::Protobuf, Body::Text(text.to_owned()), Vec::new())
}

fn compile(text: &str, places: &[&str]) -> Result<ProtobufExtractor, SchemaError> {
    let key = Places::new(places).unwrap();
    ProtobufExtractor::compile(&schema(text), Message::First, &key)
}

fn find(fields: &str, places: &[&str], record: &[u8]) -> Result<Vec<Option<String>>, Malformed> {
    find_in(&format!("syntax = \"proto3\"; message M {{ {fields} }}"), places, record)
}

fn find_in(text: &str, places: &[&str], record: &[u8]) -> Result<Vec<Option<String>>, Malformed> {
    let walk = compile(text, places).unwrap();
    let mut found = vec![None; places.len()];
    walk.walk(record, &mut found)?;
    Ok(found.into_iter().map(|found| found.map(shown)).collect())
}

fn shown(scalar: Scalar<'_>) -> String {
    match scalar {
        Scalar::Integer(number) => number.to_string(),
        Scalar::Bool(text) => str::from_utf8(text).unwrap().to_owned(),
        Scalar::String(text) => format!("{:?}", String::from_utf8_lossy(text)),
        other => panic!("{other:?} is not a Protobuf value"),
    }
}

fn one(fields: &str, place: &str, record: &[u8]) -> String {
    match find(fields, &[place], record) {
        Ok(found) => found[0].clone().unwrap_or_else(|| "none".to_owned()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn examples_of_the_specification_are_read() {
    assert_eq!(one("int32 a = 1;", "/a", &[0x08, 0x96, 0x01]), "150");
    let testing = [0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67];
    assert_eq!(one("string b = 2;", "/b", &testing), "\"testing\"");
    assert_eq!(one("A c = 3; message A { int32 a = 1; }", "/c/a", &[0x1a, 0x03, 0x08, 0x96, 0x01]), "150");
    let packed = [0x32, 0x06, 0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05];
    assert_eq!(
        find("repeated int32 f = 6;", &["/f/0", "/f/1", "/f/2", "/f/3"], &packed).unwrap(),
        [Some("3".to_owned()), Some("270".to_owned()), Some("86942".to_owned()), None]
    );
    let minus_two = [0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    assert_eq!(one("int32 a = 1;", "/a", &minus_two), "-2");
    assert_eq!(one("int64 a = 1;", "/a", &minus_two), "-2");
    for (encoded, number) in [(0, "0"), (1, "-1"), (2, "1"), (3, "-2")] {
        assert_eq!(one("sint32 a = 1;", "/a", &[0x08, encoded]), number);
        assert_eq!(one("sint64 a = 1;", "/a", &[0x08, encoded]), number);
    }
    assert_eq!(one("sint32 a = 1;", "/a", &[0x08, 0xfe, 0xff, 0xff, 0xff, 0x0f]), "2147483647");
    assert_eq!(one("sint32 a = 1;", "/a", &[0x08, 0xff, 0xff, 0xff, 0xff, 0x0f]), "-2147483648");
}

#[test]
fn every_scalar_type_is_read() {
    let all_ones = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    assert_eq!(one("uint64 a = 1;", "/a", &all_ones), "18446744073709551615");
    assert_eq!(one("uint32 a = 1;", "/a", &all_ones), "4294967295", "larger numbers are truncated");
    assert_eq!(one("int64 a = 1;", "/a", &all_ones), "-1");
    assert_eq!(one("sint64 a = 1;", "/a", &all_ones), "-9223372036854775808");
    assert_eq!(one("bool a = 1;", "/a", &all_ones), "true");
    assert_eq!(one("bool a = 1;", "/a", &[0x08, 0x00]), "false");
    let four = [0x0d, 0xfe, 0xff, 0xff, 0xff];
    assert_eq!(one("fixed32 a = 1;", "/a", &four), "4294967294");
    assert_eq!(one("sfixed32 a = 1;", "/a", &four), "-2");
    let eight = [0x09, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(one("fixed64 a = 1;", "/a", &eight), "18446744073709551614");
    assert_eq!(one("sfixed64 a = 1;", "/a", &eight), "-2");
    assert_eq!(one("bytes a = 1;", "/a", &[0x0a, 0x02, b'o', b'k']), "\"ok\"");
    let color = "Color a = 1; enum Color { option allow_alias = true; NONE = 0; RED = 3; ROUGE = 3; BELOW = -1; }";
    assert_eq!(one(color, "/a", &[0x08, 0x03]), "\"RED\"", "the first of two symbols");
    assert_eq!(one(color, "/a", &all_ones), "\"BELOW\"");
    assert_eq!(one(color, "/a", &[0x08, 0x04]), "4", "without a symbol");
}

#[test]
fn bytes_need_not_be_utf_8() {
    let walk = compile("syntax = \"proto3\"; message M { bytes a = 1; }", &["/a"]).unwrap();
    let mut found = [None];
    walk.walk(&[0x0a, 0x02, 0xff, 0x00], &mut found).unwrap();
    assert_eq!(found, [Some(Scalar::String(&[0xff, 0x00]))]);
}

#[test]
fn a_step_is_a_field_name_or_a_json_name() {
    let fields = "string user_id = 1; string other = 2 [json_name = \"elsewhere\"]; string far = 70;";
    let record = [&[0x0a, 0x01, b'u', 0x12, 0x01, b'o'][..], &[0xb2, 0x04, 0x01, b'O']].concat();
    for (place, value) in [("/user_id", "\"u\""), ("/userId", "\"u\""), ("/other", "\"o\""), ("/elsewhere", "\"o\""), ("/far", "\"O\"")] {
        assert_eq!(one(fields, place, &record), value, "{place}");
    }
    let both = find(fields, &["/user_id", "/userId", "/user_id"], &record).unwrap();
    assert!(both.iter().all(|found| found.as_deref() == Some("\"u\"")), "{both:?}");
}

#[test]
fn absent_fields_without_presence_have_their_default() {
    let fields = "int32 number = 1; string text = 2; bytes raw = 3; bool flag = 4; Color color = 5; optional string maybe = 6;
        oneof choice { string one = 7; } M child = 8; repeated int32 numbers = 9; enum Color { NONE = 0; }";
    let places = ["/number", "/text", "/raw", "/flag", "/color", "/maybe", "/one", "/child/number", "/numbers/0", "/child/child/number"];
    let has = |record: &[u8]| find(fields, &places, record).unwrap().into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>();
    assert_eq!(has(&[]), ["0", "\"\"", "\"\"", "false", "\"NONE\"", "", "", "", "", ""]);
    assert_eq!(has(&[0x42, 0x00]), ["0", "\"\"", "\"\"", "false", "\"NONE\"", "", "", "0", "", ""], "the child is present and empty");
    assert_eq!(has(&[0x32, 0x00, 0x3a, 0x00])[5..7], ["\"\"", "\"\""], "the fields are present and empty");
}

#[test]
fn proto2_distinguishes_absent_fields_from_defaults() {
    let text = "message M { optional int32 plain = 1; optional int32 seven = 2 [default = 7]; required string must = 3;
        optional string text = 4 [default = \"x\"]; optional Level level = 5 [default = LOW]; enum Level { HIGH = 2; LOW = 1; }
        oneof pick { string one = 6 [default = \"never\"]; string other = 7; } }";
    let places = ["/plain", "/seven", "/must", "/text", "/level", "/one"];
    let has = |record: &[u8]| find_in(text, &places, record).unwrap().into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>();
    assert_eq!(has(&[]), ["", "7", "", "\"x\"", "\"LOW\"", ""]);
    assert_eq!(has(&[0x08, 0x00, 0x10, 0x00, 0x22, 0x00, 0x28, 0x02]), ["0", "0", "", "\"\"", "\"HIGH\"", ""]);
}

#[test]
fn repeated_fields_can_be_packed_unpacked_or_both() {
    let record = [0x08, 0x01, 0x0a, 0x02, 0x02, 0x03, 0x08, 0x04, 0x0a, 0x00];
    for fields in ["repeated int32 a = 1 [packed = true];", "repeated int32 a = 1 [packed = false];"] {
        let found = find(fields, &["/a/0", "/a/1", "/a/2", "/a/3", "/a/4"], &record).unwrap();
        assert_eq!(found.iter().flatten().map(String::as_str).collect::<Vec<_>>(), ["1", "2", "3", "4"]);
    }
    let wide = [0x0a, 0x08, 1, 0, 0, 0, 2, 0, 0, 0];
    assert_eq!(one("repeated fixed32 a = 1;", "/a/1", &wide), "2");
    assert_eq!(one("repeated string a = 1;", "/a/1", &[0x0a, 0x01, b'x', 0x0a, 0x01, b'y']), "\"y\"");
    assert_eq!(one("repeated fixed32 a = 1;", "/a/1", &wide[..9]), "at byte 1: a length extends past the end of the message");
    assert_eq!(one("repeated fixed32 a = 1;", "/a/1", &[0x0a, 0x03, 1, 2, 3]), "at byte 2: the message ends within a number");
    assert_eq!(one("repeated int32 a = 1;", "/a/1", &[0x0a, 0x01, 0x80, 0x01]), "at byte 2: the message ends within a varint");
}

#[test]
fn the_last_value_wins_and_messages_are_merged() {
    assert_eq!(one("int32 a = 1;", "/a", &[0x08, 0x01, 0x08, 0x02]), "2");
    let fields = "A c = 3; message A { int32 a = 1; int32 b = 2; repeated int32 d = 3; }";
    let record = [0x1a, 0x06, 0x08, 0x07, 0x10, 0x08, 0x18, 0x01, 0x1a, 0x04, 0x10, 0x09, 0x18, 0x02];
    let found = find(fields, &["/c/a", "/c/b", "/c/d/0", "/c/d/1"], &record).unwrap();
    assert_eq!(found.iter().flatten().map(String::as_str).collect::<Vec<_>>(), ["7", "9", "1", "2"]);
}

#[test]
fn a_member_of_a_oneof_clears_the_others() {
    let fields = "oneof o { string a = 1; A b = 2; int32 c = 3; } message A { string d = 1; repeated int32 e = 2; }";
    let has = |record: &[u8]| {
        let found = find(fields, &["/a", "/b/d", "/b/e/0", "/b/e/1"], record).unwrap();
        found.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(has(&[0x0a, 0x01, b'x']), "\"x\"   ");
    assert_eq!(has(&[0x0a, 0x01, b'x', 0x12, 0x00]), " \"\"  ");
    assert_eq!(has(&[0x0a, 0x01, b'x', 0x18, 0x01]), "   ", "a member that is not requested");
    assert_eq!(has(&[0x0a, 0x01, b'x', 0x1a, 0x00]), "\"x\"   ", "a value of another wire type clears nothing");
    assert_eq!(has(&[0x12, 0x02, 0x10, 0x07, 0x12, 0x02, 0x10, 0x08]), " \"\" 7 8", "the same member is merged");
    assert_eq!(
        has(&[0x12, 0x02, 0x10, 0x07, 0x18, 0x01, 0x12, 0x02, 0x10, 0x08]),
        " \"\" 8 ",
        "the message starts empty after another member"
    );
}

#[test]
fn entries_of_maps_are_found_by_their_keys() {
    let fields = "map<string, int32> a = 1; map<sint32, A> b = 2; map<bool, string> c = 3; message A { string d = 1; A e = 2; }";
    let entry = [0x0a, 0x05, 0x0a, 0x01, b'k', 0x10, 0x07];
    assert_eq!(one(fields, "/a/k", &entry), "7");
    assert_eq!(one(fields, "/a/x", &entry), "none");
    assert_eq!(one(fields, "/a/k", &[0x0a, 0x05, 0x10, 0x07, 0x0a, 0x01, b'k']), "7", "the value comes first");
    assert_eq!(one(fields, "/a/k", &[0x0a, 0x03, 0x0a, 0x01, b'k']), "0", "without a value");
    assert_eq!(one(fields, "/a/", &[0x0a, 0x02, 0x10, 0x07]), "7", "without a key");
    assert_eq!(one(fields, "/a/k", &[entry, [0x0a, 0x05, 0x0a, 0x01, b'k', 0x10, 0x08]].concat()), "8", "the last counts");
    let minus_one = [0x12, 0x07, 0x08, 0x01, 0x12, 0x03, 0x0a, 0x01, b'x'];
    assert_eq!(one(fields, "/b/-1/d", &minus_one), "\"x\"");
    assert_eq!(one(fields, "/b/-1/d", &[&minus_one[..], &[0x12, 0x02, 0x08, 0x01]].concat()), "\"\"", "entries are not merged");
    assert_eq!(one(fields, "/b/-1/e/d", &minus_one), "none");
    assert_eq!(one(fields, "/c/false", &[0x1a, 0x03, 0x12, 0x01, b'n']), "\"n\"");
    assert_eq!(one(fields, "/a/k", &[0x08, 0x05]), "none", "a wire type that is not a map's");
    assert_eq!(one(fields, "/a/k", &[0x0a, 0x03, 0x0a, 0x01, 0xff]), "at byte 4: a string is not UTF-8");
}

#[test]
fn fields_in_groups_are_found() {
    let text = "message M { optional group Part = 1 { optional string id = 1; repeated group Sub = 2 { optional int32 n = 1; } } }";
    let record = [0x0b, 0x0a, 0x01, b'x', 0x13, 0x08, 0x05, 0x14, 0x13, 0x08, 0x06, 0x14, 0x0c];
    let found = find_in(text, &["/part/id", "/part/sub/1/n"], &record).unwrap();
    assert_eq!(found, [Some("\"x\"".to_owned()), Some("6".to_owned())]);
    for end in 1..record.len() {
        let error = find_in(text, &["/part/id"], &record[..end]).unwrap_err();
        assert!(error.offset <= end && error.what.contains("end"), "{error}");
    }
}

#[test]
fn fields_in_recursive_messages_are_found() {
    let fields = "M child = 1; string id = 2;";
    let mut record = vec![0x12, 0x01, b'x'];
    for _ in 0..60 {
        let length = u8::try_from(record.len()).unwrap_or(0);
        record = if length < 128 { [&[0x0a, length], &record[..]].concat() } else { break };
    }
    let depth = (record.len() - 3) / 2;
    assert_eq!(one(fields, &format!("{}/id", "/child".repeat(depth)), &record), "\"x\"");
    assert_eq!(one(fields, &format!("{}/id", "/child".repeat(depth - 1)), &record), "\"\"");
    assert_eq!(one(fields, &format!("{}/id", "/child".repeat(depth + 1)), &record), "none");
}

#[test]
fn errors_of_malformed_records_have_an_offset() {
    let wrong = |record: &[u8]| one("string a = 1;", "/a", record);
    assert_eq!(wrong(&[0x80]), "at byte 0: the message ends within a varint");
    assert_eq!(wrong(&[0x10, 0x80, 0x80]), "at byte 1: the message ends within a varint");
    assert_eq!(wrong(&[&[0x10][..], &[0x80; 10], &[0x01]].concat()), "at byte 1: a varint has more than ten bytes");
    assert_eq!(wrong(&[&[0x10][..], &[0xff; 9], &[0x02]].concat()), "at byte 1: a varint has more than 64 bits");
    assert_eq!(wrong(&[0x80, 0x80, 0x80, 0x80, 0x10]), "at byte 0: a field number has more than 29 bits");
    assert_eq!(wrong(&[0x00, 0x01]), "at byte 0: a field number is 0");
    assert_eq!(wrong(&[0x0e]), "at byte 0: a wire type is unknown");
    assert_eq!(wrong(&[0x0f]), "at byte 0: a wire type is unknown");
    assert_eq!(wrong(&[0x11, 1, 2, 3, 4, 5, 6, 7]), "at byte 1: the message ends within a number");
    assert_eq!(wrong(&[0x15, 1, 2, 3]), "at byte 1: the message ends within a number");
    assert_eq!(wrong(&[0x0a, 0x02, b'x']), "at byte 1: a length extends past the end of the message");
    let endless = [&[0x12][..], &[0xff; 9], &[0x01]].concat();
    assert_eq!(wrong(&endless), "at byte 1: a length extends past the end of the message");
    assert_eq!(wrong(&[0x0a, 0x02, b'x', 0xff]), "at byte 3: a string is not UTF-8");
    assert_eq!(wrong(&[0x0c]), "at byte 0: a group ends without a start");
    assert_eq!(wrong(&[0x13, 0x0a, 0x01, b'x']), "at byte 4: the message ends within a group");
    assert_eq!(wrong(&[0x13, 0x1c]), "at byte 1: the end of a group does not match its start");
    assert_eq!(wrong(&[0x13; 65]), "at byte 64: too many groups are nested");
    let nested = "A c = 3; message A { string a = 1; }";
    assert_eq!(one(nested, "/c/a", &[0x1a, 0x02, 0x0a, 0x01, b'x']), "at byte 3: a length extends past the end of the message");
}

#[test]
fn other_fields_are_skipped() {
    let unknown = [&[0x10, 0xff, 0x01][..], &[0x19, 0, 0, 0, 0, 0, 0, 0, 0], &[0x22, 0x02, 0xff, 0xff], &[0x2d, 0, 0, 0, 0]].concat();
    let group = [&[0x33, 0x3b][..], &unknown, &[0x3c, 0x34]].concat();
    let record = [&unknown[..], &group, &[0x0a, 0x01, b'x'], &unknown].concat();
    assert_eq!(one("string a = 1;", "/a", &record), "\"x\"");
    let other_wire_types = [&[0x08, 0x05, 0x0d, 0, 0, 0, 0][..], &[0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0x0c]].concat();
    assert_eq!(one("string a = 1;", "/a", &other_wire_types), "\"\"", "a value of another wire type is skipped");
    assert_eq!(one("int32 a = 1;", "/a", &[0x0a, 0x01, 0x05]), "0", "only repeated numbers can be packed");
    assert_eq!(one("repeated M a = 1;  string b = 2;", "/a/0/b", &[0x08, 0x05]), "none");
}

#[test]
fn places_of_types_that_cannot_be_in_a_key_are_rejected() {
    let fields = "M child = 1; repeated string tags = 2; map<string, string> props = 3; double price = 4; float rate = 5;
        repeated M children = 6; map<string, float> rates = 7; google.protobuf.Timestamp at = 8; M a_b = 9 [json_name = \"a/b\"];";
    let text = format!("syntax = \"proto3\"; package p; import \"google/protobuf/timestamp.proto\"; message M {{ {fields} }}");
    let refused = |place: &str| compile(&text, &[place]).unwrap_err().0;
    let one_value = "not a single value: append";
    assert_eq!(refused(""), format!("`` is a message, `p.M`, {one_value} a field of the message, as in `/child`"));
    assert_eq!(refused("/child"), format!("`/child` is a message, `p.M`, {one_value} a field of the message, as in `/child/child`"));
    assert_eq!(
        refused("/at"),
        format!("`/at` is a message, `google.protobuf.Timestamp`, {one_value} a field of the message, as in `/at/seconds`")
    );
    assert_eq!(refused("/a~1b"), format!("`/a~1b` is a message, `p.M`, {one_value} a field of the message, as in `/a~1b/child`"));
    assert_eq!(refused("/tags"), format!("`/tags` is repeated, {one_value} the index of an element, as in `/tags/0`"));
    assert_eq!(refused("/props"), format!("`/props` is a map, {one_value} a key of the map, as in `/props/KEY`"));
    let rounded = "which is rounded and therefore not supported: use a string or an integer";
    assert_eq!(refused("/price"), format!("`/price` is a double, {rounded}"));
    assert_eq!(refused("/child/rate"), format!("`/child/rate` is a float, {rounded}"));
    assert_eq!(refused("/rates/x"), format!("`/rates/x` is a float, {rounded}"));
    assert_eq!(
        refused("/children/3"),
        format!("`/children/3` is a message, `p.M`, {one_value} a field of the message, as in `/children/3/child`")
    );
}

#[test]
fn too_many_repeated_fields_are_rejected() {
    let fields = (1..=65).map(|number| format!("repeated string f{number} = {number};")).collect::<Vec<_>>().concat();
    let text = format!("syntax = \"proto3\"; message M {{ {fields} }}");
    let places: Vec<_> = (1..=65).map(|number| format!("/f{number}/0")).collect();
    let places: Vec<_> = places.iter().map(String::as_str).collect();
    assert!(compile(&text, &places[..64]).is_ok());
    assert_eq!(compile(&text, &places).unwrap_err().0, "the pointers lead through more than 64 repeated fields: use fewer fields");
}

#[test]
fn places_that_no_record_can_have_are_known() {
    let text = "syntax = \"proto3\"; message M { string id = 1; M child = 2; repeated string tags = 3; map<int32, string> props = 4;
        map<bool, M> flags = 5; double price = 6; }";
    let places = [
        ("/id", false),
        ("/ID", true),
        ("/id/x", true),
        ("/price/x", true),
        ("/child/id", false),
        ("/child/x", true),
        ("/nobody/id/x", true),
        ("/tags/7", false),
        ("/tags/07", true),
        ("/tags/-1", true),
        ("/tags/x", true),
        ("/tags/4294967296", true),
        ("/props/-7", false),
        ("/props/+7", true),
        ("/props/x", true),
        ("/flags/true/id", false),
        ("/flags/1/id", true),
        ("/flags/true/x", true),
    ];
    let walk = compile(text, &places.map(|(place, _)| place)).unwrap();
    for (slot, (place, lacks)) in places.into_iter().enumerate() {
        assert_eq!(walk.lacks(slot), lacks, "{place}");
    }
    let mut found = [None; 18];
    walk.walk(&[0x0a, 0x01, b'x'], &mut found).unwrap();
    assert_eq!(found.iter().flatten().collect::<Vec<_>>(), [&Scalar::String(b"x")]);
}
