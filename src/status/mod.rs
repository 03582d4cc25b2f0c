//! How it stands, as the dashboard, the metrics and `unseen inspect --json` show it.
//!
//! Owns the shape of that: `docs/status.schema.json` is made from these types. Must never know more than what
//! was counted and reported: no key, no secret, and nothing that grows but with topics and partitions.

mod state;
mod topic;

pub use state::{State, dead};
use topic::topic_status;
pub use topic::{ConflictStatus, TopicStatus, ValueStatus, VerdictCounts};

use crate::config::{Config, KeySpace, window_text};
use crate::dedup::Observed;
use crate::filter::Window;
use crate::record::{Offset, Timestamp};
use crate::stats::{
    BUCKETS, Histogram, InputReport, InputState, LastTime, RegistryReport, SpaceCounts, StateReport, Stats, WorkerReport, get, topics,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// How a worker process stands. Counts are since its start; times are milliseconds since the epoch.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Status {
    /// The version of unseen.
    pub version: String,
    /// What distinguishes this process from others of its group.
    pub instance: String,
    /// The consumer group.
    pub group_id: String,
    /// What a crash may repeat: `exactly_once` is nothing.
    pub delivery: String,
    /// Worker threads.
    pub workers: u16,
    /// What it is doing.
    pub state: State,
    /// Why it is not ready, as a sentence; null if it is.
    pub reason: Option<String>,
    /// When this was true.
    pub time_ms: Timestamp,
    /// When the process started.
    pub started_ms: Timestamp,
    /// When a broker last answered this process; null before the first answer.
    pub broker_contact_ms: Option<Timestamp>,
    /// How long ago each worker thread last began a round of its loop, or another attempt at what it waits for; null
    /// before the first.
    pub loop_ages_seconds: Vec<Option<f64>>,
    /// What was decided, by topic that is read; a topic that brings records to their partitions has only bytes.
    pub topics: Vec<TopicStatus>,
    /// From a record's time to the commit of what came of it, of every 64th record that is written.
    pub end_to_end_latency: Durations,
    /// From the begin of a transaction to its end.
    pub transaction_duration: Durations,
    /// How long a checkpoint took.
    pub checkpoint_duration: Durations,
    /// From the assignment of a partition to its first record.
    pub restore_duration: Durations,
    /// Transactions.
    pub transactions: Transactions,
    /// Times that partitions were assigned or revoked.
    pub rebalances: u64,
    /// Key spaces, as far as this process remembers them.
    pub spaces: Vec<SpaceStatus>,
    /// The partitions that this process has.
    pub partitions: Vec<PartitionStatus>,
    /// Checkpoints.
    pub checkpoints: Checkpoints,
    /// States rebuilt from changelogs.
    pub rebuilds: Rebuilds,
    /// The schema registry; null if no topic needs one.
    pub schema_registry: Option<RegistryStatus>,
    /// The process itself.
    pub process: Process,
    /// What was logged last, but for debugging; newest last, at most 100.
    pub events: Vec<Event>,
}

/// How the schema registry stands.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct RegistryStatus {
    /// Questions that it answered.
    pub answers: u64,
    /// Tries that failed.
    pub failures: u64,
    /// Schemas that are known.
    pub known: u64,
    /// Schemas that are being asked for.
    pub awaited: u64,
    /// Why the last try failed, as a sentence; null once one has not.
    pub trouble: Option<String>,
}

/// Durations by size.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Durations {
    /// Upper bound in seconds, and how many were no longer.
    pub buckets: Vec<(f64, u64)>,
    /// How many there were.
    pub count: u64,
    /// Their sum.
    pub sum_seconds: f64,
}

/// Transactions by how they ended.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Transactions {
    /// Committed.
    pub committed: u64,
    /// Aborted.
    pub aborted: u64,
}

/// One key space.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SpaceStatus {
    /// Its name.
    pub space: String,
    /// The input topics that share it.
    pub topics: Vec<String>,
    /// What remembers its keys.
    pub kind: String,
    /// Whether every drop is confirmed by an exact store.
    pub confirm: bool,
    /// How long a key stays seen, as it is configured.
    pub window: String,
    /// The same in seconds; null for a window by count.
    pub window_seconds: Option<f64>,
    /// The same in keys; null for a window by time.
    pub window_keys: Option<u64>,
    /// Slices in a window.
    pub slices: u32,
    /// Partitions of it that this process remembers.
    pub partitions: u64,
    /// Keys remembered.
    pub keys: u64,
    /// Keys that these filters are made for; null where the kind has no such number.
    pub capacity_keys: Option<u64>,
    /// Memory of the filters.
    pub memory_bytes: u64,
    /// How full the fullest filter is: what its open slice holds over what it is made for.
    pub fill_ratio: f64,
    /// How often unseen records are dropped.
    pub false_positives: FalsePositives,
    /// Slices that began.
    pub rotations: u64,
    /// Stream time until the next slice begins, of the partition that is furthest.
    pub next_rotation_seconds: Option<f64>,
    /// False positives that an exact store put right.
    pub corrected: u64,
    /// Keys forgotten before their time, because a filter may not grow.
    pub evicted: u64,
    /// Sampled keys that came in more than one partition.
    pub cross_partition_keys: u64,
    /// Stream time: the largest record time so far that was not too far ahead of the clock.
    pub stream_time_ms: Option<Timestamp>,
}

/// How often unseen records are dropped, as shares of 1.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct FalsePositives {
    /// As configured; null where nothing can be wrong.
    pub target: Option<f64>,
    /// Of the worst partition, by the formula of its kind and what it holds.
    pub estimated: f64,
    /// As it was observed on a share of the keys; null where every drop is confirmed.
    pub observed: Option<ObservedRate>,
}

/// A rate that was counted, over about one window.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct ObservedRate {
    /// Wrong over checked; null while nothing was checked.
    pub rate: Option<f64>,
    /// Lower end of the 95 % confidence interval.
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
    /// Watched keys that had not been seen.
    pub checked: u64,
    /// Of these, dropped.
    pub wrong: u64,
}

impl From<Observed> for ObservedRate {
    fn from(observed: Observed) -> Self {
        let (low, high) = observed.interval();
        Self { rate: observed.rate(), low, high, checked: observed.checked, wrong: observed.wrong }
    }
}

/// One partition of an input.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PartitionStatus {
    /// The input topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// Its key space.
    pub space: String,
    /// The worker thread that has it.
    pub worker: usize,
    /// What is done with it.
    pub state: InputState,
    /// The next record to decide.
    pub position: Offset,
    /// The group's committed offset.
    pub committed: Offset,
    /// The offset after its last record; null until known.
    pub end: Option<Offset>,
    /// Offsets between committed and end; null until known.
    pub lag: Option<Offset>,
    /// Stream time: the largest record time so far that was not too far ahead of the clock.
    pub stream_time_ms: Option<Timestamp>,
    /// When the partition came to a stop before an open transaction of one of its producers; null if none holds it back.
    pub open_transaction_since_ms: Option<Timestamp>,
    /// When reading the partition began to fail, for example at a corrupt batch; null if it can be read.
    pub unreadable_since_ms: Option<Timestamp>,
}

/// Checkpoints.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Checkpoints {
    /// Written, each of one partition's state.
    pub written: u64,
    /// Failed.
    pub failures: u64,
    /// When the last was written.
    pub last_success_ms: Option<Timestamp>,
    /// Bytes that the last one wrote.
    pub last_bytes: Option<u64>,
}

/// States rebuilt from changelogs.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Rebuilds {
    /// Being made.
    pub running: u64,
    /// Made.
    pub done: u64,
    /// Keys in them.
    pub keys: u64,
}

/// The process, and the disk of its state directory.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct Process {
    /// Resident memory; null where the system does not say.
    pub resident_bytes: Option<u64>,
    /// Processor time.
    pub cpu_seconds: Option<f64>,
    /// What is left for this user on the disk of the state directory.
    pub state_disk_available_bytes: Option<u64>,
    /// The size of that disk.
    pub state_disk_size_bytes: Option<u64>,
}

/// A line that was logged.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Event {
    /// When.
    pub time_ms: Timestamp,
    /// `info`, `warn` or `error`.
    pub level: String,
    /// What.
    pub message: String,
}

/// What is known beside the counts.
#[derive(Clone, Debug)]
pub struct Identity<'a> {
    /// What distinguishes this process from others; none before the start is done.
    pub instance: Option<&'a str>,
    /// Now.
    pub time_ms: Timestamp,
    /// When the process started.
    pub started_ms: Timestamp,
    /// Whether it was told to stop.
    pub draining: bool,
    /// Why the token for the login to the brokers could not be renewed.
    pub login_trouble: Option<String>,
}

impl Status {
    /// What the counts and reports say together.
    #[must_use]
    pub fn new(
        config: &Config,
        stats: &Stats,
        identity: &Identity<'_>,
        registry: Option<&RegistryReport>,
        process: Process,
        events: Vec<Event>,
    ) -> Self {
        let reports = stats.reports();
        let contact = stats.broker_contact.age();
        let rounds: Vec<_> = stats.rounds.iter().map(LastTime::age).collect();
        let (doing, reason) = state::look(config, identity, &reports, contact, &rounds, registry);
        let checkpoint_at = stats.checkpoint_at.load(Ordering::Relaxed);
        let written = get(&stats.checkpoints);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: identity.instance.unwrap_or_default().to_owned(),
            group_id: config.kafka.group_id.clone(),
            delivery: config.worker.delivery.name().to_owned(),
            workers: config.worker.workers,
            state: doing,
            reason,
            time_ms: identity.time_ms,
            started_ms: identity.started_ms,
            broker_contact_ms: contact.map(|age| identity.time_ms - i64::try_from(age.as_millis()).unwrap_or(i64::MAX)),
            loop_ages_seconds: rounds.iter().map(|age| age.map(|age| age.as_secs_f64())).collect(),
            topics: topics(config).zip(&stats.topics).map(topic_status).collect(),
            end_to_end_latency: durations(&stats.latency),
            transaction_duration: durations(&stats.transaction_time),
            checkpoint_duration: durations(&stats.checkpoint_time),
            restore_duration: durations(&stats.restore_time),
            transactions: Transactions { committed: get(&stats.commits), aborted: get(&stats.aborts) },
            rebalances: get(&stats.rebalances),
            spaces: spaces(config, stats, &reports),
            partitions: partitions(config, &reports),
            checkpoints: Checkpoints {
                written,
                failures: get(&stats.checkpoint_failures),
                last_success_ms: (written > 0).then_some(checkpoint_at),
                last_bytes: (written > 0).then(|| get(&stats.checkpoint_bytes)),
            },
            rebuilds: Rebuilds { running: get(&stats.rebuilding), done: get(&stats.rebuilds), keys: get(&stats.rebuilt_keys) },
            schema_registry: registry.map(registry_status),
            process,
            events,
        }
    }

    /// Names the partitions that are not read although their worker is ready, and the reason, as a message; `None` if there are none.
    #[must_use]
    pub fn held_back(&self) -> Option<String> {
        let unreadable = self.longest(|partition| partition.unreadable_since_ms);
        let held = self.longest(|partition| partition.open_transaction_since_ms);
        let unreadable = unreadable.map(|(which, seconds)| format!("{which} could not be read for {seconds} s; the log shows the error"));
        unreadable
            .or_else(|| held.map(|(which, seconds)| format!("an open transaction of a producer has held back {which} for {seconds} s")))
    }

    /// The partition that has had a trouble for longest, with the number of others, and for how many seconds.
    fn longest(&self, since: impl Fn(&PartitionStatus) -> Option<Timestamp>) -> Option<(String, Timestamp)> {
        let mut troubled: Vec<_> = self.partitions.iter().filter_map(|partition| Some((since(partition)?, partition))).collect();
        troubled.sort_by_key(|&(since, _)| since);
        let (&(since, PartitionStatus { topic, partition, .. }), others) = troubled.split_first()?;
        let others = if others.is_empty() { String::new() } else { format!(" and {} other partitions", others.len()) };
        Some((format!("{topic}[{partition}]{others}"), (self.time_ms - since).max(0) / 1000))
    }
}

fn registry_status(report: &RegistryReport) -> RegistryStatus {
    let RegistryReport { answers, failures, known, awaited, trouble } = report.clone();
    RegistryStatus { answers, failures, known: known as u64, awaited: awaited as u64, trouble }
}

fn durations(histogram: &Histogram) -> Durations {
    let (counts, sum_seconds) = histogram.read();
    let mut below = 0;
    let buckets = BUCKETS.iter().zip(&counts).map(|(&bound, count)| {
        below += count;
        (bound, below)
    });
    Durations { buckets: buckets.collect(), count: counts.iter().sum(), sum_seconds }
}

fn spaces(config: &Config, stats: &Stats, reports: &BTreeMap<usize, WorkerReport>) -> Vec<SpaceStatus> {
    let all: Vec<_> = reports.values().flat_map(|report| &report.states).collect();
    let of_space = |id| all.iter().copied().filter(|state| state.space == id).collect::<Vec<_>>();
    config.spaces().iter().map(|key_space| space(key_space, &stats.spaces[key_space.id.0], &of_space(key_space.id))).collect()
}

fn space(space: &KeySpace<'_>, counts: &SpaceCounts, states: &[&StateReport]) -> SpaceStatus {
    let topic = space.first();
    let all = |number: fn(&StateReport) -> u64| states.iter().map(|state| number(state)).sum::<u64>();
    let worst = |number: fn(&StateReport) -> f64| states.iter().map(|state| number(state)).fold(0.0, f64::max);
    let stream_time_ms = states.iter().filter_map(|state| state.stream_time).max();
    let observed = states.iter().filter_map(|state| state.observed).reduce(|mut all, one| {
        all.add(one);
        all
    });
    let seconds = |ms: i64| std::time::Duration::from_millis(ms.unsigned_abs()).as_secs_f64();
    let is_exact = topic.filter.is_exact();
    let slice_ms = if let Window::Time { slice_ms, .. } = topic.window { Some(slice_ms) } else { None };
    SpaceStatus {
        space: topic.space.clone(),
        topics: space.topics.iter().map(|topic| topic.input.clone()).collect(),
        kind: topic.filter.kind.name().to_owned(),
        confirm: topic.filter.confirm,
        window: window_text(topic.window),
        window_seconds: topic.window.length_ms().map(seconds),
        window_keys: if let Window::Keys { slice_keys, slices } = topic.window { Some(slice_keys * u64::from(slices)) } else { None },
        slices: topic.window.slices(),
        partitions: states.len() as u64,
        keys: all(|state| state.keys),
        capacity_keys: Some(all(|state| state.capacity)).filter(|&keys| keys > 0),
        memory_bytes: all(|state| state.bytes),
        fill_ratio: worst(|state| state.load),
        false_positives: FalsePositives {
            target: (!is_exact).then_some(topic.filter.false_positive_rate),
            estimated: worst(|state| state.estimated),
            observed: (!is_exact).then(|| observed.unwrap_or_default().into()),
        },
        rotations: get(&counts.rotations),
        next_rotation_seconds: slice_ms.zip(stream_time_ms).map(|(slice, now)| seconds(slice - now.rem_euclid(slice))),
        corrected: get(&counts.corrected),
        evicted: get(&counts.evicted),
        cross_partition_keys: get(&counts.cross_partition_keys),
        stream_time_ms,
    }
}

fn partitions(config: &Config, reports: &BTreeMap<usize, WorkerReport>) -> Vec<PartitionStatus> {
    let spaces = config.spaces();
    let space =
        |input: &InputReport| spaces.get(input.space.0).map_or_else(|| input.partition.topic.clone(), |space| space.name.to_owned());
    let each = |(&worker, report): (&usize, &WorkerReport)| {
        let status = |input: &InputReport| PartitionStatus {
            topic: input.partition.topic.clone(),
            partition: input.partition.partition,
            space: space(input),
            worker,
            state: input.state,
            position: input.position,
            committed: input.committed,
            end: input.end,
            lag: input.end.map(|end| (end - input.committed).max(0)),
            stream_time_ms: input.stream_time,
            open_transaction_since_ms: input.open_transaction_since,
            unreadable_since_ms: input.unreadable_since,
        };
        report.inputs.iter().map(status).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = reports.iter().flat_map(each).collect();
    all.sort_by(|one, other| (&one.topic, one.partition).cmp(&(&other.topic, other.partition)));
    all
}
