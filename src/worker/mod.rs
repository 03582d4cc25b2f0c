//! The event loop: one thread with one consumer, one producer, and the state of its partitions.
//!
//! Runs the steps in order: read, judge, write, commit, checkpoint. Workers share only the contents of [`Shared`]. A worker never judges a
//! record twice with the same state. It never writes a checkpoint of a state that contains the effects of uncommitted records.

mod assignment;
mod checkpointing;
mod co_partitioning;
mod columns;
mod commit;
mod error;
mod fetching;
mod group_start;
mod ids;
mod in_flight;
mod input;
mod judge;
mod key_conflicts;
mod key_reader;
mod log_end;
mod outputs;
mod partition;
mod pausing;
mod pending_restore;
mod read_ahead;
mod rebalance;
mod rebuild;
mod rebuild_job;
mod rebuild_pass;
mod record_loop;
mod records;
mod recovery;
mod rejoin;
mod report;
mod restore;
mod retry;
mod shared;
mod stall;
mod state_progress;
mod topics;
mod transaction;
mod verdicts;
mod writer;

use crate::broker::{self, Broker, Consumer};
use crate::fault;
use crate::runtime;
use assignment::Assignment;
use checkpointing::Schedule;
pub use co_partitioning::CrossPartitionKeys;
pub use error::Error;
use key_reader::KeyReader;
use log_end::LogEnds;
use read_ahead::ReadAhead;
pub use rebuild::Rebuilder;
use record_loop::Buffers;
use report::Reporter;
pub use shared::Shared;
use std::sync::Arc;
use std::time::{Duration, Instant};
use topics::Topics;
use writer::TransactionWriter;

/// The longest wait for records, and the pause before the worker repeats a failed request. A waiting worker notices a stop request within
/// this time.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum wait for the brokers before the status shows a worker as blocked.
const BLOCKED_AFTER: Duration = Duration::from_secs(5);

pub struct Worker<B: Broker> {
    shared: Shared<B>,
    number: usize,
    topics: Topics,
    assignment: Assignment,
    writer: TransactionWriter<B>,
    schedule: Schedule,
    reporter: Reporter,
    buffers: Buffers,
    key_reader: KeyReader,
    log_ends: LogEnds,
    /// The group's generation at the last handled rebalance.
    generation: Option<i32>,
    /// True if librdkafka may have acknowledged a rebalance that the worker has not handled yet. The worker then commits nothing, because
    /// other members may already own its partitions.
    has_unhandled_rebalance: bool,
    /// The recent times when the group fenced this member. See `rejoin.rs`.
    rejoins: Vec<Instant>,
}

/// The next step for records that are read but not processed yet.
#[derive(Clone, Copy)]
enum Flow {
    Continue,
    /// Drop the records. Positions were rewound or partitions were lost, so this worker or the next owner reads the records again.
    Rewound,
}

impl<B: Broker> Worker<B> {
    /// Connects worker `number` of this process. With exactly-once delivery, also ends the transaction that the previous producer with the
    /// same transactional id left open. Does not join the group.
    ///
    /// # Errors
    /// Returns an error if librdkafka or the brokers reject the producer, or if the worker is stopped while it connects.
    pub fn connect(shared: Shared<B>, number: usize) -> Result<Self, Error> {
        let writer = TransactionWriter::connect(&shared, number)?;
        let topics = Topics::new(&shared.config, &shared.cluster);
        let key_reader = KeyReader::new(topics.iter().count(), Arc::clone(&shared.schemas));
        fault::point("connect.ready");
        Ok(Self {
            number,
            topics,
            assignment: Assignment::new(shared.store.epoch()),
            writer,
            schedule: Schedule::new(runtime::now() + shared.config.worker.checkpoint_interval),
            reporter: Reporter::new(&shared.stats),
            buffers: Buffers::default(),
            key_reader,
            log_ends: LogEnds::new(),
            generation: None,
            has_unhandled_rebalance: false,
            rejoins: Vec::new(),
            shared,
        })
    }

    /// Processes records until the worker is stopped. Then commits, writes checkpoints, and closes the consumer. If the group fences the
    /// member, rejoins with a new consumer.
    ///
    /// # Errors
    /// Returns an error if the worker cannot continue.
    pub fn run(mut self, number: usize) -> Result<(), Error> {
        loop {
            let source = self.shared.broker.consumer(&self.shared.config, number)?;
            let inputs: Vec<_> = self.topics.inputs().map(|(_, topic)| &*topic.config.input).collect();
            source.subscribe(&inputs)?;
            (self.generation, self.has_unhandled_rebalance) = (None, false);
            let ended = self.work(&source).and_then(|()| self.commit_and_checkpoint(&source));
            let is_fenced = matches!(ended, Err(Error::Kafka(broker::Error::Fenced)));
            let ended = if is_fenced { self.prepare_to_rejoin(&source) } else { ended };
            if !matches!(ended, Ok(()) | Err(Error::Kafka(broker::Error::Stopped))) {
                self.writer.leave();
            }
            source.close();
            if !is_fenced || ended.is_err() || self.check_stop() {
                fault::point("drain.left");
                return ended;
            }
        }
    }

    fn work(&mut self, source: &B::Consumer) -> Result<(), Error> {
        let mut ahead = ReadAhead::default();
        while !self.check_stop() {
            while let Some(rebalance) = source.next_rebalance() {
                self.rebalance(source, rebalance)?;
            }
            self.finish_rebuilds(source)?;
            self.restart_lost(source)?;
            self.restart_superseded(source)?;
            self.commit_if_due(source, &mut ahead)?;
            self.update_pauses(source)?;
            ahead.discard_if_rewound(self.begin_topics(source)?);
            ahead.discard_if_rewound(self.commit_beginnings(source)?);
            ahead.discard_if_rewound(self.log_warm_up(source)?);
            self.shrink_transactions(source)?;
            if ahead.batch.is_empty() {
                ahead.discard_if_rewound(self.check_log_ends(source)?);
            }
            self.checkpoint(false);
            self.report(source);
            ahead.fill(source, self.commit_in().unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL))?;
            self.writer.sink.poll();
            let processed = self.process(source, &mut ahead)?;
            self.seek_errored(source)?;
            // After a rewind, the records below the ends that the batch reported must be read again, so the worker must not step over to
            // these ends.
            let ends = if let Flow::Continue = processed { std::mem::take(&mut ahead.batch.ends) } else { Vec::new() };
            // The worker must step over control records before it updates the pauses. The update may resume a partition that has passed
            // over records. If the worker stepped over control records after the update, it would skip the records that the partition must
            // read again.
            self.step_over_to(source, &ends)?;
            self.update_pauses(source)?;
            if ahead.batch.out_of_range {
                self.restart_out_of_range(source)?;
            }
            ahead.clear();
        }
        Ok(())
    }

    fn commit_and_checkpoint(&mut self, source: &B::Consumer) -> Result<(), Error> {
        tracing::info!("draining: committing the records that were read and writing checkpoints");
        fault::point("drain.begin");
        self.step_over_control_records(source)?;
        self.commit(source)?;
        fault::point("drain.committed");
        self.checkpoint(true);
        fault::point("drain.checkpointed");
        Ok(())
    }

    /// Commits the open transaction if its commit is due. During a replay, gives up the replay instead, because the open transaction still
    /// lacks records of an aborted transaction.
    fn commit_if_due<'s>(&mut self, source: &'s B::Consumer, ahead: &mut ReadAhead<'s, B>) -> Result<(), Error> {
        if self.commit_in().is_none_or(|due| !due.is_zero()) {
            return Ok(());
        }
        if self.assignment.is_replaying() {
            self.give_up_replay(source)?;
            ahead.clear();
            return Ok(());
        }
        self.commit_and_read_ahead(source, ahead)
    }
}
