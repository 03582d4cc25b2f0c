//! Promise: the settings of a topic determine the route of each record. A key stays seen for at least the window and at most one slice
//! longer.

use crate::harness::{News, Setup, TestRecord, Worker, assert_same, broker, by_partition, produce, read_committed, topic, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

const RECORDS: usize = 40_000;

/// A stream in which some records have headers like the worker's own, as if another worker had written these records.
fn with_headers_of_another(hint: &str) -> Stream {
    let mut records = News { count: RECORDS, ..News::default() }.records();
    for record in records.iter_mut().step_by(7) {
        record.headers.insert(0, ("unseen-since".to_owned(), Some(b"yesterday".to_vec())));
        record.headers.push(("unseen-verdict".to_owned(), Some(b"unseen".to_vec())));
    }
    Stream::of(broker(), hint, records, Duration::from_secs(4 * 3600))
}

/// All records by partition, with the headers that explain their verdicts. `true` means that the record is unseen.
fn explained(stream: &Stream) -> Vec<Vec<(TestRecord, bool)>> {
    let by_partition = by_partition(stream.records.iter().cloned(), PARTITIONS);
    let each = |(partition, (records, unseen)): (usize, (Vec<TestRecord>, &Vec<TestRecord>))| {
        // The window has four slices of an hour and is longer than the stream, so no key is forgotten.
        let (mut unseen, mut stream_time, mut since) = (unseen.iter().peekable(), 0, HashMap::new());
        let explain = |(offset, mut record): (usize, TestRecord)| {
            stream_time = record.timestamp.max(stream_time);
            let is_unseen = unseen.next_if(|next| **next == record).is_some();
            let began = *since.entry(record.key.clone()).or_insert(stream_time - stream_time % HOUR);
            let verdict = if is_unseen { "unseen" } else { "duplicate" };
            record.headers.retain(|(name, _)| !name.starts_with("unseen-"));
            let mut add = |name: &str, value: String| record.headers.push((format!("unseen-{name}"), Some(value.into_bytes())));
            add("verdict", verdict.to_owned());
            add("space", "news".to_owned());
            add("filter", "aging".to_owned());
            if !is_unseen {
                add("since", began.to_string());
            }
            add("topic", stream.input.clone());
            add("partition", partition.to_string());
            add("offset", offset.to_string());
            (record, is_unseen)
        };
        records.into_iter().enumerate().map(explain).collect()
    };
    by_partition.into_iter().zip(&stream.expected).enumerate().map(each).collect()
}

#[test]
fn duplicates_go_to_their_topic_with_explaining_headers() {
    let stream = with_headers_of_another("duplicates");
    let aside = topic(broker(), "duplicates-aside", 4);
    stream.produce(..);
    stream.check(stream.setup.start_with("a", &[&format!("topics[0].on_duplicate.topic={aside}")]));
    let duplicates = |records: Vec<(TestRecord, bool)>| records.into_iter().filter(|(_, is_unseen)| !is_unseen).map(|(record, _)| record);
    let duplicates: Vec<Vec<_>> = explained(&stream).into_iter().map(|records| duplicates(records).collect()).collect();
    assert_same(&duplicates, &read_committed(broker(), &aside, PARTITIONS));
}

#[test]
fn marked_records_are_all_emitted_with_their_verdict() {
    let mut stream = with_headers_of_another("marked");
    stream.expected = explained(&stream).into_iter().map(|records| records.into_iter().map(|(record, _)| record).collect()).collect();
    stream.produce(..);
    stream.check(stream.setup.start_with("a", &["topics[0].on_duplicate=mark"]));
}

fn record(key: &str, timestamp: i64) -> TestRecord {
    let value = format!(r#"{{"user_id":1,"news_id":"{key}"}}"#);
    TestRecord { partition: 0, key: Some(key.into()), value: Some(value.into_bytes()), headers: Vec::new(), timestamp }
}

const HOUR: i64 = 3_600_000;
/// 2025-01-01T00:00:00Z
const START: i64 = 1_735_689_600_000;

/// A stream whose second record is older than the window and is not emitted. Returns the stream and that record.
fn with_a_late_record(hint: &str) -> (Stream, TestRecord) {
    let (late, on_time) = (record("late", START), [record("a", START + 3 * HOUR), record("b", START + 3 * HOUR)]);
    let records = vec![on_time[0].clone(), late.clone(), on_time[1].clone()];
    let mut stream = Stream::of(broker(), hint, records, Duration::from_secs(3600));
    stream.expected = by_partition(on_time, PARTITIONS);
    stream.produce(..);
    (stream, late)
}

#[test]
fn late_records_become_dead_letters() {
    let (stream, late) = with_a_late_record("late");
    let dead = topic(broker(), "late-dead", 4);
    let to_dead = format!("topics[0].on_invalid.topic={dead}");
    stream.check(stream.setup.start_with("a", &[&to_dead, "topics[0].late=dead_letter"]));
    let letter = late.dead_letter(&stream.input, 1, "unseen.late", "the record is older than the window");
    assert_same(&by_partition([letter], PARTITIONS), &read_committed(broker(), &dead, PARTITIONS));
}

#[test]
fn record_from_the_future_expires_no_keys() {
    // The time is further in the future than `max_future` allows, but not so far that the broker rejects the record.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock past 1970").as_millis();
    let future = i64::try_from(now).expect("a clock before the end of time") + HOUR / 2;
    let records = vec![record("a", START), record("b", future), record("a", START + 1), record("b", START + 2), record("c", START + 3)];
    let mut stream = Stream::of(broker(), "future", records.clone(), Duration::from_secs(3600));
    stream.expected = by_partition([&records[0], &records[1], &records[4]].map(Clone::clone), PARTITIONS);
    stream.produce(..);
    stream.check(stream.setup.start("a"));
}

#[test]
fn count_window_remembers_the_configured_number_of_keys() {
    const KEYS: usize = 1000;
    let mut stream = Stream::remembered(broker(), "count", RECORDS);
    // The window consists of four slices with a quarter of the keys each, and of the open slice.
    let mut states = vec![(HashMap::new(), 0_usize); PARTITIONS];
    let unseen = stream.records.iter().filter(|record| {
        let (emitted, count) = &mut states[usize::try_from(record.partition).expect("a partition")];
        let slice = |number: usize| number / (KEYS / 4);
        // A full slice stays open until the next key is inserted, so a lookup before this insertion still finds the keys of the oldest
        // slice.
        let open = slice(count.saturating_sub(1));
        if emitted.get(&record.key).is_some_and(|&number| open - slice(number) <= 4) {
            return false;
        }
        emitted.insert(record.key.clone(), *count);
        *count += 1;
        true
    });
    let expected = by_partition(unseen.cloned().collect::<Vec<_>>(), PARTITIONS);
    stream.expected = expected;
    let lines = format!(
        "key = {{ record = \"key\" }}\nwindow = {{ keys = {KEYS} }}\nfilter = {{ kind = \"aging\", false_positive_rate = 1e-9, slices = 4 }}"
    );
    stream.setup = Setup::new(broker(), "count").topic(&stream.input, &stream.output, &lines);
    stream.produce(..);
    stream.check(stream.setup.start("a"));
}

/// A stream with a second topic in its space. Also returns the input and the output of that topic.
fn with_a_second_topic(hint: &str) -> (Stream, String, String) {
    let (second, second_out) = (topic(broker(), &format!("{hint}-in"), 4), topic(broker(), &format!("{hint}-out"), 4));
    let lines = "space = \"news\"\nkey = [{ field = \"/user_id\" }, { field = \"/news_id\" }]\nwindow = \"86400s\"\n\
        filter = { kind = \"aging\", capacity = \"400k\", false_positive_rate = 1e-9, slices = 4 }";
    let stream = Stream::remembered(broker(), hint, RECORDS).with(|setup| setup.topic(&second, &second_out, lines));
    (stream, second, second_out)
}

/// The partitions of a topic in a worker's latest assignment, by number.
fn assigned(worker: &Worker, topic: &str) -> BTreeSet<String> {
    let log = worker.log();
    let last = log.lines().rfind(|line| line.contains("partitions assigned")).unwrap_or_default();
    let of_topic = last.split([' ', '=']).filter_map(|name| name.strip_prefix(topic)?.strip_prefix('['));
    of_topic.map(str::to_owned).collect()
}

/// In a space, all partitions with the same number must have the same owner. Otherwise, neither owner would know the keys that the other
/// has seen.
#[test]
fn partitions_of_a_space_are_assigned_to_one_worker() {
    let (stream, second, second_out) = with_a_second_topic("together");
    let [mut first_worker, second_worker] = ["a", "b"].map(|name| stream.setup.start(name));
    wait_until("each worker has two partitions of each topic", LIMIT, || {
        let shares = [&first_worker, &second_worker].map(|worker| (assigned(worker, &stream.input), assigned(worker, &second)));
        shares.iter().all(|(one, two)| one.len() == 2 && one == two).then_some(())
    });
    stream.produce(..);
    produce(broker(), &second, &stream.records);
    stream.wait_until_read(RECORDS, &mut first_worker);
    let keys: HashSet<_> = stream.records.iter().map(|record| &record.key).collect();
    let count = |topic| read_committed(broker(), topic, PARTITIONS).into_iter().flatten();
    wait_until("every key is emitted by one of the topics", LIMIT, || {
        (count(&stream.output).chain(count(&second_out)).count() >= keys.len()).then_some(())
    });
    first_worker.drain();
    second_worker.drain();
    let emitted: Vec<_> = count(&stream.output).chain(count(&second_out)).map(|record| record.key).collect();
    assert_eq!(emitted.len(), keys.len(), "a key was emitted twice, or not at all");
    assert_eq!(emitted.iter().collect::<HashSet<_>>(), keys);
}

#[test]
fn at_least_once_without_failures_is_exact() {
    let stream = Stream::remembered(broker(), "plain", RECORDS).with(|setup| setup.worker("delivery = \"at_least_once\""));
    stream.produce(..);
    stream.check(stream.setup.start("a"));
}
