//! Extracts the fingerprint of a record's key, in the format of its topic.
//!
//! Owns the compiled schemas and the reusable buffers for the extraction. Must never decide a verdict.

use super::topics::InputTopic;
use crate::broker;
use crate::fault;
use crate::format::{Lookup, SchemaId, Schemas};
use crate::key::{KeyedRecord, NoKey, Reader, RecordSpec, Scratch};
use crate::record::{Record, Timestamp, TopicId};
use std::sync::Arc;

/// Everything in a record that its verdict depends on.
pub(super) type Keyed = Result<KeyedRecord, NoKey>;

/// Extracts keys from records.
pub(super) struct KeyReader {
    scratch: Scratch,
    /// One per topic.
    readers: Vec<Reader>,
    schemas: Arc<dyn Schemas>,
}

impl KeyReader {
    /// Creates a reader for `topics` topics.
    pub(super) fn new(topics: usize, schemas: Arc<dyn Schemas>) -> Self {
        Self { scratch: Scratch::default(), readers: (0..topics).map(|_| Reader::default()).collect(), schemas }
    }

    /// Extracts the keys of consecutive records. Requests all unknown schemas at once, so that the partition waits only once.
    pub(super) fn take(&mut self, id: TopicId, topic: &InputTopic, messages: &[impl broker::Record], keys: &mut Vec<Keyed>) {
        let spec = topic.config.record_spec();
        let spec = RecordSpec { time: spec.time.filter(|_| !fault::defect("event_times_ignored")), ..spec };
        let spec = if fault::defect("conditions_ignored") { RecordSpec { when: &[], ..spec } } else { spec };
        let (reader, scratch, schemas) = (&mut self.readers[id.0], &mut self.scratch, &*self.schemas);
        let reads_headers = topic.config.reads_headers();
        // Decided once, so that a topic without a condition does not pay for it.
        if spec.when.is_empty() {
            read_each(messages, reads_headers, keys, |record, time| reader.read_selected(spec, record, time, scratch, schemas));
        } else {
            read_each(messages, reads_headers, keys, |record, time| reader.read(spec, record, time, scratch, schemas));
        }
    }

    /// True if the registry has not returned this schema yet.
    pub(super) fn is_awaited(&self, schema: SchemaId) -> bool {
        matches!(self.schemas.get(schema), Lookup::Awaited)
    }
}

#[inline]
fn read_each(
    messages: &[impl broker::Record],
    reads_headers: bool,
    keys: &mut Vec<Keyed>,
    mut read: impl FnMut(&Record<'_>, Option<Timestamp>) -> Keyed,
) {
    keys.extend(messages.iter().map(|message| {
        let headers: Vec<_> = if reads_headers { message.headers().collect() } else { Vec::new() };
        let record = Record { key: message.key(), value: message.value(), headers: &headers };
        read(&record, message.timestamp())
    }));
}
