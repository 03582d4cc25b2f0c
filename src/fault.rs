//! Fault points and defects, which tests use to make a worker fail.
//!
//! A fault point is a named place in the code where a test can kill or stop the process, or make a step fail. A defect is wrong behavior
//! that a simulation switches on. A simulation with a defect must fail, which proves that the checks of the simulation detect the defect.
//!
//! Only test builds have the feature `faults`. Without the feature, the functions of this module do nothing. With the feature, they never
//! act unless the environment variable `UNSEEN_FAULT` or a simulation requests an action.
//!
//! `UNSEEN_FAULT=commit.flushed:3:kill` kills the process when it passes the point `commit.flushed` for the third time. Commas separate
//! several faults. The actions are `kill` (SIGKILL), `abort`, `stop` (SIGSTOP, until SIGCONT), and `hang` (the thread waits forever). At a
//! [`step`], a test can also request `error`, which makes the step fail.
//!
//! To add a point, call [`point`] or [`step`] in the code and add the name to [`POINTS`]. A test then fails until the point is also in
//! `tests/simulation/plans/fault_points.rs`, which lists the points to kill a process at.

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

#[cfg(not(feature = "faults"))]
pub const fn point(_name: &'static str) {}

/// Marks a fault point. Runs the action that `UNSEEN_FAULT` or a simulation requests for the point, if any. Panics if the action is
/// `error`, because only a [`step`] can fail.
#[cfg(feature = "faults")]
pub fn point(name: &'static str) {
    assert!(!armed::pass(name), "UNSEEN_FAULT: {name} is not a step, so the action error is not possible");
}

/// # Errors
/// Never. Only builds with the feature `faults` have fault points.
#[cfg(not(feature = "faults"))]
pub const fn step(_name: &'static str) -> Result<(), String> {
    Ok(())
}

/// Marks a fault point like [`point`] does, but at a step that a test can also make fail.
///
/// # Errors
/// Returns an error message if the requested action is `error`. The caller must then behave as if the step had failed.
#[cfg(feature = "faults")]
pub fn step(name: &'static str) -> Result<(), String> {
    if armed::pass(name) { Err(format!("a test made {name} fail")) } else { Ok(()) }
}

#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn defect(_name: &'static str) -> bool {
    false
}

/// True if the simulation that runs the calling thread has switched this defect on. `tests/simulation/defects.rs` describes all defects.
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
        /// The number of the pass that runs the action. The first pass over the point is 1.
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

    /// Runs the actions that are requested for a point. Returns true if one of them is `error`. The step at the point must then fail.
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
