//! What all workers of a process share.
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

/// Most keys that a warm-up remembers of a partition before they are logged: every partition may have so many.
const UNLOGGED_MAX: usize = 200_000;

/// What all workers of a process have in common.
#[derive(Clone)]
pub struct Shared<B: Broker> {
    /// The cluster.
    pub broker: B,
    /// The configuration.
    pub config: Arc<Config>,
    /// What the cluster looked like at start.
    pub cluster: Arc<Cluster>,
    /// Where checkpoints are.
    pub store: Arc<Store>,
    /// What brings states back. The last that has it waits for its threads: none may use the store while the process ends.
    pub rebuilder: Arc<Rebuilder>,
    /// What is counted.
    pub stats: Arc<Stats>,
    /// Where the keys of a sample have come out.
    pub cross_partition_keys: Arc<CrossPartitionKeys>,
    /// Who has the schemas of records.
    pub schemas: Arc<dyn Schemas>,
    /// Set to make the workers drain and end.
    pub stop: Arc<AtomicBool>,
    /// The part of the transactional ids that distinguishes this process from others.
    pub instance: Arc<str>,
}

impl<B: Broker> Shared<B> {
    /// Most keys of a partition that wait to be logged.
    pub(super) fn most_unlogged(&self) -> usize {
        self.config.worker.max_transaction_records.min(UNLOGGED_MAX)
    }

    /// Whether the workers were told to stop. Notes that worker `number` came to ask.
    pub(super) fn is_stopped(&self, number: usize) -> bool {
        if let Some(round) = self.stats.rounds.get(number) {
            round.note();
        }
        self.stop.load(Ordering::Relaxed)
    }
}
