//! How a partition begins: from its checkpoint, its changelog and the log, up to the group's committed offset.
//!
//! Restore loads the newest checkpoint that is not past the committed offset; what that lacks, the
//! changelog has, and is taken in beside the work on other partitions; what both lack, warm-up reads
//! again without emitting. Must never start past the committed offset.

mod first;

use super::assignment::inputs_of;
use super::ids::{InputId, StateId};
use super::input::{Input, Wait};
use super::partition::{Announced, PartitionState};
use super::rebuild_job::{Cancellation, Job, Rebuilt};
use super::waiting::{Found, Waiting};
use super::{Error, Flow, Worker};
use crate::broker::{Broker, Committed, Consumer as _, Note};
use crate::config::{ColdStart, OnTruncation, Start};
use crate::fault;
use crate::record::{Offset, TopicPartition, log_id, log_name};
use crate::runtime;
use crate::stats::{add, take};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// From where a partition is read, and up to where without emitting.
struct Resumption {
    start: Offset,
    warm_until: Offset,
    /// Whether it is not where the group is, nor ever will be.
    is_elsewhere: bool,
}

impl Resumption {
    const fn at(start: Offset) -> Self {
        Self { start, warm_until: start, is_elsewhere: false }
    }
}

impl<B: Broker> Worker<B> {
    /// Restores the state of newly assigned partitions, or begins to, and says where each is to be read from.
    pub(super) fn restore(&mut self, source: &B::Consumer, partitions: &[TopicPartition]) -> Result<Vec<(TopicPartition, Offset)>, Error> {
        let began = runtime::now();
        let _span = tracing::debug_span!("restore", partitions = partitions.len()).entered();
        fault::point("restore.begin");
        self.look_again(partitions)?;
        let committed = self.patiently(|| source.committed(partitions))?;
        let mut all = Vec::new();
        let mut topics: Vec<_> = partitions.iter().map(|partition| &*partition.topic).collect();
        topics.sort_unstable();
        topics.dedup();
        let changelogs: BTreeSet<_> = partitions.iter().filter_map(|partition| self.changelog_of(&partition.topic)).collect();
        let with_changelogs: Vec<_> = topics.iter().copied().chain(changelogs).collect();
        // A changelog that is missing must not hold up the inputs. Whoever reads it waits for it.
        let ids = match source.topic_ids(&with_changelogs) {
            Ok(ids) => ids,
            Err(_) => self.patiently(|| source.topic_ids(&topics))?,
        };
        for (partition, mut committed) in partitions.iter().zip(committed) {
            let id = ids.get(&partition.topic).map(String::as_str).filter(|_| !fault::defect("topic_ids_ignored"));
            if let (Some(of), Some(id)) = (Note::read(&committed.metadata).id, id)
                && of != id
            {
                tracing::warn!(partition = %partition, committed = committed.offset, "the topic was made anew since the group committed that offset; reading it from its beginning");
                committed = Committed::default();
            }
            let Some(topic) = self.topics.find(&partition.topic) else { continue };
            self.alive();
            let (low, high) = self.watermarks(source, partition, committed.offset, began)?;
            all.push(Found { partition: partition.clone(), topic, log: log_name(&partition.topic, id), committed, low, high });
        }
        fault::point("restore.offsets");
        for found in &all {
            self.alive();
            let (id, topic) = (self.state_of(found), &self.topics[found.topic]);
            if topic.forward.is_none() && !self.assignment.states.contains_key(&id) {
                let mut state = PartitionState::load(&self.shared.store, &topic.stored_as(id.partition), &topic.settings, topic.rules)?;
                if let Some(changelog) = &topic.changelog
                    && !state.changelog.adopt(ids.get(changelog).map(String::as_str))
                {
                    tracing::warn!(
                        changelog,
                        partition = id.partition,
                        "the changelog was recreated since the checkpoint was written; it lacks what was logged before"
                    );
                }
                self.assignment.states.insert(id, state);
                fault::point("restore.loaded");
            }
        }
        let unbegun = self.assignment.unbegun.len();
        self.take_unbegun(source, &mut all)?;
        // Topics of one space share their state: if it reaches past one's committed offset, it is of no use to any.
        for found in &all {
            self.drop_if_beyond(source, found)?;
        }
        for id in all.iter().map(|found| self.state_of(found)).collect::<BTreeSet<_>>() {
            let mut of_state: Vec<_> = all.iter().filter(|found| self.state_of(found) == id).cloned().collect();
            let others = self.assignment.waiting.remove(&id).map(|mut waiting| std::mem::take(&mut waiting.found)).unwrap_or_default();
            if !others.is_empty() || self.lacks(id, &of_state) {
                of_state.extend(others);
                self.rebuild(id, of_state);
            }
        }
        let unbegun = self.assignment.unbegun[unbegun..].iter();
        let mut starts: Vec<_> = unbegun.map(|found| (found.partition.clone(), found.paused_at())).collect();
        for found in all {
            if self.assignment.waiting.contains_key(&self.state_of(&found)) {
                starts.push((found.partition.clone(), found.paused_at()));
            } else {
                starts.push((found.partition.clone(), self.begin(source, found, began)?));
            }
        }
        fault::point("restore.placed");
        Ok(starts)
    }

    /// Partitions that were added since the start are not known yet: neither to us, nor to the changelog.
    fn look_again(&mut self, partitions: &[TopicPartition]) -> Result<(), Error> {
        let known = |partition: &TopicPartition| self.shared.cluster.partitions.get(&partition.topic).copied().unwrap_or(0);
        let Some(added) = partitions.iter().find(|partition| partition.partition.unsigned_abs() >= known(partition)) else { return Ok(()) };
        let moves_keys = self.topics.iter().all(|(_, topic)| topic.config.input != added.topic || topic.forward.is_none());
        let what = if moves_keys { ": keys that moved to another partition may be emitted once more within their window" } else { "" };
        tracing::warn!(topic = added.topic, partition = added.partition, "partitions were added{what}");
        self.refresh_cluster()
    }

    /// Returns true if the state must be brought up to date from the changelog: it is not at the group's committed offsets.
    fn lacks(&self, id: StateId, found: &[Found]) -> bool {
        let is_new = self.assignment.inputs.values().all(|input| input.state != id);
        let has_changelog = self.topics.first_of(id.space).changelog.is_some();
        let Some(state) = self.assignment.states.get(&id).filter(|_| is_new && has_changelog) else { return false };
        // An empty input does not show that the group is new: the input may have been recreated. Only the changelog knows.
        !found.iter().all(|found| {
            let offset = state.offset(&found.log);
            // A seed commits the offset at which a checkpoint from before the seed may already be.
            offset.is_some() && offset == found.committed.offset && !found.note().is_seed
        })
    }

    fn rebuild(&mut self, id: StateId, found: Vec<Found>) {
        let topic = self.topics.first_of(id.space);
        let (Some(changelog), Some(mut state)) = (&topic.changelog, self.assignment.states.remove(&id)) else { return };
        let (topic_id, epoch) = (state.changelog.topic_id.clone(), state.changelog.epoch);
        let ignores_checkpoint = found.iter().all(|found| found.note().is_seed);
        if ignores_checkpoint {
            // The checkpoint may be from before the group's offsets and its changelog were deleted.
            state = PartitionState::new(topic.rules);
        }
        let bounds = found.iter().filter_map(|found| Some((found.log.clone(), found.committed.offset?)));
        // What had expired when the group last committed is of no use. Topics of a space share their stream time.
        let stream_time = found.iter().filter_map(|found| found.note().stream_time).max();
        let window = topic.rules.window;
        let oldest = stream_time.and_then(|time| window.slice_at(time)).map(|slice| slice.before(window.slices()));
        let cancellation = Arc::<Cancellation>::default();
        let job = Job {
            id,
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
        self.assignment.waiting.insert(id, Waiting { found, began: runtime::now(), cancellation });
    }

    /// Goes on with partitions whose state is there now.
    pub(super) fn finish_rebuilds(&mut self, source: &B::Consumer) -> Result<(), Error> {
        while let Ok(Rebuilt { id, cancellation, state }) = self.assignment.rebuilt.1.try_recv() {
            take(&self.shared.stats.rebuilding, 1);
            if !self.assignment.waiting.get(&id).is_some_and(|waiting| Arc::ptr_eq(&waiting.cancellation, &cancellation)) {
                continue;
            }
            // Reported to stop, it may have ended half-way.
            if self.stopping() {
                return Ok(());
            }
            let state = state?;
            let Some(mut waiting) = self.assignment.waiting.remove(&id) else { continue };
            self.assignment.states.insert(id, state);
            fault::point("rebuild.taken");
            let found = std::mem::take(&mut waiting.found);
            for found in &found {
                self.drop_if_beyond(source, found)?;
            }
            let mut elsewhere = Vec::new();
            for found in &found {
                let start = self.begin(source, found.clone(), waiting.began)?;
                if start != found.paused_at() && source.seek(&found.partition, start).is_err() {
                    elsewhere.push(found.partition.clone());
                }
            }
            let partitions: Vec<_> = found.into_iter().map(|found| found.partition).collect();
            if elsewhere.is_empty() {
                source.resume(&partitions)?;
            } else {
                self.fetch_again(source, &partitions)?;
            }
        }
        Ok(())
    }

    /// Seeks partitions that reported an error back to their current position.
    pub(super) fn seek_errored(&mut self, source: &B::Consumer) -> Result<(), Error> {
        let errored = source.errored_due();
        if errored.is_empty() || fault::defect("failed_fetch_not_sought") {
            return Ok(());
        }
        self.assignment.inputs.values_mut().filter(|input| errored.contains(&input.partition)).for_each(Input::read_failed);
        let positions = self.assignment.positions();
        let own = positions.iter().filter(|(partition, _)| errored.contains(partition));
        let stopped: Vec<_> = own
            .filter(|(partition, position)| source.seek(partition, *position).is_err())
            .map(|(partition, _)| partition.clone())
            .collect();
        if stopped.is_empty() { Ok(()) } else { self.fetch_again(source, &stopped) }
    }

    /// Has librdkafka fetch partitions again, from where they stand; those that wait go on waiting.
    pub(super) fn fetch_again(&self, source: &B::Consumer, partitions: &[TopicPartition]) -> Result<(), Error> {
        source.restart(partitions, &self.assignment.positions())?;
        let paused = self.assignment.inputs.values().filter(|input| input.wait == Wait::Paused).map(|input| &input.partition);
        source.pause(&self.assignment.paused().map(|found| &found.partition).chain(paused).cloned().collect::<Vec<_>>())?;
        Ok(())
    }

    /// A partition's state is there: says from where it is to be read.
    fn begin(&mut self, source: &B::Consumer, found: Found, began: Instant) -> Result<Offset, Error> {
        let resumption = self.resumption(source, &found)?;
        let max_timestamp = found.note().stream_time;
        tracing::info!(
            partition = %found.partition, committed = found.committed.offset, start = resumption.start, warm_up_records = resumption.warm_until - resumption.start,
            elapsed_ms = runtime::since(began).as_millis(), "partition restored"
        );
        self.shared.stats.restore_time.observe(runtime::since(began));
        let id = self.state_of(&found);
        let is_first = self.assignment.inputs.values().all(|input| input.state != id);
        if let Some(state) = self.assignment.states.get_mut(&id) {
            if is_first {
                state.take_over(source.generation().unwrap_or_default());
            }
            state.epoch = state.epoch.max(found.note().epoch.unwrap_or_default().saturating_add(1));
            let must_announce = is_first || resumption.start < resumption.warm_until;
            if must_announce && self.topics.first_of(id.space).changelog.is_some() {
                state.announced = Announced::Nothing { since: runtime::now() };
            }
        }
        if let Some(state) =
            self.assignment.states.get_mut(&id).filter(|state| resumption.is_elsewhere || state.offset(&found.log).is_none())
        {
            // No checkpoint knows this topic yet. One taken before its first record makes whatever becomes of
            // this process exact: its heir reads the log from here.
            state.changed = true;
            state.is_new = true;
            if state.offsets.is_empty() && self.topics.first_of(id.space).changelog.is_some() {
                // All of the changelog comes after it. So where that was trimmed, a checkpoint of now is of no use any more.
                state.changelog.end.get_or_insert(0);
            }
        }
        let mut group = found.committed.clone();
        let mut first = found.note().first;
        if group.offset.is_none() || resumption.is_elsewhere {
            let state = self.assignment.states.get(&id).filter(|state| state.offset(&found.log).is_some());
            let stream_time = state.and_then(|state| state.dedup.stream_time());
            if state.is_none() {
                first = Some(resumption.start);
            }
            let note = Note { first, stream_time, id: log_id(&found.log).map(str::to_owned), epoch: None, is_seed: false };
            group = Committed { offset: None, metadata: note.to_string() };
        } else if found.committed.offset.is_some_and(|committed| committed < resumption.warm_until) {
            // What lies between has expired. Committed again, it is neither lag, nor reported at each start.
            group.offset = None;
        }
        // Committed along with an announcement, though the offset is the same.
        if let Some(state) = self.assignment.states.get(&id).filter(|_| self.topics[found.topic].changelog.is_some()) {
            group.metadata = Note { epoch: Some(state.epoch), ..Note::read(&group.metadata) }.to_string();
        }
        let input = Input {
            topic: found.topic,
            state: id,
            position: resumption.start,
            first,
            committed: resumption.start,
            group,
            warm_until: resumption.warm_until,
            warming_up: resumption.start < resumption.warm_until,
            warm_up_max_timestamp: max_timestamp,
            logged: if self.topics[found.topic].changelog.is_some() { resumption.start } else { Offset::MAX },
            verdicts: super::verdicts::Verdicts::default(),
            wait: Wait::No,
            awaits: None,
            ends_worker: false,
            counted: resumption.start,
            stall: None,
            failing: None,
            partition: found.partition,
            log: found.log,
        };
        let of = InputId { topic: input.topic, partition: input.partition.partition };
        self.assignment.inputs.insert(of, input);
        self.assignment.warming |=
            inputs_of(&self.topics, &self.assignment.inputs, id).count() > 1 && self.assignment.warms_up(&self.topics, id);
        Ok(resumption.start)
    }

    /// The changelog of the space of a topic that is read.
    fn changelog_of(&self, topic: &str) -> Option<&str> {
        self.topics[self.topics.find(topic)?].changelog.as_deref()
    }

    fn state_of(&self, found: &Found) -> StateId {
        StateId { space: self.topics[found.topic].space, partition: found.partition.partition }
    }

    fn drop_if_beyond(&mut self, source: &B::Consumer, found: &Found) -> Result<(), Error> {
        let id = self.state_of(found);
        let Some(stored) = self.assignment.states.get(&id).and_then(|state| state.offset(&found.log)) else { return Ok(()) };
        let is_beyond = match found.committed.offset {
            Some(committed) => stored > committed || !found.has_id() && committed > found.high,
            None => !found.has_id() && (stored > found.high || self.is_of_another_log(source, found, stored)?),
        };
        if is_beyond {
            tracing::warn!(partition = %found.partition, checkpoint = stored, committed = found.committed.offset, end = found.high,
                "checkpoint is past what the group has committed (were its offsets reset?); not using it");
            let rules = self.topics[found.topic].rules;
            if let Some(state) = self.assignment.states.get_mut(&id) {
                *state = state.emptied(rules);
            }
        }
        Ok(())
    }

    /// Whether a checkpoint is of a former topic of that name, where brokers give topics no ids. With a topic, the
    /// broker forgets what groups have committed of it; if the new one is the longer, only its records show it: below the
    /// checkpoint's offset, there can be none that is later than the checkpoint's stream time, unless it came from the
    /// future. Then all is read once more, rather than anything not at all.
    fn is_of_another_log(&self, source: &B::Consumer, found: &Found, stored: Offset) -> Result<bool, Error> {
        let stream_time = self.assignment.states.get(&self.state_of(found)).and_then(|state| state.dedup.stream_time());
        let Some(stream_time) = stream_time else { return Ok(false) };
        let later = self.patiently(|| source.offset_at(&found.partition, stream_time.saturating_add(1)))?;
        Ok(later.is_some_and(|later| later < stored))
    }

    fn resumption(&self, source: &B::Consumer, found: &Found) -> Result<Resumption, Error> {
        let Found { partition, low, high, .. } = found;
        let (low, high) = (*low, *high);
        let stored = self.assignment.states.get(&self.state_of(found)).and_then(|state| state.offset(&found.log));
        let Some(committed) = found.committed.offset else {
            return match stored {
                Some(stored) if stored > high => self.truncated(source, found, stored),
                Some(stored) if stored >= low => {
                    // A checkpoint is written where the partition began, and after commits: the group had come at least that far.
                    tracing::warn!(partition = %partition, offset = stored, "the group has no committed offset, but a checkpoint does; going on from there");
                    Ok(Resumption::at(stored))
                }
                // If the group had begun, records since then are still to be read.
                _ => Ok(Resumption::at(low)),
            };
        };
        if committed > high {
            return self.truncated(source, found, committed);
        }
        if committed < low {
            tracing::error!(
                %partition,
                committed,
                oldest = low,
                records = low - committed,
                "records expired before they were read, at most this many (aborted records and transaction markers have offsets, too); raise the topic's retention"
            );
        }
        let resume = committed.max(low);
        match stored {
            // Nothing lies between: it is up to date, or has judged nothing.
            Some(stored) if stored == committed => Ok(Resumption::at(resume)),
            None if found.note().first == Some(committed) => Ok(Resumption::at(resume)),
            _ => self.warm_up(source, found, resume),
        }
    }

    /// A log ends before the place up to which it was read.
    fn truncated(&self, source: &B::Consumer, found: &Found, read: Offset) -> Result<Resumption, Error> {
        let (partition, end) = (&found.partition, found.high);
        if !found.has_id() {
            tracing::error!(partition = %partition, committed = read, end, "committed offset is past the end of the topic; was it made anew? Reading it from its beginning");
            return Ok(Resumption::at(found.low));
        }
        match self.shared.config.kafka.on_truncation {
            OnTruncation::Fail => Err(Error::Truncated { partition: partition.clone(), end, read }),
            OnTruncation::Continue => {
                tracing::error!(partition = %partition, read, end, "the log became shorter than it was read; going on at its end");
                Ok(Resumption { is_elsewhere: true, ..self.warm_up(source, found, end)? })
            }
        }
    }

    /// Reads what the state lacks of the records below `resume`.
    fn warm_up(&self, source: &B::Consumer, found: &Found, resume: Offset) -> Result<Resumption, Error> {
        let (low, state) = (found.low, self.assignment.states.get(&self.state_of(found)));
        match state.and_then(|state| state.offset(&found.log)) {
            _ if self.topics[found.topic].forward.is_some() => Ok(Resumption::at(resume)),
            Some(stored) if stored >= resume => Ok(Resumption::at(resume)),
            Some(stored) if fault::defect("resumed_from_checkpoint") && stored >= low => Ok(Resumption::at(stored)),
            Some(stored) if stored >= low => Ok(Resumption { start: stored, warm_until: resume, is_elsewhere: false }),
            Some(stored) => {
                self.cold_start(source, found, resume, &format!("the log begins at offset {low}, and the checkpoint ends at {stored}"))
            }
            None => self.cold_start(source, found, resume, "there is none"),
        }
    }

    /// No checkpoint: one window of the input is read again, or what else the configuration says.
    fn cold_start(&self, source: &B::Consumer, found: &Found, resume: Offset, why: &str) -> Result<Resumption, Error> {
        let partition = &found.partition;
        let start = match self.shared.config.state.cold_start {
            ColdStart::Fail => return Err(Error::ColdStart { partition: partition.clone(), why: why.to_owned() }),
            ColdStart::Empty => resume,
            ColdStart::Rebuild => {
                let window = self.topics[found.topic].config.window.length_ms();
                let oldest = match found.note().first {
                    Some(first) => first.clamp(found.low, resume),
                    // What the group may never have read did not come out: it must not be taken for seen.
                    None if self.shared.config.kafka.start == Start::Latest && !self.topics[found.topic].is_internal => resume,
                    None => found.low,
                };
                match (found.note().stream_time, window) {
                    (Some(stream_time), Some(window)) => {
                        let first = self.patiently(|| source.offset_at(partition, stream_time.saturating_sub(window).max(0)))?;
                        first.unwrap_or(resume).clamp(oldest, resume)
                    }
                    // Without stream time, or for a window by count, nobody knows how far back it reaches.
                    _ => oldest,
                }
            }
        };
        fault::point("restore.cold");
        tracing::warn!(partition = %partition, why, "no usable checkpoint; reading {} records again to remember them (approximate: keys first emitted before them may come out once more)", resume - start);
        Ok(Resumption { start, warm_until: resume, is_elsewhere: false })
    }

    /// Restores partitions that we have, but whose state is not to be trusted.
    pub(super) fn restart(&mut self, source: &B::Consumer, partitions: &[TopicPartition]) -> Result<(), Error> {
        tracing::warn!(partitions = %super::partition::names(partitions), "restoring partitions");
        if self.outbox.is_open() {
            self.abort(source, crate::broker::SinkError::Abort("its partitions must be restored".to_owned()))?;
        }
        // Topics of one space share their state, and so their fate.
        let partitions = self.assignment.with_shared_state(partitions);
        if partitions.is_empty() {
            return Ok(());
        }
        self.assignment.forget(&partitions);
        self.restore(source, &partitions)?;
        self.fetch_again(source, &partitions)
    }

    /// The store was quarantined: restores what was in it and nowhere else, asked for or not.
    pub(super) fn restart_lost(&mut self, source: &B::Consumer) -> Result<(), Error> {
        let epoch = self.shared.store.epoch();
        if std::mem::replace(&mut self.assignment.store_epoch, epoch) == epoch {
            return Ok(());
        }
        let is_lost = |input: &Input| self.assignment.states.get(&input.state).is_some_and(|state| state.is_lost(&self.shared.store));
        let lost = self.assignment.partitions(is_lost);
        if lost.is_empty() { Ok(()) } else { self.restart(source, &lost) }
    }

    /// librdkafka stopped reading a partition, for its position lies outside its log: finds out which.
    pub(super) fn restart_out_of_range(&mut self, source: &B::Consumer) -> Result<(), Error> {
        // What was read is good, and so is the state of it.
        self.commit(source)?;
        self.checkpoint(true);
        let (mut outside, mut inside) = (Vec::new(), Vec::new());
        for input in self.assignment.inputs.values() {
            let (low, high) = self.patiently(|| source.watermarks(&input.partition))?;
            let list = if (low..=high).contains(&input.position) { &mut inside } else { &mut outside };
            list.push(input.partition.clone());
        }
        if !outside.is_empty() {
            self.restart(source, &outside)?;
        }
        // One of them may lie within again since librdkafka stopped reading it, and it does not say which.
        if inside.is_empty() { Ok(()) } else { self.fetch_again(source, &inside) }
    }
}
