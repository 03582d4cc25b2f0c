//! Restores partitions that are already assigned to this worker.
//!
//! Handles partitions whose state or pending verdicts can no longer be used. Never restores a partition while a transaction is open.

use super::assignment::inputs_of;
use super::ids::StateId;
use super::input::Input;
use super::transaction::Load;
use super::{Error, Flow, Worker};
use crate::broker::{Broker, Consumer as _, SinkError};
use crate::record::TopicPartition;
use std::collections::{BTreeMap, BTreeSet};

impl<B: Broker> Worker<B> {
    /// Aborts the open transaction and restores assigned partitions whose state cannot be trusted. The log shows `why`.
    fn restart(&mut self, source: &B::Consumer, partitions: &[TopicPartition], why: &str) -> Result<(), Error> {
        if self.writer.is_open() {
            self.abort(source, SinkError::Abort(format!("partitions must be restored, because {why}")))?;
        }
        self.restore_assigned(source, partitions, why)
    }

    /// Restores the states that are lost because a part of them was only in a checkpoint store that is now quarantined.
    pub(super) fn restart_lost(&mut self, source: &B::Consumer) -> Result<(), Error> {
        let epoch = self.shared.store.epoch();
        if std::mem::replace(&mut self.assignment.store_epoch, epoch) == epoch {
            return Ok(());
        }
        let states = &self.assignment.states;
        let is_lost = |input: &Input| input.states().any(|id| states.get(&id).is_some_and(|state| state.is_lost(&self.shared.store)));
        let lost = self.assignment.partitions(is_lost);
        if lost.is_empty() { Ok(()) } else { self.restart(source, &lost, "the store with their keys was moved aside or deleted") }
    }

    /// Restores states whose checkpoint another worker of this process has claimed, although a commit has shown that this worker is still
    /// the owner. The restore claims the checkpoint again. Without this claim, this worker could not save the checkpoint.
    pub(super) fn restart_superseded(&mut self, source: &B::Consumer) -> Result<(), Error> {
        let superseded = std::mem::take(&mut self.assignment.superseded);
        let partitions = self.assignment.partitions(|input| input.states().any(|id| superseded.contains(&id)));
        let why = "another worker of this process has claimed their checkpoints";
        if partitions.is_empty() { Ok(()) } else { self.restart(source, &partitions, why) }
    }

    /// Restores the partitions whose position is outside their log. librdkafka stops reading such a partition without identifying it.
    pub(super) fn restart_out_of_range(&mut self, source: &B::Consumer) -> Result<(), Error> {
        // The records read so far are valid, and so are their states.
        self.commit(source)?;
        self.checkpoint(true);
        let (mut outside, mut inside) = (Vec::new(), Vec::new());
        for input in self.assignment.inputs.values() {
            let (low, high) = self.retry_until_answered(|| source.watermarks(&input.partition))?;
            let list = if (low..=high).contains(&input.position()) { &mut inside } else { &mut outside };
            list.push(input.partition.clone());
        }
        if !outside.is_empty() {
            self.restart(source, &outside, "their next offsets are not in the log")?;
        }
        // The stopped partition may be in `inside`, because its position may be inside the log again.
        if inside.is_empty() { Ok(()) } else { self.restart_fetching(source, &inside) }
    }

    pub(super) fn restart_in_batch(&mut self, source: &B::Consumer, partition: TopicPartition, why: &str) -> Result<Flow, Error> {
        if !self.writer.is_open() {
            // The batch is dropped, so the other partitions must read their records again, too.
            self.rewind(source)?;
        }
        self.restart(source, &[partition], why).map(|()| Flow::Rewound)
    }

    /// Gives up a replay that was not completed in time. Restores the partitions whose records are missing, so other partitions can
    /// continue. If none of these partitions can be restored, aborts the transaction, and the replay starts again. Also lowers the limit of
    /// transactions, so that later transactions can be replayed in time.
    pub(super) fn give_up_replay(&mut self, source: &B::Consumer) -> Result<(), Error> {
        if let Some(Load { records, bytes }) = self.writer.repeated_too_slowly() {
            tracing::warn!(
                records,
                bytes,
                "the records of the aborted transaction were not read and written again within half of worker.transaction_timeout; limiting each transaction to the number of records and bytes in this line"
            );
        }
        let missing = self.restorable();
        if missing.is_empty() {
            return self.abort(source, SinkError::Abort("the records of the aborted transaction were not read again in time".to_owned()));
        }
        self.restart(source, &missing, "the records of the aborted transaction were not read again in time")
    }

    /// Makes transactions smaller after the brokers did not accept the last transactions before their timeout. All records that already
    /// have verdicts must be in the same transaction. So the worker restores their partitions and judges these records again, which lets it
    /// use smaller transactions. A state that exists only in this process cannot be restored, so its records are replayed unchanged.
    /// Forwarded records have no verdicts, so they can be split among smaller transactions without a restore.
    pub(super) fn shrink_transactions(&mut self, source: &B::Consumer) -> Result<(), Error> {
        if !std::mem::take(&mut self.writer.shrinks) {
            return Ok(());
        }
        let partitions = self.restorable();
        let forwards = self.assignment.inputs.values().any(|input| self.topics[input.topic].forward.is_some());
        if partitions.is_empty() && !forwards {
            return Ok(());
        }
        let Load { records, bytes } = self.writer.shrink();
        tracing::warn!(
            records,
            bytes,
            "transactions time out before the brokers accept them; limiting each transaction to the number of records and bytes in this line. If the timeouts continue, raise worker.transaction_timeout"
        );
        let why = "transactions must be smaller";
        if partitions.is_empty() { Ok(()) } else { self.restart(source, &partitions, why) }
    }

    /// Returns the partitions whose replay after an abort is not complete, except those whose states are restored together with a state
    /// that exists only in this process.
    fn restorable(&self) -> Vec<TopicPartition> {
        let kept: BTreeSet<_> = self.only_in_memory().into_iter().map(|id| self.topics.unit_of_state(id)).collect();
        let inputs =
            self.assignment.inputs.iter().filter(|(id, input)| !input.replay_complete() && !kept.contains(&self.topics.unit_of(**id)));
        inputs.map(|(_, input)| input.partition.clone()).collect()
    }

    /// Returns the states without a changelog whose checkpoint lacks an input, although records of that input were judged.
    fn only_in_memory(&self) -> BTreeSet<StateId> {
        let mut ids: BTreeSet<_> = self.assignment.states.keys().copied().collect();
        ids.retain(|id| self.topics.first_of(id.space).changelog.is_none());
        if ids.is_empty() {
            return ids;
        }
        let stored: BTreeMap<_, _> = self.shared.store.all_metadata().unwrap_or_default().into_iter().collect();
        ids.retain(|&id| {
            let stored = stored.get(&self.topics.first_of(id.space).stored_as(id.partition));
            let is_stored = |input: &Input| stored.is_some_and(|metadata| metadata.offsets.contains_key(&input.topic_incarnation));
            inputs_of(&self.topics, &self.assignment.inputs, id).any(|input| input.has_history() && !is_stored(input))
        });
        ids
    }
}
