//! One record of the changelog: what one commit did to one state, or a part of that.
//!
//! Owns the bytes. 16 a fingerprint, and some 110 for each record: a filter of any kind and size computes its
//! places from all of a fingerprint's bits, and two keys must not become one by the changelog.
//!
//! ```text
//! u8   version, 3; version 2 has no part
//! u64  owner, u64 keys, u64 clock, u64 kind                see Origin
//! i64  epoch                                               see ChangelogRecord::epoch
//! u32  part                                                see ChangelogRecord::part
//! i64  slice                                               or i64::MIN, before any time is known
//! i64  stream time before its keys, i64 after them         or i64::MIN
//! u64  replay info                                                or u64::MAX
//! u16  topics, each: u16 length, name, i64 start, i64 end  the offsets whose effect it is; see Span::WARM_UP
//! runs, each: u8 what was done, u32 count, 16 bytes each   to the end
//! ```
//!
//! All numbers are little-endian. A record holds keys of one slice only. Nothing is left to the record's time in Kafka:
//! librdkafka takes a time of 0 for "now", and brokers may refuse a time that is far from theirs.

use super::Origin;
use crate::dedup::Mutation;
use crate::filter::Slice;
use crate::key::Fingerprint;
use crate::record::{Offset, Timestamp};

/// Version of the form, and the older one that is read as well.
pub(super) const VERSION: u8 = 3;
const VERSION_WITHOUT_PART: u8 = 2;
/// Stands for "none" where any other number may be one.
const NONE: i64 = i64::MIN;
/// Bytes of a fingerprint.
pub(super) const FINGERPRINT_BYTES: usize = 16;
/// Bytes before the runs, with room for the names of one topic or two.
pub(super) const HEAD_BYTES: usize = 256;

/// The bytes are no record of a changelog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a record of a changelog that this version of unseen can read: {0}")]
pub struct DecodeError(&'static str);

/// The records of one input topic whose effect a record holds: from `start`, and to `end` but not with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<'a> {
    /// The topic.
    pub topic: &'a str,
    /// First offset.
    pub start: Offset,
    /// The offset after the last.
    pub end: Offset,
}

impl Span<'static> {
    /// Marks a record of a warm-up; see [`ChangelogRecord::warms_up`]. No topic in Kafka has an empty name. A version that does not
    /// know the mark reads it as a topic without records, so the form keeps its version.
    pub const WARM_UP: Self = Self { topic: "", start: 0, end: 0 };
}

/// Fingerprints to which the same was done, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRun<'a> {
    /// What was done.
    pub mutation: Mutation,
    bytes: &'a [u8],
}

impl KeyRun<'_> {
    /// Number of fingerprints.
    #[must_use]
    pub const fn len(&self) -> u64 {
        (self.bytes.len() / FINGERPRINT_BYTES) as u64
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The fingerprints, in order.
    pub fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> {
        let (chunks, _) = self.bytes.as_chunks();
        chunks.iter().map(|bytes| Fingerprint(u128::from_le_bytes(*bytes)))
    }
}

/// A record as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangelogRecord<'a> {
    /// By whom, and under which settings, it was written.
    pub origin: Origin,
    /// Rises with each worker that takes the partition over: what one writes after that is void.
    pub epoch: i64,
    /// The number of the record within its commit, from 0. A commit that is logged again has the same parts again. `None` if the
    /// record does not have it.
    pub part: Option<u32>,
    /// The slice, by the clock of its origin, that its keys were inserted into; none before any time is known.
    pub slice: Option<Slice>,
    /// Stream time when its last key was inserted; none before any time is known.
    pub time: Option<Timestamp>,
    /// Stream time after the commit.
    pub end_time: Option<Timestamp>,
    /// See [`crate::filter::Filter::replay_info`].
    pub replay_info: Option<u64>,
    /// Whose effect it is; those of one commit all say the same.
    pub spans: Vec<Span<'a>>,
    /// True if the state was warming up when the record was logged: the changelog still lacks keys that the group has emitted.
    pub warms_up: bool,
    /// What was done.
    pub runs: Vec<KeyRun<'a>>,
}

impl<'a> ChangelogRecord<'a> {
    /// Reads a record.
    ///
    /// # Errors
    /// [`DecodeError`], whatever the bytes are.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let [version @ (VERSION | VERSION_WITHOUT_PART)] = reader.take()? else { return Err(DecodeError("its version is another")) };
        let mut number = || Ok(u64::from_le_bytes(reader.take()?));
        let origin = Origin { owner: number()?, keys: number()?, clock: number()?, kind: number()? };
        let epoch = i64::from_le_bytes(reader.take()?);
        let part = if version == VERSION { Some(u32::from_le_bytes(reader.take()?)) } else { None };
        let mut number = || Ok(Some(i64::from_le_bytes(reader.take()?)).filter(|&number| number != NONE));
        let (slice, time, end_time) = (number()?, number()?, number()?);
        let replay_info = Some(u64::from_le_bytes(reader.take()?)).filter(|&replay_info| replay_info != u64::MAX);
        let topics = u16::from_le_bytes(reader.take()?);
        let mut spans = Vec::new();
        for _ in 0..topics {
            let length = u16::from_le_bytes(reader.take()?);
            let topic = std::str::from_utf8(reader.slice(usize::from(length))?).map_err(|_| DecodeError("a topic's name is not UTF-8"))?;
            spans.push(Span { topic, start: i64::from_le_bytes(reader.take()?), end: i64::from_le_bytes(reader.take()?) });
        }
        let mut runs = Vec::new();
        while !reader.0.is_empty() {
            let mutation = mutation(reader.take::<1>()?[0])?;
            let count = u32::from_le_bytes(reader.take()?) as usize;
            runs.push(KeyRun { mutation, bytes: reader.slice(count.checked_mul(FINGERPRINT_BYTES).ok_or(DecodeError("it is cut off"))?)? });
        }
        let before = spans.len();
        spans.retain(|span| *span != Span::WARM_UP);
        let warms_up = spans.len() < before;
        Ok(Self { origin, epoch, part, slice: slice.map(Slice), time, end_time, replay_info, spans, warms_up, runs })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn slice(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(DecodeError("it is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DecodeError("it is cut off"))?;
        self.0 = rest;
        Ok(*taken)
    }
}

/// Appends the beginning of `record`, before its runs, of which it has none yet.
pub(super) fn push_head(out: &mut Vec<u8>, record: &ChangelogRecord<'_>) {
    let ChangelogRecord { origin, epoch, part, slice, time, end_time, replay_info, spans, .. } = record;
    out.push(VERSION);
    for number in [origin.owner, origin.keys, origin.clock, origin.kind] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&epoch.to_le_bytes());
    out.extend_from_slice(&part.unwrap_or_default().to_le_bytes());
    for number in [slice.map(|slice| slice.0), *time, *end_time] {
        out.extend_from_slice(&number.unwrap_or(NONE).to_le_bytes());
    }
    out.extend_from_slice(&replay_info.unwrap_or(u64::MAX).to_le_bytes());
    out.extend_from_slice(&u16::try_from(spans.len()).unwrap_or(u16::MAX).to_le_bytes());
    for span in spans {
        out.extend_from_slice(&u16::try_from(span.topic.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend_from_slice(span.topic.as_bytes());
        out.extend_from_slice(&span.start.to_le_bytes());
        out.extend_from_slice(&span.end.to_le_bytes());
    }
}

/// Appends what was done to `fingerprints`, which are as many as a u32 counts.
pub(super) fn push_run(out: &mut Vec<u8>, mutation: Mutation, fingerprints: impl ExactSizeIterator<Item = Fingerprint>) {
    out.push(match mutation {
        Mutation::Insert => b'i',
        Mutation::Refresh => b'r',
        Mutation::Delete => b'u',
    });
    out.extend_from_slice(&u32::try_from(fingerprints.len()).unwrap_or(u32::MAX).to_le_bytes());
    fingerprints.for_each(|fingerprint| out.extend_from_slice(&fingerprint.0.to_le_bytes()));
}

/// A record that inserts keys which no record of an input has: they were seen before the group began.
#[must_use]
pub fn insertions(
    origin: Origin,
    slice: Option<Slice>,
    time: Option<Timestamp>,
    replay_info: Option<u64>,
    keys: &[Fingerprint],
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + keys.len() * FINGERPRINT_BYTES);
    let (epoch, part, end_time, spans, warms_up, runs) = (0, Some(0), time, Vec::new(), false, Vec::new());
    push_head(&mut bytes, &ChangelogRecord { origin, epoch, part, slice, time, end_time, replay_info, spans, warms_up, runs });
    push_run(&mut bytes, Mutation::Insert, keys.iter().copied());
    bytes
}

const fn mutation(byte: u8) -> Result<Mutation, DecodeError> {
    match byte {
        b'i' => Ok(Mutation::Insert),
        b'r' => Ok(Mutation::Refresh),
        b'u' => Ok(Mutation::Delete),
        _ => Err(DecodeError("it says something unknown was done")),
    }
}
