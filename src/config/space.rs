//! Key spaces: which topics share what was seen.
//!
//! Owns the one answer to that question. Must never depend on anything but the names of spaces.

use super::{Config, Topic};
use crate::record::SpaceId;
use std::collections::BTreeMap;

/// A key space, and the configured topics that are of it.
#[derive(Clone, Debug)]
pub struct KeySpace<'c> {
    /// Its number, in the order in which the topics name spaces.
    pub id: SpaceId,
    /// Its name.
    pub name: &'c str,
    /// Its topics; at least one. What they must agree on, the first one says for all.
    pub topics: Vec<&'c Topic>,
}

/// The key spaces of topics.
pub(super) fn group<'c>(topics: impl Iterator<Item = &'c Topic>) -> Vec<KeySpace<'c>> {
    let mut spaces: Vec<KeySpace<'c>> = Vec::new();
    let mut numbers = BTreeMap::new();
    for topic in topics {
        let number = *numbers.entry(&*topic.space).or_insert(spaces.len());
        match spaces.get_mut(number) {
            Some(space) => space.topics.push(topic),
            None => spaces.push(KeySpace { id: SpaceId(spaces.len()), name: &topic.space, topics: vec![topic] }),
        }
    }
    spaces
}

impl KeySpace<'_> {
    /// The topic that says for all of the space what they agree on.
    #[must_use]
    pub fn first(&self) -> &Topic {
        self.topics[0]
    }
}

impl Config {
    /// The key spaces, in the order of their numbers.
    #[must_use]
    pub fn spaces(&self) -> Vec<KeySpace<'_>> {
        group(self.topics.iter())
    }

    /// The key space of a topic: the configured topics that name the same space.
    #[must_use]
    pub fn space_of<'c>(&'c self, topic: &'c Topic) -> KeySpace<'c> {
        let spaces = self.spaces();
        let alone = || KeySpace { id: SpaceId(spaces.len()), name: &topic.space, topics: vec![topic] };
        spaces.iter().find(|space| space.name == topic.space).cloned().unwrap_or_else(alone)
    }

    /// Whether topics share a key space, so that equal partition numbers must go to one worker.
    #[must_use]
    pub fn shares_spaces(&self) -> bool {
        self.spaces().iter().any(|space| space.topics.len() > 1)
    }
}
