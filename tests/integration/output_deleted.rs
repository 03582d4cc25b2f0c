//! Promise: an output topic that is deleted under a running worker loses what it held, and nothing else: once it is
//! there again, all that was not committed comes out, once.

use crate::harness::{assert_same, broker, delete_topic, make_topic, wait_for_output};
use crate::stream::{LIMIT, PARTITIONS, Stream};

const COUNT: usize = 40_000;

#[test]
fn an_output_is_deleted_and_made_again() {
    let stream = Stream::remembered(broker(), "output-deleted", COUNT);
    let mut worker = stream.setup.start("a");
    stream.produce(..COUNT / 2);
    stream.wait_until_read(COUNT / 2, &mut worker);
    let before = stream.output();
    delete_topic(broker(), &stream.output);
    stream.produce(COUNT / 2..);
    worker.wait_for_log("transaction aborted", LIMIT);
    make_topic(broker(), &stream.output, 4);
    let rest: Vec<_> = stream.expected.iter().zip(&before).map(|(all, before)| all[before.len()..].to_vec()).collect();
    let total = rest.iter().map(Vec::len).sum();
    wait_for_output(broker(), &stream.output, total, PARTITIONS, LIMIT, &mut worker);
    worker.drain();
    assert_same(&rest, &stream.output());
    let first: Vec<_> = stream.expected.iter().zip(&before).map(|(all, before)| all[..before.len()].to_vec()).collect();
    assert_same(&first, &before);
}
