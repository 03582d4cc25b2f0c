//! Promise: if the output is deleted while the worker runs, only the records in the deleted topic are lost. Once the topic is recreated, it
//! receives all uncommitted records, once each.

use crate::harness::{assert_same, broker, delete_topic, make_topic, wait_for_output, wait_until};
use crate::observed::{address, ask};
use crate::stream::{LIMIT, PARTITIONS, Stream};

const COUNT: usize = 40_000;

#[test]
fn a_recreated_output_gets_all_uncommitted_records() {
    let stream = Stream::remembered(broker(), "output-deleted", COUNT);
    let mut worker = stream.setup.start("a");
    stream.produce(..COUNT / 2);
    stream.wait_until_read(COUNT / 2, &mut worker);
    let before = stream.output();
    delete_topic(broker(), &stream.output);
    stream.produce(COUNT / 2..);
    let sentence = format!("topic {:?} no longer exists; recreate it with 4 partitions", stream.output);
    worker.wait_for_log(&sentence, LIMIT);
    let address = address(&mut worker);
    let body = wait_until("the worker is not ready", LIMIT, || {
        let (status, _, body) = ask(&address, "/readyz");
        (status == 503).then_some(body)
    });
    assert!(body.contains(&sentence), "{body}");
    let metrics = ask(&address, "/metrics").2;
    assert!(metrics.contains("unseen_state{state=\"blocked\"} 1"), "{metrics}");
    make_topic(broker(), &stream.output, 4);
    let rest: Vec<_> = stream.expected.iter().zip(&before).map(|(all, before)| all[before.len()..].to_vec()).collect();
    let total = rest.iter().map(Vec::len).sum();
    wait_for_output(broker(), &stream.output, total, PARTITIONS, LIMIT, &mut worker);
    wait_until("the worker is ready again", LIMIT, || (ask(&address, "/readyz").0 == 200).then_some(()));
    worker.drain();
    assert_same(&rest, &stream.output());
    let first: Vec<_> = stream.expected.iter().zip(&before).map(|(all, before)| all[..before.len()].to_vec()).collect();
    assert_same(&first, &before);
}
