//! A record as librdkafka has it in memory; nothing is copied.
//!
//! Owns it until dropped. Must never outlive the consumer that read it.

use crate::broker::Record;
use crate::record::{Offset, Timestamp, TimestampType};
use rdkafka::bindings as rd;
use rdkafka::error::RDKafkaErrorCode;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::{NonNull, null, null_mut};

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

    /// The headers, if there are any.
    pub(super) fn header_list(&self) -> Option<NonNull<rd::rd_kafka_headers_t>> {
        let mut headers = null_mut();
        // SAFETY: the message lives, and `headers` is there to be written to. Asked for the first time, librdkafka reads
        // the headers and keeps them with the message; no other thread has the message.
        let answer = unsafe { rd::rd_kafka_message_headers(self.ptr(), &raw mut headers) };
        NonNull::new(headers).filter(|_| answer == rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR)
    }
}

impl Record for Message<'_> {
    fn topic(&self) -> &str {
        let topic = self.get().rkt;
        if topic.is_null() {
            return "";
        }
        // SAFETY: the message holds a reference to its topic, and that has its name for life. Kafka's names are ASCII.
        let name = unsafe { CStr::from_ptr(rd::rd_kafka_topic_name(topic)) };
        name.to_str().unwrap_or_default()
    }

    fn same_partition(&self, other: &Self) -> bool {
        let (one, other) = (self.get(), other.get());
        one.rkt == other.rkt && one.partition == other.partition
    }

    fn partition(&self) -> i32 {
        self.get().partition
    }

    fn offset(&self) -> Offset {
        self.get().offset
    }

    fn stamp(&self) -> Option<(TimestampType, Timestamp)> {
        let mut kind = rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message lives, and `kind` is there to be written to.
        let time = unsafe { rd::rd_kafka_message_timestamp(self.ptr(), &raw mut kind) };
        match kind {
            rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE => None,
            rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME => Some((TimestampType::LogAppendTime, time)),
            rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_CREATE_TIME => Some((TimestampType::CreateTime, time)),
        }
    }

    fn key(&self) -> Option<&[u8]> {
        let message = self.get();
        // SAFETY: the key is part of the message.
        unsafe { super::bytes(message.key, message.key_len) }
    }

    fn value(&self) -> Option<&[u8]> {
        let message = self.get();
        // SAFETY: the value is part of the message.
        unsafe { super::bytes(message.payload, message.len) }
    }

    fn all_headers(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let list = self.header_list();
        (0..).map_while(move |at| {
            let (mut name, mut value, mut size) = (null(), null(), 0);
            // SAFETY: the list lives as long as its message, and the places are there to be written to.
            let answer = unsafe { rd::rd_kafka_header_get_all(list?.as_ptr(), at, &raw mut name, &raw mut value, &raw mut size) };
            if answer != rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                return None;
            }
            // SAFETY: a header's name is a C string that lives as long as the list, and so do the bytes of its value.
            Some(unsafe { (CStr::from_ptr(name).to_bytes(), super::bytes(value, size)) })
        })
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        // SAFETY: it is ours, and this is its end.
        unsafe { rd::rd_kafka_message_destroy(self.message.as_ptr()) }
    }
}
