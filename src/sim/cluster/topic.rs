//! Topics: settings, partitions, and record validation.

use super::super::network::{Code, NodeId};
use super::super::{Micros, World};
use super::Cluster;
use super::log::{Header, Log, StoredRecord};
use crate::record::{Offset, Timestamp, TimestampType, TopicPartition};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct TopicOptions {
    /// `cleanup.policy=compact`: records need keys.
    pub is_compacted: bool,
    pub log_append_time: bool,
    /// `message.timestamp.before.max.ms`.
    pub before_max_ms: i64,
    /// `message.timestamp.after.max.ms`.
    pub after_max_ms: i64,
    pub max_message_bytes: usize,
}

impl Default for TopicOptions {
    fn default() -> Self {
        Self { is_compacted: false, log_append_time: false, before_max_ms: i64::MAX, after_max_ms: 3_600_000, max_message_bytes: 1_048_588 }
    }
}

/// A record that a test appends to a topic.
#[derive(Clone, Debug, Default)]
pub struct NewRecord {
    /// The timestamp in milliseconds since the epoch. `None` means the time of the brokers' clock.
    pub time: Option<Timestamp>,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl NewRecord {
    pub(in crate::sim) fn store(self, now: Timestamp) -> StoredRecord {
        let headers = self.headers.into_iter().map(|(name, value)| -> Header { (name.into(), value.map(Into::into)) });
        StoredRecord {
            offset: 0,
            time: self.time.unwrap_or(now),
            time_type: TimestampType::CreateTime,
            key: self.key.map(Into::into),
            value: self.value.map(Into::into),
            headers: headers.collect(),
        }
    }
}

pub(in crate::sim) struct Partition {
    pub(in crate::sim) log: Log,
    pub(in crate::sim) leader: NodeId,
    /// The end of the followers' lag. During the lag, the high watermark does not move.
    pub(in crate::sim) lags_until: Micros,
    /// The time when a new leader learns the high watermark (KIP-207).
    pub(in crate::sim) unsure_until: Micros,
    pub(in crate::sim) no_leader_until: Micros,
    pub(in crate::sim) former: Option<FormerLeader>,
}

/// A former leader that was frozen while another broker took over. Until it learns about the election, it answers `ListOffsets` from
/// memory, because nothing in the request shows that another broker is now the leader (`Partition.fetchOffsetForTimestamp`).
pub(in crate::sim) struct FormerLeader {
    pub(in crate::sim) start: Offset,
    pub(in crate::sim) last_stable: Offset,
    pub(in crate::sim) high_watermark: Offset,
    pub(in crate::sim) times: std::ops::Range<Micros>,
}

pub(in crate::sim) struct Topic {
    pub(in crate::sim) name: Arc<str>,
    pub(in crate::sim) id: String,
    pub(in crate::sim) options: TopicOptions,
    pub(in crate::sim) partitions: Vec<Partition>,
}

impl Topic {
    fn new_partition(number: usize, nodes: usize) -> Partition {
        let mut log = Log::default();
        log.new_epoch();
        Partition { log, leader: number % nodes, lags_until: 0, unsure_until: 0, no_leader_until: 0, former: None }
    }

    /// Validates the records of a batch and sets their timestamps if the topic has `log_append_time`
    /// (`LogValidator.validateMessagesAndAssignOffsets`).
    pub(in crate::sim) fn validate(&self, partition: i32, records: &mut [StoredRecord], now: Timestamp) -> Result<(), Code> {
        let options = &self.options;
        if records.iter().map(StoredRecord::bytes).sum::<usize>() > options.max_message_bytes {
            return Err(Code::TooLarge);
        }
        let mut refused = Vec::new();
        for (at, record) in records.iter_mut().enumerate() {
            if options.is_compacted && record.key.is_none() {
                let text = format!("Compacted topic cannot accept message without key in topic partition {}-{partition}.", self.name);
                refused.push((at, false, text));
            } else if options.log_append_time {
                (record.time, record.time_type) = (now, TimestampType::LogAppendTime);
            } else if record.time != -1
                && (now.saturating_sub(record.time) > options.before_max_ms || record.time.saturating_sub(now) > options.after_max_ms)
            {
                let (low, high) = (now.saturating_sub(options.before_max_ms), now.saturating_add(options.after_max_ms));
                let time = record.time;
                let text = format!(
                    "Timestamp {time} of message with offset {at} is out of range. The timestamp should be within [{low}, {high}]."
                );
                refused.push((at, true, text));
            }
        }
        if refused.is_empty() { Ok(()) } else { Err(Code::InvalidRecords(refused)) }
    }
}

impl StoredRecord {
    /// The approximate size that counts toward `max.message.bytes`.
    pub(in crate::sim) fn bytes(&self) -> usize {
        let len = |bytes: &Option<Box<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + len(value) + 2).sum();
        len(&self.key) + len(&self.value) + headers + 16
    }
}

impl Cluster {
    pub(in crate::sim) fn create_topic(&mut self, name: &str, partitions: u32, options: TopicOptions) -> Result<(), Code> {
        if self.topics.contains_key(name) {
            return Err(Code::TopicExists);
        }
        let (id, nodes) = (self.new_id(), self.nodes.len());
        let partitions = (0..partitions as usize).map(|number| Topic::new_partition(number, nodes)).collect();
        self.topics.insert(name.to_owned(), Topic { name: name.into(), id, options, partitions });
        Ok(())
    }

    pub(in crate::sim) fn add_partitions(&mut self, name: &str, wanted: u32) -> Result<(), Code> {
        let nodes = self.nodes.len();
        let topic = self.topics.get_mut(name).ok_or(Code::UnknownTopic)?;
        let have = topic.partitions.len();
        topic.partitions.extend((have..wanted as usize).map(|number| Topic::new_partition(number, nodes)));
        Ok(())
    }

    /// Deletes a topic and its committed offsets in all groups (`OffsetMetadataManager.onPartitionsDeleted`).
    pub(in crate::sim) fn delete_topic(&mut self, name: &str) {
        self.topics.remove(name);
        for group in self.groups.values_mut() {
            group.offsets.retain(|partition, _| partition.topic != name);
        }
    }
}

impl World {
    /// Makes the brokers answer fetch requests that wait for new records of a partition.
    pub(in crate::sim) fn log_changed(&mut self, of: &TopicPartition) {
        let parked: Vec<_> = self.clients.iter().filter(|(_, client)| client.is_parked_at(of)).map(|(&id, _)| id).collect();
        for client in parked {
            if let Some(fetcher) = self.fetcher(client) {
                fetcher.unpark();
            }
            let delay = self.latency(0);
            self.inside_after(delay, client, move |world| world.fetch(client));
        }
    }

    /// Replicates an append. If the followers lag, the producer gets its answer only when they have caught up.
    pub(in crate::sim) fn appended(&mut self, of: &TopicPartition) {
        let now = self.now;
        let Ok(partition) = self.cluster.partition_mut(of) else { return };
        if partition.lags_until > now {
            self.answer_after = self.answer_after.max(partition.lags_until);
            return;
        }
        let end = partition.log.end;
        partition.log.replicate(end);
        self.log_changed(of);
    }

    /// Makes the followers of a partition lag for `time`. During the lag, appended records stay above the high watermark.
    pub(in crate::sim) fn lag(&mut self, of: &TopicPartition, time: Micros) {
        let until = self.now + time;
        let Ok(partition) = self.cluster.partition_mut(of) else { return };
        partition.lags_until = partition.lags_until.max(until);
        let of = of.clone();
        self.after(time, move |world| world.appended(&of));
    }
}
