//! librdkafka's event queues.
//!
//! A `Queue` holds a reference to a librdkafka queue and must be dropped before the queue's client.

use rdkafka::bindings as rd;
use std::ptr::NonNull;

pub(super) struct Queue(NonNull<rd::rd_kafka_queue_t>);

// SAFETY: a queue has its own lock, and any thread may call librdkafka's functions on it.
unsafe impl Send for Queue {}
// SAFETY: for the same reasons as `Send`.
unsafe impl Sync for Queue {}

impl Queue {
    /// Takes ownership of a reference.
    ///
    /// # Safety
    /// `queue` is null, or a reference that nobody else destroys. The `Queue` must be dropped before its client.
    pub(super) unsafe fn new(queue: *mut rd::rd_kafka_queue_t) -> Option<Self> {
        NonNull::new(queue).map(Self)
    }

    pub(super) const fn ptr(&self) -> *mut rd::rd_kafka_queue_t {
        self.0.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        // SAFETY: the queue is alive.
        unsafe { rd::rd_kafka_queue_length(self.ptr()) }
    }

    pub(super) fn wake(&self) {
        // SAFETY: the queue is alive.
        unsafe { rd::rd_kafka_queue_yield(self.ptr()) }
    }

    /// Forwards current and future events to `to`. `None` ends the forwarding.
    pub(super) fn forward(&self, to: Option<&Self>) {
        // SAFETY: both queues are alive. librdkafka holds its own reference to `to`.
        unsafe { rd::rd_kafka_queue_forward(self.ptr(), to.map_or(std::ptr::null_mut(), Self::ptr)) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: we own the reference, and nobody uses it after this call. If we created the queue, librdkafka discards the events in the
        // queue and adds no others.
        unsafe { rd::rd_kafka_queue_destroy(self.ptr()) }
    }
}
