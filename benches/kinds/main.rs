//! Compares all kinds of filters in docs/explanation/filters.md: memory, measured rate, time.
//!
//! ```sh
//! cargo bench --no-default-features --bench kinds            # everything, several minutes
//! cargo bench --no-default-features --bench kinds -- aging   # only kinds with "aging" in their name
//! ```
//!
//! All kinds do the same work: they remember a number of recent keys, and forget older ones within an additional quarter of a
//! window (the pair: within an additional window), at a rate that holds when they are as full as they get. Kinds that cannot
//! forget are used in a ring of five generations. The kinds that unseen does not offer are reference implementations, written for
//! readability. Their times show orders of magnitude, not limits. Without `--bench`, the program only checks that no kind forgets
//! within its window or misses its rate.
#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes far below 2^52"
)]

mod apbf;
mod approximator;
mod bits;
mod bloom;
mod bloomier;
mod counting;
mod golomb;
mod partitioned;
mod ring;
mod scalable;

use ring::{Ring, Sealed};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Duration;
use unseen::filter::{AgingSizing, CuckooSizing, Filter, Spec, StableSizing, Window};
use unseen::key::Fingerprint;

/// Slices per window.
const SLICES: usize = 4;
const RATES: [f64; 5] = [1e-2, 1e-3, 1e-4, 1e-5, 1e-6];
/// Number of keys in a window when measuring rates, and when measuring times, in cache and out of cache. The generations of a
/// ring hold a quarter more: 100 thousand and 20 million.
const RATE_KEYS: usize = 200_000;
const NEAR_KEYS: usize = 80_000;
const FAR_KEYS: usize = 16_000_000;
/// Rates are measured until this many lookups were false positives, or the kind's number of lookups is used up.
const WRONG_ENOUGH: usize = 400;
/// Fewer false positives than this are not significant.
const WRONG_LEAST: usize = 10;

/// A data structure that remembers keys: the most recently inserted ones, or all of them if it is part of a ring.
trait Kind {
    fn insert(&mut self, key: Fingerprint);
    fn contains(&self, key: Fingerprint) -> bool;
    /// Memory needed to answer, continue, and forget, in bytes.
    fn bytes(&self) -> usize;
    /// Forgets all keys. Only a ring needs it.
    fn clear(&mut self) {
        unreachable!("not part of a ring");
    }
}

/// A kind in the library.
impl Kind for Box<dyn Filter> {
    fn insert(&mut self, key: Fingerprint) {
        Filter::insert(self.as_mut(), key).expect("room");
    }

    fn contains(&self, key: Fingerprint) -> bool {
        Filter::contains(self.as_ref(), key)
    }

    fn bytes(&self) -> usize {
        self.usage().bytes as usize
    }
}

/// Creates a filter from the number of keys in a window and a rate.
type Make = Box<dyn Fn(usize, f64) -> Box<dyn Kind>>;

struct Row {
    name: &'static str,
    make: Make,
    /// Maximum number of lookups for measuring a rate.
    lookups: usize,
}

fn row<K: Kind + 'static>(name: &'static str, make: impl Fn(usize, f64) -> K + 'static) -> Row {
    Row { name, make: Box::new(move |keys, rate| Box::new(make(keys, rate))), lookups: 20_000_000 }
}

/// The kinds that unseen keeps in memory. Add new kinds here, as `Spec`s.
fn offered() -> Vec<Row> {
    let aging = |slices| {
        move |keys: usize, rate| {
            let window = Window::keys(keys as u64, slices);
            Spec::Aging(AgingSizing::new(window, keys as u64, rate)).build(window)
        }
    };
    vec![
        row("aging, 4 slices", aging(4)),
        row("aging, 1 slice (pair)", aging(1)),
        row("cuckoo, 4 slices", |keys, rate| {
            let window = Window::keys(keys as u64, 4);
            Spec::Cuckoo(CuckooSizing::new(window, keys as u64, rate)).build(window)
        }),
        row("stable, 16 bits", |keys, rate| {
            // Sized by memory, not by keys: two bytes per key of the window. Seeded, because its generator also generates the
            // keys here. Without a seed, insertions would decrement the cells of earlier keys.
            Spec::Stable(StableSizing { seed: 1, ..StableSizing::new(keys as u64 * 2, rate) }).build(Window::keys(keys as u64, 1))
        }),
    ]
}

fn explained() -> Vec<Row> {
    let golomb = |keys, rate| Sealed::new(keys, rate, golomb::Golomb::new);
    vec![
        row("Bloom, ring", |keys, rate| Ring::new(keys, rate, bloom::Bloom::new)),
        row("Bloom (fastbloom), ring", |keys, rate| Ring::new(keys, rate, bloom::Fast::new)),
        row("partitioned, ring", |keys, rate| Ring::new(keys, rate, partitioned::Partitioned::new)),
        row("scalable, ring", |keys, rate| Ring::new(keys, rate, scalable::Scalable::new)),
        row("counting + queue", counting::Counting::new),
        row("age-partitioned", apbf::AgePartitioned::new),
        Row { lookups: 2_000_000, ..row("Golomb-compressed, ring", golomb) },
        row("Bloomier, rebuilt", bloomier::Bloomier::new),
        row("compact approximator", approximator::Approximator::new),
    ]
}

/// The key of a number (`SplitMix64`, applied twice).
fn key(number: u64) -> Fingerprint {
    let mix = |number: u64| {
        let mut hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ hash >> 31
    };
    Fingerprint(u128::from(mix(2 * number + 2)) << 64 | u128::from(mix(2 * number + 1)))
}

/// Keys that were never inserted.
fn absent_keys(count: usize) -> impl Iterator<Item = Fingerprint> {
    (0..count as u64).map(|number| key(number | 1 << 40))
}

/// Memory and measured errors of a kind for one rate.
struct Measured {
    bits_per_key: f64,
    lookups: usize,
    /// Absent keys that were reported as seen.
    wrong: usize,
    /// Share of the window's keys that were not reported as seen.
    forgotten: f64,
}

fn measure(row: &Row, keys: usize, rate: f64) -> Measured {
    let mut kind = (row.make)(keys, rate);
    // Three windows, after which all generations of a ring are full.
    let end = keys as u64 * 3;
    (0..end).for_each(|number| kind.insert(key(number)));
    let forgotten = (end - keys as u64..end).filter(|&number| !kind.contains(key(number))).count();
    let (mut lookups, mut wrong) = (0, 0);
    for absent in absent_keys(row.lookups) {
        lookups += 1;
        wrong += usize::from(kind.contains(absent));
        if wrong == WRONG_ENOUGH {
            break;
        }
    }
    Measured { bits_per_key: kind.bytes() as f64 * 8.0 / keys as f64, lookups, wrong, forgotten: forgotten as f64 / keys as f64 }
}

/// Nanoseconds per insertion, over whole slices to include forgetting, and per lookup of an absent key.
fn time(row: &Row, keys: usize) -> (f64, f64) {
    let mut kind = (row.make)(keys, 1e-4);
    let slice = keys / SLICES;
    let repeats = if keys > 1_000_000 { 2 } else { 100 };
    let mut insert = f64::MAX;
    for round in 0..6 + repeats {
        let nanos = timed(slice, || (round * slice..(round + 1) * slice).for_each(|number| kind.insert(key(number as u64))));
        if round >= 6 {
            insert = insert.min(nanos);
        }
    }
    let (batch, mut absent_keys) = (50_000, absent_keys(usize::MAX));
    let misses =
        (0..50).map(|_| timed(batch, || _ = black_box(absent_keys.by_ref().take(batch).filter(|&absent| kind.contains(absent)).count())));
    (insert, misses.fold(f64::MAX, f64::min))
}

/// CPU time of this thread in nanoseconds per operation. Other processes may be running on the same machine.
fn timed(count: usize, work: impl FnOnce()) -> f64 {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
    let start = now();
    work();
    now().saturating_sub(start).as_secs_f64() * 1e9 / count as f64
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let named = |row: &Row| arguments.iter().all(|argument| argument.starts_with("--") || row.name.contains(argument.as_str()));
    let rows: Vec<_> = offered().into_iter().chain(explained()).filter(named).collect();
    if arguments.iter().any(|argument| argument == "--bench") { bench(&rows) } else { check(&rows) }
}

/// Checks that no kind that guarantees a window forgets a key, and that no kind exceeds its rate.
fn check(rows: &[Row]) {
    for row in rows {
        let measured = measure(row, 20_000, 1e-2);
        let rate = measured.wrong as f64 / measured.lookups as f64;
        let remembers = measured.forgotten == 0.0 || row.name.starts_with("stable");
        assert!(remembers && rate < 1.25e-2, "{}: forgot {}, false-positive rate {rate}", row.name, measured.forgotten);
    }
}

fn bench(rows: &[Row]) {
    println!("Bits per key of the window, and measured false-positive rate ({RATE_KEYS} keys in the window).");
    println!("~: fewer than 100 false positives; (…): planned rate, too few false positives to measure.");
    println!("forgot: share of the window's keys that were forgotten, maximum over all rates.\n");
    let mut line = format!("| {:<24} |", "kind");
    for rate in RATES {
        write!(line, " {:<15} |", format!("{rate:.0e}")).expect("a string");
    }
    println!("{line} forgot |");
    for row in rows {
        let mut line = format!("| {:<24} |", row.name);
        let mut forgotten = 0.0_f64;
        for rate in RATES {
            let measured = measure(row, RATE_KEYS, rate);
            forgotten = forgotten.max(measured.forgotten);
            let got = measured.wrong as f64 / measured.lookups as f64;
            let got = match measured.wrong {
                ..WRONG_LEAST => format!("({rate:.0e})"),
                WRONG_LEAST..100 => format!("~{got:.1e}"),
                _ => format!("{got:.2e}"),
            };
            write!(line, " {:>5.1} {got:>9} |", measured.bits_per_key).expect("a string");
        }
        println!("{line} {forgotten:>6.2} |");
    }
    println!("\nNanoseconds per operation at 1e-4: in cache (window of {NEAR_KEYS} keys), out of cache ({FAR_KEYS} keys).\n");
    println!("| kind                     | insert in | out    | miss in | out   |");
    for row in rows {
        let ((insert_near, miss_near), (insert_far, miss_far)) = (time(row, NEAR_KEYS), time(row, FAR_KEYS));
        println!("| {:<24} | {insert_near:>9.0} | {insert_far:>6.0} | {miss_near:>7.0} | {miss_far:>5.0} |", row.name);
    }
}
