//! Counters of the workers and their status reports.
//!
//! Workers update the counters after every batch and publish a report every second. The statistics must not contain keys. They may grow
//! only with the number of topics and partitions, and within the bounds of [`ValueCounts`] and [`crate::content::ContentSample`].

mod contents;
mod times;

pub use contents::{ComparedContents, SharedContents};
use times::TimeWatch;
pub use times::{RecentTimes, TimesChange, is_seconds, likely_cause, wrong_unit};

use crate::config::{Config, LeftOut, Topic};
use crate::dedup::Observed;
use crate::record::{Offset, Reason, SpaceId, Timestamp, TopicPartition, Verdict};
use crate::runtime;
use crate::values::ValueCounts;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Upper bounds of the buckets of a worker's [`Histogram`], in seconds. One more bucket counts all longer durations.
pub const BUCKETS: [f64; 17] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// Counts of all workers. They start at 0 with the process and again when the topics that match a pattern change.
#[derive(Debug, Default)]
pub struct Stats {
    /// Counts in the order of [`topics`], which has one entry per rule and per repartition topic.
    pub topics: Vec<TopicCounts>,
    /// Counts per key space, by [`SpaceId`].
    pub spaces: Vec<SpaceCounts>,
    pub commits: AtomicU64,
    pub aborts: AtomicU64,
    /// Number of assignments and revocations.
    pub rebalances: AtomicU64,
    pub checkpoints: AtomicU64,
    pub checkpoint_failures: AtomicU64,
    /// Bytes written by the last checkpoint.
    pub checkpoint_bytes: AtomicU64,
    /// Time of the last checkpoint, in milliseconds since the epoch, or 0 before the first checkpoint.
    pub checkpoint_at: AtomicI64,
    pub rebuilds: AtomicU64,
    pub rebuilt_keys: AtomicU64,
    /// States that are being rebuilt. Their partitions wait.
    pub rebuilding: AtomicU64,
    /// Time from the record timestamp to the commit, for a sample of the written records.
    pub latency: Histogram,
    pub transaction_time: Histogram,
    pub checkpoint_time: Histogram,
    /// Time from the assignment of a partition, or from the start of a later restore, until the worker starts to read the partition. A
    /// warm-up comes later and is not included.
    pub restore_time: Histogram,
    /// Time of the last answer from a broker to a producer of this process. Producers send a request at least every ten seconds. While no
    /// topic matches, the process has no producers, so answers to requests for the list of topics count instead.
    pub broker_contact: LastTime,
    /// Last time that each worker thread started a round of its loop or retried a request.
    pub rounds: Vec<LastTime>,
    times_checked: LastTime,
    left_out: Mutex<Vec<LeftOut>>,
    reports: Mutex<BTreeMap<usize, WorkerReport>>,
}

/// Counts of one rule of an input, or of one repartition topic.
#[derive(Debug, Default)]
pub struct TopicCounts {
    pub unseen: AtomicU64,
    /// Duplicates, including false positives.
    pub duplicate: AtomicU64,
    /// Late records. With `late = "emit"`, late records get other verdicts and are not counted here.
    pub late: AtomicU64,
    pub retracted: AtomicU64,
    /// Tombstones whose key cannot be read. The option `on_tombstone` determines whether they are emitted, dropped, or counted in `invalid`
    /// instead.
    pub tombstone: AtomicU64,
    /// Records that no rule of the input selects with `when`. They are emitted without deduplication, unless the topic is a shadow.
    pub passed: AtomicU64,
    /// Invalid records, by [`Reason`].
    pub invalid: [AtomicU64; Reason::ALL.len()],
    /// Bytes of keys and values read, including records of a warm-up and other records that were read again.
    pub bytes: AtomicU64,
    pub dead_letters: AtomicU64,
    /// Records with a time more than `max_future` ahead of the clock.
    pub future: AtomicU64,
    /// Time of the last record that was counted in `future`, in milliseconds since the epoch.
    pub future_time: AtomicI64,
    times: Mutex<TimeWatch>,
    /// Records below the committed offset that were read again to restore the state (a warm-up). They are not emitted again.
    pub warmed_up: AtomicU64,
    /// Number of offsets that were deleted before the group had read them. An upper bound for the deleted records, because some offsets may
    /// belong to control batches or to records that compaction had removed.
    pub deleted_unread: AtomicU64,
    /// Records and duplicates in a sample, counted by the header or field in `count_by`. Only set if `count_by` is configured.
    pub values: Option<Mutex<ValueCounts>>,
    /// The content of a sample of keys, to compare duplicates with their originals. Only set if `key_conflicts` is configured.
    pub contents: Option<SharedContents>,
    pub compared: ComparedContents,
}

impl TopicCounts {
    /// Returns the number of records with a verdict.
    fn records(&self) -> u64 {
        let verdicts = [&self.unseen, &self.duplicate, &self.late, &self.retracted, &self.tombstone, &self.passed];
        verdicts.into_iter().chain(&self.invalid).map(get).sum()
    }
}

#[derive(Debug, Default)]
pub struct SpaceCounts {
    /// Verdicts of the filter that the exact store corrected: false positives and retracted keys that are still in the filter.
    pub corrected: AtomicU64,
    /// Keys forgotten too early because a filter reached its maximum memory.
    pub evicted: AtomicU64,
    pub rotations: AtomicU64,
    /// Number of times that a key was emitted from a different partition than at its previous emission, in a sample of one key in 1,024.
    pub cross_partition_keys: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records with a verdict, without warm-up.
    pub records: u64,
    pub unseen: u64,
    pub duplicates: u64,
    pub late: u64,
    pub invalid: u64,
    pub retracted: u64,
    pub tombstones: u64,
    pub passed: u64,
    pub warmed_up: u64,
    pub corrected: u64,
    pub evicted: u64,
    pub cross_partition_keys: u64,
}

#[derive(Clone, Debug, Default)]
pub struct WorkerReport {
    /// True while the worker is a member of the group and knows its assignment, even if the assignment is empty.
    pub joined: bool,
    /// Message that explains why the worker cannot commit or start.
    pub blocked: Option<String>,
    pub states: Vec<StateReport>,
    pub inputs: Vec<InputReport>,
}

#[derive(Clone, Copy, Debug)]
pub struct StateReport {
    pub space: SpaceId,
    pub keys: u64,
    pub bytes: u64,
    /// Fill level of the filter divided by the planned fill level, as in [`crate::filter::Usage::load`].
    pub load: f64,
    /// False-positive rate, estimated from the contents of the filter.
    pub estimated: f64,
    /// Observed false positives, or `None` if an exact store confirms every drop.
    pub observed: Option<Observed>,
    pub stream_time: Option<Timestamp>,
    /// Number of keys that the filter is sized for, or 0 without a filter.
    pub capacity: u64,
}

#[derive(Clone, Debug, Default)]
pub struct RegistryReport {
    pub answers: u64,
    pub failures: u64,
    pub known: usize,
    /// Number of requested schemas that have not arrived yet.
    pub awaited: usize,
    /// Error of a request for a schema that is still missing, or `None` if no such request has failed.
    pub trouble: Option<String>,
}

#[derive(Clone, Debug)]
pub struct InputReport {
    pub partition: TopicPartition,
    pub space: SpaceId,
    pub state: InputState,
    pub position: Offset,
    /// The last known committed offset of the group.
    pub committed: Offset,
    /// The last known high watermark of the partition.
    pub end: Option<Offset>,
    pub stream_time: Option<Timestamp>,
    /// Time when the partition stopped at a producer's open transaction, in milliseconds since the epoch.
    pub open_transaction_since: Option<Timestamp>,
    /// Time when reads of the partition started to fail, in milliseconds since the epoch.
    pub unreadable_since: Option<Timestamp>,
}

/// The phase of a partition: restoring its dedup state, waiting for a schema, or processing records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputState {
    /// The dedup state is being rebuilt; records wait.
    Rebuilding,
    /// Records are read again but not emitted.
    WarmingUp,
    /// The next record needs a schema that has been requested.
    AwaitingSchema,
    /// Records are processed.
    Running,
}

/// Time of the last event of some kind, by the monotonic clock. Any thread may update it.
#[derive(Debug, Default)]
pub struct LastTime(Mutex<Option<Instant>>);

impl LastTime {
    pub fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(runtime::now());
    }

    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the time since the last event, or `None` before the first event.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(runtime::since)
    }
}

#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<AtomicU64>,
    nanos: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new(&BUCKETS)
    }
}

impl Histogram {
    /// Creates a histogram with these upper bounds, in seconds and ascending. One more bucket counts all longer durations.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::default()).collect(), nanos: AtomicU64::default() }
    }

    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.iter().position(|&bound| seconds <= bound).unwrap_or(self.bounds.len());
        add(&self.counts[bucket], 1);
        add(&self.nanos, u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the count of each bucket, and the sum of all durations in seconds. The last bucket has no bound.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a sum for display")]
    pub fn read(&self) -> (Vec<u64>, f64) {
        (self.counts.iter().map(get).collect(), get(&self.nanos) as f64 / 1e9)
    }
}

/// Iterates over the names of all topics that are read, each with its rule: first the inputs, once for each of their rules, then the
/// repartition topics.
pub fn topics(config: &Config) -> impl Iterator<Item = (String, &Topic)> {
    let inputs = config.topics.iter().map(|topic| (topic.input.clone(), topic));
    inputs.chain(config.topics.iter().filter_map(|topic| Some((config.repartitioned(topic)?, topic))))
}

impl Stats {
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            topics: topics(config)
                .map(|(name, topic)| {
                    // Repartition topics are left out, because their records are already counted as records of the input.
                    let is_counted = topic.count_by.is_some() && name == topic.input;
                    let keys = topic.filter.capacity;
                    let compare = topic.key_conflicts.clone().filter(|_| name == topic.input);
                    TopicCounts {
                        values: is_counted.then(Mutex::default),
                        contents: compare.map(|compare| SharedContents::new(keys, compare)),
                        ..TopicCounts::default()
                    }
                })
                .collect(),
            spaces: config.spaces().iter().map(|_| SpaceCounts::default()).collect(),
            rounds: (0..config.worker.workers).map(|_| LastTime::default()).collect(),
            ..Self::default()
        }
    }

    #[must_use]
    pub fn left_out(&self) -> Vec<LeftOut> {
        self.left_out.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_left_out(&self, left_out: Vec<LeftOut>) {
        *self.left_out.lock().unwrap_or_else(PoisonError::into_inner) = left_out;
    }

    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut all = Totals::default();
        for topic in &self.topics {
            all.records += topic.records();
            all.unseen += get(&topic.unseen);
            all.duplicates += get(&topic.duplicate);
            all.late += get(&topic.late);
            all.invalid += topic.invalid.iter().map(get).sum::<u64>();
            all.retracted += get(&topic.retracted);
            all.tombstones += get(&topic.tombstone);
            all.passed += get(&topic.passed);
            all.warmed_up += get(&topic.warmed_up);
        }
        for space in &self.spaces {
            all.corrected += get(&space.corrected);
            all.evicted += get(&space.evicted);
            all.cross_partition_keys += get(&space.cross_partition_keys);
        }
        all
    }

    pub fn report(&self, worker: usize, report: WorkerReport) {
        self.lock().insert(worker, report);
    }

    /// Marks a worker as blocked until its next report.
    pub fn block(&self, worker: usize, reason: String) {
        self.lock().entry(worker).or_default().blocked = Some(reason);
    }

    #[must_use]
    pub fn reports(&self) -> BTreeMap<usize, WorkerReport> {
        self.lock().clone()
    }

    /// Returns the load of the fullest filter.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.lock().values().flat_map(|report| &report.states).map(|state| state.load).fold(0.0, f64::max)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, WorkerReport>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

pub fn take(count: &AtomicU64, by: u64) {
    count.fetch_sub(by, Ordering::Relaxed);
}

#[must_use]
pub fn get(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// Counts of one worker for one topic since the last call of [`Tally::report`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    unseen: u64,
    duplicate: u64,
    late: u64,
    retracted: u64,
    tombstone: u64,
    passed: u64,
    invalid: [u64; Reason::ALL.len()],
    pub bytes: u64,
    pub dead_letters: u64,
    pub warmed_up: u64,
    future: u64,
    future_time: Timestamp,
}

impl Tally {
    pub const fn count_future(&mut self, time: Timestamp) {
        self.future += 1;
        self.future_time = time;
    }

    #[inline]
    pub const fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Unseen => self.unseen += 1,
            Verdict::Duplicate => self.duplicate += 1,
            Verdict::Late => self.late += 1,
            Verdict::Invalid(reason) => self.invalid[reason as usize] += 1,
            Verdict::Retracted => self.retracted += 1,
            Verdict::Tombstone => self.tombstone += 1,
            Verdict::Passed => self.passed += 1,
        }
    }

    pub fn count_each(&mut self, verdicts: &[Verdict]) {
        // Most verdicts are unseen or duplicate, so count these in bulk.
        let unseen = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Unseen)).count();
        let duplicate = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Duplicate)).count();
        self.unseen += unseen as u64;
        self.duplicate += duplicate as u64;
        if unseen + duplicate < verdicts.len() {
            verdicts.iter().filter(|verdict| !matches!(verdict, Verdict::Unseen | Verdict::Duplicate)).for_each(|&other| self.count(other));
        }
    }

    /// Adds the counts to the totals of all workers and resets this tally to 0.
    pub fn report(&mut self, counts: &TopicCounts) {
        let tally = std::mem::take(self);
        add(&counts.unseen, tally.unseen);
        add(&counts.duplicate, tally.duplicate);
        add(&counts.late, tally.late);
        add(&counts.retracted, tally.retracted);
        add(&counts.tombstone, tally.tombstone);
        add(&counts.passed, tally.passed);
        counts.invalid.iter().zip(tally.invalid).for_each(|(count, by)| add(count, by));
        add(&counts.bytes, tally.bytes);
        add(&counts.dead_letters, tally.dead_letters);
        add(&counts.warmed_up, tally.warmed_up);
        if tally.future > 0 {
            counts.future_time.store(tally.future_time, Ordering::Relaxed);
            add(&counts.future, tally.future);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_bounds_are_inclusive() {
        let histogram = Histogram::default();
        for micros in [0, 1_000, 1_001, 1_800_000_000, 1_800_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let (counts, sum) = histogram.read();
        assert_eq!((counts[0], counts[1], counts[16], counts[17]), (2, 1, 1, 1));
        assert!((sum - 3_600.002_002).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn a_tally_is_added_once() {
        let (counts, mut tally) = (TopicCounts::default(), Tally::default());
        tally.count(Verdict::Unseen);
        tally.count(Verdict::Invalid(Reason::NullKey));
        tally.report(&counts);
        tally.report(&counts);
        assert_eq!((get(&counts.unseen), get(&counts.invalid[Reason::NullKey as usize])), (1, 1));
    }
}
