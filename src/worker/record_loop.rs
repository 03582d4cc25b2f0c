//! Writes and counts the records of one partition in a batch, according to their verdicts.
//!
//! Keeps the data that these records share, to look it up only once per run of records. Never allocates per record.

use super::columns::Columns;
use super::ids::InputId;
use super::input::Input;
use super::key_reader::Keyed;
use super::partition::PartitionState;
use super::topics::InputTopic;
use super::writer::TransactionWriter;
use super::{Shared, co_partitioning, key_conflicts};
use crate::broker::{Broker, Outgoing, Record, RecordOf, SinkError, Target};
use crate::fault;
use crate::filter::ExactError;
use crate::format::SchemaId;
use crate::key::{Fingerprint, NoKey, ValueReader};
use crate::record::{Offset, Reason, Timestamp, Verdict};
use crate::route::{self, AddedHeaders, Destination, Detail, Origin, Route};
use crate::stats::Tally;
use crate::values::CountBy;
use std::sync::PoisonError;

/// True if the record at this offset is in the sample for `count_by`, which takes one record in 32. Extracting the value from every record
/// would cost as much as extracting its key. A hash of the offset chooses the sample, because a sample of every 32nd offset might always
/// miss one of several alternating producers.
const fn is_counted_by_value(offset: Offset) -> bool {
    offset.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59 == 0
}

#[derive(Default)]
pub(super) struct Buffers {
    pub(super) prefetched: Vec<Fingerprint>,
    pub(super) headers: AddedHeaders,
    /// Extractors of the values for `count_by` and for content comparison, by topic.
    pub(super) values: Vec<ValueReader>,
    pub(super) columns: Columns,
}

/// The data that consecutive records of one partition and rule share.
pub(super) struct RecordLoop<'w, B: Broker> {
    pub(super) shared: &'w Shared<B>,
    /// The partition, with the rule that the records belong to.
    pub(super) of: InputId,
    pub(super) topic: &'w InputTopic,
    pub(super) input: &'w mut Input,
    pub(super) holds_new_records: bool,
    /// `None` if the records are forwarded to a repartition topic.
    pub(super) state: Option<&'w mut PartitionState>,
    pub(super) writer: &'w mut TransactionWriter<B>,
    /// The counters of the configured topic.
    pub(super) tally: &'w mut Tally,
    pub(super) headers: &'w mut AddedHeaders,
    pub(super) values: &'w mut ValueReader,
    pub(super) columns: &'w mut Columns,
    /// An upper bound for the size of the remaining records in bytes.
    pub(super) bytes: usize,
    pub(super) others_warm_up: bool,
    /// The latest timestamp of a live record that may advance stream time, based on the local clock.
    pub(super) max_timestamp: Timestamp,
}

pub(super) enum VerdictError {
    Awaits(SchemaId),
    /// A record that already has a verdict was not read again. Holds the offset of the first such record.
    Gap(Offset),
    /// The filter cannot store the key, or the exact store cannot be read.
    State(ExactError),
}

pub(super) enum Stop {
    /// The record is processed, and the transaction is full.
    Full,
    /// The record is processed, and the changes of the warm-up must be logged.
    Unlogged,
    /// The record and all later records of the partition are passed over. They must wait for the next commit, or for the warm-up of another
    /// input of the unit.
    Waits,
    Failed(SinkError),
    Undecided(VerdictError),
    /// The record can be neither written nor skipped.
    EndsWorker(Reason),
}

impl<B: Broker> RecordLoop<'_, B> {
    /// Writes consecutive records to the destinations of their verdicts and counts them. If a record stops the loop, returns its index.
    /// For `since`, see [`Columns::since`].
    pub(super) fn emit(
        &mut self,
        messages: &[RecordOf<'_, B>],
        keys: &[Keyed],
        verdicts: &[Verdict],
        since: &[Option<Timestamp>],
    ) -> Result<(), (usize, Stop)> {
        self.writer.begin().map_err(|error| (0, Stop::Failed(error)))?;
        let mut stop = None;
        let mut written = 0;
        for ((message, keyed), &verdict) in messages.iter().zip(keys).zip(verdicts) {
            let since = since.get(written).copied().flatten();
            if let Err(error) = self.write_judged(message, keyed, verdict, since) {
                stop = Some(error);
                break;
            }
            written += 1;
        }
        self.count(&messages[..written], &keys[..written], &verdicts[..written]);
        match stop {
            Some(stop) => Err((written, stop)),
            None => self.add_to_transaction(written).map_err(|stop| (written - 1, stop)),
        }
    }

    #[inline]
    fn write_judged(&mut self, message: &RecordOf<'_, B>, keyed: &Keyed, verdict: Verdict, since: Option<Timestamp>) -> Result<(), Stop> {
        let topic = self.topic;
        let emits_all = verdict == Verdict::Duplicate && fault::defect("duplicates_emitted_at_least_once");
        let verdict = if emits_all && !self.writer.sink.transactional() { Verdict::Unseen } else { verdict };
        if let (Verdict::Unseen, Ok(record)) = (verdict, keyed) {
            let Shared { cross_partition_keys, stats, .. } = self.shared;
            co_partitioning::watch(cross_partition_keys, stats, topic, record.fingerprint, message.partition());
        }
        let destination = match route::of(&topic.config, verdict) {
            Route::Write(destination) => destination,
            Route::Drop => return Ok(()),
            Route::Fail(reason) => {
                self.input.ends_worker = true;
                return Err(Stop::EndsWorker(reason));
            }
        };
        let Some(target) = topic.outputs.target(destination, message) else { return Ok(()) };
        let offset = message.offset();
        if destination != Destination::Output && self.input.is_counted(offset) && fault::defect("side_outputs_not_repeated") {
            return Ok(());
        }
        let refused = self.input.verdicts().refused(offset);
        let detail = if refused.is_some() { Detail::Brief } else { Detail::Full(since) };
        let invalid = refused.or(match keyed {
            Err(NoKey::Invalid(invalid)) => Some(&**invalid),
            _ => None,
        });
        let time = message.timestamp();
        let origin = || Origin { topic: message.topic(), partition: message.partition(), offset, time };
        route::headers(&topic.config, destination, verdict, invalid, detail, origin, self.headers);
        // If a broker rejected the record, the timestamp may be the reason, and the dead-letter topic might reject the same timestamp, too.
        // So the dead letter has the timestamp only in a header.
        self.write(target, message, time.filter(|_| verdict != Verdict::Invalid(Reason::Refused)))?;
        self.tally.dead_letters += u64::from(destination == Destination::DeadLetters && !self.input.is_counted(offset));
        Ok(())
    }

    /// Advances past records. Counts them, unless they were counted before an abort.
    #[inline]
    fn count(&mut self, messages: &[RecordOf<'_, B>], keys: &[Keyed], verdicts: &[Verdict]) {
        let Some(last) = messages.last() else { return };
        if !self.input.advance(last.offset() + 1) {
            return;
        }
        self.tally.count_each(verdicts);
        if self.topic.config.count_by.is_some() || self.topic.keeps_content() {
            for ((message, keyed), &verdict) in messages.iter().zip(keys).zip(verdicts) {
                self.sample_content(message, keyed.as_ref().ok().map(|record| record.fingerprint), verdict);
            }
        }
    }

    /// Forwards a record to the repartition topic, where it will be judged.
    pub(super) fn forward(&mut self, target: Target<'_>, message: &RecordOf<'_, B>) -> Result<(), Stop> {
        self.writer.begin().map_err(Stop::Failed)?;
        self.headers.clear();
        self.write(target, message, message.timestamp())?;
        self.input.advance(message.offset() + 1);
        self.add_to_transaction(1)
    }

    #[inline]
    fn sample_content(&mut self, message: &RecordOf<'_, B>, fingerprint: Option<Fingerprint>, verdict: Verdict) {
        let topic = self.topic;
        if let Some(by) = &topic.config.count_by
            && is_counted_by_value(message.offset())
        {
            self.count_by(by, message, verdict);
        }
        if topic.keeps_content()
            && let Some(fingerprint) = fingerprint
        {
            key_conflicts::watch(self.shared, topic, fingerprint, verdict, message, self.values);
        }
    }

    fn count_by(&mut self, by: &CountBy, message: &RecordOf<'_, B>, verdict: Verdict) {
        let topic = self.topic;
        let Some(values) = &self.shared.stats.topics[topic.counted.0].values else { return };
        let format = topic.config.formats.value();
        let text = by.text(format, message.value(), message.headers(), self.values, &*self.shared.schemas);
        values.lock().unwrap_or_else(PoisonError::into_inner).add(text.as_deref(), verdict == Verdict::Duplicate);
    }

    /// Writes a record with the headers that were last set in `self.headers`.
    #[inline]
    fn write(&mut self, target: Target<'_>, message: &RecordOf<'_, B>, time: Option<Timestamp>) -> Result<(), Stop> {
        let outgoing = Outgoing { target, message, time, headers: self.headers, origin: 0 };
        self.writer.write(self.of, outgoing).map_err(Stop::Failed)
    }

    /// Adds processed records to the transaction's load. Fails with [`Stop::Full`] if the transaction is then full.
    #[inline]
    fn add_to_transaction(&mut self, records: usize) -> Result<(), Stop> {
        if self.writer.add_to_transaction(records) { Err(Stop::Full) } else { Ok(()) }
    }
}
