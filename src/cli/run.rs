//! `unseen run`: starts the workers, restarts them when the topics that match the patterns change, handles signals, and enforces the
//! shutdown timeout.

use super::{ConfigArgs, schemas, service};
use crate::broker::topics::{self, Resolved};
use crate::checkpoint::Store;
use crate::config::Config;
use crate::format::{NoSchemas, Schemas};
use crate::http::{self, CurrentView, Disk, Events, View};
use crate::kafka::KafkaBroker;
use crate::stats::{Stats, Totals, get};
use crate::worker::{Rebuilder, Shared, Worker};
use crate::{broker, runtime, worker};
use std::collections::BTreeSet;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::UnboundedSender;

/// Delay before the log explains why joining the group takes so long. A normal join is faster.
const JOIN_LOG_DELAY: Duration = Duration::from_secs(4);
const REPORT_INTERVAL: Duration = Duration::from_secs(30);
/// Time between two checks for a stop request while the worker has no topic to read.
const WAIT_STEP: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Examples:
  unseen run -c unseen.toml
  unseen run -c unseen.toml --set worker.workers=4";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let events = Events::default();
    service::run(&args.config, events.clone(), async |config| serve(config, events).await)
}

/// An event from a thread that `start` has started.
enum Event {
    Ended(anyhow::Result<()>),
    /// The topics that match the patterns have changed.
    Changed(Resolved),
}

/// The results of a round that the next round needs. A round is one run of the workers.
#[derive(Default)]
struct Earlier {
    /// The topics to read, if they are already known.
    resolved: Option<Resolved>,
    /// The error that ended the workers, and the topics that they read. If the same topics still match, the error ends the process.
    failure: Option<(anyhow::Error, BTreeSet<String>)>,
}

/// Runs the workers until the process must end. If the topics that match the patterns change, drains the workers and restarts them with the
/// new topics.
async fn serve(config: Arc<Config>, events: Events) -> anyhow::Result<()> {
    let draining = Arc::new(AtomicBool::new(false));
    let mut signals = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let registry = schemas::registry(&config)?.map(Arc::new);
    let view = CurrentView::new(View {
        config: Arc::clone(&config),
        stats: Arc::new(Stats::new(&config)),
        registry,
        events,
        stop: Arc::clone(&draining),
        instance: Arc::new(OnceLock::new()),
        disk: if config.http.listen.is_some() { Disk::watch(config.state.dir.clone()) } else { Disk::default() },
        started: SystemTime::now(),
    });
    if let Some(address) = config.http.listen {
        let listener = http::listen(address).await.map_err(anyhow::Error::msg)?;
        tracing::info!(address = %listener.local_addr()?, "listening for HTTP");
        tokio::spawn(http::serve(listener, view.clone()));
    }
    let mut earlier = Earlier::default();
    while let Some(next) = round(&config, &view, &draining, &mut signals, earlier).await? {
        earlier = next;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Runs one round. Returns the results that the next round needs, or `None` if the process must end.
async fn round(
    config: &Arc<Config>,
    view: &CurrentView,
    draining: &Arc<AtomicBool>,
    (terminate, interrupt): &mut (Signal, Signal),
    earlier: Earlier,
) -> anyhow::Result<Option<Earlier>> {
    let stop = Arc::new(AtomicBool::new(false));
    let (events, mut happened) = tokio::sync::mpsc::unbounded_channel();
    let threads = {
        let (config, stop, view) = (Arc::clone(config), Arc::clone(&stop), view.clone());
        move || start(&config, &stop, &view, earlier, &events)
    };
    // Start in another thread: the start may wait for a broker, but this thread must handle signals.
    let starting = std::thread::spawn(threads);
    let (mut running, mut failure, mut changed) = (usize::from(config.worker.workers), None, None);
    let mut deadline = None;
    let mut report = tokio::time::interval(REPORT_INTERVAL);
    report.tick().await;
    let (mut joining, mut started, mut is_joining) = (tokio::time::interval(Duration::from_secs(1)), None, true);
    while running > 0 {
        let timeout = deadline.map_or(Duration::MAX, |deadline: Instant| deadline.saturating_duration_since(Instant::now()));
        let is_draining = draining.load(Ordering::Relaxed);
        tokio::select! {
            _ = terminate.recv(), if !is_draining => drain(draining),
            _ = interrupt.recv(), if !is_draining => drain(draining),
            _ = report.tick() => { report_progress(&view.get().stats); continue }
            _ = joining.tick(), if is_joining => {
                let now = view.get();
                if now.instance.get().is_some() && !now.config.topics.is_empty() {
                    is_joining = waits_for_group(&now.config, &now.stats, *started.get_or_insert_with(Instant::now));
                }
                continue;
            }
            () = tokio::time::sleep(timeout) => {
                tracing::error!(limit_s = config.worker.shutdown_timeout.as_secs_f64(), "the workers did not stop within worker.shutdown_timeout; the next owner of each partition processes its uncommitted records again");
                process::exit(1);
            }
            event = happened.recv() => match event {
                Some(Event::Ended(Ok(()))) => running -= 1,
                Some(Event::Ended(Err(error))) => {
                    running -= 1;
                    if !config.patterns.is_empty() {
                        tracing::error!("a worker stopped with an error, so all workers of this process stop: {error:#}");
                    }
                    failure = failure.or(Some(error));
                }
                Some(Event::Changed(resolved)) => changed = Some(resolved),
                None => break,
            },
        }
        if failure.is_some() && config.patterns.is_empty() {
            draining.store(true, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
        // Only a shutdown or a failure has a deadline. If only the topics have changed, the workers may wait for slow brokers.
        if draining.load(Ordering::Relaxed) || failure.is_some() {
            deadline.get_or_insert(Instant::now() + config.worker.shutdown_timeout);
        }
    }
    let now = view.get();
    match starting.join() {
        Ok(Ok(())) => report_progress(&now.stats),
        Ok(Err(error)) if is_stopped(&error) => {}
        Ok(Err(error)) => return Err(failure.unwrap_or(error)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
    if draining.load(Ordering::Relaxed) || config.patterns.is_empty() {
        return failure.map_or(Ok(None), Err);
    }
    let inputs = || now.config.topics.iter().map(|topic| topic.input.clone()).collect();
    let failure = failure.map(|error| (error, inputs()));
    Ok((failure.is_some() || changed.is_some()).then_some(Earlier { resolved: changed.filter(|_| failure.is_none()), failure }))
}

fn drain(draining: &AtomicBool) {
    tracing::info!("shutting down");
    draining.store(true, Ordering::Relaxed);
}

/// True if the workers did not start because the process received a stop signal.
fn is_stopped(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(worker::Error::Kafka(broker::Error::Stopped)))
}

/// Returns true while workers wait to join the group. After `JOIN_LOG_DELAY`, logs the likely reason once and returns false.
fn waits_for_group(config: &Config, stats: &Stats, started: Instant) -> bool {
    let (joined, workers) = (stats.reports().values().filter(|report| report.joined).count(), config.worker.workers);
    if joined >= usize::from(workers) {
        return false;
    }
    if started.elapsed() < JOIN_LOG_DELAY {
        return true;
    }
    tracing::info!(
        joined,
        workers,
        "waiting to join the consumer group; if a member was killed, the group waits for its session to expire (session.timeout.ms)"
    );
    false
}

fn start(
    config: &Arc<Config>,
    stop: &Arc<AtomicBool>,
    view: &CurrentView,
    earlier: Earlier,
    events: &UnboundedSender<Event>,
) -> anyhow::Result<()> {
    let View { stats, registry, instance: known, .. } = view.get();
    let schemas = registry.map_or_else(|| Arc::new(NoSchemas) as Arc<dyn Schemas>, |registry| registry as _);
    let stopped = || stop.load(Ordering::Relaxed);
    let store = Arc::new(Store::open(&config.state.dir).map_err(worker::Error::from)?);
    let resolve = || topics::resolve(&KafkaBroker::new(Arc::clone(&stats)), config, &stopped).map_err(worker::Error::from);
    let resolved = may_start(earlier.resolved.map_or_else(resolve, Ok), earlier.failure)?;
    let stats = if config.patterns.is_empty() { stats } else { Arc::new(Stats::new(&resolved.config)) };
    view.replace(Arc::clone(&resolved.config), Arc::clone(&stats));
    topics::report(&stats, resolved.left_out.clone());
    if resolved.config.topics.is_empty() {
        stats.broker_contact.note();
    }
    for warning in config.shadows().chain(resolved.cluster.warnings.iter().cloned()) {
        tracing::warn!("{warning}");
    }
    let instance = config.kafka.instance_id.clone().map_or_else(|| store.instance_id(), Ok).map_err(worker::Error::from)?;
    let instance = known.get_or_init(|| instance);
    let broker = KafkaBroker::new(Arc::clone(&stats));
    let shared = Shared {
        broker: broker.clone(),
        config: Arc::clone(&resolved.config),
        cluster: Arc::clone(&resolved.cluster),
        rebuilder: Arc::new(Rebuilder::start(&broker, &resolved.config, &store, &stats, stop)),
        store,
        stats: Arc::clone(&stats),
        cross_partition_keys: Arc::default(),
        schemas,
        stop: Arc::clone(stop),
        instance: instance.as_str().into(),
    };
    let topics = resolved.config.topics.len();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), instance = %shared.instance, workers = config.worker.workers, topics, "started");
    match topics {
        0 if resolved.left_out.is_empty() => tracing::info!("no topic matches a pattern in `input` yet; waiting for one"),
        0 => tracing::warn!("all topics that match a pattern in `input` are left out; waiting until the worker can read one of them"),
        _ => {}
    }
    for number in 0..usize::from(config.worker.workers) {
        let (shared, events, stats) = (shared.clone(), events.clone(), Arc::clone(&stats));
        // The name distinguishes the thread from librdkafka's threads in a profiler.
        let thread = std::thread::Builder::new().name(format!("worker-{number}"));
        let spawned = thread.spawn(move || {
            let result = if topics == 0 {
                wait(&shared.stop);
                drop(shared);
                Ok(())
            } else {
                Worker::connect(shared, number).and_then(|worker| worker.run(number))
            };
            // A thread that has ended must not count as hung while the process waits for other threads or for the brokers.
            stats.rounds[number].forget();
            let _ = events.send(Event::Ended(match result {
                Ok(()) | Err(worker::Error::Kafka(broker::Error::Stopped)) => Ok(()),
                Err(error) => Err(error.into()),
            }));
        });
        spawned.expect("a thread can be started");
    }
    drop(shared);
    if !config.patterns.is_empty() {
        let (config, stop, events) = (Arc::clone(config), Arc::clone(stop), events.clone());
        // This thread may block on a broker, so no other thread waits for its end when the process stops.
        let thread = std::thread::Builder::new().name("topics".to_owned());
        let spawned = thread.spawn(move || {
            let Some(changed) = topics::watch(&broker, &config, &resolved, &stats, &|| stop.load(Ordering::Relaxed)) else { return };
            let added = missing_in(&resolved.inputs(), &changed.inputs());
            let removed = missing_in(&changed.inputs(), &resolved.inputs());
            tracing::info!(?added, ?removed, "the topics that match the patterns in `input` have changed; restarting the workers");
            let _ = events.send(Event::Changed(changed));
        });
        spawned.expect("a thread can be started");
    }
    Ok(())
}

/// Returns the topics to start with. If the workers have failed, returns their error unless other topics match now.
fn may_start(resolved: Result<Resolved, worker::Error>, failure: Option<(anyhow::Error, BTreeSet<String>)>) -> anyhow::Result<Resolved> {
    match (resolved, failure) {
        (Ok(resolved), Some((_, inputs))) if !resolved.inputs().into_iter().eq(&inputs) => {
            let before: BTreeSet<&str> = inputs.iter().map(String::as_str).collect();
            let (added, removed) = (missing_in(&before, &resolved.inputs()), missing_in(&resolved.inputs(), &before));
            tracing::warn!(?added, ?removed, "the topics that match the patterns in `input` have changed; starting the workers again");
            Ok(resolved)
        }
        // Keep the error that ended the workers, even if there is now another error, for example because of a stop request.
        (_, Some((error, _))) => Err(error),
        (resolved, None) => Ok(resolved?),
    }
}

/// Returns the topics in `others` that are not in `topics`.
fn missing_in(topics: &BTreeSet<&str>, others: &BTreeSet<&str>) -> Vec<String> {
    others.difference(topics).map(|topic| (*topic).to_owned()).collect()
}

/// Waits for a stop request. Runs instead of a worker if there is no topic to read.
fn wait(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        runtime::sleep(WAIT_STEP);
    }
}

fn report_progress(stats: &Stats) {
    let Totals {
        records,
        unseen,
        duplicates,
        late,
        invalid,
        retracted,
        tombstones,
        passed,
        warmed_up,
        corrected,
        evicted,
        cross_partition_keys,
    } = stats.totals();
    tracing::info!(
        routine = true,
        records,
        unseen,
        duplicates,
        late,
        invalid,
        retracted,
        tombstones,
        passed,
        corrected,
        evicted,
        warmed_up,
        commits = get(&stats.commits),
        aborts = get(&stats.aborts),
        checkpoints = get(&stats.checkpoints),
        checkpoint_failures = get(&stats.checkpoint_failures),
        cross_partition_keys,
        rebuilds = get(&stats.rebuilds),
        rebuilding = get(&stats.rebuilding),
        "progress"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Cluster;

    fn resolved(input: &str) -> Resolved {
        let text = "kafka: { bootstrap_servers: a }\ntopics: [{ input: { pattern: a.* }, key: { record: key }, window: { keys: 10 } }]";
        let (config, left_out) = Config::of_text(text).expand([input]).unwrap();
        Resolved { interval: config.topics_interval(), config: Arc::new(config), cluster: Arc::new(Cluster::default()), left_out }
    }

    #[test]
    fn the_error_that_ended_the_workers_is_kept_unless_other_topics_match() {
        let start = |found, failure: Option<&str>| {
            let failure = failure.map(|input| (anyhow::anyhow!("first"), BTreeSet::from([input.to_owned()])));
            may_start(found, failure).map(drop).map_err(|error| error.to_string())
        };
        let stopped = || Err(worker::Error::Kafka(broker::Error::Stopped));
        assert_eq!(start(Ok(resolved("a")), None), Ok(()));
        assert_eq!(start(Ok(resolved("ab")), Some("a")), Ok(()));
        assert_eq!(start(Ok(resolved("a")), Some("a")), Err("first".to_owned()));
        assert_eq!(start(stopped(), Some("a")), Err("first".to_owned()));
        assert_eq!(start(stopped(), None), Err("interrupted, because the process is stopping".to_owned()));
    }
}
