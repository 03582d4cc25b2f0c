//! librdkafka as it is, for what every record passes: wrappers would cost more there than Kafka itself.
//!
//! Owns the only `unsafe` of `kafka`, behind interfaces that are safe. Must never decide anything: what a
//! failure means is for `source` and `sink` to say.
//!
//! Each `unsafe` says why it is right. What they all rest on:
//! - A client lives as long as the [`Fetcher`] or [`Producer`] that has it, and what is made from it is
//!   destroyed first: messages borrow the fetcher, queues and topic handles are fields that are dropped
//!   before the client.
//! - librdkafka's functions may be called by any thread, and pointers that it hands out are valid until
//!   what they were taken from is destroyed.

#![allow(unsafe_code)]

mod describe;
mod error;
mod fetcher;
mod headers;
mod login;
mod message;
mod producer;
mod queue;

pub(super) use describe::{Operation, describe_topics, topic_ids};
pub(super) use error::TransactionError;
pub(super) use fetcher::Fetcher;
pub use fetcher::GroupMetadata;
pub(super) use headers::Headers;
pub(super) use login::{LoggedIn, Native};
pub use message::Message;
pub(super) use producer::{Producer, ProducerRecord, Reports, Timestamped, Undelivered};

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

/// A time to wait as librdkafka takes it. What is not nothing is at least a millisecond.
fn millis(duration: Duration) -> c_int {
    c_int::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
}

/// Text of librdkafka's own; empty if there is none.
///
/// # Safety
/// `text` is null, or a C string that lives as long as `'a`.
unsafe fn text<'a>(text: *const c_char) -> std::borrow::Cow<'a, str> {
    if text.is_null() {
        return std::borrow::Cow::Borrowed("");
    }
    // SAFETY: as promised.
    unsafe { CStr::from_ptr(text) }.to_string_lossy()
}

/// Bytes that librdkafka points to; a null pointer is Kafka's null.
///
/// # Safety
/// `bytes` is null, or points to `len` bytes that live, unchanged, as long as `'a`.
const unsafe fn bytes<'a>(bytes: *const c_void, len: usize) -> Option<&'a [u8]> {
    if bytes.is_null() {
        return None;
    }
    // SAFETY: as promised.
    Some(unsafe { std::slice::from_raw_parts(bytes.cast(), len) })
}

/// Bytes as librdkafka takes them.
fn raw(bytes: Option<&[u8]>) -> (*mut c_void, usize) {
    bytes.map_or((std::ptr::null_mut(), 0), |bytes| (bytes.as_ptr().cast_mut().cast(), bytes.len()))
}
