//! What one of each thing costs: the only place where these numbers are.
//!
//! Owns the table. Must never hold a number without where it comes from. To put a measured one in: change `value` and `basis`,
//! and say where it was measured; then `UNSEEN_RENEW_DOCS=1 cargo test --release --test plan` writes docs/scale.md anew.

use serde::Serialize;

/// How a number is known, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// It was measured, on two cores that the broker shared.
    Measured,
    /// Others advise it.
    Advised,
    /// It follows from the code, the protocol, or a measurement of something else.
    Reckoned,
    /// Nobody has measured it, and nothing says it: it is left out of every sum.
    Unknown,
}

/// What one of something costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnitCost {
    /// Its name in JSON and in the documents.
    pub name: &'static str,
    /// How much; `None` where that is not known.
    pub value: Option<f64>,
    /// Of what, for what.
    pub unit: &'static str,
    /// How it is known.
    pub basis: Basis,
    /// Where it was measured, or what it follows from.
    pub source: &'static str,
}

impl UnitCost {
    /// The cost; one that is not known counts as none.
    pub(super) fn get(&self) -> f64 {
        self.value.unwrap_or(0.0)
    }
}

const fn measured(name: &'static str, value: f64, unit: &'static str, source: &'static str) -> UnitCost {
    UnitCost { name, value: Some(value), unit, basis: Basis::Measured, source }
}

const fn advised(name: &'static str, value: f64, unit: &'static str, source: &'static str) -> UnitCost {
    UnitCost { name, value: Some(value), unit, basis: Basis::Advised, source }
}

const fn reckoned(name: &'static str, value: f64, unit: &'static str, source: &'static str) -> UnitCost {
    UnitCost { name, value: Some(value), unit, basis: Basis::Reckoned, source }
}

const fn unknown(name: &'static str, unit: &'static str, source: &'static str) -> UnitCost {
    UnitCost { name, value: None, unit, basis: Basis::Unknown, source }
}

/// Bytes of a record that processor time a record was measured with.
pub(super) const USUAL_BYTES: f64 = 200.0;
/// Keys of a process that processor time a record was measured with, and those beyond which it no longer grew.
pub(super) const USUAL_KEYS: f64 = 3e6;
pub(super) const MANY_KEYS: f64 = 1e8;
/// Threads of a process that rebuild states.
pub(super) const REBUILD_THREADS: f64 = 2.0;
/// Of a partition's keys, one in so many is watched, but so many at least and at most (`dedup/watched`).
pub(super) const WATCHED_SHARE: f64 = 64.0;
pub(super) const WATCHED_MIN: f64 = 1024.0;
pub(super) const WATCHED_MAX: f64 = 16384.0;
/// Bytes of a page of a checkpoint (`checkpoint`).
pub(super) const PAGE_BYTES: f64 = 65536.0;
/// Requests of a transaction besides those that carry records, at least: partitions are named twice (outputs, then
/// changelogs), then the group, its offsets, and the end.
pub(super) const TRANSACTION_REQUESTS: f64 = 5.0;
/// Bytes that a transaction writes at most (`worker/outbox.rs`).
pub(super) const TRANSACTION_BYTES: f64 = 67_108_864.0;
/// Records and bytes that a batch holds at most: librdkafka's `batch.num.messages`, and `batch.size` (`kafka/client_config.rs`).
pub(super) const BATCH_RECORDS: f64 = 10_000.0;
pub(super) const BATCH_BYTES: f64 = 1e6;
/// Connections of a worker thread to each broker (docs/operations.md, Descriptors).
pub(super) const WORKER_CONNECTIONS: f64 = 4.0;

// Processor time of unseen's processes.

/// The nine loads of the latency benchmark are `a + b * rate` within an eighth; this is `a`. Reckoned, because a worker thread of
/// a large group has fewer records than any that was measured.
pub(super) const AWAKE: UnitCost = reckoned(
    "awake",
    0.19,
    "cores, a worker thread that records come to",
    "benchmarks/latency.md: what is left at no rate; the least that was measured are 46,553 records/s",
);
/// What 1,000 active partitions took beyond all else.
pub(super) const AWAKE_PARTITION: UnitCost = reckoned(
    "awake_partition",
    150.0,
    "µs a second more, for each of its partitions: librdkafka looks at all of them each time that it wakes",
    "benchmarks/active.md: 1,000 partitions, less the other costs",
);
/// With [`AWAKE`], the rows with 0, 50 and 95 % repeats come out within a tenth.
pub(super) const READ: UnitCost = measured(
    "read",
    0.29,
    "µs, a record of 200 bytes read and judged",
    "benchmarks/throughput-faster.md: by share of repeats, without `awake`",
);
pub(super) const WRITTEN: UnitCost =
    measured("written", 0.69, "µs more, one that comes out", "benchmarks/throughput-faster.md: by share of repeats, without `awake`");
pub(super) const BYTE: UnitCost =
    measured("byte", 1.25, "ns more, a byte of a record beyond 200", "benchmarks/growth.md: 100 to 10,000 bytes, half repeats");
pub(super) const TENFOLD: UnitCost = measured(
    "tenfold",
    0.17,
    "µs more, a record, for each tenfold of the keys of a process beyond 3M, up to 100M",
    "benchmarks/growth.md: keys in the window",
);
/// A transaction of four partitions takes 0.73 ms, by the difference of 50 and 1 commits a second at the same low rate. With 64
/// partitions a record takes 0.03 µs more than with one, at a commit each 100 ms: 40 µs a partition, and less than runs differ.
pub(super) const TRANSACTION: UnitCost = reckoned(
    "transaction",
    570.0,
    "µs, a commit of a worker thread",
    "benchmarks/latency.md: 0.73 ms a transaction of 4 partitions, less `commit` for each",
);
pub(super) const COMMIT: UnitCost = reckoned(
    "commit",
    40.0,
    "µs, a partition in a commit",
    "benchmarks/growth.md: 1 and 64 partitions, which differ less than runs do; not measured beyond",
);
pub(super) const IDLE: UnitCost = measured("idle", 5.5, "µs a second, a partition", "benchmarks/growth.md: 4 and 1,000 idle partitions");
pub(super) const WORKER_CORES: UnitCost = measured(
    "worker_cores",
    1.43,
    "cores, the most a worker thread with its clients took",
    "benchmarks/throughput-faster.md: 1,277,946 * 1.12 µs",
);
pub(super) const CHECKPOINT_BYTE: UnitCost =
    unknown("checkpoint_byte", "ns, a byte of a checkpoint", "only its effect on latency was measured: none that shows");

pub(super) const EXACT: UnitCost =
    unknown("exact", "µs more, a record of kind exact: it is looked up on disk", "a filter that is confirmed looks up fewer");

// Processor time of the brokers.

pub(super) const BROKER_RECORD: UnitCost = measured(
    "broker_record",
    0.28,
    "µs, a record in large batches: read, half written on, one replica",
    "performance.md, Throughput: 3.4 s for 12M",
);
pub(super) const BROKER_COMMIT: UnitCost = reckoned(
    "broker_commit",
    600.0,
    "µs, a partition in a commit: its requests, markers, offset",
    "benchmarks/active.md: 1,000 partitions, all that the broker took for the worker, less its records",
);

// Memory.

pub(super) const PROCESS: UnitCost = measured("process", 40.8e6, "bytes, a process", "benchmarks/growth.md: idle, 4 partitions");
pub(super) const PARTITION: UnitCost =
    measured("partition", 13_100.0, "bytes, a partition beside its filter", "benchmarks/growth.md: 4 and 1,000 idle partitions");
pub(super) const BUSY: UnitCost = measured(
    "busy",
    87e6,
    "bytes, a worker thread at its highest rate",
    "benchmarks/throughput-faster.md: the peak at a commit each 100 ms, less `process` and the filter",
);
pub(super) const PROCESS_MOST: UnitCost =
    reckoned("process_most", 301_989_888.0, "bytes, a process at most", "operations.md, Sizing: RocksDB, a checkpoint, two rebuilds");
pub(super) const WORKER_MOST: UnitCost =
    reckoned("worker_most", 448_790_528.0, "bytes, a worker thread at most", "operations.md, Sizing: librdkafka's queues, a transaction");
pub(super) const WATCHED: UnitCost =
    reckoned("watched", 66.0, "bytes, a watched key", "dedup/watched: 33 bytes a place of a table that is half full");
pub(super) const VERDICT: UnitCost = measured("verdict", 9.0, "bytes, a record until its commit", "performance.md, What was changed");
pub(super) const CHANGE: UnitCost = reckoned("change", 32.0, "bytes, a new key until its commit", "changelog/pending.rs");
pub(super) const UNSAVED: UnitCost =
    reckoned("unsaved", 50.0, "bytes, a new key of kind `exact` until a checkpoint", "operations.md, Sizing");

// Bytes.

pub(super) const KEY_BYTES: UnitCost = reckoned("key_bytes", 16.0, "bytes, a key in the changelog", "changelog/record.rs");
pub(super) const CHANGELOG_RECORD: UnitCost = reckoned(
    "changelog_record",
    142.0,
    "bytes, a record of the changelog beside its keys",
    "changelog/record.rs: 133 with a topic's name of 12 letters and its id; 9 of Kafka's",
);
pub(super) const RECORD: UnitCost = reckoned("record", 9.0, "bytes, a record beside key, value and headers", "Kafka's record format 2");
pub(super) const BATCH: UnitCost = reckoned("batch", 61.0, "bytes, a batch", "Kafka's record format 2");
pub(super) const MARKER: UnitCost = reckoned("marker", 78.0, "bytes, a marker of a transaction", "Kafka's record format 2");
pub(super) const OFFSET: UnitCost =
    reckoned("offset", 140.0, "bytes, an offset in __consumer_offsets", "Kafka's format, with the note of kafka/note.rs");
pub(super) const WATCHED_STORED: UnitCost = reckoned("watched_stored", 16.0, "bytes, a watched key in each checkpoint", "dedup/watched");

// Time.

pub(super) const REBUILD_KEYS: UnitCost =
    measured("rebuild_keys", 4.2e6, "keys a second, one of two threads from the changelog", "state.md: 100M keys in 11 to 13 s");
pub(super) const REBUILD_RECORD: UnitCost = reckoned(
    "rebuild_record",
    3.0,
    "µs, a record of the changelog in a batch of its own",
    "a guess from 0.25 µs in large batches (benchmarks/throughput-faster.md, consume only)",
);
pub(super) const LOAD_KEYS: UnitCost =
    measured("load_keys", 1.2e8, "keys a second, one thread from checkpoints", "benchmarks/start.md: 10M in 83 ms");
pub(super) const JOIN: UnitCost = measured("join", 0.57, "s, a group of one gives out its partitions", "benchmarks/start.md");
pub(super) const HALF: UnitCost = measured(
    "half",
    11.0,
    "ms beside 0.55 of the commit interval, half of the records",
    "benchmarks/latency.md, less `commit_time` of 4 partitions",
);
pub(super) const MOST: UnitCost = measured(
    "most",
    30.0,
    "ms beside the commit interval, 99 % of the records",
    "benchmarks/latency.md, less `commit_time` of 4 partitions",
);
/// Brokers answer the requests of a connection one after the other, and librdkafka makes one for each partition. On another
/// broker they would go on at the same time: that is reckoned. So is anything between 4 partitions and 1,000: at full speed, 64
/// cost less than this says.
pub(super) const COMMIT_TIME: UnitCost = reckoned(
    "commit_time",
    1430.0,
    "µs longer takes a commit, for a partition in it with one broker",
    "benchmarks/active.md: 1,000 partitions, a commit each 100 ms; the broker was busy with the writer of the input, too",
);

// What others bear.

pub(super) const REPLICAS: UnitCost = advised(
    "replicas",
    4000.0,
    "partition replicas a broker",
    "J. Rao, Apache Kafka Supports 200K Partitions Per Cluster, 2018: before KRaft, which bears more; how much more is not known here",
);
pub(super) const GROUP_MEMBER: UnitCost =
    reckoned("group_member", 300.0, "bytes, a consumer in the group's record", "Kafka's format: ids, host, subscription");
pub(super) const GROUP_PARTITION: UnitCost =
    reckoned("group_partition", 12.0, "bytes, a partition in it", "Kafka's format: what is owned, and what is assigned");
pub(super) const GROUP_RECORD: UnitCost =
    reckoned("group_record", 1_048_588.0, "bytes, the group's record at most", "Kafka's default of message.max.bytes");
pub(super) const POLL: UnitCost =
    reckoned("poll", 300.0, "s, a member may take to answer a rebalance", "librdkafka's default of max.poll.interval.ms");

/// All of them, in the order of the documents.
pub(super) const ALL: [&UnitCost; 42] = [
    &AWAKE,
    &AWAKE_PARTITION,
    &READ,
    &WRITTEN,
    &BYTE,
    &TENFOLD,
    &TRANSACTION,
    &COMMIT,
    &IDLE,
    &WORKER_CORES,
    &CHECKPOINT_BYTE,
    &EXACT,
    &BROKER_RECORD,
    &BROKER_COMMIT,
    &PROCESS,
    &PARTITION,
    &BUSY,
    &PROCESS_MOST,
    &WORKER_MOST,
    &WATCHED,
    &VERDICT,
    &CHANGE,
    &UNSAVED,
    &KEY_BYTES,
    &CHANGELOG_RECORD,
    &RECORD,
    &BATCH,
    &MARKER,
    &OFFSET,
    &WATCHED_STORED,
    &REBUILD_KEYS,
    &REBUILD_RECORD,
    &LOAD_KEYS,
    &JOIN,
    &HALF,
    &MOST,
    &COMMIT_TIME,
    &REPLICAS,
    &GROUP_MEMBER,
    &GROUP_PARTITION,
    &GROUP_RECORD,
    &POLL,
];
