//! A server alongside the workers. The server follows the changelog, is killed and frozen, and is queried for every key.
//!
//! The test judges the server's answers at the end, when the group has read everything. Every answer has a time. An answer must report all
//! keys as seen that the group had committed before that time.

use super::{BEFORE, GROUP, Stage, at};
use crate::harness::TestRecord;
use crate::truth::{self, Answer};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use unseen::broker::topics;
use unseen::config::Config;
use unseen::follower::{self, Follower, Query, Unavailable};
use unseen::runtime;
use unseen::sim::{Ended, Isolation, Process, SimBroker};

/// The number of keys that do not occur in any record, to count false positives.
const STRANGERS: usize = 200;
const INTERVAL: Duration = Duration::from_millis(250);
/// The error of a server whose configuration differs from the workers' configuration.
const OUTDATED: &str = "the workers have another configuration";

pub(super) struct Server {
    process: Option<Process<Result<(), String>>>,
    stop: Arc<AtomicBool>,
    keys: Arc<Vec<Vec<u8>>>,
    /// Answers that `tend_server` has not collected yet.
    given: Arc<Mutex<Vec<Answer>>>,
    answers: Vec<(Answer, Vec<usize>)>,
    sights: Vec<Sight>,
    /// For each partition of the input, the number of records that a process can have read by now.
    reached: Vec<usize>,
}

/// The numbers of committed records and emitted records, by partition, at a time when the changelog had no open transaction.
struct Sight {
    time: i64,
    read: Vec<usize>,
    emitted: Vec<usize>,
}

impl Stage<'_> {
    pub(super) fn begin_server(&mut self) {
        if self.plan.server.is_none() {
            return;
        }
        let keys: BTreeSet<_> = self.records.iter().map(truth::id).collect();
        let strangers = (0..STRANGERS).map(|number| format!("{number}/x-{number}").into_bytes());
        self.server = Some(Server {
            process: None,
            stop: Arc::default(),
            keys: Arc::new(keys.into_iter().chain(strangers).collect()),
            given: Arc::default(),
            answers: Vec::new(),
            sights: Vec::new(),
            reached: Vec::new(),
        });
        self.start_server();
    }

    fn start_server(&mut self) {
        let Some(filter) = self.plan.server else { return };
        let (filter, rate) = filter.option(self.plan.space(), &self.plan.options, &self.memory, self.plan.capacity);
        let config = self.config("server", filter.into_iter().chain(self.plan.options.rule_of_server(&self.memory)).collect());
        let broker = self.simulation.broker();
        let Some(server) = &mut self.server else { return };
        server.stop = Arc::default();
        let (stop, keys, given) = (Arc::clone(&server.stop), Arc::clone(&server.keys), Arc::clone(&server.given));
        let space = self.plan.space();
        server.process = Some(self.simulation.start("server", move || serve(&broker, &config, &stop, space, &keys, rate, &given)));
    }

    /// Kills or freezes the server. After a while, restarts or resumes it.
    pub(super) fn disturb_server(&mut self, is_killed: bool, time: Duration) {
        let Some(process) = self.server.as_mut().and_then(|server| server.process.take()) else { return };
        if is_killed {
            process.kill();
            process.wait();
            self.simulation.sleep(time);
            self.start_server();
            return;
        }
        process.stop();
        self.simulation.sleep(time);
        process.resume();
        if let Some(server) = &mut self.server {
            server.process = Some(process);
        }
    }

    /// Counts the committed and the emitted records and collects the server's answers. Restarts the server if it was killed or if the
    /// workers' configuration has changed.
    pub(super) fn tend_server(&mut self) {
        if self.server.is_none() {
            return;
        }
        // Counts the appended records instead of the visible records, because a new leader may briefly hide records that a process has
        // already read.
        let skipped = if self.plan.options.has("start = \"latest\"") { BEFORE } else { 0 };
        let fed = &self.records[skipped..self.fed.max(skipped)];
        let count = |partition: i32| {
            let of_stream = fed.iter().filter(|record| record.partition == partition).count();
            of_stream + self.mixed[partition.unsigned_abs() as usize]
        };
        let now: Vec<_> = (0..self.partitions()).map(count).collect();
        let is_in_doubt = |partition| {
            let offsets = self.simulation.offsets(&at(&self.changelog(), partition));
            offsets.is_none_or(|[_, last_stable, _, end]| last_stable < end)
        };
        let sight = (!(0..self.plan.partitions).any(is_in_doubt)).then(|| Sight {
            time: self.simulation.broker_clock(),
            read: self.input_counts(|partition, offset| {
                self.simulation.committed(GROUP, &at("in", partition)).is_some_and(|(committed, _)| offset < committed)
            }),
            emitted: (0..self.plan.partitions)
                .map(|partition| self.simulation.read(&at("out", partition), Isolation::ReadCommitted).len())
                .collect(),
        });
        let Some(server) = &mut self.server else { return };
        server.sights.extend(sight);
        server.reached.resize(now.len(), 0);
        server.reached.iter_mut().zip(&now).for_each(|(reached, &now)| *reached = now.max(*reached));
        let given = std::mem::take(&mut *server.given.lock().unwrap_or_else(PoisonError::into_inner));
        server.answers.extend(given.into_iter().map(|given| (given, server.reached.clone())));
        let Some(process) = server.process.take_if(|process| process.has_ended()) else { return };
        match process.take_outcome() {
            Some(Ended::Returned(Err(reason))) if reason == OUTDATED => self.start_server(),
            Some(Ended::Panicked(message)) => panic!("the server panicked: {message}"),
            Some(Ended::Returned(result)) => panic!("the server ended by itself: {result:?}"),
            Some(Ended::Killed) | None => self.start_server(),
        }
    }

    pub(super) fn forget_sights(&mut self) {
        self.server.iter_mut().for_each(|server| server.sights.clear());
    }

    /// For each partition of the input, returns the number of records that `is_such` selects by partition and offset. Includes the records
    /// of deleted inputs and excludes the records that a group with `start = "latest"` does not read, as in [`Stage::inputs`].
    pub(super) fn input_counts(&self, is_such: impl Fn(i32, i64) -> bool) -> Vec<usize> {
        let count = |partition: i32| {
            let place = usize::try_from(partition).expect("a partition");
            let records = self.simulation.read(&at("in", partition), Isolation::ReadCommitted);
            let now = records.iter().filter(|record| is_such(partition, record.offset)).count();
            let is_left_out = |record: &&TestRecord| record.partition == partition && self.plan.options.has("start = \"latest\"");
            (self.former[place].len() + now).saturating_sub(self.records[..BEFORE].iter().filter(is_left_out).count())
        };
        (0..self.partitions()).map(count).collect()
    }

    /// Waits for an answer that covers everything that the group has committed, then stops the server.
    pub(super) fn finish_server(&mut self) {
        if self.server.is_none() {
            return;
        }
        let sights = |stage: &Self| stage.server.as_ref().map_or(0, |server| server.sights.len());
        let before = sights(self);
        assert!(self.wait_for(self.limit, |stage| sights(stage) > before), "a transaction stays open in the changelog");
        let now = self.simulation.broker_clock();
        let is_asked =
            |stage: &Self| stage.server.as_ref().is_some_and(|server| server.answers.iter().any(|(given, _)| given.as_of_ms > now));
        assert!(self.wait_for(self.limit, is_asked), "the server does not learn everything that was committed");
        if let Some(server) = &mut self.server
            && let Some(process) = server.process.take()
        {
            server.stop.store(true, Ordering::Relaxed);
            process.wait();
        }
    }

    /// Panics if an answer of the server is wrong. The server may or may not know keys of records that were written before the group's
    /// start.
    pub(super) fn judge_server(&mut self, inputs: &[Vec<Vec<TestRecord>>]) {
        let Some(server) = self.server.take() else { return };
        let options = &self.plan.options;
        let before: BTreeSet<_> = self.records[..BEFORE].iter().map(truth::id).collect();
        let last = server.sights.last().expect("the last is of the end").time;
        let is_repartitioned = options.has("repartition = true");
        // With `at_least_once`, a record can be emitted before its key is in the changelog, so emitted keys are not required.
        let shows = is_repartitioned && options.has("delivery = \"exactly_once\"");
        let output = self.output();
        let padded =
            |counts: &[usize]| -> Vec<usize> { counts.iter().copied().chain(std::iter::repeat(0)).take(inputs[0].len()).collect() };
        for (given, reached) in &server.answers {
            let Some(sight) = server.sights.iter().rev().find(|sight| sight.time < given.as_of_ms) else { continue };
            let is_judged = !is_repartitioned || sight.time == last;
            let from = if is_judged { padded(&sight.read) } else { padded(&[]) };
            let mut known = truth::known(options, self.promise, &[], inputs, &from, &padded(reached));
            for (records, &emitted) in output.iter().zip(&sight.emitted).filter(|_| shows) {
                known.seen.extend(truth::ids_in_space(&records[..emitted]));
            }
            if options.has("cold_start = \"empty\"") && self.plan.has_reset_offset() {
                // The workers have forgotten some keys, so the server may lack them, too.
                known.maybe.append(&mut known.seen);
            }
            given.judge(&server.keys, &known, &before);
        }
    }
}

/// The main function of the server, which repeatedly queries a follower for every key.
fn serve(
    broker: &SimBroker,
    config: &Arc<Config>,
    stop: &AtomicBool,
    space: &str,
    keys: &[Vec<u8>],
    rate: f64,
    given: &Mutex<Vec<Answer>>,
) -> Result<(), String> {
    let began = runtime::wall_clock();
    let config = Arc::new(topics::followed(broker, config, &|| stop.load(Ordering::Relaxed)).map_err(|error| error.to_string())?);
    let follower = Follower::start_on(broker, &config).map_err(|error| error.to_string())?;
    let space = follower.space(space).ok_or("the space is missing")?;
    let mut query = Query::default();
    while !stop.load(Ordering::Relaxed) {
        query.clear();
        for key in keys {
            let (user, item) = truth::parts(key);
            space.add(&mut query, [user, item].map(str::as_bytes).into_iter()).map_err(|error| error.to_string())?;
        }
        // If the server becomes ready while it answers, it knows everything that was committed before it started. So `began` is the time of
        // the answer.
        let as_of_ms = space.as_of().unwrap_or(began);
        match space.answer(&mut query) {
            (answers, None) => {
                let seen = answers.iter().map(|answer| *answer == follower::Answer::Seen).collect();
                given.lock().unwrap_or_else(PoisonError::into_inner).push(Answer { as_of_ms, seen, rate });
            }
            (_, Some(Unavailable::OtherKeys)) => return Err(OUTDATED.to_owned()),
            (_, Some(_)) => {}
        }
        runtime::sleep(INTERVAL);
    }
    Ok(())
}
