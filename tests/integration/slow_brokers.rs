//! Promise: brokers that take less within a transaction's timeout than there is to be written get it in smaller transactions.

use crate::harness::{News, OwnBroker, SplitMix};
use crate::stream::{LIMIT, Stream};
use std::time::Duration;

#[test]
fn a_backlog_comes_out_though_it_is_more_than_brokers_take_before_a_transaction_times_out() {
    let broker = OwnBroker::start();
    // The second takes five records before it times out.
    for (hint, records, bytes_a_second) in [("slow", 600, 4 << 20), ("slower", 150, 256 << 10)] {
        let mut records = News { count: records, ..News::default() }.records();
        let mut random = SplitMix(5);
        for record in &mut records {
            record.enlarge(100_000, &mut random);
        }
        let stream = Stream::of(broker.address(), hint, records, Duration::from_secs(24 * 3600));
        stream.produce(..);
        broker.way().narrow(bytes_a_second);
        let servers = format!("kafka.bootstrap_servers={}", broker.way().address());
        // All that is unseen is at hand long before the interval ends, and takes the brokers several times the timeout.
        let mut worker = stream.setup.start_with("a", &[&servers, "worker.commit_interval=1s", "worker.transaction_timeout=2s"]);
        worker.wait_for_log("the brokers do not take a transaction before it times out", LIMIT);
        stream.check(worker);
    }
}
