//! Predicts the memory and the false-positive rate of filters.
//!
//! Compares the kinds of filters by memory, by error rate at each load, and by guarantees. This module also counts a sample of a stream and
//! proposes a configuration for the sample. It never builds a filter.

mod columns;
mod kinds;
mod proposal;
mod sample;
pub(crate) mod text;

pub use proposal::Proposal;
pub use sample::{Sample, SampleError, SampleOptions};

use crate::filter::Kind;
use kinds::{Make, UNCHAINED, kinds, whole};
use serde::Serialize;

/// The loads that tables show in columns, as multiples of the planned number of keys.
const LOADS: [f64; 4] = [1.0, 1.5, 2.0, 4.0];

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ask {
    /// Number of distinct keys of the whole topic in a window, at least 1.
    pub keys: u64,
    /// Maximum share of unseen keys that are reported as seen when a window has `keys` keys. Between 0 and 1, both excluded.
    pub false_positive_rate: f64,
    /// Partitions of the topic, at least 1. The plan assumes that keys are distributed evenly.
    pub partitions: u32,
    /// Slices per window, at least 1.
    pub slices: u32,
    pub window_ms: Option<u64>,
    /// Maximum memory of the whole topic, in bytes.
    pub memory_bytes: Option<u64>,
}

/// A comparison of the kinds of filters. Its JSON is for scripts, so field names are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub ask: Ask,
    pub sample: Option<Sample>,
    /// A configuration for the sample, if the command line does not set a key.
    pub proposal: Option<Proposal>,
    pub kinds: Vec<Row>,
}

/// Costs and guarantees of one kind. Sizes are for the whole topic unless stated otherwise. Rates are rounded to four significant digits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub kind: String,
    /// Memory when a window has the planned keys, in bytes, without caches.
    pub memory_bytes: u64,
    /// Memory of one partition when a window has the planned keys, in bytes.
    pub partition_bytes: u64,
    /// Memory of one partition, in bytes, once slices have adapted to a stream with the planned keys. An aging filter is then an eighth
    /// larger.
    pub steady_partition_bytes: u64,
    /// Maximum memory of a pod that has all partitions, with one worker thread, in bytes: the filters, the other memory of each partition,
    /// and [`POD_BASE_BYTES`]. The fingerprints that kind `exact` holds until a checkpoint are not included.
    pub pod_bytes: u64,
    /// Disk space when a window has the planned keys, in bytes. 0 for kinds that are in memory.
    pub disk_bytes: u64,
    /// Memory or disk space per planned key, in bits.
    pub bits_per_key: f64,
    /// Maximum number of bits, cells, slots, or disk locations that a lookup of an absent key checks.
    pub k: u32,
    pub reads: String,
    /// Predictions at 1, 1.5, 2, and 4 times the planned keys.
    pub loads: Vec<Point>,
    /// Predicted mean false-positive rate over a window with the planned number of keys. `None` for kinds that are shown only for
    /// comparison, because a topic cannot use them.
    pub mean_rate: Option<f64>,
    /// True if an inserted key is seen for the whole window, without exception.
    pub remembers: bool,
    /// Share of duplicates that are reported as unseen if they arrive one whole window after their key was inserted.
    pub forgets: f64,
    pub can_retract: bool,
    pub overfull: String,
    /// True if the kind fits into the requested memory, or `None` if no memory was requested.
    pub fits: Option<bool>,
    /// Lowest false-positive rate within the requested memory. For `stable`, at least the requested rate, because the filter is sized for
    /// that rate. `None` if the kind does not fit at any rate, or if no memory was requested.
    pub rate_within_memory: Option<f64>,
    /// The configuration line for the kind, or `None` if a topic cannot use the kind.
    pub configuration: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Number of keys in a window, relative to the planned number.
    pub load: f64,
    pub rate: f64,
    /// Memory of the whole topic, in bytes.
    pub memory_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("unknown kind `{0}`; the kinds are {known}", known = names().join(", "))]
    Candidate(String),
}

/// Maximum memory of a process with one worker thread, in bytes, in addition to its filters. The parts, in MiB: RocksDB's buffers and cache
/// (128), records that librdkafka has read ahead (72) and has yet to send (256), a transaction (100), a checkpoint (16), and two rebuilds
/// (144).
pub const POD_BASE_BYTES: u64 = 716 << 20;

/// Memory of a partition in addition to its state, in bytes, mostly in librdkafka. Measured with 4 and with 1,000 idle partitions
/// (docs/benchmarks/growth.md).
const PARTITION_BYTES: u64 = 13_100;

/// Memory of a partition's watched keys (`dedup::watched`), in bytes. One key in 64 is watched, within bounds. The watched keys are in a
/// half-full table with entries of 33 bytes.
fn watched_bytes(keys: u64) -> u64 {
    (keys / 64).clamp(1024, 16_384) * 66
}

#[must_use]
pub fn names() -> Vec<&'static str> {
    kinds().into_iter().map(|(name, _)| name).collect()
}

impl Comparison {
    /// Compares the named kinds, or all kinds if no name is given. If the default kind is named, also shows `unchained`, the same filter
    /// without chaining.
    ///
    /// # Errors
    /// Returns [`Error::Candidate`] if a kind does not exist.
    pub fn new(ask: Ask, named: &[String], sample: Option<Sample>) -> Result<Self, Error> {
        if let Some(unknown) = named.iter().find(|kind| !names().contains(&kind.as_str())) {
            return Err(Error::Candidate(unknown.clone()));
        }
        let is_variant = |kind: &str, name: &str| kind == Kind::default().name() && name == UNCHAINED;
        let is_included = |name: &str| named.is_empty() || named.iter().any(|kind| kind == name || is_variant(kind, name));
        let kinds = kinds().iter().filter(|(name, _)| is_included(name)).map(|(name, make)| row(name, make, &ask)).collect();
        Ok(Self { ask, sample, proposal: None, kinds })
    }
}

fn row(name: &str, make: &Make, ask: &Ask) -> Row {
    let kind = make(ask, ask.false_positive_rate);
    let partitions = u64::from(ask.partitions);
    let partition_bytes = (kind.predict)(1.0).bytes;
    let memory_bytes = partition_bytes.saturating_mul(partitions);
    let steady_partition_bytes = kind.steady_bytes.unwrap_or(partition_bytes);
    let overhead = PARTITION_BYTES + if kind.disk > 0.0 { 0 } else { watched_bytes(ask.keys.div_ceil(partitions.max(1))) };
    let disk_bytes = whole(kind.disk).saturating_mul(partitions);
    let fits = ask.memory_bytes.map(|bytes| memory_bytes <= bytes);
    let rate_within_memory = match ask.memory_bytes {
        // An elastic kind is already sized for the requested rate. If its memory is too small for that rate, its actual rate is higher.
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
        pod_bytes: steady_partition_bytes.saturating_add(overhead).saturating_mul(partitions).saturating_add(POD_BASE_BYTES),
        disk_bytes,
        bits_per_key: bits_per_key(ask, memory_bytes + disk_bytes),
        k: kind.k,
        reads: kind.reads.clone(),
        loads: LOADS.map(point).to_vec(),
        mean_rate: kind.mean.map(rounded),
        remembers: kind.forgets.is_none(),
        forgets: rounded(kind.forgets.unwrap_or(0.0)),
        can_retract: kind.can_retract,
        overfull: kind.overfull.to_owned(),
        fits,
        rate_within_memory,
        configuration: kind.configuration.clone(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn bits_per_key(ask: &Ask, bytes: u64) -> f64 {
    (bytes as f64 * 80.0 / ask.keys.max(1) as f64).round() / 10.0
}

/// Returns the lowest false-positive rate of a filter that is sized for a rate from 1e-9 to 0.5 and fits into `bytes` per partition, or
/// `None` if a filter does not fit even at 0.5.
fn reachable(make: &Make, ask: &Ask, bytes: u64) -> Option<f64> {
    let expected = |exponent: f64| (make(ask, 10_f64.powf(exponent)).predict)(1.0);
    // The configuration does not allow rates below 1e-9, and a filter with a rate above 0.5 is useless.
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

/// Rounds to four significant digits. The formulas here are not more precise.
fn rounded(rate: f64) -> f64 {
    let digits = format!("{rate:.3e}").parse().unwrap_or(rate);
    // A rate that is computed as a difference can be -0, which would be printed with its sign.
    if digits > 0.0 { digits } else { 0.0 }
}

#[cfg(test)]
mod tests;
