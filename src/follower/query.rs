//! Batched key lookups and their answers.
//!
//! A key is reported as unseen only if every partition that may contain the key has answered.

use crate::key::{Fingerprint, Scratch};
use std::time::Duration;

/// The number of fingerprints up to which [`Query::clear`] keeps the buffers.
const KEYS: usize = 1 << 14;

/// The answer for a key of a [`Query`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The key was seen, or the filter has a false positive. The next record with the key would be a duplicate.
    Seen,
    /// The key was not seen within its window, as of the last known commit.
    Unseen,
    /// The key was not found in the partitions that could answer, but it may be in others.
    Unknown,
}

/// The reason for unknown answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The changelog does not exist yet, or the brokers have not answered yet.
    #[error(
        "changelog {changelog} has not been found yet; check that a worker is running with this configuration and that the brokers are reachable"
    )]
    Nothing {
        /// The name of the changelog topic.
        changelog: String,
    },
    /// A partition is being loaded from its changelog.
    #[error("partition {partition} is being loaded from its changelog, {percent} % so far")]
    Loading {
        /// One of the partitions that are being loaded.
        partition: i32,
        /// The share of its changelog that is applied, in percent, at most 99.
        percent: u32,
    },
    /// The changelog of a partition has no record yet.
    #[error("the changelog of partition {partition} is empty; check that a worker is running with this configuration")]
    Unowned {
        /// One of the partitions whose changelog is empty.
        partition: i32,
    },
    /// The worker is still restoring a partition, and its changelog lacks keys that were emitted.
    #[error(
        "the worker is restoring partition {partition} from the input and has not written all of its keys to the changelog yet; try again later, or ask another server"
    )]
    WarmingUp {
        /// One of the partitions that are being warmed up.
        partition: i32,
    },
    /// This server does not follow a partition that may contain the key.
    #[error(
        "the key may be in partition {partition}, which is not in this server's serve.partitions; ask a server that follows this partition"
    )]
    NotFollowed {
        /// One of the partitions that this server does not follow.
        partition: i32,
    },
    /// The changelog has none of the partitions in `serve.partitions`.
    #[error("serve.partitions contains none of the {partitions} partitions of {changelog}; add some of them, or remove the option")]
    NonePresent {
        /// The name of the changelog topic.
        changelog: String,
        /// The number of partitions of the changelog.
        partitions: usize,
    },
    /// The worker's key or window settings differ from this configuration.
    #[error("the worker runs with different key or window settings; use the same configuration file for the worker and this server")]
    OtherKeys,
    /// The state is older than `serve.max_staleness`, because the brokers do not answer, or because the follower does not keep up.
    #[error("this server's state is {} s old, which exceeds serve.max_staleness ({} s); check the brokers and this server's log", .age.as_secs(), .most.as_secs_f64())]
    Stale {
        /// The age of the oldest state among the partitions that are ready.
        age: Duration,
        /// The value of `serve.max_staleness`.
        most: Duration,
    },
    /// The changelog has an invalid record, or the state cannot be read. Holds the error message.
    #[error("{0}")]
    Broken(String),
}

/// Keys to look up in one key space. Reuse a query to avoid allocations.
#[derive(Debug, Default)]
pub struct Query {
    /// The fingerprints of all keys. An ambiguous key has several.
    pub(super) fingerprints: Vec<Fingerprint>,
    /// The partition of each fingerprint, if known.
    pub(super) partitions: Vec<Option<u32>>,
    /// For each key, the index after its last fingerprint.
    pub(super) ends: Vec<usize>,
    pub(super) seen: Vec<bool>,
    pub(super) unknown: Vec<bool>,
    pub(super) answers: Vec<Answer>,
    /// The indexes of the fingerprints, sorted by partition. `chosen` and `found` are buffers for one partition.
    pub(super) order: Vec<usize>,
    pub(super) chosen: Vec<Fingerprint>,
    pub(super) found: Vec<bool>,
    pub(super) scratch: Scratch,
}

impl Query {
    /// Removes all keys. Keeps the buffers for the next keys, unless they have become large.
    pub fn clear(&mut self) {
        if self.fingerprints.len() > KEYS {
            *self = Self::default();
        }
        self.fingerprints.clear();
        self.partitions.clear();
        self.ends.clear();
    }

    /// Removes all keys except the first `keys`.
    pub fn truncate(&mut self, keys: usize) {
        self.ends.truncate(keys);
        let end = self.ends.last().copied().unwrap_or(0);
        self.fingerprints.truncate(end);
        self.partitions.truncate(end);
    }

    /// Returns the number of keys. Each key gets one answer.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there are no keys.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
