//! Schemas for commands: who has those of the configured topics.

use crate::config::{Config, SchemaRegistry, Topic};
use crate::format::{Format, Message, NoSchemas, RecordFormat, SchemaError, Schemas, Side};
use crate::key::{EventTime, TimePlace};
use crate::registry::Registry;
use std::sync::Arc;
use std::time::Duration;

/// How long a command that can do nothing else waits for a schema.
const PATIENCE: Duration = Duration::from_secs(30);

/// The registry, if a topic needs one.
///
/// # Errors
/// When its files cannot be used.
pub fn registry(config: &Config) -> anyhow::Result<Option<Registry>> {
    let needed = config.schema_registry.as_ref().filter(|_| config.topics.iter().any(|topic| topic.formats.needs_registry()));
    needed.map(Registry::start).transpose().map_err(anyhow::Error::msg)
}

/// Who has the schemas that records name, for a command that waits for each of them.
///
/// # Errors
/// When the registry's files cannot be used.
pub fn patient(config: &Config) -> anyhow::Result<Arc<dyn Schemas>> {
    Ok(match registry(config)? {
        Some(registry) => Arc::new(registry.patient(PATIENCE)),
        None => Arc::new(NoSchemas),
    })
}

/// Whether the registry answers, and whether the newest schemas of the topics have the fields that keys are made of.
/// Returns what is no fault, but worth a look.
///
/// # Errors
/// A sentence for each fault.
pub fn check(config: &Config) -> Result<Vec<String>, Vec<String>> {
    let Some(registry) = &config.schema_registry else { return Ok(Vec::new()) };
    let (mut warnings, mut faults) = (Vec::new(), Vec::new());
    for (at, topic) in config.topics.iter().enumerate() {
        let reads_value = topic.key.reads_value() || matches!(topic.time, Some(EventTime { place: TimePlace::Field { .. }, .. }));
        let reads = [(true, topic.key.reads_key(), &topic.formats.key), (false, reads_value, &topic.formats.value)];
        for (is_key, _, format) in reads.into_iter().filter(|(_, is_read, format)| *is_read && format.needs_registry()) {
            match check_subject(registry, topic, is_key, format) {
                Ok(None) => {}
                Ok(Some(warning)) => warnings.push(warning),
                Err(fault) => faults.push(format!("topics[{at}].{}: {fault}", if is_key { "key_format" } else { "value_format" })),
            }
        }
    }
    if faults.is_empty() { Ok(warnings) } else { Err(faults) }
}

/// The newest schema of a topic, under the name that serializers give its subject unless they are told otherwise.
fn check_subject(registry: &SchemaRegistry, topic: &Topic, is_key: bool, format: &RecordFormat) -> Result<Option<String>, String> {
    let subject = format!("{}-{}", topic.input, if is_key { "key" } else { "value" });
    let Some(schema) = Registry::latest(registry, &subject)? else {
        return Ok(Some(format!(
            "the schema registry has no subject {subject:?}, so the fields of {:?} could not be checked; nothing was written yet, or subjects are named in another way",
            topic.input
        )));
    };
    if schema.format != format.format {
        return Err(format!("the newest schema of subject {subject:?} is for {}, not for {}", schema.format, format.format));
    }
    let message = if schema.format == Format::Protobuf { Message::Indexes(&[0]) } else { Message::First };
    let side = if is_key { Side::Key } else { Side::Value };
    let unusable = |error: SchemaError| format!("the newest schema of subject {subject:?} cannot be used: {error}");
    let mut missing = topic.key.missing_in(&schema, message, side).map_err(unusable)?;
    let time = topic.time.as_ref().filter(|_| !is_key).map(|time| time.missing_in(&schema, message)).transpose().map_err(unusable)?;
    missing.extend(time.flatten().map(str::to_owned));
    match (&missing[..], schema.format) {
        ([], _) => Ok(None),
        // Which of its messages a record is, only the record says.
        (names, Format::Protobuf) => Ok(Some(format!("the first message of subject {subject:?} has no field `{}`", names.join("`, `")))),
        (names, _) => Err(format!("the newest schema of subject {subject:?} has no field `{}`", names.join("`, `"))),
    }
}
