//! A record as a line of JSON, as written by `unseen capture` and printed by `kcat -J`.
//!
//! Defines the names of the fields, for writing and for reading. This module never changes a byte of a record. Bytes that are not UTF-8 are
//! written in base64. A line has these fields, in this order:
//!
//! | field | content |
//! |---|---|
//! | `topic`, `partition`, `offset` | location of the record |
//! | `tstype`, `ts` | source of the time, `create` or `logappend`, and the time in milliseconds. Left out if the record has no time |
//! | `headers` | alternating names and values, in order. A value can be null. Left out if the record has no headers |
//! | `headers_base64` | the headers in base64, if a name or a value is not UTF-8. `headers` is then left out |
//! | `key`, `payload` | key and value as text, or null |
//! | `key_base64`, `payload_base64` | the key or value in base64, if it is not UTF-8. `key` or `payload` is then left out |
//!
//! kcat (<https://github.com/edenhill/kcat>, `json.c`) does not use base64. It escapes only the bytes that JSON requires to be escaped and
//! prints all others unchanged. A key, payload, or header in a line can therefore be invalid UTF-8, so this module reads them as bytes.

use super::LineError;
use super::recorded::{Header, Recorded};
use crate::record::{Offset, Timestamp, TimestampType};
use data_encoding::BASE64;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

/// A record of a topic, to be written as a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured<'a> {
    /// The topic's name.
    pub topic: &'a str,
    /// The partition number, starting at 0.
    pub partition: i32,
    /// The offset within the partition.
    pub offset: Offset,
    /// The source of the record time, and the record time in milliseconds since the epoch. `None` if the record has no time.
    pub time: Option<(TimestampType, Timestamp)>,
    /// The record key, or `None` if it is null.
    pub key: Option<&'a [u8]>,
    /// The record value, or `None` if it is null.
    pub value: Option<&'a [u8]>,
    /// Names and values of the headers, in order. A value is `None` if it is null.
    pub headers: &'a [(&'a [u8], Option<&'a [u8]>)],
}

impl Captured<'_> {
    /// Writes the line, including its newline.
    ///
    /// # Errors
    /// Fails if `output` cannot be written.
    pub fn write(&self, mut output: impl Write) -> io::Result<()> {
        let parts = self.headers.iter().flat_map(|&(name, value)| [Some(name), value]);
        let texts: Option<Vec<_>> = parts.clone().map(text).collect();
        let (key, payload) = (text(self.key), text(self.value));
        let line = CaptureLine {
            topic: self.topic,
            partition: self.partition,
            offset: self.offset,
            tstype: self.time.map(|(kind, _)| match kind {
                TimestampType::CreateTime => "create",
                TimestampType::LogAppendTime => "logappend",
            }),
            ts: self.time.map(|(_, time)| time),
            headers_base64: if texts.is_some() { Vec::new() } else { parts.map(|part| part.map(Base64)).collect() },
            headers: texts.unwrap_or_default(),
            key_base64: self.key.filter(|_| key.is_none()).map(Base64),
            payload_base64: self.value.filter(|_| payload.is_none()).map(Base64),
            key,
            payload,
        };
        serde_json::to_writer(&mut output, &line)?;
        output.write_all(b"\n")
    }
}

/// Converts bytes or null to text or null. Returns `None` if the bytes are not UTF-8.
fn text(bytes: Option<&[u8]>) -> Option<Nullable<'_>> {
    bytes.map(std::str::from_utf8).transpose().ok().map(Nullable)
}

/// A string or null in JSON. In [`CaptureLine`], `key` and `payload` are an `Option` of this type, because `None` leaves the field out, and
/// `Nullable(None)` writes null.
#[derive(Serialize)]
struct Nullable<'a>(Option<&'a str>);

#[derive(Serialize)]
struct CaptureLine<'a> {
    topic: &'a str,
    partition: i32,
    offset: Offset,
    #[serde(skip_serializing_if = "Option::is_none")]
    tstype: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<Timestamp>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<Nullable<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers_base64: Vec<Option<Base64<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<Nullable<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<Base64<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Nullable<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<Base64<'a>>,
}

struct Base64<'a>(&'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&BASE64.encode_display(self.0))
    }
}

pub(super) fn parse(line: &[u8]) -> Result<Recorded<'_>, LineError> {
    let envelope: Envelope<'_> = serde_json::from_slice(line).map_err(|error| LineError::Envelope(error.to_string()))?;
    envelope.try_into().map_err(LineError::Envelope)
}

/// The fields of a line that a replay uses.
#[derive(serde::Deserialize)]
#[serde(expecting = "an object with partition, key and payload")]
struct Envelope<'a> {
    #[serde(borrow, default)]
    topic: Option<Cow<'a, str>>,
    partition: i32,
    #[serde(default)]
    offset: Option<Offset>,
    tstype: Option<String>,
    ts: Option<Timestamp>,
    #[serde(borrow, default)]
    headers: Vec<Text<'a>>,
    #[serde(default)]
    headers_base64: Option<Vec<Option<String>>>,
    // A line without `key` and `key_base64`, or without `payload` and `payload_base64`, is not in this format. `key` and `payload` can be
    // null.
    #[serde(borrow, default, deserialize_with = "present")]
    key: Option<Text<'a>>,
    #[serde(default)]
    key_base64: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<Text<'a>>,
    #[serde(default)]
    payload_base64: Option<String>,
}

impl<'a> TryFrom<Envelope<'a>> for Recorded<'a> {
    type Error = String;

    fn try_from(envelope: Envelope<'a>) -> Result<Self, String> {
        let time = envelope.ts.filter(|&ts| ts >= 0 && envelope.tstype.as_deref() != Some("unknown"));
        let parts = match envelope.headers_base64 {
            None => envelope.headers.into_iter().map(|text| text.0).collect(),
            Some(_) if !envelope.headers.is_empty() => return Err("the record has both `headers` and `headers_base64`".to_owned()),
            Some(parts) => {
                let decoded = parts.into_iter().map(|part| part.map(|part| decode("headers_base64", &part)).transpose());
                decoded.collect::<Result<_, _>>()?
            }
        };
        Ok(Self {
            topic: envelope.topic,
            partition: envelope.partition,
            offset: envelope.offset,
            time,
            key: either("key", envelope.key, envelope.key_base64.as_deref())?,
            value: either("payload", envelope.payload, envelope.payload_base64.as_deref())?,
            headers: headers(parts)?,
        })
    }
}

/// Parses headers from alternating names and values.
fn headers(parts: Vec<Bytes<'_>>) -> Result<Vec<Header<'_>>, String> {
    let mut headers = Vec::with_capacity(parts.len() / 2);
    let mut parts = parts.into_iter();
    while let Some(name) = parts.next() {
        let name = name.ok_or("a header has no name")?;
        let value = parts.next().ok_or_else(|| format!("header `{}` has no value", String::from_utf8_lossy(&name)))?;
        headers.push((name, value));
    }
    Ok(headers)
}

/// Returns the bytes of a field that is either text or base64.
fn either<'a>(name: &str, text: Option<Text<'a>>, base64: Option<&str>) -> Result<Bytes<'a>, String> {
    match (text, base64) {
        (Some(text), None) => Ok(text.0),
        (None, Some(base64)) => decode(&format!("{name}_base64"), base64).map(Some),
        (None, None) => Err(format!("missing field `{name}`")),
        (Some(_), Some(_)) => Err(format!("the record has both `{name}` and `{name}_base64`")),
    }
}

fn decode(name: &str, base64: &str) -> Result<Cow<'static, [u8]>, String> {
    BASE64.decode(base64.as_bytes()).map(Cow::Owned).map_err(|error| format!("`{name}` is not in base64: {error}"))
}

type Bytes<'a> = Option<Cow<'a, [u8]>>;

/// A JSON string or null, as bytes.
struct Text<'a>(Bytes<'a>);

/// Returns `Some` if the field is present, even if it is null. By default, serde returns `None` for null.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Text<'a>>, D::Error> {
    Text::deserialize(deserializer).map(Some)
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_option(TextVisitor).map(Self)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Bytes<'de>;

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(line: &str) -> Result<Recorded<'_>, String> {
        parse(line.as_bytes()).map_err(|fault| fault.to_string())
    }

    fn written(record: &Captured<'_>) -> String {
        let mut line = Vec::new();
        record.write(&mut line).unwrap();
        String::from_utf8(line).unwrap()
    }

    const BARE: Captured<'_> = Captured { topic: "t", partition: 0, offset: 5, time: None, key: None, value: None, headers: &[] };

    #[test]
    fn lines_are_as_documented() {
        assert_eq!(written(&BARE), "{\"topic\":\"t\",\"partition\":0,\"offset\":5,\"key\":null,\"payload\":null}\n");
        let time = Some((TimestampType::CreateTime, 1_700_000_000_000));
        let headers: [(&[u8], _); 2] = [(b"a", Some(&b"1"[..])), (b"a", None)];
        let record = Captured { time, key: Some("k\u{e9}\n".as_bytes()), value: Some(b""), headers: &headers, ..BARE };
        assert_eq!(
            written(&record),
            "{\"topic\":\"t\",\"partition\":0,\"offset\":5,\"tstype\":\"create\",\"ts\":1700000000000,\"headers\":[\"a\",\"1\",\"a\",null],\"key\":\"k\u{e9}\\n\",\"payload\":\"\"}\n"
        );
        let time = Some((TimestampType::LogAppendTime, 7));
        let headers: [(&[u8], _); 2] = [(b"a", Some(&b"\xff"[..])), (b"", None)];
        let record = Captured { time, key: Some(b"\xff\x00"), value: Some(b"\xc3\x28"), headers: &headers, ..BARE };
        assert_eq!(
            written(&record),
            "{\"topic\":\"t\",\"partition\":0,\"offset\":5,\"tstype\":\"logappend\",\"ts\":7,\"headers_base64\":[\"YQ==\",\"/w==\",\"\",null],\"key_base64\":\"/wA=\",\"payload_base64\":\"wyg=\"}\n"
        );
    }

    #[test]
    fn a_line_that_cannot_be_written_is_an_error() {
        assert!(BARE.write(&mut [0; 10][..]).is_err());
    }

    #[test]
    fn a_whole_kcat_line() {
        let line = r#"{"topic":"t","partition":3,"offset":17,"tstype":"create","ts":1700000000123,"broker":1,"headers":["a","1","b",null],"key":"k\u00e9\n","payload":"{\"id\":1}"}"#;
        let recorded = read(line).unwrap();
        assert_eq!((recorded.partition, recorded.time), (3, Some(1_700_000_000_123)));
        assert_eq!(recorded.key.as_deref(), Some("ké\n".as_bytes()));
        assert_eq!(recorded.value.as_deref(), Some(&br#"{"id":1}"#[..]));
        assert_eq!(recorded.headers(), [("a", Some(&b"1"[..])), ("b", None)]);
    }

    #[test]
    fn a_bare_kcat_line() {
        let recorded = read(r#"{"topic":"t","partition":0,"offset":0,"broker":-1,"key":null,"payload":null}"#).unwrap();
        assert_eq!(recorded, Recorded { topic: Some("t".into()), offset: Some(0), ..Recorded::default() });
    }

    #[test]
    fn kcat_lines_with_invalid_utf8_are_read() {
        let line = b"{\"partition\":0,\"headers\":[\"\xff\",\"1\",\"a\",\"\xfe\"],\"key\":\"\xff\\u0000\\\"\",\"payload\":\"\xc3\x28\"}";
        let recorded = parse(line).unwrap();
        assert_eq!(recorded.key.as_deref(), Some(&b"\xff\0\""[..]));
        assert_eq!(recorded.value.as_deref(), Some(&b"\xc3\x28"[..]));
        assert_eq!(recorded.headers.len(), 2);
        assert_eq!(recorded.headers(), [("a", Some(&b"\xfe"[..]))], "a header whose name is not UTF-8 cannot be looked up, as in a worker");
    }

    #[test]
    fn invalid_times_count_as_missing() {
        for time in [
            r#""tstype":"unknown","ts":0,"#,
            r#""tstype":"create","ts":-1,"#,
            r#""tstype":"logappend","ts":-2,"#,
            r#""tstype":"create","ts":null,"#,
            "",
        ] {
            let line = format!("{{{time}\"partition\":0,\"key\":null,\"payload\":null}}");
            assert_eq!(read(&line).unwrap().time, None, "{time}");
        }
        assert_eq!(read(r#"{"tstype":"create","ts":0,"partition":0,"key":null,"payload":null}"#).unwrap().time, Some(0));
    }

    #[test]
    fn lines_in_another_format_are_rejected() {
        for (line, what) in [
            ("", "EOF"),
            ("[]", "an object with partition, key and payload"),
            (r#"{"id":1}"#, "missing field `partition`"),
            (r#"{"partition":0,"payload":"x"}"#, "missing field `key`"),
            (r#"{"partition":0,"key":null}"#, "missing field `payload`"),
            (r#"{"partition":0,"key":null,"payload":{"avro":1}}"#, "a string or null"),
            (r#"{"partition":"0","key":null,"payload":null}"#, "i32"),
            (r#"{"partition":0,"headers":["a"],"key":null,"payload":null}"#, "header `a` has no value"),
            (r#"{"partition":0,"headers":[null,"a"],"key":null,"payload":null}"#, "a header has no name"),
            (r#"{"partition":0,"headers_base64":["YQ=="],"key":null,"payload":null}"#, "header `a` has no value"),
            (r#"{"partition":0,"headers_base64":["YQ"],"key":null,"payload":null}"#, "`headers_base64` is not in base64: "),
            (r#"{"partition":0,"headers":["a",null],"headers_base64":[],"key":null,"payload":null}"#, "both `headers` and"),
            (r#"{"partition":0,"key_base64":"/w=","payload":null}"#, "`key_base64` is not in base64: invalid length at 0"),
            (r#"{"partition":0,"key":null,"payload_base64":"AA!="}"#, "`payload_base64` is not in base64: invalid symbol at 2"),
            (r#"{"partition":0,"key":null,"key_base64":"","payload":null}"#, "both `key` and `key_base64`"),
            (r#"{"partition":0,"key_base64":null,"payload":null}"#, "missing field `key`"),
            (r#"{"partition":0,"key_base64":7,"payload":null}"#, "invalid type: integer `7`"),
            (r#"{"partition":0,"key":null,"payload":null} {}"#, "trailing characters"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(what), "{line}: {error}");
        }
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![any::<String>().prop_map(String::into_bytes), prop::collection::vec(any::<u8>(), 0..20)]
    }

    proptest! {
        #[test]
        fn records_survive_a_round_trip(
            topic in any::<String>(),
            (partition, offset) in any::<(i32, i64)>(),
            time in prop::option::of((prop::bool::ANY, 0..=i64::MAX)),
            (key, value) in (prop::option::of(bytes()), prop::option::of(bytes())),
            headers in prop::collection::vec((bytes(), prop::option::of(bytes())), 0..4),
        ) {
            let kind = |create| if create { TimestampType::CreateTime } else { TimestampType::LogAppendTime };
            let borrowed: Vec<_> = headers.iter().map(|(name, value)| (name.as_slice(), value.as_deref())).collect();
            let record = Captured {
                topic: &topic,
                partition,
                offset,
                time: time.map(|(create, time)| (kind(create), time)),
                key: key.as_deref(),
                value: value.as_deref(),
                headers: &borrowed,
            };
            let line = written(&record);
            prop_assert!(line.ends_with('\n') && line.lines().count() == 1, "one line: {line}");
            let recorded = read(line.trim_end_matches('\n')).unwrap();
            prop_assert_eq!((recorded.partition, recorded.time), (partition, time.map(|(_, time)| time)));
            prop_assert_eq!((recorded.key.as_deref(), recorded.value.as_deref()), (key.as_deref(), value.as_deref()));
            let read: Vec<_> = recorded.headers.iter().map(|(name, value)| (name.to_vec(), value.as_ref().map(|value| value.to_vec()))).collect();
            prop_assert_eq!(read, headers);
            // Other JSON parsers must find the same values.
            let json: serde_json::Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!((&json["topic"], &json["offset"]), (&topic.into(), &offset.into()));
        }

        #[test]
        fn any_line_can_be_parsed(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }
    }
}
