//! Promise: an entry with a list of inputs deduplicates each input as if the input had its own entry.

use crate::harness::{
    Setup, TestRecord, Worker, assert_same, broker, client, committed_offset, make_topic, produce, read_committed, topic, unique,
    wait_until,
};
use crate::stream::LIMIT;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

fn records(keys: std::ops::Range<i64>) -> Vec<TestRecord> {
    let record =
        |key: i64| TestRecord { key: Some(key.to_string().into_bytes()), timestamp: 1_700_000_000_000 + key, ..TestRecord::default() };
    keys.map(record).collect()
}

#[test]
fn each_topic_of_a_list_has_its_own_keys_and_outputs() {
    let inputs = ["list-a", "list-b"].map(unique);
    let dead = topic(broker(), "list-dead", 1);
    for name in inputs.iter().flat_map(|input| [input.clone(), format!("{input}.unseen")]) {
        make_topic(broker(), &name, 1);
    }
    let [a, b] = &inputs;
    let setup = Setup::new(broker(), "list").sections(&format!(
        "[[topics]]\ninput = [\"{a}\", \"{b}\"]\noutput = \"{{input}}.unseen\"\non_invalid = {{ topic = \"{dead}\" }}\n\
         key = {{ record = \"key\" }}\nwindow = \"24h\"\nfilter = {{ kind = \"exact\" }}"
    ));
    // The topics have some keys in common, and each has a record without a key.
    let of = [0..100, 50..200].map(records);
    let without_key = TestRecord { timestamp: 1_700_000_000_000, ..TestRecord::default() };
    let mut read = [0, 0];
    let mut produce_all = || {
        for ((input, records), read) in inputs.iter().zip(&of).zip(&mut read) {
            produce(broker(), input, records.iter().chain([&without_key]));
            *read += i64::try_from(records.len() + 1).expect("few");
        }
        read
    };
    // The second worker restores the state of each topic from its own changelog.
    for name in ["first", "second"] {
        let ends = produce_all();
        let mut worker = setup.start(name);
        for (input, end) in inputs.iter().zip(ends) {
            wait_until("all records are read", LIMIT, || {
                assert!(worker.runs(), "the worker has ended");
                (committed_offset(broker(), setup.group(), input, 0) == Some(end)).then_some(())
            });
        }
        worker.drain();
    }
    for (input, expected) in inputs.iter().zip(of) {
        assert_same(&[expected], &read_committed(broker(), &format!("{input}.unseen"), 1));
    }
    assert_eq!(read_committed(broker(), &dead, 1)[0].len(), 4, "a record without a key, twice per topic");
}

#[test]
fn a_missing_topic_of_a_list_is_named_with_its_entry() {
    let input = topic(broker(), "list-there", 1);
    let missing = unique("list-missing");
    let setup = Setup::new(broker(), "list-missing").sections(&format!(
        "[[topics]]\ninput = [\"{input}\", \"{missing}\"]\nkey = {{ record = \"key\" }}\nwindow = \"24h\"\nfilter = {{ kind = \"exact\" }}"
    ));
    let log = setup.start("a").fails(1);
    assert!(log.contains(&format!("topics[0].input: topic {missing:?} does not exist; check the name, or create the topic")), "{log}");
}

/// If the static member returned before its session expires, it would keep its partitions and get no partition of the new topic
/// (KAFKA-12759).
#[test]
fn a_static_member_reads_a_topic_that_joins_the_list_after_its_session() {
    let [old, new] = ["list-old", "list-new"].map(|hint| topic(broker(), hint, 1));
    let entry = "key = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }";
    let setup = Setup::new(broker(), "list-static")
        .kafka("instance_id = \"a\"")
        .properties("\"session.timeout.ms\" = 6000")
        .sections(&format!("[[topics]]\ninput = [\"{old}\"]\n{entry}"));
    for input in [&old, &new] {
        produce(broker(), input, records(0..10));
    }
    let wait_until_read = |input: &str, worker: &mut Worker| {
        wait_until("all records are read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (committed_offset(broker(), setup.group(), input, 0) == Some(10)).then_some(())
        });
    };
    let mut worker = setup.start("a");
    wait_until_read(&old, &mut worker);
    worker.drain();
    // This client is not a member, so its commit succeeds only when the group has no members.
    let client: BaseConsumer = client(broker()).set("group.id", setup.group()).create().expect("a consumer");
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&old, 0, Offset::Offset(10)).expect("an offset");
    wait_until("the group is empty", LIMIT, || client.commit(&offsets, CommitMode::Sync).ok());
    let mut worker = setup.start_with("a", &[&format!("topics.0.input=[\"{old}\", \"{new}\"]")]);
    wait_until_read(&new, &mut worker);
    worker.drain();
}
