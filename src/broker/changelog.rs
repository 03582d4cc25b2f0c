//! Traits of the clients that read, follow, and trim changelogs.
//!
//! Decides when a changelog has been read to its end. This module never decodes a record.
#![allow(clippy::missing_errors_doc, reason = "each method returns the errors of librdkafka")]

use super::Error;
use crate::record::{Offset, Timestamp, TopicPartition};
use crate::runtime;
use std::collections::BTreeMap;
use std::time::Duration;

const READ_MAX: usize = 1000;

/// The number of polls with a fetch error after which [`ChangelogReader::read`] returns [`ReadEnd::Failed`]. Each record resets the count.
const READ_ERRORS_MAX: u32 = 10;

/// The longest wait for records in one poll, and the pause after an error. A stop request is noticed within twice this time.
const READ_WAIT: Duration = Duration::from_millis(100);

/// A committed changelog record. `value` is empty if the record has no value.
pub struct Logged<'a> {
    pub offset: Offset,
    pub time: Option<Timestamp>,
    pub value: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// [`ChangelogReader::read`] has read up to `end`, `take` has returned false, or `stop` has returned true.
    Reached,
    /// The position is no longer in the log, because the log was trimmed or the topic was recreated.
    Trimmed,
    /// The changelog cannot be read now, for example because a batch is corrupt.
    Failed,
}

/// A client that reads changelogs and trims internal topics, one partition at a time. It does not join the consumer group.
pub trait ChangelogReader {
    type Tail: ChangelogTail;
    fn tail(&self) -> &Self::Tail;
    /// Returns the log start offset and the last stable offset, or `None` if the changelog has an open transaction. A failed call can be
    /// retried.
    fn ends(&self, changelog: &TopicPartition) -> Result<Option<(Offset, Offset)>, Error>;
    /// Passes the committed records from offset `from` up to offset `end` (exclusive) to `take`, in order. Stops early if `take` returns
    /// false or `stop` returns true. Stops only at the end of the partition, once that is at least `end`, so `take` may also get records
    /// past `end`.
    fn read<E: From<Error>>(
        &self,
        changelog: &TopicPartition,
        (from, end): (Offset, Offset),
        stop: &dyn Fn() -> bool,
        take: &mut dyn FnMut(Logged<'_>) -> Result<bool, E>,
    ) -> Result<ReadEnd, E> {
        let (mut next, mut errors, mut has_failed, mut read) = (from, 0, false, None);
        let tail = self.tail();
        tail.start(changelog, from)?;
        while read.is_none() && !stop() {
            tail.poll(READ_MAX, READ_WAIT, &mut |_, _, event| {
                // Records after an error may follow a gap, because librdkafka skips corrupt batches. So ignore them and restart at `next`.
                if read.is_some() || has_failed {
                    return;
                }
                match event {
                    TailEvent::Record(logged) => {
                        (next, errors) = (logged.offset + 1, 0);
                        read = take(logged).map_or_else(|error| Some(Err(error)), |more| (!more).then_some(Ok(ReadEnd::Reached)));
                    }
                    // After a leader change, a broker can report an end below `end`, because it does not know the high watermark yet. In
                    // that case, the reader continues.
                    TailEvent::End(reached) => read = (reached >= end).then_some(Ok(ReadEnd::Reached)),
                    TailEvent::OutOfRange => read = Some(Ok(ReadEnd::Trimmed)),
                    TailEvent::Error => has_failed = true,
                }
            })?;
            if std::mem::take(&mut has_failed) {
                errors += 1;
                if errors == READ_ERRORS_MAX {
                    read = Some(Ok(ReadEnd::Failed));
                    break;
                }
                runtime::sleep(READ_WAIT);
                tail.stop(changelog)?;
                tail.start(changelog, next)?;
            }
        }
        tail.stop(changelog)?;
        read.unwrap_or(Ok(ReadEnd::Reached))
    }
    fn delete_before(&self, partition: &TopicPartition, offset: Offset) -> Result<(), Error>;
    /// Returns the id of an existing topic, or `None` if the brokers do not report ids. A failed call can be retried.
    fn topic_id(&self, topic: &str) -> Result<Option<String>, Error>;
}

pub enum TailEvent<'m> {
    Record(Logged<'m>),
    /// All records below this offset have been read. More records may follow later.
    End(Offset),
    /// The position is outside the log, and the tail has stopped reading the partition.
    OutOfRange,
    /// A fetch failed. Later records may follow a gap, so the caller must stop the partition and start it again at its current position.
    Error,
}

/// A client that reads any number of changelog partitions at once and waits for new records at their ends. It does not join the consumer
/// group.
pub trait ChangelogTail {
    /// Starts reading a stopped partition at `offset`.
    fn start(&self, partition: &TopicPartition, offset: Offset) -> Result<(), Error>;
    /// Stops reading a partition. A [`ChangelogTail::poll`] that is in progress may still pass on events of the partition.
    fn stop(&self, partition: &TopicPartition) -> Result<(), Error>;
    /// Passes at most `count` events to `take`, each with its topic and partition. If there are no events, waits up to `wait`.
    fn poll(&self, count: usize, wait: Duration, take: &mut dyn FnMut(&str, i32, TailEvent<'_>)) -> Result<(), Error>;
}

pub trait ChangelogEnds {
    /// Returns the number of partitions, or 0 if the topic does not exist. A failed call can be retried.
    fn partitions(&self, topic: &str) -> Result<u32, Error>;
    /// Returns the ids of the topics, by name. The map is empty if the request fails, if one of the topics does not exist, or if the
    /// brokers do not report ids.
    fn ids(&self, topics: &[&str]) -> BTreeMap<String, String>;
    /// Returns the log start offset and the last stable offset. A failed call can be retried.
    fn of(&self, partition: &TopicPartition, timeout: Duration) -> Result<(Offset, Offset), Error>;
    /// Returns the high watermark, which is past the records of open transactions. A failed call can be retried.
    fn high_watermark(&self, partition: &TopicPartition, timeout: Duration) -> Result<Offset, Error>;
}
