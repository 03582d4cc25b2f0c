//! Promise: a record that is too large for its topic becomes invalid. The resulting abort does not change the verdict on any other record.

use crate::harness::{
    News, Oracle, Setup, SplitMix, TestRecord, alter_topic, assert_prefix, assert_same, broker, committed_offset, logged, make_topic_with,
    offset_of, produce, read_committed, topic, topic_with, wait_for_output,
};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::time::Duration;

/// The window covers all records, so a worker without a checkpoint rebuilds its state exactly.
const WINDOW: Duration = Duration::from_secs(24 * 3600);
/// The size limit of the output, in bytes. It is enough for a batch of about a hundred records of [`News`].
const LIMIT_BYTES: &str = "20000";

struct Case {
    stream: Stream,
    dead: Vec<Vec<TestRecord>>,
}

impl Case {
    /// Creates a case. The records whose numbers `large` selects become larger than the output accepts.
    fn new(hint: &str, mut records: Vec<TestRecord>, large: impl Fn(usize) -> bool) -> Self {
        let mut random = SplitMix(7);
        let places = (0..records.len()).filter(|&number| large(number));
        for number in places.collect::<Vec<_>>() {
            records[number].enlarge(30_000, &mut random);
        }
        let output = small_topic(hint);
        let mut stream = Stream::into(broker(), hint, output, records, WINDOW);
        let dead = stream.expected.iter_mut().map(|expected| {
            let apart = expected.extract_if(.., |record| record.text().len() > 20_000);
            apart.map(|record| letter(&record, &stream.input, &stream.output, &stream.records)).collect()
        });
        let dead = dead.collect();
        Self { stream, dead }
    }

    /// A few thousand records. Two partitions have one large record each. The two large records are so close to each other that they are
    /// usually in the same transaction.
    fn of_two(hint: &str) -> Self {
        let records = News { count: 4_000, ..News::default() }.records();
        let expected = Oracle::new(WINDOW, 4).expected(&records, PARTITIONS);
        let chosen = [0, 1].map(|partition: usize| expected[partition][200].clone());
        let numbers: Vec<_> = (0..records.len()).filter(|&number| chosen.contains(&records[number])).collect();
        Self::new(hint, records, |number| numbers.contains(&number))
    }

    /// Panics unless the worker stopped at one of the large records. The log must have `what` after the position of that record, and the
    /// output of its partition must end right before it.
    fn check_stop(&self, log: &str, what: &str) {
        let named = self.dead.iter().flatten().find(|letter| {
            let offset = offset_of(&original(letter), &self.stream.records);
            log.contains(&format!("{}[{}] offset {offset}: {what}", self.stream.input, letter.partition))
        });
        let large = original(named.unwrap_or_else(|| panic!("no record is named that is {what}:\n{log}")));
        let offset = offset_of(&large, &self.stream.records);
        let committed = committed_offset(broker(), self.stream.setup.group(), &self.stream.input, large.partition);
        assert_eq!(committed, Some(offset), "what came before the record is not committed");
        let output = self.stream.output();
        assert_prefix(&self.stream.expected, &output);
        let at = usize::try_from(large.partition).expect("a partition");
        let before = self.stream.expected[at].iter().filter(|record| offset_of(record, &self.stream.records) < offset);
        assert_eq!(output[at].len(), before.count(), "not all records before the oversized record were emitted");
    }

    /// Runs a worker with a dead-letter topic. Panics unless the large records become dead letters and all other records are emitted.
    fn check(&self, dead_letters: &str) -> String {
        let worker = self.stream.setup.start_with("a", &[&format!("topics[0].on_invalid.topic={dead_letters}")]);
        let log = self.stream.check(worker);
        assert_same(&self.dead, &read_committed(broker(), dead_letters, PARTITIONS));
        log
    }
}

fn small_topic(hint: &str) -> String {
    topic_with(broker(), &format!("{hint}-out"), 4, &[("max.message.bytes", LIMIT_BYTES)])
}

fn letter(record: &TestRecord, input: &str, output: &str, records: &[TestRecord]) -> TestRecord {
    let bytes = record.text().len() + record.key.as_ref().map_or(0, Vec::len);
    let message = format!(
        "the record has {bytes} bytes without its headers and is larger than topic {output:?} accepts; raise max.message.bytes of that topic"
    );
    record.dead_letter(input, offset_of(record, records), "unseen.oversize", &message)
}

fn original(letter: &TestRecord) -> TestRecord {
    let mut record = letter.clone();
    record.headers.retain(|(name, _)| !name.starts_with("__connect.errors."));
    record
}

#[test]
fn oversized_records_become_dead_letters() {
    let records = News { count: 100_000, ..News::default() }.records();
    // Large records come alone, in pairs, and several in one transaction.
    let large = |number| number % 5_000 == 2_500 || number % 10_000 == 2_501 || (60_000..60_010).contains(&number);
    let case = Case::new("oversize", records, large);
    assert!(case.dead.iter().flatten().count() > 10, "too few large records to try anything");
    case.stream.produce(..);
    let log = case.check(&topic(broker(), "oversize-dead", 4));
    assert!(logged(&log, "aborts") > 1, "no transaction was aborted, so nothing was tried");
    assert!(log.contains("bytes without its headers and is larger than topic "), "the log does not explain why");
}

/// With `at_least_once`, the worker commits the offsets of forwarded records when other records are rejected. The worker must not commit
/// the offset of a record that the repartition topic itself rejects.
#[test]
fn record_too_large_for_the_repartition_topic_waits_for_a_larger_limit() {
    let [input, output] = ["forward-in", "forward-out"].map(|hint| topic_with(broker(), hint, 1, &[("max.message.bytes", "100000")]));
    let setup = Setup::new(broker(), "forward").worker("delivery = \"at_least_once\"");
    let repartition = format!("{}-{input}-repartition", setup.group());
    make_topic_with(broker(), &repartition, 1, &[("max.message.bytes", LIMIT_BYTES), ("retention.ms", "-1")]);
    let lines = "key = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }\nrepartition = true";
    let setup = setup.topic(&input, &output, lines);
    // Random bytes stay larger than the limit, even when they are compressed.
    let mut random = SplitMix(7);
    let record = |(id, bytes): (u8, usize)| TestRecord {
        key: Some(vec![b'0' + id]),
        value: Some((0..bytes).map(|_| random.next().to_le_bytes()[0]).collect()),
        timestamp: 1_700_000_000_000,
        ..TestRecord::default()
    };
    let records = [(0, 1), (1, 30_000), (2, 1)].map(record);
    produce(broker(), &input, &records);
    let log = setup.start("a").fails(1);
    let advice = "raise max.message.bytes of that topic; this repartition topic must accept every record of its input";
    assert!(log.contains(&format!("topic {repartition:?} accepts; {advice}")), "{log}");
    alter_topic(broker(), &repartition, "max.message.bytes", "100000");
    let mut worker = setup.start("a");
    wait_for_output(broker(), &output, records.len(), 1, LIMIT, &mut worker);
    worker.drain();
    let mut emitted = read_committed(broker(), &output, 1).remove(0);
    emitted.sort_by_key(|record| record.key.clone());
    emitted.dedup();
    assert_eq!(emitted, records);
}

#[test]
fn oversized_record_stops_the_worker_by_default() {
    let case = Case::of_two("oversize-fail");
    case.stream.produce(..);
    let log = case.stream.setup.start("a").fails(1);
    case.check_stop(&log, "the record has 30");
    assert!(
        log.contains(
            " accepts; raise max.message.bytes of that topic. The worker stopped at this record. To continue past it, set on_invalid to "
        ),
        "{log}"
    );
    case.check(&topic(broker(), "oversize-fail-dead", 4));
}

#[test]
fn record_too_large_for_the_dead_letter_topic_stops_the_worker() {
    let case = Case::of_two("oversize-both");
    case.stream.produce(..);
    let too_small = small_topic("oversize-both-dead");
    let log = case.stream.setup.start_with("a", &[&format!("topics[0].on_invalid.topic={too_small}")]).fails(1);
    assert!(log.contains(&format!("{too_small:?} is the dead-letter topic, so the worker cannot continue past this record")), "{log}");
    assert_prefix(&case.stream.expected, &case.stream.output());
    case.check(&topic(broker(), "oversize-both-dead", 4));
}

/// A running worker does not notice immediately that the limit of an output was lowered, so it writes batches that are too large.
#[test]
fn lowering_the_limit_of_an_output_loses_nothing() {
    let stream = Stream::remembered(broker(), "oversize-later", 10_000);
    let mut worker = stream.setup.start("a");
    worker.wait_for_log("started", LIMIT);
    alter_topic(broker(), &stream.output, "max.message.bytes", "2000");
    stream.produce(..);
    let log = stream.check(worker);
    assert!(log.contains("a topic rejected a batch; retrying its records in smaller batches"), "{log}");
    assert_eq!(logged(&log, "invalid"), 0, "a record was blamed for its batch");
}

/// Inputs can share an output. The worker looks up the size limit of the output and writes only batches within this limit.
#[test]
fn batches_respect_the_limit_of_a_shared_output() {
    let stream = Stream::into(
        broker(),
        "oversize-shared",
        small_topic("oversize-shared"),
        News { count: 5_000, ..News::default() }.records(),
        WINDOW,
    );
    let lines = Stream::lines(WINDOW, "filter = { kind = \"exact\" }").replace("\"news\"", "\"other\"");
    let other = topic(broker(), "oversize-shared-too", 4);
    let output = stream.output.clone();
    let stream = stream.with(|setup| setup.topic(&other, &output, &lines));
    stream.produce(..);
    let log = stream.check(stream.setup.start("a"));
    assert!(!log.contains("a topic rejected a batch"), "{log}");
}

/// The headers that explain a duplicate can make it too large. The worker then writes the duplicate without these headers and does not
/// stop.
#[test]
fn a_duplicate_too_large_with_its_headers_is_written_without_them() {
    let [input, output] = ["oversize-again-in", "oversize-again-out"].map(|hint| topic(broker(), hint, 1));
    let again = topic_with(broker(), "oversize-again", 1, &[("max.message.bytes", "1000")]);
    let mut random = SplitMix(7);
    let mut record = |key: &str, length: usize| TestRecord {
        key: Some(key.into()),
        value: Some((0..length).map(|_| b"abcdefghijklmnop"[random.below(16)]).collect()),
        ..TestRecord::default()
    };
    let records = [record("a", 10), record("a", 850), record("b", 10), record("b", 20)];
    let lines =
        format!("key = {{ record = \"key\" }}\nwindow = \"1h\"\nfilter = {{ capacity = 1000 }}\non_duplicate = {{ topic = \"{again}\" }}");
    let setup = Setup::new(broker(), "oversize-again").topic(&input, &output, &lines);
    produce(broker(), &input, &records);
    let mut worker = setup.start("a");
    wait_for_output(broker(), &again, 2, 1, LIMIT, &mut worker);
    let log = worker.drain();
    assert!(logged(&log, "aborts") > 0, "nothing was too large, so nothing was tried");
    let came = read_committed(broker(), &again, 1).concat();
    let values = |records: &[TestRecord]| records.iter().map(|record| record.value.clone()).collect::<Vec<_>>();
    assert_eq!(values(&came), [records[1].value.clone(), records[3].value.clone()]);
    assert_eq!(came[0].headers, []);
    assert!(came[1].headers.iter().any(|(name, _)| name == "unseen-verdict"), "{:?}", came[1].headers);
    assert_eq!(values(&read_committed(broker(), &output, 1).concat()), [records[0].value.clone(), records[2].value.clone()]);
}
