//! Fetch requests, and the queue of fetched records for the application (`rdkafka_fetcher.c`).

use super::super::cluster::{Isolation, StoredRecord};
use super::super::faults::Api;
use super::super::network::{Code, NodeId};
use super::super::{ClientId, Micros, World, millis};
use super::Client;
use crate::record::{Offset, TopicPartition};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The number of queued records that stops further fetches of a partition (`queued.min.messages`).
const QUEUED_MAX: usize = 200;
/// The maximum number of records that a fetch requests per partition. Brokers return whole batches, so a response may contain more.
const FETCH_MAX: u64 = 60;
/// `fetch.wait.max.ms`: the maximum time that brokers hold a fetch request while there are no new records.
const WAIT: Micros = millis(500);

#[expect(clippy::struct_excessive_bools, reason = "librdkafka keeps them as flags that do not depend on each other")]
struct Position {
    of: TopicPartition,
    topic: Arc<str>,
    is_assigned: bool,
    /// The fetch version (`rktp_version`). Responses and queued events with an earlier version are discarded.
    version: u64,
    /// The offset after the last event that was taken from the queue (`rktp_app_pos`), or the offset of a later assign or seek.
    next: Offset,
    /// The offset that `rd_kafka_position` returns. `None` after an assign, a seek, or an [`Event::End`], until a different event is taken
    /// from the queue.
    app: Option<Offset>,
    fetch: Offset,
    /// The leader epoch of the last batch in the latest response with records (KIP-320). `None` after an assign or a seek.
    epoch: Option<i32>,
    is_paused: bool,
    /// True if the fetch offset was outside the log. The partition is not fetched until it is assigned again, and seeks fail.
    is_stopped: bool,
    /// True if the application has assigned, sought, or resumed the partition since the last fetch request for it.
    is_new: bool,
    /// The high watermark in the last response (`rktp_hi_offset`).
    end: Option<Offset>,
    /// The end that was last reported to the application (`rktp_offsets.eof_offset`).
    reported_end: Option<Offset>,
    queued: usize,
    retry_at: Micros,
}

impl Position {
    fn restart(&mut self, offset: Offset, version: u64) {
        self.version = version;
        (self.next, self.fetch) = (offset, offset);
        (self.app, self.epoch, self.reported_end) = (None, None, None);
        (self.is_stopped, self.is_new) = (false, true);
        (self.queued, self.retry_at) = (0, 0);
    }

    const fn can_fetch(&self, now: Micros) -> bool {
        self.is_assigned && !self.is_paused && !self.is_stopped && self.queued < QUEUED_MAX && self.retry_at <= now
    }
}

pub(super) enum Event {
    Record(Arc<StoredRecord>),
    /// Control records, aborted records, or gaps before this offset. The application does not see this event.
    Passed(Offset),
    End(Offset),
    OutOfRange(Offset),
    Error(Offset),
}

struct Item {
    slot: usize,
    version: u64,
    event: Event,
}

pub(in crate::sim) struct Fetcher {
    isolation: Isolation,
    /// True if the client reports when it has reached the end of a partition (`enable.partition.eof`).
    reports_ends: bool,
    positions: Vec<Position>,
    queue: VecDeque<Item>,
    version: u64,
    /// Brokers with an unanswered fetch request.
    busy: BTreeSet<NodeId>,
    /// Brokers whose last answer moved no position. They get no further request until there are new records, a partition is assigned,
    /// sought, or resumed, or at most [`WAIT`] has passed. This simulates that they hold a fetch request.
    parked: BTreeSet<NodeId>,
    has_timer: bool,
}

#[derive(Clone)]
struct Wanted {
    slot: usize,
    version: u64,
    of: TopicPartition,
    from: Offset,
    epoch: Option<i32>,
}

/// A broker's answer for one partition: the index in `positions`, the version, the requested offset, and the result.
type Fetched = (usize, u64, Offset, Result<Part, Code>);

struct Part {
    records: Vec<Arc<StoredRecord>>,
    next: Offset,
    /// The last stable offset, or with `read_uncommitted` the high watermark.
    end: Offset,
    high_watermark: Offset,
    /// The leader epoch of the batch that contains the offset before `next`.
    epoch: i32,
}

impl Fetcher {
    pub(super) const fn new(reports_ends: bool) -> Self {
        Self {
            isolation: Isolation::ReadCommitted,
            reports_ends,
            positions: Vec::new(),
            queue: VecDeque::new(),
            version: 0,
            busy: BTreeSet::new(),
            parked: BTreeSet::new(),
            has_timer: false,
        }
    }

    pub(super) const fn reports_ends(&self) -> bool {
        self.reports_ends
    }

    fn find(&self, of: &TopicPartition) -> Option<&Position> {
        self.positions.iter().find(|position| position.is_assigned && position.of == *of)
    }

    fn find_mut(&mut self, of: &TopicPartition) -> Option<&mut Position> {
        self.positions.iter_mut().find(|position| position.is_assigned && position.of == *of)
    }

    pub(super) fn is_parked_at(&self, of: &TopicPartition) -> bool {
        !self.parked.is_empty() && self.find(of).is_some()
    }

    /// Forgets the fetches that brokers hold, as if they had been answered. The next call of `World::fetch` sends new fetches.
    pub(in crate::sim) fn unpark(&mut self) {
        self.parked.clear();
    }

    /// Starts reading a partition. A partition that was paused at the end of its last assignment stays paused
    /// (`rd_kafka_toppar_fetch_start` keeps `RD_KAFKA_TOPPAR_F_APP_PAUSE`).
    pub(super) fn assign(&mut self, of: &TopicPartition, offset: Offset) {
        self.version += 1;
        let version = self.version;
        if let Some(position) = self.positions.iter_mut().find(|position| position.of == *of) {
            position.is_assigned = true;
            position.restart(offset, version);
            return;
        }
        let topic = self.positions.iter().find(|position| *position.topic == *of.topic);
        let topic = topic.map_or_else(|| Arc::from(&*of.topic), |position| Arc::clone(&position.topic));
        self.positions.push(Position {
            of: of.clone(),
            topic,
            is_assigned: true,
            version,
            next: offset,
            app: None,
            fetch: offset,
            epoch: None,
            is_paused: false,
            is_stopped: false,
            is_new: true,
            end: None,
            reported_end: None,
            queued: 0,
            retry_at: 0,
        });
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&TopicPartition) -> bool) {
        self.version += 1;
        for position in self.positions.iter_mut().filter(|position| position.is_assigned && !keep(&position.of)) {
            position.is_assigned = false;
            position.version = self.version;
            position.end = None;
        }
    }

    /// Seeks (`rd_kafka_toppar_seek`). Returns `false` if the partition is not assigned or its fetch offset was out of range.
    pub(super) fn seek(&mut self, of: &TopicPartition, offset: Offset) -> bool {
        self.version += 1;
        let version = self.version;
        let found = self.find_mut(of).filter(|position| !position.is_stopped);
        found.map(|position| position.restart(offset, version)).is_some()
    }

    /// Pauses a partition and discards the records that were fetched but not consumed. After a resume, the client continues at
    /// [`Position::next`] (`rd_kafka_toppar_pause_resume`).
    pub(super) fn pause(&mut self, of: &TopicPartition) {
        self.version += 1;
        let version = self.version;
        if let Some(position) = self.find_mut(of).filter(|position| !position.is_paused) {
            position.is_paused = true;
            position.version = version;
            (position.fetch, position.queued) = (position.next, 0);
        }
    }

    pub(super) fn resume(&mut self, of: &TopicPartition) {
        if let Some(position) = self.find_mut(of) {
            position.is_paused = false;
            position.is_new = true;
        }
    }

    pub(super) fn position(&self, of: &TopicPartition) -> Option<Offset> {
        self.find(of)?.app
    }

    pub(super) fn end(&self, of: &TopicPartition) -> Option<Offset> {
        self.find(of)?.end
    }

    /// Takes the next event that the application sees. Skips an event if its partition was unassigned, assigned again, sought, or paused
    /// after the fetch.
    pub(super) fn next(&mut self) -> Option<(&Arc<str>, i32, Event)> {
        loop {
            let Item { slot, version, event } = self.queue.pop_front()?;
            let position = &mut self.positions[slot];
            if !position.is_assigned || position.version != version {
                continue;
            }
            match &event {
                Event::Record(record) => {
                    position.queued -= 1;
                    position.next = record.offset + 1;
                    position.app = Some(position.next);
                }
                // The position moves, but the application receives nothing (`rd_kafka_op_is_ctrl_msg` in `rd_kafka_q_serve_rkmessages`).
                Event::Passed(offset) => {
                    position.next = *offset;
                    position.app = Some(position.next);
                    continue;
                }
                // The client counts an error as a consumed record (librdkafka issue 4844).
                Event::Error(offset) | Event::OutOfRange(offset) => {
                    position.next = offset + 1;
                    position.app = Some(position.next);
                }
                Event::End(_) => position.app = None,
            }
            let position = &self.positions[slot];
            return Some((&position.topic, position.of.partition, event));
        }
    }

    fn take_answer(&mut self, now: Micros, (slot, version, from, answer): Fetched) -> bool {
        let reports_ends = self.reports_ends;
        let position = &mut self.positions[slot];
        // Ignores a stale answer, such as a former leader's answer that arrives after the new leader's answer
        // (`rd_kafka_fetch_reply_handle_partition`).
        if !position.is_assigned || position.version != version || position.fetch != from {
            return true;
        }
        let push = |queue: &mut VecDeque<Item>, event| queue.push_back(Item { slot, version, event });
        match answer {
            Ok(Part { records, next, end, high_watermark, epoch }) => {
                position.end = Some(high_watermark);
                // The end may be below the client's position, because a new leader may not know the high watermark yet
                // (`rd_kafka_fetch_reply_handle_partition`). The client does not report such an end.
                let is_end = end == position.fetch && position.reported_end != Some(end);
                let has_moved = next > position.fetch;
                position.fetch = next;
                if !records.is_empty() {
                    position.epoch = Some(epoch);
                }
                position.queued += records.len();
                if is_end && reports_ends {
                    position.reported_end = Some(next);
                }
                let last = records.last().map_or(-1, |record| record.offset);
                for record in records {
                    push(&mut self.queue, Event::Record(record));
                }
                if has_moved && next > last + 1 {
                    push(&mut self.queue, Event::Passed(next));
                }
                if is_end && reports_ends {
                    push(&mut self.queue, Event::End(next));
                }
                has_moved
            }
            Err(Code::OffsetOutOfRange) => {
                position.is_stopped = true;
                push(&mut self.queue, Event::OutOfRange(position.fetch));
                false
            }
            Err(Code::UnknownTopic) => {
                position.retry_at = now + millis(1000);
                let offset = position.fetch;
                push(&mut self.queue, Event::Error(offset));
                false
            }
            Err(Code::TimedOut) => {
                position.retry_at = now + millis(500);
                let offset = position.fetch;
                push(&mut self.queue, Event::Error(offset));
                false
            }
            // After any other error, the client requests metadata to find the new leader and retries.
            Err(_) => {
                position.retry_at = now + millis(100);
                false
            }
        }
    }
}

impl World {
    /// Sends a fetch request to each broker that leads a partition to read, unless the broker is in [`Fetcher::busy`] or
    /// [`Fetcher::parked`].
    pub(in crate::sim) fn fetch(&mut self, client: ClientId) {
        let now = self.now;
        let Some(fetcher) = self.clients.get_mut(&client).and_then(Client::fetcher_mut) else { return };
        for position in fetcher.positions.iter().filter(|position| position.is_new && position.can_fetch(now)) {
            fetcher.parked.remove(&self.cluster.leader(&position.of));
        }
        let isolation = fetcher.isolation;
        let mut requests: BTreeMap<NodeId, Vec<Wanted>> = BTreeMap::new();
        for (slot, position) in fetcher.positions.iter_mut().enumerate().filter(|(_, position)| position.can_fetch(now)) {
            let node = self.cluster.leader(&position.of);
            if fetcher.busy.contains(&node) || fetcher.parked.contains(&node) {
                continue;
            }
            position.is_new = false;
            let (of, from) = (position.of.clone(), position.fetch);
            requests.entry(node).or_default().push(Wanted { slot, version: position.version, of, from, epoch: position.epoch });
        }
        for (node, wanted) in requests {
            if let Some(fetcher) = self.fetcher(client) {
                fetcher.busy.insert(node);
            }
            let most = usize::try_from(self.random.between(1, FETCH_MAX)).unwrap_or(1);
            let serve =
                move |world: &mut Self| Ok(wanted.into_iter().map(|wanted| world.serve_fetch(node, wanted, isolation, most)).collect());
            self.request(client, (Api::Fetch, node), serve, move |world, answer| world.take_fetched(client, node, answer));
        }
    }

    fn serve_fetch(&mut self, node: NodeId, wanted: Wanted, isolation: Isolation, most: usize) -> Fetched {
        let Wanted { slot, version, of, from, epoch } = wanted;
        let answer = if self.random.chance(self.faults.fetch_error) {
            Err(Code::TimedOut)
        } else if self.cluster.partition(&of).is_ok_and(|partition| partition.leader != node) {
            Err(Code::NotLeader)
        } else {
            self.read_log(&of, from, epoch, isolation, most).map(|(read, log)| {
                let (end, high_watermark, epoch) = (log.end_for(isolation), log.high_watermark, log.epoch_of(read.next - 1));
                Part { records: read.records, next: read.next, end, high_watermark, epoch }
            })
        };
        (slot, version, from, answer)
    }

    fn take_fetched(&mut self, client: ClientId, node: NodeId, answer: Result<Vec<Fetched>, Code>) {
        let now = self.now;
        let Some(fetcher) = self.clients.get_mut(&client).and_then(Client::fetcher_mut) else { return };
        fetcher.busy.remove(&node);
        let mut has_moved = false;
        match answer {
            Ok(parts) => parts.into_iter().for_each(|part| has_moved |= fetcher.take_answer(now, part)),
            Err(_) => {
                for position in fetcher.positions.iter_mut().filter(|position| self.cluster.leader(&position.of) == node) {
                    position.retry_at = now + millis(100);
                }
            }
        }
        if !has_moved {
            fetcher.parked.insert(node);
        }
        let signal = self.clients[&client].signal();
        self.notify(signal);
        self.fetch(client);
        self.set_fetch_timer(client);
    }

    /// Schedules the next fetch for the first retry of a failed fetch, or for the end of [`WAIT`] if brokers hold fetches. Uses the earlier
    /// of the two times.
    fn set_fetch_timer(&mut self, client: ClientId) {
        let now = self.now;
        let Some(fetcher) = self.fetcher(client).filter(|fetcher| !fetcher.has_timer) else {
            return;
        };
        let assigned = fetcher.positions.iter().filter(|position| position.is_assigned);
        let retry_at = assigned.map(|position| position.retry_at).filter(|&at| at > now).min();
        let parked_until = (!fetcher.parked.is_empty()).then_some(now + WAIT);
        let Some(next) = retry_at.into_iter().chain(parked_until).min() else { return };
        fetcher.has_timer = true;
        self.inside_after(next - now, client, move |world| {
            if let Some(fetcher) = world.fetcher(client) {
                fetcher.has_timer = false;
                fetcher.unpark();
            }
            world.fetch(client);
            world.set_fetch_timer(client);
        });
    }
}
