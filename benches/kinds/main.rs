//! Measures the table in docs/contributing/rejected.md: memory and time of all kinds of filters, offered or not.
//!
//! ```sh
//! cargo bench --no-default-features --bench kinds            # everything, several minutes
//! cargo bench --no-default-features --bench kinds -- aging   # only kinds with "aging" in their name
//! ```
//!
//! All kinds that keep a window do the same work: they remember the keys of a window and forget a key at most a quarter of a window after
//! it has left the window. Each kind is sized to meet the rate even just before it forgets keys, when it is as full as it gets. Kinds that
//! cannot forget single keys are used in a ring of five generations, which forgets the oldest generation as a whole. The kinds that unseen
//! does not offer are reference implementations, written for readability, so their times show orders of magnitude, not limits. Every run
//! fails if a kind exceeds its rate, or if a kind that keeps a window forgets a key of the window. Without `--bench`, the program only
//! makes these checks, with fewer keys.
#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes far below 2^52"
)]

mod bloom;
mod bloomier;
mod cells;
mod golomb;

use rustix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::time::Duration;
use unseen::filter::{self, Demand, Window};
use unseen::key::Fingerprint;
use xxhash_rust::xxh3::xxh3_128;

const SLICES: usize = 4;
const RATES: [f64; 4] = [1e-2, 1e-3, 1e-4, 1e-6];
const RATE_KEYS: usize = 200_000;
/// Numbers of keys in a window when measuring times. A filter for the first number fits into the cache. A filter for the second number does
/// not.
const TIME_KEYS: [usize; 2] = [80_000, 16_000_000];
/// Expected number of false positives when a rate is measured. The number of lookups is `WRONG` divided by the rate, but at most
/// `LOOKUPS_MAX`.
const WRONG: f64 = 400.0;
const LOOKUPS_MAX: f64 = 2e7;

trait Kind {
    fn insert(&mut self, key: Fingerprint);
    fn contains(&self, key: Fingerprint) -> bool;
    /// Memory that the kind needs to answer, insert, and forget, in bytes.
    fn bytes(&self) -> usize;
    /// Starts the next slice and forgets the oldest slice.
    fn rotate(&mut self) {}
}

/// A kind that unseen offers. It starts slices by itself, so `rotate` is not needed.
impl Kind for Box<dyn filter::Filter> {
    fn insert(&mut self, key: Fingerprint) {
        filter::Filter::insert(self.as_mut(), key).expect("room");
    }

    fn contains(&self, key: Fingerprint) -> bool {
        filter::Filter::contains(self.as_ref(), key)
    }

    fn bytes(&self) -> usize {
        self.usage().bytes as usize
    }
}

/// A kind that starts a new slice after every `slice_keys` keys.
struct Sliced {
    kind: Box<dyn Kind>,
    slice_keys: usize,
    keys: usize,
}

impl Sliced {
    fn insert(&mut self, key: Fingerprint) {
        if self.keys == self.slice_keys {
            self.kind.rotate();
            self.keys = 0;
        }
        self.keys += 1;
        self.kind.insert(key);
    }
}

struct Row {
    name: &'static str,
    make: Box<dyn Fn(usize, f64) -> Sliced>,
    keeps_window: bool,
}

/// Creates a row for a kind that keeps a window. `make` gets the number of keys in a window and a rate.
fn row<K: Kind + 'static>(name: &'static str, make: impl Fn(usize, f64) -> K + 'static) -> Row {
    let make = move |keys, rate| Sliced { kind: Box::new(make(keys, rate)), slice_keys: keys / SLICES, keys: 0 };
    Row { name, make: Box::new(make), keeps_window: true }
}

fn rows() -> Vec<Row> {
    let offered = filter::Kind::ALL.iter().filter(|kind| !kind.is_on_disk()).map(|kind| {
        let offered = move |keys: usize, rate| {
            let window = Window::keys(keys as u64, SLICES as u32);
            // Kinds that are sized by memory get two bytes per key.
            let demand = Demand { bytes: keys as u64 * 2, ..Demand::new(keys as u64, rate) };
            kind.spec(window, &demand).expect("a filter in memory").build(window)
        };
        Row { keeps_window: kind.properties().keeps_window, ..row(kind.name(), offered) }
    });
    let ring =
        |partitioned| move |keys: usize, rate: f64| bloom::Ring::new(rate, |rate| bloom::Bloom::new(keys / SLICES, rate, partitioned));
    let age_partitioned = |keys: usize, rate: f64| {
        let kind = bloom::AgePartitioned::new(keys, rate);
        Sliced { slice_keys: kind.generation_keys, kind: Box::new(kind), keys: 0 }
    };
    offered
        .chain([
            row("Bloom", ring(false)),
            row("partitioned Bloom", ring(true)),
            row("scalable Bloom", |keys, rate| bloom::Ring::new(rate, |rate| bloom::Scalable::new(keys / SLICES, rate))),
            row("counting Bloom", bloom::Counting::new),
            Row { name: "age-partitioned Bloom", make: Box::new(age_partitioned), keeps_window: true },
            row("Golomb-compressed set", golomb::Golomb::new),
            row("Bloomier", bloomier::Bloomier::new),
            row("compact approximator", bloom::Approximator::new),
        ])
        .collect()
}

fn key(number: usize) -> Fingerprint {
    Fingerprint(xxh3_128(&number.to_le_bytes()))
}

fn absent_keys() -> impl Iterator<Item = Fingerprint> {
    (0..).map(|number| key(number | 1 << 40))
}

/// Returns bits per key of the window and the share of the window's keys that were forgotten.
fn measure(row: &Row, keys: usize, rate: f64) -> (f64, f64) {
    let mut sliced = (row.make)(keys, rate);
    // After three windows, all generations of a ring are full.
    let end = keys * 3;
    (0..end).for_each(|number| sliced.insert(key(number)));
    let forgotten = (end - keys..end).filter(|&number| !sliced.kind.contains(key(number))).count() as f64 / keys as f64;
    let lookups = (WRONG / rate).min(LOOKUPS_MAX);
    let wrong = absent_keys().take(lookups as usize).filter(|&absent| sliced.kind.contains(absent)).count() as f64;
    let expected = lookups * rate;
    assert!(wrong < expected * 1.05 + 4.0 * expected.sqrt(), "{}: {wrong} false positives instead of {expected} at {rate}", row.name);
    assert!(forgotten == 0.0 || !row.keeps_window, "{} forgot {forgotten} of the window", row.name);
    (sliced.kind.bytes() as f64 * 8.0 / keys as f64, forgotten)
}

/// Returns the nanoseconds per insertion and per lookup of an absent key. Insertions are measured over whole slices, to include the time
/// for forgetting.
fn time(row: &Row, keys: usize) -> [f64; 2] {
    let mut sliced = (row.make)(keys, 1e-4);
    let slice = keys / SLICES;
    let mut insert = |round: usize| timed(slice, || (round * slice..(round + 1) * slice).for_each(|number| sliced.insert(key(number))));
    (0..6).for_each(|round| _ = insert(round));
    let insert = (6..if keys > 1_000_000 { 8 } else { 106 }).map(insert).fold(f64::MAX, f64::min);
    let (batch, mut absent_keys) = (50_000, absent_keys());
    let mut lookup = || _ = black_box(absent_keys.by_ref().take(batch).filter(|&absent| sliced.kind.contains(absent)).count());
    [insert, (0..50).map(|_| timed(batch, &mut lookup)).fold(f64::MAX, f64::min)]
}

/// Returns the CPU time of this thread during `work`, in nanoseconds per operation. Unlike elapsed time, it hardly depends on other
/// processes on the machine.
fn timed(count: usize, work: impl FnOnce()) -> f64 {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
    let start = now();
    work();
    now().saturating_sub(start).as_secs_f64() * 1e9 / count as f64
}

/// Hashes of the open slice, for kinds that are built from all keys at once.
type Buffer = HashSet<u64, BuildHasherDefault<Identity>>;

#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 values are hashed");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Returns the size in bytes of a hash table that contains `keys` hashes and is four fifths full. The standard library's hash table doubles
/// its capacity when it is full, so it takes up to twice this size.
fn buffer_bytes(keys: usize) -> usize {
    keys * 10
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let is_named = |row: &Row| arguments.iter().all(|argument| argument.starts_with("--") || row.name.contains(argument.as_str()));
    let rows = rows().into_iter().filter(is_named);
    if !arguments.iter().any(|argument| argument == "--bench") {
        return rows.for_each(|row| _ = measure(&row, 20_000, 1e-2));
    }
    println!("Bits per key at {RATES:?}, and the share of the window's keys that were forgotten, with {RATE_KEYS} keys.");
    println!("Nanoseconds per insertion and per lookup of an unseen key at 1e-4, with {TIME_KEYS:?} keys.\n");
    println!("| kind | bits per key | forgotten | insert, ns | unseen key, ns |\n|---|---|---|---|---|");
    for row in rows {
        let measured = RATES.map(|rate| measure(&row, RATE_KEYS, rate));
        let cells =
            |number: fn(&(f64, f64)) -> f64, digits| measured.iter().map(|row| format!("{:.digits$}", number(row))).collect::<Vec<_>>();
        let [near, far] = TIME_KEYS.map(|keys| time(&row, keys));
        let (bits, forgotten) = (cells(|row| row.0, 1).join(", "), cells(|row| row.1, 2).join(", "));
        println!("| {} | {bits} | {forgotten} | {:.0}, {:.0} | {:.0}, {:.0} |", row.name, near[0], far[0], near[1], far[1]);
    }
}
