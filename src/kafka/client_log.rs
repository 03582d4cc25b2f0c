//! What librdkafka says of its clients: log lines, and errors of a client as a whole.
//!
//! Owns how loud each is. Must never decide what an error means for a record.

use super::security::Login;
use crate::broker::throttle::{self, essence};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// Passes librdkafka's log lines on.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        // A property of producers in a consumer, or the other way round: `kafka.properties` serve both.
        _ if facility == "CONFWARN" => tracing::debug!(facility, "{message}"),
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => {
            throttle::report(&format!("{facility} {}", essence(message)), |left_out| tracing::warn!(facility, left_out, "{message}"));
        }
        _ => tracing::debug!(facility, "{message}"),
    }
}

/// Reports an error that concerns the client as a whole. librdkafka goes on trying by itself.
pub(super) fn report(login: &Login, error: &KafkaError, reason: &str) {
    let advice = error.rdkafka_error_code().and_then(|code| login.advise(code, reason));
    // How many brokers are down changes from moment to moment while all are.
    let all_down = error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown);
    let trouble = format!("{error} {}", if all_down { "" } else { essence(reason) });
    throttle::report(
        &trouble,
        |left_out| tracing::warn!(error = %error, reason, advice, left_out, "trouble with the brokers; still trying"),
    );
}
