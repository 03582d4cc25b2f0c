//! The event loop: one thread with one consumer, one producer, and the memory of its partitions.
//!
//! Owns the order of things: read, decide, write, commit, checkpoint. Nothing is shared between
//! workers but the store. Must never ask the filter twice about one record, nor take a checkpoint
//! while anything past the committed offset is decided.

mod barrier;
mod commit;
mod decide;
mod decisions;
mod emit;
mod misplaced;
mod partition;
mod plan;
mod rebalance;
mod rebuild;
mod rejoin;
mod report;
mod restore;

use crate::checkpoint::{self, Store};
use crate::config::Config;
use crate::fault;
use crate::filter::{Fault, Full};
use crate::kafka::{self, Batch, Message, Outgoing, Sink, Source, Topology};
use crate::key::{Fingerprint, Scratch};
use crate::record::{Invalid, Offset, Timestamp, TopicPartition, Verdict};
use crate::stats::{Stats, Tally};
use decide::{Keyed, Undecided, decide};
use emit::Fate;
pub use misplaced::Misplaced;
use partition::{Input, Memory};
use plan::{Plan, plans};
use rebuild::{Rebuilder, Rebuilt};
use restore::Waiting;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most records taken from the consumer at a time.
const BATCH_RECORDS: usize = 1024;
/// Records whose keys are taken together, before the first of them is judged.
const PREFETCH_RECORDS: usize = 64;
/// Of so many records that are written, one is timed.
const TIMED: usize = 64;
/// Longest wait for records; bounds how late a rebalance or a stop is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What all workers of a process have in common.
#[derive(Clone)]
pub struct Shared {
    /// The configuration.
    pub config: Arc<Config>,
    /// What the cluster looked like at start.
    pub topology: Arc<Topology>,
    /// Where checkpoints are.
    pub store: Arc<Store>,
    /// What is counted.
    pub stats: Arc<Stats>,
    /// Where the keys of a sample have come out.
    pub misplaced: Arc<Misplaced>,
    /// Set to make the workers drain and end.
    pub stop: Arc<AtomicBool>,
    /// The part of the transactional ids that tells this process from others.
    pub instance: Arc<str>,
}

/// Why a worker cannot go on. What was committed stays; what was not is done again by the next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Kafka cannot be worked with.
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
    /// The state directory cannot be worked with.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// A record without key, and the topic's `on_invalid` is `fail`.
    #[error("{partition} offset {offset}: {invalid}; to go on, mend the producer and set on_invalid to \"drop\", \"emit\" or {{ topic = \"...\" }} for topic {:?}", .partition.topic)]
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
        full: Full,
    },
    /// Anything else that another try would not mend.
    #[error("{0}")]
    Exit(String),
}

/// One worker.
pub struct Worker {
    shared: Shared,
    transactional_id: String,
    topics: Vec<Plan>,
    sink: Sink,
    inputs: BTreeMap<(usize, i32), Input>,
    memories: BTreeMap<MemoryId, Memory>,
    /// Memories that are not there yet.
    waiting: BTreeMap<MemoryId, Waiting>,
    rebuilder: Rebuilder,
    rebuilt: (Sender<Rebuilt>, Receiver<Rebuilt>),
    transaction: Option<Transaction>,
    /// Where the records of the open transaction came from.
    origins: Vec<(usize, i32, Offset)>,
    /// Times of a few of them, to tell how long they took.
    times: Vec<Timestamp>,
    replacements: u32,
    /// The store's, when last looked at.
    epoch: u64,
    next_checkpoint: Instant,
    scratch: Scratch,
    /// By topic.
    tallies: Vec<Tally>,
    number: usize,
    /// Whether the group has said what is ours.
    joined: bool,
    /// When the group lately took another for this member.
    fenced: Vec<Instant>,
    next_report: Instant,
}

/// Whose memory: which space, and which partition number.
type MemoryId = (usize, i32);

/// What is known of the open transaction.
struct Transaction {
    begun: Instant,
    records: usize,
}

/// Whether the records at hand may be gone on with.
enum Flow {
    On,
    /// Positions were set back; what is at hand will be read again.
    Back,
}

impl Worker {
    /// Connects worker `number` of this process, ends what its past self left open, and joins no group yet.
    ///
    /// # Errors
    /// When Kafka refuses.
    pub fn connect(shared: Shared, number: usize) -> Result<Self, Error> {
        let config = &shared.config;
        let transactional_id = format!("{}-{}-{number}", config.kafka.group_id, shared.instance);
        let sink = commit::connect(&shared, &transactional_id, false)?;
        fault::point("connect.ready");
        let topics = plans(&shared);
        let tallies = vec![Tally::default(); shared.stats.topics.len()];
        let rebuilder = Rebuilder::start(&shared);
        let next_checkpoint = Instant::now() + config.worker.checkpoint_interval;
        Ok(Self {
            transactional_id,
            topics,
            tallies,
            sink,
            next_checkpoint,
            epoch: shared.store.epoch(),
            shared,
            inputs: BTreeMap::new(),
            memories: BTreeMap::new(),
            waiting: BTreeMap::new(),
            rebuilder,
            rebuilt: channel(),
            transaction: None,
            origins: Vec::new(),
            replacements: 0,
            times: Vec::new(),
            scratch: Scratch::default(),
            number,
            joined: false,
            fenced: Vec::new(),
            next_report: Instant::now(),
        })
    }

    /// Works as a member of the group until told to stop, then drains: commits, and writes checkpoints.
    fn work(&mut self, source: &Source) -> Result<(), Error> {
        while !self.stopping() {
            while let Some(rebalance) = source.next_rebalance() {
                self.rebalance(source, rebalance)?;
            }
            self.finish_rebuilds(source)?;
            self.restart_lost(source)?;
            if self.commit_in().is_some_and(|due| due.is_zero()) {
                self.commit(source)?;
            }
            self.log_warm_up(source)?;
            self.checkpoint(false);
            self.report(source);
            let batch = source.poll(BATCH_RECORDS, self.commit_in().unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL))?;
            self.sink.poll();
            self.process(source, &batch)?;
            self.seek_stumbled(source, &batch.stumbled);
            if batch.out_of_range {
                self.restart_out_of_range(source)?;
            }
        }
        tracing::info!("draining");
        fault::point("drain.begin");
        self.commit(source)?;
        fault::point("drain.committed");
        self.checkpoint(true);
        fault::point("drain.checkpointed");
        Ok(())
    }

    fn stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Time until the open transaction is to be committed.
    fn commit_in(&self) -> Option<Duration> {
        let transaction = self.transaction.as_ref()?;
        Some(self.shared.config.worker.commit_interval.saturating_sub(transaction.begun.elapsed()))
    }

    // ---- Records ----

    fn process(&mut self, source: &Source, batch: &Batch<'_>) -> Result<(), Error> {
        if batch.messages.is_empty() {
            return Ok(());
        }
        let _span = tracing::debug_span!("batch", records = batch.messages.len()).entered();
        let now = now();
        'batch: for messages in batch.messages.chunks(PREFETCH_RECORDS) {
            for (message, key) in messages.iter().zip(self.keys(messages)) {
                let Some((topic, keyed)) = key else { continue };
                if let Flow::Back = self.record(source, topic, message, keyed, now)? {
                    break 'batch;
                }
            }
        }
        self.tallies.iter_mut().zip(&self.shared.stats.topics).for_each(|(tally, counts)| tally.report(counts));
        Ok(())
    }

    /// Takes the keys of records, and has the cache load what judging them will read: their misses then
    /// overlap, instead of coming one after the other.
    fn keys(&mut self, messages: &[Message<'_>]) -> Vec<Option<(usize, Keyed)>> {
        let mut all = Vec::with_capacity(messages.len());
        let (mut run, mut run_of) = (Vec::with_capacity(messages.len()), None);
        // What follows from topic and partition is looked up once for all that come one after the other.
        for beside in messages.chunk_by(Message::is_beside) {
            let Some(topic) = self.topics.iter().position(|plan| plan.topic.input == beside[0].topic()) else {
                all.extend(beside.iter().map(|_| None));
                continue;
            };
            let plan = &self.topics[topic];
            let memory = Some((plan.space, beside[0].partition()));
            if memory != run_of {
                self.prefetch(run_of, &mut run);
                run_of = memory;
            }
            for message in beside {
                let keyed = decide::key_of(plan, message, &mut self.scratch);
                run.extend(keyed.as_ref().ok().map(|(fingerprint, _)| *fingerprint));
                all.push(Some((topic, keyed)));
            }
        }
        self.prefetch(run_of, &mut run);
        all
    }

    fn prefetch(&self, memory: Option<MemoryId>, run: &mut Vec<Fingerprint>) {
        if let Some(memory) = memory.and_then(|id| self.memories.get(&id)) {
            memory.dedup.prefetch(run);
        }
        run.clear();
    }

    fn record(&mut self, source: &Source, topic: usize, message: &Message<'_>, keyed: Keyed, now: Timestamp) -> Result<Flow, Error> {
        let (offset, plan) = (message.offset(), &self.topics[topic]);
        self.tallies[plan.read].bytes += message.bytes() as u64;
        if let Some(forward) = &plan.forward {
            if self.inputs.get(&(topic, message.partition())).is_none_or(|input| offset < input.position) {
                return Ok(Flow::On);
            }
            return match keyed {
                Ok((fingerprint, _)) => {
                    let partition = Some(forward.partition(fingerprint));
                    self.emit(source, topic, message, Verdict::Unseen, None, partition)
                }
                Err(invalid) => self.emit(source, topic, message, Verdict::Invalid(invalid.reason), Some(invalid), None),
            };
        }
        let fingerprint = keyed.as_ref().ok().map(|(fingerprint, _)| *fingerprint);
        let Some(input) = self.inputs.get_mut(&(topic, message.partition())) else { return Ok(Flow::On) };
        let Some(memory) = self.memories.get_mut(&input.memory) else { return Ok(Flow::On) };
        if offset < input.position {
            // librdkafka went back further than it was asked to.
            return Ok(Flow::On);
        }
        let believed = now.saturating_add(i64::try_from(plan.topic.max_future.as_millis()).unwrap_or(i64::MAX));
        let (verdict, invalid) = match decide(input, memory, message, keyed, believed) {
            Ok(decided) => decided,
            Err(Undecided::Gap(expected)) => {
                tracing::error!(partition = %input.partition, expected, got = offset, "records that were decided do not come again; restoring the partition");
                let partition = input.partition.clone();
                self.restart(source, &[partition])?;
                return Ok(Flow::Back);
            }
            Err(Undecided::Fault(Fault::Full(full))) => {
                let partition = input.partition.clone();
                return Err(Error::Full { partition, offset, full });
            }
            Err(Undecided::Fault(Fault::Archive(error))) => {
                tracing::error!(partition = %input.partition, offset, error = %error, "memory is lost; restoring the partition");
                let partition = input.partition.clone();
                self.restart(source, &[partition])?;
                return Ok(Flow::Back);
            }
        };
        if input.is_warm_up(offset) {
            input.warmed_up(offset);
            self.tallies[plan.counted].warmed_up += 1;
            fault::point("warm_up.record");
            let full = memory.journal.len() >= self.shared.config.worker.transaction_records_max;
            return if full { self.log_warm_up(source).map(|()| Flow::On) } else { Ok(Flow::On) };
        }
        input.decisions.carry(offset, verdict);
        if std::mem::take(&mut input.warming_up) {
            tracing::info!(partition = %input.partition, offset, "warmed up");
            fault::point("warm_up.ended");
        }
        self.tallies[plan.counted].future += u64::from(message.timestamp().is_some_and(|time| time > believed));
        if let (Verdict::Unseen, Some(fingerprint)) = (verdict, fingerprint) {
            self.watch(topic, fingerprint, message.partition());
        }
        self.emit(source, topic, message, verdict, invalid, None)
    }

    /// Writes a decided record to where it goes, and counts it as read. With `forward` it goes to that partition,
    /// to be judged there.
    fn emit(
        &mut self,
        source: &Source,
        topic: usize,
        message: &Message<'_>,
        verdict: Verdict,
        invalid: Option<Invalid>,
        forward: Option<i32>,
    ) -> Result<Flow, Error> {
        if self.transaction.is_none() {
            if let Err(failure) = self.sink.begin() {
                return self.fail(source, failure).map(|()| Flow::Back);
            }
            self.transaction = Some(Transaction { begun: Instant::now(), records: 0 });
            fault::point("transaction.begun");
        }
        let (place, offset, plan) = ((topic, message.partition()), message.offset(), &self.topics[topic]);
        let mut headers = Vec::new();
        let fate = match (forward, &plan.forward) {
            (partition @ Some(_), Some(to)) => {
                Fate::Write(Outgoing { topic: &to.topic, partition, message, headers: &[], origin: self.origins.len() })
            }
            _ => plan.routes.fate(&plan.topic, verdict, invalid.as_ref(), message, self.origins.len(), &mut headers),
        };
        let is_dead_letter = matches!(fate, Fate::Write(_)) && plan.routes.is_dead_letter(verdict);
        match fate {
            Fate::Drop => {}
            Fate::Write(outgoing) => {
                if self.origins.len().is_multiple_of(TIMED) {
                    self.times.extend(message.timestamp());
                }
                self.origins.push((place.0, place.1, offset));
                if let Err(failure) = self.sink.send(&outgoing) {
                    return self.fail(source, failure).map(|()| Flow::Back);
                }
                fault::point("transaction.sent");
            }
            Fate::Fail(reason) => {
                // What came before it is good, and stays; if that is to be written again, we come by here again.
                if let Flow::Back = self.commit(source)? {
                    return Ok(Flow::Back);
                }
                let invalid = invalid.unwrap_or_else(|| Invalid { reason, message: reason.label().to_owned() });
                let partition = TopicPartition { topic: message.topic().to_owned(), partition: message.partition() };
                return Err(Error::Invalid { partition, offset, invalid });
            }
        }
        if let Some(input) = self.inputs.get_mut(&place) {
            input.position = offset + 1;
            // What is written again after an abort was counted.
            if forward.is_none() && offset >= input.counted {
                input.counted = offset + 1;
                let tally = &mut self.tallies[plan.counted];
                tally.count(verdict);
                tally.dead_letters += u64::from(is_dead_letter);
            }
        }
        let full = self.transaction.as_mut().is_some_and(|transaction| {
            transaction.records += 1;
            transaction.records >= self.shared.config.worker.transaction_records_max
        });
        if !full {
            return Ok(Flow::On);
        }
        let flow = self.commit(source)?;
        // While records come faster than transactions hold, there is hardly another moment without one.
        self.checkpoint(false);
        Ok(flow)
    }

    /// What a warm-up remembers and the changelog lacks is logged too, with the next transaction or in one of its own.
    fn log_warm_up(&mut self, source: &Source) -> Result<(), Error> {
        let most = self.shared.config.worker.transaction_records_max;
        let due = Instant::now() >= self.next_checkpoint || self.memories.values().any(|memory| memory.journal.len() >= most);
        if self.transaction.is_some() || !due || self.memories.values().all(|memory| memory.journal.is_empty()) {
            return Ok(());
        }
        if let Err(failure) = self.sink.begin() {
            return self.fail(source, failure);
        }
        self.transaction = Some(Transaction { begun: Instant::now(), records: 0 });
        self.commit(source).map(drop)
    }

    /// Looks at the topics again, for they have changed.
    fn refresh_topology(&mut self) -> Result<(), Error> {
        let topology = self.patiently(|| kafka::discover(&self.shared.config, &|| self.stopping()))?;
        self.shared.topology = Arc::new(topology);
        self.topics = plans(&self.shared);
        Ok(())
    }

    /// Asks the brokers until they answer, or until told to stop.
    fn patiently<T>(&self, ask: impl Fn() -> Result<T, kafka::Error>) -> Result<T, Error> {
        let asked = Instant::now();
        loop {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(_) if self.stopping() => return Err(kafka::Error::Stopped.into()),
                // Offsets in an open transaction are not told. One that the coordinator has lost stays open for ever.
                Err(error) if asked.elapsed() > self.shared.config.worker.transaction_timeout * 2 => tracing::warn!(
                    error = %error,
                    "no answer from the brokers for longer than a transaction can live; asking again. If the brokers are well, look for a transaction that hangs, with kafka-transactions.sh find-hanging --topic __consumer_offsets"
                ),
                Err(error) => tracing::warn!(error = %error, "no answer from the brokers yet; asking again"),
            }
            // Some failures come at once.
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Milliseconds since the epoch by this machine's clock: only to tell which record times are not to be believed.
fn now() -> Timestamp {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
}
