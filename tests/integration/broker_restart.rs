//! Promise: the broker may be killed and come back.

use crate::harness::{OwnBroker, wait_until};
use crate::stream::{LIMIT, RECORDS, Stream};

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
    stream.check(worker);
}
