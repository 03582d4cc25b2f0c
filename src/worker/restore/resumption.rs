//! Decides where a partition resumes and which records its states must read again.
//!
//! Chooses between the group's committed offset, the checkpoints, and the start of the log. Never resumes past the committed offset, unless
//! the log starts after that offset.

use super::super::ids::StateId;
use super::super::partition::PartitionState;
use super::super::pending_restore::AssignedPartition;
use super::{Error, Worker};
use crate::broker::{Broker, Consumer as _};
use crate::config::{ColdStart, Delivery, OnTruncation, Start, Topic};
use crate::fault;
use crate::record::{Offset, TopicId};
use crate::stats::add;
use std::time::Instant;

pub(super) struct Resumption {
    pub(super) start: Offset,
    /// The end of the warm-up. Without a warm-up, the offset of the state: `start`, or a lower offset if the records up to `start` were
    /// deleted or do not belong to the state.
    pub(super) warm_until: Offset,
    /// True if the partition resumes at the end of the log, because the log ends below the group's last position.
    pub(super) is_elsewhere: bool,
}

impl Resumption {
    const fn at(start: Offset) -> Self {
        Self { start, warm_until: start, is_elsewhere: false }
    }

    pub(super) const fn warms_up(&self) -> bool {
        self.start < self.warm_until
    }
}

impl<B: Broker> Worker<B> {
    /// Empties the states that are past the group's committed offset. If the brokers report no topic ids, also empties states that belong
    /// to an earlier topic with the same name.
    pub(super) fn drop_if_ahead(&mut self, source: &B::Consumer, assigned: &AssignedPartition) -> Result<(), Error> {
        for &rule in &self.topics[assigned.topic].of_input {
            let id = StateId { space: self.topics[rule].space, partition: assigned.partition.partition };
            let Some(stored) = self.stored(rule, assigned) else { continue };
            let is_beyond = match assigned.committed.offset {
                Some(committed) => stored > committed || !assigned.has_id() && committed > assigned.high,
                None => !assigned.has_id() && (stored > assigned.high || self.is_of_another_log(source, rule, assigned, stored)?),
            };
            if is_beyond && !fault::defect("checkpoint_past_offset_used") {
                tracing::warn!(partition = %assigned.partition, checkpoint = stored, committed = assigned.committed.offset, end = assigned.high,
                    "the checkpoint or changelog is past the group's committed offset or belongs to an earlier topic with the same name. The offset may have been reset, or the topic recreated. Ignoring the keys from the checkpoint or changelog");
                let rules = self.topics[rule].rules;
                if let Some(state) = self.assignment.states.get_mut(&id) {
                    *state = state.emptied(rules);
                }
            }
        }
        Ok(())
    }

    fn state_of(&self, rule: TopicId, assigned: &AssignedPartition) -> Option<&PartitionState> {
        self.assignment.states.get(&StateId { space: self.topics[rule].space, partition: assigned.partition.partition })
    }

    fn stored(&self, rule: TopicId, assigned: &AssignedPartition) -> Option<Offset> {
        self.state_of(rule, assigned).and_then(|state| state.offset(&assigned.topic_incarnation))
    }

    /// Returns true if a checkpoint belongs to an earlier topic with the same name. The check is needed only if the brokers report no topic
    /// ids and the group has no committed offset, because Kafka deletes a topic's committed offsets together with the topic. If the new
    /// topic has already reached the checkpoint's offset, only the timestamps of its records distinguish it from the old topic. In the old
    /// topic, no record below the checkpoint's offset was later than the checkpoint's stream time, except for records that were ahead of
    /// the clock. Such a record can make this function return true by mistake. The topic is then read from its start with an empty state.
    /// No record is lost, but duplicates may be emitted.
    fn is_of_another_log(&self, source: &B::Consumer, rule: TopicId, assigned: &AssignedPartition, stored: Offset) -> Result<bool, Error> {
        let stream_time = self.state_of(rule, assigned).and_then(|state| state.dedup.stream_time());
        // Brokers find offsets by Kafka's timestamps only, so this check is not possible with event times.
        let Some(stream_time) = stream_time.filter(|_| self.topics[rule].config.time.is_none()) else { return Ok(false) };
        let later = self.retry_until_answered(|| source.offset_at(&assigned.partition, stream_time.saturating_add(1)))?;
        Ok(later.is_some_and(|later| later < stored))
    }

    /// Returns true if the group used a rule's key space when it committed the offset. If not, the rule is new or was removed and added
    /// again. The records that its state lacks then belonged to other rules, so their keys must not count as seen.
    fn was_used(&self, rule: TopicId, assigned: &AssignedPartition) -> bool {
        let (times, topic) = (assigned.note().stream_times, &self.topics[rule]);
        if !times.is_empty() {
            return times.contains_key(&topic.config.space) || fault::defect("new_rule_warms_up");
        }
        // At the time of the commit, the input had a single rule. If that rule has a changelog, its state is now at the committed offset.
        // So if another rule's state is at the committed offset and this rule's state is not, the group did not use this rule.
        let is_current = |rule| self.stored(rule, assigned) == assigned.committed.offset;
        is_current(rule) || !topic.of_input.iter().any(|&other| is_current(other)) || fault::defect("new_rule_warms_up")
    }

    /// Returns the input offset that the group had reached according to a rule's changelog, if the changelog does not continue from the
    /// rule's state. Returns `None` without exactly-once delivery, because changelog and offsets are then not committed together.
    fn reached(&self, rule: TopicId, assigned: &AssignedPartition) -> Option<Offset> {
        let is_atomic = self.shared.config.worker.delivery == Delivery::ExactlyOnce;
        let state = self.state_of(rule, assigned).filter(|_| is_atomic)?;
        state.group_offsets.get(&*assigned.topic_incarnation).copied()
    }

    /// Returns the resume offset and the warm-up of each rule's state. After their warm-ups, all states continue at the same offset.
    pub(super) fn resumptions(
        &self,
        source: &B::Consumer,
        assigned: &AssignedPartition,
        began: Instant,
    ) -> Result<Vec<(TopicId, Resumption)>, Error> {
        let AssignedPartition { partition, low, high, .. } = assigned;
        let (low, high) = (*low, *high);
        let rules = || self.topics[assigned.topic].of_input.iter().copied();
        let each = |resumption: &dyn Fn(TopicId) -> Result<Resumption, Error>| rules().map(|rule| Ok((rule, resumption(rule)?))).collect();
        let Some(committed) = assigned.committed.offset else {
            let stored = rules().filter_map(|rule| self.stored(rule, assigned)).max();
            let reached = rules().filter_map(|rule| self.reached(rule, assigned).filter(|_| self.stored(rule, assigned).is_some())).max();
            let mut assigned = assigned.clone();
            if let Some(read) = stored.max(reached).filter(|&read| read > high) {
                // More records may have been written since the watermarks were requested.
                (assigned.low, assigned.high) = self.watermarks(source, partition, Some(read), began)?;
            }
            let (assigned, low, high) = (&assigned, assigned.low, assigned.high);
            if let Some(stored) = stored.filter(|&stored| stored > high) {
                return each(&|rule| self.truncated(source, rule, assigned, stored));
            }
            let reached = reached.filter(|&reached| reached <= high);
            let resume = match (stored, reached) {
                // A transaction commits offsets and changelog together, so the group had committed the offsets in its changelog.
                (Some(stored), Some(reached)) if reached > stored => {
                    tracing::warn!(partition = %partition, offset = reached, "the group has no committed offset; resuming from the offset in the changelog");
                    reached.max(low)
                }
                (Some(stored), _) if stored >= low => {
                    // Checkpoints are written at the starting offset and after commits, and changelog records are part of a commit. So the
                    // group had started at this offset or was committing it.
                    tracing::warn!(partition = %partition, offset = stored, "the group has no committed offset; resuming from the offset in the checkpoint or changelog");
                    stored
                }
                // A new group starts at the beginning of the log. A group that has lost its offsets must read all records that are still in
                // the log.
                _ => return each(&|rule| Ok(Resumption { warm_until: self.stored(rule, assigned).unwrap_or(low), ..Resumption::at(low) })),
            };
            return each(&|rule| match self.stored(rule, assigned) {
                // The process was killed after it had written the first checkpoint of another state. This state has no checkpoint yet, but
                // it does not lack any records.
                None if resume == low => Ok(Resumption::at(resume)),
                _ => self.warm_up(source, rule, assigned, resume),
            });
        };
        if committed > high {
            return each(&|rule| self.truncated(source, rule, assigned, committed));
        }
        if committed < low {
            add(&self.shared.stats.topics[self.topics[assigned.topic].counted.0].deleted_unread, low.abs_diff(committed));
            tracing::error!(
                %partition,
                committed,
                oldest = low,
                records = low - committed,
                "records were deleted before they were read; `records` is an upper bound, because it also counts aborted records and transaction markers. If the records expired, increase the topic's retention"
            );
        }
        let resume = committed.max(low);
        each(&|rule| match self.stored(rule, assigned) {
            // The state does not lack any records, because it is up to date or the group has not judged any record yet.
            Some(stored) if stored == committed => Ok(Resumption { warm_until: stored, ..Resumption::at(resume) }),
            None if assigned.note().first == Some(committed) => Ok(Resumption::at(resume)),
            stored if !self.was_used(rule, assigned) => {
                if stored.is_none() {
                    tracing::info!(%partition, space = self.topics[rule].config.space, "this entry of the configuration is new to the group, so it starts without keys");
                }
                Ok(Resumption { warm_until: stored.unwrap_or(resume), ..Resumption::at(resume) })
            }
            _ => self.warm_up(source, rule, assigned, resume),
        })
    }

    /// Handles a log that ends before the group's last position. If the brokers report no topic ids, assumes that the topic was recreated.
    fn truncated(&self, source: &B::Consumer, rule: TopicId, assigned: &AssignedPartition, read: Offset) -> Result<Resumption, Error> {
        let (partition, end) = (&assigned.partition, assigned.high);
        if !assigned.has_id() {
            tracing::error!(partition = %partition, read, end, "the group's last position is past the end of the partition, so the topic may have been recreated; reading the partition from its beginning");
            return Ok(Resumption::at(assigned.low));
        }
        match self.shared.config.kafka.on_truncation {
            OnTruncation::Fail => Err(Error::Truncated { partition: partition.clone(), end, read }),
            OnTruncation::Continue => {
                tracing::error!(partition = %partition, read, end, "the log ends below the group's last position, because the log was truncated or the group's offset was set past the end; continuing at the end of the log");
                Ok(Resumption { is_elsewhere: true, ..self.warm_up(source, rule, assigned, end)? })
            }
        }
    }

    /// Plans to read the records below `resume` that a rule's state lacks.
    fn warm_up(&self, source: &B::Consumer, rule: TopicId, assigned: &AssignedPartition, resume: Offset) -> Result<Resumption, Error> {
        let low = assigned.low;
        match self.stored(rule, assigned) {
            _ if self.topics[rule].forward.is_some() => Ok(Resumption::at(resume)),
            Some(stored) if stored >= resume => Ok(Resumption::at(resume)),
            // The group has read nothing, so the state lacks nothing.
            None if resume == 0 => Ok(Resumption::at(0)),
            Some(stored) if fault::defect("resumed_from_checkpoint") && stored >= low => Ok(Resumption::at(stored)),
            Some(stored) if stored >= low => Ok(Resumption { start: stored, warm_until: resume, is_elsewhere: false }),
            Some(stored) => self.cold_start(
                source,
                rule,
                assigned,
                resume,
                &format!("the stored keys reach up to offset {stored}, but the input now starts at offset {low}"),
            ),
            None => {
                let has_changelog = self.topics[rule].changelog.is_some();
                let why = if has_changelog { "neither a checkpoint nor the changelog can be used" } else { "no checkpoint can be used" };
                self.cold_start(source, rule, assigned, resume, why)
            }
        }
    }

    /// Plans the restore of a state that has no usable checkpoint or changelog, or whose stored offset is below the log start offset.
    /// `state.cold_start` decides whether the worker reads part of the input again, starts without the missing keys, or ends.
    fn cold_start(
        &self,
        source: &B::Consumer,
        rule: TopicId,
        assigned: &AssignedPartition,
        resume: Offset,
        why: &str,
    ) -> Result<Resumption, Error> {
        let partition = &assigned.partition;
        let start = match self.shared.config.state.cold_start {
            ColdStart::Fail => return Err(Error::ColdStart { partition: partition.clone(), why: why.to_owned() }),
            ColdStart::Empty => resume,
            ColdStart::Rebuild => {
                // Brokers find offsets by Kafka's timestamps only. An event may be older or newer than its record, so with event times, all
                // records are read.
                let Topic { window, time, space, .. } = &self.topics[rule].config;
                let window = window.length_ms().filter(|_| time.is_none());
                let oldest = match assigned.note().first {
                    Some(first) => first.clamp(assigned.low, resume),
                    // With `start = "latest"`, the group may have skipped the records below `resume`. A skipped record was never emitted,
                    // so its key must not count as seen.
                    None if self.shared.config.kafka.start == Start::Latest && !self.topics[rule].is_internal => resume,
                    None => assigned.low,
                };
                match (assigned.note().stream_time_in(space), window) {
                    (Some(stream_time), Some(window)) => {
                        let first = self.retry_until_answered(|| source.offset_at(partition, stream_time.saturating_sub(window).max(0)))?;
                        first.unwrap_or(resume).clamp(oldest, resume)
                    }
                    // If stream time is unknown, the topic has event times, or the window is a count, the start of the window is unknown.
                    // All records from `oldest` on must be read.
                    _ => oldest,
                }
            }
        };
        fault::point("restore.cold");
        let records = resume - start;
        if records > 0 {
            tracing::warn!(partition = %partition, why, "cannot restore all seen keys; reading up to {records} records of the input again. Keys that were first emitted before these records may be emitted again");
        } else {
            tracing::warn!(partition = %partition, why, "cannot restore all seen keys; continuing without them, so records with these keys may be emitted again");
        }
        Ok(Resumption { start, warm_until: resume, is_elsewhere: false })
    }
}
