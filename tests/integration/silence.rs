//! Promise: a worker is ready while it works. If its brokers are unavailable, its session has ended, it cannot commit, or a thread hangs,
//! the worker is not ready and reports the reason.

use crate::harness::{OwnBroker, Setup, TestRecord, broker, produce, topic, wait_for_output, wait_until};
use crate::observed::{address, ask, metric};
use crate::stream::{LIMIT, SHORT_SESSION, Stream};
use serde_json::{Value, json};

const RECORDS: usize = 40_000;

fn status(address: &str) -> Value {
    serde_json::from_str(&ask(address, "/api/v1/status").2).expect("JSON")
}

fn wait_until_not_ready(address: &str, why: &str) {
    wait_until(&format!("it is not ready: {why}"), LIMIT, || {
        let (status, _, body) = ask(address, "/readyz");
        (status == 503 && body.contains(why)).then_some(())
    });
}

/// First, the member's session expires. The member loses its partitions, although there is no other member. Later, the worker reports that
/// no broker answers.
#[test]
fn an_unresponsive_broker_is_reported() {
    let mut broker = OwnBroker::start();
    let session = "\"session.timeout.ms\" = 6000\n\"heartbeat.interval.ms\" = 500";
    let stream = Stream::remembered(broker.address(), "silent-broker", RECORDS).with(|setup| setup.properties(session));
    let mut worker = stream.setup.start("a");
    stream.produce(..RECORDS / 2);
    stream.wait_until_read(RECORDS / 2, &mut worker);
    let address = address(&mut worker);
    assert_eq!(ask(&address, "/readyz").0, 200);
    let contact = "unseen_broker_last_contact_timestamp_seconds";
    let before = metric(&address, contact);
    // The worker reads nothing, but the brokers still answer.
    wait_until("an idle worker has contact with its brokers", LIMIT, || (metric(&address, contact) > before + 5.0).then_some(()));
    assert_eq!(ask(&address, "/readyz").0, 200);
    broker.pause();
    let lost = wait_until("the partitions are lost", LIMIT, || Some(status(&address)).filter(|status| status["partitions"] == json!([])));
    assert_eq!(lost["state"], "connecting", "{}", lost["reason"]);
    assert!(lost["reason"].as_str().is_some_and(|reason| reason.starts_with("0 of 1 workers have joined the group")), "{lost}");
    wait_until_not_ready(&address, "no broker has answered for ");
    assert_eq!(metric(&address, "unseen_state{state=\"disconnected\"}").to_bits(), 1.0_f64.to_bits());
    // The liveness probe succeeds, because a restart would not help.
    assert_eq!(ask(&address, "/livez").0, 200);
    broker.resume();
    wait_until("the worker is ready again", LIMIT, || (ask(&address, "/readyz").0 == 200).then_some(()));
    stream.produce(RECORDS / 2..);
    stream.check(worker);
}

#[test]
fn a_hung_thread_is_reported() {
    let stream = Stream::remembered(broker(), "hung", RECORDS)
        .with(|setup| setup.worker("workers = 2\ntransaction_timeout = \"2s\"").properties(SHORT_SESSION));
    let mut worker = stream.setup.start_armed("a", &[], "commit.flushed:1:hang");
    stream.produce(..);
    let address = address(&mut worker);
    wait_until_not_ready(&address, " has not made progress for ");
    assert_eq!(metric(&address, "unseen_state{state=\"hung\"}").to_bits(), 1.0_f64.to_bits());
    let age = |worker| metric(&address, &format!("unseen_worker_loop_age_seconds{{worker=\"{worker}\"}}"));
    let (shorter, longer) = (age(0).min(age(1)), age(0).max(age(1)));
    assert!(shorter < 10.0 && longer > 30.0, "one of two hangs: {shorter}, {longer}");
    assert_eq!(ask(&address, "/livez").0, 200);
    worker.kill9();
    stream.check(stream.setup.start("b"));
}

/// A member cannot commit records of partition 1, which then moves to another member. The first member has nothing left to commit and must
/// become ready again.
#[test]
fn member_is_ready_again_after_its_blocked_partition_has_moved() {
    let (input, output) = (topic(broker(), "moved", 2), topic(broker(), "moved-out", 2));
    let lines = "key = { record = \"key\" }\nwindow = \"1h\"\nfilter = { kind = \"exact\" }";
    let setup = Setup::new(broker(), "moved").worker("commit_interval = \"50ms\"").topic(&input, &output, lines);
    // Static members get partitions in the order of their names, so the second member gets partition 1.
    let name = |name: &str| format!("kafka.instance_id={}-{name}", setup.group());
    let faults: Vec<_> = (3..500).map(|time| format!("commit.begin:{time}:error")).collect();
    let mut first = setup.start_armed("a", &[&name("a")], &faults.join(","));
    let address = address(&mut first);
    let mut sent = 0;
    wait_until("no record of partition 1 can be committed", LIMIT, || {
        let record = TestRecord { partition: 1, key: Some(format!("{sent}").into_bytes()), timestamp: 1, ..TestRecord::default() };
        produce(broker(), &input, [record]);
        sent += 1;
        let (code, _, body) = ask(&address, "/readyz");
        (code == 503 && body.contains("the worker cannot commit")).then_some(())
    });
    let mut second = setup.start_with("b", &[&name("b")]);
    let moved = wait_until("partition 1 has moved away, and the first is ready", LIMIT, || {
        let status = status(&address);
        let partitions = status["partitions"].as_array().expect("a list").clone();
        (status["state"] == "running" && partitions.len() == 1).then_some(partitions)
    });
    assert_eq!(moved[0]["partition"], 0);
    assert_eq!(ask(&address, "/readyz").0, 200);
    let out = wait_for_output(broker(), &output, sent, 2, LIMIT, &mut second);
    assert_eq!(out.iter().map(Vec::len).collect::<Vec<_>>(), [0, sent]);
    second.drain();
    first.drain();
}
