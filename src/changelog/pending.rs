//! Changes of a state since its last commit, which the next commit will log.
//!
//! Encodes these changes as changelog records. Never logs the change of an input record that the commit does not contain.

use super::Origin;
use super::record::{self, ChangelogRecord, Span};
use crate::dedup::{Dedup, Mutation};
use crate::filter::Slice;
use crate::key::Fingerprint;
use crate::record::{Offset, Timestamp, TopicId};
use std::collections::VecDeque;

/// The maximum number of fingerprints per changelog record. This number of fingerprints uses 512 KiB, which is half of the brokers' default
/// `message.max.bytes`.
pub const RECORD_FINGERPRINTS_MAX: usize = 1 << 15;

/// The maximum number of entries that stay allocated for reuse. They use up to 2 MiB per state.
const SPARE_MAX: usize = 1 << 16;

#[derive(Debug)]
struct SliceChanges {
    /// The slice, or `None` before the first timestamp.
    slice: Option<Slice>,
    /// The first and the last stream time of these changes.
    first_time: Option<Timestamp>,
    time: Option<Timestamp>,
    replay_info: Option<u64>,
    /// True if the filter was already asked for its replay info, which happens after the first insertion or renewal.
    asked_for_replay_info: bool,
    entries: Vec<Entry>,
}

/// A change of one key, kept to 32 bytes because there can be millions of changes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    fingerprint: Fingerprint,
    offset: Offset,
    topic: u32,
    mutation: Mutation,
}

impl Entry {
    /// True if the record that caused the change is below its topic's offset in `ends`.
    fn is_in(&self, ends: &[(TopicId, Offset)]) -> bool {
        ends.iter().any(|&(topic, end)| topic.0 == self.topic as usize && self.offset < end)
    }
}

/// Converts a topic id to the number in an [`Entry`]. A worker has far fewer topics than a `u32` can count.
fn topic_number(topic: TopicId) -> u32 {
    u32::try_from(topic.0).unwrap_or(u32::MAX)
}

#[derive(Debug, Default)]
pub struct PendingChanges {
    groups: VecDeque<SliceChanges>,
    spare: Vec<Entry>,
    len: usize,
    /// True if stream time was unknown after the last record.
    is_untimed: bool,
}

impl PendingChanges {
    /// Adds the change that the record at `offset` of a topic caused in the state, if any.
    #[inline]
    pub fn note(&mut self, dedup: &Dedup, topic: TopicId, offset: Offset, fingerprint: Fingerprint) {
        let (mutation, time) = (dedup.mutation(), dedup.stream_time());
        // Keys from before the first timestamp belong to the slice of that timestamp. So the record with the first timestamp adds a group
        // for its slice even if the record changes no key.
        let is_first_time = time.is_some() && self.groups.back().map_or(self.is_untimed, |group| group.time.is_none());
        self.is_untimed = time.is_none();
        if mutation.is_none() && !is_first_time {
            return;
        }
        let slice = dedup.clock();
        if self.groups.back().is_none_or(|group| group.slice != slice || group.time.is_some() != time.is_some()) {
            self.groups.push_back(SliceChanges {
                slice,
                first_time: time,
                time,
                replay_info: None,
                asked_for_replay_info: false,
                entries: std::mem::take(&mut self.spare),
            });
        }
        if let Some(group) = self.groups.back_mut() {
            group.time = time;
            let Some(mutation) = mutation else { return };
            if mutation != Mutation::Delete && !group.asked_for_replay_info {
                (group.replay_info, group.asked_for_replay_info) = (dedup.replay_info(), true);
            }
            group.entries.push(Entry { fingerprint, offset, topic: topic_number(topic), mutation });
            self.len += 1;
        }
    }

    /// True if [`PendingChanges::note_batch`] can be used now: the pending changes already contain an insertion in the current slice.
    #[must_use]
    pub fn can_append(&self, dedup: &Dedup) -> bool {
        self.groups.back().is_some_and(|group| group.asked_for_replay_info && group.time.is_some() && group.slice == dedup.clock())
    }

    /// Adds the insertions of consecutive records of a topic, the first at `offset`. Requires that [`can_append`](Self::can_append)
    /// returned true. The key of a record was inserted if its entry in `seen` is false. Stream time was `before` when the first of these
    /// records was judged, and it advances with `times`.
    pub fn note_batch(
        &mut self,
        topic: TopicId,
        offset: Offset,
        fingerprints: &[Fingerprint],
        before: Option<Timestamp>,
        times: &[Timestamp],
        seen: &[bool],
    ) {
        let (Some(group), Some(last)) = (self.groups.back_mut(), seen.iter().rposition(|seen| !seen)) else { return };
        group.time = before.max(times[..=last].iter().max().copied());
        let (topic, noted) = (topic_number(topic), group.entries.len());
        let inserted = fingerprints.iter().zip(seen).zip(offset..).filter(|((_, seen), _)| !**seen);
        group.entries.extend(inserted.map(|((&fingerprint, _), offset)| Entry { fingerprint, offset, topic, mutation: Mutation::Insert }));
        self.len += group.entries.len() - noted;
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the records to log for a commit of `spans` by the owner with this epoch, each with its slice. `ends` are the offsets to
    /// commit, by topic id. `end_time` is the stream time after the commit, if known. Always returns at least one record, because the
    /// changelog must show the committed offsets.
    #[must_use]
    pub fn records(
        &self,
        dedup: &Dedup,
        origin: Origin,
        epoch: i64,
        spans: &[Span<'_>],
        ends: &[(TopicId, Offset)],
        end_time: Option<Timestamp>,
    ) -> Vec<(Option<Slice>, Vec<u8>)> {
        let (mut parts, mut is_left) = (Vec::new(), false);
        for group in &self.groups {
            let entries: Vec<_> = group.entries.iter().filter(|entry| entry.is_in(ends)).collect();
            let mut replay_info = group.replay_info;
            // If only some of the entries are logged, the stream time after the last logged entry is unknown, so the record gets the first
            // stream time.
            let time = if entries.len() < group.entries.len() { group.first_time } else { group.time };
            if group.entries.is_empty() && !is_left {
                parts.push((group.slice, group.time, None, Vec::new()));
            }
            is_left |= entries.len() < group.entries.len();
            parts.extend(entries.chunks(RECORD_FINGERPRINTS_MAX).map(|part| (group.slice, time, replay_info.take(), part.to_vec())));
        }
        if parts.is_empty() {
            parts.push((dedup.clock(), None, None, Vec::new()));
        }
        let last = parts.len() - 1;
        let records = parts.into_iter().enumerate().map(|(number, (slice, time, replay_info, entries))| {
            // Input records that inserted nothing may have advanced stream time after the last key. Only the last changelog record contains
            // this later time.
            let end_time = end_time.filter(|_| number == last);
            let part = u32::try_from(number).unwrap_or(u32::MAX);
            let mut bytes = Vec::with_capacity(record::HEAD_BYTES + entries.len() * (record::FINGERPRINT_BYTES + 1));
            record::push_head(
                &mut bytes,
                &ChangelogRecord {
                    origin,
                    epoch,
                    part,
                    slice,
                    time,
                    end_time,
                    replay_info,
                    spans: spans.to_vec(),
                    warms_up: false,
                    runs: Vec::new(),
                },
            );
            for run in entries.chunk_by(|one, next| one.mutation == next.mutation) {
                record::push_run(&mut bytes, run[0].mutation, run.iter().map(|entry| entry.fingerprint));
            }
            (slice, bytes)
        });
        records.collect()
    }

    /// Drops the changes of records below each topic's offset in `ends`, because the changelog now contains these changes. With
    /// `at_least_once`, the offsets may not be committed yet.
    pub fn committed(&mut self, ends: &[(TopicId, Offset)]) {
        let mut is_left = false;
        let (spare, len) = (&mut self.spare, &mut self.len);
        self.groups.retain_mut(|group| {
            let before = group.entries.len();
            group.entries.retain(|entry| !entry.is_in(ends));
            if group.entries.len() < before {
                // The replay info belongs to the first key, which is now logged.
                group.replay_info = None;
            }
            *len -= before - group.entries.len();
            let keep = !group.entries.is_empty() || (before == 0 && is_left);
            is_left |= keep;
            if !keep {
                *spare = std::mem::take(&mut group.entries);
                spare.shrink_to(SPARE_MAX);
            }
            keep
        });
    }
}
