//! Errors of librdkafka's calls that return an `rd_kafka_error_t`. Most of them are transaction calls.
//!
//! Copies each error out of librdkafka. The callers decide how to handle the error.

use rdkafka::bindings as rd;
use rdkafka::error::RDKafkaErrorCode;
use std::fmt;
use std::ptr::NonNull;

#[derive(Debug)]
pub(in crate::kafka) struct TransactionError {
    pub(in crate::kafka) code: RDKafkaErrorCode,
    /// True if the client can no longer be used.
    pub(in crate::kafka) is_fatal: bool,
    /// True if the same call may succeed later.
    pub(in crate::kafka) may_repeat: bool,
    pub(in crate::kafka) must_abort: bool,
    words: String,
}

impl TransactionError {
    /// Converts the result of a call and destroys librdkafka's error.
    ///
    /// # Safety
    /// `error` is null, or the result of a librdkafka call that nobody else destroys.
    pub(super) unsafe fn check(error: *mut rd::rd_kafka_error_t) -> Result<(), Self> {
        let Some(error) = NonNull::new(error) else { return Ok(()) };
        let error = error.as_ptr();
        // SAFETY: `error` is valid until it is destroyed here, and its text is copied first.
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
