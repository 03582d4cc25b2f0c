//! The methods that a test uses to control a simulation: topics, records, offsets, outages, and time.

use super::cluster::{CommittedOffset, FormerCoordinator, FormerLeader, Isolation, NewRecord, Producer, StoredRecord, TopicOptions};
use super::faults::{Api, Faults, RequestFault};
use super::network::Code;
use super::process::Process;
use super::{Simulation, World, micros};
use crate::record::{Offset, TopicPartition};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

impl Simulation {
    /// Runs `change` as a client call. Returns `None` if the calling thread is unwinding.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut World) -> T) -> Option<T> {
        let mut world = self.enter()?;
        let result = change(&mut world);
        drop(self.settled(world));
        Some(result)
    }

    fn change<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        self.with(change).expect("a test does not change a simulation while it panics")
    }

    /// Starts a process. The process ends when `main` has returned and all other threads of the process have ended.
    pub fn start<T: Send + 'static>(&self, name: &str, main: impl FnOnce() -> T + Send + 'static) -> Process<T> {
        Process::start(self, name, main)
    }

    pub fn sleep(&self, time: Duration) {
        crate::runtime::sleep(time);
    }

    /// Checks `ready` every `interval` until it returns `true`, for at most `limit` of virtual time. Returns the last result of `ready`.
    pub fn wait_for(&self, interval: Duration, limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
        let deadline = self.deadline(limit);
        loop {
            if ready() {
                return true;
            }
            if self.now_micros() >= deadline {
                return false;
            }
            self.sleep(interval);
        }
    }

    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_micros(self.now_micros())
    }

    /// The brokers' wall clock, in milliseconds since the epoch.
    #[must_use]
    pub fn broker_clock(&self) -> i64 {
        self.lock().broker_clock()
    }

    #[must_use]
    pub fn draw(&self, bound: u64) -> u64 {
        self.lock().random.below(bound)
    }

    pub fn set_faults(&self, faults: Faults) {
        self.change(|world| {
            let had_outages = world.faults.outage_every.is_some();
            world.faults = faults;
            if !had_outages {
                world.schedule_outage();
            }
        });
    }

    /// Injects a fault into the next request of a kind.
    pub fn set_request_fault(&self, of: Api, fault: RequestFault) {
        self.change(|world| world.request_faults.push((of, fault)));
    }

    #[must_use]
    pub fn trace(&self, lines: usize) -> String {
        self.lock().render_trace(lines)
    }

    /// The number of events and their digest, for the comparison of two runs.
    #[must_use]
    pub fn digest(&self) -> (u64, u64) {
        self.lock().trace.digest()
    }

    /// Returns `false` if the topic already exists.
    #[expect(clippy::must_use_candidate, reason = "most tests know that the topic is new")]
    pub fn create_topic(&self, name: &str, partitions: u32, options: TopicOptions) -> bool {
        self.change(|world| world.cluster.create_topic(name, partitions, options).is_ok())
    }

    /// Deletes a topic and the offsets that groups have committed for it.
    pub fn delete_topic(&self, name: &str) {
        self.change(|world| world.cluster.delete_topic(name));
    }

    /// Grows a topic to `count` partitions.
    pub fn add_partitions(&self, name: &str, count: u32) {
        self.change(|world| drop(world.cluster.add_partitions(name, count)));
    }

    #[must_use]
    pub fn topic_id(&self, name: &str) -> Option<String> {
        self.lock().cluster.topics.get(name).map(|topic| topic.id.clone())
    }

    /// Appends a record without a transaction. Waits while there is no leader. Returns `None` if the topic does not exist or rejects the
    /// record.
    #[expect(clippy::must_use_candidate, reason = "most tests do not need the offset")]
    #[expect(clippy::needless_pass_by_value, reason = "callers make the record for this call")]
    pub fn append(&self, to: &TopicPartition, record: NewRecord) -> Option<Offset> {
        loop {
            let appended = self.change(|world| {
                let now = world.broker_clock();
                world.append(to, None, vec![record.clone().store(now)])
            });
            match appended {
                Err(Code::NotLeader) => self.sleep(Duration::from_millis(100)),
                appended => return appended.ok(),
            }
        }
    }

    /// Appends records in a transaction of a new producer and leaves the transaction open. Returns the producer's id.
    #[expect(clippy::must_use_candidate, reason = "a test may leave the transaction open for good")]
    pub fn open_transaction(&self, records: Vec<(TopicPartition, NewRecord)>) -> u64 {
        self.change(|world| {
            let (now, pid) = (world.broker_clock(), world.cluster.transactions.new_pid());
            let mut batches: BTreeMap<TopicPartition, Vec<StoredRecord>> = BTreeMap::new();
            for (to, record) in records {
                batches.entry(to).or_default().push(record.store(now));
            }
            for (to, mut batch) in batches {
                // Sets the timestamps if the topic has `log_append_time`. The result is ignored, so the transaction can contain records
                // that the topic would reject.
                let _ = world.cluster.topics.get(&to.topic).map(|topic| topic.validate(to.partition, &mut batch, now));
                let producer = Producer { pid, epoch: 0, sequence: 0, is_transactional: true };
                if let Ok(partition) = world.cluster.partition_mut(&to) {
                    let _ = partition.log.append(Some(producer), batch);
                    world.appended(&to);
                }
            }
            pid
        })
    }

    /// Writes the marker that ends a transaction of [`Simulation::open_transaction`] in one partition.
    pub fn end_transaction(&self, pid: u64, of: &TopicPartition, is_commit: bool) {
        self.change(|world| world.end_foreign_transaction(pid, of, is_commit));
    }

    pub fn end_transaction_in(&self, time: Duration, pid: u64, of: &TopicPartition, is_commit: bool) {
        let of = of.clone();
        self.change(|world| world.after(micros(time), move |world| world.end_foreign_transaction(pid, &of, is_commit)));
    }

    /// Expires all transactional ids without an open transaction.
    pub fn expire_transactional_ids(&self) {
        self.change(|world| world.cluster.transactions.expire_ids());
    }

    #[must_use]
    pub fn read(&self, of: &TopicPartition, isolation: Isolation) -> Vec<Arc<StoredRecord>> {
        let world = self.lock();
        world
            .cluster
            .partition(of)
            .map_or_else(|_| Vec::new(), |partition| partition.log.read(partition.log.start, isolation, usize::MAX).records)
    }

    /// The log start offset, the last stable offset, the high watermark, and the log end offset of a partition.
    #[must_use]
    pub fn offsets(&self, of: &TopicPartition) -> Option<[Offset; 4]> {
        let world = self.lock();
        let log = &world.cluster.partition(of).ok()?.log;
        Some([log.start, log.last_stable(), log.high_watermark, log.end])
    }

    pub fn delete_before(&self, of: &TopicPartition, offset: Offset) {
        self.change(|world| {
            if let Ok(partition) = world.cluster.partition_mut(of) {
                partition.log.delete_before(offset);
            }
        });
    }

    pub fn compact(&self, name: &str) {
        self.change(|world| {
            let topic = world.cluster.topics.get_mut(name);
            topic.into_iter().flat_map(|topic| &mut topic.partitions).for_each(|partition| partition.log.compact());
        });
    }

    pub fn truncate(&self, of: &TopicPartition, offset: Offset) {
        self.change(|world| world.truncate(of, offset));
    }

    /// Elects another leader. For up to 800 ms, its high watermark is too low by at most `lag` offsets.
    pub fn elect(&self, of: &TopicPartition, lag: Offset) {
        self.change(|world| {
            let leader = (world.cluster.leader(of) + 1) % world.cluster.nodes.len();
            world.elect(of, leader, lag);
        });
    }

    /// Simulates a former leader that has not noticed the election. For the duration `time`, starting after the delay `from`, `ListOffsets`
    /// requests get the log start offset, the last stable offset, and the high watermark that the partition has at this call.
    pub fn answer_from_former_leader(&self, of: &TopicPartition, from: Duration, time: Duration) {
        self.change(|world| {
            let from = world.now + micros(from);
            let times = from..from + micros(time);
            if let Ok(partition) = world.cluster.partition_mut(of) {
                let log = &partition.log;
                let (last_stable, high_watermark) = (log.end_for(Isolation::ReadCommitted), log.end_for(Isolation::ReadUncommitted));
                partition.former = Some(FormerLeader { start: log.start, last_stable, high_watermark, times });
            }
        });
    }

    /// Moves each coordinator to another available broker and elects another leader for each partition. For up to 800 ms, the high
    /// watermarks of the new leaders are too low by at most `lag` offsets.
    pub fn move_all(&self, lag: Offset) {
        self.change(|world| {
            world.move_coordinators();
            world.elect_all(lag);
        });
    }

    /// Simulates a former coordinator that has not noticed its replacement. For the duration `time`, starting after the delay `from`,
    /// `OffsetFetch` requests get the committed and pending offsets that the group has at this call.
    pub fn answer_from_former_coordinator(&self, group: &str, from: Duration, time: Duration) {
        self.change(|world| {
            let from = world.now + micros(from);
            let times = from..from + micros(time);
            if let Some(group) = world.cluster.groups.get_mut(group) {
                let (offsets, pending_offsets) = (group.offsets.clone(), group.pending_offsets.clone());
                group.former = Some(FormerCoordinator { offsets, pending_offsets, times });
            }
        });
    }

    pub fn take_leader(&self, of: &TopicPartition, time: Duration) {
        self.change(|world| world.take_leader(of, micros(time)));
    }

    pub fn take_down(&self, node: usize, time: Duration) {
        self.change(|world| world.take_down(node, micros(time)));
    }

    pub fn take_all_down(&self, time: Duration) {
        self.change(|world| (0..world.cluster.nodes.len()).for_each(|node| world.take_down(node, micros(time))));
    }

    pub fn lag(&self, of: &TopicPartition, time: Duration) {
        self.change(|world| world.lag(of, micros(time)));
    }

    /// The committed offset of a partition and its metadata. The pending offsets of transactions do not count.
    #[must_use]
    pub fn committed(&self, group: &str, of: &TopicPartition) -> Option<(Offset, String)> {
        let world = self.lock();
        world.cluster.groups.get(group)?.offsets.get(of).map(|committed| (committed.offset, committed.metadata.clone()))
    }

    /// True if the group has offsets in an open transaction, or in a transaction whose marker has not yet reached the group's coordinator.
    #[must_use]
    pub fn has_pending_offsets(&self, group: &str) -> bool {
        let world = self.lock();
        world.cluster.groups.get(group).is_some_and(|group| group.pending_offsets.values().any(|offsets| !offsets.is_empty()))
    }

    /// Overwrites a committed offset and keeps its metadata. If `offset` is `None`, deletes the committed offset, as if it had expired.
    pub fn set_committed(&self, group: &str, of: &TopicPartition, offset: Option<Offset>) {
        self.change(|world| {
            let offsets = &mut world.cluster.groups.entry(group.to_owned()).or_default().offsets;
            match offset {
                Some(offset) => {
                    let metadata = offsets.get(of).map(|committed| committed.metadata.clone()).unwrap_or_default();
                    offsets.insert(of.clone(), CommittedOffset { offset, metadata });
                }
                None => drop(offsets.remove(of)),
            }
        });
    }

    /// Deletes a group and its offsets. The group must have no members.
    pub fn delete_group(&self, group: &str) {
        self.change(|world| drop(world.cluster.groups.remove(group)));
    }

    /// The generation of a group and the number of its members. Both are 0 if the group does not exist.
    #[must_use]
    pub fn group(&self, name: &str) -> (i32, usize) {
        let world = self.lock();
        world.cluster.groups.get(name).map_or((0, 0), |group| (group.generation, group.member_ids().len()))
    }
}
