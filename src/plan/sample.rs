//! Counts a recorded stream: distinct keys, duplicates, and keys in a window.
//!
//! Keys are counted by their 128-bit fingerprints, in memory. The count is exact as long as all keys fit into memory. With more keys, the
//! count is an estimate by adaptive sampling (Wegman; Flajolet, Computing 43, 1990). Whenever memory is full, about half of the keys are
//! dropped and ignored from then on, as if they had never occurred. The fingerprints decide which keys are dropped. So the memory for keys
//! is limited, no matter how long the input is.

use crate::config::{EarlierRules, Topic};
use crate::filter::{Slice, Window};
use crate::format::{Formats, Schemas};
use crate::key::{EventTime, Field, Fingerprint, KeySpec, NoKey, Predicate, Reader, RecordSpec, Scratch};
use crate::record::{Record, Timestamp};
use crate::replay::{Error as ReplayError, Format, LineError, Lines, Recorded};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;
use std::sync::Arc;

/// Maximum number of keys in memory: just below the capacity of a hash table with 2^20 entries of 33 bytes each. When memory is full, about
/// half of the keys are kept, so an estimate of the distinct keys is based on at least about half of the maximum.
const KEYS_MAX: usize = 900_000;

#[derive(Clone, Debug)]
pub struct SampleOptions {
    pub format: Format,
    pub key: KeySpec,
    /// Predicates that select records. A record that does not match all of them is counted as passed.
    pub when: Vec<Predicate>,
    /// Rules of the same input that come before this rule in the configuration. A record that one of these rules selects is counted as
    /// passed.
    pub earlier: Vec<Topic>,
    pub formats: Formats,
    pub schemas: Arc<dyn Schemas>,
    /// Location of the event time, if it is not Kafka's timestamp.
    pub event_time: Option<EventTime>,
    /// Location of the field that replaces Kafka's timestamp, for formats whose lines have no timestamp.
    pub time: Option<Field>,
    pub window: Option<Window>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    pub records: u64,
    pub distinct: u64,
    /// The larger of the relative standard errors of `distinct` and `window_keys`. 0 if all keys were counted.
    pub relative_error: f64,
    /// Number of records whose key also occurs in an earlier record.
    pub repeats: u64,
    /// Duplicates divided by records with a key.
    pub repeat_share: f64,
    /// Number of records without a key. They are also part of `records`, and of `untimed` if they have no time or if `event_time` is set.
    pub invalid: u64,
    /// Number of records that `when` does not select, or that an earlier rule of the input selects. They are also part of `records`, but of
    /// no other count.
    pub passed: u64,
    /// Number of records without a time. They are counted at the time of the previous records.
    pub untimed: u64,
    /// Time between the earliest and the latest record, in milliseconds, or `None` if no record has a time.
    pub span_ms: Option<u64>,
    /// The latest record time, or `None` if no record has a time.
    #[serde(skip)]
    pub last_time: Option<Timestamp>,
    /// Number of distinct keys in the busiest window. As in a filter, windows end at slice boundaries, and time never goes back. `None` if
    /// the options have no window, or if no record has a time.
    pub window_keys: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    #[error(transparent)]
    Line(#[from] ReplayError),
    #[error(
        "the sample has no record to count: it is empty, or its records have no key or are not selected; check the file, --format, the key, and `when`"
    )]
    Empty,
}

impl Sample {
    /// Reads `input` to its end and counts the records and keys.
    ///
    /// # Errors
    /// Returns an error if a line is malformed or needs a schema that is not available, or if no record has a key.
    pub fn count(input: impl BufRead, options: &SampleOptions) -> Result<Self, SampleError> {
        count(input, options, KEYS_MAX)
    }

    /// Returns the number of keys to plan for: the keys in the busiest window if known, or else all distinct keys.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.window_keys.unwrap_or(self.distinct)
    }
}

fn count(input: impl BufRead, options: &SampleOptions, keys_max: usize) -> Result<Sample, SampleError> {
    let mut lines = Lines::new(input);
    let mut sample = Sample::default();
    let mut windows = Windows { window: options.window, keys_max, ..Windows::default() };
    let (mut scratch, mut reader) = (Scratch::default(), Reader::default());
    let mut earlier: EarlierRules<'_> = options.earlier.iter().collect();
    let mut first = None;
    loop {
        let fingerprint = match lines.next_line() {
            Ok(None) => break,
            Ok(Some(line)) => Recorded::parse(options.format, line, options.time.as_ref()).map(|recorded| {
                sample.records += 1;
                let headers = recorded.headers();
                let record = Record { key: recorded.key.as_deref(), value: recorded.value.as_deref(), headers: &headers };
                let (key, formats, schemas) = (&options.key, &options.formats, &*options.schemas);
                let spec =
                    RecordSpec { key, content: None, when: &options.when, retract: None, time: options.event_time.as_ref(), formats };
                let is_ours = earlier.check(formats, &record, &mut scratch, schemas);
                let keyed = is_ours.and_then(|()| reader.read(spec, &record, recorded.time, &mut scratch, schemas));
                let time = match &keyed {
                    Ok(keyed) => keyed.time,
                    Err(NoKey::Passes) => return keyed.map(|keyed| keyed.fingerprint),
                    Err(_) => recorded.time.filter(|_| options.event_time.is_none()),
                };
                match time {
                    None => sample.untimed += 1,
                    Some(time) => {
                        first = Some(first.map_or(time, |first: Timestamp| first.min(time)));
                        windows.advance(time);
                    }
                }
                keyed.map(|keyed| keyed.fingerprint)
            }),
            Err(fault) => Err(fault),
        };
        match fingerprint.map_err(|fault| ReplayError::Line { line: lines.number(), offset: lines.offset(), fault })? {
            Ok(fingerprint) => windows.see(fingerprint),
            Err(NoKey::Invalid(_)) => sample.invalid += 1,
            Err(NoKey::Passes) => sample.passed += 1,
            Err(NoKey::Awaits(schema)) => {
                let fault = LineError::awaits(schema, &*options.schemas);
                return Err(ReplayError::Line { line: lines.number(), offset: lines.offset(), fault }.into());
            }
        }
    }
    windows.close();
    let keyed = sample.records - sample.invalid - sample.passed;
    if keyed == 0 {
        return Err(SampleError::Empty);
    }
    sample.distinct = windows.estimate(windows.last.len() as u64).min(keyed);
    sample.repeats = keyed - sample.distinct;
    sample.last_time = windows.time;
    sample.span_ms = first.zip(windows.time).map(|(first, last)| last.abs_diff(first));
    sample.window_keys = windows.time.and(windows.window).map(|_| windows.most);
    let fewest = sample.window_keys.map_or(sample.distinct, |keys| keys.min(sample.distinct));
    sample.relative_error = super::rounded(windows.relative_error(fewest));
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let share = sample.repeats as f64 / (sample.repeats + sample.distinct).max(1) as f64;
    sample.repeat_share = super::rounded(share);
    Ok(sample)
}

/// Counts the distinct keys in a sliding window. `last` has the slice of each key's last record, and `slices` has, for each slice, the
/// number of keys whose last record is in that slice. `last` and `slices` contain only keys whose fingerprints start with at least
/// `halvings` zero bits.
#[derive(Default)]
struct Windows {
    window: Option<Window>,
    keys_max: usize,
    halvings: u32,
    last: HashMap<Fingerprint, Slice>,
    slices: BTreeMap<Slice, u64>,
    time: Option<Timestamp>,
    slice: Slice,
    most: u64,
}

impl Windows {
    fn advance(&mut self, time: Timestamp) {
        let known = self.time;
        if known.is_some_and(|known| time <= known) {
            return;
        }
        self.time = Some(time);
        let slice = self.window.and_then(|window| window.slice_at(time)).unwrap_or_default();
        if known.is_none() {
            // Keys seen before any time was known belong to the slice of the first known time.
            self.slices = self.slices.values().map(|&keys| (slice, keys)).collect();
            self.last.values_mut().for_each(|last| *last = slice);
        } else if slice > self.slice {
            self.close();
        }
        self.slice = slice;
    }

    fn see(&mut self, fingerprint: Fingerprint) {
        if !is_counted(fingerprint, self.halvings) {
            return;
        }
        let before = self.last.insert(fingerprint, self.slice);
        if before != Some(self.slice) {
            *self.slices.entry(self.slice).or_default() += 1;
            if let Some(keys) = before.and_then(|before| self.slices.get_mut(&before)) {
                *keys -= 1;
            }
        }
        while self.last.len() > self.keys_max {
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.halvings += 1;
        let Self { last, slices, halvings, .. } = self;
        last.retain(|&fingerprint, slice| {
            let is_counted = is_counted(fingerprint, *halvings);
            if let (false, Some(keys)) = (is_counted, slices.get_mut(slice)) {
                *keys -= 1;
            }
            is_counted
        });
    }

    fn estimate(&self, counted: u64) -> u64 {
        counted.saturating_mul(1 << self.halvings.min(63))
    }

    /// Returns the relative standard error of an estimate, or 0 if all keys were counted. Each key is sampled independently, with the same
    /// probability.
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    fn relative_error(&self, estimate: u64) -> f64 {
        let counted = estimate >> self.halvings.min(63);
        if self.halvings == 0 { 0.0 } else { 1.0 / (counted.max(1) as f64).sqrt() }
    }

    /// Ends the current slice and updates the largest number of distinct keys per window. A key counts only in its last slice, so a window
    /// counts each key once.
    fn close(&mut self) {
        let slices = self.window.map_or(1, Window::slices);
        let oldest = self.slice.before(slices - 1);
        self.slices = self.slices.split_off(&oldest);
        self.most = self.most.max(self.estimate(self.slices.values().sum()));
    }
}

/// True if a key is still counted after the sampled share of keys was halved `halvings` times.
const fn is_counted(fingerprint: Fingerprint, halvings: u32) -> bool {
    fingerprint.high().leading_zeros() >= halvings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::NoSchemas;
    use crate::key::Part;

    fn options(format: Format, key: Part) -> SampleOptions {
        let key = KeySpec::new(vec![key]).unwrap();
        SampleOptions {
            format,
            key,
            when: Vec::new(),
            earlier: Vec::new(),
            formats: Formats::default(),
            schemas: Arc::new(NoSchemas),
            event_time: None,
            time: None,
            window: None,
        }
    }

    fn counted(format: Format, key: Part, time: Option<&str>, window: Option<Window>, lines: &str) -> Sample {
        let time = time.map(|pointer| Field::new(pointer).unwrap());
        let options = SampleOptions { time, window, ..options(format, key) };
        Sample::count(lines.as_bytes(), &options).unwrap()
    }

    #[test]
    fn ndjson_is_counted_exactly() {
        let lines = "{\"id\":1,\"t\":0}\n{\"id\":2,\"t\":5}\n\n{\"id\":1,\"t\":9}\n{\"no\":1}\nbroken\n{\"id\":1}\n";
        let expected = Sample {
            records: 6,
            distinct: 2,
            relative_error: 0.0,
            repeats: 2,
            repeat_share: 0.5,
            invalid: 2,
            passed: 0,
            untimed: 3,
            span_ms: Some(9),
            last_time: Some(9),
            window_keys: None,
        };
        assert_eq!(counted(Format::Ndjson, Part::Field("/id".into()), Some("/t"), None, lines), expected);
        let whole = counted(Format::Ndjson, Part::RecordValue, None, None, lines);
        assert_eq!((whole.records, whole.distinct, whole.repeats, whole.span_ms), (6, 6, 0, None));
        assert_eq!(whole.keys(), 6);
    }

    #[test]
    fn only_selected_records_count() {
        let lines =
            "{\"id\":1,\"type\":\"a\",\"t\":5}\n{\"id\":2,\"type\":\"b\",\"t\":900}\n{\"id\":1,\"type\":\"a\",\"t\":9}\n{\"t\":1}\n";
        let selected = Predicate::field(crate::format::Side::Value, "/type").unwrap().one_of(vec!["a".to_owned()]);
        let time = Field::new("/t").ok();
        let options = SampleOptions { when: vec![selected], time, ..options(Format::Ndjson, Part::Field("/id".into())) };
        let sample = Sample::count(lines.as_bytes(), &options).unwrap();
        assert_eq!((sample.records, sample.distinct, sample.repeats, sample.passed), (4, 1, 1, 2));
        assert_eq!((sample.invalid, sample.untimed, sample.span_ms), (0, 0, Some(4)));
    }

    #[test]
    fn kcat_is_counted_exactly() {
        let line = |key: &str, ts: i64| format!("{{\"partition\":0,\"tstype\":\"create\",\"ts\":{ts},\"key\":{key},\"payload\":\"x\"}}\n");
        let lines: String = [line("\"a\"", 10), line("\"b\"", 20), line("\"a\"", 30), line("null", 40)].concat();
        let sample = counted(Format::Kcat, Part::RecordKey, None, None, &lines);
        assert_eq!((sample.records, sample.distinct, sample.repeats, sample.invalid), (4, 2, 1, 1));
        assert_eq!(sample.span_ms, Some(30));
    }

    #[test]
    fn the_busiest_window_is_found() {
        let window = Some(Window::time(100, 2));
        let sample = |stream: &[(u32, i64)]| {
            let lines: String = stream.iter().map(|(id, time)| format!("{{\"id\":{id},\"t\":{time}}}")).collect::<Vec<_>>().join("\n");
            counted(Format::Ndjson, Part::Field("/id".into()), Some("/t"), window, &lines)
        };
        // Slices of 50 ms have the keys 1 2 | 3 | 1 4 5 | … | 6.
        assert_eq!(sample(&[(1, 0), (2, 10), (3, 50), (1, 100), (4, 101), (5, 102), (6, 900)]).window_keys, Some(4));
        // Time does not go back: a late record belongs to the open slice.
        assert_eq!(sample(&[(1, 500), (2, 0), (3, 501)]).window_keys, Some(3));
        assert_eq!(sample(&[(1, 500)]).keys(), 1);
        assert_eq!(counted(Format::Ndjson, Part::RecordValue, None, window, "a\nb\n").window_keys, None);
    }

    #[test]
    fn keys_before_the_first_time_belong_to_it() {
        let lines = "{\"id\":1}\n{\"id\":2}\n{\"id\":3,\"t\":70}\n{\"id\":1,\"t\":71}\n";
        let sample = counted(Format::Ndjson, Part::Field("/id".into()), Some("/t"), Some(Window::time(20, 2)), lines);
        assert_eq!((sample.window_keys, sample.distinct), (Some(3), 3));
    }

    #[test]
    fn more_keys_than_memory_holds_are_estimated() {
        // 40,000 keys per slice of 100 ms. Half of them occur again in the next slice, so a window of two slices has 60,000 keys.
        let lines =
            (0..10_u32).flat_map(|slice| (0..40_000).map(move |key| format!("{{\"id\":{},\"t\":{}}}", slice * 20_000 + key, slice * 100)));
        let lines = lines.collect::<Vec<_>>().join("\n");
        let options = SampleOptions {
            time: Some(Field::new("/t").unwrap()),
            window: Some(Window::time(200, 2)),
            ..options(Format::Ndjson, Part::Field("/id".into()))
        };
        let exact = count(lines.as_bytes(), &options, usize::MAX).unwrap();
        assert_eq!((exact.distinct, exact.repeats, exact.window_keys, exact.relative_error), (220_000, 180_000, Some(60_000), 0.0));
        let bounded = count(lines.as_bytes(), &options, 10_000).unwrap();
        assert!((0.015..=0.03).contains(&bounded.relative_error), "{bounded:?}");
        // The fullest window has about 1,900 sampled keys. Four standard errors of such an estimate are about a tenth.
        assert!(bounded.distinct.abs_diff(220_000) <= 22_000 && bounded.window_keys.unwrap().abs_diff(60_000) <= 6_000, "{bounded:?}");
        assert_eq!(bounded.distinct + bounded.repeats, 400_000);
    }

    #[test]
    fn memory_is_bounded() {
        let mut windows = Windows { keys_max: 100, ..Windows::default() };
        for key in 0..100_000_u128 {
            windows.see(Fingerprint(key.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)));
            assert!(windows.last.len() <= 100);
        }
        assert!(windows.halvings >= 9 && windows.last.len() > 10, "{}", windows.halvings);
        assert_eq!(windows.slices.values().sum::<u64>(), windows.last.len() as u64);
    }

    #[test]
    fn errors_name_the_line() {
        let options = |format| options(format, Part::RecordValue);
        let error = Sample::count(&b"\n{}\n"[..], &options(Format::Kcat)).unwrap_err().to_string();
        assert!(error.starts_with("line 2, at byte 1: expected a record in the format of `unseen capture` or `kcat -J`"), "{error}");
        let error = Sample::count(&b"\n"[..], &options(Format::Ndjson)).unwrap_err();
        assert!(matches!(error, SampleError::Empty), "{error}");
    }
}
