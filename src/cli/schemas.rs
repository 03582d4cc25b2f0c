//! Schemas of the configured topics, for commands.

use crate::config::{Config, Pattern, SchemaRegistry, Topic};
use crate::format::{Message, NoSchemas, RecordFormat, SchemaError, Schemas, Side};
use crate::key::{EventTime, KeySpec, TimePlace};
use crate::registry::Registry;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a schema in [`blocking`].
const TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a client of the schema registry. Returns `None` if no topic or pattern needs the registry. Fails if the client cannot be created,
/// for example because the file in `schema_registry.ca_location` cannot be used.
pub fn registry(config: &Config) -> anyhow::Result<Option<Registry>> {
    let topics = || config.topics.iter().chain(config.patterns.iter().map(Pattern::entry));
    let needed = config.schema_registry.as_ref().filter(|_| topics().any(|topic| topic.formats.needs_registry()));
    needed.map(Registry::start).transpose().map_err(anyhow::Error::msg)
}

/// Returns a source of schemas that blocks until the registry answers, for at most `TIMEOUT`.
pub fn blocking(config: &Config) -> anyhow::Result<Arc<dyn Schemas>> {
    Ok(match registry(config)? {
        Some(registry) => Arc::new(registry.patient(TIMEOUT)),
        None => Arc::new(NoSchemas),
    })
}

/// Returns the specification of a topic's key and of the content that `emit = "on_change"` compares.
fn specs(topic: &Topic) -> impl Iterator<Item = &KeySpec> {
    std::iter::once(&topic.key).chain(&topic.on_change)
}

/// Checks that the registry answers, and that the latest schemas of the topics have the fields of keys, compared contents, and event times.
/// Returns warnings, or one message per problem.
pub fn check(config: &Config) -> Result<Vec<String>, Vec<String>> {
    let Some(registry) = &config.schema_registry else { return Ok(Vec::new()) };
    let (mut warnings, mut faults) = (Vec::new(), Vec::new());
    for topic in &config.topics {
        let has_event_time = matches!(topic.time, Some(EventTime { place: TimePlace::Field { .. }, .. }));
        let reads_value = specs(topic).any(KeySpec::reads_value) || has_event_time;
        let reads = [(true, specs(topic).any(KeySpec::reads_key), topic.formats.key()), (false, reads_value, topic.formats.value())];
        for (is_key, _, format) in reads.into_iter().filter(|(_, is_read, format)| *is_read && format.needs_registry()) {
            match check_subject(registry, topic, is_key, format) {
                Ok(None) => {}
                Ok(Some(warning)) => warnings.push(warning),
                Err(fault) => faults.push(format!("{}: {fault}", topic.setting(if is_key { "key_format" } else { "value_format" }))),
            }
        }
    }
    if faults.is_empty() { Ok(warnings) } else { Err(faults) }
}

/// Checks the latest schema of a topic under the default subject name, `TOPIC-key` or `TOPIC-value`. Returns a warning, if any.
fn check_subject(registry: &SchemaRegistry, topic: &Topic, is_key: bool, format: &RecordFormat) -> Result<Option<String>, String> {
    let subject = format!("{}-{}", topic.input, if is_key { "key" } else { "value" });
    let Some(schema) = Registry::latest(registry, &subject)? else {
        return Ok(Some(format!(
            "the schema registry has no subject {subject:?}, so `check` cannot verify the key fields of {:?}; either no producer has written to the topic yet, or the producers use another subject name strategy",
            topic.input
        )));
    };
    if schema.format != format.format {
        let option = if is_key { "key_format" } else { "value_format" };
        let (registered, configured) = (schema.format, format.format);
        return Err(format!("the latest schema of subject {subject:?} is {registered}, but {option} is {configured}; correct {option}"));
    }
    let message = if schema.format.has_messages() { Message::Indexes(&[0]) } else { Message::First };
    let side = if is_key { Side::Key } else { Side::Value };
    let unusable = |error: SchemaError| {
        format!("unseen cannot use the latest schema of subject {subject:?}: {error}; choose another field, or fix the schema")
    };
    let mut missing = Vec::new();
    for spec in specs(topic) {
        missing.extend(spec.missing_in(&schema, message, side).map_err(unusable)?);
    }
    let time = topic.time.as_ref().filter(|_| !is_key).map(|time| time.missing_in(&schema, message)).transpose().map_err(unusable)?;
    missing.extend(time.flatten().map(str::to_owned));
    match (&missing[..], schema.format) {
        ([], _) => Ok(None),
        // A schema can define several messages, and only a record shows which message it contains. So the field may be in another message.
        (names, format) if format.has_messages() => Ok(Some(format!(
            "the first message in the latest schema of subject {subject:?} has no field `{}`; correct the field, or ignore this if the records are of another message",
            names.join("`, `")
        ))),
        // `when` may select only records of other schemas, so this is only a warning.
        (names, _) if !topic.when.is_empty() => Ok(Some(format!(
            "the latest schema of subject {subject:?} has no field `{}`; correct the field, or ignore this if `when` selects records of other schemas",
            names.join("`, `")
        ))),
        (names, _) => Err(format!(
            "the latest schema of subject {subject:?} has no field `{}`; correct it in key, emit, or time, or register a schema that has it",
            names.join("`, `")
        )),
    }
}
