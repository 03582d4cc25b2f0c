//! What a filter will cost and how often it will be wrong, before there is one.
//!
//! Compares the kinds of filter by memory, error at each load, and promises, as a table, a curve, and a picture. Counts a sample and
//! proposes a configuration for it. Builds no filter.

mod columns;
mod curve;
mod kinds;
mod proposal;
mod sample;
mod svg;
mod text;

pub use proposal::{Candidate, Proposal};
pub use sample::{Sample, SampleError, SampleOptions};

use kinds::{KINDS, Make, UNCHAINED, whole};
use serde::{Deserialize, Serialize};

/// The loads of a table.
const LOADS: [f64; 4] = [1.0, 1.5, 2.0, 4.0];
/// The loads of a curve: 0 to 4 in steps of a twentieth.
const CURVE_STEPS: u32 = 80;
const CURVE_STEP: f64 = 0.05;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// Distinct keys that the whole topic shows in a window, at least 1.
    pub keys: u64,
    /// Share of unseen keys that may be called seen, in (0, 1), when a window shows `keys`.
    pub false_positive_rate: f64,
    /// Partitions of the topic, at least 1; keys are taken to be shared out evenly.
    pub partitions: u32,
    /// Slices in a window, at least 1.
    pub slices: u32,
    /// How long a window is, in milliseconds, if that is known.
    pub window_ms: Option<u64>,
    /// Memory that the whole topic may take, in bytes.
    pub memory_bytes: Option<u64>,
}

/// A comparison of kinds of filter. Its JSON is for scripts: names of fields stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// What was asked for.
    pub ask: Ask,
    /// What was counted, if a sample was given.
    pub sample: Option<Sample>,
    /// A configuration that fits the sample, if no key was named.
    pub proposal: Option<Proposal>,
    /// A row for each kind.
    pub kinds: Vec<Row>,
}

/// What one kind costs and promises. Sizes are of the whole topic unless they say otherwise; rates have four digits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub kind: String,
    /// Memory when a window shows the planned keys, in bytes; caches are not counted.
    pub memory_bytes: u64,
    /// The same of one partition.
    pub partition_bytes: u64,
    /// The same once slices have sized themselves, which makes those of an aging filter larger by an eighth.
    pub steady_partition_bytes: u64,
    /// Most memory of a pod that has all partitions, with one worker thread: these filters, what each partition keeps beside
    /// its filter, and [`POD_BASE_BYTES`]. What kind `exact` keeps until a checkpoint comes on top.
    pub pod_bytes: u64,
    /// Disk then, in bytes; 0 for kinds that live in memory.
    pub disk_bytes: u64,
    /// Memory, or disk, a planned key.
    pub bits_per_key: f64,
    /// Bits, cells, slots or places on disk that are looked at for a key that is not there.
    pub k: u32,
    /// What a look-up reads.
    pub reads: String,
    /// What is expected at 1, 1.5, 2 and 4 times the planned keys.
    pub loads: Vec<Point>,
    /// The rate that is expected on average over a window that shows the planned keys; `None` for kinds that are there to
    /// compare.
    pub mean_rate: Option<f64>,
    /// With `rate_is = "mean"`, where the rate that was asked for is that mean; `None` for kinds that do not take it.
    pub by_mean: Option<ByMean>,
    /// Whether a key inserted is seen for the whole window, without exception.
    pub remembers: bool,
    /// Share of repeats, a whole window after their key was inserted, that are called unseen.
    pub forgets: f64,
    /// Whether a key can be retracted.
    pub can_retract: bool,
    /// What happens above the planned load.
    pub overfull: String,
    /// Whether it fits into the memory that was asked for; `None` if none was.
    pub fits: Option<bool>,
    /// The smallest rate that it reaches within that memory; `None` if it does not fit at any.
    pub rate_within_memory: Option<f64>,
    /// The line that configures it, if a topic can have it.
    pub configuration: Option<String>,
    /// What is expected at loads from 0 to 4, in steps of a twentieth.
    pub curve: Vec<Point>,
}

/// What a kind costs that is sized by its mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ByMean {
    /// Memory of the whole topic when a window shows the planned keys, in bytes.
    pub memory_bytes: u64,
    /// Of one partition, once slices have sized themselves.
    pub steady_partition_bytes: u64,
    /// Memory of the topic a planned key.
    pub bits_per_key: f64,
    /// The rate that it may come to when all slices are full, however many keys there are.
    pub peak_rate: f64,
}

/// What is expected at one load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Keys in a window over the planned ones.
    pub load: f64,
    /// Share of unseen keys that are called seen.
    pub rate: f64,
    /// Memory of the whole topic, in bytes.
    pub memory_bytes: u64,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No kind of that name.
    #[error("expected kinds among {known}, got `{0}`", known = names().join(", "))]
    Candidate(String),
}

/// Most memory that a process with one worker thread takes besides its filters: RocksDB's buffers and cache (128 MiB), what
/// librdkafka has read ahead (72) and has yet to send (256), a transaction (100), a checkpoint (16), and two rebuilds (144).
pub const POD_BASE_BYTES: u64 = 716 << 20;

/// Memory of a partition besides its state, mostly librdkafka's (docs/benchmarks/growth.md: 4 and 1,000 idle partitions).
const PARTITION_BYTES: u64 = 13_100;

/// Memory of a partition's watched keys (`dedup::watched`): one in 64 keys, within bounds, in a half-full table with entries of 33 bytes.
fn watched_bytes(keys: u64) -> u64 {
    (keys / 64).clamp(1024, 16_384) * 66
}

/// The names of all kinds, in the order of a table.
#[must_use]
pub fn names() -> Vec<&'static str> {
    KINDS.iter().map(|(name, _)| *name).collect()
}

impl Comparison {
    /// Compares `kinds`, or all if there are none. `aging` brings `unchained` along, the same without chaining.
    ///
    /// # Errors
    /// [`Error::Candidate`] for a name that none has.
    pub fn new(ask: Ask, kinds: &[String], sample: Option<Sample>) -> Result<Self, Error> {
        if let Some(unknown) = kinds.iter().find(|kind| !names().contains(&kind.as_str())) {
            return Err(Error::Candidate(unknown.clone()));
        }
        let asked = |name: &str| kinds.is_empty() || kinds.iter().any(|kind| kind == name || (kind == "aging" && name == UNCHAINED));
        let rows = KINDS.iter().filter(|(name, _)| asked(name));
        let kinds = rows.map(|&(name, make)| row(name, make, &ask)).collect();
        Ok(Self { ask, sample, proposal: None, kinds })
    }
}

fn row(name: &str, make: Make, ask: &Ask) -> Row {
    let kind = make(ask, ask.false_positive_rate);
    let partitions = u64::from(ask.partitions);
    let partition_bytes = (kind.predict)(1.0).bytes;
    let memory_bytes = partition_bytes.saturating_mul(partitions);
    let steady_partition_bytes = kind.steady_bytes.unwrap_or(partition_bytes);
    let beside = PARTITION_BYTES + if name == "exact" { 0 } else { watched_bytes(ask.keys.div_ceil(partitions.max(1))) };
    let disk_bytes = whole(kind.disk).saturating_mul(partitions);
    let fits = ask.memory_bytes.map(|bytes| memory_bytes <= bytes);
    let rate_within_memory = match ask.memory_bytes {
        // Any rate that its memory can give, so the one that was asked for, as a rule.
        Some(bytes) if kind.elastic => {
            (memory_bytes <= bytes).then(|| rounded((kind.predict)(f64::INFINITY).rate.max(ask.false_positive_rate)))
        }
        Some(bytes) => reachable(make, ask, bytes / partitions.max(1)),
        None => None,
    };
    let point = |load: f64| {
        let expected = (kind.predict)(load);
        Point { load, rate: rounded(expected.rate), memory_bytes: expected.bytes.saturating_mul(partitions) }
    };
    Row {
        kind: name.to_owned(),
        memory_bytes,
        partition_bytes,
        steady_partition_bytes,
        pod_bytes: steady_partition_bytes.saturating_add(beside).saturating_mul(partitions).saturating_add(POD_BASE_BYTES),
        disk_bytes,
        bits_per_key: bits_per_key(ask, memory_bytes + disk_bytes),
        k: kind.k,
        reads: kind.reads.clone(),
        loads: LOADS.map(point).to_vec(),
        mean_rate: kind.mean.map(rounded),
        by_mean: by_mean(&kind, make, ask),
        remembers: kind.forgets.is_none(),
        forgets: rounded(kind.forgets.unwrap_or(0.0)),
        can_retract: kind.can_retract,
        overfull: kind.overfull.to_owned(),
        fits,
        rate_within_memory,
        configuration: kind.configuration.clone(),
        // To two digits, or sums of steps would show.
        curve: (0..=CURVE_STEPS).map(|step| point((f64::from(step) * CURVE_STEP * 100.0).round() / 100.0)).collect(),
    }
}

fn by_mean(kind: &kinds::Candidate, make: Make, ask: &Ask) -> Option<ByMean> {
    let peak = kind.peak_of_mean.as_ref()?(ask.false_positive_rate);
    let sized = make(ask, peak);
    let partition_bytes = (sized.predict)(1.0).bytes;
    let memory_bytes = partition_bytes.saturating_mul(ask.partitions.into());
    let steady_partition_bytes = sized.steady_bytes.unwrap_or(partition_bytes);
    Some(ByMean { memory_bytes, steady_partition_bytes, bits_per_key: bits_per_key(ask, memory_bytes), peak_rate: rounded(peak) })
}

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn bits_per_key(ask: &Ask, bytes: u64) -> f64 {
    (bytes as f64 * 80.0 / ask.keys.max(1) as f64).round() / 10.0
}

/// The smallest rate for which a kind takes no more than `bytes` a partition.
fn reachable(make: Make, ask: &Ask, bytes: u64) -> Option<f64> {
    let expected = |exponent: f64| (make(ask, 10_f64.powf(exponent)).predict)(1.0);
    // Below lies no promise of sizing, above no use of a filter.
    let (mut low, mut high) = (-9.0, 0.5_f64.log10());
    if expected(high).bytes > bytes {
        return None;
    }
    if expected(low).bytes <= bytes {
        return Some(rounded(expected(low).rate));
    }
    while high - low > 1e-3 {
        let middle = f64::midpoint(low, high);
        if expected(middle).bytes <= bytes { high = middle } else { low = middle }
    }
    Some(rounded(expected(high).rate))
}

/// With four digits: more would be a claim of precision that no formula here has.
fn rounded(rate: f64) -> f64 {
    let digits = format!("{rate:.3e}").parse().unwrap_or(rate);
    // A difference may come out as -0.
    if digits > 0.0 { digits } else { 0.0 }
}

#[cfg(test)]
mod tests;
