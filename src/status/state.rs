//! The state of a worker process, and the reason if it is not ready.
//!
//! Defines the states and the timeouts. A process is never ready while it reads nothing because the brokers are unreachable or a thread
//! hangs.

use super::Identity;
use crate::config::{Config, LeftOut};
use crate::stats::{InputState, RegistryReport, WorkerReport};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum time without an answer from any broker before a process counts as disconnected. Even idle producers request metadata every ten
/// seconds, so a process with topics gets an answer in time if a broker is reachable.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time that a commit waits for slow brokers, in transaction timeouts: three calls, each retried for two timeouts.
const COMMIT_TIMEOUTS: u32 = 6;

/// Maximum time without a new loop round, in addition to [`COMMIT_TIMEOUTS`] transaction timeouts, before a thread counts as hung. A normal
/// round takes less than a second.
const HUNG_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time without a new loop round, in addition to [`COMMIT_TIMEOUTS`] transaction timeouts, before a process should be restarted.
/// The longest operations between two rounds, reading and writing the largest states, take minutes.
const DEAD_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The state of a worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The process has not reached the brokers or joined its group, or it cannot read any of its topics.
    Connecting,
    /// Some partitions wait for their state or are warming up.
    Restoring,
    /// The process reads and writes records, or no topic matches a pattern yet.
    Running,
    /// Some partitions wait for a schema, and a request for a missing schema has failed.
    AwaitingSchema,
    /// The process is shutting down.
    Draining,
    /// The process cannot commit or start, for example because all transactions are aborted.
    Blocked,
    /// No broker answers.
    Disconnected,
    /// A worker thread hangs.
    Hung,
}

impl State {
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

    /// Returns the metric label of the state.
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

/// Returns the state of the process and the reason if it is not ready. `left_out` has the topics that match a pattern and are not read.
/// `contact` is the time since the last answer from a broker. `rounds` has the time since each worker thread started its last loop round.
pub(super) fn determine(
    config: &Config,
    identity: &Identity<'_>,
    reports: &BTreeMap<usize, WorkerReport>,
    left_out: &[LeftOut],
    contact: Option<Duration>,
    rounds: &[Option<Duration>],
    registry: Option<&RegistryReport>,
) -> (State, Option<String>) {
    let inputs = || reports.values().flat_map(|report| &report.inputs);
    let workers = config.worker.workers;
    let joined = reports.values().filter(|report| report.joined).count();
    let count = |state: InputState| inputs().filter(|input| input.state == state).count();
    let restoring = count(InputState::Rebuilding) + count(InputState::WarmingUp);
    // Without a topic, there are no producers, and the process contacts the brokers only to list the topics.
    let contact_timeout = CONTACT_TIMEOUT + if config.topics.is_empty() { config.topics_interval() } else { Duration::ZERO };
    let (state, reason) = if identity.draining {
        (State::Draining, "the process is shutting down and commits the records that it has read".to_owned())
    } else if identity.instance.is_none() {
        let servers = &config.kafka.bootstrap_servers;
        let reason = format!(
            "the process is still starting: it opens state.dir, connects to {servers}, and checks the topics; the log shows errors"
        );
        (State::Connecting, reason)
    } else if let Some(age) = contact.filter(|&age| age > contact_timeout) {
        (State::Disconnected, format!("no broker has answered for {} s; check the brokers, the network, and the log", age.as_secs()))
    } else if config.topics.is_empty() {
        // Without a topic, there are no workers to wait for.
        match left_out.first() {
            Some(left_out) => (State::Connecting, format!("no topic is read: {left_out}")),
            None => return (State::Running, None),
        }
    } else if let Some((worker, age)) = hung(config, rounds, HUNG_TIMEOUT) {
        (State::Hung, format!("worker {worker} has not made progress for {} s; its partitions are not being read", age.as_secs()))
    } else if joined < usize::from(workers) {
        let wait = "workers join when the group coordinator answers; after a kill, the old session must expire first (session.timeout.ms)";
        (State::Connecting, format!("{joined} of {workers} workers have joined the group; {wait}"))
    } else if let Some(reason) = reports.values().find_map(|report| report.blocked.clone()) {
        (State::Blocked, reason)
    } else if let (waiting @ 1.., Some(error)) =
        (count(InputState::AwaitingSchema), registry.and_then(|registry| registry.trouble.as_ref()))
    {
        (State::AwaitingSchema, format!("{waiting} of {} partitions wait for a schema: {error}", inputs().count()))
    } else if restoring > 0 {
        (State::Restoring, format!("{restoring} of {} partitions are being restored", inputs().count()))
    } else {
        return (State::Running, None);
    };
    let login = identity.login_trouble.as_ref().map(|why| format!("; the token for the login cannot be renewed: {why}"));
    (state, Some(reason + &login.unwrap_or_default()))
}

/// Returns the reason to restart the process, as a message, or `None` if the process is alive.
#[must_use]
pub fn dead(config: &Config, rounds: &[Option<Duration>]) -> Option<String> {
    hung(config, rounds, DEAD_TIMEOUT).map(|(worker, age)| format!("worker {worker} has not made progress for {} s", age.as_secs()))
}

/// Returns the worker that has hung the longest, if longer than `limit` plus the longest wait of a commit.
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
        let text = "kafka: { bootstrap_servers: a }\nworker: { workers: 3, transaction_timeout: 7s }\n\
            topics: [{ input: in, output: out, key: { record: key }, window: { keys: 10 } }]";
        Config::of_text(text)
    }

    /// Returns the state of a process whose second worker started its last round `age` ago. The first started a round one second ago,
    /// and the third has not started yet.
    fn state_after(config: &Config, age: Duration) -> (State, Option<String>) {
        let identity = Identity { instance: Some("a"), time_ms: 0, started_ms: 0, draining: false, login_trouble: None };
        determine(config, &identity, &BTreeMap::new(), &[], Some(Duration::ZERO), &[Some(Duration::from_secs(1)), Some(age), None], None)
    }

    #[test]
    fn a_thread_is_hung_only_after_the_longest_commit() {
        let (config, limit) = (config(), Duration::from_secs(30) + 6 * TRANSACTION_TIMEOUT);
        assert_eq!(state_after(&config, limit).0, State::Connecting);
        let (state, reason) = state_after(&config, limit + Duration::from_millis(1));
        assert_eq!(state, State::Hung);
        assert_eq!(reason.as_deref(), Some("worker 1 has not made progress for 72 s; its partitions are not being read"));
    }

    #[test]
    fn a_process_that_reads_nothing_is_ready_only_while_it_waits_for_a_topic() {
        let config = config().only(|_| false);
        let identity = Identity { instance: Some("a"), time_ms: 0, started_ms: 0, draining: false, login_trouble: None };
        let state = |left_out: &[LeftOut], contact| determine(&config, &identity, &BTreeMap::new(), left_out, contact, &[None], None);
        let left_out = [LeftOut { topic: "in".to_owned(), reason: "no permission".to_owned() }];
        assert_eq!(state(&[], Some(Duration::from_secs(60))), (State::Running, None));
        assert_eq!(state(&[], Some(Duration::from_secs(61))).0, State::Disconnected);
        assert_eq!(state(&left_out, Some(Duration::from_secs(61))).0, State::Disconnected);
        let reason = "no topic is read: topic \"in\" matches a pattern but is not read: no permission".to_owned();
        assert_eq!(state(&left_out, Some(Duration::ZERO)), (State::Connecting, Some(reason)));
    }

    #[test]
    fn a_process_is_dead_after_half_an_hour_and_the_longest_commit() {
        let (config, limit) = (config(), Duration::from_secs(30 * 60) + 6 * TRANSACTION_TIMEOUT);
        assert_eq!(dead(&config, &[]), None);
        assert_eq!(dead(&config, &[None, Some(limit)]), None);
        let all = [Some(limit + Duration::from_secs(1)), None, Some(limit + Duration::from_secs(2)), Some(Duration::ZERO)];
        assert_eq!(
            dead(&config, &all).as_deref(),
            Some("worker 2 has not made progress for 1844 s"),
            "the worker that has hung the longest"
        );
    }
}
