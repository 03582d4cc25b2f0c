//! The formulas: from a deployment and the unit costs to loads.
//!
//! Owns every formula of docs/scale.md. Numbers are of floating point, so that a limit can ask what a millionth or a
//! million times as much would need.

use super::ask::ScaleAsk;
use super::costs;
use crate::plan::kinds::float;

/// What grows until a limit is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dimension {
    Records,
    Partitions,
    Keys,
    Members,
}

/// A deployment as numbers that can be scaled.
#[derive(Clone, Debug)]
pub(super) struct Model<'a> {
    pub(super) ask: &'a ScaleAsk,
    pub(super) records: f64,
    pub(super) keys: f64,
    pub(super) partitions: f64,
    pub(super) members: f64,
}

/// Memory of a partition beside its filter, which has so many keys in a window: those that are watched, unless the filter is
/// never wrong, and what its clients keep of it.
pub(in crate::plan) fn beside_filter(keys: f64, is_watched: bool) -> f64 {
    costs::PARTITION.get() + if is_watched { watched_keys(keys) * costs::WATCHED.get() } else { 0.0 }
}

fn watched_keys(keys: f64) -> f64 {
    (keys / costs::WATCHED_SHARE).clamp(costs::WATCHED_MIN, costs::WATCHED_MAX)
}

/// How much of one thing is of the busiest of `among`, where it is dealt out by pieces.
fn busiest(pieces: f64, among: f64) -> f64 {
    (pieces / among).ceil().max(1.0).min(pieces)
}

impl<'a> Model<'a> {
    pub(super) fn new(ask: &'a ScaleAsk) -> Self {
        let [records, keys, partitions, members] = [ask.records_per_second, ask.keys, ask.partitions, ask.members].map(float);
        Self { ask, records, keys, partitions, members }
    }

    /// The same with more or less of one thing.
    pub(super) fn scaled(&self, dimension: Dimension, factor: f64) -> Self {
        let mut scaled = self.clone();
        match dimension {
            Dimension::Records => scaled.records *= factor,
            Dimension::Partitions => scaled.partitions *= factor,
            Dimension::Keys => scaled.keys *= factor,
            Dimension::Members => scaled.members *= factor,
        }
        scaled
    }

    pub(super) fn unseen(&self) -> f64 {
        self.records * (1.0 - self.ask.repeats)
    }

    /// Worker threads that have a partition.
    pub(super) fn workers(&self) -> f64 {
        (self.members * float(self.ask.workers)).min(self.partitions)
    }

    /// Partitions of the busiest worker thread.
    pub(super) fn worker_partitions(&self) -> f64 {
        busiest(self.partitions, self.workers())
    }

    /// Partitions of the busiest member.
    pub(super) fn member_partitions(&self) -> f64 {
        busiest(self.partitions, self.members)
    }

    /// Partitions of the busiest member once another is lost.
    pub(super) fn survivor_partitions(&self) -> f64 {
        busiest(self.partitions, (self.members - 1.0).max(1.0))
    }

    /// Seconds that a transaction of a worker thread is open, before it is committed: at least a quarter as long as that takes.
    fn open_seconds(&self) -> f64 {
        let written = if self.ask.output { self.unseen() * float(self.ask.record_bytes) } else { 0.0 };
        let records = float(self.ask.max_transaction_records) / self.records;
        let full = records.min(costs::TRANSACTION_BYTES / written) * self.workers();
        self.paced_seconds(self.commit_takes_seconds()).min(full.max(0.001))
    }

    /// Seconds that a commit takes for its partitions' sake: those in which a record came since the last. What is another
    /// broker's goes on at the same time.
    fn commit_takes_seconds(&self) -> f64 {
        let rate = self.records / self.partitions;
        let each = costs::COMMIT_TIME.get() / 1e6 / float(self.ask.brokers);
        let takes = |seconds: f64| self.worker_partitions() * -(-rate * seconds).exp_m1() * each;
        // The longer it takes, the more of them come: it rises to where both agree.
        (0..16).fold(0.0, |took: f64, _| takes(self.paced_seconds(took) + took))
    }

    /// Seconds for which a transaction is open where commits take so long, and it is not full before (`worker/outbox.rs`).
    fn paced_seconds(&self, took: f64) -> f64 {
        let half = float(self.ask.transaction_timeout_ms) / 2000.0;
        (float(self.ask.commit_interval_ms) / 1000.0).max((took / 4.0).min(half - took))
    }

    /// Seconds from commit to commit of a worker thread.
    pub(super) fn commit_seconds(&self) -> f64 {
        self.open_seconds() + self.commit_takes_seconds()
    }

    /// Commits a second of all worker threads.
    pub(super) fn commits(&self) -> f64 {
        self.workers() * self.often(self.records / self.workers())
    }

    /// Commits a second that have a partition in which records come, of all partitions: at random moments, so one in
    /// which few come is in fewer.
    pub(super) fn partition_commits(&self) -> f64 {
        self.partitions * self.often(self.records / self.partitions)
    }

    /// The same, of those that have one of the output.
    pub(super) fn output_commits(&self) -> f64 {
        if self.ask.output { self.partitions * self.often(self.unseen() / self.partitions) } else { 0.0 }
    }

    /// Commits a second with something that comes so often.
    fn often(&self, rate: f64) -> f64 {
        let seconds = self.commit_seconds();
        -(-rate * seconds).exp_m1() / seconds
    }

    /// Commits a second that have a partition of the changelog: each in which a record came, seen or not.
    pub(super) fn changelog_commits(&self) -> f64 {
        if self.ask.changelog { self.partition_commits() } else { 0.0 }
    }

    /// Commits a second that have a partition of the topic in between.
    fn forwarded_commits(&self) -> f64 {
        if self.ask.repartition { self.partition_commits() } else { 0.0 }
    }

    /// Processor time of a record, in seconds.
    pub(super) fn record_seconds(&self) -> f64 {
        let written = if self.ask.output { 1.0 - self.ask.repeats } else { 0.0 };
        let bytes = (float(self.ask.record_bytes) - costs::USUAL_BYTES).max(0.0);
        let keys = (self.keys / self.members).clamp(costs::USUAL_KEYS, costs::MANY_KEYS);
        let tenfold = costs::TENFOLD.get() * (keys / costs::USUAL_KEYS).log10();
        let bytes = costs::BYTE.get() / 1000.0 * bytes;
        let forwarded = if self.ask.repartition { costs::READ.get() + costs::WRITTEN.get() + bytes } else { 0.0 };
        (costs::READ.get() + costs::WRITTEN.get() * written + tenfold + bytes + forwarded) / 1e6
    }

    /// Cores that are busy with `partitions` of `workers` threads: awake, with records, with commits.
    pub(super) fn cores(&self, partitions: f64, workers: f64) -> [f64; 3] {
        let share = partitions / self.partitions;
        let checkpoints = costs::CHECKPOINT_BYTE.get() / 1e9 * self.checkpoint_bytes() * partitions;
        let commits = (self.partition_commits() + self.forwarded_commits()) * share * costs::COMMIT.get() / 1e6
            + self.commits() * workers / self.workers() * costs::TRANSACTION.get() / 1e6;
        let each = costs::AWAKE.get() * workers + costs::AWAKE_PARTITION.get() / 1e6 * partitions;
        let awake = each * -(-self.records / self.workers()).exp_m1();
        [awake, self.records * share * self.record_seconds(), commits + partitions * costs::IDLE.get() / 1e6 + checkpoints]
    }

    /// Cores of the busiest member.
    pub(super) fn member_cores(&self) -> f64 {
        let partitions = self.member_partitions();
        self.cores(partitions, float(self.ask.workers).min(partitions)).iter().sum()
    }

    /// Cores of the busiest worker thread, with its clients.
    pub(super) fn worker_cores(&self) -> f64 {
        self.cores(self.worker_partitions(), 1.0).iter().sum()
    }

    /// Cores that one partition alone asks of its worker thread.
    pub(super) fn partition_cores(&self) -> f64 {
        self.cores(1.0, 1.0).iter().sum()
    }

    /// Cores of all brokers: by records, and by what commits ask of them.
    pub(super) fn broker_cores(&self) -> [f64; 2] {
        let passes = if self.ask.repartition { 2.0 } else { 1.0 };
        let commits = self.partition_commits() + self.forwarded_commits();
        [self.records * passes * costs::BROKER_RECORD.get() / 1e6, commits * costs::BROKER_COMMIT.get() / 1e6]
    }

    /// Memory of the filter of a partition.
    pub(super) fn filter_bytes(&self) -> f64 {
        float(self.ask.filter_partition_bytes) * (self.keys / float(self.ask.keys))
    }

    /// Keys of a partition in its window.
    pub(super) fn partition_keys(&self) -> f64 {
        self.keys / self.partitions
    }

    /// Keys of a partition that are held: a slice more than the window, at most.
    fn held_keys(&self) -> f64 {
        self.partition_keys() * (1.0 + 1.0 / f64::from(self.ask.slices))
    }

    /// Keys of a partition that are watched. What is never wrong has none.
    fn watched_keys(&self) -> f64 {
        if self.is_exact() { 0.0 } else { watched_keys(self.partition_keys()) }
    }

    fn is_exact(&self) -> bool {
        self.ask.filter_partition_disk_bytes > 0
    }

    /// Memory of a partition: its filter, its watched keys, and what its clients keep of it.
    pub(super) fn partition_memory(&self) -> f64 {
        let unsaved = if self.is_exact() {
            let seconds = float(self.ask.checkpoint_interval_ms) / 1000.0;
            (self.unseen() / self.partitions * seconds).min(1e6) * costs::UNSAVED.get()
        } else {
            0.0
        };
        self.filter_bytes() + beside_filter(self.partition_keys(), !self.is_exact()) + unsaved
    }

    /// Memory of a member with so many partitions, while the brokers keep up: with as much of a worker thread's buffers as
    /// its load is of its highest.
    pub(super) fn member_memory(&self, partitions: f64) -> f64 {
        let workers = float(self.ask.workers);
        let load = (self.worker_cores() / costs::WORKER_CORES.get()).min(1.0);
        let share = partitions / self.partitions;
        let waiting = (self.records * costs::VERDICT.get() + self.unseen() * costs::CHANGE.get()) * share * self.commit_seconds();
        costs::PROCESS.get() + workers * costs::BUSY.get() * load + partitions * self.partition_memory() + waiting
    }

    /// The most that it may take.
    pub(super) fn member_memory_most(&self, partitions: f64) -> f64 {
        let workers = float(self.ask.workers);
        costs::PROCESS_MOST.get() + workers * costs::WORKER_MOST.get() + partitions * self.partition_memory()
    }

    /// Disk of the busiest member: its states twice, and a checkpoint of each worker thread that is put together.
    pub(super) fn member_disk(&self) -> f64 {
        let state = self.filter_bytes() + self.watched_keys() * costs::WATCHED_STORED.get() + self.exact_bytes();
        2.0 * state * self.member_partitions() + float(self.ask.workers) * self.filter_bytes()
    }

    fn exact_bytes(&self) -> f64 {
        float(self.ask.filter_partition_disk_bytes) * (self.keys / float(self.ask.keys))
    }

    /// Bytes a second that the checkpoints of a partition ask for: pages that new keys have changed, and watched keys.
    pub(super) fn checkpoint_bytes(&self) -> f64 {
        let seconds = float(self.ask.checkpoint_interval_ms) / 1000.0;
        let new = self.unseen() / self.partitions * seconds;
        // Only the open slice of an aging filter changes.
        let open = if matches!(&*self.ask.kind, "aging" | "pair") { f64::from(self.ask.slices) + 1.0 } else { 1.0 };
        let pages = self.filter_bytes() / costs::PAGE_BYTES / open;
        let changed = if pages > 0.0 { pages * -(-new / pages).exp_m1() * costs::PAGE_BYTES } else { 0.0 };
        let exact = if self.exact_bytes() > 0.0 { new * costs::KEY_BYTES.get() } else { 0.0 };
        let records = self.records / self.partitions * seconds;
        // One in which nothing came is not written.
        (changed + exact + self.watched_keys() * costs::WATCHED_STORED.get()) * -(-records).exp_m1() / seconds
    }

    /// Bytes a second that the busiest member's checkpoints take: what they ask for, or what they may.
    pub(super) fn member_write(&self) -> f64 {
        (self.checkpoint_bytes() * self.member_partitions()).min(float(self.ask.max_write_rate))
    }

    /// Seconds from a partition's checkpoint to its next: as configured, or longer where they may write no more.
    pub(super) fn checkpoint_seconds(&self) -> f64 {
        let asked = self.checkpoint_bytes() * self.member_partitions() / float(self.ask.max_write_rate.max(1));
        float(self.ask.checkpoint_interval_ms) / 1000.0 * asked.max(1.0)
    }

    /// Bytes a second of the changelog, of one replica.
    pub(super) fn changelog_bytes(&self) -> f64 {
        if !self.ask.changelog {
            return 0.0;
        }
        self.unseen() * costs::KEY_BYTES.get() + self.changelog_commits() * changelog_commit_bytes(self.ask.exactly_once)
    }

    /// Bytes that the changelog holds, of one replica: of a window and a slice.
    pub(super) fn changelog_held(&self) -> Option<f64> {
        let commits = self.changelog_commits() * self.held_seconds()?;
        let keys = self.held_keys() * self.partitions * costs::KEY_BYTES.get();
        Some(if self.ask.changelog { keys + commits * changelog_commit_bytes(self.ask.exactly_once) } else { 0.0 })
    }

    fn held_seconds(&self) -> Option<f64> {
        self.ask.window_ms.map(|window| float(window) / 1000.0 * (1.0 + 1.0 / f64::from(self.ask.slices)))
    }

    /// Requests a second that carry records, at most: librdkafka sends a partition's batch in a request of its own, once it
    /// has waited for `linger.ms`, or is full; and what is left goes with the commit.
    pub(super) fn produce_requests(&self) -> f64 {
        let timed = 1000.0 / self.ask.linger_ms.max(0.001) + 1.0 / self.commit_seconds();
        let full = (1.0 / costs::BATCH_RECORDS).max(float(self.ask.record_bytes) / costs::BATCH_BYTES);
        let batches = |rate: f64| rate.min(self.partitions * timed + rate * full);
        let output = if self.ask.output { batches(self.unseen()) } else { 0.0 };
        let forwarded = if self.ask.repartition { batches(self.records) } else { 0.0 };
        output + forwarded + self.changelog_commits()
    }

    /// Requests a second of transactions and offsets, at least.
    pub(super) fn commit_requests(&self) -> f64 {
        self.commits() * if self.ask.exactly_once { costs::TRANSACTION_REQUESTS } else { 1.0 }
    }

    /// Markers a second: one in each partition of a transaction, and one beside the offsets.
    pub(super) fn markers(&self) -> f64 {
        let partitions = self.output_commits() + self.changelog_commits() + self.forwarded_commits();
        if self.ask.exactly_once { partitions + self.commits() } else { 0.0 }
    }

    /// Offsets a second, all of them in one partition of `__consumer_offsets`.
    pub(super) fn offsets(&self) -> f64 {
        self.partition_commits() + self.forwarded_commits()
    }

    /// Bytes a second that members read, and that they write beside the changelog.
    pub(super) fn network(&self) -> (f64, f64) {
        let record = float(self.ask.record_bytes) * self.ask.compression + costs::RECORD.get();
        let passes = if self.ask.repartition { 2.0 } else { 1.0 };
        let written = if self.ask.output { self.unseen() } else { 0.0 } + self.records * (passes - 1.0);
        let batches = (self.produce_requests() - self.changelog_commits()) * costs::BATCH.get();
        (self.records * passes * record, written * record + batches)
    }

    /// Bytes a second that brokers copy from each other: all that unseen writes, and what its commits leave beside it.
    pub(super) fn replication_bytes(&self) -> f64 {
        let changelog_markers = if self.ask.exactly_once { self.changelog_commits() } else { 0.0 };
        let beside = (self.markers() - changelog_markers) * costs::MARKER.get() + self.offsets() * costs::OFFSET.get();
        (self.network().1 + self.changelog_bytes() + beside) * (float(self.ask.replication) - 1.0)
    }

    /// Replicas of all partitions: input, output, changelog, and the topic in between.
    pub(super) fn replicas(&self) -> f64 {
        let topics = 1 + u8::from(self.ask.output) + u8::from(self.ask.changelog) + u8::from(self.ask.repartition);
        self.partitions * f64::from(topics) * float(self.ask.replication)
    }

    /// Seconds to rebuild one partition from its changelog; where the window is not known, as if it were of large commits.
    pub(super) fn rebuild_seconds(&self) -> Option<f64> {
        let records = self.changelog_commits() / self.partitions * self.held_seconds().unwrap_or(0.0);
        let seconds = self.held_keys() / costs::REBUILD_KEYS.get() + records * costs::REBUILD_RECORD.get() / 1e6;
        self.ask.changelog.then_some(seconds)
    }

    /// Seconds to load one partition from its checkpoint.
    pub(super) fn load_seconds(&self) -> f64 {
        self.held_keys() / costs::LOAD_KEYS.get()
    }

    /// Seconds until all partitions of a member that was killed go on: its session, a rebalance, and the rebuilds, which its
    /// heirs share. A single member comes back itself, and loads its checkpoints.
    pub(super) fn lost_seconds(&self) -> Option<f64> {
        let partitions = self.member_partitions();
        let restore = if self.members < 2.0 {
            self.worker_partitions() * self.load_seconds()
        } else {
            let each = busiest(partitions, self.members - 1.0);
            (each / costs::REBUILD_THREADS).ceil() * self.rebuild_seconds()?
        };
        Some(float(self.ask.session_timeout_ms) / 1000.0 + costs::JOIN.get() + restore)
    }

    /// Milliseconds from a record's time until half of the records, and 99 %, can be read.
    pub(super) fn latency_ms(&self) -> (f64, f64) {
        let (interval, more) = (self.open_seconds() * 1000.0, self.commit_takes_seconds() * 1000.0);
        (0.55 * interval + costs::HALF.get() + more, interval + costs::MOST.get() + more)
    }

    /// Bytes of the record in which Kafka keeps the group.
    pub(super) fn group_bytes(&self) -> f64 {
        self.members * float(self.ask.workers) * costs::GROUP_MEMBER.get() + self.partitions * costs::GROUP_PARTITION.get()
    }
}

/// Bytes that a commit adds to one partition of the changelog, beside its keys.
fn changelog_commit_bytes(exactly_once: bool) -> f64 {
    costs::CHANGELOG_RECORD.get() + costs::BATCH.get() + if exactly_once { costs::MARKER.get() } else { 0.0 }
}
