//! A topic's records, read once from where to where was asked: for `unseen capture`.
//!
//! Owns which records those are, and when all of them have come. Joins no group and commits nothing. Must never wait for
//! records that were not there when it began.

use super::Error;
use super::admin::partitions;
use super::client_config::{self as client, CALL_TIMEOUT};
use super::cluster;
use super::fetch_error::{is_corrupt, is_out_of_range};
use super::ffi::{Fetcher, LoggedIn, Message};
use super::observer::Observer;
use super::source::{list, unanswered};
use crate::broker::{Record as _, throttle};
use crate::config::Config;
use crate::record::{Offset, Timestamp, TopicPartition};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::Offset as Position;
use std::time::{Duration, Instant};

/// Most records that are handed over at a time.
const RECORDS_MAX: usize = 1000;

/// How long to look for records at a time; bounds how late a stop is noticed.
const TURN: Duration = Duration::from_millis(100);

/// How long brokers say nothing before a word is said about it.
const SILENCE: Duration = Duration::from_secs(2);

/// Most events of the client that are heard before records are looked at again.
const EVENTS_MAX: usize = 1000;

/// Which records of a topic are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The topic.
    pub topic: String,
    /// Its partitions; all of them if none is named.
    pub partitions: Vec<i32>,
    /// From the first record of this time or later in each partition; else from the first that there is.
    pub from: Option<Timestamp>,
    /// Up to the first record of this time or later in each partition, without it; else up to the last committed one.
    pub to: Option<Timestamp>,
    /// Only these offsets of each partition, if they are named.
    pub offsets: Option<std::ops::Range<Offset>>,
}

/// Reads the records that are wanted.
pub struct Capture {
    fetcher: Fetcher<Observer>,
    servers: String,
    patience: Duration,
    partitions: u32,
    ranges: Vec<Range>,
}

/// What is left to read of a partition.
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
    /// Waits for a broker, and asks where the records lie. What is waited for is reported meanwhile.
    ///
    /// # Errors
    /// When no broker answers within `kafka.connect_timeout`, the topic or a partition is not there, or a right is missing.
    pub fn start(config: &Config, wanted: &Wanted, stop: &dyn Fn() -> bool, report: &dyn Fn(&str)) -> Result<Self, Error> {
        let consumer: LoggedIn<BaseConsumer<Observer>> = client::create(&client::capture(config), &config.kafka, Observer::new(config))
            .map_err(|error| client::property_error(&error))?;
        cluster::wait(&consumer, config, false, stop, report)?;
        let topic = &wanted.topic;
        let partitions = match partitions(&consumer, topic) {
            Ok(0) => return Err(Error::Fatal(format!("topic {topic:?} does not exist; name one that does"))),
            Ok(count) => count,
            // Without any right, a topic that is not there looks the same.
            Err(KafkaError::MetadataFetch(RDKafkaErrorCode::TopicAuthorizationFailed)) => {
                return Err(Error::Fatal(format!("this user may not see topic {topic:?}, if it exists; give the user Read on it")));
            }
            Err(error) => return Err(unanswered(&format!("look at topic {topic:?}"), &error)),
        };
        let mut numbers = wanted.partitions.clone();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.is_empty() {
            numbers = (0..partitions.cast_signed()).collect();
        }
        if let Some(number) = numbers.iter().find(|&&number| number < 0 || number.cast_unsigned() >= partitions) {
            return Err(Error::Fatal(format!("topic {topic:?} has partitions 0 to {}, and none of number {number}", partitions - 1)));
        }
        let of = |partition| TopicPartition { topic: topic.clone(), partition };
        let ranges = ranges(&consumer, numbers.into_iter().map(of).collect(), wanted, stop)?;
        let fetcher = Fetcher::new(consumer).ok_or_else(|| Error::Fatal("librdkafka has no queue for the consumer".to_owned()))?;
        let servers = config.kafka.bootstrap_servers.clone();
        Ok(Self { fetcher, servers, patience: config.kafka.connect_timeout, partitions, ranges })
    }

    /// How many partitions the topic has.
    #[must_use]
    pub const fn partitions(&self) -> u32 {
        self.partitions
    }

    /// How many offsets there are still to pass. There are fewer records: some were aborted or compacted away, some offsets
    /// hold none.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.ranges.iter().map(Range::left).sum()
    }

    /// Hands the records over, those of a partition in order, with how many offsets are left; until `take` says to stop by
    /// `false`, or `stop` does. Returns whether all have come.
    ///
    /// # Errors
    /// When they cannot be read, or brokers say nothing for `kafka.connect_timeout`, or what `take` fails with.
    pub fn read<E: From<Error>>(
        &mut self,
        stop: &dyn Fn() -> bool,
        report: &dyn Fn(&str),
        take: &mut dyn FnMut(&Message<'_>, u64) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Self { fetcher, ranges, servers, patience, .. } = self;
        assign(fetcher, ranges)?;
        let mut left: u64 = ranges.iter().map(Range::left).sum();
        let mut messages = Vec::new();
        let (mut came, mut trouble) = (Instant::now(), None);
        while left > 0 {
            if stop() {
                return Ok(false);
            }
            hear(fetcher.consumer())?;
            fetcher.take(RECORDS_MAX, TURN, &mut messages);
            if came.elapsed() >= SILENCE && messages.iter().all(Message::is_error) {
                let patience = patience.saturating_sub(came.elapsed());
                if still_there(fetcher.consumer(), ranges, servers, patience, trouble.as_deref(), report)? {
                    came = Instant::now();
                }
            }
            for message in messages.drain(..) {
                let Ok(at) = ranges.binary_search_by_key(&message.partition(), |range| range.of.partition) else { continue };
                let range = &mut ranges[at];
                let before = range.left();
                let next = match message.error() {
                    // Nobody asked for those past the end, nor twice for those that had come.
                    None if message.offset() < range.next || before == 0 => continue,
                    None => message.offset().saturating_add(1),
                    // Where it was met: a leader that has just become one may not know yet of all that is committed.
                    Some((RDKafkaErrorCode::PartitionEOF, _)) => message.offset(),
                    Some((code, reason)) => {
                        read_again(fetcher.consumer(), range, code)?;
                        trouble = Some(reason);
                        continue;
                    }
                };
                let is_wanted = !message.is_error() && message.offset() < range.end;
                range.next = next.clamp(range.next, range.end);
                left -= before - range.left();
                (came, trouble) = (Instant::now(), None);
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

/// Where each partition is to be read from and to.
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
        // For a reader of committed records, the end is before the first transaction that is open.
        let (low, end) = consumer
            .fetch_watermarks(&of.topic, of.partition, CALL_TIMEOUT)
            .map_err(|error| unanswered(&format!("read how far {of} reaches"), &error))?;
        // Where no record is that young, there is nothing to read from, and no bound.
        let next = from.unwrap_or(end).max(low);
        let end = to.map_or(end, |found| found.min(end));
        let (next, end) = wanted.offsets.as_ref().map_or((next, end), |only| (next.max(only.start), end.min(only.end)));
        ranges.push(Range { of, next, end: end.max(next) });
    }
    Ok(ranges)
}

/// The first offset of a record of that time or later in each partition, if there is such a record.
fn offsets_at(consumer: &BaseConsumer<Observer>, partitions: &[TopicPartition], time: Timestamp) -> Result<Vec<Option<Offset>>, Error> {
    let failed = |error: KafkaError| unanswered(&format!("find the records of time {time}"), &error);
    let asked = list(partitions.iter().map(|partition| (partition, Position::Offset(time))))?;
    let answer = consumer.offsets_for_times(asked, CALL_TIMEOUT).map_err(failed)?;
    let offset = |partition: &TopicPartition| {
        let Some(element) = answer.find_partition(&partition.topic, partition.partition) else { return Ok(None) };
        element.error().map_err(failed)?;
        Ok(match element.offset() {
            Position::Offset(offset) => Some(offset),
            _ => None,
        })
    };
    partitions.iter().map(offset).collect()
}

/// Begins to read.
fn assign(fetcher: &Fetcher<Observer>, ranges: &[Range]) -> Result<(), Error> {
    let wanted = || ranges.iter().filter(|range| range.left() > 0);
    fetcher.forward(wanted().map(|range| &range.of)).map_err(Error::Fatal)?;
    let list = list(wanted().map(|range| (&range.of, Position::Offset(range.next))))?;
    fetcher.consumer().assign(&list).map_err(|error| Error::Fatal(format!("cannot read the partitions: {error}")))
}

fn pause(consumer: &BaseConsumer<Observer>, of: &TopicPartition) -> Result<(), Error> {
    let list = list([(of, Position::Invalid)].into_iter())?;
    consumer.pause(&list).map_err(|error| Error::Fatal(format!("cannot pause {of}: {error}")))
}

/// Lets the client say what is of no partition.
fn hear(consumer: &BaseConsumer<Observer>) -> Result<(), Error> {
    for _ in 0..EVENTS_MAX {
        match consumer.poll(Duration::ZERO) {
            None => break,
            Some(Err(error)) => fatal(&error)?,
            Some(Ok(_)) => {
                return Err(Error::Fatal("a record came by another way than it was asked to; please report this as a bug".to_owned()));
            }
        }
    }
    Ok(())
}

/// Goes on after the news of an error in a partition, if another try may mend that.
fn read_again(consumer: &BaseConsumer<Observer>, range: &Range, code: RDKafkaErrorCode) -> Result<(), Error> {
    let Range { of, next, .. } = range;
    if is_out_of_range(code) {
        return Err(Error::Fatal(format!(
            "records of {of} from offset {next} were deleted before they were read; begin later, or have the topic keep its records for longer"
        )));
    }
    fatal(&KafkaError::MessageConsumption(code))?;
    // librdkafka takes the news for a record that was read, and might go on behind the next one.
    consumer
        .seek(&of.topic, of.partition, Position::Offset(*next), Duration::ZERO)
        .map_err(|error| Error::Fatal(format!("cannot go to offset {next} of {of}: {error}")))
}

/// Returns an error if the capture cannot continue without a gap. Otherwise librdkafka retries.
fn fatal(error: &KafkaError) -> Result<(), Error> {
    match error {
        KafkaError::MessageConsumption(code) if is_corrupt(*code) => {
            Err(Error::Fatal(format!("a record batch is corrupt or unreadable ({code}); capture what is before or after it")))
        }
        KafkaError::MessageConsumption(RDKafkaErrorCode::TopicAuthorizationFailed) => {
            Err(Error::Fatal("the brokers do not allow it; give this user Read on the topic".to_owned()))
        }
        KafkaError::MessageConsumptionFatal(code) => Err(Error::Fatal(format!("the consumer cannot go on: {code}"))),
        _ => Ok(()),
    }
}

/// Whether the brokers still have what is to come, though nothing has come for a while: aborted records are read without
/// a word. Waits for an answer no longer than that is worth.
fn still_there(
    consumer: &BaseConsumer<Observer>,
    ranges: &[Range],
    servers: &str,
    patience: Duration,
    trouble: Option<&str>,
    report: &dyn Fn(&str),
) -> Result<bool, Error> {
    let Some(Range { of, next, end }) = ranges.iter().find(|range| range.left() > 0) else { return Ok(true) };
    let answer = consumer.fetch_watermarks(&of.topic, of.partition, patience.clamp(TURN, SILENCE));
    let error = match (trouble, answer) {
        (Some(trouble), _) => trouble.to_owned(),
        (None, Ok((_, reached))) if reached >= *end => return Ok(true),
        (None, Ok((_, reached))) => format!("it ended at offset {end}, and now ends at {reached}: its leader has lost records"),
        (None, Err(error)) => {
            let complaint = consumer.context().complaint();
            if complaint.reason.is_empty() { error.to_string() } else { complaint.reason }
        }
    };
    if patience.is_zero() {
        return Err(Error::Fatal(format!("{of} could be read up to offset {next} only; is Kafka running at {servers}? ({error})")));
    }
    throttle::report(&format!("capturing: {error}"), |_| {
        report(&format!("nothing comes; waiting {} s more ({error})", patience.as_secs()));
    });
    Ok(false)
}
