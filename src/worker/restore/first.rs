//! The starting offsets of a group that has committed nothing, with `kafka.start = "latest"`.
//!
//! Decides whether the group is new or has lost its offsets. Never skips records that the group was about to read, and never lets two
//! members commit for one partition.
//!
//! The owner of partition 0 commits the starting offsets of all partitions of a topic at once. If each member committed only its own
//! partitions, a partition without an offset would be ambiguous: its owner may not have started to read the partition yet, or the partition
//! was added later and must be read from its beginning.

use super::super::BLOCKED_AFTER;
use super::super::pending_restore::AssignedPartition;
use super::{Error, Worker};
use crate::broker::{self, Broker, ChangelogReader as _, Committed, Consumer as _, Note, ReadEnd};
use crate::config::Start;
use crate::fault;
use crate::record::{TopicId, TopicPartition, log_id};
use crate::runtime;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(200);

impl<B: Broker> Worker<B> {
    /// Moves partitions from `all` to `Assignment::unbegun` if they must wait until the group starts to read their topic.
    ///
    /// If a checkpoint, a changelog, or a repartition topic shows that the group has started before, the group has lost its offsets. In
    /// that case, no partition of the topic waits, and no record is skipped.
    pub(super) fn take_unbegun(&mut self, source: &B::Consumer, all: &mut Vec<AssignedPartition>, since: Instant) -> Result<(), Error> {
        if self.shared.config.kafka.start != Start::Latest {
            return Ok(());
        }
        let new = all.iter().filter(|assigned| assigned.committed.offset.is_none());
        let topics: BTreeSet<_> = new.map(|assigned| self.topics.configured(assigned.topic)).collect();
        for topic in topics {
            let partitions = self.input_partitions(topic);
            let committed = self.retry_until_answered(|| source.committed(&partitions))?;
            let (is_first, is_any) = (committed.first().is_some_and(has_offset), committed.iter().any(has_offset));
            let owns_first = all.iter().any(|assigned| assigned.topic == topic && assigned.partition.partition == 0);
            if is_first || is_any && owns_first {
                if !fault::defect("stale_beginning_used") {
                    self.take_offsets(source, all, (&partitions, committed), since)?;
                }
                continue;
            }
            // If partition 0 has no offset although other partitions have an offset, its owner has not completed the commit or has left.
            // This member then waits for the current owner of partition 0.
            if !is_any && self.has_begun(source, topic, all)? {
                tracing::warn!(
                    topic = self.topics[topic].config.input,
                    "the group has no committed offsets for this topic, but a checkpoint, changelog, or repartition topic suggests that the group has read the topic before; ignoring kafka.start = \"latest\" and resuming each partition from its offset in a checkpoint or changelog, or from the beginning if that offset is unknown"
                );
                continue;
            }
            if owns_first {
                self.find_ends(source, &partitions, all)?;
            }
            // A repartition topic waits together with its input. Otherwise, the checkpoint or changelog of the repartition topic would
            // suggest that the group had started.
            let (unbegun, begun) = std::mem::take(all).into_iter().partition(|assigned| self.topics.configured(assigned.topic) == topic);
            *all = begun;
            tracing::info!(
                topic = self.topics[topic].config.input,
                "waiting until the owner of partition 0 commits the group's starting offsets for this topic"
            );
            self.assignment.unbegun.extend::<Vec<_>>(unbegun);
        }
        Ok(())
    }

    pub(in super::super) fn input_partitions(&self, topic: TopicId) -> Vec<TopicPartition> {
        let name = &self.topics[topic].config.input;
        let count = self.shared.cluster.partitions.get(name).copied().unwrap_or(0).cast_signed();
        (0..count).map(|partition| TopicPartition { topic: name.clone(), partition }).collect()
    }

    /// Remembers the current ends of partitions. The group starts at these offsets, unless this worker loses partition 0 before it commits
    /// them.
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

    /// Copies offsets that were committed after the offsets in `all` were read.
    fn take_offsets(
        &self,
        source: &B::Consumer,
        all: &mut [AssignedPartition],
        (partitions, committed): (&[TopicPartition], Vec<Committed>),
        began: Instant,
    ) -> Result<(), Error> {
        for (partition, committed) in partitions.iter().zip(committed) {
            // An offset with a different topic id belongs to an earlier topic with this name.
            let is_of = |assigned: &AssignedPartition| {
                Note::read(&committed.metadata).id.is_none_or(|id| log_id(&assigned.topic_incarnation).is_none_or(|own| own == id))
            };
            let unread = all.iter_mut().filter(|assigned| assigned.partition == *partition && assigned.committed.offset.is_none());
            for assigned in unread.filter(|assigned| is_of(assigned)) {
                assigned.committed = committed.clone();
                if committed.offset.is_some_and(|offset| offset > assigned.high) {
                    (assigned.low, assigned.high) = self.watermarks(source, partition, committed.offset, began)?;
                }
            }
        }
        Ok(())
    }

    /// Returns true if there is evidence that the group has read this topic before: a checkpoint or records in an internal topic. With
    /// `repartition`, the checkpoints and the changelog belong to the repartition topic.
    fn has_begun(&self, source: &B::Consumer, topic: TopicId, all: &[AssignedPartition]) -> Result<bool, Error> {
        let of_topic = all.iter().filter(|assigned| self.topics.configured(assigned.topic) == topic);
        let states = of_topic.flat_map(|assigned| self.topics.states_of(assigned.input()));
        if states.filter_map(|id| self.assignment.states.get(&id)).any(|state| !state.offsets.is_empty()) {
            return Ok(true);
        }
        // Changelog records count as evidence, although all of them may come from other topics of the space. Otherwise, a group whose only
        // trace is the changelog would be mistaken for a new group.
        let own = self.topics.iter().filter(|(_, rule)| self.topics.configured(rule.of_input[0]) == topic).map(|(_, rule)| rule);
        let names: BTreeSet<_> = own.flat_map(|topic| topic.forward.iter().map(|forward| &forward.topic).chain(&topic.changelog)).collect();
        for name in names {
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

    /// Returns true if a partition of an internal topic contains a committed record, or if some of its records were deleted. An aborted
    /// transaction, for example of a killed `unseen seed`, leaves offsets but no record.
    fn has_committed_record(&self, of: &TopicPartition) -> Result<bool, Error> {
        let reader = self.retry_until_answered(|| self.shared.broker.changelog_reader(&self.shared.config))?;
        let asked = runtime::now();
        let (low, end) = loop {
            match self.retry_until_answered(|| reader.ends(of))? {
                Some(ends) => break ends,
                None if self.check_stop() => return Err(broker::Error::Stopped.into()),
                None if runtime::since(asked) > BLOCKED_AFTER => {
                    let advice = "if the transaction does not end, find it with kafka-transactions.sh find-hanging and abort it";
                    self.shared.stats.block(self.number, format!("waiting for an open transaction in {of} to end; {advice}"));
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
            // A stop request ends the read early. A failed read counts as a record: if in doubt, the group must not skip input records.
            if !has_record && self.check_stop() {
                return Err(broker::Error::Stopped.into());
            }
            has_record |= ended != ReadEnd::Reached;
        }
        Ok(has_record)
    }
}

fn has_offset(committed: &Committed) -> bool {
    committed.offset.is_some()
}
