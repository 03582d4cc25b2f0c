//! What a deployment needs, on paper: processors, memory, disk, network, requests, and what breaks first.
//!
//! Owns the report. Must never say more than its unit costs do: each number names its basis. docs/scale.md has the formulas.

mod ask;
mod costs;
mod limits;
mod model;
mod text;

pub use ask::{ScaleAsk, ScaleError, repeats};
pub use costs::{Basis, UnitCost};
pub use limits::Limit;
pub(super) use model::beside_filter;

use super::kinds::{float, whole};
use super::rounded;
use model::Model;
use serde::Serialize;

/// What a deployment needs. Its JSON is for scripts: names of fields stay. Sizes are in bytes, rates a second, and of all
/// members or brokers together unless they say otherwise; numbers have four digits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scale {
    /// What was asked for.
    pub ask: ScaleAsk,
    /// What comes.
    pub load: LoadNeeds,
    /// Processors.
    pub processor: ProcessorNeeds,
    /// Memory.
    pub memory: MemoryNeeds,
    /// Disk.
    pub disk: DiskNeeds,
    /// Network.
    pub network: NetworkNeeds,
    /// What brokers are asked for.
    pub brokers: BrokerNeeds,
    /// Times.
    pub time: TimeNeeds,
    /// What breaks, the first first.
    pub limits: Vec<Limit>,
    /// What the numbers are made of.
    pub unit_costs: Vec<UnitCost>,
}

/// What comes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadNeeds {
    /// Records a second that are new.
    pub unseen_per_second: f64,
    /// Records a second of one partition.
    pub partition_records_per_second: f64,
    /// Worker threads that have a partition.
    pub workers: f64,
    /// Worker threads that have none.
    pub idle_workers: f64,
    /// Partitions of the busiest member.
    pub member_partitions: f64,
}

/// Processors, in cores that are busy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessorNeeds {
    /// Of the busiest member.
    pub member_cores: f64,
    /// Of all members.
    pub members_cores: f64,
    /// Of these, to be awake at all, as records trickle in.
    pub awake_cores: f64,
    /// Of these, by record.
    pub records_cores: f64,
    /// Of these, by commit and by partition in one.
    pub commits_cores: f64,
    /// Of all brokers, by record.
    pub broker_records_cores: f64,
    /// Of all brokers, by partition in a commit; `None` while that is not known.
    pub broker_commits_cores: Option<f64>,
}

/// Memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryNeeds {
    /// Of a partition: its filter, its watched keys, and what clients keep of it.
    pub partition_bytes: u64,
    /// Of these, its filter.
    pub filter_bytes: u64,
    /// Of the busiest member, while brokers keep up.
    pub member_bytes: u64,
    /// The most that it may take.
    pub member_most_bytes: u64,
    /// The most once another member is lost: what to give each.
    pub member_most_one_lost_bytes: u64,
}

/// Disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiskNeeds {
    /// Of the busiest member.
    pub member_bytes: u64,
    /// Bytes a second that its checkpoints write.
    pub member_write_bytes: u64,
    /// Of the changelog, with all its replicas; `None` where the window is not known.
    pub changelog_bytes: Option<u64>,
}

/// Network, in bytes a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NetworkNeeds {
    /// From brokers to members.
    pub in_bytes: u64,
    /// From members to brokers, without the changelog.
    pub out_bytes: u64,
    /// From members to brokers, the changelog.
    pub changelog_bytes: u64,
    /// Of that, what is no key: heads, batches, markers.
    pub changelog_overhead_bytes: u64,
    /// From broker to broker, of what unseen writes.
    pub replication_bytes: u64,
}

/// What brokers are asked for, a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BrokerNeeds {
    /// Transactions.
    pub transactions: f64,
    /// Partitions in these, of the input: each has an offset in a transaction.
    pub offsets: f64,
    /// Markers that end transactions, in the logs of partitions.
    pub markers: f64,
    /// Records of the changelog.
    pub changelog_records: f64,
    /// Requests that carry records, at most.
    pub produce_requests_most: f64,
    /// Requests of transactions, at least.
    pub transaction_requests: f64,
    /// Replicas of partitions: input, output, changelog, and the topic in between.
    pub replicas: f64,
    /// The same, of one broker.
    pub replicas_per_broker: f64,
    /// Connections of one broker.
    pub connections_per_broker: f64,
}

/// Times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeNeeds {
    /// Milliseconds from a record's time until it can be read, for half of them.
    pub visible_half_ms: f64,
    /// The same, for 99 %.
    pub visible_99_ms: f64,
    /// Seconds from a partition's checkpoint to its next.
    pub checkpoint_seconds: f64,
    /// Seconds to load a partition from its checkpoint.
    pub load_partition_seconds: f64,
    /// Seconds to rebuild a partition from its changelog; `None` without one.
    pub rebuild_partition_seconds: Option<f64>,
    /// Seconds until all partitions of a member that was killed go on; `None` without a changelog.
    pub lost_member_seconds: Option<f64>,
}

impl Scale {
    /// Reckons what `ask` needs.
    ///
    /// # Errors
    /// [`ScaleError`] for numbers that no deployment has.
    pub fn new(ask: &ScaleAsk) -> Result<Self, ScaleError> {
        ask.check()?;
        let model = Model::new(ask);
        let report = Self {
            load: load(&model),
            processor: processor(&model),
            memory: memory(&model),
            disk: disk(&model),
            network: network(&model),
            brokers: brokers(&model),
            time: time(&model),
            limits: limits::all(&model).into_iter().map(in_four_digits).collect(),
            unit_costs: costs::ALL.into_iter().cloned().collect(),
            ask: ask.clone(),
        };
        Ok(report)
    }
}

fn in_four_digits(mut limit: Limit) -> Limit {
    limit.used = rounded(limit.used);
    limit.breaks_at = limit.breaks_at.map(rounded);
    limit
}

fn load(model: &Model<'_>) -> LoadNeeds {
    LoadNeeds {
        unseen_per_second: rounded(model.unseen()),
        partition_records_per_second: rounded(model.records / model.partitions),
        workers: model.workers(),
        idle_workers: model.members * float(model.ask.workers) - model.workers(),
        member_partitions: model.member_partitions(),
    }
}

fn processor(model: &Model<'_>) -> ProcessorNeeds {
    let all = model.cores(model.partitions, model.workers());
    let [awake_cores, records_cores, commits_cores] = all.map(rounded);
    let [records, commits] = model.broker_cores();
    ProcessorNeeds {
        member_cores: rounded(model.member_cores()),
        members_cores: rounded(all.iter().sum()),
        awake_cores,
        records_cores,
        commits_cores,
        broker_records_cores: rounded(records),
        broker_commits_cores: costs::BROKER_COMMIT.value.map(|_| rounded(commits)),
    }
}

fn memory(model: &Model<'_>) -> MemoryNeeds {
    MemoryNeeds {
        partition_bytes: whole(model.partition_memory()),
        filter_bytes: whole(model.filter_bytes()),
        member_bytes: whole(model.member_memory(model.member_partitions())),
        member_most_bytes: whole(model.member_memory_most(model.member_partitions())),
        member_most_one_lost_bytes: whole(model.member_memory_most(model.survivor_partitions())),
    }
}

fn disk(model: &Model<'_>) -> DiskNeeds {
    DiskNeeds {
        member_bytes: whole(model.member_disk()),
        member_write_bytes: whole(model.member_write()),
        changelog_bytes: model.changelog_held().map(|bytes| whole(bytes * float(model.ask.replication))),
    }
}

fn network(model: &Model<'_>) -> NetworkNeeds {
    let ((in_bytes, out_bytes), changelog) = (model.network(), model.changelog_bytes());
    let keys = if model.ask.changelog { model.unseen() * costs::KEY_BYTES.get() } else { 0.0 };
    NetworkNeeds {
        in_bytes: whole(in_bytes),
        out_bytes: whole(out_bytes),
        changelog_bytes: whole(changelog),
        changelog_overhead_bytes: whole(changelog - keys),
        replication_bytes: whole(model.replication_bytes()),
    }
}

fn brokers(model: &Model<'_>) -> BrokerNeeds {
    BrokerNeeds {
        transactions: if model.ask.exactly_once { rounded(model.commits()) } else { 0.0 },
        offsets: rounded(model.offsets()),
        markers: rounded(model.markers()),
        changelog_records: rounded(model.changelog_commits()),
        produce_requests_most: rounded(model.produce_requests()),
        transaction_requests: rounded(model.commit_requests()),
        replicas: model.replicas(),
        replicas_per_broker: (model.replicas() / float(model.ask.brokers)).ceil(),
        connections_per_broker: model.members * float(model.ask.workers) * costs::WORKER_CONNECTIONS,
    }
}

fn time(model: &Model<'_>) -> TimeNeeds {
    let (half, most) = model.latency_ms();
    TimeNeeds {
        visible_half_ms: rounded(half),
        visible_99_ms: rounded(most),
        checkpoint_seconds: rounded(model.checkpoint_seconds()),
        load_partition_seconds: rounded(model.load_seconds()),
        rebuild_partition_seconds: model.rebuild_seconds().map(rounded),
        lost_member_seconds: model.lost_seconds().map(rounded),
    }
}

#[cfg(test)]
mod tests;
