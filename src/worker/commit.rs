//! Ends transactions: commits them, aborts them, or resolves an unknown outcome.
//!
//! Recovers from every failed transaction, unless the error ends the worker. After an abort, each partition that the worker still owns is
//! at its committed offset. Never forgets the verdict of an uncommitted record in such a partition.

use super::assignment::{Assignment, inputs_of};
use super::input::Input;
use super::read_ahead::ReadAhead;
use super::report::Blocked;
use super::writer::BACKOFF;
use super::{Error, Flow, Worker};
use crate::broker::{self, Broker, Committed, Consumer as _, Meanwhile, Refused, SinkError};
use crate::changelog::{PendingChanges, Span};
use crate::fault;
use crate::record::{Offset, Reason, TopicPartition, Verdict};
use crate::route;
use crate::runtime;
use crate::stats::add;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The number of consecutive aborts before the worker looks for the cause. The worker looks again after every `ABORTS_SUSPECT` further
/// aborts.
const ABORTS_SUSPECT: u32 = 4;

/// The divisor of the batch size after a broker rejects a batch without identifying the rejected record.
const SHRINK_DIVISOR: usize = 8;

impl<B: Broker> Worker<B> {
    pub(super) fn commit(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        self.commit_while(source, None)
    }

    /// Commits and reads ahead while waiting for the brokers. Drops the records that were read ahead if positions were rewound.
    pub(super) fn commit_and_read_ahead<'s>(&mut self, source: &'s B::Consumer, ahead: &mut ReadAhead<'s, B>) -> Result<(), Error> {
        let flow = self.commit_while(source, Some(ahead))?;
        ahead.discard_if_rewound(flow);
        Ok(())
    }

    /// Commits the starting offsets of partitions for which the group has no committed offset, so the next owner starts at the same
    /// offsets. Does nothing while a transaction is open or a replay is incomplete, because the next commit includes these partitions.
    pub(super) fn commit_beginnings(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        let begins = self.assignment.inputs.values().any(|input| input.group().offset.is_none());
        if self.writer.is_open() || !begins || self.assignment.is_replaying() {
            return Ok(Flow::Continue);
        }
        self.commit_at_once(source)
    }

    /// Commits a transaction without outputs to log the changes of a warm-up and announcements. Does nothing until a checkpoint is due, an
    /// announcement is due, or `most_unlogged` changes of one state are pending, because an ordinary commit may log these changes and
    /// announcements first.
    pub(super) fn log_warm_up(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        let most = self.shared.most_unlogged();
        let states = &self.assignment.states;
        let is_due = self.schedule.is_due(runtime::now()) || states.values().any(|state| state.pending.len() >= most);
        let has_keys = is_due && states.values().any(|state| !state.pending.is_empty());
        let must_log = has_keys || self.assignment.must_announce(&self.topics, self.shared.config.worker.commit_interval);
        if self.writer.is_open() || !must_log || self.assignment.is_replaying() {
            return Ok(Flow::Continue);
        }
        self.commit_at_once(source)
    }

    /// Begins a transaction and commits it immediately, without any outputs.
    pub(super) fn commit_at_once(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        match self.writer.begin() {
            Ok(()) => self.commit(source),
            Err(failure) => self.abort(source, failure).map(|()| Flow::Rewound),
        }
    }

    /// Returns the time until the open transaction must be committed, or `None` if no transaction is open. During a replay, returns the
    /// time until the replay is given up.
    pub(super) fn commit_in(&self) -> Option<Duration> {
        let age = self.writer.age()?;
        let worker = &self.shared.config.worker;
        let due = match &self.writer.ends_with {
            _ if self.assignment.is_replaying() => worker.transaction_timeout / 2,
            Some(_) => Duration::ZERO,
            None if self.assignment.holds_new_records => Duration::ZERO,
            None => self.writer.commit_after(worker.commit_interval),
        };
        Some(due.saturating_sub(age))
    }

    fn commit_while<'s>(&mut self, source: &'s B::Consumer, ahead: Option<&mut ReadAhead<'s, B>>) -> Result<Flow, Error> {
        if !self.writer.is_open() {
            return Ok(Flow::Continue);
        }
        if self.assignment.is_replaying() {
            return self
                .abort(source, SinkError::Abort("the records of the aborted transaction have not all been read again yet".to_owned()))
                .map(|()| Flow::Rewound);
        }
        if self.has_unhandled_rebalance && !fault::defect("unhandled_rebalance_ignored") {
            return self
                .abort(
                    source,
                    SinkError::Abort(
                        "the worker has not handled a rebalance yet, so other members may already own its partitions".to_owned(),
                    ),
                )
                .map(|()| Flow::Rewound);
        }
        let _span = tracing::debug_span!("commit", records = self.writer.in_flight.len()).entered();
        let began = runtime::now();
        let offsets = self.assignment.offsets(&self.topics);
        let flushed = self.writer.sink.flush_in_order().and_then(|()| self.prove_membership(source));
        let logged = flushed.and_then(|()| self.write_changelogs()).inspect(|()| fault::point("commit.logged"));
        let logged = logged.and_then(|()| self.writer.sink.flush_in_order());
        if logged.is_ok() && !self.writer.sink.transactional() {
            // Without transactions, an abort does not undo the changelog records. They count as logged even if the offset commit fails,
            // because they must not be logged again.
            let written = self.writer.sink.take_logged();
            self.logged(source, written);
        }
        let (topics, reader) = (&self.topics, &mut self.key_reader);
        let mut read = ahead.map(|ahead| |is_done: &dyn Fn() -> bool| ahead.read(source, topics, reader, is_done));
        let meanwhile = read.as_mut().map(|read| read as Meanwhile<'_>);
        if let Err(failure) = logged.and_then(|()| self.writer.sink.commit(&offsets, source, meanwhile)) {
            self.abort(source, failure)?;
            return Ok(Flow::Rewound);
        }
        let written = self.writer.sink.take_logged();
        self.logged(source, written);
        self.assignment.committed(offsets);
        self.writer.committed(&self.shared.stats, runtime::since(began));
        self.reporter.blocked = None;
        fault::point("commit.booked");
        for (id, state) in &mut self.assignment.states {
            if state.superseded {
                self.assignment.superseded.insert(*id);
            }
            let topic = self.topics.first_of(id.space);
            state.report(&topic.config.space, id.partition, &self.shared.stats.spaces[id.space.0]);
            if let (Some(changelog), Some(before)) = (&topic.changelog, state.trim()) {
                let changelog = TopicPartition { topic: changelog.clone(), partition: id.partition };
                self.shared.rebuilder.trim(changelog, state.changelog.topic_id.clone(), before);
            }
        }
        if let Some(error) = self.writer.ends_with.take() {
            return Err(error);
        }
        if self.writer.sink.batch_bytes() < self.shared.cluster.batch_bytes {
            // The worker had shrunk the batches to isolate a rejected record and now lets them grow to the size that the topics accept. It
            // reads the limits of the topics again, because they may have changed. If it cannot read them, for example because a topic is
            // missing, it keeps the known limits. A missing topic is reported when a record is written to it.
            if let Err(error) = self.refresh_cluster() {
                tracing::warn!(error = %error, "cannot check the topics again after a topic rejected records; continuing with the partition counts and size limits from the last check");
            }
            self.writer.replace_sink(&self.shared, self.number, self.shared.cluster.batch_bytes)?;
        } else {
            self.fence_late_request()?;
        }
        Ok(Flow::Continue)
    }

    /// Replaces the producer if a delayed copy of a request from the last transaction could affect the next transaction.
    fn fence_late_request(&mut self) -> Result<(), Error> {
        if !self.writer.sink.has_late_request() || fault::defect("late_request_not_fenced") {
            return Ok(());
        }
        tracing::info!(
            "a late copy of a request from the last transaction may still reach a broker; replacing the producer to fence the late copy"
        );
        self.writer.replace_sink(&self.shared, self.number, self.writer.sink.batch_bytes())
    }

    /// Without transactions, proves that this worker is still a member of the group before it announces itself as the owner of a partition.
    /// As proof, the worker commits the group's current offsets. The brokers reject this commit if the worker is no longer a member. An
    /// announcement has a higher epoch than any earlier record in the changelog. Without the proof, a member that was suspended and
    /// replaced could read the announcement of its successor and announce itself with an even higher epoch. Nothing would undo the
    /// changelog records that this member then writes.
    fn prove_membership(&mut self, source: &B::Consumer) -> Result<(), SinkError> {
        if self.writer.sink.transactional() || fault::defect("membership_not_proved") {
            return Ok(());
        }
        let held = self.assignment.unannounced();
        if held.is_empty() { Ok(()) } else { self.writer.sink.commit(&held, source, None) }
    }

    /// Writes the changelog records of the open transaction: the changes that are not logged yet, and the announcements that are due.
    fn write_changelogs(&mut self) -> Result<(), SinkError> {
        let Assignment { inputs, states, .. } = &mut self.assignment;
        for (&id, state) in states {
            let topic = self.topics.first_of(id.space);
            state.logging.clear();
            let Some(changelog) = &topic.changelog else { continue };
            let inputs = || inputs_of(&self.topics, inputs, id);
            // `warms_up` is also true for the last commit of a warm-up, because the state is complete only after the last record of that
            // commit. The next commit announces that the state is complete.
            let warms_up = inputs().any(|input| input.logs_warm_up(id));
            let announces = state.announced.is_behind(warms_up);
            let mut spans: Vec<_> = inputs().map(|input| input.unlogged(id)).filter(|span| announces || span.start < span.end).collect();
            if spans.is_empty() {
                continue;
            }
            spans.extend(warms_up.then_some(Span::WARM_UP));
            let ends: Vec<_> = inputs().map(|input| (input.topic, input.position())).collect();
            let changelog = TopicPartition { topic: changelog.clone(), partition: id.partition };
            let is_whole = inputs().all(Input::replay_complete);
            let end_time = state.dedup.stream_time().filter(|_| is_whole);
            for (slice, record) in state.pending.records(&state.dedup, topic.origin, state.epoch, &spans, &ends, end_time) {
                self.writer.sink.write_changelog(&changelog, &record)?;
                state.logging.push(slice);
            }
        }
        Ok(())
    }

    fn logged(&mut self, source: &B::Consumer, written: BTreeMap<TopicPartition, Vec<Offset>>) {
        if self.assignment.logged(&self.topics, written) {
            return;
        }
        let recreated = self.assignment.states.iter().filter(|(_, state)| state.changelog.topic_id.is_none());
        let recreated: BTreeSet<_> = recreated.filter_map(|(id, _)| self.topics.first_of(id.space).changelog.as_deref()).collect();
        tracing::warn!(
            changelogs = recreated.into_iter().collect::<Vec<_>>().join(", "),
            "a changelog was recreated while it was in use; until one window has passed, only the checkpoints contain all keys, so keep the state directory"
        );
        let changelogs: BTreeSet<_> = self.topics.iter().filter_map(|(_, topic)| topic.changelog.as_deref()).collect();
        // If the request fails, the next restore requests the ids again.
        let ids = source.topic_ids(&changelogs.into_iter().collect::<Vec<_>>()).unwrap_or_default();
        for (id, state) in self.assignment.states.iter_mut().filter(|(_, state)| state.changelog.topic_id.is_none()) {
            let changelog = self.topics.first_of(id.space).changelog.as_ref();
            state.changelog.adopt(changelog.and_then(|changelog| ids.get(changelog)).map(String::as_str));
        }
    }

    /// Ends the open transaction after a failure. Afterward, every partition that this worker still owns is at its committed offset, and no
    /// transaction is open. The exception is a rejected record with at-least-once delivery: the transaction for its replay is then already
    /// open.
    pub(super) fn abort(&mut self, source: &B::Consumer, failure: SinkError) -> Result<(), Error> {
        add(&self.shared.stats.aborts, 1);
        if !matches!(failure, SinkError::Refused(_) | SinkError::Exit(_)) {
            self.writer.failed();
        }
        // A rejected record leaves a gap in librdkafka's sequence numbers, so the next transaction of the same producer would also abort.
        // The worker must replace the producer.
        let batch_bytes = match failure {
            SinkError::Exit(reason) => return Err(Error::Exit(reason)),
            SinkError::Unknown(reason) => return self.resolve_in_doubt(source, &reason),
            SinkError::Fenced(reason) => return self.resolve_fenced(source, &reason),
            SinkError::Abort(reason) => {
                self.writer.aborts = self.writer.aborts.saturating_add(1);
                tracing::warn!(
                    reason,
                    attempt = self.writer.aborts,
                    "aborting the current transaction; its records are processed again, by this worker or by the next owner of their partitions"
                );
                self.diagnose_aborts(&reason);
                None
            }
            SinkError::Refused(mut refused) => {
                self.keep_forwarded(source, &mut refused);
                Some(self.writer.sink.batch_bytes() / if self.isolate_rejected(refused)? { 1 } else { SHRINK_DIVISOR })
            }
        };
        match self.writer.sink.abort() {
            Ok(()) => {}
            Err(SinkError::Exit(reason)) => return Err(Error::Exit(reason)),
            Err(SinkError::Unknown(reason) | SinkError::Abort(reason)) => return self.resolve_in_doubt(source, &reason),
            Err(SinkError::Fenced(reason)) => return self.resolve_fenced(source, &reason),
            Err(SinkError::Refused(_)) => return self.resolve_in_doubt(source, "the broker rejected records"),
        }
        fault::point("abort.aborted");
        match batch_bytes {
            Some(batch_bytes) => self.writer.replace_sink(&self.shared, self.number, batch_bytes)?,
            None => self.fence_late_request()?,
        }
        self.rewind(source)?;
        if batch_bytes.is_some() && !self.writer.sink.transactional() && !fault::defect("new_records_join_rejected_ones") {
            // Without transactions, the abort has left copies of forwarded records in the repartition topic. All new records, including
            // these copies, wait until the replayed records are committed. Otherwise, a rejected copy would also abort the replay, and the
            // next attempt would add another copy.
            self.assignment.holds_new_records = self.assignment.is_replaying() && self.writer.begin().is_ok();
        }
        self.back_off();
        Ok(())
    }

    /// Without transactions, commits the offsets of forwarded records after a topic rejected other records. An abort does not undo writes,
    /// so without this commit, each retry would add copies of the forwarded records to the repartition topic. If the copies are rejected as
    /// well, the retries might never end. If topics reject more records during this commit, adds the rejected records to `refused`. Commits
    /// nothing if a record was not written to the repartition topic.
    fn keep_forwarded(&mut self, source: &B::Consumer, refused: &mut Vec<Refused>) {
        if self.writer.sink.transactional() || fault::defect("forwarded_again") {
            return;
        }
        let offsets = self.assignment.forwarded(&self.topics);
        let is_repartition_topic = |name: &str| self.topics.iter().any(|(_, topic)| topic.forwards_to(name));
        let is_forwarded = |refused: &Refused| is_repartition_topic(&refused.topic);
        // The offset of a forwarded record must also not be committed if the record failed for another reason, for example a delivery
        // timeout.
        while !offsets.is_empty() && !refused.iter().any(is_forwarded) && !self.writer.sink.failed_to_deliver(is_repartition_topic) {
            match self.writer.sink.commit(&offsets, source, None) {
                Ok(()) => return self.assignment.note_forwarded(offsets),
                // Each attempt adds at least one rejected record, so the loop ends.
                Err(SinkError::Refused(more)) if !more.is_empty() => refused.extend(more),
                Err(_) => return,
            }
        }
    }

    /// Changes the records that a topic rejected: makes a record invalid, or makes the next attempt write it with fewer headers. Returns
    /// false if the broker did not identify the rejected records. The caller then retries with smaller batches, down to one record per
    /// batch.
    fn isolate_rejected(&mut self, refused: Vec<Refused>) -> Result<bool, Error> {
        // Each attempt leaves fewer rejected records, so these aborts do not count as consecutive aborts.
        self.writer.aborts = 0;
        let mut culprits = refused.iter().filter(|refused| refused.is_certain).count();
        if culprits == 0 {
            let (records, why) = (refused.len(), refused.first().map_or("", |refused| &refused.invalid.message));
            tracing::warn!(records, why, "a topic rejected a batch; retrying its records in smaller batches");
            return Ok(false);
        }
        for Refused { origin, topic: to, invalid, .. } in refused.into_iter().filter(|refused| refused.is_certain) {
            let Some((of, offset)) = self.writer.in_flight.origin(origin) else { continue };
            // `of.topic` is the rule of the record, which may not be the first rule of its input.
            let topic = &self.topics[of.topic];
            let Some(input) = self.assignment.inputs.get_mut(&self.topics.input_of(of)) else { continue };
            let stop = |advice: &str| Err(Error::Exit(format!("{} offset {offset}: {}; {advice}", input.partition, invalid.message)));
            let verdict = input.verdicts().verdict(offset);
            if topic.forward.is_some() && verdict.is_none() {
                return stop(
                    "this repartition topic must accept every record of its input, so compare max.message.bytes and message.timestamp.* of the two topics",
                );
            }
            let is_explained = verdict.is_some_and(|verdict| route::explains(&topic.config, verdict));
            if invalid.reason == Reason::Oversize && is_explained && input.verdicts().refused(offset).is_none() {
                // The headers that explain the verdict may have made the record too large. The next attempt writes fewer headers.
                input.shorten(offset, invalid);
                continue;
            }
            match verdict {
                // The timestamp may be the reason for the rejection. The next attempt writes the record without a timestamp.
                Some(Verdict::Invalid(Reason::Oversize)) if invalid.reason == Reason::Refused => {}
                Some(Verdict::Invalid(reason)) if reason.is_of_broker() => {
                    return stop(&format!(
                        "{to:?} is the dead-letter topic, so the worker cannot continue past this record; change the settings of that topic, or set on_invalid to \"drop\""
                    ));
                }
                _ => {}
            }
            if culprits > 0 {
                let why = &invalid.message;
                tracing::warn!(partition = %input.partition, offset, why, records = culprits, "a topic rejected records, which are now invalid; on_invalid determines the action. This line shows the first rejected record");
                culprits = 0;
            }
            self.reporter.tallies[topic.counted].count(Verdict::Invalid(invalid.reason));
            if !fault::defect("refused_record_written_again") {
                input.refuse(offset, invalid);
            }
        }
        Ok(true)
    }

    /// After several consecutive aborts, looks for a cause that a person must fix. The worker keeps trying, because a missing topic may be
    /// recreated.
    fn diagnose_aborts(&mut self, reason: &str) {
        let aborts = self.writer.aborts;
        if aborts < ABORTS_SUSPECT || !(aborts - ABORTS_SUSPECT).is_multiple_of(ABORTS_SUSPECT) {
            return;
        }
        let missing = self.shared.broker.missing(&self.shared.config, &self.shared.cluster);
        let why = if missing.is_empty() { format!("the last error was: {reason}") } else { missing.join("; ") };
        let reason = format!("the worker cannot commit: {aborts} consecutive transactions were aborted; {why}");
        tracing::error!("{reason}");
        // If no partition has uncommitted records, the transactions contained only starting offsets or changelog records, so all partitions
        // count as blocked.
        let ahead = self.assignment.partitions(Input::is_ahead);
        let partitions = if ahead.is_empty() { self.assignment.partitions(|_| true) } else { ahead };
        self.reporter.blocked = Some(Blocked { reason, partitions });
        self.reporter.make_due();
    }

    fn back_off(&self) {
        let until = runtime::now() + self.writer.back_off();
        while !self.check_stop() && runtime::now() < until {
            runtime::sleep(BACKOFF);
        }
    }

    /// Rewinds every partition to its committed offset. If other members may own the partitions already, drops all partitions instead.
    pub(super) fn rewind(&mut self, source: &B::Consumer) -> Result<(), Error> {
        self.writer.end();
        self.writer.ends_with = None;
        if fault::defect("changes_forgotten_on_abort") {
            self.assignment.states.values_mut().for_each(|state| state.pending = PendingChanges::default());
        }
        if source.lost() {
            // The worker has not handled the rebalance that revokes the partitions yet.
            self.assignment.clear();
            return Ok(());
        }
        self.assignment.inputs.values_mut().for_each(Input::rewind);
        let must_seek = !fault::defect("rewind_without_seek");
        let stuck = self.assignment.partitions(|input| must_seek && source.seek(&input.partition, input.position()).is_err());
        if !stuck.is_empty() {
            self.restart_fetching(source, &stuck)?;
        }
        fault::point("abort.rewound");
        Ok(())
    }

    fn resolve_fenced(&mut self, source: &B::Consumer, reason: &str) -> Result<(), Error> {
        self.writer.fenced(reason)?;
        if self.check_stop() {
            // A worker that is stopping must not fence its successor and does not need the outcome.
            return Err(broker::Error::Stopped.into());
        }
        self.resolve_in_doubt(source, reason)
    }

    /// Resolves a transaction with an unknown outcome by replacing the producer. With exactly-once delivery, the new producer makes the
    /// transaction coordinator commit or abort the transaction. The group's committed offsets then show the outcome.
    fn resolve_in_doubt(&mut self, source: &B::Consumer, reason: &str) -> Result<(), Error> {
        fault::point("resolve.begin");
        let began = runtime::now();
        self.writer.note_in_doubt(reason)?;
        let written = self.writer.sink.take_logged();
        self.writer.replace_sink(&self.shared, self.number, self.writer.sink.batch_bytes())?;
        fault::point("resolve.replaced");
        if source.lost() || fault::defect("unknown_outcome_taken_for_abort") {
            return self.rewind(source);
        }
        let partitions = self.assignment.partitions(|_| true);
        let committed = self.retry_until_answered(|| source.committed(&partitions))?;
        fault::point("resolve.committed");
        let is_trusted = fault::defect("unknown_outcome_taken_for_commit");
        let is_ours =
            |(input, committed): (&Input, &Committed)| input.is_ahead() && (committed.offset == Some(input.position()) || is_trusted);
        if self.assignment.inputs.values().zip(&committed).any(is_ours) {
            self.logged(source, written);
            self.writer.committed(&self.shared.stats, runtime::since(began));
        }
        let mut foreign = Vec::new();
        for (input, committed) in self.assignment.inputs.values_mut().zip(&committed) {
            if is_ours((input, committed)) {
                input.note_commit(committed.metadata.clone());
            } else if committed.offset != input.group().offset {
                foreign.push(input.partition.clone());
            }
        }
        self.rewind(source)?;
        fault::point("resolve.resolved");
        if foreign.is_empty() { Ok(()) } else { self.restore_assigned(source, &foreign, "their committed offsets have changed") }
    }
}
