//! Retries broker requests until they succeed, fail permanently, or the worker stops. Every wait in this module must call `check_stop`.

use super::topics::Topics;
use super::{BLOCKED_AFTER, Error, POLL_INTERVAL, Worker};
use crate::broker::{self, Broker, Consumer as _, throttle};
use crate::fault;
use crate::record::{Offset, TopicPartition};
use crate::runtime;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time between two requests for the end of a log that seems to be truncated.
const TRUNCATION_INTERVAL: Duration = Duration::from_millis(500);

/// The time for which the worker repeats the request for the end of a log before it accepts that the log is truncated.
const TRUNCATION_TIMEOUT: Duration = Duration::from_secs(5);

impl<B: Broker> Worker<B> {
    /// Returns true if the worker must stop. Also reports that the worker is alive, so every loop and every retry must call this function.
    pub(super) fn check_stop(&self) -> bool {
        self.shared.is_stopped(self.number)
    }

    pub(super) fn retry_until_answered<T>(&self, ask: impl Fn() -> Result<T, broker::Error>) -> Result<T, Error> {
        let asked = runtime::now();
        loop {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(_) if self.check_stop() => return Err(broker::Error::Stopped.into()),
                Err(error @ (broker::Error::Cluster(_) | broker::Error::Property(_) | broker::Error::Refused { .. })) => {
                    return Err(error.into());
                }
                Err(error) => {
                    let waited = runtime::since(asked);
                    if waited > BLOCKED_AFTER {
                        self.shared.stats.block(self.number, format!("waiting for the brokers: {error}"));
                    }
                    // Brokers do not return a committed offset while an open transaction contains an offset of the same partition. If the
                    // coordinator has lost such a transaction, the transaction stays open, and the request never succeeds.
                    let advice = if waited > self.shared.config.worker.transaction_timeout * 2 {
                        "; if the brokers are healthy and the request is for committed offsets, find a hanging transaction with kafka-transactions.sh find-hanging --topic __consumer_offsets, and abort it"
                    } else {
                        ""
                    };
                    throttle::report(&format!("{error}{advice}"), |suppressed| {
                        tracing::warn!(error = %error, seconds = waited.as_secs(), suppressed, "a request to the brokers has not succeeded yet; retrying{advice}");
                    });
                }
            }
            // Some requests fail immediately, so the loop must wait before it repeats them.
            runtime::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the log start offset and the last stable offset of a partition. `read` is the group's last position in the partition, if
    /// known. If the last stable offset is below `read`, asks again until five seconds after `since`, because a leader that was suspended
    /// during a failover briefly answers with outdated offsets.
    pub(super) fn watermarks(
        &self,
        source: &B::Consumer,
        partition: &TopicPartition,
        read: Option<Offset>,
        since: Instant,
    ) -> Result<(Offset, Offset), Error> {
        loop {
            let (low, high) = self.retry_until_answered(|| source.watermarks(partition))?;
            if read.is_none_or(|read| read <= high)
                || runtime::since(since) >= TRUNCATION_TIMEOUT
                || fault::defect("former_leader_believed")
            {
                return Ok((low, high));
            }
            if self.check_stop() {
                return Err(broker::Error::Stopped.into());
            }
            runtime::sleep(TRUNCATION_INTERVAL);
        }
    }

    pub(super) fn refresh_cluster(&mut self) -> Result<(), Error> {
        let cluster = self.retry_until_answered(|| self.shared.broker.discover(&self.shared.config, &|| self.check_stop()))?;
        self.shared.cluster = Arc::new(cluster);
        self.topics = Topics::new(&self.shared.config, &self.shared.cluster);
        Ok(())
    }
}
