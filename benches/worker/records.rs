//! The input stream: its ids, their order, and its records.

use crate::input::client;
use data_encoding::BASE64;
use flate2::Compression;
use flate2::read::GzEncoder;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::fmt;
use std::io::{Read, Write};
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time of the first event, 2026-01-01, in milliseconds since the epoch.
const FIRST_EVENT_MS: usize = 1_767_225_600_000;
/// One hour in milliseconds. The times of all events are within the hour after the first event.
const HOUR_MS: usize = 3_600_000;
/// Number of threads that fill a topic. Each thread fills some of the topic's partitions.
const FILLERS: usize = 2;
/// Seed of the random ids. The seed is constant, so all runs have the same ids.
const SEED: u64 = 0x756e_7365_656e;
/// Percentage of duplicates that repeat one of the last `CLOSE` ids, if ids are random. The other duplicates repeat one of the last
/// `DISTANT` ids.
const CLOSE_SHARE: u64 = 80;
const CLOSE: usize = 10_000;
const DISTANT: usize = 1_000_000;

/// Input stream of a command, as selected with `--load`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Load {
    /// Random ids. 80 % of the duplicates are among the last 10,000 ids, and 20 % among the last million. The records' times fill
    /// an hour, which is the window.
    Far,
    /// Consecutive ids. Duplicates are among the last thousand ids, which favors sorted stores. The window is a day.
    Near,
}

/// Format of the ids and distance between duplicates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Consecutive numbers. A duplicate repeats one of the last `reach` ids.
    Consecutive { reach: usize },
    /// Random numbers, with duplicates as in [`Load::Far`]. Successive ids are not in sorted order.
    Random,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Json,
    /// JSON with an event time, in the field `ts`.
    Timed,
    /// A JSON object whose text field `body` contains the record as JSON.
    InText,
    Base64,
    Gzip,
}

/// A stream of records. The number of a record determines its id and content. Ids are numbered, too. An id is written as 16 hexadecimal
/// digits: as the record's key and, unless `bytes` is 0, in the record's JSON.
#[derive(Clone, Copy)]
pub struct Stream {
    pub records: usize,
    /// Number of records at the start of the stream that contain no duplicates.
    pub lead: usize,
    /// Percentage of duplicates among the records after the lead.
    pub repeats: usize,
    pub ids: Ids,
    /// Size of a record's JSON in bytes, or 0 for an empty value.
    pub bytes: usize,
    pub form: Form,
    pub partitions: i32,
}

impl Stream {
    pub const fn usual(load: Load, records: usize, repeats: usize) -> Self {
        let ids = match load {
            Load::Far => Ids::Random,
            Load::Near => Ids::Consecutive { reach: 1000 },
        };
        Self { records, lead: 0, repeats, ids, bytes: 200, form: Form::Json, partitions: 4 }
    }

    /// Length of the window, in hours.
    pub const fn hours(&self) -> u64 {
        if matches!(self.ids, Ids::Random) { 1 } else { 24 }
    }

    /// Returns the number of distinct ids in the first `number` records.
    pub fn ids_before(&self, number: usize) -> usize {
        let after = number.saturating_sub(self.lead);
        number - after * self.repeats / 100
    }

    pub fn distinct(&self) -> usize {
        self.ids_before(self.records)
    }

    fn id(&self, number: usize) -> usize {
        let before = self.ids_before(number);
        if self.ids_before(number + 1) > before {
            return before;
        }
        let (random, reach) = match self.ids {
            Ids::Consecutive { reach } => (noise(number), reach),
            Ids::Random => {
                let random = mix(!(number as u64));
                (random / 100, if random % 100 < CLOSE_SHARE { CLOSE } else { DISTANT })
            }
        };
        before - 1 - usize::try_from(random).expect("64 bits") % before.min(reach)
    }

    /// Returns the 64 bits that are written for the id with this number.
    fn text(&self, id: usize) -> u64 {
        if self.ids == Ids::Random { mix(id as u64) } else { id as u64 }
    }

    /// Returns the number of the id in a key, or `None` if the key contains no id.
    pub fn id_of(&self, key: &[u8]) -> Option<usize> {
        let text = u64::from_str_radix(std::str::from_utf8(key).ok()?, 16).ok()?;
        usize::try_from(if self.ids == Ids::Random { unmix(text) } else { text }).ok()
    }

    /// Returns the timestamp of a record, in milliseconds since the epoch. `filled` is the time when the topic is filled. `None` means that
    /// the record gets the time of writing.
    fn time(&self, number: usize, filled: SystemTime) -> Option<i64> {
        const HOUR: u64 = 3_600_000;
        // All times are in the last full hour, so slices of a window always start at the same records.
        let now = filled.duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs() * 1000;
        let time = || now - now % HOUR - HOUR + number as u64 * (HOUR - 60_000) / self.records as u64;
        (self.ids == Ids::Random).then(|| i64::try_from(time()).expect("a valid time"))
    }

    /// Writes the key and the value of the record with this number. Returns its partition.
    pub fn write(&self, number: usize, key: &mut Vec<u8>, value: &mut Vec<u8>) -> i32 {
        let id = self.id(number);
        let text = self.text(id);
        key.clear();
        value.clear();
        write!(key, "{text:016x}").expect("writing to memory");
        if self.bytes > 0 {
            write!(value, r#"{{"user":{},"id":"{text:016x}","seen":true,"tags":["a","b"],"#, number % 1000).expect("writing to memory");
            if self.form == Form::Timed {
                write!(value, r#""ts":{},"#, FIRST_EVENT_MS + number * HOUR_MS / self.records).expect("writing to memory");
            }
            value.extend_from_slice(br#""text":""#);
            let room = self.bytes.saturating_sub(value.len() + 2);
            // A quarter of the value is random digits, which hardly compress. The rest of the text is one repeated letter, which compresses
            // well.
            let end = value.len() + room.min(self.bytes / 4);
            for word in 0.. {
                if value.len() >= end {
                    break;
                }
                write!(value, "{:016x}", noise(number * 4096 + word)).expect("writing to memory");
            }
            value.truncate(end);
            value.resize(self.bytes.saturating_sub(2).max(end), b'x');
            value.extend_from_slice(b"\"}");
            self.form.apply(value);
        }
        self.partition(id)
    }

    /// Returns the partition of all records with this id.
    fn partition(&self, id: usize) -> i32 {
        i32::try_from(id % self.partitions.unsigned_abs() as usize).expect("a partition number")
    }
}

impl Form {
    fn apply(self, value: &mut Vec<u8>) {
        match self {
            Self::Json | Self::Timed => {}
            Self::InText => {
                let text = String::from_utf8_lossy(value).into_owned();
                *value = serde_json::json!({ "body": text }).to_string().into_bytes();
            }
            Self::Base64 => *value = BASE64.encode(value).into_bytes(),
            Self::Gzip => {
                let mut gzip = Vec::new();
                GzEncoder::new(&value[..], Compression::fast()).read_to_end(&mut gzip).expect("memory can be read");
                *value = gzip;
            }
        }
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
            0 => write!(f, "{repeats} % duplicates"),
            lead if lead >= records => write!(f, "all with distinct ids"),
            lead => write!(f, "{lead} of them with distinct ids, then {repeats} % duplicates"),
        }?;
        if self.ids == Ids::Random { write!(f, ", random ids, far duplicates") } else { write!(f, ", consecutive ids, near duplicates") }
    }
}

fn noise(number: usize) -> u64 {
    let mixed = (number as u64 ^ (number as u64 >> 31)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 1
}

/// A deterministic pseudorandom bijection: the finalizer of `SplitMix64`. No two ids are the same.
fn mix(number: u64) -> u64 {
    let mut mixed = number ^ SEED;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn unmix(mut mixed: u64) -> u64 {
    mixed = (mixed ^ (mixed >> 31) ^ (mixed >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    mixed = (mixed ^ (mixed >> 27) ^ (mixed >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    mixed ^ (mixed >> 30) ^ (mixed >> 60) ^ SEED
}

/// Creates a producer that is fast enough not to limit a measurement.
pub fn producer(broker: &str, linger_ms: &str) -> BaseProducer {
    let mut client = client(broker);
    client.set("enable.idempotence", "true").set("compression.type", "lz4").set("linger.ms", linger_ms);
    client.set("queue.buffering.max.messages", "500000").set("delivery.report.only.error", "true").create().expect("a producer")
}

/// Passes a record to the producer. Waits while the producer's queue is full.
pub fn send(producer: &BaseProducer, mut record: BaseRecord<'_, [u8], [u8]>) {
    while let Err((error, refused)) = producer.send(record) {
        assert!(error == KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), "{error}");
        record = refused;
        producer.poll(Duration::from_millis(10));
    }
}

pub fn produce(broker: &str, topic: &str, stream: Stream, numbers: Range<usize>) {
    let filled = SystemTime::now();
    std::thread::scope(|scope| {
        for filler in 0..FILLERS {
            let numbers = numbers.clone();
            scope.spawn(move || {
                let producer = producer(broker, "20");
                let (mut key, mut value) = (Vec::new(), Vec::new());
                for number in numbers {
                    if stream.id(number) % stream.partitions.unsigned_abs() as usize % FILLERS == filler {
                        let partition = stream.write(number, &mut key, &mut value);
                        let record = BaseRecord::to(topic).partition(partition).key(&key[..]).payload(&value[..]);
                        let time = stream.time(number, filled);
                        send(&producer, if let Some(time) = time { record.timestamp(time) } else { record });
                    }
                }
                producer.flush(Duration::from_secs(120)).expect("the broker accepts all records");
            });
        }
    });
}
