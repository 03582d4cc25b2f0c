//! The dedup state of one partition number of a key space: loaded, logged, and checkpointed.
//!
//! Owns what the checkpoint and the changelog have of the state. Must never talk to a broker.

use crate::changelog::{PendingChanges, Progress};
use crate::checkpoint::{self, CheckpointMetadata, Loaded, PartitionId, Saved, Store, StoredFingerprints};
use crate::dedup::{Dedup, Rules};
use crate::fault;
use crate::filter::{Exact, Slice};
use crate::record::{Offset, TopicPartition, log_topic};
use crate::runtime;
use crate::stats::{SpaceCounts, Stats, add};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Load past which a filter is said to fill up.
const FILLING: f64 = 0.7;

/// Fingerprints that may wait for the next checkpoint before it is taken early, some 50 MB.
const UNSAVED_URGENT: u64 = 1 << 20;

/// What was reported of a state.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    filling: bool,
    evicted: u64,
    corrected: u64,
    slice: Option<Slice>,
}

/// The latest news that the changelog has from this owner of a partition. Servers need it: what an earlier owner logged may be of
/// another configuration, and what is logged during a warm-up is not all that the group has emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    /// None, since this owner took the partition over.
    Nothing { since: Instant },
    /// That the state warms up.
    WarmUp,
    /// That the changelog has all of the state; or there is no changelog.
    Complete,
}

impl Announced {
    /// True if the changelog needs a record to say how a state stands that `warms_up`, or does not.
    pub(super) const fn is_behind(self, warms_up: bool) -> bool {
        match self {
            Self::Nothing { .. } => true,
            Self::WarmUp => !warms_up,
            Self::Complete => false,
        }
    }
}

/// The state of one partition number of one space.
pub(super) struct PartitionState {
    pub(super) dedup: Dedup,
    /// The checkpoint that changes may be added to.
    saved: Option<Saved>,
    /// Offsets that the state had come to when it was loaded, of the logs of all topics of the space.
    pub(super) offsets: BTreeMap<String, Offset>,
    /// What changed it, and is not in the changelog yet.
    pub(super) pending: PendingChanges,
    /// How far the changelog is in it.
    pub(super) changelog: Progress,
    /// What this worker writes to the changelog bears this epoch: none has a higher one who had the partition before.
    pub(super) epoch: i64,
    pub(super) announced: Announced,
    /// The slices of the records that the open transaction writes to the changelog, in order.
    pub(super) logging: Vec<Option<Slice>>,
    /// The oldest slice when its changelog was trimmed last.
    pub(super) trimmed: Option<Slice>,
    /// Whether anything was decided since the last checkpoint.
    pub(super) changed: bool,
    /// Whether its first checkpoint of a topic is still to be taken.
    pub(super) is_new: bool,
    /// What was reported of it already.
    reported: Reported,
    /// The filter's rate, of how many keys, in which slice.
    estimate: Option<(u64, Option<Slice>, f64)>,
    /// Checkpoints that failed since the last that did not.
    failures: u32,
}

impl PartitionState {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            dedup: Dedup::new(rules),
            saved: None,
            offsets: BTreeMap::new(),
            pending: PendingChanges::default(),
            changelog: Progress::default(),
            epoch: 0,
            announced: Announced::Complete,
            logging: Vec::new(),
            trimmed: None,
            changed: false,
            is_new: false,
            reported: Reported::default(),
            estimate: None,
            failures: 0,
        }
    }

    /// An empty state in place of this one. The changelog, and the epoch of its last writer, are the same.
    pub(super) fn emptied(&self, rules: Rules) -> Self {
        let mut changelog = self.changelog.clone();
        changelog.forget();
        Self { changelog, ..Self::new(rules) }
    }

    /// What the store has of a partition, if that can be used. A corrupt store is quarantined.
    pub(super) fn load(
        store: &Arc<Store>,
        id: &PartitionId,
        settings: &checkpoint::Settings,
        rules: Rules,
    ) -> Result<Self, checkpoint::Error> {
        match store.load(id, settings, rules) {
            Ok(Loaded::Usable { mut state, offsets, changelog, saved }) => {
                state.attach(Box::new(StoredFingerprints::new(Arc::clone(store), id.clone(), saved)));
                Ok(Self { dedup: *state, saved: Some(saved), offsets, changelog, ..Self::new(rules) })
            }
            Ok(Loaded::Nothing) => Ok(Self::new(rules)),
            Ok(Loaded::Foreign { difference }) => {
                tracing::warn!(partition = %id, "checkpoint is of another configuration and cannot be used: {difference}");
                Ok(Self::new(rules))
            }
            Err(checkpoint::Error::Corrupt { what, .. }) => {
                store.quarantine(&what)?;
                Ok(Self::new(rules))
            }
            Err(error) => Err(error),
        }
    }

    /// The offset of a log that a loaded state had come to. Written where brokers gave no ids, it has the topic's name.
    pub(super) fn offset(&self, log: &str) -> Option<Offset> {
        let of_topic = || self.offsets.keys().filter(|other| log_topic(other) == log_topic(log)).count();
        self.offsets.get(log).or_else(|| self.offsets.get(log_topic(log)).filter(|_| of_topic() == 1)).copied()
    }

    /// It has come to this offset of a log; former logs of that topic are no more.
    pub(super) fn come_to(&mut self, log: &str, offset: Offset) {
        self.offsets.retain(|other, _| log_topic(other) != log_topic(log));
        self.offsets.insert(log.to_owned(), offset);
    }

    /// Counts and logs what became of it since the last time.
    pub(super) fn report(&mut self, space: &str, partition: i32, counts: &SpaceCounts) {
        let (usage, corrected, reported) = (self.dedup.usage(), self.dedup.corrected(), self.reported);
        // A kind without slices fills up once and for all, and is meant to.
        let fills = usage.load > FILLING && self.dedup.slice().is_some();
        if fills && !reported.filling {
            let slices = self.dedup.filter().map_or_else(Vec::new, |filter| filter.metadata().slices());
            tracing::warn!(
                space,
                partition,
                slice_keys = usage.open_keys,
                slice_capacity = slices.last().map(|slice| slice.capacity),
                window_keys = usage.keys,
                window_capacity = self.dedup.rules().capacity(),
                bytes = usage.bytes,
                "the filter's current slice is past 70 % of its capacity; beyond that the slice takes more memory, or does what filter.at_max_memory says (logged once)"
            );
        }
        if usage.evicted > reported.evicted {
            let keys = usage.evicted - reported.evicted;
            tracing::warn!(
                space,
                partition,
                keys,
                "filter is at its max_memory, and forgot keys before their time: they may come out again"
            );
        }
        let slice = self.dedup.slice();
        let rotations = slice.zip(reported.slice).map_or(0, |(now, before)| now.abs_diff(before));
        add(&counts.evicted, usage.evicted.saturating_sub(reported.evicted));
        add(&counts.corrected, corrected - reported.corrected);
        add(&counts.rotations, rotations);
        self.reported = Reported { filling: reported.filling || fills, evicted: usage.evicted, corrected, slice };
    }

    /// The filter's rate by formula. It takes a while, so it is kept until the filter has changed by more than a little.
    pub(super) fn estimate(&mut self) -> f64 {
        let (keys, slice) = (self.dedup.usage().keys, self.dedup.slice());
        if !self.estimate.is_some_and(|(of, at, _)| at == slice && of.abs_diff(keys) <= of / 256) {
            let rate = self.dedup.filter().map_or(0.0, |filter| filter.metadata().estimate());
            self.estimate = Some((keys, slice, rate));
        }
        self.estimate.map_or(0.0, |(_, _, rate)| rate)
    }

    /// The open transaction is committed, and its changelog records are at these offsets. Returns false if they show that the
    /// changelog was recreated.
    pub(super) fn logged(&mut self, written: &[Offset]) -> bool {
        self.changelog.epoch = self.epoch;
        if written.len() == self.logging.len() {
            self.logging.iter().zip(written).fold(true, |is_same, (&slice, &offset)| self.changelog.logged(slice, offset) && is_same)
        } else {
            written.last().is_none_or(|&last| self.changelog.logged(self.dedup.clock(), last))
        }
    }

    /// It was rebuilt from its changelog up to `end`, where the inputs stood at these offsets.
    pub(super) fn rebuilt(&mut self, offsets: BTreeMap<String, Offset>, end: Offset, epoch: i64) {
        self.offsets = offsets;
        (self.changelog.end, self.changelog.epoch) = (Some(end), epoch);
        self.changed = true;
    }

    /// A member of the group that joined in this generation takes the partition over. A group that was deleted begins
    /// its generations anew, so those alone do not decide.
    pub(super) fn take_over(&mut self, generation: i32) {
        self.epoch = i64::from(generation).max(self.changelog.epoch.saturating_add(1));
    }

    /// The offset below which its changelog is not needed any more, if that has risen.
    pub(super) fn trim(&mut self) -> Option<Offset> {
        let oldest = self.dedup.oldest().filter(|&oldest| self.trimmed.is_none_or(|trimmed| oldest > trimmed))?;
        self.trimmed = Some(oldest);
        let needed = self.changelog.needed_from(oldest);
        if fault::defect("needed_changelog_trimmed") { self.changelog.end } else { needed }
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

    /// Writes a checkpoint as of [`PartitionState::offsets`]. Returns the bytes written; a failure is logged and counted,
    /// and the next checkpoint tries again.
    pub(super) fn save(&mut self, store: &Arc<Store>, stats: &Stats, id: &PartitionId, settings: &checkpoint::Settings) -> u64 {
        let began = runtime::now();
        self.is_new = false;
        let (offsets, changelog) = (self.offsets.clone(), self.changelog.clone());
        let metadata = CheckpointMetadata { settings: settings.clone(), offsets, changelog, state: self.dedup.metadata() };
        match store.save(id, &metadata, &mut self.dedup, self.saved) {
            Ok((saved, bytes)) => {
                if self.saved != Some(saved) {
                    self.dedup.attach(Box::new(StoredFingerprints::new(Arc::clone(store), id.clone(), saved)));
                }
                self.saved = Some(saved);
                self.changed = false;
                self.failures = 0;
                add(&stats.checkpoints, 1);
                stats.checkpoint_time.observe(runtime::since(began));
                stats.checkpoint_bytes.store(bytes, Ordering::Relaxed);
                stats.checkpoint_at.store(runtime::wall_clock(), Ordering::Relaxed);
                tracing::debug!(partition = %id, bytes, "checkpoint written");
                bytes
            }
            Err(error) => {
                self.failures += 1;
                add(&stats.checkpoint_failures, 1);
                tracing::error!(partition = %id, error = %error, "checkpoint failed; going on without it, and trying again");
                if let checkpoint::Error::Corrupt { what, .. } = &error
                    && let Err(error) = store.quarantine(what)
                {
                    tracing::error!(error = %error, "corrupt state cannot be quarantined");
                }
                0
            }
        }
    }
}

/// Partitions as a log line shows them.
pub(super) fn names(partitions: &[TopicPartition]) -> String {
    partitions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
