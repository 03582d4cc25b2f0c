//! The log of a partition: batches, transaction markers, and the offsets that limit readers.

use crate::record::{Offset, Timestamp, TimestampType};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub(in crate::sim) type Pid = u64;

pub type Header = (Box<[u8]>, Option<Box<[u8]>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    pub offset: Offset,
    /// The timestamp in milliseconds since the epoch, or -1 if the record has no timestamp.
    pub time: Timestamp,
    pub time_type: TimestampType,
    pub key: Option<Box<[u8]>>,
    pub value: Option<Box<[u8]>>,
    pub headers: Vec<Header>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    ReadUncommitted,
    ReadCommitted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) struct Producer {
    pub(in crate::sim) pid: Pid,
    pub(in crate::sim) epoch: i16,
    pub(in crate::sim) sequence: i32,
    pub(in crate::sim) is_transactional: bool,
}

enum Kind {
    Data(Vec<Arc<StoredRecord>>),
    /// A commit marker or an abort marker, with its timestamp.
    Control(Timestamp),
}

struct Batch {
    base: Offset,
    /// The last offset of the batch. Compaction does not change the offset, even if compaction removes the last record (KIP-98,
    /// `RecordBatch.lastOffset`).
    last: Offset,
    leader_epoch: i32,
    producer: Option<Producer>,
    is_aborted: bool,
    kind: Kind,
}

/// The state of a producer in this log (`ProducerStateManager`).
#[derive(Default)]
struct ProducerState {
    epoch: i16,
    /// The first sequence number, the record count, and the base offset of each of the latest 5 batches
    /// (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
    batches: VecDeque<(i32, i32, Offset)>,
    /// The first offset of the open transaction, if any.
    first: Option<Offset>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Refused {
    /// The batch was appended before, at this offset.
    Duplicate(Offset),
    OutOfOrder,
    OldEpoch,
}

#[derive(Default)]
pub(in crate::sim) struct Log {
    pub(in crate::sim) start: Offset,
    pub(in crate::sim) end: Offset,
    pub(in crate::sim) high_watermark: Offset,
    pub(in crate::sim) leader_epoch: i32,
    batches: VecDeque<Batch>,
    producers: BTreeMap<Pid, ProducerState>,
    /// Transactions whose marker is at or above the high watermark: the first offset of the transaction and the offset of the marker.
    unreplicated: Vec<(Offset, Offset)>,
    epochs: Vec<(i32, Offset)>,
}

#[derive(Debug, Default)]
pub(in crate::sim) struct Read {
    pub(in crate::sim) records: Vec<Arc<StoredRecord>>,
    pub(in crate::sim) next: Offset,
}

impl Log {
    /// The last stable offset: the high watermark, or the first offset of the oldest open transaction if that is smaller
    /// (`UnifiedLog.lastStableOffset`). A transaction counts as open until its marker is replicated
    /// (`ProducerStateManager.firstUnstableOffset`). The last stable offset is never below the log start offset
    /// (`UnifiedLog.maybeIncrementFirstUnstableOffset`).
    pub(in crate::sim) fn last_stable(&self) -> Offset {
        let open = self.producers.values().filter_map(|producer| producer.first);
        open.chain(self.unreplicated.iter().map(|&(first, _)| first)).fold(self.high_watermark, Offset::min).max(self.start)
    }

    pub(in crate::sim) fn end_for(&self, isolation: Isolation) -> Offset {
        match isolation {
            Isolation::ReadUncommitted => self.high_watermark,
            Isolation::ReadCommitted => self.last_stable(),
        }
    }

    /// Moves the high watermark, because the followers have replicated all records below `up_to`.
    pub(in crate::sim) fn replicate(&mut self, up_to: Offset) {
        self.high_watermark = up_to.min(self.end);
        let replicated = self.high_watermark;
        self.unreplicated.retain(|&(_, marker)| marker >= replicated);
    }

    pub(in crate::sim) fn is_open(&self, pid: Pid) -> bool {
        self.producers.get(&pid).is_some_and(|producer| producer.first.is_some())
    }

    /// Checks a producer's epoch and sequence (`ProducerAppendInfo.checkProducerEpoch` and `checkSequence`).
    fn check(&self, producer: &Producer, count: i32) -> Result<(), Refused> {
        let Some(known) = self.producers.get(&producer.pid) else { return Ok(()) };
        if producer.epoch < known.epoch {
            return Err(Refused::OldEpoch);
        }
        if producer.epoch > known.epoch {
            return if producer.sequence == 0 { Ok(()) } else { Err(Refused::OutOfOrder) };
        }
        if let Some(&(_, _, offset)) = known.batches.iter().find(|&&(first, len, _)| first == producer.sequence && len == count) {
            return Err(Refused::Duplicate(offset));
        }
        match known.batches.back() {
            // A marker with a new epoch clears the batches, so any sequence may follow.
            None => Ok(()),
            Some(&(first, len, _)) if first + len == producer.sequence => Ok(()),
            Some(_) => Err(Refused::OutOfOrder),
        }
    }

    /// Appends a batch. Returns the offset of its first record.
    pub(in crate::sim) fn append(&mut self, producer: Option<Producer>, mut records: Vec<StoredRecord>) -> Result<Offset, Refused> {
        let count = i32::try_from(records.len()).unwrap_or(i32::MAX);
        let base = self.end;
        if let Some(producer) = &producer {
            self.check(producer, count)?;
            let state = self.producers.entry(producer.pid).or_default();
            if producer.epoch > state.epoch {
                state.batches.clear();
                state.epoch = producer.epoch;
            }
            state.batches.push_back((producer.sequence, count, base));
            if state.batches.len() > 5 {
                state.batches.pop_front();
            }
            if producer.is_transactional {
                state.first.get_or_insert(base);
            }
        }
        for (offset, record) in (base..).zip(&mut records) {
            record.offset = offset;
        }
        self.end += i64::from(count);
        let (last, leader_epoch) = (self.end - 1, self.leader_epoch);
        let kind = Kind::Data(records.into_iter().map(Arc::new).collect());
        self.batches.push_back(Batch { base, last, leader_epoch, producer, is_aborted: false, kind });
        Ok(base)
    }

    /// Ends a producer's transaction with a marker, which has an offset of its own (`UnifiedLog.appendAsLeader` with
    /// `AppendOrigin.COORDINATOR`).
    pub(in crate::sim) fn end_transaction(&mut self, pid: Pid, epoch: i16, is_commit: bool, now: Timestamp) {
        let state = self.producers.entry(pid).or_default();
        if epoch > state.epoch {
            state.batches.clear();
        }
        state.epoch = state.epoch.max(epoch);
        let (first, offset) = (state.first.take(), self.end);
        if let Some(first) = first {
            self.unreplicated.push((first, offset));
            if !is_commit {
                let from = self.batches.partition_point(|batch| batch.last < first);
                let of_pid = |batch: &&mut Batch| batch.producer.is_some_and(|producer| producer.pid == pid);
                self.batches.range_mut(from..).filter(of_pid).for_each(|batch| batch.is_aborted = true);
            }
        }
        self.end += 1;
        let producer = Some(Producer { pid, epoch, sequence: -1, is_transactional: true });
        let leader_epoch = self.leader_epoch;
        self.batches.push_back(Batch { base: offset, last: offset, leader_epoch, producer, is_aborted: false, kind: Kind::Control(now) });
    }

    /// Reads records from offset `from` up to the end for the isolation level. Stops earlier, at the end of a batch, if the result has at
    /// least `most` records.
    pub(in crate::sim) fn read(&self, from: Offset, isolation: Isolation, most: usize) -> Read {
        let end = self.end_for(isolation);
        let mut read = Read { records: Vec::new(), next: from };
        let first = self.batches.partition_point(|batch| batch.last < from);
        for batch in self.batches.range(first..) {
            if batch.base >= end || read.records.len() >= most {
                break;
            }
            read.next = (batch.last + 1).min(end).max(from);
            let Kind::Data(records) = &batch.kind else { continue };
            if batch.is_aborted && isolation == Isolation::ReadCommitted {
                continue;
            }
            read.records.extend(records.iter().filter(|record| record.offset >= from && record.offset < end).cloned());
        }
        read
    }

    /// The offset of the first record with this timestamp or a later one (`UnifiedLog.fetchOffsetByTimestamp`). Markers count, too
    /// (`FileRecords.searchForTimestamp`). Searches below the last stable offset, like a `read_committed` consumer.
    pub(in crate::sim) fn offset_at(&self, time: Timestamp) -> Option<Offset> {
        let (start, end) = (self.start, self.last_stable());
        let first = |batch: &Batch| match &batch.kind {
            Kind::Data(records) => {
                let mut records = records.iter().filter(|record| record.offset >= start && record.time >= time);
                records.next().map(|record| record.offset)
            }
            Kind::Control(at) => (batch.base >= start && *at >= time).then_some(batch.base),
        };
        self.batches.iter().find_map(first).filter(|&offset| offset < end)
    }

    /// Moves the log start offset up to `offset`, but not past the high watermark. Deletes the batches below the new log start offset
    /// (retention or `DeleteRecords`, `UnifiedLog.maybeIncrementLogStartOffset`).
    pub(in crate::sim) fn delete_before(&mut self, offset: Offset) {
        self.start = self.start.max(offset.min(self.high_watermark));
        while self.batches.front().is_some_and(|batch| batch.last < self.start) {
            self.batches.pop_front();
        }
    }

    /// Truncates the log at an offset and starts a new leader epoch, as after an unclean election (`UnifiedLog.truncateTo`). Batches are
    /// removed as a whole.
    pub(in crate::sim) fn truncate(&mut self, offset: Offset) {
        while let Some(base) = self.batches.back().filter(|batch| batch.last >= offset).map(|batch| batch.base) {
            self.batches.pop_back();
            self.end = base;
        }
        self.end = self.end.min(offset.max(self.start));
        self.epochs.retain(|&(_, first)| first < self.end);
        self.high_watermark = self.high_watermark.min(self.end);
        self.reload_producers();
        self.new_epoch();
        self.replicate(self.end);
    }

    /// Rebuilds the producers' state from the remaining log (`ProducerStateManager.truncateAndReload`).
    fn reload_producers(&mut self) {
        self.producers.clear();
        self.unreplicated.clear();
        for batch in &mut self.batches {
            let Some(producer) = batch.producer else { continue };
            let state = self.producers.entry(producer.pid).or_default();
            if producer.epoch > state.epoch {
                state.batches.clear();
                state.epoch = producer.epoch;
            }
            match &batch.kind {
                Kind::Control(_) => state.first = None,
                Kind::Data(_) => {
                    let count = i32::try_from(batch.last - batch.base + 1).unwrap_or(i32::MAX);
                    state.batches.push_back((producer.sequence, count, batch.base));
                    if state.batches.len() > 5 {
                        state.batches.pop_front();
                    }
                    if producer.is_transactional {
                        state.first.get_or_insert(batch.base);
                    }
                }
            }
        }
        // A transaction whose marker was removed is open again, so its batches no longer count as aborted.
        let open: BTreeMap<_, _> = self.producers.iter().filter_map(|(&pid, state)| Some((pid, state.first?))).collect();
        for batch in &mut self.batches {
            if let Some(producer) = batch.producer
                && open.get(&producer.pid).is_some_and(|&first| batch.base >= first)
            {
                batch.is_aborted = false;
            }
        }
    }

    /// Starts a leader epoch at the end of the log (`LeaderEpochFileCache.assign`).
    pub(in crate::sim) fn new_epoch(&mut self) {
        self.leader_epoch += 1;
        self.epochs.push((self.leader_epoch, self.end));
    }

    /// The end offset of a leader epoch (KIP-320, `OffsetsForLeaderEpoch`). If the last records that a reader has read have this epoch and
    /// the reader's position is above the returned offset, some of these records were truncated.
    pub(in crate::sim) fn end_of_epoch(&self, epoch: i32) -> Offset {
        self.epochs.iter().find(|&&(next, _)| next > epoch).map_or(self.end, |&(_, first)| first)
    }

    /// The leader epoch of the batch that contains the offset, or the current leader epoch if no batch contains it.
    pub(in crate::sim) fn epoch_of(&self, offset: Offset) -> i32 {
        let at = self.batches.partition_point(|batch| batch.last < offset);
        self.batches.get(at).map_or(self.leader_epoch, |batch| batch.leader_epoch)
    }

    /// Compacts the batches below the last stable offset: keeps the last record of each key and removes aborted records
    /// (`Cleaner.cleanInto`). Offsets do not change, so readers see gaps.
    pub(in crate::sim) fn compact(&mut self) {
        let stable = self.last_stable();
        let mut newer = BTreeSet::new();
        for batch in self.batches.iter_mut().rev().filter(|batch| batch.last < stable) {
            let Kind::Data(records) = &mut batch.kind else { continue };
            if batch.is_aborted {
                records.clear();
                continue;
            }
            let mut kept: Vec<_> = records.drain(..).rev().filter(|record| newer.insert(record.key.clone())).collect();
            kept.reverse();
            *records = kept;
        }
    }
}
