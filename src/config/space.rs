//! Key spaces: sets of topics that share their seen keys.
//!
//! The grouping depends only on the names of spaces.

use super::{Config, Topic};
use crate::record::SpaceId;
use std::collections::BTreeMap;

/// A key space and its topics.
#[derive(Clone, Debug)]
pub struct KeySpace<'c> {
    /// The index of the space. Spaces are numbered in the order of their first topics.
    pub id: SpaceId,
    /// The name of the space.
    pub name: &'c str,
    /// The topics of the space, at least one. Settings that must be equal in a space can be read from any of them.
    pub topics: Vec<&'c Topic>,
}

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
    /// Returns the first topic of the space. All settings that must be equal in a space can be read from it.
    #[must_use]
    pub fn first(&self) -> &Topic {
        self.topics[0]
    }
}

impl Config {
    /// Returns the key spaces, in the order of their ids.
    #[must_use]
    pub fn spaces(&self) -> Vec<KeySpace<'_>> {
        group(self.topics.iter())
    }

    /// Returns the key space of a topic. If no topic of the configuration is in this space, the result contains only `topic`.
    #[must_use]
    pub fn space_of<'c>(&'c self, topic: &'c Topic) -> KeySpace<'c> {
        let spaces = self.spaces();
        let alone = || KeySpace { id: SpaceId(spaces.len()), name: &topic.space, topics: vec![topic] };
        spaces.iter().find(|space| space.name == topic.space).cloned().unwrap_or_else(alone)
    }

    /// True if some topics share a key space. If so, partitions of these topics that have the same number must be owned by the same worker.
    #[must_use]
    pub fn shares_spaces(&self) -> bool {
        self.spaces().iter().any(|space| space.topics.len() > 1)
    }
}
