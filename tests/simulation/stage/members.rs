//! The processes of the group: how they are configured, started, killed, and stopped.

use super::{GROUP, STEP, Stage};
use crate::plan::Plan;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use unseen::broker::topics::{self, Resolved};
use unseen::checkpoint::{MemoryDisk, Store};
use unseen::config::Config;
use unseen::format::NoSchemas;
use unseen::runtime::Task;
use unseen::sim::{Ended, Process, SimBroker};
use unseen::stats::Stats;
use unseen::status::{self, Identity, Status};
use unseen::worker::{Rebuilder, Shared, Worker};

pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) disk: MemoryDisk,
    /// A copy of the disk from when the group started.
    pub(super) first_disk: MemoryDisk,
    /// The copy that the last `Fault::OldDisk` made.
    pub(super) old_disk: Option<MemoryDisk>,
    pub(super) running: Option<Life>,
    pub(super) clock_ahead: i64,
    pub(super) ended: String,
}

pub(super) struct Life {
    pub(super) process: Process<Result<(), String>>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) view: View,
}

/// The configuration and the counts of a process. The process replaces them whenever it restarts its workers because the topics that match
/// a pattern have changed.
pub(super) type View = Arc<Mutex<(Arc<Config>, Arc<Stats>)>>;

impl Life {
    /// Returns why the process is not ready, or which partition has a lag. Returns `None` if the process is ready and no partition has a
    /// lag.
    pub(super) fn trouble(&self) -> Option<String> {
        let identity = Identity { instance: Some("simulated"), time_ms: 0, started_ms: 0, draining: false, login_trouble: None };
        let process =
            status::Process { resident_bytes: None, cpu_seconds: None, state_disk_available_bytes: None, state_disk_size_bytes: None };
        let (config, counts) = self.view.lock().expect("no panic").clone();
        let status = Status::new(&config, &counts, &identity, None, process, Vec::new());
        let lag = status.partitions.iter().find(|partition| partition.lag.is_some_and(|lag| lag > 0));
        status.reason.or_else(|| lag.map(|of| format!("{}[{}] has a lag of {:?}", of.topic, of.partition, of.lag)))
    }
}

fn load(text: &str, overrides: &[String]) -> Arc<Config> {
    let pair = |setting: &String| setting.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let overrides: Vec<_> = overrides.iter().filter_map(pair).collect();
    let dir = tempfile::tempdir().expect("a directory for a configuration");
    let file = dir.path().join("unseen.toml");
    fs::write(&file, text).expect("a configuration file");
    Arc::new(Config::load(&file, &overrides).unwrap_or_else(|errors| panic!("{errors}")))
}

impl Stage<'_> {
    pub(super) fn config(&self, name: &str, more: Vec<String>) -> Arc<Config> {
        let Plan { options, max_poll_ms, commit_ms, checkpoint_ms, transaction_ms, transaction_records, session_ms, .. } = self.plan;
        let space = if self.plan.pattern { "news_{input}" } else { "news" };
        let lines = format!("{}space = \"{space}\"\n{}", options.key(), self.memory.lines());
        let lines = format!("{lines}{}", options.lines("dead", "duplicates"));
        let rule = options.rule(&self.memory, if self.plan.pattern { "_{input}" } else { "" });
        let rule = rule.map(|rule| format!("{rule}{}", options.lines("dead", "duplicates")));
        let entry = |input: &str, lines: &str| format!("[[topics]]\ninput = {input}\noutput = \"out\"\n{lines}\n");
        let topic = |input: &str| rule.iter().chain([&lines]).map(|lines| entry(input, lines)).collect::<String>();
        let other = if self.other { topic("\"other\"") } else { String::new() };
        let input = if self.plan.pattern { "{ pattern = \"in(-[0-9]+)?\" }" } else { "\"in\"" };
        let interval = if self.plan.pattern { "\"topic.metadata.refresh.interval.ms\" = \"1000\"\n" } else { "" };
        let text = format!(
            "[kafka]\nbootstrap_servers = \"simulated:1\"\ngroup_id = \"{GROUP}\"\n[kafka.properties]\n\"session.timeout.ms\" = \"{session_ms}\"\n\
             \"heartbeat.interval.ms\" = \"{}\"\n{}{interval}{}{other}",
            session_ms / 5,
            max_poll_ms.map(|ms| format!("\"max.poll.interval.ms\" = \"{ms}\"\n")).unwrap_or_default(),
            topic(input)
        );
        let mut overrides = options.overrides();
        overrides.extend([
            format!("worker.commit_interval={commit_ms}ms"),
            format!("worker.checkpoint_interval={checkpoint_ms}ms"),
            format!("worker.transaction_timeout={transaction_ms}ms"),
            format!("worker.max_transaction_records={transaction_records}"),
        ]);
        if options.has("instance_id") {
            overrides.push(format!("kafka.instance_id={GROUP}-{name}"));
        }
        overrides.extend(more);
        Arc::clone(self.configs.borrow_mut().entry((text, overrides)).or_insert_with_key(|(text, overrides)| load(text, overrides)))
    }

    pub(super) fn spawn(&self, member: &Member, name: &str, disk: &MemoryDisk) -> Life {
        let (config, stop) = (self.config(member.name, Vec::new()), Arc::new(AtomicBool::new(false)));
        let view = Arc::new(Mutex::new((Arc::clone(&config), Arc::new(Stats::new(&config)))));
        let (broker, disk) = (self.simulation.broker(), disk.clone());
        let (shown, told) = (Arc::clone(&view), Arc::clone(&stop));
        let process = self.simulation.start(name, move || main(&broker, &config, &disk, &shown, &told));
        process.set_clock_ahead(member.clock_ahead);
        Life { process, stop, view }
    }

    pub(super) fn start(&mut self, number: usize) {
        let member = &self.members[number];
        let life = self.spawn(member, member.name, &member.disk);
        self.members[number].running = Some(life);
    }

    pub(super) fn running(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&number| self.members[number].running.is_some()).collect()
    }

    pub(super) fn kill(&mut self, number: usize) {
        if let Some(life) = self.members[number].running.take() {
            life.process.kill();
            life.process.wait();
            self.end_of(&life);
        }
    }

    pub(super) fn terminate(&mut self, number: usize) {
        if let Some(life) = self.members[number].running.take() {
            self.end(&life);
        }
    }

    pub(super) fn end(&mut self, life: &Life) {
        life.stop.store(true, Ordering::Relaxed);
        life.process.resume();
        if !self.simulation.wait_for(STEP, Duration::from_secs(30), || life.process.has_ended()) {
            // A real process would exit after `worker.shutdown_timeout`.
            life.process.kill();
            life.process.wait();
        }
        self.end_of(life);
    }

    /// Returns how the process has ended. If the process was killed, increments `kills`. Panics if the process has panicked or has ended
    /// with an error that `check_reason` rejects.
    pub(super) fn end_of(&mut self, life: &Life) -> String {
        match life.process.take_outcome() {
            Some(Ended::Panicked(message)) => panic!("a process panicked: {message}"),
            Some(Ended::Killed) => self.kills += 1,
            Some(Ended::Returned(Err(error))) => {
                Self::check_reason(&error);
                return error;
            }
            Some(Ended::Returned(Ok(()))) | None => {}
        }
        "in good order, or killed".to_owned()
    }

    /// Panics if `error` must never end a process.
    pub(super) fn check_reason(error: &str) {
        let is_wrong = ["from its changelog: ", "arrived in the wrong librdkafka queue", "another consumer group or key space writes"];
        assert!(!is_wrong.iter().any(|wrong| error.contains(wrong)), "a process ended: {error}");
        // Any other error is allowed if it is temporary. After a permanent error, the group does not commit everything, and the plan fails.
    }

    /// Restarts processes that have ended, calls `tend_server`, and compares the output so far.
    pub(super) fn tend(&mut self) {
        for number in 0..self.members.len() {
            if self.members[number].running.as_ref().is_some_and(|life| life.process.has_ended()) {
                let life = self.members[number].running.take().expect("the process was running");
                self.members[number].ended = self.end_of(&life);
                self.start(number);
            }
        }
        self.tend_server();
        self.compare_so_far();
    }

    pub(super) fn wait_for(&mut self, limit: Duration, ready: impl Fn(&Self) -> bool) -> bool {
        let end = self.simulation.elapsed() + limit;
        loop {
            self.tend();
            if ready(self) {
                return true;
            }
            if self.simulation.elapsed() > end {
                return false;
            }
            self.simulation.sleep(STEP);
        }
    }

    pub(super) fn life(&self, number: usize) -> &Life {
        self.members[number].running.as_ref().expect("the process is running")
    }

    pub(super) fn stop_one(&mut self, number: usize, killed: bool) {
        if killed { self.kill(number) } else { self.terminate(number) }
    }

    pub(super) fn while_all_are_down(&mut self, act: impl FnOnce(&mut Self)) {
        let running = self.running();
        for &number in &running {
            self.terminate(number);
        }
        act(self);
        for number in running {
            self.start(number);
        }
    }
}

/// The main function of a process: like `unseen run`, but without HTTP and signals.
fn main(broker: &SimBroker, config: &Arc<Config>, disk: &MemoryDisk, view: &View, stop: &Arc<AtomicBool>) -> Result<(), String> {
    let mut resolved = None;
    loop {
        resolved = round(broker, config, resolved, disk, view, stop)?;
        if resolved.is_none() || stop.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

/// Runs the workers until they end. Returns the new topics if the topics that match a pattern have changed.
fn round(
    broker: &SimBroker,
    config: &Arc<Config>,
    resolved: Option<Resolved>,
    disk: &MemoryDisk,
    view: &View,
    stop: &Arc<AtomicBool>,
) -> Result<Option<Resolved>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let store = Arc::new(Store::open_in_memory(disk).map_err(|error| text(&error))?);
    let resolve = || topics::resolve(broker, config, &|| stop.load(Ordering::Relaxed));
    let resolved = resolved.map_or_else(resolve, Ok).map_err(|error| text(&error))?;
    let stats = Arc::new(Stats::new(&resolved.config));
    *view.lock().expect("no panic") = (Arc::clone(&resolved.config), Arc::clone(&stats));
    let instance = config.kafka.instance_id.clone().map_or_else(|| store.instance_id(), Ok).map_err(|error| text(&error))?;
    // `drain` ends this round, and `stop` ends the process. Without patterns, the process has only one round.
    let drain = if config.patterns.is_empty() { Arc::clone(stop) } else { Arc::default() };
    let shared = Shared {
        broker: broker.clone(),
        config: Arc::clone(&resolved.config),
        cluster: Arc::clone(&resolved.cluster),
        rebuilder: Arc::new(Rebuilder::start(broker, &resolved.config, &store, &stats, &drain)),
        store,
        stats: Arc::clone(&stats),
        cross_partition_keys: Arc::default(),
        schemas: Arc::new(NoSchemas),
        stop: Arc::clone(&drain),
        instance: instance.as_str().into(),
    };
    let work = |number: usize, shared: Shared<SimBroker>| match Worker::connect(shared, number).and_then(|worker| worker.run(number)) {
        Ok(()) | Err(unseen::worker::Error::Kafka(unseen::broker::Error::Stopped)) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    let threads: Vec<_> = (0..usize::from(config.worker.workers))
        .map(|number| {
            let (shared, drain, task) = (shared.clone(), Arc::clone(&drain), Task::new("worker"));
            let done = task.done();
            let process = std::thread::current().name().unwrap_or_default().to_owned();
            let thread = std::thread::Builder::new().name(process).spawn(move || {
                task.run(|| {
                    let ended = work(number, shared);
                    // As in `unseen run`, all workers drain when one of them ends.
                    drain.store(true, Ordering::Relaxed);
                    ended
                })
            });
            (thread.expect("a thread can be started"), done)
        })
        .collect();
    drop(shared);
    let watch = (!config.patterns.is_empty()).then(|| watch(broker, config, resolved, stats, stop, &drain));
    let ended = threads.into_iter().map(join).fold(Ok(()), Result::and);
    let changed = watch.and_then(join);
    ended.map(|()| changed)
}

type Thread<T> = (std::thread::JoinHandle<T>, unseen::runtime::Done);

fn join<T>((thread, done): Thread<T>) -> T {
    done.wait();
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Starts the thread that watches the topics. The thread ends the round if the topics to read have changed, or if the process must stop.
fn watch(
    broker: &SimBroker,
    config: &Arc<Config>,
    resolved: Resolved,
    stats: Arc<Stats>,
    stop: &Arc<AtomicBool>,
    drain: &Arc<AtomicBool>,
) -> Thread<Option<Resolved>> {
    let (broker, config, stop, drain, task) =
        (broker.clone(), Arc::clone(config), Arc::clone(stop), Arc::clone(drain), Task::new("topics"));
    let done = task.done();
    let process = std::thread::current().name().unwrap_or_default().to_owned();
    let thread = std::thread::Builder::new().name(process).spawn(move || {
        task.run(|| {
            let is_stopped = || stop.load(Ordering::Relaxed) || drain.load(Ordering::Relaxed);
            let changed = topics::watch(&broker, &config, &resolved, &stats, &is_stopped);
            drain.store(true, Ordering::Relaxed);
            changed
        })
    });
    (thread.expect("a thread can be started"), done)
}
