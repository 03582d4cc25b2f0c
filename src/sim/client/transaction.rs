//! The transactional calls of the producer (`rdkafka_txnmgr.c`).

use super::super::faults::Api;
use super::super::network::Code;
use super::super::{ClientId, World, micros, millis};
use super::consumer::SimMembership;
use super::error::{client_error, retriable, seen};
use super::producer::{ProducerState, SimProducer, TxnState};
use crate::broker::{ClientError, ErrorCode, ProducerClient as _};
use crate::record::{Offset, TopicPartition};
use std::time::Duration;

fn gone() -> ClientError {
    ClientError { is_fatal: true, ..client_error(ErrorCode::Fatal, "the process was killed".to_owned()) }
}

impl SimProducer {
    /// Simulates `rd_kafka_init_transactions`.
    pub(super) fn init(&self, timeout: Duration) -> Result<(), ClientError> {
        let (id, transaction_timeout) =
            self.with(|producer| (producer.transactional_id.clone().unwrap_or_default(), producer.timeout)).ok_or_else(gone)?;
        let name = id.clone();
        let serve = move |world: &mut World| world.init_producer(&id, transaction_timeout, None);
        let answer = self.simulation.call(self.id, Api::InitProducerId, timeout, |world| world.cluster.coordinator(&name), serve);
        self.with(|producer| match answer {
            Ok(pid) => {
                producer.pid = Some(pid);
                producer.state = TxnState::Ready;
                Ok(())
            }
            Err(code) if code.is_retriable() => Err(retriable(format!("Failed to initialize Producer ID: {code:?}"))),
            Err(code) => {
                producer.set_fatal(seen(&code), format!("Failed to initialize Producer ID: {code:?}"));
                Err(producer.state_error())
            }
        })
        .unwrap_or_else(|| Err(gone()))
    }

    /// Simulates `rd_kafka_begin_transaction`.
    pub(super) fn begin(&self) -> Result<(), ClientError> {
        let begun = self.simulation.with(|world| {
            let now = world.now;
            let producer = world.producer(self.id)?;
            if producer.state != TxnState::Ready {
                return Some(Err(producer.state_error()));
            }
            producer.state = TxnState::InTransaction;
            producer.began = now;
            (producer.failed_records, producer.error) = (0, None);
            Some(Ok(()))
        });
        begun.flatten().unwrap_or_else(|| Err(gone()))
    }

    /// Simulates `rd_kafka_send_offsets_to_transaction`: first `AddOffsetsToTxn`, then `TxnOffsetCommit`.
    pub(super) fn add_offsets(
        &self,
        offsets: &[(TopicPartition, Offset, String)],
        membership: &SimMembership,
        timeout: Duration,
    ) -> Result<(), ClientError> {
        let now = self.simulation.now_micros();
        let begun = self.with(|producer| {
            if producer.state != TxnState::InTransaction {
                return Err(producer.state_error());
            }
            producer.has_requests = true;
            // The call must end before the transaction times out.
            let left = producer.timeout.saturating_sub(now.saturating_sub(producer.began));
            Ok((producer.transactional_id.clone().unwrap_or_default(), producer.pid.unwrap_or_default(), left))
        });
        let (id, pid, left) = begun.unwrap_or_else(|| Err(gone()))?;
        let timeout = timeout.min(Duration::from_micros(left));
        let deadline = now.saturating_add(micros(timeout));
        let (name, group) = (id.clone(), membership.group.clone());
        let serve = move |world: &mut World| world.add_to_transaction(&id, pid, &[], Some(&group));
        let added = self.simulation.call(self.id, Api::AddOffsetsToTxn, timeout, |world| world.cluster.coordinator(&name), serve);
        self.check_offsets(added, true)?;
        let left = Duration::from_micros(deadline.saturating_sub(self.simulation.now_micros()));
        let (SimMembership { group, member }, offsets) = (membership.clone(), offsets.to_vec());
        let name = group.clone();
        let serve = move |world: &mut World| world.commit_transactional(&group, pid, &member, &offsets);
        let committed = self.simulation.call(self.id, Api::TxnOffsetCommit, left, |world| world.cluster.coordinator(&name), serve);
        self.check_offsets(committed, false)
    }

    fn check_offsets(&self, answer: Result<(), Code>, is_registration: bool) -> Result<(), ClientError> {
        let Err(code) = answer else { return Ok(()) };
        self.with(|producer| {
            // A copy of the request may still be in flight.
            producer.has_late_request |= !is_registration && matches!(code, Code::Transport | Code::TimedOut);
            let message = format!("Failed to commit offsets to transaction: {code:?}");
            let is_fatal = match code {
                Code::InvalidProducerEpoch | Code::ProducerFenced | Code::InvalidTxnState => true,
                Code::InvalidProducerIdMapping => !is_registration,
                _ => false,
            };
            producer.needs_bump |= code == Code::InvalidProducerIdMapping;
            if is_fatal {
                producer.set_fatal(seen(&code), message);
            } else {
                producer.set_abortable(seen(&code), message);
            }
            Err(producer.state_error())
        })
        .unwrap_or_else(|| Err(gone()))
    }

    /// Simulates `rd_kafka_commit_transaction`. After a timeout, the next call continues the commit.
    pub(super) fn commit(&self, timeout: Duration) -> Result<(), ClientError> {
        let deadline = self.simulation.deadline(timeout);
        let left = |simulation: &super::super::Simulation| Duration::from_micros(deadline.saturating_sub(simulation.now_micros()));
        let begun = self.with(|producer| match producer.state {
            TxnState::InTransaction => {
                producer.state = TxnState::BeginCommit;
                Ok(())
            }
            TxnState::BeginCommit | TxnState::Committing | TxnState::CommitNotAcked => Ok(()),
            _ => Err(producer.state_error()),
        });
        begun.unwrap_or_else(|| Err(gone()))?;
        if self.with(|producer| producer.state == TxnState::BeginCommit).unwrap_or(false) {
            if !self.flush(left(&self.simulation)) {
                let waiting = self.with(|producer| producer.waiting).unwrap_or(0);
                return Err(retriable(format!("Failed to flush all outstanding messages: {waiting} message(s) remaining")));
            }
            let sends = self.with(|producer| {
                if producer.state != TxnState::BeginCommit {
                    return Err(producer.state_error());
                }
                if producer.failed_records > 0 {
                    let message = format!("{} message(s) failed delivery", producer.failed_records);
                    producer.set_abortable(ErrorCode::Other, message);
                    return Err(producer.state_error());
                }
                producer.state = if producer.has_requests { TxnState::Committing } else { TxnState::CommitNotAcked };
                Ok(producer.has_requests)
            });
            if sends.unwrap_or_else(|| Err(gone()))? {
                self.simulation.with(|world| world.send_end(self.id, true));
            }
        }
        let ended = self.wait(left(&self.simulation), |producer| producer.state != TxnState::Committing);
        self.finish(ended, TxnState::CommitNotAcked)
    }

    /// Simulates `rd_kafka_abort_transaction`. After a timeout, the next call continues the abort.
    pub(super) fn abort(&self, timeout: Duration) -> Result<(), ClientError> {
        let deadline = self.simulation.deadline(timeout);
        let left = |simulation: &super::super::Simulation| Duration::from_micros(deadline.saturating_sub(simulation.now_micros()));
        let begun = self.with(|producer| match producer.state {
            TxnState::InTransaction | TxnState::AbortableError => {
                producer.state = TxnState::BeginAbort;
                Ok(())
            }
            TxnState::BeginAbort | TxnState::Aborting | TxnState::AbortNotAcked => Ok(()),
            _ => Err(producer.state_error()),
        });
        begun.unwrap_or_else(|| Err(gone()))?;
        if self.with(|producer| producer.state == TxnState::BeginAbort).unwrap_or(false) {
            // Records in flight must be answered first, because purging them would leave a gap in the sequence numbers.
            self.with(ProducerState::purge_queued);
            if !self.wait(left(&self.simulation), |producer| producer.waiting == 0) {
                return Err(retriable("Failed to flush all outstanding messages within the API timeout".to_owned()));
            }
            let sends = self.with(|producer| {
                if producer.state != TxnState::BeginAbort {
                    return Err(producer.state_error());
                }
                producer.state = if producer.has_requests { TxnState::Aborting } else { TxnState::AbortNotAcked };
                Ok(producer.has_requests)
            });
            if sends.unwrap_or_else(|| Err(gone()))? {
                self.simulation.with(|world| world.send_end(self.id, false));
            }
        }
        let ended = self.wait(left(&self.simulation), |producer| producer.state != TxnState::Aborting);
        self.finish(ended, TxnState::AbortNotAcked)
    }

    /// Completes a commit or an abort. Fails if the coordinator did not answer in time (`ended` is false), or if its answer has not moved
    /// the producer to the state `expected`.
    fn finish(&self, ended: bool, expected: TxnState) -> Result<(), ClientError> {
        self.with(|producer| {
            if !ended {
                return Err(retriable("Local: Timed out".to_owned()));
            }
            if producer.state != expected {
                return Err(producer.state_error());
            }
            // Resets the transaction like `rd_kafka_txn_complete`.
            producer.state = TxnState::Ready;
            producer.transaction += 1;
            producer.registered.clear();
            (producer.is_registering, producer.has_requests) = (false, false);
            Ok(())
        })
        .unwrap_or_else(|| Err(gone()))
    }
}

impl World {
    /// Sends `EndTxn`. `take_end` sends the request again after a retriable error.
    fn send_end(&mut self, client: ClientId, is_commit: bool) {
        let Some(producer) = self.producer(client) else { return };
        let (Some(id), Some(pid)) = (producer.transactional_id.clone(), producer.pid) else { return };
        let transaction = producer.transaction;
        let node = self.cluster.coordinator(&id);
        let serve = move |world: &mut Self| world.end_transaction(&id, pid, is_commit);
        self.request(client, (Api::EndTxn, node), serve, move |world, answer| world.take_end(client, transaction, is_commit, answer));
    }

    /// Handles the answer to `EndTxn` (`rd_kafka_txn_handle_EndTxn`).
    fn take_end(&mut self, client: ClientId, transaction: u64, is_commit: bool, answer: Result<(), Code>) {
        let backoff = millis(self.random.between(50, 300));
        let waits_for = if is_commit { TxnState::Committing } else { TxnState::Aborting };
        let Some(producer) = self.producer(client) else { return };
        if matches!(answer, Err(Code::Transport | Code::TimedOut)) {
            // A copy of the request may still be in flight.
            producer.has_late_request = true;
        }
        if producer.transaction != transaction || producer.state != waits_for {
            return;
        }
        match answer {
            Ok(()) if !is_commit && producer.needs_bump => return self.bump_epoch(client),
            Ok(()) => producer.state = if is_commit { TxnState::CommitNotAcked } else { TxnState::AbortNotAcked },
            Err(code) if code.is_retriable() => {
                self.inside_after(backoff, client, move |world| {
                    let is_waiting = |producer: &mut ProducerState| producer.transaction == transaction && producer.state == waits_for;
                    if world.producer(client).is_some_and(is_waiting) {
                        world.send_end(client, is_commit);
                    }
                });
                return;
            }
            Err(Code::InvalidProducerIdMapping) if !is_commit => return self.bump_epoch(client),
            Err(Code::InvalidProducerIdMapping) => {
                producer.needs_bump = true;
                producer.set_abortable(ErrorCode::Other, "Failed to end transaction: InvalidProducerIdMapping".to_owned());
            }
            Err(code) => producer.set_fatal(seen(&code), format!("Failed to end transaction: {code:?}")),
        }
        let signal = producer.signal;
        self.notify(signal);
    }

    /// Requests the next producer epoch, whose sequence numbers start at 0 (KIP-360, `rd_kafka_idemp_drain_epoch_bump0`).
    fn bump_epoch(&mut self, client: ClientId) {
        let Some(producer) = self.producer(client) else { return };
        let (Some(id), Some(pid), timeout) = (producer.transactional_id.clone(), producer.pid, producer.timeout) else { return };
        let node = self.cluster.coordinator(&id);
        let serve = move |world: &mut Self| world.init_producer(&id, timeout, Some(pid));
        self.request(client, (Api::InitProducerId, node), serve, move |world, answer| {
            let backoff = millis(world.random.between(50, 300));
            let Some(producer) = world.producer(client).filter(|producer| producer.state == TxnState::Aborting) else { return };
            match answer {
                Ok(pid) => {
                    producer.pid = Some(pid);
                    producer.needs_bump = false;
                    producer.queues.values_mut().for_each(|queue| queue.sequence = 0);
                    producer.state = TxnState::AbortNotAcked;
                }
                Err(code) if code.is_retriable() => {
                    world.inside_after(backoff, client, move |world| world.bump_epoch(client));
                    return;
                }
                Err(code) => producer.set_fatal(seen(&code), format!("Failed to bump the epoch: {code:?}")),
            }
            let signal = producer.signal;
            world.notify(signal);
        });
    }
}
