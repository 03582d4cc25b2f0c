//! The errors of all clients except the worker's consumer and producer.
//!
//! Keeps the most informative error of each client. A consequence never replaces the error that caused it, because the user must fix the
//! cause.

use super::client_log;
use super::security::Login;
use crate::broker::throttle::essence;
use crate::config::Config;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The context of a client. Keeps librdkafka's most informative error, which is shown if a request of the client fails.
pub(super) struct Observer {
    login: Login,
    complaint: Mutex<Complaint>,
}

/// An error that librdkafka reported for a client. An empty reason (the default) means that librdkafka has not reported an error.
#[derive(Clone, Default)]
pub(super) struct Complaint {
    pub(super) reason: String,
    pub(super) advice: Option<String>,
}

impl Observer {
    pub(super) fn new(config: &Config) -> Self {
        Self { login: Login::of(&config.kafka), complaint: Mutex::default() }
    }

    pub(super) fn complaint(&self) -> Complaint {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Complaint> {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complain(&self, code: RDKafkaErrorCode, reason: &str) {
        let advice = self.login.advise(code, reason);
        let mut complaint = self.lock();
        // Keep an error with advice. Its consequences, such as "1/1 brokers are down", must not replace it.
        let says_more = complaint.advice.is_none() && code != RDKafkaErrorCode::AllBrokersDown;
        if advice.is_some() || says_more || complaint.reason.is_empty() {
            *complaint = Complaint { reason: essence(reason).to_owned(), advice };
        }
    }
}

impl ClientContext for Observer {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match facility {
            "CONFWARN" => {}
            // librdkafka also calls `error` for most of these failures, but not if a broker closes the connection.
            "FAIL" => {
                self.complain(RDKafkaErrorCode::BrokerTransportFailure, message.split_once("]: ").map_or(message, |(_, after)| after));
            }
            _ => client_log::log(level, facility, message),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        self.login.renew_rejected(code, reason);
        self.complain(code, reason);
    }
}

impl ConsumerContext for Observer {}
