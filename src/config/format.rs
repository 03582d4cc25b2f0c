//! The formats of a topic's keys and values and their schema files.
//!
//! Reads only local files. This module never connects to a schema registry.

use super::error::Diagnostics;
use super::units::expected;
use crate::format::{Body, Encoding, Format, Formats, LocalSchema, RecordFormat, Schema};
#[cfg(feature = "formats")]
use crate::format::{Extractor, Message, Places, Side};
use crate::key::{EventTime, KeySpec};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

/// Maximum size of a schema file in bytes. Even the descriptor set of a whole repository is only a few megabytes.
const FILE_MAX: u64 = 16 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct FormatOption {
    kind: Format,
    schema: Option<String>,
    message: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct EncodingOption(Vec<Encoding>);

impl TryFrom<Value> for EncodingOption {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let what = "\"gzip\", \"base64\", or a list of them with the outermost encoding first";
        let list = value.as_array().map_or_else(|| std::slice::from_ref(&value), Vec::as_slice);
        let encoding = |name: &Value| serde_json::from_value(name.clone()).map_err(|_| expected(what, name));
        list.iter().map(encoding).collect::<Result<_, _>>().map(Self)
    }
}

impl TryFrom<Value> for FormatOption {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match &value {
            Value::Object(table) => Self::of_table(table),
            name => Ok(Self { kind: kind(name)?, ..Self::default() }),
        }
    }
}

fn kind(name: &Value) -> Result<Format, String> {
    let what = || format!("{}, or {{ kind = \"avro\", schema = \"file.avsc\" }}", Format::list(|_| true));
    serde_json::from_value(name.clone()).map_err(|_| expected(&what(), name))
}

impl FormatOption {
    fn of_table(table: &Map<String, Value>) -> Result<Self, String> {
        if let Some(name) = table.keys().find(|name| !matches!(&***name, "kind" | "schema" | "message")) {
            return Err(format!("unknown option {name:?}, expected kind, schema, or message"));
        }
        let text = |name: &str| {
            let value = table.get(name);
            value.map(|value| value.as_str().map(str::to_owned).ok_or_else(|| expected(&format!("text for {name}"), value))).transpose()
        };
        let named = table.get("kind").ok_or("kind is missing; set it, for example kind = \"avro\"")?;
        Ok(Self { kind: kind(named)?, schema: text("schema")?, message: text("message")? })
    }
}

/// Resolves the formats of a topic's keys and values. Reports an error if a schema file lacks one of the `wanted` fields.
pub(super) fn resolve(
    key: &FormatOption,
    (value, encoding): (&FormatOption, &EncodingOption),
    wanted: &Wanted<'_>,
    topic: &str,
    diagnostics: &mut Diagnostics,
) -> Option<Formats> {
    let key = side(key, wanted, true, &format!("{topic}.key_format"), diagnostics);
    let value = side(value, wanted, false, &format!("{topic}.value_format"), diagnostics);
    Some(Formats::new(key?, RecordFormat { encodings: encoding.0.clone(), ..value? }))
}

/// The fields that a schema file must have: the fields of the key and of the compared content, even if they are optional, and the field of
/// the event time, unless the event time is optional. A field with the event time is always in the record value, never in the record key.
pub(super) type Wanted<'w> = (Vec<&'w KeySpec>, Option<&'w EventTime>);

fn side(option: &FormatOption, wanted: &Wanted<'_>, is_key: bool, path: &str, diagnostics: &mut Diagnostics) -> Option<RecordFormat> {
    let local = local(option, wanted, is_key).map_err(|message| diagnostics.add(path, message)).ok()?;
    Some(RecordFormat { format: option.kind, schema: local.map(Arc::new), encodings: Vec::new() })
}

fn local(option: &FormatOption, wanted: &Wanted<'_>, is_key: bool) -> Result<Option<LocalSchema>, String> {
    if !option.kind.is_supported() {
        return Err(format!("this build of unseen does not support {}; build it with the Cargo feature `formats`", option.kind));
    }
    if option.message.is_some() && (!option.kind.has_messages() || option.schema.is_none()) {
        return Err("message requires kind = \"protobuf\" and a schema: set both, or remove message".to_owned());
    }
    let Some(file) = &option.schema else { return Ok(None) };
    let body = match option.kind {
        Format::Json | Format::JsonSchema => return Err("JSON does not need a schema: remove schema".to_owned()),
        Format::Protobuf if !has_extension(file, "proto") => Body::Descriptors(read(file)?),
        Format::Avro | Format::Protobuf => Body::Text(String::from_utf8(read(file)?).map_err(|_| format!("{file} is not UTF-8 text"))?),
    };
    let schema = Schema::new(option.kind, body, Vec::new());
    let local = LocalSchema { schema, message: option.message.clone() };
    check(&local, wanted, is_key).map_err(|error| format!("{file}: {error}"))?;
    Ok(Some(local))
}

fn has_extension(file: &str, extension: &str) -> bool {
    Path::new(file).extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

fn read(file: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|opened| opened.take(FILE_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot read {file}: {error}; unseen resolves relative paths against its working directory"))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(format!("{file} has more than the maximum of {FILE_MAX} bytes"));
    }
    Ok(bytes)
}

/// Checks that the schema can be used, that the type of the records is unambiguous, and that this type has the fields of the key, of the
/// compared content, and of the event time.
#[cfg(feature = "formats")]
fn check(local: &LocalSchema, (specs, time): &Wanted<'_>, is_key: bool) -> Result<(), String> {
    let is_second_there = || Extractor::compile(&local.schema, Message::Indexes(&[1]), &Places::default()).is_ok();
    if local.schema.format.has_messages() && local.message.is_none() && is_second_there() {
        return Err("the schema has more than one message: set the type of the records, for example message = \"package.Name\"".to_owned());
    }
    let side = if is_key { Side::Key } else { Side::Value };
    let mut missing = Vec::new();
    for spec in specs {
        missing.extend(spec.missing_in(&local.schema, local.message(), side).map_err(|error| error.to_string())?);
    }
    let time = time
        .filter(|_| !is_key)
        .map(|time| time.missing_in(&local.schema, local.message()))
        .transpose()
        .map_err(|error| error.to_string())?;
    missing.extend(time.flatten().map(str::to_owned));
    if missing.is_empty() { Ok(()) } else { Err(format!("the schema has no field `{}`", missing.join("`, `"))) }
}

#[cfg(not(feature = "formats"))]
#[expect(clippy::unnecessary_wraps, reason = "same signature as with the feature")]
fn check(_: &LocalSchema, _: &Wanted<'_>, _: bool) -> Result<(), String> {
    Ok(())
}
