//! What the brokers are asked: where a group is, one record, the records of a commit, a changelog.
//!
//! Owns how long an answer is waited for. Must never join the group, write, or decide what an answer means.

use super::Error;
use super::fate::{Occurrence, Occurrences};
use super::history::{Commit, History, Next, Wanted};
use super::state::{InputView, StateView};
use crate::broker::{ChangelogReader as _, Committed, Logged, Note, ReadEnd, Record as _};
use crate::changelog::{ChangelogRecord, Cut};
use crate::checkpoint::Settings;
use crate::config::{Config, Topic};
use crate::format::Schemas;
use crate::kafka::{self, Capture, ChangelogReader, GroupView, Message};
use crate::key::{Fingerprint, KeyedRecord, NoKey, Reader, Scratch};
use crate::record::{Invalid, Offset, Record, Timestamp, TopicPartition, log_name};
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long to wait before asking again.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a changelog may be trimmed while it is read.
const TRIMS_MAX: usize = 10;

/// How a question to brokers can be given up, and who hears of trouble.
#[derive(Clone, Copy)]
pub struct Waiting<'a> {
    /// Whether to give up.
    pub stop: &'a dyn Fn() -> bool,
    /// Hears a sentence about what is waited for.
    pub report: &'a dyn Fn(&str),
}

/// Asks brokers.
pub(super) struct Asker<'a> {
    pub(super) config: &'a Config,
    pub(super) view: GroupView,
    schemas: &'a dyn Schemas,
    waiting: Waiting<'a>,
}

/// A record that was asked for.
pub(super) struct FoundRecord {
    /// The time that the window goes by, or Kafka's timestamp if the record is invalid.
    pub(super) time: Option<Timestamp>,
    /// Its key, and whether it retracts that.
    pub(super) keyed: Result<(Fingerprint, bool), Invalid>,
    /// The parts of its key.
    pub(super) texts: Vec<String>,
}

/// A changelog as it was read.
pub(super) struct Scanned<'w> {
    pub(super) history: History<'w>,
    /// The first offset that it has, and the one up to which it was read.
    pub(super) reach: (Offset, Offset),
}

/// Takes the keys of one topic's records.
struct Keys<'k> {
    topic: &'k Topic,
    reader: Reader,
    scratch: Scratch,
    schemas: &'k dyn Schemas,
}

impl Keys<'_> {
    fn take(&mut self, message: &Message<'_>) -> Result<KeyedRecord, NoKey> {
        let Self { topic, reader, scratch, schemas } = self;
        let headers: Vec<_> = if topic.reads_headers() { message.headers().collect() } else { Vec::new() };
        let record = Record { key: message.key(), value: message.value(), headers: &headers };
        reader.read(topic.record_spec(), &record, message.timestamp(), scratch, *schemas)
    }
}

impl<'a> Asker<'a> {
    pub(super) fn connect(config: &'a Config, schemas: &'a dyn Schemas, waiting: Waiting<'a>) -> Result<Self, Error> {
        Ok(Self { config, view: GroupView::connect(config, waiting.stop, waiting.report)?, schemas, waiting })
    }

    /// How many partitions a topic has, which must be there.
    pub(super) fn partitions(&self, topic: &str) -> Result<u32, Error> {
        match self.view.partitions(topic)? {
            0 => {
                Err(Error::Question(format!("topic {topic:?} does not exist, so no worker of this configuration has run; check the file")))
            }
            count => Ok(count),
        }
    }

    /// What the group has committed, with the notes beside that.
    pub(super) fn committed(&self, partitions: &[TopicPartition]) -> Result<Vec<(Option<Offset>, Note)>, Error> {
        let committed = self.patiently(|| self.view.committed(partitions).map(Some), "the group's offsets are in an open transaction")?;
        Ok(committed.into_iter().map(|Committed { offset, metadata }| (offset, Note::read(&metadata))).collect())
    }

    /// The state of that number, of a topic's space.
    pub(super) fn state(&self, topic: &'a Topic, partition: i32) -> Result<StateView<'a>, Error> {
        let config = self.config;
        let topics = config.space_of(topic).topics;
        let names: Vec<_> = topics.iter().map(|topic| config.repartitioned(topic).unwrap_or_else(|| topic.input.clone())).collect();
        let partitions = self.partitions(&names[0])?;
        let ids = self.view.topic_ids(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let places: Vec<_> = names.iter().map(|name| TopicPartition { topic: name.clone(), partition }).collect();
        let committed = self.committed(&places)?;
        let inputs = topics.iter().zip(places).zip(committed).map(|((&topic, read), (committed, note))| {
            let id = ids.get(&read.topic).map(String::as_str);
            // Of a topic that was made anew since, it says nothing.
            let is_of_this = note.id.is_none() || id.is_none() || note.id.as_deref() == id;
            let (committed, note) = if is_of_this { (committed, note) } else { (None, Note::default()) };
            InputView { topic, log: log_name(&read.topic, id), read, committed, note }
        });
        let rules = topics[0].rules(partitions);
        let origin = Settings::of(config, topics[0]).origin(config, topics[0], &rules);
        Ok(StateView { partition, inputs: inputs.collect(), rules, origin })
    }

    /// Asks until there is an answer.
    fn patiently<T>(&self, ask: impl Fn() -> Result<Option<T>, kafka::Error>, trouble: &str) -> Result<T, Error> {
        let asked = Instant::now();
        loop {
            let answer = ask();
            if (self.waiting.stop)() {
                return Err(kafka::Error::Stopped.into());
            }
            let is_late = asked.elapsed() > self.config.kafka.connect_timeout;
            match answer {
                Ok(Some(answer)) => return Ok(answer),
                Err(kafka::Error::Fatal(_)) | Ok(None) if !is_late => std::thread::sleep(PAUSE),
                Ok(None) => {
                    return Err(Error::Question(format!(
                        "{trouble} that does not end; look for it with kafka-transactions.sh find-hanging, and ask again"
                    )));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The record at an offset of a topic.
    pub(super) fn record(&self, topic: &Topic, at: &TopicPartition, offset: Offset) -> Result<FoundRecord, Error> {
        let (low, end) = self.view.watermarks(at)?;
        if offset < low {
            return Err(Error::Question(format!(
                "{at} begins at offset {low} by now: the record is deleted, and its key with it; if you know the key, ask by --key"
            )));
        }
        if offset >= end {
            return Err(Error::Question(format!("{at} ends before offset {end}, so far as it is committed; name a record that is there")));
        }
        let mut found = None;
        let mut awaited = None;
        self.read(topic, at, offset..offset + 1, &mut |message, keys| {
            let (time, keyed) = match keys.take(message) {
                Ok(record) => (record.time, Ok((record.fingerprint, record.retracts))),
                Err(NoKey::Invalid(invalid)) => (message.timestamp(), Err(*invalid)),
                Err(NoKey::Awaits(schema)) => {
                    awaited = Some(schema);
                    return;
                }
            };
            let texts = if keyed.is_ok() { keys.scratch.texts() } else { Vec::new() };
            found = Some(FoundRecord { time, keyed, texts });
        })?;
        if let Some(schema) = awaited {
            let why = self.schemas.trouble().unwrap_or_else(|| "the schema registry has not answered".to_owned());
            return Err(Error::Question(format!("{at} offset {offset} is of schema {schema}, which is not to be had: {why}")));
        }
        found.ok_or_else(|| {
            Error::Question(format!(
                "{at} has no record at offset {offset}: it was compacted away or aborted, or the offset is a mark of a transaction; name a record that is there"
            ))
        })
    }

    /// Reads records of a topic, as far as they are there.
    fn read(
        &self,
        topic: &Topic,
        at: &TopicPartition,
        offsets: Range<Offset>,
        take: &mut dyn FnMut(&Message<'_>, &mut Keys<'_>),
    ) -> Result<(), Error> {
        let mut keys = Keys { topic, reader: Reader::default(), scratch: Scratch::default(), schemas: self.schemas };
        let wanted =
            kafka::Wanted { topic: at.topic.clone(), partitions: vec![at.partition], offsets: Some(offsets), ..kafka::Wanted::default() };
        let Waiting { stop, report } = self.waiting;
        let mut capture = Capture::start(self.config, &wanted, stop, report)?;
        let is_whole = capture.read::<Error>(stop, report, &mut |message, _| {
            take(message, &mut keys);
            Ok(true)
        })?;
        if is_whole { Ok(()) } else { Err(kafka::Error::Stopped.into()) }
    }

    /// Whether an input has a record from an offset on. Marks of transactions have offsets, too.
    pub(super) fn has_records(&self, input: &InputView<'_>, from: Offset) -> Result<bool, Error> {
        let mut has = false;
        self.read(input.topic, &input.read, from..Offset::MAX, &mut |_, _| has = true)?;
        Ok(has)
    }

    /// The records of a commit that have a key.
    pub(super) fn occurrences(&self, state: &StateView<'_>, commit: &Commit, fingerprint: Fingerprint) -> Result<Occurrences, Error> {
        let mut found = Occurrences::default();
        for (span, (log, offsets)) in commit.spans.iter().enumerate() {
            let Some(input) = state.inputs.iter().find(|input| input.log == *log) else {
                found.may_lack_some = true;
                continue;
            };
            found.may_lack_some |= self.view.watermarks(&input.read)?.0 > offsets.start;
            self.read(input.topic, &input.read, offsets.clone(), &mut |message, keys| match keys.take(message) {
                Ok(KeyedRecord { fingerprint: other, retracts, time }) if other == fingerprint => {
                    found.push(Occurrence { span, offset: message.offset(), time, retracts });
                }
                Ok(_) | Err(NoKey::Invalid(_)) => {}
                Err(NoKey::Awaits(_)) => found.may_lack_some = true,
            })?;
        }
        Ok(found)
    }

    /// Reads a state's changelog for a key.
    pub(super) fn scan<'w>(&self, state: &'w StateView<'_>, changelog: &TopicPartition, wanted: &'w Wanted) -> Result<Scanned<'w>, Error> {
        self.partitions(&changelog.topic)?;
        let reader = ChangelogReader::new(self.config)?;
        let mut cuts: Vec<Cut> = Vec::new();
        let mut trims = 0;
        loop {
            let reach = self.patiently(|| reader.ends(changelog), "the changelog has an open transaction")?;
            let mut history = History::new(wanted, &state.rules, state.origin, state.bounds(), reach.0);
            let mut cut = None;
            let mut take = |logged: Logged<'_>| take(&mut history, &logged, &cuts, changelog, &mut cut);
            let is_empty = reach.0 >= reach.1;
            let ended = if is_empty { ReadEnd::Reached } else { reader.read::<Error>(changelog, reach, self.waiting.stop, &mut take)? };
            if (self.waiting.stop)() {
                return Err(kafka::Error::Stopped.into());
            }
            match cut {
                Some(_) if cuts.len() == Cut::MAX => {
                    return Err(Error::Question(format!("the group was set back too often for {changelog} to be followed")));
                }
                Some(cut) => cuts.push(cut),
                None if ended == ReadEnd::Reached => return Ok(Scanned { history, reach }),
                None if ended == ReadEnd::Failed => return Err(Error::Question(format!("{changelog} cannot be read; the log says why"))),
                None if trims == TRIMS_MAX => {
                    return Err(Error::Question(format!("{changelog} is trimmed faster than it can be read; ask again")));
                }
                None => trims += 1,
            }
        }
    }
}

/// Takes a record of a changelog in. Returns whether to read on.
fn take(
    history: &mut History<'_>,
    logged: &Logged<'_>,
    cuts: &[Cut],
    changelog: &TopicPartition,
    cut: &mut Option<Cut>,
) -> Result<bool, Error> {
    let record = ChangelogRecord::decode(logged.value).map_err(|error| {
        Error::Question(format!("{changelog} offset {}: {error}; use the version of unseen that wrote it", logged.offset))
    })?;
    match history.take(logged.offset, logged.time, &record, cuts) {
        Next::On => Ok(true),
        Next::Again(found) => {
            *cut = Some(found);
            Ok(false)
        }
        Next::Foreign => Err(Error::Question(format!(
            "{changelog} offset {}: another consumer group or key space writes to this changelog; is kafka.group_id the worker's?",
            logged.offset
        ))),
        Next::Lost => {
            Err(Error::Question(format!("{changelog} offset {}: the group was set back, and to where is not known", logged.offset)))
        }
    }
}
