//! Selects the topics of a cluster that match the patterns of a configuration, and detects when the selection changes.
//!
//! Owns the choice of matching topics that are not read. Must never leave out a topic that the configuration names.

use super::{Broker, Cluster, Error, Problem};
use crate::config::{Config, LeftOut, Topic};
use crate::runtime;
use crate::stats::Stats;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The librdkafka property that sets how often clients refresh the list of topics. The worker lists the topics at the same interval.
const INTERVAL_PROPERTY: &str = "topic.metadata.refresh.interval.ms";
/// Time between two lists of the topics, unless the property is set.
const INTERVAL: Duration = Duration::from_secs(30);
/// The shortest time between two lists.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The longest sleep, so that a stop request is noticed.
const STEP: Duration = Duration::from_millis(100);

/// A configuration with the topics that match its patterns.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The configuration with these topics.
    pub config: Arc<Config>,
    /// The topics on the cluster.
    pub cluster: Arc<Cluster>,
    /// The matching topics that are not read, by name.
    pub left_out: Vec<LeftOut>,
}

impl Resolved {
    /// The topics that are read.
    #[must_use]
    pub fn inputs(&self) -> BTreeSet<&str> {
        self.config.topics.iter().map(|topic| topic.input.as_str()).collect()
    }
}

/// Finds the topics of a configuration. Creates missing internal topics.
///
/// # Errors
/// Fails like [`Broker::discover`] for the topics that the configuration names. Also fails if too many topics match its patterns.
pub fn resolve<B: Broker>(broker: &B, config: &Config, stop: &dyn Fn() -> bool) -> Result<Resolved, Error> {
    let names = if config.patterns.is_empty() { BTreeSet::new() } else { broker.topics(config, stop)? };
    resolve_among(config, &names, &|config| broker.discover(config, stop))
}

/// Selects the topics of a configuration from the existing topics `names`. `discover` stands for [`Broker::discover`].
///
/// # Errors
/// See [`resolve`].
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
                return Ok(Resolved { cluster: Arc::new(found?), config: Arc::new(config), left_out });
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

/// The result of listing the topics again.
#[derive(Debug)]
pub enum Refreshed {
    /// The same topics are read, and these are left out.
    Same(Vec<LeftOut>),
    /// Other topics are read.
    Changed(Box<Resolved>),
}

/// Finds the topics again.
///
/// # Errors
/// See [`resolve`].
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
        // Usually, only topics that are not read have changed. In that case, no other topic needs a new request.
        let others: BTreeSet<_> = names.iter().filter(|name| !read.contains(name.as_str())).cloned().collect();
        let others = resolve_among(config, &others, &discover)?;
        if others.inputs().len() == config.topics.len() {
            return Ok(Refreshed::Same(others.left_out));
        }
    }
    let found = resolve_among(config, &names, &discover)?;
    Ok(if found.inputs() == read { Refreshed::Same(found.left_out) } else { Refreshed::Changed(Box::new(found)) })
}

/// Returns the configuration with the existing topics that match its patterns, without a check of these topics.
///
/// # Errors
/// If no broker answers, or if too many topics match its patterns.
pub fn existing<B: Broker>(broker: &B, config: &Config, stop: &dyn Fn() -> bool) -> Result<Config, Error> {
    if config.patterns.is_empty() {
        return Ok(config.clone());
    }
    let names = broker.topics(config, stop)?;
    Ok(config.expand(names.iter().map(String::as_str)).map_err(Error::Fatal)?.0)
}

/// Returns the configuration with the matching topics that have a changelog, for a server.
///
/// # Errors
/// If no broker answers, or if too many topics match its patterns.
pub fn followed<B: Broker>(broker: &B, config: &Config, stop: &dyn Fn() -> bool) -> Result<Config, Error> {
    if config.patterns.is_empty() {
        return Ok(config.clone());
    }
    let names = broker.topics(config, stop)?;
    let (config, _) = config.expand(names.iter().map(String::as_str)).map_err(Error::Fatal)?;
    let is_logged = |topic: &Topic| config.changelog(&topic.space).is_some_and(|changelog| names.contains(&changelog));
    Ok(config.only(|topic| !config.is_matched(topic) || is_logged(topic)))
}

/// Logs the topics that are left out for a reason that was not logged before, and shows them in the status.
pub fn report(stats: &Stats, left_out: Vec<LeftOut>) {
    let known = stats.left_out();
    for left_out in left_out.iter().filter(|left_out| !known.contains(left_out)) {
        tracing::warn!("{left_out}; the worker looks again every time it lists the topics");
    }
    stats.set_left_out(left_out);
}

/// Lists the topics at an interval until the topics to read have changed, and returns the new ones. Returns `None` once `stop` is true.
pub fn watch<B: Broker>(broker: &B, config: &Config, current: &Resolved, stats: &Stats, stop: &dyn Fn() -> bool) -> Option<Resolved> {
    let interval = interval(config);
    loop {
        let since = runtime::now();
        while runtime::since(since) < interval {
            if stop() {
                return None;
            }
            runtime::sleep(STEP.min(interval));
        }
        match refresh(broker, config, current, stop) {
            _ if stop() => return None,
            Ok(Refreshed::Same(left_out)) => report(stats, left_out),
            Ok(Refreshed::Changed(found)) => return Some(*found),
            Err(error) => super::throttle::report(&format!("topics: {error}"), |_| {
                tracing::warn!(error = %error, "cannot find the topics that match the patterns; trying again");
            }),
        }
    }
}

/// Returns the time between two lists of the topics.
#[must_use]
pub fn interval(config: &Config) -> Duration {
    let set = config.kafka.properties.get(INTERVAL_PROPERTY).and_then(|millis| millis.parse().ok());
    set.filter(|&millis| millis > 0).map_or(INTERVAL, |millis| Duration::from_millis(millis).max(INTERVAL_MIN))
}
