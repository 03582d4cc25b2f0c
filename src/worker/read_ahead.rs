//! What is read while a commit waits for the brokers.
//!
//! Owns a batch whose keys are taken, and of which nothing is judged yet. Must never grow beyond its bounds, nor be
//! gone on with once its partitions were set back: it is read again.

use super::records::{Keys, take_keys};
use super::topics::Plan;
use crate::kafka::{self, Batch, Source};
use crate::key::Scratch;
use std::time::Duration;

/// Most records taken from the consumer at a time.
pub(super) const BATCH_RECORDS: usize = 1024;
/// Most records that are read ahead.
const RECORDS_MAX: usize = 8 * BATCH_RECORDS;
/// No more is read ahead when so many bytes are.
const BYTES_MAX: usize = 8 << 20;
/// Longest wait for records; bounds how late it is noticed that the commit has ended.
const TURN: Duration = Duration::from_millis(2);

/// A batch, and the keys of its records as far as they are taken.
#[derive(Default)]
pub(super) struct ReadAhead<'s> {
    pub(super) batch: Batch<'s>,
    pub(super) keys: Keys,
    /// Why the consumer can never read again.
    failed: Option<kafka::Error>,
}

impl<'s> ReadAhead<'s> {
    /// Reads until the commit `is_done`, or it is enough.
    pub(super) fn read(&mut self, source: &'s Source, topics: &[Plan], scratch: &mut Scratch, is_done: &dyn Fn() -> bool) {
        let mut bytes = 0;
        while !is_done() && bytes < BYTES_MAX && self.batch.messages.len() <= RECORDS_MAX - BATCH_RECORDS {
            let before = self.batch.messages.len();
            if let Err(error) = source.poll(&mut self.batch, BATCH_RECORDS, TURN) {
                self.failed = Some(error);
                return;
            }
            if self.batch.out_of_range || source.has_rebalance() {
                return;
            }
            take_keys(topics, scratch, &self.batch.messages, &mut self.keys, self.batch.messages.len());
            bytes += self.batch.messages[before..].iter().map(kafka::Message::bytes).sum::<usize>();
        }
    }

    /// Waits for records, if none were read ahead.
    ///
    /// # Errors
    /// When the consumer can never read again.
    pub(super) fn fill(&mut self, source: &'s Source, wait: Duration) -> Result<(), kafka::Error> {
        match self.failed.take() {
            Some(error) => Err(error),
            None if self.batch.is_empty() => source.poll(&mut self.batch, BATCH_RECORDS, wait),
            None => Ok(()),
        }
    }

    /// Gives everything back to librdkafka.
    pub(super) fn clear(&mut self) {
        self.batch.clear();
        self.keys.clear();
    }
}
