//! Requests to the brokers, repeated until they are answered.
//!
//! Owns the check for a request to stop, which every wait makes. Must never wait without that check.

use super::topics::Topics;
use super::{Error, POLL_INTERVAL, SILENCE, Worker};
use crate::broker::{self, Broker};
use crate::runtime;
use std::sync::Arc;

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

    /// Discovers the topics again, because they have changed.
    pub(super) fn refresh_cluster(&mut self) -> Result<(), Error> {
        let cluster = self.retry_until_answered(|| self.shared.broker.discover(&self.shared.config, &|| self.check_stop()))?;
        self.shared.cluster = Arc::new(cluster);
        self.topics = Topics::new(&self.shared.config, &self.shared.cluster);
        Ok(())
    }
}
