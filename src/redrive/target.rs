//! The topic and partition that a dead letter is written to.
//!
//! Must never name a topic that the configuration does not name.

use crate::config::{Config, Topic};
use crate::record::Verdict;
use crate::route::dead_letter::{DeadLetter, reason};
use std::collections::BTreeMap;

/// An input of the configuration, and where its dead letters go.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) input: String,
    output: String,
    /// Numbers of partitions: of the topic that dead letters name, of the input, and of the output.
    counts: [u32; 3],
    /// True if dead letters name the repartition topic of the input.
    is_internal: bool,
}

/// The inputs of the configuration, by the topic that their dead letters name.
#[derive(Debug, Default)]
pub(super) struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// Adds the origins of a topic's dead letters. `count` returns the number of partitions of a topic.
    pub(super) fn add<E>(&mut self, config: &Config, topic: &Topic, mut count: impl FnMut(&str) -> Result<u32, E>) -> Result<(), E> {
        // A shadow has neither an output nor dead letters.
        let Some(output) = &topic.output else { return Ok(()) };
        for (name, is_internal) in [(Some(topic.input.clone()), false), (config.repartitioned(topic), true)] {
            let Some(name) = name else { continue };
            let counts = [count(&name)?, count(&topic.input)?, count(output)?];
            self.0.insert(name, Origin { input: topic.input.clone(), output: output.clone(), counts, is_internal });
        }
        Ok(())
    }

    /// Returns an input that does not exist.
    pub(super) fn missing_input(&self) -> Option<&str> {
        self.0.values().find(|origin| origin.counts[1] == 0).map(|origin| &*origin.input)
    }

    /// Returns the origin of a dead letter, or `None` if it is not an input of the configuration.
    pub(super) fn of(&self, letter: &DeadLetter<'_>) -> Option<&Origin> {
        self.0.get(letter.topic)
    }
}

impl Origin {
    /// Returns the topic and the partition, or no partition if the record key decides.
    ///
    /// Records that the worker would not emit if it read them again go to the output. All others go to the partition that they came from.
    /// That is the only partition that is certainly right: producers may have any partitioner, and other records of the key are there.
    pub(super) fn target(&self, letter: &DeadLetter<'_>) -> (&str, Option<i32>) {
        let &Self { ref input, ref output, counts: [own, of_input, of_output], is_internal } = self;
        let exists = |count: u32| u32::try_from(letter.partition).is_ok_and(|partition| partition < count);
        if is_of_output(letter.verdict) {
            // As the worker chooses it.
            (output, Some(letter.partition).filter(|_| of_output >= own && exists(of_output)))
        } else {
            (input, Some(letter.partition).filter(|_| !is_internal && exists(of_input)))
        }
    }
}

/// True if dead letters with this verdict go to the output: the keys of rejected records count as seen, and late records would be late
/// again.
pub(super) const fn is_of_output(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Invalid(reason) => reason.is_of_broker(),
        _ => true,
    }
}

/// Returns the name of a kind of dead letters.
pub(super) fn kind(input: &str, verdict: Verdict) -> String {
    format!("{input}/{}", reason(verdict))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Reason;

    #[test]
    fn dead_letters_go_to_their_input_and_those_that_it_would_drop_to_the_output() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("unseen.toml");
        let text = "kafka: { bootstrap_servers: 'localhost:1', group_id: g }\ntopics:\n\
            - { input: in, output: out, key: { record: key }, window: 1h, on_invalid: { topic: dead }, filter: { capacity: 10 } }\n\
            - { input: any, output: out, space: any, repartition: true, key: { record: key }, window: 1h, on_invalid: { topic: dead }, filter: { capacity: 10 } }\n\
            - { input: shadow, key: { record: key }, window: 1h, filter: { capacity: 10 } }\n";
        let file = file.with_extension("yaml");
        std::fs::write(&file, text).unwrap();
        let config = Config::load(&file, &[]).unwrap();
        let mut origins = Origins::default();
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
            origins.add(&config, topic, count).unwrap();
        }
        let target = |topic: &str, partition, verdict| {
            let letter = DeadLetter { topic, partition, verdict, time: None, positions: 0..6 };
            origins.of(&letter).map(|origin| {
                let (to, partition) = origin.target(&letter);
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
        assert_eq!([target("shadow", 0, malformed), target("other", 0, malformed)], [None, None]);
    }
}
