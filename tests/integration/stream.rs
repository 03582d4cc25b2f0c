//! A million records, half of them repeats, and what must come out of them: what every test of
//! exactly-once starts from.

use crate::harness::{Feed, News, Oracle, Setup, TestRecord, Worker, assert_same, read_committed, topic, wait_for_output};
use std::time::Duration;

pub const PARTITIONS: usize = 4;
pub const RECORDS: usize = 1_000_000;
/// Long enough for any of the disturbances, on a slow machine.
pub const LIMIT: Duration = Duration::from_secs(240);

/// Topics, records and the exact truth of one test.
pub struct Stream {
    pub broker: String,
    pub input: String,
    pub output: String,
    pub records: Vec<TestRecord>,
    pub expected: Vec<Vec<TestRecord>>,
    pub setup: Setup,
}

impl Stream {
    /// A stream of `count` records that is not yet produced. Its window rotates a score of times. The
    /// error rate is so low that not one record is expected to fall to it.
    pub fn new(broker: &str, hint: &str, count: usize) -> Self {
        let records = News { count, ..News::default() }.records();
        let expected = Oracle::new(Duration::from_secs(20 * 60), 4).expected(&records, PARTITIONS);
        let (input, output) = (topic(broker, &format!("{hint}-in"), 4), topic(broker, &format!("{hint}-out"), 4));
        let setup = Setup::new(broker, hint)
            .worker("commit_interval = \"100ms\"\ncheckpoint_interval = \"1s\"")
            .topic(
                &input,
                &output,
                "space = \"news\"\nkey = [{ json = \"/user_id\" }, { json = \"/news_id\" }]\nwindow = \"20m\"\n\
                 filter = { kind = \"aging\", capacity = \"400k\", false_positive_rate = 1e-9, slices = 4 }",
            );
        Self { broker: broker.to_owned(), input, output, records, expected, setup }
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

    /// Waits until everything came out, ends the worker, and compares record by record.
    pub fn check(&self, mut worker: Worker) {
        let total = self.expected.iter().map(Vec::len).sum();
        wait_for_output(&self.broker, &self.output, total, PARTITIONS, LIMIT, &mut worker);
        worker.sigterm();
        let status = worker.wait(Duration::from_secs(30));
        assert!(status.success(), "the worker ended with {status}");
        // Once it has ended nothing can be added: a record that came twice has come by now.
        assert_same(&self.expected, &read_committed(&self.broker, &self.output, PARTITIONS));
    }
}
