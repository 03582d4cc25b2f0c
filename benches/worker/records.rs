//! What is read: which ids, in which order, in what records.

use crate::broker::client;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::time::Duration;

/// Threads that fill a topic, each some of its partitions.
const FILLERS: usize = 2;

/// A stream of records, each determined by its number. An id has a number, too; it is written as 16 hexadecimal
/// digits, as the record's key and, where there is room, in its JSON.
#[derive(Clone, Copy)]
pub struct Stream {
    pub records: usize,
    /// So many begin the stream without a repeat.
    pub lead: usize,
    /// Of a hundred of those that follow, so many repeat an earlier id.
    pub repeats: usize,
    /// Repeats are of one of the last so many ids.
    pub reach: usize,
    /// Of a record's value. None is an empty value.
    pub bytes: usize,
    pub partitions: i32,
}

impl Stream {
    /// Records of 200 bytes in four partitions, so many of a hundred repeats.
    pub const fn usual(records: usize, repeats: usize) -> Self {
        Self { records, lead: 0, repeats, reach: 1000, bytes: 200, partitions: 4 }
    }

    /// How many ids the records before this one have shown.
    pub fn ids_before(&self, number: usize) -> usize {
        let after = number.saturating_sub(self.lead);
        number - after * self.repeats / 100
    }

    /// How many ids there are in all.
    pub fn ids(&self) -> usize {
        self.ids_before(self.records)
    }

    fn id(&self, number: usize) -> usize {
        let before = self.ids_before(number);
        let repeat = self.ids_before(number + 1) == before;
        if repeat { before - 1 - usize::try_from(noise(number)).expect("64 bits") % before.min(self.reach) } else { before }
    }

    /// Writes the record of this number: its key and its value. Says its partition.
    pub fn write(&self, number: usize, key: &mut Vec<u8>, value: &mut Vec<u8>) -> i32 {
        let id = self.id(number);
        key.clear();
        value.clear();
        write!(key, "{id:016x}").expect("memory takes it");
        if self.bytes > 0 {
            write!(value, r#"{{"user":{},"id":"{id:016x}","seen":true,"tags":["a","b"],"text":""#, number % 1000).expect("memory takes it");
            let room = self.bytes.saturating_sub(value.len() + 2);
            // A quarter that hardly compresses; the rest does, much.
            let end = value.len() + room.min(self.bytes / 4);
            for word in 0.. {
                if value.len() >= end {
                    break;
                }
                write!(value, "{:016x}", noise(number * 4096 + word)).expect("memory takes it");
            }
            value.truncate(end);
            value.resize(self.bytes.saturating_sub(2).max(end), b'x');
            value.extend_from_slice(b"\"}");
        }
        self.partition(id)
    }

    /// An id's records stay in one partition.
    fn partition(&self, id: usize) -> i32 {
        i32::try_from(id % self.partitions.unsigned_abs() as usize).expect("one of the partitions")
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, lead, repeats, bytes, partitions, .. } = self;
        write!(f, "{records} records ")?;
        if *bytes > 0 {
            write!(f, "of {bytes} bytes ")?;
        }
        write!(f, "in {partitions} partitions, ")?;
        match lead {
            0 => write!(f, "{repeats} % repeats"),
            lead if lead >= records => write!(f, "all with new ids"),
            lead => write!(f, "{lead} of them with new ids, then {repeats} % repeats"),
        }
    }
}

/// The number of the id that a key says.
pub fn id_of(key: &[u8]) -> Option<usize> {
    usize::from_str_radix(std::str::from_utf8(key).ok()?, 16).ok()
}

/// As good as random, and always the same.
fn noise(number: usize) -> u64 {
    let mixed = (number as u64 ^ (number as u64 >> 31)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 1
}

/// A producer that keeps up.
pub fn producer(broker: &str, linger_ms: &str) -> BaseProducer {
    let mut client = client(broker);
    client.set("enable.idempotence", "true").set("compression.type", "lz4").set("linger.ms", linger_ms);
    client.set("queue.buffering.max.messages", "500000").set("delivery.report.only.error", "true").create().expect("a producer")
}

/// Hands a record over; waits while there is no room.
pub fn send(producer: &BaseProducer, mut record: BaseRecord<'_, [u8], [u8]>) {
    while let Err((error, refused)) = producer.send(record) {
        assert!(error == KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), "{error}");
        record = refused;
        producer.poll(Duration::from_millis(10));
    }
}

/// Writes these records of the stream to the topic.
pub fn produce(broker: &str, topic: &str, stream: Stream, numbers: Range<usize>) {
    std::thread::scope(|scope| {
        for filler in 0..FILLERS {
            let numbers = numbers.clone();
            scope.spawn(move || {
                let producer = producer(broker, "20");
                let (mut key, mut value) = (Vec::new(), Vec::new());
                for number in numbers {
                    if stream.id(number) % stream.partitions.unsigned_abs() as usize % FILLERS == filler {
                        let partition = stream.write(number, &mut key, &mut value);
                        send(&producer, BaseRecord::to(topic).partition(partition).key(&key[..]).payload(&value[..]));
                    }
                }
                producer.flush(Duration::from_secs(120)).expect("the broker takes all records");
            });
        }
    });
}
