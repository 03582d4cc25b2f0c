//! Promise: processes may join and leave the group under load.

use crate::harness::broker;
use crate::stream::{LIMIT, RECORDS, Stream};

#[test]
fn a_second_process_joins_and_leaves() {
    let stream = Stream::new(broker(), "members", RECORDS);
    let feed = stream.feed(30);
    let mut first = stream.setup.start("a");
    first.wait_for_log("partition restored", LIMIT);
    for _ in 0..2 {
        let mut second = stream.setup.start("b");
        second.wait_for_log("partition restored", LIMIT);
        second.sigterm();
        let status = second.wait(LIMIT);
        assert!(status.success(), "the second ended with {status}");
    }
    // And one that goes without a word, so that its partitions come back by way of its session's end.
    let mut third = stream.setup.start("c");
    third.wait_for_log("partition restored", LIMIT);
    third.kill9();
    feed.join();
    stream.check(first);
}
