//! From a record to the fingerprint of its key, in the format of its topic.
//!
//! Owns what is kept between records for that: walks through schemas, and working memory. Must never decide anything.

use super::topics::InputTopic;
use crate::broker;
use crate::config::Topic;
use crate::format::{Lookup, SchemaId, Schemas};
use crate::key::{Fingerprint, NoKey, Reader, Scratch};
use crate::record::{Record, TopicId};
use std::sync::Arc;

/// The fingerprint of a record's key, and whether the record retracts that key.
pub(super) type Keyed = Result<(Fingerprint, bool), NoKey>;

/// What keys are taken with; kept between records.
pub(super) struct KeyReader {
    scratch: Scratch,
    /// By topic.
    readers: Vec<Reader>,
    schemas: Arc<dyn Schemas>,
}

impl KeyReader {
    /// For that many topics.
    pub(super) fn new(topics: usize, schemas: Arc<dyn Schemas>) -> Self {
        Self { scratch: Scratch::default(), readers: (0..topics).map(|_| Reader::default()).collect(), schemas }
    }

    /// Takes the keys of records that come together. Asks for all schemas that are not known, so that their partition waits for
    /// all of them at the same time.
    pub(super) fn take(&mut self, id: TopicId, topic: &InputTopic, messages: &[impl broker::Record], keys: &mut Vec<Keyed>) {
        let Topic { key, formats, retract, .. } = &topic.config;
        let (reader, scratch, reads_headers) = (&mut self.readers[id.0], &mut self.scratch, topic.config.reads_headers());
        let schemas = &*self.schemas;
        keys.extend(messages.iter().map(|message| {
            let headers: Vec<_> = if reads_headers { message.headers().collect() } else { Vec::new() };
            let record = Record { key: message.key(), value: message.value(), headers: &headers };
            let fingerprint = reader.fingerprint(key, formats, &record, scratch, schemas)?;
            Ok((fingerprint, reader.retracts(retract.as_ref(), formats, &record, scratch, schemas)?))
        }));
    }

    /// Whether a schema is still being asked for.
    pub(super) fn awaits(&self, schema: SchemaId) -> bool {
        matches!(self.schemas.get(schema), Lookup::Awaited)
    }
}
