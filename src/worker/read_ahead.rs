//! What is read while a commit waits for the brokers.
//!
//! Owns a batch whose keys are taken, and of which nothing is judged yet. Must never grow beyond its bounds, nor be
//! gone on with once its partitions were set back: it is read again.

use super::Flow;
use super::ids::InputId;
use super::key_reader::{KeyReader, Keyed};
use super::topics::Topics;
use crate::broker::{self, Batch, Broker, Consumer as _, Record, RecordOf};
use crate::key::Fingerprint;
use std::ops::Range;
use std::time::Duration;

/// Most records taken from the consumer at a time.
pub(super) const BATCH_RECORDS: usize = 1024;
/// Most records that are read ahead.
const RECORDS_MAX: usize = 8 * BATCH_RECORDS;
/// No more is read ahead when so many bytes are.
const BYTES_MAX: usize = 8 << 20;
/// Longest wait for records; bounds how late it is noticed that the commit has ended.
const TURN: Duration = Duration::from_millis(2);

/// A batch, its records by where they come from, and their keys as far as they are taken.
pub(super) struct ReadAhead<'s, B: Broker> {
    pub(super) batch: Batch<RecordOf<'s, B>>,
    pub(super) groups: Groups,
    /// In the order of the records.
    pub(super) keys: Vec<Keyed>,
    /// Why the consumer can never read again.
    failed: Option<broker::Error>,
}

/// The records of a batch that come one after the other from the same partition. So the topic of a record is looked up
/// once for all of them, whoever asks.
#[derive(Default)]
pub(super) struct Groups(Vec<Group>);

struct Group {
    /// `None` if nobody reads that topic.
    of: Option<InputId>,
    /// The number of the record behind its last.
    end: usize,
}

impl Groups {
    /// Adds the records of a batch that are not in a group yet.
    pub(super) fn add_runs(&mut self, topics: &Topics, messages: &[impl Record]) {
        let mut end = self.0.last().map_or(0, |last| last.end);
        for together in messages[end..].chunk_by(Record::same_partition) {
            end += together.len();
            let topic = topics.find(together[0].topic());
            self.0.push(Group { of: topic.map(|topic| InputId { topic, partition: together[0].partition() }), end });
        }
    }

    /// The groups of some of the records, each with the numbers of those records.
    pub(super) fn within(&self, records: Range<usize>) -> impl Iterator<Item = (Option<InputId>, Range<usize>)> {
        let first = self.0.partition_point(|group| group.end <= records.start);
        let mut start = records.start;
        self.0[first..].iter().map_while(move |group| {
            let numbers = start..group.end.min(records.end);
            start = group.end;
            (!numbers.is_empty()).then_some((group.of, numbers))
        })
    }
}

impl<B: Broker> Default for ReadAhead<'_, B> {
    fn default() -> Self {
        Self { batch: Batch::default(), groups: Groups::default(), keys: Vec::new(), failed: None }
    }
}

impl<'s, B: Broker> ReadAhead<'s, B> {
    /// Reads until the commit `is_done`, or it is enough.
    pub(super) fn read(&mut self, source: &'s B::Consumer, topics: &Topics, reader: &mut KeyReader, is_done: &dyn Fn() -> bool) {
        let mut bytes = 0;
        while !is_done() && bytes < BYTES_MAX && self.batch.messages.len() <= RECORDS_MAX - BATCH_RECORDS {
            let before = self.batch.messages.len();
            if let Err(error) = source.poll(&mut self.batch, BATCH_RECORDS, TURN) {
                self.failed = Some(error);
                return;
            }
            if self.batch.out_of_range || source.has_rebalance() {
                return;
            }
            self.groups.add_runs(topics, &self.batch.messages);
            take_keys(topics, reader, &self.batch.messages, &self.groups, &mut self.keys, self.batch.messages.len());
            bytes += self.batch.messages[before..].iter().map(Record::bytes).sum::<usize>();
        }
    }

    /// Waits for records, if none were read ahead.
    ///
    /// # Errors
    /// When the consumer can never read again.
    pub(super) fn fill(&mut self, source: &'s B::Consumer, wait: Duration) -> Result<(), broker::Error> {
        match self.failed.take() {
            Some(error) => Err(error),
            None if self.batch.is_empty() => source.poll(&mut self.batch, BATCH_RECORDS, wait),
            None => Ok(()),
        }
    }

    /// Drops what was read if positions were set back.
    pub(super) fn keep_unless_back(&mut self, flow: Flow) {
        if let Flow::Back = flow {
            self.clear();
        }
    }

    /// Drops what was read.
    pub(super) fn clear(&mut self) {
        self.batch.clear();
        self.groups.0.clear();
        self.keys.clear();
    }
}

/// Takes the keys of records up to the one of number `end`, as far as they are not taken.
pub(super) fn take_keys(
    topics: &Topics,
    reader: &mut KeyReader,
    messages: &[impl Record],
    groups: &Groups,
    keys: &mut Vec<Keyed>,
    end: usize,
) {
    for (of, numbers) in groups.within(keys.len()..end) {
        match of {
            Some(of) => reader.take(of.topic, &topics[of.topic], &messages[numbers], keys),
            // Nobody will ask for them.
            None => keys.extend(numbers.map(|_| Ok((Fingerprint(0), false)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TopicId;

    #[test]
    fn groups_are_cut_at_both_ends() {
        let of = |partition| Some(InputId { topic: TopicId(0), partition });
        let groups = Groups(vec![Group { of: of(0), end: 3 }, Group { of: None, end: 4 }, Group { of: of(1), end: 9 }]);
        let within = |range| groups.within(range).collect::<Vec<_>>();
        assert_eq!(within(0..9), [(of(0), 0..3), (None, 3..4), (of(1), 4..9)]);
        assert_eq!(within(1..3), [(of(0), 1..3)]);
        assert_eq!(within(2..6), [(of(0), 2..3), (None, 3..4), (of(1), 4..6)]);
        assert_eq!(within(3..4), [(None, 3..4)]);
        assert_eq!((within(9..9), within(4..4)), (vec![], vec![]));
    }
}
