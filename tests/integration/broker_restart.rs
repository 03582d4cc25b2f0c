//! Promise: the broker may be killed and come back, and the log stays readable meanwhile.

use crate::harness::{OwnBroker, wait_until};
use crate::stream::{LIMIT, RECORDS, Stream};
use std::collections::BTreeMap;

#[test]
fn the_broker_is_killed_and_restarted() {
    let mut broker = OwnBroker::start();
    let mut stream = Stream::new(broker.address(), "restart", RECORDS);
    let feed = stream.feed(30);
    let mut worker = stream.setup.start("a");
    worker.wait_for_log("partition restored", LIMIT);
    for share in [4, 2] {
        wait_until("a part of the records is sent", LIMIT, || (feed.sent() >= RECORDS / share).then_some(()));
        broker.kill();
        broker.wait_until_back();
    }
    feed.join();
    // A broker that comes back forgets producers whose last record is older than a day by its own time, as
    // these all are; whatever of the feed was on its way may then be in the input twice.
    stream.expect_from_input();
    let log = stream.check(worker);
    assert!(log.contains("trouble"), "the worker did not notice");
    stays_readable(&log);
}

/// No warning is there twice within ten seconds, but for numbers in it.
fn stays_readable(log: &str) {
    let mut told: BTreeMap<String, f64> = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains(" WARN unseen::kafka::")) {
        let (time, text) = line.split_once(' ').expect("a time, and what is told");
        // Midnight is as good as a pause.
        let parts: Vec<f64> = time[11..].trim_end_matches('Z').split(':').map(|part| part.parse().expect("a number")).collect();
        let second = parts[0] * 3600.0 + parts[1] * 60.0 + parts[2];
        let (text, _) = text.split_once(" (after ").unwrap_or((text, ""));
        let (text, _) = text.split_once(" left_out=").unwrap_or((text, ""));
        if let Some(before) = told.insert(text.to_owned(), second) {
            let pause = second - before;
            assert!(!(0.0..9.0).contains(&pause), "told again after {pause} s: {line}");
        }
    }
}
