//! Promise: a record goes out with the time that it came with, or without one.

use crate::harness::{Setup, TestRecord, assert_same, broker, produce, topic, wait_for_output};
use crate::stream::LIMIT;

/// What librdkafka takes for "no time".
const NONE: i64 = -1;

#[test]
fn times_are_kept_and_so_is_their_absence() {
    for repartition in ["", "repartition = true\n"] {
        let (input, output) = (topic(broker(), "times", 1), topic(broker(), "times-out", 1));
        let lines = format!("space = \"ids\"\n{repartition}key = {{ record = \"key\" }}\nwindow = \"1h\"\nfilter = {{ kind = \"exact\" }}");
        let setup = Setup::new(broker(), "times").worker("commit_interval = \"50ms\"").topic(&input, &output, &lines);
        let record = |(number, timestamp): (u8, i64)| TestRecord { key: Some(vec![number]), timestamp, ..TestRecord::default() };
        let times = [NONE, 1, 1_000, NONE, 1_700_000_000_000, 1_699_999_999_999, NONE];
        let records: Vec<_> = (0..).zip(times).map(record).collect();
        produce(broker(), &input, &records);
        let mut worker = setup.start("a");
        let out = wait_for_output(broker(), &output, records.len(), 1, LIMIT, &mut worker);
        assert_same(&[records], &out);
        worker.drain();
    }
}
