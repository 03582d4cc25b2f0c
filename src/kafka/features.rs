//! Tests of the cluster features that unseen needs, for `unseen check --connect`.
//!
//! The tests use a temporary topic. They never write to another topic, join the group, or commit an offset of the group, because a check
//! must not affect running workers.

use super::admin::{block_on, only, partitions};
use super::changelog::{ON_TOPICS, admin, create_internal, wrong_settings};
use super::client_config::{self as client, BATCH_BYTES};
use super::ffi::{LoggedIn, topic_ids};
use super::observer::Observer;
use crate::config::{Config, Delivery};
use crate::record::Timestamp;
use crate::runtime;
use rdkafka::ClientContext as _;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Timeout of a request. The brokers need several seconds for the first transaction of a cluster.
const TIMEOUT: Duration = Duration::from_secs(20);

const PAUSE: Duration = Duration::from_millis(50);

/// Keys of the test records, named after the outcome of their transaction.
const ABORTED: &str = "aborted";
const COMMITTED: &str = "committed";

const HEADER: (&str, &str) = ("unseen-check", "1");

/// Age of the test records in milliseconds. If a record arrives with a recent time, the brokers do not keep timestamps.
const AGE_MS: Timestamp = 3_600_000;

/// The findings of `unseen check --connect`.
#[derive(Debug, Default)]
pub struct Checked {
    /// All features, in a fixed order. Empty if the topics cannot be used.
    pub features: Vec<Feature>,
    pub warnings: Vec<String>,
    /// Problems that would keep a worker from running.
    pub problems: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Feature {
    pub name: &'static str,
    #[serde(flatten)]
    pub support: Support,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "supported", content = "reason", rename_all = "snake_case")]
pub enum Support {
    Yes,
    No(String),
    Untested(String),
    /// The configuration does not use the feature.
    Unused,
}

pub(super) fn examine(config: &Config, checked: &mut Checked) {
    let is_transactional = config.worker.delivery == Delivery::ExactlyOnce;
    let has_internal_topics = config.state.changelog || config.topics.iter().any(|topic| topic.repartition);
    let trial = if is_transactional || has_internal_topics { Trial::new(config).map(Some) } else { Ok(None) };
    let mut outcome = match trial {
        Ok(None) => Outcome::default(),
        Ok(Some(trial)) => trial.run(is_transactional),
        Err(error) => Outcome { untested: Some(error.to_string()), ..Outcome::default() },
    };
    if !has_internal_topics {
        outcome.settings = None;
        outcome.delete_records = None;
    }
    outcome.report(config, checked);
}

/// The result of each test. `None` if the feature was not tested.
#[derive(Default)]
struct Outcome {
    untested: Option<String>,
    /// A warning that the temporary topic could not be deleted.
    left: Option<String>,
    producer: Option<Result<(), Failure>>,
    transactions: Option<Result<(), Failure>>,
    offsets: Option<Result<(), Failure>>,
    read_committed: Option<Result<(), Failure>>,
    headers: Option<Result<(), Failure>>,
    timestamps: Option<Result<(), Failure>>,
    topic_ids: Option<Result<(), Failure>>,
    settings: Option<Result<(), Failure>>,
    delete_records: Option<Result<(), Failure>>,
}

struct Failure {
    reason: String,
    /// The permission that this user lacks, or `None` if the failure has another cause.
    permission: Option<&'static str>,
}

impl From<KafkaError> for Failure {
    fn from(error: KafkaError) -> Self {
        let code = if let KafkaError::AdminOp(code) = error { Some(code) } else { error.rdkafka_error_code() };
        let permission = match code {
            Some(Code::TransactionalIdAuthorizationFailed) => Some("Write on transactional ids"),
            Some(Code::GroupAuthorizationFailed) => Some("Read on group"),
            Some(Code::TopicAuthorizationFailed) => Some(ON_TOPICS),
            _ => None,
        };
        Self { reason: error.to_string(), permission }
    }
}

impl From<&str> for Failure {
    fn from(reason: &str) -> Self {
        Self { reason: reason.to_owned(), permission: None }
    }
}

impl Failure {
    /// Returns the reason for the failure, and advice: to grant the missing permission, or `otherwise` if no permission is missing.
    fn advise(&self, group: &str, otherwise: &str) -> String {
        match self.permission {
            Some(right @ "Read on group") => format!("{}; give this user {right} {group:?}", self.reason),
            Some(right) => format!("{}; give this user {right} that start with \"{group}-\"", self.reason),
            None => format!("{}; {otherwise}", self.reason),
        }
    }
}

impl Outcome {
    fn report(self, config: &Config, checked: &mut Checked) {
        const AT_LEAST_ONCE: &str = "set worker.delivery to \"at_least_once\", which can emit records again after a crash or a rebalance";
        const GROWS: &str = "the changelog and the repartition topics grow without limit, so set state.changelog and repartition to false";
        let group = &config.kafka.group_id;
        let untested = self.untested;
        // The error message of a failed feature also explains why the features after it were not tested.
        let failed = [&self.producer, &self.transactions].into_iter().any(|result| matches!(result, Some(Err(_))));
        if let Some(reason) = untested.as_ref().filter(|_| !failed) {
            checked.warnings.push(format!("some features of the cluster were not tested: {reason}"));
        }
        checked.warnings.extend(self.left);
        let Checked { features, warnings, problems } = checked;
        let mut add = |name, result: Option<Result<(), Failure>>, list: &mut Vec<String>, what: &str, otherwise: &str| {
            let support = match (result, &untested) {
                (Some(Ok(())), _) => Support::Yes,
                (Some(Err(failure)), _) => {
                    list.push(format!("{what}: {}", failure.advise(group, otherwise)));
                    Support::No(failure.reason)
                }
                (None, Some(reason)) => Support::Untested(reason.clone()),
                (None, None) => Support::Unused,
            };
            features.push(Feature { name, support });
        };
        let what = "the brokers do not accept records of an idempotent producer";
        add("idempotent_producer", self.producer, problems, what, "if the check fails again, unseen does not work with these brokers");
        add("transactions", self.transactions, problems, "worker.delivery: the brokers do not complete transactions", AT_LEAST_ONCE);
        let what = "worker.delivery: the brokers do not accept offsets of the group in a transaction";
        add("transactional_offsets", self.offsets, problems, what, AT_LEAST_ONCE);
        let what = "worker.delivery: the brokers do not support isolation.level=read_committed";
        add("read_committed", self.read_committed, problems, what, AT_LEAST_ONCE);
        let what = "state.changelog: the brokers do not keep the settings of a new topic";
        add("topic_settings", self.settings, problems, what, "set state.changelog and repartition to false");
        add("delete_records", self.delete_records, warnings, "the brokers do not support DeleteRecords", GROWS);
        let lost = "output records lack the headers of their input records, and the headers that unseen adds";
        add("headers", self.headers, warnings, "the brokers do not keep the headers of records", lost);
        let lost = "output records lack the times of their input records";
        add("timestamps", self.timestamps, warnings, "the brokers do not keep the times of records", lost);
        let lost = "the worker cannot reliably detect that a topic was deleted and recreated, so do not recreate topics of a group";
        add("topic_ids", self.topic_ids, warnings, "the brokers do not support topic IDs", lost);
    }
}

struct Trial<'c> {
    config: &'c Config,
    /// The name of the temporary topic, which is also the transactional id.
    name: String,
    admin: LoggedIn<AdminClient<Observer>>,
    options: AdminOptions,
    reader: LoggedIn<BaseConsumer<Observer>>,
    producer: LoggedIn<ThreadedProducer<Observer>>,
}

/// Findings about the records that a `read_committed` consumer received.
#[derive(Default)]
struct Seen {
    aborted: bool,
    committed: bool,
    has_header: bool,
    time: Option<Timestamp>,
}

impl Seen {
    fn judge(&self, time: Timestamp, is_transactional: bool, outcome: &mut Outcome) {
        let supported = |is_supported, reason: &str| Some(if is_supported { Ok(()) } else { Err(reason.into()) });
        outcome.producer = Some(Ok(()));
        if is_transactional {
            outcome.transactions = Some(Ok(()));
            outcome.read_committed = supported(!self.aborted, "a read_committed consumer received a record of an aborted transaction");
        }
        outcome.headers = supported(self.has_header, "a record lost its header");
        outcome.timestamps = supported(self.time == Some(time), "a record does not have its original timestamp");
    }
}

impl<'c> Trial<'c> {
    fn new(config: &'c Config) -> Result<Self, KafkaError> {
        // The name starts with the group id, because a worker has permissions for topics with this prefix. The rest of the name is unique,
        // because the tests must not touch an existing topic.
        let name = format!("{}-check-{:x}-{:x}", config.kafka.group_id, runtime::wall_clock(), std::process::id());
        let (admin, options) = admin(config)?;
        let kafka = &config.kafka;
        let reader = reader(config)?;
        let producer = client::producer(config, &name, 1, BATCH_BYTES, None);
        let producer = client::create(&producer, kafka, Observer::new(config))?;
        Ok(Self { config, name, admin, options, reader, producer })
    }

    fn run(&self, is_transactional: bool) -> Outcome {
        let mut outcome = Outcome::default();
        let initialized = !is_transactional || {
            let answer = self.producer.init_transactions(TIMEOUT);
            answer.map_err(|error| outcome.transactions = Some(Err(error.into()))).is_ok()
        };
        let created = self.create();
        // If this user lacks the permission to create the topic, the topic does not exist and need not be deleted. After any other error,
        // the topic may exist.
        let may_exist = !matches!(&created, Err(failure) if failure.permission.is_some());
        let is_created = created.is_ok();
        match created.and_then(|()| self.await_topic()) {
            Ok(()) => self.try_features(is_transactional, initialized, &mut outcome),
            Err(failure) => {
                outcome.untested =
                    Some(failure.advise(&self.config.kafka.group_id, "the check cannot test features without a temporary topic"));
            }
        }
        if may_exist {
            outcome.left = self.delete().err().map(|reason| {
                let (origin, advice) = if is_created { ("created", "delete it") } else { ("may have created", "delete it if it exists") };
                format!("cannot delete topic {:?}, which this check {origin}: {reason}; {advice}", self.name)
            });
        }
        outcome
    }

    fn try_features(&self, is_transactional: bool, initialized: bool, outcome: &mut Outcome) {
        outcome.topic_ids = Some(match topic_ids(self.reader.client(), &[&self.name], TIMEOUT) {
            Ok(ids) if ids.contains_key(&self.name) => Ok(()),
            Ok(_) => Err("the ID of a new topic is zero".into()),
            Err(code) => Err(KafkaError::MetadataFetch(code).into()),
        });
        let wrong = wrong_settings(self.config, &self.name).ok();
        outcome.settings = wrong.map(|wrong| wrong.problem.map_or(Ok(()), |problem| Err((&*problem).into())));
        if !initialized {
            outcome.untested = Some("the producer could not be initialized".to_owned());
            return;
        }
        let time = runtime::wall_clock() - AGE_MS;
        let written = if is_transactional { self.transact(time, outcome) } else { self.write(COMMITTED, time) };
        match written.and_then(|()| self.read()).map_err(Failure::from).and_then(|seen| self.arrived(seen)) {
            Ok(seen) => {
                seen.judge(time, is_transactional, outcome);
                outcome.delete_records = Some(self.delete_records().map_err(Failure::from));
            }
            Err(failure) => {
                outcome.untested = Some(failure.reason.clone());
                *(if is_transactional { &mut outcome.transactions } else { &mut outcome.producer }) = Some(Err(failure));
            }
        }
    }

    /// Creates the temporary topic. The topic may exist even if this function fails, for example after a timeout.
    fn create(&self) -> Result<(), Failure> {
        let answer = create_internal(&self.name, 1, |topic| only(block_on(self.admin.create_topics([topic], &self.options))));
        answer.map_err(Failure::from).map_err(|Failure { reason, permission }| {
            let reason = format!("cannot create topic {:?}: {reason}", self.name);
            Failure { reason, permission }
        })?;
        Ok(())
    }

    fn await_topic(&self) -> Result<(), Failure> {
        let started = Instant::now();
        while partitions(&self.reader, &self.name)? == 0 {
            if started.elapsed() > TIMEOUT {
                return Err("the brokers do not list a new topic".into());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn delete(&self) -> Result<(), String> {
        match only(block_on(self.admin.delete_topics(&[&self.name], &self.options))) {
            Err(error) if error.rdkafka_error_code() != Some(Code::UnknownTopicOrPartition) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// Returns `seen`, or an error if the committed record is missing.
    fn arrived(&self, seen: Seen) -> Result<Seen, Failure> {
        let complaint = self.producer.context().complaint();
        match (seen.committed, &*complaint.reason) {
            (true, _) => Ok(seen),
            (false, "") => Err("consumers did not receive a committed record".into()),
            (false, reason) => Err(reason.into()),
        }
    }

    /// Aborts a transaction that contains a record and an offset, and then commits a transaction that contains another record.
    fn transact(&self, time: Timestamp, outcome: &mut Outcome) -> Result<(), KafkaError> {
        self.producer.begin_transaction()?;
        self.write(ABORTED, time)?;
        outcome.offsets = Some(self.send_offset().map_err(Failure::from));
        self.producer.abort_transaction(TIMEOUT)?;
        self.producer.begin_transaction()?;
        self.write(COMMITTED, time)?;
        self.producer.commit_transaction(TIMEOUT)
    }

    fn write(&self, key: &str, time: Timestamp) -> Result<(), KafkaError> {
        let headers = OwnedHeaders::new().insert(Header { key: HEADER.0, value: Some(HEADER.1) });
        let record = BaseRecord::to(&self.name).partition(0).key(key).payload("").timestamp(time).headers(headers);
        self.producer.send(record).map_err(|(error, _)| error)?;
        self.producer.flush(TIMEOUT)
    }

    /// Adds an offset of the group to the transaction. The group is not affected, because the offset is for the temporary topic, and no
    /// member reads this topic.
    fn send_offset(&self) -> Result<(), KafkaError> {
        let group = self.reader.group_metadata().ok_or(KafkaError::ConsumerCommit(Code::UnknownGroup))?;
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&self.name, 0, Offset::Offset(0))?;
        self.producer.send_offsets_to_transaction(&offsets, &group, TIMEOUT)
    }

    /// Reads until the committed record arrives or until [`TIMEOUT`] has passed. This function creates and closes its own consumer, because
    /// the consumer must be closed before the topic is deleted: librdkafka 2.12.1 can crash if the response to the consumer's last request
    /// arrives after the deletion.
    fn read(&self) -> Result<Seen, KafkaError> {
        let reader = reader(self.config)?;
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.name, 0, Offset::Beginning)?;
        reader.assign(&list)?;
        let (started, mut seen) = (Instant::now(), Seen::default());
        while !seen.committed && started.elapsed() < TIMEOUT {
            match reader.poll(PAUSE) {
                Some(Ok(record)) => {
                    seen.aborted |= record.key() == Some(ABORTED.as_bytes());
                    seen.committed |= record.key() == Some(COMMITTED.as_bytes());
                    let mut headers = record.headers().into_iter().flat_map(|headers| headers.iter());
                    seen.has_header = headers.any(|header| (header.key, header.value) == (HEADER.0, Some(HEADER.1.as_bytes())));
                    seen.time = record.timestamp().to_millis();
                }
                // Keep waiting: a commit may be acknowledged before the records of the transaction are visible.
                Some(Err(KafkaError::PartitionEOF(_))) | None => {}
                Some(Err(error)) => return Err(error),
            }
        }
        Ok(seen)
    }

    fn delete_records(&self) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.name, 0, Offset::End)?;
        let answer = block_on(self.admin.delete_records(&list, &self.options))?;
        let error = answer.elements().iter().find_map(|element| element.error().err()?.rdkafka_error_code());
        error.map_or(Ok(()), |code| Err(KafkaError::AdminOp(code)))
    }
}

fn reader(config: &Config) -> Result<LoggedIn<BaseConsumer<Observer>>, KafkaError> {
    client::create(&client::changelog_reader(config, "read_committed"), &config.kafka, Observer::new(config))
}

impl ProducerContext for Observer {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            self.error(error.clone(), &error.to_string());
        }
    }
}
