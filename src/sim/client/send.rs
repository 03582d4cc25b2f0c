//! Sending queued records to their partitions: registration, batches, retries, and failures.

use super::super::cluster::Producer;
use super::super::faults::Api;
use super::super::network::Code;
use super::super::{ClientId, Micros, World, millis};
use super::error::seen;
use super::producer::{Message, ProducerState, TxnState};
use crate::broker::ErrorCode;
use crate::record::{Offset, TopicPartition};

impl World {
    /// Chooses the partition that a Java producer would choose (`Utils.murmur2`). If the record has no key, chooses a random partition.
    pub(super) fn choose_partition(&mut self, mut to: TopicPartition, key: Option<&[u8]>) -> TopicPartition {
        let count = self.cluster.topics.get(&to.topic).map_or(1, |topic| topic.partitions.len()).max(1);
        let partition = key.map_or_else(|| self.random.index(count), |key| (murmur2(key) & 0x7fff_ffff) as usize % count);
        to.partition = i32::try_from(partition).unwrap_or(0);
        to
    }

    /// Sends the batches that are due. A batch is due if the linger time has passed since `Queue::since`, if the batch is full, or if the
    /// application flushes.
    pub(super) fn send_batches(&mut self, client: ClientId) {
        let now = self.now;
        let Some(producer) = self.producer(client) else { return };
        let Some((pid, epoch)) = producer.pid else { return };
        let flushes = producer.flushes_until > now;
        let is_transactional = producer.transactional_id.is_some();
        if is_transactional {
            let may_send = matches!(producer.state, TxnState::InTransaction | TxnState::BeginCommit);
            if !may_send {
                return;
            }
            let unknown = producer.queues.iter().filter(|(to, queue)| !queue.pending.is_empty() && !producer.registered.contains(*to));
            let unknown: Vec<_> = unknown.map(|(to, _)| to.clone()).collect();
            if !unknown.is_empty() && !producer.is_registering {
                self.register_partitions(client, unknown);
            }
        }
        let Some(producer) = self.producer(client) else { return };
        let (linger, most) = (producer.linger, if producer.one_record_per_batch { 1 } else { 40 });
        let batch_bytes = producer.batch_bytes;
        let registered = &producer.registered;
        let mut batches = Vec::new();
        for (to, queue) in &mut producer.queues {
            let is_due = flushes || queue.pending.len() >= most || now >= queue.since.saturating_add(linger);
            if queue.pending.is_empty() || !queue.in_flight.is_empty() || !is_due || is_transactional && !registered.contains(to) {
                continue;
            }
            let mut bytes = 0;
            while queue.in_flight.len() < most
                && let Some(next) = queue.pending.front()
            {
                bytes += next.record.bytes();
                if bytes > batch_bytes && !queue.in_flight.is_empty() {
                    break;
                }
                queue.in_flight.extend(queue.pending.pop_front());
            }
            queue.batches += 1;
            let producer = Producer { pid, epoch, sequence: queue.sequence, is_transactional };
            batches.push((to.clone(), producer, queue.batches));
        }
        for (to, producer, batch) in batches {
            self.send_batch(client, to, producer, batch);
        }
    }

    /// Sends the batch in flight of a partition, for the first time or as a retry.
    fn send_batch(&mut self, client: ClientId, to: TopicPartition, as_producer: Producer, batch: u64) {
        let node = self.cluster.leader(&to);
        let queue = self.producer(client).and_then(|producer| producer.queues.get(&to));
        let Some(queue) = queue.filter(|queue| queue.batches == batch && !queue.in_flight.is_empty()) else { return };
        let records = queue.in_flight.iter().map(|message| message.record.clone()).collect();
        let target = to.clone();
        let serve = move |world: &mut Self| {
            if world.cluster.partition(&target)?.leader != node {
                return Err(Code::NotLeader);
            }
            // Without transactions, a retry can write a batch twice. The real producer is idempotent, so the worker faces more duplicates
            // here than in production.
            world.append(&target, as_producer.is_transactional.then_some(as_producer), records)
        };
        self.request(client, (Api::Produce, node), serve, move |world, answer| {
            world.take_appended(client, to, (as_producer, batch), answer);
        });
    }

    fn take_appended(&mut self, client: ClientId, to: TopicPartition, (as_producer, batch): (Producer, u64), answer: Result<Offset, Code>) {
        let (now, backoff) = (self.now, millis(self.random.between(50, 200)));
        let Some(producer) = self.producer(client) else { return };
        let Some(queue) = producer.queues.get_mut(&to) else { return };
        if queue.in_flight.is_empty() || producer.pid != Some((as_producer.pid, as_producer.epoch)) || queue.batches != batch {
            // The batch has already been purged or answered.
            return;
        }
        match answer {
            Ok(offset) => {
                let count = queue.in_flight.len();
                queue.sequence += i32::try_from(count).unwrap_or(0);
                let sent = std::mem::take(&mut queue.in_flight);
                producer.waiting -= count;
                for (offset, _) in (offset..).zip(sent).filter(|(_, message)| message.tag == 0) {
                    producer.written.entry(to.clone()).or_default().push(offset);
                }
            }
            Err(code) if code.is_retriable() && queue.in_flight.iter().all(|message| message.deadline > now) => {
                self.inside_after(backoff, client, move |world| world.send_batch(client, to, as_producer, batch));
                return;
            }
            Err(code) => fail_batch(producer, &to, &code),
        }
        let signal = producer.signal;
        self.notify(signal);
        self.send_batches(client);
    }

    /// Adds partitions to the transaction (`rd_kafka_txn_register_partitions`).
    fn register_partitions(&mut self, client: ClientId, partitions: Vec<TopicPartition>) {
        let Some(producer) = self.producer(client) else { return };
        let (Some(id), Some(pid)) = (producer.transactional_id.clone(), producer.pid) else { return };
        (producer.is_registering, producer.has_requests) = (true, true);
        let transaction = producer.transaction;
        let node = self.cluster.coordinator(&id);
        let asked = partitions.clone();
        let serve = move |world: &mut Self| world.add_to_transaction(&id, pid, &asked, None);
        self.request(client, (Api::AddPartitionsToTxn, node), serve, move |world, answer| {
            world.take_registered(client, transaction, partitions, answer);
        });
    }

    fn take_registered(&mut self, client: ClientId, transaction: u64, partitions: Vec<TopicPartition>, answer: Result<(), Code>) {
        let (now, backoff) = (self.now, millis(self.random.between(20, 200)));
        let Some(producer) = self.producer(client).filter(|producer| producer.transaction == transaction) else { return };
        producer.is_registering = false;
        match answer {
            Ok(()) => producer.registered.extend(partitions),
            Err(code) if code.is_retriable() => {
                expire(producer, now);
                let signal = producer.signal;
                self.notify(signal);
                self.inside_after(backoff, client, move |world| world.send_batches(client));
                return;
            }
            Err(Code::InvalidProducerIdMapping) => {
                producer.needs_bump = true;
                producer.set_abortable(ErrorCode::Other, "Failed to add partitions: InvalidProducerIdMapping".to_owned());
            }
            Err(code) => producer.set_fatal(seen(&code), format!("Failed to add partitions to transaction: {code:?}")),
        }
        let signal = producer.signal;
        self.notify(signal);
        self.send_batches(client);
    }
}

/// Fails queued records that have timed out (`rd_kafka_broker_scan` with `message.timeout.ms`).
fn expire(producer: &mut ProducerState, now: Micros) {
    let mut expired = Vec::new();
    for (to, queue) in &mut producer.queues {
        let count = queue.pending.iter().take_while(|message| message.deadline <= now).count();
        expired.extend(queue.pending.drain(..count).map(|message| (to.topic.clone(), message)));
    }
    producer.waiting -= expired.len();
    for (topic, message) in &expired {
        producer.report(topic, message, ErrorCode::Other, "Local: Message timed out");
    }
}

fn fail_batch(producer: &mut ProducerState, to: &TopicPartition, code: &Code) {
    let Some(queue) = producer.queues.get_mut(to) else { return };
    let failed: Vec<Message> = std::mem::take(&mut queue.in_flight);
    producer.waiting -= failed.len();
    producer.needs_bump = true;
    for (at, message) in failed.iter().enumerate() {
        let (code, reason) = match code {
            // The broker lists the records that it rejects (KIP-467). The other records of the batch fail with them.
            Code::InvalidRecords(refused) => match refused.iter().find(|(refused, ..)| *refused == at) {
                Some((_, true, reason)) => (ErrorCode::InvalidTimestamp, &**reason),
                Some((_, false, reason)) => (ErrorCode::InvalidRecord, &**reason),
                None => (
                    ErrorCode::OtherRecord,
                    "Failed to append record because it was part of a batch which had one more more invalid records",
                ),
            },
            code => (seen(code), ""),
        };
        producer.report(&to.topic, message, code, reason);
    }
    let message = format!("ProduceRequest for {to} with {} message(s) failed: {code:?}", failed.len());
    if *code == Code::InvalidProducerEpoch && producer.transactional_id.is_some() {
        producer.set_fatal(ErrorCode::Fenced, message);
    } else {
        producer.set_abortable(seen(code), message);
    }
}

/// Kafka's `Utils.murmur2`.
pub(super) fn murmur2(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ u32::try_from(key.len()).unwrap_or(0);
    let mut chunks = key.chunks_exact(4);
    for chunk in &mut chunks {
        let mut word = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]).wrapping_mul(M);
        word = (word ^ (word >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ word;
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        let word = rest.iter().rev().fold(0, |word, &byte| (word << 8) | u32::from(byte));
        hash = (hash ^ word).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}
