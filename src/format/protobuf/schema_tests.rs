//! Tests of schemas as text, descriptors, and descriptor sets, and of message types by name and by indexes.

use super::oracle_tests::{OLD, SCHEMA};
use super::*;
use crate::format::{Body, Format, Reference};
use data_encoding::BASE64;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{FileDescriptorProto, FileDescriptorSet};
use protox::file::File;

fn proto(name: &str, text: &str) -> FileDescriptorProto {
    File::from_source(name, text).unwrap().into()
}

fn text(text: &str) -> Body {
    Body::Text(text.to_owned())
}

fn packed(file: &FileDescriptorProto) -> Body {
    Body::Text(BASE64.encode(&file.encode_to_vec()))
}

fn set(files: &[FileDescriptorProto]) -> Body {
    Body::Descriptors(FileDescriptorSet { file: files.to_vec() }.encode_to_vec())
}

fn schema(body: Body, references: Vec<(&str, Body)>) -> Schema {
    let references = references.into_iter().map(|(name, body)| Reference { name: name.to_owned(), body });
    Schema::new(Format::Protobuf, body, references.collect())
}

fn meant(schema: &Schema, message: Message<'_>) -> String {
    match schema::message(schema, message) {
        Ok(message) => message.full_name().to_owned(),
        Err(SchemaError(error)) => error,
    }
}

const ORDER: &str = "syntax = \"proto3\"; package shop; import \"user.proto\"; message Order { User user = 1; }";
const USER: &str = "syntax = \"proto3\"; package shop; import \"google/protobuf/timestamp.proto\";
    message User { string id = 1; google.protobuf.Timestamp since = 2; }";

/// Compiles an extractor for this schema and returns the value that it finds at `/user/id` in a record. The expected value is `x`.
fn user_id(schema: &Schema) -> Option<Vec<u8>> {
    let key = Places::new(["/user/id"]).unwrap();
    let walk = ProtobufExtractor::compile(schema, Message::Named("shop.Order"), &key).unwrap();
    let mut found = [None];
    walk.walk(&[0x0a, 0x03, 0x0a, 0x01, b'x'], &mut found).unwrap();
    match found[0] {
        Some(Scalar::String(text)) => Some(text.to_vec()),
        _ => None,
    }
}

#[test]
fn schemas_are_read_in_all_forms() {
    let (order, user) = (proto("order.proto", ORDER), proto("user.proto", USER));
    let mut wrapped = BASE64.encode(&order.encode_to_vec());
    wrapped.insert(40, '\n');
    let forms = [
        schema(text(ORDER), vec![("user.proto", text(USER))]),
        schema(text(ORDER), vec![("user.proto", packed(&user))]),
        schema(packed(&order), vec![("user.proto", text(USER))]),
        schema(Body::Text(wrapped), vec![("user.proto", packed(&user))]),
        schema(text(ORDER), vec![("user.proto", packed(&proto("elsewhere.proto", USER)))]),
        schema(set(&[user.clone(), order.clone()]), vec![]),
        schema(set(&[order]), vec![("user.proto", set(&[user]))]),
    ];
    for schema in forms {
        assert_eq!(user_id(&schema).as_deref(), Some(&b"x"[..]), "{schema:?}");
    }
    let all_kinds = schema(text(SCHEMA), vec![("old.proto", text(OLD))]);
    assert_eq!(meant(&all_kinds, Message::First), "truth.All");
}

#[test]
fn builtin_imports_need_no_reference() {
    let types = [
        ("google/type/calendar_period", "google.type.CalendarPeriod"),
        ("google/type/color", "google.type.Color"),
        ("google/type/date", "google.type.Date"),
        ("google/type/datetime", "google.type.DateTime"),
        ("google/type/dayofweek", "google.type.DayOfWeek"),
        ("google/type/decimal", "google.type.Decimal"),
        ("google/type/expr", "google.type.Expr"),
        ("google/type/fraction", "google.type.Fraction"),
        ("google/type/interval", "google.type.Interval"),
        ("google/type/latlng", "google.type.LatLng"),
        ("google/type/localized_text", "google.type.LocalizedText"),
        ("google/type/money", "google.type.Money"),
        ("google/type/month", "google.type.Month"),
        ("google/type/phone_number", "google.type.PhoneNumber"),
        ("google/type/postal_address", "google.type.PostalAddress"),
        ("google/type/quaternion", "google.type.Quaternion"),
        ("google/type/timeofday", "google.type.TimeOfDay"),
        ("google/protobuf/any", "google.protobuf.Any"),
        ("google/protobuf/wrappers", "google.protobuf.StringValue"),
        ("google/protobuf/struct", "google.protobuf.Struct"),
        ("confluent/type/decimal", "confluent.type.Decimal"),
        ("confluent/meta", "confluent.Meta"),
    ];
    for (file, name) in types {
        let text = text(&format!("syntax = \"proto3\"; import \"{file}.proto\"; message M {{ {name} field = 1; }}"));
        assert_eq!(meant(&schema(text, vec![]), Message::First), "M", "{name}");
    }
}

#[test]
fn errors_in_options_and_services_are_ignored() {
    let body = "syntax = \"proto3\"; import \"confluent/meta.proto\"; option (nobody.knows) = 7;
        message M { option (confluent.message_meta).tags = \"PII\"; string id = 1 [(confluent.field_meta).doc = \"what\"]; }
        service S { rpc Get (M) returns (M) { option (google.api.http) = { get: \"/\" }; } }";
    assert_eq!(meant(&schema(text(body), vec![]), Message::First), "M");
}

#[test]
fn public_imports_are_transitive() {
    let leaf = "syntax = \"proto3\"; message Leaf { string id = 1; }";
    let through = |name: &str| format!("syntax = \"proto3\"; import public \"{name}\";");
    let files = vec![("leaf", text(leaf)), ("c", text(&through("leaf"))), ("b", text(&through("c"))), ("a", text(&through("b")))];
    let own = "syntax = \"proto3\"; import \"a\"; message M { Leaf leaf = 1; }";
    assert_eq!(meant(&schema(text(own), files), Message::First), "M");
}

#[test]
fn a_message_is_found_by_name_and_by_indexes() {
    let body = "syntax = \"proto3\"; package p; message A { message B { message C {} } message D { message E {} } } message F {}";
    let schema = schema(text(body), vec![]);
    for (message, name) in [
        (Message::First, "p.A"),
        (Message::Indexes(&[]), "p.A"),
        (Message::Indexes(&[0]), "p.A"),
        (Message::Indexes(&[1]), "p.F"),
        (Message::Indexes(&[0, 0]), "p.A.B"),
        (Message::Indexes(&[0, 0, 0]), "p.A.B.C"),
        (Message::Indexes(&[0, 1, 0]), "p.A.D.E"),
        (Message::Named("p.A.D"), "p.A.D"),
        (Message::Named(".p.F"), "p.F"),
        (Message::Named("F"), "the schema has no message `F`; it has `p.A`, `p.F`"),
        (Message::Indexes(&[2]), "the schema has no message at the indexes [2]; it has `p.A`, `p.F`"),
        (Message::Indexes(&[0, 2]), "the schema has no message at the indexes [0, 2]; it has `p.A`, `p.F`"),
        (Message::Indexes(&[usize::MAX]), "the schema has no message at the indexes [18446744073709551615]; it has `p.A`, `p.F`"),
    ] {
        assert_eq!(meant(&schema, message), name, "{message:?}");
    }
}

#[test]
fn indexes_that_clients_count_differently_are_rejected() {
    let body = "syntax = \"proto3\"; message A { map<string, string> m = 1; message B {} message C {} }";
    let schema = schema(text(body), vec![]);
    assert_eq!(meant(&schema, Message::Indexes(&[0, 0])), "A.B", "the map is not a message");
    assert_eq!(meant(&schema, Message::Indexes(&[0, 2])), "A.C", "the map was counted");
    let ambiguous = "the message indexes can mean `A.C` or `A.B`, because clients count maps and groups differently: use a top-level message for records";
    assert_eq!(meant(&schema, Message::Indexes(&[0, 1])), ambiguous);
}

#[test]
fn the_last_file_of_a_descriptor_set_has_the_message() {
    let (one, two) = ("syntax = \"proto3\"; message A {}", "syntax = \"proto3\"; message B {} message C {}");
    let files = [proto("one", one), proto("two", two)];
    let several = "the last file of the descriptor set has `B`, `C`: set `message` to the type of the records";
    assert_eq!(meant(&schema(set(&files), vec![]), Message::First), several);
    assert_eq!(meant(&schema(set(&files), vec![]), Message::Indexes(&[1])), "C");
    assert_eq!(meant(&schema(set(&files[..1]), vec![]), Message::First), "A");
    let many: Vec<_> = (0..20).map(|number| format!("message M{number} {{}} ")).collect();
    let many = set(&[proto("many", &many.concat())]);
    let error = meant(&schema(many, vec![]), Message::First);
    assert!(error.contains("`M7`, 12 more: set"), "{error}");
}

#[test]
fn invalid_schemas_are_rejected() {
    let first = |schema: Schema| meant(&schema, Message::First);
    let error = first(schema(text("message M {"), vec![]));
    assert!(error.starts_with("the schema is not a valid .proto file: expected ") && error.ends_with("but reached end of file"), "{error}");
    let error = first(schema(text("syntax = \"proto3\";\nmessage M { strin id }"), vec![]));
    assert!(error.starts_with("the schema is not a valid .proto file: 2:"), "{error}");
    assert_eq!(first(schema(text(""), vec![])), "the schema has no message");
    assert_eq!(first(schema(text("QUJD"), vec![])), "the schema is neither a .proto file nor a FileDescriptorProto in base64");
    assert_eq!(first(schema(text("QUJ"), vec![])), "the schema is neither a .proto file nor a FileDescriptorProto in base64");
    assert_eq!(first(schema(text(ORDER), vec![])), "`user.proto` is imported but is neither a reference nor in a descriptor set");
    let user = text("import \"nobody.proto\"; message User {}");
    let error = first(schema(text(ORDER), vec![("user.proto", user)]));
    assert_eq!(error, "`nobody.proto` is imported by `user.proto` but is neither a reference nor in a descriptor set");
    let error = first(schema(text(ORDER), vec![("user.proto", text("{}"))]));
    assert!(error.starts_with("in its reference `user.proto`, the schema is not a valid .proto file: 1:1"), "{error}");
    let error = first(schema(text("message M { optional Nobody x = 1; }"), vec![]));
    assert_eq!(error, "the schema cannot be linked: name 'Nobody' is not defined");
    assert!(first(schema(Body::Descriptors(vec![0xff]), vec![])).starts_with("the schema is not a valid FileDescriptorSet: "));
    assert_eq!(first(schema(Body::Descriptors(vec![]), vec![])), "the descriptor set has no file");
}

#[test]
fn circular_imports_are_rejected() {
    let through = |name: &str| text(&format!("import public \"{name}\"; message M {{}}"));
    let circle = schema(through("a"), vec![("a", through("b")), ("b", through("a"))]);
    assert_eq!(meant(&circle, Message::First), "files import each other in a circle");
    let itself = schema(through("a"), vec![("a", through("a"))]);
    assert_eq!(meant(&itself, Message::First), "files import each other in a circle");
}

#[test]
fn editions_are_rejected() {
    let editions = "the schema uses an edition, which is not supported: use proto2 or proto3";
    assert_eq!(meant(&schema(text("edition = \"2023\"; message M {}"), vec![]), Message::First), editions);
    let mut file = proto("m", "message M {}");
    file.syntax = Some("editions".to_owned());
    assert_eq!(meant(&schema(packed(&file), vec![]), Message::First), editions);
    file.syntax = Some("proto4".to_owned());
    let unknown = "the syntax `proto4` is not supported: use proto2 or proto3";
    assert_eq!(meant(&schema(set(&[file]), vec![]), Message::First), unknown);
}

#[test]
fn a_schema_with_too_many_files_is_rejected() {
    let names: Vec<_> = (0..1_000).map(|number| format!("f{number}")).collect();
    let imports = names.iter().map(|name| format!("import \"{name}\";")).collect::<Vec<_>>().concat();
    let references = names.iter().map(|name| (name.as_str(), text(""))).collect();
    let error = meant(&schema(text(&format!("{imports} message M {{}}")), references), Message::First);
    assert_eq!(error, "the schema needs more than 1000 files");
}

#[test]
fn a_schema_is_linked_once_for_all_its_messages() {
    let schema = schema(text("syntax = \"proto3\"; message A { message B {} } message C {}"), Vec::new());
    let first = schema::message(&schema, Message::Indexes(&[0])).unwrap();
    for (indexes, name) in [(&[0, 0][..], "A.B"), (&[1], "C")] {
        let other = schema::message(&schema, Message::Indexes(indexes)).unwrap();
        assert_eq!(other.full_name(), name);
        // Two pools are equal only if they are the same object, so the schema was linked once.
        assert_eq!(other.parent_pool(), first.parent_pool());
    }
    assert!(meant(&schema, Message::Indexes(&[7])).contains("the schema has no message at the indexes [7]"));
}
