//! librdkafka's errors as the application receives them.

use super::super::network::Code;
use crate::broker::{ClientError, Error, ErrorCode};

pub(super) const fn client_error(code: ErrorCode, message: String) -> ClientError {
    ClientError { code, message, missing_permission: None, is_fatal: false, is_retriable: false, requires_abort: false }
}

pub(super) fn retriable(message: String) -> ClientError {
    ClientError { is_retriable: true, ..client_error(ErrorCode::Other, message) }
}

/// Converts a broker's error to the error that the application receives (`rd_kafka_txn_normalize_err`).
pub(super) fn seen(code: &Code) -> ErrorCode {
    match code {
        Code::InvalidProducerEpoch | Code::ProducerFenced => ErrorCode::Fenced,
        Code::TooLarge => ErrorCode::TooLarge,
        // A single invalid timestamp decides the error of the whole batch (`LogValidator.processRecordErrors`).
        Code::InvalidRecords(refused) if refused.iter().any(|(_, is_time, _)| *is_time) => ErrorCode::InvalidTimestamp,
        Code::InvalidRecords(_) => ErrorCode::InvalidRecord,
        Code::OffsetMetadataTooLarge => ErrorCode::OffsetMetadataTooLarge,
        // If the offsets do not fit into one batch of `__consumer_offsets`, the coordinator returns `UNKNOWN_SERVER_ERROR`
        // (`CoordinatorOperationExceptionHelper.handleOperationException`).
        Code::InvalidCommitOffsetSize => ErrorCode::Unknown,
        _ => ErrorCode::Other,
    }
}

pub(super) fn unanswered(what: &str, code: &Code) -> Error {
    Error::Fatal(format!("cannot {what}: {code:?}"))
}
