//! The topics that an entry of `[[topics]]` reads. In the entry's other topic names and in its space, the placeholder `{input}` is replaced
//! by the name of the input.
//!
//! An entry with several inputs has the same effect as one entry for each input. Other modules never see a list of inputs, because each
//! [`Topic`] has a single input. `pattern` finds the inputs of an entry with a pattern.

use super::error::{Diagnostics, required};
use super::units::expected;
use super::{Config, OnDuplicate, OnInvalid, Topic};
use serde::Deserialize;
use serde_json::Value;

pub(super) const PLACEHOLDER: &str = "{input}";
/// Maximum length of a topic name in Kafka.
const NAME_MAX: usize = 249;

#[derive(Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(super) enum Inputs {
    One(String),
    /// A name is `None` if it is null in YAML, or if an error in it was already reported.
    List(Vec<Option<String>>),
    Pattern(String),
}

impl TryFrom<Value> for Inputs {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match &value {
            Value::String(name) => Ok(Self::One(name.clone())),
            Value::Array(names) if names.iter().all(|name| name.is_string() || name.is_null()) => {
                Ok(Self::List(names.iter().map(|name| name.as_str().map(str::to_owned)).collect()))
            }
            Value::Object(table) => match table.get("pattern") {
                Some(Value::String(pattern)) if table.len() == 1 => Ok(Self::Pattern(pattern.clone())),
                _ => Err(expected("{ pattern = \"…\" } with a regular expression, and nothing else", &value)),
            },
            _ => Err(expected("a topic, a list of topics, or { pattern = \"…\" }", &value)),
        }
    }
}

/// Returns the inputs that have valid names, as pairs of the path of the option and the name.
pub(super) fn resolve(raw: Option<Inputs>, path: &str, diagnostics: &mut Diagnostics) -> Vec<(String, String)> {
    let what = "the topic to read";
    let named = match required(raw, path, what, diagnostics) {
        // The topics that match a pattern are known only after the worker has connected to the brokers.
        None | Some(Inputs::Pattern(_)) => Vec::new(),
        Some(Inputs::One(name)) => vec![(path.to_owned(), name)],
        Some(Inputs::List(names)) => {
            if names.is_empty() {
                diagnostics.add(path, "expected at least one topic, got an empty list");
            }
            let place = |(index, name)| {
                let path = format!("{path}[{index}]");
                required(name, &path, what, diagnostics).map(|name| (path, name))
            };
            names.into_iter().enumerate().filter_map(place).collect()
        }
    };
    let is_valid = |(path, name): &(String, String)| check_name(name, "", path, diagnostics);
    named.into_iter().filter(is_valid).collect()
}

/// Checks that `name` is a valid topic name after its placeholders are replaced by the name of an input. Reports only the first input for
/// which the name is invalid.
pub(super) fn check_names(name: &str, inputs: &[(String, String)], path: &str, diagnostics: &mut Diagnostics) {
    // If the entry has no valid input or has a pattern, check the name with a stand-in input.
    let stand_in = inputs.is_empty().then_some("input");
    let mut inputs = inputs.iter().map(|(_, input)| &**input).chain(stand_in);
    let advice = "; the only placeholder is {input}, for the topic that is read";
    inputs.all(|input| {
        let name = name.replace(PLACEHOLDER, input);
        check_name(&name, if name.contains(['{', '}']) { advice } else { "" }, path, diagnostics)
    });
}

fn check_name(name: &str, advice: &str, path: &str, diagnostics: &mut Diagnostics) -> bool {
    let is_name = is_topic_name(name);
    if !is_name {
        let message =
            format!("expected a topic name of 1 to {NAME_MAX} characters from a-z, A-Z, 0-9, '.', '_', and '-', got {name:?}{advice}");
        diagnostics.add(path, message);
    }
    is_name
}

pub(super) fn is_topic_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(allowed) && name != "." && name != ".."
}

/// Checks that the names of a topic's repartition topic and changelog topic are valid, and that a topic with `repartition` has a changelog.
/// The names contain the group id and the name of the input or of the space.
pub(super) fn check_internal_topics(config: &Config, topic: &Topic, diagnostics: &mut Diagnostics) {
    if let Some(name) = config.repartitioned(topic) {
        let path = topic.setting("repartition");
        if !config.state.changelog {
            diagnostics
                .add(&path, "requires state.changelog = true, because records are deleted from the repartition topic after they are read");
        }
        if !is_topic_name(&name) {
            diagnostics.add(
                &path,
                format!("the repartition topic {name:?} is not a valid topic name (at most 249 letters, digits, '.', '_', and '-'); change kafka.group_id"),
            );
        }
    }
    let Some(name) = config.changelog(&topic.space) else { return };
    if !is_topic_name(&name) {
        let message = format!(
            "the changelog topic {name:?} is not a valid topic name (at most 249 letters, digits, '.', '_', and '-'); change the space or kafka.group_id"
        );
        diagnostics.add(&topic.setting("space"), message);
    }
}

impl Config {
    /// Returns a warning for each shadow topic and each pattern without an output, because the user may have forgotten to set `output`.
    pub fn shadows(&self) -> impl Iterator<Item = String> {
        let topics = self.topics.iter().map(|topic| (topic, &*topic.input));
        let patterns = self.patterns.iter().map(|pattern| (pattern.entry(), pattern.text()));
        let unmatched = topics.filter(|(topic, _)| !self.is_matched(topic));
        unmatched.chain(patterns).filter(|(topic, _)| topic.is_shadow()).map(|(Topic { entry, .. }, input)| {
            format!("topics[{entry}]: {input:?} has no output, so it is a shadow: the worker writes only its state")
        })
    }
}

impl Topic {
    /// Returns the names of the output and of the topics for duplicates and invalid records, each with the option that sets the name. The
    /// list is empty for a shadow topic, because the worker writes none of its records.
    #[must_use]
    pub fn outputs(&self) -> Vec<(&'static str, &str)> {
        let Some(output) = &self.output else { return Vec::new() };
        let mut outputs = vec![("output", output.as_str())];
        if let OnDuplicate::Topic(name) = &self.on_duplicate {
            outputs.push(("on_duplicate.topic", name));
        }
        if let OnInvalid::Topic(name) = &self.on_invalid {
            outputs.push(("on_invalid.topic", name));
        }
        outputs
    }
}

/// Returns a copy of an entry for one of its inputs. The input replaces the placeholder in all names.
pub(super) fn topic(entry: &Topic, input: &str) -> Topic {
    let named = |name: &String| name.replace(PLACEHOLDER, input);
    Topic {
        input: input.to_owned(),
        output: entry.output.as_ref().map(named),
        space: named(&entry.space),
        on_duplicate: match &entry.on_duplicate {
            OnDuplicate::Topic(name) => OnDuplicate::Topic(named(name)),
            other => other.clone(),
        },
        on_invalid: match &entry.on_invalid {
            OnInvalid::Topic(name) => OnInvalid::Topic(named(name)),
            other => other.clone(),
        },
        ..entry.clone()
    }
}
