//! Errors that a consumer reports in place of records.
//!
//! Owns what each error means, and the partitions whose records must be dropped because of one. Must never let a record
//! through that follows a gap.

use super::{Error, throttle};
use crate::record::TopicPartition;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::time::{Duration, Instant};

/// How long a partition that reported an error waits before it is fetched again.
const BACKOFF: Duration = Duration::from_millis(500);

/// Partitions that reported an error, and when to seek them. After an error, librdkafka may continue behind a gap: it skips
/// a corrupt batch, and counts the error itself as a record. So everything that follows is dropped until the seek.
#[derive(Default)]
pub(super) struct Errored(Vec<(TopicPartition, Instant)>);

impl Errored {
    pub(super) const fn any(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) fn contains(&self, topic: &str, partition: i32) -> bool {
        self.0.iter().any(|(errored, _)| errored.partition == partition && errored.topic == topic)
    }

    pub(super) fn add(&mut self, partition: TopicPartition, now: Instant) {
        self.0.push((partition, now + BACKOFF));
    }

    /// Returns the partitions whose backoff is over, and starts another one in case the seek fails.
    pub(super) fn due(&mut self, now: Instant) -> Vec<TopicPartition> {
        let due = self.0.iter_mut().filter(|(_, due)| *due <= now);
        due.map(|(partition, due)| {
            *due = now + BACKOFF;
            partition.clone()
        })
        .collect()
    }

    /// Fetching of these partitions starts afresh.
    pub(super) fn forget(&mut self, of: impl Fn(&TopicPartition) -> bool) {
        self.0.retain(|(partition, _)| !of(partition));
    }
}

/// True if librdkafka could not read a batch, and skipped it.
pub(super) const fn is_corrupt(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::BadMessage | RDKafkaErrorCode::BadCompression | RDKafkaErrorCode::NotImplemented)
}

pub(super) const fn is_out_of_range(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange)
}

/// Logs that a broker returned a batch whose checksum is wrong.
pub(super) fn report_corrupt(partition: &TopicPartition, reason: &str) {
    throttle::report(&format!("corrupt {partition}"), |left_out| {
        tracing::error!(
            %partition,
            reason,
            left_out,
            "a record batch is corrupt, and the worker does not skip it: move the leadership of the partition to a broker with an intact replica; or, to give the batch up, stop the workers and set the group's offset past it"
        );
    });
}

/// Returns an error if the consumer cannot continue. Otherwise librdkafka retries, and the error is logged.
pub(super) fn fatal(error: &KafkaError) -> Result<(), Error> {
    use RDKafkaErrorCode::{FencedInstanceId, GroupAuthorizationFailed, InconsistentGroupProtocol, TopicAuthorizationFailed};
    match error {
        KafkaError::MessageConsumptionFatal(FencedInstanceId) => Err(Error::Fenced),
        KafkaError::MessageConsumptionFatal(code) => Err(Error::Fatal(format!("the consumer cannot continue: {code}"))),
        KafkaError::MessageConsumption(code @ (GroupAuthorizationFailed | TopicAuthorizationFailed)) => {
            Err(Error::Fatal(format!("the brokers do not allow it: {code}; give this user Read on the inputs and the group")))
        }
        KafkaError::MessageConsumption(InconsistentGroupProtocol) => {
            throttle::report("inconsistent group protocol", |left_out| {
                tracing::warn!(
                    left_out,
                    "the group rejects this member, because its other members use another assignment strategy: stop all of them first; adding the first or removing the last space that topics share changes the strategy"
                );
            });
            Ok(())
        }
        other => {
            throttle::report(&format!("reading {other}"), |left_out| tracing::warn!(error = %other, left_out, "failed to read; retrying"));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errored_partitions_are_due_after_the_backoff_until_they_are_forgotten() {
        let of = |partition| TopicPartition { topic: "in".to_owned(), partition };
        let (mut errored, start) = (Errored::default(), Instant::now());
        errored.add(of(1), start);
        errored.add(of(2), start + BACKOFF / 2);
        assert!(errored.contains("in", 1) && !errored.contains("in", 3) && !errored.contains("other", 1));
        assert_eq!(errored.due(start), []);
        assert_eq!(errored.due(start + BACKOFF), [of(1)]);
        assert_eq!(errored.due(start + 2 * BACKOFF), [of(1), of(2)], "a seek that failed is due again");
        errored.forget(|partition| *partition == of(1));
        assert!(!errored.contains("in", 1) && errored.contains("in", 2) && errored.any());
    }
}
