//! Writes a stream, at a constant rate or as fast as possible, while a worker reads it. Measures the latency of each output record.

use crate::broker::Broker;
use crate::input::{self, Input};
use crate::process::Process;
use crate::records::{Stream, producer, send};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::Offset;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Approximate maximum number of input records in flight when records are written as fast as possible. Half of them are duplicates.
const UNDER_WAY: u64 = 300_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// A histogram of latencies, in milliseconds.
#[derive(Default)]
pub struct Latencies {
    counts: Vec<u64>,
    /// Range of record times to include, in milliseconds since the epoch.
    times: (i64, i64),
}

impl Latencies {
    fn add(&mut self, time: i64, now: i64) {
        if (self.times.0..self.times.1).contains(&time) {
            let took = usize::try_from(now - time).unwrap_or(0);
            if took >= self.counts.len() {
                self.counts.resize(took + 1, 0);
            }
            self.counts[took] += 1;
        }
    }

    /// Returns a quantile of the latencies, in milliseconds. `share` is between 0 and 1.
    pub fn quantile(&self, share: f64) -> f64 {
        let all: u64 = self.counts.iter().sum();
        let mut left = all as f64 * share;
        let found = self.counts.iter().position(|&count| {
            left -= count as f64;
            left <= 0.0
        });
        found.unwrap_or(0) as f64
    }
}

pub struct Reader {
    received: Arc<AtomicU64>,
    latencies: Arc<Mutex<Latencies>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    pub fn start(broker: &Broker, topic: &str, partitions: i32) -> Self {
        let mut input = Input::open(&broker.address, topic, partitions, Offset::Beginning, &broker.new_name("reader"), false);
        let (received, latencies, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Latencies::default())), Arc::default());
        let thread = {
            let (received, latencies, stop) = (Arc::clone(&received), Arc::clone(&latencies), Arc::<AtomicBool>::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let messages = input.take();
                    let (now, mut latencies, mut count) = (now(), latencies.lock().expect("no thread panics"), 0);
                    for message in messages.iter() {
                        latencies.add(input::time(message), now);
                        count += 1;
                    }
                    received.fetch_add(count, Ordering::Relaxed);
                }
            })
        };
        Self { received, latencies, stop, thread: Some(thread) }
    }

    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub fn wait_for(&self, count: u64, worker: &mut Process) {
        let began = Instant::now();
        while self.received() < count {
            worker.must_live();
            assert!(began.elapsed() < PATIENCE, "{} records were emitted instead of {count}:\n{}", self.received(), worker.last_words());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the worker has emitted all ids that the feeder has written, except for at most [`Feeder::allowance`] ids. Returns the
    /// latencies of the records that [`Feeder::at_rate`] selected.
    ///
    /// # Panics
    /// Panics if the worker emits more records than there are ids, or does not emit enough records within `PATIENCE`.
    pub fn latencies(&self, feeder: &Feeder, worker: &mut Process, commit: Duration) -> Latencies {
        self.wait_for(feeder.ids() - feeder.allowance(), worker);
        std::thread::sleep(commit * 2 + Duration::from_millis(200));
        let received = self.received();
        assert!(received <= feeder.ids(), "{received} records were emitted for {} ids: this run is invalid", feeder.ids());
        std::mem::take(&mut *self.latencies.lock().expect("no thread panics"))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub struct Feeder<'a> {
    topic: &'a str,
    stream: Stream,
    producer: BaseProducer,
    next: usize,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'a> Feeder<'a> {
    pub fn new(broker: &Broker, topic: &'a str, stream: Stream, linger_ms: &str) -> Self {
        Self { topic, stream, producer: producer(&broker.address, linger_ms), next: 0, key: Vec::new(), value: Vec::new() }
    }

    pub fn ids(&self) -> u64 {
        self.stream.ids_before(self.next) as u64
    }

    pub fn records(&self) -> u64 {
        self.next as u64
    }

    /// Returns the maximum number of ids that may be missing in the output because of false positives.
    pub fn allowance(&self) -> u64 {
        self.ids() / 5000 + 10
    }

    fn write(&mut self, time: i64) {
        let partition = self.stream.write(self.next, &mut self.key, &mut self.value);
        let record = BaseRecord::to(self.topic).partition(partition).key(&self.key[..]).payload(&self.value[..]).timestamp(time);
        send(&self.producer, record);
        self.next += 1;
    }

    /// Writes records at a constant rate. A record's timestamp is its scheduled send time, so a record that is written late has a longer
    /// latency. Only the records that are due in the `seconds` after `settle` are measured.
    pub fn at_rate(&mut self, rate: f64, settle: Duration, seconds: Duration, reader: &Reader) {
        let began_at = now();
        let times = (began_at + milliseconds(settle), began_at + milliseconds(settle + seconds));
        *reader.latencies.lock().expect("no thread panics") = Latencies { counts: Vec::new(), times };
        self.pace(rate, settle + seconds);
        self.flush();
    }

    pub fn pace(&mut self, rate: f64, seconds: Duration) {
        let (began, began_at, first) = (Instant::now(), now(), self.next);
        while began.elapsed() < seconds {
            let due = began.elapsed().as_secs_f64() * rate;
            while ((self.next - first) as f64) < due {
                let after = (self.next - first) as f64 / rate;
                self.write(began_at + milliseconds(Duration::from_secs_f64(after)));
            }
            self.producer.poll(Duration::ZERO);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn flush(&self) {
        self.producer.flush(PATIENCE).expect("the broker accepts all records");
    }

    /// Writes records as fast as the worker emits them. Returns the number of input records per second, measured after `settle`.
    pub fn at_most(&mut self, settle: Duration, seconds: Duration, reader: &Reader) -> f64 {
        let (began, mut settled) = (Instant::now(), None);
        while began.elapsed() < settle + seconds {
            if settled.is_none() && began.elapsed() >= settle {
                settled = Some((Instant::now(), reader.received()));
            }
            if self.ids().saturating_sub(reader.received()) < UNDER_WAY / 2 {
                let time = now();
                (0..1000).for_each(|_| self.write(time));
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let (since, before) = settled.expect("the stream has settled");
        let rate = (reader.received() - before) as f64 / since.elapsed().as_secs_f64();
        self.flush();
        rate * self.records() as f64 / self.ids() as f64
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("a short duration")
}

/// Returns the current time, in milliseconds since the epoch.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    milliseconds(since)
}
