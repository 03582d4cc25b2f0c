//! A measurement, not a promise: the time to rebuild a large state.

use crate::harness::{Setup, TestRecord, Worker, broker, client, committed_offset, produce, topic, wait_until};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};
use std::fs;
use std::time::{Duration, Instant};

const PARTITIONS: i32 = 4;
const LIMIT: Duration = Duration::from_secs(1200);

fn key(number: u64) -> TestRecord {
    let partition = i32::try_from(number % 4).expect("a partition");
    // The records span the window, so every slice has keys.
    let timestamp = 1_700_000_000_000 + i64::try_from(number).expect("few") * 8;
    TestRecord { partition, key: Some(number.to_be_bytes().to_vec()), timestamp, ..TestRecord::default() }
}

/// Reads a topic to its end. Returns the elapsed time and the number of value bytes.
fn plain(broker: &str, topic: &str) -> (Duration, usize) {
    let consumer: BaseConsumer = client(broker)
        .set("group.id", "plain")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .create()
        .expect("a consumer");
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        list.add_partition_offset(topic, partition, Offset::Beginning).expect("an offset");
    }
    let began = Instant::now();
    consumer.assign(&list).expect("an assignment");
    let (mut bytes, mut ended) = (0, 0);
    while ended < PARTITIONS {
        match consumer.poll(Duration::from_secs(1)) {
            Some(Ok(message)) => bytes += message.payload_len(),
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
    }
    (began.elapsed(), bytes)
}

fn restored(worker: &Worker) -> bool {
    worker.log().matches("partition restored").count() == 4
}

/// The longest restore of a partition in the log, in milliseconds. Partitions are restored in parallel, so the slowest one determines the
/// total time.
fn slowest(log: &str) -> u64 {
    let elapsed = log
        .lines()
        .filter(|line| line.contains("partition restored"))
        .filter_map(|line| line.split("elapsed_ms=").nth(1)?.trim().parse().ok());
    elapsed.max().unwrap_or(0)
}

#[test]
#[ignore = "it measures, for minutes"]
fn rebuild_of_a_large_window() {
    let millions: u64 = std::env::var("MILLIONS").ok().and_then(|millions| millions.parse().ok()).unwrap_or(10);
    let (input, output) = (topic(broker(), "rebuild-in", 4), topic(broker(), "rebuild-out", 4));
    let lines = format!(
        "space = \"s\"\nkey = [{{ record = \"key\" }}]\nwindow = \"{}s\"\nfilter = {{ kind = \"aging\", capacity = \"{millions}M\", false_positive_rate = 1e-3 }}",
        millions * 8_000
    );
    let setup = Setup::new(broker(), "rebuild").worker("commit_interval = \"1s\"").topic(&input, &output, &lines);
    let keys = millions * 1_000_000;
    produce(broker(), &input, (0..keys).map(key));
    let mut worker = setup.start("a");
    for partition in 0..PARTITIONS {
        wait_until("everything is read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (committed_offset(broker(), setup.group(), &input, partition) >= i64::try_from(keys / 4).ok()).then_some(())
        });
    }
    worker.drain();
    let log = format!("{}-s-changelog", setup.group());
    plain(broker(), &log);
    println!("{keys} keys in 4 partitions; times in ms");
    for _ in 0..3 {
        let (read, bytes) = plain(broker(), &log);
        fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
        let worker = setup.start("a");
        wait_until("everything is restored", LIMIT, || restored(&worker).then_some(()));
        let rebuilt = slowest(&worker.drain());
        let worker = setup.start("a");
        wait_until("everything is restored", LIMIT, || restored(&worker).then_some(()));
        let loaded = slowest(&worker.drain());
        let ratio = f64::from(u32::try_from(rebuilt).expect("a time")) / (read.as_secs_f64() * 1000.0);
        println!(
            "plain consumer {:>6} ({} bytes per key)   rebuilt {rebuilt:>6} ({ratio:.2} times the plain consumer)   from checkpoint {loaded:>6}",
            read.as_millis(),
            bytes as u64 / keys
        );
    }
}
