//! Promise: any number of kills with SIGKILL, at any time, causes no loss and no duplicates.

use crate::harness::{SplitMix, broker};
use crate::stream::Stream;
use std::time::{Duration, Instant};

const RECORDS: usize = 1_000_000;
const KILLS: usize = 20;

#[test]
fn a_million_records_survive_twenty_kills() {
    let stream = Stream::new(broker(), "kills", RECORDS).with(|setup| setup.kafka("instance_id = \"killed\""));
    let feed = stream.feed(35);
    let mut random = SplitMix(20);
    let mut worker = stream.setup.start("a");
    for _ in 0..KILLS {
        // Each worker must restore a partition before its kill, because the kill of a worker that processes no records proves nothing.
        worker.wait_for_log("partition restored", Duration::from_secs(60));
        let life = Duration::from_millis(200 + random.next() % 1200);
        let born = Instant::now();
        while born.elapsed() < life {
            std::thread::sleep(Duration::from_millis(10));
        }
        worker.kill9();
        worker = stream.setup.start("a");
    }
    feed.join();
    stream.check(worker);
}
