//! A record in librdkafka's memory. Nothing is copied.
//!
//! Dropping a `Message` frees librdkafka's message. A `Message` borrows the fetcher, so it cannot outlive the consumer that read it.

use crate::broker::Record;
use crate::record::{Offset, Timestamp, TimestampType};
use rdkafka::bindings as rd;
use rdkafka::error::RDKafkaErrorCode;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::{NonNull, null, null_mut};

/// A consumed message: a record or an error.
#[repr(transparent)]
pub struct Message<'a> {
    message: NonNull<rd::rd_kafka_message_t>,
    /// A borrow of the fetcher, because the fetcher's consumer must outlive the message.
    fetcher: PhantomData<&'a ()>,
}

impl Message<'_> {
    fn get(&self) -> &rd::rd_kafka_message_t {
        // SAFETY: `Fetcher::take` took ownership of the message from librdkafka, and only `drop` destroys it. Nobody writes to these fields
        // in between.
        unsafe { self.message.as_ref() }
    }

    pub(super) const fn ptr(&self) -> *const rd::rd_kafka_message_t {
        self.message.as_ptr()
    }

    pub(in crate::kafka) fn is_error(&self) -> bool {
        self.get().err != rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR
    }

    pub(in crate::kafka) fn error(&self) -> Option<(RDKafkaErrorCode, String)> {
        // In an error, librdkafka puts the description into the value.
        let description = || String::from_utf8_lossy(self.value().unwrap_or_default()).into_owned();
        self.is_error().then(|| (self.get().err.into(), description()))
    }

    pub(super) fn header_list(&self) -> Option<NonNull<rd::rd_kafka_headers_t>> {
        let mut headers = null_mut();
        // SAFETY: the message is alive, and `headers` is writable. The first call parses the headers and stores them in the message, but no
        // other thread has access to the message.
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
        // SAFETY: the message holds a reference to its topic, and the topic keeps its name. Kafka's topic names are ASCII.
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
        // SAFETY: the message is alive, and `kind` is writable.
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
            // SAFETY: the list lives as long as its message, and the three variables are writable.
            let answer = unsafe { rd::rd_kafka_header_get_all(list?.as_ptr(), at, &raw mut name, &raw mut value, &raw mut size) };
            if answer != rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                return None;
            }
            // SAFETY: the name is a C string. The name and the value live as long as the list.
            Some(unsafe { (CStr::from_ptr(name).to_bytes(), super::bytes(value, size)) })
        })
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        // SAFETY: we own the message, and nobody uses it after this call.
        unsafe { rd::rd_kafka_message_destroy(self.message.as_ptr()) }
    }
}
