//! Plays the calls of a plan on a cluster and records each observation.

mod consumers;
mod producers;

use super::plan::{Op, To};
use super::{Names, Side};
use producers::{Slot, producer};
use std::sync::Arc;
use std::time::Duration;
use unseen::broker::{Broker, ChangelogReader as _, ClientError, Consumer as _, MembershipOf, ProducerClient as _};
use unseen::config::Config;
use unseen::record::TopicPartition;
use unseen::runtime;

const CALL: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// The age of the produced records when the plan starts, except for records that are drawn as old, future, or timeless.
const AGO_MS: i64 = 3_600_000;
const DAY_MS: i64 = 86_400_000;

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
    number: usize,
    start_ms: i64,
    /// Topic IDs in the order in which they appeared. The two clusters have different IDs, so observations show the index of an ID.
    ids: Vec<String>,
}

/// Returns an observation for each call, and further observations of the start and the end.
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
    // A librdkafka consumer that is dropped while it is a member would wait for the response to a rebalance.
    player.consumer.close();
    seen
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

impl<S: Side> Player<'_, S> {
    fn at(&self, To(topic, partition): To) -> TopicPartition {
        TopicPartition { topic: self.names.topic(topic), partition }
    }

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
}
