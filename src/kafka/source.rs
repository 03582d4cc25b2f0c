//! The consumer of a worker.
//!
//! librdkafka's callback only adds a rebalance to a queue. librdkafka then waits until the worker has committed offsets, restored states,
//! and answered the rebalance. The callback answers a rebalance itself only while the consumer closes, because the worker no longer answers
//! then.

use super::Error;
use super::client_config::{self as client, CALL_TIMEOUT};
use super::client_log;
use super::fetch_error::{events, fatal, is_corrupt, is_out_of_range, report_corrupt, unexpected};
use super::ffi::{Fetcher, GroupMetadata, Message, topic_ids};
use super::producer::{error_code, offset_list};
use super::security::{self, Login};
use crate::broker::{Batch, ClientError, Committed, Consumer as GroupConsumer, ErrorCode, Errored, Rebalance, Record as _};
use crate::config::Config;
use crate::record::{Offset, Timestamp, TopicPartition};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as Position, TopicPartitionList, TopicPartitionListElem};
use rdkafka::types::RDKafkaRespErr;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Timeout of a request for a partition's last stable offset. The timeout is short, because records wait for the answer.
const STABLE_OFFSET_TIMEOUT: Duration = Duration::from_secs(1);

pub struct Source {
    fetcher: Fetcher<Context>,
    errored: RefCell<Errored>,
    /// True if librdkafka reports the ends of partitions (`enable.partition.eof`). Required if topics share a space.
    reports_ends: bool,
}

struct Context {
    login: Login,
    rebalances: Mutex<VecDeque<Rebalance>>,
    closing: AtomicBool,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client_log::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        client_log::report(&self.login, &error, reason);
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, event: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        let assigned = event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.closing.load(Ordering::Relaxed) {
            // The worker no longer answers rebalances, so release the partitions here.
            let _ = if cooperative(consumer) { consumer.incremental_unassign(partitions) } else { consumer.unassign() };
            return;
        }
        let partitions = partitions
            .elements()
            .iter()
            .map(|element| TopicPartition { topic: element.topic().to_owned(), partition: element.partition() })
            .collect();
        let rebalance =
            if assigned { Rebalance::Assigned(partitions) } else { Rebalance::Revoked { partitions, lost: consumer.assignment_lost() } };
        self.rebalances.lock().unwrap_or_else(PoisonError::into_inner).push_back(rebalance);
    }
}

fn cooperative(consumer: &BaseConsumer<Context>) -> bool {
    use rdkafka::consumer::RebalanceProtocol;
    matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative)
}

impl Source {
    /// Creates a consumer that has not joined the group yet.
    ///
    /// # Errors
    /// Returns an error if librdkafka rejects the configuration.
    pub fn new(config: &Config, worker: usize) -> Result<Self, Error> {
        let context = Context { login: Login::of(&config.kafka), rebalances: Mutex::default(), closing: AtomicBool::new(false) };
        let client = client::consumer(config, config.kafka.instance_id.as_deref(), worker);
        let consumer = client::create(&client, &config.kafka, context).map_err(|error| client::property_error(&error))?;
        let fetcher = Fetcher::new(consumer).ok_or_else(|| unexpected(format_args!("create a consumer"), &"it has no queue"))?;
        Ok(Self { fetcher, errored: RefCell::default(), reports_ends: config.shares_spaces() })
    }

    fn consumer(&self) -> &BaseConsumer<Context> {
        self.fetcher.consumer()
    }

    /// Handles the messages of the last fetch, which follow the first `before` messages. Removes errors and records that follow an error in
    /// the same partition. Adds the ends of partitions to `batch.ends`.
    fn take_errors(&self, batch: &mut Batch<Message<'_>>, before: usize) -> Result<(), Error> {
        let Batch { messages, out_of_range, ends } = batch;
        let mut errored = self.errored.borrow_mut();
        let (mut number, mut answer) = (0, Ok(()));
        messages.retain(|message| {
            number += 1;
            if number <= before {
                return true;
            }
            let follows_error = errored.contains(message.topic(), message.partition());
            let Some((code, reason)) = message.error() else { return !follows_error };
            let partition = TopicPartition { topic: message.topic().to_owned(), partition: message.partition() };
            if code == RDKafkaErrorCode::PartitionEOF {
                // Do not report an end that follows an error. Records are missing, so the worker has not read everything up to the end.
                ends.extend((!follows_error).then(|| (partition, message.offset())));
                return false;
            }
            self.consumer().context().error(KafkaError::Global(code), &reason);
            if is_out_of_range(code) {
                // After a corrupt batch, librdkafka may fetch at a meaningless offset. So ignore an out-of-range error that follows another
                // error of the partition.
                *out_of_range |= !follows_error;
                return false;
            }
            if is_corrupt(code) {
                report_corrupt(&partition, &reason);
            } else {
                answer = std::mem::replace(&mut answer, Ok(())).and(fatal(&KafkaError::MessageConsumption(code)));
            }
            if !follows_error {
                errored.add(partition, Instant::now());
            }
            false
        });
        answer
    }

    fn rebalances(&self) -> std::sync::MutexGuard<'_, VecDeque<Rebalance>> {
        self.consumer().context().rebalances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decline(&self, rebalance: &Rebalance) -> Result<(), Error> {
        match rebalance {
            Rebalance::Assigned(partitions) if cooperative(self.consumer()) => {
                let list = list(partitions.iter().map(|partition| (partition, Position::Invalid)))?;
                let answer = self.consumer().incremental_assign(&list);
                answer.map_err(|error| unexpected(format_args!("assign {}", names(partitions)), &error))
            }
            Rebalance::Assigned(partitions) | Rebalance::Revoked { partitions, .. } => self.unassign(partitions),
        }
    }
}

impl GroupConsumer for Source {
    type Record<'a> = Message<'a>;
    type Membership = GroupMetadata;

    fn subscribe(&self, topics: &[&str]) -> Result<(), Error> {
        self.consumer().subscribe(topics).map_err(|error| unexpected(format_args!("subscribe to {topics:?}"), &error))
    }

    fn poll<'a>(&'a self, batch: &mut Batch<Message<'a>>, records: usize, timeout: Duration) -> Result<(), Error> {
        for event in events(&self.fetcher) {
            match event? {
                Some(KafkaError::MessageConsumption(code)) if is_out_of_range(code) => batch.out_of_range = true,
                Some(error) => fatal(&error)?,
                None => {}
            }
            if batch.out_of_range || self.has_rebalance() {
                return Ok(());
            }
        }
        let before = batch.messages.len();
        self.fetcher.take(records, timeout, &mut batch.messages);
        if self.errored.borrow().any() || batch.messages[before..].iter().any(Message::is_error) {
            self.take_errors(batch, before)?;
        }
        Ok(())
    }

    fn has_rebalance(&self) -> bool {
        !self.rebalances().is_empty()
    }

    fn next_rebalance(&self) -> Option<Rebalance> {
        self.rebalances().pop_front()
    }

    fn assign(&self, partitions: &[(TopicPartition, Offset)]) -> Result<(), Error> {
        let list = list(partitions.iter().map(|(partition, offset)| (partition, Position::Offset(*offset))))?;
        let assigned = || partitions.iter().map(|(partition, _)| partition);
        let failed = |error: &dyn std::fmt::Display| unexpected(format_args!("assign {}", names(assigned())), error);
        self.fetcher.forward(assigned()).map_err(|error| failed(&error))?;
        let consumer = self.consumer();
        if cooperative(consumer) {
            consumer.incremental_assign(&list).map_err(|error| failed(&error))?;
        } else {
            consumer.assign(&list).map_err(|error| failed(&error))?;
            // In the eager protocol, this call has replaced the whole assignment, so stop forwarding all other partitions.
            self.fetcher.retain(|partition| assigned().any(|assigned| assigned == partition));
        }
        self.errored.borrow_mut().forget(|partition| assigned().any(|assigned| assigned == partition));
        // librdkafka remembers that a partition was paused, even after the partition was unassigned. So resume all assigned partitions. If
        // a partition must be paused, the worker pauses it after this call.
        self.resume(&assigned().cloned().collect::<Vec<_>>())
    }

    fn unassign(&self, partitions: &[TopicPartition]) -> Result<(), Error> {
        let consumer = self.consumer();
        let is_partial = cooperative(consumer);
        let answer = if is_partial {
            consumer.incremental_unassign(&list(partitions.iter().map(|partition| (partition, Position::Invalid)))?)
        } else {
            consumer.unassign()
        };
        answer.map_err(|error| unexpected(format_args!("unassign {}", names(partitions)), &error))?;
        self.fetcher.retain(|partition| is_partial && !partitions.contains(partition));
        self.errored.borrow_mut().forget(|partition| !is_partial || partitions.contains(partition));
        Ok(())
    }

    fn lost(&self) -> bool {
        self.consumer().assignment_lost()
    }

    fn restart(&self, stopped: &[TopicPartition], all: &[(TopicPartition, Offset)]) -> Result<(), Error> {
        if !cooperative(self.consumer()) {
            return self.assign(all);
        }
        let restarted: Vec<_> = all.iter().filter(|(partition, _)| stopped.contains(partition)).cloned().collect();
        self.unassign(stopped)?;
        self.assign(&restarted)
    }

    fn end(&self, partition: &TopicPartition) -> Option<Offset> {
        self.fetcher.end(partition)
    }

    fn positions<'p>(&self, partitions: impl Iterator<Item = &'p TopicPartition>) -> Vec<Option<Offset>> {
        let errored = self.errored.borrow();
        let known = |partition: &TopicPartition| !self.reports_ends && !errored.contains(&partition.topic, partition.partition);
        let (partitions, known): (Vec<_>, Vec<_>) = partitions.map(|partition| (partition, known(partition))).unzip();
        let positions = self.fetcher.positions(&partitions);
        positions.into_iter().zip(known).map(|(position, known)| position.filter(|_| known)).collect()
    }

    fn last_stable_offset(&self, partition: &TopicPartition) -> Result<Offset, Error> {
        // Because the consumer is `read_committed`, brokers report the last stable offset as the high watermark.
        let answer = self.consumer().fetch_watermarks(&partition.topic, partition.partition, STABLE_OFFSET_TIMEOUT);
        answer.map(|(_, stable)| stable).map_err(|error| unanswered(&format!("get the last stable offset of {partition}"), &error))
    }

    fn errored_due(&self) -> Vec<TopicPartition> {
        self.errored.borrow_mut().due(Instant::now())
    }

    fn seek(&self, partition: &TopicPartition, offset: Offset) -> Result<(), Error> {
        self.consumer()
            .seek(&partition.topic, partition.partition, Position::Offset(offset), CALL_TIMEOUT)
            .map_err(|error| unexpected(format_args!("seek {partition} to offset {offset}"), &error))?;
        self.errored.borrow_mut().forget(|errored| errored == partition);
        Ok(())
    }

    fn pause(&self, partitions: &[TopicPartition]) -> Result<(), Error> {
        if partitions.is_empty() {
            return Ok(());
        }
        let list = list(partitions.iter().map(|partition| (partition, Position::Invalid)))?;
        self.consumer().pause(&list).map_err(|error| unexpected(format_args!("pause {}", names(partitions)), &error))
    }

    fn resume(&self, partitions: &[TopicPartition]) -> Result<(), Error> {
        if partitions.is_empty() {
            return Ok(());
        }
        let list = list(partitions.iter().map(|partition| (partition, Position::Invalid)))?;
        self.consumer().resume(&list).map_err(|error| unexpected(format_args!("resume {}", names(partitions)), &error))
    }

    fn committed(&self, partitions: &[TopicPartition]) -> Result<Vec<Committed>, Error> {
        committed(self.consumer(), partitions, "get the group's committed offsets")
    }

    fn watermarks(&self, partition: &TopicPartition) -> Result<(Offset, Offset), Error> {
        self.consumer()
            .fetch_watermarks(&partition.topic, partition.partition, CALL_TIMEOUT)
            .map_err(|error| unanswered(&format!("get the offsets of {partition}"), &error))
    }

    fn topic_ids(&self, topics: &[&str]) -> Result<BTreeMap<String, String>, Error> {
        topic_ids(self.consumer().client(), topics, CALL_TIMEOUT)
            .map_err(|code| unanswered(&format!("get metadata of topics {topics:?}"), &KafkaError::MetadataFetch(code)))
    }

    fn offset_at(&self, partition: &TopicPartition, time: Timestamp) -> Result<Option<Offset>, Error> {
        Ok(offsets_at(self.consumer(), std::slice::from_ref(partition), time)?.pop().flatten())
    }

    fn commit(&self, offsets: &[(TopicPartition, Offset, String)]) -> Result<(), ClientError> {
        let committed = self.consumer().commit(&offset_list(offsets)?, rdkafka::consumer::CommitMode::Sync);
        committed.map_err(|error| ClientError {
            code: error.rdkafka_error_code().map_or(ErrorCode::Other, error_code),
            message: error.to_string(),
            missing_permission: error.rdkafka_error_code().and_then(security::missing_permission),
            is_fatal: false,
            is_retriable: false,
            requires_abort: true,
        })
    }

    fn membership(&self) -> Option<GroupMetadata> {
        self.fetcher.group().filter(|group| group.generation().is_some())
    }

    fn generation(&self) -> Option<i32> {
        self.fetcher.group()?.generation()
    }

    fn close(self) {
        self.consumer().context().closing.store(true, Ordering::Relaxed);
        // Answer the queued rebalances, because librdkafka waits for these answers when it closes. When the consumer is dropped, librdkafka
        // revokes the partitions that are still assigned.
        while let Some(rebalance) = self.next_rebalance() {
            if let Err(error) = self.decline(&rebalance) {
                tracing::debug!(error = %error, "could not answer the group's last rebalance");
            }
        }
        drop(self);
    }
}

/// Returns the group's committed offsets, in the order of `partitions`. `what` describes the request in errors.
pub(super) fn committed<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    what: &str,
) -> Result<Vec<Committed>, Error> {
    if partitions.is_empty() {
        // Many rebalances assign no new partitions, so skip the request.
        return Ok(Vec::new());
    }
    let asked = list(partitions.iter().map(|partition| (partition, Position::Invalid)))?;
    let failed = |error: KafkaError| unanswered(what, &error);
    let answer = consumer.committed_offsets(asked, CALL_TIMEOUT).map_err(failed)?;
    partitions
        .iter()
        .map(|partition| {
            let Some(element) = answer.find_partition(&partition.topic, partition.partition) else { return Ok(Committed::default()) };
            element.error().map_err(failed)?;
            Ok(Committed { offset: position(&element), metadata: element.metadata().to_owned() })
        })
        .collect()
}

/// Returns the offset of the first record at or after `time` in each partition, or `None` for a partition if all of its records are older.
pub(super) fn offsets_at<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    time: Timestamp,
) -> Result<Vec<Option<Offset>>, Error> {
    let asked = list(partitions.iter().map(|partition| (partition, Position::Offset(time))))?;
    let answer = consumer.offsets_for_times(asked, CALL_TIMEOUT).map_err(|error| unanswered(&format!("look up time {time}"), &error))?;
    let offset = |partition: &TopicPartition| {
        let Some(element) = answer.find_partition(&partition.topic, partition.partition) else { return Ok(None) };
        element.error().map_err(|error| unanswered(&format!("look up time {time} in {partition}"), &error))?;
        Ok(position(&element))
    };
    partitions.iter().map(offset).collect()
}

fn position(element: &TopicPartitionListElem<'_>) -> Option<Offset> {
    if let Position::Offset(offset) = element.offset() { Some(offset) } else { None }
}

/// Converts the error of a failed request. If a permission is missing, the result advises the user to grant the permission.
pub(super) fn unanswered(what: &str, error: &KafkaError) -> Error {
    let reason = format!("cannot {what}: {error}");
    match error.rdkafka_error_code().and_then(security::missing_permission) {
        Some(right) => Error::Refused { advice: format!("a permission is missing; give this user {right}"), reason },
        None => Error::Fatal(reason),
    }
}

fn names<'a>(partitions: impl IntoIterator<Item = &'a TopicPartition>) -> String {
    partitions.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

pub(super) fn list<'a>(partitions: impl Iterator<Item = (&'a TopicPartition, Position)>) -> Result<TopicPartitionList, Error> {
    let mut list = TopicPartitionList::new();
    for (partition, position) in partitions {
        list.add_partition_offset(&partition.topic, partition.partition, position)
            .map_err(|error| Error::Fatal(format!("{partition} has an invalid offset: {error}")))?;
    }
    Ok(list)
}
