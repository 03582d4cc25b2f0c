//! The topic and partition that a dead letter is written to. This topic is always in the configuration.

use super::position::hash;
use crate::config::{Config, Topic};
use crate::record::Verdict;
use crate::route::dead_letter;
use std::collections::{BTreeMap, BTreeSet};

/// An input of the configuration and the topics that its dead letters can be written to.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) input: String,
    output: String,
    /// True if the input has several entries in the configuration, with different outputs. Dead letters do not show their entry, so the
    /// right output is unknown.
    has_outputs: bool,
    /// The numbers of partitions of three topics, in this order: the topic that the dead letters refer to, the input, and the output.
    counts: [u32; 3],
    /// True if dead letters refer to the repartition topic of the input.
    is_internal: bool,
}

/// The selected inputs of the configuration, by the topic that their dead letters refer to.
#[derive(Debug, Default)]
pub(super) struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// Adds the origins of a topic's dead letters. `count` returns the number of partitions of a topic, or 0 if it does not exist. If dead
    /// letters with one of `verdicts` would be written to a topic that does not exist, returns the name of that topic.
    pub(super) fn add<E>(
        &mut self,
        config: &Config,
        topic: &Topic,
        verdicts: &[Verdict],
        mut count: impl FnMut(&str) -> Result<u32, E>,
    ) -> Result<Option<String>, E> {
        // A shadow topic has neither an output nor dead letters.
        let Some(output) = &topic.output else { return Ok(None) };
        for (target, is_output) in [(&topic.input, false), (output, true)] {
            if verdicts.iter().any(|&verdict| is_of_output(verdict) == is_output) && count(target)? == 0 {
                return Ok(Some(target.clone()));
            }
        }
        for (name, is_internal) in named(config, topic) {
            if let Some(known) = self.0.get_mut(&name) {
                known.has_outputs |= known.output != *output;
                continue;
            }
            let counts = [count(&name)?, count(&topic.input)?, count(output)?];
            self.0.insert(name, Origin { input: topic.input.clone(), output: output.clone(), has_outputs: false, counts, is_internal });
        }
        Ok(None)
    }

    pub(super) fn remove(&mut self, input: &str) {
        self.0.retain(|_, origin| origin.input != input);
    }

    /// Returns the kinds of dead letters with these verdicts, and the hashes of these kinds.
    pub(super) fn kinds(&self, verdicts: &[Verdict]) -> BTreeSet<String> {
        let kinds = self.0.keys().flat_map(|topic| verdicts.iter().map(move |&verdict| kind(topic, dead_letter::reason(verdict))));
        kinds.flat_map(|kind| [hash(&kind), kind]).collect()
    }

    pub(super) fn with_several_outputs(&self) -> BTreeSet<String> {
        self.0.values().filter(|origin| origin.has_outputs).map(|origin| origin.input.clone()).collect()
    }

    /// Returns the origin of dead letters that refer to `topic`, or `None` if they are not selected.
    pub(super) fn of(&self, topic: &str) -> Option<&Origin> {
        self.0.get(topic)
    }
}

impl Origin {
    /// Returns the topic and the partition to write to. `None` means that the record key determines the partition.
    ///
    /// Records that the worker would not emit if it read them again go to the output. All other records go back to the input, if possible
    /// to the partition that they came from. unseen does not know which partitioner the producers use, so only this partition is certain to
    /// have the other records with the same key.
    pub(super) fn target(&self, verdict: Verdict, partition: i32) -> (&str, Option<i32>) {
        let &Self { ref input, ref output, counts: [own, of_input, of_output], is_internal, .. } = self;
        let exists = |count: u32| u32::try_from(partition).is_ok_and(|partition| partition < count);
        if is_of_output(verdict) {
            // The worker also keeps the partition number of a record if the output has enough partitions.
            (output, Some(partition).filter(|_| of_output >= own && exists(of_output)))
        } else {
            (input, Some(partition).filter(|_| !is_internal && exists(of_input)))
        }
    }
}

/// True if dead letters with this verdict go to the output. If they were written to the input, the worker would not emit them: the keys of
/// records that a broker rejected count as seen, and late records would be late again.
pub(super) const fn is_of_output(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Invalid(reason) => reason.is_of_broker(),
        _ => true,
    }
}

/// Returns the name of a kind of dead letters: the topic that the dead letters refer to, and their reason.
pub(super) fn kind(topic: &str, reason: &str) -> String {
    format!("{topic}/{reason}")
}

/// Returns a map from every kind of dead letters that the configuration can have, and from the hash of the kind, to the same kind with the
/// name of the input. Dead letters can refer to the repartition topic instead of the input.
pub(super) fn names(config: &Config) -> BTreeMap<String, String> {
    let topics = config.topics.iter().flat_map(|topic| named(config, topic).map(|(name, _)| (name, &topic.input)));
    let reasons = || dead_letter::verdicts().map(dead_letter::reason);
    let kinds = topics.flat_map(|(name, input)| reasons().map(move |reason| (kind(&name, reason), kind(input, reason))));
    kinds.flat_map(|(kind, of_input)| [(hash(&kind), of_input.clone()), (kind, of_input)]).collect()
}

/// Returns the topics that a topic's dead letters can refer to: the input and the repartition topic. The flag is true for the repartition
/// topic.
fn named(config: &Config, topic: &Topic) -> impl Iterator<Item = (String, bool)> {
    [(topic.input.clone(), false)].into_iter().chain(config.repartitioned(topic).map(|name| (name, true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Reason;

    #[test]
    fn dead_letters_go_to_their_input_and_those_that_it_would_drop_to_the_output() {
        let text = "kafka: { bootstrap_servers: 'localhost:1', group_id: g }\ntopics:\n\
            - { input: in, output: out, key: { record: key }, window: 1h, on_invalid: { topic: dead }, filter: { capacity: 10 } }\n\
            - { input: any, output: out, space: any, repartition: true, key: { record: key }, window: 1h, on_invalid: { topic: dead }, filter: { capacity: 10 } }\n\
            - { input: two, output: out, when: { field: /a, exists: true }, key: { record: key }, window: 1h, on_invalid: { topic: dead }, filter: { capacity: 10 } }\n\
            - { input: two, output: other, space: second, key: { record: key }, window: 1h, on_invalid: { topic: dead }, filter: { capacity: 10 } }\n\
            - { input: shadow, key: { record: key }, window: 1h, filter: { capacity: 10 } }\n";
        let config = Config::of_text(text);
        let (all, mut origins) = (dead_letter::verdicts().collect::<Vec<_>>(), Origins::default());
        for topic in &config.topics {
            let count = |name: &str| {
                Ok::<_, ()>(if name == "out" {
                    3
                } else if name == "any" {
                    4
                } else {
                    2
                })
            };
            assert_eq!(origins.add(&config, topic, &all, count), Ok(None));
        }
        let target = |topic: &str, partition, verdict| {
            origins.of(topic).map(|origin| {
                let (to, partition) = origin.target(verdict, partition);
                (origin.input.clone(), to.to_owned(), partition)
            })
        };
        let is = |input: &str, to: &str, partition| Some((input.to_owned(), to.to_owned(), partition));
        let [malformed, oversize, refused] = [Reason::Malformed, Reason::Oversize, Reason::Refused].map(Verdict::Invalid);
        assert_eq!(target("in", 1, malformed), is("in", "in", Some(1)));
        assert_eq!(target("in", 1, oversize), is("in", "out", Some(1)));
        assert_eq!(target("in", 1, refused), is("in", "out", Some(1)));
        assert_eq!(target("in", 1, Verdict::Late), is("in", "out", Some(1)));
        // The input was recreated with fewer partitions.
        assert_eq!(target("in", 2, malformed), is("in", "in", None));
        assert_eq!(target("in", -1, malformed), is("in", "in", None));
        assert_eq!(target("any", 3, malformed), is("any", "any", Some(3)));
        assert_eq!(target("any", 1, oversize), is("any", "out", None), "the output has fewer partitions");
        // The partition of the repartition topic has no meaning in the input.
        assert_eq!(target("g-any-repartition", 1, malformed), is("any", "any", None));
        assert_eq!(target("g-any-repartition", 1, oversize), is("any", "out", Some(1)));
        assert_eq!(target("two", 1, malformed), is("two", "two", Some(1)));
        assert_eq!(origins.with_several_outputs(), ["two".to_owned()].into());
        assert_eq!([target("shadow", 0, malformed), target("other", 0, malformed)], [None, None]);

        let kinds = origins.kinds(&[malformed]);
        let names = names(&config);
        assert!(kinds.iter().all(|kind| names.contains_key(kind)));
        assert_eq!(names["g-any-repartition/late"], "any/late");
        assert_eq!(names[&hash("g-any-repartition/late")], "any/late");
        assert!(kinds.contains("g-any-repartition/malformed") && kinds.contains(&hash("two/malformed")));
        origins.remove("any");
        assert_eq!(origins.kinds(&[malformed]).len(), 4);
        // Only the topics that are written to must exist.
        let missing = |name: &str| Ok::<_, ()>(u32::from(name != "out"));
        assert_eq!(origins.add(&config, &config.topics[0], &[malformed], missing), Ok(None));
        assert_eq!(origins.add(&config, &config.topics[0], &[malformed, oversize], missing), Ok(Some("out".to_owned())));
    }
}
