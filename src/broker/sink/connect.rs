//! How a producer comes to where it can begin a transaction.
//!
//! Owns how often that is tried anew where another producer gets in between. Must never write anything.

use super::error::duplicate_producer;
use super::offsets::REQUEST_BYTES_MAX;
use super::{CALL_TIMEOUT, Sink};
use crate::broker::{Broker, ClientError, Error, ErrorCode, ProducerClient as _, ProducerOptions, throttle};
use crate::config::Config;
use crate::fault;
use std::cell::{Cell, RefCell};

/// Where batches are to be smaller than this, each record has one.
const ONE_RECORD_BYTES: usize = 512;

/// How often another producer of the same transactional id may get in between.
const FENCED_MAX: u32 = 4;

impl<B: Broker> Sink<B> {
    /// A producer that is ready to begin; whatever its past selves left open is aborted.
    ///
    /// `partitions` are those of the input. `batch_bytes` bounds what is written together; so small that few records are,
    /// each travels alone.
    ///
    /// # Errors
    /// When librdkafka refuses the configuration, the brokers do not allow it, or `stop` says so while waiting.
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
                // Brokers may say so to either of two that begin in the same moment. librdkafka has no way back from that.
                Err(error) if error.code == ErrorCode::Fenced && fenced < FENCED_MAX => {
                    fenced += 1;
                    tracing::warn!(error = %error, transactional_id, attempt = fenced, "another producer of this transactional id got in between; beginning anew");
                }
                Err(error) if error.code == ErrorCode::Fenced => {
                    return Err(Error::Fatal(duplicate_producer(transactional_id, &error.to_string())));
                }
                Err(error) => {
                    let advice = error.missing_permission.map(|right| format!("; give this user {right}")).unwrap_or_default();
                    return Err(Error::Fatal(format!("cannot begin transactions as {transactional_id:?}: {error}{advice}")));
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
        Ok(Self { producer, delivery, patience, one_record_per_batch, batch_bytes, group, offset_request_bytes, failures, names_records })
    }

    /// Waits until the coordinator has ended what past selves left open.
    fn init(&self, transactional_id: &str, stop: &dyn Fn() -> bool) -> Result<(), ClientError> {
        fault::step("connect.begin").map_err(ClientError::fenced)?;
        if !self.transactional() {
            return Ok(());
        }
        loop {
            match self.producer.init_transactions(CALL_TIMEOUT) {
                // A broker that finishes a past self's transaction answers "concurrent transactions" for a while.
                Err(error) if error.is_retriable && !stop() => {
                    throttle::report(&format!("{transactional_id} {error}"), |left_out| {
                        tracing::warn!(error = %error, transactional_id, left_out, "waiting for the transaction coordinator");
                    });
                }
                ended => return ended,
            }
        }
    }
}
