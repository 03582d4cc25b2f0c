//! The records of a batch as columns: one vector per field, in the form that a filter takes.
//!
//! Chooses the records that can be judged in one batch. Never holds more than one batch, and never allocates per record.

use super::key_reader::Keyed;
use crate::broker::Record;
use crate::key::{Fingerprint, KeyedRecord};
use crate::record::{Timestamp, Verdict};

#[derive(Default)]
pub(super) struct Columns {
    pub(super) fingerprints: Vec<Fingerprint>,
    pub(super) times: Vec<Timestamp>,
    /// True for each duplicate.
    pub(super) seen: Vec<bool>,
    pub(super) verdicts: Vec<Verdict>,
    /// One entry per record: for a duplicate, the start time of its key's slice, if known. Empty if duplicates are not written with headers
    /// that explain the verdict.
    pub(super) since: Vec<Option<Timestamp>>,
}

impl Columns {
    /// Takes records with consecutive offsets. Stops before the first record that has no time, has a time later than `horizon`, has no key,
    /// or retracts its key.
    pub(super) fn take(&mut self, messages: &[impl Record], keys: &[Keyed], horizon: Timestamp) {
        self.fingerprints.clear();
        self.times.clear();
        let Some(first) = messages.first().map(Record::offset) else { return };
        for ((message, keyed), offset) in messages.iter().zip(keys).zip(first..) {
            let &Ok(KeyedRecord { fingerprint, retracts: false, time: Some(time) }) = keyed else { return };
            if message.offset() != offset || time > horizon {
                return;
            }
            self.fingerprints.push(fingerprint);
            self.times.push(time);
        }
    }
}
