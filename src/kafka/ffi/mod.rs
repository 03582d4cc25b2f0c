//! Direct calls of librdkafka, for code that runs for every record and for functions that rdkafka does not wrap. For every record,
//! rdkafka's wrappers would cost more CPU time than the Kafka client itself.
//!
//! Contains the only `unsafe` code of `kafka`, behind safe interfaces. The callers decide how to handle a failure.
//!
//! Every `unsafe` block explains why it is sound. All explanations rely on two facts:
//! - A client lives as long as the [`Fetcher`] or [`Producer`] that owns it, and everything created from the client is destroyed first.
//!   Messages borrow the fetcher. Queues and topic handles are fields that are dropped before the client.
//! - Any thread may call librdkafka's functions. A pointer that librdkafka returns is valid until the object it came from is destroyed.

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

/// Converts a timeout to milliseconds. Rounds up, because only a zero timeout may become 0.
fn millis(duration: Duration) -> c_int {
    c_int::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
}

/// Converts librdkafka's text. A null pointer becomes an empty text.
///
/// # Safety
/// `text` is null, or a C string that lives as long as `'a`.
unsafe fn text<'a>(text: *const c_char) -> std::borrow::Cow<'a, str> {
    if text.is_null() {
        return std::borrow::Cow::Borrowed("");
    }
    // SAFETY: the caller guarantees that `text` is a C string, and that it lives long enough.
    unsafe { CStr::from_ptr(text) }.to_string_lossy()
}

/// Converts librdkafka's bytes. A null pointer becomes `None`, like a null key or value in Kafka.
///
/// # Safety
/// `bytes` is null or points to `len` bytes that live unchanged as long as `'a`.
const unsafe fn bytes<'a>(bytes: *const c_void, len: usize) -> Option<&'a [u8]> {
    if bytes.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees that `bytes` points to `len` bytes that live long enough.
    Some(unsafe { std::slice::from_raw_parts(bytes.cast(), len) })
}

fn raw(bytes: Option<&[u8]>) -> (*mut c_void, usize) {
    bytes.map_or((std::ptr::null_mut(), 0), |bytes| (bytes.as_ptr().cast_mut().cast(), bytes.len()))
}
