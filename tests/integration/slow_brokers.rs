//! Promise: if brokers do not accept a transaction before it times out, the worker writes smaller transactions.

use crate::harness::{News, OwnBroker, SplitMix};
use crate::stream::{LIMIT, Stream};
use std::time::Duration;

#[test]
fn backlog_is_emitted_even_if_brokers_are_too_slow_for_one_transaction() {
    let broker = OwnBroker::start();
    // At a bandwidth of 256 KiB/s, brokers accept five records before a transaction times out.
    for (hint, records, bytes_a_second, changelog) in
        [("slow", 400, 4 << 20, true), ("slower", 60, 256 << 10, true), ("no-changelog", 400, 4 << 20, false)]
    {
        let mut records = News { count: records, ..News::default() }.records();
        let mut random = SplitMix(5);
        for record in &mut records {
            record.enlarge(100_000, &mut random);
        }
        let stream = Stream::of(broker.address(), hint, records, Duration::from_secs(24 * 3600));
        stream.produce(..);
        broker.way().narrow(bytes_a_second);
        let servers = format!("kafka.bootstrap_servers={}", broker.way().address());
        let changelog = format!("state.changelog={changelog}");
        // The worker has read all unseen records long before the commit interval ends. Writing these records takes more than two
        // transaction timeouts.
        let overrides = [&*servers, &changelog, "worker.commit_interval=1s", "worker.transaction_timeout=2s"];
        let mut worker = stream.setup.start_with("a", &overrides);
        worker.wait_for_log("transactions time out before the brokers accept them", LIMIT);
        stream.check(worker);
    }
}
