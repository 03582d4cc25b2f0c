//! What librdkafka answers to a call on a transaction that fails.
//!
//! Owns a copy of it. Must never decide what to do about it.

use rdkafka::bindings as rd;
use rdkafka::error::RDKafkaErrorCode;
use std::fmt;
use std::ptr::NonNull;

/// Why a call failed.
#[derive(Debug)]
pub(in crate::kafka) struct TransactionError {
    /// The error as a number.
    pub(in crate::kafka) code: RDKafkaErrorCode,
    /// Whether the client is of no use any more.
    pub(in crate::kafka) is_fatal: bool,
    /// Whether the same call may yet succeed.
    pub(in crate::kafka) may_repeat: bool,
    /// Whether the transaction must be aborted.
    pub(in crate::kafka) must_abort: bool,
    words: String,
}

impl TransactionError {
    /// Takes an answer over.
    ///
    /// # Safety
    /// `error` is null, or librdkafka's answer to a call, which nobody else destroys.
    pub(super) unsafe fn check(error: *mut rd::rd_kafka_error_t) -> Result<(), Self> {
        let Some(error) = NonNull::new(error) else { return Ok(()) };
        let error = error.as_ptr();
        // SAFETY: the answer lives until it is destroyed here, and its words are copied before.
        let taken = unsafe {
            let taken = Self {
                code: rd::rd_kafka_error_code(error).into(),
                is_fatal: rd::rd_kafka_error_is_fatal(error) != 0,
                may_repeat: rd::rd_kafka_error_is_retriable(error) != 0,
                must_abort: rd::rd_kafka_error_txn_requires_abort(error) != 0,
                words: super::text(rd::rd_kafka_error_string(error)).into_owned(),
            };
            rd::rd_kafka_error_destroy(error);
            taken
        };
        Err(taken)
    }
}

impl fmt::Display for TransactionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}
