//! What a worker writes: its producer, and the transaction that is open.
//!
//! Owns how often either has failed, and the way back from a record that was refused to where it came from. Must never
//! decide what is written, nor what a failure means for what was read.

use super::ids::InputId;
use super::in_flight::InFlight;
use super::transaction::{Limit, Load, Transaction};
use super::{Error, Shared};
use crate::broker::{self, Broker, Outgoing, Record as _, RecordOf, Sink, SinkError};
use crate::config::Topic;
use crate::fault;
use crate::runtime;
use crate::stats::{Stats, add};
use std::time::{Duration, Instant};

/// How often a producer may be replaced without a commit in between.
const REPLACEMENTS_MAX: u32 = 10;

/// How often brokers may take another producer for ours, and how long each time counts.
const FENCINGS_MAX: usize = 4;
const FENCINGS_MEMORY: Duration = Duration::from_secs(600);

/// First and longest wait between transactions that are aborted one after the other. The group must hear of us meanwhile.
pub(super) const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// What a worker writes.
pub(super) struct Outbox<B: Broker> {
    pub(super) sink: Sink<B>,
    pub(super) in_flight: InFlight,
    /// Transactions that were aborted since the last commit, but for those whose cause was set apart.
    pub(super) aborts: u32,
    /// Why the worker ends with the next commit.
    pub(super) ends_with: Option<Error>,
    transactional_id: String,
    /// How long brokers let a transaction be open, and how long its records may take.
    transaction_timeout: Duration,
    delivery_timeout: Duration,
    transaction: Option<Transaction>,
    limit: Limit,
    /// True if the brokers did not accept the last transactions in time, so that the next must be smaller.
    pub(super) shrinks: bool,
    /// How long the last commits took. One alone may have met brokers that stood still.
    commits_took: [Duration; 2],
    replacements: u32,
    /// When the brokers lately took another producer for ours.
    fencings: Vec<Instant>,
}

impl<B: Broker> Outbox<B> {
    /// Connects the producer of worker `number`, and ends what its past self left open.
    pub(super) fn connect(shared: &Shared<B>, number: usize) -> Result<Self, Error> {
        let transactional_id = format!("{}-{}-{number}", shared.config.kafka.group_id, shared.instance);
        Ok(Self {
            sink: connect(shared, number, &transactional_id, shared.cluster.batch_bytes)?,
            in_flight: InFlight::default(),
            aborts: 0,
            ends_with: None,
            transactional_id,
            transaction_timeout: shared.config.worker.transaction_timeout,
            delivery_timeout: broker::delivery_timeout(&shared.config),
            transaction: None,
            limit: Limit::new(shared.config.worker.max_transaction_records),
            shrinks: false,
            commits_took: [Duration::ZERO; 2],
            replacements: 0,
            fencings: Vec::new(),
        })
    }

    /// Whether a transaction is open.
    pub(super) const fn is_open(&self) -> bool {
        self.transaction.is_some()
    }

    /// How long the transaction has been open, if one is.
    pub(super) fn age(&self) -> Option<Duration> {
        self.transaction.as_ref().map(|transaction| runtime::since(transaction.begun))
    }

    /// How old the transaction may become before it is committed, where `interval` is asked for.
    pub(super) fn commit_after(&self, interval: Duration) -> Duration {
        let [one, next] = self.commits_took;
        commit_after(interval, one.min(next), self.transaction_timeout)
    }

    /// Begins a transaction, if none is open.
    #[inline]
    pub(super) fn begin(&mut self) -> Result<(), SinkError> {
        if self.transaction.is_none() {
            self.sink.begin()?;
            self.transaction = Some(Transaction { begun: runtime::now(), load: Load::default() });
            fault::point("transaction.begun");
        }
        Ok(())
    }

    /// Writes a record that was read from there.
    #[inline]
    pub(super) fn write(&mut self, from: InputId, mut outgoing: Outgoing<'_, RecordOf<'_, B>>) -> Result<(), SinkError> {
        outgoing.origin = self.in_flight.push(from, outgoing.message.offset(), outgoing.time);
        if let Some(transaction) = &mut self.transaction {
            transaction.load.bytes += outgoing.message.bytes();
        }
        self.sink.send(&outgoing)?;
        fault::point("transaction.sent");
        Ok(())
    }

    /// The transaction carries some records more. Returns whether it is full.
    #[inline]
    pub(super) fn carry(&mut self, records: usize) -> bool {
        let limit = &self.limit;
        self.transaction.as_mut().is_some_and(|transaction| {
            transaction.load.records += records;
            limit.is_full(transaction.load)
        })
    }

    /// How much more the transaction may carry, open or not.
    #[inline]
    pub(super) fn room(&self) -> Load {
        self.limit.room(self.transaction.as_ref().map_or_else(Load::default, |transaction| transaction.load))
    }

    /// The open transaction has failed, and no record is why.
    pub(super) fn failed(&mut self) {
        if let Some(transaction) =
            self.transaction.as_ref().filter(|transaction| runtime::since(transaction.begun) >= self.delivery_timeout)
        {
            self.shrinks |= self.limit.timed_out(transaction.load);
        }
    }

    /// The open transaction did not repeat all records of the aborted one in time. Returns the new limit if the next ones are smaller.
    pub(super) fn repeated_too_slowly(&mut self) -> Option<Load> {
        let load = self.transaction.as_ref()?.load;
        self.limit.repeated_too_slowly(load).then(|| self.limit.current())
    }

    /// Begins to write smaller transactions. Returns their limit.
    pub(super) const fn shrink(&mut self) -> Load {
        // The smaller transactions get all their attempts.
        self.replacements = 0;
        self.limit.current()
    }

    /// The transaction has ended, one way or the other.
    pub(super) fn end(&mut self) {
        self.transaction = None;
        self.in_flight.clear();
    }

    /// The transaction is committed, which took so long.
    pub(super) fn committed(&mut self, stats: &Stats, took: Duration) {
        self.commits_took = [self.commits_took[1], took];
        add(&stats.commits, 1);
        if let Some(transaction) = &self.transaction {
            self.limit.committed(transaction.load, runtime::since(transaction.begun), self.delivery_timeout);
        }
        self.age().into_iter().for_each(|age| stats.transaction_time.observe(age));
        let now = runtime::wall_clock();
        for time in self.in_flight.times() {
            stats.latency.observe(Duration::from_millis(now.saturating_sub(*time).max(0).unsigned_abs()));
        }
        self.end();
        (self.replacements, self.aborts, self.shrinks) = (0, 0, false);
    }

    /// How long to wait before another try, longer each time, while nothing can be committed.
    pub(super) fn back_off(&self) -> Duration {
        self.aborts.checked_sub(2).map_or(Duration::ZERO, |doublings| (BACKOFF * 2_u32.pow(doublings.min(10))).min(BACKOFF_MAX))
    }

    /// The brokers take another producer for ours. A transaction that was open for too long is given up with the same error:
    /// where brokers, or this process, stood still. So are the next, by what was still on its way. But who gets it again and again for other transactions has a twin, and
    /// whoever got it first ends first.
    pub(super) fn fenced(&mut self, reason: &str) -> Result<(), Error> {
        if self.limit.has_timed_out() || self.age().is_some_and(|age| age >= self.transaction_timeout) {
            return Ok(());
        }
        self.fencings.retain(|at| runtime::since(*at) < FENCINGS_MEMORY);
        self.fencings.push(runtime::now());
        if self.fencings.len() <= FENCINGS_MAX {
            return Ok(());
        }
        Err(Error::Exit(broker::has_twin(&self.transactional_id, reason)))
    }

    /// Nobody knows how the transaction ended. Says so, but for so many times only.
    pub(super) fn is_in_doubt(&mut self, reason: &str) -> Result<(), Error> {
        self.replacements += 1;
        tracing::warn!(reason, attempt = self.replacements, "outcome of the transaction is unknown; replacing the producer to find out");
        if self.replacements <= REPLACEMENTS_MAX {
            return Ok(());
        }
        Err(Error::Exit(format!(
            "the producer failed {REPLACEMENTS_MAX} times without a commit in between ({reason}); raise worker.transaction_timeout if the brokers are slow, or look for another process that runs as transactional id {:?}",
            self.transactional_id
        )))
    }

    /// The worker ends. What it had begun is given up, or readers would wait until it times out.
    pub(super) fn leave(&mut self) {
        if self.is_open() {
            self.sink.leave();
            self.end();
        }
    }

    /// Replaces the producer. The new one ends the transaction that the old one left open, and fences its late requests.
    pub(super) fn replace_sink(&mut self, shared: &Shared<B>, number: usize, batch_bytes: usize) -> Result<(), Error> {
        let sink = connect(shared, number, &self.transactional_id, batch_bytes)?;
        sink.learn_from(&self.sink);
        self.sink = sink;
        Ok(())
    }
}

/// How old a transaction may become, where `interval` is asked for and commits took so long lately. Brokers need longer for a
/// commit, the more partitions it has, and little is read meanwhile. So a worker reads for a fifth of its time, and what
/// comes does not pile up for the commits' sake; for less where the transaction would come near to its timeout.
fn commit_after(interval: Duration, commit_took: Duration, transaction_timeout: Duration) -> Duration {
    interval.max((commit_took / 4).min((transaction_timeout / 2).saturating_sub(commit_took)))
}

/// A producer for the worker of that number and transactional id.
fn connect<B: Broker>(shared: &Shared<B>, number: usize, transactional_id: &str, batch_bytes: usize) -> Result<Sink<B>, Error> {
    let Shared { config, cluster, .. } = shared;
    // As many as they are now. What is brought to its partitions first comes from those.
    let of = |topic: &str| cluster.partitions.get(topic).copied().unwrap_or(0);
    let read = |topic: &Topic| of(&topic.input).max(config.repartitioned(topic).map_or(0, |between| of(&between)));
    let partitions = config.topics.iter().map(read).fold(0, u32::saturating_add);
    Ok(Sink::connect(&shared.broker, config, transactional_id, partitions, batch_bytes, &|| shared.is_stopped(number))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_reads_for_a_fifth_of_its_time_however_long_commits_take() {
        let after = |interval, took| {
            let [interval, took] = [interval, took].map(Duration::from_millis);
            commit_after(interval, took, Duration::from_secs(10)).as_millis()
        };
        assert_eq!([after(100, 0), after(100, 400), after(100, 1200)], [100, 100, 300]);
        assert_eq!([after(100, 4000), after(100, 4800), after(100, 20_000)], [1000, 200, 100], "nor does it come near to the timeout");
    }
}
