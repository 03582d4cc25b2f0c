//! Where a group begins that has committed nothing.
//!
//! Owns the question whether it begins now, or has lost its offsets. Must never pass over what it may have been about
//! to read.

use super::super::waiting::Found;
use super::{Error, Worker};
use crate::config::Start;
use crate::kafka::Source;
use crate::record::{TopicId, TopicPartition};

impl Worker {
    /// Says where partitions are read from that the group has committed nothing of, if that is at their end. One of
    /// several was added since the group began, and nothing of it was ever read. If there is nothing of any, the group
    /// begins now, and with all of them: whoever has the others begins at the same place, and later. But where a checkpoint,
    /// a changelog or a topic in between shows that it had begun, its offsets were lost: then nothing is passed over.
    pub(super) fn find_first(&mut self, source: &Source, all: &mut [Found]) -> Result<(), Error> {
        if self.shared.config.kafka.start != Start::Latest {
            return Ok(());
        }
        for (id, topic) in self.topics.iter().filter(|(_, topic)| !topic.is_internal) {
            let is_new = |found: &&mut Found| found.topic == id && found.committed.offset.is_none();
            if !all.iter_mut().any(|found| is_new(&found)) {
                continue;
            }
            let count = self.shared.cluster.partitions.get(&topic.config.input).copied().unwrap_or(0).cast_signed();
            let partitions: Vec<_> = (0..count).map(|partition| TopicPartition { topic: topic.config.input.clone(), partition }).collect();
            if self.patiently(|| source.committed(&partitions))?.iter().any(|committed| committed.offset.is_some()) {
                continue;
            }
            if self.has_begun(source, id, all)? {
                tracing::warn!(
                    topic = topic.config.input,
                    "the group has no committed offsets, but it has begun before; reading what nothing is known of from its beginning"
                );
                continue;
            }
            for found in all.iter_mut().filter(is_new) {
                found.first = found.high;
                // It may have to wait for its state, and go to someone else meanwhile.
                self.assignment.beginnings.insert(found.partition.clone(), found.high);
            }
            for partition in partitions.into_iter().filter(|partition| all.iter().all(|found| found.partition != *partition)) {
                let (_, high) = self.patiently(|| source.watermarks(&partition))?;
                self.assignment.beginnings.insert(partition, high);
            }
        }
        Ok(())
    }

    /// Returns true if anything shows that the group has run before: a checkpoint of this topic, or records in a topic that
    /// only the group's workers write. With `repartition`, the checkpoints and the changelog are those of the repartition topic.
    fn has_begun(&self, source: &Source, topic: TopicId, all: &[Found]) -> Result<bool, Error> {
        let counted = self.topics[topic].counted;
        let states = all.iter().filter(|found| self.topics[found.topic].counted == counted).map(|found| self.state_of(found));
        if states.filter_map(|id| self.assignment.states.get(&id)).any(|state| !state.offsets.is_empty()) {
            return Ok(true);
        }
        let own = self.topics.iter().map(|(_, topic)| topic).filter(|topic| topic.counted == counted);
        for name in own.flat_map(|topic| topic.forward.iter().map(|forward| &forward.topic).chain(&topic.changelog)) {
            let count = self.shared.cluster.partitions.get(name).copied().unwrap_or(0).cast_signed();
            for partition in 0..count {
                let partition = TopicPartition { topic: name.clone(), partition };
                if self.patiently(|| source.watermarks(&partition))?.1 > 0 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
