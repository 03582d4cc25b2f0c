//! A consumer whose records come many at a time.
//!
//! Owns the consumer, and a queue of its own to which the partitions that it reads bring their records.
//! Everything else, rebalances above all, stays in the consumer's queue: librdkafka would answer a
//! rebalance by itself if the call that takes many came upon it. Must never lose a record between the two.

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

/// How often partitions are given anew the queue for their records. librdkafka ends that when it stops to read one,
/// which, asked to read it elsewhere, it does later than it was asked.
const FORWARD_INTERVAL: Duration = Duration::from_millis(50);

/// A consumer, and the queue that its records come to. Fields are dropped in this order.
pub(in crate::kafka) struct Fetcher<C: ConsumerContext + 'static> {
    partitions: RefCell<Vec<Partition>>,
    forwarded: Cell<Instant>,
    records: Arc<Queue>,
    /// A reference to the consumer's queue.
    events: Queue,
    consumer: LoggedIn<BaseConsumer<C>>,
}

/// A partition's queue, as long as it is forwarded.
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
    /// Takes a consumer over, before it reads anything.
    pub(in crate::kafka) fn new(mut consumer: LoggedIn<BaseConsumer<C>>) -> Option<Self> {
        let client = consumer.client().native_ptr();
        // SAFETY: the client lives; both references are ours, and are dropped before the consumer is.
        let (records, events) =
            unsafe { (Queue::new(rd::rd_kafka_queue_new(client))?, Queue::new(rd::rd_kafka_queue_get_consumer(client))?) };
        let records = Arc::new(records);
        let waiting = Arc::clone(&records);
        consumer.client_mut().set_nonempty_callback(move || waiting.wake());
        Some(Self { partitions: RefCell::default(), forwarded: Cell::new(Instant::now()), records, events, consumer })
    }

    /// The consumer.
    pub(in crate::kafka) fn consumer(&self) -> &BaseConsumer<C> {
        &self.consumer
    }

    /// Whether something waits for the consumer to be polled.
    pub(in crate::kafka) fn has_events(&self) -> bool {
        self.events.len() > 0
    }

    /// Has partitions bring their records to us. To be asked for before they are read.
    pub(in crate::kafka) fn forward<'p>(&self, partitions: impl Iterator<Item = &'p TopicPartition>) -> Result<(), String> {
        let mut all = self.partitions.borrow_mut();
        for of in partitions {
            if all.iter().any(|partition| partition.of == *of) {
                continue;
            }
            let name = CString::new(of.topic.as_str()).map_err(|error| error.to_string())?;
            // SAFETY: client and name live; the reference is ours, and is dropped before the consumer is.
            let queue =
                unsafe { Queue::new(rd::rd_kafka_queue_get_partition(self.consumer.client().native_ptr(), name.as_ptr(), of.partition)) };
            let queue = queue.ok_or_else(|| format!("librdkafka knows no queue of {of}"))?;
            queue.forward(Some(&self.records));
            all.push(Partition { of: of.clone(), queue });
        }
        Ok(())
    }

    /// Ends that for all partitions but some.
    pub(in crate::kafka) fn retain(&self, keep: impl Fn(&TopicPartition) -> bool) {
        self.partitions.borrow_mut().retain(|partition| keep(&partition.of));
    }

    /// Takes what is there, at most `count` messages; if there is nothing, waits for some, or until there is
    /// something else.
    pub(in crate::kafka) fn take<'a>(&'a self, count: usize, wait: Duration, into: &mut Vec<Message<'a>>) {
        if self.forwarded.get().elapsed() > FORWARD_INTERVAL {
            self.partitions.borrow().iter().for_each(|partition| partition.queue.forward(Some(&self.records)));
            self.forwarded.set(Instant::now());
        }
        if self.take_many(count, Duration::ZERO, into) > 0 || self.has_events() {
            return;
        }
        // Trouble to wait for many, librdkafka waits for all of them.
        if self.take_many(count.min(1), wait, into) > 0 {
            self.take_many(count - 1, Duration::ZERO, into);
        }
    }

    fn take_many<'a>(&'a self, count: usize, wait: Duration, into: &mut Vec<Message<'a>>) -> usize {
        const { assert!(size_of::<Message<'_>>() == size_of::<NonNull<rd::rd_kafka_message_t>>()) };
        into.reserve(count);
        let free = into.spare_capacity_mut().as_mut_ptr();
        // SAFETY: the queue lives. `reserve` has made room for so many, and a `Message` is a pointer to librdkafka's.
        let taken = unsafe { rd::rd_kafka_consume_batch_queue(self.records.ptr(), millis(wait), free.cast(), count) };
        let taken = usize::try_from(taken).unwrap_or(0);
        // SAFETY: so many were written, none of them null; they are ours now, and being borrowed from this, they are
        // destroyed before the consumer is.
        unsafe { into.set_len(into.len() + taken) };
        taken
    }

    /// Returns the offset after the last message that was taken of each partition, control records and errors included.
    /// `None` before the first since it was assigned or sought.
    pub(in crate::kafka) fn positions(&self, partitions: &[&TopicPartition]) -> Vec<Option<Offset>> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for of in partitions {
            list.add_partition(&of.topic, of.partition);
        }
        // SAFETY: client and list live; librdkafka writes to the list's elements only.
        unsafe { rd::rd_kafka_position(self.consumer.client().native_ptr(), list.ptr()) };
        let offset = |position| if let Position::Offset(offset) = position { Some(offset) } else { None };
        list.elements().iter().map(|element| offset(element.offset())).collect()
    }

    /// The end of the partition's log (its high watermark), as it came with the last records that were fetched. `None`
    /// before that.
    pub(in crate::kafka) fn end(&self, of: &TopicPartition) -> Option<Offset> {
        let topic = CString::new(of.topic.as_str()).ok()?;
        let (mut low, mut high) = (-1, -1);
        let client = self.consumer.client().native_ptr();
        // SAFETY: client and name live, and both numbers are there to be written to; none is kept.
        let answer = unsafe { rd::rd_kafka_get_watermark_offsets(client, topic.as_ptr(), of.partition, &raw mut low, &raw mut high) };
        (answer == rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
    }

    /// Who we are in the group.
    pub(in crate::kafka) fn group(&self) -> Option<GroupMetadata> {
        GroupMetadata::of(&self.consumer)
    }
}

impl<C: ConsumerContext + 'static> Drop for Fetcher<C> {
    fn drop(&mut self) {
        // It has the last reference to our queue otherwise, and would keep it for longer than the client lives.
        self.consumer.client_mut().set_nonempty_callback(|| {});
    }
}

/// Who a consumer is in its group, for a transaction to prove it. It is a copy, and is only read.
pub struct GroupMetadata(NonNull<rd::rd_kafka_consumer_group_metadata_t>);

// SAFETY: it belongs to no client, and no thread.
unsafe impl Send for GroupMetadata {}

impl GroupMetadata {
    /// Of a consumer's group; its member, once it is one.
    pub(in crate::kafka) fn of<C: ConsumerContext + 'static>(consumer: &BaseConsumer<C>) -> Option<Self> {
        // SAFETY: the client lives; what it answers is ours.
        NonNull::new(unsafe { rd::rd_kafka_consumer_group_metadata(consumer.client().native_ptr()) }).map(Self)
    }

    /// The generation, if it names one and a member: without these, brokers do not look who writes.
    pub(in crate::kafka) fn generation(&self) -> Option<i32> {
        // SAFETY: the metadata live; the text belongs to them.
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
        // SAFETY: it is ours, and this is its end.
        unsafe { rd::rd_kafka_consumer_group_metadata_destroy(self.0.as_ptr()) }
    }
}
