//! Rate limits for log lines: each distinct problem is logged immediately and then at most every ten seconds, with the number of suppressed
//! lines.
//!
//! Keeps the time of the last line about each problem. All clients of the process share these times, because they all see the same
//! problems. This module never suppresses a problem that has not been logged yet.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(10);

const PROBLEMS_MAX: usize = 256;

/// Calls `line` with the number of suppressed lines, unless this problem was logged within the last ten seconds.
pub(crate) fn report(problem: &str, line: impl FnOnce(Option<NonZeroU64>)) {
    static THROTTLE: LazyLock<Mutex<Throttle>> = LazyLock::new(Mutex::default);
    let due = THROTTLE.lock().unwrap_or_else(PoisonError::into_inner).due(problem, crate::runtime::now());
    if let Some(suppressed) = due {
        line(NonZeroU64::new(suppressed));
    }
}

/// Returns librdkafka's message without the duration and the number of repetitions, which differ between lines about the same problem.
pub(crate) fn essence(message: &str) -> &str {
    message.rsplit_once(" (after ").map_or(message, |(essence, _)| essence)
}

#[derive(Default)]
struct Throttle {
    logged: HashMap<String, Problem>,
}

struct Problem {
    at: Instant,
    suppressed: u64,
}

impl Throttle {
    /// Returns the number of suppressed lines if the problem must be logged now.
    fn due(&mut self, problem: &str, now: Instant) -> Option<u64> {
        if let Some(logged) = self.logged.get_mut(problem) {
            if now.saturating_duration_since(logged.at) < PAUSE {
                logged.suppressed += 1;
                return None;
            }
            logged.at = now;
            return Some(std::mem::take(&mut logged.suppressed));
        }
        if self.logged.len() >= PROBLEMS_MAX {
            self.logged.retain(|_, logged| now.saturating_duration_since(logged.at) < PAUSE);
        }
        if self.logged.len() >= PROBLEMS_MAX {
            // Clearing the map may cause a problem to be logged too early but never suppresses a new problem.
            self.logged.clear();
        }
        self.logged.insert(problem.to_owned(), Problem { at: now, suppressed: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_logged_immediately_and_then_every_ten_seconds() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let mut at = |ms: u64| throttle.due("down", start + Duration::from_millis(ms));
        assert_eq!(at(0), Some(0));
        assert_eq!([at(1), at(5_000), at(9_999)], [None; 3]);
        assert_eq!(at(10_000), Some(3));
        assert_eq!([at(10_001), at(19_999)], [None; 2]);
        assert_eq!(at(60_000), Some(2));
        assert_eq!(at(70_000), Some(0));
    }

    #[test]
    fn problems_do_not_suppress_each_other() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        assert_eq!(throttle.due("one is down", now), Some(0));
        assert_eq!(throttle.due("two is down", now), Some(0));
        assert_eq!(throttle.due("one is down", now), None);
    }

    #[test]
    fn new_problems_are_always_logged_and_old_ones_are_forgotten() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        for number in 0..3 * PROBLEMS_MAX {
            assert_eq!(throttle.due(&number.to_string(), start), Some(0));
            assert!(throttle.logged.len() <= PROBLEMS_MAX);
        }
        assert_eq!(throttle.due("last", start + PAUSE), Some(0));
        assert_eq!(throttle.logged.len(), 1, "problems that were logged long ago are forgotten");
    }

    #[test]
    fn messages_that_differ_in_duration_are_the_same_problem() {
        let line = |tail| format!("[thrd:a:9092/1]: a:9092/1: Connect to ipv4#127.0.0.1:9092 failed: Connection refused{tail}");
        let [first, second] =
            [line(" (after 0ms in state CONNECT)"), line(" (after 12ms in state CONNECT, 3 identical error(s) suppressed)")];
        assert_eq!(essence(&first), line(""));
        assert_eq!(essence(&first), essence(&second));
        assert_eq!(essence("1/1 brokers are down"), "1/1 brokers are down");
    }
}
