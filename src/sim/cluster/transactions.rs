//! The transaction coordinator with version 1 of the transaction protocol (`TransactionCoordinator`, `TransactionMetadata`).

use super::super::network::{Code, NodeId};
use super::super::{Micros, World, micros, millis};
use super::log::{Pid, Producer};
use crate::record::TopicPartition;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum TransactionState {
    Empty,
    Ongoing,
    PrepareCommit,
    PrepareAbort,
    CompleteCommit,
    CompleteAbort,
}
use TransactionState::{CompleteAbort, CompleteCommit, Empty, Ongoing, PrepareAbort, PrepareCommit};

struct Transaction {
    pid: Pid,
    epoch: i16,
    /// The epoch before the last bump that the producer requested. If the answer to that request is lost, the producer repeats the request
    /// with this epoch (KIP-360).
    last_epoch: Option<i16>,
    state: TransactionState,
    timeout: Micros,
    began: Micros,
    partitions: BTreeSet<TopicPartition>,
    groups: BTreeSet<String>,
}

#[derive(Default)]
pub(in crate::sim) struct Transactions {
    by_id: BTreeMap<String, Transaction>,
    ids: BTreeMap<Pid, String>,
    next_pid: Pid,
    /// The brokers that host moved coordinators, by the broker that hosted the coordinator originally.
    pub(in crate::sim) moved: BTreeMap<NodeId, NodeId>,
}

impl Transactions {
    pub(in crate::sim) const fn new_pid(&mut self) -> Pid {
        self.next_pid += 1;
        self.next_pid
    }

    /// Fails with `InvalidProducerIdMapping` if the transactional id has a different producer id now, and with `ProducerFenced` if the
    /// epoch is not the current one.
    fn of(&mut self, id: &str, (pid, epoch): (Pid, i16)) -> Result<&mut Transaction, Code> {
        let transaction = self.by_id.get_mut(id).filter(|transaction| transaction.pid == pid).ok_or(Code::InvalidProducerIdMapping)?;
        if transaction.epoch == epoch { Ok(transaction) } else { Err(Code::ProducerFenced) }
    }

    fn of_pid(&self, pid: Pid) -> Option<&Transaction> {
        self.by_id.get(self.ids.get(&pid)?)
    }

    /// Checks that a partition is part of an open transaction (KIP-890, `handleVerifyPartitionsInTransaction`).
    pub(super) fn verify(&self, producer: &Producer, partition: &TopicPartition) -> Result<(), Code> {
        match self.of_pid(producer.pid) {
            Some(transaction) if transaction.epoch != producer.epoch => Err(Code::InvalidProducerEpoch),
            Some(Transaction { state: Ongoing, partitions, .. }) if partitions.contains(partition) => Ok(()),
            _ => Err(Code::InvalidTxnState),
        }
    }

    pub(super) fn verify_group(&self, pid: Pid, epoch: i16, group: &str) -> Result<(), Code> {
        match self.of_pid(pid) {
            Some(transaction) if transaction.epoch != epoch => Err(Code::InvalidProducerEpoch),
            Some(Transaction { state: Ongoing, groups, .. }) if groups.contains(group) => Ok(()),
            _ => Err(Code::InvalidTxnState),
        }
    }

    /// Removes all transactional ids without an open transaction, as after `transactional.id.expiration.ms`
    /// (`TransactionStateManager.removeExpiredTransactionalIds`). Their producers get `INVALID_PRODUCER_ID_MAPPING`.
    pub(in crate::sim) fn expire_ids(&mut self) {
        self.by_id.retain(|_, transaction| matches!(transaction.state, Ongoing | PrepareCommit | PrepareAbort));
    }

    pub(in crate::sim) fn state(&self, id: &str) -> Option<TransactionState> {
        self.by_id.get(id).map(|transaction| transaction.state)
    }
}

impl World {
    /// Assigns an id and an epoch to a producer and fences earlier producers (`handleInitProducerId`). If an earlier producer has an open
    /// transaction, the coordinator aborts the transaction first and returns `ConcurrentTransactions`, so the caller must retry. With
    /// `Faults::fenced_init`, it may return `ProducerFenced` instead.
    pub(in crate::sim) fn init_producer(&mut self, id: &str, timeout: Micros, known: Option<(Pid, i16)>) -> Result<(Pid, i16), Code> {
        let is_fenced = {
            let often = self.faults.fenced_init;
            self.random.chance(often)
        };
        let transactions = &mut self.cluster.transactions;
        let Some(transaction) = transactions.by_id.get_mut(id) else {
            let pid = transactions.new_pid();
            let (partitions, groups) = (BTreeSet::new(), BTreeSet::new());
            let transaction = Transaction { pid, epoch: 0, last_epoch: None, state: Empty, timeout, began: 0, partitions, groups };
            transactions.by_id.insert(id.to_owned(), transaction);
            transactions.ids.insert(pid, id.to_owned());
            return Ok((pid, 0));
        };
        if known.is_some_and(|known| known != (transaction.pid, transaction.epoch)) {
            let is_retry = transaction.state == Empty
                && known.map(|(pid, epoch)| (pid, Some(epoch))) == Some((transaction.pid, transaction.last_epoch));
            return if is_retry { Ok((transaction.pid, transaction.epoch)) } else { Err(Code::ProducerFenced) };
        }
        match transaction.state {
            PrepareCommit | PrepareAbort => Err(Code::ConcurrentTransactions),
            Ongoing => {
                // Fences the producer of the open transaction (`prepareFenceProducerEpoch`).
                transaction.epoch += 1;
                self.trace("transaction fenced", 0, 0);
                self.prepare(id, PrepareAbort);
                Err(if is_fenced { Code::ProducerFenced } else { Code::ConcurrentTransactions })
            }
            Empty | CompleteCommit | CompleteAbort => {
                transaction.last_epoch = known.map(|(_, epoch)| epoch);
                transaction.epoch += 1;
                transaction.timeout = timeout;
                transaction.state = Empty;
                Ok((transaction.pid, transaction.epoch))
            }
        }
    }

    /// Adds partitions and groups to a transaction (`handleAddPartitionsToTransaction`). The first partition or group opens it.
    pub(in crate::sim) fn add_to_transaction(
        &mut self,
        id: &str,
        producer: (Pid, i16),
        partitions: &[TopicPartition],
        group: Option<&str>,
    ) -> Result<(), Code> {
        if partitions.iter().any(|partition| self.cluster.partition(partition).is_err()) {
            return Err(Code::UnknownTopic);
        }
        let now = self.now;
        let transaction = self.cluster.transactions.of(id, producer)?;
        match transaction.state {
            PrepareCommit | PrepareAbort => return Err(Code::ConcurrentTransactions),
            Ongoing => {}
            Empty | CompleteCommit | CompleteAbort => {
                (transaction.state, transaction.began) = (Ongoing, now);
                transaction.partitions.clear();
                transaction.groups.clear();
                let (timeout, id) = (transaction.timeout, id.to_owned());
                self.watch_transaction(id, producer, now, timeout);
            }
        }
        let transaction = self.cluster.transactions.of(id, producer)?;
        transaction.partitions.extend(partitions.iter().cloned());
        transaction.groups.extend(group.map(str::to_owned));
        Ok(())
    }

    /// Aborts a transaction if it times out (`abortTimedOutTransactions`). The coordinator checks every ten seconds.
    fn watch_transaction(&mut self, id: String, producer: (Pid, i16), began: Micros, timeout: Micros) {
        let late = self.random.below(millis(10_000));
        self.after(timeout + late, move |world| {
            let Ok(transaction) = world.cluster.transactions.of(&id, producer) else { return };
            if transaction.state == Ongoing && transaction.began == began {
                // The bump fences the producer, which does not know that its transaction has timed out.
                transaction.epoch += 1;
                world.trace("transaction timed out", 0, 0);
                world.prepare(&id, PrepareAbort);
            }
        });
    }

    /// Ends a transaction (`endTransaction`). The coordinator answers before the markers are written. The request does not identify the
    /// transaction, so a late copy ends any open transaction of the same producer epoch (version 2 of the protocol fixes this, KIP-890).
    pub(in crate::sim) fn end_transaction(&mut self, id: &str, producer: (Pid, i16), is_commit: bool) -> Result<(), Code> {
        let transaction = self.cluster.transactions.of(id, producer)?;
        match (transaction.state, is_commit) {
            (Ongoing, _) => {
                self.trace("EndTxn", i64::from(is_commit), 0);
                self.prepare(id, if is_commit { PrepareCommit } else { PrepareAbort });
                Ok(())
            }
            (CompleteCommit, true) | (CompleteAbort, false) => Ok(()),
            (PrepareCommit, true) | (PrepareAbort, false) => Err(Code::ConcurrentTransactions),
            _ => Err(Code::InvalidTxnState),
        }
    }

    /// Decides the outcome of a transaction and schedules its markers (`TransactionMarkerChannelManager`).
    fn prepare(&mut self, id: &str, state: TransactionState) {
        let Some(transaction) = self.cluster.transactions.by_id.get_mut(id) else { return };
        transaction.state = state;
        let (pid, epoch) = (transaction.pid, transaction.epoch);
        let (partitions, groups) = (transaction.partitions.clone(), transaction.groups.clone());
        if partitions.is_empty() && groups.is_empty() {
            self.complete(id);
        }
        for partition in partitions {
            let delay = self.marker_delay();
            let id = id.to_owned();
            self.after(delay, move |world| world.write_marker(id, (pid, epoch), partition));
        }
        for group in groups {
            let delay = self.marker_delay();
            let id = id.to_owned();
            self.after(delay, move |world| world.write_group_marker(id, (pid, epoch), group));
        }
    }

    /// Ends a transaction in one partition, for a producer that no coordinator knows.
    pub(in crate::sim) fn end_foreign_transaction(&mut self, pid: Pid, of: &TopicPartition, is_commit: bool) {
        let now = self.broker_clock();
        if let Ok(partition) = self.cluster.partition_mut(of) {
            partition.log.end_transaction(pid, 0, is_commit, now);
            self.trace_on("marker", of, i64::from(is_commit));
            self.appended(of);
        }
    }

    fn marker_delay(&mut self) -> Micros {
        let slow = if self.random.chance(self.faults.slow_marker) { self.random.below(micros(self.faults.slow_by)) } else { 0 };
        self.random.between(100, millis(15)) + slow
    }

    fn is_commit(&self, id: &str) -> bool {
        self.cluster.transactions.state(id) == Some(PrepareCommit)
    }

    fn write_marker(&mut self, id: String, (pid, epoch): (Pid, i16), partition: TopicPartition) {
        let has_no_leader = self.cluster.partition(&partition).is_ok_and(|found| found.no_leader_until > self.now);
        if has_no_leader || self.cluster.is_down(self.cluster.leader(&partition), self.now) {
            self.after(millis(100), move |world| world.write_marker(id, (pid, epoch), partition));
            return;
        }
        let is_commit = self.is_commit(&id);
        let now = self.broker_clock();
        if let Ok(found) = self.cluster.partition_mut(&partition) {
            found.log.end_transaction(pid, epoch, is_commit, now);
            self.trace_on("marker", &partition, i64::from(is_commit));
            self.appended(&partition);
        }
        if let Some(transaction) = self.cluster.transactions.by_id.get_mut(&id) {
            transaction.partitions.remove(&partition);
        }
        self.complete(&id);
    }

    fn write_group_marker(&mut self, id: String, (pid, epoch): (Pid, i16), group: String) {
        if self.cluster.is_down(self.cluster.coordinator(&group), self.now) {
            self.after(millis(100), move |world| world.write_group_marker(id, (pid, epoch), group));
            return;
        }
        let is_commit = self.is_commit(&id);
        self.end_offsets(&group, pid, is_commit);
        self.trace("marker of offsets", i64::from(epoch), i64::from(is_commit));
        if let Some(transaction) = self.cluster.transactions.by_id.get_mut(&id) {
            transaction.groups.remove(&group);
        }
        self.complete(&id);
    }

    fn complete(&mut self, id: &str) {
        let Some(transaction) = self.cluster.transactions.by_id.get_mut(id) else { return };
        if transaction.partitions.is_empty() && transaction.groups.is_empty() {
            transaction.state = match transaction.state {
                PrepareCommit => CompleteCommit,
                PrepareAbort => CompleteAbort,
                other => other,
            };
        }
    }
}
