//! Promise: with `check.crcs`, a corrupt batch holds its partition back, and no record is lost once it is intact again.

use crate::harness::{OwnBroker, PATIENCE, Setup, TestRecord, crc32c, produce, topic, wait_for_output};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// Bytes of a batch up to what its checksum covers.
const HEAD: u64 = 21;

/// A segment on the disk of a broker, which sends it as it is.
struct Segment(File);

impl Segment {
    fn read(&self, bytes: Range<u64>) -> Vec<u8> {
        let mut read = vec![0; usize::try_from(bytes.end - bytes.start).expect("few")];
        self.0.read_exact_at(&mut read, bytes.start).expect("a batch");
        read
    }

    /// Where the batch ends that begins there.
    fn end(&self, start: u64) -> u64 {
        let length = self.read(start + 8..start + 12);
        start + 12 + u64::from(u32::from_be_bytes(length.try_into().expect("four bytes")))
    }

    /// Replaces the last bytes of the batch that ends there, and returns what was there.
    fn replace(&self, end: u64, by: &[u8]) -> Vec<u8> {
        let start = end - by.len() as u64;
        let before = self.read(start..end);
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

/// Corrupts one of three batches while a worker starts to read them, mends it, and expects all records in order.
/// `corrupt` is given the ends of the batches, and returns which one to corrupt, and its last bytes.
fn waits_for_the_batch(shares_space: bool, corrupt: impl Fn(&Segment, [u64; 3]) -> (u64, Vec<u8>)) {
    let own = OwnBroker::start();
    let broker = own.address();
    let lines = "key = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }\nspace = \"ids\"";
    let (input, output) = (topic(broker, "corrupt-in", 1), topic(broker, "corrupt-out", 1));
    let mut setup = Setup::new(broker, "corrupt").properties("\"check.crcs\" = \"true\"").topic(&input, &output, lines);
    if shares_space {
        setup = setup.topic(&topic(broker, "corrupt-in", 1), &output, lines);
    }
    for batch in [0..10, 10..20, 20..30] {
        produce(broker, &input, records(batch));
    }
    let segment = Segment(OpenOptions::new().read(true).write(true).open(own.segment(&input, 0)).expect("a segment"));
    let first = segment.end(0);
    let second = segment.end(first);
    let (end, bytes) = corrupt(&segment, [first, second, segment.end(second)]);
    let intact = segment.replace(end, &bytes);
    let mut worker = setup.start("a");
    worker.wait_for_log("failed CRC32C check", PATIENCE);
    segment.replace(end, &intact);
    let out = wait_for_output(broker, &output, 30, 1, PATIENCE, &mut worker);
    worker.drain();
    let keys = |records: Vec<TestRecord>| records.into_iter().map(|record| record.key).collect::<Vec<_>>();
    assert_eq!(keys(out.concat()), keys(records(0..30).collect()));
}

/// librdkafka continues in the last bytes of the corrupt batch. These read as the head of a batch that it skips, so that
/// it delivers the records of the third batch.
fn skipped(segment: &Segment, [first, second, _]: [u64; 3]) -> (u64, Vec<u8>) {
    let skipped = segment.read(first..second);
    let length = i32::try_from(skipped.len()).expect("few") + 9;
    let head = [&(-1000_i64).to_be_bytes()[..], &length.to_be_bytes(), &0_i32.to_be_bytes(), &[2], &crc32c(&skipped).to_be_bytes()];
    let head = head.concat();
    assert_eq!(head.len() as u64, HEAD);
    (first, head)
}

#[test]
fn records_behind_a_corrupt_batch_wait_for_it() {
    waits_for_the_batch(false, skipped);
}

/// Where topics share a space, the consumer also reports the ends of partitions.
#[test]
fn records_behind_a_corrupt_batch_of_a_shared_space_wait_for_it() {
    waits_for_the_batch(true, skipped);
}

/// librdkafka continues with garbage, which sends it to an offset that does not exist.
#[test]
fn a_corrupt_batch_that_leads_out_of_the_log_is_read_again() {
    waits_for_the_batch(false, |segment, [_, second, _]| (second, vec![!segment.read(second - 1..second)[0]]));
}
