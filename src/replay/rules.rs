//! A replay of an input with several rules. A record belongs to the first rule that selects it.
//!
//! Each rule has its own replay, which evaluates the records. This module only keeps the replays in the order of the rules.

use super::{Error, Options, Replay, Summary};
use crate::config::Topic;

impl<'t> Replay<'t> {
    /// Creates a replay of an input with several rules, in order. A record that no rule selects passes through the last rule.
    ///
    /// # Errors
    /// Fails if the format does not support the key or the options of a rule, or if `rules` is empty.
    pub fn of_rules(rules: &[&'t Topic], options: &Options) -> Result<Self, Error> {
        let (first, rest) = rules.split_first().ok_or(Error::NoTopic)?;
        let next = if rest.is_empty() { None } else { Some(Box::new(Self::of_rules(rest, options)?)) };
        Ok(Self { next, ..Self::new(first, options)? })
    }

    /// Returns the rules of the input, in order, with the counts of their records.
    #[must_use]
    pub fn summaries(&self) -> Vec<(&'t Topic, Summary)> {
        let rest = self.next.as_ref().map_or_else(Vec::new, |next| next.summaries());
        std::iter::once((self.topic, self.summary_of_rule())).chain(rest).collect()
    }

    pub(super) fn last_rule(&mut self) -> &mut Self {
        if self.next.is_none() {
            return self;
        }
        self.next.as_mut().expect("there is a next rule").last_rule()
    }
}
