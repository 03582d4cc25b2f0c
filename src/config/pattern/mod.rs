//! Patterns: entries of `[[topics]]` that read all topics with a matching name.
//!
//! Decides which topics a pattern matches. A pattern never matches a topic that the worker can write to, because the worker would read its
//! own output in an endless loop.

use super::error::Diagnostics;
use super::inputs::{self, PLACEHOLDER};
use super::{Config, Error, Topic, rules};
use regex::bytes::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// The maximum number of topics that the patterns of a configuration can match in total.
pub const MATCHED_MAX: usize = 1000;
/// The property that sets how often the worker lists the topics of the cluster. In librdkafka, the property sets how often a client
/// refreshes its metadata.
const INTERVAL_PROPERTY: &str = "topic.metadata.refresh.interval.ms";
/// Time between two listings of the topics if the property `topic.metadata.refresh.interval.ms` is not set or not positive.
const INTERVAL: Duration = Duration::from_secs(30);
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The maximum size of a compiled pattern in bytes.
const COMPILED_MAX: usize = 1 << 20;

/// An entry of `[[topics]]` that reads all topics with a matching name.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Regex,
    /// The settings of the entry, with the placeholder `{input}` in its names.
    topic: Topic,
}

/// A topic that matches a pattern but is not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LeftOut {
    /// The topic.
    pub topic: String,
    /// The reason, as a message that states what to do.
    pub reason: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topic {:?} matches a pattern but is not read: {}", self.topic, self.reason)
    }
}

/// Compiles a pattern so that it matches only whole names.
pub(super) fn compile(text: &str, path: &str, diagnostics: &mut Diagnostics) -> Option<Regex> {
    if text.is_empty() {
        diagnostics.add(&format!("{path}.pattern"), "must not be empty");
        return None;
    }
    // Topic names are ASCII, so classes such as `\w` need not match other letters.
    let build = |text: &str| RegexBuilder::new(text).unicode(false).size_limit(COMPILED_MAX).build();
    // Compile the text on its own first. Otherwise, an extra `)` in the text could close the `(?:`.
    let compiled = build(text).and_then(|_| build(&format!(r"\A(?:{text})\z")));
    let fault = |error: regex::Error| {
        let error = error.to_string();
        let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        diagnostics
            .add(&format!("{path}.pattern"), format!("expected a regular expression, such as \"orders\\\\..*\", got {text:?}: {reason}"));
    };
    compiled.map_err(fault).ok()
}

/// Checks that an entry with a pattern has a different space for each topic, and that none of its outputs is the input itself.
pub(super) fn check_names(names: &[(&str, Option<&String>)], path: &str, diagnostics: &mut Diagnostics) {
    for (field, name) in names.iter().filter_map(|(field, name)| Some((*field, (*name)?))) {
        let place = format!("{path}.{field}");
        if field == "space" {
            if !name.contains(PLACEHOLDER) {
                let message = format!(
                    "topics that match a pattern cannot share a space, because they would need the same number of partitions: add {{input}}, such as \"{name}-{{input}}\", or remove the option"
                );
                diagnostics.add(&place, message);
            }
        } else if name.contains(PLACEHOLDER) && name.replace(PLACEHOLDER, "").is_empty() {
            diagnostics.add(
                &place,
                format!("{name:?} expands to the name of the input itself, so the worker would read its own output in an endless loop; use a name such as \"{{input}}.unseen\""),
            );
        }
    }
}

impl Pattern {
    pub(super) const fn new(text: String, regex: Regex, topic: Topic) -> Self {
        Self { text, regex, topic }
    }

    /// Returns the settings of the entry. Its names can contain the placeholder `{input}`.
    #[must_use]
    pub const fn entry(&self) -> &Topic {
        &self.topic
    }

    /// Returns the regular expression as configured. It must match the whole name of a topic.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the topic of the entry for an input with this name. The name need not match the pattern.
    pub(super) fn topic(&self, name: &str) -> Topic {
        inputs::topic(&self.topic, name)
    }

    /// Returns the topic of this entry whose space is `space`, or `None` if the pattern has no such topic. Also returns `None` if the space
    /// of the entry has several placeholders, because the name between them is unknown.
    pub(super) fn topic_of_space(&self, space: &str) -> Option<Topic> {
        let (prefix, suffix) = around(&self.topic.space)?;
        let name = space.strip_prefix(prefix)?.strip_suffix(suffix)?;
        Some(self.topic(name)).filter(|topic| topic.space == space && self.regex.is_match(name.as_bytes()))
    }
}

/// Splits a name into the part before the first placeholder and the part after the last placeholder. Returns `None` if the name has no
/// placeholder.
fn around(template: &str) -> Option<(&str, &str)> {
    let (prefix, rest) = template.split_once(PLACEHOLDER)?;
    Some((prefix, rest.rsplit_once(PLACEHOLDER).map_or(rest, |(_, suffix)| suffix)))
}

/// True if `template` could expand to `name` for some input. Compares only the text before the first and after the last placeholder, so the
/// result can be true for a name that `template` never expands to.
fn can_be(template: &str, name: &str) -> bool {
    around(template).map_or(template == name, |(prefix, suffix)| {
        name.len() > prefix.len() + suffix.len() && name.starts_with(prefix) && name.ends_with(suffix)
    })
}

impl Config {
    /// True if the topic comes from an entry with a pattern.
    #[must_use]
    pub fn is_matched(&self, topic: &Topic) -> bool {
        self.patterns.iter().any(|pattern| pattern.topic.entry == topic.entry)
    }

    /// Returns the topic names that match a pattern and would have this space. Topics with these names need not exist.
    #[must_use]
    pub fn inputs_of_space(&self, space: &str) -> BTreeSet<String> {
        self.patterns.iter().filter_map(|pattern| pattern.topic_of_space(space)).map(|topic| topic.input).collect()
    }

    /// Returns the time between two listings of the topics: `topic.metadata.refresh.interval.ms`, but at least 1 s. If the property is not
    /// set or not positive, returns 30 s.
    #[must_use]
    pub fn topics_interval(&self) -> Duration {
        let set = self.kafka.properties.get(INTERVAL_PROPERTY).and_then(|millis| millis.parse().ok());
        set.filter(|&millis| millis > 0).map_or(INTERVAL, |millis| Duration::from_millis(millis).max(INTERVAL_MIN))
    }

    /// Returns a copy of the configuration with all patterns, but only with the topics that `is_wanted` accepts.
    #[must_use]
    pub fn only(&self, is_wanted: impl Fn(&Topic) -> bool) -> Self {
        Self { topics: self.topics.iter().filter(|topic| is_wanted(topic)).cloned().collect(), ..self.clone() }
    }

    /// Returns the configuration with a topic for each of `names` that matches a pattern, and the matching topics that cannot be read.
    /// Skips internal topics, the inputs of entries without a pattern, and topics that an entry can write to. Topics from an earlier
    /// expansion are replaced. If several patterns match a topic, their entries are its rules, up to the first entry without `when`, which
    /// takes all remaining records.
    ///
    /// # Errors
    /// Returns an error message if the patterns match more than [`MATCHED_MAX`] topics.
    pub fn expand<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<(Self, Vec<LeftOut>), String> {
        let mut config = self.only(|topic| !self.is_matched(topic));
        let names: BTreeSet<_> = names.into_iter().filter(|name| !config.is_excluded(name)).collect();
        let entries = |name: &'n str| {
            let all = self.patterns.iter().filter(move |pattern| pattern.regex.is_match(name.as_bytes()));
            let mut is_last = false;
            all.take_while(move |pattern| !std::mem::replace(&mut is_last, pattern.topic.when.is_empty()))
        };
        let topics = |name: &&'n str| entries(name).map(|pattern| pattern.topic(name)).collect::<Vec<_>>();
        let matched: Vec<_> = names.iter().map(topics).filter(|topics| !topics.is_empty()).collect();
        if matched.len() > MATCHED_MAX {
            return Err(format!(
                "{} topics match the patterns in `input`, and the maximum is {MATCHED_MAX}; use patterns that match fewer topics and read the others with a second configuration that has its own group_id",
                matched.len()
            ));
        }
        let (mut left_out, mut spaces) = (Vec::new(), BTreeSet::new());
        let mut found = Vec::new();
        for topics in matched {
            let fault = topics.iter().find_map(|topic| config.fault(topic, &spaces)).or_else(|| rules::fault(&topics));
            match fault {
                None => {
                    spaces.extend(topics.iter().map(|topic| topic.space.clone()));
                    found.extend(topics);
                }
                Some(reason) => left_out.extend(topics.into_iter().next().map(|topic| LeftOut { topic: topic.input, reason })),
            }
        }
        config.topics.extend(found);
        config.topics.sort_by_key(|topic| topic.entry);
        Ok((config, left_out))
    }

    /// True if patterns must not match this topic: the topic is internal to Kafka or to this consumer group, an entry without a pattern
    /// reads it, or an entry can write to it.
    fn is_excluded(&self, name: &str) -> bool {
        let entries = || self.topics.iter().chain(self.patterns.iter().map(Pattern::entry));
        name.starts_with("__")
            || self.is_internal(name)
            || self.topics.iter().any(|topic| topic.input == name)
            || entries().flat_map(Topic::outputs).any(|(_, template)| can_be(template, name))
    }

    /// True for a changelog or a repartition topic of this group, and for the temporary topic of `unseen check --connect`.
    fn is_internal(&self, name: &str) -> bool {
        let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let of_check = |rest: &str| rest.strip_prefix("check-")?.split_once('-').filter(|(time, id)| is_hex(time) && is_hex(id)).map(drop);
        let rest = name.strip_prefix(&self.kafka.group_id).and_then(|rest| rest.strip_prefix('-'));
        rest.is_some_and(|rest| rest.ends_with("-changelog") || rest.ends_with("-repartition") || of_check(rest).is_some())
    }

    /// Returns an error message if a matching topic cannot be read. `spaces` contains the spaces of the topics that were matched earlier.
    fn fault(&self, topic: &Topic, spaces: &BTreeSet<String>) -> Option<String> {
        for (option, name) in topic.outputs() {
            if let Some(reader) = self.topics.iter().find(|reader| reader.input == name) {
                let setting = topic.setting(option);
                return Some(format!(
                    "{setting}: {name:?} is the input of topics[{}], and a topic cannot be both an input and an output of one configuration; use another topic",
                    reader.entry
                ));
            }
        }
        if spaces.contains(&topic.space) || self.topics.iter().any(|other| other.space == topic.space) {
            let setting = topic.setting("space");
            return Some(format!(
                "{setting}: another topic has the space {:?}; set `space` to a name such as \"NAME-{{input}}\"",
                topic.space
            ));
        }
        let mut diagnostics = Diagnostics::new(String::new());
        let input = [(String::new(), topic.input.clone())];
        for (option, name) in topic.outputs().into_iter().chain([("space", &*topic.space)]) {
            inputs::check_names(name, &input, &topic.setting(option), &mut diagnostics);
        }
        inputs::check_internal_topics(self, topic, &mut diagnostics);
        let errors = diagnostics.finish(Some(())).err()?;
        errors.0.first().map(|Error { path, message, .. }| format!("{path}: {message}"))
    }
}

#[cfg(test)]
mod tests;
