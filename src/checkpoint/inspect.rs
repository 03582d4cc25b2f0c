//! The contents of a state directory, as shown by `unseen inspect`.
//!
//! Defines the output format: `docs/reference/inspect.schema.json` is generated from these types. Never changes a directory.

use super::decode::metadata_rules;
use super::{CheckpointMetadata, Error, Loaded, PartitionId, Settings, Store, StoredFingerprints, digest};
use crate::filter::{FilterMetadata, Slice};
use crate::key::Fingerprint;
use crate::record::{Offset, Timestamp, log_topic};
use crate::status::ObservedRate;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The contents of several state directories.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Inspection {
    /// The directories, in order of the arguments.
    pub directories: Vec<Directory>,
}

/// The contents of one state directory.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Directory {
    /// The path of the directory.
    pub dir: String,
    /// The states in the directory, by space and partition.
    pub partitions: Vec<StoredPartition>,
}

/// The state of one partition number of one space, as of its last checkpoint.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StoredPartition {
    /// The key space.
    pub space: String,
    /// The partition number.
    pub partition: i32,
    /// The kind of filter, such as `aging` or `aging, confirmed`.
    pub filter: String,
    /// The window, such as `4 slices of 6h`.
    pub window: String,
    /// By input topic: the state contains the effects of exactly the records below this offset.
    pub offsets: BTreeMap<String, Offset>,
    /// The next changelog offset to read.
    pub changelog_offset: Option<Offset>,
    /// Stream time: the largest record timestamp so far that was not too far ahead of the clock.
    pub stream_time_ms: Option<Timestamp>,
    /// The number of remembered keys, counting repeated insertions; for the kind `stable`, the number of keys ever inserted.
    pub keys: u64,
    /// The memory of the filter; 0 for the kind `exact`.
    pub memory_bytes: u64,
    /// The computed share of unseen keys that the filter reports as seen.
    pub estimated_rate: f64,
    /// The observed share of unseen keys that the filter reports as seen; null if nothing was observed.
    pub observed: Option<ObservedRate>,
    /// A digest. Two states of a partition with the same settings and the same digest give the same verdicts.
    pub digest: String,
    /// The keys by slice, oldest first; empty for kinds without slices.
    pub slices: Vec<StoredSlice>,
    /// The answer for the requested key; null if no key of this space was requested.
    pub key: Option<Asked>,
}

/// The keys of one slice.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StoredSlice {
    /// The number of the slice.
    pub slice: Slice,
    /// The start time of the slice; null in a window by count.
    pub from_ms: Option<Timestamp>,
    /// The end time of the slice; null in a window by count.
    pub to_ms: Option<Timestamp>,
    /// The number of inserted keys.
    pub keys: u64,
    /// The number of keys that the slice is sized for; null for fingerprints on disk.
    pub capacity_keys: Option<u64>,
    /// The memory of the slice's filter.
    pub memory_bytes: u64,
}

/// The answer of a state for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Asked {
    /// True if a record with this key would be a duplicate. With `emit = "on_change"`, only a record with the same content would be.
    pub seen: bool,
    /// The slice of the key's last insertion, if the kind of filter stores it.
    pub slice: Option<Slice>,
    /// The start time of that slice; null in a window by count, or if `slice` is null.
    pub since_ms: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub struct Question {
    pub space: String,
    /// The fingerprints of all keys that match the request.
    pub fingerprints: Vec<Fingerprint>,
    /// The settings that determine the fingerprints. [`Settings::filter`] is ignored.
    pub settings: Settings,
}

/// Returns the contents of a state directory as of its last checkpoints and looks up the key of `question` in them. A worker can use the
/// directory at the same time.
///
/// # Errors
/// Returns an error if the directory cannot be read, or if its settings differ from the settings of `question`.
pub fn inspect(dir: &Path, question: Option<&Question>) -> Result<Directory, Error> {
    let store = Arc::new(Store::open_to_read(dir)?);
    let mut partitions = Vec::new();
    for (id, metadata) in store.all_metadata()? {
        let question = question.filter(|question| question.space == id.space);
        let asked = question.map(|question| ask(&store, &id, &metadata, question)).transpose()?;
        partitions.push(stored(&store, &id, &metadata, asked)?);
    }
    Ok(Directory { dir: dir.display().to_string(), partitions })
}

fn stored(store: &Store, id: &PartitionId, metadata: &CheckpointMetadata, key: Option<Asked>) -> Result<StoredPartition, Error> {
    let (usage, window) = (metadata.state.usage(), metadata.settings.window);
    let slice = |slice, keys, capacity_keys, memory_bytes| StoredSlice {
        slice,
        from_ms: window.start_of(slice),
        to_ms: window.start_of(slice.next()),
        keys,
        capacity_keys,
        memory_bytes,
    };
    let in_memory = metadata.state.filter.iter().flat_map(FilterMetadata::slices);
    let mut slices: Vec<_> = in_memory.map(|part| slice(part.slice, part.keys, Some(part.capacity), part.bytes)).collect();
    if let (None, Some(exact)) = (&metadata.state.filter, &metadata.state.exact) {
        slices.extend(exact.generations.iter().map(|generation| slice(generation.slice, generation.keys, None, 0)));
    }
    let observed = metadata.state.watched.as_ref().map(|watched| watched.observed(None)).filter(|observed| observed.checked > 0);
    Ok(StoredPartition {
        space: id.space.clone(),
        partition: id.partition,
        filter: metadata.settings.filter.clone(),
        window: window.to_string(),
        offsets: metadata.offsets.iter().map(|(log, &offset)| (log_topic(log).to_owned(), offset)).collect(),
        changelog_offset: metadata.changelog.end,
        stream_time_ms: metadata.state.stream_time,
        keys: usage.keys,
        memory_bytes: usage.bytes,
        estimated_rate: metadata.state.filter.as_ref().map_or(0.0, FilterMetadata::estimate),
        observed: observed.map(ObservedRate::from),
        digest: format!("{:032x}", digest(store, id, metadata)?),
        slices,
        key,
    })
}

fn ask(store: &Arc<Store>, id: &PartitionId, metadata: &CheckpointMetadata, question: &Question) -> Result<Asked, Error> {
    let settings = Settings { filter: metadata.settings.filter.clone(), ..question.settings.clone() };
    if settings != metadata.settings {
        let difference = metadata.settings.difference(&settings);
        let message =
            format!("{id} was written with a different configuration: {difference}; use the configuration that it was written with");
        return Err(Error::Store { dir: store.dir().to_owned(), message });
    }
    let Loaded::Usable { mut state, saved, .. } = store.load(id, &metadata.settings, metadata_rules(metadata))? else {
        return Ok(Asked { seen: false, slice: None, since_ms: None });
    };
    state.attach(Box::new(StoredFingerprints::new(Arc::clone(store), id.clone(), saved)));
    let asked: Result<Vec<_>, _> = question.fingerprints.iter().map(|&fingerprint| state.would_drop(fingerprint)).collect();
    let asked = asked.map_err(|error| Error::Store { dir: store.dir().to_owned(), message: format!("{id}: {error}") })?;
    let seen = asked.into_iter().flatten().max();
    let slice = seen.flatten();
    Ok(Asked { seen: seen.is_some(), slice, since_ms: slice.and_then(|slice| metadata.settings.window.start_of(slice)) })
}
