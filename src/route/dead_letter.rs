//! The headers of dead letters. Except for `unseen-timestamp`, they have the names that Kafka Connect uses, so tools for Kafka Connect can
//! read them.
//!
//! This module never mistakes another program's dead letter for a dead letter of unseen.

use super::added_headers::AddedHeaders;
use crate::record::{Invalid, Offset, Reason, Timestamp, Verdict};
use std::ffi::CStr;
use std::ops::Range;

const TOPIC: &CStr = c"__connect.errors.topic";
const PARTITION: &CStr = c"__connect.errors.partition";
const OFFSET: &CStr = c"__connect.errors.offset";
const STAGE: &CStr = c"__connect.errors.stage";
const CLASS: &CStr = c"__connect.errors.exception.class.name";
const MESSAGE: &CStr = c"__connect.errors.exception.message";
/// The headers of every dead letter, in order.
const NAMES: [&CStr; 6] = [TOPIC, PARTITION, OFFSET, STAGE, CLASS, MESSAGE];
/// The time of the record, in milliseconds since the epoch. Dead letters with [`Reason::Refused`] have this header, after the others, if
/// the record has a time. They are written without a Kafka timestamp, because the timestamp may be the reason why the broker refused the
/// record.
const TIMESTAMP: &CStr = c"unseen-timestamp";

const DEDUP: &str = "DEDUP";
/// The start of the value of [`CLASS`]. The reason follows.
const CLASS_PREFIX: &str = "unseen.";

#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    pub topic: &'a str,
    pub partition: i32,
    pub offset: Offset,
    pub time: Option<Timestamp>,
}

pub type Header<'h> = (&'h [u8], Option<&'h [u8]>);

#[derive(Debug, PartialEq, Eq)]
pub struct DeadLetter<'h> {
    /// The input or the repartition topic that the record was read from.
    pub topic: &'h str,
    pub partition: i32,
    pub reason: &'h str,
    /// The verdict, or `None` if this version does not know the reason.
    pub verdict: Option<Verdict>,
    pub time: Option<Timestamp>,
    /// The positions of the dead letter's headers among all headers of the record.
    pub positions: Range<usize>,
}

pub fn verdicts() -> impl Iterator<Item = Verdict> {
    Reason::ALL.into_iter().map(Verdict::Invalid).chain([Verdict::Late])
}

#[must_use]
pub const fn reason(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Invalid(reason) => reason.label(),
        _ => verdict.label(),
    }
}

pub(super) fn write(verdict: Verdict, invalid: Option<&Invalid>, origin: &Origin<'_>, headers: &mut AddedHeaders) {
    headers.push(TOPIC, origin.topic);
    headers.push(PARTITION, origin.partition);
    headers.push(OFFSET, origin.offset);
    headers.push(STAGE, DEDUP);
    headers.push(CLASS, format_args!("{CLASS_PREFIX}{}", reason(verdict)));
    match invalid {
        Some(invalid) => headers.push(MESSAGE, invalid),
        None => headers.push(MESSAGE, default_message(verdict)),
    }
    if let (Verdict::Invalid(Reason::Refused), Some(time)) = (verdict, origin.time) {
        headers.push(TIMESTAMP, time);
    }
}

const fn default_message(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Invalid(_) => "the record was invalid when it was first read",
        _ => "the record is older than the window",
    }
}

/// Reads the headers of a dead letter. If the record has been a dead letter several times, reads the headers that were added last. Returns
/// `None` if unseen has not added such headers.
#[must_use]
pub fn read<'h>(headers: &[Header<'h>]) -> Option<DeadLetter<'h>> {
    let text = |at: usize| std::str::from_utf8(headers[at].1?).ok();
    let is_letter = |start: &usize| {
        let headers = &headers[*start..];
        headers.len() >= NAMES.len()
            && headers.iter().zip(NAMES).all(|((own, _), name)| *own == name.to_bytes())
            && text(start + 3) == Some(DEDUP)
    };
    let start = (0..headers.len()).rev().find(is_letter)?;
    let is_name = |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let reason = text(start + 4)?.strip_prefix(CLASS_PREFIX).filter(is_name)?;
    let end = start + NAMES.len();
    let is_timed = headers.get(end).is_some_and(|(name, _)| *name == TIMESTAMP.to_bytes());
    Some(DeadLetter {
        topic: text(start).filter(is_name)?,
        partition: text(start + 1)?.parse().ok()?,
        reason,
        verdict: verdicts().find(|&verdict| self::reason(verdict) == reason),
        time: if is_timed { Some(text(end)?.parse().ok()?) } else { None },
        positions: start..end + usize::from(is_timed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin<'_> = Origin { topic: "news", partition: 3, offset: 17, time: Some(5) };

    /// Returns the headers of `record`, followed by the headers of a dead letter.
    fn written(record: &[(&'static str, Option<&str>)], verdict: Verdict) -> Vec<(String, Option<String>)> {
        let mut added = AddedHeaders::default();
        write(verdict, None, &ORIGIN, &mut added);
        let own = record.iter().map(|&(name, value)| (name.to_owned(), value.map(str::to_owned)));
        own.chain(added.iter().map(|(name, value)| (name.to_str().unwrap().to_owned(), Some(value.to_owned())))).collect()
    }

    fn borrowed(headers: &[(String, Option<String>)]) -> Vec<Header<'_>> {
        headers.iter().map(|(name, value)| (name.as_bytes(), value.as_ref().map(String::as_bytes))).collect()
    }

    #[test]
    fn headers_are_read_as_they_were_written() {
        for verdict in verdicts() {
            let headers = written(&[("a", None), ("unseen-timestamp", Some("9"))], verdict);
            let is_refused = verdict == Verdict::Invalid(Reason::Refused);
            let positions = 2..if is_refused { 9 } else { 8 };
            let time = is_refused.then_some(5);
            let (reason, verdict) = (reason(verdict), Some(verdict));
            assert_eq!(read(&borrowed(&headers)), Some(DeadLetter { topic: "news", partition: 3, reason, verdict, time, positions }));
        }
    }

    #[test]
    fn only_the_headers_that_were_added_last_are_read() {
        // Kafka Connect adds headers with the same names but another stage, and tools add headers after unseen's headers.
        let connect = [("__connect.errors.topic", Some("other")), ("__connect.errors.stage", Some("VALUE_CONVERTER"))];
        let once = written(&connect, Verdict::Late);
        let mut twice = written(&[], Verdict::Late);
        twice.splice(0..0, once);
        twice.push(("copied-by".to_owned(), Some("tool".to_owned())));
        assert_eq!(read(&borrowed(&twice)).unwrap().positions, 8..14);
    }

    #[test]
    fn other_records_are_not_taken_for_dead_letters() {
        let headers = written(&[], Verdict::Invalid(Reason::Malformed));
        assert!(read(&borrowed(&headers)).is_some());
        for (at, value) in [
            (1, Some("x")),
            (3, Some("TRANSFORMATION")),
            (4, Some("java.lang.Exception")),
            (4, Some("unseen.")),
            (4, Some("unseen.a/b")),
            (0, Some("a b")),
            (0, None),
        ] {
            let mut changed = headers.clone();
            changed[at].1 = value.map(str::to_owned);
            assert_eq!(read(&borrowed(&changed)), None, "{at} {value:?}");
        }
        assert_eq!(read(&borrowed(&headers[..5])), None);
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn the_reason_of_a_newer_version_is_read_without_a_verdict() {
        let mut headers = written(&[], Verdict::Late);
        headers[4].1 = Some("unseen.newer".to_owned());
        let headers = borrowed(&headers);
        let letter = read(&headers).unwrap();
        assert_eq!((letter.topic, letter.reason, letter.verdict), ("news", "newer", None));
    }
}
