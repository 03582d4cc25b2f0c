//! A consumer that returns records in batches.
//!
//! The records of the consumer's partitions go to a separate queue. All other events stay in the consumer's own queue. In particular,
//! rebalances must stay in the consumer's queue: if librdkafka's batch call finds a rebalance in its queue, librdkafka answers the
//! rebalance by itself. No record may get lost between the two queues.

use super::login::LoggedIn;
use super::message::Message;
use super::queue::Queue;
use super::{millis, text};
use crate::record::{Offset, TopicPartition};
use rdkafka::bindings as rd;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::topic_partition_list::{Offset as Position, TopicPartitionList};
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval for forwarding partitions to the record queue again. librdkafka undoes the forwarding when it stops fetching a partition. A
/// seek also stops fetching, but only some time after the call has returned, so forwarding once after each seek would not suffice.
const FORWARD_INTERVAL: Duration = Duration::from_millis(50);

/// A consumer and its record queue. Rust drops fields in declaration order. The consumer must be the last field, because librdkafka's
/// queues must be destroyed before their client.
pub(in crate::kafka) struct Fetcher<C: ConsumerContext + 'static> {
    partitions: RefCell<Vec<Partition>>,
    forwarded: Cell<Instant>,
    records: Arc<Queue>,
    /// A reference to the consumer's own queue.
    events: Queue,
    consumer: LoggedIn<BaseConsumer<C>>,
}

/// A partition's queue, which is forwarded to the record queue until this value is dropped.
struct Partition {
    of: TopicPartition,
    queue: Queue,
}

impl Drop for Partition {
    fn drop(&mut self) {
        self.queue.forward(None);
    }
}

impl<C: ConsumerContext + 'static> Fetcher<C> {
    /// Takes ownership of a consumer that has not started reading. Returns `None` if librdkafka has no queue for it.
    pub(in crate::kafka) fn new(mut consumer: LoggedIn<BaseConsumer<C>>) -> Option<Self> {
        let client = consumer.client().native_ptr();
        // SAFETY: the client is alive. We own both references and drop them before the consumer.
        let (records, events) =
            unsafe { (Queue::new(rd::rd_kafka_queue_new(client))?, Queue::new(rd::rd_kafka_queue_get_consumer(client))?) };
        let records = Arc::new(records);
        let waiting = Arc::clone(&records);
        consumer.client_mut().set_nonempty_callback(move || waiting.wake());
        Some(Self { partitions: RefCell::default(), forwarded: Cell::new(Instant::now()), records, events, consumer })
    }

    pub(in crate::kafka) fn consumer(&self) -> &BaseConsumer<C> {
        &self.consumer
    }

    /// True if the consumer's own queue contains events.
    pub(in crate::kafka) fn has_events(&self) -> bool {
        self.events.len() > 0
    }

    /// Forwards the records of partitions to the record queue. Must be called before the partitions are assigned.
    pub(in crate::kafka) fn forward<'p>(&self, partitions: impl Iterator<Item = &'p TopicPartition>) -> Result<(), String> {
        let mut all = self.partitions.borrow_mut();
        for of in partitions {
            if all.iter().any(|partition| partition.of == *of) {
                continue;
            }
            let name = CString::new(of.topic.as_str()).map_err(|error| error.to_string())?;
            // SAFETY: the client and the name are alive. We own the reference and drop it before the consumer.
            let queue =
                unsafe { Queue::new(rd::rd_kafka_queue_get_partition(self.consumer.client().native_ptr(), name.as_ptr(), of.partition)) };
            let queue = queue.ok_or_else(|| format!("librdkafka has no queue for {of}"))?;
            queue.forward(Some(&self.records));
            all.push(Partition { of: of.clone(), queue });
        }
        Ok(())
    }

    pub(in crate::kafka) fn retain(&self, keep: impl Fn(&TopicPartition) -> bool) {
        self.partitions.borrow_mut().retain(|partition| keep(&partition.of));
    }

    /// Appends up to `count` messages to `into`. If no message is available, waits up to `wait` for a message or another event.
    pub(in crate::kafka) fn take<'a>(&'a self, count: usize, wait: Duration, into: &mut Vec<Message<'a>>) {
        if self.forwarded.get().elapsed() > FORWARD_INTERVAL {
            self.partitions.borrow().iter().for_each(|partition| partition.queue.forward(Some(&self.records)));
            self.forwarded.set(Instant::now());
        }
        if self.take_many(count, Duration::ZERO, into) > 0 || self.has_events() {
            return;
        }
        // Wait for only one message. If this call asked for more messages, librdkafka would wait until all of them have arrived.
        if self.take_many(count.min(1), wait, into) > 0 {
            self.take_many(count - 1, Duration::ZERO, into);
        }
    }

    fn take_many<'a>(&'a self, count: usize, wait: Duration, into: &mut Vec<Message<'a>>) -> usize {
        const { assert!(size_of::<Message<'_>>() == size_of::<NonNull<rd::rd_kafka_message_t>>()) };
        into.reserve(count);
        let free = into.spare_capacity_mut().as_mut_ptr();
        // SAFETY: the queue is alive. `reserve` made room for `count` messages, and a `Message` is a pointer to librdkafka's message.
        let taken = unsafe { rd::rd_kafka_consume_batch_queue(self.records.ptr(), millis(wait), free.cast(), count) };
        let taken = usize::try_from(taken).unwrap_or(0);
        // SAFETY: librdkafka wrote `taken` non-null pointers, and we own the messages. They borrow from `self`, so they are destroyed
        // before the consumer.
        unsafe { into.set_len(into.len() + taken) };
        taken
    }

    /// Returns the offset after the last taken message of each partition. Control records and errors count as messages. Returns `None` for
    /// a partition if no message was taken since its last assignment or seek.
    pub(in crate::kafka) fn positions(&self, partitions: &[&TopicPartition]) -> Vec<Option<Offset>> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for of in partitions {
            list.add_partition(&of.topic, of.partition);
        }
        // SAFETY: the client and the list are alive. librdkafka writes only to the elements of the list.
        unsafe { rd::rd_kafka_position(self.consumer.client().native_ptr(), list.ptr()) };
        let offset = |position| if let Position::Offset(offset) = position { Some(offset) } else { None };
        list.elements().iter().map(|element| offset(element.offset())).collect()
    }

    /// The partition's high watermark, as of the last fetch. `None` before the first fetch.
    pub(in crate::kafka) fn end(&self, of: &TopicPartition) -> Option<Offset> {
        let topic = CString::new(of.topic.as_str()).ok()?;
        let (mut low, mut high) = (-1, -1);
        let client = self.consumer.client().native_ptr();
        // SAFETY: the client and the name are alive. librdkafka writes both numbers and keeps no pointer to them.
        let answer = unsafe { rd::rd_kafka_get_watermark_offsets(client, topic.as_ptr(), of.partition, &raw mut low, &raw mut high) };
        (answer == rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
    }

    pub(in crate::kafka) fn group(&self) -> Option<GroupMetadata> {
        GroupMetadata::of(&self.consumer)
    }
}

impl<C: ConsumerContext + 'static> Drop for Fetcher<C> {
    fn drop(&mut self) {
        // The callback holds a reference to the record queue and would keep the queue alive for longer than the client.
        self.consumer.client_mut().set_nonempty_callback(|| {});
    }
}

/// A copy of a consumer's group metadata. A producer sends the metadata with the offsets of a transaction. Brokers use the metadata to
/// check that the consumer is a member of the group.
pub struct GroupMetadata(NonNull<rd::rd_kafka_consumer_group_metadata_t>);

// SAFETY: the copy belongs to no client and no thread and is only read.
unsafe impl Send for GroupMetadata {}

impl GroupMetadata {
    pub(in crate::kafka) fn of<C: ConsumerContext + 'static>(consumer: &BaseConsumer<C>) -> Option<Self> {
        // SAFETY: the client is alive, and we own the result.
        NonNull::new(unsafe { rd::rd_kafka_consumer_group_metadata(consumer.client().native_ptr()) }).map(Self)
    }

    /// The generation, or `None` if the metadata lacks the generation or the member id. A worker must not commit offsets with such
    /// metadata: if the generation and the member id are both missing, brokers do not check that the sender is a member of the group.
    pub(in crate::kafka) fn generation(&self) -> Option<i32> {
        // SAFETY: the metadata is alive and owns the text.
        let (generation, member) = unsafe {
            let member = text(rd::rd_kafka_consumer_group_metadata_member_id(self.0.as_ptr()));
            (rd::rd_kafka_consumer_group_metadata_generation_id(self.0.as_ptr()), member)
        };
        Some(generation).filter(|&generation| generation >= 0 && !member.is_empty())
    }

    pub(super) const fn ptr(&self) -> *const rd::rd_kafka_consumer_group_metadata_t {
        self.0.as_ptr()
    }
}

impl Drop for GroupMetadata {
    fn drop(&mut self) {
        // SAFETY: we own the metadata, and nobody uses it after this call.
        unsafe { rd::rd_kafka_consumer_group_metadata_destroy(self.0.as_ptr()) }
    }
}
