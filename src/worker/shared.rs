//! Everything that the workers of a process share.
//!
//! Must never hold the state of one partition.

use super::co_partitioning::CrossPartitionKeys;
use super::rebuild::Rebuilder;
use crate::broker::{Broker, Cluster};
use crate::checkpoint::Store;
use crate::config::Config;
use crate::format::Schemas;
use crate::stats::Stats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most changes of a warm-up that wait to be logged. Every partition may have this many.
const UNLOGGED_MAX: usize = 200_000;

/// Everything that the workers of a process share.
#[derive(Clone)]
pub struct Shared<B: Broker> {
    /// The cluster.
    pub broker: B,
    /// The configuration.
    pub config: Arc<Config>,
    /// The topics as of the last discovery.
    pub cluster: Arc<Cluster>,
    /// The store of checkpoints.
    pub store: Arc<Store>,
    /// Rebuilds states. The last owner waits for its threads, because none may use the store while the process ends.
    pub rebuilder: Arc<Rebuilder>,
    /// The counts and reports.
    pub stats: Arc<Stats>,
    /// A sample of keys, with the partitions that they occurred in.
    pub cross_partition_keys: Arc<CrossPartitionKeys>,
    /// The schemas of records.
    pub schemas: Arc<dyn Schemas>,
    /// True to make the workers drain and end.
    pub stop: Arc<AtomicBool>,
    /// The part of the transactional ids that distinguishes this process from others.
    pub instance: Arc<str>,
}

impl<B: Broker> Shared<B> {
    /// Most changes of a partition that wait to be logged.
    pub(super) fn most_unlogged(&self) -> usize {
        self.config.worker.max_transaction_records.min(UNLOGGED_MAX)
    }

    /// Returns true if the workers were told to stop. Also records that worker `number` is alive.
    pub(super) fn is_stopped(&self, number: usize) -> bool {
        if let Some(round) = self.stats.rounds.get(number) {
            round.note();
        }
        self.stop.load(Ordering::Relaxed)
    }
}
