//! Runs a recorded stream through the same key and dedup code as a worker, without Kafka.
//!
//! A replay parses each line, evaluates the record, and writes the line byte for byte if the record is emitted. It makes the same decisions
//! as a worker that reads only this input. If other inputs share the key space, a replay does not know their keys. A replay never reads a
//! clock: the caller provides the max timestamp.

mod envelope;
mod error;
mod followed;
mod input;
mod recorded;
mod rules;
mod summary;
mod truth;

pub use envelope::Captured;
pub use error::{Error, LineError};
pub use followed::{FollowedRecord, RecordedKey};
pub(crate) use input::Lines;
pub use input::{Format, format_rfc3339, parse_rfc3339, parse_time};
pub(crate) use recorded::Recorded;
pub use summary::Summary;
pub use truth::Counts;

use crate::config::{OnInvalid, OnTombstone, Topic};
use crate::content::{CompareContent, ContentSample, PartitionKey};
use crate::dedup::{Dedup, Emit, Late, Rules};
use crate::format::{Formats, NoSchemas, Schemas};
use crate::key::{
    self, EventTime, Field, Fingerprint, KeySpec, KeyedRecord, NoKey, Part, Reader, RecordSpec, Scratch, TimePlace, ValueReader,
};
use crate::record::{Invalid, Record, Timestamp, Verdict};
use crate::values::{CountBy, ValueCounts};
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use truth::Truth;

/// Options for reading a recorded stream.
#[derive(Clone, Debug)]
pub struct Options {
    /// The encoding of a record in a line.
    pub format: Format,
    /// JSON pointer to the field with the record time, for a format whose lines have no Kafka timestamp.
    pub time: Option<String>,
    /// Number of partitions of the topic. The topic's capacity is divided among them. 0 counts as 1, and [`Format::Ndjson`] supports only
    /// 1.
    pub partitions: u32,
    /// True if the replay keeps an exact window alongside the filter. The exact window uses 56 to 112 bytes per remembered key.
    pub truth: bool,
}

/// Deduplicates a recorded stream. Holds the state of each partition and counts the records.
///
/// ```
/// use unseen::config::Config;
/// use unseen::record::Timestamp;
/// use unseen::replay::{Format, Options, Replay};
///
/// let config = Config::load("examples/news.toml".as_ref(), &[])?;
/// let options = Options { format: Format::Ndjson, time: Some("/time".to_owned()), partitions: 1, truth: false };
/// let mut replay = Replay::new(&config.topics[0], &options)?;
/// let (input, mut output) = (&b"{\"id\": 1}\n{\"id\": 2}\n{\"id\": 1}\n"[..], Vec::new());
/// replay.run(input, &mut output, || Timestamp::MAX)?;
/// assert_eq!(output, b"{\"id\": 1}\n{\"id\": 2}\n");
/// assert_eq!(replay.summary().duplicates, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// The topic's `count_by`, or `None` if lines of this format do not have that field or header.
    count_by: Option<&'t CountBy>,
    contents: ContentSample,
    compare: CompareContent,
    values: ValueCounts,
    value_reader: ValueReader,
    counted: Summary,
    /// True if the last record was dropped as a duplicate although the exact window does not remember its key.
    is_wrong: bool,
    /// The partition and the key that the exact window is limited to. `None` if the exact window has all keys.
    only: Option<(i32, Fingerprint)>,
    /// The last record, if it has the partition and the key in `only`.
    followed: Option<FollowedRecord>,
    others: Others,
    /// The next rule of the input, for records that this rule does not select.
    next: Option<Box<Self>>,
}

/// Handling of a line from another topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// The record is evaluated with this topic's settings.
    Accept,
    Skip,
    Reject,
}

#[derive(Debug)]
struct Partition {
    dedup: Dedup,
    truth: Option<Truth>,
}

impl<'t> Replay<'t> {
    /// Creates a replay that has seen no key. Emits records that `when` does not select.
    ///
    /// # Errors
    /// Fails if lines of the format lack something that the topic or `options` require, such as headers.
    pub fn new(topic: &'t Topic, options: &Options) -> Result<Self, Error> {
        match options.format {
            Format::Kcat if options.time.is_some() => return Err(Error::SecondTime),
            Format::Ndjson => {
                let is_absent = |part: &&Part| !matches!(part, Part::RecordValue | Part::Field(_) | Part::Content { .. });
                let absent = topic.key.leaves().chain(topic.on_change.iter().flat_map(KeySpec::leaves)).find(is_absent);
                absent.map_or(Ok(()), |part| Err(Error::Part(part.clone())))?;
                let predicates = topic.when.iter().map(|when| ("when", when));
                let mut predicates = predicates.chain(topic.retract.iter().map(|retract| ("retract", retract)));
                if let Some((option, predicate)) = predicates.find(|(_, predicate)| predicate.reads_headers() || predicate.reads_key()) {
                    return Err(Error::Predicate { option, place: predicate.place().to_string() });
                }
                match &topic.time {
                    Some(EventTime { place: TimePlace::Header(name), optional: false, .. }) => return Err(Error::TimeHeader(name.clone())),
                    Some(time) if options.time.is_some() && !time.optional => return Err(Error::EventTime(time.place.to_string())),
                    _ => {}
                }
                if options.partitions > 1 {
                    return Err(Error::Partitions);
                }
                let value = topic.formats.value().format;
                if !value.is_json() {
                    return Err(Error::Format(value));
                }
            }
            Format::Kcat => {}
        }
        let partitions = options.partitions.max(1);
        let mut compare = topic.key_conflicts.clone().unwrap_or_default();
        // A duplicate usually has a different time than its original, which is not a conflict.
        compare.except.extend(options.time.clone());
        if let Some(EventTime { place: TimePlace::Field { pointer, .. }, .. }) = &topic.time {
            compare.except.push(pointer.clone());
        }
        Ok(Self {
            topic,
            rules: topic.rules(partitions),
            format: options.format,
            time: options.time.as_deref().map(Field::new).transpose()?,
            truth: options.truth,
            partitions: (0..partitions).map(|_| None).collect(),
            scratch: Scratch::default(),
            reader: Reader::default(),
            // An ndjson line is plain JSON without the frame of a schema registry, so the topic's formats do not apply to it.
            formats: if options.format == Format::Ndjson { Formats::default() } else { topic.formats.clone() },
            schemas: Arc::new(NoSchemas),
            // An ndjson line has no headers.
            count_by: topic.count_by.as_ref().filter(|by| options.format != Format::Ndjson || matches!(by, CountBy::Field(_))),
            values: ValueCounts::default(),
            value_reader: ValueReader::default(),
            contents: ContentSample::new(topic.filter.capacity),
            compare,
            counted: Summary::default(),
            is_wrong: false,
            only: None,
            followed: None,
            others: Others::Accept,
            next: None,
        })
    }

    /// Makes the replay fail at a line from another topic. By default, the topic name in a line is ignored.
    #[must_use]
    pub fn reject_other_topics(self) -> Self {
        let next = self.next.map(|next| Box::new(next.reject_other_topics()));
        Self { others: Others::Reject, next, ..self }
    }

    /// Sets the source of schemas. Without a source, a record is invalid if a registry's schema is needed to read it.
    #[must_use]
    pub fn with_schemas(self, schemas: Arc<dyn Schemas>) -> Self {
        let next = self.next.map(|next| Box::new(next.with_schemas(Arc::clone(&schemas))));
        Self { schemas, next, ..self }
    }

    /// Reads `input` to its end and writes the lines of emitted records to `output`. See [`Replay::run_and_list`].
    ///
    /// # Errors
    /// Fails at the first [`LineError`], or if `output` cannot be written.
    pub fn run(&mut self, input: impl BufRead, output: impl Write, max_timestamp: impl Fn() -> Timestamp) -> Result<(), Error> {
        self.run_and_list(input, output, io::sink(), max_timestamp)
    }

    /// Reads `input` to its end and writes the lines of emitted records to `output`: unseen records and records that the topic emits
    /// without deduplication. Duplicates are never written, even with `on_duplicate = "mark"`. The lines of records that were dropped
    /// although their key had not been seen go to `wrong`. Nothing is written to `wrong` unless [`Options::truth`] is set.
    ///
    /// `max_timestamp` is called for each record with a key and returns the latest record time that moves the window, in milliseconds since
    /// the epoch. A worker uses the time when it reads the record, plus the topic's `max_future`.
    ///
    /// # Errors
    /// Fails at the first [`LineError`], or if `output` or `wrong` cannot be written.
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

    /// Evaluates a line with the next rule of the input. Returns true to emit the line. `max_timestamp` includes the `max_future` of this
    /// rule, which this function replaces with the `max_future` of the next rule.
    fn line_of_next(&mut self, line: &[u8], max_timestamp: &dyn Fn() -> Timestamp) -> Result<bool, LineError> {
        let Some(next) = &mut self.next else { return Ok(true) };
        next.is_wrong = false;
        let ahead = |topic: &Topic| i64::try_from(topic.max_future.as_millis()).unwrap_or(i64::MAX);
        let further = ahead(next.topic).saturating_sub(ahead(self.topic));
        let is_emitted = next.line(line, &|| max_timestamp().saturating_add(further))?;
        self.is_wrong = next.is_wrong;
        self.followed = next.followed.take();
        Ok(is_emitted)
    }

    /// Evaluates a line. Returns true to emit it.
    fn line(&mut self, line: &[u8], max_timestamp: &dyn Fn() -> Timestamp) -> Result<bool, LineError> {
        let recorded = Recorded::parse(self.format, line, self.time.as_ref())?;
        if let Some(other) = recorded.topic.as_ref().filter(|other| **other != self.topic.input) {
            match self.others {
                Others::Accept => {}
                Others::Skip => return Ok(false),
                Others::Reject => return Err(LineError::Topic { got: other.clone().into_owned(), expected: self.topic.input.clone() }),
            }
        }
        self.counted.records += 1;
        place(&mut self.partitions, recorded.partition)?;
        let headers = recorded.headers();
        let record = Record { key: recorded.key.as_deref(), value: recorded.value.as_deref(), headers: &headers };
        let spec = RecordSpec { formats: &self.formats, ..self.topic.record_spec() };
        let KeyedRecord { fingerprint, retracts, time } =
            match self.reader.read(spec, &record, recorded.time, &mut self.scratch, &*self.schemas) {
                Ok(keyed) => keyed,
                Err(NoKey::Awaits(schema)) => return Err(LineError::awaits(schema, &*self.schemas)),
                Err(NoKey::Passes) if self.next.is_some() => {
                    self.counted.records -= 1;
                    return self.line_of_next(line, max_timestamp);
                }
                Err(NoKey::Passes) => {
                    self.counted.passed += 1;
                    self.count_value(&record, false);
                    return Ok(true);
                }
                Err(NoKey::Invalid(invalid)) => {
                    self.counted.untimed += u64::from(recorded.time.is_none() && self.topic.time.is_none());
                    let looks = self.format == Format::Ndjson && Recorded::parse(Format::Kcat, line, None).is_ok();
                    self.counted.envelopes += u64::from(looks);
                    return self.without_key(*invalid);
                }
            };
        // `only` names a partition of the input, so a replay with `only` does not repartition records.
        let number = match self.only {
            None if self.topic.repartition => {
                let spec = RecordSpec { content: None, ..spec };
                let alone = self.topic.on_change.as_ref().map(|_| self.reader.read(spec, &record, None, &mut self.scratch, &*self.schemas));
                let key = alone.and_then(Result::ok).map_or(fingerprint, |keyed| keyed.fingerprint);
                key::partition(key, self.partitions.len().try_into().unwrap_or(u32::MAX)).cast_signed()
            }
            _ => recorded.partition,
        };
        let Partition { dedup, truth } = partition(&mut self.partitions, number, self.rules, self.truth)?;
        let max_timestamp = max_timestamp();
        self.counted.untimed += u64::from(time.is_none());
        if let Some(time) = time.filter(|&time| time > max_timestamp) {
            self.counted.future += 1;
            self.counted.future_time = Some(time);
        }
        let verdict =
            if retracts { dedup.retract(fingerprint, time, max_timestamp) } else { dedup.judge(fingerprint, time, max_timestamp) };
        let verdict = verdict.map_err(LineError::Verdict)?;
        // With `on_change`, a duplicate always has the content of its original, so there is nothing to compare.
        if self.only.is_none() && self.rules.emit == Emit::First {
            let key = PartitionKey { partition: number, fingerprint };
            let value = self.value_reader.open(self.formats.value(), record.value, headers.iter().copied(), &*self.schemas);
            self.contents.take(key, verdict, value, &self.compare);
        }
        let is_followed = self.only.is_none_or(|only| only == (recorded.partition, self.rules.emit.key_of(fingerprint)));
        if let Some(truth) = truth {
            if is_followed {
                self.is_wrong = truth.check(fingerprint, verdict, dedup);
            } else {
                truth.pass(dedup);
            }
        }
        if is_followed && self.only.is_some() {
            let (slice, stream_time) = (dedup.slice(), dedup.stream_time());
            self.followed =
                Some(FollowedRecord { offset: recorded.offset, fingerprint, verdict, is_wrong: self.is_wrong, slice, stream_time });
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
                self.counted.late += u64::from(dedup.is_late(time));
            }
        }
        self.count_value(&record, verdict == Verdict::Duplicate);
        Ok(verdict == Verdict::Unseen)
    }

    fn count_value(&mut self, record: &Record<'_>, is_duplicate: bool) {
        let Some(by) = self.count_by else { return };
        let (headers, reader) = (record.headers.iter().copied(), &mut self.value_reader);
        let text = by.text(self.formats.value(), record.value, headers, reader, &*self.schemas);
        self.values.add(text.as_deref(), is_duplicate);
    }

    /// Counts a record without a key. Returns true to emit it.
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

    /// Returns the counts of the records so far, summed over the rules of the input.
    #[must_use]
    pub fn summary(&self) -> Summary {
        match &self.next {
            Some(next) => self.summary_of_rule().and(next.summary()),
            None => self.summary_of_rule(),
        }
    }

    fn summary_of_rule(&self) -> Summary {
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

fn partition(all: &mut [Option<Partition>], number: i32, rules: Rules, truth: bool) -> Result<&mut Partition, LineError> {
    let partition = || Partition { dedup: Dedup::new(rules), truth: truth.then(|| Truth::new(rules)) };
    Ok(place(all, number)?.get_or_insert_with(partition))
}

fn place(all: &mut [Option<Partition>], number: i32) -> Result<&mut Option<Partition>, LineError> {
    let partitions = all.len();
    let place = usize::try_from(number).ok().and_then(|number| all.get_mut(number));
    place.ok_or(LineError::Partition { partition: number, partitions })
}

#[cfg(test)]
mod tests;
