//! What a state directory holds, as `unseen inspect` shows it.
//!
//! Owns the shape of that: `docs/inspect.schema.json` is made from these types. Must never change a directory.

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

/// What several state directories hold.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Inspection {
    /// One after the other.
    pub directories: Vec<Directory>,
}

/// What one state directory holds.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Directory {
    /// Its path.
    pub dir: String,
    /// The states in it, by space and partition.
    pub partitions: Vec<StoredPartition>,
}

/// The state of one partition number of one space, as of its last checkpoint.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StoredPartition {
    /// Its key space.
    pub space: String,
    /// Its number.
    pub partition: i32,
    /// What remembers.
    pub filter: String,
    /// How long a key stays seen.
    pub window: String,
    /// By input topic: all records below have had their effect, and no other.
    pub offsets: BTreeMap<String, Offset>,
    /// Where to read on in the changelog.
    pub changelog_offset: Option<Offset>,
    /// Stream time: the largest record time so far that was not too far ahead of the clock.
    pub stream_time_ms: Option<Timestamp>,
    /// Keys remembered.
    pub keys: u64,
    /// Memory of the filter; 0 where fingerprints are on disk.
    pub memory_bytes: u64,
    /// Share of unseen keys that the filter calls seen, by formula.
    pub estimated_rate: f64,
    /// The same as it was observed; null where nothing was.
    pub observed: Option<ObservedRate>,
    /// The same for two states that give the same verdicts.
    pub digest: String,
    /// The keys by slice, oldest first; empty for kinds that keep all in one place.
    pub slices: Vec<StoredSlice>,
    /// Of the key that was asked for; null if none was.
    pub key: Option<Asked>,
}

/// The keys of one slice.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StoredSlice {
    /// Its number.
    pub slice: Slice,
    /// When it began; null in a window by count.
    pub from_ms: Option<Timestamp>,
    /// When it ended, or will.
    pub to_ms: Option<Timestamp>,
    /// Keys inserted.
    pub keys: u64,
    /// Keys that it was made for; null for fingerprints on disk.
    pub capacity_keys: Option<u64>,
    /// Memory of its filter.
    pub memory_bytes: u64,
}

/// What a state says of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Asked {
    /// Whether a record with it would be a duplicate.
    pub seen: bool,
    /// The slice that it was inserted into last, if the kind knows it.
    pub slice: Option<Slice>,
    /// When that slice began; null in a window by count.
    pub since_ms: Option<Timestamp>,
}

/// A key to ask for.
#[derive(Clone, Debug)]
pub struct Question {
    /// The space that it is of.
    pub space: String,
    /// Its fingerprint, or those of all keys that are meant.
    pub fingerprints: Vec<Fingerprint>,
    /// What that depends on. How it is remembered does not matter.
    pub settings: Settings,
}

/// Looks into a directory, which a worker may be using: what it wrote last is shown. `question` says which key to ask for.
///
/// # Errors
/// When it cannot be read, or was made with other settings than the question.
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
        let message = format!("{id} is of another configuration: {difference}; ask with the one that it was made with");
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
