//! Finds transactions without a commit or abort marker in the segments on a broker's disk.
//!
//! With a replication factor of 1, a killed broker can lose the marker of a transaction. `read_committed` consumers then never see the
//! records of the transaction, or see them only when the next transaction of the same producer is committed. The segments contain batches
//! in version 2 of the format "Record Batch" in Kafka's documentation.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The number of bytes at the start of a batch that the length field does not count. [`HEADER`] is the size of the whole header.
const HEAD: usize = 12;
const HEADER: usize = 61;
const TRANSACTIONAL: i16 = 0x10;
const CONTROL: i16 = 0x20;

/// Describes each transaction without a marker in the partitions whose directory names start with `prefix`.
pub fn transactions_without_end(broker: &Path, prefix: &str) -> Vec<String> {
    let is_of_topic = |path: &PathBuf| path.is_dir() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    let mut found = Vec::new();
    for partition in super::state::entries(broker).into_iter().filter(is_of_topic) {
        let mut segments: Vec<_> = super::state::entries(&partition);
        segments.retain(|path| path.extension().is_some_and(|ending| ending == "log"));
        segments.sort();
        // Maps the ID of each producer with an open transaction to its epoch and to the first offset of the transaction.
        let mut open: BTreeMap<i64, (i16, i64)> = BTreeMap::new();
        let mut lost = |offset: i64| found.push(format!("no end marker in {} for the transaction at offset {offset}", partition.display()));
        for segment in segments {
            let bytes = fs::read(segment).expect("a segment");
            let mut left = &*bytes;
            while let Some(batch) = Batch::first(left) {
                if batch.attributes & CONTROL != 0 {
                    open.remove(&batch.producer);
                } else if batch.attributes & TRANSACTIONAL != 0 {
                    let &mut (epoch, first) = open.entry(batch.producer).or_insert((batch.epoch, batch.offset));
                    if epoch != batch.epoch {
                        lost(first);
                        open.insert(batch.producer, (batch.epoch, batch.offset));
                    }
                }
                left = &left[batch.bytes..];
            }
        }
        for &(_, first) in open.values() {
            lost(first);
        }
    }
    found
}

struct Batch {
    bytes: usize,
    offset: i64,
    attributes: i16,
    producer: i64,
    epoch: i16,
}

impl Batch {
    /// The first batch in `bytes`. `None` if `bytes` does not start with a complete batch, as at the end of a segment.
    fn first(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let long = |at: usize| i64::from_be_bytes(*header[at..].first_chunk().expect("within the header"));
        let short = |at: usize| i16::from_be_bytes(*header[at..].first_chunk().expect("within the header"));
        let length = i32::from_be_bytes(*header[8..].first_chunk().expect("within the header"));
        let length = usize::try_from(length).ok().filter(|&length| length >= HEADER - HEAD && HEAD + length <= bytes.len())?;
        Some(Self { bytes: HEAD + length, offset: long(0), attributes: short(21), producer: long(43), epoch: short(51) })
    }
}
