//! Records, half of which are duplicates, and the exact output for them: most tests start from these.

use crate::harness::{
    Feed, News, Oracle, Setup, TestRecord, Worker, assert_same, committed_offset, produce, read_committed, topic, wait_for_output,
    wait_until,
};
use std::slice::SliceIndex;
use std::time::Duration;

pub const PARTITIONS: usize = 4;
/// Long enough for any of the disturbances, on a slow machine.
pub const LIMIT: Duration = Duration::from_secs(240);

/// Properties with which a group soon notices that a member was killed.
pub const SHORT_SESSION: &str = "\"session.timeout.ms\" = \"3000\"\n\"heartbeat.interval.ms\" = \"500\"";

/// Has the brokers end the session and the transaction of a killed worker after a few seconds. A worker that is started with the
/// same state directory ends its old transaction itself, so it only needs [`SHORT_SESSION`].
pub fn short_timeouts(setup: Setup) -> Setup {
    setup.properties(SHORT_SESSION).worker("transaction_timeout = \"2s\"")
}

/// So rarely wrong that not one record is expected to fall to it.
const FILTER: &str = "filter = { kind = \"aging\", capacity = \"400k\", false_positive_rate = 1e-9, slices = 4 }";

/// Topics, records and the exact truth of one test.
pub struct Stream {
    pub broker: String,
    pub input: String,
    pub output: String,
    pub records: Vec<TestRecord>,
    pub expected: Vec<Vec<TestRecord>>,
    pub oracle: Oracle,
    pub setup: Setup,
}

impl Stream {
    /// A stream of `count` records that is not yet produced. Its window rotates a score of times. The
    /// error rate is so low that not one record is expected to fall to it.
    pub fn new(broker: &str, hint: &str, count: usize) -> Self {
        Self::of(broker, hint, News { count, ..News::default() }.records(), Duration::from_secs(20 * 60))
    }

    /// A stream of `count` records whose window covers them all.
    pub fn remembered(broker: &str, hint: &str, count: usize) -> Self {
        Self::of(broker, hint, News { count, ..News::default() }.records(), Duration::from_secs(24 * 3600))
    }

    /// A stream of these records, whose record keys are their keys.
    pub fn of(broker: &str, hint: &str, records: Vec<TestRecord>, window: Duration) -> Self {
        let output = topic(broker, &format!("{hint}-out"), 4);
        Self::into(broker, hint, output, records, window)
    }

    /// [`Stream::of`] with an output that is there already.
    pub fn into(broker: &str, hint: &str, output: String, records: Vec<TestRecord>, window: Duration) -> Self {
        Self::remembered_by(broker, hint, output, records, window, FILTER)
    }

    /// [`Stream::into`] with other lines for what remembers.
    pub fn remembered_by(broker: &str, hint: &str, output: String, records: Vec<TestRecord>, window: Duration, filter: &str) -> Self {
        let oracle = Oracle::new(window, 4);
        let expected = oracle.expected(&records, PARTITIONS);
        let input = topic(broker, &format!("{hint}-in"), 4);
        let setup = Setup::new(broker, hint).worker("commit_interval = \"100ms\"\ncheckpoint_interval = \"1s\"").topic(
            &input,
            &output,
            &Self::lines(window, filter),
        );
        Self { broker: broker.to_owned(), input, output, records, expected, oracle, setup }
    }

    /// What its configuration says of the topic, beside its names.
    pub fn lines(window: Duration, filter: &str) -> String {
        let key = "key = [{ field = \"/user_id\" }, { field = \"/news_id\" }]";
        format!("space = \"news\"\n{key}\nwindow = \"{}s\"\n{filter}", window.as_secs())
    }

    /// Lines for `[kafka]`, and whatever else the test wants of its workers.
    pub fn with(mut self, change: impl FnOnce(Setup) -> Setup) -> Self {
        self.setup = change(self.setup);
        self
    }

    /// Produces the records in `seconds`, while the test goes on.
    pub fn feed(&self, seconds: u32) -> Feed {
        let count = u32::try_from(self.records.len()).expect("a count of records");
        Feed::start(&self.broker, &self.input, self.records.clone(), count / seconds)
    }

    /// Produces some of the records, and returns when the broker has them.
    pub fn produce(&self, range: impl SliceIndex<[TestRecord], Output = [TestRecord]>) {
        produce(&self.broker, &self.input, &self.records[range]);
    }

    /// Takes what the input really holds for the truth, instead of what was sent to it.
    pub fn expect_from_input(&mut self) {
        self.records = read_committed(&self.broker, &self.input, PARTITIONS).concat();
        self.expected = self.oracle.expected(&self.records, PARTITIONS);
    }

    /// Waits until the first `count` records are read and what came of them is committed.
    pub fn wait_until_read(&self, count: usize, worker: &mut Worker) {
        let mut ends = [0; PARTITIONS];
        for record in &self.records[..count] {
            ends[usize::try_from(record.partition).expect("a partition")] += 1;
        }
        for (partition, end) in (0..).zip(ends) {
            wait_until(&format!("partition {partition} is read up to offset {end}"), LIMIT, || {
                assert!(worker.runs(), "the worker ended before it had read everything");
                (committed_offset(&self.broker, self.setup.group(), &self.input, partition) >= Some(end)).then_some(())
            });
        }
    }

    /// Has a worker named `a` read the first `count` records and end, its state written.
    pub fn begin(&self, count: usize) {
        self.produce(..count);
        let mut worker = self.setup.start("a");
        self.wait_until_read(count, &mut worker);
        worker.drain();
    }

    /// What came out so far, by partition.
    pub fn output(&self) -> Vec<Vec<TestRecord>> {
        read_committed(&self.broker, &self.output, PARTITIONS)
    }

    /// Waits until everything came out, ends the worker, and compares record by record. Returns its log.
    pub fn check(&self, mut worker: Worker) -> String {
        let total = self.expected.iter().map(Vec::len).sum();
        wait_for_output(&self.broker, &self.output, total, PARTITIONS, LIMIT, &mut worker);
        let log = worker.drain();
        // Once it has ended nothing can be added: a record that came twice has come by now.
        assert_same(&self.expected, &self.output());
        log
    }
}
