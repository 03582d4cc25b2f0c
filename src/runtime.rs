//! Clocks, sleeping, threads, and channels, behind functions that a simulation controls.
//!
//! In a thread of a simulation, the functions of this module ask the simulation's scheduler. In all other threads, they call the standard
//! library.

use crate::record::Timestamp;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvError, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The scheduler of a simulation. It runs one thread at a time.
#[cfg(feature = "faults")]
pub trait Scheduler: Send + Sync {
    fn now(&self) -> Instant;
    /// The wall clock of the calling thread's process, in milliseconds since the Unix epoch.
    fn wall_clock(&self) -> Timestamp;
    /// Lets other threads run until virtual time has advanced by `time`.
    fn sleep(&self, time: Duration);
    /// Lets other threads run until `ready` returns true or the deadline has passed. Returns the last result of `ready`. Calls `ready`
    /// again after each notification of `signal`. Without a signal, calls `ready` again after each call of the process to a Kafka client.
    fn wait(&self, deadline: Option<Instant>, signal: Option<usize>, ready: &mut dyn FnMut() -> bool) -> bool;
    fn new_signal(&self) -> usize;
    fn notify(&self, signal: usize);
    /// Registers a thread that the calling thread is about to start. The new thread is part of the same simulated process.
    fn register(&self, name: &str) -> Box<dyn Registered>;
    /// Runs the action that the simulation plans for a fault point, if any. Returns true if the step at the point must fail.
    fn point(&self, name: &'static str) -> bool;
    fn defect(&self) -> Option<&'static str>;
}

#[cfg(feature = "faults")]
pub trait Registered: Send {
    /// Adds the new thread to the simulation and waits until the scheduler runs it. The new thread calls this method first.
    fn begin(&self);
    /// Removes the thread from the simulation. The thread calls this method last, even if it panics.
    fn end(&self);
}

#[cfg(feature = "faults")]
thread_local! {
    static SCHEDULER: std::cell::RefCell<Option<Arc<dyn Scheduler>>> = const { std::cell::RefCell::new(None) };
}

/// Adds the calling thread to a simulation. If `scheduler` is `None`, removes the thread from its simulation.
#[cfg(feature = "faults")]
pub fn install(scheduler: Option<Arc<dyn Scheduler>>) {
    SCHEDULER.set(scheduler);
}

#[cfg(feature = "faults")]
#[must_use]
pub fn scheduler() -> Option<Arc<dyn Scheduler>> {
    SCHEDULER.with_borrow(Clone::clone)
}

/// Replaces the scheduler in builds without the feature `faults`. `Never` has no values, so the compiler removes every branch for a
/// simulation.
#[cfg(not(feature = "faults"))]
mod none {
    use super::{Duration, Instant, Timestamp};

    pub(super) enum Never {}

    impl Never {
        pub(super) fn now(&self) -> Instant {
            match *self {}
        }

        pub(super) fn wall_clock(&self) -> Timestamp {
            match *self {}
        }

        pub(super) fn sleep(&self, _: Duration) {
            match *self {}
        }

        pub(super) fn wait(&self, _: Option<Instant>, _: Option<usize>, _: &mut dyn FnMut() -> bool) -> bool {
            match *self {}
        }

        pub(super) fn new_signal(&self) -> usize {
            match *self {}
        }

        pub(super) fn notify(&self, _: usize) {
            match *self {}
        }
    }

    pub(super) const fn scheduler() -> Option<Never> {
        let _ = Duration::ZERO;
        None
    }
}
#[cfg(not(feature = "faults"))]
use none::scheduler;

#[must_use]
pub fn now() -> Instant {
    scheduler().map_or_else(Instant::now, |scheduler| scheduler.now())
}

#[must_use]
pub fn since(earlier: Instant) -> Duration {
    now().saturating_duration_since(earlier)
}

/// Returns the milliseconds since an instant, as a number that JSON logs do not quote.
#[cfg(feature = "worker")]
pub(crate) fn millis_since(earlier: Instant) -> u64 {
    u64::try_from(since(earlier).as_millis()).unwrap_or(u64::MAX)
}

#[must_use]
pub fn wall_clock() -> Timestamp {
    scheduler().map_or_else(|| millis(SystemTime::now()), |scheduler| scheduler.wall_clock())
}

/// Converts a time to milliseconds since the Unix epoch. A time before the epoch becomes 0.
#[must_use]
pub fn millis(time: SystemTime) -> Timestamp {
    i64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

pub fn sleep(time: Duration) {
    match scheduler() {
        None => std::thread::sleep(time),
        Some(scheduler) => scheduler.sleep(time),
    }
}

/// Waits for the next message of a channel.
///
/// # Errors
/// Returns [`RecvError`] if all senders were dropped.
pub fn receive<T>(receiver: &Receiver<T>) -> Result<T, RecvError> {
    let Some(scheduler) = scheduler() else { return receiver.recv() };
    let mut message = Err(TryRecvError::Empty);
    scheduler.wait(None, None, &mut || {
        message = receiver.try_recv();
        !matches!(message, Err(TryRecvError::Empty))
    });
    message.map_err(|_| RecvError)
}

/// A condition variable that also notifies the scheduler of a simulation.
#[derive(Debug)]
pub struct Changed {
    condvar: Condvar,
    /// The scheduler's number of this variable. `None` outside a simulation.
    signal: Option<usize>,
}

impl Default for Changed {
    fn default() -> Self {
        Self { condvar: Condvar::new(), signal: scheduler().map(|scheduler| scheduler.new_signal()) }
    }
}

impl Changed {
    pub fn notify_all(&self) {
        self.condvar.notify_all();
        if let (Some(scheduler), Some(signal)) = (scheduler(), self.signal) {
            scheduler.notify(signal);
        }
    }
}

/// Calls `look` until it returns `Ok` and returns the value. Between two calls, waits until `changed` is notified. If the `Err` contains a
/// time, the wait ends at that time at the latest.
pub fn wait<S, T>(state: &Mutex<S>, changed: &Changed, mut look: impl FnMut(&mut S) -> Result<T, Option<Instant>>) -> T {
    let locked = || state.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(scheduler) = scheduler() {
        loop {
            let due = match look(&mut locked()) {
                Ok(answer) => return answer,
                Err(due) => due,
            };
            let mut answer = None;
            scheduler.wait(due, changed.signal, &mut || {
                answer = look(&mut locked()).ok();
                answer.is_some()
            });
            if let Some(answer) = answer {
                return answer;
            }
        }
    } else {
        let mut state = locked();
        loop {
            state = match look(&mut state) {
                Ok(answer) => return answer,
                Err(None) => changed.condvar.wait(state).unwrap_or_else(PoisonError::into_inner),
                Err(Some(due)) => {
                    let wait = due.saturating_duration_since(Instant::now());
                    changed.condvar.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// In a simulation, lets other threads run until `is_free` returns true. Must be called before a wait that the scheduler does not know
/// about, for example for a lock. Otherwise, the wait may never end, because another thread may hold the lock while it is suspended at a
/// fault point.
pub fn yield_until(mut is_free: impl FnMut() -> bool) {
    if let Some(scheduler) = scheduler()
        && !is_free()
    {
        scheduler.wait(None, None, &mut is_free);
    }
}

/// A thread that is about to be started.
pub struct Task {
    done: Done,
    #[cfg(feature = "faults")]
    registered: Option<Box<dyn Registered>>,
}

#[derive(Clone, Debug)]
pub struct Done(Arc<AtomicBool>);

impl Done {
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// In a simulation, lets other threads run until the task has ended. Call it before joining the thread, because the scheduler does not
    /// know about a join.
    pub fn wait(&self) {
        yield_until(|| self.is_done());
    }
}

impl Task {
    /// Registers a new thread with the simulation, if the calling thread is part of a simulation. Must be called before the thread is
    /// started.
    #[must_use]
    pub fn new(name: &str) -> Self {
        #[cfg(not(feature = "faults"))]
        let _ = name;
        Self {
            done: Done(Arc::default()),
            #[cfg(feature = "faults")]
            registered: scheduler().map(|scheduler| scheduler.register(name)),
        }
    }

    #[must_use]
    pub fn done(&self) -> Done {
        self.done.clone()
    }

    /// Runs the body of the thread. Afterwards, the task counts as done, even if the body panics.
    pub fn run<T>(self, body: impl FnOnce() -> T) -> T {
        struct End(Task);
        impl Drop for End {
            fn drop(&mut self) {
                self.0.done.0.store(true, Ordering::Release);
                #[cfg(feature = "faults")]
                self.0.registered.iter().for_each(|registered| registered.end());
            }
        }
        let end = End(self);
        #[cfg(feature = "faults")]
        end.0.registered.iter().for_each(|registered| registered.begin());
        let result = body();
        drop(end);
        result
    }
}
