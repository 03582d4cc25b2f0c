//! Requests to the brokers, repeated until they are answered.
//!
//! Owns the check for a request to stop, which every wait makes. Must never wait without that check.

use super::topics::Topics;
use super::{Error, POLL_INTERVAL, SILENCE, Worker};
use crate::broker::{self, Broker, Consumer as _};
use crate::fault;
use crate::record::{Offset, TopicPartition};
use crate::runtime;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two requests for the end of a log that seems to be shorter than it was.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Time for which an answer that a log is shorter than it was is doubted.
const DOUBT: Duration = Duration::from_secs(5);

impl<B: Broker> Worker<B> {
    /// Returns true if the worker was told to stop. Also records that the worker is alive, so every loop and every retry must call this.
    pub(super) fn check_stop(&self) -> bool {
        self.shared.is_stopped(self.number)
    }

    /// Repeats a request until the brokers answer it, or until the worker is told to stop.
    pub(super) fn retry_until_answered<T>(&self, ask: impl Fn() -> Result<T, broker::Error>) -> Result<T, Error> {
        let asked = runtime::now();
        loop {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(_) if self.check_stop() => return Err(broker::Error::Stopped.into()),
                // A person must fix these.
                Err(error @ (broker::Error::Cluster(_) | broker::Error::Property(_) | broker::Error::Refused { .. })) => {
                    return Err(error.into());
                }
                Err(error) => {
                    let waited = runtime::since(asked);
                    if waited > SILENCE {
                        self.shared.stats.block(self.number, format!("waiting for the brokers: {error}"));
                    }
                    // Brokers do not return offsets of an open transaction. A transaction that the coordinator has lost stays open.
                    let advice = if waited > self.shared.config.worker.transaction_timeout * 2 {
                        "; if the brokers are well, look for a transaction that hangs, with kafka-transactions.sh find-hanging --topic __consumer_offsets"
                    } else {
                        ""
                    };
                    tracing::warn!(error = %error, seconds = waited.as_secs(), "no answer from the brokers yet; asking again{advice}");
                }
            }
            // Some requests fail immediately.
            runtime::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the log start offset and the end of a partition. If the end is below `read`, an offset up to which the group has read the
    /// partition, asks again until five seconds have passed `since`: a leader that was suspended while another took over answers for a
    /// moment with what it knew.
    pub(super) fn watermarks(
        &self,
        source: &B::Consumer,
        partition: &TopicPartition,
        read: Option<Offset>,
        since: Instant,
    ) -> Result<(Offset, Offset), Error> {
        loop {
            let (low, high) = self.retry_until_answered(|| source.watermarks(partition))?;
            if read.is_none_or(|read| read <= high) || runtime::since(since) >= DOUBT || fault::defect("former_leader_believed") {
                return Ok((low, high));
            }
            if self.check_stop() {
                return Err(broker::Error::Stopped.into());
            }
            runtime::sleep(ASK_AGAIN);
        }
    }

    /// Discovers the topics again, because they have changed.
    pub(super) fn refresh_cluster(&mut self) -> Result<(), Error> {
        let cluster = self.retry_until_answered(|| self.shared.broker.discover(&self.shared.config, &|| self.check_stop()))?;
        self.shared.cluster = Arc::new(cluster);
        self.topics = Topics::new(&self.shared.config, &self.shared.cluster);
        Ok(())
    }
}
