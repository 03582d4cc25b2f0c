//! Property test: a walk finds the same values as the decoder of `apache-avro`.

use super::drawn::Draw;
use super::oracle_tests::{compare, look};
use super::parse::allow_all_names;
use super::tests::key;
use super::{AvroExtractor, Malformed, Schema, SchemaError};
use crate::format::{Body, Format};
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::schema::{ResolvedSchema, Schema as Parsed};
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;
use proptest::prelude::*;

fn places(value: &Value, place: &str, all: &mut Vec<String>) {
    match value {
        Value::Union(_, value) => return places(value, place, all),
        Value::Record(fields) => fields.iter().for_each(|(name, value)| places(value, &format!("{place}/{name}"), all)),
        Value::Map(entries) => {
            let step = |key: &str| key.replace('~', "~0").replace('/', "~1");
            for (key, value) in entries {
                places(value, &format!("{place}/{}", step(key)), all);
            }
        }
        Value::Array(elements) => {
            for (index, value) in elements.iter().enumerate() {
                places(value, &format!("{place}/{index}"), all);
            }
        }
        _ => {}
    }
    all.push(place.to_owned());
}

fn is_usable(value: &Value) -> bool {
    !matches!(value, Value::Float(_) | Value::Double(_) | Value::Array(_) | Value::Map(_) | Value::Record(_))
}

/// Checks that a walk finds the expected values in an encoded record, or rejects the record if one of the values cannot be part of a key.
/// Also checks that the walk rejects each prefix of the record.
fn check(walk: &AvroExtractor, places: &[String], value: &Value, record: &[u8]) {
    let mut found = vec![None; places.len()];
    let walked = walk.walk(record, &mut found);
    if places.iter().any(|place| look(value, place).is_some_and(|value| !is_usable(value))) {
        let Err(Malformed { what, .. }) = walked else { panic!("{places:?} of {value:?}") };
        assert!(what.starts_with("a requested field is "), "{what}");
    } else {
        assert_eq!(walked, Ok(()), "{places:?} of {value:?} in {record:x?}");
        compare(places, value, &found);
        for (slot, (place, found)) in places.iter().zip(&found).enumerate() {
            assert!(found.is_none() || !walk.lacks(slot), "{place} is there");
        }
    }
    for end in 0..record.len() {
        assert!(walk.walk(&record[..end], &mut vec![None; places.len()]).is_err(), "{end} of {record:x?}");
    }
}

fn compile(schema: &str, places: &[String]) -> Result<AvroExtractor, SchemaError> {
    let schema = Schema::new(Format::Avro, Body::Text(schema.to_owned()), Vec::new());
    AvroExtractor::compile(&schema, &key(places))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn a_walk_finds_the_same_values_as_a_decoder(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        of_values in prop::collection::vec(any::<u8>(), 0..400),
        choices in prop::collection::vec((any::<prop::sample::Index>(), 0..4), 1..6),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        allow_all_names();
        let text = Draw::new(&bytes).schema(0).to_string();
        let parsed = Parsed::parse_str(&text).unwrap();
        let resolved = ResolvedSchema::new(&parsed).unwrap();
        let mut draw = Draw::new(&of_values);
        let value = draw.value(&parsed, resolved.get_names(), 0);

        let (mut all, mut chosen) = (Vec::new(), Vec::new());
        places(&value, "", &mut all);
        for (index, how) in &choices {
            let place = all[index.index(all.len())].clone();
            chosen.push(match how {
                0 => format!("{place}/0"),
                1 => place.replace("/f", "/old_f"),
                _ => place,
            });
        }
        chosen.retain(|place| {
            let usable = look(&value, place).is_some_and(|value| is_usable(value) && *value != Value::Null);
            let walk = compile(&text, std::slice::from_ref(place));
            assert!(walk.is_ok() || !usable, "{place} of {text} is rejected: {walk:?}");
            walk.is_ok()
        });
        if chosen.is_empty() {
            return Ok(());
        }
        let walk = compile(&text, &chosen).unwrap();

        let record = GenericDatumWriter::builder(&parsed).build().unwrap().write_value_to_vec(value.clone()).unwrap();
        check(&walk, &chosen, &value, &record);
        let mut in_blocks = Vec::new();
        draw.encode(&value, &parsed, resolved.get_names(), &mut in_blocks);
        let decoded = GenericDatumReader::builder(&parsed).build().unwrap().read_value(&mut &in_blocks[..]).unwrap();
        prop_assert_eq!(&decoded, &value);
        check(&walk, &chosen, &value, &in_blocks);

        for mut record in [record, in_blocks] {
            for (index, byte) in &changes {
                if !record.is_empty() {
                    let at = index.index(record.len());
                    record[at] = *byte;
                }
                let _ = walk.walk(&record, &mut vec![None; chosen.len()]);
            }
        }
    }
}
