//! Promise: a transaction that has reached its maximum size in bytes is committed before the commit interval ends.

use crate::harness::{News, Reader, broker, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::time::Duration;

/// The documented maximum size of a transaction.
const FULL: usize = 64 << 20;

#[test]
fn full_transaction_is_committed_before_the_interval_ends() {
    let mut records = News { count: 320, ..News::default() }.records();
    // The records are large, but they compress well, so the brokers receive little data.
    for record in &mut records {
        record.pad(&"x".repeat(500_000));
    }
    let stream = Stream::of(broker(), "full", records, Duration::from_secs(24 * 3600));
    let bytes: usize = stream.expected.iter().flatten().map(|record| record.text().len()).sum();
    assert!(bytes > FULL && bytes < 2 * FULL, "{bytes} bytes are more than one transaction takes, and less than two");
    stream.produce(..);
    let mut worker = stream.setup.start_with("a", &["worker.commit_interval=7m", "worker.transaction_timeout=15m"]);
    // Without the maximum size, no record would be visible before the commit interval ends, and the interval is longer than this wait.
    let mut reader = Reader::new(&stream.broker, &stream.output, PARTITIONS);
    wait_until("a part of the records is visible", LIMIT, || {
        assert!(worker.runs(), "the worker exited before any record was visible");
        reader.poll(Duration::from_millis(100));
        (reader.count() > 0).then_some(())
    });
    let visible: usize = reader.records.iter().flatten().map(|record| record.text().len()).sum();
    assert!(visible < bytes, "all records became visible at once");
    // The worker may not have read all records yet, so the next worker reads the remaining records.
    worker.drain();
    stream.check(stream.setup.start("a"));
}
