//! A changelog record: the effect of one commit on one state, or a part of that effect.
//!
//! Defines the binary format, with 16 bytes per fingerprint and, for a single topic, about 100 bytes per record plus the name and id of the
//! topic. A record stores whole fingerprints, because a filter of any kind and size computes its positions from all bits, and because the
//! changelog must not merge two keys into one.
//!
//! ```text
//! u8   version                                             3
//! u64  owner, u64 keys, u64 clock, u64 kind                see Origin
//! i64  epoch                                               see ChangelogRecord::epoch
//! u32  part                                                see ChangelogRecord::part
//! i64  slice                                               or i64::MIN before the first timestamp
//! i64  stream time of the keys, i64 after the commit       or i64::MIN if unknown
//! u64  replay info                                         or u64::MAX if unset
//! u16  topics, each: u16 length, name, i64 start, i64 end  the spans; see Span::WARM_UP
//! runs, each: u8 mutation, u32 count, 16 bytes per key     until the end of the record
//! ```
//!
//! All numbers are little-endian. The keys of a record belong to one slice. The format never relies on the record's timestamp in Kafka:
//! librdkafka treats a timestamp of 0 as "now", and brokers can reject timestamps far from their own time.

use super::Origin;
use crate::dedup::Mutation;
use crate::filter::Slice;
use crate::key::Fingerprint;
use crate::record::{Offset, Timestamp};

/// The format version. A record with another version is an error.
pub(super) const VERSION: u8 = 3;
/// The encoding of `None` in an `i64` field. No slice and no stream time has this value.
const NONE: i64 = i64::MIN;
pub(super) const FINGERPRINT_BYTES: usize = 16;
/// The capacity in bytes to reserve for the fields before the runs, including the names of one or two topics.
pub(super) const HEAD_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this version of unseen cannot read the changelog record: {0}")]
pub struct DecodeError(&'static str);

/// The input records whose effect a changelog record contains, from `start` (inclusive) to `end` (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<'a> {
    pub topic: &'a str,
    pub start: Offset,
    pub end: Offset,
}

impl Span<'static> {
    /// Marks a record of a warm-up. See [`ChangelogRecord::warms_up`]. No real topic can be mistaken for the mark, because Kafka topics
    /// cannot have an empty name. Versions of unseen that do not know the mark read it as a topic without records, so the format version
    /// stays the same.
    pub const WARM_UP: Self = Self { topic: "", start: 0, end: 0 };
}

/// Consecutive fingerprints with the same mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRun<'a> {
    pub mutation: Mutation,
    bytes: &'a [u8],
}

impl KeyRun<'_> {
    #[must_use]
    pub const fn len(&self) -> u64 {
        (self.bytes.len() / FINGERPRINT_BYTES) as u64
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> {
        let (chunks, _) = self.bytes.as_chunks();
        chunks.iter().map(|bytes| Fingerprint(u128::from_le_bytes(*bytes)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangelogRecord<'a> {
    pub origin: Origin,
    /// The epoch of the owner, which increases each time another worker takes the partition over. Records of the previous owner after the
    /// first record of the new owner are void.
    pub epoch: i64,
    /// The number of the record within its commit, from 0. If a commit is logged again, its parts have the same numbers.
    pub part: u32,
    /// The slice of the keys, as counted by [`Origin::clock`]. `None` before the first timestamp.
    pub slice: Option<Slice>,
    /// Stream time when the keys were inserted: after the last key, or after the first key if the commit contains only some of the slice's
    /// keys. `None` before the first timestamp.
    pub time: Option<Timestamp>,
    /// Stream time after the commit, if known. Only the last record of a commit has this time.
    pub end_time: Option<Timestamp>,
    /// See [`crate::filter::Filter::replay_info`].
    pub replay_info: Option<u64>,
    /// The input records whose effect is logged. All records of a commit have the same spans.
    pub spans: Vec<Span<'a>>,
    /// True if the state was warming up when the record was logged. The changelog then may still lack keys that the group has emitted.
    pub warms_up: bool,
    pub runs: Vec<KeyRun<'a>>,
}

impl<'a> ChangelogRecord<'a> {
    /// Decodes a record of this format version.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError`] if the bytes have another format version or are not a valid record.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let [VERSION] = reader.take()? else { return Err(DecodeError("unknown format version")) };
        let mut number = || Ok(u64::from_le_bytes(reader.take()?));
        let origin = Origin { owner: number()?, keys: number()?, clock: number()?, kind: number()? };
        let epoch = i64::from_le_bytes(reader.take()?);
        let part = u32::from_le_bytes(reader.take()?);
        let mut number = || Ok(Some(i64::from_le_bytes(reader.take()?)).filter(|&number| number != NONE));
        let (slice, time, end_time) = (number()?, number()?, number()?);
        let replay_info = Some(u64::from_le_bytes(reader.take()?)).filter(|&replay_info| replay_info != u64::MAX);
        let topics = u16::from_le_bytes(reader.take()?);
        let mut spans = Vec::new();
        for _ in 0..topics {
            let length = u16::from_le_bytes(reader.take()?);
            let topic = std::str::from_utf8(reader.slice(usize::from(length))?).map_err(|_| DecodeError("a topic name is not UTF-8"))?;
            spans.push(Span { topic, start: i64::from_le_bytes(reader.take()?), end: i64::from_le_bytes(reader.take()?) });
        }
        let mut runs = Vec::new();
        while !reader.0.is_empty() {
            let mutation = mutation(reader.take::<1>()?[0])?;
            let count = u32::from_le_bytes(reader.take()?) as usize;
            runs.push(KeyRun {
                mutation,
                bytes: reader.slice(count.checked_mul(FINGERPRINT_BYTES).ok_or(DecodeError("the record is truncated"))?)?,
            });
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
        let (taken, rest) = self.0.split_at_checked(length).ok_or(DecodeError("the record is truncated"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DecodeError("the record is truncated"))?;
        self.0 = rest;
        Ok(*taken)
    }
}

/// Appends all fields of `record` except for its runs. Ignores `warms_up`: the spans of a warm-up must contain [`Span::WARM_UP`].
pub(super) fn push_head(out: &mut Vec<u8>, record: &ChangelogRecord<'_>) {
    let ChangelogRecord { origin, epoch, part, slice, time, end_time, replay_info, spans, .. } = record;
    out.push(VERSION);
    for number in [origin.owner, origin.keys, origin.clock, origin.kind] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&epoch.to_le_bytes());
    out.extend_from_slice(&part.to_le_bytes());
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

/// Appends a run of `fingerprints`, whose number must fit into a `u32`.
pub(super) fn push_run(out: &mut Vec<u8>, mutation: Mutation, fingerprints: impl ExactSizeIterator<Item = Fingerprint>) {
    out.push(match mutation {
        Mutation::Insert => b'i',
        Mutation::Refresh => b'r',
        Mutation::Delete => b'u',
    });
    out.extend_from_slice(&u32::try_from(fingerprints.len()).unwrap_or(u32::MAX).to_le_bytes());
    fingerprints.for_each(|fingerprint| out.extend_from_slice(&fingerprint.0.to_le_bytes()));
}

/// Encodes a record that inserts keys from before the group started. The record has no spans, because these keys come from no input record.
#[must_use]
pub fn insertions(
    origin: Origin,
    slice: Option<Slice>,
    time: Option<Timestamp>,
    replay_info: Option<u64>,
    keys: &[Fingerprint],
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + keys.len() * FINGERPRINT_BYTES);
    let (epoch, part, end_time, spans, warms_up, runs) = (0, 0, time, Vec::new(), false, Vec::new());
    push_head(&mut bytes, &ChangelogRecord { origin, epoch, part, slice, time, end_time, replay_info, spans, warms_up, runs });
    push_run(&mut bytes, Mutation::Insert, keys.iter().copied());
    bytes
}

const fn mutation(byte: u8) -> Result<Mutation, DecodeError> {
    match byte {
        b'i' => Ok(Mutation::Insert),
        b'r' => Ok(Mutation::Refresh),
        b'u' => Ok(Mutation::Delete),
        _ => Err(DecodeError("unknown mutation")),
    }
}
