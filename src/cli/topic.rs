//! The configured topic that a command is about.
//!
//! Owns how it is chosen, and what is said where the choice is missing or wrong.

use crate::config::{Config, Topic};
use anyhow::{anyhow, bail};

/// The topic whose input has that name; without a name, the only one.
///
/// # Errors
/// When no input has that name, or there is no name and more than one topic.
pub fn choose<'c>(config: &'c Config, name: Option<&str>) -> anyhow::Result<&'c Topic> {
    match (name, config.topics.as_slice()) {
        (None, [only]) => Ok(only),
        (None, _) => bail!("there are several topics; choose one with --topic: {}", config.inputs()),
        (Some(name), _) => named(config, name, "--topic"),
    }
}

/// The topic whose input has that name; `place` is where it was named.
///
/// # Errors
/// When no input has it.
pub fn named<'c>(config: &'c Config, name: &str, place: &str) -> anyhow::Result<&'c Topic> {
    let found = config.topic(name).map_err(|message| anyhow!("{place}: {message}"))?;
    Ok(&config.topics[found.0])
}
