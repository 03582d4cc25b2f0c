//! Selects the configured topic that a command works on.

use crate::config::{Config, Topic};
use anyhow::{anyhow, bail};

/// Adds the named topic to the configuration if the topic matches a pattern. Other matching topics are not added, because only the brokers
/// know them.
pub fn expand(config: &Config, name: Option<&str>) -> anyhow::Result<Config> {
    let (config, left_out) = config.expand(name).map_err(anyhow::Error::msg)?;
    left_out.first().map_or(Ok(config), |left_out| Err(anyhow!("{left_out}")))
}

/// Adds the topic that `name` selects, if the topic matches a pattern and no configured entry has this name. `name` is a topic. If several
/// entries match the topic, `name` can also be the space of one of these entries (see [`choose`]).
///
/// # Errors
/// Fails if `name` is a topic that matches a pattern but cannot be read, or if entries of several matching topics would have the space
/// `name`.
pub fn expand_rule(config: &Config, name: Option<&str>) -> anyhow::Result<Config> {
    if name.is_some_and(|name| config.rule(name).is_ok()) {
        // `name` is the input or the space of a configured entry. A pattern may also match this name but must not add a topic.
        return expand(config, None);
    }
    let as_input = expand(config, name);
    let Some(name) = name else { return as_input };
    let of_space = config.inputs_of_space(name).into_iter().filter(|input| input != name);
    let expanded = of_space.filter_map(|input| expand(config, Some(&input)).ok()).chain(as_input.as_ref().ok().cloned());
    let mut found: Vec<_> = expanded.filter(|config| config.rule(name).is_ok()).collect();
    match found.len() {
        0 => as_input,
        1 => Ok(found.remove(0)),
        _ => {
            let inputs: Vec<_> = found.iter().flat_map(|config| config.rule(name)).map(|topic| &*topic.input).collect();
            bail!(
                "--topic: space `{name}` belongs to several input topics that match a pattern: {}. Choose one topic and set it in every entry N whose `input` is a pattern: --set topics.N.input=TOPIC",
                inputs.join(", ")
            )
        }
    }
}

/// Returns the topic with the input `name`, or the only topic if `name` is `None`. If several entries read the input, `name` must be the
/// space of one of these entries.
pub fn choose<'c>(config: &'c Config, name: Option<&str>) -> anyhow::Result<&'c Topic> {
    let rule = match name {
        Some(name) => config.rule(name),
        None => config.only_rule(input(config, None)?),
    };
    rule.map_err(|message| anyhow!("--topic: {message}"))
}

pub fn input<'c>(config: &'c Config, name: Option<&str>) -> anyhow::Result<&'c str> {
    let topic = match name {
        Some(name) => config.topic(name).map_err(|message| anyhow!("--topic: {message}"))?,
        None => match config.only_input() {
            Some(only) => return Ok(&only.input),
            None if !config.patterns.is_empty() => {
                bail!("the configuration has a pattern; choose a topic with --topic: {}", config.inputs())
            }
            None => bail!("the configuration has several topics; choose one with --topic: {}", config.inputs()),
        },
    };
    Ok(&config.topics[topic.0].input)
}
