//! Keeps the consumer fetching from the positions of the partitions.
//!
//! Recovers partitions after a fetch failed or stopped. This module never changes a position.

use super::input::Input;
use super::stall::Wait;
use super::{Error, Worker};
use crate::broker::{Broker, Consumer as _};
use crate::fault;
use crate::record::TopicPartition;

impl<B: Broker> Worker<B> {
    /// Seeks partitions that reported a fetch error back to their current position.
    pub(super) fn seek_errored(&mut self, source: &B::Consumer) -> Result<(), Error> {
        let errored = source.errored_due();
        if errored.is_empty() || fault::defect("failed_fetch_not_sought") {
            return Ok(());
        }
        self.assignment.inputs.values_mut().filter(|input| errored.contains(&input.partition)).for_each(Input::read_failed);
        let positions = self.assignment.positions();
        let own = positions.iter().filter(|(partition, _)| errored.contains(partition));
        let stopped: Vec<_> = own
            .filter(|(partition, position)| source.seek(partition, *position).is_err())
            .map(|(partition, _)| partition.clone())
            .collect();
        if stopped.is_empty() { Ok(()) } else { self.restart_fetching(source, &stopped) }
    }

    /// Restarts fetching partitions from their positions. Paused partitions stay paused.
    ///
    /// The restart unassigns and assigns the partitions. If a rebalance is pending, librdkafka takes these calls as the answer to the
    /// rebalance. Another member may then own the revoked partitions before this worker handles the rebalance.
    pub(super) fn restart_fetching(&mut self, source: &B::Consumer, partitions: &[TopicPartition]) -> Result<(), Error> {
        source.restart(partitions, &self.assignment.positions())?;
        self.has_unhandled_rebalance |= source.generation() != self.generation;
        let paused = self.assignment.inputs.values().filter(|input| input.wait == Wait::Paused).map(|input| &input.partition);
        source.pause(&self.assignment.paused().map(|assigned| &assigned.partition).chain(paused).cloned().collect::<Vec<_>>())?;
        Ok(())
    }
}
