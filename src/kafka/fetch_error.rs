//! Errors that a consumer returns instead of records.
//!
//! Decides which errors of a worker's consumer are fatal. A missing permission is fatal, because a retry would fail, too.

use super::Error;
use super::ffi::Fetcher;
use crate::broker::throttle;
use crate::record::TopicPartition;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use std::fmt;
use std::time::Duration;

/// Maximum number of events to handle before the next fetch. Most events are log lines.
const EVENTS_MAX: usize = 1000;

/// Polls the consumer's own queue for events. Yields the error of an error event and `None` for any other event.
pub(super) fn events<C: ConsumerContext + 'static>(fetcher: &Fetcher<C>) -> impl Iterator<Item = Result<Option<KafkaError>, Error>> {
    let mut is_first = true;
    let poll = move || match fetcher.consumer().poll(Duration::ZERO) {
        // Records must arrive in the record queue. Fail instead of skipping this record, because the record would otherwise be lost.
        Some(Ok(message)) => {
            let (topic, partition) = (message.topic(), message.partition());
            let message =
                format!("a record of {topic}[{partition}] arrived in the wrong librdkafka queue; restart the worker and report a bug");
            Err(Error::Fatal(message))
        }
        other => Ok(other.and_then(Result::err)),
    };
    std::iter::from_fn(move || (std::mem::take(&mut is_first) || fetcher.has_events()).then(poll)).take(EVENTS_MAX)
}

/// Returns the error of a failed librdkafka call that sends no request. No setting of the user can be the cause, so the message asks for a
/// bug report.
pub(super) fn unexpected(call: fmt::Arguments<'_>, error: &dyn fmt::Display) -> Error {
    Error::Fatal(format!("librdkafka cannot {call}: {error}; if a restart does not help, report a bug"))
}

/// True if librdkafka could not read a batch and skipped it.
pub(super) const fn is_corrupt(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::BadMessage | RDKafkaErrorCode::BadCompression | RDKafkaErrorCode::NotImplemented)
}

pub(super) const fn is_out_of_range(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange)
}

pub(super) fn report_corrupt(partition: &TopicPartition, reason: &str) {
    throttle::report(&format!("corrupt {partition}"), |suppressed| {
        tracing::error!(
            %partition,
            reason,
            suppressed,
            "a record batch is corrupt or has an unsupported format, and the worker does not skip it: if it is corrupt, move the partition's leadership to a broker with an intact replica; to skip the batch, stop the workers and set the group's offset past it"
        );
    });
}

/// Returns an error if the consumer cannot continue. Logs all other errors and returns `Ok`, because librdkafka retries after them.
pub(super) fn fatal(error: &KafkaError) -> Result<(), Error> {
    use RDKafkaErrorCode::{FencedInstanceId, GroupAuthorizationFailed, InconsistentGroupProtocol, TopicAuthorizationFailed};
    match error {
        KafkaError::MessageConsumptionFatal(FencedInstanceId) => Err(Error::Fenced),
        KafkaError::MessageConsumptionFatal(code) => {
            Err(Error::Fatal(format!("the consumer cannot continue: {code}; if a restart does not help, report a bug")))
        }
        KafkaError::MessageConsumption(code @ (GroupAuthorizationFailed | TopicAuthorizationFailed)) => Err(Error::Fatal(format!(
            "the brokers rejected a request: {code}; give this user Read on the group and on every topic that it reads"
        ))),
        KafkaError::MessageConsumption(InconsistentGroupProtocol) => {
            throttle::report("inconsistent group protocol", |suppressed| {
                tracing::warn!(
                    suppressed,
                    "the group rejects this member, because the other members use a different assignment strategy; stop all other members so that this member can join. The strategy changes when you add the first shared space, remove the last shared space, or set or remove kafka.instance_id"
                );
            });
            Ok(())
        }
        other => {
            throttle::report(
                &format!("reading {other}"),
                |suppressed| tracing::warn!(error = %other, suppressed, "failed to read from the brokers; retrying"),
            );
            Ok(())
        }
    }
}
