//! The cost of a check-and-insert: our filter, a pair of plain Bloom filters, and plain memory accesses.
//!
//! Run with `cargo bench --no-default-features --bench filters`. After `--`, `--quick` skips filters that are larger than every cache, and
//! `--curve` measures windows from a million keys to a billion instead. Our filter requests huge pages itself. To make the allocator
//! request them for `fastbloom`, too, set `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` in the environment. For a fair comparison, every
//! contestant must use the keys, windows, and error rates that the output states.

use memmap2::{Advice, MmapMut};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Duration;
use unseen::filter::{Aging, AgingSizing, Filter, Window};
use unseen::key::Fingerprint;

/// Target false-positive rate of each filter when all of its generations are full.
const RATE: f64 = 1e-3;
const BATCH: usize = 64;
/// Number of keys generated before each timed section, to keep key generation out of the measurement.
const CHUNK: usize = 8192;
const ROUND: u64 = 1_000_000;
/// Number of keys in a window whose filter fits into the cache.
const SMALL: u64 = 1_000_000;
/// Number of keys in a window whose filter is far larger than the cache.
const LARGE: u64 = 100_000_000;

/// Maps a number to a pseudorandom 64-bit number, with the finalizer of `SplitMix64`.
fn scatter(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn key(number: u64) -> Fingerprint {
    let low = scatter(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Fingerprint(u128::from(scatter(low ^ 0x5851_f42d_4c95_7f2d)) << 64 | u128::from(low))
}

/// A set of keys to measure. It accepts an unlimited number of distinct keys.
trait Contestant {
    fn name(&self) -> String;
    fn bytes(&self) -> u64;
    fn slices(&self) -> u64;
    /// Inserts keys without looking them up.
    fn fill(&mut self, keys: &[Fingerprint]);
    /// Looks up each key and inserts it if it is new. Returns the number of keys that were not new.
    fn check_and_insert(&mut self, keys: &[Fingerprint]) -> u64;
    fn count(&mut self, keys: &[Fingerprint]) -> u64;
}

/// Our filter, with a window by count, so it rotates by itself.
struct Ours {
    filter: Aging,
    slices: u32,
    bytes: u64,
    ahead: bool,
}

impl Ours {
    fn new(keys: u64, slices: u32, rate: f64, ahead: bool) -> Self {
        let window = Window::keys(keys, slices);
        let plan = AgingSizing::new(window, keys, rate);
        Self { filter: Aging::new(window, plan), slices, bytes: plan.bytes(window), ahead }
    }
}

impl Contestant for Ours {
    fn name(&self) -> String {
        let name = if self.slices == 1 { "unseen, a pair".into() } else { format!("unseen, {} slices", self.slices) };
        if self.ahead { name } else { format!("{name}, unbatched") }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn slices(&self) -> u64 {
        u64::from(self.slices)
    }

    fn fill(&mut self, keys: &[Fingerprint]) {
        for &key in keys {
            self.filter.insert(key).expect("enough memory");
        }
    }

    fn check_and_insert(&mut self, keys: &[Fingerprint]) -> u64 {
        let mut seen = 0;
        for batch in keys.chunks(BATCH) {
            if self.ahead {
                self.filter.prefetch(batch);
            }
            for &key in batch {
                if self.filter.check_and_insert(key).expect("enough memory") {
                    seen += 1;
                    // Inserts false positives, too. Otherwise, the generations would be less full than stated.
                    self.filter.insert(key).expect("enough memory");
                }
            }
        }
        seen
    }

    fn count(&mut self, keys: &[Fingerprint]) -> u64 {
        let mut seen = 0;
        for batch in keys.chunks(BATCH) {
            if self.ahead {
                self.filter.prefetch(batch);
            }
            seen += batch.iter().filter(|&&key| self.filter.contains(key)).count() as u64;
        }
        seen
    }
}

/// Two plain filters, young and old. When the young filter contains the keys of a whole window, it becomes the old filter, and the previous
/// old filter is cleared. On the young filter, a check only calls `insert_hash`, which also returns true if the key was present. A lookup
/// followed by an insertion would be slower.
struct Plain {
    young: fastbloom::BloomFilter,
    old: fastbloom::BloomFilter,
    keys: u64,
    young_keys: u64,
    /// True if the filter hashes keys itself (its default, `SipHash`). Otherwise, it uses the low half of the fingerprint.
    hashes: bool,
}

impl Plain {
    fn new(keys: u64, rate: f64, hashes: bool) -> Self {
        let each = 1.0 - (1.0 - rate).sqrt();
        let size = usize::try_from(keys).expect("keys fit into memory");
        let filter = || fastbloom::BloomFilter::with_false_pos(each).seed(&42).expected_items(size);
        Self { young: filter(), old: filter(), keys, young_keys: 0, hashes }
    }

    fn hash(&self, key: Fingerprint) -> u64 {
        if self.hashes { self.young.source_hash(&key.0) } else { key.low() }
    }

    fn make_room(&mut self) {
        if self.young_keys == self.keys {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
            self.young_keys = 0;
        }
        self.young_keys += 1;
    }
}

impl Contestant for Plain {
    fn name(&self) -> String {
        format!("fastbloom, a pair, {}", if self.hashes { "hashing" } else { "prehashed" })
    }

    fn bytes(&self) -> u64 {
        (self.young.num_bits() + self.old.num_bits()) as u64 / 8
    }

    fn slices(&self) -> u64 {
        1
    }

    fn fill(&mut self, keys: &[Fingerprint]) {
        for &key in keys {
            self.make_room();
            self.young.insert_hash(self.hash(key));
        }
    }

    fn check_and_insert(&mut self, keys: &[Fingerprint]) -> u64 {
        let mut seen = 0;
        for &key in keys {
            self.make_room();
            let hash = self.hash(key);
            seen += u64::from(self.young.insert_hash(hash) || self.old.contains_hash(hash));
        }
        seen
    }

    fn count(&mut self, keys: &[Fingerprint]) -> u64 {
        let there = |&&key: &&Fingerprint| {
            let hash = self.hash(key);
            self.young.contains_hash(hash) || self.old.contains_hash(hash)
        };
        keys.iter().filter(there).count() as u64
    }
}

/// The lower bound for the time per key: reads `lines` random cache lines per key from memory that is as large as a filter. No filter that
/// reads the same number of lines per key can be faster.
struct Lines {
    memory: MmapMut,
    lines: u64,
}

impl Lines {
    fn new(bytes: u64, lines: u64) -> Self {
        let mut memory = MmapMut::map_anon(usize::try_from(bytes).expect("an address")).expect("memory");
        let _ = memory.advise(Advice::HugePage);
        memory.fill(1);
        Self { memory, lines }
    }
}

impl Contestant for Lines {
    fn name(&self) -> String {
        format!("read {} random line{}", self.lines, if self.lines == 1 { "" } else { "s" })
    }

    fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    fn slices(&self) -> u64 {
        1
    }

    fn fill(&mut self, _: &[Fingerprint]) {}

    fn check_and_insert(&mut self, keys: &[Fingerprint]) -> u64 {
        self.count(keys)
    }

    #[expect(clippy::cast_possible_truncation, reason = "less than the number of lines, which is a usize")]
    fn count(&mut self, keys: &[Fingerprint]) -> u64 {
        let lines = self.memory.as_chunks::<64>().0;
        for batch in keys.chunks(BATCH) {
            let mut sum = 0;
            for turn in 0..self.lines {
                let factor = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(2 * turn + 1);
                for key in batch {
                    let place = (u128::from(key.low().wrapping_mul(factor)) * lines.len() as u128) >> 64;
                    sum ^= lines[place as usize][0];
                }
            }
            black_box(sum);
        }
        0
    }
}

/// CPU time of this thread, including page faults. Unlike elapsed time, it hardly depends on other processes on the machine.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("a time")
}

/// Passes the keys of `count` numbers to `call`, in chunks. Returns the CPU time of the calls.
fn timed(count: u64, number: impl Fn(u64) -> u64, mut call: impl FnMut(&[Fingerprint])) -> Duration {
    let mut chunk = Vec::with_capacity(CHUNK);
    let mut total = Duration::ZERO;
    let mut done = 0;
    while done < count {
        let end = count.min(done + CHUNK as u64);
        chunk.clear();
        chunk.extend((done..end).map(|at| key(number(at))));
        let start = processor_time();
        call(&chunk);
        total += processor_time().saturating_sub(start);
        done = end;
    }
    total
}

#[expect(clippy::cast_precision_loss, reason = "a mean")]
fn nanoseconds(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() * 1e9 / count as f64
}

/// A contestant with its measurements. `insert` and `hit` are in nanoseconds per key.
struct Course {
    contestant: Box<dyn Contestant>,
    /// Number of keys inserted so far.
    put: u64,
    rate: f64,
    insert: f64,
    hit: f64,
}

impl Course {
    /// Fills all generations, so that the false-positive rate is at its maximum, and measures the rate.
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    fn new(mut contestant: Box<dyn Contestant>, keys: u64) -> Self {
        let put = keys.div_ceil(contestant.slices()) * (contestant.slices() + 1);
        timed(put, |at| at, |chunk| contestant.fill(chunk));
        let absent_keys = 4_000_000;
        let mut wrong = 0;
        timed(absent_keys, |at| (1 << 48) + at, |chunk| wrong += contestant.count(chunk));
        Self { contestant, put, rate: wrong as f64 / absent_keys as f64, insert: f64::MAX, hit: f64::MAX }
    }

    /// Measures the time of `ROUND` insertions and of `ROUND` lookups. Only the fastest round counts, because any disturbance makes a round
    /// slower. The first round includes a rotation, because all generations are full. With `SMALL` keys, every round includes a rotation.
    fn round(&mut self, keys: u64) {
        let put = self.put;
        let time = timed(ROUND, |at| put + at, |chunk| _ = black_box(self.contestant.check_and_insert(chunk)));
        self.insert = self.insert.min(nanoseconds(time, ROUND));
        self.put += ROUND;
        let any = |at| put + ROUND - 1 - scatter(at) % keys;
        let mut found = 0;
        let time = timed(ROUND, any, |chunk| found += self.contestant.count(chunk));
        assert!(found == ROUND || found == 0, "{}: forgot a key", self.contestant.name());
        self.hit = self.hit.min(nanoseconds(time, ROUND));
    }
}

/// Reads a field in kB from a kernel file and returns it in bytes. Returns 0 if the field is missing.
fn kernel_bytes(file: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).map_or(0, |number: u64| number * 1024)
}

/// Resident memory of this process, and the part of it that is in huge pages, in bytes.
fn resident() -> (u64, u64) {
    (kernel_bytes("/proc/self/smaps_rollup", "Rss:"), kernel_bytes("/proc/self/smaps_rollup", "AnonHugePages:"))
}

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn compare(keys: u64, rounds: u64) {
    println!("\n{} M keys in the window, target {RATE:.0e}, batches of {BATCH}", keys / 1_000_000);
    println!("CPU time in ns per key: the minimum of {rounds} rounds of {ROUND} keys, interleaved");
    println!("{:<30}{:>9}{:>9}{:>11}{:>11}{:>9}{:>11}", "", "bits/key", "MB", "rate", "insert ns", "hit ns", "x faster");
    let lines = |slices| Box::new(Lines::new(Ours::new(keys, slices, RATE, true).bytes, u64::from(slices) + 1));
    let contestants: [Box<dyn Contestant>; 9] = [
        Box::new(Plain::new(keys, RATE, false)),
        Box::new(Plain::new(keys, RATE, true)),
        Box::new(Ours::new(keys, 4, RATE, true)),
        Box::new(Ours::new(keys, 4, RATE, false)),
        lines(4),
        Box::new(Ours::new(keys, 1, RATE, true)),
        Box::new(Ours::new(keys, 1, RATE, false)),
        lines(1),
        Box::new(Lines::new(Ours::new(keys, 4, RATE, true).bytes, 1)),
    ];
    let mut notes = Vec::new();
    let mut courses = Vec::new();
    for contestant in contestants {
        let (before, huge_before) = resident();
        let course = Course::new(contestant, keys);
        let (after, huge_after) = resident();
        let (name, bytes) = (course.contestant.name(), course.contestant.bytes());
        if !name.starts_with("read") && keys == LARGE {
            let grown = (after - before) as f64;
            let huge = huge_after.saturating_sub(huge_before) as f64 / grown * 100.0;
            let over = grown / bytes as f64 * 100.0 - 100.0;
            notes.push(format!(
                "{name}: resident {:.1} MB, {over:+.1} % compared with the plan, {huge:.0} % of it in huge pages",
                grown / 1e6
            ));
        }
        courses.push(course);
    }
    for _ in 0..rounds {
        for course in &mut courses {
            course.round(keys);
        }
    }
    let reference = courses[0].insert;
    for Course { contestant, rate, insert, hit, .. } in &courses {
        let (name, bytes) = (contestant.name(), contestant.bytes() as f64);
        let (bits, ratio) = (bytes * 8.0 / keys as f64, reference / insert);
        println!("{name:<30}{bits:>9.2}{:>9.1}{rate:>11.2e}{insert:>11.1}{hit:>9.1}{ratio:>11.2}", bytes / 1e6);
    }
    println!(
        "time relative to plain line reads: {:.1} with 4 slices, {:.1} as a pair",
        courses[2].insert / courses[4].insert,
        courses[5].insert / courses[7].insert
    );
    for note in notes {
        println!("{note}");
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn curve() {
    println!(
        "\nunseen, 4 slices, {RATE:.0e}, batches of {BATCH}, all generations full; CPU time, the minimum of 10 rounds of {ROUND} keys"
    );
    println!("{:>10}{:>10}{:>12}{:>12}{:>14}", "M keys", "MB", "insert ns", "hit ns", "lines only");
    for millions in [1, 3, 10, 30, 100, 300, 1000] {
        let keys = millions * 1_000_000;
        let mut ours = Ours::new(keys, 4, RATE, true);
        let available = kernel_bytes("/proc/meminfo", "MemAvailable:");
        if ours.bytes() * 5 / 2 > available {
            println!(
                "{millions:>10}{:>10.0}  skipped: not enough memory for the filter and the same number of lines",
                ours.bytes() as f64 / 1e6
            );
            continue;
        }
        let mut put = keys / 4 * 5;
        timed(put, |at| at, |chunk| ours.fill(chunk));
        let mut touch = Lines::new(ours.bytes(), 5);
        let (mut insert, mut hit, mut lines) = (f64::MAX, f64::MAX, f64::MAX);
        for _ in 0..10 {
            let time = timed(ROUND, |at| put + at, |chunk| _ = black_box(ours.check_and_insert(chunk)));
            insert = insert.min(nanoseconds(time, ROUND));
            put += ROUND;
            let time = timed(ROUND, |at| put - 1 - scatter(at) % keys, |chunk| _ = black_box(ours.count(chunk)));
            hit = hit.min(nanoseconds(time, ROUND));
            lines = lines.min(nanoseconds(timed(ROUND, |at| at, |chunk| _ = black_box(touch.count(chunk))), ROUND));
        }
        println!("{millions:>10}{:>10.1}{insert:>12.1}{hit:>12.1}{lines:>14.1}", ours.bytes() as f64 / 1e6);
    }
}

fn machine() {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let field = |name| cpus.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown");
    println!("CPU {}, {} threads", field("model name"), std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    for index in 0..4 {
        let of = |name| read(&format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).trim().to_owned();
        println!("cache L{} {}: {}", of("level"), of("type"), of("size"));
    }
    println!("huge pages: {}", read("/sys/kernel/mm/transparent_hugepage/enabled").trim());
}

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    machine();
    if has("--curve") {
        return curve();
    }
    compare(SMALL, 20);
    if !has("--quick") {
        compare(LARGE, 20);
    }
}
