//! What breaks first: how much of each limit a deployment takes, and at which number it is all taken.
//!
//! Owns the list of limits. Must never show one whose capacity nobody knows: those are named apart.

use super::costs::{self, Basis};
use super::model::{Dimension, Model};
use crate::plan::kinds::float;
use serde::Serialize;

/// A limit, and how near it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// Of what.
    pub name: &'static str,
    /// The share of it that is taken; more than 1 if it is passed.
    pub used: f64,
    /// The number at which all of it is taken, if all else stays; `None` where no number does that.
    pub breaks_at: Option<f64>,
    /// What that is a number of.
    pub of: &'static str,
    /// The worst of what it follows from.
    pub basis: Basis,
    /// What happens past it.
    pub then: &'static str,
}

/// How far a number is followed: so many times more, or less.
const FACTOR_MAX: f64 = 1e9;

impl Limit {
    fn new(
        model: &Model<'_>,
        name: &'static str,
        (dimension, of): (Dimension, &'static str),
        basis: Basis,
        then: &'static str,
        used: impl Fn(&Model<'_>) -> f64,
    ) -> Self {
        let now = match dimension {
            Dimension::Records => model.records,
            Dimension::Partitions => model.partitions,
            Dimension::Keys => model.keys,
            Dimension::Members => model.members,
        };
        let (mut low, mut high) = (1.0 / FACTOR_MAX, FACTOR_MAX);
        let is_full = |factor: f64| used(&model.scaled(dimension, factor)) >= 1.0;
        let breaks_at = (!is_full(low) && is_full(high)).then(|| {
            while high / low > 1.0001 {
                let middle = (low * high).sqrt();
                if is_full(middle) { high = middle } else { low = middle }
            }
            now * low
        });
        Self { name, used: used(model), breaks_at, of, basis, then }
    }
}

/// All limits whose capacity is known, the first to break first.
pub(super) fn all(model: &Model<'_>) -> Vec<Limit> {
    let ask = model.ask;
    let cores = float(ask.cores);
    let records = (Dimension::Records, "records/s");
    let keys = (Dimension::Keys, "keys");
    let mut limits = vec![
        Limit::new(
            model,
            "processor of a member",
            records,
            costs::COMMIT.basis,
            "it lags; heartbeats come late, and its session may expire",
            move |model| model.member_cores() / cores,
        ),
        Limit::new(
            model,
            "a worker thread",
            records,
            costs::COMMIT.basis.max(costs::WORKER_CORES.basis),
            "its partitions lag: add workers or members",
            |model| model.worker_cores() / costs::WORKER_CORES.get(),
        ),
        Limit::new(
            model,
            "loading checkpoints",
            keys,
            costs::LOAD_KEYS.basis.max(costs::POLL.basis),
            "the group takes the member for lost while it loads",
            |model| model.load_seconds() * model.worker_partitions() / costs::POLL.get(),
        ),
        Limit::new(
            model,
            "replicas of a broker",
            (Dimension::Partitions, "partitions"),
            costs::REPLICAS.basis,
            "elections and restarts of brokers take long: add brokers",
            move |model| model.replicas() / float(ask.brokers) / costs::REPLICAS.get(),
        ),
        Limit::new(
            model,
            "record of the group",
            (Dimension::Members, "members"),
            costs::GROUP_RECORD.basis,
            "Kafka refuses the group: raise message.max.bytes",
            |model| model.group_bytes() / costs::GROUP_RECORD.get(),
        ),
    ];
    let mut partition = Limit::new(
        model,
        "one partition",
        records,
        costs::COMMIT.basis.max(costs::WORKER_CORES.basis),
        "it lags, whatever is added: more partitions, or a key that spreads",
        |model| model.partition_cores() / costs::WORKER_CORES.get(),
    );
    partition.breaks_at = partition.breaks_at.map(|records| records / model.partitions);
    partition.of = "records/s in it";
    limits.push(partition);
    if ask.exactly_once {
        let timeout = float(ask.transaction_timeout_ms) / 1000.0;
        limits.push(Limit::new(
            model,
            "a transaction's time",
            (Dimension::Partitions, "partitions"),
            costs::COMMIT_TIME.basis,
            "the brokers give it up, and nothing comes out: raise transaction_timeout",
            move |model| model.commit_seconds() / timeout,
        ));
    }
    if let Some(bytes) = ask.member_memory_bytes {
        let used = move |model: &Model<'_>| model.member_memory_most(model.survivor_partitions()) / float(bytes);
        limits.push(Limit::new(model, "memory of a member", keys, costs::WORKER_MOST.basis, "it is killed, and again", used));
    }
    if let Some(cores) = ask.broker_cores {
        let of_all = float(ask.brokers) * float(cores);
        let used = move |model: &Model<'_>| model.broker_cores().iter().sum::<f64>() / of_all;
        // What is not known is left out, so there is more.
        let basis = costs::BROKER_RECORD.basis.max(costs::BROKER_COMMIT.basis);
        limits.push(Limit::new(model, "processor of a broker", records, basis, "transactions take long, and then time out", used));
    }
    limits.sort_by(|one, other| other.used.total_cmp(&one.used));
    limits
}
