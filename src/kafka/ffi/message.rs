//! A record as librdkafka has it in memory; nothing is copied.
//!
//! Owns it until dropped. Must never outlive the consumer that read it.

use crate::record::{Offset, Timestamp, TimestampType};
use rdkafka::bindings as rd;
use rdkafka::error::RDKafkaErrorCode;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A record as it was read.
#[repr(transparent)]
pub struct Message<'a> {
    message: NonNull<rd::rd_kafka_message_t>,
    /// What read it.
    fetcher: PhantomData<&'a ()>,
}

impl Message<'_> {
    fn get(&self) -> &rd::rd_kafka_message_t {
        // SAFETY: whoever made this took the message over from librdkafka, and it is destroyed when this is dropped.
        // Nobody writes to these fields meanwhile.
        unsafe { self.message.as_ref() }
    }

    pub(super) const fn ptr(&self) -> *const rd::rd_kafka_message_t {
        self.message.as_ptr()
    }

    /// Whether this is no record but the news of an error.
    pub(in crate::kafka) fn is_error(&self) -> bool {
        self.get().err != rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR
    }

    /// What went wrong, if this is no record but the news of an error, and in librdkafka's words.
    pub(in crate::kafka) fn error(&self) -> Option<(RDKafkaErrorCode, String)> {
        // The words are where a record has its value.
        let words = || String::from_utf8_lossy(self.value().unwrap_or_default()).into_owned();
        self.is_error().then(|| (self.get().err.into(), words()))
    }

    /// The topic it was read from.
    #[must_use]
    pub fn topic(&self) -> &str {
        let topic = self.get().rkt;
        if topic.is_null() {
            return "";
        }
        // SAFETY: the message holds a reference to its topic, and that has its name for life. Kafka's names are ASCII.
        let name = unsafe { std::ffi::CStr::from_ptr(rd::rd_kafka_topic_name(topic)) };
        name.to_str().unwrap_or_default()
    }

    /// Whether it is of the same topic and partition as another.
    #[must_use]
    pub fn same_partition(&self, other: &Self) -> bool {
        let (one, other) = (self.get(), other.get());
        one.rkt == other.rkt && one.partition == other.partition
    }

    /// The partition it was read from.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.get().partition
    }

    /// Its offset there.
    #[must_use]
    pub fn offset(&self) -> Offset {
        self.get().offset
    }

    /// Its time, if it has one.
    #[must_use]
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.stamp().map(|(_, time)| time).filter(|&time| time >= 0)
    }

    /// What it has for a time, whether that is one or not, and who gave it that.
    #[must_use]
    pub fn stamp(&self) -> Option<(TimestampType, Timestamp)> {
        let mut kind = rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message lives, and `kind` is there to be written to.
        let time = unsafe { rd::rd_kafka_message_timestamp(self.ptr(), &raw mut kind) };
        match kind {
            rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE => None,
            rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME => Some((TimestampType::LogAppendTime, time)),
            rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_CREATE_TIME => Some((TimestampType::CreateTime, time)),
        }
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        let message = self.get();
        // SAFETY: the key is part of the message.
        unsafe { super::bytes(message.key, message.key_len) }
    }

    /// Its value.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        let message = self.get();
        // SAFETY: the value is part of the message.
        unsafe { super::bytes(message.payload, message.len) }
    }

    /// Bytes of its key and value.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.key().map_or(0, <[u8]>::len) + self.value().map_or(0, <[u8]>::len)
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        // SAFETY: it is ours, and this is its end.
        unsafe { rd::rd_kafka_message_destroy(self.message.as_ptr()) }
    }
}
