//! Rebuilds states from their changelogs while the workers process other partitions.
//!
//! Runs the threads that read changelogs and that trim changelogs and repartition topics. Never applies a change that the group has not
//! committed. Never blocks a worker, and never lets a partition that must wait block another partition.

use super::Error;
use super::partition::PartitionState;
use super::rebuild_job::{Context, Job, PAUSE, PAUSE_MAX, PROGRESS_INTERVAL, Rebuilt, Wait};
use super::rebuild_pass::Follow;
use crate::broker::{Broker, ChangelogReader, ReadEnd};
use crate::changelog::{Applier, Cut};
use crate::checkpoint::Store;
use crate::config::Config;
use crate::fault;
use crate::record::{Offset, TopicPartition, log_topic};
use crate::runtime::{self, Changed, Done};
use crate::stats::{Stats, add};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of threads per process that read changelogs. Each thread has its own reader and works on one state at a time.
const THREADS: usize = 2;
/// The time without an answer after which a reader is replaced.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A request to delete the records of a topic-partition below an offset.
struct Trim {
    /// The id of the topic when the offset was determined, if known. A recreated topic has a different id.
    topic_id: Option<String>,
    before: Offset,
}

enum Task {
    Rebuild(Box<Job>),
    /// Trims the first entry of [`Queue::trims`].
    Trim,
}

/// The task queue of the threads. If a job must wait, its thread queues the job with a later due time and runs other tasks.
#[derive(Default)]
struct Queue {
    /// Sorted by due time, then by order of arrival.
    tasks: BTreeMap<(Instant, u64), Task>,
    count: u64,
    trims: BTreeMap<TopicPartition, Trim>,
    is_closed: bool,
}

#[derive(Default)]
struct Tasks {
    queue: Mutex<Queue>,
    changed: Changed,
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, due: Instant, task: Task) {
        let mut queue = self.lock();
        let number = queue.count;
        queue.count += 1;
        if !queue.is_closed {
            queue.tasks.insert((due, number), task);
        }
        drop(queue);
        self.changed.notify_all();
    }

    /// Waits for the first due task. Returns `None` after the queue is closed.
    fn next(&self) -> Option<Task> {
        runtime::wait(&self.queue, &self.changed, |queue| match queue.tasks.first_key_value() {
            _ if queue.is_closed => Ok(None),
            Some((&(due, _), _)) if due > runtime::now() => Err(Some(due)),
            Some(_) => Ok(queue.tasks.pop_first().map(|(_, task)| task)),
            None => Err(None),
        })
    }

    fn close(&self) {
        *self.lock() = Queue { is_closed: true, ..Queue::default() };
        self.changed.notify_all();
    }
}

pub struct Rebuilder {
    tasks: Arc<Tasks>,
    threads: Vec<(JoinHandle<()>, Done)>,
}

impl Rebuilder {
    /// Starts the threads. They end when the `Rebuilder` is dropped.
    #[must_use]
    pub fn start<B: Broker>(broker: &B, config: &Arc<Config>, store: &Arc<Store>, stats: &Arc<Stats>, stop: &Arc<AtomicBool>) -> Self {
        // The threads must not hold `Shared`, because it owns the `Rebuilder`. A reference cycle would keep both alive forever.
        let (broker, config, store) = (broker.clone(), Arc::clone(config), Arc::clone(store));
        let context = Context { broker, config, store, stats: Arc::clone(stats), stop: Arc::clone(stop) };
        let tasks = Arc::new(Tasks::default());
        let thread = |number| {
            let (context, tasks) = (context.clone(), Arc::clone(&tasks));
            let name = format!("rebuild-{number}");
            let task = runtime::Task::new(&name);
            let (done, thread) = (task.done(), std::thread::Builder::new().name(name));
            (thread.spawn(move || task.run(|| serve(&context, &tasks))).expect("the rebuild thread starts"), done)
        };
        Self { threads: (0..THREADS).map(thread).collect(), tasks }
    }

    pub(super) fn rebuild(&self, job: Job) {
        self.tasks.add(runtime::now(), Task::Rebuild(Box::new(job)));
    }

    /// Makes a thread delete the records of a topic-partition below an offset, unless the topic was recreated with a different id.
    pub(super) fn trim(&self, partition: TopicPartition, topic_id: Option<String>, before: Offset) {
        if self.tasks.lock().trims.insert(partition, Trim { topic_id, before }).is_none() {
            self.tasks.add(runtime::now(), Task::Trim);
        }
    }
}

impl Drop for Rebuilder {
    /// Waits for the threads to end, because they must not use the store while the process exits.
    fn drop(&mut self) {
        self.tasks.close();
        for (thread, done) in self.threads.drain(..) {
            done.wait();
            let _ = thread.join();
        }
    }
}

struct Connection<B: Broker> {
    reader: B::ChangelogReader,
    since: Instant,
}

impl<B: Broker> Connection<B> {
    fn new(context: &Context<B>) -> Result<Self, Error> {
        let reader = context.broker.changelog_reader(&context.config)?;
        Ok(Self { reader, since: runtime::now() })
    }
}

fn serve<B: Broker>(context: &Context<B>, tasks: &Tasks) {
    let mut connection = None;
    while let Some(task) = tasks.next() {
        let connected = match &mut connection {
            Some(connection) => Ok(connection),
            None => match Connection::new(context) {
                Ok(new) => Ok(connection.insert(new)),
                Err(error) => Err(error),
            },
        };
        match (task, connected) {
            (Task::Rebuild(mut job), Ok(connection)) => {
                let state = match run(context, connection, &mut job) {
                    Ok(None) => {
                        tasks.add(runtime::now() + job.pause, Task::Rebuild(job));
                        continue;
                    }
                    Ok(Some(state)) => Ok(state),
                    Err(error) => Err(error),
                };
                // Sending fails only if the worker has ended and does not need the state anymore.
                let _ = job.done.send(Rebuilt { id: job.id, cancellation: job.cancellation, state });
            }
            (Task::Rebuild(job), Err(error)) => {
                let _ = job.done.send(Rebuilt { id: job.id, cancellation: job.cancellation, state: Err(error) });
            }
            (Task::Trim, connected) => {
                let Some((partition, trim)) = tasks.lock().trims.pop_first() else { continue };
                match connected {
                    Ok(connection) => trim_partition(&connection.reader, &partition, &trim),
                    // Without a client, the records stay until the partition is trimmed again.
                    Err(error) => {
                        tracing::warn!(partition = %partition, error = %error, "cannot delete records that are no longer needed, so the topic keeps growing; the worker will try again");
                    }
                }
            }
        }
    }
}

fn trim_partition(reader: &impl ChangelogReader, partition: &TopicPartition, trim: &Trim) {
    let before = trim.before;
    let is_recreated = |now: Option<String>| trim.topic_id.is_some() && now.is_some() && now != trim.topic_id;
    match reader.topic_id(&partition.topic).map(is_recreated) {
        Ok(true) => {
            tracing::warn!(partition = %partition, before, "the topic was recreated, so the offset `before` belongs to the old topic; not deleting the records below it");
        }
        Ok(false) => match reader.delete_before(partition, before) {
            Ok(()) => tracing::debug!(partition = %partition, before, "deleted records that are no longer needed"),
            Err(error) => {
                tracing::warn!(partition = %partition, error = %error, "cannot delete records that are no longer needed, so the topic keeps growing; the worker will try again. If the error is about authorization, give this user Delete on the topic");
            }
        },
        Err(error) => {
            tracing::warn!(partition = %partition, error = %error, "cannot delete records that are no longer needed, so the topic keeps growing; the worker will try again");
        }
    }
}

/// Rebuilds a job's state up to the group's committed offsets. Returns `None` if the job must be retried after its pause, because the end
/// of the changelog is unknown or was not reached, or because the checkpoint was lost. If the job is canceled or the process is stopping,
/// the returned state may be incomplete and is not used.
fn run<B: Broker>(context: &Context<B>, connection: &mut Connection<B>, job: &mut Job) -> Result<Option<PartitionState>, Error> {
    let _span = tracing::debug_span!("rebuild", partition = %job.partition).entered();
    if job.wait.is_none() {
        fault::point("rebuild.begin");
    }
    let cancellation = Arc::clone(&job.cancellation);
    let stop = || cancellation.is_cancelled() || context.stop.load(Ordering::Relaxed);
    let found = ends(context, connection, job);
    if stop() {
        return Ok(Some(PartitionState::new(job.rules)));
    }
    let Some((low, end)) = found else { return Ok(None) };
    let state = if low == end {
        Some(std::mem::replace(&mut job.state, PartitionState::new(job.rules)))
    } else {
        read_all(context, &connection.reader, job, (low, end), &stop)?
    };
    Ok(state.map(|mut state| {
        state.changelog.adopt(job.topic_id.as_deref());
        state.outrank(job.epoch);
        state
    }))
}

/// Returns the changelog offset to read from. Forgets the state's changelog offsets if they do not belong to this changelog. Empties the
/// state if this changelog cannot complete the state.
fn begin(job: &mut Job, low: Offset, end: Offset) -> Offset {
    let kept = job.state.changelog.end.filter(|log_end| (low..=end).contains(log_end));
    match (kept, job.state.offsets.is_empty(), job.state.changelog.end) {
        (Some(log_end), false, _) => log_end,
        // The checkpoint has no valid offset in this changelog: the offset is unknown, or it is past the end because the changelog was
        // recreated.
        (None, false, log_end) if log_end.is_none_or(|log_end| log_end > end) => {
            job.state.changelog.forget();
            // The whole changelog is read, so the highest epoch comes from its records, not from the checkpoint.
            job.state.changelog.epoch = 0;
            low
        }
        // There is no checkpoint, or the changelog was trimmed past the checkpoint's offset.
        _ => {
            job.state = PartitionState::new(job.rules);
            low
        }
    }
}

/// Reads a changelog from the job's checkpoint, or from the beginning, to its end. Returns `None` if the job must start over.
fn read_all<B: Broker>(
    context: &Context<B>,
    reader: &B::ChangelogReader,
    job: &mut Job,
    (low, end): (Offset, Offset),
    stop: &dyn Fn() -> bool,
) -> Result<Option<PartitionState>, Error> {
    let stored = job.state.offsets.clone();
    // If the changelog has a gap, a warm-up normally reads the records that the checkpoint lacks. If the input has already lost some of
    // these records, the worker tries to rebuild the state from the whole changelog, without the checkpoint. A state with an exact store is
    // excluded, because the rebuild would write the fingerprints to disk and overwrite the checkpoint.
    let lacks_records = job.lows.iter().any(|(topic, &low)| job.state.offset(topic).is_some_and(|offset| offset < low));
    let may_replace_checkpoint = lacks_records && !job.rules.exact;
    let mut cuts: Vec<Cut> = Vec::new();
    let mut from = begin(job, low, end);
    // Set after a gap: the input offsets that the group has reached, and the highest epoch.
    let mut gap: Option<(BTreeMap<String, Offset>, i64)> = None;
    loop {
        let mut follow = Follow {
            context,
            job,
            low: from,
            end,
            cuts: &cuts,
            reported: runtime::now(),
            cut: None,
            gap: false,
            past_bounds: None,
            has_hole: false,
            group_offsets: BTreeMap::new(),
            is_lost: false,
        };
        let (applier, ended) = follow.read(reader, from, stop)?;
        if ended != ReadEnd::Reached || follow.is_lost {
            job.start_over(context, reader, ended)?;
            return Ok(None);
        }
        let (cut, has_gap, group_offsets) = (follow.cut.take(), follow.gap, std::mem::take(&mut follow.group_offsets));
        let is_trimmed = low > 0 && !follow.has_hole;
        // If another member has taken over the partition since the job started, the job's committed offset is outdated, and the group may
        // have committed the records that the job skipped. A later rebuild must read the skipped records, so the state continues from the
        // first of them.
        let past_bounds = follow.past_bounds.as_ref().filter(|_| !fault::defect("outdated_offset_believed"));
        let (read_to, epoch) = past_bounds.map_or((end, applier.epoch), |skipped| (skipped.offset, skipped.epoch));
        if has_gap {
            let found = (group_offsets, applier.epoch);
            if may_replace_checkpoint {
                gap = Some(found);
                job.state = PartitionState::new(job.rules);
                from = low;
                continue;
            }
            return Ok(Some(before_gap(context, job, found)?));
        }
        let ends_early = || job.bounds.iter().any(|(topic, &bound)| applier.offsets.get(topic).is_none_or(|&applied| applied < bound));
        if cut.is_none() && applier.has_skipped_expired && ends_early() {
            // The pass skipped keys that had expired at the committed offset. But the changelog ends before the committed offset, so a
            // warm-up must follow. These keys may not have expired yet when the warm-up starts, so another pass must apply them.
            job.oldest_slice = None;
            job.state = if gap.is_none() { job.load(context)? } else { PartitionState::new(job.rules) };
            from = begin(job, low, end);
            continue;
        }
        let Some(cut) = cut else {
            fault::point("rebuild.ended");
            let mut state = std::mem::replace(&mut job.state, PartitionState::new(job.rules));
            if let Some(found) = gap {
                let has_inputs = stored.keys().all(|topic| applier.offsets.contains_key(topic));
                if !has_inputs || !has_whole_window(&state, is_trimmed) {
                    drop(state);
                    return Ok(Some(before_gap(context, job, found)?));
                }
            }
            add(&context.stats.rebuilds, 1);
            add(&context.stats.rebuilt_keys, applier.fingerprints);
            tracing::info!(partition = %job.partition, keys = applier.fingerprints, elapsed_ms = runtime::millis_since(job.began), "state rebuilt from the changelog");
            let mut offsets = applier.offsets.clone();
            if is_trimmed && cuts.is_empty() && past_bounds.is_none() && applier.is_complete() && !is_behind(&applier, &job.bounds) {
                // The changelog contains the whole window. Each owner's first record mentions all inputs of the state. An input without a
                // mention therefore had no record in the window, so its keys have expired, and nothing has to be read again. The epoch
                // shows that the last owner in the changelog also committed the offset of this input.
                let is_known = |topic: &str| applier.offsets.keys().any(|known| log_topic(known) == log_topic(topic));
                let is_idle = |topic: &str| !is_known(topic) && job.epochs.get(topic) == Some(&applier.epoch);
                offsets.extend(job.bounds.iter().filter(|(topic, _)| is_idle(topic)).map(|(topic, &bound)| (topic.clone(), bound)));
            }
            state.rebuilt(offsets, read_to, epoch);
            state.outrank(applier.epoch);
            return Ok(Some(state));
        };
        if cuts.len() == Cut::MAX {
            tracing::error!(partition = %job.partition, "the group's offsets were reset too many times to replay the changelog; restoring the state without the changelog, as configured in state.cold_start");
            let mut state = PartitionState::new(job.rules);
            state.outrank(applier.epoch);
            return Ok(Some(state));
        }
        tracing::info!(partition = %job.partition, input = log_topic(&cut.topic), input_offset = cut.start, "the group's offset for this input was reset to input_offset, or changes from that offset on were never committed; loading the changelog again without the outdated changes");
        cut.add_to(&mut cuts);
        // If no reset starts below the checkpoint's offset, the checkpoint contains only valid changes.
        let is_before = |state: &PartitionState| cuts.iter().all(|cut| state.offset(&cut.topic).is_some_and(|offset| offset <= cut.start));
        job.state = PartitionState::new(job.rules);
        from = low;
        if gap.is_none()
            && let Some(state) = Some(job.load(context)?).filter(is_before)
        {
            job.state = state;
            from = begin(job, low, end);
        }
    }
}

/// True if the changelog ends before the committed offset of an input that it mentions, for example because `state.changelog` was off.
fn is_behind(applier: &Applier, bounds: &BTreeMap<String, Offset>) -> bool {
    bounds.iter().any(|(topic, &bound)| applier.offsets.get(topic).is_some_and(|&applied| applied < bound))
}

/// Loads the checkpoint's state. The input records that this state lacks must be read again. `found` contains the input offsets that the
/// group has reached according to the changelog, and the highest epoch.
fn before_gap<B: Broker>(context: &Context<B>, job: &Job, found: (BTreeMap<String, Offset>, i64)) -> Result<PartitionState, Error> {
    tracing::warn!(partition = %job.partition, "the changelog does not continue from the checkpoint; reading the missing records from the input");
    let mut state = job.load(context)?;
    state.group_offsets = found.0;
    state.outrank(found.1);
    Ok(state)
}

/// True if a state that was rebuilt without a checkpoint has all keys of the window. `is_trimmed` is true if the changelog was trimmed and
/// has no holes. Workers trim a changelog only while it contains the whole window.
fn has_whole_window(state: &PartitionState, is_trimmed: bool) -> bool {
    is_trimmed && state.changelog.end.is_some() || state.dedup.oldest().is_some_and(|oldest| state.changelog.begins_before(oldest))
}

/// Returns the start offset and the end offset of a changelog. Returns `None` if the changelog has an open transaction, or if the brokers
/// do not answer.
fn ends<B: Broker>(context: &Context<B>, connection: &mut Connection<B>, job: &mut Job) -> Option<(Offset, Offset)> {
    let found = connection.reader.ends(&job.changelog);
    if let Ok(Some(ends)) = found {
        job.wait = None;
        return Some(ends);
    }
    let now = runtime::now();
    let wait = job.wait.get_or_insert(Wait { since: now, reported: now });
    job.pause = (runtime::since(wait.since) / 10).clamp(PAUSE, PAUSE_MAX);
    if runtime::since(wait.reported) <= PROGRESS_INTERVAL {
        return None;
    }
    wait.reported = now;
    match found {
        Ok(_) => tracing::warn!(
            changelog = %job.changelog,
            "the rebuild is waiting for an open transaction in the changelog; if the transaction does not end, find it with kafka-transactions.sh find-hanging and abort it"
        ),
        Err(error) => {
            tracing::warn!(changelog = %job.changelog, error = %error, "cannot get the offsets of the changelog yet, so the rebuild waits; retrying");
            // librdkafka caches metadata, such as an outdated partition count, for up to fifteen minutes. A new client has no cache yet.
            if runtime::since(wait.since) > CONNECT_TIMEOUT
                && runtime::since(connection.since) > CONNECT_TIMEOUT
                && let Ok(replacement) = Connection::new(context)
            {
                *connection = replacement;
            }
        }
    }
    None
}
