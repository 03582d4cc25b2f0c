//! Promise: a worker that stops with an error leaves no open transaction. An open transaction would block the readers of its output.

use crate::harness::{News, Reader, broker, topic, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::time::Duration;

#[test]
fn a_full_filter_leaves_no_open_transaction() {
    let filter =
        "filter = { capacity = \"20k\", false_positive_rate = 0.01, adapt = false, max_memory = \"60KiB\", at_max_memory = \"stop\" }";
    let records = News { count: 200_000, ..News::default() }.records();
    let output = topic(broker(), "endings-out", 4);
    let window = Duration::from_secs(24 * 3600);
    let stream = Stream::remembered_by(broker(), "endings", output, records, window, filter);
    stream.produce(..1_000);
    // With these settings, the worker does not commit the transaction before it stops.
    let mut worker = stream.setup.start_with("a", &["worker.commit_interval=7m", "worker.transaction_timeout=15m"]);
    let output = Reader::new(broker(), &stream.output, PARTITIONS);
    wait_until("the worker writes", LIMIT, || {
        assert!(worker.runs(), "the worker ended before it had written");
        (output.has_open_transaction() == Some(true)).then_some(())
    });
    stream.produce(1_000..);
    let log = worker.fails(1);
    assert!(log.contains("max_memory"), "{log}");
    wait_until("no transaction is open", LIMIT, || (output.has_open_transaction() == Some(false)).then_some(()));
}
