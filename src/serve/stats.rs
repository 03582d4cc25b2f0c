//! What is counted of the clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets of times to answer, in seconds; another one takes what is above.
pub(super) const BUCKETS: [f64; 14] =
    [10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 500e-3];

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct ServeStats {
    /// Connections that are open.
    pub(super) connections: AtomicU64,
    pub(super) accepted: AtomicU64,
    /// Refused, for there were as many as there may be.
    pub(super) rejected: AtomicU64,
    /// Closed, for they did not take their answers.
    pub(super) dropped: AtomicU64,
    /// Passwords that were wrong.
    pub(super) wrong_passwords: AtomicU64,
    /// Commands.
    pub(super) commands: AtomicU64,
    /// Keys that were asked for.
    pub(super) keys: AtomicU64,
    /// How long it took to answer what came together, by [`BUCKETS`], and in nanoseconds.
    buckets: [AtomicU64; BUCKETS.len() + 1],
    nanos: AtomicU64,
}

impl ServeStats {
    pub(super) fn answered(&self, keys: usize) {
        self.keys.fetch_add(keys as u64, Ordering::Relaxed);
    }

    pub(super) fn refused_password(&self) {
        self.wrong_passwords.fetch_add(1, Ordering::Relaxed);
    }

    /// So many commands that came together were answered in that time.
    pub(super) fn observe(&self, commands: u64, took: Duration) {
        self.commands.fetch_add(commands, Ordering::Relaxed);
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.iter().position(|&bound| seconds <= bound).unwrap_or(BUCKETS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How many were in each bucket, the last without bound, and the sum of all in seconds.
    #[expect(clippy::cast_precision_loss, reason = "a sum that is shown")]
    pub(super) fn times(&self) -> ([u64; BUCKETS.len() + 1], f64) {
        let counts = std::array::from_fn(|bucket| self.buckets[bucket].load(Ordering::Relaxed));
        (counts, self.nanos.load(Ordering::Relaxed) as f64 / 1e9)
    }
}
