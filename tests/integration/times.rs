//! Promise: a record is emitted with its original time. A record without a time is emitted without a time.

use crate::harness::{
    Setup, TestRecord, Worker, assert_same, broker, committed_offset, produce, produce_raw, read_committed, topic, topic_with,
    wait_for_output, wait_until,
};
use crate::observed::{address, ask};
use crate::stream::{LIMIT, SHORT_SESSION};
use std::time::SystemTime;

/// librdkafka's value for "no time".
const NONE: i64 = -1;

#[test]
fn record_times_are_kept() {
    for repartition in ["", "repartition = true\n"] {
        let (input, output) = (topic(broker(), "times", 1), topic(broker(), "times-out", 1));
        let lines = format!("space = \"ids\"\n{repartition}key = {{ record = \"key\" }}\nwindow = \"1h\"\nfilter = {{ kind = \"exact\" }}");
        let setup = Setup::new(broker(), "times").worker("commit_interval = \"50ms\"").topic(&input, &output, &lines);
        let record = |(number, timestamp): (u8, i64)| TestRecord { key: Some(vec![number]), timestamp, ..TestRecord::default() };
        let times = [NONE, 1, 1_000, NONE, 1_700_000_000_000, 1_699_999_999_999, NONE, -2, -86_400_000];
        let mut records: Vec<_> = (0..).zip(times).map(record).collect();
        produce(broker(), &input, &records);
        // Times before the Unix epoch are invalid, so such records are emitted without a time. Kafka's own clients do not write such times.
        for record in &mut records {
            record.timestamp = record.timestamp.max(NONE);
        }
        let mut worker = setup.start("a");
        let out = wait_for_output(broker(), &output, records.len(), 1, LIMIT, &mut worker);
        assert_same(&[records], &out);
        worker.drain();
    }
}

/// The window follows the event times in a field, even after a rebuild from the changelog. Records are emitted with Kafka's timestamps.
#[test]
fn event_times_move_the_window_and_record_times_are_kept() {
    for repartition in ["", "repartition = true\n"] {
        let [input, output, dead] = ["events", "events-out", "events-dead"].map(|name| topic(broker(), name, 1));
        let lines = format!(
            "space = \"ids\"\n{repartition}key = {{ record = \"key\" }}\ntime = {{ field = \"/ts\" }}\nwindow = \"1h\"\nfilter = {{ kind = \"exact\" }}\nlate = \"dead_letter\"\non_invalid = {{ topic = \"{dead}\" }}"
        );
        let setup =
            Setup::new(broker(), "events").worker("commit_interval = \"50ms\"").properties(SHORT_SESSION).topic(&input, &output, &lines);
        // By Kafka's timestamps, every record is a day older than the previous one.
        let record = |(day, (key, minute)): (i64, (u8, Option<i64>))| {
            let time = minute.map_or("null".to_owned(), |minute| (1_767_268_800_000 + minute * 60_000).to_string());
            let value = Some(format!("{{\"ts\":{time}}}").into_bytes());
            TestRecord { key: Some(vec![key]), value, timestamp: 1_700_000_000_000 - day * 86_400_000, ..TestRecord::default() }
        };
        let events = [(1, 0), (2, 30), (1, 20), (3, 130), (1, 130), (4, 0)].map(|(key, minute)| (key, Some(minute)));
        let events: Vec<_> = (0..).zip(events.into_iter().chain([(5, None), (3, Some(131)), (6, Some(131))])).map(record).collect();
        produce(broker(), &input, &events);
        let mut worker = setup.start("a");
        let first: Vec<_> = [0, 1, 3, 4, 8].map(|number| events[number].clone()).to_vec();
        assert_same(std::slice::from_ref(&first), &wait_for_output(broker(), &output, first.len(), 1, LIMIT, &mut worker));
        worker.kill9();
        std::fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
        // Keys 3 and 1 are still in the window, and key 2 is not.
        let later: Vec<_> = (20..).zip([(3, Some(132)), (1, Some(90)), (2, Some(132))]).map(record).collect();
        produce(broker(), &input, &later);
        let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
        wait_for_output(broker(), &output, first.len() + 1, 1, LIMIT, &mut worker);
        worker.drain();
        assert_same(&[[first, later[2..].to_vec()].concat()], &read_committed(broker(), &output, 1));
        assert_eq!(read_committed(broker(), &dead, 1)[0].len(), 2, "one is late, and one has no time");
    }
}

/// Keys that arrive before any time is known are remembered for as long as the first key with a time.
#[test]
fn keys_without_a_time_survive_a_lost_disk() {
    let (input, output) = (topic(broker(), "untimed", 1), topic(broker(), "untimed-out", 1));
    let lines = "space = \"ids\"\nkey = { record = \"key\" }\nwindow = \"1h\"\nfilter = { kind = \"exact\" }";
    let setup =
        Setup::new(broker(), "untimed").worker("commit_interval = \"50ms\"").properties(SHORT_SESSION).topic(&input, &output, lines);
    let record = |number: u8, timestamp| TestRecord { key: Some(vec![number]), timestamp, ..TestRecord::default() };
    let untimed: Vec<_> = (0..100).map(|number| record(number, NONE)).collect();
    produce(broker(), &input, &untimed);
    let mut worker = setup.start("a");
    let read = |worker: &mut Worker, end: i64| {
        wait_until("all records are read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (committed_offset(broker(), setup.group(), &input, 0) == Some(end)).then_some(())
        });
    };
    read(&mut worker, 100);
    // These are the first records with a time. From now on, the worker may trim the changelog, but the keys without a time must remain.
    let timed: Vec<_> = (100..200).map(|number| record(number, 1_700_000_000_000)).collect();
    produce(broker(), &input, &timed);
    read(&mut worker, 200);
    worker.kill9();
    std::fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
    produce(broker(), &input, (0..200).map(|number| record(number, 1_700_000_000_000)));
    let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
    read(&mut worker, 400);
    worker.drain();
    assert_same(&[[untimed, timed].concat()], &read_committed(broker(), &output, 1));
}

/// librdkafka cannot write timestamp 0, so such a record is emitted with a time of one millisecond. Apart from that, it is processed like
/// any other record.
#[test]
fn records_at_the_epoch_are_emitted_with_a_time_of_one_millisecond() {
    for window in ["\"1h\"", "{ keys = 1000 }"] {
        let (input, output) = (topic(broker(), "epoch", 1), topic(broker(), "epoch-out", 1));
        let lines = format!("space = \"ids\"\nkey = {{ record = \"key\" }}\nwindow = {window}\nfilter = {{ kind = \"exact\" }}");
        let setup =
            Setup::new(broker(), "epoch").worker("commit_interval = \"50ms\"").properties(SHORT_SESSION).topic(&input, &output, &lines);
        let record = |number: u8, timestamp| TestRecord { key: Some(vec![number]), timestamp, ..TestRecord::default() };
        let sent: Vec<_> = (0..10).map(|number| record(number, i64::from(number / 5) * 3)).collect();
        assert_eq!(produce_raw(broker(), &input, &sent), 0, "the broker takes no time of 0");
        let mut worker = setup.start("a");
        let out = wait_for_output(broker(), &output, sent.len(), 1, LIMIT, &mut worker);
        let expected: Vec<_> = sent.iter().map(|sent| TestRecord { timestamp: sent.timestamp.max(1), ..sent.clone() }).collect();
        assert_same(&[expected], &out);
        // The keys are still seen after the state directory is lost.
        worker.kill9();
        std::fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
        assert_eq!(produce_raw(broker(), &input, &sent), 0);
        let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
        wait_until("all records are read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            (committed_offset(broker(), setup.group(), &input, 0) == Some(20)).then_some(())
        });
        worker.drain();
        assert_eq!(read_committed(broker(), &output, 1)[0].len(), sent.len());
    }
}

/// The times are further in the future than `max_future` allows, so the window does not move, and the worker drops records whose keys
/// should have left the window.
#[test]
fn times_in_microseconds_are_reported_until_they_stop() {
    let any_time = [("message.timestamp.after.max.ms", "9223372036854775807")];
    let (input, output) = (topic_with(broker(), "micros", 1, &any_time), topic_with(broker(), "micros-out", 1, &any_time));
    let lines = "key = { record = \"key\" }\nwindow = \"10m\"\nfilter = { kind = \"exact\" }";
    let setup = Setup::new(broker(), "micros").worker("commit_interval = \"50ms\"").topic(&input, &output, lines);
    let record = |number: u8, timestamp| TestRecord { key: Some(vec![number]), timestamp, ..TestRecord::default() };
    // The record times are one minute apart, in microseconds. Each key is repeated after an hour.
    produce(broker(), &input, (0..180).map(|minute| record(minute % 60, (1_767_268_800_000 + i64::from(minute) * 60_000) * 1000)));
    let (code, _, warnings) = setup.check_with("a", &[]);
    let sentence =
        "look like microseconds: make the producers write milliseconds since 1970, or, if the option `time` is set, correct its unit";
    assert!(code == Some(0) && warnings.contains("warning: topics[0].input: ") && warnings.contains(sentence), "{warnings}");

    let mut worker = setup.start("a");
    worker.wait_for_log(sentence, LIMIT);
    let address = address(&mut worker);
    let warning = || {
        let status: serde_json::Value = serde_json::from_str(&ask(&address, "/api/v1/status").2).expect("JSON");
        status["topics"][0]["time_warning"].clone()
    };
    let metric = |value| ask(&address, "/metrics").2.contains(&format!("unseen_record_times_suspect{{topic=\"{input}\"}} {value}"));
    assert!(
        warning().as_str().is_some_and(|warning| warning.starts_with("180 of the last 180 records are more than 5m ahead")),
        "{}",
        warning()
    );
    assert!(metric(1));
    assert_eq!(ask(&address, "/readyz").0, 200, "a restart would not help");

    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis();
    produce(broker(), &input, (0..60).map(|number| record(number, i64::try_from(now).expect("a time"))));
    worker.wait_for_log("record timestamps advance the window again", LIMIT);
    assert!(warning().is_null() && metric(0), "{}", warning());
    assert_eq!(worker.drain().matches(sentence).count(), 1);
}
