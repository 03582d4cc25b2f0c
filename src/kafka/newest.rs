//! A comparison of the newest record times with this machine's clock, for `unseen check --connect`.
//!
//! The comparison never makes a check fail, so it leaves out partitions that it cannot read in time. It never joins a group or commits an
//! offset.

use super::client_config as client;
use super::ffi::LoggedIn;
use super::observer::Observer;
use crate::config::{Config, Topic};
use crate::record::Timestamp;
use crate::runtime;
use crate::stats::{is_seconds, likely_cause};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The number of offsets to read at the end of a partition. A single offset would not be enough, because the last offsets may be
/// transaction markers.
const TAIL: i64 = 16;

/// Time limit for reading all topics.
const TIMEOUT: Duration = Duration::from_secs(20);

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Returns a warning for each topic if the times of its newest records do not move the window or move it too slowly. Checks only topics
/// whose keys expire by Kafka's timestamps. Skips topics with the option `time` and topics whose keys expire by count.
pub(super) fn warnings(config: &Config, partitions: &BTreeMap<String, u32>) -> Vec<String> {
    let deadline = Instant::now() + TIMEOUT;
    let timed = config.topics.iter().filter(|topic| topic.forgets_by_time() && topic.time.is_none());
    timed
        .filter_map(|topic| {
            let newest = newest(config, &topic.input, *partitions.get(&topic.input)?, deadline)?;
            warning(topic, &newest, runtime::wall_clock()).map(|warning| format!("{}: {warning}", topic.setting("input")))
        })
        .collect()
}

/// Reads the last [`TAIL`] offsets of each partition and returns the time of the last record that arrives before `deadline`. Leaves out a
/// partition if no record with a valid time arrives. Returns `None` if the consumer cannot be created.
fn newest(config: &Config, topic: &str, partitions: u32, deadline: Instant) -> Option<BTreeMap<i32, Timestamp>> {
    let mut client = client::capture(config);
    // If retention has left fewer than `TAIL` offsets, the start offset is out of range. Then start at the first record.
    client.set("auto.offset.reset", "earliest");
    let consumer: LoggedIn<BaseConsumer<Observer>> = client::create(&client, &config.kafka, Observer::new(config)).ok()?;
    let mut list = TopicPartitionList::new();
    let mut unread: BTreeSet<_> = (0..partitions.cast_signed()).collect();
    for &partition in &unread {
        list.add_partition_offset(topic, partition, Offset::OffsetTail(TAIL)).ok()?;
    }
    consumer.assign(&list).ok()?;
    let mut newest = BTreeMap::new();
    while !unread.is_empty() && Instant::now() < deadline {
        match consumer.poll(POLL_INTERVAL) {
            Some(Ok(message)) => {
                if let Some(time) = message.timestamp().to_millis().filter(|&time| time >= 0) {
                    newest.insert(message.partition(), time);
                }
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => drop(unread.remove(&partition)),
            // librdkafka retries until the deadline.
            Some(Err(_)) | None => {}
        }
    }
    Some(newest)
}

fn warning(topic: &Topic, newest: &BTreeMap<i32, Timestamp>, now: Timestamp) -> Option<String> {
    let name = &topic.input;
    let max_timestamp = topic.max_timestamp(now);
    let future = newest.iter().filter(|&(_, &time)| time > max_timestamp);
    if let Some((partition, &time)) = future.clone().max_by_key(|&(_, time)| time) {
        return Some(format!(
            "in {} of the {} partitions of {name:?} that have records, the newest record is more than {} ahead of this machine's clock; such records do not move the window, so keys may stay seen for too long, and records that should be emitted may count as duplicates; in partition {partition}, {}",
            future.count(),
            newest.len(),
            humantime::format_duration(topic.max_future),
            likely_cause(time, now)
        ));
    }
    let (partition, time) = newest.iter().find(|&(_, &time)| is_seconds(time))?;
    Some(format!(
        "record times of {name:?}, such as {time} in partition {partition}, look like seconds, so keys expire only after 1000 times the window; make the producers write milliseconds since 1970"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = 1_767_268_800_000;

    fn warned(times: &[Timestamp]) -> Option<String> {
        let topic = "input = \"in\"\nkey = { record = \"key\" }\nwindow = \"1h\"\nfilter = { kind = \"exact\" }\n";
        let config = Config::of_text(&format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n[[topics]]\n{topic}"));
        warning(&config.topics[0], &(0..).zip(times.iter().copied()).collect(), NOW)
    }

    #[test]
    fn record_times_that_do_not_move_the_window_cause_a_warning() {
        for (times, words) in [
            (&[NOW, NOW * 1000][..], "in 1 of the 2 partitions of \"in\" that have records, the newest record is more than 5m ahead"),
            (&[NOW * 1000], "in partition 0, times such as 1767268800000000 look like microseconds"),
            (&[NOW + 3_600_000], "in partition 0, the last one was 1h ahead: check this machine's clock"),
            (&[NOW, NOW / 1000], "such as 1767268800 in partition 1, look like seconds"),
        ] {
            let warning = warned(times).unwrap_or_default();
            assert!(warning.contains(words), "{times:?}: {warning}");
        }
        for times in [&[][..], &[NOW, NOW - 86_400_000, NOW + 299_000], &[0, 1]] {
            assert_eq!(warned(times), None, "{times:?}");
        }
    }
}
