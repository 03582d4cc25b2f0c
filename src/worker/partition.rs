//! The dedup state of one partition number of a key space, with its checkpoint and changelog.
//!
//! Tracks how much of the state is in the checkpoint and in the changelog. Never talks to a broker.

use crate::changelog::{PendingChanges, Progress};
use crate::checkpoint::{self, CheckpointMetadata, Claim, Loaded, PartitionId, Saved, Store, StoredFingerprints};
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

/// The fill level of a filter at which the worker warns. Both the slice ([`Usage::load`](crate::filter::Usage::load)) and the window must
/// be fuller than this level. The alert `UnseenFilterFilling` has the same threshold.
const FILLING: f64 = 0.8;

/// The number of unsaved fingerprints that triggers an early checkpoint. They use about 50 MB of memory.
const UNSAVED_URGENT: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    filling: bool,
    evicted: u64,
    corrected: u64,
    slice: Option<Slice>,
}

/// The last announcement of this owner in the changelog. An announcement is a changelog record that contains the owner's settings and shows
/// if the state is complete. From an announcement, followers learn that the owner has another configuration, or that the changelog still
/// lacks keys because of a warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    /// This owner has written no changelog record since `since`: the time when it took over the state, or when an input of the state
    /// started to warm up.
    Nothing { since: Instant },
    /// The state is warming up.
    WarmUp,
    /// The changelog contains the whole state, or there is no changelog.
    Complete,
}

impl Announced {
    /// True if the changelog needs an announcement.
    pub(super) const fn is_behind(self, warms_up: bool) -> bool {
        match self {
            Self::Nothing { .. } => true,
            Self::WarmUp => !warms_up,
            Self::Complete => false,
        }
    }
}

pub(super) struct PartitionState {
    pub(super) dedup: Dedup,
    /// The last checkpoint, which is the base of the next incremental checkpoint.
    saved: Option<Saved>,
    /// The end offsets of the input records whose effects are in the state, by topic incarnation (the topic's name and id). Updated only by
    /// a restore and before a checkpoint.
    pub(super) offsets: BTreeMap<String, Offset>,
    /// The input offsets that the group has reached according to the changelog. Set only if the changelog does not continue from the state.
    pub(super) group_offsets: BTreeMap<String, Offset>,
    pub(super) pending: PendingChanges,
    pub(super) changelog: Progress,
    /// The epoch of this owner's changelog records, which is higher than the epoch of any earlier owner.
    pub(super) epoch: i64,
    pub(super) announced: Announced,
    /// The slice of each changelog record in the open transaction, in order.
    pub(super) logging: Vec<Option<Slice>>,
    /// The oldest slice of the state when [`PartitionState::trim`] last found an expired slice.
    pub(super) trimmed: Option<Slice>,
    /// True if the state or its offsets may have changed since the last checkpoint.
    pub(super) changed: bool,
    /// True if one of the inputs started at an offset that is not in a checkpoint. A checkpoint is then urgent. Reset by the first attempt
    /// to write the checkpoint.
    pub(super) is_new: bool,
    reported: Reported,
    /// The last estimate of the filter's error rate, with the number of keys and the slice at the time of the estimate.
    estimate: Option<(u64, Option<Slice>, f64)>,
    failures: u32,
    /// True if another worker of this process has claimed the checkpoint.
    pub(super) superseded: bool,
}

impl PartitionState {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            dedup: Dedup::new(rules),
            saved: None,
            offsets: BTreeMap::new(),
            group_offsets: BTreeMap::new(),
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
            superseded: false,
        }
    }

    /// Returns an empty state that keeps the id of the changelog topic and the epochs.
    pub(super) fn emptied(&self, rules: Rules) -> Self {
        let mut changelog = self.changelog.clone();
        changelog.forget();
        Self { changelog, epoch: self.epoch, ..Self::new(rules) }
    }

    /// Loads the checkpoint of a partition. Returns an empty state if the checkpoint cannot be used. Quarantines a corrupt store.
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
                tracing::warn!(partition = %id, "the checkpoint was written with a different configuration: {difference}. The worker restores the state without this checkpoint");
                Ok(Self::new(rules))
            }
            Err(checkpoint::Error::Corrupt { what, .. }) => {
                store.quarantine(&what)?;
                Ok(Self::new(rules))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the input offset that the loaded state has reached in a topic incarnation. If the state has no offset for the topic id,
    /// falls back to an offset that was stored without an id.
    pub(super) fn offset(&self, log: &str) -> Option<Offset> {
        let of_topic = || self.offsets.keys().filter(|other| log_topic(other) == log_topic(log)).count();
        self.offsets.get(log).or_else(|| self.offsets.get(log_topic(log)).filter(|_| of_topic() == 1)).copied()
    }

    /// Sets the offset of a topic incarnation and forgets earlier incarnations of that topic.
    pub(super) fn advance_offset(&mut self, log: &str, offset: Offset) {
        self.offsets.retain(|other, _| log_topic(other) != log_topic(log));
        self.offsets.insert(log.to_owned(), offset);
    }

    pub(super) fn report(&mut self, space: &str, partition: i32, counts: &SpaceCounts) {
        let (usage, corrected, reported) = (self.dedup.usage(), self.dedup.corrected(), self.reported);
        let rules = self.dedup.rules();
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let of_window = rules.capacity().map_or(1.0, |capacity| usage.keys as f64 / capacity as f64);
        // A `stable` filter is expected to fill up, and so is a slice of a window by count, so the worker does not warn about them.
        let keeps_window = rules.filter.as_ref().is_none_or(|spec| spec.kind().properties().keeps_window);
        let has_slices = keeps_window && self.dedup.slice().is_some() && rules.window.length_ms().is_some();
        let fills = has_slices && usage.load > FILLING && of_window > FILLING;
        if fills && !reported.filling {
            let slices = self.dedup.filter().map_or_else(Vec::new, |filter| filter.metadata().slices());
            tracing::warn!(
                space,
                partition,
                slice_keys = usage.open_keys,
                slice_capacity = slices.last().map(|slice| slice.capacity),
                window_keys = usage.keys,
                window_capacity = rules.capacity(),
                bytes = usage.bytes,
                "the filter is close to filter.capacity. If more keys arrive, the filter uses more memory or applies filter.at_max_memory. Raise filter.capacity (logged once per partition)"
            );
        }
        if usage.evicted > reported.evicted {
            let keys = usage.evicted - reported.evicted;
            tracing::warn!(
                space,
                partition,
                keys,
                "the filter reached filter.max_memory and forgot keys before the end of their window; records with these keys may be emitted again. Raise filter.max_memory, or shorten the window"
            );
        }
        let slice = self.dedup.slice();
        let rotations = slice.zip(reported.slice).map_or(0, |(now, before)| now.abs_diff(before));
        add(&counts.evicted, usage.evicted.saturating_sub(reported.evicted));
        add(&counts.corrected, corrected - reported.corrected);
        add(&counts.rotations, rotations);
        self.reported = Reported { filling: reported.filling || fills, evicted: usage.evicted, corrected, slice };
    }

    /// Returns the filter's computed error rate. The result is cached until the filter has changed noticeably, because the computation is
    /// slow.
    pub(super) fn estimate(&mut self) -> f64 {
        let (keys, slice) = (self.dedup.usage().keys, self.dedup.slice());
        if !self.estimate.is_some_and(|(of, at, _)| at == slice && of.abs_diff(keys) <= of / 256) {
            let rate = self.dedup.filter().map_or(0.0, |filter| filter.metadata().estimate());
            self.estimate = Some((keys, slice, rate));
        }
        self.estimate.map_or(0.0, |(_, _, rate)| rate)
    }

    /// Updates the changelog progress with the offsets of the changelog records that the brokers have accepted. Returns false if the
    /// offsets show that the changelog was recreated.
    pub(super) fn logged(&mut self, written: &[Offset]) -> bool {
        self.changelog.epoch = self.epoch;
        if written.len() == self.logging.len() {
            self.logging.iter().zip(written).fold(true, |is_same, (&slice, &offset)| self.changelog.logged(slice, offset) && is_same)
        } else {
            written.last().is_none_or(|&last| self.changelog.logged(self.dedup.clock(), last))
        }
    }

    /// Sets the offsets of a state that was rebuilt from its changelog up to `end`. `offsets` are the input offsets that the state has
    /// reached. `epoch` is the highest epoch in the changelog below `end`.
    pub(super) fn rebuilt(&mut self, offsets: BTreeMap<String, Offset>, end: Offset, epoch: i64) {
        self.offsets = offsets;
        (self.changelog.end, self.changelog.epoch) = (Some(end), epoch);
        self.changed = true;
    }

    /// Sets the epoch of a new owner that got the partition in this generation of the group. The epoch must be higher than all earlier
    /// epochs. The generation alone is not sufficient, because a deleted group restarts at generation 1.
    pub(super) fn take_over(&mut self, generation: i32) {
        self.outrank(self.changelog.epoch);
        self.epoch = self.epoch.max(generation.into());
    }

    pub(super) fn outrank(&mut self, epoch: i64) {
        self.epoch = self.epoch.max(epoch.saturating_add(1));
    }

    /// Returns the first changelog offset that must be kept, or `None` if no slice has expired since the last call or if the offset is
    /// unknown.
    pub(super) fn trim(&mut self) -> Option<Offset> {
        let oldest = self.dedup.oldest().filter(|&oldest| self.trimmed.is_none_or(|trimmed| oldest > trimmed))?;
        self.trimmed = Some(oldest);
        let needed = self.changelog.needed_from(oldest);
        if fault::defect("needed_changelog_trimmed") { self.changelog.end } else { needed }
    }

    /// True if the state may have changed since its last checkpoint, or if that checkpoint was lost. False if another worker of this
    /// process has claimed the checkpoint.
    pub(super) fn is_due(&self, store: &Store) -> bool {
        !self.superseded && (self.changed || self.saved.is_some_and(|saved| !store.holds(saved)))
    }

    /// True if part of the state was only on disk and is lost.
    pub(super) fn is_lost(&self, store: &Store) -> bool {
        self.saved.is_some_and(|saved| !store.holds(saved)) && self.dedup.exact().is_some_and(Exact::is_stored)
    }

    /// True if a checkpoint is due immediately, because an input started at a new offset, or because there are many unsaved fingerprints.
    pub(super) fn is_urgent(&self) -> bool {
        // Each of the first four failures doubles the number of unsaved fingerprints that triggers the next attempt, because assembling a
        // checkpoint takes time.
        self.is_new || self.dedup.exact().is_some_and(|exact| exact.unsaved() > UNSAVED_URGENT << self.failures.min(4))
    }

    /// Writes a checkpoint with the offsets in [`PartitionState::offsets`]. Returns the number of bytes written. Returns `None` if another
    /// worker of this process has claimed the checkpoint, or if writing failed. A failure is logged and counted, and the next checkpoint
    /// tries again.
    pub(super) fn save(
        &mut self,
        store: &Arc<Store>,
        stats: &Stats,
        (id, claim): (&PartitionId, &Claim),
        settings: &checkpoint::Settings,
    ) -> Option<u64> {
        let began = runtime::now();
        self.is_new = false;
        let (offsets, changelog) = (self.offsets.clone(), self.changelog.clone());
        let metadata = CheckpointMetadata { settings: settings.clone(), offsets, changelog, state: self.dedup.metadata() };
        match store.save(claim, &metadata, &mut self.dedup, self.saved) {
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
                Some(bytes)
            }
            Err(error @ checkpoint::Error::Superseded(_)) => {
                tracing::info!(partition = %id, "{error}");
                self.superseded = true;
                None
            }
            Err(error) => {
                self.failures += 1;
                add(&stats.checkpoint_failures, 1);
                tracing::error!(partition = %id, error = %error, "checkpoint failed; the worker continues and tries again at the next checkpoint");
                if let checkpoint::Error::Corrupt { what, .. } = &error
                    && let Err(error) = store.quarantine(what)
                {
                    tracing::error!(error = %error, "cannot replace the corrupt store with an empty one; the worker opens the store again at the next checkpoint");
                }
                None
            }
        }
    }
}

pub(super) fn names(partitions: &[TopicPartition]) -> String {
    partitions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
