//! What is known of records that are judged together, a column for each thing.
//!
//! Must never hold more than a batch, nor allocate for a record.

use super::key_reader::Keyed;
use crate::broker::Record;
use crate::key::Fingerprint;
use crate::record::Timestamp;

/// What is known of records that are judged together; its room is used again.
#[derive(Default)]
pub(super) struct Columns {
    pub(super) fingerprints: Vec<Fingerprint>,
    pub(super) times: Vec<Timestamp>,
    pub(super) seen: Vec<bool>,
}

impl Columns {
    /// Takes records that follow each other, as far as each has a time that is not past `latest`, and a key that it does not
    /// retract.
    pub(super) fn take(&mut self, messages: &[impl Record], keys: &[Keyed], latest: Timestamp) {
        self.fingerprints.clear();
        self.times.clear();
        let Some(first) = messages.first().map(Record::offset) else { return };
        for ((message, keyed), offset) in messages.iter().zip(keys).zip(first..) {
            let (Ok((fingerprint, false)), Some(time)) = (keyed, message.timestamp()) else { return };
            if message.offset() != offset || time > latest {
                return;
            }
            self.fingerprints.push(*fingerprint);
            self.times.push(time);
        }
    }
}
