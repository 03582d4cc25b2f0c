//! What a worker process is doing, and why it is not ready.
//!
//! Owns the list of states, and how long silence may last before it counts. Must never call a process ready that
//! reads nothing because its brokers are gone or a thread of it hangs.

use super::Identity;
use crate::config::Config;
use crate::stats::{InputState, RegistryReport, WorkerReport};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Without an answer of any broker for this long, a process is disconnected. Its producers ask every ten seconds.
const CONTACT_LIMIT: Duration = Duration::from_secs(30);

/// Transaction timeouts that a commit may wait for slow brokers: three calls may each be repeated for two.
const COMMIT_TIMEOUTS: u32 = 6;

/// A thread that began no round for this long, and for [`COMMIT_TIMEOUTS`], is hung: an ordinary round takes less than a
/// second.
const ROUND_LIMIT: Duration = Duration::from_secs(30);

/// The same for a thread that will not begin another. Nothing that a worker does between two rounds takes nearly so long:
/// reading or writing the largest states takes minutes.
const LIFE_LIMIT: Duration = Duration::from_secs(30 * 60);

/// What a worker process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It has not met the brokers and its group yet.
    Connecting,
    /// Some of its partitions wait for their state, or are warming up.
    Restoring,
    /// Records flow.
    Running,
    /// Some of its partitions wait for a schema, and the schema registry does not answer.
    AwaitingSchema,
    /// It was told to stop.
    Draining,
    /// Nothing can be committed: transactions are aborted one after the other.
    Blocked,
    /// No broker answers any more.
    Disconnected,
    /// A worker thread does not go on.
    Hung,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Connecting,
        Self::Restoring,
        Self::Running,
        Self::AwaitingSchema,
        Self::Draining,
        Self::Blocked,
        Self::Disconnected,
        Self::Hung,
    ];

    /// As a metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Restoring => "restoring",
            Self::Running => "running",
            Self::AwaitingSchema => "awaiting_schema",
            Self::Draining => "draining",
            Self::Blocked => "blocked",
            Self::Disconnected => "disconnected",
            Self::Hung => "hung",
        }
    }
}

/// What the process is doing, and why it is not ready. `contact` is the time since a broker's last answer, `rounds` the
/// time since each worker thread's last round.
pub(super) fn look(
    config: &Config,
    identity: &Identity<'_>,
    reports: &BTreeMap<usize, WorkerReport>,
    contact: Option<Duration>,
    rounds: &[Option<Duration>],
    registry: Option<&RegistryReport>,
) -> (State, Option<String>) {
    let inputs = || reports.values().flat_map(|report| &report.inputs);
    let workers = config.worker.workers;
    let joined = reports.values().filter(|report| report.joined).count();
    let are = |state: InputState| inputs().filter(|input| input.state == state).count();
    let restoring = are(InputState::Rebuilding) + are(InputState::WarmingUp);
    let (state, reason) = if identity.draining {
        (State::Draining, "it was told to stop, and commits what it has read".to_owned())
    } else if identity.instance.is_none() {
        (State::Connecting, "it has not reached the brokers yet".to_owned())
    } else if let Some(age) = contact.filter(|&age| age > CONTACT_LIMIT) {
        (
            State::Disconnected,
            format!("no broker has answered a request for {} s; look at the brokers, the network to them, and the log", age.as_secs()),
        )
    } else if let Some((worker, age)) = hung(config, rounds, ROUND_LIMIT) {
        (State::Hung, format!("worker {worker} has not gone on for {} s; its partitions are not read", age.as_secs()))
    } else if joined < usize::from(workers) {
        let wait = "a worker joins once the group's coordinator answers and, after a kill, the old session has ended (session.timeout.ms)";
        (State::Connecting, format!("{joined} of {workers} workers are members of the group; {wait}"))
    } else if let Some(reason) = reports.values().find_map(|report| report.blocked.clone()) {
        (State::Blocked, reason)
    } else if let (1.., Some(trouble)) = (are(InputState::AwaitingSchema), registry.and_then(|registry| registry.trouble.as_ref())) {
        (
            State::AwaitingSchema,
            format!("{} of {} partitions wait for a schema: {trouble}", are(InputState::AwaitingSchema), inputs().count()),
        )
    } else if restoring > 0 {
        (State::Restoring, format!("{restoring} of {} partitions are being restored", inputs().count()))
    } else {
        return (State::Running, None);
    };
    let login = identity.login_trouble.as_ref().map(|why| format!("; the token for the login cannot be renewed: {why}"));
    (state, Some(reason + &login.unwrap_or_default()))
}

/// Why the process should be killed and started again, as a sentence; `None` if it lives.
#[must_use]
pub fn dead(config: &Config, rounds: &[Option<Duration>]) -> Option<String> {
    hung(config, rounds, LIFE_LIMIT).map(|(worker, age)| format!("worker {worker} has not gone on for {} s", age.as_secs()))
}

/// The worker that has been hung for longest, if one has for longer than `limit` and what a commit may wait.
fn hung(config: &Config, rounds: &[Option<Duration>], limit: Duration) -> Option<(usize, Duration)> {
    let limit = limit + COMMIT_TIMEOUTS * config.worker.transaction_timeout;
    let ages = rounds.iter().enumerate().filter_map(|(worker, age)| Some((worker, (*age)?)));
    ages.max_by_key(|&(_, age)| age).filter(|&(_, age)| age > limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(7);

    fn config() -> Config {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("unseen.yaml");
        let text = "kafka: { bootstrap_servers: a }\nworker: { workers: 3, transaction_timeout: 7s }\n\
            topics: [{ input: in, output: out, key: { record: key }, window: { keys: 10 } }]";
        std::fs::write(&file, text).unwrap();
        Config::load(&file, &[]).unwrap()
    }

    /// What is said of a process whose second worker was silent for so long. The first was for a second, the third has not begun.
    fn of_silence(config: &Config, age: Duration) -> (State, Option<String>) {
        let identity = Identity { instance: Some("a"), time_ms: 0, started_ms: 0, draining: false, login_trouble: None };
        look(config, &identity, &BTreeMap::new(), Some(Duration::ZERO), &[Some(Duration::from_secs(1)), Some(age), None], None)
    }

    #[test]
    fn a_thread_is_hung_after_what_a_commit_may_wait_and_not_before() {
        let (config, limit) = (config(), Duration::from_secs(30) + 6 * TRANSACTION_TIMEOUT);
        assert_eq!(of_silence(&config, limit).0, State::Connecting);
        let (state, reason) = of_silence(&config, limit + Duration::from_millis(1));
        assert_eq!(state, State::Hung);
        assert_eq!(reason.as_deref(), Some("worker 1 has not gone on for 72 s; its partitions are not read"));
    }

    #[test]
    fn a_process_is_dead_half_an_hour_after_that_and_not_before() {
        let (config, limit) = (config(), Duration::from_secs(30 * 60) + 6 * TRANSACTION_TIMEOUT);
        assert_eq!(dead(&config, &[]), None);
        assert_eq!(dead(&config, &[None, Some(limit)]), None);
        let all = [Some(limit + Duration::from_secs(1)), None, Some(limit + Duration::from_secs(2)), Some(Duration::ZERO)];
        assert_eq!(dead(&config, &all).as_deref(), Some("worker 2 has not gone on for 1844 s"), "the one that is silent for longest");
    }
}
