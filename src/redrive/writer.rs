//! The transactions of a redrive, which contain dead letters and the positions after them.
//!
//! Limits the size and the age of a transaction. This module never commits a position without the dead letters before that position.

use super::error::{Error, Failure, Rejected};
use crate::broker::{HeaderChanges, Outgoing, Record as _, Refused, Sink, SinkError, Target};
use crate::config::Config;
use crate::kafka::{self, GroupMetadata, KafkaBroker, Message};
use crate::record::{Offset, Timestamp, TopicPartition};
use crate::stats::Stats;
use std::ffi::CStr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

const RECORDS_MAX: usize = 1000;
/// A transaction is committed when its keys and values reach this size in bytes.
const BYTES_MAX: usize = 16 << 20;
/// A transaction is committed when its age reaches the transaction timeout divided by this number.
const TIMEOUT_SHARE: u32 = 4;

pub(super) struct Writer<'a> {
    config: &'a Config,
    stop: &'a dyn Fn() -> bool,
    sink: Sink<KafkaBroker>,
    outsider: GroupMetadata,
    timeout: Duration,
    /// The partition and offset of each dead letter in the open transaction.
    written: Vec<(i32, Offset)>,
    bytes: usize,
    opened: Option<Instant>,
}

/// Removes the headers at these positions.
struct Without(Range<usize>);

impl HeaderChanges for Without {
    fn removed_positions(&self) -> Range<usize> {
        self.0.clone()
    }

    fn removed(&self) -> impl Iterator<Item = &CStr> {
        std::iter::empty()
    }

    fn added(&self) -> impl Iterator<Item = (&CStr, &[u8])> {
        std::iter::empty()
    }
}

impl<'a> Writer<'a> {
    /// Connects a producer, which fences any earlier redrive of this group and aborts its open transaction.
    pub(super) fn connect(
        config: &'a Config,
        outsider: GroupMetadata,
        batch_bytes: usize,
        stop: &'a dyn Fn() -> bool,
    ) -> Result<Self, kafka::Error> {
        let (sink, timeout) = (sink(config, batch_bytes, stop)?, config.worker.transaction_timeout);
        Ok(Self { config, stop, sink, outsider, timeout, written: Vec::new(), bytes: 0, opened: None })
    }

    /// Adds a dead letter to the transaction. Leaves out the headers at the positions `headers`.
    pub(super) fn write(
        &mut self,
        message: &Message<'_>,
        (topic, partition): (&str, Option<i32>),
        time: Option<Timestamp>,
        headers: Range<usize>,
    ) -> Result<(), Failure> {
        self.begin(message.topic())?;
        let (target, origin) = (Target { topic, partition }, self.written.len());
        self.written.push((message.partition(), message.offset()));
        self.bytes += message.bytes();
        self.sink.poll();
        let sent = self.sink.send(&Outgoing { target, message, time, headers: &Without(headers), origin });
        sent.map_err(|failure| self.failure(message.topic(), failure))
    }

    pub(super) fn is_due(&self) -> bool {
        let is_old = self.opened.is_some_and(|opened| opened.elapsed() >= self.timeout / TIMEOUT_SHARE);
        is_old || self.written.len() >= RECORDS_MAX || self.bytes >= BYTES_MAX
    }

    /// Commits the written dead letters and the positions after them. `topic` is the dead-letter topic.
    pub(super) fn commit(&mut self, topic: &str, positions: &[(TopicPartition, Offset, String)]) -> Result<(), Failure> {
        self.begin(topic)?;
        let committed = self.sink.wait_written().and_then(|()| self.sink.commit_as_outsider(positions, &self.outsider, || Ok(())));
        committed.map_err(|failure| self.failure(topic, failure))?;
        (self.bytes, self.opened) = (0, None);
        self.written.clear();
        if self.sink.has_late_request() {
            // A late copy of a `TxnOffsetCommit` or `EndTxn` request may still arrive at a broker and would affect the next transaction.
            // Connecting a new producer fences this copy.
            self.sink = sink(self.config, self.sink.batch_bytes(), self.stop).map_err(Error::from)?;
        }
        Ok(())
    }

    /// Aborts the open transaction. If the abort fails, the next redrive aborts the transaction, or the brokers abort it after its timeout.
    pub(super) fn abort(&self) {
        if self.opened.is_some() {
            let _ = self.sink.abort();
        }
    }

    fn begin(&mut self, topic: &str) -> Result<(), Failure> {
        if self.opened.is_none() {
            self.sink.begin().map_err(|failure| self.failure(topic, failure))?;
            self.opened = Some(Instant::now());
        }
        Ok(())
    }

    fn failure(&self, topic: &str, failure: SinkError) -> Failure {
        let again = "run the command again to continue with the dead letters that were not redriven";
        let message = match failure {
            SinkError::Exit(reason) => return Failure::Topic(reason),
            SinkError::Abort(reason) => format!("the last transaction was aborted: {reason}; {again}"),
            SinkError::Refused(refused) => {
                let certain = refused.into_iter().filter(|refused| refused.is_certain);
                let rejected = certain.filter_map(|Refused { origin, topic: target, invalid, .. }| {
                    let &(partition, offset) = self.written.get(origin)?;
                    Some(Rejected { topic: topic.to_owned(), partition, offset, target, error: invalid.to_string() })
                });
                let rejected: Vec<_> = rejected.collect();
                return if rejected.is_empty() { Failure::Batch } else { Failure::Rejected(rejected) };
            }
            SinkError::Fenced(_) if self.opened.is_some_and(|opened| opened.elapsed() >= self.timeout) => {
                format!("the last transaction took longer than worker.transaction_timeout; {again}")
            }
            SinkError::Fenced(reason) => {
                format!("another redrive of this group has started and continues instead of this one ({reason})")
            }
            SinkError::Unknown(reason) => format!("it is unknown whether the last transaction was committed ({reason}); {again}"),
        };
        Error::Refused(message).into()
    }
}

/// Connects a producer, which fences the previous producer and aborts its open transaction.
fn sink(config: &Config, batch_bytes: usize, stop: &dyn Fn() -> bool) -> Result<Sink<KafkaBroker>, kafka::Error> {
    let broker = KafkaBroker::new(Arc::new(Stats::new(config)));
    Sink::connect(&broker, config, &config.kafka.group_id, 1, batch_bytes, stop)
}
