//! Keeps the log readable while something lasts: each distinct trouble is logged at once, and then at
//! most every ten seconds, with a count of what was left out.
//!
//! Owns what was logged when, for all clients of the process: they meet the same brokers. Must never
//! hold a trouble back that was not logged yet.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two lines about one trouble.
const PAUSE: Duration = Duration::from_secs(10);

/// Most troubles that are kept apart at a time.
const TROUBLES_MAX: usize = 256;

/// Calls `line` with the number of lines left out before it, unless this trouble was logged a moment ago.
pub(crate) fn report(trouble: &str, line: impl FnOnce(Option<NonZeroU64>)) {
    static TOLD: LazyLock<Mutex<Throttle>> = LazyLock::new(Mutex::default);
    let due = TOLD.lock().unwrap_or_else(PoisonError::into_inner).due(trouble, crate::runtime::now());
    if let Some(left_out) = due {
        line(NonZeroU64::new(left_out));
    }
}

/// What librdkafka says, without how long it took and how often: these differ where the trouble does not.
pub(crate) fn essence(message: &str) -> &str {
    message.rsplit_once(" (after ").map_or(message, |(essence, _)| essence)
}

#[derive(Default)]
struct Throttle {
    logged: HashMap<String, Trouble>,
}

struct Trouble {
    at: Instant,
    left_out: u64,
}

impl Throttle {
    /// Whether this trouble is to be logged now, and how often it was not since the last time.
    fn due(&mut self, trouble: &str, now: Instant) -> Option<u64> {
        if let Some(logged) = self.logged.get_mut(trouble) {
            if now.saturating_duration_since(logged.at) < PAUSE {
                logged.left_out += 1;
                return None;
            }
            logged.at = now;
            return Some(std::mem::take(&mut logged.left_out));
        }
        if self.logged.len() >= TROUBLES_MAX {
            self.logged.retain(|_, logged| now.saturating_duration_since(logged.at) < PAUSE);
        }
        if self.logged.len() >= TROUBLES_MAX {
            // More than anybody reads. They are logged once more than they should be, but never too seldom.
            self.logged.clear();
        }
        self.logged.insert(trouble.to_owned(), Trouble { at: now, left_out: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_reported_at_once_and_then_every_ten_seconds_with_what_was_left_out() {
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
    fn troubles_do_not_hide_each_other() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        assert_eq!(throttle.due("one is down", now), Some(0));
        assert_eq!(throttle.due("two is down", now), Some(0));
        assert_eq!(throttle.due("one is down", now), None);
    }

    #[test]
    fn new_troubles_are_told_however_many_there_are_and_old_ones_forgotten() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        for number in 0..3 * TROUBLES_MAX {
            assert_eq!(throttle.due(&number.to_string(), start), Some(0));
            assert!(throttle.logged.len() <= TROUBLES_MAX);
        }
        assert_eq!(throttle.due("last", start + PAUSE), Some(0));
        assert_eq!(throttle.logged.len(), 1, "those that were logged long ago are forgotten");
    }

    #[test]
    fn a_trouble_is_the_same_however_long_it_took() {
        let line = |tail| format!("[thrd:a:9092/1]: a:9092/1: Connect to ipv4#127.0.0.1:9092 failed: Connection refused{tail}");
        let [first, second] =
            [line(" (after 0ms in state CONNECT)"), line(" (after 12ms in state CONNECT, 3 identical error(s) suppressed)")];
        assert_eq!(essence(&first), line(""));
        assert_eq!(essence(&first), essence(&second));
        assert_eq!(essence("1/1 brokers are down"), "1/1 brokers are down");
    }
}
