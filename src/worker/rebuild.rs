//! A state from its changelog, beside the work on other partitions.
//!
//! Owns the threads that read changelogs: they make states anew and trim what is not needed any more.
//! Must never take in what the group has not committed, nor hold up a worker.

use super::Error;
use super::ids::StateId;
use super::partition::PartitionState;
use crate::changelog::{Applier, ChangelogRecord, Cut, Origin, Outcome};
use crate::checkpoint::{self, PartitionId, Store};
use crate::config::Config;
use crate::dedup::Rules;
use crate::fault;
use crate::filter::Slice;
use crate::kafka::{ChangelogReader, Logged};
use crate::record::{Offset, TopicPartition};
use crate::stats::{Stats, add};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Threads that read changelogs, of one process. Each has a reader, and a state in the making.
const THREADS: usize = 2;
/// How long to wait for a transaction to end before looking again.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a client is asked that gives no answer, before another is made.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// How often a line says how far a rebuild has come.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// A state to be brought to where the group has come.
pub(super) struct Job {
    pub(super) id: StateId,
    pub(super) partition: PartitionId,
    pub(super) changelog: TopicPartition,
    /// What the checkpoint has of it.
    pub(super) state: PartitionState,
    pub(super) rules: Rules,
    pub(super) settings: checkpoint::Settings,
    pub(super) origin: Origin,
    /// For each input topic, what the group has committed of it.
    pub(super) bounds: BTreeMap<String, Offset>,
    /// Keys of an earlier slice have expired, if that is known.
    pub(super) oldest_slice: Option<Slice>,
    /// Set when nobody waits for it any more.
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) done: Sender<Rebuilt>,
}

/// What became of a job.
pub(super) struct Rebuilt {
    pub(super) id: StateId,
    /// The job's own, to distinguish it from one that was cancelled.
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) state: Result<PartitionState, Error>,
}

/// The partitions that wait to be trimmed, each with the offset below which it is not needed any more.
type Trims = Mutex<BTreeMap<TopicPartition, Offset>>;

/// What the threads need of what the workers share.
#[derive(Clone)]
struct Needs {
    config: Arc<Config>,
    store: Arc<Store>,
    stats: Arc<Stats>,
    stop: Arc<AtomicBool>,
}

/// The threads of a process that read changelogs, and what waits for them.
pub struct Rebuilder {
    /// A job, or none where there is something to trim.
    jobs: Option<Sender<Option<Box<Job>>>>,
    trims: Arc<Trims>,
    threads: Vec<JoinHandle<()>>,
}

impl Rebuilder {
    /// Starts the threads; they end with this, once whoever waits for a state has given it up.
    #[must_use]
    pub fn start(config: &Arc<Config>, store: &Arc<Store>, stats: &Arc<Stats>, stop: &Arc<AtomicBool>) -> Self {
        // Not what has this: they would keep each other alive.
        let needs = Needs { config: Arc::clone(config), store: Arc::clone(store), stats: Arc::clone(stats), stop: Arc::clone(stop) };
        let (jobs, waiting) = channel();
        let (waiting, trims) = (Arc::new(Mutex::new(waiting)), Arc::new(Mutex::new(BTreeMap::new())));
        let thread = |number| {
            let (needs, waiting, trims) = (needs.clone(), Arc::clone(&waiting), Arc::clone(&trims));
            let thread = std::thread::Builder::new().name(format!("rebuild-{number}"));
            thread.spawn(move || serve(&needs, &waiting, &trims)).expect("a thread can be started")
        };
        Self { jobs: Some(jobs), threads: (0..THREADS).map(thread).collect(), trims }
    }

    pub(super) fn rebuild(&self, job: Job) {
        self.send(Some(Box::new(job)));
    }

    fn send(&self, job: Option<Box<Job>>) {
        // The threads live as long as this does.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }

    /// Has all below an offset deleted some time.
    pub(super) fn trim(&self, partition: TopicPartition, before: Offset) {
        if lock(&self.trims).insert(partition, before).is_none() {
            self.send(None);
        }
    }
}

impl Drop for Rebuilder {
    /// Waits for the threads: none may use the store while the process ends.
    fn drop(&mut self) {
        lock(&self.trims).clear();
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(needs: &Needs, waiting: &Mutex<Receiver<Option<Box<Job>>>>, trims: &Trims) {
    let mut reader = None;
    loop {
        let Ok(job) = lock(waiting).recv() else { return };
        if reader.is_none() {
            reader = ChangelogReader::new(&needs.config).map_err(|error| tracing::error!(error = %error, "changelogs cannot be read")).ok();
        }
        match (job, &mut reader) {
            (Some(job), Some(reader)) => {
                let (id, cancelled, done) = (job.id, Arc::clone(&job.cancelled), job.done.clone());
                let state = run(needs, reader, *job);
                // Whoever does not wait any more has cancelled it.
                let _ = done.send(Rebuilt { id, cancelled, state });
            }
            (Some(job), None) => {
                let state = Err(Error::Exit("the changelogs cannot be read; see the log".to_owned()));
                let _ = job.done.send(Rebuilt { id: job.id, cancelled: job.cancelled, state });
            }
            (None, Some(reader)) => {
                let Some((partition, before)) = lock(trims).pop_first() else { continue };
                match reader.delete_before(&partition, before) {
                    Ok(()) => tracing::debug!(partition = %partition, before, "trimmed"),
                    Err(error) => {
                        tracing::warn!(partition = %partition, error = %error, "the topic grows; does this user have Delete on it?");
                    }
                }
            }
            (None, None) => {}
        }
    }
}

fn run(needs: &Needs, reader: &mut ChangelogReader, mut job: Job) -> Result<PartitionState, Error> {
    let _span = tracing::debug_span!("rebuild", partition = %job.partition).entered();
    fault::point("rebuild.begin");
    let began = Instant::now();
    let cancelled = Arc::clone(&job.cancelled);
    let stop = || cancelled.load(Ordering::Relaxed) || needs.stop.load(Ordering::Relaxed);
    let Some((mut low, mut end)) = ends(needs, reader, &job.changelog, &stop) else { return Ok(PartitionState::new(job.rules)) };
    if low == end {
        // Nothing is logged yet.
        return Ok(job.state);
    }
    let kept = job.state.changelog.end.filter(|log_end| (low..=end).contains(log_end));
    let mut cuts: Vec<Cut> = Vec::new();
    let mut from = match (kept, job.state.offsets.is_empty(), job.state.changelog.end) {
        (Some(log_end), false, _) => log_end,
        // Of a time before there was a changelog, or with a later one.
        (None, false, log_end) if log_end.is_none_or(|log_end| log_end > end) => low,
        // The changelog was trimmed since: what lies between is lost to the checkpoint.
        _ => {
            job.state = PartitionState::new(job.rules);
            low
        }
    };
    loop {
        let mut follow = Follow { needs, job: &mut job, low: from, end, cuts: &cuts, reported: Instant::now(), cut: None, gap: false };
        let Some(applier) = follow.read(reader, from, &stop)? else {
            tracing::info!(partition = %job.partition, "the changelog was trimmed while it was read; reading what it has now");
            let Some(now) = ends(needs, reader, &job.changelog, &stop) else { return Ok(PartitionState::new(job.rules)) };
            (low, end) = now;
            (from, job.state) = (low, PartitionState::new(job.rules));
            continue;
        };
        let (cut, gap) = (follow.cut.take(), follow.gap);
        if gap {
            tracing::warn!(partition = %job.partition, "the changelog begins after the checkpoint; reading the input in between");
            job.state = PartitionState::load(&needs.store, &job.partition, &job.settings, job.rules)?;
            job.state.changelog.epoch = applier.epoch;
            return Ok(job.state);
        }
        let Some(cut) = cut else {
            fault::point("rebuild.ended");
            add(&needs.stats.rebuilds, 1);
            add(&needs.stats.rebuilt_keys, applier.fingerprints);
            tracing::info!(partition = %job.partition, keys = applier.fingerprints, elapsed_ms = began.elapsed().as_millis(), "state rebuilt from the changelog");
            job.state.rebuilt(applier.offsets, end, applier.epoch);
            return Ok(job.state);
        };
        if cuts.len() == Cut::MAX {
            tracing::error!(partition = %job.partition, "the group was set back too often for the changelog to be followed; not using it");
            let mut state = PartitionState::new(job.rules);
            state.changelog.epoch = applier.epoch;
            return Ok(state);
        }
        tracing::info!(partition = %job.partition, topic = cut.topic, offset = cut.start, "the group was set back once; leaving out what was logged past that");
        cuts.push(cut);
        (from, job.state) = (low, PartitionState::new(job.rules));
    }
}

/// Where a changelog begins and ends, once no transaction is open in it any more; `None` if told to stop before.
fn ends(needs: &Needs, reader: &mut ChangelogReader, changelog: &TopicPartition, stop: &dyn Fn() -> bool) -> Option<(Offset, Offset)> {
    let (mut reported, mut connected) = (Instant::now(), Instant::now());
    loop {
        let found = reader.ends(changelog);
        if stop() {
            return None;
        }
        let is_time = reported.elapsed() > PROGRESS_INTERVAL;
        match found {
            Ok(Some(ends)) => return Some(ends),
            // The partition's former owner has left a transaction open.
            Ok(None) if is_time => tracing::warn!(
                changelog = %changelog,
                "the state waits for a transaction that is open in its changelog; if it does not end, look for one that hangs, with kafka-transactions.sh find-hanging"
            ),
            Err(error) if is_time => {
                tracing::warn!(changelog = %changelog, error = %error, "no answer from the brokers yet; asking again");
                // What librdkafka has once noted of a topic, such as too few partitions, it believes for up to fifteen minutes.
                if connected.elapsed() > CONNECT_PATIENCE
                    && let Ok(anew) = ChangelogReader::new(&needs.config)
                {
                    (*reader, connected) = (anew, Instant::now());
                }
            }
            Ok(None) | Err(_) => {}
        }
        if is_time {
            reported = Instant::now();
        }
        std::thread::sleep(PAUSE);
    }
}

/// One reading of a changelog.
struct Follow<'a> {
    needs: &'a Needs,
    job: &'a mut Job,
    low: Offset,
    end: Offset,
    cuts: &'a [Cut],
    reported: Instant,
    cut: Option<Cut>,
    gap: bool,
}

impl Follow<'_> {
    /// `None` if the changelog does not reach back to there any more.
    fn read(&mut self, reader: &ChangelogReader, from: Offset, stop: &dyn Fn() -> bool) -> Result<Option<Applier>, Error> {
        let (job, origin) = (&*self.job, self.job.origin);
        let epoch = job.state.changelog.epoch;
        let mut applier = Applier::new(job.state.offsets.clone(), origin, job.bounds.clone(), job.oldest_slice, epoch);
        let changelog = job.changelog.clone();
        let end = self.end;
        let is_read = from >= end || reader.read(&changelog, (from, end), stop, &mut |logged| self.take(&mut applier, &logged))?;
        Ok(is_read.then_some(applier))
    }

    fn take(&mut self, applier: &mut Applier, logged: &Logged<'_>) -> Result<bool, Error> {
        let record = match ChangelogRecord::decode(logged.value) {
            Ok(record) => record,
            Err(error) => {
                return Err(Error::Exit(format!(
                    "{} offset {}: {error}; run the version that wrote it, or delete the topic and set state.cold_start to say how to go on",
                    self.job.changelog, logged.offset
                )));
            }
        };
        if self.gap || self.cuts.iter().any(|cut| cut.voids(logged.offset, &record)) {
            applier.epoch = applier.epoch.max(record.epoch);
            return Ok(true);
        }
        if self.job.state.is_urgent() && !applier.continues(&record) {
            // What an exact store has on disk, it need not have in memory. This is a checkpoint like any other.
            self.job.state.offsets.clone_from(&applier.offsets);
            self.job.state.changelog.end = Some(logged.offset);
            self.job.state.changelog.epoch = applier.epoch;
            self.job.state.save(&self.needs.store, &self.needs.stats, &self.job.partition, &self.job.settings);
        }
        fault::point("rebuild.record");
        let step = applier
            .follow(&mut self.job.state.dedup, &record)
            .map_err(|fault| Error::Exit(format!("{} cannot be rebuilt from its changelog: {fault}", self.job.partition)))?;
        match step {
            Outcome::Taken => self.job.state.changelog.logged(self.job.state.dedup.clock(), logged.offset),
            Outcome::Passed => return Ok(true),
            Outcome::Foreign => {
                return Err(Error::Exit(format!(
                    "{} offset {}: another consumer group or key space writes to this changelog, for its group_id and space make the same topic name; give this group another kafka.group_id, or the space another name, and delete the topic if both wrote to it",
                    self.job.changelog, logged.offset
                )));
            }
            Outcome::Gap => {
                // Read on for who wrote last, and for nothing else.
                self.gap = true;
                return Ok(true);
            }
            Outcome::SetBack => {
                self.cut = applier.cut(logged.offset, &record);
                return Ok(self.cut.is_none());
            }
        }
        if self.reported.elapsed() > PROGRESS_INTERVAL {
            self.reported = Instant::now();
            let percent = (logged.offset - self.low) * 100 / (self.end - self.low).max(1);
            tracing::info!(partition = %self.job.partition, percent, keys = applier.fingerprints, "rebuilding the state from the changelog");
        }
        Ok(true)
    }
}
