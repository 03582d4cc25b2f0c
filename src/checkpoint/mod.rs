//! Checkpoints: the state of each partition, with the offsets it belongs to, in RocksDB.
//!
//! Owns the state directory. A checkpoint is one write: pages that changed, generations that went, and
//! the metadata with the offsets. A large one is put together in files, which RocksDB takes in at once. So
//! what is on disk always holds the effect of the records below its offsets and of no other. It need
//! not be synced: correctness lives in Kafka, and a power cut
//! merely leaves an older checkpoint.
//!
//! Must never decide what to do about a missing or foreign checkpoint, and never delete a corrupt
//! one: it is quarantined.
//!
//! ```text
//! DIR/instance                     this directory's own id, made once
//! DIR/checkpoints/                 RocksDB
//!   format                         version of all that follows
//!   h <space> <partition>          metadata: settings, offsets, metadata of the filter, as JSON
//!   p <space> <partition> <page>   64 KiB of a filter's bits
//!   x <space> <partition> <generation> <fingerprint>   nothing: that it is there says all
//! DIR/drafts/                      checkpoints that are being put together; void after a kill
//! DIR/checkpoints.corrupt-<time>/  quarantined
//! ```

#[cfg(feature = "worker")]
mod archive;
pub mod codec;
#[cfg(feature = "worker")]
mod database;
pub mod decode;
#[cfg(feature = "worker")]
mod digest;
#[cfg(feature = "worker")]
mod draft;
#[cfg(feature = "worker")]
pub mod inspect;
#[cfg(feature = "worker")]
pub mod merge;
#[cfg(feature = "worker")]
mod options;
#[cfg(feature = "worker")]
mod store;

#[cfg(feature = "worker")]
pub use archive::StoredFingerprints;
#[cfg(feature = "faults")]
pub use database::MemoryDisk;
#[cfg(feature = "worker")]
pub use digest::digest;
#[cfg(feature = "worker")]
pub use store::{Loaded, Saved, Store};

use crate::changelog::{Origin, Progress};
use crate::config::{Config, Topic};
use crate::dedup::{DedupMetadata, Rules};
use crate::filter::Window;
use crate::record::Offset;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Whose state it is: one partition number of one key space.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId {
    /// Name of the key space.
    pub space: String,
    /// Number of the partition.
    pub partition: i32,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.space, self.partition)
    }
}

/// A partition's checkpoint but for the filter's bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointMetadata {
    /// What the bits depend on. A checkpoint of other settings is of no use.
    pub settings: Settings,
    /// For each input topic, the offset below which every record had its effect, and none at or past it.
    pub offsets: BTreeMap<String, Offset>,
    /// How far the changelog is in it.
    pub changelog: Progress,
    /// The state's metadata.
    pub state: DedupMetadata,
}

/// The part of the configuration that the stored bits depend on. Capacity and error rate are not
/// in it: a changed one holds for what the filter makes next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How long a key stays seen.
    pub window: Window,
    /// What remembers, such as `aging` or `aging, confirmed`.
    pub filter: String,
    /// How keys are hashed; of a secret, only what distinguishes it from another.
    pub hash: String,
    /// For each input topic, what its key is made of.
    pub keys: BTreeMap<String, String>,
}

impl Settings {
    /// What the bits of a topic's space depend on.
    #[must_use]
    pub fn of(config: &Config, topic: &Topic) -> Self {
        // Each option by name: a new one does not compile until somebody has said whether stored bits depend on it.
        let Topic {
            input: _,
            output: _,
            space: _,
            key: _,
            formats: _,     // A text or a number is the same id in each of them.
            repartition: _, // The partitions of the internal topic are fixed; what lies in them is the same.
            window: _,
            filter: _,
            retract: _,
            refresh: _,
            time: _, // It decides what advances stream time, which is stored.
            max_future: _,
            late: _,
            on_duplicate: _,
            on_tombstone: _,
            on_invalid: _,
            count_by: _,
            key_conflicts: _,
        } = topic;
        let keys = config.space_of(topic).topics.iter().map(|topic| (topic.input.clone(), topic.key.to_string())).collect();
        Self { window: topic.window, filter: topic.filter.to_string(), hash: topic.key.hashing_id(), keys }
    }

    /// By whom, and under which settings, the changelog of a topic's space is written.
    #[must_use]
    pub fn origin(&self, config: &Config, topic: &Topic, rules: &Rules) -> Origin {
        let owner = format!("{:?} {:?}", config.kafka.group_id, topic.space);
        let keys = format!("{} {:?}", self.hash, self.keys);
        let clock = if rules.is_sliced() { self.window.to_string() } else { format!("insertions into {}", self.filter) };
        Origin::new(&owner, &keys, &clock, &self.filter)
    }

    /// What differs, as a sentence's middle: `window was X and is Y`.
    #[must_use]
    pub fn difference(&self, now: &Self) -> String {
        if self.window != now.window {
            format!("its window was {} and is {}", self.window, now.window)
        } else if self.hash != now.hash {
            format!("its keys were hashed by {} and are hashed by {}", self.hash, now.hash)
        } else if self.filter != now.filter {
            format!("its filter was {} and is {}", self.filter, now.filter)
        } else {
            format!("its keys were taken from {:?} and are taken from {:?}", self.keys, now.keys)
        }
    }
}

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory cannot be made, read or written.
    #[error("state directory {}: {error}; it must be a directory that this user can write to", .dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Another process has it open.
    #[error("state directory {} is in use by another unseen process; give each process its own `state.dir`", .0.display())]
    InUse(PathBuf),
    /// It was written by another version.
    #[error("state directory {}: expected format {expected}, got {got}; run the version of unseen that wrote it, or move the directory away to start from the input", .dir.display())]
    Format {
        /// The directory.
        dir: PathBuf,
        /// The format this version reads and writes.
        expected: String,
        /// The format that was found.
        got: String,
    },
    /// Something in it is not as it was written.
    #[error("state directory {}: {what}", .dir.display())]
    Corrupt {
        /// The directory.
        dir: PathBuf,
        /// What was expected where, and what was found.
        what: String,
    },
    /// What a partition had stored is not there any more.
    #[error("state directory {}: the store was quarantined, and with it what {id} remembers; the partition must be restored", .dir.display())]
    Lost {
        /// The directory.
        dir: PathBuf,
        /// Whose state it was.
        id: PartitionId,
    },
    /// Directories that cannot be joined.
    #[error("{0}")]
    Merge(String),
    /// RocksDB refuses: a full disk, say.
    #[error("state directory {}: {message}", .dir.display())]
    Store {
        /// The directory.
        dir: PathBuf,
        /// What RocksDB says.
        message: String,
    },
}
