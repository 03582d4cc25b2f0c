//! Queues, through which librdkafka hands things over.
//!
//! Owns a reference to one. Must never outlive the client that it is of.

use rdkafka::bindings as rd;
use std::ptr::NonNull;

/// A queue, or a reference to one of librdkafka's.
pub(super) struct Queue(NonNull<rd::rd_kafka_queue_t>);

// SAFETY: a queue has a lock of its own; all of librdkafka's functions on it may be called by any thread.
unsafe impl Send for Queue {}
// SAFETY: the same.
unsafe impl Sync for Queue {}

impl Queue {
    /// Takes over a reference.
    ///
    /// # Safety
    /// `queue` is null, or a reference that nobody else destroys, to be dropped before its client is.
    pub(super) unsafe fn new(queue: *mut rd::rd_kafka_queue_t) -> Option<Self> {
        NonNull::new(queue).map(Self)
    }

    pub(super) const fn ptr(&self) -> *mut rd::rd_kafka_queue_t {
        self.0.as_ptr()
    }

    /// How many things are in it.
    pub(super) fn len(&self) -> usize {
        // SAFETY: the queue lives.
        unsafe { rd::rd_kafka_queue_length(self.ptr()) }
    }

    /// Has whoever waits at it look up.
    pub(super) fn wake(&self) {
        // SAFETY: the queue lives.
        unsafe { rd::rd_kafka_queue_yield(self.ptr()) }
    }

    /// Sends on to `to` what is in it and will be, or to nowhere.
    pub(super) fn forward(&self, to: Option<&Self>) {
        // SAFETY: both live. librdkafka holds a reference of its own to where it forwards.
        unsafe { rd::rd_kafka_queue_forward(self.ptr(), to.map_or(std::ptr::null_mut(), Self::ptr)) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and this is its end. A queue that we made is emptied, and takes nothing more.
        unsafe { rd::rd_kafka_queue_destroy(self.ptr()) }
    }
}
