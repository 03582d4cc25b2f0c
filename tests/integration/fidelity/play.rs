//! Plays the calls of a plan on a cluster, and records each observation.

use super::plan::{Kind, Op, To, Who};
use super::{Names, Side};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;
use unseen::broker::{
    Batch, Broker, ChangelogReader as _, ChangelogTail as _, ClientError, Consumer, HeaderChanges, MembershipOf, OutgoingRecord,
    OutgoingTime, ProducerClient, ProducerOptions, Rebalance, Record, RecordOf, TailEvent,
};
use unseen::config::Config;
use unseen::record::{Offset, TopicPartition};
use unseen::runtime;

/// Timeout of a call.
const CALL: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// The age of the records.
const AGO_MS: i64 = 3_600_000;
const DAY_MS: i64 = 86_400_000;

/// The producers of a transactional id.
struct Slot<B: Broker> {
    current: B::Producer,
    fenced: Option<B::Producer>,
    /// Partitions of the open transaction.
    touched: BTreeSet<TopicPartition>,
    /// The partitions among them that contain records of the transaction.
    open: BTreeSet<TopicPartition>,
    has_offsets: bool,
}

struct Player<'s, S: Side> {
    side: &'s S,
    names: &'s Names,
    config: Arc<Config>,
    consumer: <S::Broker as Broker>::Consumer,
    former: Option<MembershipOf<S::Broker>>,
    slots: Vec<Slot<S::Broker>>,
    plain: <S::Broker as Broker>::Producer,
    reader: <S::Broker as Broker>::ChangelogReader,
    tail: <S::Broker as Broker>::ChangelogTail,
    partitions: u32,
    /// The number of the next record.
    number: usize,
    start_ms: i64,
    /// Ids of topics, in the order of their appearance.
    ids: Vec<String>,
}

/// Plays all calls. Returns an observation for each call.
pub fn play<S: Side>(side: &S, names: &Names, plan: &[Op]) -> Vec<String> {
    for (at, (kind, partitions)) in Names::TOPICS.into_iter().enumerate() {
        side.create_topic(&names.topic(at), partitions, kind);
    }
    let config = names.config(&side.servers(), "exactly_once");
    let broker = side.broker();
    let cluster = broker.discover(&config, &|| false).map(|cluster| (cluster.partitions, cluster.batch_bytes));
    let mut seen = vec![format!("{:?}", cluster.map_err(|error| error.to_string()))];
    let mut player = Player {
        side,
        names,
        consumer: broker.consumer(&config, 0).expect("a consumer"),
        former: None,
        slots: (0..2).map(|id| Slot::new(side, names, &config, id)).collect(),
        plain: producer::<S>(side, names, &names.config(&side.servers(), "at_least_once"), 2),
        reader: broker.changelog_reader(&config).expect("a reader"),
        tail: broker.changelog_tail(&config).expect("a reader"),
        partitions: Names::TOPICS[0].1,
        number: 0,
        start_ms: runtime::wall_clock(),
        ids: Vec::new(),
        config,
    };
    player.join();
    for op in plan {
        let observed = player.act(op);
        seen.push(format!("{op:?}: {observed}"));
    }
    for id in 0..2 {
        seen.push(player.act(&Op::Fence(id)));
    }
    for to in player.all() {
        let observed = [player.act(&Op::Look(to, 0)), player.tail(to, None)];
        seen.push(format!("at the end, {to:?}: {observed:?}"));
    }
    seen.push(player.committed());
    // If librdkafka's consumer were dropped while it is a member, it would wait for an answer to a rebalance.
    player.consumer.close();
    seen
}

fn producer<S: Side>(side: &S, names: &Names, config: &Config, id: usize) -> <S::Broker as Broker>::Producer {
    let transactional_id = &format!("{}-{id}", names.prefix);
    // A linger long enough to put all records into one batch.
    let options = ProducerOptions { transactional_id, partitions: 1000, batch_bytes: 1_000_000, one_record_per_batch: false };
    side.broker().producer(config, &options).expect("a producer")
}

impl<B: Broker> Slot<B> {
    fn new<S: Side<Broker = B>>(side: &S, names: &Names, config: &Config, id: usize) -> Self {
        let current = producer(side, names, config, id);
        while let Err(error) = current.init_transactions(CALL) {
            assert!(error.is_retriable, "{error}");
        }
        Self { current, fenced: None, touched: BTreeSet::new(), open: BTreeSet::new(), has_offsets: false }
    }
}

fn result(result: Result<(), ClientError>) -> String {
    result.map_or_else(|error| failure(&error), |()| "ok".to_owned())
}

fn failure(error: &ClientError) -> String {
    let ClientError { code, is_fatal, is_retriable, requires_abort, .. } = error;
    format!("{code:?}, fatal {is_fatal}, retriable {is_retriable}, requires abort {requires_abort}")
}

fn text(bytes: Option<&[u8]>) -> String {
    bytes.map_or_else(|| "null".to_owned(), |bytes| String::from_utf8_lossy(&bytes[..bytes.len().min(12)]).into_owned())
}

/// A message without its long numbers, which depend on clocks.
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
    fn at(&self, To(topic, partition): To) -> TopicPartition {
        TopicPartition { topic: self.names.topic(topic), partition }
    }

    /// All partitions of all topics.
    fn all(&self) -> Vec<To> {
        let plain = (0..self.partitions.cast_signed()).map(|partition| To(0, partition));
        plain.chain((1..Names::TOPICS.len()).map(|topic| To(topic, 0))).collect()
    }

    fn act(&mut self, op: &Op) -> String {
        match op {
            Op::Begin(who) => self.call(*who, |producer| result(producer.begin_transaction())),
            Op::Send(who, to, kinds) => self.send(*who, *to, kinds),
            Op::Copy(who, from, to) => self.copy(*who, *from, *to),
            Op::SendOffset { who, partition, offset, metadata, count, is_stale } => {
                self.send_offset(*who, (*partition, *offset), (*metadata, *count), *is_stale)
            }
            Op::Commit(who) => self.end(*who, |producer| producer.commit_transaction(CALL)),
            Op::Abort(who) => self.end(*who, |producer| producer.abort_transaction(CALL)),
            Op::Fence(id) => self.fence(*id),
            Op::Write(to, kinds) => {
                let sent = self.queue(&self.plain, *to, kinds);
                self.number += kinds.len();
                format!("{sent:?}, {}", Self::reports(&self.plain))
            }
            Op::CommitOffset { partition, offset, metadata } => {
                let offsets = [(self.at(To(0, *partition)), *offset, "m".repeat(*metadata))];
                result(self.consumer.commit(&offsets))
            }
            Op::Read(from, offset) => self.read(*from, *offset),
            Op::Tail(from, offset) => self.tail(*from, Some(*offset)),
            Op::Look(at, time) => self.look(*at, *time),
            Op::Committed => self.committed(),
            Op::Trim(to, offset) => self.reader.delete_before(&self.at(*to), *offset).is_ok().to_string(),
            Op::Rejoin => self.rejoin(|_| {}),
            Op::Recreate(topic) => self.rejoin(|player| player.recreate(*topic)),
            Op::AddPartition => self.rejoin(|player| {
                player.partitions += 1;
                player.side.add_partitions(&player.names.topic(0), player.partitions);
            }),
        }
    }

    // ---- Producers ----

    fn producer(&self, who: Who) -> Option<&<S::Broker as Broker>::Producer> {
        let slot = &self.slots[who.id];
        if who.is_fenced { slot.fenced.as_ref() } else { Some(&slot.current) }
    }

    fn call(&self, who: Who, call: impl FnOnce(&<S::Broker as Broker>::Producer) -> String) -> String {
        self.producer(who).map_or_else(|| "there is none".to_owned(), call)
    }

    /// Queues records. Returns the number of queued records, and the error for the next one.
    fn queue(&self, producer: &<S::Broker as Broker>::Producer, to: To, kinds: &[Kind]) -> Result<usize, String> {
        let topic = self.names.topic(to.0);
        for (at, kind) in kinds.iter().enumerate() {
            let number = self.number + at;
            let (key, mut value) = (format!("key {}", number % 3), format!("value {number}"));
            if *kind == Kind::Large {
                // Random content, so that compression does not shrink it.
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
                // Tag 0 requests offsets.
                tag: number % 2 * (1 + at),
            };
            producer.send(&record).map_err(|error| format!("{at} sent, then {}", failure(&error)))?;
        }
        Ok(kinds.len())
    }

    /// Waits for the queued records, and returns their delivery reports.
    fn reports(producer: &<S::Broker as Broker>::Producer) -> String {
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

    fn send(&mut self, who: Who, to: To, kinds: &[Kind]) -> String {
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

    /// Notes that a transaction has written to a partition.
    fn touch(&mut self, who: Who, of: TopicPartition, before: Option<Offset>, was_sent: bool) {
        if !who.is_fenced && was_sent {
            let slot = &mut self.slots[who.id];
            slot.touched.insert(of.clone());
            if self.side.end(&of) > before {
                slot.open.insert(of);
            }
        }
    }

    fn copy(&mut self, who: Who, from: To, to: To) -> String {
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

    fn send_offset(&mut self, who: Who, (partition, offset): (i32, Offset), (metadata, count): (usize, usize), is_stale: bool) -> String {
        let offsets = vec![(self.at(To(0, partition)), offset, "m".repeat(metadata)); count];
        let membership = self.consumer.membership();
        let membership = if is_stale { self.former.as_ref() } else { membership.as_ref() };
        let (Some(membership), Some(producer)) = (membership, self.producer(who)) else { return "there is none".to_owned() };
        let sent = producer.send_offsets(&offsets, membership, CALL);
        let was_sent = sent.is_ok();
        self.slots[who.id].has_offsets |= was_sent && !who.is_fenced;
        result(sent)
    }

    /// Ends a transaction, and waits for its markers.
    fn end(&mut self, who: Who, end: impl FnOnce(&<S::Broker as Broker>::Producer) -> Result<(), ClientError>) -> String {
        let Some(producer) = self.producer(who) else { return "there is none".to_owned() };
        let before = self.ends(who.id);
        let ended = end(producer);
        if ended.is_ok() {
            self.forget(who.id, before);
        }
        result(ended)
    }

    /// The ends of the partitions of an open transaction.
    fn ends(&self, id: usize) -> BTreeMap<TopicPartition, Option<Offset>> {
        self.slots[id].touched.iter().map(|of| (of.clone(), self.side.end(of))).collect()
    }

    /// Forgets the transaction of an id, once its markers are written.
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

    fn fence(&mut self, id: usize) -> String {
        let before = self.ends(id);
        let next = Slot::new(self.side, self.names, &self.config, id);
        self.forget(id, before);
        let slot = &mut self.slots[id];
        slot.fenced = Some(std::mem::replace(&mut slot.current, next.current));
        "ok".to_owned()
    }

    // ---- Consumers ----

    /// Joins the group, takes all partitions, and pauses them.
    fn join(&mut self) {
        let topics: Vec<_> = (0..Names::TOPICS.len()).map(|topic| self.names.topic(topic)).collect();
        self.consumer.subscribe(&topics.iter().map(String::as_str).collect::<Vec<_>>()).expect("a subscription");
        let all: Vec<_> = self.all().into_iter().map(|to| self.at(to)).collect();
        let mut assigned = Vec::new();
        self.side.wait(&mut || {
            self.consumer.poll(&mut Batch::default(), 1, POLL).expect("the consumer can read");
            while let Some(rebalance) = self.consumer.next_rebalance() {
                match rebalance {
                    Rebalance::Assigned(partitions) => {
                        let starts: Vec<_> = partitions.iter().map(|of| (of.clone(), self.low(of))).collect();
                        self.consumer.assign(&starts).expect("an assignment");
                        self.consumer.pause(&partitions).expect("it is assigned");
                        assigned.extend(partitions);
                    }
                    Rebalance::Revoked { partitions, .. } => {
                        assigned.retain(|of| !partitions.contains(of));
                        self.consumer.unassign(&partitions).expect("an assignment");
                    }
                }
            }
            assigned.len() == all.len()
        });
        assert_eq!(assigned.len(), all.len(), "the member has not got all partitions: {assigned:?}");
    }

    fn low(&self, of: &TopicPartition) -> Offset {
        loop {
            if let Ok((low, _)) = self.consumer.watermarks(of) {
                return low;
            }
        }
    }

    /// Replaces the member and all other clients, whose metadata may be outdated.
    fn rejoin(&mut self, change: impl FnOnce(&mut Self)) -> String {
        self.former = self.consumer.membership().or(self.former.take());
        let next = self.side.broker().consumer(&self.config, 0).expect("a consumer");
        std::mem::replace(&mut self.consumer, next).close();
        for id in 0..2 {
            self.fence(id);
        }
        change(self);
        let broker = self.side.broker();
        for id in 0..2 {
            self.fence(id);
        }
        self.plain = producer(self.side, self.names, &self.names.config(&self.side.servers(), "at_least_once"), 2);
        self.reader = broker.changelog_reader(&self.config).expect("a reader");
        self.tail = broker.changelog_tail(&self.config).expect("a reader");
        self.join();
        self.committed()
    }

    fn recreate(&mut self, topic: usize) {
        let (name, (kind, partitions)) = (self.names.topic(topic), Names::TOPICS[topic]);
        let partitions = if topic == 0 { self.partitions } else { partitions };
        self.side.delete_topic(&name);
        self.side.create_topic(&name, partitions, kind);
    }

    fn position(&self, of: &TopicPartition) -> Option<Offset> {
        self.consumer.positions(std::iter::once(of)).pop().flatten()
    }

    fn read(&mut self, from: To, offset: Offset) -> String {
        let of = &self.at(from);
        let (Ok((low, end)), Ok(ends)) = (self.consumer.watermarks(of), self.reader.ends(of)) else { return "no answer".to_owned() };
        if ends.is_none() && offset > end {
            return "beyond an open transaction".to_owned();
        }
        let is_outside = offset < low || offset > end;
        self.consumer.seek(of, offset).expect("it is assigned");
        self.consumer.resume(std::slice::from_ref(of)).expect("it is assigned");
        let mut batch = Batch::default();
        self.side.wait(&mut || {
            self.consumer.poll(&mut batch, 100, POLL).expect("the consumer can read");
            batch.out_of_range || !is_outside && (offset == end || self.position(of) == Some(end))
        });
        let records: Vec<_> = batch.messages.iter().map(|record| self.render(record)).collect();
        let shown = format!(
            "{low}..{end}, out of range {}, position {:?}, end {:?}, {records:?}",
            batch.out_of_range,
            self.position(of),
            self.consumer.end(of).filter(|_| offset != end && !is_outside)
        );
        drop(batch);
        if is_outside {
            let starts: Vec<_> = self.all().into_iter().map(|to| (self.at(to), self.low(&self.at(to)))).collect();
            self.consumer.restart(std::slice::from_ref(of), &starts).expect("an assignment");
        }
        self.consumer.pause(std::slice::from_ref(of)).expect("it is assigned");
        shown
    }

    fn render(&self, record: &impl Record) -> String {
        let headers: Vec<_> = record.all_headers().map(|(name, value)| format!("{}={}", text(Some(name)), text(value))).collect();
        // The clocks of the two clusters differ.
        let since = |time| Some(time - self.start_ms).filter(|since| *since <= -AGO_MS / 2);
        let stamp = record.stamp().map(|(kind, time)| (kind, if time < 0 { Some(time) } else { since(time) }));
        format!("{} {} {} {headers:?} {stamp:?}", record.offset(), text(record.key()), text(record.value()))
    }

    fn tail(&self, from: To, offset: Option<Offset>) -> String {
        let of = &self.at(from);
        let offset = offset.unwrap_or_else(|| self.low(of));
        let (Ok((_, end)), Ok(ends)) = (self.consumer.watermarks(of), self.reader.ends(of)) else { return "no answer".to_owned() };
        if ends.is_none() && offset > end {
            return "beyond an open transaction".to_owned();
        }
        let mut events = Vec::new();
        let mut is_done = false;
        self.tail.start(of, offset).expect("it is not read");
        self.side.wait(&mut || {
            let take = &mut |_: &str, _, event: TailEvent<'_>| {
                is_done |= matches!(event, TailEvent::End(_) | TailEvent::OutOfRange);
                events.push(match event {
                    TailEvent::Record(logged) => format!("{} {}", logged.offset, text(Some(logged.value))),
                    TailEvent::End(offset) => format!("end {offset}"),
                    TailEvent::OutOfRange => "out of range".to_owned(),
                    TailEvent::Error => "error".to_owned(),
                });
            };
            self.tail.poll(100, POLL, take).expect("the tail can read");
            is_done
        });
        self.tail.stop(of).expect("it is read");
        format!("{events:?}")
    }

    fn look(&mut self, to: To, number: i64) -> String {
        let of = &self.at(to);
        let time = self.start_ms - AGO_MS + number;
        let found = self.consumer.topic_ids(&[&of.topic]).map(|mut ids| ids.remove(&of.topic).unwrap_or_default());
        let id = found.ok().map(|id| {
            self.ids.iter().position(|known| *known == id).unwrap_or_else(|| {
                self.ids.push(id);
                self.ids.len() - 1
            })
        });
        let missing = self.side.broker().missing(
            &self.config,
            &unseen::broker::Cluster { partitions: [(of.topic.clone(), 1)].into(), ..unseen::broker::Cluster::default() },
        );
        format!(
            "watermarks {:?}, ends {:?}, last stable offset {:?}, uncommitted end {:?}, offset of a time {:?}, topic {id:?}, missing {missing:?}",
            self.consumer.watermarks(of).ok(),
            self.reader.ends(of).ok(),
            self.consumer.last_stable_offset(of).ok(),
            self.side.end(of),
            // A broker that sets timestamps uses its own clock, so the offset differs.
            self.consumer.offset_at(of, time).ok().filter(|_| to.0 != 2),
        )
    }

    fn committed(&self) -> String {
        if self.slots.iter().any(|slot| slot.has_offsets) {
            // A client would wait for the open transaction until its timeout.
            return "unstable".to_owned();
        }
        let of: Vec<_> = (0..self.partitions.cast_signed()).map(|partition| self.at(To(0, partition))).collect();
        let committed = self.consumer.committed(&of).map_err(|_| "no answer");
        let committed = committed.map(|all| all.into_iter().map(|one| (one.offset, one.metadata.len())).collect::<Vec<_>>());
        format!("{committed:?}")
    }
}
