//! Client statistics.

use crate::stats::Histogram;
use std::sync::atomic::AtomicU64;

/// The upper bounds of the histogram buckets for answer times, in seconds. One more bucket holds longer times.
pub(super) const BUCKETS: [f64; 14] =
    [10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 500e-3];

/// Counts since the start of the process. Only `connections` is a current value.
#[derive(Debug)]
pub(super) struct ServeStats {
    pub(super) connections: AtomicU64,
    pub(super) accepted: AtomicU64,
    /// Connections rejected because of `serve.max_connections`.
    pub(super) rejected: AtomicU64,
    /// Connections closed because the client did not read its answers.
    pub(super) dropped: AtomicU64,
    /// Connections to `serve.listen` closed because the TLS handshake failed.
    pub(super) unencrypted: AtomicU64,
    pub(super) wrong_passwords: AtomicU64,
    pub(super) commands: AtomicU64,
    /// Writes for clients that the brokers acknowledged. `unwritten` counts writes that failed or were not acknowledged. Their records may
    /// be in the topics anyway.
    pub(super) written: AtomicU64,
    pub(super) unwritten: AtomicU64,
    /// The time to run the commands of one turn, usually the commands from one read. Does not include the time to wait for writes and to
    /// send answers.
    pub(super) answer_time: Histogram,
}

impl Default for ServeStats {
    fn default() -> Self {
        let [connections, accepted, rejected, dropped, unencrypted, wrong_passwords, commands, written, unwritten] = Default::default();
        let answer_time = Histogram::new(&BUCKETS);
        Self { connections, accepted, rejected, dropped, unencrypted, wrong_passwords, commands, written, unwritten, answer_time }
    }
}
