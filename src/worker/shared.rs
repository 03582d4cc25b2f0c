//! The resources that the workers of a process share.
//!
//! This module never holds the state of one partition.

use super::co_partitioning::CrossPartitionKeys;
use super::rebuild::Rebuilder;
use crate::broker::{Broker, Cluster};
use crate::checkpoint::Store;
use crate::config::Config;
use crate::format::Schemas;
use crate::stats::Stats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The maximum number of warm-up changes per state that wait to be logged, unless `worker.max_transaction_records` is smaller.
const UNLOGGED_MAX: usize = 200_000;

#[derive(Clone)]
pub struct Shared<B: Broker> {
    pub broker: B,
    pub config: Arc<Config>,
    /// The cluster metadata that this worker last read. Other workers may have newer metadata.
    pub cluster: Arc<Cluster>,
    pub store: Arc<Store>,
    pub rebuilder: Arc<Rebuilder>,
    pub stats: Arc<Stats>,
    pub cross_partition_keys: Arc<CrossPartitionKeys>,
    pub schemas: Arc<dyn Schemas>,
    /// Set to make the workers drain and end.
    pub stop: Arc<AtomicBool>,
    /// The part of the transactional ids that identifies this process.
    pub instance: Arc<str>,
}

impl<B: Broker> Shared<B> {
    pub(super) fn most_unlogged(&self) -> usize {
        self.config.worker.max_transaction_records.min(UNLOGGED_MAX)
    }

    /// Returns true if the workers must stop. Also reports that worker `number` is alive.
    pub(super) fn is_stopped(&self, number: usize) -> bool {
        if let Some(round) = self.stats.rounds.get(number) {
            round.note();
        }
        self.stop.load(Ordering::Relaxed)
    }
}
