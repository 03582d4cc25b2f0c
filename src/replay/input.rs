//! Parses a line into a record, for each format.
//!
//! Parses all formats of lines, except for the fields of a capture, which `envelope` parses. This module never changes a byte of a line,
//! because the lines of unseen records are written as they were read.

use super::recorded::Recorded;
use super::{LineError, envelope};
use crate::format::compression;
use crate::key::{Field, instant_ms};
use crate::record::Timestamp;
use serde::Deserialize;
use std::borrow::Cow;
use std::io::{BufRead, Read};
use std::time::{Duration, UNIX_EPOCH};

/// Maximum number of bytes per line. By default, brokers accept only records of up to about 1 MiB, so the lines of a recorded stream are
/// much shorter.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The encoding of a record in a line of a recorded stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The value of a record. All records are in partition 0.
    #[default]
    Ndjson,
    /// A record in the format of `unseen capture` or `kcat -J`: a JSON object with partition, time, key, headers, and value.
    #[serde(rename = "capture")]
    Kcat,
}

/// Reads lines of bounded length and tracks the position in the input.
pub(crate) struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    offset: u64,
}

impl<R: BufRead> Lines<R> {
    pub(crate) const fn new(input: R) -> Self {
        Self { input, line: Vec::new(), number: 0, offset: 0 }
    }

    /// Returns the next nonempty line without its line end (`\n` or `\r\n`). The last line may lack a line end. Returns `None` at the end
    /// of the input.
    pub(crate) fn next_line(&mut self) -> Result<Option<&[u8]>, LineError> {
        loop {
            self.offset += self.line.len() as u64;
            self.number += 1;
            self.line.clear();
            (&mut self.input).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut self.line)?;
            if self.line.is_empty() {
                return Ok(None);
            }
            if self.number == 1
                && let Some(name) = compression(&self.line)
            {
                return Err(LineError::Compressed(name));
            }
            if self.line.len() as u64 > LINE_BYTES_MAX {
                return Err(LineError::Long(LINE_BYTES_MAX));
            }
            if !matches!(&*self.line, b"\n" | b"\r\n") {
                break;
            }
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// Returns the current line as it was read, with its line end.
    pub(crate) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Returns the number of the current line, starting at 1.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of bytes before the current line.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }
}

impl<'a> Recorded<'a> {
    /// Parses a record from a line. `time`, if set, is the field of an ndjson value that contains the record's time. For captures, `time`
    /// is ignored, because they contain the times of their records.
    pub(crate) fn parse(format: Format, line: &'a [u8], time: Option<&Field>) -> Result<Self, LineError> {
        match format {
            Format::Ndjson => {
                let time = time.and_then(|field| parse_time(&field.text(line)?)).filter(|&time| time >= 0);
                Ok(Self { time, value: Some(Cow::Borrowed(line)), ..Self::default() })
            }
            Format::Kcat => envelope::parse(line),
        }
    }
}

/// Parses integer milliseconds since the epoch, which may be negative, or RFC 3339 (see [`parse_rfc3339`]).
#[must_use]
pub fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok().or_else(|| parse_rfc3339(text))
}

/// Parses a time in RFC 3339 and returns milliseconds since the epoch, rounded down. Accepts the variants that the normalizer `timestamp`
/// accepts, such as a space instead of `T`. Without a time zone, the time is UTC. Returns `None` if the text has another form.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    instant_ms(text).or_else(|| instant_ms(&format!("{text}Z")))
}

/// The first millisecond of the year 10000, since the epoch.
const YEAR_10000: u64 = 253_402_300_800_000;

/// Formats a time as RFC 3339, in UTC, with milliseconds only if they are not zero. A time outside of the years 1970 to 9999, which RFC
/// 3339 cannot express, is formatted as a number of milliseconds.
#[must_use]
pub fn format_rfc3339(millis: Timestamp) -> String {
    let since = u64::try_from(millis).ok().filter(|&millis| millis < YEAR_10000);
    let since = since.and_then(|millis| UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
    match since {
        None => format!("{millis} ms"),
        Some(time) if millis % 1_000 == 0 => humantime::format_rfc3339_seconds(time).to_string(),
        Some(time) => humantime::format_rfc3339_millis(time).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_beyond_the_year_9999_is_a_number() {
        let times = [-1, 0, 253_402_300_799_999, 253_402_300_800_000, Timestamp::MAX].map(format_rfc3339);
        let expected = ["-1 ms", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z", "253402300800000 ms", "9223372036854775807 ms"];
        assert_eq!(times, expected);
    }

    fn lines(text: &str) -> Vec<(String, u64)> {
        let mut lines = Lines::new(text.as_bytes());
        let mut all = Vec::new();
        while let Some(line) = lines.next_line().unwrap().map(<[u8]>::to_vec) {
            all.push((String::from_utf8(line).unwrap(), lines.offset()));
        }
        all
    }

    #[test]
    fn line_ends_and_empty_lines_are_ignored() {
        assert_eq!(lines("a\nb\r\n\r\nc"), [("a", 0), ("b", 2), ("c", 7)].map(|(line, offset)| (line.to_owned(), offset)));
        assert_eq!(lines(""), []);
    }

    #[test]
    fn a_compressed_file_is_rejected() {
        for (magic, name) in [(&b"\x1f\x8b\x08\x00"[..], "gzip"), (b"\x28\xb5\x2f\xfd\x24", "zstd")] {
            let error = Lines::new(magic).next_line().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "the input is compressed with {name}; decompress it first, for example with a pipe: `{name} -dc FILE | unseen ...`"
                )
            );
        }
        assert_eq!(lines("a\n\u{1f}\u{8b}").len(), 2, "only the first line is checked for compression");
    }

    #[test]
    fn an_endless_line_is_rejected() {
        let mut endless = Lines::new(std::io::BufReader::new(std::io::repeat(b'x')));
        assert!(matches!(endless.next_line(), Err(LineError::Long(LINE_BYTES_MAX))));
    }

    #[test]
    fn times_are_milliseconds_or_rfc_3339() {
        for (text, time) in [
            ("1700000000123", 1_700_000_000_123),
            ("-5", -5),
            ("2023-11-14T22:13:20Z", 1_700_000_000_000),
            ("2023-11-14t22:13:20.123456z", 1_700_000_000_123),
            ("2023-11-14 22:13:20", 1_700_000_000_000),
            ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500),
            ("2023-11-14T16:43:20-05:30", 1_700_000_000_000),
            ("1970-01-01T00:30:00+01:00", -1_800_000),
        ] {
            assert_eq!(parse_time(text), Some(time), "{text}");
        }
        for text in [
            "",
            "1.5",
            "yesterday",
            "2023-11-14",
            "2023-11-14T22:13:20+1:00",
            "2023-11-14T22:13:20+24:00",
            "2023-11-14T22:13:20+é:00",
            "2023-13-14T22:13:20Z",
            "ééééééééééééééé+00:00",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
