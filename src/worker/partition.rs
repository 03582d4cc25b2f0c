//! What a worker knows of one of its partitions: how far it is read, and what is remembered of it.
//!
//! Owns the way back of a partition whose transaction was aborted. Must never talk to a broker, nor forget a verdict that
//! is not committed.

use super::ids::StateId;
use super::verdicts::Verdicts;
use crate::changelog::{PendingChanges, Progress, Span};
use crate::checkpoint::{self, CheckpointMetadata, Loaded, PartitionId, Saved, Store, StoredFingerprints};
use crate::clock;
use crate::dedup::{Dedup, Rules};
use crate::filter::{Exact, Slice};
use crate::format::SchemaId;
use crate::kafka::Committed;
use crate::record::{Offset, Timestamp, TopicId, TopicPartition, log_topic};
use crate::stats::{SpaceCounts, Stats, add};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Load past which a filter is said to fill up.
const FILLING: f64 = 0.7;

/// Fingerprints that may wait for the next checkpoint before it is taken early, some 50 MB.
const UNSAVED_URGENT: u64 = 1 << 20;

/// How long a partition stands still before a broker is asked whether an open transaction holds it back, and how long its
/// answer counts. Ordinary transactions are shorter.
pub(super) const STALLED: Duration = Duration::from_secs(30);

/// How a topic-partition waits: see `pausing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It does not.
    No,
    /// Records that came were passed over, and are to be read again.
    PassedOver,
    /// It is not being read.
    Paused,
}

/// How far one topic-partition is read.
pub(super) struct Input {
    pub(super) partition: TopicPartition,
    /// The name of the log that its offsets are of.
    pub(super) log: String,
    /// Which configured topic it is of.
    pub(super) topic: TopicId,
    /// Whose state it uses.
    pub(super) state: StateId,
    /// Where the group began, as far as that is known.
    pub(super) first: Option<Offset>,
    /// The next record to decide.
    pub(super) position: Offset,
    /// Where to go back to if the open transaction aborts.
    pub(super) committed: Offset,
    /// What the group has committed, as far as we know.
    pub(super) group: Committed,
    /// Records below are decided for the state's sake only: they were emitted long ago.
    pub(super) warm_until: Offset,
    /// Whether no record past that has come yet.
    pub(super) warming_up: bool,
    /// Stream time at `warm_until`, if known: no record below it took stream time further.
    pub(super) warm_up_max_timestamp: Option<Timestamp>,
    /// Up to where the changelog has what its records did.
    pub(super) logged: Offset,
    pub(super) verdicts: Verdicts,
    /// Whether it waits.
    pub(super) wait: Wait,
    /// The schema that its next record is of, while that is asked for.
    pub(super) awaits: Option<SchemaId>,
    /// Whether its next record is neither to be written nor passed over: the worker ends before it.
    pub(super) ends_worker: bool,
    /// Up to where its records are counted.
    pub(super) counted: Offset,
    /// Set while it stands still before the end of its log.
    pub(super) stall: Option<Stall>,
}

impl Input {
    /// Whether the record there is decided for the state's sake only.
    pub(super) const fn is_warm_up(&self, offset: Offset) -> bool {
        offset < self.warm_until
    }

    /// A record of the warm-up is decided. There is nothing to commit, and no way back.
    pub(super) const fn warmed_up(&mut self, offset: Offset) {
        self.position = offset + 1;
        self.committed = self.position;
    }

    /// True if the next changelog record of its state still has effects of the warm-up.
    pub(super) const fn logs_warm_up(&self) -> bool {
        self.logged < self.warm_until
    }

    /// The records whose effect is not in the changelog.
    pub(super) fn unlogged(&self) -> Span<'_> {
        Span { topic: &self.log, start: self.logged.min(self.position), end: self.position }
    }

    /// A record of it comes too early, and is to be read again.
    pub(super) fn pass_over(&mut self) {
        if self.wait == Wait::No {
            self.wait = Wait::PassedOver;
        }
    }

    /// Whether records were read that are not committed.
    pub(super) const fn is_ahead(&self) -> bool {
        self.position != self.committed
    }

    /// The open transaction is committed, with this note beside the offset.
    pub(super) fn note_commit(&mut self, note: String) {
        self.committed = self.position;
        self.group = Committed { offset: Some(self.position), metadata: note };
        self.verdicts.committed();
    }

    /// The open transaction is aborted.
    pub(super) const fn set_back(&mut self) {
        if self.is_ahead() {
            // The record that waits for a schema comes again behind those that are read again.
            self.awaits = None;
        }
        self.position = self.committed;
        self.ends_worker = false;
        self.verdicts.reset_carried();
    }

    /// True if everything that was fetched of it has been processed.
    fn is_up_to_date(&self) -> bool {
        self.wait == Wait::No && self.awaits.is_none() && !self.ends_worker && self.verdicts.is_all_carried()
    }

    /// Steps over offsets below `to` that hold no record to read: control records and aborted records. Returns true if the
    /// new position is to be committed.
    pub(super) fn step_over(&mut self, to: Offset) -> bool {
        if to <= self.position || !self.is_up_to_date() {
            return false;
        }
        if self.is_warm_up(self.position) {
            self.warmed_up(to.min(self.warm_until) - 1);
        }
        if to <= self.position {
            return false;
        }
        if self.first == Some(self.position) {
            // Still nothing was judged.
            self.first = Some(to);
        }
        self.position = to;
        true
    }

    /// Notes whether it stands still before `end`, the end of its log.
    pub(super) fn note_stall(&mut self, end: Option<Offset>, now: Instant) {
        let is_behind = end.is_some_and(|end| end > self.position) && self.is_up_to_date();
        let is_known = self.stall.as_ref().is_some_and(|stall| stall.position == self.position);
        if !is_behind {
            self.stall = None;
        } else if !is_known {
            self.stall = Some(Stall { position: self.position, since: now, since_ms: clock::now(), answer: None });
        }
    }
}

/// A partition that stands still before the end of its log.
pub(super) struct Stall {
    pub(super) position: Offset,
    pub(super) since: Instant,
    since_ms: Timestamp,
    /// When a broker was last asked, and whether it named an open transaction as the cause.
    pub(super) answer: Option<(Instant, bool)>,
}

impl Stall {
    /// When the partition came to a stop before an open transaction; `None` if that is not known to be the cause.
    pub(super) fn open_transaction_since(&self) -> Option<Timestamp> {
        self.answer.filter(|&(_, is_open)| is_open).map(|_| self.since_ms)
    }

    pub(super) fn must_ask(&self, now: Instant) -> bool {
        let last = self.answer.map_or(self.since, |(asked, _)| asked);
        now.saturating_duration_since(last) >= STALLED
    }
}

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
        self.changelog.needed_from(oldest)
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
        let began = Instant::now();
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
                stats.checkpoint_time.observe(began.elapsed());
                stats.checkpoint_bytes.store(bytes, Ordering::Relaxed);
                stats.checkpoint_at.store(clock::now(), Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Verdict;

    /// An input that is read up to an offset, where nothing was judged yet.
    fn input(position: Offset) -> Input {
        Input {
            partition: TopicPartition { topic: "in".to_owned(), partition: 0 },
            log: "in".to_owned(),
            topic: TopicId(0),
            state: StateId::default(),
            first: Some(position),
            position,
            committed: position,
            group: Committed { offset: Some(position), metadata: String::new() },
            warm_until: position,
            warming_up: false,
            warm_up_max_timestamp: None,
            logged: position,
            verdicts: Verdicts::default(),
            wait: Wait::No,
            awaits: None,
            ends_worker: false,
            counted: position,
            stall: None,
        }
    }

    #[test]
    fn control_records_are_stepped_over_and_the_group_still_begins_behind_them() {
        let mut input = input(5);
        assert!(!input.step_over(5) && !input.step_over(3), "never back");
        assert!(input.step_over(7));
        assert_eq!((input.position, input.committed, input.first, input.is_ahead()), (7, 5, Some(7), true));
        input.set_back();
        assert_eq!(input.position, 5);
        assert!(input.step_over(7), "again, after an abort");
    }

    #[test]
    fn nothing_is_stepped_over_while_records_are_still_to_come() {
        let mut undecided = input(5);
        undecided.wait = Wait::PassedOver;
        let mut ending = input(5);
        ending.ends_worker = true;
        let mut repeating = input(5);
        repeating.verdicts.carry(5, Verdict::Unseen);
        repeating.position = 6;
        repeating.set_back();
        for mut input in [undecided, ending, repeating] {
            assert!(!input.step_over(9));
            assert_eq!(input.position, 5);
        }
    }

    #[test]
    fn a_warm_up_ends_at_control_records_and_commits_only_what_is_past_it() {
        let mut input = Input { warm_until: 8, committed: 5, first: None, ..input(5) };
        assert!(!input.step_over(7), "a warm-up has nothing to commit");
        assert_eq!((input.position, input.is_warm_up(input.position)), (7, true));
        assert!(input.step_over(10));
        assert_eq!((input.position, input.committed, input.first), (10, 8, None));
    }

    #[test]
    fn a_stall_lasts_from_when_the_partition_stopped_until_it_moves() {
        let (mut input, start) = (input(5), Instant::now());
        input.note_stall(Some(9), start);
        input.note_stall(Some(12), start + STALLED);
        let stall = input.stall.as_mut().expect("it stands still");
        assert!(stall.must_ask(start + STALLED) && !stall.must_ask(start + STALLED / 2));
        assert_eq!(stall.open_transaction_since(), None, "no broker was asked");
        stall.answer = Some((start + STALLED, true));
        assert!(!stall.must_ask(start + STALLED) && stall.must_ask(start + 2 * STALLED));
        assert_eq!(stall.open_transaction_since(), Some(stall.since_ms));
        input.position = 6;
        input.note_stall(Some(12), start + 2 * STALLED);
        assert_eq!(input.stall.as_ref().and_then(Stall::open_transaction_since), None);
        input.note_stall(Some(6), start + 2 * STALLED);
        assert!(input.stall.is_none());
    }
}
