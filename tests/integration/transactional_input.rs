//! Promise: transaction markers and aborted records in an input leave no consumer lag. The worker reports an open transaction.

use crate::harness::{
    Group, Setup, TestRecord, Worker, broker, client, committed_offset, delete_records_before, produce, topic, wait_until,
};
use crate::observed::{address, ask};
use crate::stream::LIMIT;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

const LINES: &str = "space = \"ids\"\nkey = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }";

fn producer(broker: &str, topic: &str) -> BaseProducer {
    let producer: BaseProducer =
        client(broker).set("transactional.id", topic).set("transaction.timeout.ms", "600000").create().expect("a producer");
    producer.init_transactions(LIMIT).expect("it is ready");
    producer
}

/// Writes records with these keys to a partition in a transaction. Does not end the transaction.
fn begin(producer: &BaseProducer, topic: &str, partition: i32, keys: std::ops::Range<i32>) {
    producer.begin_transaction().expect("a transaction");
    for key in keys {
        producer.send(BaseRecord::<str, str>::to(topic).partition(partition).key(&key.to_string())).expect("it is sent");
    }
    producer.flush(LIMIT).expect("all is written");
}

fn wait_until_nothing_lags(group: &Group, worker: &mut Worker) {
    wait_until("no uncommitted record is left", LIMIT, || {
        assert!(worker.runs(), "the worker has ended");
        group.has_read_all().then_some(())
    });
}

#[test]
fn markers_and_aborted_records_leave_no_lag() {
    // The cases cover a shared space (whose consumers report the ends of partitions), a changelog, and both values of `delivery`.
    for (shares_space, changelog, delivery) in
        [(false, false, "exactly_once"), (true, true, "exactly_once"), (false, true, "at_least_once")]
    {
        let (input, output) = (topic(broker(), "marker-in", 2), topic(broker(), "marker-out", 2));
        let mut setup = Setup::new(broker(), "marker")
            .worker(&format!("delivery = \"{delivery}\""))
            .state(&format!("changelog = {changelog}"))
            .topic(&input, &output, LINES);
        if shares_space {
            setup = setup.topic(&topic(broker(), "marker-in", 2), &output, LINES);
        }
        let (group, producer) = (Group::new(broker(), setup.group(), &input, 2), producer(broker(), &input));
        // Partition 1 has only an aborted record and its marker. The worker reads it from its start.
        begin(&producer, &input, 1, 0..1);
        producer.abort_transaction(LIMIT).expect("it is aborted");
        begin(&producer, &input, 0, 0..10);
        producer.commit_transaction(LIMIT).expect("it is committed");
        let mut worker = setup.start("a");
        wait_until_nothing_lags(&group, &mut worker);
        begin(&producer, &input, 0, 10..13);
        producer.abort_transaction(LIMIT).expect("it is aborted");
        wait_until_nothing_lags(&group, &mut worker);
        // Key 9 is a duplicate. Only an aborted record has had key 10, so key 10 is unseen.
        begin(&producer, &input, 0, 9..11);
        producer.commit_transaction(LIMIT).expect("it is committed");
        wait_until_nothing_lags(&group, &mut worker);
        worker.drain();
        for partition in 0..2 {
            let end = committed_offset(broker(), setup.group(), &input, partition).expect("an offset");
            delete_records_before(broker(), &input, partition, end);
        }
        // Worker `b` has no checkpoint.
        for name in ["a", "b"] {
            let mut worker = setup.start(name);
            let key = if name == "a" { 11 } else { 12 };
            begin(&producer, &input, 0, key - 2..key + 1);
            producer.commit_transaction(LIMIT).expect("it is committed");
            wait_until_nothing_lags(&group, &mut worker);
            let log = worker.drain();
            assert!(!log.contains(" ERROR ") && !log.contains("expired"), "{log}");
        }
        let keys = |partition: usize| {
            let records = crate::harness::read_committed(broker(), &output, 2).swap_remove(partition);
            records.into_iter().map(|record| String::from_utf8(record.key.expect("a key")).expect("text")).collect::<Vec<_>>()
        };
        // Without a changelog, worker `b` warms up from the records that are left in the input.
        let expected: Vec<_> = (0..13).map(|key| key.to_string()).collect();
        assert_eq!(keys(0), expected, "shares a space: {shares_space}, changelog: {changelog}, {delivery}");
        assert!(keys(1).is_empty());
    }
}

#[test]
fn an_open_transaction_is_reported() {
    let (input, output) = (topic(broker(), "open-in", 2), topic(broker(), "open-out", 2));
    let setup = Setup::new(broker(), "open").topic(&input, &output, LINES);
    let producer = producer(broker(), &input);
    let mut worker = setup.start("a");
    let address = address(&mut worker);
    wait_until("the worker is ready", LIMIT, || (ask(&address, "/readyz").0 == 200).then_some(()));
    begin(&producer, &input, 1, 0..5);
    let record = TestRecord { partition: 0, key: Some(b"a".to_vec()), timestamp: 1_700_000_000_000, ..TestRecord::default() };
    produce(broker(), &input, [record]);
    let named = format!("{input}[1]");
    worker.wait_for_log("an open transaction of a producer blocks this partition", LIMIT);
    let log = worker.log();
    let line = log.lines().find(|line| line.contains("an open transaction of a producer blocks this partition")).expect("a line");
    assert!(line.contains(&named) && !line.contains(&format!("{input}[0]")), "{line}");
    // The worker publishes its status once per second, so the probe can lag behind the log.
    let body = wait_until("the probe reports the open transaction", LIMIT, || {
        let (code, _, body) = ask(&address, "/readyz");
        assert!(code == 200, "{body}");
        body.contains(&named).then_some(body)
    });
    assert!(body.starts_with("ready: "), "{body}");
    let status = || serde_json::from_str::<serde_json::Value>(&ask(&address, "/api/v1/status").2).expect("JSON");
    let partitions = status()["partitions"].as_array().expect("a list").clone();
    let held: Vec<_> = partitions.iter().map(|partition| partition["open_transaction_since_ms"].is_number()).collect();
    assert_eq!(held, [false, true]);
    producer.commit_transaction(LIMIT).expect("it is committed");
    wait_until("no transaction blocks the partition", LIMIT, || (ask(&address, "/readyz").2 == "ready\n").then_some(()));
    assert!(status()["partitions"].as_array().expect("a list").iter().all(|partition| partition["open_transaction_since_ms"].is_null()));
    worker.drain();
}
