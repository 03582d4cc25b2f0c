//! How a producer comes to where it can begin a transaction.
//!
//! Owns how often that is tried anew where another producer gets in between. Must never write anything.

use super::error::{has_twin, is_fencing};
use super::offsets::REQUEST_BYTES_MAX;
use super::{Context, Sink};
use crate::config::Config;
use crate::fault;
use crate::kafka::client_config::{self as client, BATCH_BYTES, CALL_TIMEOUT};
use crate::kafka::ffi::{Producer, TransactionError};
use crate::kafka::security::{self, Login};
use crate::kafka::{Error, throttle};
use crate::stats::Stats;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// Where batches are to be smaller than this, each record has one.
const ONE_RECORD_BYTES: usize = 512;

/// How often another producer of the same transactional id may get in between.
const FENCED_MAX: u32 = 4;

impl Sink {
    /// A producer that is ready to begin; whatever its past selves left open is aborted.
    ///
    /// `partitions` are those of the input. `batch_bytes` bounds what is written together; so small that few records are,
    /// each travels alone. `stats` counts each answer of a broker.
    ///
    /// # Errors
    /// When librdkafka refuses the configuration, the brokers do not allow it, or `stop` says so while waiting.
    pub fn connect(
        config: &Config,
        stats: &Arc<Stats>,
        transactional_id: &str,
        partitions: u32,
        batch_bytes: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<Self, Error> {
        let mut fenced = 0;
        loop {
            let sink = Self::new(config, stats, transactional_id, partitions, batch_bytes)?;
            match sink.init(transactional_id, stop) {
                Ok(()) => return Ok(sink),
                Err(_) if stop() => return Err(Error::Stopped),
                // Brokers may say so to either of two that begin in the same moment. librdkafka has no way back from that.
                Err(error) if is_fencing(error.code) && fenced < FENCED_MAX => {
                    fenced += 1;
                    tracing::warn!(error = %error, transactional_id, attempt = fenced, "another producer of this transactional id got in between; beginning anew");
                }
                Err(error) if is_fencing(error.code) => return Err(Error::Fatal(has_twin(transactional_id, &error.to_string()))),
                Err(error) => {
                    let right = security::missing_right(error.code);
                    let advice = right.map(|right| format!("; give this user {right}")).unwrap_or_default();
                    return Err(Error::Fatal(format!("cannot begin transactions as {transactional_id:?}: {error}{advice}")));
                }
            }
        }
    }

    fn new(config: &Config, stats: &Arc<Stats>, transactional_id: &str, partitions: u32, batch_bytes: usize) -> Result<Self, Error> {
        let one_record_per_batch = batch_bytes < ONE_RECORD_BYTES;
        let (most, records) = (batch_bytes.min(BATCH_BYTES), one_record_per_batch.then_some(1));
        let client = client::producer(config, transactional_id, partitions, most, records);
        let login = Login::of(&config.kafka);
        let stats = Arc::clone(stats);
        let context = Context {
            login,
            stats,
            failures: Mutex::default(),
            logged: Mutex::default(),
            names_records: AtomicBool::new(false),
            end_is_pending: AtomicBool::new(false),
            end_was_repeated: AtomicBool::new(false),
        };
        let producer = Producer::new(&client, context).map_err(|error| client::property_error(&error))?;
        let (delivery, patience) = (config.worker.delivery, config.worker.transaction_timeout * 2);
        let (group, offset_request_bytes) = (config.kafka.group_id.clone(), REQUEST_BYTES_MAX.into());
        Ok(Self { producer, delivery, patience, one_record_per_batch, batch_bytes, group, offset_request_bytes })
    }

    /// Waits until the coordinator has ended what past selves left open.
    fn init(&self, transactional_id: &str, stop: &dyn Fn() -> bool) -> Result<(), TransactionError> {
        fault::step("connect.begin").map_err(TransactionError::fenced)?;
        if !self.transactional() {
            return Ok(());
        }
        loop {
            match self.producer.init_transactions(CALL_TIMEOUT) {
                // A broker that finishes a past self's transaction answers "concurrent transactions" for a while.
                Err(error) if error.may_repeat && !stop() => {
                    throttle::report(&format!("{transactional_id} {error}"), |left_out| {
                        tracing::warn!(error = %error, transactional_id, left_out, "waiting for the transaction coordinator");
                    });
                }
                ended => return ended,
            }
        }
    }
}
