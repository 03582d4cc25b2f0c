//! Promise: in a value that another project has encoded, unseen finds the same id as that project's decoder, and the same id in any format.
//!
//! `tests/data/formats` documents the encoders.

use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use unseen::format::{Body, Format, Formats, LocalSchema, Lookup, NoSchemas, RecordFormat, Reference, Schema, SchemaId, Schemas};
use unseen::key::{Fingerprint, KeySpec, NoKey, Part, Reader, Scratch};
use unseen::record::{Reason, Record};

fn file(name: &str) -> Value {
    let path = format!("{}/tests/data/formats/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(&path).expect(&path)).expect(&path)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    value.as_str().map(|hex| data_encoding::HEXLOWER.decode(hex.as_bytes()).expect("hex"))
}

fn format(value: &Value) -> Format {
    serde_json::from_value(value.clone()).expect("a format")
}

#[derive(Debug, Default)]
struct Registry(HashMap<SchemaId, Arc<Schema>>);

impl Registry {
    fn of(list_of: &Value) -> Self {
        let mut known = HashMap::new();
        for entry in list(list_of) {
            let mut references = Vec::new();
            add_references(entry, list(list_of), &mut references);
            let kind = entry["schemaType"].as_str().unwrap_or("AVRO");
            let format = Format::ALL.into_iter().find(|format| format.schema_type() == Some(kind)).expect("a schema type");
            let schema = Arc::new(Schema::new(format, Body::Text(text(&entry["schema"]).to_owned()), references));
            let id = u32::try_from(entry["id"].as_u64().expect("an id")).expect("32 bits");
            let guid = data_encoding::HEXLOWER.decode(text(&entry["guid"]).replace('-', "").as_bytes()).expect("a GUID");
            known.insert(SchemaId::Number(id), Arc::clone(&schema));
            known.insert(SchemaId::Guid(guid.try_into().expect("16 bytes")), schema);
        }
        Self(known)
    }
}

/// Adds the schemas that a schema references. Referenced schemas come before the schemas that reference them.
fn add_references(entry: &Value, all: &[Value], references: &mut Vec<Reference>) {
    for reference in entry["references"].as_array().into_iter().flatten() {
        let is_it = |other: &&Value| other["subject"] == reference["subject"] && other["version"] == reference["version"];
        let found = all.iter().find(is_it).expect("a schema that is named is there");
        add_references(found, all, references);
        let name = text(&reference["name"]).to_owned();
        if references.iter().all(|other| other.name != name) {
            references.push(Reference { name, body: Body::Text(text(&found["schema"]).to_owned()) });
        }
    }
}

impl Schemas for Registry {
    fn get(&self, id: SchemaId) -> Lookup {
        self.0.get(&id).map_or_else(|| Lookup::Unknown("it is not there".into()), |schema| Lookup::Known(Arc::clone(schema)))
    }
}

/// The fingerprint of an id in the test data. `None` if the record has no id.
fn id(id: &Value) -> Option<Fingerprint> {
    let raw = id.get("bytes").and_then(bytes);
    let with_header = |bytes: &[u8]| {
        let spec = KeySpec::new(vec![Part::Header("a".into()), Part::RecordKey]).expect("a key");
        spec.fingerprint(&record(None, &[("a", Some(bytes))]), &mut Scratch::default()).expect("an id")
    };
    // The constant second part makes a key valid even if the id is null.
    let in_json = |value: &str| {
        let json = format!("{{\"a\":{value}}}");
        key("/a").fingerprint(&record(Some(json.as_bytes()), &[]), &mut Scratch::default()).expect("an id")
    };
    Some(match id.as_object().and_then(|id| id.iter().next()).map(|(kind, value)| (kind.as_str(), value)) {
        Some(("text", value)) => with_header(text(value).as_bytes()),
        Some(("bytes", _)) => with_header(raw.as_deref().expect("hex")),
        Some(("number", value)) => in_json(text(value)),
        Some(("bool", value)) => in_json(&value.to_string()),
        Some(("null", _)) => in_json("null"),
        Some(("absent", _)) => return None,
        other => panic!("no id {other:?}"),
    })
}

/// A record with this value and always the same key.
const fn record<'a>(value: Option<&'a [u8]>, headers: &'a [(&'a str, Option<&'a [u8]>)]) -> Record<'a> {
    // A null value would be rejected as a tombstone, not because a field is missing, so the value is never null.
    Record { key: Some(b"k"), value: if value.is_some() { value } else { Some(b"") }, headers }
}

fn key(place: &str) -> KeySpec {
    KeySpec::new(vec![Part::Field(place.to_owned()), Part::RecordKey]).expect("a key")
}

/// The id at a place of a value. `None` if the value does not have that place.
fn found(place: &str, formats: &Formats, record: &Record<'_>, schemas: &dyn Schemas) -> Result<Option<Fingerprint>, (Reason, String)> {
    match Reader::default().fingerprint(&key(place), formats, record, &mut Scratch::default(), schemas) {
        Ok(fingerprint) => Ok(Some(fingerprint)),
        Err(NoKey::Invalid(invalid)) if invalid.reason == Reason::MissingKey => Ok(None),
        Err(NoKey::Invalid(invalid)) => Err((invalid.reason, invalid.message)),
        Err(other) => panic!("{other:?}"),
    }
}

fn of_values(format: Format, schema: Option<LocalSchema>) -> Formats {
    Formats::new(RecordFormat::default(), RecordFormat { format, schema: schema.map(Arc::new), ..RecordFormat::default() })
}

fn unframed(entry: &Value, avro: impl Fn(&str) -> String, protobuf: &Value) -> Formats {
    let format = format(&entry["format"]);
    let local = |body| LocalSchema { schema: Schema::new(format, body, Vec::new()), message: entry["message"].as_str().map(str::to_owned) };
    match format {
        Format::Json | Format::JsonSchema => of_values(format, None),
        Format::Avro => of_values(format, Some(local(Body::Text(avro(text(&entry["schema"])))))),
        Format::Protobuf => {
            let descriptors = bytes(&protobuf["protobuf"][text(&entry["schema"])]["descriptors"]).expect("a descriptor set");
            of_values(format, Some(local(Body::Descriptors(descriptors))))
        }
    }
}

fn itself(schema: &str) -> String {
    schema.to_owned()
}

#[test]
fn value_has_the_same_id_in_every_format() {
    let (values, protobuf) = (file("values"), file("schemas"));
    let registry = Registry::of(&values["registry"]);
    let avro = |name: &str| text(&values["avro_schemas"][name]).to_owned();
    let mut records = 0;
    for row in list(&values["values"]) {
        for entry in list(&row["records"]) {
            let value = bytes(&entry["record"]).expect("hex");
            let place = text(entry.get("place").unwrap_or(&row["place"]));
            let found = found(place, &unframed(entry, avro, &protobuf), &record(Some(&value), &[]), &registry);
            assert_eq!(found, Ok(id(&row["id"])), "{} in {}", row["name"], entry);
            records += 1;
        }
    }
    assert!(records > 100, "{records}");
    for row in list(&values["floats"]) {
        for entry in list(&row["records"]).iter().filter(|entry| !text(&entry["format"]).starts_with("json")) {
            let value = bytes(&entry["record"]).expect("hex");
            let (reason, message) = found(
                text(entry.get("place").unwrap_or(&row["place"])),
                &unframed(entry, avro, &protobuf),
                &record(Some(&value), &[]),
                &registry,
            )
            .unwrap_err();
            assert!(reason == Reason::UnknownSchema && message.contains("cannot be used"), "{}: {message}", row["name"]);
        }
    }
}

#[test]
fn every_place_of_a_record_is_found() {
    let protobuf = file("schemas");
    for name in ["places", "odd"] {
        for entry in list(&file(name)["records"]) {
            let value = bytes(&entry["record"]).expect("hex");
            let formats = unframed(entry, itself, &protobuf);
            for (place, expected) in entry["places"].as_object().expect("places") {
                let found = found(place, &formats, &record(Some(&value), &[]), &NoSchemas);
                // A place that can be a record or null is not a valid part of a key.
                if expected.get("null").is_some() && found.as_ref().is_err_and(|(_, message)| message.contains("is a record")) {
                    continue;
                }
                assert_eq!(found, Ok(id(expected)), "{place} of {}", entry["name"]);
            }
        }
    }
}

#[test]
fn truncated_record_is_invalid() {
    let protobuf = file("schemas");
    for entry in list(&file("places")["records"]) {
        let (value, formats) = (bytes(&entry["record"]).expect("hex"), unframed(entry, itself, &protobuf));
        let place = entry["places"].as_object().and_then(|places| places.keys().next()).expect("a place");
        if value.is_empty() {
            continue;
        }
        let mut invalid = 0;
        for end in 0..value.len() {
            match found(place, &formats, &record(Some(&value[..end]), &[]), &NoSchemas) {
                Err((Reason::Malformed, _)) => invalid += 1,
                // A Protobuf message can end after any of its fields.
                Ok(_) if formats.value().format == Format::Protobuf => {}
                other => panic!("{} cut to {end}: {other:?}", entry["name"]),
            }
        }
        assert!(invalid * 2 > value.len(), "{invalid} of {}", value.len());
    }
}

#[test]
fn frames_of_all_serializers_are_parsed() {
    for name in ["framed", "evolution"] {
        let all = file(name);
        let registry = Registry::of(&all["registry"]);
        for entry in list(&all["records"]) {
            let values: Vec<_> =
                entry["headers"].as_array().into_iter().flatten().map(|header| (text(&header[0]), bytes(&header[1]))).collect();
            let headers: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_deref())).collect();
            let (key, value) = (bytes(&entry["key"]), bytes(&entry["value"]));
            let format = format(&entry["format"]);
            for (place, expected) in entry["places"].as_object().expect("places") {
                let found = found(place, &of_values(format, None), &record(value.as_deref(), &headers), &registry);
                assert_eq!(found, Ok(id(expected)), "{place} of {}", entry["name"]);
            }
            for (place, expected) in entry["key_places"].as_object().into_iter().flatten() {
                let formats = Formats::new(RecordFormat { format, ..RecordFormat::default() }, RecordFormat::default());
                // The key reads no field of the value, so the frame of the value does not matter.
                let spec = KeySpec::new(vec![Part::KeyField(place.clone()), Part::Header("k".into())]).expect("a key");
                let headers: Vec<_> = headers.iter().copied().chain([("k", Some(&b"k"[..]))]).collect();
                let record = Record { key: key.as_deref(), value: value.as_deref(), headers: &headers };
                let found = Reader::default().fingerprint(&spec, &formats, &record, &mut Scratch::default(), &registry);
                assert_eq!(found.ok(), id(expected), "{place} of the key of {}", entry["name"]);
            }
        }
    }
}

/// Invalid values that are accepted. In most of them, the error is in a field that the key does not read, so the decoder skips the field by
/// its length. The tag of six bytes is an overlong encoding of a number, which Go's parser accepts, too.
const PASSED_OVER: [&str; 5] = [
    "Protobuf: a tag of six bytes",
    "Avro: a text on the way that is not UTF-8",
    "Avro: a key of a map that is not UTF-8",
    "Avro: a block of -2^63 items",
    "Protobuf: a message within itself, a thousand times",
];

/// The places to look up in invalid values. At least one of them leads to the error.
const LOOKED_FOR: [&str; 7] = ["/id", "/before", "/order_id", "/customer/id", "/labels/x", "/marks/0", "/total/cents"];

#[test]
fn value_that_does_not_match_its_schema_is_invalid() {
    let (all, protobuf) = (file("invalid"), file("schemas"));
    for kind in ["records", "hostile", "disputed"] {
        for entry in list(&all[kind]) {
            let value = bytes(&entry["record"]).expect("hex");
            let began = std::time::Instant::now();
            let formats = unframed(entry, itself, &protobuf);
            let look = |place: &&str| found(place, &formats, &record(Some(&value), &[]), &NoSchemas);
            let answers: Vec<_> = LOOKED_FOR.iter().map(look).collect();
            // Without limits in the decoder, a hostile record would take years to decode.
            assert!(began.elapsed().as_secs() < 60, "{}", entry["name"]);
            let is_invalid = answers.iter().any(|answer| matches!(answer, Err((Reason::Malformed, _))));
            // As in JSON, the decoder does not check a field that the key does not read if it can skip the field by its length.
            let is_passed_over = PASSED_OVER.iter().any(|name| text(&entry["name"]) == *name);
            assert!(is_invalid || is_passed_over || kind == "disputed", "{}: {answers:?}", entry["name"]);
        }
    }
    for entry in list(&all["frames"]) {
        let values: Vec<_> = list(&entry["headers"]).iter().map(|header| (text(&header[0]), bytes(&header[1]))).collect();
        let headers: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_deref())).collect();
        let value = bytes(&entry["value"]);
        let found = found("/id", &of_values(format(&entry["format"]), None), &record(value.as_deref(), &headers), &NoSchemas);
        assert!(found.is_err(), "{}: {found:?}", entry["name"]);
    }
}

#[test]
fn cloud_event_has_the_same_id_in_both_modes() {
    let spec = KeySpec::new(["source", "id"].map(|name| Part::CloudEvent(name.into())).into()).expect("a key");
    let mut ids: HashMap<String, Vec<Fingerprint>> = HashMap::new();
    for entry in list(&file("cloudevents")["records"]) {
        let values: Vec<_> = list(&entry["headers"]).iter().map(|header| (text(&header[0]), bytes(&header[1]))).collect();
        let headers: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_deref())).collect();
        let (key, value) = (bytes(&entry["key"]), bytes(&entry["value"]));
        let record = Record { key: key.as_deref(), value: value.as_deref(), headers: &headers };
        let found = spec.fingerprint(&record, &mut Scratch::default()).unwrap_or_else(|error| panic!("{}: {error}", entry["name"]));
        // A CloudEvent in a framed value has the same id.
        let framed = value.as_ref().map(|value| [&[0, 0, 0, 0, 7][..], value].concat());
        let framed = Record { value: framed.as_deref(), ..record };
        let read = Reader::default().fingerprint(&spec, &of_values(Format::JsonSchema, None), &framed, &mut Scratch::default(), &NoSchemas);
        assert_eq!(read, Ok(found), "{}", entry["name"]);
        let attributes = &entry["attributes"];
        ids.entry(format!("{} {}", attributes["source"], attributes["id"])).or_default().push(found);
    }
    assert!(ids.values().all(|found| found.iter().all(|id| *id == found[0])), "{ids:?}");
    assert!(ids.values().any(|found| found.len() > 1), "both modes are there");
}
