//! Partitions that wait or make no progress.
//!
//! This module never talks to a broker.

use crate::record::{Offset, Timestamp};
use std::time::{Duration, Instant};

/// The time without progress before the worker asks a broker whether an open transaction holds the partition back. The answer is valid for
/// the same time. Ordinary transactions are shorter.
pub(super) const STALLED: Duration = Duration::from_secs(30);

/// The wait state of an input. See the module `pausing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    /// Records were passed over and must be read again.
    PassedOver,
    Paused,
}

/// A partition that makes no progress, although its position is below its high watermark.
pub(super) struct Stall {
    pub(super) position: Offset,
    pub(super) since: Instant,
    pub(super) since_ms: Timestamp,
    /// The time of a broker's last answer, and true if an open transaction is the cause.
    pub(super) answer: Option<(Instant, bool)>,
}

impl Stall {
    /// Returns the time when the partition stopped at an open transaction, or `None` if no open transaction is known.
    pub(super) fn open_transaction_since(&self) -> Option<Timestamp> {
        self.answer.filter(|&(_, is_open)| is_open).map(|_| self.since_ms)
    }

    pub(super) fn must_ask(&self, now: Instant) -> bool {
        let last = self.answer.map_or(self.since, |(asked, _)| asked);
        now.saturating_duration_since(last) >= STALLED
    }
}
