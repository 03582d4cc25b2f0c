//! The event loop: one thread with one consumer, one producer, and the state of its partitions.
//!
//! Owns the order of things: read, decide, write, commit, checkpoint. Nothing is shared between workers
//! but the store and the threads that rebuild. Must never ask the filter twice about one record, nor
//! take a checkpoint while anything past the committed offset is decided.

mod assignment;
mod checkpointing;
mod co_partitioning;
mod columns;
mod commit;
mod decide;
mod ids;
mod in_flight;
mod input;
mod key_conflicts;
mod key_reader;
mod log_end;
mod outbox;
mod partition;
mod pausing;
mod read_ahead;
mod rebalance;
mod rebuild;
mod rebuild_job;
mod records;
mod rejoin;
mod report;
mod restore;
mod routes;
mod together;
mod topics;
mod transaction;
mod verdicts;
mod waiting;

use crate::broker::{self, Broker, Cluster, Consumer};
use crate::checkpoint::{self, Store};
use crate::config::Config;
use crate::fault;
use crate::filter::CapacityError;
use crate::format::Schemas;
use crate::record::{Invalid, Offset, TopicPartition};
use crate::runtime;
use crate::stats::Stats;
use assignment::Assignment;
use checkpointing::Schedule;
pub use co_partitioning::CrossPartitionKeys;
use key_reader::KeyReader;
use log_end::LogEnds;
use outbox::Outbox;
use read_ahead::ReadAhead;
pub use rebuild::Rebuilder;
use records::Buffers;
use report::Reporter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use topics::Topics;

/// Longest wait for records; bounds how late a rebalance or a stop is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long a worker waits for an answer before its status says so.
const SILENCE: Duration = Duration::from_secs(5);

/// Most keys that a warm-up remembers of a partition before they are logged: every partition may have so many.
const UNLOGGED_MAX: usize = 200_000;

/// What all workers of a process have in common.
#[derive(Clone)]
pub struct Shared<B: Broker> {
    /// The cluster.
    pub broker: B,
    /// The configuration.
    pub config: Arc<Config>,
    /// What the cluster looked like at start.
    pub cluster: Arc<Cluster>,
    /// Where checkpoints are.
    pub store: Arc<Store>,
    /// What brings states back. The last that has it waits for its threads: none may use the store while the process ends.
    pub rebuilder: Arc<Rebuilder>,
    /// What is counted.
    pub stats: Arc<Stats>,
    /// Where the keys of a sample have come out.
    pub cross_partition_keys: Arc<CrossPartitionKeys>,
    /// Who has the schemas of records.
    pub schemas: Arc<dyn Schemas>,
    /// Set to make the workers drain and end.
    pub stop: Arc<AtomicBool>,
    /// The part of the transactional ids that distinguishes this process from others.
    pub instance: Arc<str>,
}

impl<B: Broker> Shared<B> {
    /// Most keys of a partition that wait to be logged.
    fn most_unlogged(&self) -> usize {
        self.config.worker.max_transaction_records.min(UNLOGGED_MAX)
    }

    /// Whether the workers were told to stop. Notes that worker `number` came to ask.
    fn is_stopped(&self, number: usize) -> bool {
        if let Some(round) = self.stats.rounds.get(number) {
            round.note();
        }
        self.stop.load(Ordering::Relaxed)
    }
}

/// Why a worker cannot go on. What was committed stays; what was not is done again by the next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Kafka cannot be worked with.
    #[error(transparent)]
    Kafka(#[from] broker::Error),
    /// The state directory cannot be worked with.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// A record without key, and the topic's `on_invalid` is `fail`.
    #[error("{partition} offset {offset}: {invalid}; to go on, mend the producer and set on_invalid to \"drop\"{} or {{ topic = \"...\" }} for topic {:?}", if invalid.reason.is_of_broker() { "" } else { ", \"emit\"" }, .partition.topic)]
    Invalid {
        /// Where it was read.
        partition: TopicPartition,
        /// Where in it.
        offset: Offset,
        /// What is wrong with it.
        invalid: Invalid,
    },
    /// There is no usable checkpoint, and `state.cold_start` is `fail`.
    #[error("no usable checkpoint of {partition}: {why}; set state.cold_start to \"rebuild\" or \"empty\" to start without it")]
    ColdStart {
        /// Whose.
        partition: TopicPartition,
        /// Why not.
        why: String,
    },
    /// A filter has no room for another key.
    #[error("{partition} offset {offset}: {full}")]
    Full {
        /// Whose filter.
        partition: TopicPartition,
        /// The record whose key finds no room; nothing is lost, it will be read again.
        offset: Offset,
        /// What is full.
        full: CapacityError,
    },
    /// A log ends before the place up to which it was read, and `kafka.on_truncation` is `fail`.
    #[error(
        "{partition} ends at offset {end}, but was read up to {read}: its log became shorter, as after an unclean leader election; set kafka.on_truncation to \"continue\" to go on at its end, or, if records were written since, set the group's offset to the first of them"
    )]
    Truncated {
        /// The partition.
        partition: TopicPartition,
        /// Where its log ends.
        end: Offset,
        /// Up to where it was read.
        read: Offset,
    },
    /// Anything else that another try would not mend.
    #[error("{0}")]
    Exit(String),
}

/// One worker.
pub struct Worker<B: Broker> {
    shared: Shared<B>,
    number: usize,
    topics: Topics,
    assignment: Assignment,
    outbox: Outbox<B>,
    schedule: Schedule,
    reporter: Reporter,
    buffers: Buffers,
    key_reader: KeyReader,
    log_ends: LogEnds,
    /// When the group lately took another for this member.
    rejoins: Vec<Instant>,
}

/// Whether the records at hand may be gone on with.
enum Flow {
    On,
    /// Positions were set back; what is at hand will be read again.
    Back,
}

impl<B: Broker> Worker<B> {
    /// Connects worker `number` of this process, ends what its past self left open, and joins no group yet.
    ///
    /// # Errors
    /// When Kafka refuses.
    pub fn connect(shared: Shared<B>, number: usize) -> Result<Self, Error> {
        let outbox = Outbox::connect(&shared, number)?;
        let topics = Topics::new(&shared);
        let key_reader = KeyReader::new(topics.iter().count(), Arc::clone(&shared.schemas));
        fault::point("connect.ready");
        Ok(Self {
            number,
            topics,
            assignment: Assignment::new(shared.store.epoch()),
            outbox,
            schedule: Schedule::new(runtime::now() + shared.config.worker.checkpoint_interval),
            reporter: Reporter::new(&shared.stats),
            buffers: Buffers::default(),
            key_reader,
            log_ends: LogEnds::new(),
            rejoins: Vec::new(),
            shared,
        })
    }

    /// Works as a member of the group until told to stop, then drains: commits, and writes checkpoints.
    fn work(&mut self, source: &B::Consumer) -> Result<(), Error> {
        let mut ahead = ReadAhead::default();
        while !self.stopping() {
            while let Some(rebalance) = source.next_rebalance() {
                self.rebalance(source, rebalance)?;
            }
            self.finish_rebuilds(source)?;
            self.restart_lost(source)?;
            if self.commit_in().is_some_and(|due| due.is_zero()) {
                if self.assignment.must_repeat() {
                    self.give_up_repeating(source)?;
                    ahead.clear();
                } else {
                    self.commit_and_read(source, &mut ahead)?;
                }
            }
            self.tend_waiting(source)?;
            if let Flow::Back = self.begin_topics(source)? {
                ahead.clear();
            }
            if let Flow::Back = self.commit_beginnings(source)? {
                ahead.clear();
            }
            if let Flow::Back = self.log_warm_up(source)? {
                ahead.clear();
            }
            self.shrink_transactions(source)?;
            if ahead.batch.is_empty()
                && let Flow::Back = self.look_at_log_ends(source)?
            {
                ahead.clear();
            }
            self.checkpoint(false);
            self.report(source);
            ahead.fill(source, self.commit_in().unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL))?;
            self.outbox.sink.poll();
            let processed = self.process(source, &mut ahead)?;
            self.seek_errored(source)?;
            // After a rewind, the partitions are not at these ends any more.
            let ends = if let Flow::On = processed { std::mem::take(&mut ahead.batch.ends) } else { Vec::new() };
            // First: a partition that is resumed has records to come, though its end was met.
            self.step_over_to(source, &ends)?;
            self.tend_waiting(source)?;
            if ahead.batch.out_of_range {
                self.restart_out_of_range(source)?;
            }
            ahead.clear();
        }
        tracing::info!("draining");
        fault::point("drain.begin");
        self.step_over_control_records(source)?;
        self.commit(source)?;
        fault::point("drain.committed");
        self.checkpoint(true);
        fault::point("drain.checkpointed");
        Ok(())
    }

    /// Notes that it goes on, within a round that may take long.
    fn alive(&self) {
        self.stopping();
    }

    /// Whether it was told to stop. Asked in each round and before each attempt, so that a hung thread shows.
    fn stopping(&self) -> bool {
        self.shared.is_stopped(self.number)
    }

    /// Publishes a status report if one is due.
    fn report(&mut self, source: &B::Consumer) {
        if !self.outbox.is_open() && self.reporter.unblock(&self.assignment, source) {
            self.outbox.aborts = 0;
        }
        self.reporter.report(&self.shared, self.number, &self.topics, &mut self.assignment, source);
    }

    /// Time until the open transaction is to be committed, or, if not all is in it that must be, to be given up.
    fn commit_in(&self) -> Option<Duration> {
        let age = self.outbox.age()?;
        let worker = &self.shared.config.worker;
        let due = match &self.outbox.ends_with {
            _ if self.assignment.must_repeat() => worker.transaction_timeout / 2,
            Some(_) => Duration::ZERO,
            None => self.outbox.commit_after(worker.commit_interval),
        };
        Some(due.saturating_sub(age))
    }

    /// Commits where this worker's partitions begin, before anything of them is read: their next owner begins at the same
    /// offsets.
    fn commit_beginnings(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        let begins = self.assignment.inputs.values().any(|input| input.group.offset.is_none());
        if self.outbox.is_open() || !begins || self.assignment.must_repeat() {
            return Ok(Flow::On);
        }
        self.commit_at_once(source)
    }

    /// Logs what the changelog lacks and no transaction has logged yet: the keys of a warm-up, and the announcements of a new owner.
    fn log_warm_up(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        let most = self.shared.most_unlogged();
        let states = &self.assignment.states;
        let is_due = self.schedule.is_due(runtime::now()) || states.values().any(|state| state.pending.len() >= most);
        let has_keys = is_due && states.values().any(|state| !state.pending.is_empty());
        let must_log = has_keys || self.assignment.must_announce(&self.topics, self.shared.config.worker.commit_interval);
        if self.outbox.is_open() || !must_log || self.assignment.must_repeat() {
            return Ok(Flow::On);
        }
        self.commit_at_once(source)
    }

    /// Commits what there is to commit without a record.
    fn commit_at_once(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        match self.outbox.begin() {
            Ok(()) => self.commit(source),
            Err(failure) => self.abort(source, failure).map(|()| Flow::Back),
        }
    }

    /// Looks at the topics again, for they have changed.
    fn refresh_cluster(&mut self) -> Result<(), Error> {
        let cluster = self.patiently(|| self.shared.broker.discover(&self.shared.config, &|| self.stopping()))?;
        self.shared.cluster = Arc::new(cluster);
        self.topics = Topics::new(&self.shared);
        Ok(())
    }

    /// Asks the brokers until they answer, or until told to stop.
    fn patiently<T>(&self, ask: impl Fn() -> Result<T, broker::Error>) -> Result<T, Error> {
        let asked = runtime::now();
        loop {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(_) if self.stopping() => return Err(broker::Error::Stopped.into()),
                // What a person must mend is said at once.
                Err(error @ (broker::Error::Cluster(_) | broker::Error::Property(_) | broker::Error::Refused { .. })) => {
                    return Err(error.into());
                }
                Err(error) => {
                    let waited = runtime::since(asked);
                    if waited > SILENCE {
                        self.shared.stats.block(self.number, format!("waiting for the brokers: {error}"));
                    }
                    // Brokers do not return offsets of an open transaction. One that the coordinator has lost stays open for ever.
                    let advice = if waited > self.shared.config.worker.transaction_timeout * 2 {
                        "; if the brokers are well, look for a transaction that hangs, with kafka-transactions.sh find-hanging --topic __consumer_offsets"
                    } else {
                        ""
                    };
                    tracing::warn!(error = %error, seconds = waited.as_secs(), "no answer from the brokers yet; asking again{advice}");
                }
            }
            // Some failures come at once.
            runtime::sleep(POLL_INTERVAL);
        }
    }
}
