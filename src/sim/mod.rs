//! A Kafka cluster in memory, and a scheduler with virtual time, for tests of the worker without a broker.
//!
//! [`Simulation::run`] runs a test as the first simulated thread. The test starts [processes](Process), writes to the cluster, and
//! breaks things. Everything that happens depends on the seed alone: the same seed gives the same [trace](Simulation::trace).
//! Compiled in with the feature `faults` only.

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
mod world;

pub use broker::SimBroker;
pub use client::{SimConsumer, SimEnds, SimMembership, SimProducer, SimReader, SimRecord, SimTail};
pub use cluster::{Isolation, NewRecord, StoredRecord, TopicOptions};
pub use faults::{Api, Faults};
pub use process::{Effect, Ended, Process};
pub use random::Random;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use world::World;

/// The time that a call to a broker may take (`kafka::client_config::CALL_TIMEOUT`).
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a simulation is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of brokers.
    pub brokers: usize,
    /// The brokers' wall clock at the start, in milliseconds since the epoch.
    pub epoch_ms: i64,
    /// How often a call through the seam gives the turn to another thread, in parts of 10,000.
    pub switch: u32,
    /// The longest virtual time that a call through the seam takes, in microseconds.
    pub call_micros: u64,
    /// The time that a request or an answer takes at least and at most, in microseconds.
    pub latency: (u64, u64),
    /// The virtual time after which a simulation fails.
    pub time_limit: Duration,
    /// The number of calls through the seam after which a simulation fails.
    pub step_limit: u64,
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
        }
    }
}

/// A running simulation. Clones are the same simulation.
#[derive(Clone)]
pub struct Simulation(Arc<Shared>);

/// What the clones of a [`Simulation`] share.
#[doc(hidden)]
pub struct Shared {
    base: Instant,
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
    /// Runs a test as the simulation's first thread. When it returns or panics, all processes are killed.
    ///
    /// # Panics
    /// When the test panics, no thread can run, or the simulation takes too long. The message shows the threads and the last events.
    pub fn run<T>(seed: u64, options: Options, test: impl FnOnce(&Self) -> T) -> T {
        let simulation = Self(Arc::new(Shared {
            base: Instant::now(),
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
            eprintln!("simulation of seed {seed} failed; the last events:\n{}", simulation.trace(60));
            resume_unwind(payload)
        })
    }

    /// Kills all processes, and waits for their threads.
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
