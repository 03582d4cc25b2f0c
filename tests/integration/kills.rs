//! Promise: `kill -9`, at any time and as often as you like, loses nothing and lets nothing through twice.

use crate::harness::{SplitMix, broker};
use crate::stream::{PARTITIONS, RECORDS, Stream};
use std::time::{Duration, Instant};

const KILLS: usize = 20;

#[test]
fn twenty_kills() {
    let stream = Stream::new(broker(), "kills", RECORDS).with(|setup| setup.kafka("instance_id = \"killed\""));
    let feed = stream.feed(40);
    let mut random = SplitMix(20);
    let mut worker = stream.setup.start("a");
    for _ in 0..KILLS {
        // Each life is to do some work first: a worker that never gets to commit proves nothing.
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

/// With nothing but the checkpoint that is taken before the first record, everything is read again without emitting.
/// A changelog would do as well, unless it was trimmed by then.
#[test]
fn killed_before_its_second_checkpoint() {
    let stream = Stream::new(broker(), "early", RECORDS / 4).with(|setup| setup.kafka("instance_id = \"early\""));
    let start = || stream.setup.start_with("a", &["worker.checkpoint_interval=1h", "state.changelog=false"]);
    stream.produce(..RECORDS / 8);
    for _ in 0..2 {
        let mut worker = start();
        stream.wait_until_read(RECORDS / 8, &mut worker);
        worker.kill9();
    }
    stream.produce(RECORDS / 8..);
    let log = stream.check(start());
    assert_eq!(log.matches("warmed up").count(), PARTITIONS, "{log}");
    assert!(log.matches(" start=0 ").count() == PARTITIONS && !log.contains("no usable checkpoint"), "{log}");
}
