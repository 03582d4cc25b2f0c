//! Selects the configured topic that a command works on.

use crate::config::{Config, Topic};
use anyhow::{anyhow, bail};

/// Returns the topic with the named input, or the only topic if there is no name.
///
/// # Errors
/// Fails if no topic has that input, or if there is no name and the configuration has several topics.
pub fn choose<'c>(config: &'c Config, name: Option<&str>) -> anyhow::Result<&'c Topic> {
    match (name, config.topics.as_slice()) {
        (None, [only]) => Ok(only),
        (None, _) => bail!("the configuration has several topics; choose one with --topic: {}", config.inputs()),
        (Some(name), _) => named(config, name, "--topic"),
    }
}

/// Returns the topic with the named input. `option` is the option or argument that has the name, for the error message.
///
/// # Errors
/// Fails if no topic has that input.
pub fn named<'c>(config: &'c Config, name: &str, option: &str) -> anyhow::Result<&'c Topic> {
    let found = config.topic(name).map_err(|message| anyhow!("{option}: {message}"))?;
    Ok(&config.topics[found.0])
}
