//! How a transaction ends: committed, aborted, or found out about.
//!
//! Owns the way back from every failure. Must never leave a partition anywhere but where it was
//! committed, nor forget a verdict that was not.

use super::note::Note;
use super::partition::Input;
use super::read_ahead::ReadAhead;
use super::topics::Plan;
use super::{Error, Flow, Shared, StateId, Worker};
use crate::changelog::Span;
use crate::fault;
use crate::kafka::{self, Committed, Meanwhile, Refused, Sink, SinkError, Source};
use crate::record::{Offset, Reason, TopicPartition, Verdict, log_id};
use crate::stats::add;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often a producer may be replaced without a commit in between.
const REPLACEMENTS_MAX: u32 = 10;

/// How often brokers may take another producer for ours, and how long each time counts.
const FENCINGS_MAX: usize = 4;
const FENCINGS_MEMORY: Duration = Duration::from_secs(600);

/// After so many aborts one after the other, and again after as many more, it is looked for what is wrong.
const ABORTS_SUSPECT: u32 = 4;

/// How much smaller batches become where one is refused, and nobody says for which record.
const SMALLER: usize = 8;

/// First and longest wait between transactions that are aborted one after the other. The group must hear of us meanwhile.
const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

impl Worker {
    /// Commits what was written, with the offsets up to which it was read.
    pub(super) fn commit(&mut self, source: &Source) -> Result<Flow, Error> {
        self.commit_while(source, None)
    }

    /// The same, and reads on while it waits for the brokers; what it read is void if positions are set back.
    pub(super) fn commit_and_read<'s>(&mut self, source: &'s Source, ahead: &mut ReadAhead<'s>) -> Result<(), Error> {
        if let Flow::Back = self.commit_while(source, Some(ahead))? {
            ahead.clear();
        }
        Ok(())
    }

    fn commit_while<'s>(&mut self, source: &'s Source, ahead: Option<&mut ReadAhead<'s>>) -> Result<Flow, Error> {
        if self.transaction.is_none() {
            return Ok(Flow::On);
        }
        if self.must_repeat() {
            return self.fail(source, SinkError::Abort("not all of its records were read again yet".to_owned())).map(|()| Flow::Back);
        }
        let _span = tracing::debug_span!("commit", records = self.written.len()).entered();
        let offsets = self.offsets();
        let logged = self.sink.before_changelog().and_then(|()| self.log()).inspect(|()| fault::point("commit.logged"));
        let (topics, scratch) = (&self.topics, &mut self.buffers.scratch);
        let mut read = ahead.map(|ahead| |is_done: &dyn Fn() -> bool| ahead.read(source, topics, scratch, is_done));
        let meanwhile = read.as_mut().map(|read| read as Meanwhile<'_>);
        if let Err(failure) = logged.and_then(|()| self.sink.commit(&offsets, source, meanwhile)) {
            self.fail(source, failure)?;
            return Ok(Flow::Back);
        }
        self.logged(self.sink.take_logged());
        self.beginnings.clear();
        for input in self.inputs.values_mut().filter(|input| !input.is_ahead() && input.group.offset.is_none()) {
            input.group.offset = Some(input.position);
        }
        for (input, (_, _, note)) in self.inputs.values_mut().filter(|input| input.is_ahead()).zip(offsets) {
            input.committed(note);
        }
        self.count_commit();
        self.end_transaction();
        (self.replacements, self.aborts, self.blocked) = (0, 0, None);
        fault::point("commit.booked");
        for (&(space, partition), state) in &mut self.states {
            let plan = &self.topics[space];
            state.report(&plan.topic.space, partition, &self.shared.stats.spaces[plan.space]);
            if let (Some(log), Some(before)) = (&plan.log, state.trim()) {
                self.shared.rebuilder.trim(TopicPartition { topic: log.clone(), partition }, before);
            }
        }
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        if self.sink.batch_bytes() < self.shared.cluster.batch_bytes {
            // Its limits may be others than at the start.
            self.refresh_topology()?;
            self.replace_sink(self.shared.cluster.batch_bytes)?;
        }
        Ok(Flow::On)
    }

    fn count_commit(&self) {
        let stats = &self.shared.stats;
        add(&stats.commits, 1);
        self.transaction.iter().for_each(|transaction| stats.transaction_time.observe(transaction.begun.elapsed()));
        let now = super::now();
        for time in self.written.times() {
            stats.latency.observe(Duration::from_millis(now.saturating_sub(*time).max(0).unsigned_abs()));
        }
    }

    /// Writes to the changelogs what the records of the open transaction did.
    fn log(&mut self) -> Result<(), SinkError> {
        for (id, state) in &mut self.states {
            let plan = &self.topics[id.0];
            state.logging.clear();
            let Some(log) = &plan.log else { continue };
            let inputs = || inputs_of(&self.topics, &self.inputs, *id);
            let spans: Vec<_> = inputs()
                .filter(|input| input.position > input.logged)
                .map(|input| Span { topic: &input.log, start: input.logged, end: input.position })
                .collect();
            if spans.is_empty() {
                continue;
            }
            let ends: Vec<_> = inputs().map(|input| (input.topic, input.position)).collect();
            let log = TopicPartition { topic: log.clone(), partition: id.1 };
            let is_whole = inputs().all(|input| input.verdicts.is_all_carried());
            let end_time = state.dedup.stream_time().filter(|_| is_whole);
            for (slice, record) in state.pending.records(&state.dedup, plan.origin, state.epoch, &spans, &ends, end_time) {
                self.sink.write_changelog(&log, &record)?;
                state.logging.push(slice);
            }
        }
        Ok(())
    }

    /// What was written to the changelogs is committed; `written` says where its records lie.
    fn logged(&mut self, mut written: BTreeMap<TopicPartition, Vec<Offset>>) {
        for (id, state) in &mut self.states {
            let Some(log) = &self.topics[id.0].log else { continue };
            let read: Vec<_> = inputs_of(&self.topics, &self.inputs, *id).map(|input| (input.topic, input.position)).collect();
            state.pending.committed(&read);
            if let Some(written) = written.remove(&TopicPartition { topic: log.clone(), partition: id.1 }) {
                state.logged(&written);
            }
        }
        self.inputs.values_mut().for_each(|input| input.logged = input.logged.max(input.position));
    }

    /// The offsets to commit, first those of partitions that were read further, each with its note. What a warm-up
    /// remembers goes with the offsets that the group has anyway: it takes them only from its members.
    fn offsets(&self) -> Vec<(TopicPartition, Offset, String)> {
        let ahead = self.inputs.values().filter(|input| input.is_ahead()).map(|input| {
            // What is decided past a refused record must not move time for whoever goes on from here.
            let is_whole = inputs_of(&self.topics, &self.inputs, input.state).all(|input| input.verdicts.is_all_carried());
            let state = self.states.get(&input.state).filter(|_| is_whole);
            let stream_time = state.and_then(|state| state.dedup.stream_time());
            let note = Note { first: input.first, stream_time, id: log_id(&input.log).map(str::to_owned) };
            (input.partition.clone(), input.position, note.to_string())
        });
        let is_told = |input: &&Input| !input.is_ahead() && (input.position > input.logged || input.group.offset.is_none());
        let unmoved = self.inputs.values().filter(is_told);
        let unmoved =
            unmoved.map(|input| (input.partition.clone(), input.group.offset.unwrap_or(input.position), input.group.metadata.clone()));
        let begun_at = |offset| Note { first: Some(offset), ..Note::default() }.to_string();
        let is_elsewhere = |partition: &TopicPartition| self.inputs.values().all(|input| input.partition != *partition);
        let beginnings = self.beginnings.iter().filter(|(partition, _)| is_elsewhere(partition));
        let beginnings = beginnings.map(|(partition, &offset)| (partition.clone(), offset, begun_at(offset)));
        ahead.chain(unmoved).chain(beginnings).collect()
    }

    /// Whether records are decided that the open transaction does not carry yet, for the one before was aborted. Only
    /// together are they committed: so the changelog has them in the order in which they were decided, and stream time
    /// is that of what is committed.
    pub(super) fn must_repeat(&self) -> bool {
        self.inputs.values().any(|input| !input.is_refused && !input.verdicts.is_all_carried())
    }

    /// Records that were decided have not come again for too long: their partitions are restored, so that the others
    /// can go on.
    pub(super) fn give_up_repeating(&mut self, source: &Source) -> Result<(), Error> {
        let missing = |input: &&Input| !input.verdicts.is_all_carried();
        let missing: Vec<_> = self.inputs.values().filter(missing).map(|input| input.partition.clone()).collect();
        self.restart(source, &missing)
    }

    fn end_transaction(&mut self) {
        self.transaction = None;
        self.written.clear();
    }

    /// The one question after a failure: what now? Afterwards no transaction is open, and every
    /// partition that is still ours stands where it was committed.
    pub(super) fn fail(&mut self, source: &Source, failure: SinkError) -> Result<(), Error> {
        add(&self.shared.stats.aborts, 1);
        // After a refused record, librdkafka's own count of what it has sent has a gap, for which the next transaction
        // would be aborted, too: a new producer has none.
        let batch_bytes = match failure {
            SinkError::Exit(reason) => return Err(Error::Exit(reason)),
            SinkError::Unknown(reason) => return self.resolve_in_doubt(source, &reason),
            SinkError::Fenced(reason) => return self.fenced_by_another(source, &reason),
            SinkError::Abort(reason) => {
                self.aborts = self.aborts.saturating_add(1);
                tracing::warn!(reason, attempt = self.aborts, "transaction aborted; writing its records again");
                self.find_out_why(&reason);
                None
            }
            SinkError::Refused(refused) => Some(self.sink.batch_bytes() / if self.set_apart(refused)? { 1 } else { SMALLER }),
        };
        match self.sink.abort() {
            Ok(()) => {}
            Err(SinkError::Exit(reason)) => return Err(Error::Exit(reason)),
            Err(SinkError::Unknown(reason) | SinkError::Abort(reason)) => return self.resolve_in_doubt(source, &reason),
            Err(SinkError::Fenced(reason)) => return self.fenced_by_another(source, &reason),
            Err(SinkError::Refused(_)) => return self.resolve_in_doubt(source, "records were refused"),
        }
        fault::point("abort.aborted");
        if let Some(batch_bytes) = batch_bytes {
            self.replace_sink(batch_bytes)?;
        }
        self.rewind(source)?;
        self.back_off();
        Ok(())
    }

    /// Gives the records that their topics do not take another verdict. If it may have been others of their batches, false
    /// is returned: they are written in smaller ones, in the end each in its own.
    fn set_apart(&mut self, refused: Vec<Refused>) -> Result<bool, Error> {
        // Each time, there are fewer of them.
        self.aborts = 0;
        let mut culprits = refused.iter().filter(|refused| refused.is_certain).count();
        if culprits == 0 {
            let (records, why) = (refused.len(), refused.first().map_or("", |refused| &refused.invalid.message));
            tracing::warn!(records, why, "a topic does not take a batch; writing its records in smaller ones");
            return Ok(false);
        }
        for Refused { origin, topic: to, invalid, .. } in refused.into_iter().filter(|refused| refused.is_certain) {
            let Some((topic, partition, offset)) = self.written.origin(origin) else { continue };
            let Some(input) = self.inputs.get_mut(&(topic, partition)) else { continue };
            let plan = &self.topics[topic];
            let stop = |advice: &str| Err(Error::Exit(format!("{} offset {offset}: {}; {advice}", input.partition, invalid.message)));
            if plan.forward.is_some() {
                return stop(&format!("the topic is {to:?}; let it take what its input takes"));
            }
            match input.verdicts.verdict(offset) {
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
            self.tallies[plan.counted].count(Verdict::Invalid(invalid.reason));
            input.verdicts.refuse(offset, invalid);
        }
        Ok(true)
    }

    /// Looks, after some aborts one after the other, for what a person must mend. The worker goes on trying: a topic may
    /// be made again.
    fn find_out_why(&mut self, reason: &str) {
        if self.aborts < ABORTS_SUSPECT || !(self.aborts - ABORTS_SUSPECT).is_multiple_of(ABORTS_SUSPECT) {
            return;
        }
        let missing = kafka::missing(&self.shared.config, &self.shared.cluster);
        let why = if missing.is_empty() { format!("the last one because: {reason}") } else { missing.join("; ") };
        let blocked = format!("nothing can be committed, {} transactions were aborted one after the other: {why}", self.aborts);
        tracing::error!("{blocked}");
        self.blocked = Some(blocked);
        self.next_report = Instant::now();
    }

    /// Waits before another try, longer each time, while nothing can be committed.
    fn back_off(&self) {
        let Some(doublings) = self.aborts.checked_sub(2) else { return };
        let wait = (BACKOFF * 2_u32.pow(doublings.min(10))).min(BACKOFF_MAX);
        let until = Instant::now() + wait;
        while !self.stopping() && Instant::now() < until {
            std::thread::sleep(BACKOFF);
        }
    }

    /// Sets every partition back to where it was committed.
    pub(super) fn rewind(&mut self, source: &Source) -> Result<(), Error> {
        self.end_transaction();
        self.refused = None;
        if source.lost() {
            // Someone else has them; the rebalance that says so is on its way.
            self.inputs.clear();
            self.states.clear();
            self.waiting.clear();
            return Ok(());
        }
        self.inputs.values_mut().for_each(Input::rewind);
        let stuck: Vec<_> = self
            .inputs
            .values()
            .filter(|input| source.seek(&input.partition, input.position).is_err())
            .map(|input| input.partition.clone())
            .collect();
        if !stuck.is_empty() {
            self.start_anew(source, &stuck)?;
        }
        fault::point("abort.rewound");
        Ok(())
    }

    pub(super) fn positions(&self) -> Vec<(TopicPartition, Offset)> {
        let read = self.inputs.values().map(|input| (input.partition.clone(), input.position));
        read.chain(self.parked().map(|found| (found.partition.clone(), found.parked()))).collect()
    }

    /// The brokers take another producer for ours. A process that stood still for too long is told so as well; but who is
    /// told so again and again has a twin, and whoever was told first ends first.
    fn fenced_by_another(&mut self, source: &Source, reason: &str) -> Result<(), Error> {
        self.fencings.retain(|at| at.elapsed() < FENCINGS_MEMORY);
        self.fencings.push(Instant::now());
        if self.fencings.len() > FENCINGS_MAX {
            return Err(Error::Exit(format!(
                "another process runs as transactional id {:?} ({reason}), as where a state directory was copied; give each its own kafka.instance_id, or delete the file \"instance\" in one of the state directories",
                self.transactional_id
            )));
        }
        self.resolve_in_doubt(source, reason)
    }

    /// Has another producer take the place of ours, which ends what that left open.
    fn replace_sink(&mut self, batch_bytes: usize) -> Result<(), Error> {
        let names_records = self.sink.names_records();
        self.sink = connect(&self.shared, self.number, &self.transactional_id, batch_bytes)?;
        if names_records {
            self.sink.expect_names();
        }
        Ok(())
    }

    /// Nobody knows how the transaction ended: replaces the producer, which ends it one way or the
    /// other, and lets the group's committed offsets tell.
    fn resolve_in_doubt(&mut self, source: &Source, reason: &str) -> Result<(), Error> {
        fault::point("resolve.begin");
        self.replacements += 1;
        tracing::warn!(reason, attempt = self.replacements, "outcome of the transaction is unknown; replacing the producer to find out");
        if self.replacements > REPLACEMENTS_MAX {
            return Err(Error::Exit(format!(
                "the producer failed {REPLACEMENTS_MAX} times without a commit in between ({reason}); is another process running as transactional id {:?}? Give each its own kafka.instance_id or state.dir",
                self.transactional_id
            )));
        }
        let written = self.sink.take_logged();
        self.replace_sink(self.sink.batch_bytes())?;
        fault::point("resolve.replaced");
        if source.lost() {
            return self.rewind(source);
        }
        let partitions: Vec<_> = self.inputs.values().map(|input| input.partition.clone()).collect();
        let committed = self.patiently(|| source.committed(&partitions))?;
        fault::point("resolve.committed");
        let is_internal = |(input, committed): (&Input, &Committed)| input.is_ahead() && committed.offset == Some(input.position);
        if self.inputs.values().zip(&committed).any(is_internal) {
            self.logged(written);
        }
        let mut foreign = Vec::new();
        for (input, committed) in self.inputs.values_mut().zip(&committed) {
            if input.is_ahead() && committed.offset == Some(input.position) {
                input.committed(committed.metadata.clone());
            } else if committed.offset != input.group.offset {
                foreign.push(input.partition.clone());
            }
        }
        self.rewind(source)?;
        fault::point("resolve.resolved");
        if foreign.is_empty() { Ok(()) } else { self.restart(source, &foreign) }
    }
}

/// The topics' partitions that use a state.
pub(super) fn inputs_of<'w>(
    topics: &'w [Plan],
    inputs: &'w BTreeMap<(usize, i32), Input>,
    (space, partition): StateId,
) -> impl Iterator<Item = &'w Input> {
    let of_space = topics.iter().enumerate().filter(move |(_, plan)| plan.space == space);
    of_space.filter_map(move |(topic, _)| inputs.get(&(topic, partition)))
}

/// A producer for the worker of that number and transactional id.
pub(super) fn connect(shared: &Shared, number: usize, transactional_id: &str, batch_bytes: usize) -> Result<Sink, Error> {
    Ok(Sink::connect(&shared.config, &shared.stats, transactional_id, batch_bytes, &|| shared.is_stopped(number))?)
}
