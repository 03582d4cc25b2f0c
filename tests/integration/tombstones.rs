//! Promise: a tombstone does not stop a worker whose key needs the value. `on_tombstone` determines what happens to tombstones, and valid
//! records keep their order.

use crate::harness::{News, TestRecord, broker, committed_offset, logged, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::time::Duration;

const WINDOW: Duration = Duration::from_secs(24 * 3600);

fn records() -> Vec<TestRecord> {
    let mut records = Vec::new();
    for (number, record) in (News { count: 4_000, ..News::default() }).records().into_iter().enumerate() {
        let (partition, timestamp) = (record.partition, record.timestamp);
        records.push(record);
        if number % 40 == 20 {
            let key = Some(format!("gone-{}", number % 3).into_bytes());
            records.push(TestRecord { partition, key, value: None, headers: vec![("op".to_owned(), Some(b"d".to_vec()))], timestamp });
        }
    }
    records
}

/// A stream with tombstones. Either all or none of them are expected in the output.
fn stream(hint: &str, emitted: bool) -> Stream {
    let mut stream = Stream::of(broker(), hint, records(), WINDOW);
    let good: Vec<_> = stream.records.iter().filter(|record| record.value.is_some()).cloned().collect();
    let unseen = stream.oracle.expected(&good, PARTITIONS);
    for (at, (expected, unseen)) in stream.expected.iter_mut().zip(unseen).enumerate() {
        let mut unseen = unseen.into_iter().peekable();
        let of_partition = stream.records.iter().filter(|record| usize::try_from(record.partition) == Ok(at));
        let goes_out = |record: &&TestRecord| if record.value.is_none() { emitted } else { unseen.next_if_eq(*record).is_some() };
        *expected = of_partition.filter(goes_out).cloned().collect();
    }
    stream.produce(..);
    stream
}

fn tombstones<'a>(records: impl IntoIterator<Item = &'a TestRecord>) -> usize {
    records.into_iter().filter(|record| record.value.is_none()).count()
}

#[test]
fn tombstones_are_emitted_in_order_by_default() {
    let stream = stream("tombstone", true);
    let log = stream.check(stream.setup.start("a"));
    assert!(tombstones(stream.expected.iter().flatten()) > 50, "too few tombstones to try anything");
    assert_eq!(logged(&log, "tombstones"), tombstones(&stream.records) as u64, "{log}");
}

#[test]
fn tombstones_bypass_the_repartition_topic() {
    let stream = stream("tombstone-spread", true);
    let mut worker = stream.setup.start_with("a", &["topics[0].repartition=true"]);
    stream.wait_until_read(stream.records.len(), &mut worker);
    let all = stream.expected.iter().map(Vec::len).sum::<usize>();
    wait_until("everything is emitted", LIMIT, || {
        assert!(worker.runs(), "the worker has ended");
        (stream.output().concat().len() >= all).then_some(())
    });
    worker.drain();
    assert!(committed_offset(broker(), stream.setup.group(), &stream.input, 0).is_some());
    let output = stream.output();
    assert_eq!(output.concat().len(), all, "a record was emitted twice");
    for (at, records) in (0..).zip(&output) {
        let expected = stream.records.iter().filter(|record| record.partition == at && record.value.is_none()).collect::<Vec<_>>();
        assert_eq!(records.iter().filter(|record| record.value.is_none()).collect::<Vec<_>>(), expected, "of partition {at}");
    }
}
