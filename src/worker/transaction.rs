//! The load of the open transaction and its limit.
//!
//! Sets the limit: the configured limit, or a smaller limit after transactions that timed out or were replayed too slowly. The limit is
//! never smaller than one record and never stays small if the brokers accept more.

use crate::fault;
use std::time::{Duration, Instant};

/// The maximum size of a transaction's keys and values in bytes, because unsent records use memory.
const BYTES_MAX: usize = 64 << 20;

/// The new limit is a load that was too large, divided by this number. Until the next commit, each further timeout multiplies the divisor
/// by `SHRINK_DIVISOR`.
const SHRINK_DIVISOR: usize = 8;

/// The number of processed records and the size in bytes of the written keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) records: usize,
    pub(super) bytes: usize,
}

impl Load {
    fn map(self, change: impl Fn(usize) -> usize) -> Self {
        Self { records: change(self.records), bytes: change(self.bytes) }
    }
}

pub(super) struct Transaction {
    pub(super) begun: Instant,
    pub(super) load: Load,
}

pub(super) struct Limit {
    configured: Load,
    current: Load,
    /// The load that was last found to be too large.
    too_large: Load,
    /// The number of transactions that timed out since the last commit.
    timed_out: u32,
}

impl Limit {
    pub(super) const fn new(records: usize) -> Self {
        let configured = Load { records, bytes: BYTES_MAX };
        Self { configured, current: configured, too_large: Load { records: usize::MAX, bytes: usize::MAX }, timed_out: 0 }
    }

    #[inline]
    pub(super) const fn room(&self, load: Load) -> Load {
        Load { records: self.current.records.saturating_sub(load.records), bytes: self.current.bytes.saturating_sub(load.bytes) }
    }

    #[inline]
    pub(super) const fn is_full(&self, load: Load) -> bool {
        load.records >= self.current.records || load.bytes >= self.current.bytes
    }

    /// Raises the limit after a full transaction was committed at this age. The limit doubles if the age was less than a quarter of
    /// `timeout`. It rises by an eighth if the age was less than half of `timeout`. Otherwise, it rises by 1/64, up to three quarters of
    /// the last load that was too large. The limit rises even after a slow commit, because the commit may have been slow for a reason other
    /// than the load.
    pub(super) fn committed(&mut self, load: Load, age: Duration, timeout: Duration) {
        self.timed_out = 0;
        if !self.is_full(load) {
            return;
        }
        let (part, most) = match age {
            _ if age < timeout / 4 => (1, self.configured),
            _ if age < timeout / 2 => (8, self.configured),
            _ => (64, self.too_large.map(|count| count / 4 * 3)),
        };
        let more = |now: usize, most: usize, configured: usize| now.saturating_add(now.div_ceil(part)).min(most.max(now)).min(configured);
        self.current = Load {
            records: more(self.current.records, most.records, self.configured.records),
            bytes: more(self.current.bytes, most.bytes, self.configured.bytes),
        };
    }

    /// Counts a transaction that timed out with this load. Returns true if the next transactions must be smaller. A single timeout does not
    /// shrink them, because an outage may be the cause.
    pub(super) fn timed_out(&mut self, load: Load) -> bool {
        self.timed_out = self.timed_out.saturating_add(1);
        self.timed_out > 1 && self.shrink(load, SHRINK_DIVISOR.saturating_pow(self.timed_out - 1))
    }

    /// Lowers the limit after a replay that was too slow when it had reached this load. Returns true if the next transactions must be
    /// smaller.
    pub(super) fn repeated_too_slowly(&mut self, load: Load) -> bool {
        self.shrink(load, SHRINK_DIVISOR)
    }

    /// Lowers the limit to a fraction of a load that was too large. Returns false if the load or the limit is at most one record.
    fn shrink(&mut self, load: Load, divisor: usize) -> bool {
        if load.records < 2 || self.current.records < 2 || fault::defect("transactions_never_shrink") {
            return false;
        }
        self.too_large = load;
        let Load { records, bytes } = load.map(|count| (count / divisor).max(1));
        // If the transaction wrote only changelog records, which do not count as bytes, the byte limit stays.
        let bytes = if load.bytes == 0 { self.current.bytes } else { bytes };
        self.current = Load { records: records.min(self.current.records), bytes: bytes.min(self.current.bytes) };
        true
    }

    pub(super) const fn has_timed_out(&self) -> bool {
        self.timed_out > 0
    }

    pub(super) const fn current(&self) -> Load {
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    const fn load(records: usize, bytes: usize) -> Load {
        Load { records, bytes }
    }

    #[test]
    fn a_transaction_is_full_by_records_or_by_bytes() {
        let limit = Limit::new(1000);
        let is_full = |records, bytes| limit.is_full(load(records, bytes));
        assert_eq!([is_full(999, (64 << 20) - 1), is_full(1000, 0), is_full(1, 64 << 20)], [false, true, true]);
        assert_eq!(limit.room(load(400, 80 << 20)), load(600, 0));
    }

    #[test]
    fn repeated_timeouts_shrink_transactions_down_to_one_record() {
        let mut limit = Limit::new(1000);
        assert!(!limit.timed_out(load(1000, 1 << 20)), "a single timeout may be an outage");
        assert!(limit.timed_out(load(1000, 1 << 20)));
        assert_eq!(limit.current(), load(125, 1 << 17));
        assert!(limit.timed_out(load(800, 0)), "the changelog was too large");
        assert_eq!(limit.current(), load(12, 1 << 17));
        assert!(limit.timed_out(load(12, 6000)));
        assert_eq!(limit.current(), load(1, 11));
        assert!(!limit.timed_out(load(2, 1000)), "the limit is never below one record");
        limit.committed(load(1, 100), TIMEOUT / 100, TIMEOUT);
        assert_eq!([limit.timed_out(load(1000, 100)), limit.timed_out(load(1000, 100))], [false, true]);
        assert_eq!(limit.current(), load(2, 12), "the limit does not rise");
    }

    #[test]
    fn a_slow_replay_shrinks_transactions_despite_commits_in_between() {
        let mut limit = Limit::new(1000);
        assert!(limit.repeated_too_slowly(load(800, 8000)));
        limit.committed(load(0, 0), TIMEOUT / 100, TIMEOUT);
        assert!(limit.repeated_too_slowly(load(100, 1000)));
        assert_eq!(limit.current(), load(12, 125));
        assert!(!limit.repeated_too_slowly(load(1, 10)), "the limit is never below one record");
    }

    #[test]
    fn full_transactions_grow_back_if_they_are_committed_in_time() {
        let mut limit = Limit::new(1000);
        assert_eq!([(); 2].map(|()| limit.timed_out(load(1000, 64 << 20))), [false, true]);
        limit.committed(load(10, 10), TIMEOUT / 100, TIMEOUT);
        assert_eq!(limit.current(), load(125, 8 << 20), "a transaction that was not full proves nothing");
        limit.committed(load(125, 10), TIMEOUT / 2, TIMEOUT);
        assert_eq!(limit.current(), load(127, (8 << 20) + (8 << 14)));
        limit.committed(load(127, 10), TIMEOUT / 3, TIMEOUT);
        assert_eq!(limit.current().records, 143);
        for _ in 0..3 {
            limit.committed(limit.current(), TIMEOUT / 100, TIMEOUT);
        }
        assert_eq!(limit.current(), load(1000, 64 << 20), "the limit stays at the configured value");
    }

    /// Returns the number of bytes that brokers accept in an hour and the number of timeouts that lowered the limit. The brokers process
    /// `speed` bytes per second, and each commit takes them the additional time `each`. Records have 100 bytes.
    fn an_hour(limit: &mut Limit, speed: u32, each: Duration) -> (u128, u32) {
        let (mut taken, mut passed, mut too_large) = (0, Duration::ZERO, 0);
        while passed < Duration::from_secs(3600) {
            let Load { records, bytes } = limit.current();
            let records = records.min(bytes.div_ceil(100));
            let load = load(records, records * 100);
            let bytes = u32::try_from(load.bytes).expect("64 MiB at most");
            let age = each + Duration::from_secs(1).mul_f64(f64::from(bytes)) / speed;
            if age < TIMEOUT {
                limit.committed(load, age, TIMEOUT);
                taken += u128::from(bytes);
            } else {
                too_large += u32::from(limit.timed_out(load));
            }
            passed += age.min(TIMEOUT);
        }
        (taken, too_large)
    }

    #[test]
    fn brokers_of_any_speed_are_kept_busy() {
        for speed in [15, 100, 1_000, 100_000, 1 << 20, 5 << 20, 1 << 30] {
            let (taken, too_large) = an_hour(&mut Limit::new(1_000_000), speed, Duration::ZERO);
            let percent = taken * 100 / (3600 * u128::from(speed));
            assert!(percent >= 90 && too_large <= 6, "{percent} % of {speed} bytes/s, {too_large} transactions too large");
        }
    }

    #[test]
    fn long_commits_do_not_keep_transactions_small() {
        let mut limit = Limit::new(1_000_000);
        assert_eq!([(); 3].map(|()| limit.timed_out(load(100_000, 60 << 20))), [false, true, true]);
        an_hour(&mut limit, 1 << 30, TIMEOUT * 6 / 10);
        assert!(limit.current().records > 50_000, "{:?}", limit.current());
    }
}
