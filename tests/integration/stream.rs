//! A stream of records and its exact expected output, which are the basis of most tests.

use crate::harness::{
    Feed, News, Oracle, Setup, TestRecord, Worker, assert_same, committed_offset, produce, read_committed, topic, wait_for_output,
    wait_until,
};
use std::slice::SliceIndex;
use std::time::Duration;

pub const PARTITIONS: usize = 4;
/// The timeout of most waits. It is long enough for any fault on a slow machine.
pub const LIMIT: Duration = Duration::from_secs(240);

/// With these properties, a group notices a killed member after three seconds.
pub const SHORT_SESSION: &str = "\"session.timeout.ms\" = \"3000\"\n\"heartbeat.interval.ms\" = \"500\"";

/// Makes the brokers end the session and the transaction of a killed worker after a few seconds. A worker with the same state directory
/// ends its old transaction itself, so it needs only [`SHORT_SESSION`].
pub fn short_timeouts(setup: Setup) -> Setup {
    setup.properties(SHORT_SESSION).worker("transaction_timeout = \"2s\"")
}

/// The false-positive rate is so low that no false positive is expected.
const FILTER: &str = "filter = { kind = \"aging\", capacity = \"400k\", false_positive_rate = 1e-9, slices = 4 }";

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
    /// A stream of `count` records that are not produced yet. The records span two hours, and the window is 20 minutes long.
    pub fn new(broker: &str, hint: &str, count: usize) -> Self {
        Self::of(broker, hint, News { count, ..News::default() }.records(), Duration::from_secs(20 * 60))
    }

    /// A stream of `count` records whose window covers them all.
    pub fn remembered(broker: &str, hint: &str, count: usize) -> Self {
        Self::of(broker, hint, News { count, ..News::default() }.records(), Duration::from_secs(24 * 3600))
    }

    /// A stream of these records. The oracle uses record keys, so two records must have the same record key if and only if the worker
    /// extracts the same key from them.
    pub fn of(broker: &str, hint: &str, records: Vec<TestRecord>, window: Duration) -> Self {
        let output = topic(broker, &format!("{hint}-out"), 4);
        Self::into(broker, hint, output, records, window)
    }

    /// The same as [`Stream::of`], with an existing output.
    pub fn into(broker: &str, hint: &str, output: String, records: Vec<TestRecord>, window: Duration) -> Self {
        Self::remembered_by(broker, hint, output, records, window, FILTER)
    }

    /// The same as [`Stream::into`], with other configuration lines for the filter.
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

    /// The configuration lines of the topic, without its input and output.
    pub fn lines(window: Duration, filter: &str) -> String {
        let key = "key = [{ field = \"/user_id\" }, { field = \"/news_id\" }]";
        format!("space = \"news\"\n{key}\nwindow = \"{}s\"\n{filter}", window.as_secs())
    }

    pub fn with(mut self, change: impl FnOnce(Setup) -> Setup) -> Self {
        self.setup = change(self.setup);
        self
    }

    /// Produces the records in the background, at a constant rate, within about `seconds`.
    pub fn feed(&self, seconds: u32) -> Feed {
        let count = u32::try_from(self.records.len()).expect("a count of records");
        Feed::start(&self.broker, &self.input, self.records.clone(), count / seconds)
    }

    pub fn produce(&self, range: impl SliceIndex<[TestRecord], Output = [TestRecord]>) {
        produce(&self.broker, &self.input, &self.records[range]);
    }

    /// Derives the expected output from the actual content of the input instead of the records that were sent.
    pub fn expect_from_input(&mut self) {
        self.records = read_committed(&self.broker, &self.input, PARTITIONS).concat();
        self.expected = self.oracle.expected(&self.records, PARTITIONS);
    }

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

    /// Produces the first `count` records and runs a worker named `a` until it has read them.
    pub fn begin(&self, count: usize) {
        self.produce(..count);
        let mut worker = self.setup.start("a");
        self.wait_until_read(count, &mut worker);
        worker.drain();
    }

    pub fn output(&self) -> Vec<Vec<TestRecord>> {
        read_committed(&self.broker, &self.output, PARTITIONS)
    }

    /// Waits for the complete output, stops the worker, and compares record by record. Returns the worker's log.
    pub fn check(&self, mut worker: Worker) -> String {
        let total = self.expected.iter().map(Vec::len).sum();
        wait_for_output(&self.broker, &self.output, total, PARTITIONS, LIMIT, &mut worker);
        let log = worker.drain();
        // The stopped worker writes nothing more, so no duplicate can appear after this comparison.
        assert_same(&self.expected, &self.output());
        log
    }
}
