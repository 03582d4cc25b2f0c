//! One key of a recorded stream: its records, and the verdict of each.
//!
//! The exact window contains only this key, so its memory does not grow with the number of keys in the stream.

use super::{Error, Format, LineError, Lines, Others, Recorded, Replay};
use crate::filter::Slice;
use crate::key::{Fingerprint, NoKey, RecordSpec};
use crate::record::{Offset, Record, Timestamp, Verdict};
use std::io::BufRead;

/// A record found by its offset, from [`Replay::find`].
#[derive(Clone, Debug)]
pub struct RecordedKey {
    /// The time that the window uses, or Kafka's timestamp if the record has no key.
    pub time: Option<Timestamp>,
    /// Fingerprint of the key, or the reason for the missing key.
    pub fingerprint: Result<Fingerprint, NoKey>,
    /// Parts of the key as text, in order. Empty if there is no key.
    pub texts: Vec<String>,
    /// The first offset of the partition in the input.
    pub first_offset: Option<Offset>,
    /// The index of the rule that selects the record, among the rules of the input.
    pub rule: usize,
}

/// A record of the requested key, from [`Replay::follow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowedRecord {
    /// Offset of the record. `None` if the line has no offset.
    pub offset: Option<Offset>,
    /// Fingerprint of the key. With `emit = "on_change"`, it includes the compared content.
    pub fingerprint: Fingerprint,
    /// Verdict of the configured filter. Never [`Verdict::Invalid`], [`Verdict::Tombstone`], or [`Verdict::Passed`], because those records
    /// have no key.
    pub verdict: Verdict,
    /// True if the record was dropped although an exact window would not have dropped it.
    pub is_wrong: bool,
    /// The partition's current slice after the record. `None` if the partition has no slice yet.
    pub slice: Option<Slice>,
    /// The partition's stream time after the record, in milliseconds since the epoch.
    pub stream_time: Option<Timestamp>,
}

impl Replay<'_> {
    /// Finds the record at an offset of a partition of `topic` and reads its key. Evaluates no record. Returns `None` if the input does not
    /// contain the record.
    ///
    /// # Errors
    /// Fails if a line up to the record is malformed or cannot be read, or if the record's schema is not available.
    pub fn find(&mut self, input: impl BufRead, topic: &str, partition: i32, offset: Offset) -> Result<Option<RecordedKey>, Error> {
        let mut lines = Lines::new(input);
        let mut first_offset = None;
        loop {
            let found = match lines.next_line() {
                Ok(None) => return Ok(None),
                Ok(Some(line)) => self.find_in(line, (topic, partition, offset), &mut first_offset),
                Err(fault) => Err(fault),
            };
            let found = found.map_err(|fault| Error::Line { line: lines.number(), offset: lines.offset(), fault })?;
            if let Some(found) = found {
                return Ok(Some(RecordedKey { first_offset, ..found }));
            }
        }
    }

    fn find_in(&mut self, line: &[u8], of: (&str, i32, Offset), first: &mut Option<Offset>) -> Result<Option<RecordedKey>, LineError> {
        let (topic, partition, offset) = of;
        let recorded = Recorded::parse(Format::Kcat, line, None)?;
        if recorded.partition != partition || recorded.topic.as_ref().is_some_and(|other| other != topic) {
            return Ok(None);
        }
        if first.is_none() {
            *first = recorded.offset;
        }
        if recorded.offset != Some(offset) {
            return Ok(None);
        }
        let headers = recorded.headers();
        let record = Record { key: recorded.key.as_deref(), value: recorded.value.as_deref(), headers: &headers };
        let spec = RecordSpec { formats: &self.formats, ..self.topic.record_spec() };
        let (fingerprint, time) = match self.reader.read(spec, &record, recorded.time, &mut self.scratch, &*self.schemas) {
            Ok(keyed) => (Ok(keyed.fingerprint), keyed.time),
            Err(NoKey::Awaits(schema)) => return Err(LineError::awaits(schema, &*self.schemas)),
            Err(no_key) => (Err(no_key), recorded.time),
        };
        if let (Err(NoKey::Passes), Some(next)) = (&fingerprint, &mut self.next) {
            let found = next.find_in(line, of, first)?;
            return Ok(found.map(|found| RecordedKey { rule: found.rule + 1, ..found }));
        }
        let texts = if fingerprint.is_ok() { self.scratch.texts() } else { Vec::new() };
        Ok(Some(RecordedKey { time, fingerprint, texts, first_offset: None, rule: 0 }))
    }

    /// Evaluates all records of `input`, except records of other topics. `only` is a partition and the fingerprint of a key without its
    /// content (see `Emit::key_of`). Calls `take` for every record of this partition and key that the last rule evaluates, in the order of
    /// the input. The exact window has only this key. See [`Replay::run_and_list`] for `max_timestamp`. Returns the final slice and stream
    /// time of the partition.
    ///
    /// # Errors
    /// Fails at the first [`LineError`].
    pub fn follow(
        &mut self,
        input: impl BufRead,
        only: (i32, Fingerprint),
        max_timestamp: impl Fn() -> Timestamp,
        take: &mut dyn FnMut(FollowedRecord),
    ) -> Result<(Option<Slice>, Option<Timestamp>), Error> {
        self.others = Others::Skip;
        let last = self.last_rule();
        (last.truth, last.only) = (true, Some(only));
        let mut lines = Lines::new(input);
        loop {
            self.is_wrong = false;
            let evaluated = match lines.next_line() {
                Ok(None) => break,
                Ok(Some(line)) => self.line(line, &max_timestamp),
                Err(fault) => Err(fault),
            };
            evaluated.map_err(|fault| Error::Line { line: lines.number(), offset: lines.offset(), fault })?;
            if let Some(followed) = self.followed.take() {
                take(followed);
            }
        }
        let of = usize::try_from(only.0).ok().and_then(|at| self.last_rule().partitions.get(at)).and_then(Option::as_ref);
        Ok(of.map_or((None, None), |of| (of.dedup.slice(), of.dedup.stream_time())))
    }
}
