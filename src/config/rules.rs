//! Rules: entries of `[[topics]]` with the same input. A record belongs to the first rule whose `when` selects it. A record that no rule
//! selects belongs to the last rule and passes through.
//!
//! Each record belongs to exactly one rule, and the rules of an input never share their keys.

use super::error::Diagnostics;
use super::{Config, Topic};
use crate::format::{Formats, Schemas};
use crate::key::{NoKey, Predicate, Reader, RecordSpec, Scratch};
use crate::record::{Record, TopicId, Verdict};

/// Maximum number of rules of an input. The metadata of a committed offset contains the stream time of each rule, and brokers limit the
/// size of the metadata.
const RULES_MAX: usize = 8;

/// The rules of an input that come before a given rule. A record that one of these rules selects does not belong to the given rule.
#[derive(Debug, Default)]
pub struct EarlierRules<'t>(Vec<(&'t Topic, Reader)>);

impl<'t> EarlierRules<'t> {
    /// Returns the predicates in `when` of all earlier rules.
    pub fn predicates(&self) -> impl Iterator<Item = &'t Predicate> {
        self.0.iter().flat_map(|(topic, _)| &topic.when)
    }

    /// True if one of the rules needs the headers of records.
    #[must_use]
    pub fn reads_headers(&self) -> bool {
        self.0.iter().any(|(topic, _)| topic.reads_headers())
    }

    /// Checks that a record does not belong to an earlier rule. `formats` are the formats of the record's key and value.
    ///
    /// # Errors
    /// Returns [`NoKey::Passes`] if the record belongs to an earlier rule, or another [`NoKey`] if this cannot be determined.
    pub fn check(&mut self, formats: &Formats, record: &Record<'_>, scratch: &mut Scratch, schemas: &dyn Schemas) -> Result<(), NoKey> {
        for (topic, reader) in &mut self.0 {
            let spec = RecordSpec { formats, ..topic.record_spec() };
            match reader.check_selected(spec, record, scratch, schemas) {
                Err(NoKey::Passes) => {}
                Ok(()) => return Err(NoKey::Passes),
                // The record is a tombstone of this earlier rule, so it does not belong to a later rule.
                Err(NoKey::Invalid(invalid)) if topic.verdict_without_key(invalid.reason) == Verdict::Tombstone => {
                    return Err(NoKey::Passes);
                }
                unknown => return unknown,
            }
        }
        Ok(())
    }
}

impl<'t> FromIterator<&'t Topic> for EarlierRules<'t> {
    fn from_iter<I: IntoIterator<Item = &'t Topic>>(rules: I) -> Self {
        Self(rules.into_iter().map(|topic| (topic, Reader::default())).collect())
    }
}

impl Config {
    /// Returns the rules of a topic's input that come before this topic.
    pub fn earlier_rules(&self, topic: &Topic) -> impl Iterator<Item = &Topic> {
        self.rules(&topic.input).map(|(_, rule)| rule).take_while(move |rule| rule.entry != topic.entry)
    }

    /// Returns the rules of an input, in order. A record that no rule selects belongs to the last rule and passes through.
    #[must_use]
    pub fn rules(&self, input: &str) -> impl DoubleEndedIterator<Item = (TopicId, &Topic)> {
        let all = self.topics.iter().enumerate().map(|(number, topic)| (TopicId(number), topic));
        all.filter(move |(_, topic)| topic.input == input)
    }

    /// Returns the id of the topic with this input. If the input has several rules, returns the id of the first rule.
    ///
    /// # Errors
    /// Returns an error message with all inputs if no input has this name.
    pub fn topic(&self, input: &str) -> Result<TopicId, String> {
        let found = self.rules(input).next();
        found.map(|(id, _)| id).ok_or_else(|| format!("expected one of {}, got `{input}`", self.inputs()))
    }

    /// Returns the only rule of an input.
    ///
    /// # Errors
    /// Returns an error message with all inputs if no topic has this input, or with the spaces of the rules if the input has several rules.
    pub fn only_rule(&self, input: &str) -> Result<&Topic, String> {
        let first = &self.topics[self.topic(input)?.0];
        if !self.has_several_rules(first) {
            return Ok(first);
        }
        let spaces: Vec<_> = self.rules(input).map(|(_, topic)| &*topic.space).collect();
        Err(format!("`{input}` has several entries; choose one by its space: {}", spaces.join(", ")))
    }

    /// Returns the topic whose input is `name`. If an input has several rules, `name` must be the space of one of them.
    ///
    /// # Errors
    /// Returns the error of [`Self::only_rule`] if no topic has this name, or if `name` is an input with several rules.
    pub fn rule(&self, name: &str) -> Result<&Topic, String> {
        let is_named = |topic: &&Topic| topic.space == name && self.has_several_rules(topic);
        // `name` can be both an input and the space of one of its rules, so look for that rule first.
        let own = self.rules(name).map(|(_, topic)| topic).find(is_named);
        match own {
            None if self.rules(name).next().is_none() => self.topics.iter().find(is_named),
            own => own,
        }
        .map_or_else(|| self.only_rule(name), Ok)
    }

    fn has_several_rules(&self, topic: &Topic) -> bool {
        self.rules(&topic.input).nth(1).is_some()
    }

    /// Returns the topic if there is only one input and no pattern. If the input has several rules, returns the first rule.
    #[must_use]
    pub fn only_input(&self) -> Option<&Topic> {
        self.topics.first().filter(|first| self.patterns.is_empty() && self.topics.iter().all(|topic| topic.input == first.input))
    }

    /// Returns the inputs of all topics and the patterns, separated by commas.
    #[must_use]
    pub fn inputs(&self) -> String {
        let is_first = |(number, topic): &(usize, &Topic)| self.topics[..*number].iter().all(|other| other.input != topic.input);
        let inputs = self.topics.iter().enumerate().filter(is_first).map(|(_, topic)| topic.input.clone());
        let patterns = self.patterns.iter().map(|pattern| format!("a topic that matches {:?}", pattern.text()));
        inputs.chain(patterns).collect::<Vec<_>>().join(", ")
    }
}

pub(super) fn check(topics: &[(String, Topic)], diagnostics: &mut Diagnostics) {
    let mut reported: Vec<(usize, &str)> = Vec::new();
    for (number, (path, topic)) in topics.iter().enumerate() {
        let earlier: Vec<_> = topics[..number].iter().map(|(_, other)| other).filter(|other| other.input == topic.input).collect();
        let Some(previous) = earlier.last() else { continue };
        let Some((setting, problem)) = problem(topic, &earlier, previous) else { continue };
        // The inputs of an entry often have the same problem. Report it only once.
        if !reported.contains(&(topic.entry, setting)) {
            reported.push((topic.entry, setting));
            let path = if setting == "input" { path.clone() } else { topic.setting(setting) };
            diagnostics.add(&path, problem);
        }
    }
}

/// Returns an error message about the first conflict between the rules of one input. The message begins with the path of the option that
/// causes the conflict.
pub(super) fn fault(rules: &[Topic]) -> Option<String> {
    let earlier: Vec<_> = rules.iter().collect();
    let problem = |number: usize| problem(&rules[number], &earlier[..number], earlier[number - 1]);
    (1..rules.len()).find_map(|number| problem(number).map(|(setting, text)| format!("{}: {text}", rules[number].setting(setting))))
}

/// Returns the first conflict of a rule with the `earlier` rules of its input, and the option that causes the conflict.
fn problem(topic: &Topic, earlier: &[&Topic], previous: &Topic) -> Option<(&'static str, String)> {
    let Topic { input, space, .. } = topic;
    if previous.entry == topic.entry {
        // The entry lists the input twice. `topics::check_loops` has already reported this error.
        return None;
    }
    let of = |other: &Topic| format!("topics[{}]", other.entry);
    if earlier.len() >= RULES_MAX {
        return Some(("input", format!("{input:?} already has {RULES_MAX} entries and cannot have more; combine some of them")));
    }
    if previous.when.is_empty() {
        let first = of(previous);
        let message = format!(
            "{input:?} is already the input of {first}, which has no `when` and leaves no records for this entry; set `when` in {first}, or move {first} after this entry"
        );
        return Some(("input", message));
    }
    if let Some(other) = earlier.iter().find(|other| other.space == *space) {
        let message = format!(
            "{} also has the input {input:?} and the space {space:?}, but entries of one input do not share their keys; give this entry its own space, such as space = \"{{input}}-{}\"",
            of(other),
            earlier.len() + 1
        );
        return Some(("space", message));
    }
    let same = |setting, reason: &str| {
        Some((setting, format!("{} has the same input, {input:?}, and must have the same value, because {reason}", of(previous))))
    };
    if previous.repartition != topic.repartition {
        return same("repartition", "repartitioning applies to the whole input");
    }
    if previous.formats.key() != topic.formats.key() {
        return same("key_format", "each record has one format");
    }
    if previous.formats.value().encodings != topic.formats.value().encodings {
        return same("value_encoding", "each record has one encoding");
    }
    if previous.formats.value() != topic.formats.value() {
        return same("value_format", "each record has one format");
    }
    if previous.is_shadow() != topic.is_shadow() {
        let message = format!(
            "{} also has the input {input:?}: set an output for both or for neither, because unseen records of the entry without an output would be lost",
            of(previous)
        );
        return Some(("output", message));
    }
    None
}
