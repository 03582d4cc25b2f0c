//! The calls of producers, and the state of their transactions.

use super::super::plan::{Kind, To, Who};
use super::super::{Names, Side};
use super::{AGO_MS, CALL, DAY_MS, POLL, Player, failure, result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use unseen::broker::{
    Batch, Broker, ChangelogReader as _, ClientError, Consumer as _, HeaderChanges, OutgoingRecord, OutgoingTime, ProducerClient as _,
    ProducerOptions, Record as _, RecordOf,
};
use unseen::config::Config;
use unseen::record::{Offset, TopicPartition};

/// The current and the fenced producer of a transactional ID.
pub(super) struct Slot<B: Broker> {
    current: B::Producer,
    fenced: Option<B::Producer>,
    touched: BTreeSet<TopicPartition>,
    /// The partitions that contain records of the open transaction.
    open: BTreeSet<TopicPartition>,
    pub(super) has_offsets: bool,
}

pub(super) fn producer<S: Side>(side: &S, names: &Names, config: &Config, id: usize) -> <S::Broker as Broker>::Producer {
    let transactional_id = &format!("{}-{id}", names.prefix);
    // The linger time grows with the number of partitions. With 1,000, it is long enough to put all records into one batch.
    let options = ProducerOptions { transactional_id, partitions: 1000, batch_bytes: 1_000_000, one_record_per_batch: false };
    side.broker().producer(config, &options).expect("a producer")
}

impl<B: Broker> Slot<B> {
    pub(super) fn new<S: Side<Broker = B>>(side: &S, names: &Names, config: &Config, id: usize) -> Self {
        let current = producer(side, names, config, id);
        while let Err(error) = current.init_transactions(CALL) {
            assert!(error.is_retriable, "{error}");
        }
        Self { current, fenced: None, touched: BTreeSet::new(), open: BTreeSet::new(), has_offsets: false }
    }
}

/// Replaces each word that has at least ten digits with `TIME`, because such long numbers depend on clocks.
fn without_times(message: &str) -> String {
    let is_long = |word: &&str| word.chars().filter(char::is_ascii_digit).count() >= 10;
    message.split(' ').map(|word| if is_long(&word) { "TIME" } else { word }).collect::<Vec<_>>().join(" ")
}

struct Changes;

impl HeaderChanges for Changes {
    fn removed(&self) -> impl Iterator<Item = &CStr> {
        [c"old", c"missing"].into_iter()
    }

    fn added(&self) -> impl Iterator<Item = (&CStr, &[u8])> {
        [(c"old", b"1".as_slice()), (c"new", b"2"), (c"new", b"")].into_iter()
    }
}

impl<S: Side> Player<'_, S> {
    fn producer(&self, who: Who) -> Option<&<S::Broker as Broker>::Producer> {
        let slot = &self.slots[who.id];
        if who.is_fenced { slot.fenced.as_ref() } else { Some(&slot.current) }
    }

    pub(super) fn call(&self, who: Who, call: impl FnOnce(&<S::Broker as Broker>::Producer) -> String) -> String {
        self.producer(who).map_or_else(|| "there is none".to_owned(), call)
    }

    /// Queues records of these kinds and returns their number. If the producer rejects a record, the error states how many records were
    /// queued before it.
    pub(super) fn queue(&self, producer: &<S::Broker as Broker>::Producer, to: To, kinds: &[Kind]) -> Result<usize, String> {
        let topic = self.names.topic(to.0);
        for (at, kind) in kinds.iter().enumerate() {
            let number = self.number + at;
            let (key, mut value) = (format!("key {}", number % 3), format!("value {number}"));
            if *kind == Kind::Large {
                // Random content stays larger than the strict topic accepts, even when it is compressed.
                let mut random = crate::harness::SplitMix(number as u64);
                value.extend((0..400).map(|_| format!("{:016x}", random.next())));
            }
            let time = self.start_ms - AGO_MS + i64::try_from(number).unwrap_or(0);
            let record = OutgoingRecord::<RecordOf<'_, S::Broker>, Changes> {
                topic: &topic,
                partition: Some(to.1),
                key: (*kind != Kind::NoKey).then_some(key.as_bytes()),
                value: Some(value.as_bytes()),
                time: match kind {
                    Kind::Old => OutgoingTime::At(time - 30 * DAY_MS),
                    Kind::Future => OutgoingTime::At(time + 30 * DAY_MS),
                    Kind::Timeless => OutgoingTime::Never,
                    _ => OutgoingTime::At(time),
                },
                headers: None,
                // Half of the records have tag 0, because delivery reports include offsets only for tag 0.
                tag: number % 2 * (1 + at),
            };
            producer.send(&record).map_err(|error| format!("{at} sent, then {}", failure(&error)))?;
        }
        Ok(kinds.len())
    }

    pub(super) fn reports(producer: &<S::Broker as Broker>::Producer) -> String {
        let is_flushed = producer.flush(CALL);
        let failures = producer.take_failures();
        let mut failures: Vec<_> = failures
            .iter()
            .map(|failed| format!("{} {} {:?} {}", failed.tag, failed.bytes, failed.code, without_times(&failed.reason)))
            .collect();
        failures.sort();
        let written = producer.take_written().into_values().flatten().collect::<Vec<_>>();
        format!("flushed {is_flushed}, written at {written:?}, failed {failures:?}, late request {}", producer.has_late_request())
    }

    pub(super) fn send(&mut self, who: Who, to: To, kinds: &[Kind]) -> String {
        let Some(producer) = self.producer(who) else { return "there is none".to_owned() };
        let of = self.at(to);
        let before = self.side.end(&of);
        let sent = self.queue(producer, to, kinds);
        let reports = Self::reports(producer);
        self.number += kinds.len();
        let was_sent = sent.is_ok();
        self.touch(who, of, before, was_sent);
        format!("{sent:?}, {reports}")
    }

    /// Notes that the open transaction has written to a partition, unless the producer is fenced or the write failed. `before` is the end
    /// of the partition before the write.
    fn touch(&mut self, who: Who, of: TopicPartition, before: Option<Offset>, was_sent: bool) {
        if !who.is_fenced && was_sent {
            let slot = &mut self.slots[who.id];
            slot.touched.insert(of.clone());
            if self.side.end(&of) > before {
                slot.open.insert(of);
            }
        }
    }

    pub(super) fn copy(&mut self, who: Who, from: To, to: To) -> String {
        let (from, of) = (self.at(from), self.at(to));
        let (Some(producer), Ok((low, end))) = (self.producer(who), self.consumer.watermarks(&from)) else {
            return "impossible".to_owned();
        };
        let before = self.side.end(&of);
        let mut batch = Batch::default();
        if self.consumer.seek(&from, low).is_err() || low == end {
            return "impossible".to_owned();
        }
        self.consumer.resume(std::slice::from_ref(&from)).expect("it is assigned");
        self.side.wait(&mut || {
            self.consumer.poll(&mut batch, 1, POLL).expect("the consumer can read");
            !batch.messages.is_empty() || self.position(&from) == Some(end)
        });
        self.consumer.pause(std::slice::from_ref(&from)).expect("it is assigned");
        let Some(record) = batch.messages.first() else { return "nothing to copy".to_owned() };
        let outgoing = OutgoingRecord {
            topic: &of.topic,
            partition: Some(of.partition),
            key: record.key(),
            value: record.value(),
            time: record.timestamp().map_or(OutgoingTime::Never, OutgoingTime::At),
            headers: Some((record, &Changes)),
            tag: 1,
        };
        let sent = producer.send(&outgoing);
        let (was_sent, reports) = (sent.is_ok(), Self::reports(producer));
        drop(batch);
        self.touch(who, of, before, was_sent);
        reports
    }

    pub(super) fn send_offset(
        &mut self,
        who: Who,
        (partition, offset): (i32, Offset),
        (metadata, count): (usize, usize),
        is_stale: bool,
    ) -> String {
        let offsets = vec![(self.at(To(0, partition)), offset, "m".repeat(metadata)); count];
        let membership = self.consumer.membership();
        let membership = if is_stale { self.former.as_ref() } else { membership.as_ref() };
        let (Some(membership), Some(producer)) = (membership, self.producer(who)) else { return "there is none".to_owned() };
        let sent = producer.send_offsets(&offsets, membership, CALL);
        let was_sent = sent.is_ok();
        self.slots[who.id].has_offsets |= was_sent && !who.is_fenced;
        result(sent)
    }

    /// Ends a transaction and waits for its markers.
    pub(super) fn end(&mut self, who: Who, end: impl FnOnce(&<S::Broker as Broker>::Producer) -> Result<(), ClientError>) -> String {
        let Some(producer) = self.producer(who) else { return "there is none".to_owned() };
        let before = self.ends(who.id);
        let ended = end(producer);
        if ended.is_ok() {
            self.forget(who.id, before);
        }
        result(ended)
    }

    fn ends(&self, id: usize) -> BTreeMap<TopicPartition, Option<Offset>> {
        self.slots[id].touched.iter().map(|of| (of.clone(), self.side.end(of))).collect()
    }

    /// Forgets a transaction and waits until its markers are written. `before` has the ends of its partitions without the markers.
    fn forget(&mut self, id: usize, before: BTreeMap<TopicPartition, Option<Offset>>) {
        let slot = &mut self.slots[id];
        slot.open.clear();
        slot.touched.clear();
        slot.has_offsets = false;
        for (of, end) in before {
            let is_open = self.slots.iter().any(|slot| slot.open.contains(&of));
            self.side.wait(&mut || {
                let ends = self.reader.ends(&of);
                self.side.end(&of) > end && ends.is_ok_and(|ends| ends.is_none() == is_open)
            });
        }
    }

    pub(super) fn fence(&mut self, id: usize) -> String {
        let before = self.ends(id);
        let next = Slot::new(self.side, self.names, &self.config, id);
        self.forget(id, before);
        let slot = &mut self.slots[id];
        slot.fenced = Some(std::mem::replace(&mut slot.current, next.current));
        "ok".to_owned()
    }
}
