//! Parses the lines of a file into keys, for each format. Uses the worker's code to extract keys, because a seed and the worker must
//! compute the same keys.

use super::error::{Error, Fault};
use super::placement::Place;
use super::table::Table;
use super::{Format, Options};
use crate::config::{EarlierRules, Topic};
use crate::format::{Formats, Schemas};
use crate::key::{EventTime, Field, Fingerprint, KeyedRecord, NoKey, Part, Predicate, Reader, RecordSpec, Scratch, TimePlace};
use crate::record::{Record, Timestamp, Verdict};
use crate::replay::{self, LineError, Lines, Recorded, parse_time};
use std::io::BufRead;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Line<'l> {
    /// The keys of the line. A row of a table has several keys if a text has several interpretations, such as a number and a string.
    pub(super) fingerprints: &'l [Fingerprint],
    pub(super) time: Option<Timestamp>,
    pub(super) place: Place<'l>,
    pub(super) is_retraction: bool,
}

pub(super) type Take<'f> = dyn FnMut(Line<'_>) -> Result<(), Fault> + 'f;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of lines, without the first line of a table.
    pub lines: u64,
    /// Number of lines skipped because they have no key.
    pub invalid: u64,
    /// Number of lines skipped because their value is null, but the key needs the value. With `on_tombstone = "invalid"`, these lines count
    /// as invalid instead.
    pub tombstones: u64,
    /// Number of lines skipped because `when` does not select them, or because an earlier rule of the input selects them.
    pub passed: u64,
}

pub(super) struct LineReader<'t> {
    topic: &'t Topic,
    /// The inputs of the key space. A capture of another topic, such as the output, has partition numbers that do not apply to the inputs.
    inputs: Vec<&'t str>,
    options: &'t Options,
    time: Option<Field>,
    record_key: Option<Field>,
    formats: Formats,
    schemas: Arc<dyn Schemas>,
    reader: Reader,
    earlier: EarlierRules<'t>,
    scratch: Scratch,
    fingerprints: Vec<Fingerprint>,
    pub(super) counts: Counts,
}

impl<'t> LineReader<'t> {
    /// Creates a reader that skips the records that a rule in `earlier` selects. Fails if an option does not apply to the format, or if
    /// lines of the format lack something that the topic requires.
    pub(super) fn new(
        topic: &'t Topic,
        earlier: EarlierRules<'t>,
        inputs: Vec<&'t str>,
        options: &'t Options,
        schemas: Arc<dyn Schemas>,
    ) -> Result<Self, Error> {
        let field = |option, pointer: &Option<String>| {
            let pointer = pointer.as_deref().filter(|_| options.format == Format::Ndjson);
            pointer.map(Field::new).transpose().map_err(|error| Error::Pointer { option, error })
        };
        match options.format {
            Format::Capture if options.time.is_some() || options.record_key.is_some() => {
                return Err(Error::Options(
                    "--time, --record-key: lines of a capture already have the time and the record key; remove these options".to_owned(),
                ));
            }
            Format::Ndjson => {
                let is_absent = |part: &&Part| match part {
                    Part::RecordKey | Part::KeyField(_) => options.record_key.is_none(),
                    Part::Header(_) | Part::HeaderInAnyCase(_) | Part::CloudEvent(_) => true,
                    _ => false,
                };
                if let Some(part) = topic.key.leaves().find(is_absent) {
                    let advice = if matches!(part, Part::RecordKey | Part::KeyField(_)) {
                        "set its location with --record-key"
                    } else {
                        "write a table with one column per part and use --format csv"
                    };
                    return Err(Error::Options(format!("the topic's key needs {part}, which an ndjson line does not have; {advice}")));
                }
                let is_absent = |test: &&Predicate| test.reads_headers() || test.reads_key() && options.record_key.is_none();
                if let Some(test) = earlier.predicates().chain(&topic.when).find(is_absent) {
                    return Err(Error::Options(format!(
                        "`when` tests {}, which an ndjson line does not have; write a table of selected keys and use --format csv",
                        test.place()
                    )));
                }
                match &topic.time {
                    Some(EventTime { place: place @ TimePlace::Header(_), optional: false, .. }) => {
                        return Err(Error::Options(format!(
                            "the topic's `time` is {place}, which an ndjson line does not have; write a table with a column `time` and use --format csv"
                        )));
                    }
                    Some(EventTime { place, optional: false, .. }) if options.time.is_some() => {
                        return Err(Error::Options(format!("--time: the topic's `time` already specifies {place}; leave out --time")));
                    }
                    _ => {}
                }
                if [topic.formats.key(), topic.formats.value()].iter().any(|side| !side.format.is_json()) {
                    let message = "ndjson lines are JSON, but the topic's records are not; use a file from `unseen capture` with --format capture, or a table with --format csv";
                    return Err(Error::Options(message.to_owned()));
                }
            }
            _ => {}
        }
        Ok(Self {
            topic,
            inputs,
            options,
            time: field("--time", &options.time)?,
            record_key: field("--record-key", &options.record_key)?,
            formats: if options.format == Format::Ndjson { Formats::default() } else { topic.formats.clone() },
            schemas,
            reader: Reader::default(),
            earlier,
            scratch: Scratch::default(),
            fingerprints: Vec::new(),
            counts: Counts::default(),
        })
    }

    /// Parses all lines and calls `take` for each line with a key, until `take` fails.
    pub(super) fn read(&mut self, input: impl BufRead, take: &mut Take<'_>) -> Result<(), Error> {
        if self.options.format == Format::Csv {
            return self.read_table(input, take);
        }
        let mut lines = Lines::new(input);
        loop {
            let read = match lines.next_line() {
                Ok(None) => return Ok(()),
                Ok(Some(line)) => self.take_line(line, take),
                Err(fault) => Err(fault.into()),
            };
            read.map_err(|fault| Error::Line { line: lines.number(), fault })?;
        }
    }

    fn take_line(&mut self, line: &[u8], take: &mut Take<'_>) -> Result<(), Fault> {
        self.counts.lines += 1;
        let is_capture = self.options.format == Format::Capture;
        let format = if is_capture { replay::Format::Kcat } else { replay::Format::Ndjson };
        let recorded = Recorded::parse(format, line, None)?;
        let record_key = match &self.record_key {
            Some(field) => field.text(line).map(|text| text.into_owned().into_bytes()),
            None => recorded.key.as_deref().map(<[u8]>::to_vec),
        };
        let headers = recorded.headers();
        let record = Record { key: record_key.as_deref(), value: recorded.value.as_deref(), headers: &headers };
        let timestamp = match &self.time {
            Some(field) => field.text(line).map(|text| time(&text)).transpose()?,
            None => recorded.time,
        };
        let Self { formats, scratch, schemas, .. } = self;
        let is_ours = self.earlier.check(formats, &record, scratch, &**schemas);
        let spec = RecordSpec { formats, ..self.topic.record_spec() };
        let KeyedRecord { fingerprint, retracts, time } =
            match is_ours.and_then(|()| self.reader.read(spec, &record, timestamp, scratch, &**schemas)) {
                Ok(keyed) => keyed,
                Err(NoKey::Awaits(schema)) => return Err(LineError::awaits(schema, &*self.schemas).into()),
                Err(NoKey::Passes) => {
                    self.counts.passed += 1;
                    return Ok(());
                }
                Err(NoKey::Invalid(invalid)) if self.topic.verdict_without_key(invalid.reason) == Verdict::Tombstone => {
                    self.counts.tombstones += 1;
                    return Ok(());
                }
                Err(NoKey::Invalid(invalid)) => return self.invalid(Fault::Invalid(*invalid)),
            };
        let is_ours = recorded.topic.as_deref().is_none_or(|topic| self.inputs.contains(&topic));
        let place = Place { partition: (is_capture && is_ours).then_some(recorded.partition), record_key: record_key.as_deref() };
        take(Line { fingerprints: &[fingerprint], time, place, is_retraction: retracts })
    }

    fn read_table(&mut self, input: impl BufRead, take: &mut Take<'_>) -> Result<(), Error> {
        let mut table = Table::new(input, &self.topic.key, self.options.time.as_deref(), self.options.record_key.as_deref())?;
        while let Some(line) = table.next_row()? {
            self.take_row(&table, take).map_err(|fault| Error::Line { line, fault })?;
        }
        Ok(())
    }

    fn take_row(&mut self, table: &Table<impl BufRead>, take: &mut Take<'_>) -> Result<(), Fault> {
        self.counts.lines += 1;
        self.fingerprints.clear();
        let texts = table.columns.texts(table.row());
        if let Err(error) = self.topic.key.fingerprints_of_texts(texts, &mut self.scratch, &mut self.fingerprints) {
            return self.invalid(error.into());
        }
        let text = |column: Option<usize>| table.row().get(column?);
        let time = text(table.columns.time).filter(|text| !text.is_empty()).map(|text| time(&String::from_utf8_lossy(text))).transpose()?;
        let place = Place { partition: None, record_key: text(table.columns.record_key) };
        take(Line { fingerprints: &self.fingerprints, time, place, is_retraction: false })
    }

    fn invalid(&mut self, fault: Fault) -> Result<(), Fault> {
        self.counts.invalid += 1;
        if self.options.skip_invalid { Ok(()) } else { Err(fault) }
    }
}

fn time(text: &str) -> Result<Timestamp, Fault> {
    parse_time(text).filter(|&time| time >= 0).ok_or_else(|| Fault::Time(text.chars().take(40).collect()))
}
