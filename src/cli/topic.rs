//! Selects the configured topic that a command works on.

use crate::config::{Config, Topic};
use anyhow::{anyhow, bail};

/// Adds the named topic to the configuration if it matches a pattern. Without the brokers, no other matching topics are known.
///
/// # Errors
/// Fails if the topic matches a pattern, but cannot be read.
pub fn expand(config: &Config, name: Option<&str>) -> anyhow::Result<Config> {
    let (config, left_out) = config.expand(name).map_err(anyhow::Error::msg)?;
    left_out.first().map_or(Ok(config), |left_out| Err(anyhow!("{left_out}")))
}

/// Returns the topic with the named input, or the only topic if there is no name.
///
/// # Errors
/// Fails if no topic has that input, or if there is no name and the configuration has several topics or a pattern.
pub fn choose<'c>(config: &'c Config, name: Option<&str>) -> anyhow::Result<&'c Topic> {
    match (name, config.topics.as_slice()) {
        (None, [only]) if config.patterns.is_empty() => Ok(only),
        (None, _) if config.patterns.is_empty() => {
            bail!("the configuration has several topics; choose one with --topic: {}", config.inputs())
        }
        (None, _) => bail!("the configuration has a pattern; name a topic with --topic: {}", config.inputs()),
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
