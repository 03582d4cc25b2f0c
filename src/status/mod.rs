//! The status of a worker process, for the dashboard, the metrics, and `/api/v1/status`.
//!
//! `docs/reference/status.schema.json` is generated from these types. The status must not contain keys or secrets. Its size may grow only
//! with the number of topics and partitions.

mod state;
mod topic;

pub use state::{State, dead};
use topic::topic_statuses;
pub use topic::{ConflictStatus, TopicStatus, ValueStatus, VerdictCounts};

use crate::config::{Config, KeySpace, LeftOut, window_text};
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

/// Status of a worker process. Counts start with the process, or when the topics that match a pattern change; times are milliseconds since
/// the epoch.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Status {
    /// The version of unseen.
    pub version: String,
    /// The instance ID of this process within its group.
    pub instance: String,
    /// The consumer group.
    pub group_id: String,
    /// Delivery guarantee: `exactly_once`, or `at_least_once`, which allows duplicates after a crash.
    pub delivery: String,
    /// Number of worker threads.
    pub workers: u16,
    /// The state of the process.
    pub state: State,
    /// Message that explains why the process is not ready; null if it is ready.
    pub reason: Option<String>,
    /// Time of this status.
    pub time_ms: Timestamp,
    /// Start time of the process.
    pub started_ms: Timestamp,
    /// Time of the last answer from a broker; null before the first answer.
    pub broker_contact_ms: Option<Timestamp>,
    /// Time since each worker thread started a round of its loop or retried a request; null before the first round.
    pub loop_ages_seconds: Vec<Option<f64>>,
    /// Status per topic. A repartition topic has only `consumed_bytes`.
    pub topics: Vec<TopicStatus>,
    /// Topics that match a pattern in `input` but are not read.
    pub left_out: Vec<LeftOut>,
    /// Time from the record timestamp to the commit, for every 64th record that is written.
    pub end_to_end_latency: Durations,
    /// Time from the start of a transaction to its end.
    pub transaction_duration: Durations,
    /// Duration of checkpoints.
    pub checkpoint_duration: Durations,
    /// Time from the assignment of a partition until its state is restored.
    pub restore_duration: Durations,
    /// Transactions by result; with `at_least_once`, commits by result.
    pub transactions: Transactions,
    /// Number of assignments and revocations of partitions.
    pub rebalances: u64,
    /// Status per key space, for the partitions of this process.
    pub spaces: Vec<SpaceStatus>,
    /// The partitions that are assigned to this process.
    pub partitions: Vec<PartitionStatus>,
    /// Checkpoints.
    pub checkpoints: Checkpoints,
    /// States rebuilt from changelogs.
    pub rebuilds: Rebuilds,
    /// The schema registry; null if no topic needs one.
    pub schema_registry: Option<RegistryStatus>,
    /// Resource usage of the process.
    pub process: Process,
    /// The last log lines of level `info` and above, newest last, at most 100.
    pub events: Vec<Event>,
}

/// Status of the schema registry.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct RegistryStatus {
    /// Number of answered requests.
    pub answers: u64,
    /// Number of failed attempts.
    pub failures: u64,
    /// Number of known schemas.
    pub known: u64,
    /// Number of requested schemas that have not arrived yet.
    pub awaited: u64,
    /// Error of a request for a schema that is still missing; null if no such request has failed.
    pub trouble: Option<String>,
}

/// Histogram of durations.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Durations {
    /// Upper bounds in seconds and the number of durations up to each bound.
    pub buckets: Vec<(f64, u64)>,
    /// Number of durations.
    pub count: u64,
    /// Sum of all durations.
    pub sum_seconds: f64,
}

/// Transactions by result; with `at_least_once`, commits by result.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Transactions {
    /// Committed transactions.
    pub committed: u64,
    /// Aborted transactions.
    pub aborted: u64,
}

/// Status of a key space.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SpaceStatus {
    /// The name of the key space.
    pub space: String,
    /// The input topics that share the key space.
    pub topics: Vec<String>,
    /// The filter kind.
    pub kind: String,
    /// True if an exact store confirms every drop.
    pub confirm: bool,
    /// The window as configured.
    pub window: String,
    /// Length of a time window in seconds; null for a count window.
    pub window_seconds: Option<f64>,
    /// Length of a count window in keys; null for a time window.
    pub window_keys: Option<u64>,
    /// Number of slices per window.
    pub slices: u32,
    /// Number of partitions whose state this process has.
    pub partitions: u64,
    /// Number of remembered keys.
    pub keys: u64,
    /// Number of keys that the filters are sized for; null if the kind has no capacity, or if `partitions` is 0.
    pub capacity_keys: Option<u64>,
    /// Memory of the filters.
    pub memory_bytes: u64,
    /// Fill of the fullest filter: the keys of its open slice divided by the capacity of a slice. With `cuckoo`, the keys of all slices
    /// count, and with `stable`, the share of filled cells.
    pub fill_ratio: f64,
    /// False-positive rates.
    pub false_positives: FalsePositives,
    /// Number of slices started.
    pub rotations: u64,
    /// Stream time until the next slice starts, for the partition that is furthest ahead; null if unknown, or for a count
    /// window.
    pub next_rotation_seconds: Option<f64>,
    /// Records that the filter alone would have dropped wrongly.
    pub corrected: u64,
    /// Keys forgotten too early because a filter reached its maximum memory.
    pub evicted: u64,
    /// Sampled keys that appeared in more than one partition.
    pub cross_partition_keys: u64,
    /// Stream time: the latest record time that was not too far ahead of the clock.
    pub stream_time_ms: Option<Timestamp>,
}

/// False-positive rates, as fractions of 1.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct FalsePositives {
    /// The configured rate; null if false positives are impossible.
    pub target: Option<f64>,
    /// The rate of the worst partition, estimated from the contents of its filter.
    pub estimated: f64,
    /// The rate observed on a sample of the keys; null if an exact store confirms every drop.
    pub observed: Option<ObservedRate>,
}

/// A false-positive rate observed over about one window.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct ObservedRate {
    /// `wrong` divided by `checked`; null while `checked` is 0.
    pub rate: Option<f64>,
    /// Lower end of the 95 % confidence interval.
    pub low: f64,
    /// Upper end of the 95 % confidence interval.
    pub high: f64,
    /// Number of unseen keys in the sample.
    pub checked: u64,
    /// Number of unseen keys in the sample whose records were dropped.
    pub wrong: u64,
}

impl From<Observed> for ObservedRate {
    fn from(observed: Observed) -> Self {
        let (low, high) = observed.interval();
        Self { rate: observed.rate(), low, high, checked: observed.checked, wrong: observed.wrong }
    }
}

/// Status of an input partition.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PartitionStatus {
    /// The input topic.
    pub topic: String,
    /// The partition number.
    pub partition: i32,
    /// The key space of the topic.
    pub space: String,
    /// The worker thread that owns the partition.
    pub worker: usize,
    /// The state of the partition.
    pub state: InputState,
    /// The next offset to process.
    pub position: Offset,
    /// The group's committed offset.
    pub committed: Offset,
    /// The end offset of the partition; null until known.
    pub end: Option<Offset>,
    /// Number of offsets between `committed` and `end`; null until known.
    pub lag: Option<Offset>,
    /// Stream time: the latest record time that was not too far ahead of the clock.
    pub stream_time_ms: Option<Timestamp>,
    /// Time when reading stopped at a producer's open transaction; null if no transaction blocks the partition.
    pub open_transaction_since_ms: Option<Timestamp>,
    /// Time when reads of the partition started to fail, for example because of a corrupt batch; null if it can be read.
    pub unreadable_since_ms: Option<Timestamp>,
}

/// Checkpoints.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Checkpoints {
    /// Number of checkpoints written; a checkpoint has the state of one partition.
    pub written: u64,
    /// Number of failed checkpoints.
    pub failures: u64,
    /// Time of the last successful checkpoint.
    pub last_success_ms: Option<Timestamp>,
    /// Bytes written by the last successful checkpoint.
    pub last_bytes: Option<u64>,
}

/// States rebuilt from changelogs.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Rebuilds {
    /// Number of rebuilds in progress.
    pub running: u64,
    /// Number of completed rebuilds.
    pub done: u64,
    /// Number of key changes applied from changelogs in completed rebuilds; keys from checkpoints are not counted.
    pub keys: u64,
}

/// Resource usage of the process and its state directory's disk.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct Process {
    /// Resident memory; null if the system does not report it.
    pub resident_bytes: Option<u64>,
    /// CPU time.
    pub cpu_seconds: Option<f64>,
    /// Space available to this user on the state directory's disk.
    pub state_disk_available_bytes: Option<u64>,
    /// Size of the state directory's disk.
    pub state_disk_size_bytes: Option<u64>,
}

/// A log line.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Event {
    /// Time of the log line.
    pub time_ms: Timestamp,
    /// `info`, `warn`, or `error`.
    pub level: String,
    /// Message with its fields.
    pub message: String,
}

/// Properties of the process that [`Stats`] does not have.
#[derive(Clone, Debug)]
pub struct Identity<'a> {
    /// Instance ID, or `None` until the process has started.
    pub instance: Option<&'a str>,
    pub time_ms: Timestamp,
    pub started_ms: Timestamp,
    pub draining: bool,
    /// The error of the last attempt to renew the token for the login to the brokers, if the attempt failed.
    pub login_trouble: Option<String>,
}

impl Status {
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
        let left_out = stats.left_out();
        let (condition, reason) = state::determine(config, identity, &reports, &left_out, contact, &rounds, registry);
        let checkpoint_at = stats.checkpoint_at.load(Ordering::Relaxed);
        let written = get(&stats.checkpoints);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: identity.instance.unwrap_or_default().to_owned(),
            group_id: config.kafka.group_id.clone(),
            delivery: config.worker.delivery.name().to_owned(),
            workers: config.worker.workers,
            state: condition,
            reason,
            time_ms: identity.time_ms,
            started_ms: identity.started_ms,
            broker_contact_ms: contact.map(|age| identity.time_ms - i64::try_from(age.as_millis()).unwrap_or(i64::MAX)),
            loop_ages_seconds: rounds.iter().map(|age| age.map(|age| age.as_secs_f64())).collect(),
            topics: topic_statuses(topics(config).zip(&stats.topics)),
            left_out,
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

    /// Returns a message if the worker is ready but cannot read some partitions or topics, or if there is no topic to read.
    #[must_use]
    pub fn held_back(&self) -> Option<String> {
        let unreadable = self.longest(|partition| partition.unreadable_since_ms);
        let held = self.longest(|partition| partition.open_transaction_since_ms);
        let unreadable = unreadable.map(|(which, seconds)| format!("{which} could not be read for {seconds} s; the log shows the error"));
        let held = held.map(|(which, seconds)| format!("an open transaction of a producer has held back {which} for {seconds} s"));
        let left_out = self.left_out.first().map(ToString::to_string);
        let nothing = || self.topics.is_empty().then(|| "no topic matches a pattern in `input` yet".to_owned());
        unreadable.or(held).or(left_out).or_else(nothing)
    }

    /// Returns the partition that has had a problem for the longest time, with the number of other affected partitions, and the duration of
    /// its problem in seconds.
    fn longest(&self, since: impl Fn(&PartitionStatus) -> Option<Timestamp>) -> Option<(String, Timestamp)> {
        let mut affected: Vec<_> = self.partitions.iter().filter_map(|partition| Some((since(partition)?, partition))).collect();
        affected.sort_by_key(|&(since, _)| since);
        let (&(since, PartitionStatus { topic, partition, .. }), others) = affected.split_first()?;
        let others = match others.len() {
            0 => String::new(),
            1 => " and one other partition".to_owned(),
            count => format!(" and {count} other partitions"),
        };
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
