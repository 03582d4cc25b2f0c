//! The headers of a message to be produced.
//!
//! Frees the list of headers, unless librdkafka has taken ownership of the list. The headers of a consumed message are only copied and
//! never changed.

use super::{Message, raw};
use crate::broker::Record as _;
use rdkafka::bindings as rd;
use std::ffi::CStr;
use std::ops::Range;
use std::ptr::NonNull;

pub(in crate::kafka) struct Headers(NonNull<rd::rd_kafka_headers_t>);

impl Headers {
    pub(in crate::kafka) fn with_room(count: usize) -> Option<Self> {
        // SAFETY: the call creates a list, which we own.
        NonNull::new(unsafe { rd::rd_kafka_headers_new(count) }).map(Self)
    }

    pub(in crate::kafka) fn copied(message: &Message<'_>) -> Option<Self> {
        // SAFETY: the list lives as long as its message, and we own the copy.
        NonNull::new(unsafe { rd::rd_kafka_headers_copy(message.header_list()?.as_ptr()) }).map(Self)
    }

    /// Copies the headers of a message, except those at the `removed` positions. Returns `None` if no header is left.
    pub(in crate::kafka) fn without(message: &Message<'_>, removed: &Range<usize>) -> Option<Self> {
        let mut headers = None;
        for (_, (name, value)) in message.all_headers().enumerate().filter(|(at, _)| !removed.contains(at)) {
            if headers.is_none() {
                headers = Some(Self::with_room(4)?);
            }
            if let Some(headers) = &mut headers {
                Self::add(headers, name, value);
            }
        }
        headers
    }

    /// Removes all headers with this name.
    pub(in crate::kafka) fn remove(&mut self, name: &CStr) {
        // SAFETY: we own the list, and the name is a C string. The call fails only if the header does not exist or the list is read-only,
        // and our list is not read-only.
        unsafe { rd::rd_kafka_header_remove(self.0.as_ptr(), name.as_ptr()) };
    }

    pub(in crate::kafka) fn add(&mut self, name: &[u8], value: Option<&[u8]>) {
        let length = |bytes: usize| isize::try_from(bytes).unwrap_or(isize::MAX);
        let (start, bytes) = raw(value);
        // SAFETY: we own the list. The name and the value have the given lengths, or the value is null. librdkafka copies both. The call
        // fails only if the list is read-only, and our list is not read-only.
        unsafe {
            rd::rd_kafka_header_add(self.0.as_ptr(), name.as_ptr().cast(), length(name.len()), start, length(bytes));
        }
    }

    pub(super) const fn ptr(&self) -> *mut rd::rd_kafka_headers_t {
        self.0.as_ptr()
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        // SAFETY: we own the list, and nobody uses it after this call.
        unsafe { rd::rd_kafka_headers_destroy(self.0.as_ptr()) }
    }
}
