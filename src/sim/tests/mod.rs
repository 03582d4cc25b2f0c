//! Tests of the simulator itself: the rules of the simulated cluster that the worker depends on.

mod groups;
mod logs;
mod scheduling;
mod transactions;

use super::client::{SimConsumer, SimProducer};
use super::cluster::{Isolation, NewRecord, TopicOptions};
use super::{Options, Simulation};
use crate::broker::{Batch, Consumer, HeaderChanges, OutgoingRecord, OutgoingTime, ProducerClient, Rebalance, Record as _};
use crate::record::{Offset, TopicPartition};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::time::Duration;

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run<T>(test: impl FnOnce(&Simulation) -> T) -> T {
    Simulation::run(7, Options::default(), test)
}

pub(super) fn at(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition { topic: topic.to_owned(), partition }
}

pub(super) fn record(value: &str) -> NewRecord {
    NewRecord { key: Some(b"key".to_vec()), value: Some(value.as_bytes().to_vec()), ..NewRecord::default() }
}

pub(super) fn append(simulation: &Simulation, to: &TopicPartition, values: impl IntoIterator<Item = impl AsRef<str>>) {
    for value in values {
        simulation.append(to, record(value.as_ref()));
    }
}

pub(super) fn topic(simulation: &Simulation, name: &str, partitions: u32) {
    assert!(simulation.create_topic(name, partitions, TopicOptions::default()));
}

pub(super) fn values(simulation: &Simulation, of: &TopicPartition) -> Vec<String> {
    let records = simulation.read(of, Isolation::ReadCommitted);
    records.iter().map(|record| String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned()).collect()
}

pub(super) struct NoChanges;

impl HeaderChanges for NoChanges {
    fn removed(&self) -> impl Iterator<Item = &CStr> {
        std::iter::empty()
    }

    fn added(&self) -> impl Iterator<Item = (&CStr, &[u8])> {
        std::iter::empty()
    }
}

pub(super) fn new_producer(simulation: &Simulation, id: &str) -> SimProducer {
    SimProducer::with_id(simulation, Some(id.to_owned()), TIMEOUT, |_| {})
}

pub(super) fn producer(simulation: &Simulation, id: &str) -> SimProducer {
    let producer = new_producer(simulation, id);
    producer.init_transactions(TIMEOUT).unwrap();
    producer
}

pub(super) fn outgoing<'a>(topic: &'a str, partition: i32, value: &'a str) -> OutgoingRecord<'a, super::SimRecord, NoChanges> {
    let (key, value) = (Some(b"key".as_slice()), Some(value.as_bytes()));
    OutgoingRecord { topic, partition: Some(partition), key, value, time: OutgoingTime::Now, headers: None, tag: 1 }
}

pub(super) fn send(producer: &SimProducer, to: &TopicPartition, value: &str) {
    producer.send(&outgoing(&to.topic, to.partition, value)).unwrap();
}

/// A consumer that answers rebalances in `turn` and starts at the committed offsets, or at offset 0 if no offset is committed.
pub(super) struct Member {
    pub(super) consumer: SimConsumer,
    pub(super) held: Vec<TopicPartition>,
    pub(super) read: Vec<(TopicPartition, Offset, String)>,
    pub(super) revocations: Vec<(Vec<TopicPartition>, bool)>,
}

impl Member {
    pub(super) fn join(simulation: &Simulation, instance: Option<&str>, is_eager: bool, topics: &[&str]) -> Self {
        let consumer = SimConsumer::with_group(simulation, "group", instance.map(str::to_owned), is_eager, false, |_| {}).unwrap();
        consumer.subscribe(topics).unwrap();
        Self { consumer, held: Vec::new(), read: Vec::new(), revocations: Vec::new() }
    }

    /// Answers the queued rebalances and polls once. Returns `false` if the consumer is fenced.
    pub(super) fn turn(&mut self, wait: Duration) -> bool {
        while let Some(rebalance) = self.consumer.next_rebalance() {
            match rebalance {
                Rebalance::Assigned(partitions) => {
                    let committed = loop {
                        if let Ok(committed) = self.consumer.committed(&partitions) {
                            break committed;
                        }
                    };
                    let starts = partitions.iter().cloned().zip(committed.iter().map(|committed| committed.offset.unwrap_or(0)));
                    self.consumer.assign(&starts.collect::<Vec<_>>()).unwrap();
                    self.held.extend(partitions);
                }
                Rebalance::Revoked { partitions, lost } => {
                    self.held.retain(|held| !partitions.contains(held));
                    self.consumer.unassign(&partitions).unwrap();
                    self.revocations.push((partitions, lost));
                }
            }
        }
        let mut batch = Batch::default();
        let polled = self.consumer.poll(&mut batch, 100, wait);
        for record in &batch.messages {
            let value = String::from_utf8_lossy(record.value().unwrap_or_default()).into_owned();
            self.read.push((at(record.topic(), record.partition()), record.offset(), value));
        }
        polled.is_ok()
    }

    pub(super) fn holds(&self, count: usize) -> bool {
        self.held.len() == count
    }
}

/// Polls members in turn until `ready`, for at most a virtual minute.
pub(super) fn drive(simulation: &Simulation, members: &mut [&mut Member], ready: impl Fn(&[&mut Member]) -> bool) -> bool {
    let end = simulation.elapsed() + Duration::from_secs(60);
    while !ready(members) {
        if simulation.elapsed() > end {
            return false;
        }
        for member in members.iter_mut() {
            member.turn(Duration::from_millis(20));
        }
    }
    true
}

pub(super) fn counts(values: impl IntoIterator<Item = String>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    values.into_iter().for_each(|value| *counts.entry(value).or_default() += 1);
    counts
}
