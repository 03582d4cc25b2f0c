//! Promise: for a topic without an output, the worker writes only its state. Once the topic has an output, its seen keys stay seen.

use crate::harness::{Setup, TestRecord, assert_same, broker, committed_offset, produce, read_committed, topic, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::time::Duration;

const RECORDS: usize = 20_000;
const HALF: usize = RECORDS / 2;

#[test]
fn shadow_writes_nothing_and_its_keys_stay_seen() {
    let mut stream = Stream::remembered(broker(), "shadow", RECORDS);
    let [again, dead] = ["shadow-again", "shadow-dead"].map(|hint| topic(broker(), hint, 4));
    let filter = "filter = { kind = \"aging\", capacity = \"400k\", false_positive_rate = 1e-9, slices = 4 }";
    let lines = Stream::lines(Duration::from_secs(24 * 3600), filter);
    let others = format!("on_duplicate = {{ topic = \"{again}\" }}\non_invalid = {{ topic = \"{dead}\" }}");
    stream.setup = Setup::new(broker(), "shadow").sections(&format!("[[topics]]\ninput = \"{}\"\n{lines}\n{others}", stream.input));

    stream.produce(..HALF);
    let without_key = TestRecord { value: Some(b"{}".to_vec()), ..stream.records[0].clone() };
    produce(broker(), &stream.input, [&without_key]);
    let mut shadow = stream.setup.start("a");
    let ends = |partition: i32| {
        let records = stream.records[..HALF].iter().chain([&without_key]).filter(|record| record.partition == partition);
        i64::try_from(records.count()).expect("few")
    };
    for partition in 0..4 {
        wait_until("the shadow has read all records", LIMIT, || {
            assert!(shadow.runs(), "the shadow ended");
            (committed_offset(broker(), stream.setup.group(), &stream.input, partition) >= Some(ends(partition))).then_some(())
        });
    }
    let log = shadow.drain();
    assert!(log.contains("has no output, so it is a shadow: the worker writes only its state"), "{log}");
    for name in [&stream.output, &again, &dead] {
        assert_same(&vec![Vec::new(); PARTITIONS], &read_committed(broker(), name, PARTITIONS));
    }

    // The next worker has another state directory, so it gets the seen keys from the changelog.
    let output = format!("topics[0].output={}", stream.output);
    let of_shadow = stream.oracle.expected(&stream.records[..HALF], PARTITIONS);
    for (expected, of_shadow) in stream.expected.iter_mut().zip(of_shadow) {
        expected.drain(..of_shadow.len());
    }
    stream.produce(HALF..);
    stream.check(stream.setup.start_with("b", &[&output]));
}
