//! Compares one key space for all users with a filter per user, as in docs/explanation/per-user.md: memory, false positives, forgotten ids,
//! and time.
//!
//! ```sh
//! cargo bench --no-default-features --bench per_user   # several minutes, 9 GB of memory
//! ```
//!
//! Each user sees a quarter of their ids in each of the window's four slices, and another quarter in the slice before the window, so the
//! shared filter is as full as it gets. Each measurement runs in a separate process, and memory is the anonymous memory of that process.
//! Without `--bench`, the program only checks that a shared aging filter forgets no id of the window and keeps its rate.
#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes far below 2^52"
)]

#[path = "worker/table.rs"]
#[expect(dead_code, reason = "other benchmarks compute medians")]
mod table;

use fastbloom::BloomFilter;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::ops::Range;
use std::process::Command;
use std::time::Duration;
use table::{Table, thousands};
use unseen::filter::{Aging, AgingSizing, CuckooSizing, Filter, Growth, Spec, Window};
use unseen::key::Fingerprint;

const RATE: f64 = 1e-3;
const USERS: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Numbers of ids that each user sees in a window.
const LOADS: [u64; 7] = [10, 100, 400, 1_000, 2_000, 4_000, SKEWED];
/// Placeholder for an uneven load: each user sees between 10 and 4,000 ids. The numbers follow Zipf's law with exponent 1: half of the
/// users see 10 ids, and one in a hundred sees 500 or more.
const SKEWED: u64 = 0;
/// Maximum number of ids in a window that are measured. For larger loads, memory is extrapolated from a tenth or a hundredth of the users.
const IDS_MEASURED: u64 = 100_000_000;
/// Number of ids that a user's filter is sized for.
const CAPACITY: u64 = 4_000;
/// Number of a user's latest ids that are inserted into the user's filter when it is rebuilt.
const LATEST: u64 = 100;
const SLICES: u64 = 4;
/// Length of a slice in milliseconds: six hours, so the window is one day.
const SLICE_MS: i64 = 6 * 60 * 60 * 1000;
/// Number of keys that the worker looks up together.
const BATCH: usize = 64;
/// Number of candidate ids of a user that one call looks up.
const CANDIDATES: u64 = 100;
/// First of the ids that no user has seen.
const FRESH: u64 = 1 << 31;
/// Number of rounds of a time measurement. The lowest time counts.
const ROUNDS: u64 = 40;
/// Lowest rate that is shown as a number. A lower rate comes from fewer than twelve false positives, so only this upper bound is shown.
const RATE_LEAST: f64 = 3e-6;

fn ids_of(load: u64, user: u64, users: u64) -> u64 {
    if load == SKEWED { (5.0 * users as f64 / (user as f64 + 0.5)).clamp(10.0, CAPACITY as f64) as u64 } else { load }
}

fn total(load: u64, users: u64) -> u64 {
    (0..users).map(|user| ids_of(load, user, users)).sum()
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A filter per user, rebuilt when it is half full.
    EachHalf,
    /// A filter per user, rebuilt when it is full.
    EachFull,
    Aging,
    Cuckoo,
}

impl Kind {
    const ALL: [Self; 4] = [Self::EachHalf, Self::EachFull, Self::Aging, Self::Cuckoo];

    /// Builds a store for the number of ids that all users together see in a window. Shared stores are sized for one eighth more ids, like
    /// a filter with `adapt`.
    fn build(self, ids: u64, rate: f64) -> Box<dyn Store> {
        let (window, roomy) = (window(), ids * 9 / 8);
        let each = |rebuild_at| Box::new(Each { users: HashMap::new(), rate, rebuild_at });
        let shared = |spec: Spec| Box::new(Shared { filter: spec.build(window), waiting: Vec::new(), seen: Vec::new() });
        match self {
            Self::EachHalf => each(CAPACITY / 2),
            Self::EachFull => each(CAPACITY),
            Self::Aging => shared(Spec::Aging(AgingSizing::new(window, roomy, rate))),
            Self::Cuckoo => shared(Spec::Cuckoo(CuckooSizing::new(window, roomy, rate))),
        }
    }
}

fn window() -> Window {
    Window::time(SLICE_MS * SLICES as i64, SLICES as u32)
}

/// The ids that the users have seen. The ids of a user are consecutive numbers.
trait Store {
    fn see(&mut self, user: u64, ids: Range<u64>);
    /// Returns how many of the ids are reported as seen by the user.
    fn ask(&mut self, user: u64, ids: Range<u64>) -> u64;
    fn advance(&mut self, _slice: u64) {}
}

/// A filter per user and the number of ids in it.
struct Each {
    users: HashMap<u64, (BloomFilter, u64)>,
    rate: f64,
    rebuild_at: u64,
}

impl Store for Each {
    fn see(&mut self, user: u64, ids: Range<u64>) {
        let fresh = || (BloomFilter::with_false_pos(self.rate).seed(&1).expected_items(CAPACITY as usize), 0);
        let (filter, held) = self.users.entry(user).or_insert_with(fresh);
        for id in ids {
            if *held == self.rebuild_at {
                filter.clear();
                // In a real system, these ids come from a history of what the user saw. The cost of the history is not measured.
                (id - LATEST..id).for_each(|id| _ = filter.insert_hash(key(user, id).low()));
                *held = LATEST;
            }
            filter.insert_hash(key(user, id).low());
            *held += 1;
        }
    }

    fn ask(&mut self, user: u64, ids: Range<u64>) -> u64 {
        let filter = self.users.get(&user).map(|(filter, _)| filter);
        filter.map_or(0, |filter| ids.filter(|&id| filter.contains_hash(key(user, id).low())).count() as u64)
    }
}

/// One filter for the keys [user, id], as in unseen.
struct Shared {
    filter: Box<dyn Filter>,
    waiting: Vec<Fingerprint>,
    seen: Vec<bool>,
}

impl Shared {
    fn insert_waiting(&mut self) {
        self.filter.prefetch(&self.waiting);
        for key in self.waiting.drain(..) {
            self.filter.check_and_insert(key).expect("enough memory");
        }
    }
}

impl Store for Shared {
    fn see(&mut self, user: u64, ids: Range<u64>) {
        for id in ids {
            self.waiting.push(key(user, id));
            if self.waiting.len() == BATCH {
                self.insert_waiting();
            }
        }
    }

    fn ask(&mut self, user: u64, ids: Range<u64>) -> u64 {
        self.insert_waiting();
        if ids.end - ids.start == 1 {
            return u64::from(self.filter.contains(key(user, ids.start)));
        }
        let keys: Vec<_> = ids.map(|id| key(user, id)).collect();
        self.seen.clear();
        self.seen.resize(keys.len(), false);
        self.filter.contains_each(&keys, &mut self.seen);
        self.seen.iter().filter(|seen| **seen).count() as u64
    }

    fn advance(&mut self, slice: u64) {
        self.insert_waiting();
        self.filter.advance(slice as i64 * SLICE_MS);
    }
}

/// Scatters a number over all 64-bit numbers (the finalizer of `SplitMix64`).
fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Returns the fingerprint of the key [user, id], computed from a fast mix instead of a hash of the encoded key.
fn key(user: u64, id: u64) -> Fingerprint {
    let low = scatter(user << 32 | id);
    Fingerprint(u128::from(scatter(low)) << 64 | u128::from(low))
}

/// Measurements of one kind under one load: bytes per user, three durations per id, the false-positive rate, and the share of the window's
/// ids that were forgotten. The durations are in nanoseconds: for an insertion, for a lookup alone, and for a lookup together with other
/// candidates of the user.
type Cell = [f64; 6];

/// Measures in a separate process, because memory that earlier measurements have freed is not completely returned to the system.
fn measured(kind: Kind, users: u64, load: u64, rate: f64) -> Cell {
    let program = std::env::current_exe().expect("a path");
    let kind = Kind::ALL.iter().position(|other| *other == kind).expect("a kind") as f64;
    let arguments = [kind, users as f64, load as f64, rate].map(|number| number.to_string());
    let output = Command::new(program).arg("cell").args(&arguments).output().expect("the process starts");
    let text = String::from_utf8(output.stdout).expect("numbers");
    let numbers: Vec<f64> = text.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{arguments:?}: {text}"))
}

fn measure(kind: Kind, users: u64, load: u64, rate: f64) -> Cell {
    let before = resident();
    let mut store = kind.build(total(load, users), rate);
    // The first id that is measured is random, so that the filters per user are at random points between two rebuilds. Shared filters do
    // not get the smaller ids, because ids that are older than the window do not affect them.
    let first = |user| LATEST + scatter(user) % (CAPACITY - LATEST);
    if matches!(kind, Kind::EachHalf | Kind::EachFull) {
        (0..users).for_each(|user| store.see(user, 0..first(user)));
    }
    // A user's ids may not divide evenly among the slices. Rounding differs by user, so all slices have about the same number of ids.
    let start = |user, slice| first(user) + (ids_of(load, user, users) * slice + scatter(user) % SLICES) / SLICES;
    let nth_user = |turn: u64| turn * 7_919 % users;
    let mut insert = f64::MAX;
    for slice in 0..=SLICES {
        let time = timed(|| {
            store.advance(slice);
            for user in (0..users).map(nth_user) {
                store.see(user, start(user, slice)..start(user, slice + 1));
            }
        });
        insert = insert.min(nanoseconds(time, total(load, users) / SLICES));
    }
    let bytes = resident() - before;
    let (one, _) = ask(store.as_mut(), nth_user, 1);
    let (many, wrong) = ask(store.as_mut(), nth_user, CANDIDATES);
    let (mut window, mut remembered) = (0, 0);
    for user in (0..users).map(nth_user) {
        let ids = start(user, 1)..start(user, SLICES + 1);
        window += ids.end - ids.start;
        remembered += store.ask(user, ids);
        if window > 4_000_000 {
            break;
        }
    }
    [bytes as f64 / users as f64, insert, one, many, wrong, 1.0 - remembered as f64 / window as f64]
}

/// Looks up fresh ids, user by user. Returns the nanoseconds per id and the share of ids that were reported as seen.
fn ask(store: &mut dyn Store, nth_user: impl Fn(u64) -> u64, together: u64) -> (f64, f64) {
    let questions = CANDIDATES * 1_000 / together;
    let (mut least, mut wrong) = (f64::MAX, 0);
    for round in 0..ROUNDS {
        let time = timed(|| {
            for turn in round * questions..(round + 1) * questions {
                let id = FRESH + turn * together;
                wrong += store.ask(nth_user(turn), id..id + together);
            }
        });
        least = least.min(nanoseconds(time, questions * together));
    }
    (least, wrong as f64 / (ROUNDS * questions * together) as f64)
}

/// Returns the CPU time of this thread during `work`. Unlike elapsed time, it hardly depends on other processes on the machine.
fn timed(work: impl FnOnce()) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
    let start = now();
    work();
    now().saturating_sub(start)
}

fn nanoseconds(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() * 1e9 / count as f64
}

/// Anonymous memory of this process, in bytes: heap and stack, but not the program file.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has this file");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("the file has this line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == "cell") {
        let numbers: Vec<f64> = arguments[1..].iter().map(|number| number.parse().expect("a number")).collect();
        let cell = measure(Kind::ALL[numbers[0] as usize], numbers[1] as u64, numbers[2] as u64, numbers[3]);
        println!("{}", cell.map(|number| number.to_string()).join(" "));
    } else if arguments.iter().any(|argument| argument == "--bench") {
        loads();
        quality();
        break_even();
    } else {
        let [.., wrong, forgotten] = measure(Kind::Aging, 1_000, SKEWED, RATE);
        assert!(forgotten == 0.0 && wrong < 1.1 * RATE, "{wrong} {forgotten}");
    }
}

fn loads() {
    let side = ["filter per user", "one space"];
    let memory = side.map(|side| [format!("{side}: bytes per user"), "bytes per id".to_owned()]).concat();
    let time = side.map(|side| [format!("{side}: insert, ns"), "single lookup".to_owned(), "100 per lookup".to_owned()]).concat();
    let table = |head: Vec<String>, last: &[&str]| {
        Table::new(
            &["users", "ids per user"].into_iter().chain(head.iter().map(String::as_str)).chain(last.iter().copied()).collect::<Vec<_>>(),
        )
    };
    let (mut memory, mut time) = (table(memory, &["one space is"]), table(time, &[]));
    for (users, load) in USERS.into_iter().flat_map(|users| LOADS.map(|load| (users, load))) {
        // The memory per user does not depend on the number of users, so fewer users can be measured.
        let measured_users = [1, 10, 100].map(|part| users / part).into_iter().find(|&users| total(load, users) <= IDS_MEASURED);
        let measured_users = measured_users.expect("few enough users");
        let mark = if measured_users == users { "" } else { "≈ " };
        let cells = [Kind::EachHalf, Kind::Aging].map(|kind| measured(kind, measured_users, load, RATE));
        let ids = total(load, measured_users) as f64 / measured_users as f64;
        let name = if load == SKEWED { format!("skewed, {ids:.1}") } else { thousands(ids) };
        let bytes = cells.iter().flat_map(|[bytes, ..]| [format!("{mark}{}", thousands(*bytes)), format!("{mark}{:.2}", bytes / ids)]);
        let ratio = cells[0][0] / cells[1][0];
        let ratio = if ratio > 1.0 { format!("{ratio:.1} times smaller") } else { format!("{:.1} times larger", 1.0 / ratio) };
        memory.row([thousands(users as f64), name.clone()].into_iter().chain(bytes).chain([ratio]).collect());
        if measured_users == users {
            let times = cells.iter().flat_map(|cell| &cell[1..4]).map(|time| format!("{time:.0}"));
            time.row([thousands(users as f64), name].into_iter().chain(times).collect());
        }
    }
    println!("Memory at a rate of {RATE:.0e}; ≈ extrapolated from fewer users with the same number of ids each:\n\n{memory}");
    println!("CPU time in nanoseconds per id, one thread, minimum of several rounds:\n\n{time}");
}

fn quality() {
    let kinds = [("rebuilt half full", Kind::EachHalf), ("rebuilt full", Kind::EachFull), ("one space", Kind::Aging)];
    let head = kinds.map(|(name, _)| [format!("{name}: false positives"), "forgotten".to_owned()]).concat();
    let mut table = Table::new(&["ids per user"].into_iter().chain(head.iter().map(String::as_str)).collect::<Vec<_>>());
    for load in LOADS {
        let figures = kinds.iter().flat_map(|(_, kind)| {
            let [.., wrong, forgotten] = measured(*kind, 10_000, load, RATE);
            let wrong = if wrong < RATE_LEAST { format!("< {RATE_LEAST:.0e}") } else { format!("{wrong:.1e}") };
            [wrong, if forgotten == 0.0 { "0".to_owned() } else { format!("{:.1} %", forgotten * 100.0) }]
        });
        let name = if load == SKEWED { "skewed".to_owned() } else { thousands(load as f64) };
        table.row([name].into_iter().chain(figures).collect());
    }
    println!("Fresh ids reported as seen, and ids of the last window reported as unseen, for 10,000 users:\n\n{table}");
}

/// Prints the break-even points. With more ids per user, a filter per user is smaller than a shared filter.
fn break_even() {
    let kinds = ["aging, exactly sized", "aging", "aging, uneven days", "cuckoo"];
    let head = kinds.map(|kind| [format!("{kind}: bytes per id"), "break-even, ids per user".to_owned()]).concat();
    let first = ["rate", "filter per user: bytes per user"];
    let mut table = Table::new(&first.into_iter().chain(head.iter().map(String::as_str)).collect::<Vec<_>>());
    for rate in [1e-2, 1e-3, 1e-4] {
        let [each, ..] = measured(Kind::EachHalf, 10_000, 100, rate);
        let [aging, cuckoo] = [Kind::Aging, Kind::Cuckoo].map(|kind| measured(kind, 10_000, 1_000, rate)[0] / 1e3);
        let shared = [exactly_sized(rate), aging, uneven_days(rate), cuckoo];
        let figures = shared.iter().flat_map(|bytes| [format!("{bytes:.2}"), thousands(each / bytes)]);
        table.row([format!("{rate:.0e}"), thousands(each)].into_iter().chain(figures).collect());
    }
    println!("Number of ids per user at which a filter per user, sized for 4,000 ids, takes as much memory as one space:\n\n{table}");
}

/// Bytes per id of an aging filter that is sized for exactly the ids of the window.
fn exactly_sized(rate: f64) -> f64 {
    const IDS: u64 = 10_000_000;
    AgingSizing::new(window(), IDS, rate).bytes(window()) as f64 / IDS as f64
}

/// Maximum bytes per id of an aging filter with `adapt`, when 40 % of each day's ids are in one quarter of the day.
fn uneven_days(rate: f64) -> f64 {
    const IDS: u64 = 1_000_000;
    let sizing = AgingSizing::new(window(), IDS, rate).with_growth(Growth { adapt: true, ..Growth::default() });
    let mut filter = Aging::new(window(), sizing);
    let mut bytes = 0;
    for (slice, tenths) in [1, 2, 4, 3].into_iter().cycle().take(16).enumerate() {
        filter.advance(slice as i64 * SLICE_MS);
        for id in 0..IDS / 10 * tenths {
            filter.check_and_insert(key(slice as u64, id)).expect("enough memory");
        }
        // From the third day on, each day needs the same memory.
        if slice >= 8 {
            bytes = bytes.max(filter.usage().bytes);
        }
    }
    bytes as f64 / IDS as f64
}
