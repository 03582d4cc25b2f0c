//! Produce, fetch, and list-offsets requests at a partition's leader.

use super::super::network::Code;
use super::super::{World, micros};
use super::log::{Log, Producer, Read, Refused};
use super::{Isolation, StoredRecord};
use crate::record::{Offset, TopicPartition};

impl World {
    fn check_leader(&self, of: &TopicPartition) -> Result<(), Code> {
        if self.cluster.partition(of)?.no_leader_until > self.now { Err(Code::NotLeader) } else { Ok(()) }
    }

    /// Appends a batch (`ReplicaManager.appendRecords`). Returns the offset of its first record.
    pub(in crate::sim) fn append(
        &mut self,
        to: &TopicPartition,
        producer: Option<Producer>,
        mut records: Vec<StoredRecord>,
    ) -> Result<Offset, Code> {
        self.check_leader(to)?;
        let now = self.broker_clock();
        let topic = self.cluster.topics.get(&to.topic).ok_or(Code::UnknownTopic)?;
        let is_open =
            producer.is_some_and(|producer| self.cluster.partition(to).is_ok_and(|partition| partition.log.is_open(producer.pid)));
        if let Some(producer) = producer.filter(|producer| producer.is_transactional && !is_open) {
            // The leader asks the coordinator whether the transaction contains the partition. Without this check, a late batch could open a
            // transaction that nobody ends (KIP-890 part 1, `AddPartitionsToTxnManager`).
            self.cluster.transactions.verify(&producer, to)?;
        }
        topic.validate(to.partition, &mut records, now)?;
        if producer.is_some() {
            let time = micros(self.faults.record_time) * records.len() as u64;
            self.cluster.writes_until = self.cluster.writes_until.max(self.now) + time;
            self.answer_after = self.cluster.writes_until;
        }
        match self.cluster.partition_mut(to)?.log.append(producer, records) {
            Ok(offset) => {
                self.trace_on("append", to, offset);
                self.appended(to);
                Ok(offset)
            }
            Err(Refused::Duplicate(offset)) => {
                self.answer_after = self.answer_after.max(self.cluster.partition(to)?.lags_until);
                Ok(offset)
            }
            Err(Refused::OutOfOrder) => Err(Code::OutOfOrderSequence),
            Err(Refused::OldEpoch) => Err(Code::InvalidProducerEpoch),
        }
    }

    /// Reads from a partition (`ReplicaManager.readFromLog`). `epoch` is the leader epoch of the last record that the reader has received,
    /// which shows whether that record was truncated.
    pub(in crate::sim) fn read_log(
        &self,
        of: &TopicPartition,
        from: Offset,
        epoch: Option<i32>,
        isolation: Isolation,
        most: usize,
    ) -> Result<(Read, &Log), Code> {
        self.check_leader(of)?;
        let log = &self.cluster.partition(of)?.log;
        let was_truncated = epoch.is_some_and(|epoch| log.end_of_epoch(epoch) < from);
        if from < log.start || from > log.end || was_truncated {
            return Err(Code::OffsetOutOfRange);
        }
        Ok((log.read(from, isolation, most), log))
    }

    /// The log start offset and the end of a partition (`ListOffsets`). A new leader that does not know the high watermark yet returns a
    /// retriable error (KIP-207, `Partition.fetchOffsetForTimestamp`).
    pub(in crate::sim) fn list_offsets(&self, of: &TopicPartition, isolation: Isolation) -> Result<(Offset, Offset), Code> {
        self.check_leader(of)?;
        let partition = self.cluster.partition(of)?;
        if partition.unsure_until > self.now {
            return Err(Code::OffsetNotAvailable);
        }
        if let Some(former) = partition.former.as_ref().filter(|former| former.times.contains(&self.now)) {
            let end = if isolation == Isolation::ReadCommitted { former.last_stable } else { former.high_watermark };
            return Ok((former.start, end));
        }
        Ok((partition.log.start, partition.log.end_for(isolation)))
    }
}
