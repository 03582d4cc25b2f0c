//! Promise: if the broker is killed and restarts, the output is exact, and the log does not repeat warnings every few seconds.

use crate::harness::{OwnBroker, PATIENCE, client, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::BTreeMap;

const RECORDS: usize = 200_000;

#[test]
fn broker_kills_do_not_change_the_output() {
    let mut broker = OwnBroker::start();
    let mut stream = Stream::new(broker.address(), "restart", RECORDS);
    let feed = stream.feed(12);
    let mut worker = stream.setup.start("a");
    worker.wait_for_log("partition restored", LIMIT);
    for share in [4, 2] {
        wait_until("a part of the records is sent", LIMIT, || (feed.sent() >= RECORDS / share).then_some(()));
        broker.kill();
        broker.wait_until_back();
    }
    feed.join();
    // The timestamps of this stream are more than a day old, so a restarted broker treats the feed's producer ID as expired. If the feed
    // retries a batch that was in flight, the batch can then be in the input twice.
    stream.expect_from_input();
    let log = stream.check(worker);
    assert!(log.contains("a Kafka client reported an error"), "the worker did not notice");
    stays_readable(&log);
}

/// The session of a static member ends during an outage, while the worker waits for the end of another producer's transaction. librdkafka
/// then forgets the member ID, so the brokers treat later heartbeats as those of another process with the same `group.instance.id` (see
/// src/worker/rejoin.rs).
#[test]
fn a_static_member_rejoins_after_its_session_has_expired() {
    let mut broker = OwnBroker::start();
    let stream = Stream::new(broker.address(), "outlived", RECORDS / 10).with(|setup| {
        let session = "\"session.timeout.ms\" = \"2000\"\n\"heartbeat.interval.ms\" = \"200\"\n\"reconnect.backoff.max.ms\" = \"500\"";
        setup.kafka("instance_id = \"outlived\"").properties(session)
    });
    let mut worker = stream.setup.start_armed("a", &[], "commit.flushed:1:error");
    worker.wait_for_log("partition restored", LIMIT);
    let mut config = client(broker.address());
    let stranger: BaseProducer = config.set("transactional.id", "stranger").create().expect("a producer");
    let member: BaseConsumer = client(broker.address()).set("group.id", stream.setup.group()).create().expect("a consumer");
    let mut offsets = TopicPartitionList::new();
    for partition in (0..).take(PARTITIONS) {
        offsets.add_partition_offset(&stream.input, partition, Offset::Offset(0)).expect("a valid offset");
    }
    stranger.init_transactions(PATIENCE).and_then(|()| stranger.begin_transaction()).expect("a transaction");
    stranger.send_offsets_to_transaction(&offsets, &member.group_metadata().expect("its group"), PATIENCE).expect("offsets");
    stream.produce(..);
    worker.wait_for_log("a request to the brokers has not succeeded yet", LIMIT);
    broker.kill();
    broker.wait_until_back();
    // The brokers do not accept the heartbeats of the worker, so they remove the member when its session expires.
    wait_until("the brokers have removed the member", LIMIT, || {
        let groups = member.fetch_group_list(Some(stream.setup.group()), PATIENCE).ok()?;
        groups.groups().first().is_some_and(|group| group.members().is_empty()).then_some(())
    });
    stranger.abort_transaction(PATIENCE).expect("an end of the transaction");
    worker.wait_for_log("rejoining, because an outage can have the same effect", LIMIT);
    stream.check(worker);
}

/// Panics if a warning of `unseen::kafka` is repeated within nine seconds. Compares warnings only up to their `(after …)` or
/// `suppressed=…`.
fn stays_readable(log: &str) {
    let mut told: BTreeMap<String, f64> = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains(" WARN unseen::kafka::")) {
        let (time, text) = line.split_once(' ').expect("a time, and what is told");
        // If the log spans midnight, a pause can be negative, and this check ignores negative pauses.
        let parts: Vec<f64> = time[11..].trim_end_matches('Z').split(':').map(|part| part.parse().expect("a number")).collect();
        let second = parts[0] * 3600.0 + parts[1] * 60.0 + parts[2];
        let (text, _) = text.split_once(" (after ").unwrap_or((text, ""));
        let (text, _) = text.split_once(" suppressed=").unwrap_or((text, ""));
        if let Some(before) = told.insert(text.to_owned(), second) {
            let pause = second - before;
            assert!(!(0.0..9.0).contains(&pause), "told again after {pause} s: {line}");
        }
    }
}
