//! A consumed record.

use super::super::cluster::StoredRecord;
use crate::broker::Record;
use crate::record::{Offset, Timestamp, TimestampType};
use std::sync::Arc;

pub struct SimRecord {
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    pub(super) record: Arc<StoredRecord>,
}

impl Record for SimRecord {
    fn topic(&self) -> &str {
        &self.topic
    }

    fn partition(&self) -> i32 {
        self.partition
    }

    fn offset(&self) -> Offset {
        self.record.offset
    }

    fn stamp(&self) -> Option<(TimestampType, Timestamp)> {
        Some((self.record.time_type, self.record.time))
    }

    fn key(&self) -> Option<&[u8]> {
        self.record.key.as_deref()
    }

    fn value(&self) -> Option<&[u8]> {
        self.record.value.as_deref()
    }

    fn all_headers(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.record.headers.iter().map(|(name, value)| (&**name, value.as_deref()))
    }

    fn same_partition(&self, other: &Self) -> bool {
        self.partition == other.partition && (Arc::ptr_eq(&self.topic, &other.topic) || self.topic == other.topic)
    }
}
