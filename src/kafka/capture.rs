//! One pass over a range of a topic's records, for `unseen capture` and other commands.
//!
//! Tracks the remaining range of each partition and detects when the capture is complete. A capture never joins a group, commits offsets,
//! or waits for records that did not exist when the capture started.

use super::Error;
use super::admin::readable_partitions;
use super::client_config::{self as client, CALL_TIMEOUT};
use super::cluster;
use super::fetch_error::{events, is_corrupt, is_out_of_range, unexpected};
use super::ffi::{Fetcher, Message};
use super::observer::Observer;
use super::source::{list, offsets_at, unanswered};
use crate::broker::{Record as _, throttle};
use crate::config::Config;
use crate::record::{Offset, Timestamp, TopicPartition};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::Offset as Position;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const RECORDS_MAX: usize = 1000;

/// Maximum wait for records. The capture notices a stop request within this time.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum time without a record before the capture asks a broker whether the remaining records still exist.
const QUIET_AFTER: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub topic: String,
    /// The partitions to read. Empty means all.
    pub partitions: Vec<i32>,
    /// The start time. The capture starts each partition at the first record with this time or a later time. `None` starts at the log start
    /// offset.
    pub from: Option<Timestamp>,
    /// The end time. The capture ends each partition before the first record with this time or a later time, and at the latest at the last
    /// stable offset as of the start of the capture. `None` sets no end time.
    pub to: Option<Timestamp>,
    /// The only offsets to read in each partition. `None` means all.
    pub offsets: Option<std::ops::Range<Offset>>,
    /// The lowest offset to read in each partition.
    pub begin: BTreeMap<i32, Offset>,
    /// The end of the offsets to read in each partition, exclusive.
    pub end: BTreeMap<i32, Offset>,
}

pub struct Capture {
    fetcher: Fetcher<Observer>,
    servers: String,
    timeout: Duration,
    partitions: u32,
    topic: String,
    ranges: Vec<Range>,
}

struct Range {
    of: TopicPartition,
    next: Offset,
    end: Offset,
}

impl Range {
    fn left(&self) -> u64 {
        u64::try_from(self.end - self.next).unwrap_or(0)
    }
}

impl Capture {
    /// Connects to the cluster and looks up the offsets of the requested range. Calls `report` as long as no broker answers.
    ///
    /// # Errors
    /// Returns an error if no broker answers within `kafka.connect_timeout`, if the brokers reject the login, if the topic or a partition
    /// does not exist, if a permission is missing, or if `stop` returns `true`.
    pub fn start(config: &Config, wanted: &Wanted, stop: &dyn Fn() -> bool, report: &dyn Fn(&str)) -> Result<Self, Error> {
        let consumer = client::observe(config, &client::capture(config))?;
        cluster::wait(&consumer, config, false, stop, report)?;
        let topic = &wanted.topic;
        let partitions = readable_partitions(&consumer, topic)?;
        if partitions == 0 {
            return Err(Error::Fatal(format!("topic {topic:?} does not exist; check its name")));
        }
        let mut numbers = wanted.partitions.clone();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.is_empty() {
            numbers = (0..partitions.cast_signed()).collect();
        }
        if let Some(number) = numbers.iter().find(|&&number| number < 0 || number.cast_unsigned() >= partitions) {
            return Err(Error::Fatal(format!("partition {number} does not exist; topic {topic:?} has {partitions} partitions")));
        }
        let of = |partition| TopicPartition { topic: topic.clone(), partition };
        let ranges = ranges(&consumer, numbers.into_iter().map(of).collect(), wanted, stop)?;
        let fetcher = Fetcher::new(consumer).ok_or_else(|| unexpected(format_args!("create a consumer"), &"it has no queue"))?;
        let servers = config.kafka.bootstrap_servers.clone();
        Ok(Self { fetcher, servers, timeout: config.kafka.connect_timeout, partitions, topic: topic.clone(), ranges })
    }

    #[must_use]
    pub const fn partitions(&self) -> u32 {
        self.partitions
    }

    /// The number of remaining offsets. The number of remaining records may be lower, because aborted records, compacted records, and
    /// transaction markers also have offsets.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.ranges.iter().map(Range::left).sum()
    }

    /// Passes records to `take`, in order per partition, with the number of remaining offsets. Ends early if `take` returns `false` or
    /// `stop` returns `true`. Returns `true` if the capture is complete.
    ///
    /// # Errors
    /// Returns an error if the records cannot be read, if `take` fails, or if no record arrives for `kafka.connect_timeout` and the brokers
    /// do not confirm that the remaining records exist.
    pub fn read<E: From<Error>>(
        &mut self,
        stop: &dyn Fn() -> bool,
        report: &dyn Fn(&str),
        take: &mut dyn FnMut(&Message<'_>, u64) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Self { fetcher, topic, ranges, servers, timeout, .. } = self;
        assign(fetcher, ranges)?;
        let mut left: u64 = ranges.iter().map(Range::left).sum();
        let mut messages = Vec::new();
        let (mut last_progress, mut last_error) = (Instant::now(), None);
        while left > 0 {
            if stop() {
                return Ok(false);
            }
            events(fetcher).try_for_each(|event| event?.map_or(Ok(()), |error| fatal(&error, topic)))?;
            fetcher.take(RECORDS_MAX, POLL_INTERVAL, &mut messages);
            if last_progress.elapsed() >= QUIET_AFTER && messages.iter().all(Message::is_error) {
                let timeout = timeout.saturating_sub(last_progress.elapsed());
                if range_exists(fetcher.consumer(), ranges, servers, timeout, last_error.as_deref(), report)? {
                    last_progress = Instant::now();
                }
            }
            for message in messages.drain(..) {
                let Ok(at) = ranges.binary_search_by_key(&message.partition(), |range| range.of.partition) else { continue };
                let range = &mut ranges[at];
                let before = range.left();
                let next = match message.error() {
                    // Skip prefetched records past the end of the range, and records that librdkafka returns again after a seek.
                    None if message.offset() < range.next || before == 0 => continue,
                    None => message.offset().saturating_add(1),
                    // A new leader may report an end below `range.end`, because it does not know the high watermark yet. So continue at the
                    // reported offset instead of treating the range as complete.
                    Some((RDKafkaErrorCode::PartitionEOF, _)) => message.offset(),
                    Some((code, reason)) => {
                        seek_back(fetcher.consumer(), range, code)?;
                        last_error = Some(reason);
                        continue;
                    }
                };
                let is_wanted = !message.is_error() && message.offset() < range.end;
                range.next = next.clamp(range.next, range.end);
                left -= before - range.left();
                (last_progress, last_error) = (Instant::now(), None);
                if range.left() == 0 {
                    pause(fetcher.consumer(), &range.of)?;
                }
                if is_wanted && !take(&message, left)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

fn ranges(
    consumer: &BaseConsumer<Observer>,
    partitions: Vec<TopicPartition>,
    wanted: &Wanted,
    stop: &dyn Fn() -> bool,
) -> Result<Vec<Range>, Error> {
    let from = wanted.from.map_or_else(|| Ok(vec![Some(0); partitions.len()]), |time| offsets_at(consumer, &partitions, time))?;
    let to = wanted.to.map_or_else(|| Ok(vec![None; partitions.len()]), |time| offsets_at(consumer, &partitions, time))?;
    let mut ranges = Vec::with_capacity(partitions.len());
    for ((of, from), to) in partitions.into_iter().zip(from).zip(to) {
        if stop() {
            return Err(Error::Stopped);
        }
        // Because the consumer is `read_committed`, brokers report the last stable offset as the end.
        let (low, end) = consumer
            .fetch_watermarks(&of.topic, of.partition, CALL_TIMEOUT)
            .map_err(|error| unanswered(&format!("get the offsets of {of}"), &error))?;
        // If all records are older than the time, `offsets_at` returns `None`. Then `from` selects no records, and `to` sets no bound.
        let begin = wanted.begin.get(&of.partition).copied().unwrap_or(low);
        let next = from.unwrap_or(end).max(low).max(begin);
        let end = to.into_iter().chain(wanted.end.get(&of.partition).copied()).fold(end, Offset::min);
        let (next, end) = wanted.offsets.as_ref().map_or((next, end), |only| (next.max(only.start), end.min(only.end)));
        ranges.push(Range { of, next, end: end.max(next) });
    }
    Ok(ranges)
}

fn assign(fetcher: &Fetcher<Observer>, ranges: &[Range]) -> Result<(), Error> {
    let wanted = || ranges.iter().filter(|range| range.left() > 0);
    fetcher.forward(wanted().map(|range| &range.of)).map_err(Error::Fatal)?;
    let list = list(wanted().map(|range| (&range.of, Position::Offset(range.next))))?;
    fetcher.consumer().assign(&list).map_err(|error| unexpected(format_args!("assign the partitions"), &error))
}

fn pause(consumer: &BaseConsumer<Observer>, of: &TopicPartition) -> Result<(), Error> {
    let list = list([(of, Position::Invalid)].into_iter())?;
    consumer.pause(&list).map_err(|error| unexpected(format_args!("pause {of}"), &error))
}

/// Seeks back after a fetch error in a partition. Returns an error if a retry cannot succeed.
fn seek_back(consumer: &BaseConsumer<Observer>, range: &Range, code: RDKafkaErrorCode) -> Result<(), Error> {
    let Range { of, next, .. } = range;
    if is_out_of_range(code) {
        return Err(Error::Fatal(format!(
            "{of} no longer contains offset {next}, because records were deleted or a broker lost records; run the command again, start later in the topic, or increase the topic's retention"
        )));
    }
    fatal(&KafkaError::MessageConsumption(code), &of.topic)?;
    // librdkafka counts the error as a consumed record. Without this seek, librdkafka could skip a record.
    consumer
        .seek(&of.topic, of.partition, Position::Offset(*next), Duration::ZERO)
        .map_err(|error| Error::Fatal(format!("librdkafka cannot seek {of} to offset {next}: {error}; run the command again")))
}

/// Returns an error if the capture would have to skip records, or if no retry can succeed. Ignores all other errors, because librdkafka
/// retries after them.
fn fatal(error: &KafkaError, topic: &str) -> Result<(), Error> {
    match error {
        KafkaError::MessageConsumption(code) if is_corrupt(*code) => Err(Error::Fatal(format!(
            "a record batch of topic {topic:?} is corrupt or unreadable ({code}) and is not skipped; `unseen capture` can read the records before and after that batch separately"
        ))),
        KafkaError::MessageConsumption(RDKafkaErrorCode::TopicAuthorizationFailed) => {
            Err(Error::Fatal(format!("this user may not read topic {topic:?}; give this user Read on the topic")))
        }
        KafkaError::MessageConsumptionFatal(code) => {
            Err(Error::Fatal(format!("the consumer cannot continue: {code}; if the command fails again, report a bug")))
        }
        _ => Ok(()),
    }
}

/// Asks a broker whether the rest of the first unfinished range still exists, after no record has arrived for a while. Returns `true` if
/// the range exists and no fetch has failed. The capture then keeps waiting, because the remaining records may all be aborted, and
/// consumers do not receive aborted records. `timeout` is the time until the capture fails. If `timeout` is zero, this function returns an
/// error instead of `false`.
fn range_exists(
    consumer: &BaseConsumer<Observer>,
    ranges: &[Range],
    servers: &str,
    timeout: Duration,
    last_error: Option<&str>,
    report: &dyn Fn(&str),
) -> Result<bool, Error> {
    let Some(Range { of, next, end }) = ranges.iter().find(|range| range.left() > 0) else { return Ok(true) };
    let answer = consumer.fetch_watermarks(&of.topic, of.partition, timeout.clamp(POLL_INTERVAL, QUIET_AFTER));
    let error = match (last_error, answer) {
        (Some(last_error), _) => last_error.to_owned(),
        (None, Ok((_, reached))) if reached >= *end => return Ok(true),
        (None, Ok((_, reached))) => {
            format!("the end of the partition was offset {end} or later and is now {reached}, so its leader may have lost records")
        }
        (None, Err(error)) => {
            let complaint = consumer.context().complaint();
            if complaint.reason.is_empty() { error.to_string() } else { complaint.reason }
        }
    };
    if timeout.is_zero() {
        return Err(Error::Fatal(format!(
            "reading {of} stopped at offset {next}, because no more records arrived; check the brokers at {servers} ({error})"
        )));
    }
    throttle::report(&format!("capturing: {error}"), |_| {
        report(&format!("no records arrive; waiting {} s more ({error})", timeout.as_secs()));
    });
    Ok(false)
}
