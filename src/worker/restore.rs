//! How a partition begins: from its checkpoint and the log, up to the group's committed offset.
//!
//! Restore loads the newest checkpoint that is not past the committed offset; warm-up reads the gap
//! again without emitting. Must never start past the committed offset.

use super::partition::{Input, Memory, noted};
use super::{Error, MemoryId, Worker};
use crate::checkpoint::{self, Loaded, PartitionId};
use crate::config::{ColdStart, Start};
use crate::kafka::{Committed, Source};
use crate::record::{Offset, TopicPartition};
use std::time::Instant;

/// What is known of a partition that is about to be read.
struct Found {
    partition: TopicPartition,
    topic: usize,
    committed: Committed,
    low: Offset,
    high: Offset,
}

/// From where a partition is read, and up to where without emitting.
struct Course {
    start: Offset,
    warm_until: Offset,
}

impl Worker {
    /// Restores the memory of newly assigned partitions, and says where each is to be read from.
    pub(super) fn restore(&mut self, source: &Source, partitions: &[TopicPartition]) -> Result<Vec<(TopicPartition, Offset)>, Error> {
        let began = Instant::now();
        let committed = self.patiently(|| source.committed(partitions))?;
        let mut found = Vec::new();
        for (partition, committed) in partitions.iter().zip(committed) {
            let Some(topic) = self.topics.iter().position(|plan| plan.topic.input == partition.topic) else { continue };
            let (low, high) = self.patiently(|| source.watermarks(partition))?;
            found.push(Found { partition: partition.clone(), topic, committed, low, high });
        }
        for found in &found {
            self.load(found)?;
        }
        // Topics of one space share their memory: if it reaches past one's committed offset, it is of no use to any.
        for found in &found {
            self.drop_if_beyond(source, found)?;
        }
        let mut starts = Vec::new();
        for found in found {
            let course = self.course(source, &found)?;
            let horizon = noted(&found.committed.metadata);
            tracing::info!(
                partition = %found.partition, committed = ?found.committed.offset, start = course.start, warm_up_records = course.warm_until - course.start,
                elapsed_ms = began.elapsed().as_millis(), "partition restored"
            );
            starts.push((found.partition.clone(), course.start));
            let id = self.memory_of(&found);
            if let Some(memory) = self.memories.get_mut(&id).filter(|memory| memory.offset(&found.partition.topic).is_none()) {
                // No checkpoint knows this topic yet. One taken before its first record makes whatever becomes of
                // this process exact: its heir reads the log from here.
                memory.changed = true;
                self.next_checkpoint = Instant::now();
            }
            let input = Input {
                topic: found.topic,
                memory: id,
                position: course.start,
                committed: course.start,
                group: found.committed.offset,
                warm_until: course.warm_until,
                warming_up: course.start < course.warm_until,
                warm_horizon: horizon,
                decisions: super::decisions::Decisions::default(),
                partition: found.partition,
            };
            self.inputs.insert((input.topic, input.partition.partition), input);
        }
        Ok(starts)
    }

    fn memory_of(&self, found: &Found) -> MemoryId {
        (self.topics[found.topic].space, found.partition.partition)
    }

    /// Loads a partition's memory unless another topic of its space has it already.
    fn load(&mut self, found: &Found) -> Result<(), Error> {
        let id = self.memory_of(found);
        if self.memories.contains_key(&id) {
            return Ok(());
        }
        let plan = &self.topics[found.topic];
        let stored = PartitionId { space: plan.topic.space.clone(), partition: id.1 };
        let memory = match self.shared.store.load(&stored, &plan.settings, plan.rules) {
            Ok(Loaded::Usable { memory, offsets, saved }) => Memory::loaded(*memory, saved, offsets, &self.shared.store, stored),
            Ok(Loaded::Nothing) => Memory::new(plan.rules),
            Ok(Loaded::Foreign { difference }) => {
                tracing::warn!(partition = %stored, "checkpoint is of another configuration and cannot be used: {difference}");
                Memory::new(plan.rules)
            }
            Err(checkpoint::Error::Corrupt { what, .. }) => {
                self.shared.store.set_aside(&what)?;
                Memory::new(plan.rules)
            }
            Err(error) => return Err(error.into()),
        };
        self.memories.insert(id, memory);
        Ok(())
    }

    fn drop_if_beyond(&mut self, source: &Source, found: &Found) -> Result<(), Error> {
        let id = self.memory_of(found);
        let Some(stored) = self.memories.get(&id).and_then(|memory| memory.offset(&found.partition.topic)) else { return Ok(()) };
        let committed = found.committed.offset.unwrap_or(found.high);
        if stored > committed || committed > found.high || self.is_of_another_log(source, found, stored)? {
            tracing::warn!(partition = %found.partition, checkpoint = stored, committed = ?found.committed.offset, end = found.high,
                "checkpoint is past what the group has committed (were its offsets reset, or was the topic made anew?); not using it");
            self.memories.insert(id, Memory::new(self.topics[found.topic].rules));
        }
        Ok(())
    }

    /// Whether a checkpoint is of a former topic of that name. With a topic, the broker forgets what groups
    /// have committed of it; if the new one is the longer, only its records tell: below the checkpoint's
    /// offset, there can be none that is later than the checkpoint's stream time.
    fn is_of_another_log(&self, source: &Source, found: &Found, stored: Offset) -> Result<bool, Error> {
        let stream_time = self.memories.get(&self.memory_of(found)).and_then(|memory| memory.dedup.stream_time());
        let (None, Some(stream_time)) = (found.committed.offset, stream_time) else { return Ok(false) };
        let later = self.patiently(|| source.offset_at(&found.partition, stream_time.saturating_add(1)))?;
        Ok(later.is_some_and(|later| later < stored))
    }

    fn course(&self, source: &Source, found: &Found) -> Result<Course, Error> {
        let Found { partition, low, high, .. } = found;
        let (low, high) = (*low, *high);
        let stored = self.memories.get(&self.memory_of(found)).and_then(|memory| memory.offset(&partition.topic));
        let at = |start| Ok(Course { start, warm_until: start });
        let Some(committed) = found.committed.offset else {
            return match (stored, self.shared.config.kafka.start) {
                (Some(stored), _) if stored >= low => {
                    // A checkpoint is written where the partition began, and after commits: the group had come at least that far.
                    tracing::warn!(partition = %partition, offset = stored, "the group has no committed offset, but a checkpoint does; going on from there");
                    at(stored)
                }
                (_, Start::Earliest) => at(low),
                (_, Start::Latest) => at(high),
            };
        };
        if committed > high {
            tracing::error!(partition = %partition, committed, end = high, "committed offset is past the end of the topic; was it made anew? Reading it from its beginning");
            return at(low);
        }
        if committed < low {
            tracing::error!(partition = %partition, committed, oldest = low, records = low - committed, "records expired before they were read; raise the topic's retention");
        }
        let resume = committed.max(low);
        match stored {
            Some(stored) if stored >= low => Ok(Course { start: stored, warm_until: resume }),
            Some(stored) if stored == committed => at(resume),
            Some(stored) => {
                self.cold_start(source, found, resume, &format!("the log begins at offset {low}, and the checkpoint ends at {stored}"))
            }
            None if resume == low => at(resume),
            None => self.cold_start(source, found, resume, "there is none"),
        }
    }

    /// No checkpoint: one window of the input is read again, or what else the configuration says.
    fn cold_start(&self, source: &Source, found: &Found, resume: Offset, why: &str) -> Result<Course, Error> {
        let partition = &found.partition;
        let start = match self.shared.config.state.cold_start {
            ColdStart::Fail => return Err(Error::ColdStart { partition: partition.clone(), why: why.to_owned() }),
            ColdStart::Empty => resume,
            ColdStart::Rebuild => {
                let window = self.topics[found.topic].topic.window.length_ms();
                match (noted(&found.committed.metadata), window) {
                    (Some(stream_time), Some(window)) => {
                        let first = self.patiently(|| source.offset_at(partition, stream_time.saturating_sub(window)))?;
                        first.unwrap_or(resume).clamp(found.low, resume)
                    }
                    // Without stream time, or for a window by count, nobody knows how far back it reaches.
                    _ => found.low,
                }
            }
        };
        tracing::warn!(partition = %partition, why, "no usable checkpoint; reading {} records again to remember them (approximate: keys first emitted before them may come out once more)", resume - start);
        Ok(Course { start, warm_until: resume })
    }

    /// Restores partitions that we have, but whose memory is not to be trusted.
    pub(super) fn restart(&mut self, source: &Source, partitions: &[TopicPartition]) -> Result<(), Error> {
        tracing::warn!(partitions = %super::partition::names(partitions), "restoring partitions");
        if self.transaction.is_some() {
            self.fail(source, crate::kafka::Failure::Abort("its partitions must be restored".to_owned()))?;
        }
        // Topics of one space share their memory, and so their fate.
        let memories: Vec<_> =
            self.inputs.values().filter(|input| partitions.contains(&input.partition)).map(|input| input.memory).collect();
        let partitions: Vec<_> =
            self.inputs.values().filter(|input| memories.contains(&input.memory)).map(|input| input.partition.clone()).collect();
        self.forget(&partitions);
        self.restore(source, &partitions)?;
        let positions = self.positions();
        source.restart(&partitions, &positions)?;
        Ok(())
    }

    /// librdkafka stopped reading a partition, for its position lies outside its log: finds out which.
    pub(super) fn restart_out_of_range(&mut self, source: &Source) -> Result<(), Error> {
        // What was read is good, and so is the memory of it.
        self.commit(source)?;
        self.checkpoint(true);
        let mut outside = Vec::new();
        for input in self.inputs.values() {
            let (low, high) = self.patiently(|| source.watermarks(&input.partition))?;
            if !(low..=high).contains(&input.position) {
                outside.push(input.partition.clone());
            }
        }
        if outside.is_empty() { Ok(()) } else { self.restart(source, &outside) }
    }
}
