//! Restores the state of a partition at the group's committed offset from a checkpoint, the changelog, and the input.
//!
//! Owns the choice between these sources. A restore loads the newest checkpoint that is not past the committed offset. A rebuild applies
//! the changelog after that checkpoint, while the workers process other partitions. If the changelog does not reach the committed offset, a
//! warm-up reads the input again without emitting. Must never start past the committed offset.

mod first;

use super::assignment::inputs_of;
use super::ids::{InputId, StateId};
use super::input::Input;
use super::partition::{Announced, PartitionState};
use super::pending_restore::{AssignedPartition, PendingRestore};
use super::rebuild_job::{Cancellation, Job, Rebuilt};
use super::{Error, Worker};
use crate::broker::{Broker, Committed, Consumer as _, Note};
use crate::config::{ColdStart, Delivery, OnTruncation, Start, Topic};
use crate::fault;
use crate::record::{Offset, TopicPartition, log_id, log_name};
use crate::runtime;
use crate::stats::{add, take};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The offset at which a partition resumes, and the end of its warm-up.
struct Resumption {
    start: Offset,
    /// The end of the warm-up. Without a warm-up, the offset of the state: `start`, or less if the records in between have expired.
    warm_until: Offset,
    /// True if the group's committed offset is past the end of the log.
    is_elsewhere: bool,
}

impl Resumption {
    const fn at(start: Offset) -> Self {
        Self { start, warm_until: start, is_elsewhere: false }
    }
}

impl<B: Broker> Worker<B> {
    /// Restores the states of newly assigned partitions, or starts to rebuild them. Returns the offset at which to start reading each
    /// partition.
    pub(super) fn restore(&mut self, source: &B::Consumer, partitions: &[TopicPartition]) -> Result<Vec<(TopicPartition, Offset)>, Error> {
        let began = runtime::now();
        let _span = tracing::debug_span!("restore", partitions = partitions.len()).entered();
        fault::point("restore.begin");
        self.refresh_if_partitions_added(partitions)?;
        self.claim(partitions);
        let committed = self.retry_until_answered(|| source.committed(partitions))?;
        let mut all = Vec::new();
        let mut topics: Vec<_> = partitions.iter().map(|partition| &*partition.topic).collect();
        topics.sort_unstable();
        topics.dedup();
        let changelogs: BTreeSet<_> = partitions.iter().filter_map(|partition| self.changelog_of(&partition.topic)).collect();
        let with_changelogs: Vec<_> = topics.iter().copied().chain(changelogs).collect();
        // A missing changelog must not block the inputs. The rebuild waits for it.
        let ids = match source.topic_ids(&with_changelogs) {
            Ok(ids) => ids,
            Err(_) => self.retry_until_answered(|| source.topic_ids(&topics))?,
        };
        for (partition, mut committed) in partitions.iter().zip(committed) {
            let id = ids.get(&partition.topic).map(String::as_str).filter(|_| !fault::defect("topic_ids_ignored"));
            if let (Some(of), Some(id)) = (Note::read(&committed.metadata).id, id)
                && of != id
            {
                tracing::warn!(partition = %partition, committed = committed.offset, "the topic was recreated after the group committed this offset; reading it from its beginning");
                committed = Committed::default();
            }
            let Some(topic) = self.topics.find(&partition.topic) else { continue };
            self.check_stop();
            let (low, high) = self.watermarks(source, partition, committed.offset, began)?;
            all.push(AssignedPartition {
                partition: partition.clone(),
                topic,
                topic_incarnation: log_name(&partition.topic, id),
                committed,
                low,
                high,
            });
        }
        fault::point("restore.offsets");
        for assigned in &all {
            self.check_stop();
            let (id, topic) = (assigned.state(&self.topics), &self.topics[assigned.topic]);
            if topic.forward.is_none() && !self.assignment.states.contains_key(&id) {
                let mut state = PartitionState::load(&self.shared.store, &topic.stored_as(id.partition), &topic.settings, topic.rules)?;
                if let Some(changelog) = &topic.changelog
                    && !state.changelog.adopt(ids.get(changelog).map(String::as_str))
                {
                    tracing::warn!(
                        changelog,
                        partition = id.partition,
                        "the changelog was recreated after the checkpoint was written; it lacks the earlier records"
                    );
                }
                self.assignment.states.insert(id, state);
                fault::point("restore.loaded");
            }
        }
        let unbegun = self.assignment.unbegun.len();
        self.take_unbegun(source, &mut all)?;
        // The topics of a space share their state. If the state is past the committed offset of one topic, none of them can use it.
        for assigned in &all {
            self.drop_if_ahead(source, assigned)?;
        }
        for id in all.iter().map(|assigned| assigned.state(&self.topics)).collect::<BTreeSet<_>>() {
            let mut of_state: Vec<_> = all.iter().filter(|assigned| assigned.state(&self.topics) == id).cloned().collect();
            let others =
                self.assignment.pending_restores.remove(&id).map(|mut pending| std::mem::take(&mut pending.assigned)).unwrap_or_default();
            if !others.is_empty() || self.needs_rebuild(id, &of_state) {
                of_state.extend(others);
                self.rebuild(id, of_state);
            }
        }
        let unbegun = self.assignment.unbegun[unbegun..].iter();
        let mut starts: Vec<_> = unbegun.map(|assigned| (assigned.partition.clone(), assigned.paused_at())).collect();
        for assigned in all {
            if self.assignment.pending_restores.contains_key(&assigned.state(&self.topics)) {
                starts.push((assigned.partition.clone(), assigned.paused_at()));
            } else {
                starts.push((assigned.partition.clone(), self.start_input(source, assigned, began)?));
            }
        }
        fault::point("restore.placed");
        Ok(starts)
    }

    /// Claims the checkpoints of partitions, before the group's offsets are read.
    fn claim(&mut self, partitions: &[TopicPartition]) {
        for TopicPartition { topic, partition } in partitions {
            let Some(topic) = self.topics.find(topic).map(|topic| &self.topics[topic]).filter(|topic| topic.forward.is_none()) else {
                continue;
            };
            let id = StateId { space: topic.space, partition: *partition };
            self.assignment.claims.insert(id, self.shared.store.claim(&topic.stored_as(*partition)));
        }
    }

    /// If partitions were added, reads the cluster metadata again, which also adds partitions to the changelog.
    fn refresh_if_partitions_added(&mut self, partitions: &[TopicPartition]) -> Result<(), Error> {
        let known = |partition: &TopicPartition| self.shared.cluster.partitions.get(&partition.topic).copied().unwrap_or(0);
        let Some(added) = partitions.iter().find(|partition| partition.partition.unsigned_abs() >= known(partition)) else { return Ok(()) };
        let moves_keys = self.topics.iter().all(|(_, topic)| topic.config.input != added.topic || topic.forward.is_none());
        let what = if moves_keys { "; keys that moved to another partition may be emitted again within their window" } else { "" };
        tracing::warn!(topic = added.topic, partition = added.partition, "partitions were added{what}");
        self.refresh_cluster()
    }

    /// Returns true if the state is not at the group's committed offsets and must be rebuilt from the changelog.
    fn needs_rebuild(&self, id: StateId, assigned: &[AssignedPartition]) -> bool {
        let is_new = self.assignment.inputs.values().all(|input| input.state != id);
        let has_changelog = self.topics.first_of(id.space).changelog.is_some();
        let Some(state) = self.assignment.states.get(&id).filter(|_| is_new && has_changelog) else { return false };
        // An empty input does not prove that the group is new, because the input may have been recreated. Only the changelog can prove it.
        !assigned.iter().all(|assigned| {
            let offset = state.offset(&assigned.topic_incarnation);
            // A seed commits an offset that a checkpoint from before the seed may also have.
            offset.is_some() && offset == assigned.committed.offset && !assigned.note().is_seed
        })
    }

    fn rebuild(&mut self, id: StateId, assigned: Vec<AssignedPartition>) {
        let topic = self.topics.first_of(id.space);
        let (Some(changelog), Some(mut state)) = (&topic.changelog, self.assignment.states.remove(&id)) else { return };
        let (topic_id, epoch) = (state.changelog.topic_id.clone(), state.changelog.epoch);
        let ignores_checkpoint = assigned.iter().all(|assigned| assigned.note().is_seed);
        if ignores_checkpoint {
            // The checkpoint may have been written before the group's offsets and its changelog were deleted.
            state = PartitionState::new(topic.rules);
        }
        let bounds = assigned.iter().filter_map(|assigned| Some((assigned.topic_incarnation.clone(), assigned.committed.offset?)));
        // Keys that had expired at the last commit are not needed. The topics of a space share their stream time.
        let stream_time = assigned.iter().filter_map(|assigned| assigned.note().stream_time).max();
        let window = topic.rules.window;
        let oldest = stream_time.and_then(|time| window.slice_at(time)).map(|slice| slice.before(window.slices()));
        let cancellation = Arc::<Cancellation>::default();
        let Some(claim) = self.assignment.claims.get(&id).cloned() else { return };
        let job = Job {
            id,
            claim,
            partition: topic.stored_as(id.partition),
            changelog: TopicPartition { topic: changelog.clone(), partition: id.partition },
            topic_id,
            epoch,
            state,
            rules: topic.rules,
            settings: topic.settings.clone(),
            bounds: bounds.collect(),
            origin: topic.origin,
            oldest_slice: oldest.filter(|_| topic.rules.is_sliced()),
            ignores_checkpoint,
            cancellation: Arc::clone(&cancellation),
            done: self.assignment.rebuilt.0.clone(),
            began: runtime::now(),
            wait: None,
            pause: Duration::ZERO,
        };
        self.shared.rebuilder.rebuild(job);
        add(&self.shared.stats.rebuilding, 1);
        self.assignment.pending_restores.insert(id, PendingRestore { assigned, began: runtime::now(), cancellation });
    }

    /// Restores assigned partitions again from the committed offsets. No transaction may be open.
    pub(super) fn restore_assigned(&mut self, source: &B::Consumer, partitions: &[TopicPartition]) -> Result<(), Error> {
        tracing::warn!(partitions = %super::partition::names(partitions), "restoring partitions");
        // The topics of a space share their state, so they are restored together.
        let partitions = self.assignment.with_shared_state(partitions);
        if partitions.is_empty() {
            return Ok(());
        }
        self.assignment.forget(&partitions);
        self.restore(source, &partitions)?;
        self.restart_fetching(source, &partitions)
    }

    /// Resumes partitions whose state has been rebuilt.
    pub(super) fn finish_rebuilds(&mut self, source: &B::Consumer) -> Result<(), Error> {
        while let Ok(Rebuilt { id, cancellation, state }) = self.assignment.rebuilt.1.try_recv() {
            take(&self.shared.stats.rebuilding, 1);
            if !self.assignment.pending_restores.get(&id).is_some_and(|pending| Arc::ptr_eq(&pending.cancellation, &cancellation)) {
                continue;
            }
            // When the worker stops, a rebuild may return an incomplete state.
            if self.check_stop() {
                return Ok(());
            }
            let state = state?;
            let Some(mut pending) = self.assignment.pending_restores.remove(&id) else { continue };
            self.assignment.states.insert(id, state);
            fault::point("rebuild.taken");
            let assigned = std::mem::take(&mut pending.assigned);
            for assigned in &assigned {
                self.drop_if_ahead(source, assigned)?;
            }
            let mut elsewhere = Vec::new();
            for assigned in &assigned {
                let start = self.start_input(source, assigned.clone(), pending.began)?;
                if start != assigned.paused_at() && source.seek(&assigned.partition, start).is_err() {
                    elsewhere.push(assigned.partition.clone());
                }
            }
            let partitions: Vec<_> = assigned.into_iter().map(|assigned| assigned.partition).collect();
            if elsewhere.is_empty() {
                source.resume(&partitions)?;
            } else {
                self.restart_fetching(source, &partitions)?;
            }
        }
        Ok(())
    }

    /// Turns an assigned partition with a restored state into an input. Returns the offset at which to start reading it.
    fn start_input(&mut self, source: &B::Consumer, assigned: AssignedPartition, began: Instant) -> Result<Offset, Error> {
        let resumption = self.resumption(source, &assigned, began)?;
        tracing::info!(
            partition = %assigned.partition, committed = assigned.committed.offset, start = resumption.start, warm_up_records = (resumption.warm_until - resumption.start).max(0),
            elapsed_ms = runtime::since(began).as_millis(), "partition restored"
        );
        self.shared.stats.restore_time.observe(runtime::since(began));
        let id = assigned.state(&self.topics);
        let is_first = self.assignment.inputs.values().all(|input| input.state != id);
        if let Some(state) = self.assignment.states.get_mut(&id) {
            if is_first {
                state.take_over(source.generation().unwrap_or_default());
            }
            state.epoch = state.epoch.max(assigned.note().epoch.unwrap_or_default().saturating_add(1));
            let must_announce = is_first || resumption.start < resumption.warm_until;
            if must_announce && self.topics.first_of(id.space).changelog.is_some() {
                state.announced = Announced::Nothing { since: runtime::now() };
            }
        }
        if let Some(state) = self
            .assignment
            .states
            .get_mut(&id)
            .filter(|state| resumption.is_elsewhere || state.offset(&assigned.topic_incarnation).is_none())
        {
            // No checkpoint contains this topic yet. A checkpoint before the first record lets the next owner read the input from this
            // offset, even if this process is killed, and still have an exact state.
            state.changed = true;
            state.is_new = true;
            if state.offsets.is_empty() && self.topics.first_of(id.space).changelog.is_some() {
                // The whole changelog comes after this state. So a checkpoint of this state cannot be used after the changelog was trimmed.
                state.changelog.end.get_or_insert(0);
            }
        }
        let mut group = assigned.committed.clone();
        let mut first = assigned.note().first;
        if group.offset.is_none() || resumption.is_elsewhere {
            let state = self.assignment.states.get(&id).filter(|state| state.offset(&assigned.topic_incarnation).is_some());
            // A state that is to warm up has not reached the stream time of the group.
            let warms_up = resumption.start < resumption.warm_until && !fault::defect("truncation_forgets_stream_time");
            let of_state = state.and_then(|state| state.dedup.stream_time());
            let stream_time = if warms_up { assigned.note().stream_time } else { of_state };
            if state.is_none() {
                first = Some(resumption.start);
            }
            let note = Note { first, stream_time, id: log_id(&assigned.topic_incarnation).map(str::to_owned), epoch: None, is_seed: false };
            group = Committed { offset: None, metadata: note.to_string() };
        } else if assigned.committed.offset.is_some_and(|committed| committed < resumption.start) {
            // The records in between have expired. A new commit removes the lag, and prevents the error from being reported again at every
            // start.
            group.offset = None;
        }
        // An announcement commits this metadata even if the offset does not change.
        if let Some(state) = self.assignment.states.get(&id).filter(|_| self.topics[assigned.topic].changelog.is_some()) {
            group.metadata = Note { epoch: Some(state.epoch), ..Note::read(&group.metadata) }.to_string();
        }
        let of = InputId { topic: assigned.topic, partition: assigned.partition.partition };
        let has_changelog = self.topics[assigned.topic].changelog.is_some();
        let input = Input::new(assigned, id, (resumption.start, resumption.warm_until), first, group, has_changelog);
        self.assignment.inputs.insert(of, input);
        self.assignment.any_warm_up |=
            inputs_of(&self.topics, &self.assignment.inputs, id).count() > 1 && self.assignment.warms_up(&self.topics, id);
        Ok(resumption.start)
    }

    /// Returns the changelog of the topic's space.
    fn changelog_of(&self, topic: &str) -> Option<&str> {
        self.topics[self.topics.find(topic)?].changelog.as_deref()
    }

    fn drop_if_ahead(&mut self, source: &B::Consumer, assigned: &AssignedPartition) -> Result<(), Error> {
        let id = assigned.state(&self.topics);
        let Some(stored) = self.assignment.states.get(&id).and_then(|state| state.offset(&assigned.topic_incarnation)) else {
            return Ok(());
        };
        let is_beyond = match assigned.committed.offset {
            Some(committed) => stored > committed || !assigned.has_id() && committed > assigned.high,
            None => !assigned.has_id() && (stored > assigned.high || self.is_of_another_log(source, assigned, stored)?),
        };
        if is_beyond && !fault::defect("checkpoint_past_offset_used") {
            tracing::warn!(partition = %assigned.partition, checkpoint = stored, committed = assigned.committed.offset, end = assigned.high,
                "the checkpoint is past the group's committed offset, which may have been reset; not using the checkpoint");
            let rules = self.topics[assigned.topic].rules;
            if let Some(state) = self.assignment.states.get_mut(&id) {
                *state = state.emptied(rules);
            }
        }
        Ok(())
    }

    /// Returns true if a checkpoint belongs to an earlier topic with the same name. Only needed if the brokers report no topic ids. When a
    /// topic is deleted, the broker also deletes its committed offsets. If the new topic is longer than the old one, only its records show
    /// the difference: below the checkpoint's offset, no record can be later than the checkpoint's stream time, except one that was ahead
    /// of the clock. In case of such a record, the topic is read from its start, which loses nothing.
    fn is_of_another_log(&self, source: &B::Consumer, assigned: &AssignedPartition, stored: Offset) -> Result<bool, Error> {
        let stream_time = self.assignment.states.get(&assigned.state(&self.topics)).and_then(|state| state.dedup.stream_time());
        // Brokers find offsets by Kafka's timestamps only.
        let Some(stream_time) = stream_time.filter(|_| self.topics[assigned.topic].config.time.is_none()) else { return Ok(false) };
        let later = self.retry_until_answered(|| source.offset_at(&assigned.partition, stream_time.saturating_add(1)))?;
        Ok(later.is_some_and(|later| later < stored))
    }

    /// Returns the offset that the group had reached by its changelog, if the state does not continue to there.
    fn reached(&self, assigned: &AssignedPartition) -> Option<Offset> {
        let is_atomic = self.shared.config.worker.delivery == Delivery::ExactlyOnce && !fault::defect("gap_forgets_group_offsets");
        let state = self.assignment.states.get(&assigned.state(&self.topics)).filter(|_| is_atomic)?;
        state.group_offsets.get(&*assigned.topic_incarnation).copied()
    }

    fn resumption(&self, source: &B::Consumer, assigned: &AssignedPartition, began: Instant) -> Result<Resumption, Error> {
        let AssignedPartition { partition, low, high, .. } = assigned;
        let (low, high) = (*low, *high);
        let stored = self.assignment.states.get(&assigned.state(&self.topics)).and_then(|state| state.offset(&assigned.topic_incarnation));
        let Some(committed) = assigned.committed.offset else {
            let reached = self.reached(assigned).filter(|&reached| reached <= high && Some(reached) > stored);
            return match (stored, reached) {
                (Some(stored), _) if stored > high => {
                    let (low, high) = self.watermarks(source, partition, Some(stored), began)?;
                    if stored > high {
                        return self.truncated(source, assigned, stored);
                    }
                    self.resumption(source, &AssignedPartition { low, high, ..assigned.clone() }, began)
                }
                // A transaction commits offsets and changelog together, so the group had committed what its changelog has.
                (Some(_), Some(reached)) => {
                    tracing::warn!(partition = %partition, offset = reached, "the group has no committed offset, but its changelog does; resuming from there");
                    self.warm_up(source, assigned, reached)
                }
                (Some(stored), None) if stored >= low => {
                    // Checkpoints are written at the starting offset and after commits, so the group had committed at least this offset.
                    tracing::warn!(partition = %partition, offset = stored, "the group has no committed offset; resuming from the offset in the checkpoint");
                    Ok(Resumption::at(stored))
                }
                // If the group had started before, it must still read the records since then.
                _ => Ok(Resumption { warm_until: stored.unwrap_or(low), ..Resumption::at(low) }),
            };
        };
        if committed > high {
            return self.truncated(source, assigned, committed);
        }
        if committed < low {
            tracing::error!(
                %partition,
                committed,
                oldest = low,
                records = low - committed,
                "records expired before they were read; `records` is an upper bound, because it includes aborted records and transaction markers. Increase the topic's retention"
            );
        }
        let resume = committed.max(low);
        match stored {
            // No record is missing: the state is up to date, or nothing has been judged yet.
            Some(stored) if stored == committed => Ok(Resumption { warm_until: stored, ..Resumption::at(resume) }),
            None if assigned.note().first == Some(committed) => Ok(Resumption::at(resume)),
            _ => self.warm_up(source, assigned, resume),
        }
    }

    /// Handles a log that ends before the position up to which the group has read it.
    fn truncated(&self, source: &B::Consumer, assigned: &AssignedPartition, read: Offset) -> Result<Resumption, Error> {
        let (partition, end) = (&assigned.partition, assigned.high);
        if !assigned.has_id() {
            tracing::error!(partition = %partition, committed = read, end, "the committed offset is past the end of the topic, which may have been recreated; reading the topic from its beginning");
            return Ok(Resumption::at(assigned.low));
        }
        match self.shared.config.kafka.on_truncation {
            OnTruncation::Fail => Err(Error::Truncated { partition: partition.clone(), end, read }),
            OnTruncation::Continue => {
                tracing::error!(partition = %partition, read, end, "the log was truncated below the position up to which it was read; continuing at its end");
                Ok(Resumption { is_elsewhere: true, ..self.warm_up(source, assigned, end)? })
            }
        }
    }

    /// Plans to read the records below `resume` that the state lacks.
    fn warm_up(&self, source: &B::Consumer, assigned: &AssignedPartition, resume: Offset) -> Result<Resumption, Error> {
        let (low, state) = (assigned.low, self.assignment.states.get(&assigned.state(&self.topics)));
        match state.and_then(|state| state.offset(&assigned.topic_incarnation)) {
            _ if self.topics[assigned.topic].forward.is_some() => Ok(Resumption::at(resume)),
            Some(stored) if stored >= resume => Ok(Resumption::at(resume)),
            Some(stored) if fault::defect("resumed_from_checkpoint") && stored >= low => Ok(Resumption::at(stored)),
            Some(stored) if stored >= low => Ok(Resumption { start: stored, warm_until: resume, is_elsewhere: false }),
            Some(stored) => self.cold_start(
                source,
                assigned,
                resume,
                &format!("the checkpoint ends at offset {stored}, but the log starts at offset {low}"),
            ),
            None => self.cold_start(source, assigned, resume, "there is no checkpoint"),
        }
    }

    /// Plans a restore without a checkpoint. By default, reads one window of the input again.
    fn cold_start(&self, source: &B::Consumer, assigned: &AssignedPartition, resume: Offset, why: &str) -> Result<Resumption, Error> {
        let partition = &assigned.partition;
        let start = match self.shared.config.state.cold_start {
            ColdStart::Fail => return Err(Error::ColdStart { partition: partition.clone(), why: why.to_owned() }),
            ColdStart::Empty => resume,
            ColdStart::Rebuild => {
                // Brokers find offsets by Kafka's timestamps only. An event may be older or newer than its record, so nothing is skipped.
                let Topic { window, time, .. } = &self.topics[assigned.topic].config;
                let window = window.length_ms().filter(|_| time.is_none());
                let oldest = match assigned.note().first {
                    Some(first) => first.clamp(assigned.low, resume),
                    // The group may never have read these records, so they may not have been emitted and must not count as seen.
                    None if self.shared.config.kafka.start == Start::Latest && !self.topics[assigned.topic].is_internal => resume,
                    None => assigned.low,
                };
                match (assigned.note().stream_time, window) {
                    (Some(stream_time), Some(window)) => {
                        let first = self.retry_until_answered(|| source.offset_at(partition, stream_time.saturating_sub(window).max(0)))?;
                        first.unwrap_or(resume).clamp(oldest, resume)
                    }
                    // If stream time is unknown, the topic has event times, or the window is a count, the start of the window is unknown.
                    _ => oldest,
                }
            }
        };
        fault::point("restore.cold");
        tracing::warn!(partition = %partition, why, "no usable checkpoint; reading {} records of the input again to restore the state. This is approximate: keys that were first emitted before these records may be emitted again", resume - start);
        Ok(Resumption { start, warm_until: resume, is_elsewhere: false })
    }
}
