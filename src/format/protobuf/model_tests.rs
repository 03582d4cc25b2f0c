//! Property tests: a walk finds the same values as prost-reflect.

use super::oracle_tests::{OLD, SCHEMA, Truth, descriptor, place, repacked, truth};
use super::*;
use crate::format::{Body, Format, Reference};
use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::{DynamicMessage, Kind, MapKey, MessageDescriptor, Value};

/// A message that `Debug` prints as text. The default output is infinite for a message type that contains itself.
#[derive(Clone)]
struct Shown(DynamicMessage);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

fn shown(depth: u32) -> impl Strategy<Value = Shown> {
    messages(&descriptor(true), depth).prop_map(Shown)
}

/// Compiles an extractor for these places. If `packed` is true, packed and unpacked fields of the schema are swapped.
fn walk(places: &[String], packed: bool) -> ProtobufExtractor {
    let text = |text: &str| Body::Text(if packed { repacked(text) } else { text.to_owned() });
    let references = vec![Reference { name: "old.proto".to_owned(), body: text(OLD) }];
    let schema = Schema::new(Format::Protobuf, text(SCHEMA), references);
    let key = Places::new(places).unwrap();
    ProtobufExtractor::compile(&schema, Message::Named("truth.All"), &key).unwrap()
}

fn found(walk: &ProtobufExtractor, places: &[String], record: &[u8]) -> Result<Vec<Option<Truth>>, Malformed> {
    let mut found = vec![None; places.len()];
    walk.walk(record, &mut found)?;
    let owned = |scalar: Scalar<'_>| match scalar {
        Scalar::Integer(number) => Truth::Integer(number),
        Scalar::Bool(text) => Truth::Bool(text == b"true"),
        Scalar::String(text) => Truth::Text(text.to_vec()),
        other => panic!("{other:?} is not a Protobuf value"),
    };
    Ok(found.into_iter().map(|found| found.map(owned)).collect())
}

fn expected(message: &DynamicMessage, places: &[String]) -> Vec<Option<Truth>> {
    places.iter().map(|place| truth(message, place)).collect()
}

/// Generates values of a type. It often chooses from a few values, so that map keys match the places and defaults are frequent.
fn value(kind: Kind, depth: u32) -> BoxedStrategy<Value> {
    let long = || prop_oneof![Just(0), Just(1), Just(7), Just(-1), any::<i64>()];
    let unsigned = || prop_oneof![Just(0), Just(1), Just(7), any::<u64>()];
    #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
    match kind {
        Kind::Double => any::<f64>().prop_map(Value::F64).boxed(),
        Kind::Float => any::<f32>().prop_map(Value::F32).boxed(),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => long().prop_map(|number| Value::I32(number as i32)).boxed(),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => long().prop_map(Value::I64).boxed(),
        Kind::Uint32 | Kind::Fixed32 => unsigned().prop_map(|number| Value::U32(number as u32)).boxed(),
        Kind::Uint64 | Kind::Fixed64 => unsigned().prop_map(Value::U64).boxed(),
        Kind::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Kind::String => "|a|b|.{0,200}".prop_map(Value::String).boxed(),
        Kind::Bytes => vec(any::<u8>(), 0..4).prop_map(|bytes| Value::Bytes(bytes.into())).boxed(),
        Kind::Enum(_) => {
            prop_oneof![Just(0), Just(1), Just(3), Just(5), Just(7), Just(-1), any::<i32>()].prop_map(Value::EnumNumber).boxed()
        }
        Kind::Message(message) => messages(&message, depth).prop_map(Value::Message).boxed(),
    }
}

fn key(kind: &Kind) -> BoxedStrategy<MapKey> {
    match kind {
        Kind::String => "|a|b|c".prop_map(MapKey::String).boxed(),
        Kind::Bool => any::<bool>().prop_map(MapKey::Bool).boxed(),
        Kind::Int32 | Kind::Sfixed32 => prop_oneof![Just(0), Just(1), Just(7), Just(-1)].prop_map(MapKey::I32).boxed(),
        Kind::Sint64 => prop_oneof![Just(0), Just(1), Just(7), Just(-1)].prop_map(MapKey::I64).boxed(),
        _ => (0_u64..9).prop_map(MapKey::U64).boxed(),
    }
}

fn messages(message: &MessageDescriptor, depth: u32) -> BoxedStrategy<DynamicMessage> {
    let field = |field: prost_reflect::FieldDescriptor| {
        // Messages are less frequent than other fields, which keeps the record small.
        let is_message = matches!(field.kind(), Kind::Message(_));
        if is_message && depth == 0 {
            return Just(None).boxed();
        }
        let depth = depth.saturating_sub(1);
        let one = match field.kind() {
            Kind::Message(entry) if field.is_map() => {
                let value = value(entry.map_entry_value_field().kind(), depth);
                hash_map(key(&entry.map_entry_key_field().kind()), value, 0..4).prop_map(Value::Map).boxed()
            }
            kind if field.is_list() => vec(value(kind, depth), 0..5).prop_map(Value::List).boxed(),
            kind => value(kind, depth),
        };
        let share = if is_message { 0.3 } else { 0.5 };
        prop::option::weighted(share, one).prop_map(move |value| value.map(|value| (field.clone(), value))).boxed()
    };
    let (fields, descriptor): (Vec<_>, _) = (message.fields().map(field).collect(), message.clone());
    let make = move |fields: Vec<Option<(prost_reflect::FieldDescriptor, Value)>>| {
        let mut message = DynamicMessage::new(descriptor.clone());
        for (field, value) in fields.into_iter().flatten() {
            message.set_field(&field, value);
        }
        message
    };
    fields.prop_map(make).boxed()
}

fn places() -> impl Strategy<Value = Vec<String>> {
    let message = descriptor(true);
    let one = vec(any::<u8>(), 12).prop_filter_map("a place that a key can be made of", move |choices| place(&message, &choices));
    vec(one, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn a_walk_finds_the_same_values_as_a_decoder(places in places(), message in shown(3), packed: bool) {
        let Shown(message) = message;
        let record = message.encode_to_vec();
        prop_assert_eq!(found(&walk(&places, packed), &places, &record), Ok(expected(&message, &places)));
    }

    #[test]
    fn concatenated_messages_are_merged(places in places(), parts in vec(shown(2), 2..4)) {
        let mut merged = DynamicMessage::new(descriptor(true));
        let mut record = Vec::new();
        for Shown(part) in parts {
            merged.merge(part.encode_to_vec().as_slice()).unwrap();
            part.encode(&mut record).unwrap();
        }
        prop_assert_eq!(found(&walk(&places, false), &places, &record), Ok(expected(&merged, &places)));
    }

    #[test]
    fn a_damaged_record_has_the_same_values_as_for_a_decoder(
        places in places(),
        message in shown(2),
        damages in vec((any::<prop::sample::Index>(), prop::option::of(any::<u8>())), 1..40),
    ) {
        let (walk, record, entries) = (walk(&places, false), message.0.encode_to_vec(), descriptor(false));
        for (at, byte) in damages {
            let mut damaged = record.clone();
            match byte {
                Some(byte) if !record.is_empty() => damaged[at.index(record.len())] = byte,
                _ => damaged.truncate(at.index(record.len() + 1)),
            }
            let found = found(&walk, &places, &damaged);
            let message = DynamicMessage::decode(descriptor(true), damaged.as_slice());
            if let (Ok(message), Ok(_)) = (message, DynamicMessage::decode(entries.clone(), damaged.as_slice())) {
                prop_assert_eq!(found, Ok(expected(&message, &places)));
            }
        }
    }
}
