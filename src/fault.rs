//! Fault points: places in the code where a test can kill or stop the process, or make a step fail. Defects: wrong behavior that a
//! simulation can enable, to prove that its tests would detect it.
//!
//! Owns the list of fault points, and their actions. Without the feature `faults`, which only tests use, all functions here are
//! empty. Must never do anything unless the environment variable `UNSEEN_FAULT` or a simulation requests it.
//!
//! `UNSEEN_FAULT=commit.flushed:3:kill` kills the process when it passes this point for the third time. Several faults are separated
//! by commas. The actions are `kill` (SIGKILL), `abort`, `stop` (SIGSTOP, until SIGCONT), `hang` (the thread waits forever), and at a
//! [`step`] also `error`.
//!
//! To add a point, call [`point`] or [`step`] in the code, and add the name to [`POINTS`]. `tests/simulation/plans.rs` then requires
//! a plan that kills a process there.

/// All points, in the order in which a process can pass them.
pub const POINTS: &[&str] = &[
    "connect.begin",
    "connect.ready",
    "assign.begin",
    "assign.committed",
    "restore.begin",
    "restore.offsets",
    "quarantine.moved",
    "quarantine.opened",
    "restore.loaded",
    "restore.cold",
    "rebuild.begin",
    "rebuild.record",
    "rebuild.ended",
    "rebuild.taken",
    "restore.placed",
    "assign.restored",
    "assign.assigned",
    "warm_up.record",
    "warm_up.ended",
    "transaction.begin",
    "transaction.begun",
    "transaction.send",
    "transaction.sent",
    "commit.logged",
    "commit.begin",
    "commit.offsets_sent",
    "commit.flushed",
    "commit.committed",
    "commit.booked",
    "checkpoint.begin",
    "checkpoint.file",
    "checkpoint.write",
    "checkpoint.written",
    "checkpoint.clean",
    "checkpoint.trimmed",
    "abort.begin",
    "abort.aborted",
    "abort.rewound",
    "resolve.begin",
    "resolve.replaced",
    "resolve.committed",
    "resolve.resolved",
    "revoke.begin",
    "revoke.committed",
    "revoke.checkpointed",
    "revoke.forgotten",
    "revoke.unassigned",
    "lose.begin",
    "lose.forgotten",
    "lose.aborted",
    "drain.begin",
    "drain.committed",
    "drain.checkpointed",
    "drain.left",
    "outsider.written",
    "outsider.offsets_sent",
    "outsider.committed",
];

/// Passes a point.
#[cfg(not(feature = "faults"))]
pub const fn point(_name: &'static str) {}

/// Passes a point.
#[cfg(feature = "faults")]
pub fn point(name: &'static str) {
    assert!(!armed::pass(name), "UNSEEN_FAULT: {name} is not a step, so the action error is not possible");
}

/// Passes a point whose step a test can make fail.
///
/// # Errors
/// Returns an error message if the caller must behave as if the step had failed.
#[cfg(not(feature = "faults"))]
pub const fn step(_name: &'static str) -> Result<(), String> {
    Ok(())
}

/// Passes a point whose step a test can make fail.
///
/// # Errors
/// Returns an error message if the caller must behave as if the step had failed.
#[cfg(feature = "faults")]
pub fn step(name: &'static str) -> Result<(), String> {
    if armed::pass(name) { Err(format!("a test made {name} fail")) } else { Ok(()) }
}

/// True if the simulation of the calling thread has this defect. `tests/simulation/defects.rs` lists and describes all defects.
#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn defect(_name: &'static str) -> bool {
    false
}

/// True if the simulation of the calling thread has this defect. `tests/simulation/defects.rs` lists and describes all defects.
#[cfg(feature = "faults")]
#[must_use]
pub fn defect(name: &'static str) -> bool {
    crate::runtime::scheduler().is_some_and(|scheduler| scheduler.defect() == Some(name))
}

#[cfg(feature = "faults")]
mod armed {
    use rustix::process::{Signal, getpid, kill_process};
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ARMS: LazyLock<Vec<Arm>> = LazyLock::new(|| {
        let asked = std::env::var("UNSEEN_FAULT").unwrap_or_default();
        let arms = asked.split(',').filter(|arm| !arm.is_empty());
        arms.map(|arm| Arm::parse(arm).unwrap_or_else(|| panic!("UNSEEN_FAULT: expected POINT:COUNT:ACTION, got {arm:?}"))).collect()
    });

    struct Arm {
        point: String,
        /// The number of the pass at which the action happens, starting at 1.
        at: u64,
        action: Action,
        passed: AtomicU64,
    }

    #[derive(Clone, Copy, Debug)]
    enum Action {
        Kill,
        Abort,
        Stop,
        Hang,
        Error,
    }

    impl Arm {
        fn parse(text: &str) -> Option<Self> {
            let (point, rest) = text.split_once(':')?;
            let (at, action) = rest.split_once(':')?;
            let action = match action {
                "kill" => Action::Kill,
                "abort" => Action::Abort,
                "stop" => Action::Stop,
                "hang" => Action::Hang,
                "error" => Action::Error,
                _ => return None,
            };
            super::POINTS.contains(&point).then_some(())?;
            Some(Self { point: point.to_owned(), at: at.parse().ok()?, action, passed: AtomicU64::new(0) })
        }
    }

    /// Runs the actions for a point. Returns true if its step must fail.
    pub(super) fn pass(name: &'static str) -> bool {
        if let Some(scheduler) = crate::runtime::scheduler() {
            return scheduler.point(name);
        }
        let mut fails = false;
        for arm in ARMS.iter().filter(|arm| arm.point == name) {
            if arm.passed.fetch_add(1, Ordering::Relaxed) + 1 == arm.at {
                fails |= act(name, arm.action);
            }
        }
        fails
    }

    fn act(point: &str, action: Action) -> bool {
        tracing::warn!(point, ?action, "fault point reached");
        match action {
            Action::Kill => loop {
                send(Signal::KILL);
            },
            Action::Abort => std::process::abort(),
            Action::Stop => send(Signal::STOP),
            Action::Hang => loop {
                std::thread::park();
            },
            Action::Error => return true,
        }
        false
    }

    fn send(signal: Signal) {
        kill_process(getpid(), signal).expect("a process can send itself signals");
    }
}
