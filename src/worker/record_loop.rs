//! What consecutive records of one partition share, so that it is looked up once for all of them.
//!
//! Owns writing and counting a judged record. Must never allocate for a record.

use super::columns::Columns;
use super::decide::VerdictError;
use super::ids::InputId;
use super::input::Input;
use super::outbox::Outbox;
use super::partition::PartitionState;
use super::topics::InputTopic;
use super::{Shared, key_conflicts};
use crate::broker::{Broker, Outgoing, Record, RecordOf, SinkError};
use crate::key::{Fingerprint, Scratch};
use crate::record::{Offset, Reason, Timestamp, Verdict};
use crate::route::AddedHeaders;
use crate::stats::Tally;
use crate::values::CountBy;
use std::sync::PoisonError;

/// Whether the record there is one of the sample of one in 32 that are counted by a value: to look for it in each would cost as
/// much as the key does. They are chosen by a hash, for producers may take turns.
const fn is_counted_by_value(offset: Offset) -> bool {
    offset.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59 == 0
}

/// Reusable memory.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) prefetched: Vec<Fingerprint>,
    pub(super) headers: AddedHeaders,
    /// For values that are counted by, or compared.
    pub(super) scratch: Scratch,
    pub(super) columns: Columns,
}

/// Everything that consecutive records of one partition share.
pub(super) struct RecordLoop<'w, B: Broker> {
    pub(super) shared: &'w Shared<B>,
    pub(super) of: InputId,
    pub(super) topic: &'w InputTopic,
    pub(super) input: &'w mut Input,
    /// None where records are brought elsewhere to be judged.
    pub(super) state: Option<&'w mut PartitionState>,
    pub(super) outbox: &'w mut Outbox<B>,
    /// Of the configured topic.
    pub(super) tally: &'w mut Tally,
    pub(super) headers: &'w mut AddedHeaders,
    pub(super) scratch: &'w mut Scratch,
    pub(super) columns: &'w mut Columns,
    /// Bytes of the records at hand, at most.
    pub(super) bytes: usize,
    /// Whether other topics of the state still warm up.
    pub(super) others_warm_up: bool,
    /// The latest record time that moves the window.
    pub(super) max_timestamp: Timestamp,
}

/// Why the loop stops at a record.
pub(super) enum Stop {
    /// It is done, and the transaction can hold no more.
    Full,
    /// It is done, and what the warm-up remembers is to be logged.
    Unlogged,
    /// It is the first past a warm-up, and must wait for another topic of the state.
    WarmedUp,
    /// It could not be written.
    Failed(SinkError),
    /// It could not be decided.
    Undecided(VerdictError),
    /// It is not to be written, nor passed over.
    EndsWorker(Reason),
}

impl<B: Broker> RecordLoop<'_, B> {
    /// Looks at more of a record than its key, where that is asked for.
    #[inline]
    pub(super) fn look_into(&mut self, message: &RecordOf<'_, B>, fingerprint: Option<Fingerprint>, verdict: Verdict) {
        let topic = self.topic;
        if let Some(by) = &topic.config.count_by
            && is_counted_by_value(message.offset())
        {
            self.count_by(by, message, verdict);
        }
        if topic.keeps_content()
            && let Some(fingerprint) = fingerprint
        {
            key_conflicts::watch(self.shared, topic, fingerprint, verdict, message, self.scratch);
        }
    }

    /// Counts a record by its value.
    fn count_by(&mut self, by: &CountBy, message: &RecordOf<'_, B>, verdict: Verdict) {
        let Some(values) = &self.shared.stats.topics[self.topic.counted.0].values else { return };
        let text = by.text(message.value(), message.headers(), self.scratch);
        values.lock().unwrap_or_else(PoisonError::into_inner).add(text.as_deref(), verdict == Verdict::Duplicate);
    }

    /// Writes a record, with the headers at hand added to its own.
    pub(super) fn write(
        &mut self,
        topic: &str,
        partition: Option<i32>,
        message: &RecordOf<'_, B>,
        time: Option<Timestamp>,
    ) -> Result<(), Stop> {
        let outgoing = Outgoing { topic, partition, message, time, headers: self.headers, origin: 0 };
        self.outbox.write(self.of, outgoing).map_err(Stop::Failed)
    }

    /// The transaction carries some records more.
    pub(super) fn carried(&mut self, records: usize) -> Result<(), Stop> {
        if self.outbox.carry(records) { Err(Stop::Full) } else { Ok(()) }
    }
}
