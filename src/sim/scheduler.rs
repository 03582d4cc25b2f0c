//! Cooperative scheduling. Every simulated thread is an operating-system thread, but only one of them runs at a time. The only exception is
//! a killed process, whose threads unwind at the same time.
//!
//! Every client call may switch threads. Most calls do not, to keep runs fast. A thread yields when it waits. When no thread can run,
//! virtual time jumps to the next event or deadline. We do not use the crate `shuttle`, because it runs only closures built on its own
//! synchronization primitives and cannot model virtual time, a killed process, or real `RocksDB` calls.

use super::Simulation;
use super::{Micros, Signal, World, micros};
use crate::record::Timestamp;
use crate::runtime;
use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The panic payload that unwinds the threads of a killed process.
pub(super) struct Killed;

pub(super) type Guard<'s> = MutexGuard<'s, World>;

/// The real time between two checks for a hung thread.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

pub(super) struct Thread {
    pub(super) name: String,
    pub(super) process: usize,
    pub(super) state: State,
    turn: Arc<Turn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    Running,
    /// The thread continues when the signal has changed or the deadline has passed.
    Waiting {
        deadline: Option<Micros>,
        signal: Option<(Signal, u64)>,
    },
    Ended,
}

/// A thread's permission to run. The thread is parked until another thread gives it the turn.
#[derive(Default)]
struct Turn {
    given: Mutex<bool>,
    changed: Condvar,
}

impl Turn {
    fn give(&self) {
        *self.given.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Waits for the turn. Calls `idle` after every real minute of waiting.
    fn take(&self, idle: &dyn Fn()) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        while !*given {
            let (next, timeout) = self.changed.wait_timeout(given, HANG_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
            given = next;
            if timeout.timed_out() && !*given {
                idle();
            }
        }
        *given = false;
    }
}

fn current() -> usize {
    CURRENT.get().expect("this thread is not part of a simulation")
}

fn unwind(world: Guard<'_>) -> ! {
    drop(world);
    std::panic::resume_unwind(Box::new(Killed));
}

impl World {
    pub(super) fn add_thread(&mut self, name: &str, process: usize) -> usize {
        let id = self.threads.len();
        self.threads.push(Thread { name: name.to_owned(), process, state: State::Ready, turn: Arc::default() });
        self.live.push(id);
        self.processes[process].live += 1;
        id
    }

    pub(super) fn current_process(&self) -> usize {
        self.threads[self.running].process
    }

    /// Wakes all threads of a killed process to unwind them. These threads do not wait for their turn.
    pub(super) fn release(&self, process: usize) {
        let threads = self.live.iter().map(|&id| &self.threads[id]);
        threads.filter(|thread| thread.process == process && thread.state != State::Running).for_each(|thread| thread.turn.give());
    }

    /// Notifies the other threads of the process, because they may wait for a result of `thread`.
    fn progress(&mut self, thread: usize) {
        let signal = self.processes[self.threads[thread].process].signal;
        self.notify(signal);
    }

    fn can_run(&self, thread: &Thread) -> bool {
        let process = &self.processes[thread.process];
        if process.is_stopped || process.is_killed {
            return false;
        }
        match thread.state {
            State::Ready => true,
            State::Running | State::Ended => false,
            State::Waiting { deadline, signal } => {
                deadline.is_some_and(|deadline| deadline <= self.now) || signal.is_some_and(|(signal, seen)| self.signals[signal] != seen)
            }
        }
    }

    /// Chooses a random thread that can run. If the simulation has failed, chooses the test's thread, which reports the failure.
    fn choose(&mut self) -> Option<usize> {
        if self.failed.is_some() {
            return Some(0);
        }
        let count = self.live.iter().filter(|&&id| self.can_run(&self.threads[id])).count();
        let chosen = if count > 1 { self.random.index(count) } else { 0 };
        self.live.iter().copied().filter(|&id| self.can_run(&self.threads[id])).nth(chosen)
    }

    /// Advances time to the next event or deadline. Returns `false` if no event or deadline is left, or if the time limit is exceeded.
    fn advance(&mut self) -> bool {
        let deadlines = self.live.iter().filter_map(|&id| match &self.threads[id] {
            Thread { process, state: State::Waiting { deadline, .. }, .. } if !self.processes[*process].is_stopped => *deadline,
            _ => None,
        });
        let Some(next) = deadlines.chain(self.next_event()).min() else { return false };
        self.now = self.now.max(next);
        self.now <= micros(self.options.time_limit)
    }

    pub(super) fn dump(&self) -> String {
        let mut text = format!("at {:.3} ms after {} calls\n", Duration::from_micros(self.now).as_secs_f64() * 1000.0, self.steps);
        for &id in &self.live {
            let Thread { name, process, state, .. } = &self.threads[id];
            let process = &self.processes[*process];
            let stopped = if process.is_stopped { ", stopped" } else { "" };
            let _ = writeln!(text, "  {}/{name}: {state:?}{stopped}", process.name);
        }
        text.push_str("last events:\n");
        text.push_str(&self.render_trace(40));
        text
    }

    pub(super) fn render_trace(&self, lines: usize) -> String {
        self.trace.render(lines, &|id| match self.threads.get(id) {
            Some(thread) => format!("{}/{}", self.processes[thread.process].name, thread.name),
            None => String::new(),
        })
    }

    /// Ends the simulation with an error, which the test's thread reports.
    fn fail(&mut self, message: &str) {
        if self.failed.is_none() {
            self.failed = Some(format!("{message} {}", self.dump()));
            self.threads[0].state = State::Ready;
            for process in 1..self.processes.len() {
                self.kill(process);
            }
        }
    }
}

impl Simulation {
    pub(super) fn lock(&self) -> Guard<'_> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a client call: virtual time advances a little, and another thread may run. Returns `None` if the calling thread is unwinding.
    /// The caller must then do nothing.
    pub(super) fn enter(&self) -> Option<Guard<'_>> {
        if std::thread::panicking() {
            return None;
        }
        let me = current();
        let mut world = self.lock();
        if world.processes[world.threads[me].process].is_killed {
            unwind(world);
        }
        world.steps += 1;
        if world.steps > world.options.step_limit {
            world.fail("too many calls: a thread seems to loop;");
        }
        let most = world.options.call_micros;
        world.now += 1 + world.random.below(most);
        world.progress(me);
        world.count_call(me);
        world = self.settle(world, me);
        let may_switch = world.options.switch;
        if world.processes[world.threads[me].process].is_stopped || world.random.chance(may_switch) {
            world.threads[me].state = State::Ready;
            world = self.hand_over(world, me);
        }
        self.publish(&world);
        Some(world)
    }

    pub(super) fn block<'s>(&'s self, mut world: Guard<'s>, deadline: Option<Micros>, signal: Option<Signal>) -> Guard<'s> {
        let me = current();
        let signal = signal.map(|signal| (signal, world.signals[signal]));
        world.threads[me].state = State::Waiting { deadline, signal };
        world = self.hand_over(world, me);
        self.publish(&world);
        world
    }

    /// Waits until `ready` returns `true`. Calls `ready` again when the signal changes. Returns `false` if the deadline passes first.
    pub(super) fn wait_until<'s>(
        &'s self,
        mut world: Guard<'s>,
        deadline: Option<Micros>,
        signal: Signal,
        ready: &mut dyn FnMut(&mut World) -> bool,
    ) -> (Guard<'s>, bool) {
        loop {
            if ready(&mut world) {
                return (world, true);
            }
            if deadline.is_some_and(|deadline| deadline <= world.now) {
                return (world, false);
            }
            world = self.block(world, deadline, Some(signal));
        }
    }

    /// Makes the time visible to [`Simulation::now_micros`], which does not lock the world.
    fn publish(&self, world: &World) {
        self.clock.store(world.now, std::sync::atomic::Ordering::Release);
    }

    pub(super) fn now_micros(&self) -> Micros {
        self.clock.load(std::sync::atomic::Ordering::Acquire)
    }

    fn instant(&self, micros: Micros) -> Instant {
        self.base + Duration::from_micros(micros)
    }

    fn micros_at(&self, instant: Instant) -> Micros {
        micros(instant.saturating_duration_since(self.base))
    }

    /// Runs all actions that are due and waits until the threads of killed processes have ended. Unwinds the calling thread if its process
    /// was killed. Panics in the test's thread if the simulation has failed.
    fn settle<'s>(&'s self, mut world: Guard<'s>, me: usize) -> Guard<'s> {
        world.run_due();
        while let Some(&process) = world.dying.first() {
            if world.threads[me].process == process && world.threads[me].state != State::Ended {
                unwind(world);
            }
            if world.processes[process].live > 0 {
                if world.threads[me].process == process {
                    // This thread has ended, but other threads of its process are still unwinding. The last of them passes the turn on.
                    return world;
                }
                world = self.ended.wait(world).unwrap_or_else(PoisonError::into_inner);
            } else {
                world.dying.remove(0);
            }
        }
        if me == 0 && world.failed.is_some() && !std::thread::panicking() {
            let message = world.failed.clone().unwrap_or_default();
            drop(world);
            panic!("{message}");
        }
        world
    }

    pub(super) fn settled<'s>(&'s self, world: Guard<'s>) -> Guard<'s> {
        let world = self.settle(world, current());
        self.publish(&world);
        world
    }

    /// Chooses the next thread. Returns `None` if the caller's process was killed and its other threads are still unwinding.
    fn pick<'s>(&'s self, mut world: Guard<'s>, me: usize) -> (Guard<'s>, Option<usize>) {
        loop {
            world = self.settle(world, me);
            if world.dying.first().is_some_and(|&process| process == world.threads[me].process) {
                return (world, None);
            }
            if let Some(next) = world.choose() {
                return (world, Some(next));
            }
            if !world.advance() {
                let over = world.now > micros(world.options.time_limit);
                world.fail(if over { "the simulation took too long;" } else { "deadlock: no thread can run, and nothing will happen;" });
            }
        }
    }

    fn start_turn(world: &mut World, next: usize) {
        world.threads[next].state = State::Running;
        world.running = next;
    }

    fn hand_over<'s>(&'s self, world: Guard<'s>, me: usize) -> Guard<'s> {
        let (mut world, next) = self.pick(world, me);
        let next = next.unwrap_or(me);
        Self::start_turn(&mut world, next);
        if next == me {
            return world;
        }
        let (mine, theirs) = (Arc::clone(&world.threads[me].turn), Arc::clone(&world.threads[next].turn));
        self.publish(&world);
        drop(world);
        theirs.give();
        let steps = Cell::new(None);
        mine.take(&|| {
            if me == 0 {
                self.check_progress(&steps);
            }
        });
        let world = self.lock();
        if world.processes[world.threads[me].process].is_killed {
            unwind(world);
        }
        self.settle(world, me)
    }

    /// Aborts the test process if no thread has made a client call since the last check. The running thread is then in an endless loop or
    /// waits for something that the scheduler cannot see, such as a lock that a parked thread holds. Unwinding such a thread is impossible,
    /// so the test could not end.
    fn check_progress(&self, steps: &Cell<Option<u64>>) {
        let world = self.lock();
        if steps.replace(Some(world.steps)) == Some(world.steps) {
            let thread = &world.threads[world.running];
            eprintln!("seed {}: thread {:?} hangs: it has not made a client call for a minute, {}", world.seed, thread.name, world.dump());
            std::process::abort();
        }
    }

    pub(super) fn install(&self, id: usize) {
        CURRENT.set(Some(id));
        runtime::install(Some(Arc::new(self.clone())));
    }

    pub(super) fn uninstall() {
        CURRENT.set(None);
        runtime::install(None);
    }

    pub(super) fn begin_thread(&self, id: usize) {
        self.install(id);
        let turn = Arc::clone(&self.lock().threads[id].turn);
        turn.take(&|| {});
        let world = self.lock();
        if world.processes[world.threads[id].process].is_killed {
            unwind(world);
        }
    }

    pub(super) fn end_thread(&self, id: usize) {
        let mut world = self.lock();
        if world.threads[id].state == State::Ended {
            return;
        }
        let was_running = world.threads[id].state == State::Running && world.running == id;
        world.threads[id].state = State::Ended;
        world.live.retain(|&live| live != id);
        let process = world.threads[id].process;
        world.processes[process].live -= 1;
        world.progress(id);
        let signal = world.processes[process].ended_signal;
        if world.processes[process].live == 0 {
            world.notify(signal);
        }
        let passes_turn = if world.processes[process].is_killed {
            self.ended.notify_all();
            // If a killed process had the turn, the last of its threads passes the turn on.
            world.processes[process].live == 0 && world.threads[world.running].process == process
        } else {
            was_running
        };
        if passes_turn {
            let (mut world, next) = self.pick(world, id);
            if let Some(next) = next {
                Self::start_turn(&mut world, next);
                self.publish(&world);
                let turn = Arc::clone(&world.threads[next].turn);
                drop(world);
                turn.give();
            }
        }
    }
}

impl runtime::Scheduler for Simulation {
    fn now(&self) -> Instant {
        self.instant(self.now_micros())
    }

    fn wall_clock(&self) -> Timestamp {
        let world = self.lock();
        world.wall_clock(world.threads[current()].process)
    }

    fn sleep(&self, time: Duration) {
        let Some(world) = self.enter() else { return };
        let deadline = world.now.saturating_add(micros(time));
        drop(self.block(world, Some(deadline), None));
    }

    fn wait(&self, deadline: Option<Instant>, signal: Option<Signal>, ready: &mut dyn FnMut() -> bool) -> bool {
        let deadline = deadline.map(|deadline| self.micros_at(deadline));
        let Some(mut world) = self.enter() else { return false };
        let me = current();
        let signal = signal.unwrap_or(world.processes[world.threads[me].process].signal);
        loop {
            drop(world);
            let is_ready = ready();
            world = self.lock();
            if is_ready || deadline.is_some_and(|deadline| deadline <= world.now) {
                return is_ready;
            }
            // This loop does not call `enter`, because `enter` notifies the other threads of the process. An unsuccessful check gives them
            // no reason to run.
            let seen = world.signals[signal];
            world.threads[me].state = State::Waiting { deadline, signal: Some((signal, seen)) };
            world = self.hand_over(world, me);
            self.publish(&world);
        }
    }

    fn new_signal(&self) -> Signal {
        self.lock().new_signal()
    }

    fn notify(&self, signal: Signal) {
        self.lock().notify(signal);
    }

    fn register(&self, name: &str) -> Box<dyn runtime::Registered> {
        let mut world = self.lock();
        let process = world.threads[current()].process;
        let id = world.add_thread(name, process);
        Box::new(NewThread { simulation: self.clone(), id })
    }

    fn point(&self, name: &'static str) -> bool {
        self.pass(name)
    }

    fn defect(&self) -> Option<&'static str> {
        self.defect
    }
}

/// A thread that is registered but not started yet.
struct NewThread {
    simulation: Simulation,
    id: usize,
}

impl runtime::Registered for NewThread {
    fn begin(&self) {
        self.simulation.begin_thread(self.id);
    }

    fn end(&self) {
        self.simulation.end_thread(self.id);
    }
}

impl Drop for NewThread {
    /// A thread that could not be started counts as ended.
    fn drop(&mut self) {
        self.simulation.end_thread(self.id);
    }
}
