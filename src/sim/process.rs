//! Processes: groups of threads that are killed, stopped, and continued together. Each process has its own wall clock.

use super::Simulation;
use super::network::NodeId;
use super::scheduler::Killed;
use super::{Action, Micros, Signal, World, micros};
use crate::record::{Offset, Timestamp};
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) struct ProcessState {
    pub(super) name: String,
    pub(super) is_killed: bool,
    pub(super) is_stopped: bool,
    /// Actions of the clients' background threads, which run when the process continues.
    pub(super) deferred: Vec<Action>,
    pub(super) live: usize,
    /// The signal that changes when a thread of the process makes a client call or ends.
    pub(super) signal: Signal,
    pub(super) ended_signal: Signal,
    /// The time when the process can reach a broker again, by broker.
    pub(super) cut_off: BTreeMap<NodeId, Micros>,
    /// The lead of the process's wall clock over the brokers' clock, in milliseconds. Negative if the process's clock is behind.
    clock_ahead: i64,
    /// The number of remaining client calls, if a test has set a limit. The last call kills the process.
    kill_after: Option<u64>,
    arms: Vec<Arm>,
}

/// An effect that occurs when the process passes a fault point for the `at`th time.
struct Arm {
    point: &'static str,
    at: u32,
    passed: u32,
    effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Kill,
    Stop(Duration),
    /// Make the step that contains the fault point fail.
    Fail,
    /// Delay only the thread that passes the fault point.
    Stall(Duration),
    /// Elect other leaders for all partitions. For up to 800 ms, the high watermarks of the new leaders are too low by at most this number
    /// of offsets.
    Elect(Offset),
}

impl World {
    pub(super) fn add_process(&mut self, name: &str) -> usize {
        let (signal, ended_signal) = (self.new_signal(), self.new_signal());
        self.processes.push(ProcessState {
            name: name.to_owned(),
            is_killed: false,
            is_stopped: false,
            deferred: Vec::new(),
            live: 0,
            signal,
            ended_signal,
            cut_off: BTreeMap::new(),
            clock_ahead: 0,
            kill_after: None,
            arms: Vec::new(),
        });
        self.processes.len() - 1
    }

    pub(super) fn wall_clock(&self, process: usize) -> Timestamp {
        self.broker_clock().saturating_add(self.processes[process].clock_ahead)
    }

    /// Kills a process. Its clients vanish without notice to the brokers, and its threads unwind.
    pub(super) fn kill(&mut self, process: usize) {
        if self.processes[process].is_killed || self.processes[process].live == 0 {
            return;
        }
        self.trace("kill", process, 0);
        self.processes[process].is_killed = true;
        self.processes[process].is_stopped = false;
        self.processes[process].deferred.clear();
        self.clients.retain(|_, client| client.process() != process);
        self.dying.push(process);
        self.release(process);
    }

    pub(super) fn stop(&mut self, process: usize) {
        if !self.processes[process].is_killed {
            self.trace("stop", process, 0);
            self.processes[process].is_stopped = true;
        }
    }

    pub(super) fn resume(&mut self, process: usize) {
        if std::mem::take(&mut self.processes[process].is_stopped) {
            self.trace("continue", process, 0);
            for action in std::mem::take(&mut self.processes[process].deferred) {
                action(self);
            }
        }
    }

    pub(super) fn count_call(&mut self, thread: usize) {
        let process = self.threads[thread].process;
        if let Some(left) = &mut self.processes[process].kill_after {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.kill(process);
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Ended<T> {
    Returned(T),
    Killed,
    Panicked(String),
}

type Outcome<T> = Arc<Mutex<Option<Ended<T>>>>;

pub struct Process<T> {
    simulation: Simulation,
    id: usize,
    outcome: Outcome<T>,
}

impl<T> Clone for Process<T> {
    fn clone(&self) -> Self {
        Self { simulation: self.simulation.clone(), id: self.id, outcome: Arc::clone(&self.outcome) }
    }
}

impl<T: Send + 'static> Process<T> {
    pub(super) fn start(simulation: &Simulation, name: &str, main: impl FnOnce() -> T + Send + 'static) -> Self {
        let mut world = simulation.lock();
        let id = world.add_process(name);
        let thread = world.add_thread("main", id);
        world.trace("start", id, 0);
        drop(world);
        let outcome = Outcome::<T>::default();
        let (own, result) = (simulation.clone(), Arc::clone(&outcome));
        let handle = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                own.begin_thread(thread);
                main()
            }));
            let ended = ended.map_or_else(|payload| describe(payload.as_ref()), Ended::Returned);
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
            own.end_thread(thread);
            Simulation::uninstall();
        });
        simulation.keep(handle.expect("the system has no thread for a simulated process"));
        Self { simulation: simulation.clone(), id, outcome }
    }

    #[must_use]
    pub const fn id(&self) -> usize {
        self.id
    }

    /// Kills the process like `kill -9`. The files that it has written remain.
    pub fn kill(&self) {
        self.simulation.with(|world| world.kill(self.id));
    }

    /// Kills the process at its `calls`th client call from now.
    pub fn kill_after_calls(&self, calls: u64) {
        self.simulation.with(|world| world.processes[self.id].kill_after = Some(calls.max(1)));
    }

    /// Stops the process like `SIGSTOP`, while time continues.
    pub fn stop(&self) {
        self.simulation.with(|world| world.stop(self.id));
    }

    /// Cuts the process off from a broker. Messages in both directions arrive only after `time`, or not at all.
    pub fn cut_off(&self, node: usize, time: Duration) {
        self.simulation.with(|world| {
            world.trace("cut off", self.id, node);
            let until = world.now.saturating_add(micros(time));
            world.processes[self.id].cut_off.insert(node, until);
        });
    }

    pub fn resume(&self) {
        self.simulation.with(|world| world.resume(self.id));
    }

    /// Makes `effect` occur when the process passes the fault point `point` for the `at`th time from now.
    pub fn arm(&self, point: &'static str, at: u32, effect: Effect) {
        self.simulation.with(|world| world.processes[self.id].arms.push(Arm { point, at, passed: 0, effect }));
    }

    pub fn set_clock_ahead(&self, millis: i64) {
        self.simulation.with(|world| world.processes[self.id].clock_ahead = millis);
    }

    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.simulation.lock().processes[self.id].live == 0
    }

    pub fn wait(&self) {
        let Some(world) = self.simulation.enter() else { return };
        let (id, signal) = (self.id, world.processes[self.id].ended_signal);
        drop(self.simulation.wait_until(world, None, signal, &mut |world| world.processes[id].live == 0));
    }

    #[must_use]
    pub fn take_outcome(&self) -> Option<Ended<T>> {
        self.has_ended().then(|| self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take())?
    }
}

fn describe<T>(payload: &(dyn Any + Send)) -> Ended<T> {
    if payload.is::<Killed>() {
        return Ended::Killed;
    }
    let text = payload.downcast_ref::<String>().cloned().or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()));
    Ended::Panicked(text.unwrap_or_default())
}

impl Simulation {
    /// Applies the effects that are armed at a fault point. Returns `true` if the step must fail.
    pub(super) fn pass(&self, name: &'static str) -> bool {
        let Some(mut world) = self.enter() else { return false };
        let process = world.current_process();
        let mut effects = Vec::new();
        for arm in world.processes[process].arms.iter_mut().filter(|arm| arm.point == name) {
            arm.passed += 1;
            if arm.passed == arm.at {
                effects.push(arm.effect);
            }
        }
        let (mut fails, mut stalled) = (false, None);
        for effect in effects {
            world.trace(name, process, 0);
            match effect {
                Effect::Kill => world.kill(process),
                Effect::Stop(time) => {
                    world.stop(process);
                    world.after(micros(time), move |world| world.resume(process));
                }
                Effect::Fail => fails = true,
                Effect::Stall(time) => stalled = Some(world.now.saturating_add(micros(time))),
                Effect::Elect(lag) => world.elect_all(lag),
            }
        }
        if stalled.is_some() {
            world = self.block(world, stalled, None);
        }
        drop(world);
        // A kill or a stop takes effect in `enter`.
        drop(self.enter());
        fails
    }

    pub(super) fn deadline(&self, timeout: Duration) -> Micros {
        self.now_micros().saturating_add(micros(timeout))
    }
}
