//! The group that is seeded: whether it may be, and the transaction that does it.
//!
//! Must never write where anything is left of an earlier life of the group.

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

/// Most bytes of a batch: a record of the changelog has half of that.
const BATCH_BYTES: usize = 1_000_000;
/// How long the transaction may take, beside a second for so many keys. Until then, one that was killed holds up whoever reads
/// the changelog.
const TIMEOUT_LEAST: Duration = Duration::from_secs(60);
const KEYS_A_SECOND: u64 = 100_000;
/// Brokers allow no more, unless they are told otherwise.
const TIMEOUT_MOST: Duration = Duration::from_secs(15 * 60);

/// A group that has not begun with a key space.
pub struct Group<'a> {
    config: &'a Config,
    waiting: &'a Waiting<'a>,
    view: GroupView,
    space: String,
    /// The topics of which the group will commit offsets, each with its number of partitions.
    topics: Vec<(String, u32, Role)>,
    changelog: String,
    partitions: u32,
    rules: Rules,
    origin: Origin,
}

/// What a topic is to the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// An input whose records are judged where they lie.
    Judged,
    /// An input whose records are brought to another topic first.
    Brought,
    /// That topic.
    Between,
}

/// What a group was seeded with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seeded {
    /// Keys in the changelog, counted in each partition.
    pub keys: u64,
    /// Keys that were left out, for their window is over.
    pub expired: u64,
    /// Keys that the filter will have forgotten before their time, for it may not grow.
    pub evicted: u64,
    /// Of the latest key.
    pub stream_time: Option<Timestamp>,
}

impl<'a> Group<'a> {
    /// Waits for a broker, makes the internal topics that are missing, and looks whether the group may be seeded. Unless it only
    /// `looks`, it aborts what an earlier try has left open, and ends one that is under way.
    ///
    /// # Errors
    /// When it may not, or no broker answers.
    pub fn find(config: &'a Config, topic: &Topic, looks: bool, waiting: &'a Waiting<'a>) -> Result<Self, Error> {
        let Some(changelog) = config.changelog(&topic.space) else {
            return Err(Error::Refused(
                "what was seen is kept in the changelog, which state.changelog switches off; set it to true".to_owned(),
            ));
        };
        let space = config.space_of(topic);
        let cluster = kafka::prepare(config, waiting.stop, waiting.report)?;
        let count = |topic: &str| cluster.partitions.get(topic).copied().unwrap_or(1);
        let read = |topic: &&Topic| match config.repartitioned(topic) {
            None => vec![(topic.input.clone(), count(&topic.input), Role::Judged)],
            Some(between) => {
                let count_between = count(&between);
                vec![(topic.input.clone(), count(&topic.input), Role::Brought), (between, count_between, Role::Between)]
            }
        };
        let topics = space.topics.iter().flat_map(read).collect();
        let partitions = count(&changelog);
        let first = space.first();
        let rules = first.rules(partitions);
        let view = GroupView::connect(config, waiting.stop, waiting.report)?;
        let origin = Settings::of(config, first).origin(config, first, &rules);
        let group = Self { config, waiting, view, space: topic.space.clone(), topics, changelog, partitions, rules, origin };
        if !looks {
            drop(group.connect(TIMEOUT_LEAST)?);
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

    /// In how many partitions keys are judged.
    #[must_use]
    pub const fn partitions(&self) -> u32 {
        self.partitions
    }

    fn check_idle(&self) -> Result<(), Error> {
        let Some(activity) = self.view.activity()? else { return Ok(()) };
        let group = &self.config.kafka.group_id;
        Err(Error::Refused(format!("group {group:?} has members ({activity}); a group is seeded before it starts, so stop them")))
    }

    fn check_offsets(&self) -> Result<(), Error> {
        let all = self.all_partitions(|_| true);
        let committed = self.view.committed(&all)?;
        let begun = all.iter().zip(committed).find_map(|(partition, committed)| Some((partition, committed.offset?)));
        let Some((partition, offset)) = begun else { return Ok(()) };
        Err(Error::Refused(format!(
            "group {:?} has begun, or was seeded: it has committed offset {offset} of {partition}; a seed is for a group that has not. To begin anew, delete its offsets (kafka-consumer-groups.sh --delete-offsets), topic {:?} and its state directories",
            self.config.kafka.group_id, self.changelog
        )))
    }

    /// A changelog that has records is of a group whose offsets were lost: they would contradict a seed.
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
                                "waiting for a transaction that is open in {of}: of a seed that is under way, or was killed; brokers end that of one that was killed"
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
                    return Err(kafka::Error::Fatal(format!("{of} cannot be read; the log says why")).into());
                }
            }
            if let Some(offset) = found {
                return Err(Error::Refused(format!(
                    "{of} has a record at offset {offset}, so the group began once and its offsets were lost; start it, and it goes on, or delete topic {:?} to begin anew",
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

    /// The offsets that another group has committed of the inputs.
    ///
    /// # Errors
    /// When it lacks one, or has come further than the input.
    pub fn offsets_of(&self, other: &str) -> Result<BTreeMap<TopicPartition, Offset>, Error> {
        let mut config = self.config.clone();
        other.clone_into(&mut config.kafka.group_id);
        let view = GroupView::connect(&config, self.waiting.stop, self.waiting.report)?;
        let inputs = self.all_partitions(|role| role != Role::Between);
        let committed = view.committed(&inputs)?;
        let offset = |(partition, committed): (TopicPartition, Committed)| {
            let refuse = |what: String| Error::Refused(format!("--offsets-of: group {other:?} {what}"));
            let offset = committed.offset.ok_or_else(|| refuse(format!("has committed no offset of {partition}")))?;
            let (_, high) = self.view.watermarks(&partition)?;
            if offset > high {
                return Err(refuse(format!(
                    "has committed offset {offset} of {partition}, which ends at {high}; was the topic made anew?"
                )));
            }
            Ok((partition, offset))
        };
        inputs.into_iter().zip(committed).map(offset).collect()
    }

    /// Writes all keys to the changelog, and where the group begins, or nothing. Of partitions that `begin` does not have,
    /// `kafka.start` says that.
    ///
    /// # Errors
    /// When nothing was written, or it is not known.
    pub fn seed(&self, seeds: Seeds<'_>, begin: &BTreeMap<TopicPartition, Offset>) -> Result<Seeded, Error> {
        let timeout = (TIMEOUT_LEAST + Duration::from_secs(seeds.keys() / KEYS_A_SECOND)).min(TIMEOUT_MOST);
        let sink = self.connect(timeout)?;
        let connected = Instant::now();
        let not_written = |failure| match failure {
            // To brokers, who has taken too long is no other than who has a successor.
            SinkError::Fenced(_) if connected.elapsed() >= timeout => Error::Refused(format!(
                "nothing was written: it took longer than {} s, for which brokers keep the transaction open; seed fewer keys, or when the brokers have less to do",
                timeout.as_secs()
            )),
            failure => not_written(failure),
        };
        let seeded = self.write(&sink, seeds, begin, &not_written);
        if seeded.is_err() {
            // If this fails as well, the next try or the brokers do it.
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
            return Err(Error::Refused("no line has a key that is still within its window; nothing was written".to_owned()));
        }
        let first = self.beginnings(&times, begin)?;
        // Writing takes a while, and a member may have come and gone.
        sink.wait_written().map_err(not_written)?;
        self.check_offsets()?;
        let check = || self.check_idle().map_err(|error| SinkError::Exit(error.to_string()));
        let outsider = self.view.outsider().ok_or_else(|| Error::Refused("librdkafka names no group".to_owned()))?;
        sink.commit_first(&first, &outsider, check).map_err(not_written)?;
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

    /// Where the group begins in each partition: there, or as `kafka.start` says; with a note that it has done nothing but
    /// remember.
    fn beginnings(
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
            let note = Note { first: Some(first), stream_time, id: ids.get(&partition.topic).cloned(), epoch: None, is_seed: true };
            Ok((partition, first, note.to_string()))
        };
        self.all_partitions(|_| true).into_iter().map(begin).collect()
    }
}

/// The sentence of a failure.
fn not_written(failure: SinkError) -> Error {
    match failure {
        SinkError::Exit(reason) => Error::Refused(reason),
        SinkError::Abort(reason) => Error::Refused(format!("nothing was written: {reason}; try again")),
        SinkError::Refused(refused) => {
            let why = refused.first().map_or("", |refused| refused.invalid.message.as_str());
            Error::Refused(format!("nothing was written: {why}"))
        }
        SinkError::Fenced(reason) => {
            Error::Refused(format!("another seed of this space has begun ({reason}); nothing was written by this one"))
        }
        SinkError::Unknown(reason) => {
            Error::Refused(format!("nobody knows whether all or nothing was written ({reason}); run it again: if all was, it says so"))
        }
    }
}
