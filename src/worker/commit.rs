//! How a transaction ends: committed, aborted, or found out about.
//!
//! Owns the way back from every failure. Must never leave a partition anywhere but where it was
//! committed, nor forget a verdict that was not.

use super::assignment::{Assignment, inputs_of};
use super::ids::StateId;
use super::input::Input;
use super::outbox::BACKOFF;
use super::read_ahead::ReadAhead;
use super::report::Blocked;
use super::transaction::Load;
use super::{Error, Flow, Worker};
use crate::broker::{self, Broker, Committed, Consumer as _, Meanwhile, Refused, SinkError};
use crate::changelog::{PendingChanges, Span};
use crate::fault;
use crate::record::{Offset, Reason, TopicPartition, Verdict};
use crate::route;
use crate::runtime;
use crate::stats::add;
use std::collections::{BTreeMap, BTreeSet};

/// After so many aborts one after the other, and again after as many more, it is looked for what is wrong.
const ABORTS_SUSPECT: u32 = 4;

/// How much smaller batches become where one is refused, and nobody says for which record.
const SMALLER: usize = 8;

impl<B: Broker> Worker<B> {
    /// Commits what was written, with the offsets up to which it was read.
    pub(super) fn commit(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        self.commit_while(source, None)
    }

    /// The same, and reads on while it waits for the brokers; what it read is void if positions are set back.
    pub(super) fn commit_and_read<'s>(&mut self, source: &'s B::Consumer, ahead: &mut ReadAhead<'s, B>) -> Result<(), Error> {
        if let Flow::Back = self.commit_while(source, Some(ahead))? {
            ahead.clear();
        }
        Ok(())
    }

    fn commit_while<'s>(&mut self, source: &'s B::Consumer, ahead: Option<&mut ReadAhead<'s, B>>) -> Result<Flow, Error> {
        if !self.outbox.is_open() {
            return Ok(Flow::On);
        }
        if self.assignment.must_repeat() {
            return self.abort(source, SinkError::Abort("not all of its records were read again yet".to_owned())).map(|()| Flow::Back);
        }
        let _span = tracing::debug_span!("commit", records = self.outbox.in_flight.len()).entered();
        let began = runtime::now();
        let offsets = self.assignment.offsets(&self.topics);
        let flushed = self.outbox.sink.flush_in_order().and_then(|()| self.prove_membership(source));
        let logged = flushed.and_then(|()| self.write_changelogs()).inspect(|()| fault::point("commit.logged"));
        let logged = logged.and_then(|()| self.outbox.sink.flush_in_order());
        if logged.is_ok() && !self.outbox.sink.transactional() {
            // No abort takes this back. If the offsets cannot be committed, it must not be logged again.
            let written = self.outbox.sink.take_logged();
            self.logged(source, written);
        }
        let (topics, reader) = (&self.topics, &mut self.key_reader);
        let mut read = ahead.map(|ahead| |is_done: &dyn Fn() -> bool| ahead.read(source, topics, reader, is_done));
        let meanwhile = read.as_mut().map(|read| read as Meanwhile<'_>);
        if let Err(failure) = logged.and_then(|()| self.outbox.sink.commit(&offsets, source, meanwhile)) {
            self.abort(source, failure)?;
            return Ok(Flow::Back);
        }
        let written = self.outbox.sink.take_logged();
        self.logged(source, written);
        self.assignment.committed(offsets);
        self.outbox.committed(&self.shared.stats, runtime::since(began));
        self.reporter.blocked = None;
        fault::point("commit.booked");
        for (id, state) in &mut self.assignment.states {
            let topic = self.topics.first_of(id.space);
            state.report(&topic.config.space, id.partition, &self.shared.stats.spaces[id.space.0]);
            if let (Some(changelog), Some(before)) = (&topic.changelog, state.trim()) {
                let changelog = TopicPartition { topic: changelog.clone(), partition: id.partition };
                self.shared.rebuilder.trim(changelog, state.changelog.topic_id.clone(), before);
            }
        }
        if let Some(error) = self.outbox.ends_with.take() {
            return Err(error);
        }
        if self.outbox.sink.batch_bytes() < self.shared.cluster.batch_bytes {
            // The limits may have changed since the start. If the cluster cannot be looked at now, the known ones have to do: a topic that
            // is missing is reported once a record is written to it.
            if let Err(error) = self.refresh_cluster() {
                tracing::warn!(error = %error, "cannot look at the topics again; keeping the known limits");
            }
            self.outbox.replace_sink(&self.shared, self.number, self.shared.cluster.batch_bytes)?;
        } else {
            self.fence_late_request()?;
        }
        Ok(Flow::On)
    }

    /// Replaces the producer if a delayed request could act on its next transaction.
    fn fence_late_request(&mut self) -> Result<(), Error> {
        if !self.outbox.sink.has_late_request() {
            return Ok(());
        }
        tracing::info!("a request of the last transaction was never answered; replacing the producer to fence it");
        self.outbox.replace_sink(&self.shared, self.number, self.outbox.sink.batch_bytes())
    }

    /// Proves that the group still has this member before it announces itself as the owner of a partition. Its epoch is higher than
    /// any in the changelog. A member that was replaced while it was suspended, and has since read an announcement of its successor,
    /// would outrank that. Without transactions, nobody would void what it writes, but its commit is refused.
    fn prove_membership(&mut self, source: &B::Consumer) -> Result<(), SinkError> {
        if self.outbox.sink.transactional() {
            return Ok(());
        }
        let held = self.assignment.unannounced();
        if held.is_empty() { Ok(()) } else { self.outbox.sink.commit(&held, source, None) }
    }

    /// Writes the changelog records of the open transaction: the changes that its records made, and the announcements that are due.
    fn write_changelogs(&mut self) -> Result<(), SinkError> {
        let Assignment { inputs, states, .. } = &mut self.assignment;
        for (&id, state) in states {
            let topic = self.topics.first_of(id.space);
            state.logging.clear();
            let Some(changelog) = &topic.changelog else { continue };
            let inputs = || inputs_of(&self.topics, inputs, id);
            // Also in the last commit of a warm-up, which may have several records: the next one says that all are there.
            let warms_up = inputs().any(Input::logs_warm_up);
            let announces = state.announced.is_behind(warms_up);
            let mut spans: Vec<_> = inputs().map(Input::unlogged).filter(|span| announces || span.start < span.end).collect();
            if spans.is_empty() {
                continue;
            }
            spans.extend(warms_up.then_some(Span::WARM_UP));
            let ends: Vec<_> = inputs().map(|input| (input.topic, input.position)).collect();
            let changelog = TopicPartition { topic: changelog.clone(), partition: id.partition };
            let is_whole = inputs().all(|input| input.verdicts.is_all_carried());
            let end_time = state.dedup.stream_time().filter(|_| is_whole);
            for (slice, record) in state.pending.records(&state.dedup, topic.origin, state.epoch, &spans, &ends, end_time) {
                self.outbox.sink.write_changelog(&changelog, &record)?;
                state.logging.push(slice);
            }
        }
        Ok(())
    }

    /// What was written to the changelogs is committed; `written` has the offsets of its records.
    fn logged(&mut self, source: &B::Consumer, written: BTreeMap<TopicPartition, Vec<Offset>>) {
        if self.assignment.logged(&self.topics, written) {
            return;
        }
        tracing::warn!("a changelog was recreated while it was in use; until a window has passed, only checkpoints have all keys");
        let changelogs: BTreeSet<_> = self.topics.iter().filter_map(|(_, topic)| topic.changelog.as_deref()).collect();
        // Without an answer, the next restore asks.
        let ids = source.topic_ids(&changelogs.into_iter().collect::<Vec<_>>()).unwrap_or_default();
        for (id, state) in self.assignment.states.iter_mut().filter(|(_, state)| state.changelog.topic_id.is_none()) {
            let changelog = self.topics.first_of(id.space).changelog.as_ref();
            state.changelog.adopt(changelog.and_then(|changelog| ids.get(changelog)).map(String::as_str));
        }
    }

    /// Restores the partitions whose decided records were not all read and written again in time, so that the others can
    /// continue. The next transactions are smaller, so that they can be repeated in time.
    pub(super) fn give_up_repeating(&mut self, source: &B::Consumer) -> Result<(), Error> {
        if let Some(Load { records, bytes }) = self.outbox.repeated_too_slowly() {
            tracing::warn!(
                records,
                bytes,
                "the last transaction was too large to be repeated in time; writing at most this much per transaction"
            );
        }
        let kept = self.only_in_memory();
        let missing = self.assignment.partitions(|input| !input.verdicts.is_all_carried() && !kept.contains(&input.state));
        if missing.is_empty() {
            return self.abort(source, SinkError::Abort("its records were not read again in time".to_owned()));
        }
        self.restart(source, &missing)
    }

    /// Shrinks transactions if the brokers did not accept the last ones before they timed out. Records that were decided
    /// together would have to be committed together again, so their partitions are restored and the records decided again.
    /// A state that only this process has is kept, and its records are repeated as they were.
    pub(super) fn shrink_transactions(&mut self, source: &B::Consumer) -> Result<(), Error> {
        if !std::mem::take(&mut self.outbox.shrinks) {
            return Ok(());
        }
        let kept = self.only_in_memory();
        let partitions = self.assignment.partitions(|input| !input.verdicts.is_all_carried() && !kept.contains(&input.state));
        if partitions.is_empty() {
            return Ok(());
        }
        let Load { records, bytes } = self.outbox.shrink();
        tracing::warn!(
            records,
            bytes,
            "the brokers do not accept a transaction before it times out; writing at most this much per transaction"
        );
        self.restart(source, &partitions)
    }

    /// The states of which neither a changelog nor a checkpoint has what committed records did to them.
    fn only_in_memory(&self) -> BTreeSet<StateId> {
        let mut ids: BTreeSet<_> = self.assignment.states.keys().copied().collect();
        ids.retain(|id| self.topics.first_of(id.space).changelog.is_none());
        if ids.is_empty() {
            return ids;
        }
        let stored: BTreeMap<_, _> = self.shared.store.all_metadata().unwrap_or_default().into_iter().collect();
        let was_judged = |input: &Input| input.first != Some(input.committed);
        ids.retain(|&id| {
            let stored = stored.get(&self.topics.first_of(id.space).stored_as(id.partition));
            let is_stored = |input: &Input| stored.is_some_and(|metadata| metadata.offsets.contains_key(&input.log));
            inputs_of(&self.topics, &self.assignment.inputs, id).any(|input| was_judged(input) && !is_stored(input))
        });
        ids
    }

    /// The one question after a failure: what now? Afterwards no transaction is open, and every
    /// partition that is still ours stands where it was committed.
    pub(super) fn abort(&mut self, source: &B::Consumer, failure: SinkError) -> Result<(), Error> {
        add(&self.shared.stats.aborts, 1);
        if !matches!(failure, SinkError::Refused(_) | SinkError::Exit(_)) {
            self.outbox.failed();
        }
        // After a refused record, librdkafka's own count of what it has sent has a gap, for which the next transaction
        // would be aborted, too: a new producer has none.
        let batch_bytes = match failure {
            SinkError::Exit(reason) => return Err(Error::Exit(reason)),
            SinkError::Unknown(reason) => return self.resolve_in_doubt(source, &reason),
            SinkError::Fenced(reason) => return self.fenced_by_another(source, &reason),
            SinkError::Abort(reason) => {
                self.outbox.aborts = self.outbox.aborts.saturating_add(1);
                tracing::warn!(reason, attempt = self.outbox.aborts, "transaction aborted; writing its records again");
                self.find_out_why(&reason);
                None
            }
            SinkError::Refused(refused) => Some(self.outbox.sink.batch_bytes() / if self.set_apart(refused)? { 1 } else { SMALLER }),
        };
        match self.outbox.sink.abort() {
            Ok(()) => {}
            Err(SinkError::Exit(reason)) => return Err(Error::Exit(reason)),
            Err(SinkError::Unknown(reason) | SinkError::Abort(reason)) => return self.resolve_in_doubt(source, &reason),
            Err(SinkError::Fenced(reason)) => return self.fenced_by_another(source, &reason),
            Err(SinkError::Refused(_)) => return self.resolve_in_doubt(source, "records were refused"),
        }
        fault::point("abort.aborted");
        match batch_bytes {
            Some(batch_bytes) => self.outbox.replace_sink(&self.shared, self.number, batch_bytes)?,
            None => self.fence_late_request()?,
        }
        self.rewind(source)?;
        self.back_off();
        Ok(())
    }

    /// Gives the records that their topics do not take another verdict. If it may have been others of their batches, false
    /// is returned: they are written in smaller ones, in the end each in its own.
    fn set_apart(&mut self, refused: Vec<Refused>) -> Result<bool, Error> {
        // Each time, there are fewer of them.
        self.outbox.aborts = 0;
        let mut culprits = refused.iter().filter(|refused| refused.is_certain).count();
        if culprits == 0 {
            let (records, why) = (refused.len(), refused.first().map_or("", |refused| &refused.invalid.message));
            tracing::warn!(records, why, "a topic does not take a batch; writing its records in smaller ones");
            return Ok(false);
        }
        for Refused { origin, topic: to, invalid, .. } in refused.into_iter().filter(|refused| refused.is_certain) {
            let Some((of, offset)) = self.outbox.in_flight.origin(origin) else { continue };
            let Some(input) = self.assignment.inputs.get_mut(&of) else { continue };
            let topic = &self.topics[of.topic];
            let stop = |advice: &str| Err(Error::Exit(format!("{} offset {offset}: {}; {advice}", input.partition, invalid.message)));
            if topic.forward.is_some() {
                return stop(&format!("the topic is {to:?}; let it take what its input takes"));
            }
            let verdict = input.verdicts.verdict(offset);
            let is_explained = verdict.is_some_and(|verdict| route::explains(&topic.config, verdict));
            if invalid.reason == Reason::Oversize && is_explained && input.verdicts.refused(offset).is_none() {
                // What explains it may be what makes it too large.
                input.verdicts.shorten(offset, invalid);
                continue;
            }
            match verdict {
                // Without its time, it may be taken.
                Some(Verdict::Invalid(Reason::Oversize)) if invalid.reason == Reason::Refused => {}
                Some(Verdict::Invalid(reason)) if reason.is_of_broker() => {
                    return stop(&format!("it is the dead-letter topic {to:?} that does not take it, so mend that topic"));
                }
                _ => {}
            }
            if culprits > 0 {
                let why = &invalid.message;
                tracing::warn!(partition = %input.partition, offset, why, records = culprits, "records that their topic does not take are set apart; this is the first");
                culprits = 0;
            }
            self.reporter.tallies[topic.counted].count(Verdict::Invalid(invalid.reason));
            if !fault::defect("refused_record_written_again") {
                input.verdicts.refuse(offset, invalid);
            }
        }
        Ok(true)
    }

    /// Looks, after some aborts one after the other, for what a person must mend. The worker goes on trying: a topic may
    /// be made again.
    fn find_out_why(&mut self, reason: &str) {
        let aborts = self.outbox.aborts;
        if aborts < ABORTS_SUSPECT || !(aborts - ABORTS_SUSPECT).is_multiple_of(ABORTS_SUSPECT) {
            return;
        }
        let missing = self.shared.broker.missing(&self.shared.config, &self.shared.cluster);
        let why = if missing.is_empty() { format!("the last one because: {reason}") } else { missing.join("; ") };
        let reason = format!("nothing can be committed, {aborts} transactions were aborted one after the other: {why}");
        tracing::error!("{reason}");
        // A transaction without records commits where partitions begin.
        let ahead = self.assignment.partitions(Input::is_ahead);
        let partitions = if ahead.is_empty() { self.assignment.partitions(|_| true) } else { ahead };
        self.reporter.blocked = Some(Blocked { reason, partitions });
        self.reporter.hurry();
    }

    /// Waits before another try, while nothing can be committed.
    fn back_off(&self) {
        let until = runtime::now() + self.outbox.back_off();
        while !self.stopping() && runtime::now() < until {
            runtime::sleep(BACKOFF);
        }
    }

    /// Sets every partition back to where it was committed.
    pub(super) fn rewind(&mut self, source: &B::Consumer) -> Result<(), Error> {
        self.outbox.end();
        self.outbox.ends_with = None;
        if fault::defect("changes_forgotten_on_abort") {
            self.assignment.states.values_mut().for_each(|state| state.pending = PendingChanges::default());
        }
        if source.lost() {
            // Someone else has them; the rebalance that says so is on its way.
            self.assignment.clear();
            return Ok(());
        }
        self.assignment.inputs.values_mut().for_each(Input::set_back);
        let must_seek = !fault::defect("rewind_without_seek");
        let stuck = self.assignment.partitions(|input| must_seek && source.seek(&input.partition, input.position).is_err());
        if !stuck.is_empty() {
            self.fetch_again(source, &stuck)?;
        }
        fault::point("abort.rewound");
        Ok(())
    }

    /// The brokers take another producer for ours.
    fn fenced_by_another(&mut self, source: &B::Consumer, reason: &str) -> Result<(), Error> {
        self.outbox.fenced(reason)?;
        if self.stopping() {
            // Whoever took over is not to be disturbed by one that ends; nor is there anything left to find out for.
            return Err(broker::Error::Stopped.into());
        }
        self.resolve_in_doubt(source, reason)
    }

    /// Nobody knows how the transaction ended: replaces the producer, which ends it one way or the
    /// other, and lets the group's committed offsets decide.
    fn resolve_in_doubt(&mut self, source: &B::Consumer, reason: &str) -> Result<(), Error> {
        fault::point("resolve.begin");
        let began = runtime::now();
        self.outbox.is_in_doubt(reason)?;
        let written = self.outbox.sink.take_logged();
        self.outbox.replace_sink(&self.shared, self.number, self.outbox.sink.batch_bytes())?;
        fault::point("resolve.replaced");
        if source.lost() || fault::defect("unknown_outcome_taken_for_abort") {
            return self.rewind(source);
        }
        let partitions = self.assignment.partitions(|_| true);
        let committed = self.patiently(|| source.committed(&partitions))?;
        fault::point("resolve.committed");
        let is_trusted = fault::defect("unknown_outcome_taken_for_commit");
        let is_ours =
            |(input, committed): (&Input, &Committed)| input.is_ahead() && (committed.offset == Some(input.position) || is_trusted);
        if self.assignment.inputs.values().zip(&committed).any(is_ours) {
            self.logged(source, written);
            self.outbox.committed(&self.shared.stats, runtime::since(began));
        }
        let mut foreign = Vec::new();
        for (input, committed) in self.assignment.inputs.values_mut().zip(&committed) {
            if is_ours((input, committed)) {
                input.note_commit(committed.metadata.clone());
            } else if committed.offset != input.group.offset {
                foreign.push(input.partition.clone());
            }
        }
        self.rewind(source)?;
        fault::point("resolve.resolved");
        if foreign.is_empty() { Ok(()) } else { self.restart(source, &foreign) }
    }
}
