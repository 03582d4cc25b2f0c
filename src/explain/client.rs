//! Reads committed offsets, records, and changelogs from the brokers. Never joins the group or writes.

use super::Error;
use super::history::{Commit, History, Next, Wanted};
use super::outcome::{Occurrence, Occurrences};
use super::state::{InputView, StateView};
use crate::broker::{ChangelogReader as _, Committed, Logged, Note, ReadEnd, Record as _};
use crate::changelog::{ChangelogRecord, Cut};
use crate::checkpoint::Settings;
use crate::config::{Config, EarlierRules, Topic};
use crate::format::Schemas;
use crate::kafka::{self, Capture, ChangelogReader, GroupView, Message};
use crate::key::{Fingerprint, KeyedRecord, NoKey, Reader, RecordSpec, Scratch};
use crate::record::{Offset, Record, Timestamp, TopicPartition, log_name};
use std::ops::Range;
use std::time::{Duration, Instant};

const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of times that a changelog scan starts over because the changelog was trimmed during the scan.
const TRIMS_MAX: usize = 10;

#[derive(Clone, Copy)]
pub struct Waiting<'a> {
    /// Returns true to cancel the request.
    pub stop: &'a dyn Fn() -> bool,
    /// Receives messages about problems while a request waits.
    pub report: &'a dyn Fn(&str),
}

pub(super) struct Client<'a> {
    pub(super) config: &'a Config,
    pub(super) view: GroupView,
    schemas: &'a dyn Schemas,
    waiting: Waiting<'a>,
}

pub(super) struct FoundRecord {
    /// The time that the window uses, or Kafka's timestamp if the record has no key.
    pub(super) time: Option<Timestamp>,
    /// The fingerprint of the key, and true if the record retracts the key. An error if the record has no key.
    pub(super) keyed: Result<(Fingerprint, bool), NoKey>,
    /// The fingerprint of the key without the content that `emit = "on_change"` compares. This fingerprint selects the partition of the
    /// repartition topic.
    pub(super) key: Option<Fingerprint>,
    /// The parts of the key as text. Empty if the record has no key.
    pub(super) texts: Vec<String>,
}

pub(super) struct Scanned<'w> {
    pub(super) history: History<'w>,
    /// The first offset of the changelog and the end of the range that was read (exclusive).
    pub(super) reach: (Offset, Offset),
}

/// Extracts the keys from the records of a topic. A record that an earlier `[[topics]]` entry of the same input selects gets
/// [`NoKey::Passes`].
pub(super) struct Keys<'k> {
    topic: &'k Topic,
    earlier: EarlierRules<'k>,
    reader: Reader,
    scratch: Scratch,
    schemas: &'k dyn Schemas,
}

/// The committed offset of a partition and its metadata, and the current topic id.
pub(super) struct CommittedOffset {
    pub(super) offset: Option<Offset>,
    note: Note,
    topic_id: Option<String>,
}

impl<'k> Keys<'k> {
    pub(super) fn new(config: &'k Config, topic: &'k Topic, schemas: &'k dyn Schemas) -> Self {
        let earlier = config.earlier_rules(topic).collect();
        Self { topic, earlier, reader: Reader::default(), scratch: Scratch::default(), schemas }
    }

    fn take(&mut self, message: &Message<'_>) -> Result<KeyedRecord, NoKey> {
        self.with(message, |keys, record| keys.read(record, message.timestamp()))
    }

    pub(super) fn read(&mut self, record: &Record<'_>, timestamp: Option<Timestamp>) -> Result<KeyedRecord, NoKey> {
        let Self { topic, earlier, reader, scratch, schemas } = self;
        earlier.check(&topic.formats, record, scratch, *schemas)?;
        reader.read(topic.record_spec(), record, timestamp, scratch, *schemas)
    }

    pub(super) fn reads_headers(&self) -> bool {
        self.topic.reads_headers() || self.earlier.reads_headers()
    }

    /// Returns the fingerprint for [`FoundRecord::key`].
    fn key(&mut self, message: &Message<'_>) -> Option<Fingerprint> {
        self.with(message, |keys, record| {
            let spec = RecordSpec { content: None, ..keys.topic.record_spec() };
            keys.reader.read(spec, record, message.timestamp(), &mut keys.scratch, keys.schemas).ok().map(|keyed| keyed.fingerprint)
        })
    }

    fn with<T>(&mut self, message: &Message<'_>, read: impl FnOnce(&mut Self, &Record<'_>) -> T) -> T {
        let headers: Vec<_> = if self.reads_headers() { message.headers().collect() } else { Vec::new() };
        read(self, &Record { key: message.key(), value: message.value(), headers: &headers })
    }
}

impl<'a> Client<'a> {
    pub(super) fn connect(config: &'a Config, schemas: &'a dyn Schemas, waiting: Waiting<'a>) -> Result<Self, Error> {
        Ok(Self { config, view: GroupView::connect(config, waiting.stop, waiting.report)?, schemas, waiting })
    }

    /// Fails if the topic does not exist.
    pub(super) fn partitions(&self, topic: &str) -> Result<u32, Error> {
        match self.view.partitions(topic)? {
            0 => Err(Error::Question(format!(
                "topic {topic:?} does not exist; check the name of the input. If this is a changelog or repartition topic, no worker has run with this configuration file, or the topic was deleted"
            ))),
            count => Ok(count),
        }
    }

    /// Returns the committed offsets, in the order of `partitions`. If the metadata of an offset contains another topic id than the current
    /// one, the topic was recreated after the commit, so the offset counts as missing.
    pub(super) fn committed(&self, partitions: &[TopicPartition]) -> Result<Vec<CommittedOffset>, Error> {
        let names: Vec<_> = partitions.iter().map(|partition| partition.topic.as_str()).collect();
        let ids = self.view.topic_ids(&names)?;
        let committed =
            self.retry_until_answered(|| self.view.committed(partitions).map(Some), "the group's offsets are part of an open transaction")?;
        let of = |(partition, Committed { offset, metadata }): (&TopicPartition, Committed)| {
            let (note, id) = (Note::read(&metadata), ids.get(&partition.topic).cloned());
            let is_of_former = note.id.is_some() && id.is_some() && note.id != id;
            let (offset, note) = if is_of_former { (None, Note::default()) } else { (offset, note) };
            CommittedOffset { offset, note, topic_id: id }
        };
        Ok(partitions.iter().zip(committed).map(of).collect())
    }

    /// Returns the inputs, committed offsets, and rules of the state of `partition` in the key space of `topic`.
    pub(super) fn state(&self, topic: &'a Topic, partition: i32) -> Result<StateView<'a>, Error> {
        let config = self.config;
        let topics = config.space_of(topic).topics;
        let names: Vec<_> = topics.iter().map(|topic| config.repartitioned(topic).unwrap_or_else(|| topic.input.clone())).collect();
        let partitions = self.partitions(&names[0])?;
        let places: Vec<_> = names.iter().map(|name| TopicPartition { topic: name.clone(), partition }).collect();
        let committed = self.committed(&places)?;
        let inputs = topics.iter().zip(places).zip(committed).map(|((&topic, read), CommittedOffset { offset, note, topic_id })| {
            InputView { topic, log: log_name(&read.topic, topic_id.as_deref()), read, committed: offset, note }
        });
        let rules = topics[0].rules(partitions);
        let origin = Settings::of(config, topics[0]).origin(config, topics[0], &rules);
        Ok(StateView { partition, inputs: inputs.collect(), rules, origin })
    }

    /// Repeats a request while it returns `Ok(None)` or a fatal error, for at most `kafka.connect_timeout`. If the last result is
    /// `Ok(None)`, the error message gives `problem` as the reason.
    fn retry_until_answered<T>(&self, ask: impl Fn() -> Result<Option<T>, kafka::Error>, problem: &str) -> Result<T, Error> {
        let asked = Instant::now();
        loop {
            let answer = ask();
            if (self.waiting.stop)() {
                return Err(kafka::Error::Stopped.into());
            }
            let is_late = asked.elapsed() > self.config.kafka.connect_timeout;
            match answer {
                Ok(Some(answer)) => return Ok(answer),
                Err(kafka::Error::Fatal(_)) | Ok(None) if !is_late => std::thread::sleep(RETRY_INTERVAL),
                Ok(None) => {
                    return Err(Error::Question(format!(
                        "{problem} that does not end; find it with `kafka-transactions.sh find-hanging`, abort it, and run the command again"
                    )));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads the record at an offset of the partition `at` and extracts its key with the settings of `topic`.
    pub(super) fn record(&self, topic: &Topic, at: &TopicPartition, offset: Offset) -> Result<FoundRecord, Error> {
        let (low, end) = self.view.watermarks(at)?;
        if offset < low {
            return Err(Error::Question(format!(
                "{at} now starts at offset {low}, so the record was deleted; if you know its key, use --key"
            )));
        }
        if offset >= end {
            return Err(Error::Question(format!(
                "{at} has no committed record at offset {offset}: its last stable offset is {end}; use a lower offset, or wait until open transactions end"
            )));
        }
        let mut found = None;
        let mut missing_schema = None;
        self.read(topic, at, offset..offset + 1, &mut |message, keys| {
            let (time, keyed) = match keys.take(message) {
                Ok(record) => (record.time, Ok((record.fingerprint, record.retracts))),
                Err(NoKey::Awaits(schema)) => {
                    missing_schema = Some(schema);
                    return;
                }
                Err(no_key) => (message.timestamp(), Err(no_key)),
            };
            let texts = if keyed.is_ok() { keys.scratch.texts() } else { Vec::new() };
            found = Some(FoundRecord { time, keyed, key: keys.key(message), texts });
        })?;
        if let Some(schema) = missing_schema {
            let why = self.schemas.trouble().unwrap_or_else(|| "the schema registry has not answered".to_owned());
            return Err(Error::Question(format!("{at} offset {offset} needs schema {schema}, which is not available: {why}")));
        }
        found.ok_or_else(|| {
            Error::Question(format!(
                "{at} has no record at offset {offset}: the record was compacted or aborted, or the offset is a transaction marker; use an existing offset"
            ))
        })
    }

    fn read(
        &self,
        topic: &Topic,
        at: &TopicPartition,
        offsets: Range<Offset>,
        take: &mut dyn FnMut(&Message<'_>, &mut Keys<'_>),
    ) -> Result<(), Error> {
        let mut keys = Keys::new(self.config, topic, self.schemas);
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

    /// True if the input has a committed record at `from` or at a higher offset. The last stable offset alone does not show this, because
    /// control batches and aborted records also take offsets.
    pub(super) fn has_records(&self, input: &InputView<'_>, from: Offset) -> Result<bool, Error> {
        let mut has = false;
        self.read(input.topic, &input.read, from..Offset::MAX, &mut |_, _| has = true)?;
        Ok(has)
    }

    /// Reads the records in `commit` whose key has this fingerprint. `fingerprint` does not include the content (see `Emit::key_of`).
    pub(super) fn occurrences(&self, state: &StateView<'_>, commit: &Commit, fingerprint: Fingerprint) -> Result<Occurrences, Error> {
        let mut found = Occurrences::default();
        let emit = state.rules.emit;
        for (span, (log, offsets)) in commit.spans.iter().enumerate() {
            let Some(input) = state.inputs.iter().find(|input| input.log == *log) else {
                found.may_be_incomplete = true;
                continue;
            };
            found.may_be_incomplete |= self.view.watermarks(&input.read)?.0 > offsets.start;
            self.read(input.topic, &input.read, offsets.clone(), &mut |message, keys| match keys.take(message) {
                Ok(KeyedRecord { fingerprint: other, retracts, time }) if emit.key_of(other) == fingerprint => {
                    let content = emit.content_of(other);
                    found.push(Occurrence { span, offset: message.offset(), time, retracts, content });
                }
                Ok(_) | Err(NoKey::Invalid(_) | NoKey::Passes) => {}
                Err(NoKey::Awaits(_)) => found.may_be_incomplete = true,
            })?;
        }
        Ok(found)
    }

    pub(super) fn scan<'w>(&self, state: &'w StateView<'_>, changelog: &TopicPartition, wanted: &'w Wanted) -> Result<Scanned<'w>, Error> {
        self.partitions(&changelog.topic)?;
        let reader = ChangelogReader::new(self.config)?;
        let mut cuts: Vec<Cut> = Vec::new();
        let mut trims = 0;
        loop {
            let reach = self.retry_until_answered(|| reader.ends(changelog), "the changelog has an open transaction")?;
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
                    return Err(Error::Question(format!(
                        "{changelog} shows more than {} resets of the group's offsets, which is too many to follow; explain the record from a capture of the input (--capture)",
                        Cut::MAX
                    )));
                }
                Some(cut) => cut.add_to(&mut cuts),
                None if ended == ReadEnd::Reached => return Ok(Scanned { history, reach }),
                None if ended == ReadEnd::Failed => {
                    return Err(Error::Question(format!("{changelog} cannot be read: every fetch failed; check the brokers")));
                }
                None if trims == TRIMS_MAX => {
                    return Err(Error::Question(format!(
                        "records of {changelog} are deleted faster than this command can read them; run the command again"
                    )));
                }
                None => trims += 1,
            }
        }
    }
}

/// Adds a changelog record to the history. Returns true to continue reading. If the group's offsets were reset, sets `cut` and returns
/// false.
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
        Next::Continue => Ok(true),
        Next::Restart(found) => {
            *cut = Some(found);
            Ok(false)
        }
        Next::Foreign => Err(Error::Question(format!(
            "{changelog} offset {}: another consumer group or key space writes to this changelog; check that kafka.group_id is the worker's",
            logged.offset
        ))),
        Next::Lost => Err(Error::Question(format!(
            "{changelog} offset {}: unseen cannot determine the offset that the group was reset to; report this as a bug",
            logged.offset
        ))),
    }
}
