//! From a line to a record, for each format.
//!
//! Owns what a recorded line means. Must never change a byte of it: what goes out is what came in.

use super::LineError;
use crate::key::Field;
use crate::record::Timestamp;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::io::{BufRead, Read};
use std::time::UNIX_EPOCH;

/// Most bytes in a line. Brokers refuse records of a tenth of that unless configured otherwise.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What a line of a recorded stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A record's value, whatever it is. There is one partition, 0.
    #[default]
    Ndjson,
    /// A record as `kcat -J` prints it: a JSON object with its partition, time, key, headers and value.
    Kcat,
}

/// Reads lines of bounded length, and knows where it is.
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

    /// The next line that is not empty, without its end, which is `\n` or `\r\n`, or nothing in the last one.
    pub(crate) fn next_line(&mut self) -> Result<Option<&[u8]>, LineError> {
        loop {
            self.offset += self.line.len() as u64;
            self.number += 1;
            self.line.clear();
            (&mut self.input).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut self.line)?;
            if self.line.is_empty() {
                return Ok(None);
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

    /// The line as it came.
    pub(crate) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Its number, from 1.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Bytes before it.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }
}

/// Name and value of a header.
type Header<'a> = (Cow<'a, str>, Option<Cow<'a, [u8]>>);

/// A record as a line has it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded<'a> {
    pub(crate) partition: i32,
    /// As in a worker, what lies before the epoch is no time.
    pub(crate) time: Option<Timestamp>,
    pub(crate) key: Option<Cow<'a, [u8]>>,
    pub(crate) value: Option<Cow<'a, [u8]>>,
    pub(crate) headers: Vec<Header<'a>>,
}

impl<'a> Recorded<'a> {
    /// The record of a line; `time` is the field of the value that holds its time, if any does.
    pub(crate) fn parse(format: Format, line: &'a [u8], time: Option<&Field>) -> Result<Self, LineError> {
        match format {
            Format::Ndjson => {
                let time = time.and_then(|field| parse_time(&field.text(line)?)).filter(|&time| time >= 0);
                Ok(Self { time, value: Some(Cow::Borrowed(line)), ..Self::default() })
            }
            Format::Kcat => {
                let kcat: Kcat<'a> = serde_json::from_slice(line).map_err(|error| LineError::Kcat(error.to_string()))?;
                kcat.try_into().map_err(LineError::Kcat)
            }
        }
    }
}

/// What `kcat -J` prints (<https://github.com/edenhill/kcat>, `json.c`), as far as it matters here.
#[derive(serde::Deserialize)]
#[serde(expecting = "an object with partition, key and payload")]
struct Kcat<'a> {
    partition: i32,
    tstype: Option<String>,
    ts: Option<Timestamp>,
    /// Names and values by turns.
    #[serde(borrow, default)]
    headers: Vec<Text<'a>>,
    // Null, but not missing: a line without them is of another format.
    #[serde(borrow, deserialize_with = "Text::deserialize")]
    key: Text<'a>,
    #[serde(borrow, deserialize_with = "Text::deserialize")]
    payload: Text<'a>,
}

impl<'a> TryFrom<Kcat<'a>> for Recorded<'a> {
    type Error = String;

    fn try_from(kcat: Kcat<'a>) -> Result<Self, String> {
        let time = kcat.ts.filter(|&ts| ts >= 0 && kcat.tstype.as_deref() != Some("unknown"));
        let mut headers = Vec::with_capacity(kcat.headers.len() / 2);
        let mut texts = kcat.headers.into_iter();
        while let Some(name) = texts.next() {
            let name = match name.0 {
                Some(Cow::Borrowed(name)) => std::str::from_utf8(name).ok().map(Cow::Borrowed),
                Some(Cow::Owned(name)) => String::from_utf8(name).ok().map(Cow::Owned),
                None => None,
            };
            let name = name.ok_or("a header whose name is no text")?;
            let value = texts.next().ok_or_else(|| format!("header `{name}` without value"))?;
            headers.push((name, value.0));
        }
        Ok(Self { partition: kcat.partition, time, key: kcat.key.0, value: kcat.payload.0, headers })
    }
}

/// A JSON string or null. kcat escapes what JSON needs escaped and prints all other bytes as they are,
/// so that a string need not be UTF-8; read as bytes, it is what the record had.
struct Text<'a>(Option<Cow<'a, [u8]>>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_option(TextVisitor).map(Self)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Option<Cow<'de, [u8]>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or null")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_bytes(self)
    }

    fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
        Ok(Some(Cow::Borrowed(bytes)))
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(bytes.to_vec())))
    }
}

/// Integer milliseconds since the epoch, or RFC 3339, from 1970 on. Of the latter, `T` may be a space,
/// the offset is `Z`, `+01:00` or the like, and if it is missing UTC is meant.
fn parse_time(text: &str) -> Option<Timestamp> {
    if let Ok(milliseconds) = text.parse() {
        return Some(milliseconds);
    }
    let text = text.to_ascii_uppercase();
    let (local, east) = text.rfind(['+', '-']).filter(|&sign| sign > "2000-01-01T00:00".len()).map_or(Some((&*text, 0)), |sign| {
        let (hours, minutes) = text[sign + 1..].split_once(':')?;
        if hours.len() != 2 || minutes.len() != 2 {
            return None;
        }
        let east = hours.parse::<u8>().ok().filter(|&hours| hours < 24).map(i64::from)? * 60
            + minutes.parse::<u8>().ok().filter(|&minutes| minutes < 60).map(i64::from)?;
        Some((&text[..sign], if text[sign..].starts_with('-') { -east } else { east }))
    })?;
    let utc = humantime::parse_rfc3339_weak(local).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(i64::try_from(utc.as_millis()).ok()? - east * 60_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kcat(line: &str) -> Result<Recorded<'_>, String> {
        Recorded::parse(Format::Kcat, line.as_bytes(), None).map_err(|fault| fault.to_string())
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
    fn line_ends_are_no_part_of_the_value_and_empty_lines_no_records() {
        assert_eq!(lines("a\nb\r\n\r\nc"), [("a", 0), ("b", 2), ("c", 7)].map(|(line, offset)| (line.to_owned(), offset)));
        assert_eq!(lines(""), []);
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut endless = Lines::new(std::io::BufReader::new(std::io::repeat(b'x')));
        assert!(matches!(endless.next_line(), Err(LineError::Long(LINE_BYTES_MAX))));
    }

    #[test]
    fn a_whole_kcat_line() {
        let line = r#"{"topic":"t","partition":3,"offset":17,"tstype":"create","ts":1700000000123,"broker":1,"headers":["a","1","b",null],"key":"k\u00e9\n","payload":"{\"id\":1}"}"#;
        let recorded = kcat(line).unwrap();
        assert_eq!((recorded.partition, recorded.time), (3, Some(1_700_000_000_123)));
        assert_eq!(recorded.key.as_deref(), Some("ké\n".as_bytes()));
        assert_eq!(recorded.value.as_deref(), Some(&br#"{"id":1}"#[..]));
        assert_eq!(recorded.headers, [("a".into(), Some(b"1"[..].into())), ("b".into(), None)]);
    }

    #[test]
    fn a_bare_kcat_line() {
        let recorded = kcat(r#"{"topic":"t","partition":0,"offset":0,"broker":-1,"key":null,"payload":null}"#).unwrap();
        assert_eq!(recorded, Recorded::default());
    }

    #[test]
    fn bytes_that_are_no_text_come_through() {
        let line = b"{\"partition\":0,\"key\":\"\xff\\u0000\\\"\",\"payload\":\"\xc3\x28\"}";
        let recorded = Recorded::parse(Format::Kcat, line, None).unwrap();
        assert_eq!(recorded.key.as_deref(), Some(&b"\xff\0\""[..]));
        assert_eq!(recorded.value.as_deref(), Some(&b"\xc3\x28"[..]));
    }

    #[test]
    fn no_time_is_no_time() {
        for time in [
            r#""tstype":"unknown","ts":0,"#,
            r#""tstype":"create","ts":-1,"#,
            r#""tstype":"logappend","ts":-2,"#,
            r#""tstype":"create","ts":null,"#,
            "",
        ] {
            let line = format!("{{{time}\"partition\":0,\"key\":null,\"payload\":null}}");
            assert_eq!(kcat(&line).unwrap().time, None, "{time}");
        }
        assert_eq!(kcat(r#"{"tstype":"create","ts":0,"partition":0,"key":null,"payload":null}"#).unwrap().time, Some(0));
    }

    #[test]
    fn lines_that_kcat_does_not_print_are_refused() {
        for (line, what) in [
            ("", "EOF"),
            ("[]", "an object with partition, key and payload"),
            (r#"{"id":1}"#, "missing field `partition`"),
            (r#"{"partition":0,"payload":"x"}"#, "missing field `key`"),
            (r#"{"partition":0,"key":null}"#, "missing field `payload`"),
            (r#"{"partition":0,"key":null,"payload":{"avro":1}}"#, "a string or null"),
            (r#"{"partition":"0","key":null,"payload":null}"#, "i32"),
            (r#"{"partition":0,"headers":["a"],"key":null,"payload":null}"#, "header `a` without value"),
            (r#"{"partition":0,"headers":[null,"a"],"key":null,"payload":null}"#, "a header whose name is no text"),
            (r#"{"partition":0,"key":null,"payload":null} {}"#, "trailing characters"),
        ] {
            let error = kcat(line).unwrap_err();
            assert!(error.contains(what), "{line}: {error}");
        }
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
