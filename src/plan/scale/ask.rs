//! What a deployment is reckoned for, and what is too absurd to be.

use crate::config::Delivery;
use serde::Serialize;
use std::time::Duration;

/// Most records a second.
const RECORDS_MAX: f64 = 1e9;

/// A deployment. Counts are at least 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "options, as the configuration has them")]
pub struct ScaleAsk {
    /// Records a second of the whole topic, repeats and all.
    pub records_per_second: u64,
    /// Share of them that are repeats, from 0 to 1.
    pub repeats: f64,
    /// Bytes of a record: key, value and headers.
    pub record_bytes: u64,
    /// Bytes on the wire over those of the records, in (0, 1].
    pub compression: f64,
    /// Distinct keys that the whole topic shows in a window.
    pub keys: u64,
    /// How long a window is, in milliseconds, if that is known.
    pub window_ms: Option<u64>,
    /// Slices in a window.
    pub slices: u32,
    /// Partitions of the topic; records and keys are taken to be shared out evenly.
    pub partitions: u64,
    /// Processes.
    pub members: u64,
    /// Worker threads of each.
    pub workers: u64,
    /// Cores of each.
    pub cores: u64,
    /// Memory of each in bytes, if it is bounded.
    pub member_memory_bytes: Option<u64>,
    /// Brokers.
    pub brokers: u64,
    /// Cores of each, if they are bounded.
    pub broker_cores: Option<u64>,
    /// Replicas of output and changelog; no more than brokers.
    pub replication: u64,
    /// Time between commits, in milliseconds.
    pub commit_interval_ms: u64,
    /// Most records in a transaction.
    pub max_transaction_records: u64,
    /// Time between the checkpoints of a partition, in milliseconds.
    pub checkpoint_interval_ms: u64,
    /// How long brokers let a transaction be open, in milliseconds.
    pub transaction_timeout_ms: u64,
    /// Bytes a second that a member's checkpoints may take.
    pub max_write_rate: u64,
    /// How long librdkafka waits for a batch to fill, in milliseconds.
    pub linger_ms: f64,
    /// After so many milliseconds of silence, a member is lost.
    pub session_timeout_ms: u64,
    /// Whether outputs and offsets are committed in transactions.
    pub exactly_once: bool,
    /// Whether there is a changelog.
    pub changelog: bool,
    /// Whether records go through a topic in between.
    pub repartition: bool,
    /// Whether unseen records are written anywhere.
    pub output: bool,
    /// The kind of filter.
    pub kind: String,
    /// Its memory, of one partition, once slices have sized themselves.
    pub filter_partition_bytes: u64,
    /// Its disk, of one partition, for kinds that live there.
    pub filter_partition_disk_bytes: u64,
}

impl Default for ScaleAsk {
    /// What a configuration has that says nothing, of one partition and one member, and no filter yet.
    fn default() -> Self {
        Self {
            records_per_second: 1,
            repeats: 0.0,
            record_bytes: 200,
            compression: 1.0,
            keys: 1,
            window_ms: None,
            slices: 4,
            partitions: 1,
            members: 1,
            workers: 1,
            cores: 1,
            member_memory_bytes: None,
            brokers: 3,
            broker_cores: None,
            replication: 3,
            commit_interval_ms: 200,
            max_transaction_records: 1_000_000,
            checkpoint_interval_ms: 10_000,
            transaction_timeout_ms: 10_000,
            max_write_rate: 32 << 20,
            linger_ms: Delivery::ExactlyOnce.linger(Duration::from_millis(200), 1).as_secs_f64() * 1000.0,
            session_timeout_ms: 10_000,
            exactly_once: true,
            changelog: true,
            repartition: false,
            output: true,
            kind: String::new(),
            filter_partition_bytes: 0,
            filter_partition_disk_bytes: 0,
        }
    }
}

/// Why nothing is reckoned. Names are those of the flags.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScaleError {
    /// A number that no deployment has.
    #[error("--{name}: expected {least} to {most}, got {got}")]
    OutOfRange {
        /// Which.
        name: &'static str,
        /// The least that is taken.
        least: f64,
        /// The most.
        most: f64,
        /// What there is.
        got: f64,
    },
    /// More replicas than brokers.
    #[error("--replication: {replication} replicas need as many brokers, and --brokers says {brokers}")]
    Replicas {
        /// Of each partition.
        replication: u64,
        /// That there are.
        brokers: u64,
    },
    /// More keys than records.
    #[error("--records-per-second: the keys of a window are {unseen} new ones a second, more than the {records} records")]
    FewRecords {
        /// New keys a second.
        unseen: u64,
        /// Records a second.
        records: u64,
    },
    /// Nothing says how many records are new.
    #[error("--records-per-second: how many of them are repeats? Say --window, or --repeats")]
    Repeats,
    /// No kind of filter that a topic can have.
    #[error("--kinds: with --records-per-second, name one that a topic can have: aging, pair, cuckoo, stable, exact")]
    Kind,
}

/// The share of repeats, where so many records show so many keys in a window.
///
/// # Errors
/// When the window is not known, or there would be more keys than records.
#[expect(clippy::cast_precision_loss, reason = "a share")]
pub fn repeats(records_per_second: u64, keys: u64, window_ms: Option<u64>) -> Result<f64, ScaleError> {
    if records_per_second == 0 {
        return Err(ScaleError::OutOfRange { name: "records-per-second", least: 1.0, most: RECORDS_MAX, got: 0.0 });
    }
    let unseen = keys as f64 * 1000.0 / window_ms.ok_or(ScaleError::Repeats)?.max(1) as f64;
    let share = 1.0 - unseen / records_per_second as f64;
    if share >= 0.0 { Ok(share) } else { Err(ScaleError::FewRecords { unseen: super::whole(unseen), records: records_per_second }) }
}

impl ScaleAsk {
    /// Refuses what would be no deployment: so no sum of it overflows, and none is divided by nothing.
    #[expect(clippy::cast_precision_loss, reason = "bounds")]
    pub(super) fn check(&self) -> Result<(), ScaleError> {
        let day = 86_400_000.0;
        for (name, got, least, most) in [
            ("records-per-second", self.records_per_second as f64, 1.0, RECORDS_MAX),
            ("repeats", self.repeats, 0.0, 1.0),
            ("record-bytes", self.record_bytes as f64, 1.0, 1e9),
            ("compression", self.compression, 0.001, 1.0),
            ("keys", self.keys as f64, 1.0, 1e11),
            ("window", self.window_ms.unwrap_or(1) as f64, 1.0, 3660.0 * day),
            ("slices", f64::from(self.slices), 1.0, 64.0),
            ("partitions", self.partitions as f64, 1.0, 1e6),
            ("members", self.members as f64, 1.0, 1e5),
            ("workers", self.workers as f64, 1.0, 64.0),
            ("cores", self.cores as f64, 1.0, 1024.0),
            ("member-memory", self.member_memory_bytes.unwrap_or(1 << 40) as f64, 1e6, 1e15),
            ("brokers", self.brokers as f64, 1.0, 1e4),
            ("broker-cores", self.broker_cores.unwrap_or(1) as f64, 1.0, 1024.0),
            ("replication", self.replication as f64, 1.0, 100.0),
            ("commit-interval, in ms", self.commit_interval_ms as f64, 10.0, 450_000.0),
            ("checkpoint interval, in ms", self.checkpoint_interval_ms as f64, 1.0, 3660.0 * day),
            ("transaction timeout, in ms", self.transaction_timeout_ms as f64, 1.0, day),
            ("linger, in ms", self.linger_ms, 0.0, 900_000.0),
            ("session timeout, in ms", self.session_timeout_ms as f64, 1.0, day),
        ] {
            // What is no number is in no range.
            if !(least..=most).contains(&got) {
                return Err(ScaleError::OutOfRange { name, least, most, got });
            }
        }
        if self.replication > self.brokers {
            return Err(ScaleError::Replicas { replication: self.replication, brokers: self.brokers });
        }
        Ok(())
    }
}
