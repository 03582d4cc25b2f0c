//! Connects a producer and initializes its transactions.
//!
//! Retries if another producer interferes. This module never writes a record.

use super::error::duplicate_producer;
use super::offsets::REQUEST_BYTES_MAX;
use super::{CALL_TIMEOUT, Sink};
use crate::broker::{Broker, ClientError, Error, ErrorCode, ProducerClient as _, ProducerOptions, throttle};
use crate::config::Config;
use crate::fault;
use std::cell::{Cell, RefCell};

/// The smallest `batch_bytes` that allows several records per batch. With a smaller `batch_bytes`, each record gets its own batch.
const ONE_RECORD_BYTES: usize = 512;

/// The number of retries after another producer with the same transactional id has fenced this producer.
const FENCED_MAX: u32 = 4;

impl<B: Broker> Sink<B> {
    /// Creates a producer. With exactly-once delivery, waits until the transaction coordinator has ended the open transaction of the
    /// previous producer with this transactional id. The coordinator aborts that transaction, unless its commit has already begun.
    ///
    /// `partitions` is the number of input partitions. `batch_bytes` is the maximum size of a batch. If it is below `ONE_RECORD_BYTES`,
    /// every record gets its own batch.
    ///
    /// # Errors
    /// Returns an error if librdkafka rejects the configuration, if transactions cannot be initialized (for example because the brokers
    /// deny access, or another producer keeps interfering), or if `stop` returns true while waiting.
    pub fn connect(
        broker: &B,
        config: &Config,
        transactional_id: &str,
        partitions: u32,
        batch_bytes: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<Self, Error> {
        let mut fenced = 0;
        loop {
            let sink = Self::new(broker, config, transactional_id, partitions, batch_bytes)?;
            match sink.init(transactional_id, stop) {
                Ok(()) => return Ok(sink),
                Err(_) if stop() => return Err(Error::Stopped),
                // If two producers start at the same time, brokers may report either producer as fenced. librdkafka cannot recover from
                // this error, so the next attempt needs a new producer.
                Err(error) if error.code == ErrorCode::Fenced && fenced < FENCED_MAX => {
                    fenced += 1;
                    tracing::warn!(error = %error, transactional_id, attempt = fenced, "another producer with the same transactional id fenced this producer; retrying with a new producer");
                }
                Err(error) if error.code == ErrorCode::Fenced => {
                    return Err(Error::Fatal(duplicate_producer(transactional_id, &error.to_string())));
                }
                Err(error) => {
                    let advice = error.missing_permission.map(|right| format!("; give this user {right}")).unwrap_or_default();
                    return Err(Error::Fatal(format!(
                        "cannot initialize transactions with transactional id {transactional_id:?}: {error}{advice}"
                    )));
                }
            }
        }
    }

    fn new(broker: &B, config: &Config, transactional_id: &str, partitions: u32, batch_bytes: usize) -> Result<Self, Error> {
        let one_record_per_batch = batch_bytes < ONE_RECORD_BYTES;
        let producer = broker.producer(config, &ProducerOptions { transactional_id, partitions, batch_bytes, one_record_per_batch })?;
        let (delivery, patience) = (config.worker.delivery, config.worker.transaction_timeout * 2);
        let (failures, names_records) = (RefCell::default(), Cell::new(false));
        let (group, offset_request_bytes) = (config.kafka.group_id.clone(), Cell::new(REQUEST_BYTES_MAX));
        Ok(Self {
            producer,
            delivery,
            patience,
            one_record_per_batch,
            batch_bytes,
            group,
            offset_request_bytes,
            failures,
            undelivered: RefCell::default(),
            names_records,
        })
    }

    fn init(&self, transactional_id: &str, stop: &dyn Fn() -> bool) -> Result<(), ClientError> {
        fault::step("connect.begin").map_err(ClientError::fenced)?;
        if !self.transactional() {
            return Ok(());
        }
        loop {
            match self.producer.init_transactions(CALL_TIMEOUT) {
                // While the coordinator ends the previous producer's transaction, it returns the retriable error `CONCURRENT_TRANSACTIONS`.
                Err(error) if error.is_retriable && !stop() => {
                    throttle::report(&format!("{transactional_id} {error}"), |suppressed| {
                        tracing::warn!(error = %error, transactional_id, suppressed, "the transaction coordinator has not initialized this producer yet; retrying. If the retries continue, check the brokers that host the topic __transaction_state");
                    });
                }
                ended => return ended,
            }
        }
    }
}
