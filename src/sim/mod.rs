//! An in-memory Kafka cluster and a scheduler with virtual time, for tests of the worker without a broker.
//!
//! [`Simulation::run`] runs a test as the first simulated thread. The test starts [processes](Process), writes to the cluster, and injects
//! faults. A run depends only on its seed, so two runs with the same seed have the same [trace](Simulation::trace). A real clock or
//! unseeded randomness must never influence a run. The module is compiled only with the feature `faults`.

mod broker;
mod client;
mod cluster;
mod faults;
mod harness;
mod network;
mod process;
mod random;
mod scheduler;
#[cfg(test)]
mod tests;
mod trace;

pub use client::{SimConsumer, SimEnds, SimMembership, SimProducer, SimReader, SimRecord, SimTail};
pub use cluster::{Isolation, NewRecord, StoredRecord, TopicOptions};
pub use faults::{Api, Faults, RequestFault};
pub use process::{Effect, Ended, Process};
use random::Random;

use crate::record::TopicPartition;
use client::Client;
use cluster::Cluster;
use process::ProcessState;
use scheduler::Thread;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trace::{Event, Trace};

/// The timeout of a call to a broker, as in `kafka::client_config::CALL_TIMEOUT`.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Options {
    /// The number of brokers. 0 counts as 1.
    pub brokers: usize,
    /// The brokers' wall clock at the start, in milliseconds since the epoch.
    pub epoch_ms: i64,
    /// The probability that a client call lets another thread run, in parts per 10,000.
    pub switch: u32,
    /// The maximum virtual time that passes at the start of a client call, in microseconds. A call that waits takes longer.
    pub call_micros: u64,
    /// The minimum and maximum network latency of a request or an answer, in microseconds. Faults and slow brokers increase the latency.
    pub latency: (u64, u64),
    /// The virtual time after which a simulation fails.
    pub time_limit: Duration,
    /// The number of client calls after which a simulation fails, because a thread probably loops forever.
    pub step_limit: u64,
    /// The defect that is switched on, if any (`fault::defect`). A simulation with a defect is expected to fail, so [`Simulation::run`]
    /// does not print the failure.
    pub defect: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            brokers: 3,
            epoch_ms: 1_700_000_000_000,
            switch: 300,
            call_micros: 20,
            latency: (100, 1500),
            time_limit: Duration::from_secs(24 * 3600),
            step_limit: 20_000_000,
            defect: None,
        }
    }
}

/// A running simulation. Clones refer to the same simulation.
#[derive(Clone)]
pub struct Simulation(Arc<Shared>);

#[doc(hidden)]
pub struct Shared {
    base: Instant,
    defect: Option<&'static str>,
    /// Virtual microseconds since `base`.
    clock: AtomicU64,
    world: Mutex<World>,
    /// Notified when a thread of a killed process has ended.
    ended: Condvar,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl std::ops::Deref for Simulation {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Simulation {
    /// Runs a test as the simulation's first thread. When the test returns or panics, all processes that it started are killed.
    ///
    /// # Panics
    /// Panics if the test panics, if no thread can ever run again, or if the simulation exceeds its time limit or step limit. In all cases
    /// except the first, the panic message shows the threads and the last events.
    pub fn run<T>(seed: u64, options: Options, test: impl FnOnce(&Self) -> T) -> T {
        let simulation = Self(Arc::new(Shared {
            base: Instant::now(),
            defect: options.defect,
            clock: AtomicU64::new(0),
            world: Mutex::new(World::new(seed, options)),
            ended: Condvar::new(),
            handles: Mutex::default(),
        }));
        let mut world = simulation.lock();
        let process = world.add_process("test");
        let thread = world.add_thread("test", process);
        world.threads[thread].state = scheduler::State::Running;
        drop(world);
        simulation.install(thread);
        let result = catch_unwind(AssertUnwindSafe(|| test(&simulation)));
        simulation.shut_down();
        Self::uninstall();
        result.unwrap_or_else(|payload| {
            // If the simulation itself failed, its panic message already shows the events.
            let is_shown = simulation.lock().failed.is_some();
            let events = if is_shown {
                String::new()
            } else {
                format!("; the last events:\n{}", simulation.trace(if std::env::var_os("UNSEEN_SIM_LOG").is_some() { 20_000 } else { 60 }))
            };
            if simulation.defect.is_none() {
                eprintln!("simulation of seed {seed} failed{events}");
            }
            resume_unwind(payload)
        })
    }

    /// Kills all processes except the test's own and waits for their threads.
    fn shut_down(&self) {
        let mut world = self.lock();
        for process in 1..world.processes.len() {
            world.kill(process);
        }
        while world.processes.iter().skip(1).any(|process| process.live > 0) {
            world = self.ended.wait(world).unwrap_or_else(PoisonError::into_inner);
        }
        world.dying.clear();
        drop(world);
        for handle in self.handles.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = handle.join();
        }
    }

    fn keep(&self, handle: JoinHandle<()>) {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }
}

#[derive(Clone)]
pub struct SimBroker(Simulation);

/// Virtual microseconds since the start of the simulation.
type Micros = u64;
type ClientId = usize;
/// An index into `World::signals`. A signal is a counter. When it grows, the threads that wait for the signal check their condition again.
/// Every process has two signals, and every client and every `runtime::Changed` has one.
type Signal = usize;

type Action = Box<dyn FnOnce(&mut World) + Send>;

/// The whole state of a simulation, behind one lock. There is hardly any contention, because usually only the running thread takes the
/// lock.
struct World {
    seed: u64,
    now: Micros,
    random: Random,
    trace: Trace,
    options: Options,
    faults: Faults,
    /// Faults to inject, each into the next request of its kind.
    request_faults: Vec<(Api, RequestFault)>,

    threads: Vec<Thread>,
    live: Vec<usize>,
    running: usize,
    steps: u64,
    signals: Vec<u64>,
    failed: Option<String>,

    processes: Vec<ProcessState>,
    /// Killed processes whose threads have not all ended.
    dying: Vec<usize>,

    events: BTreeMap<(Micros, u64), Action>,
    event_number: u64,
    clients: BTreeMap<ClientId, Client>,
    cluster: Cluster,
    /// The earliest time to send the answer to the request that is being served.
    answer_after: Micros,
}

impl World {
    fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let cluster = Cluster::new(options.brokers, random.bits());
        Self {
            seed,
            now: 0,
            random,
            trace: Trace::default(),
            faults: Faults::none(),
            request_faults: Vec::new(),
            threads: Vec::new(),
            live: Vec::new(),
            running: 0,
            steps: 0,
            signals: Vec::new(),
            failed: None,
            processes: Vec::new(),
            dying: Vec::new(),
            events: BTreeMap::new(),
            event_number: 0,
            clients: BTreeMap::new(),
            cluster,
            answer_after: 0,
            options,
        }
    }

    fn trace(&mut self, what: &'static str, a: impl TryInto<i64>, b: impl TryInto<i64>) {
        let numbers = [a.try_into().unwrap_or(i64::MAX), b.try_into().unwrap_or(i64::MAX)];
        self.trace.push(Event { micros: self.now, thread: self.running, what, topic: None, numbers });
    }

    fn trace_on(&mut self, what: &'static str, of: &TopicPartition, number: impl TryInto<i64>) {
        let topic = self.cluster.topics.get(&of.topic).map(|topic| Arc::clone(&topic.name));
        let numbers = [i64::from(of.partition), number.try_into().unwrap_or(i64::MAX)];
        self.trace.push(Event { micros: self.now, thread: self.running, what, topic, numbers });
    }

    fn broker_clock(&self) -> i64 {
        self.options.epoch_ms.saturating_add(i64::try_from(self.now / 1000).unwrap_or(i64::MAX))
    }

    fn new_signal(&mut self) -> Signal {
        self.signals.push(0);
        self.signals.len() - 1
    }

    fn notify(&mut self, signal: Signal) {
        self.signals[signal] += 1;
    }

    fn signal_of(&self, client: ClientId) -> Option<Signal> {
        self.clients.get(&client).map(Client::signal)
    }

    fn after(&mut self, delay: Micros, action: impl FnOnce(&mut Self) + Send + 'static) {
        self.event_number += 1;
        self.events.insert((self.now.saturating_add(delay), self.event_number), Box::new(action));
    }

    fn next_event(&self) -> Option<Micros> {
        self.events.keys().next().map(|&(time, _)| time)
    }

    fn run_due(&mut self) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            let action = entry.remove();
            action(self);
        }
    }

    /// Runs an action as a background thread of a client would. If the client's process is stopped, the action waits until the process
    /// continues. If the client is gone, the action is dropped.
    fn inside(&mut self, client: ClientId, action: impl FnOnce(&mut Self) + Send + 'static) {
        let Some(process) = self.clients.get(&client).map(Client::process) else { return };
        if self.processes[process].is_stopped {
            self.processes[process].deferred.push(Box::new(move |world| world.inside(client, action)));
        } else {
            action(self);
        }
    }

    fn inside_after(&mut self, delay: Micros, client: ClientId, action: impl FnOnce(&mut Self) + Send + 'static) {
        self.after(delay, move |world| world.inside(client, action));
    }
}

/// Converts a duration. Clamps long durations, so that sums of times do not overflow.
fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

const fn millis(count: u64) -> Micros {
    count * 1000
}
