//! Tests of valid and invalid schemas and places, and of schema evolution.

use super::tests::{compile, finds, integer, key, schema, text};
use super::{AvroExtractor, Malformed, Schema};
use crate::format::Scalar;
use crate::format::{Body, Format, Reference};

fn refused(text: &str, place: &str) -> String {
    compile(text, &[place]).unwrap_err().to_string()
}

fn with_references(body: &str, references: &[&str]) -> Schema {
    let reference = |body: &&str| Reference { name: "a.subject".to_owned(), body: Body::Text((*body).to_owned()) };
    Schema { references: references.iter().map(reference).collect(), ..schema(body) }
}

#[test]
fn places_of_types_that_cannot_be_in_a_key_are_rejected() {
    let float = "is a floating-point number, which has several text forms and is not supported; use another field";
    let record = |of: &str| format!(r#"{{"type": "record", "name": "r", "fields": [{{"name": "a/b", "type": {of}}}]}}"#);
    assert_eq!(refused(&record(r#""float""#), "/a~1b"), format!("field `/a~1b` {float}"));
    assert_eq!(refused(r#""double""#, ""), format!("the whole record {float}"));
    assert_eq!(refused(r#"["null", "double"]"#, ""), format!("the whole record {float}"));
    assert_eq!(refused(&record(r#""float""#), ""), "the whole record is a record; use one of its fields");
    let array = r#"{"type": "array", "items": {"type": "map", "values": "long"}}"#;
    assert_eq!(refused(array, ""), "the whole record is an array; use one of its elements");
    assert_eq!(refused(array, "/0"), "field `/0` is a map; use one of its keys");
    assert!(compile(array, &["/0/0"]).is_ok());
    let big = r#"{"type": "bytes", "logicalType": "big-decimal"}"#;
    let error = "the whole record is a big-decimal, whose scale varies between records, and is not supported; use another field";
    assert_eq!(refused(big, ""), error);
    let scale = r#"{"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 39}"#;
    assert_eq!(refused(scale, ""), "the whole record is a decimal with a scale above 38 and is not supported; use another field");
}

#[test]
fn a_union_can_have_a_branch_that_cannot_be_in_a_key() {
    let union = r#"["null", "string", "double", {"type": "map", "values": "string"}]"#;
    finds(union, &[""], &[0], &[Some(Scalar::Null)]);
    finds(union, &[""], b"\x02\x02a", &[text("a")]);
    // The first pointer ends at the union, so the second, longer pointer finds nothing, even if the record has the branch with the map.
    let walk = compile(union, &["", "/a"]).unwrap();
    assert!(!walk.lacks(0) && walk.lacks(1));
    let what = "a requested field is a map, not a single value";
    assert_eq!(walk.walk(&[6, 0], &mut [None, None]), Err(Malformed { offset: 1, what }));
    let what = "a requested field is a floating-point number, which has several text forms";
    assert_eq!(walk.walk(&[4, 0, 0, 0, 0, 0, 0, 0, 0], &mut [None, None]), Err(Malformed { offset: 1, what }));
    finds(union, &["/a"], b"\x06\x02\x02a\x02b\x00", &[text("b")]);
    finds(union, &["/a"], b"\x02\x02a", &[None]);
}

#[test]
fn places_that_no_record_can_have_are_known() {
    let text = r#"{"type": "record", "name": "r", "fields": [
        {"name": "a", "type": ["null", "string", {"type": "array", "items": "long"}]},
        {"name": "m", "type": {"type": "map", "values": "r"}},
        {"name": "n", "type": "null"}]}"#;
    let places = ["/a/0", "/a/x", "/b", "/m/x/a/7", "/m/x/b", "/n", "/n/0", "/a/1/0"];
    let walk = compile(text, &places).unwrap();
    let lacking = (0..places.len()).filter(|&slot| walk.lacks(slot)).collect::<Vec<_>>();
    assert_eq!(lacking, [1, 2, 4, 6, 7]);
}

#[test]
fn a_field_is_found_by_its_aliases() {
    let text_of = r#"{"type": "record", "name": "r", "fields": [
        {"name": "id", "type": {"type": "record", "name": "s", "fields": [{"name": "a", "type": "long"}]}, "aliases": ["key", "old"]},
        {"name": "key", "type": "string"}]}"#;
    let places = ["/id/a", "/old/a", "/key", "/key/a", "/old/b"];
    finds(text_of, &places, b"\x02\x02k", &[integer(1), integer(1), text("k"), None, None]);
    let of_a_union = r#"{"type": "record", "name": "r", "fields": [{"name": "n", "aliases": ["o"], "type": ["null", "string"]}]}"#;
    finds(of_a_union, &["/o", "/n"], b"\x02\x02k", &[text("k"), text("k")]);
    finds(of_a_union, &["/o", "/n"], b"\x00", &[Some(Scalar::Null), Some(Scalar::Null)]);
}

#[test]
fn places_survive_schema_evolution() {
    let places = ["/user/id", "/at"];
    let expected = [integer(7), integer(-1)];
    let user = |fields: &str| format!(r#"{{"type": "record", "name": "User", "fields": [{fields}]}}"#);
    let event = |fields: &str| format!(r#"{{"type": "record", "name": "Event", "fields": [{fields}]}}"#);
    let id = r#"{"name": "id", "type": "long"}"#;
    let at = r#"{"name": "at", "type": "int"}"#;
    let named = |name: &str, fields: &str| format!(r#"{{"name": "{name}", "type": {}}}"#, user(fields));
    // The first of these schemas is the original. In the others, fields are reordered, added, or both renamed and optional.
    finds(&event(&format!("{}, {at}", named("user", id))), &places, &[14, 1], &expected);
    finds(&event(&format!("{at}, {}", named("user", id))), &places, &[1, 14], &expected);
    let name = r#"{"name": "name", "type": ["null", "string"], "default": null}"#;
    let more =
        format!("{name}, {}, {name}, {at}", named("user", &format!("{name}, {id}"))).replacen("\"name\", \"type\"", "\"x\", \"type\"", 1);
    finds(&event(&more), &places, b"\x00\x02\x02n\x0e\x02\x02m\x01", &expected);
    let renamed = format!(
        r#"{{"name": "customer", "aliases": ["user"], "type": ["null", {}]}}, {{"name": "time", "aliases": ["at"], "type": ["null", "long"]}}"#,
        user(r#"{"name": "number", "aliases": ["id"], "type": ["string", "long"]}"#)
    );
    finds(&event(&renamed), &places, &[2, 2, 14, 2, 1], &expected);
    finds(&event(&renamed), &places, &[0, 0], &[None, Some(Scalar::Null)]);
}

#[test]
fn a_schema_can_refer_to_other_schemas() {
    let id = r#"{"type": "fixed", "name": "acme.Id", "size": 2}"#;
    let user = r#"{"type": "record", "name": "User", "namespace": "acme", "fields": [
        {"name": "id", "type": "Id"}, {"name": "key", "type": ["null", "acme.Id"]},
        {"name": "other", "type": {"type": "record", "name": "x.Other", "fields": [{"name": "next", "type": ["null", "Other", "acme.User"]}]}}]}"#;
    let event = r#"{"type": "record", "name": "Event", "fields": [{"name": "users", "type": {"type": "array", "items": "acme.User"}}]}"#;
    let places = ["/users/1/id", "/users/0/key", "/users/0/other/next/next/id"];
    let spec = key(&places);
    let walk = AvroExtractor::compile(&with_references(event, &[id, user]), &spec).unwrap();
    let mut found = [None; 3];
    assert_eq!(walk.walk(b"\x04id\x02ky\x02\x04ab\x00\x00id\x00\x00\x00", &mut found), Ok(()));
    assert_eq!(found, [text("id"), text("ky"), text("ab")]);
    let spec = key(&["/0/id"]);
    let union =
        AvroExtractor::compile(&with_references(r#"["null", {"type": "array", "items": "acme.User"}]"#, &[id, user]), &spec).unwrap();
    assert_eq!(union.walk(b"\x02\x02id\x00\x00\x00", &mut found), Ok(()));
    assert_eq!(found[0], text("id"));
    let whole = AvroExtractor::compile(&with_references(r#""acme.Id""#, &[id]), &key(&[""])).unwrap();
    assert_eq!(whole.walk(b"id", &mut found), Ok(()));
    assert_eq!(found[0], text("id"));
}

#[test]
fn names_can_have_any_letters() {
    let record = r#"{"type": "record", "name": "Größe", "namespace": "my-server.1", "doc": 7, "fields": [
        {"name": "straße-1", "type": {"type": "enum", "name": "e", "symbols": ["größer", "1"], "default": "none"}, "default": 17},
        {"name": "next", "type": ["null", "my-server.1.Größe"]}]}"#;
    finds(record, &["/straße-1", "/next/straße-1"], &[0, 2, 2, 0], &[text("größer"), text("1")]);
}

#[test]
fn an_empty_namespace_is_not_inherited() {
    let record = r#"{"type": "record", "name": "a.A", "fields": [
        {"name": "b", "type": {"type": "record", "name": "B", "namespace": "", "fields": [{"name": "n", "type": ["null", "B"]}, {"name": "i", "type": "int"}]}}]}"#;
    finds(record, &["/b/n/i"], &[2, 0, 4, 2], &[integer(2)]);
}

#[test]
fn a_type_can_be_named_like_a_kind_of_type() {
    for kind in ["record", "error", "enum", "fixed", "array", "map"] {
        let text_of = format!(
            r#"{{"type": "record", "name": "r", "namespace": "n", "fields": [
                {{"name": "{kind}", "size": 3, "fields": 1, "type": {{"type": "record", "name": "{kind}", "fields": [
                    {{"name": "a", "type": {{"type": "array", "items": "int"}}}}, {{"name": "b", "type": ["null", "{kind}"]}}]}}}},
                {{"name": "c", "type": {{"type": "map", "values": "n.{kind}"}}}},
                {{"name": "d", "type": {{"type": "enum", "name": "E", "symbols": ["x"]}}}},
                {{"name": "e", "type": {{"type": "{kind}"}}}},
                {{"name": "f", "type": {{"type": "fixed", "name": "F", "size": 1}}}}]}}"#
        );
        let places = [&format!("/{kind}/a/0"), "/c/k/a/0", "/d", "/e/a/0", "/f"];
        let record = [&[2, 14, 0, 0][..], &[2, 2, b'k', 2, 16, 0, 0, 0], &[0], &[2, 18, 0, 0], b"z"].concat();
        finds(&text_of, &places, &record, &[integer(7), integer(8), text("x"), integer(9), text("z")]);
    }
    assert_eq!(
        refused(r#"{"type": "record"}"#, "/a"),
        "neither the schema nor its references define the type `record`",
        "a record without fields is a type name"
    );
}

#[test]
fn additional_attributes_are_ignored() {
    let text_of = r#"{"type": "record", "name": "r", "primaryKey": {"fields": ["id"]}, "ui": {"type": "enum"}, "fields": [
        {"name": "a", "connect.parameters": {"type": "record"}, "size": 1, "type": {"type": "string", "fields": [1], "symbols": {"type": 1}}},
        {"name": "error", "size": 20, "type": {"type": "error", "name": "Error", "fields": [{"name": "id", "type": "int"}]}}]}"#;
    finds(text_of, &["/a", "/error/id"], &[2, b'x', 14], &[text("x"), integer(7)]);
}

#[test]
fn aliases_of_a_type_need_no_memory() {
    // If the aliases were not removed, the parser would copy all fields for each alias.
    let aliases: Vec<_> = (0..20_000).map(|number| format!("\"a{number}\"")).collect();
    let fields: Vec<_> = (0..20_000).map(|number| format!(r#"{{"name": "f{number}", "type": "int"}}"#)).collect();
    let text_of = format!(r#"{{"type": "record", "name": "r", "aliases": [{}], "fields": [{}]}}"#, aliases.join(","), fields.join(","));
    let mut record = vec![0; 20_000];
    record[19_999] = 14;
    finds(&text_of, &["/f19999"], &record, &[integer(7)]);
}

#[test]
fn invalid_schemas_are_rejected() {
    assert!(refused("{", "/a").starts_with("the schema is not JSON: EOF"));
    assert!(refused("17", "/a").starts_with("the schema is not valid Avro: "));
    assert_eq!(refused(r#""acme.User""#, "/a"), "neither the schema nor its references define the type `acme.User`");
    assert!(refused(r#"{"type": "record", "name": "r.", "fields": []}"#, "/a").starts_with("the schema is not valid Avro: "));
    let twice = r#"{"type": "record", "name": "r", "fields": [
        {"name": "a", "type": {"type": "fixed", "name": "f", "size": 1}}, {"name": "b", "type": {"type": "fixed", "name": "f", "size": 2}}]}"#;
    assert_eq!(refused(twice, "/a"), "the schema defines `f` twice");
    assert!(refused(r#"{"type": "record", "name": "r", "fields": ["a"]}"#, "/a").ends_with(r#"`"a"` is not a field"#));
    let descriptors = Schema::new(Format::Avro, Body::Descriptors(vec![1]), Vec::new());
    let error = AvroExtractor::compile(&descriptors, &key(&["/a"])).unwrap_err();
    assert_eq!(error.to_string(), "the schema is a Protobuf descriptor, but an Avro schema is JSON");
    let error = AvroExtractor::compile(&with_references(r#""string""#, &["{"]), &key(&["/a"])).unwrap_err();
    assert!(error.to_string().starts_with("in its reference `a.subject`, the schema is not JSON"));
    assert!(
        refused(&(r#"{"type": "array", "items": "#.repeat(1000) + r#""int""# + &"}".repeat(1000)), "")
            .starts_with("the schema is not JSON: recursion")
    );
}
