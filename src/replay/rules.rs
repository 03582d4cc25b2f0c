//! A replay of an input with several rules: a record belongs to the first one that selects it.
//!
//! Must never evaluate a record by two rules.

use super::{Error, LineError, Options, Replay};
use crate::config::Topic;
use crate::record::Timestamp;

impl<'t> Replay<'t> {
    /// Creates a replay of an input with several rules, in order. A record that no rule selects passes through the last one.
    ///
    /// # Errors
    /// Fails if the format does not support the key or the options of a rule, or if there is no rule.
    pub fn of_rules(rules: &[&'t Topic], options: &Options) -> Result<Self, Error> {
        let (first, rest) = rules.split_first().ok_or(Error::NoTopic)?;
        let next = if rest.is_empty() { None } else { Some(Box::new(Self::of_rules(rest, options)?)) };
        Ok(Self { next, ..Self::new(first, options)? })
    }

    /// Evaluates a line by the next rule, which selects it or is the last one.
    pub(super) fn line_of_next(&mut self, line: &[u8], max_timestamp: &dyn Fn() -> Timestamp) -> Result<bool, LineError> {
        let Some(next) = &mut self.next else { return Ok(true) };
        next.is_wrong = false;
        let ahead = |topic: &Topic| i64::try_from(topic.max_future.as_millis()).unwrap_or(i64::MAX);
        let further = ahead(next.topic).saturating_sub(ahead(self.topic));
        let is_emitted = next.line(line, &|| max_timestamp().saturating_add(further))?;
        self.is_wrong = next.is_wrong;
        self.followed = next.followed.take();
        Ok(is_emitted)
    }
}
