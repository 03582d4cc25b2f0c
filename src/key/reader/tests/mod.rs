//! Tests of reading keys, times, and contents from records of all formats.

mod content;
mod encodings;
mod predicates;
mod schemas;
mod times;

use super::*;
use crate::format::{Body, Format, LocalSchema, Lookup, NoSchemas, Schema};
use crate::key::Part;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A schema registry that returns these lookup results by schema id. All other schemas are unknown.
#[derive(Debug, Default)]
struct Few(Mutex<HashMap<SchemaId, Lookup>>);

impl Few {
    fn with(id: u32, lookup: Lookup) -> Self {
        let few = Self::default();
        few.set(id, lookup);
        few
    }

    fn set(&self, id: u32, lookup: Lookup) {
        self.0.lock().unwrap().insert(SchemaId::Number(id), lookup);
    }
}

impl Schemas for Few {
    fn get(&self, id: SchemaId) -> Lookup {
        self.0.lock().unwrap().get(&id).cloned().unwrap_or_else(|| Lookup::Unknown("it is not there".into()))
    }
}

fn avro(text: &str) -> Lookup {
    Lookup::Known(Arc::new(Schema::new(Format::Avro, Body::Text(text.to_owned()), Vec::new())))
}

const EVENT: &str = r#"{"type":"record","name":"Event","fields":[{"name":"at","type":"long"},{"name":"id","type":"string"}]}"#;
const LATER: &str = r#"{"type":"record","name":"Event","fields":[{"name":"id","type":"string"},{"name":"at","type":"long"}]}"#;

fn formats(format: Format) -> Formats {
    Formats::new(RecordFormat::default(), RecordFormat { format, ..RecordFormat::default() })
}

fn by(part: Part) -> KeySpec {
    KeySpec::new(vec![part]).unwrap()
}

fn by_id() -> KeySpec {
    by(Part::Field("/id".into()))
}

fn of(
    reader: &mut Reader,
    spec: &KeySpec,
    formats: &Formats,
    value: &[u8],
    schemas: &dyn Schemas,
) -> Result<Fingerprint, (Reason, String)> {
    let record = Record { value: Some(value), ..Record::default() };
    reader.fingerprint(spec, formats, &record, &mut Scratch::default(), schemas).map_err(|error| match error {
        NoKey::Invalid(invalid) => (invalid.reason, invalid.message),
        other => panic!("{other:?}"),
    })
}

fn json_id() -> Fingerprint {
    let value = Record { value: Some(br#"{"id":"a"}"#), ..Record::default() };
    by_id().fingerprint(&value, &mut Scratch::default()).unwrap()
}

fn of_schema(format: Format, text: &str) -> Formats {
    let schema = Schema::new(format, Body::Text(text.to_owned()), Vec::new());
    Formats::new(
        RecordFormat::default(),
        RecordFormat { format, schema: Some(Arc::new(LocalSchema { schema, message: None })), ..RecordFormat::default() },
    )
}
