//! Requests in Kafka's wire protocol that rdkafka cannot send: records with timestamp 0, which librdkafka replaces with the current time,
//! and leader changes.
//!
//! See the Kafka protocol guide: `Produce` version 3, `Record Batch` version 2, `ElectLeaders` version 1, `AlterPartitionReassignments`
//! version 0.

use super::TestRecord;
use super::topic::client;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::metadata::{Metadata, MetadataTopic};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const TIMEOUT_MS: i32 = 30_000;

/// Writes records to one partition in one batch. Returns the broker's error code, or -1 if the partition has no leader or the leader does
/// not respond.
pub fn produce_raw(broker: &str, topic: &str, records: &[TestRecord]) -> i16 {
    let batch = batch(records);
    let mut request = header(0, 3);
    // The fields are: no transactional ID, acks from all replicas, the timeout, and one topic.
    put(&mut request, &[&(-1_i16).to_be_bytes(), &(-1_i16).to_be_bytes(), &TIMEOUT_MS.to_be_bytes(), &1_i32.to_be_bytes()]);
    string(&mut request, topic);
    put(&mut request, &[&1_i32.to_be_bytes(), &records[0].partition.to_be_bytes(), &length(&batch).to_be_bytes(), &batch]);
    // The error code follows the correlation ID, the number of topics, the topic, the number of partitions, and the partition.
    let code_at = 4 + 4 + 2 + topic.len() + 4 + 4;
    leader(broker, topic, records[0].partition).and_then(|leader| ask(&leader, &request).ok()).map_or(-1, |answer| code(&answer, code_at))
}

/// Moves the first replica of every partition to the end of its list of replicas, which changes the preferred leader. The leaders move only
/// when [`elect_first_replicas`] is called. Kafka's internal topics are included, so the coordinators of groups and transactions move, too.
/// Returns `false` if the request fails.
pub fn move_leaders(broker: &str) -> bool {
    let Some(metadata) = metadata(broker, None) else { return false };
    let mut request = header(45, 0);
    request.push(0);
    put(&mut request, &[&TIMEOUT_MS.to_be_bytes(), &compact(metadata.topics().len())]);
    for topic in metadata.topics() {
        put(&mut request, &[&compact(topic.name().len()), topic.name().as_bytes(), &compact(topic.partitions().len())]);
        for partition in topic.partitions() {
            put(&mut request, &[&partition.id().to_be_bytes(), &compact(partition.replicas().len())]);
            let (first, others) = partition.replicas().split_first().expect("a partition has replicas");
            others.iter().chain([first]).for_each(|replica| request.extend(replica.to_be_bytes()));
            request.push(0);
        }
        request.push(0);
    }
    request.push(0);
    // The error code follows the correlation ID, the tagged fields of the header, and the throttle time.
    any(broker, &request).is_some_and(|answer| code(&answer, 4 + 1 + 4) == 0)
}

/// Elects the first replica of every partition (the preferred replica) as its leader. Returns `false` if the request fails or a partition
/// still has another leader.
pub fn elect_first_replicas(broker: &str) -> bool {
    let mut request = header(43, 1);
    // Election type 0 elects the preferred replicas. A topic list of null (-1) means all partitions.
    put(&mut request, &[&[0], &(-1_i32).to_be_bytes(), &TIMEOUT_MS.to_be_bytes()]);
    let is_first = |metadata: &Metadata| {
        let mut partitions = metadata.topics().iter().flat_map(MetadataTopic::partitions);
        partitions.all(|partition| partition.replicas().first() == Some(&partition.leader()))
    };
    // The error code follows the correlation ID and the throttle time.
    any(broker, &request).is_some_and(|answer| code(&answer, 4 + 4) == 0) && metadata(broker, None).is_some_and(|found| is_first(&found))
}

fn metadata(broker: &str, topic: Option<&str>) -> Option<Metadata> {
    let consumer: BaseConsumer = client(broker).create().expect("a consumer");
    consumer.fetch_metadata(topic, TIMEOUT).ok()
}

fn leader(broker: &str, topic: &str, partition: i32) -> Option<String> {
    let metadata = metadata(broker, Some(topic))?;
    let leader = metadata.topics().first()?.partitions().iter().find(|found| found.id() == partition)?.leader();
    let broker = metadata.brokers().iter().find(|broker| broker.id() == leader)?;
    Some(format!("{}:{}", broker.host(), broker.port()))
}

/// Sends a request to one broker after another until one responds. Any broker may receive the request, because it forwards the request to
/// the controller.
fn any(brokers: &str, request: &[u8]) -> Option<Vec<u8>> {
    brokers.split(',').find_map(|broker| ask(broker, request).ok())
}

/// Sends a request and returns the response without its size.
fn ask(broker: &str, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(broker)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&length(request).to_be_bytes())?;
    stream.write_all(request)?;
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(size)).expect("a size")];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn code(answer: &[u8], at: usize) -> i16 {
    i16::from_be_bytes([answer[at], answer[at + 1]])
}

fn header(key: i16, version: i16) -> Vec<u8> {
    let mut request = Vec::new();
    put(&mut request, &[&key.to_be_bytes(), &version.to_be_bytes(), &7_i32.to_be_bytes()]);
    string(&mut request, "wire");
    request
}

/// Encodes the length of a compact array or string, as length + 1.
fn compact(length: usize) -> Vec<u8> {
    let mut out = Vec::new();
    unsigned_varint(&mut out, u64::try_from(length).expect("few enough") + 1);
    out
}

fn batch(records: &[TestRecord]) -> Vec<u8> {
    let times = || records.iter().map(|record| record.timestamp);
    let (first, last) = (times().next().expect("a record"), times().max().expect("a record"));
    let count = i32::try_from(records.len()).expect("few enough");
    let mut body = Vec::new();
    put(&mut body, &[&0_i16.to_be_bytes(), &(count - 1).to_be_bytes(), &first.to_be_bytes(), &last.to_be_bytes()]);
    put(&mut body, &[&(-1_i64).to_be_bytes(), &(-1_i16).to_be_bytes(), &(-1_i32).to_be_bytes(), &count.to_be_bytes()]);
    for (number, record) in (0..).zip(records) {
        let mut bytes = vec![0];
        varint(&mut bytes, record.timestamp - first);
        varint(&mut bytes, number);
        for part in [&record.key, &record.value] {
            varint(&mut bytes, part.as_ref().map_or(-1, |part| i64::from(length(part))));
            bytes.extend(part.iter().flatten());
        }
        varint(&mut bytes, i64::try_from(record.headers.len()).expect("few enough"));
        for (name, value) in &record.headers {
            varint(&mut bytes, i64::from(length(name.as_bytes())));
            bytes.extend(name.as_bytes());
            varint(&mut bytes, value.as_ref().map_or(-1, |value| i64::from(length(value))));
            bytes.extend(value.iter().flatten());
        }
        varint(&mut body, i64::from(length(&bytes)));
        body.extend(bytes);
    }
    let mut batch = Vec::new();
    put(&mut batch, &[&0_i64.to_be_bytes(), &(length(&body) + 9).to_be_bytes(), &(-1_i32).to_be_bytes(), &[2]]);
    put(&mut batch, &[&crc32c(&body).to_be_bytes(), &body]);
    batch
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}

fn length(bytes: &[u8]) -> i32 {
    i32::try_from(bytes.len()).expect("few enough")
}

fn string(out: &mut Vec<u8>, text: &str) {
    put(out, &[&i16::try_from(text.len()).expect("short").to_be_bytes(), text.as_bytes()]);
}

/// Zigzag encoding, as in Protocol Buffers.
fn varint(out: &mut Vec<u8>, number: i64) {
    unsigned_varint(out, ((number << 1) ^ (number >> 63)).cast_unsigned());
}

fn unsigned_varint(out: &mut Vec<u8>, mut left: u64) {
    while left >= 0x80 {
        out.push(u8::try_from(left & 0x7f).expect("7 bits") | 0x80);
        left >>= 7;
    }
    out.push(u8::try_from(left).expect("7 bits"));
}

pub fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}
