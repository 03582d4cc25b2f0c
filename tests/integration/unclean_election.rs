//! Promise: after an unclean leader election that loses consumed records, the worker stops or continues at the end of the log, as set by
//! `on_truncation`.

use crate::harness::{Group, News, Oracle, OwnBroker, Setup, assert_same, client, produce, topic, topic_on, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::time::Duration;

const RECORDS: usize = 30_000;
const WINDOW: Duration = Duration::from_secs(24 * 3600);

/// A stream whose input has replicas only on the first two brokers and allows unclean leader elections. If the second broker is elected
/// after an outage of its own, records are lost.
fn stream(address: &str, hint: &str) -> Stream {
    let input = topic_on(address, hint, &[1, 2], &[("min.insync.replicas", "1"), ("unclean.leader.election.enable", "true")]);
    let output = topic(address, &format!("{hint}-out"), 4);
    let filter = "filter = { kind = \"aging\", capacity = \"400k\", false_positive_rate = 1e-9, slices = 4 }";
    let setup = Setup::new(address, hint).worker("commit_interval = \"100ms\"").topic(&input, &output, &Stream::lines(WINDOW, filter));
    let records = News { count: RECORDS, ..News::default() }.records();
    let oracle = Oracle::new(WINDOW, 4);
    let expected = oracle.expected(&records, PARTITIONS);
    Stream { broker: address.to_owned(), input, output, records, expected, oracle, setup }
}

/// True if the broker with this number leads all partitions of the topic, with these replicas in sync.
fn is_led_by(address: &str, topic: &str, leader: i32, isr: &[i32]) -> bool {
    let consumer: BaseConsumer = client(address).create().expect("a consumer");
    let Ok(metadata) = consumer.fetch_metadata(Some(topic), Duration::from_secs(2)) else { return false };
    metadata.topics()[0].partitions().iter().all(|partition| partition.leader() == leader && partition.isr() == isr)
}

#[test]
fn unclean_election_stops_the_worker_or_continues_at_the_end_of_the_log() {
    let mut cluster = OwnBroker::start_cluster();
    let address = cluster.address().to_owned();
    let [ending, continuing] = ["unclean-fail", "unclean-continue"].map(|hint| stream(&address, hint));
    let streams = [&ending, &continuing];
    let mut workers = [ending.setup.start("a"), continuing.setup.start_with("a", &["kafka.on_truncation=continue"])];
    let groups = streams.map(|stream| Group::new(&address, stream.setup.group(), &stream.input, PARTITIONS));
    let committed = |at: usize| groups[at].committed();
    let mut read = |range: std::ops::Range<usize>| {
        for (at, stream) in streams.iter().enumerate() {
            produce(&address, &stream.input, &stream.records[range.clone()]);
            stream.wait_until_read(range.end, &mut workers[at]);
        }
        committed(1).expect("the brokers answer")
    };
    let kept = read(0..RECORDS / 3);
    // The second broker is down, so only the first broker gets the next records.
    cluster.take_down(1);
    wait_until("the second replica is out of sync", LIMIT, || {
        streams.iter().all(|stream| is_led_by(&address, &stream.input, 1, &[1])).then_some(())
    });
    let lost = read(RECORDS / 3..2 * RECORDS / 3);
    assert!(kept.iter().zip(&lost).all(|(kept, lost)| kept < lost), "a partition loses nothing: {kept:?}, {lost:?}");
    // The second broker returns while the first one is down.
    cluster.take_down(0);
    wait_until("the second replica leads", LIMIT, || {
        streams.iter().all(|stream| is_led_by(&address, &stream.input, 2, &[2])).then_some(())
    });
    let [mut ended, mut worker] = workers;
    wait_until("the worker ends", LIMIT, || ended.ended());
    let log = ended.fails(1);
    assert!(log.contains("the log was truncated"), "{log}");
    wait_until("the other worker continues at the log's end", LIMIT, || {
        assert!(worker.runs(), "the worker has ended");
        (committed(1)? == kept).then_some(())
    });
    cluster.wait_until_whole();
    assert_same(&ending.oracle.expected(&ending.records[..2 * RECORDS / 3], PARTITIONS), &ending.output());
    // The keys of the lost records count as seen, and later records are emitted as usual.
    produce(&address, &continuing.input, &continuing.records[2 * RECORDS / 3..]);
    continuing.check(worker);
}
