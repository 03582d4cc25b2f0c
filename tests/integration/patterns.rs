//! Promise: while a worker runs, it finds new topics that match a pattern, and it emits each of their keys exactly once. A topic that the
//! worker cannot read does not keep it from reading the other topics.

use crate::harness::{
    Setup, TestRecord, Worker, assert_same, broker, committed_offset, make_topic, produce, read_committed, unique, unseen, wait_until,
};
use crate::observed::{address, ask, metric};
use crate::stream::{LIMIT, short_timeouts};
use serde_json::{Value, json};

fn records(keys: std::ops::Range<i64>) -> Vec<TestRecord> {
    let record =
        |key: i64| TestRecord { key: Some(key.to_string().into_bytes()), timestamp: 1_700_000_000_000 + key, ..TestRecord::default() };
    keys.map(record).collect()
}

/// A setup for all topics whose names start with `base` and a dot. The worker lists the topics once per second.
fn setup(base: &str) -> Setup {
    let setup = Setup::new(broker(), "pattern").properties("\"topic.metadata.refresh.interval.ms\" = 1000").sections(&format!(
        "[[topics]]\ninput = {{ pattern = '{base}\\..*' }}\noutput = \"{{input}}.unseen\"\n\
         key = {{ record = \"key\" }}\nwindow = \"24h\"\nfilter = {{ kind = \"exact\" }}"
    ));
    short_timeouts(setup)
}

/// Creates an input and its output, with one partition each. The output comes first, because the worker may leave out an input whose output
/// does not exist yet.
fn make(input: &str) {
    make_topic(broker(), &format!("{input}.unseen"), 1);
    make_topic(broker(), input, 1);
}

fn wait_until_read(setup: &Setup, worker: &mut Worker, input: &str, end: i64) {
    wait_until("all records are read", LIMIT, || {
        assert!(worker.runs(), "the worker has ended");
        (committed_offset(broker(), setup.group(), input, 0) == Some(end)).then_some(())
    });
}

fn wait_until_not_ready(worker: &mut Worker, reason: &str) {
    let address = address(worker);
    wait_until(reason, LIMIT, || {
        let (code, _, body) = ask(&address, "/readyz");
        (code == 503 && body.starts_with(reason)).then_some(())
    });
}

#[test]
fn new_matching_topic_is_deduplicated_exactly_once() {
    let base = unique("appears");
    let setup = setup(&base);
    let [a, b, c] = ["a", "b", "c"].map(|name| format!("{base}.{name}"));
    make(&a);
    produce(broker(), &a, records(0..100));
    // The new topic makes the process drain its workers. The process is killed after the last commit of its workers and before it reads the
    // new topic.
    let mut worker = setup.start_armed("w", &[], "drain.committed:1:kill");
    wait_until_read(&setup, &mut worker, &a, 100);
    make(&b);
    produce(broker(), &b, records(50..150));
    wait_until("the worker is killed", LIMIT, || worker.ended());
    produce(broker(), &a, records(0..200));
    let mut worker = setup.start("w");
    wait_until_read(&setup, &mut worker, &b, 100);
    // This process keeps running and finds the next topic.
    make(&c);
    for input in [&a, &b, &c] {
        produce(broker(), input, records(0..300));
    }
    wait_until_read(&setup, &mut worker, &c, 300);
    worker.kill9();
    let mut worker = setup.start("w");
    produce(broker(), &c, records(0..400));
    for (input, end) in [(&a, 600), (&b, 400), (&c, 700)] {
        wait_until_read(&setup, &mut worker, input, end);
    }
    let log = worker.drain();
    assert!(log.contains("topics=3"), "{log}");
    // The records of topic `b` were produced in this order: keys 50 to 149, then keys from 0.
    let of_b = [records(50..150), records(0..50), records(150..300)].concat();
    for (input, expected) in [(&a, records(0..300)), (&b, of_b), (&c, records(0..400))] {
        assert_same(&[expected], &read_committed(broker(), &format!("{input}.unseen"), 1));
    }
}

#[test]
fn a_matching_topic_without_an_output_does_not_stop_the_others() {
    let base = unique("left-out");
    let setup = setup(&base);
    let [good, bad] = ["good", "bad"].map(|name| format!("{base}.{name}"));
    make(&good);
    make_topic(broker(), &bad, 1);
    for input in [&good, &bad] {
        produce(broker(), input, records(0..100));
    }
    let file = setup.write_config("w").display().to_string();
    let (code, stdout, stderr) = unseen(["check", "--connect", "--json", "-c", &file]);
    assert_eq!(code, Some(0), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    let reason = format!(
        "topics[0].output: topic \"{bad}.unseen\" does not exist; check the name, or create the topic with no fewer partitions than its input"
    );
    assert_eq!(report["topics"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(report["topics"][0]["input"], json!(good));
    assert_eq!(report["left_out"], json!([{ "topic": bad, "reason": reason }]));

    let mut worker = setup.start("w");
    worker.wait_for_log(&format!("topic \"{bad}\" matches a pattern but is not read: {reason}"), LIMIT);
    wait_until_read(&setup, &mut worker, &good, 100);
    assert_eq!(committed_offset(broker(), setup.group(), &bad, 0), None);
    make_topic(broker(), &format!("{bad}.unseen"), 1);
    wait_until_read(&setup, &mut worker, &bad, 100);
    produce(broker(), &good, records(0..150));
    wait_until_read(&setup, &mut worker, &good, 250);
    worker.drain();
    for (input, end) in [(&good, 150), (&bad, 100)] {
        assert_same(&[records(0..end)], &read_committed(broker(), &format!("{input}.unseen"), 1));
        assert_eq!(committed_offset(broker(), setup.group(), &format!("{input}.unseen"), 0), None, "outputs match, but are not read");
    }
}

#[test]
fn a_worker_without_a_matching_topic_waits_for_one() {
    let base = unique("awaited");
    let setup = setup(&base);
    let mut worker = setup.start("w");
    worker.wait_for_log("no topic matches a pattern in `input` yet; waiting for one", LIMIT);
    let input = format!("{base}.a");
    make_topic(broker(), &input, 1);
    let output = format!("{input}.unseen");
    let reason = format!("not ready: no topic is read: topic {input:?} matches a pattern but is not read");
    wait_until_not_ready(&mut worker, &reason);
    worker.drain();
    let mut worker = setup.start("w");
    worker.wait_for_log("all topics that match a pattern in `input` are left out; waiting until the worker can read one of them", LIMIT);
    wait_until_not_ready(&mut worker, &reason);
    make_topic(broker(), &output, 1);
    produce(broker(), &input, records(0..100));
    wait_until_read(&setup, &mut worker, &input, 100);
    worker.drain();
    assert_same(&[records(0..100)], &read_committed(broker(), &format!("{input}.unseen"), 1));
}

#[test]
fn drain_has_a_deadline_after_a_signal_but_not_after_a_topic_change() {
    let base = unique("deadline");
    let setup = setup(&base);
    let a = format!("{base}.a");
    make(&a);
    let mut worker = setup.start_armed("w", &["worker.shutdown_timeout=1s"], "drain.begin:1:hang");
    produce(broker(), &a, records(0..100));
    wait_until_read(&setup, &mut worker, &a, 100);
    make(&format!("{base}.b"));
    worker.wait_for_log("draining", LIMIT);
    let address = address(&mut worker);
    wait_until("the worker has drained for longer than a signal would allow", LIMIT, || {
        assert!(worker.runs(), "{}", worker.log());
        (metric(&address, "unseen_worker_loop_age_seconds{worker=\"0\"}") > 3.0).then_some(())
    });
    worker.sigterm();
    let log = worker.fails(1);
    assert!(log.contains("the workers did not stop within worker.shutdown_timeout"), "{log}");
}

#[test]
fn the_error_of_a_worker_is_logged_when_it_happens() {
    let base = unique("failed");
    let setup = setup(&base);
    let a = format!("{base}.a");
    make(&a);
    produce(broker(), &a, vec![TestRecord { key: None, ..records(0..1).remove(0) }]);
    let worker = setup.start("w");
    let log = worker.fails(1);
    assert!(log.contains("a worker stopped with an error, so all workers of this process stop:"), "{log}");
}
