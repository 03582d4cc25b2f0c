//! Promise: a worker that gets SIGTERM under load drains within `worker.shutdown_timeout`. The next process continues where the worker
//! stopped.

use crate::harness::{broker, committed_offset, wait_until};
use crate::stream::{LIMIT, Stream};
use std::time::{Duration, Instant};

const RECORDS: usize = 200_000;

#[test]
fn sigterm_under_load_drains() {
    let stream = Stream::new(broker(), "drain", RECORDS);
    let feed = stream.feed(15);
    for _ in 0..3 {
        let before = committed_offset(&stream.broker, stream.setup.group(), &stream.input, 0);
        let mut worker = stream.setup.start("a");
        wait_until("the worker commits", LIMIT, || {
            (committed_offset(&stream.broker, stream.setup.group(), &stream.input, 0) > before).then_some(())
        });
        worker.sigterm();
        let asked = Instant::now();
        let status = worker.wait(Duration::from_secs(25));
        assert!(status.success(), "ended with {status} after {:?}", asked.elapsed());
    }
    feed.join();
    let worker = stream.setup.start("a");
    stream.check(worker);
}
