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

/// Returns the topic with the named input, or the only topic if there is no name. If the input has several entries, the name is the space
/// of one of them.
///
/// # Errors
/// Fails if no topic has that name, or if there is no name and the configuration has several topics.
pub fn choose<'c>(config: &'c Config, name: Option<&str>) -> anyhow::Result<&'c Topic> {
    let name = match name {
        Some(name) => name,
        None => input(config, None)?,
    };
    config.rule(name).map_err(|message| anyhow!("--topic: {message}"))
}

/// Returns the name of the input, or of the only input if there is no name.
///
/// # Errors
/// Fails if no topic has that input, or if there is no name and the configuration has several inputs.
pub fn input<'c>(config: &'c Config, name: Option<&str>) -> anyhow::Result<&'c str> {
    let topic = match name {
        Some(name) => config.topic(name).map_err(|message| anyhow!("--topic: {message}"))?,
        None => match config.only_input() {
            Some(only) => return Ok(&only.input),
            None if !config.patterns.is_empty() => {
                bail!("the configuration has a pattern; name a topic with --topic: {}", config.inputs())
            }
            None => bail!("the configuration has several topics; choose one with --topic: {}", config.inputs()),
        },
    };
    Ok(&config.topics[topic.0].input)
}
