//! Schemas as they are kept: texts, descriptors, sets; and which message of them is meant.

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

/// The full name of the message that is meant, or why there is none.
fn meant(schema: &Schema, message: Message<'_>) -> String {
    match schema::message(schema, message) {
        Ok(message) => message.full_name().to_owned(),
        Err(SchemaError(error)) => error,
    }
}

const ORDER: &str = "syntax = \"proto3\"; package shop; import \"user.proto\"; message Order { User user = 1; }";
const USER: &str = "syntax = \"proto3\"; package shop; import \"google/protobuf/timestamp.proto\";
    message User { string id = 1; google.protobuf.Timestamp since = 2; }";

/// What is at `/user/id` of a record that has `x` there.
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
fn a_schema_has_many_forms() {
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
fn imports_that_clients_have_built_in_need_no_reference() {
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
fn options_and_services_need_not_be_right() {
    let body = "syntax = \"proto3\"; import \"confluent/meta.proto\"; option (nobody.knows) = 7;
        message M { option (confluent.message_meta).tags = \"PII\"; string id = 1 [(confluent.field_meta).doc = \"what\"]; }
        service S { rpc Get (M) returns (M) { option (google.api.http) = { get: \"/\" }; } }";
    assert_eq!(meant(&schema(text(body), vec![]), Message::First), "M");
}

#[test]
fn public_imports_are_followed_to_their_end() {
    let leaf = "syntax = \"proto3\"; message Leaf { string id = 1; }";
    let through = |name: &str| format!("syntax = \"proto3\"; import public \"{name}\";");
    let files = vec![("leaf", text(leaf)), ("c", text(&through("leaf"))), ("b", text(&through("c"))), ("a", text(&through("b")))];
    let own = "syntax = \"proto3\"; import \"a\"; message M { Leaf leaf = 1; }";
    assert_eq!(meant(&schema(text(own), files), Message::First), "M");
}

#[test]
fn a_message_is_meant_by_name_or_by_indexes() {
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
        (Message::Named("F"), "there is no message `F`: its file has `p.A`, `p.F`"),
        (Message::Indexes(&[2]), "there is no message at the indexes [2]: its file has `p.A`, `p.F`"),
        (Message::Indexes(&[0, 2]), "there is no message at the indexes [0, 2]: its file has `p.A`, `p.F`"),
        (Message::Indexes(&[usize::MAX]), "there is no message at the indexes [18446744073709551615]: its file has `p.A`, `p.F`"),
    ] {
        assert_eq!(meant(&schema, message), name, "{message:?}");
    }
}

#[test]
fn indexes_that_clients_count_differently_mean_nothing() {
    let body = "syntax = \"proto3\"; message A { map<string, string> m = 1; message B {} message C {} }";
    let schema = schema(text(body), vec![]);
    assert_eq!(meant(&schema, Message::Indexes(&[0, 0])), "A.B", "the map is not a message");
    assert_eq!(meant(&schema, Message::Indexes(&[0, 2])), "A.C", "the map was counted");
    let ambiguous = "a record is a `A.C` or a `A.B` by its indexes, and clients differ on which: name the one that records are";
    assert_eq!(meant(&schema, Message::Indexes(&[0, 1])), ambiguous);
}

#[test]
fn the_last_file_of_a_set_is_meant() {
    let (one, two) = ("syntax = \"proto3\"; message A {}", "syntax = \"proto3\"; message B {} message C {}");
    let files = [proto("one", one), proto("two", two)];
    let several = "the last file of the descriptor set has `B`, `C`: name the one that records are";
    assert_eq!(meant(&schema(set(&files), vec![]), Message::First), several);
    assert_eq!(meant(&schema(set(&files), vec![]), Message::Indexes(&[1])), "C");
    assert_eq!(meant(&schema(set(&files[..1]), vec![]), Message::First), "A");
    let many: Vec<_> = (0..20).map(|number| format!("message M{number} {{}} ")).collect();
    let many = set(&[proto("many", &many.concat())]);
    let error = meant(&schema(many, vec![]), Message::First);
    assert!(error.contains("`M7`, 12 more: name"), "{error}");
}

#[test]
fn a_schema_that_is_wrong_is_refused() {
    let first = |schema: Schema| meant(&schema, Message::First);
    let error = first(schema(text("message M {"), vec![]));
    assert!(error.starts_with("it is no .proto file: expected ") && error.ends_with("but reached end of file"), "{error}");
    let error = first(schema(text("syntax = \"proto3\";\nmessage M { strin id }"), vec![]));
    assert!(error.starts_with("it is no .proto file: 2:"), "{error}");
    assert_eq!(first(schema(text(""), vec![])), "it has no message");
    assert_eq!(first(schema(text("QUJD"), vec![])), "it is neither a .proto file nor a FileDescriptorProto in base64");
    assert_eq!(first(schema(text("QUJ"), vec![])), "it is neither a .proto file nor a FileDescriptorProto in base64");
    assert_eq!(first(schema(text(ORDER), vec![])), "`user.proto` is imported, and is not among its references");
    let user = text("import \"nobody.proto\"; message User {}");
    let error = first(schema(text(ORDER), vec![("user.proto", user)]));
    assert_eq!(error, "`nobody.proto` is imported by `user.proto`, and is not among its references");
    let error = first(schema(text(ORDER), vec![("user.proto", text("{}"))]));
    assert!(error.starts_with("of its reference `user.proto`, it is no .proto file: 1:1"), "{error}");
    let error = first(schema(text("message M { optional Nobody x = 1; }"), vec![]));
    assert_eq!(error, "it cannot be linked: name 'Nobody' is not defined");
    assert!(first(schema(Body::Descriptors(vec![0xff]), vec![])).starts_with("it is no FileDescriptorSet: "));
    assert_eq!(first(schema(Body::Descriptors(vec![]), vec![])), "the descriptor set has no file");
}

#[test]
fn imports_in_a_circle_are_refused() {
    let through = |name: &str| text(&format!("import public \"{name}\"; message M {{}}"));
    let circle = schema(through("a"), vec![("a", through("b")), ("b", through("a"))]);
    assert_eq!(meant(&circle, Message::First), "files import each other in a circle");
    let itself = schema(through("a"), vec![("a", through("a"))]);
    assert_eq!(meant(&itself, Message::First), "files import each other in a circle");
}

#[test]
fn editions_are_refused_in_words() {
    let editions = "it is of an edition, which cannot be read yet: only proto2 and proto3 can";
    assert_eq!(meant(&schema(text("edition = \"2023\"; message M {}"), vec![]), Message::First), editions);
    let mut file = proto("m", "message M {}");
    file.syntax = Some("editions".to_owned());
    assert_eq!(meant(&schema(packed(&file), vec![]), Message::First), editions);
    file.syntax = Some("proto4".to_owned());
    let unknown = "`proto4` is a syntax that cannot be read: only proto2 and proto3 can";
    assert_eq!(meant(&schema(set(&[file]), vec![]), Message::First), unknown);
}

#[test]
fn a_schema_that_needs_too_many_files_is_refused() {
    let names: Vec<_> = (0..1_000).map(|number| format!("f{number}")).collect();
    let imports = names.iter().map(|name| format!("import \"{name}\";")).collect::<Vec<_>>().concat();
    let references = names.iter().map(|name| (name.as_str(), text(""))).collect();
    let error = meant(&schema(text(&format!("{imports} message M {{}}")), references), Message::First);
    assert_eq!(error, "it needs more than 1000 files");
}

#[test]
fn a_schema_is_linked_once_for_all_its_messages() {
    let schema = schema(text("syntax = \"proto3\"; message A { message B {} } message C {}"), Vec::new());
    let first = schema::message(&schema, Message::Indexes(&[0])).unwrap();
    for (indexes, name) in [(&[0, 0][..], "A.B"), (&[1], "C")] {
        let other = schema::message(&schema, Message::Indexes(indexes)).unwrap();
        assert_eq!(other.full_name(), name);
        // Equal pools are the same one.
        assert_eq!(other.parent_pool(), first.parent_pool());
    }
    assert!(meant(&schema, Message::Indexes(&[7])).contains("there is no message at the indexes [7]"));
}
