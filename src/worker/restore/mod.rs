//! Restores a partition's state at the group's committed offset from a checkpoint, the changelog, and the input.
//!
//! Chooses between these sources. A restore loads the checkpoint, unless the checkpoint is past the committed offset. A rebuild then
//! applies the changelog records that the checkpoint lacks, while the workers process other partitions. If the changelog does not reach the
//! committed offset, a warm-up reads the input again without emitting. Never starts past the committed offset, unless the log starts after
//! that offset.

mod first;
mod resumption;

use super::assignment::inputs_of;
use super::ids::{InputId, StateId, UnitId};
use super::input::Input;
use super::partition::{Announced, PartitionState};
use super::pending_restore::{AssignedPartition, PendingRestore};
use super::rebuild_job::{Cancellation, Job, Rebuilt};
use super::state_progress::StateProgress;
use super::{Error, Worker};
use crate::broker::{Broker, Committed, Consumer as _, Note};
use crate::fault;
use crate::record::{Offset, TopicPartition, log_id, log_name};
use crate::runtime;
use crate::stats::{add, take};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl<B: Broker> Worker<B> {
    /// Restores the states of newly assigned partitions or starts to rebuild them. Returns the offset to read each partition from.
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
        let changelogs: BTreeSet<_> = partitions.iter().flat_map(|partition| self.changelogs_of(&partition.topic)).collect();
        let with_changelogs: Vec<_> = topics.iter().copied().chain(changelogs).collect();
        // A missing changelog must not block the inputs. The rebuild waits for the changelog instead.
        let ids = match source.topic_ids(&with_changelogs) {
            Ok(ids) => ids,
            Err(_) => self.retry_until_answered(|| source.topic_ids(&topics))?,
        };
        for (partition, committed) in partitions.iter().zip(committed) {
            let id = ids.get(&partition.topic).map(String::as_str).filter(|_| !fault::defect("topic_ids_ignored"));
            let Some(topic) = self.topics.find(&partition.topic) else { continue };
            self.check_stop();
            let mut committed = of_topic_id(partition, id, committed);
            let (mut low, mut high) = self.watermarks(source, partition, committed.offset, began)?;
            while committed.offset.is_some_and(|offset| offset < low) && !fault::defect("outdated_offset_believed") {
                // Since the offset was requested, another member may have committed a later offset and deleted records.
                let now = self.retry_until_answered(|| source.committed(std::slice::from_ref(partition)))?.into_iter().next();
                let Some(now) = now.map(|now| of_topic_id(partition, id, now)).filter(|now| now.offset != committed.offset) else { break };
                committed = now;
                (low, high) = self.watermarks(source, partition, committed.offset, began)?;
            }
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
            self.load_states(assigned, &ids)?;
        }
        let unbegun = self.assignment.unbegun.len();
        self.take_unbegun(source, &mut all, began)?;
        // The topics of a space share their state. If the state is past the committed offset of any topic, no topic can use the state.
        for assigned in &all {
            self.drop_if_ahead(source, assigned)?;
        }
        for unit in all.iter().map(|assigned| self.topics.unit_of(assigned.input())).collect::<BTreeSet<_>>() {
            let mut of_unit: Vec<_> = all.iter().filter(|assigned| self.topics.unit_of(assigned.input()) == unit).cloned().collect();
            let others =
                self.assignment.pending_restores.remove(&unit).map(|mut pending| std::mem::take(&mut pending.assigned)).unwrap_or_default();
            for assigned in &others {
                // The rebuilds for these partitions were canceled together with their pending restore, so the states must be loaded again.
                self.load_states(assigned, &ids)?;
            }
            let starts_over = !others.is_empty();
            of_unit.extend(others);
            self.rebuild_unit(unit, of_unit, starts_over);
        }
        let unbegun = self.assignment.unbegun[unbegun..].iter();
        let mut starts: Vec<_> = unbegun.map(|assigned| (assigned.partition.clone(), assigned.paused_at())).collect();
        for assigned in all {
            if self.assignment.pending_restores.contains_key(&self.topics.unit_of(assigned.input())) {
                starts.push((assigned.partition.clone(), assigned.paused_at()));
            } else {
                starts.push((assigned.partition.clone(), self.start_input(source, assigned, began)?));
            }
        }
        fault::point("restore.placed");
        Ok(starts)
    }

    fn load_states(&mut self, assigned: &AssignedPartition, ids: &BTreeMap<String, String>) -> Result<(), Error> {
        for id in self.topics.states_of(assigned.input()) {
            let topic = self.topics.first_of(id.space);
            if topic.forward.is_some() || self.assignment.states.contains_key(&id) {
                continue;
            }
            let mut state = PartitionState::load(&self.shared.store, &topic.stored_as(id.partition), &topic.settings, topic.rules)?;
            if let Some(changelog) = &topic.changelog
                && !state.changelog.adopt(ids.get(changelog).map(String::as_str))
            {
                tracing::warn!(
                    changelog,
                    partition = id.partition,
                    "the changelog was recreated after the checkpoint was written; until one window has passed, only the checkpoints contain all keys, so keep the state directory"
                );
            }
            self.assignment.states.insert(id, state);
            fault::point("restore.loaded");
        }
        Ok(())
    }

    /// Claims the checkpoints of partitions, before the group's offsets are read. After the claim, a former owner in this process cannot
    /// save these checkpoints.
    fn claim(&mut self, partitions: &[TopicPartition]) {
        for TopicPartition { topic, partition } in partitions {
            let Some(topic) = self.topics.find(topic) else { continue };
            for id in self.topics.states_of(InputId { topic, partition: *partition }) {
                let topic = self.topics.first_of(id.space);
                if topic.forward.is_none() {
                    self.assignment.claims.insert(id, self.shared.store.claim(&topic.stored_as(*partition)));
                }
            }
        }
    }

    /// Reads the cluster metadata again if partitions were added. Reading the metadata also adds partitions to the changelog.
    fn refresh_if_partitions_added(&mut self, partitions: &[TopicPartition]) -> Result<(), Error> {
        let known = |partition: &TopicPartition| self.shared.cluster.partitions.get(&partition.topic).copied().unwrap_or(0);
        let Some(added) = partitions.iter().find(|partition| partition.partition.unsigned_abs() >= known(partition)) else { return Ok(()) };
        let moves_keys = self.topics.inputs().all(|(_, topic)| topic.config.input != added.topic || topic.forward.is_none());
        let what = if moves_keys { "; keys that moved to another partition may be emitted again within their window" } else { "" };
        tracing::warn!(topic = added.topic, partition = added.partition, "partitions were added{what}");
        self.refresh_cluster()
    }

    /// Returns true if the state must be rebuilt: it has a changelog, no input uses it yet, and it is not at the group's committed offsets.
    fn needs_rebuild(&self, id: StateId, assigned: &[AssignedPartition]) -> bool {
        let is_new = !self.is_used(id);
        let has_changelog = self.topics.first_of(id.space).changelog.is_some();
        let Some(state) = self.assignment.states.get(&id).filter(|_| is_new && has_changelog) else { return false };
        // An empty input does not prove that the group is new, because the input may have been recreated. Only the changelog shows whether
        // the group is new.
        !assigned.iter().all(|assigned| {
            let offset = state.offset(&assigned.topic_incarnation);
            // A checkpoint from before a seed may have the same offset that the seed commits, but it lacks the seeded keys.
            offset.is_some() && offset == assigned.committed.offset && !assigned.note().is_seed
        })
    }

    fn is_used(&self, id: StateId) -> bool {
        inputs_of(&self.topics, &self.assignment.inputs, id).next().is_some()
    }

    /// Starts to rebuild the states of a unit that are not at the group's committed offsets, or all states of the unit if `starts_over` is
    /// true. The partitions in `assigned` wait until all states of the unit are restored.
    fn rebuild_unit(&mut self, unit: UnitId, assigned: Vec<AssignedPartition>, starts_over: bool) {
        let of_inputs = assigned.iter().filter(|assigned| self.topics[assigned.topic].forward.is_none());
        let ids: BTreeSet<_> = of_inputs.flat_map(|assigned| self.topics.states_of(assigned.input())).collect();
        let (mut jobs, mut states) = (BTreeMap::new(), BTreeMap::new());
        for id in ids.iter().copied().filter(|&id| !self.is_used(id)).collect::<Vec<_>>() {
            let uses = |assigned: &&AssignedPartition| self.topics.states_of(assigned.input()).any(|used| used == id);
            let of_state: Vec<_> = assigned.iter().filter(uses).cloned().collect();
            if (starts_over || self.needs_rebuild(id, &of_state))
                && let Some(job) = self.rebuild(id, &of_state)
            {
                jobs.insert(id, job);
            } else if let Some(state) = self.assignment.states.remove(&id) {
                states.insert(id, state);
            }
        }
        if jobs.is_empty() {
            self.assignment.states.append(&mut states);
        } else {
            self.assignment.pending_restores.insert(unit, PendingRestore { assigned, began: runtime::now(), jobs, states });
        }
    }

    /// Starts to rebuild a state, if it has a changelog. `assigned` contains the partitions that use the state.
    fn rebuild(&mut self, id: StateId, assigned: &[AssignedPartition]) -> Option<Arc<Cancellation>> {
        let topic = self.topics.first_of(id.space);
        let changelog = topic.changelog.as_ref()?;
        let claim = self.assignment.claims.get(&id)?.clone();
        let mut state = self.assignment.states.remove(&id)?;
        let (topic_id, epoch) = (state.changelog.topic_id.clone(), state.changelog.epoch);
        let ignores_checkpoint = assigned.iter().all(|assigned| assigned.note().is_seed);
        if ignores_checkpoint {
            // If the group's offsets and changelog were deleted before the seed, the checkpoint may be older than the seed and lack the
            // seeded keys.
            state = PartitionState::new(topic.rules);
        }
        let bounds = assigned.iter().filter_map(|assigned| Some((assigned.topic_incarnation.clone(), assigned.committed.offset?)));
        let epochs = assigned.iter().filter(|assigned| assigned.has_id());
        let epochs = epochs.filter_map(|assigned| Some((assigned.topic_incarnation.clone(), assigned.note().epoch?)));
        // Keys that had expired at the last commit are not needed. The topics of a space share their stream time, so the latest committed
        // stream time counts.
        let time = |assigned: &AssignedPartition| {
            let note = assigned.note();
            // A commit contains this stream time only if the input had a single rule when the offset was committed. If the input has
            // several rules now, the stream time may belong to another rule.
            let of_input = note.stream_time.filter(|_| !self.topics[assigned.topic].has_rules());
            note.stream_times.get(&topic.config.space).copied().flatten().or(of_input)
        };
        let stream_time = assigned.iter().filter_map(time).max();
        let window = topic.rules.window;
        let oldest = stream_time.and_then(|time| window.slice_at(time)).map(|slice| slice.before(window.slices()));
        let cancellation = Arc::<Cancellation>::default();
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
            epochs: epochs.collect(),
            lows: assigned.iter().map(|assigned| (assigned.topic_incarnation.clone(), assigned.low)).collect(),
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
        Some(cancellation)
    }

    /// Restores assigned partitions again from the committed offsets. The log shows `why`. No transaction may be open.
    pub(super) fn restore_assigned(&mut self, source: &B::Consumer, partitions: &[TopicPartition], why: &str) -> Result<(), Error> {
        tracing::warn!(partitions = %super::partition::names(partitions), why, "restoring partitions from their committed offsets");
        // The topics of a space share their state, so they are restored together.
        let partitions = self.assignment.with_shared_state(&self.topics, partitions);
        if partitions.is_empty() {
            return Ok(());
        }
        self.assignment.forget(&partitions);
        self.restore(source, &partitions)?;
        self.restart_fetching(source, &partitions)
    }

    /// Resumes partitions whose states have all been rebuilt.
    pub(super) fn finish_rebuilds(&mut self, source: &B::Consumer) -> Result<(), Error> {
        while let Ok(Rebuilt { id, cancellation, state }) = self.assignment.rebuilt.1.try_recv() {
            take(&self.shared.stats.rebuilding, 1);
            let unit = self.topics.unit_of_state(id);
            if !self.assignment.pending_restores.get(&unit).is_some_and(|pending| pending.awaits(id, &cancellation)) {
                continue;
            }
            // When the worker stops, a rebuild may return an incomplete state.
            if self.check_stop() {
                return Ok(());
            }
            let state = state?;
            let Some(pending) = self.assignment.pending_restores.get_mut(&unit) else { continue };
            pending.jobs.remove(&id);
            pending.states.insert(id, state);
            if !pending.jobs.is_empty() {
                continue;
            }
            let Some(mut pending) = self.assignment.pending_restores.remove(&unit) else { continue };
            // If partitions were revoked during the rebuild, the states that only these partitions used are not needed.
            pending
                .states
                .retain(|&id, _| pending.assigned.iter().any(|assigned| self.topics.states_of(assigned.input()).any(|of| of == id)));
            self.assignment.states.append(&mut pending.states);
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

    /// Turns an assigned partition with a restored state into an input. Returns the offset to read the partition from.
    fn start_input(&mut self, source: &B::Consumer, assigned: AssignedPartition, began: Instant) -> Result<Offset, Error> {
        let resumptions = self.resumptions(source, &assigned, began)?;
        let starts = || resumptions.iter().map(|(_, resumption)| resumption.start);
        let start = if fault::defect("warm_up_starts_too_late") { starts().max() } else { starts().min() }.unwrap_or(assigned.low);
        let warm_until = resumptions.iter().map(|(_, resumption)| resumption.warm_until).max().unwrap_or(start);
        let is_elsewhere = resumptions.iter().any(|(_, resumption)| resumption.is_elsewhere);
        tracing::info!(
            partition = %assigned.partition, committed = assigned.committed.offset, start, warm_up_records = (warm_until - start).max(0),
            elapsed_ms = runtime::millis_since(began), "partition restored"
        );
        self.shared.stats.restore_time.observe(runtime::since(began));
        let (note, topic) = (assigned.note(), &self.topics[assigned.topic]);
        for &(rule, ref resumption) in &resumptions {
            let id = StateId { space: self.topics[rule].space, partition: assigned.partition.partition };
            let is_first = !self.is_used(id);
            let Some(state) = self.assignment.states.get_mut(&id) else { continue };
            if is_first {
                state.take_over(source.generation().unwrap_or_default());
            }
            state.outrank(note.epoch.unwrap_or_default());
            let must_announce = is_first || resumption.warms_up();
            if must_announce && topic.changelog.is_some() {
                state.announced = Announced::Nothing { since: runtime::now() };
            }
            if is_elsewhere || state.offset(&assigned.topic_incarnation).is_none() {
                // No checkpoint has this offset, because the topic is new to the state, or because the log was truncated. So the worker
                // writes a checkpoint as soon as possible. If this process is killed, the next owner finds the offset in that checkpoint
                // and reads the input from there to restore the same state.
                state.changed = true;
                state.is_new = true;
                if state.offsets.is_empty() && topic.changelog.is_some() {
                    // This state does not contain any record of the changelog. Because of the end offset 0, a checkpoint of this state is
                    // not used once the changelog has been trimmed.
                    state.changelog.end.get_or_insert(0);
                }
            }
        }
        let of_rules = || {
            let states = resumptions.iter().map(|(rule, resumption)| {
                let id = StateId { space: self.topics[*rule].space, partition: assigned.partition.partition };
                Some((id, resumption, self.assignment.states.get(&id)?))
            });
            states.flatten()
        };
        let mut group = assigned.committed.clone();
        let mut first = note.first;
        if group.offset.is_none() || is_elsewhere {
            let has_offset = |state: &PartitionState| state.offset(&assigned.topic_incarnation).is_some();
            let times = of_rules().map(|(id, resumption, state)| {
                // A state that still has to warm up may not have reached the group's stream time. In that case, the committed stream time
                // is used.
                let warms_up = resumption.warms_up() && !fault::defect("truncation_forgets_stream_time");
                let of_state = Some(state).filter(|state| has_offset(state)).and_then(|state| state.dedup.stream_time());
                let of_group = || note.stream_time_in(&self.topics.first_of(id.space).config.space);
                (id, if warms_up { of_group() } else { of_state })
            });
            if !of_rules().any(|(_, _, state)| has_offset(state)) {
                first = Some(start);
            }
            let id = log_id(&assigned.topic_incarnation).map(str::to_owned);
            let metadata = Note { first, id, ..self.topics.note_of_times(assigned.topic, times) }.to_string();
            group = Committed { offset: None, metadata };
        } else if assigned.committed.offset.is_some_and(|committed| committed < start) {
            // The records between the committed offset and `start` were deleted. Without a known committed offset, the worker commits
            // `start`. Otherwise, every restart would report the same records as deleted.
            group.offset = None;
        }
        // An announcement commits this metadata even if the offset does not change, so the metadata must contain the epoch of this owner.
        if let Some(epoch) = of_rules().map(|(_, _, state)| state.epoch).max().filter(|_| topic.changelog.is_some()) {
            group.metadata = Note { epoch: Some(epoch), ..Note::read(&group.metadata) }.to_string();
        }
        let progress = resumptions.iter().map(|(rule, resumption)| {
            let rule = &self.topics[*rule];
            let id = StateId { space: rule.space, partition: assigned.partition.partition };
            let max_timestamp = note.stream_time_in(&rule.config.space);
            StateProgress::new(id, (resumption.start, resumption.warm_until), max_timestamp, rule.changelog.is_some())
        });
        let progress = progress.collect();
        let of = assigned.input();
        let unit = self.topics.unit_of(of);
        self.assignment.inputs.insert(of, Input::new(assigned, progress, (start, warm_until), first, group));
        let has_others = self.topics.inputs_of_unit(unit).filter(|input| self.assignment.inputs.contains_key(input)).nth(1).is_some();
        self.assignment.any_warm_up |= has_others && self.assignment.warming(&self.topics).contains(&unit);
        Ok(start)
    }

    fn changelogs_of(&self, topic: &str) -> impl Iterator<Item = &str> {
        let rules = self.topics.find(topic).into_iter().flat_map(|topic| &self.topics[topic].of_input);
        rules.filter_map(|&rule| self.topics[rule].changelog.as_deref())
    }
}

/// Returns the committed offset, unless it belongs to an earlier topic with the same name.
fn of_topic_id(partition: &TopicPartition, id: Option<&str>, committed: Committed) -> Committed {
    match (Note::read(&committed.metadata).id, id) {
        (Some(of), Some(id)) if of != id => {
            tracing::warn!(partition = %partition, committed = committed.offset, "the topic was recreated after the group committed this offset; ignoring the offset");
            Committed::default()
        }
        _ => committed,
    }
}
