//! Promise: topics that share a space share their seen keys, even while one of them warms up.

use crate::harness::state::digests;
use crate::harness::{
    RETRACT, Setup, TestRecord, Worker, broker, client, committed_offset, make_topic, produce, read_committed, topic, unique, wait_until,
};
use crate::stream::LIMIT;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use std::fs;
use std::time::Duration;

const KEYS: i64 = 1_000;

fn records(keys: i64) -> Vec<TestRecord> {
    let record =
        |key: i64| TestRecord { key: Some(key.to_string().into_bytes()), timestamp: 1_700_000_000_000 + key, ..TestRecord::default() };
    (0..keys).map(record).collect()
}

struct Two {
    inputs: [String; 2],
    output: String,
    setup: Setup,
}

impl Two {
    fn new(hint: &str) -> Self {
        Self::with(hint, "", |setup| setup.state("changelog = false").worker("commit_interval = \"50ms\"\ncheckpoint_interval = \"1h\""))
    }

    fn with(hint: &str, lines: &str, set: impl FnOnce(Setup) -> Setup) -> Self {
        let inputs = ["a", "b"].map(|name| unique(&format!("{hint}-{name}")));
        for input in &inputs {
            make_topic(broker(), input, 1);
        }
        let output = topic(broker(), &format!("{hint}-out"), 1);
        let lines = format!("space = \"ids\"\nkey = {{ record = \"key\" }}\nwindow = \"24h\"\nfilter = {{ kind = \"exact\" }}\n{lines}");
        let setup = inputs.iter().fold(set(Setup::new(broker(), hint)), |setup, input| setup.topic(input, &output, &lines));
        Self { inputs, output, setup }
    }

    fn wait_until_read(&self, ends: [i64; 2], worker: &mut Worker) {
        for (input, end) in self.inputs.iter().zip(ends) {
            wait_until("all records are read", LIMIT, || {
                assert!(worker.runs(), "the worker has ended");
                (committed_offset(broker(), self.setup.group(), input, 0) == Some(end)).then_some(())
            });
        }
    }

    fn lose_state(&self) {
        fs::remove_dir_all(self.setup.state_dir("a")).expect("it can be deleted");
    }
}

#[test]
fn topic_waits_for_the_warm_up_of_another_topic() {
    let two = Two::new("shared-wait");
    let mut worker = two.setup.start("a");
    produce(broker(), &two.inputs[0], records(KEYS));
    two.wait_until_read([KEYS, 0], &mut worker);
    worker.drain();
    two.lose_state();
    produce(broker(), &two.inputs[1], records(KEYS));
    let mut worker = two.setup.start("a");
    two.wait_until_read([KEYS, KEYS], &mut worker);
    produce(broker(), &two.inputs[0], records(KEYS + 10));
    produce(broker(), &two.inputs[1], records(KEYS + 20));
    two.wait_until_read([2 * KEYS + 10, 2 * KEYS + 20], &mut worker);
    worker.drain();
    let total = i64::try_from(read_committed(broker(), &two.output, 1)[0].len()).expect("few");
    assert_eq!(total, KEYS + 20, "keys that one topic had emitted were emitted again by the other");
}

/// A warm-up can end with transaction markers and aborted records. No record then shows that the warm-up is complete, so the worker must
/// not wait for one.
#[test]
fn a_warm_up_can_end_without_a_record() {
    let two = Two::new("shared-gap");
    let mut worker = two.setup.start("a");
    produce(broker(), &two.inputs[0], records(KEYS));
    two.wait_until_read([KEYS, 0], &mut worker);
    worker.drain();
    let stranger: BaseProducer = client(broker()).set("transactional.id", unique("shared-stranger")).create().expect("a producer");
    stranger.init_transactions(LIMIT).expect("transactions");
    stranger.begin_transaction().expect("a transaction");
    for _ in 0..10 {
        stranger.send(BaseRecord::<[u8], [u8]>::to(&two.inputs[0]).partition(0).key(b"never".as_slice())).expect("a record");
    }
    stranger.flush(LIMIT).expect("they are written");
    stranger.abort_transaction(LIMIT).expect("it is aborted");
    let group: BaseConsumer = client(broker()).set("group.id", two.setup.group()).create().expect("a consumer");
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&two.inputs[0], 0, Offset::Offset(KEYS + 5)).expect("an offset");
    wait_until("the group is empty", Duration::from_secs(60), || group.commit(&offsets, CommitMode::Sync).ok());
    two.lose_state();
    produce(broker(), &two.inputs[1], records(KEYS));
    let mut worker = two.setup.start("a");
    two.wait_until_read([KEYS + 5, KEYS], &mut worker);
    worker.drain();
    let total = i64::try_from(read_committed(broker(), &two.output, 1)[0].len()).expect("few");
    assert_eq!(total, KEYS);
}

/// The changelog has the keys in the order of their verdicts, and its stream time covers only committed records. The restored state
/// therefore equals the lost state, even if one topic retracts keys of the other and commits fail.
#[test]
fn aborted_transactions_keep_the_order_of_both_topics() {
    let keeps_order = |setup: Setup| setup.worker("commit_interval = \"20ms\"\nmax_transaction_records = 500");
    let two = Two::with("shared-order", "retract = { header = \"retract\" }", keeps_order);
    // The records span more than two windows and have few different keys.
    let record = |number: i64| TestRecord {
        key: Some((number % 97).to_string().into_bytes()),
        timestamp: 1_700_000_000_000 + number * 10_000,
        headers: if number % 3 == 0 { vec![(RETRACT.to_owned(), None)] } else { Vec::new() },
        ..TestRecord::default()
    };
    let records: Vec<_> = (0..20 * KEYS).map(record).collect();
    for input in &two.inputs {
        produce(broker(), input, &records);
    }
    let points = "commit.begin:3:error,commit.flushed:7:error,commit.begin:12:error,commit.offsets_sent:20:error,commit.begin:30:error";
    let mut worker = two.setup.start_armed("a", &[], points);
    two.wait_until_read([20 * KEYS; 2], &mut worker);
    let log = worker.drain();
    assert!(log.matches("its records are processed again").count() >= 4, "few transactions were aborted");
    let state = two.setup.state_dir("a");
    let before = digests(&state);
    two.lose_state();
    let worker = two.setup.start_with("a", &["state.cold_start=fail"]);
    wait_until("both partitions are restored", LIMIT, || (worker.log().matches("partition restored").count() == 2).then_some(()));
    worker.drain();
    assert_eq!(digests(&state), before, "what was rebuilt is not what was lost");
}
