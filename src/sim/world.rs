//! Everything that a simulation knows, behind one lock: time, threads, processes, clients, and the cluster.
//!
//! Only the thread whose turn it is takes the lock, so the lock is never contended.

use super::client::Client;
use super::cluster::Cluster;
use super::faults::Faults;
use super::process::ProcessState;
use super::random::Random;
use super::scheduler::Thread;
use super::trace::Trace;
use super::Options;
use std::collections::BTreeMap;
use std::time::Duration;

/// Virtual microseconds since the start of the simulation.
pub(super) type Micros = u64;
pub(super) type ClientId = usize;
/// A counter that grows whenever a waiting thread should look again. Each process and each client has one.
pub(super) type Signal = usize;

pub(super) type Action = Box<dyn FnOnce(&mut World) + Send>;

pub(super) struct World {
    pub(super) now: Micros,
    pub(super) random: Random,
    pub(super) trace: Trace,
    pub(super) options: Options,
    pub(super) faults: Faults,

    pub(super) threads: Vec<Thread>,
    /// The threads that have not ended, in the order of their start.
    pub(super) live: Vec<usize>,
    /// The thread whose turn it is.
    pub(super) running: usize,
    pub(super) steps: u64,
    pub(super) signals: Vec<u64>,
    /// Why the simulation cannot continue.
    pub(super) failed: Option<String>,

    pub(super) processes: Vec<ProcessState>,
    /// Killed processes whose threads have not all ended.
    pub(super) dying: Vec<usize>,

    events: BTreeMap<(Micros, u64), Action>,
    event_number: u64,
    pub(super) clients: BTreeMap<ClientId, Client>,
    pub(super) cluster: Cluster,
    /// The earliest time at which the answer to the request being served may leave the broker.
    pub(super) answer_after: Micros,
}

impl World {
    pub(super) fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let cluster = Cluster::new(options.brokers, random.bits());
        Self {
            now: 0,
            random,
            trace: Trace::default(),
            faults: Faults::none(),
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

    pub(super) fn trace(&mut self, what: &'static str, a: impl TryInto<i64>, b: impl TryInto<i64>) {
        let numbers = [a.try_into().unwrap_or(i64::MAX), b.try_into().unwrap_or(i64::MAX)];
        self.trace.push(self.now, self.running, what, numbers);
    }

    /// The brokers' wall clock, in milliseconds since the epoch.
    pub(super) fn broker_clock(&self) -> i64 {
        self.options.epoch_ms.saturating_add(i64::try_from(self.now / 1000).unwrap_or(i64::MAX))
    }

    pub(super) fn new_signal(&mut self) -> Signal {
        self.signals.push(0);
        self.signals.len() - 1
    }

    /// Makes the threads that wait for this signal look again.
    pub(super) fn notify(&mut self, signal: Signal) {
        self.signals[signal] += 1;
    }

    /// Does something later.
    pub(super) fn after(&mut self, delay: Micros, action: impl FnOnce(&mut Self) + Send + 'static) {
        self.event_number += 1;
        self.events.insert((self.now.saturating_add(delay), self.event_number), Box::new(action));
    }

    /// The time of the next event.
    pub(super) fn next_event(&self) -> Option<Micros> {
        self.events.keys().next().map(|&(time, _)| time)
    }

    /// Does everything that is due.
    pub(super) fn run_due(&mut self) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            let action = entry.remove();
            action(self);
        }
    }

    /// Runs an action inside a client, as one of librdkafka's background threads would: never if the client is gone, and only after
    /// the process continues if it is stopped.
    pub(super) fn inside(&mut self, client: ClientId, action: impl FnOnce(&mut Self) + Send + 'static) {
        let Some(process) = self.clients.get(&client).map(Client::process) else { return };
        if self.processes[process].is_stopped {
            self.processes[process].deferred.push(Box::new(move |world| world.inside(client, action)));
        } else {
            action(self);
        }
    }

    /// Runs an action inside a client later.
    pub(super) fn inside_after(&mut self, delay: Micros, client: ClientId, action: impl FnOnce(&mut Self) + Send + 'static) {
        self.after(delay, move |world| world.inside(client, action));
    }
}

/// A duration in virtual time.
pub(super) fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

/// Milliseconds in virtual time.
pub(super) const fn millis(count: u64) -> Micros {
    count * 1000
}
