//! Promise: what comes out is what the exact window lets out, unchanged and in order.

use crate::harness::{broker, produce};
use crate::stream::{RECORDS, Stream};

#[test]
fn undisturbed() {
    let stream = Stream::new(broker(), "undisturbed", RECORDS);
    produce(broker(), &stream.input, &stream.records);
    let worker = stream.setup.start("a");
    stream.check(worker);
}

#[test]
fn undisturbed_with_four_workers() {
    let stream = Stream::new(broker(), "workers", RECORDS / 4).with(|setup| setup.worker("workers = 4"));
    let feed = stream.feed(5);
    let worker = stream.setup.start("a");
    feed.join();
    stream.check(worker);
}
