//! From a record to the fingerprint of its key, in the format of its topic.
//!
//! Owns what is kept between records for that: walks through schemas, and working memory. Must never decide anything.

use super::topics::InputTopic;
use crate::config::Topic;
use crate::format::{Lookup, NoKey, Reader, SchemaId, Schemas, Unasked};
use crate::kafka::Message;
use crate::key::{Fingerprint, Scratch};
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

    /// Takes the key of a record; `asks` for its schema, or waits until somebody else has.
    #[inline]
    pub(super) fn key_of(&mut self, id: TopicId, topic: &InputTopic, message: &Message<'_>, asks: bool) -> Keyed {
        let headers: Vec<_> = if topic.config.reads_headers() { message.headers().collect() } else { Vec::new() };
        let record = Record { key: message.key(), value: message.value(), headers: &headers };
        let Topic { key, formats, .. } = &topic.config;
        let unasked = Unasked(&*self.schemas);
        let schemas = if asks { &*self.schemas } else { &unasked };
        let fingerprint = self.readers[id.0].fingerprint(key, formats, &record, &mut self.scratch, schemas)?;
        Ok((fingerprint, topic.config.is_retraction(&headers)))
    }

    /// Whether a schema is still being asked for.
    pub(super) fn awaits(&self, schema: SchemaId) -> bool {
        matches!(self.schemas.get(schema), Lookup::Awaited)
    }
}
