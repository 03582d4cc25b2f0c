//! Chooses the filter of the server that runs alongside the workers, and checks the server's answers.

use super::super::options::{Memory, Options};
use super::Known;
use std::collections::BTreeSet;

/// The false-positive rate of a server's own aging filter. It is high enough to show false positives.
const OFTEN: f64 = 1e-3;
const RARELY: f64 = 1e-9;
/// The maximum number of filter lookups per key: two in each of six partitions. There are two lookups, because the user ID can be a number
/// or a string.
const LOOKUPS: i32 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ServerFilter {
    /// The worker's filter if a server can use it, otherwise a cuckoo filter.
    Worker,
    /// An aging filter if nothing is retracted, otherwise a cuckoo filter.
    Aging,
    Cuckoo,
}

impl ServerFilter {
    /// Returns the option that gives the server its own filter for a space (`None` if it uses the worker's filter), and the probability
    /// that the server reports an unseen key as seen.
    pub fn option(self, space: &str, options: &Options, memory: &Memory, capacity: usize) -> (Option<String>, f64) {
        let retracts = options.has("retract");
        let own = |kind: &str, rate: f64| {
            let capacity = if options.window_keys().is_some() { String::new() } else { format!(", capacity = {capacity}") };
            (Some(format!("serve.filters.{space}={{ kind = \"{kind}\"{capacity}, false_positive_rate = {rate:e} }}")), rate)
        };
        let (option, rate) = match self {
            Self::Worker => memory.rate_of_follower(retracts).map_or_else(|| own("cuckoo", RARELY), |rate| (None, rate)),
            Self::Aging if !retracts => own("aging", OFTEN),
            // In a filter with many false positives, a retraction can remove another key, so plans with retractions need a low rate.
            _ => own("cuckoo", RARELY),
        };
        (option, 1.0 - (1.0 - rate).powi(LOOKUPS))
    }
}

pub fn parts(key: &[u8]) -> (&str, &str) {
    std::str::from_utf8(key).ok().and_then(|key| key.split_once('/')).expect("a user and an item")
}

pub struct Answer {
    pub as_of_ms: i64,
    pub seen: Vec<bool>,
    /// The probability that the server reports an unseen key as seen.
    pub rate: f64,
}

impl Answer {
    /// Panics unless the answer about `keys` is correct. Keys in `before`, which are from before the group's start, may be reported as seen
    /// or as unseen.
    pub fn judge(&self, keys: &[Vec<u8>], known: &Known, before: &BTreeSet<Vec<u8>>) {
        let Self { as_of_ms, rate, .. } = *self;
        let answered = |seen| keys.iter().zip(&self.seen).filter(move |(_, said)| **said == seen).map(|(key, _)| key);
        let denied: Vec<_> = answered(false).filter(|key| known.seen.contains(*key)).map(|key| String::from_utf8_lossy(key)).collect();
        assert!(
            denied.is_empty(),
            "the server, as of {as_of_ms}, reports {} of {} seen keys as unseen, such as {:?}",
            denied.len(),
            known.seen.len(),
            &denied[..denied.len().min(3)]
        );
        let is_unseen = |key: &&Vec<u8>| !known.maybe.contains(*key) && !known.seen.contains(*key) && !before.contains(*key);
        let unseen = count(keys.iter().filter(is_unseen).count());
        let (wrong, expected) = (count(answered(true).filter(is_unseen).count()), rate * unseen);
        let most = expected + 6.0 * (expected * (1.0 - rate)).sqrt();
        assert!(wrong <= most, "the server, as of {as_of_ms}, reports {wrong} of {unseen} unseen keys as seen; at most {most} may be");
    }
}

#[expect(clippy::cast_precision_loss, reason = "some thousands")]
const fn count(keys: usize) -> f64 {
    keys as f64
}
