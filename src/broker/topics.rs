//! Selects the topics of a cluster that match the patterns of a configuration and detects when the selection changes.
//!
//! Leaves out matching topics that cannot be read. This module never leaves out a topic that the configuration lists by name.

use super::{Broker, Cluster, Error, Problem};
use crate::config::{Config, LeftOut, Topic};
use crate::runtime;
use crate::stats::{Stats, get};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum interval after doubling. A longer configured interval is not shortened.
const INTERVAL_MAX: Duration = Duration::from_secs(8 * 60);
/// The longest time that a change of the topics waits for rebuilds to finish.
const REBUILD_WAIT: Duration = Duration::from_secs(10 * 60);
/// The longest sleep. A stop request is noticed within this time.
const STEP: Duration = Duration::from_millis(100);

/// A configuration with the topics that match its patterns.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub config: Arc<Config>,
    pub cluster: Arc<Cluster>,
    /// The matching topics that are not read, with the reasons, sorted by name.
    pub left_out: Vec<LeftOut>,
    /// The time until the topics are listed again. Each consecutive change doubles this time, up to `INTERVAL_MAX`, because a change
    /// interrupts all partitions.
    pub interval: Duration,
}

impl Resolved {
    #[must_use]
    pub fn inputs(&self) -> BTreeSet<&str> {
        self.config.topics.iter().map(|topic| topic.input.as_str()).collect()
    }
}

/// Finds the topics that a configuration lists by name or that match its patterns. Creates missing internal topics.
///
/// # Errors
/// Fails like [`Broker::discover`]. If all problems are with topics that match a pattern, leaves these topics out instead of failing. Also
/// fails if too many topics match the patterns.
pub fn resolve<B: Broker>(broker: &B, config: &Config, stop: &dyn Fn() -> bool) -> Result<Resolved, Error> {
    let names = if config.patterns.is_empty() { BTreeSet::new() } else { broker.topics(config, stop)? };
    resolve_among(config, &names, &|config| broker.discover(config, stop))
}

/// Selects the topics of a configuration from the existing topics `names`. `discover` checks a selection, like [`Broker::discover`].
pub fn resolve_among(
    config: &Config,
    names: &BTreeSet<String>,
    discover: &dyn Fn(&Config) -> Result<Cluster, Error>,
) -> Result<Resolved, Error> {
    let (mut config, mut left_out) = config.expand(names.iter().map(String::as_str)).map_err(Error::Fatal)?;
    loop {
        let problems = match discover(&config) {
            Err(Error::Cluster(problems)) => problems,
            found => {
                left_out.sort_by(|a, b| a.topic.cmp(&b.topic));
                let interval = config.topics_interval();
                return Ok(Resolved { cluster: Arc::new(found?), config: Arc::new(config), left_out, interval });
            }
        };
        let matched: BTreeSet<_> = config.topics.iter().filter(|topic| config.is_matched(topic)).map(|topic| &topic.input).collect();
        if problems.is_empty() || !problems.iter().all(|problem| matched.contains(&problem.input)) {
            return Err(Error::Cluster(problems));
        }
        let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for Problem { input, message } in problems {
            reasons.entry(input).or_default().push(message);
        }
        config = config.only(|topic| !reasons.contains_key(&topic.input));
        left_out.extend(reasons.into_iter().map(|(topic, reasons)| LeftOut { topic, reason: reasons.join("; ") }));
    }
}

#[derive(Debug)]
pub enum Refreshed {
    /// The selected topics are unchanged. Contains the topics that are left out now.
    Same(Vec<LeftOut>),
    Changed(Box<Resolved>),
}

/// Lists the topics again and compares the selection with `current`.
pub fn refresh<B: Broker>(broker: &B, config: &Config, current: &Resolved, stop: &dyn Fn() -> bool) -> Result<Refreshed, Error> {
    let names = broker.topics(config, stop)?;
    let discover = |config: &Config| broker.discover(config, stop);
    let (matching, left_out) = config.expand(names.iter().map(String::as_str)).map_err(Error::Fatal)?;
    let (now, read) = (matching.topics.iter().map(|topic| topic.input.as_str()).collect::<BTreeSet<_>>(), current.inputs());
    let is_complete = |topic: &Topic| now.contains(topic.input.as_str()) && topic.outputs().iter().all(|(_, name)| names.contains(*name));
    if current.config.topics.iter().filter(|topic| config.is_matched(topic)).all(is_complete) {
        if now.is_subset(&read) {
            return Ok(Refreshed::Same(left_out));
        }
        // Usually, only topics that are not read have changed. To save requests, the topics that are already read and match a pattern are
        // not checked.
        let others: BTreeSet<_> = names.iter().filter(|name| !read.contains(name.as_str())).cloned().collect();
        let others = resolve_among(config, &others, &discover)?;
        let inputs: BTreeSet<_> = config.topics.iter().map(|topic| &topic.input).collect();
        if others.inputs().len() == inputs.len() {
            return Ok(Refreshed::Same(others.left_out));
        }
    }
    let found = resolve_among(config, &names, &discover)?;
    Ok(if found.inputs() == read { Refreshed::Same(found.left_out) } else { Refreshed::Changed(Box::new(found)) })
}

/// Returns the configuration with the existing topics that match its patterns, and the matching topics that cannot be read. Does not check
/// the matching topics with [`Broker::discover`].
///
/// # Errors
/// Returns an error if no broker answers, or if too many topics match its patterns.
pub fn existing<B: Broker>(broker: &B, config: &Config, stop: &dyn Fn() -> bool) -> Result<(Config, Vec<LeftOut>), Error> {
    let names = if config.patterns.is_empty() { BTreeSet::new() } else { broker.topics(config, stop)? };
    config.expand(names.iter().map(String::as_str)).map_err(Error::Fatal)
}

/// Returns the configuration of a server. It contains the topics that `config` lists by name, and the matching topics that have a
/// changelog.
///
/// # Errors
/// Returns an error if no broker answers, or if too many topics match its patterns.
pub fn followed<B: Broker>(broker: &B, config: &Config, stop: &dyn Fn() -> bool) -> Result<Config, Error> {
    if config.patterns.is_empty() {
        return Ok(config.clone());
    }
    let names = broker.topics(config, stop)?;
    let (config, _) = config.expand(names.iter().map(String::as_str)).map_err(Error::Fatal)?;
    let is_logged = |topic: &Topic| config.changelog(&topic.space).is_some_and(|changelog| names.contains(&changelog));
    Ok(config.only(|topic| !config.is_matched(topic) || is_logged(topic)))
}

/// Publishes the left-out topics in the status. Logs a topic unless the status already shows it with the same reason.
pub fn report(stats: &Stats, left_out: Vec<LeftOut>) {
    let known = stats.left_out();
    for left_out in left_out.iter().filter(|left_out| !known.contains(left_out)) {
        tracing::warn!("{left_out}; the worker checks regularly whether it can read this topic");
    }
    stats.set_left_out(left_out);
}

/// A change of the selected topics for which the workers have not restarted yet.
#[derive(Default)]
struct Pending {
    lost: BTreeSet<String>,
    since: Option<Instant>,
}

impl Pending {
    /// True if the workers must restart now, without the `lost` topics or with new topics. A topic counts as lost only if it is missing
    /// from two consecutive lists, because a list may be incomplete. A change waits for running rebuilds, because a restart would make them
    /// start from the beginning.
    fn is_due(&mut self, lost: BTreeSet<String>, is_rebuilding: bool, now: Instant) -> bool {
        let is_sure = lost.is_subset(&self.lost);
        self.lost = lost;
        let waited = now.saturating_duration_since(*self.since.get_or_insert(now));
        is_sure && (!is_rebuilding || waited >= REBUILD_WAIT)
    }
}

/// Lists the topics periodically until the selection changes and returns the new selection. Returns `None` once `stop` is true.
pub fn watch<B: Broker>(broker: &B, config: &Config, current: &Resolved, stats: &Stats, stop: &dyn Fn() -> bool) -> Option<Resolved> {
    let (base, read) = (config.topics_interval(), current.inputs());
    // If no topic is read, a change interrupts nothing, and only the requests for the topic list show whether the brokers answer. So the
    // interval stays short.
    let mut interval = if read.is_empty() { base } else { current.interval };
    let (mut pause, mut pending) = (interval, Pending::default());
    loop {
        let since = runtime::now();
        while runtime::since(since) < pause {
            if stop() {
                return None;
            }
            runtime::sleep(STEP.min(pause));
        }
        pause = base;
        let found = refresh(broker, config, current, stop);
        if read.is_empty() && found.is_ok() {
            stats.broker_contact.note();
        }
        match found {
            _ if stop() => return None,
            Ok(Refreshed::Same(left_out)) => {
                (interval, pending) = (base, Pending::default());
                report(stats, left_out);
            }
            Ok(Refreshed::Changed(found)) => {
                let lost = read.difference(&found.inputs()).map(|&input| input.to_owned()).collect();
                let is_rebuilding = get(&stats.rebuilding) > 0;
                if pending.is_due(lost, is_rebuilding, runtime::now()) {
                    return Some(Resolved { interval: (interval * 2).min(INTERVAL_MAX.max(base)), ..*found });
                }
                if is_rebuilding {
                    super::throttle::report("topics: rebuilding", |_| {
                        tracing::info!(
                            "the topics that match the patterns in `input` have changed; the workers restart after the running rebuilds, but at the latest after ten minutes"
                        );
                    });
                }
            }
            Err(error) => super::throttle::report(&format!("topics: {error}"), |_| {
                tracing::warn!(
                    error = %error,
                    "cannot check which topics match the patterns in `input`; the workers keep reading the current topics, and the check is retried"
                );
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_topic_is_lost_only_if_two_lists_in_a_row_lack_it() {
        let (mut pending, now) = (Pending::default(), runtime::now());
        assert!(pending.is_due(lost(&[]), false, now), "only new topics");
        assert!(!pending.is_due(lost(&["a"]), false, now));
        assert!(!pending.is_due(lost(&["b"]), false, now));
        assert!(pending.is_due(lost(&["b"]), false, now));
    }

    #[test]
    fn a_change_waits_for_rebuilds_but_not_forever() {
        let (mut pending, now) = (Pending::default(), runtime::now());
        assert!(!pending.is_due(lost(&[]), true, now));
        assert!(!pending.is_due(lost(&[]), true, now + REBUILD_WAIT / 2));
        assert!(pending.is_due(lost(&[]), false, now + REBUILD_WAIT / 2));
        assert!(pending.is_due(lost(&[]), true, now + REBUILD_WAIT));
    }
}
