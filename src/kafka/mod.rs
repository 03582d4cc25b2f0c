//! The production implementation of [`Broker`], with librdkafka.
//!
//! Configures the clients and interprets their errors. No other module uses rdkafka. This module never decides what happens to a record.

mod admin;
mod capture;
mod changelog;
mod check;
mod client_config;
mod client_log;
mod cluster;
mod create;
mod embedded;
mod features;
mod fetch_error;
mod ffi;
mod group;
mod input_writer;
mod newest;
mod observer;
mod producer;
mod security;
mod source;
mod tail;

pub use crate::broker::{Cluster, Committed, Error, Logged, Note, SinkError};
pub use capture::{Capture, Wanted};
pub use changelog::ChangelogReader;
pub use check::check;
pub use client_config::check_properties;
pub use cluster::prepare;
use cluster::{discover, missing, topics};
pub use create::create_topics;
pub use embedded::{Embedded, Generator, Reader};
pub use features::{Checked, Feature, Support};
pub use ffi::{GroupMetadata, Message};
pub use group::GroupView;
pub use input_writer::{InputWriter, NewRecord, Written};
pub use producer::KafkaProducer;
pub use source::Source;
pub use tail::{ChangelogEnds, ChangelogTail};

use crate::broker::{Broker, ProducerOptions};
use crate::config::Config;
use crate::stats::Stats;
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Clone)]
pub struct KafkaBroker {
    stats: Arc<Stats>,
}

impl KafkaBroker {
    /// Creates a [`Broker`]. Its producers update the time of the last broker contact in `stats` at each response, except for responses
    /// that set up a connection.
    #[must_use]
    pub const fn new(stats: Arc<Stats>) -> Self {
        Self { stats }
    }
}

impl Broker for KafkaBroker {
    type Consumer = Source;
    type Producer = KafkaProducer;
    type ChangelogReader = ChangelogReader;
    type ChangelogTail = ChangelogTail;
    type ChangelogEnds = ChangelogEnds;

    fn consumer(&self, config: &Config, number: usize) -> Result<Source, Error> {
        Source::new(config, number)
    }

    fn producer(&self, config: &Config, options: &ProducerOptions<'_>) -> Result<KafkaProducer, Error> {
        KafkaProducer::new(config, options, &self.stats)
    }

    fn changelog_reader(&self, config: &Config) -> Result<ChangelogReader, Error> {
        ChangelogReader::new(config)
    }

    fn changelog_tail(&self, config: &Config) -> Result<ChangelogTail, Error> {
        ChangelogTail::new(config)
    }

    fn changelog_ends(&self, config: &Config) -> Result<ChangelogEnds, Error> {
        ChangelogEnds::new(config)
    }

    fn topics(&self, config: &Config, stop: &dyn Fn() -> bool) -> Result<BTreeSet<String>, Error> {
        topics(config, stop)
    }

    fn discover(&self, config: &Config, stop: &dyn Fn() -> bool) -> Result<Cluster, Error> {
        discover(config, stop)
    }

    fn missing(&self, config: &Config, known: &Cluster) -> Vec<String> {
        missing(config, known)
    }
}

#[must_use]
pub fn librdkafka_version() -> String {
    rdkafka::util::get_rdkafka_version().1
}
