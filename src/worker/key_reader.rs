//! Extracts the fingerprint of a record's key, in the format of its topic.
//!
//! Keeps the compiled extractors and their reusable buffers. Never decides a verdict.

use super::ids::InputId;
use super::topics::{InputTopic, Topics};
use crate::broker;
use crate::fault;
use crate::format::{Lookup, SchemaId, Schemas};
use crate::key::{ContentCounts, KeyedRecord, NoKey, Reader, RecordSpec, Scratch};
use crate::record::{Record, Timestamp, TopicId};
use std::ops::Range;
use std::slice;
use std::sync::Arc;

/// The parts of a record that its verdict depends on, or the reason that the record has no key.
pub(super) type Keyed = Result<KeyedRecord, NoKey>;

#[derive(Default)]
pub(super) struct Keys {
    pub(super) keyed: Vec<Keyed>,
    /// The rule of each record. Empty if no input has several rules.
    pub(super) rules: Vec<TopicId>,
}

impl Keys {
    pub(super) fn clear(&mut self) {
        self.keyed.clear();
        self.rules.clear();
    }

    /// Splits a range of an input's records into runs of consecutive records with the same rule. In the id of a run, `topic` is this rule.
    pub(super) fn by_rule(&self, of: Option<InputId>, numbers: Range<usize>) -> impl Iterator<Item = (Option<InputId>, Range<usize>)> {
        let mut start = numbers.start;
        std::iter::from_fn(move || {
            let left = start..numbers.end;
            if left.is_empty() {
                return None;
            }
            let Some(rules) = self.rules.get(left.clone()) else {
                start = left.end;
                return Some((of, left));
            };
            let len = rules.iter().take_while(|&&rule| rule == rules[0]).count();
            start = left.start + len;
            Some((of.map(|of| InputId { topic: rules[0], ..of }), left.start..start))
        })
    }
}

/// The maximum number of bytes to decode before the extraction of keys stops. Decoding this number of bytes takes about a second, and the
/// worker must then commit and poll.
const DECODED_MAX: u64 = 32 << 20;

pub(super) struct KeyReader {
    scratch: Scratch,
    readers: Vec<Reader>,
    schemas: Arc<dyn Schemas>,
    decoded_max: u64,
}

impl KeyReader {
    pub(super) fn new(topics: usize, schemas: Arc<dyn Schemas>) -> Self {
        let readers = (0..topics).map(|_| Reader::default()).collect();
        Self { scratch: Scratch::default(), readers, schemas, decoded_max: DECODED_MAX }
    }

    #[cfg(test)]
    pub(super) fn with_decoded_max(self, decoded_max: u64) -> Self {
        Self { decoded_max, ..self }
    }

    /// Returns the total number of decoded bytes at which [`KeyReader::take`] will stop.
    pub(super) fn decoded_limit(&self) -> u64 {
        self.decoded_bytes() + self.decoded_max
    }

    fn decoded_bytes(&self) -> u64 {
        self.readers.iter().map(Reader::decoded_bytes).sum()
    }

    /// Extracts the keys of consecutive records. If the values are encoded, stops when `decoded_limit` is reached. Requests all unknown
    /// schemas of these records at once, so that the partition waits only once.
    pub(super) fn take(&mut self, topics: &Topics, id: TopicId, messages: &[impl broker::Record], keys: &mut Keys, decoded_limit: u64) {
        let topic = &topics[id];
        if topic.config.formats.value().encodings.is_empty() {
            return self.take_all(topics, id, messages, keys);
        }
        for message in messages {
            if self.decoded_bytes() >= decoded_limit {
                return;
            }
            self.take_all(topics, id, slice::from_ref(message), keys);
        }
    }

    fn take_all(&mut self, topics: &Topics, id: TopicId, messages: &[impl broker::Record], keys: &mut Keys) {
        let topic = &topics[id];
        if topic.has_rules() {
            self.take_by_rules(topics, &topic.of_input, messages, keys);
        } else {
            self.take_of_topic(id, topic, messages, &mut keys.keyed);
        }
    }

    /// Extracts the key of each record by the first rule that selects the record. A record that no rule selects gets the last rule.
    fn take_by_rules(&mut self, topics: &Topics, rules: &[TopicId], messages: &[impl broker::Record], keys: &mut Keys) {
        for message in messages {
            for &rule in rules {
                self.take_of_topic(rule, &topics[rule], slice::from_ref(message), &mut keys.keyed);
                let passes = matches!(keys.keyed.last(), Some(Err(NoKey::Passes)));
                if !passes || rules.last() == Some(&rule) {
                    keys.rules.push(rule);
                    break;
                }
                keys.keyed.pop();
            }
        }
    }

    fn take_of_topic(&mut self, id: TopicId, topic: &InputTopic, messages: &[impl broker::Record], keys: &mut Vec<Keyed>) {
        let spec = topic.config.record_spec();
        let spec = RecordSpec { time: spec.time.filter(|_| !fault::defect("event_times_ignored")), ..spec };
        let spec = if fault::defect("conditions_ignored") { RecordSpec { when: &[], ..spec } } else { spec };
        let (reader, scratch, schemas) = (&mut self.readers[id.0], &mut self.scratch, &*self.schemas);
        let spec = if fault::defect("contents_ignored") { RecordSpec { content: None, ..spec } } else { spec };
        // A record is forwarded by its key. Its content is not needed before the record is read from the repartition topic.
        let spec = RecordSpec { content: spec.content.filter(|_| topic.forward.is_none()), ..spec };
        let reads_headers = topic.config.reads_headers();
        // The check runs once for all these records, so options that the topic does not use cost nothing per record.
        if let Some(key) = spec.only_key() {
            read_each(messages, reads_headers, keys, |record, time| {
                Ok(KeyedRecord { fingerprint: key.fingerprint(record, scratch)?, retracts: false, time })
            });
        } else {
            read_each(messages, reads_headers, keys, |record, time| reader.read(spec, record, time, scratch, schemas));
        }
    }

    /// Returns the content counts of each topic and resets them to 0.
    pub(super) fn take_content_counts(&mut self) -> impl Iterator<Item = (TopicId, ContentCounts)> {
        self.readers.iter_mut().enumerate().map(|(number, reader)| (TopicId(number), reader.take_content_counts()))
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
