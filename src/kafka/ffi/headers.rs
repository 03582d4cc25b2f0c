//! Headers, of a message that was read or for one that is written.
//!
//! Owns copies until librdkafka takes them. Must never change those of a message.

use super::Message;
use rdkafka::bindings as rd;
use std::ffi::CStr;
use std::ptr::{NonNull, null, null_mut};

/// Where a message has its headers, if it has any.
fn list(message: &Message<'_>) -> Option<NonNull<rd::rd_kafka_headers_t>> {
    let mut headers = null_mut();
    // SAFETY: the message lives, and `headers` is there to be written to. Asked for the first time, librdkafka reads
    // the headers and keeps them with the message; no other thread has the message.
    let answer = unsafe { rd::rd_kafka_message_headers(message.ptr(), &raw mut headers) };
    NonNull::new(headers).filter(|_| answer == rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR)
}

impl Message<'_> {
    /// Its headers, in order; without those whose name is not UTF-8, which nobody can ask for.
    pub fn headers(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        self.all_headers().filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, value)))
    }

    /// All of its headers, in order.
    pub fn all_headers(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let list = list(self);
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
        NonNull::new(unsafe { rd::rd_kafka_headers_copy(list(message)?.as_ptr()) }).map(Self)
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
