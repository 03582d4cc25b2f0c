//! The expected values of a message, read with the accessors of prost-reflect. The fuzz target also includes this file.

use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value};
use protox::file::File;

/// A schema with all types of fields. It imports `OLD` as `old.proto`.
pub const SCHEMA: &str = r#"
syntax = "proto3";
package truth;
import "old.proto";
enum Color { option allow_alias = true; NONE = 0; RED = 1; ROUGE = 1; BLUE = 5; BELOW = -1; ZERO = 0; }
message All {
    double real = 1; float small_real = 2;
    int32 int_32 = 3; int64 int_64 = 4; uint32 uint_32 = 5; uint64 uint_64 = 6; sint32 sint_32 = 7; sint64 sint_64 = 8;
    fixed32 fixed_32 = 9; fixed64 fixed_64 = 10; sfixed32 sfixed_32 = 11; sfixed64 sfixed_64 = 12;
    bool flag = 13; string text = 14; bytes raw = 15; Color color = 16;
    optional string maybe_text = 17; optional int64 maybe_number = 18; optional Color maybe_color = 19; optional bool maybe_flag = 20;
    repeated int32 numbers = 21 [packed = true]; repeated sint64 loose_numbers = 22 [packed = false];
    repeated fixed32 wide = 23 [packed = true]; repeated sfixed64 loose_wide = 24 [packed = false];
    repeated bool flags = 25 [packed = true]; repeated Color colors = 26 [packed = false];
    repeated string texts = 27; repeated bytes raws = 28; repeated Inner inners = 29; repeated double reals = 30;
    All child = 31; Inner inner = 32;
    oneof choice { string choice_text = 33; int32 choice_number = 34; Inner choice_inner = 35; All choice_all = 36; double choice_real = 37; }
    map<string, string> by_text = 38; map<int32, Inner> by_number = 39; map<bool, Color> by_flag = 40;
    map<sint64, int32> by_sint = 41; map<fixed64, bytes> by_fixed = 42; map<uint64, All> by_unsigned = 43; map<sfixed32, double> by_wide = 44;
    oneof other { string other_text = 45; fixed32 other_number = 46; }
    old.Old old = 70;
    repeated old.Old olds = 71;
    string far = 536870911;
}
message Inner { string id = 1; Inner deeper = 2; repeated string tags = 16; uint64 number = 1000; }
"#;
/// A proto2 schema with groups and defaults.
pub const OLD: &str = r#"
syntax = "proto2";
package old;
enum Level { HIGH = 7; LOW = 3; }
message Old {
    optional string text = 1; optional string named = 2 [default = "none"]; optional int32 count = 3 [default = -7];
    optional Level level = 4; optional Level set_level = 5 [default = LOW]; optional bytes raw = 6 [default = "\001\377"];
    optional group Part = 7 { optional string id = 1; repeated group Sub = 2 { optional int32 number = 1; } }
    repeated int32 loose = 8 [packed = false]; repeated int32 dense = 9 [packed = true]; optional bool flag = 10 [default = true];
    map<string, Level> levels = 11;
    oneof pick { string first = 12; Old second = 13; }
    optional uint64 large = 14 [default = 18446744073709551615];
}
"#;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Truth {
    Integer(i128),
    Bool(bool),
    Text(Vec<u8>),
}

/// Returns the schema in which packed and unpacked fields are swapped.
pub fn repacked(schema: &str) -> String {
    schema.replace("packed = true", "packed = ?").replace("packed = false", "packed = true").replace("packed = ?", "packed = false")
}

/// Returns the descriptor of `truth.All`. If `maps` is false, maps are declared as repeated messages, which have the same encoding. Tests
/// decode damaged records with both descriptors: prost-reflect accepts any wire type for a map, but only the correct one for a repeated
/// message.
pub fn descriptor(maps: bool) -> MessageDescriptor {
    let mut pool = DescriptorPool::new();
    for (name, text) in [("old.proto", OLD), ("truth.proto", SCHEMA)] {
        let mut file = FileDescriptorProto::from(File::from_source(name, text).unwrap());
        if !maps {
            let entries = file.message_type.iter_mut().flat_map(|message| &mut message.nested_type);
            entries.for_each(|entry| entry.options = None);
        }
        pool.add_file_descriptor_proto(file).unwrap();
    }
    pool.get_message_by_name("truth.All").unwrap()
}

/// Chooses a place that can be part of a key. Each step uses one or two of the `choices`.
pub fn place(message: &MessageDescriptor, choices: &[u8]) -> Option<String> {
    let (&choice, choices) = choices.split_first()?;
    let field = message.fields().nth(usize::from(choice) % message.fields().len())?;
    let name = if choice < 128 { field.name() } else { field.json_name() };
    let (kind, key, choices) = match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let (&choice, choices) = choices.split_first()?;
            let key = match entry.map_entry_key_field().kind() {
                Kind::String => ["a", "b", ""][usize::from(choice) % 3],
                Kind::Bool => ["true", "false"][usize::from(choice) % 2],
                _ => ["0", "1", "7"][usize::from(choice) % 3],
            };
            (entry.map_entry_value_field().kind(), format!("/{key}"), choices)
        }
        kind if field.is_list() => {
            let (&choice, choices) = choices.split_first()?;
            (kind, format!("/{}", choice % 4), choices)
        }
        kind => (kind, String::new(), choices),
    };
    let rest = match kind {
        Kind::Double | Kind::Float => return None,
        Kind::Message(message) => place(&message, choices)?,
        _ => String::new(),
    };
    Some(format!("/{name}{key}{rest}"))
}

pub fn truth(message: &DynamicMessage, place: &str) -> Option<Truth> {
    let steps: Vec<_> = place.split('/').skip(1).collect();
    at(message, &steps)
}

fn at(message: &DynamicMessage, steps: &[&str]) -> Option<Truth> {
    let (step, rest) = steps.split_first()?;
    let descriptor = message.descriptor();
    let field = descriptor.get_field_by_name(step).or_else(|| descriptor.get_field_by_json_name(step))?;
    let value = message.get_field(&field);
    match &*value {
        Value::Map(entries) => {
            let (key, rest) = rest.split_first()?;
            let (_, value) = entries.iter().find(|(known, _)| text(known) == *key)?;
            let Kind::Message(entry) = field.kind() else { return None };
            value_at(value, &entry.map_entry_value_field(), rest)
        }
        Value::List(values) => {
            let (index, rest) = rest.split_first()?;
            value_at(values.get(index.parse::<usize>().ok()?)?, &field, rest)
        }
        _ if field.supports_presence() && !message.has_field(&field) && field.field_descriptor_proto().default_value.is_none() => None,
        value => value_at(value, &field, rest),
    }
}

fn value_at(value: &Value, field: &FieldDescriptor, rest: &[&str]) -> Option<Truth> {
    Some(match value {
        Value::Message(message) => return at(message, rest),
        _ if !rest.is_empty() => return None,
        Value::Bool(value) => Truth::Bool(*value),
        Value::I32(number) => Truth::Integer((*number).into()),
        Value::I64(number) => Truth::Integer((*number).into()),
        Value::U32(number) => Truth::Integer((*number).into()),
        Value::U64(number) => Truth::Integer((*number).into()),
        Value::String(text) => Truth::Text(text.clone().into_bytes()),
        Value::Bytes(bytes) => Truth::Text(bytes.to_vec()),
        Value::EnumNumber(number) => {
            let Kind::Enum(symbols) = field.kind() else { return None };
            let declared = &symbols.enum_descriptor_proto().value;
            let symbol = declared.iter().find(|value| value.number() == *number);
            symbol.map_or(Truth::Integer((*number).into()), |value| Truth::Text(value.name().into()))
        }
        _ => return None,
    })
}

fn text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}
