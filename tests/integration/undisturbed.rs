//! Promise: without faults, the output is exactly what the window allows, unchanged and in order.

use crate::harness::{broker, produce};
use crate::stream::Stream;

const RECORDS: usize = 200_000;

#[test]
fn output_is_exact() {
    let stream = Stream::new(broker(), "undisturbed", RECORDS);
    produce(broker(), &stream.input, &stream.records);
    let worker = stream.setup.start("a");
    stream.check(worker);
}

#[test]
fn output_of_four_workers_is_exact() {
    let stream = Stream::new(broker(), "workers", RECORDS / 2).with(|setup| setup.worker("workers = 4"));
    let feed = stream.feed(5);
    let worker = stream.setup.start("a");
    feed.join();
    stream.check(worker);
}
