//! Headers, of a message that was read or for one that is written.
//!
//! Owns copies until librdkafka takes them. Must never change those of a message.

use super::Message;
use rdkafka::bindings as rd;
use std::ffi::CStr;
use std::ptr::NonNull;

/// Headers for a message that is written.
pub(in crate::kafka) struct Headers(NonNull<rd::rd_kafka_headers_t>);

impl Headers {
    /// None yet, and room for some.
    pub(in crate::kafka) fn with_room(count: usize) -> Option<Self> {
        // SAFETY: makes a list, which is ours.
        NonNull::new(unsafe { rd::rd_kafka_headers_new(count) }).map(Self)
    }

    /// Those of a message, if it has any.
    pub(in crate::kafka) fn copied(message: &Message<'_>) -> Option<Self> {
        // SAFETY: the list lives as long as its message; the copy is ours.
        NonNull::new(unsafe { rd::rd_kafka_headers_copy(message.header_list()?.as_ptr()) }).map(Self)
    }

    /// Takes those of that name away.
    pub(in crate::kafka) fn remove(&mut self, name: &CStr) {
        // SAFETY: the list is ours, and the name a C string. The call fails only where there is none of that name, or for a
        // list that is read-only, which ours is not.
        unsafe { rd::rd_kafka_header_remove(self.0.as_ptr(), name.as_ptr()) };
    }

    /// Adds one.
    pub(in crate::kafka) fn add(&mut self, name: &[u8], value: &[u8]) {
        let length = |bytes: &[u8]| isize::try_from(bytes.len()).unwrap_or(isize::MAX);
        // SAFETY: the list is ours, and librdkafka copies so many bytes of name and value. It fails only for a list that
        // is read-only, which ours is not.
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
        // SAFETY: the list is ours, and this is its end.
        unsafe { rd::rd_kafka_headers_destroy(self.0.as_ptr()) }
    }
}
