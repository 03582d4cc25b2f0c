//! Handles assigned, revoked, and lost partitions in a rebalance.
//!
//! Runs the steps in order: commit and checkpoint before partitions are revoked, restore before partitions are read. Never commits for a
//! partition that another member owns.

use super::{Error, Worker, key_conflicts, partition};
use crate::broker::{Broker, Consumer as _, Rebalance, SinkError};
use crate::fault;
use crate::record::TopicPartition;
use crate::stats::add;

impl<B: Broker> Worker<B> {
    pub(super) fn rebalance(&mut self, source: &B::Consumer, rebalance: Rebalance) -> Result<(), Error> {
        add(&self.shared.stats.rebalances, 1);
        self.reporter.make_due();
        self.generation = source.generation();
        let (Rebalance::Assigned(partitions) | Rebalance::Revoked { partitions, .. }) = &rebalance;
        key_conflicts::forget(&self.shared, &self.topics, partitions);
        match rebalance {
            Rebalance::Assigned(partitions) => {
                self.reporter.joined = true;
                self.has_unhandled_rebalance = false;
                fault::point("assign.begin");
                self.commit(source)?;
                fault::point("assign.committed");
                let starts = self.restore(source, &partitions)?;
                tracing::info!(partitions = %partition::names(&partitions), "partitions assigned");
                fault::point("assign.restored");
                source.assign(&starts)?;
                let paused = self.assignment.paused().map(|assigned| assigned.partition.clone());
                if !fault::defect("partitions_read_before_restore") {
                    source.pause(&paused.filter(|partition| partitions.contains(partition)).collect::<Vec<_>>())?;
                }
                fault::point("assign.assigned");
            }
            Rebalance::Revoked { partitions, lost } => {
                tracing::info!(partitions = %partition::names(&partitions), lost, "partitions revoked");
                if lost || self.has_unhandled_rebalance && !fault::defect("unhandled_rebalance_ignored") {
                    if !fault::defect("lost_partitions_kept") {
                        self.drop_lost(source, &partitions)?;
                    }
                } else {
                    fault::point("revoke.begin");
                    self.step_over_control_records(source)?;
                    if !fault::defect("revoked_without_commit") {
                        self.commit(source)?;
                    }
                    fault::point("revoke.committed");
                    self.checkpoint(true);
                    fault::point("revoke.checkpointed");
                    self.assignment.forget(&partitions);
                    fault::point("revoke.forgotten");
                }
                // If no partition is left, the status shows this member as not joined, because its next assignment must wait until every
                // other member has rejoined.
                self.reporter.joined &= !self.assignment.positions().is_empty();
                source.unassign(&partitions)?;
                fault::point("revoke.unassigned");
            }
        }
        Ok(())
    }

    /// Drops partitions that other members may own already and aborts their uncommitted records. Until its next assignment, this member is
    /// reported as not joined.
    pub(super) fn drop_lost(&mut self, source: &B::Consumer, partitions: &[TopicPartition]) -> Result<(), Error> {
        fault::point("lose.begin");
        self.assignment.forget(partitions);
        fault::point("lose.forgotten");
        // Report first, because the abort may wait for brokers that are gone.
        self.reporter.joined = false;
        self.reporter.make_due();
        self.report(source);
        if self.writer.is_open() {
            self.abort(source, SinkError::Abort("the worker lost its partitions".to_owned()))?;
        }
        fault::point("lose.aborted");
        Ok(())
    }
}
