//! The starting offsets of a group that has committed nothing, if `kafka.start` is `latest`.
//!
//! Owns the decision whether the group begins now, or has lost its offsets. Must never skip records that the group was about to read, or
//! let two members commit for one partition.
//!
//! The group begins with all partitions of a topic at once. Otherwise, a member that finds some of them committed could not tell a
//! partition that another member has not begun yet from one that was added later, which is read from its beginning. But an owner commits
//! as soon as it has read. A member that commits for the partitions of others might therefore set the group back, because brokers cannot
//! order the commits of two members of one generation. So the owner of partition 0 commits for all partitions, and no member reads the
//! topic or commits for it before that. A member of an earlier generation cannot commit any more.

use super::super::SILENCE;
use super::super::pending_restore::AssignedPartition;
use super::{Error, Worker};
use crate::broker::{self, Broker, ChangelogReader as _, Consumer as _, ReadEnd};
use crate::config::Start;
use crate::record::{TopicId, TopicPartition};
use crate::runtime;
use std::collections::BTreeSet;
use std::time::Duration;

/// The pause between two checks for an open transaction in an internal topic.
const INTERVAL: Duration = Duration::from_millis(200);

impl<B: Broker> Worker<B> {
    /// Takes the partitions out of `all` that wait until the group begins with their topic.
    ///
    /// If a checkpoint, a changelog, or a repartition topic shows that the group began before, its offsets were lost. Then no partition
    /// waits, and no record is skipped.
    pub(super) fn take_unbegun(&mut self, source: &B::Consumer, all: &mut Vec<AssignedPartition>) -> Result<(), Error> {
        if self.shared.config.kafka.start != Start::Latest {
            return Ok(());
        }
        let new = all.iter().filter(|assigned| assigned.committed.offset.is_none());
        let topics: BTreeSet<_> = new.map(|assigned| self.topics.configured(assigned.topic)).collect();
        for topic in topics {
            let partitions = self.input_partitions(topic);
            if self.retry_until_answered(|| source.committed(&partitions))?.iter().any(|committed| committed.offset.is_some()) {
                continue;
            }
            if self.has_begun(source, topic, all)? {
                tracing::warn!(
                    topic = self.topics[topic].config.input,
                    "the group has no committed offsets, but it has begun before; reading what nothing is known of from its beginning"
                );
                continue;
            }
            if all.iter().any(|assigned| assigned.topic == topic && assigned.partition.partition == 0) {
                self.find_ends(source, &partitions, all)?;
            }
            // A checkpoint or changelog of a repartition topic would look as if the group had begun.
            let (unbegun, begun) = std::mem::take(all).into_iter().partition(|assigned| self.topics.configured(assigned.topic) == topic);
            *all = begun;
            tracing::info!(topic = self.topics[topic].config.input, "waiting until the group begins with this topic");
            self.assignment.unbegun.extend::<Vec<_>>(unbegun);
        }
        Ok(())
    }

    pub(in super::super) fn input_partitions(&self, topic: TopicId) -> Vec<TopicPartition> {
        let name = &self.topics[topic].config.input;
        let count = self.shared.cluster.partitions.get(name).copied().unwrap_or(0).cast_signed();
        (0..count).map(|partition| TopicPartition { topic: name.clone(), partition }).collect()
    }

    /// Notes the current ends of partitions. The group begins there, unless this worker loses partition 0 before it commits.
    fn find_ends(&mut self, source: &B::Consumer, partitions: &[TopicPartition], known: &[AssignedPartition]) -> Result<(), Error> {
        for partition in partitions {
            self.check_stop();
            let end = match known.iter().find(|assigned| assigned.partition == *partition) {
                Some(assigned) => assigned.high,
                None => self.retry_until_answered(|| source.watermarks(partition))?.1,
            };
            self.assignment.ends.insert(partition.clone(), end);
        }
        Ok(())
    }

    /// Returns true if anything shows that the group has read this topic before: a checkpoint, or records in a topic that only the
    /// group's workers write. With `repartition`, the checkpoints and the changelog are those of the repartition topic.
    fn has_begun(&self, source: &B::Consumer, topic: TopicId, all: &[AssignedPartition]) -> Result<bool, Error> {
        let counted = self.topics[topic].counted;
        let states =
            all.iter().filter(|assigned| self.topics[assigned.topic].counted == counted).map(|assigned| assigned.state(&self.topics));
        if states.filter_map(|id| self.assignment.states.get(&id)).any(|state| !state.offsets.is_empty()) {
            return Ok(true);
        }
        // All records of the changelog may be of another topic of the space. But it may also be all that is left of this one.
        let own = self.topics.iter().map(|(_, topic)| topic).filter(|topic| topic.counted == counted);
        for name in own.flat_map(|topic| topic.forward.iter().map(|forward| &forward.topic).chain(&topic.changelog)) {
            let count = self.shared.cluster.partitions.get(name).copied().unwrap_or(0).cast_signed();
            for partition in 0..count {
                let partition = TopicPartition { topic: name.clone(), partition };
                if self.retry_until_answered(|| source.watermarks(&partition))?.1 > 0 && self.has_committed_record(&partition)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns true if the log of an internal topic has a committed record, or had one that was deleted. An aborted transaction leaves
    /// offsets, but no record: for example that of a seed that was killed.
    fn has_committed_record(&self, of: &TopicPartition) -> Result<bool, Error> {
        let reader = self.retry_until_answered(|| self.shared.broker.changelog_reader(&self.shared.config))?;
        let asked = runtime::now();
        let (low, end) = loop {
            match self.retry_until_answered(|| reader.ends(of))? {
                Some(ends) => break ends,
                None if self.check_stop() => return Err(broker::Error::Stopped.into()),
                None if runtime::since(asked) > SILENCE => {
                    self.shared.stats.block(self.number, format!("waiting for the end of a transaction that is open in {of}"));
                }
                None => {}
            }
            runtime::sleep(INTERVAL);
        };
        let mut has_record = low > 0;
        if !has_record && low < end {
            let ended = reader.read::<Error>(of, (low, end), &|| self.check_stop(), &mut |_| {
                has_record = true;
                Ok(false)
            })?;
            // If in doubt, no record may be skipped.
            if !has_record && self.check_stop() {
                return Err(broker::Error::Stopped.into());
            }
            has_record |= ended != ReadEnd::Reached;
        }
        Ok(has_record)
    }
}
