//! The offsets at which a group begins that has committed nothing, if `kafka.start` is `latest`.
//!
//! Owns the question whether the group begins now, or has lost its offsets. Must never pass over what it may have been about
//! to read, nor let two members commit for one partition.
//!
//! The group begins with all partitions of a topic at once. Otherwise, a member that finds some of them committed could not
//! tell a partition that another member has not begun yet from one that was added later, which is read from its beginning.
//! But any owner commits as soon as it has read. A member that committed for the partitions of others might therefore set
//! the group back: brokers cannot order the commits of two members of one generation. So the owner of partition 0 commits
//! for all partitions, and nothing of the topic is read, nor committed by anyone else, before that. A member of an earlier
//! generation cannot commit any more.

use super::super::SILENCE;
use super::super::waiting::Found;
use super::{Error, Flow, Worker};
use crate::broker::{self, Broker, ChangelogReader as _, Consumer as _, ReadEnd};
use crate::config::Start;
use crate::record::{TopicId, TopicPartition};
use crate::runtime;
use std::collections::BTreeSet;
use std::time::Duration;

/// How often members ask whether the group has begun.
const INTERVAL: Duration = Duration::from_millis(200);

impl<B: Broker> Worker<B> {
    /// Takes the partitions out of `all` that wait until the group begins with their topic.
    ///
    /// If a checkpoint, a changelog, or a topic in between shows that the group began before, its offsets were lost: then
    /// nothing waits, and nothing is passed over.
    pub(super) fn take_unbegun(&mut self, source: &B::Consumer, all: &mut Vec<Found>) -> Result<(), Error> {
        if self.shared.config.kafka.start != Start::Latest {
            return Ok(());
        }
        let new = all.iter().filter(|found| found.committed.offset.is_none());
        let topics: BTreeSet<_> = new.map(|found| self.topics.configured(found.topic)).collect();
        for topic in topics {
            let partitions = self.input_partitions(topic);
            if self.patiently(|| source.committed(&partitions))?.iter().any(|committed| committed.offset.is_some()) {
                continue;
            }
            if self.has_begun(source, topic, all)? {
                tracing::warn!(
                    topic = self.topics[topic].config.input,
                    "the group has no committed offsets, but it has begun before; reading what nothing is known of from its beginning"
                );
                continue;
            }
            if all.iter().any(|found| found.topic == topic && found.partition.partition == 0) {
                self.find_ends(source, &partitions, all)?;
            }
            // What is checkpointed or logged of a repartition topic would look as if the group had begun.
            let (unbegun, begun) = std::mem::take(all).into_iter().partition(|found| self.topics.configured(found.topic) == topic);
            *all = begun;
            tracing::info!(topic = self.topics[topic].config.input, "waiting until the group begins with this topic");
            self.assignment.unbegun.extend::<Vec<_>>(unbegun);
        }
        Ok(())
    }

    fn input_partitions(&self, topic: TopicId) -> Vec<TopicPartition> {
        let name = &self.topics[topic].config.input;
        let count = self.shared.cluster.partitions.get(name).copied().unwrap_or(0).cast_signed();
        (0..count).map(|partition| TopicPartition { topic: name.clone(), partition }).collect()
    }

    /// Notes where partitions end now: the group begins there, unless this worker loses partition 0 before it commits.
    fn find_ends(&mut self, source: &B::Consumer, partitions: &[TopicPartition], known: &[Found]) -> Result<(), Error> {
        for partition in partitions {
            self.alive();
            let end = match known.iter().find(|found| found.partition == *partition) {
                Some(found) => found.high,
                None => self.patiently(|| source.watermarks(partition))?.1,
            };
            self.assignment.ends.insert(partition.clone(), end);
        }
        Ok(())
    }

    /// Begins with topics whose partition 0 this worker has, and restores the partitions of those that have begun.
    pub(in super::super) fn begin_topics(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        let now = runtime::now();
        if self.assignment.unbegun.is_empty() || now < self.assignment.unbegun_due || self.outbox.is_open() || self.assignment.must_repeat()
        {
            return Ok(Flow::On);
        }
        self.assignment.unbegun_due = now + INTERVAL;
        let unbegun = &self.assignment.unbegun;
        let is_own = |found: &&Found| found.partition.partition == 0 && !self.topics[found.topic].is_internal;
        let own: BTreeSet<_> = unbegun.iter().filter(is_own).map(|found| found.topic).collect();
        let mut begun = BTreeSet::new();
        for topic in own {
            let partitions = self.input_partitions(topic);
            if self.patiently(|| source.committed(&partitions))?.iter().any(|committed| committed.offset.is_some()) {
                begun.insert(topic);
                continue;
            }
            let ends = partitions.iter().filter_map(|partition| self.assignment.ends.get_key_value(partition));
            let ends: Vec<_> = ends.map(|(partition, &end)| (partition.clone(), end)).collect();
            self.assignment.beginnings.extend(ends);
        }
        if !self.assignment.beginnings.is_empty() {
            let flow = self.commit_at_once(source)?;
            self.assignment.beginnings.clear();
            if let Flow::Back = flow {
                return Ok(Flow::Back);
            }
        }
        self.restore_begun(source, begun)?;
        Ok(Flow::On)
    }

    /// Restores the partitions of these topics, and of those whose partition 0 is committed.
    fn restore_begun(&mut self, source: &B::Consumer, mut begun: BTreeSet<TopicId>) -> Result<(), Error> {
        let configured = |found: &Found| self.topics.configured(found.topic);
        let topics: BTreeSet<_> = self.assignment.unbegun.iter().map(configured).collect();
        let first = |&topic: &TopicId| TopicPartition { topic: self.topics[topic].config.input.clone(), partition: 0 };
        let firsts: Vec<_> = topics.iter().map(first).collect();
        let committed = self.patiently(|| source.committed(&firsts))?;
        begun.extend(topics.into_iter().zip(committed).filter(|(_, of)| of.offset.is_some()).map(|(topic, _)| topic));
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.assignment.unbegun).into_iter().partition(|found| begun.contains(&configured(found)));
        self.assignment.unbegun = waiting;
        if self.assignment.unbegun.is_empty() {
            self.assignment.ends.clear();
        }
        if ready.is_empty() {
            return Ok(());
        }
        let partitions: Vec<_> = ready.into_iter().map(|found| found.partition).collect();
        self.restore(source, &partitions)?;
        self.fetch_again(source, &partitions)
    }

    /// Returns true if anything shows that the group has read this topic before: a checkpoint, or records in a topic that only the
    /// group's workers write. With `repartition`, the checkpoints and the changelog are those of the repartition topic.
    fn has_begun(&self, source: &B::Consumer, topic: TopicId, all: &[Found]) -> Result<bool, Error> {
        let counted = self.topics[topic].counted;
        let states = all.iter().filter(|found| self.topics[found.topic].counted == counted).map(|found| self.state_of(found));
        if states.filter_map(|id| self.assignment.states.get(&id)).any(|state| !state.offsets.is_empty()) {
            return Ok(true);
        }
        // The changelog of a space may be of another topic only. But it may also be all that is left of this one.
        let own = self.topics.iter().map(|(_, topic)| topic).filter(|topic| topic.counted == counted);
        for name in own.flat_map(|topic| topic.forward.iter().map(|forward| &forward.topic).chain(&topic.changelog)) {
            let count = self.shared.cluster.partitions.get(name).copied().unwrap_or(0).cast_signed();
            for partition in 0..count {
                let partition = TopicPartition { topic: name.clone(), partition };
                if self.patiently(|| source.watermarks(&partition))?.1 > 0 && self.has_committed_record(&partition)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns true if the log of an internal topic has a committed record, or had one that was deleted. An aborted transaction leaves
    /// offsets, but no record: for example that of a seed that was killed.
    fn has_committed_record(&self, of: &TopicPartition) -> Result<bool, Error> {
        let reader = self.patiently(|| self.shared.broker.changelog_reader(&self.shared.config))?;
        let asked = runtime::now();
        let (low, end) = loop {
            match self.patiently(|| reader.ends(of))? {
                Some(ends) => break ends,
                None if self.stopping() => return Err(broker::Error::Stopped.into()),
                None if runtime::since(asked) > SILENCE => {
                    self.shared.stats.block(self.number, format!("waiting for the end of a transaction that is open in {of}"));
                }
                None => {}
            }
            runtime::sleep(INTERVAL);
        };
        let mut has_record = low > 0;
        if !has_record && low < end {
            let ended = reader.read::<Error>(of, (low, end), &|| self.stopping(), &mut |_| {
                has_record = true;
                Ok(false)
            })?;
            // Without knowing, no record may be skipped.
            if !has_record && self.stopping() {
                return Err(broker::Error::Stopped.into());
            }
            has_record |= ended != ReadEnd::Reached;
        }
        Ok(has_record)
    }
}
