//! librdkafka's log lines and the errors that it reports for a client.
//!
//! Chooses the log level of each line and error. This module never decides what an error means for a record.

use super::security::Login;
use crate::broker::throttle::{self, essence};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        // librdkafka warns a consumer about properties that only producers use, and vice versa. `kafka.properties` apply to both kinds of
        // clients, so these warnings are expected.
        _ if facility == "CONFWARN" => tracing::debug!(facility, "{message}"),
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => {
            throttle::report(&format!("{facility} {}", essence(message)), |suppressed| tracing::warn!(facility, suppressed, "{message}"));
        }
        _ => tracing::debug!(facility, "{message}"),
    }
}

/// Logs an error of a client and renews a rejected token. librdkafka retries after most of these errors.
pub(super) fn report(login: &Login, error: &KafkaError, reason: &str) {
    login.renew_rejected(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown), reason);
    let advice = error.rdkafka_error_code().and_then(|code| login.advise(code, reason));
    // If all brokers are down, the reason contains the number of brokers, which changes often. Leave out the reason, or each change would
    // be logged as a new error.
    let all_down = error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown);
    let error_text = format!("{error} {}", if all_down { "" } else { essence(reason) });
    throttle::report(&error_text, |suppressed| {
        tracing::warn!(
            error = %error,
            reason,
            advice,
            suppressed,
            "a Kafka client reported an error; librdkafka retries after most errors"
        );
    });
}
