//! Checkpoints: the state of each partition with its offsets, stored in RocksDB.
//!
//! Manages the state directory. A checkpoint is one atomic write: the changed pages of the filter, the changed fingerprints of the exact
//! store, the deletion of expired generations, and metadata with the offsets. A generation has the keys of one slice of the window. A large
//! checkpoint is assembled in files that RocksDB ingests in one step. So the stored state always contains the effects of exactly the
//! records below its offsets. A checkpoint need not be synced to disk. After a power failure, an older checkpoint is enough, because the
//! worker reads the later changes from the changelog or, without a changelog, from the input again.
//!
//! This module never decides how to handle a missing or incompatible checkpoint. It never deletes a corrupt checkpoint, only quarantines
//! it.
//!
//! ```text
//! DIR/instance                     unique id of this directory
//! DIR/checkpoints/                 RocksDB
//!   format                         version of the format
//!   h <space> <partition>          metadata: settings, offsets, metadata of the filter, as JSON
//!   p <space> <partition> <page>   up to 64 KiB of a filter's bits
//!   x <space> <partition> <generation> <fingerprint>   no value; with `emit = "on_change"`, an 8-byte hash of the content
//! DIR/drafts/                      unfinished checkpoints; a start deletes those that a crash left behind
//! DIR/checkpoints.corrupt-<time>/  quarantined checkpoints
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
pub use store::{Claim, Loaded, Saved, Store};

use crate::changelog::{Origin, Progress};
use crate::config::{Config, Topic};
use crate::dedup::{DedupMetadata, Emit, Rules};
use crate::filter::Window;
use crate::record::Offset;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The suffix of [`Settings::filter`] if the store contains the last content of each key (`emit = "on_change"`).
const ON_CHANGE: &str = ", on change";

/// The id of a state: one partition number of one key space.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId {
    pub space: String,
    pub partition: i32,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.space, self.partition)
    }
}

/// The checkpoint of a partition, except for the filter's pages and the exact store's fingerprints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointMetadata {
    /// The settings that the stored bits depend on. A checkpoint with other settings cannot be used.
    pub settings: Settings,
    /// The next offset of each input, by [`crate::record::log_name`]. The state contains the effects of exactly the records below these
    /// offsets.
    pub offsets: BTreeMap<String, Offset>,
    pub changelog: Progress,
    pub state: DedupMetadata,
}

/// The configuration that the stored bits depend on. Capacity and error rate are not included, because changes to them apply only to new
/// slices (`aging`) or new tables (`cuckoo`). The exception is `stable`: its memory and error rate are part of `filter`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub window: Window,
    /// The kind of filter, such as `aging`, `aging, confirmed`, or `exact, on change`.
    pub filter: String,
    /// The id of the key hash. If keys are hashed with a secret, the id differs between secrets but does not reveal them.
    pub hash: String,
    /// The key definition of each input of the space, by input. With `emit = "on_change"`, the definition includes the compared content.
    pub keys: BTreeMap<String, String>,
}

impl Settings {
    #[must_use]
    pub fn of(config: &Config, topic: &Topic) -> Self {
        // List all options by name. A new option then does not compile until somebody decides whether stored bits depend on it.
        let Topic {
            entry: _,
            input: _,
            output: _,
            when: _, // Selects records but does not change their keys.
            space: _,
            key: _,
            formats: _,     // A text or number has the same fingerprint in every format.
            repartition: _, // The repartition topic keeps its partition count, so keys stay in their partitions.
            window: _,
            filter: _,
            retract: _,
            refresh: _,
            time: _, // Determines what advances stream time, but stream time itself is stored.
            max_future: _,
            late: _,
            on_change: _,
            on_duplicate: _,
            on_tombstone: _,
            on_invalid: _,
            count_by: _,
            key_conflicts: _,
        } = topic;
        let key = |topic: &Topic| match &topic.on_change {
            None => topic.key.to_string(),
            Some(content) => format!("{}, with the content of {content}", topic.key),
        };
        let keys = config.space_of(topic).topics.iter().map(|topic| (topic.input.clone(), key(topic))).collect();
        let filter = format!("{}{}", topic.filter, if topic.on_change.is_some() { ON_CHANGE } else { "" });
        Self { window: topic.window, filter, hash: topic.key.hashing_id(), keys }
    }

    /// Returns the `emit` option of a stored state, which [`Settings::filter`] contains.
    #[must_use]
    pub fn emit_of(filter: &str) -> Emit {
        if filter.ends_with(ON_CHANGE) { Emit::OnChange } else { Emit::First }
    }

    /// Returns the origin for changelog records of the topic's space. The origin identifies the writer and the settings.
    #[must_use]
    pub fn origin(&self, config: &Config, topic: &Topic, rules: &Rules) -> Origin {
        let owner = format!("{:?} {:?}", config.kafka.group_id, topic.space);
        let keys = format!("{} {:?}", self.hash, self.keys);
        let clock = if rules.is_sliced() { self.window.to_string() } else { format!("insertions into {}", self.filter) };
        Origin::new(&owner, &keys, &clock, &self.filter)
    }

    /// Describes the first difference between these settings and `now`, for use within a sentence: `its window is X, but the configured
    /// window is Y`.
    #[must_use]
    pub fn difference(&self, now: &Self) -> String {
        if self.window != now.window {
            format!("its window is {}, but the configured window is {}", self.window, now.window)
        } else if self.hash != now.hash {
            format!("its keys are hashed by {}, but the configuration hashes keys by {}", self.hash, now.hash)
        } else if self.filter != now.filter {
            format!("its filter is {}, but the configured filter is {}", self.filter, now.filter)
        } else {
            format!("its keys are taken from {:?}, but the configuration takes keys from {:?}", self.keys, now.keys)
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("state directory {}: {error}; check the path, this user's permissions, and the free disk space", .dir.display())]
    Io {
        dir: PathBuf,
        /// The cause, such as a missing permission.
        error: std::io::Error,
    },
    #[error("state directory {} is in use by another unseen process; give each process its own `state.dir`", .0.display())]
    InUse(PathBuf),
    #[error("state directory {}: expected format {expected}, got {got}; run the version of unseen that wrote the directory, or move the directory aside to let the worker rebuild the state", .dir.display())]
    Format {
        dir: PathBuf,
        /// The version that this build reads and writes.
        expected: String,
        got: String,
    },
    #[error("state directory {} is damaged: {what}; a worker that uses it moves the damaged store aside and restores the partitions", .dir.display())]
    Corrupt {
        dir: PathBuf,
        /// Description of the damage and its location.
        what: String,
    },
    #[error("state directory {}: the store was moved aside or deleted, so the stored keys of {id} are lost; the worker restores the partition", .dir.display())]
    Lost {
        dir: PathBuf,
        /// The partition whose stored keys are lost. Its state must be restored.
        id: PartitionId,
    },
    #[error("another worker thread of this process now owns {0}, so this thread did not write a checkpoint")]
    Superseded(PartitionId),
    /// Any other problem, such as a full disk.
    #[error("state directory {}: {message}", .dir.display())]
    Store {
        dir: PathBuf,
        /// RocksDB's error message, or a description if RocksDB is not the cause.
        message: String,
    },
}
