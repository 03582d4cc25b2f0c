//! The producer of a worker and its open transaction.
//!
//! Keeps the failure counts and the origin of each record in flight. Never decides what is written or what a failure means for the input
//! records.

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

/// The maximum number of consecutive transactions with an unknown outcome. Each of them replaces the producer.
const REPLACEMENTS_MAX: u32 = 10;

/// The maximum number of times that another producer may fence this producer within [`FENCINGS_WINDOW`] before the worker ends.
const FENCINGS_MAX: usize = 4;
const FENCINGS_WINDOW: Duration = Duration::from_secs(600);

/// The shortest and the longest wait between transactions that abort repeatedly. The wait is limited, because the worker does not poll its
/// consumer during the wait.
pub(super) const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

pub(super) struct TransactionWriter<B: Broker> {
    pub(super) sink: Sink<B>,
    pub(super) in_flight: InFlight,
    /// The number of consecutive aborts. Transactions with an unknown outcome do not count. Reset by a commit and by a rejected record, and
    /// when the worker is no longer reported as blocked.
    pub(super) aborts: u32,
    /// The error that the worker returns after the next commit.
    pub(super) ends_with: Option<Error>,
    transactional_id: String,
    transaction_timeout: Duration,
    delivery_timeout: Duration,
    transaction: Option<Transaction>,
    limit: Limit,
    /// True if the brokers did not accept the last transactions in time. The next transactions must then be smaller.
    pub(super) shrinks: bool,
    /// The durations of the last two commits. Only the shorter duration counts, because a single slow commit may have been an outage.
    commits_took: [Duration; 2],
    replacements: u32,
    fencings: Vec<Instant>,
}

impl<B: Broker> TransactionWriter<B> {
    /// Connects the producer of worker `number`. With exactly-once delivery, also ends the transaction that the previous producer with the
    /// same transactional id left open.
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

    pub(super) const fn is_open(&self) -> bool {
        self.transaction.is_some()
    }

    pub(super) fn age(&self) -> Option<Duration> {
        self.transaction.as_ref().map(|transaction| runtime::since(transaction.begun))
    }

    pub(super) fn commit_after(&self, interval: Duration) -> Duration {
        let [one, next] = self.commits_took;
        commit_after(interval, one.min(next), self.transaction_timeout)
    }

    /// Begins a transaction, unless a transaction is already open.
    #[inline]
    pub(super) fn begin(&mut self) -> Result<(), SinkError> {
        if self.transaction.is_none() {
            self.sink.begin()?;
            self.transaction = Some(Transaction { begun: runtime::now(), load: Load::default() });
            fault::point("transaction.begun");
        }
        Ok(())
    }

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

    /// Adds processed records, written or not, to the load of the transaction. Returns true if the transaction is full.
    #[inline]
    pub(super) fn add_to_transaction(&mut self, records: usize) -> bool {
        let limit = &self.limit;
        self.transaction.as_mut().is_some_and(|transaction| {
            transaction.load.records += records;
            limit.is_full(transaction.load)
        })
    }

    /// Returns the room that is left in the transaction, even if the transaction is not open yet.
    #[inline]
    pub(super) fn room(&self) -> Load {
        self.limit.room(self.transaction.as_ref().map_or_else(Load::default, |transaction| transaction.load))
    }

    /// Counts the open transaction as timed out if it failed after the delivery timeout. The next transactions may then have to be smaller.
    /// Must not be called if a topic rejected a record, because the size of the transaction is then not the cause.
    pub(super) fn failed(&mut self) {
        if let Some(transaction) =
            self.transaction.as_ref().filter(|transaction| runtime::since(transaction.begun) >= self.delivery_timeout)
        {
            self.shrinks |= self.limit.timed_out(transaction.load);
        }
    }

    /// Lowers the limit after a replay that was too slow. Returns the new limit, or `None` if the limit cannot be lowered.
    pub(super) fn repeated_too_slowly(&mut self) -> Option<Load> {
        let load = self.transaction.as_ref()?.load;
        self.limit.repeated_too_slowly(load).then(|| self.limit.current())
    }

    /// Resets the count of replacements, to give the smaller transactions the full number of attempts. Returns the limit of these
    /// transactions.
    pub(super) const fn shrink(&mut self) -> Load {
        self.replacements = 0;
        self.limit.current()
    }

    pub(super) fn end(&mut self) {
        self.transaction = None;
        self.in_flight.clear();
    }

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

    /// Returns the wait before the next attempt: zero after the first abort, then 50 ms, doubled by each further abort up to five seconds.
    pub(super) fn back_off(&self) -> Duration {
        self.aborts.checked_sub(2).map_or(Duration::ZERO, |doublings| (BACKOFF * 2_u32.pow(doublings.min(10))).min(BACKOFF_MAX))
    }

    /// Counts how often the producer is fenced. If the producer is fenced repeatedly, another process has the same transactional id, and
    /// this worker ends. A transaction that was open for too long does not count. Brokers abort such a transaction, for example after an
    /// outage, and then report the same error for the transaction and its late requests.
    pub(super) fn fenced(&mut self, reason: &str) -> Result<(), Error> {
        if self.limit.has_timed_out() || self.age().is_some_and(|age| age >= self.transaction_timeout) {
            return Ok(());
        }
        self.fencings.retain(|at| runtime::since(*at) < FENCINGS_WINDOW);
        self.fencings.push(runtime::now());
        if self.fencings.len() <= FENCINGS_MAX {
            return Ok(());
        }
        Err(Error::Exit(broker::duplicate_producer(&self.transactional_id, reason)))
    }

    /// Counts and logs a transaction with an unknown outcome. Fails if there were too many such transactions since the last commit.
    pub(super) fn note_in_doubt(&mut self, reason: &str) -> Result<(), Error> {
        self.replacements += 1;
        tracing::warn!(
            reason,
            attempt = self.replacements,
            "the outcome of the transaction is unknown; replacing the producer, which ends a transaction that is still open, and reading the outcome from the group's committed offsets"
        );
        if self.replacements <= REPLACEMENTS_MAX {
            return Ok(());
        }
        Err(Error::Exit(format!(
            "the producer was replaced {REPLACEMENTS_MAX} times without a commit in between ({reason}); raise worker.transaction_timeout if the brokers are slow, or find another process that uses transactional id {:?}",
            self.transactional_id
        )))
    }

    /// Aborts the open transaction before the worker ends. Otherwise, `read_committed` consumers would wait until the transaction times
    /// out.
    pub(super) fn leave(&mut self) {
        if self.is_open() {
            self.sink.leave();
            self.end();
        }
    }

    /// Replaces the producer. With exactly-once delivery, the new producer ends the open transaction of the old producer and fences late
    /// requests of the old producer.
    pub(super) fn replace_sink(&mut self, shared: &Shared<B>, number: usize, batch_bytes: usize) -> Result<(), Error> {
        let sink = connect(shared, number, &self.transactional_id, batch_bytes)?;
        sink.learn_from(&self.sink);
        self.sink = sink;
        Ok(())
    }
}

/// Returns the age of a transaction when its commit is due, if recent commits took `commit_took`. Commits of many partitions are slow, and
/// the worker reads little during a commit. So the worker spends at least a fifth of its time reading, unless the transaction would come
/// close to its timeout.
fn commit_after(interval: Duration, commit_took: Duration, transaction_timeout: Duration) -> Duration {
    interval.max((commit_took / 4).min((transaction_timeout / 2).saturating_sub(commit_took)))
}

fn connect<B: Broker>(shared: &Shared<B>, number: usize, transactional_id: &str, batch_bytes: usize) -> Result<Sink<B>, Error> {
    let Shared { config, cluster, .. } = shared;
    // With `repartition`, records come from the repartition topic or from the input, so the larger partition count of the two topics
    // applies.
    let of = |topic: &str| cluster.partitions.get(topic).copied().unwrap_or(0);
    let read = |topic: &Topic| of(&topic.input).max(config.repartitioned(topic).map_or(0, |between| of(&between)));
    let partitions = config.topics.iter().map(read).fold(0, u32::saturating_add);
    Ok(Sink::connect(&shared.broker, config, transactional_id, partitions, batch_bytes, &|| shared.is_stopped(number))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_reads_for_a_fifth_of_its_time_even_if_commits_are_slow() {
        let after = |interval, took| {
            let [interval, took] = [interval, took].map(Duration::from_millis);
            commit_after(interval, took, Duration::from_secs(10)).as_millis()
        };
        assert_eq!([after(100, 0), after(100, 400), after(100, 1200)], [100, 100, 300]);
        assert_eq!(
            [after(100, 4000), after(100, 4800), after(100, 20_000)],
            [1000, 200, 100],
            "the transaction stays clear of its timeout"
        );
    }
}
