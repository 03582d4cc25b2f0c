//! What a recorded stream really shows: distinct keys, repeats, and keys in a window.
//!
//! Owns the count, by 128-bit fingerprints in memory: exact as long as that holds all keys, and beyond that of a share of
//! them. That is adaptive sampling (Wegman; Flajolet, Computing 43, 1990): whenever memory is full, half of the keys are
//! left out, by their fingerprints, from then on and in hindsight. Must never take more memory, whatever it reads.

use crate::filter::{Slice, Window};
use crate::format::{Formats, NoKey, Reader, Schemas};
use crate::key::{Field, Fingerprint, KeySpec, Scratch};
use crate::record::{Record, Timestamp};
use crate::replay::{Error as ReplayError, Format, LineError, Lines, Recorded};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;
use std::sync::Arc;

/// Most keys in memory: what a table of 2^20 places holds, 33 bytes each. At least half as many make an estimate.
const KEYS_MAX: usize = 900_000;

/// How a sample is to be read.
#[derive(Clone, Debug)]
pub struct SampleOptions {
    /// What a line is.
    pub format: Format,
    /// Where the key is.
    pub key: KeySpec,
    /// What keys and values are.
    pub formats: Formats,
    /// Who has their schemas.
    pub schemas: Arc<dyn Schemas>,
    /// Where the time is, for formats whose lines have no other.
    pub time: Option<Field>,
    /// The window to count keys in.
    pub window: Option<Window>,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Records read.
    pub records: u64,
    /// Distinct keys.
    pub distinct: u64,
    /// Standard error of the distinct keys, or of those in the busiest window, whichever is larger, as a share of them; 0 if all
    /// keys were counted.
    pub relative_error: f64,
    /// Records whose key had come before.
    pub repeats: u64,
    /// Repeats over records with a key.
    pub repeat_share: f64,
    /// Records without a key; they are in no other count.
    pub invalid: u64,
    /// Records without a time; they are taken to be of the time of those before.
    pub untimed: u64,
    /// From the first time to the last, in milliseconds; `None` if no record has one.
    pub span_ms: Option<u64>,
    /// The last time; `None` if no record has one.
    #[serde(skip)]
    pub last_time: Option<Timestamp>,
    /// Distinct keys in the busiest window. Windows end where slices do, and time never goes back, as in a filter.
    pub window_keys: Option<u64>,
}

/// Why a sample is not counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A line is at fault.
    #[error(transparent)]
    Line(#[from] ReplayError),
    /// There is nothing to plan for.
    #[error("the sample has no record with a key; say where the key is with --key, or name a configuration with -c")]
    Empty,
}

impl Sample {
    /// Reads `input` to its end and counts.
    ///
    /// # Errors
    /// When a line is at fault, or no record has a key.
    pub fn count(input: impl BufRead, options: &SampleOptions) -> Result<Self, SampleError> {
        count(input, options, KEYS_MAX)
    }

    /// The keys to plan for: those of the busiest window if that is known, else all.
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
    let mut first = None;
    loop {
        let fingerprint = match lines.next_line() {
            Ok(None) => break,
            Ok(Some(line)) => Recorded::parse(options.format, line, options.time.as_ref()).map(|recorded| {
                sample.records += 1;
                match recorded.time {
                    None => sample.untimed += 1,
                    Some(time) => {
                        first = Some(first.map_or(time, |first: Timestamp| first.min(time)));
                        windows.advance(time);
                    }
                }
                let headers = recorded.headers();
                let record = Record { key: recorded.key.as_deref(), value: recorded.value.as_deref(), headers: &headers };
                reader.fingerprint(&options.key, &options.formats, &record, &mut scratch, &*options.schemas)
            }),
            Err(fault) => Err(fault),
        };
        match fingerprint.map_err(|fault| ReplayError::Line { line: lines.number(), offset: lines.offset(), fault })? {
            Ok(fingerprint) => windows.see(fingerprint),
            Err(NoKey::Invalid(_)) => sample.invalid += 1,
            Err(NoKey::Awaits(schema)) => {
                let fault = LineError::awaits(schema, &*options.schemas);
                return Err(ReplayError::Line { line: lines.number(), offset: lines.offset(), fault }.into());
            }
        }
    }
    windows.close();
    let keyed = sample.records - sample.invalid;
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

/// When each key was seen last, by slices, and how many were so in each of the slices of a window. Of the keys, those whose
/// fingerprints begin with `halvings` zeros.
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
    /// Time has come to `time`, if it is not past that.
    fn advance(&mut self, time: Timestamp) {
        let known = self.time;
        if known.is_some_and(|known| time <= known) {
            return;
        }
        self.time = Some(time);
        let slice = self.window.and_then(|window| window.slice_at(time)).unwrap_or_default();
        if known.is_none() {
            // Keys that came before any time was known belong to the first time that is.
            self.slices = self.slices.values().map(|&keys| (slice, keys)).collect();
            self.last.values_mut().for_each(|last| *last = slice);
        } else if slice > self.slice {
            self.close();
        }
        self.slice = slice;
    }

    /// Takes note of a key.
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

    /// Leaves out half of the keys, as if they had never come.
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

    /// How many keys there are if so many are counted.
    fn estimate(&self, counted: u64) -> u64 {
        counted.saturating_mul(1 << self.halvings.min(63))
    }

    /// The standard error of an estimate, as a share of it: each key is counted or not by the toss of a coin.
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    fn relative_error(&self, estimate: u64) -> f64 {
        let counted = estimate >> self.halvings.min(63);
        if self.halvings == 0 { 0.0 } else { 1.0 / (counted.max(1) as f64).sqrt() }
    }

    /// The current slice has ended: as many keys as were seen last in its window are distinct in that.
    fn close(&mut self) {
        let slices = self.window.map_or(1, Window::slices);
        let oldest = self.slice.before(slices - 1);
        self.slices = self.slices.split_off(&oldest);
        self.most = self.most.max(self.estimate(self.slices.values().sum()));
    }
}

/// Whether a key is among those that are counted after so many halvings.
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
        SampleOptions { format, key, formats: Formats::default(), schemas: Arc::new(NoSchemas), time: None, window: None }
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
        // Slices of 50: keys 1 2 | 3 | 1 4 5 | … | 6
        assert_eq!(sample(&[(1, 0), (2, 10), (3, 50), (1, 100), (4, 101), (5, 102), (6, 900)]).window_keys, Some(4));
        // Time does not go back: a late record is of the slice that is open.
        assert_eq!(sample(&[(1, 500), (2, 0), (3, 501)]).window_keys, Some(3));
        assert_eq!(sample(&[(1, 500)]).keys(), 1);
        // Without a time there are no windows.
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
        // 40,000 keys a slice of 100 ms, half of which come again in the next: 60,000 in a window of two slices.
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
        // Four standard errors of fewer than 2,000 keys are a tenth.
        assert!(bounded.distinct.abs_diff(220_000) <= 22_000 && bounded.window_keys.unwrap().abs_diff(60_000) <= 6_000, "{bounded:?}");
        assert_eq!(bounded.distinct + bounded.repeats, 400_000);
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut windows = Windows { keys_max: 100, ..Windows::default() };
        for key in 0..100_000_u128 {
            windows.see(Fingerprint(key.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)));
            assert!(windows.last.len() <= 100);
        }
        assert!(windows.halvings >= 9 && windows.last.len() > 10, "{}", windows.halvings);
        assert_eq!(windows.slices.values().sum::<u64>(), windows.last.len() as u64);
    }

    #[test]
    fn faults_are_named() {
        let options = |format| options(format, Part::RecordValue);
        let error = Sample::count(&b"\n{}\n"[..], &options(Format::Kcat)).unwrap_err().to_string();
        assert!(error.starts_with("line 2, at byte 1: expected a record as `unseen capture` writes it or `kcat -J` prints it"), "{error}");
        let error = Sample::count(&b"\n"[..], &options(Format::Ndjson)).unwrap_err();
        assert!(matches!(error, SampleError::Empty), "{error}");
    }
}
