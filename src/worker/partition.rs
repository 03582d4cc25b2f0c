//! What a worker knows of one of its partitions.

use super::decisions::Decisions;
use super::rebuild::Trim;
use super::{MemoryId, Shared};
use crate::changelog::{Journal, Origin};
use crate::checkpoint::{self, Head, Loaded, PartitionId, Saved, Store, StoredFingerprints};
use crate::config::{Config, Topic};
use crate::dedup::{Dedup, Rules};
use crate::filter::Exact;
use crate::record::{Offset, Timestamp, TopicPartition};
use crate::stats::{SpaceCounts, add};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Load past which a filter is said to fill up.
const FILLING: f64 = 0.7;

/// Fingerprints that may wait for the next checkpoint before it is taken early, some 50 MB.
const UNSAVED_URGENT: u64 = 1 << 20;

/// How far one topic-partition is read.
pub(super) struct Input {
    pub(super) partition: TopicPartition,
    /// Which configured topic it is of.
    pub(super) topic: usize,
    /// Whose memory it uses.
    pub(super) memory: MemoryId,
    /// The next record to decide.
    pub(super) position: Offset,
    /// Where to go back to if the open transaction aborts.
    pub(super) committed: Offset,
    /// What the group has committed, as far as we know.
    pub(super) group: Option<Offset>,
    /// Records below are decided for the memory's sake only: they were emitted long ago.
    pub(super) warm_until: Offset,
    /// Whether no record past that has come yet.
    pub(super) warming_up: bool,
    /// Stream time at `warm_until`, if known: no record below it took stream time further.
    pub(super) warm_horizon: Option<Timestamp>,
    /// Up to where the changelog has what its records did.
    pub(super) logged: Offset,
    pub(super) decisions: Decisions,
    /// Up to where its records are counted.
    pub(super) counted: Offset,
}

impl Input {
    /// Whether the record there is decided for the memory's sake only.
    pub(super) const fn is_warm_up(&self, offset: Offset) -> bool {
        offset < self.warm_until
    }

    /// A record of the warm-up is decided. There is nothing to commit, and no way back.
    pub(super) const fn warmed_up(&mut self, offset: Offset) {
        self.position = offset + 1;
        self.committed = self.position;
    }

    /// Whether records were read that are not committed.
    pub(super) const fn is_ahead(&self) -> bool {
        self.position != self.committed
    }

    /// The open transaction is committed.
    pub(super) fn committed(&mut self) {
        self.committed = self.position;
        self.group = Some(self.position);
        self.decisions.committed();
    }

    /// The open transaction is aborted.
    pub(super) const fn rewind(&mut self) {
        self.position = self.committed;
        self.decisions.rewind();
    }
}

/// What was told of a memory.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    filling: bool,
    evicted: u64,
    corrected: u64,
    slice: Option<i64>,
}

/// The memory of one partition number of one space.
pub(super) struct Memory {
    pub(super) dedup: Dedup,
    /// The checkpoint that changes may be added to.
    saved: Option<Saved>,
    /// Offsets that the memory had come to when it was loaded, of all topics of the space.
    pub(super) offsets: BTreeMap<String, Offset>,
    /// What changed it, and is not in the changelog yet.
    pub(super) journal: Journal,
    /// Up to where the changelog is in it, by the changelog's own offsets.
    pub(super) log_end: Option<Offset>,
    /// The mark that its changelog was trimmed by.
    pub(super) trimmed: i64,
    /// From where on its changelog has what was logged under a mark or a larger one, of the marks that it has come to.
    log_starts: BTreeMap<i64, Offset>,
    /// Whether anything was decided since the last checkpoint.
    pub(super) changed: bool,
    /// Whether its first checkpoint of a topic is still to be taken.
    pub(super) is_new: bool,
    /// What was told of it already.
    told: Told,
    /// The filter's rate, of how many keys, in which slice.
    estimate: Option<(u64, Option<i64>, f64)>,
    /// Checkpoints that failed since the last that did not.
    failures: u32,
}

impl Memory {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            dedup: Dedup::new(rules),
            saved: None,
            offsets: BTreeMap::new(),
            journal: Journal::default(),
            log_end: None,
            trimmed: 0,
            log_starts: BTreeMap::new(),
            changed: false,
            is_new: false,
            told: Told::default(),
            estimate: None,
            failures: 0,
        }
    }

    /// What the store has of a partition, if that can be used. A corrupt store is set aside.
    pub(super) fn load(
        store: &Arc<Store>,
        id: &PartitionId,
        settings: &checkpoint::Settings,
        rules: Rules,
    ) -> Result<Self, checkpoint::Error> {
        match store.load(id, settings, rules) {
            Ok(Loaded::Usable { mut memory, offsets, log, saved }) => {
                memory.attach(Box::new(StoredFingerprints::new(Arc::clone(store), id.clone(), saved)));
                Ok(Self { dedup: *memory, saved: Some(saved), offsets, log_end: log, ..Self::new(rules) })
            }
            Ok(Loaded::Nothing) => Ok(Self::new(rules)),
            Ok(Loaded::Foreign { difference }) => {
                tracing::warn!(partition = %id, "checkpoint is of another configuration and cannot be used: {difference}");
                Ok(Self::new(rules))
            }
            Err(checkpoint::Error::Corrupt { what, .. }) => {
                store.set_aside(&what)?;
                Ok(Self::new(rules))
            }
            Err(error) => Err(error),
        }
    }

    /// The offset of a topic that a loaded memory had come to.
    pub(super) fn offset(&self, topic: &str) -> Option<Offset> {
        self.offsets.get(topic).copied()
    }

    /// Counts and logs what became of it since the last time.
    pub(super) fn tell(&mut self, space: &str, partition: i32, counts: &SpaceCounts) {
        let (usage, corrected, told) = (self.dedup.usage(), self.dedup.corrected(), self.told);
        // A kind without slices fills up once and for all, and is meant to.
        let fills = usage.load > FILLING && self.dedup.slice().is_some();
        if fills && !told.filling {
            tracing::warn!(
                space,
                partition,
                load = usage.load,
                bytes = usage.bytes,
                "filter is past 70 % of its capacity; beyond that it takes more memory, or does what filter.at_max_memory says (told once)"
            );
        }
        if usage.evicted > told.evicted {
            let keys = usage.evicted - told.evicted;
            tracing::warn!(
                space,
                partition,
                keys,
                "filter is at its max_memory, and forgot keys before their time: they may come out again"
            );
        }
        let slice = self.dedup.slice();
        let rotations = slice.zip(told.slice).map_or(0, |(now, before)| now.abs_diff(before));
        add(&counts.evicted, usage.evicted.saturating_sub(told.evicted));
        add(&counts.corrected, corrected - told.corrected);
        add(&counts.rotations, rotations);
        self.told = Told { filling: told.filling || fills, evicted: usage.evicted, corrected, slice };
    }

    /// The filter's rate by formula. It takes a while, so it is kept until the filter has changed by more than a little.
    pub(super) fn estimate(&mut self) -> f64 {
        let (keys, slice) = (self.dedup.usage().keys, self.dedup.slice());
        if !self.estimate.is_some_and(|(of, at, _)| at == slice && of.abs_diff(keys) <= of / 256) {
            let rate = self.dedup.filter().map_or(0.0, |filter| filter.manifest().estimate());
            self.estimate = Some((keys, slice, rate));
        }
        self.estimate.map_or(0.0, |(_, _, rate)| rate)
    }

    /// What changed it was logged, the last of it at `last`.
    pub(super) fn logged(&mut self, last: Offset) {
        let from = self.log_end.replace(last + 1).unwrap_or(0);
        self.log_starts.entry(self.dedup.mark()).or_insert(from);
    }

    /// How its changelog is to be trimmed so that everything under `oldest` or a larger mark stays. Brokers find marks
    /// by the times of records, but the ends of transactions are records to them, of the time at which they were
    /// written: of a stream of the past, they find those first. So what is known here counts.
    pub(super) fn trim(&mut self, oldest: i64) -> Trim {
        if self.log_starts.first_key_value().is_none_or(|(&first, _)| first > oldest) {
            return Trim::Mark(oldest);
        }
        self.log_starts = self.log_starts.split_off(&oldest);
        self.log_starts.first_key_value().map_or(Trim::Mark(oldest), |(_, &from)| Trim::Before(from))
    }

    /// Whether a checkpoint would differ from what is stored.
    pub(super) fn is_due(&self, store: &Store) -> bool {
        self.changed || self.saved.is_some_and(|saved| !store.holds(saved))
    }

    /// Whether a part of it was on disk only, and is not there any more.
    pub(super) fn is_lost(&self, store: &Store) -> bool {
        self.saved.is_some_and(|saved| !store.holds(saved)) && self.dedup.exact().is_some_and(Exact::is_stored)
    }

    /// Whether its checkpoint must not wait: it is the first, or much waits for it.
    pub(super) fn is_urgent(&self) -> bool {
        // While checkpoints fail, less and less often: what cannot be written is not to be put together all the time.
        self.is_new || self.dedup.exact().is_some_and(|exact| exact.unsaved() > UNSAVED_URGENT << self.failures.min(4))
    }

    /// Writes a checkpoint as of [`Memory::offsets`]. Returns the bytes written; a failure is told and counted,
    /// and the next checkpoint tries again.
    pub(super) fn save(&mut self, shared: &Shared, id: &PartitionId, settings: &checkpoint::Settings) -> u64 {
        let began = Instant::now();
        self.is_new = false;
        let head = Head { settings: settings.clone(), offsets: self.offsets.clone(), log: self.log_end, memory: self.dedup.snapshot() };
        match shared.store.save(id, &head, &mut self.dedup, self.saved) {
            Ok((saved, bytes)) => {
                if self.saved != Some(saved) {
                    self.dedup.attach(Box::new(StoredFingerprints::new(Arc::clone(&shared.store), id.clone(), saved)));
                }
                self.saved = Some(saved);
                self.changed = false;
                self.failures = 0;
                add(&shared.stats.checkpoints, 1);
                shared.stats.checkpoint_time.observe(began.elapsed());
                shared.stats.checkpoint_bytes.store(bytes, Ordering::Relaxed);
                shared.stats.checkpoint_at.store(super::now(), Ordering::Relaxed);
                tracing::debug!(partition = %id, bytes, "checkpoint written");
                bytes
            }
            Err(error) => {
                self.failures += 1;
                add(&shared.stats.checkpoint_failures, 1);
                tracing::error!(partition = %id, error = %error, "checkpoint failed; going on without it, and trying again");
                if let checkpoint::Error::Corrupt { what, .. } = &error
                    && let Err(error) = shared.store.set_aside(what)
                {
                    tracing::error!(error = %error, "corrupt state cannot be set aside");
                }
                0
            }
        }
    }
}

/// What the fingerprints in a topic's changelog depend on.
pub(super) fn origin(settings: &checkpoint::Settings) -> Origin {
    Origin::new(&format!("{} {:?}", settings.hash, settings.keys), &settings.window.to_string())
}

/// What a topic's stored bits depend on.
pub(super) fn settings(config: &Config, topic: &Topic) -> checkpoint::Settings {
    let of_space = config.topics.iter().filter(|other| other.space == topic.space);
    let keys = of_space.map(|topic| (topic.input.clone(), topic.key.to_string())).collect();
    checkpoint::Settings { window: topic.window, filter: topic.filter.to_string(), hash: topic.key.hashing_id(), keys }
}

/// What is committed beside an offset: stream time, which a warm-up must not take further.
pub(super) fn note(stream_time: Option<Timestamp>) -> String {
    stream_time.map_or_else(String::new, |time| format!("unseen stream_time={time}"))
}

/// Stream time from a note; the inverse of [`note`]. Notes of others mean nothing.
pub(super) fn noted(note: &str) -> Option<Timestamp> {
    note.strip_prefix("unseen stream_time=")?.parse().ok()
}

/// Partitions as a log line shows them.
pub(super) fn names(partitions: &[TopicPartition]) -> String {
    partitions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
