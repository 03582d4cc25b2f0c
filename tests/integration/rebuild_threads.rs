//! Promise: two threads per process read changelogs, for any number of workers.

use crate::harness::{PATIENCE, Setup, broker, topic, wait_until};
use crate::stream::LIMIT;
use std::fs;

#[test]
fn workers_share_the_threads_that_read_changelogs() {
    let (input, output) = (topic(broker(), "threads-in", 4), topic(broker(), "threads-out", 4));
    let setup = Setup::new(broker(), "threads").worker("workers = 4").topic(
        &input,
        &output,
        "key = [{ record = \"key\" }]\nwindow = \"1h\"\nfilter = { kind = \"exact\" }",
    );
    let mut worker = setup.start("a");
    worker.wait_for_log("partitions assigned", LIMIT);
    let count = || {
        let threads = fs::read_dir(format!("/proc/{}/task", worker.pid())).expect("Linux tells of threads");
        let names = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("rebuild-")).count()
    };
    // A new thread of librdkafka has the name of its creator for a moment, so the count can be too high at first.
    wait_until("two threads read changelogs", PATIENCE, || (count() == 2).then_some(()));
    worker.drain();
}
