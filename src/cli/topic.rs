//! The configured topic that a command is about.
//!
//! Owns how it is chosen, and what is said where the choice is missing or wrong.

use anyhow::{Context as _, bail};
use unseen::config::{Config, Topic};

/// The topic whose input has that name; without a name, the only one.
///
/// # Errors
/// When no input has that name, or there is no name and more than one topic.
pub fn choose<'c>(config: &'c Config, name: Option<&str>) -> anyhow::Result<&'c Topic> {
    let names = || config.topics.iter().map(|topic| topic.input.as_str()).collect::<Vec<_>>().join(", ");
    match (name, config.topics.as_slice()) {
        (None, [only]) => Ok(only),
        (None, _) => bail!("there are several topics; choose one with --topic: {}", names()),
        (Some(name), topics) => {
            topics.iter().find(|topic| topic.input == name).with_context(|| format!("--topic: expected one of {}, got `{name}`", names()))
        }
    }
}
