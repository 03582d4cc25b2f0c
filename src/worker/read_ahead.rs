//! The next batch of records. The worker also reads records into the batch while it waits for the brokers to commit.
//!
//! Keeps records that are not judged yet, but whose keys may already be extracted. Stops reading ahead when the batch has reached its
//! maximum number of records or bytes. If its partitions are rewound, the batch is never processed, because its records are read again.

use super::Flow;
use super::ids::InputId;
use super::key_reader::{KeyReader, Keys};
use super::topics::Topics;
use crate::broker::{self, Batch, Broker, Consumer as _, Record, RecordOf};
use crate::key::{Fingerprint, KeyedRecord};
use std::ops::Range;
use std::time::Duration;

pub(super) const BATCH_RECORDS: usize = 1024;
const RECORDS_MAX: usize = 8 * BATCH_RECORDS;
/// The total size of records in bytes at which the worker stops reading ahead.
const BYTES_MAX: usize = 8 << 20;
/// The longest wait for records. After each wait, the worker checks whether the commit has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

pub(super) struct ReadAhead<'s, B: Broker> {
    pub(super) batch: Batch<RecordOf<'s, B>>,
    pub(super) runs: PartitionRuns,
    /// The keys of the first records in the batch.
    pub(super) keys: Keys,
    /// The error that ended reading ahead. [`ReadAhead::fill`] returns it.
    failed: Option<broker::Error>,
}

/// Runs of consecutive records of one partition. The topic is looked up once per run.
#[derive(Default)]
pub(super) struct PartitionRuns(Vec<PartitionRun>);

struct PartitionRun {
    /// `None` if the topic is not an input.
    of: Option<InputId>,
    /// The index of the first record after the run.
    end: usize,
}

impl PartitionRuns {
    /// Adds the records of a batch that are not in a run yet.
    pub(super) fn add_runs(&mut self, topics: &Topics, messages: &[impl Record]) {
        let mut end = self.0.last().map_or(0, |last| last.end);
        for together in messages[end..].chunk_by(Record::same_partition) {
            end += together.len();
            let topic = topics.find(together[0].topic());
            self.0.push(PartitionRun { of: topic.map(|topic| InputId { topic, partition: together[0].partition() }), end });
        }
    }

    /// Returns the runs within a range of records, each with the indexes of its records in that range.
    pub(super) fn within(&self, records: Range<usize>) -> impl Iterator<Item = (Option<InputId>, Range<usize>)> {
        let first = self.0.partition_point(|run| run.end <= records.start);
        let mut start = records.start;
        self.0[first..].iter().map_while(move |run| {
            let numbers = start..run.end.min(records.end);
            start = run.end;
            (!numbers.is_empty()).then_some((run.of, numbers))
        })
    }
}

impl<B: Broker> Default for ReadAhead<'_, B> {
    fn default() -> Self {
        Self { batch: Batch::default(), runs: PartitionRuns::default(), keys: Keys::default(), failed: None }
    }
}

impl<'s, B: Broker> ReadAhead<'s, B> {
    /// Reads until `is_done` shows that the commit has ended or until a bound is reached. Also stops at the limit for decoded bytes, and if
    /// the consumer fails, has a rebalance, or reports a position outside the log.
    pub(super) fn read(&mut self, source: &'s B::Consumer, topics: &Topics, reader: &mut KeyReader, is_done: &dyn Fn() -> bool) {
        let mut bytes = 0;
        while !is_done() && bytes < BYTES_MAX && self.batch.messages.len() <= RECORDS_MAX - BATCH_RECORDS {
            let before = self.batch.messages.len();
            if let Err(error) = source.poll(&mut self.batch, BATCH_RECORDS, POLL_INTERVAL) {
                self.failed = Some(error);
                return;
            }
            if self.batch.out_of_range || source.has_rebalance() {
                return;
            }
            self.runs.add_runs(topics, &self.batch.messages);
            if !take_keys(topics, reader, &self.batch.messages, &self.runs, &mut self.keys, self.batch.messages.len()) {
                return;
            }
            bytes += self.batch.messages[before..].iter().map(Record::bytes).sum::<usize>();
        }
    }

    /// Waits for records, unless some were read ahead. Also returns the error of a consumer that failed while reading ahead.
    pub(super) fn fill(&mut self, source: &'s B::Consumer, wait: Duration) -> Result<(), broker::Error> {
        match self.failed.take() {
            Some(error) => Err(error),
            None if self.batch.is_empty() => source.poll(&mut self.batch, BATCH_RECORDS, wait),
            None => Ok(()),
        }
    }

    pub(super) fn discard_if_rewound(&mut self, flow: Flow) {
        if let Flow::Rewound = flow {
            self.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        self.batch.clear();
        self.runs.0.clear();
        self.keys.clear();
    }
}

/// Extracts the missing keys of the records before index `end`. Returns false if the extraction stopped earlier at the limit for decoded
/// bytes. Even then, at least one more key was extracted.
pub(super) fn take_keys(
    topics: &Topics,
    reader: &mut KeyReader,
    messages: &[impl Record],
    runs: &PartitionRuns,
    keys: &mut Keys,
    end: usize,
) -> bool {
    let decoded_limit = reader.decoded_limit();
    for (of, numbers) in runs.within(keys.keyed.len()..end) {
        let end = numbers.end;
        match of {
            Some(of) => reader.take(topics, of.topic, &messages[numbers], keys, decoded_limit),
            // These records are skipped, so their keys are placeholders.
            None => keys.keyed.extend(numbers.map(|_| Ok(KeyedRecord { fingerprint: Fingerprint(0), retracts: false, time: None }))),
        }
        if topics.have_rules {
            // `KeyReader::take` adds entries only for inputs with several rules.
            keys.rules.resize(keys.keyed.len(), of.unwrap_or_default().topic);
        }
        if keys.keyed.len() < end {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Cluster;
    use crate::config::Config;
    use crate::format::NoSchemas;
    use crate::record::{Offset, Timestamp, TimestampType, TopicId};
    use std::sync::Arc;

    struct OfValue(String);

    impl Record for OfValue {
        fn topic(&self) -> &'static str {
            "in"
        }

        fn partition(&self) -> i32 {
            0
        }

        fn offset(&self) -> Offset {
            0
        }

        fn stamp(&self) -> Option<(TimestampType, Timestamp)> {
            None
        }

        fn key(&self) -> Option<&[u8]> {
            None
        }

        fn value(&self) -> Option<&[u8]> {
            Some(self.0.as_bytes())
        }

        fn all_headers(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
            std::iter::empty()
        }

        fn same_partition(&self, _: &Self) -> bool {
            true
        }
    }

    #[test]
    fn the_extraction_of_keys_stops_when_many_bytes_are_decoded() {
        let topic = "input = \"in\"\noutput = \"out\"\nwindow = \"1h\"\nkey = { record = \"value\" }\nvalue_encoding = [\"base64\"]\nfilter = { capacity = 100 }";
        let config = Config::of_text(&format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n[[topics]]\n{topic}\n"));
        let topics = Topics::new(&config, &Cluster::default());
        let mut reader = KeyReader::new(1, Arc::new(NoSchemas)).with_decoded_max(10);
        // Each value is four bytes long when it is decoded.
        let messages: Vec<_> = (0..8).map(|_| OfValue("YWJjZA==".to_owned())).collect();
        let (mut runs, mut keys) = (PartitionRuns::default(), Keys::default());
        runs.add_runs(&topics, &messages);
        let mut taken = |end| {
            let reached = take_keys(&topics, &mut reader, &messages, &runs, &mut keys, end);
            (reached, keys.keyed.len())
        };
        assert_eq!(taken(2), (true, 2));
        // Extracted keys do not count again.
        assert_eq!(taken(4), (true, 4));
        assert_eq!(taken(8), (false, 7));
        assert_eq!(taken(8), (true, 8));
    }

    #[test]
    fn runs_are_split_by_rule() {
        let of = |topic| Some(InputId { topic: TopicId(topic), partition: 3 });
        let mut keys = Keys::default();
        assert_eq!(keys.by_rule(of(0), 2..5).collect::<Vec<_>>(), [(of(0), 2..5)], "no input has several rules");
        keys.rules = [0, 0, 1, 1, 0, 2].map(TopicId).to_vec();
        assert_eq!(keys.by_rule(of(0), 1..6).collect::<Vec<_>>(), [(of(0), 1..2), (of(1), 2..4), (of(0), 4..5), (of(2), 5..6)]);
        assert_eq!(keys.by_rule(None, 1..3).collect::<Vec<_>>(), [(None, 1..2), (None, 2..3)]);
        assert!(keys.by_rule(of(0), 3..3).next().is_none());
    }

    #[test]
    fn runs_are_cut_at_both_ends() {
        let of = |partition| Some(InputId { topic: TopicId(0), partition });
        let runs =
            PartitionRuns(vec![PartitionRun { of: of(0), end: 3 }, PartitionRun { of: None, end: 4 }, PartitionRun { of: of(1), end: 9 }]);
        let within = |range| runs.within(range).collect::<Vec<_>>();
        assert_eq!(within(0..9), [(of(0), 0..3), (None, 3..4), (of(1), 4..9)]);
        assert_eq!(within(1..3), [(of(0), 1..3)]);
        assert_eq!(within(2..6), [(of(0), 2..3), (None, 3..4), (of(1), 4..6)]);
        assert_eq!(within(3..4), [(None, 3..4)]);
        assert_eq!((within(9..9), within(4..4)), (vec![], vec![]));
    }
}
