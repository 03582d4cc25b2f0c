//! Keys to ask for, many at once, and the answers.
//!
//! Must never take "not known" for "not seen".

use crate::key::{Fingerprint, Scratch};
use std::time::Duration;

/// Keys that room is kept for.
const KEYS: usize = 1 << 14;

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A record with it would be dropped: it was seen, or this is a false positive.
    Seen,
    /// It was not seen within its window, in any commit that is known.
    Unseen,
    /// It was not found where there was something to ask, and not all could be asked.
    Unknown,
}

/// Why not all could be asked. Each is a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// There is nothing to ask yet.
    #[error("the changelog {changelog} was not met yet; is a worker running with this configuration, and do the brokers answer?")]
    Nothing {
        /// The topic.
        changelog: String,
    },
    /// A partition's changelog is being read.
    #[error("partition {partition} is being loaded from its changelog, {percent} % so far")]
    Loading {
        /// Its number.
        partition: i32,
        /// How much of it was read.
        percent: u32,
    },
    /// The changelog of a partition has no record yet.
    #[error("no worker has logged anything for partition {partition} yet; is a worker running with this configuration?")]
    Unowned {
        /// Its number.
        partition: i32,
    },
    /// The worker is still restoring a partition, and its changelog lacks keys that were emitted.
    #[error("the worker is warming up partition {partition} from the input, and has not logged all of its keys yet")]
    WarmingUp {
        /// Its number.
        partition: i32,
    },
    /// A partition is not this follower's.
    #[error("partition {partition} may have it, and is none of serve.partitions here; ask a follower that has it")]
    NotFollowed {
        /// Its number.
        partition: i32,
    },
    /// The topic has none of the partitions that this follower is to follow.
    #[error("serve.partitions names none of the {partitions} partitions of {changelog}; name some of them, or leave it out")]
    NonePresent {
        /// The topic.
        changelog: String,
        /// The number of its partitions.
        partitions: usize,
    },
    /// The worker makes keys in another way.
    #[error("the worker makes keys, or counts its window, in another way than this configuration says; give both the same file")]
    OtherKeys,
    /// The brokers were not heard of for longer than is allowed.
    #[error("the brokers were last heard of {} s ago, and serve.max_staleness is {} s", .age.as_secs(), .most.as_secs_f64())]
    Stale {
        /// How long ago.
        age: Duration,
        /// How long is allowed.
        most: Duration,
    },
    /// The state cannot be read.
    #[error("{0}")]
    Broken(String),
}

/// Keys to ask one key space for. Kept between questions, so that nothing need be allocated for each.
#[derive(Debug, Default)]
pub struct Query {
    /// The fingerprints that are meant; a key may mean several.
    pub(super) fingerprints: Vec<Fingerprint>,
    /// The partition of each fingerprint, if it is known.
    pub(super) partitions: Vec<Option<u32>>,
    /// Where the fingerprints of each key end.
    pub(super) ends: Vec<usize>,
    pub(super) seen: Vec<bool>,
    pub(super) unknown: Vec<bool>,
    pub(super) answers: Vec<Answer>,
    /// The numbers of fingerprints by partition, and those of one partition.
    pub(super) order: Vec<usize>,
    pub(super) chosen: Vec<Fingerprint>,
    pub(super) found: Vec<bool>,
    pub(super) scratch: Scratch,
}

impl Query {
    /// Forgets all keys, and gives back room for more of them than usual.
    pub fn clear(&mut self) {
        if self.fingerprints.len() > KEYS {
            *self = Self::default();
        }
        self.fingerprints.clear();
        self.partitions.clear();
        self.ends.clear();
    }

    /// Forgets all keys but the first so many.
    pub fn truncate(&mut self, keys: usize) {
        self.ends.truncate(keys);
        let end = self.ends.last().copied().unwrap_or(0);
        self.fingerprints.truncate(end);
        self.partitions.truncate(end);
    }

    /// Number of keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
