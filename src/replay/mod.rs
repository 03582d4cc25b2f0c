//! A recorded stream through the same key and dedup code as the live run, without Kafka.
//!
//! Owns the form of a line, and its way: in, judged, and out byte for byte if it is unseen. Must never judge in
//! another way than the worker does, and never look at a clock: the max timestamp comes from the caller.
//! Key spaces that several topics share are not shared here: one topic is replayed by itself.

mod envelope;
mod followed;
mod input;
mod recorded;
mod truth;

pub use envelope::Captured;
pub use followed::{FollowedRecord, RecordedKey};
pub(crate) use input::Lines;
pub use input::{Format, format_rfc3339, parse_rfc3339, parse_time};
pub(crate) use recorded::Recorded;
pub use truth::Counts;

use crate::config::{OnInvalid, OnTombstone, Topic};
use crate::content::{CompareContent, Conflicts, ContentSample, PartitionKey};
use crate::dedup::{Dedup, Late, Rules};
use crate::filter;
use crate::format::{self, Formats, NoKey, NoSchemas, Reader, SchemaId, Schemas};
use crate::key::{self, Field, Fingerprint, Part, Scratch, SpecError};
use crate::record::{Invalid, Record, Timestamp, Verdict};
use crate::values::{CountBy, Counted, ValueCounts};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use truth::Truth;

/// How a recorded stream is to be read.
#[derive(Clone, Debug)]
pub struct Options {
    /// What a line is.
    pub format: Format,
    /// JSON pointer to each record's time, for formats whose lines have no other.
    pub time: Option<String>,
    /// How many partitions the topic has, at least 1: its capacity is shared out over them.
    pub partitions: u32,
    /// Whether an exact window is kept beside the filter. It takes about 40 bytes a remembered key.
    pub truth: bool,
}

/// A replay under way.
#[derive(Debug)]
pub struct Replay<'t> {
    topic: &'t Topic,
    rules: Rules,
    format: Format,
    time: Option<Field>,
    truth: bool,
    partitions: Vec<Option<Partition>>,
    scratch: Scratch,
    reader: Reader,
    formats: Formats,
    schemas: Arc<dyn Schemas>,
    /// Where the value is that is counted by, if the format has it.
    count_by: Option<&'t CountBy>,
    contents: ContentSample,
    compare: CompareContent,
    values: ValueCounts,
    counted: Summary,
    /// Whether the last record was dropped though its key had not been seen.
    is_wrong: bool,
    /// The one key, and its partition, that the exact window is kept for; if there is none, it is kept for all.
    only: Option<(i32, Fingerprint)>,
    /// The verdict of the last record, if it is of that key.
    followed: Option<FollowedRecord>,
    others: Others,
}

/// What becomes of a line that names another topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// It is judged by this topic's settings.
    Taken,
    /// It is passed over.
    PassedOver,
    /// It is an error.
    Refused,
}

#[derive(Debug)]
struct Partition {
    dedup: Dedup,
    truth: Option<Truth>,
}

/// What became of the records so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Lines read.
    pub records: u64,
    /// Emitted as unseen, late ones among them.
    pub unseen: u64,
    /// Remembered, and so not emitted.
    pub duplicates: u64,
    /// Older than the window and not remembered; `late` decided what became of them.
    pub late: u64,
    /// Retractions; they are not emitted.
    pub retracted: u64,
    /// Without a value to take a key from; `on_tombstone` decided what became of them.
    pub tombstones: u64,
    /// Unseen records that the filter alone would have dropped.
    pub corrected: u64,
    /// Without a key, by the label of the reason; `on_invalid` decided what became of them.
    pub invalid: BTreeMap<&'static str, u64>,
    /// Lines without a key that look like those of `kcat -J`, though they are taken for values.
    pub envelopes: u64,
    /// Later than the max timestamp: judged, but moves no window.
    pub future: u64,
    /// The time of the last of those.
    pub future_time: Option<Timestamp>,
    /// Stream time of the partition that is furthest.
    pub stream_time: Option<Timestamp>,
    /// What the live run would have sent to a dead-letter topic.
    pub dead_letters: u64,
    /// Without a time.
    pub untimed: u64,
    /// Partitions that had a record.
    pub partitions: u64,
    /// Keys of the fullest open slice over its capacity.
    pub load: f64,
    /// Memory of the filters' bits, in bytes.
    pub memory: u64,
    /// What the exact window says, if it was asked for.
    pub truth: Option<Counts>,
    /// By the values of `count_by`, most records first, and the rest at the end; none where there is no `count_by`.
    pub values: Vec<(Option<String>, Counted)>,
    /// Of a sample, repeats compared with the record that they repeat, but for what `key_conflicts` leaves out.
    pub key_conflicts: Conflicts,
}

/// Why a replay cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key needs what the format does not have.
    #[error(
        "the topic's key is made of {0}, which a line of ndjson does not have; record with `unseen capture` and replay with --format capture"
    )]
    Part(Part),
    /// The topic retracts keys by a header, which the format does not have.
    #[error(
        "the topic retracts keys by header `{0}`, which a line of ndjson does not have; record with `unseen capture` and replay with --format capture"
    )]
    Retract(String),
    /// The format has no partitions.
    #[error(
        "--partitions: a line of ndjson does not say which partition it is of, and all are taken to be of one; record with `unseen capture` and replay with --format capture"
    )]
    Partitions,
    /// The values are in a format that a line cannot have.
    #[error("a line of ndjson is JSON, and the topic's values are {0}; record with `unseen capture` and replay with --format capture")]
    Format(format::Format),
    /// The time's pointer is malformed.
    #[error("--time")]
    Time(#[from] SpecError),
    /// Lines of a capture have a time of their own, the one that the live run goes by.
    #[error("--time: lines of a capture bring the record's own time")]
    SecondTime,
    /// A line is at fault.
    #[error("line {line}, at byte {offset}: {fault}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// Where it begins.
        offset: u64,
        /// What is wrong with it.
        fault: LineError,
    },
    /// The output cannot be written.
    #[error("cannot write the output")]
    Write(#[source] io::Error),
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// It cannot be read.
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    /// It is longer than any record.
    #[error("expected at most {0} bytes in a line, got more")]
    Long(u64),
    /// The whole input is compressed.
    #[error("the input is compressed with {0}; decompress it first, for example by a pipe: `{0} -dc FILE | unseen ...`")]
    Compressed(&'static str),
    /// It is not in the format that was named.
    #[error("expected a record as `unseen capture` writes it or `kcat -J` prints it, got: {0}")]
    Envelope(String),
    /// The record is of another topic.
    #[error("the record is of topic {got:?}, and {expected:?} was asked for")]
    Topic {
        /// Its topic.
        got: String,
        /// The one that is replayed.
        expected: String,
    },
    /// The record's partition is one that the topic does not have.
    #[error("the record is of partition {partition}, but the topic is taken to have {partitions}; say how many it has with --partitions")]
    Partition {
        /// Number of the partition.
        partition: i32,
        /// How many there are.
        partitions: usize,
    },
    /// The record has no key, and the topic says to stop then.
    #[error("{0}; the topic's `on_invalid` says whether to go on after such a record")]
    Invalid(Invalid),
    /// The schema that it names is not to be had.
    #[error("it is of schema {schema}, which is not to be had: {why}")]
    Awaits {
        /// The schema.
        schema: SchemaId,
        /// Why not, as a sentence.
        why: String,
    },
    /// Its key cannot be decided.
    #[error("{0}")]
    Verdict(filter::ExactError),
}

impl LineError {
    /// A schema that has been waited for in vain.
    pub(crate) fn awaits(schema: SchemaId, schemas: &dyn Schemas) -> Self {
        Self::Awaits { schema, why: schemas.trouble().unwrap_or_else(|| "the schema registry has not answered".to_owned()) }
    }
}

impl<'t> Replay<'t> {
    /// A replay that has seen nothing.
    ///
    /// # Errors
    /// When the format does not have what the key or the options ask for.
    pub fn new(topic: &'t Topic, options: &Options) -> Result<Self, Error> {
        match options.format {
            Format::Kcat if options.time.is_some() => return Err(Error::SecondTime),
            Format::Ndjson => {
                let is_absent = |part: &&Part| matches!(part, Part::RecordKey | Part::KeyField(_) | Part::Header(_) | Part::CloudEvent(_));
                let absent = topic.key.parts().iter().find(is_absent);
                absent.map_or(Ok(()), |part| Err(Error::Part(part.clone())))?;
                topic.retract.as_ref().map_or(Ok(()), |header| Err(Error::Retract(header.clone())))?;
                if options.partitions > 1 {
                    return Err(Error::Partitions);
                }
                match topic.formats.value.format {
                    format::Format::Json | format::Format::JsonSchema => {}
                    format => return Err(Error::Format(format)),
                }
            }
            Format::Kcat => {}
        }
        let partitions = options.partitions.max(1);
        let mut compare = topic.key_conflicts.clone().unwrap_or_default();
        // A time that is not the record's own is another for each repeat.
        compare.except.extend(options.time.clone());
        Ok(Self {
            topic,
            rules: topic.rules(partitions),
            format: options.format,
            time: options.time.as_deref().map(Field::new).transpose()?,
            truth: options.truth,
            partitions: (0..partitions).map(|_| None).collect(),
            scratch: Scratch::default(),
            reader: Reader::default(),
            // A line of values has no frame.
            formats: if options.format == Format::Ndjson { Formats::default() } else { topic.formats.clone() },
            schemas: Arc::new(NoSchemas),
            // A line of values has no header.
            count_by: topic.count_by.as_ref().filter(|by| options.format != Format::Ndjson || matches!(by, CountBy::Field(_))),
            values: ValueCounts::default(),
            contents: ContentSample::new(topic.filter.capacity),
            compare,
            counted: Summary::default(),
            is_wrong: false,
            only: None,
            followed: None,
            others: Others::Taken,
        })
    }

    /// The same, for which a line that names another topic is an error.
    #[must_use]
    pub fn refusing_other_topics(self) -> Self {
        Self { others: Others::Refused, ..self }
    }

    /// The same, with schemas from elsewhere. Without them, records that name a schema are invalid.
    #[must_use]
    pub fn with_schemas(self, schemas: Arc<dyn Schemas>) -> Self {
        Self { schemas, ..self }
    }

    /// Reads `input` to its end and writes the lines of unseen records to `output`. See [`Replay::run_and_list`].
    ///
    /// # Errors
    /// When a line is at fault, or `output` cannot be written.
    pub fn run(&mut self, input: impl BufRead, output: impl Write, max_timestamp: impl Fn() -> Timestamp) -> Result<(), Error> {
        self.run_and_list(input, output, io::sink(), max_timestamp)
    }

    /// Reads `input` to its end and writes the lines of unseen records to `output`. Of the records that were dropped though
    /// their key had not been seen, the lines go to `wrong`; none, unless the truth was asked for.
    ///
    /// `max_timestamp` is the latest record time that moves the window, asked for each record: the time at which it was read, as far as
    /// that is known, plus the topic's `max_future`, in milliseconds.
    ///
    /// # Errors
    /// When a line is at fault, or `output` or `wrong` cannot be written.
    pub fn run_and_list(
        &mut self,
        input: impl BufRead,
        mut output: impl Write,
        mut wrong: impl Write,
        max_timestamp: impl Fn() -> Timestamp,
    ) -> Result<(), Error> {
        let mut lines = Lines::new(input);
        loop {
            self.is_wrong = false;
            let emitted = match lines.next_line() {
                Ok(None) => return output.flush().and_then(|()| wrong.flush()).map_err(Error::Write),
                Ok(Some(line)) => self.line(line, &max_timestamp),
                Err(fault) => Err(fault),
            };
            if emitted.map_err(|fault| Error::Line { line: lines.number(), offset: lines.offset(), fault })? {
                output.write_all(lines.line()).map_err(Error::Write)?;
            }
            if self.is_wrong {
                wrong.write_all(lines.line()).map_err(Error::Write)?;
            }
        }
    }

    /// Whether a line is to be emitted.
    fn line(&mut self, line: &[u8], max_timestamp: impl Fn() -> Timestamp) -> Result<bool, LineError> {
        let recorded = Recorded::parse(self.format, line, self.time.as_ref())?;
        if let Some(other) = recorded.topic.as_ref().filter(|other| **other != self.topic.input) {
            match self.others {
                Others::Taken => {}
                Others::PassedOver => return Ok(false),
                Others::Refused => return Err(LineError::Topic { got: other.clone().into_owned(), expected: self.topic.input.clone() }),
            }
        }
        self.counted.records += 1;
        self.counted.untimed += u64::from(recorded.time.is_none());
        place(&mut self.partitions, recorded.partition)?;
        let headers = recorded.headers();
        let record = Record { key: recorded.key.as_deref(), value: recorded.value.as_deref(), headers: &headers };
        let fingerprint = self.reader.fingerprint(&self.topic.key, &self.formats, &record, &mut self.scratch, &*self.schemas);
        let fingerprint = match fingerprint {
            Ok(fingerprint) => fingerprint,
            Err(NoKey::Awaits(schema)) => return Err(LineError::awaits(schema, &*self.schemas)),
            Err(NoKey::Invalid(invalid)) => {
                let looks = self.format == Format::Ndjson && Recorded::parse(Format::Kcat, line, None).is_ok();
                self.counted.envelopes += u64::from(looks);
                return self.without_key(*invalid);
            }
        };
        // Where one key is followed, it is in the partition that was named.
        let number = match self.only {
            None if self.topic.repartition => {
                key::partition(fingerprint, self.partitions.len().try_into().unwrap_or(u32::MAX)).cast_signed()
            }
            _ => recorded.partition,
        };
        let Partition { dedup, truth } = partition(&mut self.partitions, number, self.rules, self.truth)?;
        let max_timestamp = max_timestamp();
        if let Some(time) = recorded.time.filter(|&time| time > max_timestamp) {
            self.counted.future += 1;
            self.counted.future_time = Some(time);
        }
        let verdict = if self.topic.is_retraction(&headers) {
            dedup.retract(fingerprint, recorded.time, max_timestamp)
        } else {
            dedup.judge(fingerprint, recorded.time, max_timestamp)
        };
        let verdict = verdict.map_err(LineError::Verdict)?;
        if let Some(by) = self.count_by {
            let text = by.text(record.value, headers.iter().copied(), &mut self.scratch);
            self.values.add(text.as_deref(), verdict == Verdict::Duplicate);
        }
        if self.only.is_none() {
            let key = PartitionKey { partition: number, fingerprint };
            let value = record.value.map(|value| self.formats.value.bare_value(value, headers.iter().copied()));
            self.contents.take(key, verdict, value, &self.compare, &mut self.scratch);
        }
        let is_followed = self.only.is_none_or(|only| only == (recorded.partition, fingerprint));
        if let Some(truth) = truth {
            if is_followed {
                self.is_wrong = truth.check(fingerprint, verdict, dedup);
            } else {
                truth.pass(dedup);
            }
        }
        if is_followed && self.only.is_some() {
            let (slice, stream_time) = (dedup.slice(), dedup.stream_time());
            self.followed = Some(FollowedRecord { offset: recorded.offset, verdict, is_wrong: self.is_wrong, slice, stream_time });
        }
        match verdict {
            Verdict::Duplicate => self.counted.duplicates += 1,
            Verdict::Late => {
                self.counted.late += 1;
                self.counted.dead_letters += u64::from(self.rules.late == Late::DeadLetter);
            }
            Verdict::Retracted => self.counted.retracted += 1,
            _ => {
                self.counted.unseen += 1;
                self.counted.late += u64::from(dedup.is_late(recorded.time));
            }
        }
        Ok(verdict == Verdict::Unseen)
    }

    /// Whether a record without a key is to be emitted.
    fn without_key(&mut self, invalid: Invalid) -> Result<bool, LineError> {
        if self.topic.verdict_without_key(invalid.reason) == Verdict::Tombstone {
            self.counted.tombstones += 1;
            return Ok(self.topic.on_tombstone == OnTombstone::Emit);
        }
        *self.counted.invalid.entry(invalid.reason.label()).or_default() += 1;
        match self.topic.on_invalid {
            OnInvalid::Fail => return Err(LineError::Invalid(invalid)),
            OnInvalid::Topic(_) => self.counted.dead_letters += 1,
            OnInvalid::Drop | OnInvalid::Emit => {}
        }
        Ok(self.topic.on_invalid == OnInvalid::Emit)
    }

    /// What became of the records so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut summary = self.counted.clone();
        summary.values = self.count_by.map_or_else(Vec::new, |_| self.values.read());
        summary.key_conflicts = self.contents.read();
        summary.truth = self.truth.then(Counts::default);
        for Partition { dedup, truth } in self.partitions.iter().flatten() {
            summary.partitions += 1;
            let usage = dedup.usage();
            summary.corrected += dedup.corrected();
            summary.stream_time = summary.stream_time.max(dedup.stream_time());
            summary.load = summary.load.max(usage.load);
            summary.memory += usage.bytes;
            if let (Some(sum), Some(truth)) = (&mut summary.truth, truth) {
                sum.add(truth.counts());
            }
        }
        summary
    }
}

/// The partition of that number, made when its first record comes.
fn partition(all: &mut [Option<Partition>], number: i32, rules: Rules, truth: bool) -> Result<&mut Partition, LineError> {
    let partition = || Partition { dedup: Dedup::new(rules), truth: truth.then(|| Truth::new(rules)) };
    Ok(place(all, number)?.get_or_insert_with(partition))
}

/// Where the partition of that number is.
fn place(all: &mut [Option<Partition>], number: i32) -> Result<&mut Option<Partition>, LineError> {
    let partitions = all.len();
    let place = usize::try_from(number).ok().and_then(|number| all.get_mut(number));
    place.ok_or(LineError::Partition { partition: number, partitions })
}

#[cfg(test)]
mod tests;
