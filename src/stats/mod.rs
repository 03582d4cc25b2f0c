//! What is counted and reported while records flow, for whoever shows it.
//!
//! Written by the workers once a batch, and by each a report once a second; read by anyone. Must never hold a
//! key, nor grow with anything but topics, partitions, the few values of [`ValueCounts`] and a
//! [`crate::content::ContentSample`] of each topic.

mod contents;
mod times;

pub use contents::SharedContents;
use times::TimeWatch;
pub use times::{RecentTimes, TimesChange, is_seconds, likely_cause, wrong_unit};

use crate::config::{Config, Topic};
use crate::dedup::Observed;
use crate::record::{Offset, Reason, SpaceId, Timestamp, TopicPartition, Verdict};
use crate::runtime;
use crate::values::ValueCounts;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Upper bounds of the buckets of a [`Histogram`] of a worker, in seconds; another one takes what is above.
pub const BUCKETS: [f64; 17] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// Counts since the start, of all workers together.
#[derive(Debug, Default)]
pub struct Stats {
    /// Of each topic that is read: those of [`topics`].
    pub topics: Vec<TopicCounts>,
    /// Of each key space, by its number.
    pub spaces: Vec<SpaceCounts>,
    /// Transactions committed.
    pub commits: AtomicU64,
    /// Transactions aborted.
    pub aborts: AtomicU64,
    /// Times that partitions were assigned or revoked.
    pub rebalances: AtomicU64,
    /// Checkpoints written.
    pub checkpoints: AtomicU64,
    /// Checkpoints that could not be written.
    pub checkpoint_failures: AtomicU64,
    /// Bytes that the last checkpoint wrote.
    pub checkpoint_bytes: AtomicU64,
    /// When the last checkpoint was written, in milliseconds since the epoch; 0 before the first.
    pub checkpoint_at: AtomicI64,
    /// States rebuilt from a changelog.
    pub rebuilds: AtomicU64,
    /// Keys that they hold.
    pub rebuilt_keys: AtomicU64,
    /// States that are being rebuilt now; their partitions wait.
    pub rebuilding: AtomicU64,
    /// From a record's time to the commit of what came of it; of a sample of the records.
    pub latency: Histogram,
    /// From the begin of a transaction to its end.
    pub transaction_time: Histogram,
    /// How long a checkpoint took.
    pub checkpoint_time: Histogram,
    /// From the assignment of a partition to its first record.
    pub restore_time: Histogram,
    /// When a broker last answered a producer of this process. Producers ask every ten seconds, if for nothing else.
    pub broker_contact: LastTime,
    /// When each worker thread last began a round of its loop, or another attempt at what it waits for.
    pub rounds: Vec<LastTime>,
    times_checked: LastTime,
    reports: Mutex<BTreeMap<usize, WorkerReport>>,
}

/// What was decided of one topic's records.
#[derive(Debug, Default)]
pub struct TopicCounts {
    /// Went out.
    pub unseen: AtomicU64,
    /// Were dropped as seen.
    pub duplicate: AtomicU64,
    /// Were late, and set apart.
    pub late: AtomicU64,
    /// Retracted their key.
    pub retracted: AtomicU64,
    /// Had no value to take a key from, and went out or not as `on_tombstone` says.
    pub tombstone: AtomicU64,
    /// Were invalid, by [`Reason`].
    pub invalid: [AtomicU64; Reason::ALL.len()],
    /// Bytes of keys and values that were read, also to be read again or for the state's sake.
    pub bytes: AtomicU64,
    /// Records written to the topic for dead letters.
    pub dead_letters: AtomicU64,
    /// Records whose time was too far ahead of the clock.
    pub future: AtomicU64,
    /// The time of the last of those.
    pub future_time: AtomicI64,
    times: Mutex<TimeWatch>,
    /// Records read again without emitting, to close the gap between a checkpoint and the committed offset.
    pub warmed_up: AtomicU64,
    /// Of a sample, by the value of `count_by`, if there is one.
    pub values: Option<Mutex<ValueCounts>>,
    /// Of a sample, what the content of repeats is held against, if there are `key_conflicts`.
    pub contents: Option<SharedContents>,
}

impl TopicCounts {
    /// Records with a verdict.
    fn records(&self) -> u64 {
        let verdicts = [&self.unseen, &self.duplicate, &self.late, &self.retracted, &self.tombstone];
        verdicts.into_iter().chain(&self.invalid).map(get).sum()
    }
}

/// What became of one space's keys.
#[derive(Debug, Default)]
pub struct SpaceCounts {
    /// Unseen records that the filter alone would have dropped; the exact store put it right.
    pub corrected: AtomicU64,
    /// Keys forgotten before their time, because a filter may not grow.
    pub evicted: AtomicU64,
    /// Slices that began.
    pub rotations: AtomicU64,
    /// Keys of a sample of one in 1,024 that came out of more than one partition.
    pub cross_partition_keys: AtomicU64,
}

/// Sums of all topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records that a verdict was taken of; warm-up not included.
    pub records: u64,
    /// Of these, unseen.
    pub unseen: u64,
    /// Of these, duplicates.
    pub duplicates: u64,
    /// Of these, late and set apart.
    pub late: u64,
    /// Of these, invalid.
    pub invalid: u64,
    /// Of these, retractions.
    pub retracted: u64,
    /// Of these, tombstones that no key could be taken from, and that are not invalid for it.
    pub tombstones: u64,
    /// See [`TopicCounts::warmed_up`].
    pub warmed_up: u64,
    /// See [`SpaceCounts::corrected`].
    pub corrected: u64,
    /// See [`SpaceCounts::evicted`].
    pub evicted: u64,
    /// See [`SpaceCounts::cross_partition_keys`].
    pub cross_partition_keys: u64,
}

/// How one worker stands.
#[derive(Clone, Debug, Default)]
pub struct WorkerReport {
    /// True while it is a member of the group and knows its partitions, even if there are none.
    pub joined: bool,
    /// Why nothing can be committed, as a sentence.
    pub blocked: Option<String>,
    /// The states that it keeps.
    pub states: Vec<StateReport>,
    /// The partitions that it reads, or is about to.
    pub inputs: Vec<InputReport>,
}

/// How one state stands.
#[derive(Clone, Copy, Debug)]
pub struct StateReport {
    /// Its space.
    pub space: SpaceId,
    /// Keys remembered.
    pub keys: u64,
    /// Memory, in bytes.
    pub bytes: u64,
    /// What is filled now over what it is meant for.
    pub load: f64,
    /// Share of unseen keys that the filter calls seen, by formula.
    pub estimated: f64,
    /// The same as it was observed; none where every drop is confirmed.
    pub observed: Option<Observed>,
    /// Stream time: the largest record time so far that was not too far ahead of the clock.
    pub stream_time: Option<Timestamp>,
    /// Keys that the filter is made for.
    pub capacity: u64,
}

/// How a schema registry stands.
#[derive(Clone, Debug, Default)]
pub struct RegistryReport {
    /// Questions that were answered.
    pub answers: u64,
    /// Tries that failed.
    pub failures: u64,
    /// Schemas that are known.
    pub known: usize,
    /// Schemas that are waited for.
    pub awaited: usize,
    /// Why one of these is still waited for, as a sentence; `None` before the first failure.
    pub trouble: Option<String>,
}

/// How one partition of an input stands.
#[derive(Clone, Debug)]
pub struct InputReport {
    /// Which.
    pub partition: TopicPartition,
    /// Its space.
    pub space: SpaceId,
    /// What is done with it.
    pub state: InputState,
    /// The next record to decide.
    pub position: Offset,
    /// The group's committed offset, as far as known.
    pub committed: Offset,
    /// Where its log ends, as far as known.
    pub end: Option<Offset>,
    /// Stream time of its state.
    pub stream_time: Option<Timestamp>,
    /// When it came to a stop before an open transaction of a producer.
    pub open_transaction_since: Option<Timestamp>,
    /// When reading it began to fail.
    pub unreadable_since: Option<Timestamp>,
}

/// What is done with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputState {
    /// Its state is being rebuilt; its records wait.
    Rebuilding,
    /// Records are read again without emitting.
    WarmingUp,
    /// Its next record is of a schema that is asked for.
    AwaitingSchema,
    /// Records flow.
    Running,
}

/// When something last happened, by the clock that is never set. Any thread may note it.
#[derive(Debug, Default)]
pub struct LastTime(Mutex<Option<Instant>>);

impl LastTime {
    /// It happens now.
    pub fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(runtime::now());
    }

    /// How long ago it was; `None` if it never was.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(runtime::since)
    }
}

/// Durations, counted by size.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<AtomicU64>,
    nanos: AtomicU64,
}

impl Default for Histogram {
    /// With [`BUCKETS`].
    fn default() -> Self {
        Self::new(&BUCKETS)
    }
}

impl Histogram {
    /// With buckets of these upper bounds, in seconds and in order; another one takes what is above.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::default()).collect(), nanos: AtomicU64::default() }
    }

    /// Counts one.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.iter().position(|&bound| seconds <= bound).unwrap_or(self.bounds.len());
        add(&self.counts[bucket], 1);
        add(&self.nanos, u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// How many were counted in each bucket, the last without bound, and the sum of all in seconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a sum that is shown")]
    pub fn read(&self) -> (Vec<u64>, f64) {
        (self.counts.iter().map(get).collect(), get(&self.nanos) as f64 / 1e9)
    }
}

/// The topics that are read, by name and with the configured topic: first all that are configured, then those that
/// bring records of some of them to their partitions.
pub fn topics(config: &Config) -> impl Iterator<Item = (String, &Topic)> {
    let inputs = config.topics.iter().map(|topic| (topic.input.clone(), topic));
    inputs.chain(config.topics.iter().filter_map(|topic| Some((config.repartitioned(topic)?, topic))))
}

impl Stats {
    /// Nothing is counted yet.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            topics: topics(config)
                .map(|(name, topic)| {
                    // Where records are only brought elsewhere, none is counted.
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

    /// The sums of all topics.
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
            all.warmed_up += get(&topic.warmed_up);
        }
        for space in &self.spaces {
            all.corrected += get(&space.corrected);
            all.evicted += get(&space.evicted);
            all.cross_partition_keys += get(&space.cross_partition_keys);
        }
        all
    }

    /// Says how a worker stands.
    pub fn report(&self, worker: usize, report: WorkerReport) {
        self.lock().insert(worker, report);
    }

    /// Adds to a worker's last report that it cannot go on. The next report replaces it.
    pub fn block(&self, worker: usize, reason: String) {
        self.lock().entry(worker).or_default().blocked = Some(reason);
    }

    /// How the workers stood when they last said so.
    #[must_use]
    pub fn reports(&self) -> BTreeMap<usize, WorkerReport> {
        self.lock().clone()
    }

    /// The load of the fullest filter.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.lock().values().flat_map(|report| &report.states).map(|state| state.load).fold(0.0, f64::max)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, WorkerReport>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds to a count.
pub fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

/// Takes from a count of what there is now.
pub fn take(count: &AtomicU64, by: u64) {
    count.fetch_sub(by, Ordering::Relaxed);
}

/// Reads a count.
#[must_use]
pub fn get(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// What one worker has counted of one topic since it last said so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    unseen: u64,
    duplicate: u64,
    late: u64,
    retracted: u64,
    tombstone: u64,
    invalid: [u64; Reason::ALL.len()],
    /// See [`TopicCounts::bytes`].
    pub bytes: u64,
    /// See [`TopicCounts::dead_letters`].
    pub dead_letters: u64,
    /// See [`TopicCounts::warmed_up`].
    pub warmed_up: u64,
    future: u64,
    future_time: Timestamp,
}

impl Tally {
    /// Counts a record whose time is too far ahead of the clock.
    pub const fn count_future(&mut self, time: Timestamp) {
        self.future += 1;
        self.future_time = time;
    }

    /// Counts a verdict.
    #[inline]
    pub const fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Unseen => self.unseen += 1,
            Verdict::Duplicate => self.duplicate += 1,
            Verdict::Late => self.late += 1,
            Verdict::Invalid(reason) => self.invalid[reason as usize] += 1,
            Verdict::Retracted => self.retracted += 1,
            Verdict::Tombstone => self.tombstone += 1,
        }
    }

    /// Counts verdicts.
    pub fn count_each(&mut self, verdicts: &[Verdict]) {
        for &verdict in verdicts {
            self.count(verdict);
        }
    }

    /// Adds it to what all workers have counted, and begins anew.
    pub fn report(&mut self, counts: &TopicCounts) {
        let tally = std::mem::take(self);
        add(&counts.unseen, tally.unseen);
        add(&counts.duplicate, tally.duplicate);
        add(&counts.late, tally.late);
        add(&counts.retracted, tally.retracted);
        add(&counts.tombstone, tally.tombstone);
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
    fn durations_are_counted_in_the_bucket_that_holds_them() {
        let histogram = Histogram::default();
        for micros in [0, 1_000, 1_001, 1_800_000_000, 1_800_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let (counts, sum) = histogram.read();
        assert_eq!((counts[0], counts[1], counts[16], counts[17]), (2, 1, 1, 1));
        assert!((sum - 3_600.002_002).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn a_tally_is_counted_once() {
        let (counts, mut tally) = (TopicCounts::default(), Tally::default());
        tally.count(Verdict::Unseen);
        tally.count(Verdict::Invalid(Reason::NullKey));
        tally.report(&counts);
        tally.report(&counts);
        assert_eq!((get(&counts.unseen), get(&counts.invalid[Reason::NullKey as usize])), (1, 1));
    }
}
