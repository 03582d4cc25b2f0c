//! Promise: with `check.crcs`, a corrupt batch blocks its partition, and no record is lost once the batch is intact again.

use crate::harness::{
    PATIENCE, Setup, TestRecord, crc32c, delete_records_before, produce, secure_broker, topic, unseen, wait_for_output, wait_until,
};
use crate::observed::{address, ask};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// The size in bytes of the fields at the start of a batch, from the base offset to the checksum. The checksum does not cover these fields.
const HEAD: u64 = 21;
/// The number of bytes in a fetch response before its first batch. The first value is for a response with one partition. The second value
/// is for a response that starts with an empty partition of another topic.
const RESPONSE_HEADS: [u64; 2] = [66, 121];

/// A log segment on a broker's disk. The broker sends the bytes of the segment unchanged, so corrupt bytes reach consumers.
struct Segment(File);

impl Segment {
    /// The first segment of partition 0 of a topic. The topic must be on the secure broker, because the directory of that broker is known.
    fn open(topic: &str) -> Self {
        Self(OpenOptions::new().read(true).write(true).open(secure_broker().segment(topic, 0)).expect("a segment"))
    }

    fn read(&self, bytes: Range<u64>) -> Vec<u8> {
        let mut read = vec![0; usize::try_from(bytes.end - bytes.start).expect("few")];
        self.0.read_exact_at(&mut read, bytes.start).expect("a batch");
        read
    }

    fn end(&self, start: u64) -> u64 {
        let length = self.read(start + 8..start + 12);
        start + 12 + u64::from(u32::from_be_bytes(length.try_into().expect("four bytes")))
    }

    fn replace(&self, start: u64, by: &[u8]) -> Vec<u8> {
        let before = self.read(start..start + by.len() as u64);
        self.0.write_all_at(by, start).expect("it is written");
        before
    }
}

fn records(numbers: Range<i32>) -> impl Iterator<Item = TestRecord> {
    numbers.map(|number| TestRecord {
        key: Some(format!("{number:04}").into_bytes()),
        timestamp: 1_700_000_000_000 + i64::from(number),
        ..TestRecord::default()
    })
}

/// Corrupts one of three batches before a worker reads them, repairs the batch after the worker has reported it, and expects all records in
/// order. `corrupt` gets the positions of the ends of the batches in the segment and returns a position and the bytes to write there.
/// Returns the worker's log.
fn waits_for_the_batch(shares_space: bool, corrupt: impl Fn(&Segment, [u64; 3]) -> (u64, Vec<u8>)) -> String {
    let broker = secure_broker().address();
    let lines = "key = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }\nspace = \"ids\"";
    let (input, output) = (topic(broker, "corrupt-in", 1), topic(broker, "corrupt-out", 1));
    // With a short `fetch.wait.max.ms`, the worker learns the ends of partitions before it reads the corrupt batch again.
    let properties = "\"check.crcs\" = \"true\"\n\"fetch.wait.max.ms\" = 10";
    let mut setup = Setup::new(broker, "corrupt").properties(properties).topic(&input, &output, lines);
    if shares_space {
        setup = setup.topic(&topic(broker, "corrupt-in", 1), &output, lines);
    }
    for batch in [0..10, 10..20, 20..30] {
        produce(broker, &input, records(batch));
    }
    let segment = Segment::open(&input);
    let first = segment.end(0);
    let second = segment.end(first);
    let (start, bytes) = corrupt(&segment, [first, second, segment.end(second)]);
    let intact = segment.replace(start, &bytes);
    let mut worker = setup.start("a");
    worker.wait_for_log("failed CRC32C check", PATIENCE);
    let address = address(&mut worker);
    wait_until("the probe reports the partition", PATIENCE, || {
        let (status, _, body) = ask(&address, "/readyz");
        (status == 200 && body.contains(&format!("{input}[0] could not be read"))).then_some(())
    });
    segment.replace(start, &intact);
    let out = wait_for_output(broker, &output, 30, 1, PATIENCE, &mut worker);
    let log = worker.drain();
    let keys = |records: Vec<TestRecord>| records.into_iter().map(|record| record.key).collect::<Vec<_>>();
    assert_eq!(keys(out.concat()), keys(records(0..30).collect()));
    log
}

/// Returns a position and bytes that corrupt the first batch of a fetch response when they are written to the segment at this position.
/// librdkafka then also skips the second batch and delivers the records after it. `first` and `second` are the positions of the ends of
/// these batches.
///
/// After a wrong checksum, librdkafka continues before the end of the batch, because it treats a length as a position in the response. At
/// that position (there is one for each of [`RESPONSE_HEADS`]), the bytes contain the header of a fake batch that extends to `second`.
/// librdkafka skips the fake batch, because its offset is lower than the position of the consumer, and delivers the records after it.
fn skipped(segment: &Segment, [first, second]: [u64; 2]) -> (u64, Vec<u8>) {
    let heads = RESPONSE_HEADS.map(|response_head| first - HEAD - response_head);
    let start = heads[1];
    let mut bytes = segment.read(start..second);
    for head in heads {
        let (before, body) = bytes.split_at_mut(usize::try_from(head + HEAD - start).expect("few"));
        // The fake batch has no attributes and a single offset.
        body[..6].fill(0);
        let length = i32::try_from(body.len()).expect("few") + 9;
        let head =
            [&(-1000_i64).to_be_bytes()[..], &length.to_be_bytes(), &0_i32.to_be_bytes(), &[2], &crc32c(body).to_be_bytes()].concat();
        assert_eq!(head.len() as u64, HEAD);
        let at = before.len() - head.len();
        before[at..].copy_from_slice(&head);
    }
    bytes.truncate(usize::try_from(first - start).expect("few"));
    (start, bytes)
}

/// Panics if librdkafka did not find the fake batch of [`skipped`], because the test would then prove nothing.
fn assert_skipped(log: &str) {
    for garbage in ["Unsupported Message", "No offset to automatically reset to"] {
        assert!(!log.contains(garbage), "nothing behind the corrupt batch was delivered: {log}");
    }
}

#[test]
fn records_after_a_corrupt_batch_wait_for_it() {
    assert_skipped(&waits_for_the_batch(false, |segment, [first, second, _]| skipped(segment, [first, second])));
}

/// With a shared space, the consumer also reports the ends of partitions. Such a report must not move the worker past the corrupt batch.
#[test]
fn records_after_a_corrupt_batch_of_a_shared_space_wait_for_it() {
    assert_skipped(&waits_for_the_batch(true, |segment, [first, second, _]| skipped(segment, [first, second])));
}

/// A worker must not use a rebuilt state that lacks the keys of a corrupt changelog batch.
#[test]
fn a_rebuild_waits_for_a_corrupt_batch_of_the_changelog() {
    let broker = secure_broker().address();
    let lines = "key = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }\nspace = \"ids\"";
    let (input, output) = (topic(broker, "corrupt-in", 1), topic(broker, "corrupt-out", 1));
    let setup = Setup::new(broker, "corrupt").properties("\"check.crcs\" = \"true\"").topic(&input, &output, lines);
    let mut worker = setup.start("a");
    // Each commit consists of a batch in the changelog and a marker.
    for batch in [0..10, 10..20, 20..30] {
        let emitted = usize::try_from(batch.end).expect("few");
        produce(broker, &input, records(batch));
        wait_for_output(broker, &output, emitted, 1, PATIENCE, &mut worker);
    }
    worker.drain();
    std::fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
    let name = format!("{}-ids-changelog", setup.group());
    let changelog = Segment::open(&name);
    // When the worker was assigned the partition, it committed a changelog batch without keys (offset 0), which is followed by a commit
    // marker (offset 1). Without these two offsets, the changelog starts with the first batch of keys.
    delete_records_before(broker, &name, 0, 2);
    let first = changelog.end(changelog.end(changelog.end(0)));
    let (start, bytes) = skipped(&changelog, [first, changelog.end(first)]);
    let intact = changelog.replace(start, &bytes);
    let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
    worker.wait_for_log("cannot read the changelog; retrying", PATIENCE);
    changelog.replace(start, &intact);
    worker.wait_for_log("state rebuilt from the changelog", PATIENCE);
    produce(broker, &input, records(0..31));
    let out = wait_for_output(broker, &output, 31, 1, PATIENCE, &mut worker);
    assert_skipped(&worker.drain());
    assert_eq!(out.concat().len(), 31, "keys were emitted again");
}

#[test]
fn a_capture_ends_at_a_corrupt_batch() {
    let broker = secure_broker().address();
    let input = topic(broker, "corrupt-in", 1);
    let lines = "key = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }";
    let setup = Setup::new(broker, "corrupt").properties("\"check.crcs\" = \"true\"").topic(&input, "out", lines);
    for batch in [0..10, 10..20, 20..30] {
        produce(broker, &input, records(batch));
    }
    let segment = Segment::open(&input);
    let first = segment.end(0);
    let (start, bytes) = skipped(&segment, [first, segment.end(first)]);
    segment.replace(start, &bytes);
    let (config, file) = (setup.write_config("a"), setup.dir().join("capture.jsonl"));
    let (config, file) = (config.to_str().expect("a path in UTF-8"), file.to_str().expect("a path in UTF-8"));
    let (code, _, error) = unseen(["capture", "-c", config, "-o", file]);
    assert!(code == Some(1) && error.contains(&format!("a record batch of topic {input:?} is corrupt")), "{code:?}: {error}");
}

/// This corruption makes librdkafka continue at an offset that the log does not have.
#[test]
fn corrupt_batch_with_an_offset_outside_the_log_is_read_again() {
    waits_for_the_batch(false, |segment, [_, second, _]| (second - 1, vec![!segment.read(second - 1..second)[0]]));
}
