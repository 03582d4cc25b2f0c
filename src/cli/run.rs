//! `unseen run`: starts the workers, handles signals, and enforces the shutdown timeout.

use super::{ConfigArgs, schemas, service};
use crate::broker::Broker as _;
use crate::checkpoint::Store;
use crate::config::Config;
use crate::format::{NoSchemas, Schemas};
use crate::http::{self, Disk, Events, View};
use crate::kafka::KafkaBroker;
use crate::stats::{Stats, Totals, get};
use crate::worker::{Rebuilder, Shared, Worker};
use crate::{broker, worker};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{SignalKind, signal};

/// Delay before the log explains why joining the group takes so long. A normal join is faster.
const JOIN_LOG_DELAY: Duration = Duration::from_secs(4);
/// Interval of the progress log line.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

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

async fn serve(config: Arc<Config>, events: Events) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (ended, mut endings) = tokio::sync::mpsc::unbounded_channel();
    let registry = schemas::registry(&config)?.map(Arc::new);
    let stats = Arc::new(Stats::new(&config));
    let instance = Arc::new(OnceLock::new());
    if let Some(address) = config.http.listen {
        let listener = http::listen(address).await.map_err(anyhow::Error::msg)?;
        tracing::info!(address = %listener.local_addr()?, "listening for http");
        let (config, stats, stop, instance) = (Arc::clone(&config), Arc::clone(&stats), Arc::clone(&stop), Arc::clone(&instance));
        let registry = registry.clone();
        let disk = Disk::watch(config.state.dir.clone());
        tokio::spawn(http::serve(listener, View { config, stats, registry, events, stop, instance, disk, started: SystemTime::now() }));
    }
    let threads = {
        let (config, stop, stats) = (Arc::clone(&config), Arc::clone(&stop), Arc::clone(&stats));
        let instance = Arc::clone(&instance);
        let schemas = registry.map_or_else(|| Arc::new(NoSchemas) as Arc<dyn Schemas>, |registry| registry as _);
        move || start(&config, stop, stats, &instance, schemas, &ended)
    };
    // Waiting for a broker blocks the thread. This thread must still handle signals.
    let starting = std::thread::spawn(threads);
    let (mut running, mut failure) = (usize::from(config.worker.workers), None);
    let mut deadline = None;
    let mut report = tokio::time::interval(REPORT_INTERVAL);
    report.tick().await;
    let (mut joining, mut started, mut is_joining) = (tokio::time::interval(Duration::from_secs(1)), None, true);
    while running > 0 {
        let timeout = deadline.map_or(Duration::MAX, |deadline: Instant| deadline.saturating_duration_since(Instant::now()));
        tokio::select! {
            _ = terminate.recv(), if deadline.is_none() => tracing::info!("shutting down"),
            _ = interrupt.recv(), if deadline.is_none() => tracing::info!("shutting down"),
            _ = report.tick() => { report_progress(&stats); continue }
            _ = joining.tick(), if is_joining => {
                if instance.get().is_some() {
                    is_joining = waits_for_group(&config, &stats, *started.get_or_insert_with(Instant::now));
                }
                continue;
            }
            () = tokio::time::sleep(timeout) => {
                tracing::error!(limit_s = config.worker.shutdown_timeout.as_secs_f64(), "shutdown timed out; the next owner processes uncommitted records again");
                process::exit(1);
            }
            ending = endings.recv() => match ending {
                Some(Ok(())) => running -= 1,
                Some(Err(error)) => { running -= 1; failure = failure.or(Some(error)) }
                None => break,
            },
        }
        stop.store(true, Ordering::Relaxed);
        deadline.get_or_insert(Instant::now() + config.worker.shutdown_timeout);
    }
    match starting.join() {
        Ok(Ok(())) => report_progress(&stats),
        Ok(Err(worker::Error::Kafka(broker::Error::Stopped))) => {}
        Ok(Err(error)) => failure = failure.or_else(|| Some(error.into())),
        Err(panic) => std::panic::resume_unwind(panic),
    }
    failure.map_or(Ok(()), Err)
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

/// Waits for the brokers, opens the state, and starts the worker threads.
fn start(
    config: &Arc<Config>,
    stop: Arc<AtomicBool>,
    stats: Arc<Stats>,
    known: &OnceLock<String>,
    schemas: Arc<dyn Schemas>,
    ended: &tokio::sync::mpsc::UnboundedSender<anyhow::Result<()>>,
) -> Result<(), worker::Error> {
    let store = Arc::new(Store::open(&config.state.dir)?);
    let broker = KafkaBroker::new(Arc::clone(&stats));
    let cluster = broker.discover(config, &|| stop.load(Ordering::Relaxed))?;
    for warning in config.shadows().chain(cluster.warnings.iter().cloned()) {
        tracing::warn!("{warning}");
    }
    let instance = config.kafka.instance_id.clone().map_or_else(|| store.instance_id(), Ok)?;
    let instance = known.get_or_init(|| instance);
    let shared = Shared {
        broker: broker.clone(),
        config: Arc::clone(config),
        cluster: Arc::new(cluster),
        rebuilder: Arc::new(Rebuilder::start(&broker, config, &store, &stats, &stop)),
        store,
        stats,
        cross_partition_keys: Arc::default(),
        schemas,
        stop,
        instance: instance.as_str().into(),
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), instance = %shared.instance, workers = config.worker.workers, "started");
    for number in 0..usize::from(config.worker.workers) {
        let (shared, ended) = (shared.clone(), ended.clone());
        // The name distinguishes the thread from librdkafka's threads in a profiler.
        let thread = std::thread::Builder::new().name(format!("worker-{number}"));
        let spawned = thread.spawn(move || {
            let result = Worker::connect(shared, number).and_then(|worker| worker.run(number));
            let _ = ended.send(match result {
                Ok(()) | Err(worker::Error::Kafka(broker::Error::Stopped)) => Ok(()),
                Err(error) => Err(error.into()),
            });
        });
        spawned.expect("a thread can be started");
    }
    Ok(())
}

/// Logs the totals since the start.
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
