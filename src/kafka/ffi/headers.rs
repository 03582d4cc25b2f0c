//! Record headers.
//!
//! Owns a copy of them until librdkafka takes it over. Must never change the headers of a consumed message.

use super::Message;
use rdkafka::bindings as rd;
use std::ffi::CStr;
use std::ptr::NonNull;

/// Headers of a message to be produced.
pub(in crate::kafka) struct Headers(NonNull<rd::rd_kafka_headers_t>);

impl Headers {
    /// Creates an empty list with room for `count` headers.
    pub(in crate::kafka) fn with_room(count: usize) -> Option<Self> {
        // SAFETY: the call creates a list, which we own.
        NonNull::new(unsafe { rd::rd_kafka_headers_new(count) }).map(Self)
    }

    /// Copies the headers of a message, if it has any.
    pub(in crate::kafka) fn copied(message: &Message<'_>) -> Option<Self> {
        // SAFETY: the list lives as long as its message, and we own the copy.
        NonNull::new(unsafe { rd::rd_kafka_headers_copy(message.header_list()?.as_ptr()) }).map(Self)
    }

    /// Removes all headers with this name.
    pub(in crate::kafka) fn remove(&mut self, name: &CStr) {
        // SAFETY: we own the list, and the name is a C string. The call fails only if there is no such header, or if the list is read-only,
        // which ours is not.
        unsafe { rd::rd_kafka_header_remove(self.0.as_ptr(), name.as_ptr()) };
    }

    pub(in crate::kafka) fn add(&mut self, name: &[u8], value: &[u8]) {
        let length = |bytes: &[u8]| isize::try_from(bytes.len()).unwrap_or(isize::MAX);
        // SAFETY: we own the list, and librdkafka copies this many bytes of the name and the value. The call fails only if the list is
        // read-only, which ours is not.
        unsafe {
            rd::rd_kafka_header_add(self.0.as_ptr(), name.as_ptr().cast(), length(name), value.as_ptr().cast(), length(value));
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
