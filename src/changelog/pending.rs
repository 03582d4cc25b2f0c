//! What changed a state since its last commit: it is to be logged with the next.

use super::Origin;
use super::record::{self, ChangelogRecord, Span};
use crate::dedup::{Dedup, Mutation};
use crate::filter::Slice;
use crate::key::Fingerprint;
use crate::record::{Offset, Timestamp, TopicId};
use std::collections::VecDeque;

/// Most fingerprints in a record of the changelog, half a megabyte: far below what brokers take.
pub const RECORD_FINGERPRINTS_MAX: usize = 1 << 15;

/// Most entries that room is kept for: 2 MiB, for every partition may have it.
const SPARE_MAX: usize = 1 << 16;

/// What was done in one slice, in order.
#[derive(Debug)]
struct SliceChanges {
    /// None before any time is known.
    slice: Option<Slice>,
    /// Stream time when it began, and now.
    first_time: Option<Timestamp>,
    time: Option<Timestamp>,
    replay_info: Option<u64>,
    /// Whether the filter was asked for the replay info: after the first key that was inserted.
    has_replay_info: bool,
    entries: Vec<Entry>,
}

/// 32 bytes, for there are many.
#[derive(Clone, Copy, Debug)]
struct Entry {
    fingerprint: Fingerprint,
    offset: Offset,
    /// Which input topic's record did it, as the worker numbers them.
    topic: u32,
    mutation: Mutation,
}

impl Entry {
    /// Whether it is below the ends of the topics.
    fn is_in(&self, ends: &[(TopicId, Offset)]) -> bool {
        ends.iter().any(|&(topic, end)| topic.0 == self.topic as usize && self.offset < end)
    }
}

/// There are far fewer topics.
fn topic_number(topic: TopicId) -> u32 {
    u32::try_from(topic.0).unwrap_or(u32::MAX)
}

/// What changed a state, and is not logged yet.
#[derive(Debug, Default)]
pub struct PendingChanges {
    groups: VecDeque<SliceChanges>,
    /// Room of a group that is no more, for the next.
    spare: Vec<Entry>,
    len: usize,
    /// Whether no time was known at the last record.
    is_untimed: bool,
}

impl PendingChanges {
    /// Notes what the record at `offset` of a topic did to the state, if anything.
    #[inline]
    pub fn note(&mut self, dedup: &Dedup, topic: TopicId, offset: Offset, fingerprint: Fingerprint) {
        let (mutation, time) = (dedup.mutation(), dedup.stream_time());
        // Keys that came before any time was known belong to the first that is, whatever came with it.
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
                has_replay_info: false,
                entries: std::mem::take(&mut self.spare),
            });
        }
        if let Some(group) = self.groups.back_mut() {
            group.time = time;
            let Some(mutation) = mutation else { return };
            if mutation != Mutation::Delete && !group.has_replay_info {
                (group.replay_info, group.has_replay_info) = (dedup.replay_info(), true);
            }
            group.entries.push(Entry { fingerprint, offset, topic: topic_number(topic), mutation });
            self.len += 1;
        }
    }

    /// Whether [`PendingChanges::note_batch`] takes what changes the state now: keys were inserted in the same slice before.
    #[must_use]
    pub fn can_append(&self, dedup: &Dedup) -> bool {
        self.groups.back().is_some_and(|group| group.has_replay_info && group.time.is_some() && group.slice == dedup.clock())
    }

    /// Notes records of a topic that follow each other from `offset` on, where this [may](Self::can_append): those that were not
    /// `seen` were inserted. Stream time was `before`, and went with their `times`.
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

    /// Number of changes that wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether none waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The records to be logged for a commit of `spans`, by the owner of that epoch, each with its slice. The commit comes
    /// to these `ends` of the topics by their numbers, and to `end_time`, if that is known. There is always one record, so
    /// that the changelog says how far it goes.
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
            // Of a part, the stream time of the rest is not known.
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
            // Time may have passed since the last key, with records that were none.
            let end_time = end_time.filter(|_| number == last);
            let part = u32::try_from(number).ok();
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

    /// The changes up to these ends of the topics are logged and committed.
    pub fn committed(&mut self, ends: &[(TopicId, Offset)]) {
        let mut is_left = false;
        let (spare, len) = (&mut self.spare, &mut self.len);
        self.groups.retain_mut(|group| {
            let before = group.entries.len();
            group.entries.retain(|entry| !entry.is_in(ends));
            if group.entries.len() < before {
                // What it said of the first key is used up.
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
