//! What is read: which ids, in which order, in what records.

use crate::input::client;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Threads that fill a topic, each some of its partitions.
const FILLERS: usize = 2;
/// What random ids are drawn from: always the same ones.
const SEED: u64 = 0x756e_7365_656e;
/// Of a hundred repeats of random ids, so many are of one of the last `CLOSE`; the others of one of the last `DISTANT`.
const CLOSE_SHARE: u64 = 80;
const CLOSE: usize = 10_000;
const DISTANT: usize = 1_000_000;

/// What is read unless a command needs something else.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Load {
    /// Random ids. Of the repeats, 80 % are of one of the last 10,000 ids, 20 % of one of the last million. The records'
    /// times fill an hour, which is the window.
    Far,
    /// Consecutive ids; repeats are of one of the last thousand: kind to a sorted store. The window is a day.
    Near,
}

/// How ids are written, and how far back repeats reach.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Its number; repeats are of one of the last so many.
    Consecutive { reach: usize },
    /// As of [`Load::Far`]. Ids that follow each other in time do not in order.
    Random,
}

/// A stream of records, each determined by its number. An id has a number, too; it is written as 16 hexadecimal
/// digits, as the record's key and, where there is room, in its JSON.
#[derive(Clone, Copy)]
pub struct Stream {
    pub records: usize,
    /// So many begin the stream without a repeat.
    pub lead: usize,
    /// Of a hundred of those that follow, so many repeat an earlier id.
    pub repeats: usize,
    pub ids: Ids,
    /// Of a record's value. None is an empty value.
    pub bytes: usize,
    pub partitions: i32,
}

impl Stream {
    /// Records of 200 bytes in four partitions, so many of a hundred repeats.
    pub const fn usual(load: Load, records: usize, repeats: usize) -> Self {
        let ids = match load {
            Load::Far => Ids::Random,
            Load::Near => Ids::Consecutive { reach: 1000 },
        };
        Self { records, lead: 0, repeats, ids, bytes: 200, partitions: 4 }
    }

    /// Of the window, in hours.
    pub const fn hours(&self) -> u64 {
        if matches!(self.ids, Ids::Random) { 1 } else { 24 }
    }

    /// How many ids the records before this one have shown.
    pub fn ids_before(&self, number: usize) -> usize {
        let after = number.saturating_sub(self.lead);
        number - after * self.repeats / 100
    }

    /// How many ids there are in all.
    pub fn distinct(&self) -> usize {
        self.ids_before(self.records)
    }

    /// The number of a record's id.
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

    /// What is written of an id of this number.
    fn text(&self, id: usize) -> u64 {
        if self.ids == Ids::Random { mix(id as u64) } else { id as u64 }
    }

    /// The number of the id that a key says.
    pub fn id_of(&self, key: &[u8]) -> Option<usize> {
        let text = u64::from_str_radix(std::str::from_utf8(key).ok()?, 16).ok()?;
        usize::try_from(if self.ids == Ids::Random { unmix(text) } else { text }).ok()
    }

    /// The time of a record, in milliseconds since the epoch, in a topic that is filled at this time. None is that of its
    /// being written.
    fn time(&self, number: usize, filled: SystemTime) -> Option<i64> {
        const HOUR: u64 = 3_600_000;
        // All lie in the last hour of the clock that is over, so that slices of a window always begin at the same records.
        let now = filled.duration_since(UNIX_EPOCH).expect("it is past 1970").as_secs() * 1000;
        let time = || now - now % HOUR - HOUR + number as u64 * (HOUR - 60_000) / self.records as u64;
        (self.ids == Ids::Random).then(|| i64::try_from(time()).expect("not for ever"))
    }

    /// Writes the record of this number: its key and its value. Says its partition.
    pub fn write(&self, number: usize, key: &mut Vec<u8>, value: &mut Vec<u8>) -> i32 {
        let id = self.id(number);
        let text = self.text(id);
        key.clear();
        value.clear();
        write!(key, "{text:016x}").expect("memory takes it");
        if self.bytes > 0 {
            write!(value, r#"{{"user":{},"id":"{text:016x}","seen":true,"tags":["a","b"],"text":""#, number % 1000)
                .expect("memory takes it");
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
        }?;
        if self.ids == Ids::Random { write!(f, ", random ids, far repeats") } else { write!(f, ", consecutive ids, near repeats") }
    }
}

/// As good as random, and always the same.
fn noise(number: usize) -> u64 {
    let mixed = (number as u64 ^ (number as u64 >> 31)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 1
}

/// As good as random: the finalizer of `SplitMix64`, which gives each number another one, so no two ids are the same.
fn mix(number: u64) -> u64 {
    let mut mixed = number ^ SEED;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// What was mixed to this.
fn unmix(mut mixed: u64) -> u64 {
    mixed = (mixed ^ (mixed >> 31) ^ (mixed >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    mixed = (mixed ^ (mixed >> 27) ^ (mixed >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    mixed ^ (mixed >> 30) ^ (mixed >> 60) ^ SEED
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
                producer.flush(Duration::from_secs(120)).expect("the broker takes all records");
            });
        }
    });
}
