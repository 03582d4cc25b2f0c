//! Checks that a group can be seeded and seeds it in one transaction.
//!
//! A group that already has members, committed offsets, or changelog records is never seeded.

use super::error::Error;
use super::keys::{Failure, Logged};
use super::{Keys, Seeds};
use crate::broker::{ChangelogReader as _, Committed, Note, ReadEnd, Sink, SinkError};
use crate::changelog::Origin;
use crate::checkpoint::Settings;
use crate::config::{Config, Delivery, Start, Topic};
use crate::dedup::Rules;
pub use crate::explain::Waiting;
use crate::kafka::{self, ChangelogReader, GroupView, KafkaBroker};
use crate::record::{Offset, Timestamp, TopicPartition};
use crate::stats::Stats;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of bytes per batch. A full changelog record fills about half a batch.
const BATCH_BYTES: usize = 1_000_000;
/// Transaction timeout of a small seed. Every `KEYS_PER_SECOND` keys add one second. A longer timeout than necessary would hurt: if the
/// process is killed, its open transaction blocks readers of the changelog until the timeout.
const TIMEOUT_MIN: Duration = Duration::from_secs(60);
const KEYS_PER_SECOND: u64 = 100_000;
/// Longest transaction timeout that brokers accept by default (`transaction.max.timeout.ms`).
const TIMEOUT_MAX: Duration = Duration::from_secs(15 * 60);

pub struct Group<'a> {
    config: &'a Config,
    waiting: &'a Waiting<'a>,
    view: GroupView,
    space: String,
    /// The topics whose offsets the group will commit, with their numbers of partitions.
    topics: Vec<(String, u32, Role)>,
    changelog: String,
    partitions: u32,
    rules: Rules,
    origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// An input without `repartition`.
    Input,
    /// An input with `repartition`.
    RepartitionedInput,
    Repartition,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seeded {
    /// Number of keys in the changelog. A key in several partitions counts once per partition.
    pub keys: u64,
    /// Number of keys that were skipped because their window had ended by the time of the latest key.
    pub expired: u64,
    /// Number of keys that the filter will forget too early because it reaches its maximum memory.
    pub evicted: u64,
    /// Time of the latest key, in milliseconds since the epoch.
    pub stream_time: Option<Timestamp>,
}

impl<'a> Group<'a> {
    /// Waits for a broker, creates missing internal topics, and checks that the group can be seeded. Unless `dry_run`, fences an earlier
    /// seed of this key space and aborts its open transaction.
    pub fn find(config: &'a Config, topic: &Topic, dry_run: bool, waiting: &'a Waiting<'a>) -> Result<Self, Error> {
        let Some(changelog) = config.changelog(&topic.space) else {
            return Err(Error::Refused(
                "state.changelog is false, but seeded keys are stored in the changelog; set state.changelog to true".to_owned(),
            ));
        };
        let space = config.space_of(topic);
        let cluster = kafka::prepare(config, waiting.stop, waiting.report)?;
        let count = |topic: &str| cluster.partitions.get(topic).copied().unwrap_or(1);
        let read = |topic: &&Topic| match config.repartitioned(topic) {
            None => vec![(topic.input.clone(), count(&topic.input), Role::Input)],
            Some(repartition) => {
                let partitions = count(&repartition);
                vec![(topic.input.clone(), count(&topic.input), Role::RepartitionedInput), (repartition, partitions, Role::Repartition)]
            }
        };
        let topics = space.topics.iter().flat_map(read).collect();
        let partitions = count(&changelog);
        let first = space.first();
        let rules = first.rules(partitions);
        let view = GroupView::connect(config, waiting.stop, waiting.report)?;
        let origin = Settings::of(config, first).origin(config, first, &rules);
        let group = Self { config, waiting, view, space: topic.space.clone(), topics, changelog, partitions, rules, origin };
        if !dry_run {
            drop(group.connect(TIMEOUT_MIN)?);
        }
        group.check_idle()?;
        group.check_offsets()?;
        group.check_changelog()?;
        Ok(group)
    }

    fn connect(&self, timeout: Duration) -> Result<Sink<KafkaBroker>, Error> {
        let mut config = self.config.clone();
        (config.worker.delivery, config.worker.transaction_timeout) = (Delivery::ExactlyOnce, timeout);
        let id = format!("{}-{}-seed", config.kafka.group_id, self.space);
        let broker = KafkaBroker::new(Arc::new(Stats::new(&config)));
        Ok(Sink::connect(&broker, &config, &id, 1, BATCH_BYTES, self.waiting.stop)?)
    }

    #[must_use]
    pub const fn partitions(&self) -> u32 {
        self.partitions
    }

    fn check_idle(&self) -> Result<(), Error> {
        let Some(activity) = self.view.activity()? else { return Ok(()) };
        let group = &self.config.kafka.group_id;
        Err(Error::Refused(format!(
            "group {group:?} has members ({activity}); stop them, because only a group that has not started can be seeded"
        )))
    }

    fn check_offsets(&self) -> Result<(), Error> {
        let all = self.all_partitions(|_| true);
        let committed = self.view.committed(&all)?;
        let existing = all.iter().zip(committed).find_map(|(partition, committed)| Some((partition, committed.offset?)));
        let Some((partition, offset)) = existing else { return Ok(()) };
        Err(Error::Refused(format!(
            "group {:?} has already started or was seeded: it has committed offset {offset} of {partition}. To start over, delete the group's offsets (kafka-consumer-groups.sh --delete-offsets), topic {:?}, and the state directories",
            self.config.kafka.group_id, self.changelog
        )))
    }

    /// Checks that the changelog is empty. If it has records although the group has no committed offsets, the group has started before and
    /// its offsets were lost. The records would conflict with seeded keys.
    fn check_changelog(&self) -> Result<(), Error> {
        let reader = ChangelogReader::new(self.config)?;
        for partition in 0..self.partitions {
            let of = TopicPartition { topic: self.changelog.clone(), partition: partition.cast_signed() };
            let mut reported = false;
            let (low, end) = loop {
                match reader.ends(&of)? {
                    Some(ends) => break ends,
                    None if (self.waiting.stop)() => return Err(kafka::Error::Stopped.into()),
                    None => {
                        if !std::mem::replace(&mut reported, true) {
                            (self.waiting.report)(&format!(
                                "waiting for an open transaction in {of}; if its process was killed, the brokers abort the transaction after its timeout"
                            ));
                        }
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            };
            let mut found = None;
            if low < end {
                let ended = reader.read::<kafka::Error>(&of, (low, end), self.waiting.stop, &mut |logged| {
                    found = Some(logged.offset);
                    Ok(false)
                })?;
                if ended == ReadEnd::Failed {
                    return Err(kafka::Error::Fatal(format!("{of} cannot be read: every fetch failed; check the brokers")).into());
                }
            }
            if let Some(offset) = found {
                return Err(Error::Refused(format!(
                    "{of} has a record at offset {offset}, so the group has already started, but its offsets were lost; to resume, start the group; to start over, delete topic {:?} and the state directories",
                    self.changelog
                )));
            }
        }
        Ok(())
    }

    fn all_partitions(&self, is_wanted: impl Fn(Role) -> bool) -> Vec<TopicPartition> {
        let of = |(topic, count, _): &(String, u32, Role)| {
            let topic = topic.clone();
            (0..*count).map(move |partition| TopicPartition { topic: topic.clone(), partition: partition.cast_signed() })
        };
        self.topics.iter().filter(|(_, _, role)| is_wanted(*role)).flat_map(of).collect()
    }

    /// Returns the committed offsets of another group for all partitions of the inputs. Fails if the other group has not committed an
    /// offset for a partition, or if an offset is past the end of its partition.
    pub fn offsets_of(&self, other: &str) -> Result<BTreeMap<TopicPartition, Offset>, Error> {
        let mut config = self.config.clone();
        other.clone_into(&mut config.kafka.group_id);
        let view = GroupView::connect(&config, self.waiting.stop, self.waiting.report)?;
        let inputs = self.all_partitions(|role| role != Role::Repartition);
        let committed = view.committed(&inputs)?;
        let offset = |(partition, committed): (TopicPartition, Committed)| {
            let refuse = |what: String| Error::Refused(format!("--offsets-of: group {other:?} {what}"));
            let offset = committed.offset.ok_or_else(|| refuse(format!("has not committed an offset for {partition}; if it has read nothing there, set one with kafka-consumer-groups.sh --reset-offsets --to-earliest")))?;
            let (_, high) = self.view.watermarks(&partition)?;
            if offset > high {
                return Err(refuse(format!(
                    "has committed offset {offset} of {partition}, which ends at {high}; check whether the topic was recreated"
                )));
            }
            Ok((partition, offset))
        };
        inputs.into_iter().zip(committed).map(offset).collect()
    }

    /// Writes all keys to the changelog and commits the start offsets of the group, in one transaction. Partitions that are not in `begin`
    /// start at `kafka.start`. After an error, nothing was written, unless the message states that the outcome of the commit is unknown.
    pub fn seed(&self, seeds: Seeds<'_>, begin: &BTreeMap<TopicPartition, Offset>) -> Result<Seeded, Error> {
        let timeout = (TIMEOUT_MIN + Duration::from_secs(seeds.keys() / KEYS_PER_SECOND)).min(TIMEOUT_MAX);
        let sink = self.connect(timeout)?;
        let connected = Instant::now();
        let not_written = |failure| match failure {
            // Brokers report a transaction timeout as fencing.
            SinkError::Fenced(_) if connected.elapsed() >= timeout => Error::Refused(format!(
                "nothing was written: the transaction took longer than its timeout of {} s; seed fewer keys, or retry when the brokers are less busy",
                timeout.as_secs()
            )),
            failure => not_written(failure),
        };
        let seeded = self.write(&sink, seeds, begin, &not_written);
        if seeded.is_err() {
            // If the abort fails, too, the next seed or the brokers abort the transaction.
            let _ = sink.abort();
        }
        seeded
    }

    fn write(
        &self,
        sink: &Sink<KafkaBroker>,
        seeds: Seeds<'_>,
        begin: &BTreeMap<TopicPartition, Offset>,
        not_written: &dyn Fn(SinkError) -> Error,
    ) -> Result<Seeded, Error> {
        sink.begin().map_err(not_written)?;
        let (mut seeded, mut times) = (Seeded::default(), Vec::new());
        for (number, keys) in (0..).zip(seeds.into_partitions()) {
            let logged = self.log(sink, number, keys, not_written)?;
            seeded.keys += logged.keys;
            seeded.expired += logged.expired;
            seeded.evicted += logged.evicted;
            seeded.stream_time = seeded.stream_time.max(logged.stream_time);
            times.push(logged.stream_time);
        }
        if seeded.keys == 0 {
            return Err(Error::Refused("nothing was written: no line has a key, or all keys were retracted".to_owned()));
        }
        let first = self.start_offsets(&times, begin)?;
        // A member may have joined and committed offsets while the keys were written.
        sink.wait_written().map_err(not_written)?;
        self.check_offsets()?;
        let check = || self.check_idle().map_err(|error| SinkError::Exit(error.to_string()));
        let outsider = self.view.outsider()?;
        sink.commit_as_outsider(&first, &outsider, check).map_err(not_written)?;
        Ok(seeded)
    }

    fn log(&self, sink: &Sink<KafkaBroker>, number: i32, keys: Keys, not_written: &dyn Fn(SinkError) -> Error) -> Result<Logged, Error> {
        let changelog = TopicPartition { topic: self.changelog.clone(), partition: number };
        let mut write = |record: &[u8]| {
            if (self.waiting.stop)() {
                return Err(Error::Kafka(kafka::Error::Stopped));
            }
            sink.poll();
            sink.write_changelog(&changelog, record).map_err(not_written)
        };
        keys.log(self.rules, self.origin, &mut write).map_err(|failure| match failure {
            Failure::Memory(error) => Error::Memory { partition: number.cast_unsigned(), error },
            Failure::Write(error) => error,
        })
    }

    /// Returns the start offset of each partition, from `begin` or `kafka.start`, with the offset metadata of a seed.
    fn start_offsets(
        &self,
        times: &[Option<Timestamp>],
        begin: &BTreeMap<TopicPartition, Offset>,
    ) -> Result<Vec<(TopicPartition, Offset, String)>, Error> {
        let ids = self.view.topic_ids(&self.topics.iter().map(|(topic, ..)| topic.as_str()).collect::<Vec<_>>())?;
        let begin = |partition: TopicPartition| {
            let (low, high) = self.view.watermarks(&partition)?;
            let start = if self.config.kafka.start == Start::Latest { high } else { low };
            let first = begin.get(&partition).copied().unwrap_or(start);
            let stream_time = times.get(partition.partition.unsigned_abs() as usize).copied().flatten();
            let note = Note { first: Some(first), stream_time, id: ids.get(&partition.topic).cloned(), is_seed: true, ..Note::default() };
            Ok((partition, first, note.to_string()))
        };
        self.all_partitions(|_| true).into_iter().map(begin).collect()
    }
}

/// Converts an error of the transaction into an error that states whether the keys were written.
fn not_written(failure: SinkError) -> Error {
    match failure {
        SinkError::Exit(reason) => Error::Refused(reason),
        SinkError::Abort(reason) => Error::Refused(format!("nothing was written: {reason}; run the command again")),
        SinkError::Refused(refused) => {
            let why = refused.first().map_or("", |refused| refused.invalid.message.as_str());
            Error::Refused(format!("nothing was written: {why}"))
        }
        SinkError::Fenced(reason) => {
            Error::Refused(format!("nothing was written: another `unseen seed` of this space has started ({reason})"))
        }
        SinkError::Unknown(reason) => Error::Refused(format!(
            "it is unknown whether the keys were written ({reason}); run the command again: if the keys were written, the command reports that the group was seeded"
        )),
    }
}
