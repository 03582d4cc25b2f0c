//! What is counted of the clients.

use crate::stats::Histogram;
use std::sync::atomic::AtomicU64;

/// Upper bounds of the buckets of times to answer, in seconds; another one takes what is above.
pub(super) const BUCKETS: [f64; 14] =
    [10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 500e-3];

/// Counts since the start.
#[derive(Debug)]
pub(super) struct ServeStats {
    /// Connections that are open.
    pub(super) connections: AtomicU64,
    pub(super) accepted: AtomicU64,
    /// Refused, for there were as many as there may be.
    pub(super) rejected: AtomicU64,
    /// Closed, for they did not take their answers.
    pub(super) dropped: AtomicU64,
    /// Closed, for they could not be encrypted.
    pub(super) unencrypted: AtomicU64,
    pub(super) wrong_passwords: AtomicU64,
    pub(super) commands: AtomicU64,
    /// Records that were written for clients, and that were not.
    pub(super) written: AtomicU64,
    pub(super) unwritten: AtomicU64,
    /// How long it took to answer what came together.
    pub(super) answer_time: Histogram,
}

impl Default for ServeStats {
    fn default() -> Self {
        let [connections, accepted, rejected, dropped, unencrypted, wrong_passwords, commands, written, unwritten] = Default::default();
        let answer_time = Histogram::new(&BUCKETS);
        Self { connections, accepted, rejected, dropped, unencrypted, wrong_passwords, commands, written, unwritten, answer_time }
    }
}
