//! One key space for all users, compared with a filter per user, as in docs/per-user.md: memory, false positives, forgotten ids,
//! time.
//!
//! ```sh
//! cargo bench --no-default-features --bench per_user                       # several minutes, 9 GB of memory
//! cargo bench --no-default-features --bench per_user -- --svg FILE         # also writes a picture
//! cargo bench --no-default-features --bench per_user -- --redis HOST:PORT  # also measures RedisBloom, with an empty Redis
//! ```
//!
//! Each user sees their share of a window in each of its four slices, and in a fifth slice before that, so that the shared filter
//! is as full as it gets. Memory is measured in a separate process, as its resident memory. Without `--bench`, the program only
//! checks that the shared space forgets nothing and keeps its rate.
#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes far below 2^52"
)]

#[path = "../worker/picture.rs"]
#[expect(dead_code, reason = "other benchmarks draw bars")]
mod picture;
mod redis;
mod store;
#[path = "../worker/table.rs"]
#[expect(dead_code, reason = "other benchmarks compute medians")]
mod table;

use picture::{Colour, Line};
use rustix::time::{ClockId, clock_gettime};
use std::process::Command;
use std::time::Duration;
use store::{CAPACITY, Kind, LATEST, SLICES, Store, scatter};
use table::{Table, thousands};

const RATE: f64 = 1e-3;
const USERS: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
const IDS: [u64; 6] = [10, 100, 400, 1_000, 2_000, 4_000];
/// Loads with more ids in a window are extrapolated from a tenth of the users.
const IDS_MEASURED: u64 = 100_000_000;
/// Number of candidates that are looked up together.
const CANDIDATES: u64 = 100;
/// First of the ids that nobody has seen.
const FRESH: u64 = 1 << 31;
/// Number of rounds for each time. The minimum counts.
const ROUNDS: u64 = 40;
/// Below this rate, fewer than twelve fresh ids were reported as seen.
const RATE_LEAST: f64 = 3e-6;

/// Number of ids that each user sees in a window.
#[derive(Clone, Copy)]
enum Load {
    Even(u64),
    /// Zipf's law with exponent 1, from 10 to 4,000: half of the users see 10 ids, and one in a hundred sees 500 or more.
    Skewed,
}

impl Load {
    fn ids(self, user: u64, users: u64) -> u64 {
        match self {
            Self::Even(ids) => ids,
            Self::Skewed => (5.0 * users as f64 / (user as f64 + 0.5)).clamp(10.0, CAPACITY as f64) as u64,
        }
    }

    fn total(self, users: u64) -> u64 {
        (0..users).map(|user| self.ids(user, users)).sum()
    }

    /// Name in an argument.
    fn name(self) -> String {
        if let Self::Even(ids) = self { ids.to_string() } else { "skewed".to_owned() }
    }

    fn named(name: &str) -> Self {
        name.parse().map_or(Self::Skewed, Self::Even)
    }
}

/// Measurements of one kind under one load.
struct Cell {
    bytes_per_user: f64,
    /// Nanoseconds per id: inserting it, looking it up alone, and looking it up with other candidates of the user.
    times: [f64; 3],
    false_positives: f64,
    /// Share of the window's ids.
    forgotten: f64,
}

impl Cell {
    /// Measures in a separate process, because earlier memory is not completely returned to the system.
    fn measured(kind: Kind, users: u64, load: Load, rate: f64) -> Self {
        let program = std::env::current_exe().expect("a path");
        let arguments = ["cell", kind.name(), &users.to_string(), &load.name(), &rate.to_string()];
        let output = Command::new(program).args(arguments).output().expect("the process starts");
        let text = String::from_utf8(output.stdout).expect("numbers");
        let numbers: Vec<f64> = text.split_whitespace().map(|number| number.parse().expect("a number")).collect();
        let [bytes_per_user, insert, one, many, false_positives, forgotten] = numbers[..] else { panic!("{arguments:?}: {text}") };
        Self { bytes_per_user, times: [insert, one, many], false_positives, forgotten }
    }

    fn measure(kind: Kind, users: u64, load: Load, rate: f64) -> Self {
        let before = resident();
        let mut store = kind.build(load.total(users), rate);
        let ids = |user| load.ids(user, users);
        // Start at a random point between two rebuilds.
        let first = |user| LATEST + scatter(user) % (CAPACITY - LATEST);
        if kind.has_history() {
            (0..users).for_each(|user| store.see(user, 0..first(user)));
        }
        // Users start a slice at different ids, so that all slices have the same number of ids.
        let start = |user, slice| first(user) + (ids(user) * slice + scatter(user) % SLICES) / SLICES;
        let nth_user = |turn: u64| turn * 7_919 % users;
        let mut insert = f64::MAX;
        for slice in 0..=SLICES {
            let time = timed(|| {
                store.advance(slice);
                for user in (0..users).map(nth_user) {
                    store.see(user, start(user, slice)..start(user, slice + 1));
                }
            });
            insert = insert.min(nanoseconds(time, load.total(users) / SLICES));
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
        Self {
            bytes_per_user: bytes as f64 / users as f64,
            times: [insert, one, many],
            false_positives: wrong,
            forgotten: 1.0 - remembered as f64 / window as f64,
        }
    }
}

/// Looks up fresh ids, user by user. Returns the nanoseconds per id, and the number of ids that were reported as seen.
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

/// CPU time of this thread. Other processes may be running on the same machine.
fn timed(work: impl FnOnce()) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
    let start = now();
    work();
    now().saturating_sub(start)
}

fn nanoseconds(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() * 1e9 / count as f64
}

/// Memory of this process, in bytes, without its program.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has this file");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("the file has this line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let after = |name: &str| arguments.iter().skip_while(|argument| *argument != name).nth(1);
    if let [cell, kind, users, load, rate] = &arguments[..]
        && cell == "cell"
    {
        let cell = Cell::measure(Kind::named(kind), users.parse().expect("users"), Load::named(load), rate.parse().expect("a rate"));
        let [insert, one, many] = cell.times;
        println!("{} {insert} {one} {many} {} {}", cell.bytes_per_user, cell.false_positives, cell.forgotten);
    } else if arguments.iter().any(|argument| argument == "--bench") {
        println!("# A filter per user, or one for all users\n\n{}\n", machine());
        loads();
        quality();
        let picture = border();
        if let Some(file) = after("--svg") {
            std::fs::write(file, picture).expect("the picture can be written");
        }
        if let Some(address) = after("--redis") {
            println!("{}", redis::table(address, RATE, CAPACITY, LATEST, &IDS));
        }
    } else {
        let cell = Cell::measure(Kind::Aging, 1_000, Load::Skewed, RATE);
        assert!(cell.forgotten == 0.0 && cell.false_positives < 1.1 * RATE, "{} {}", cell.forgotten, cell.false_positives);
    }
}

/// The command, the machine, the versions, and the date.
fn machine() -> String {
    let field = |file: &str, name: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let value = text.lines().find_map(|line| Some(line.strip_prefix(name)?.split_once(':')?.1.trim().to_owned()));
        value.unwrap_or_else(|| "?".to_owned())
    };
    let said = |command: &str, arguments: &[&str]| {
        let output = Command::new(command).args(arguments).output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&output).trim().to_owned()
    };
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    format!(
        "`cargo bench --no-default-features --bench per_user -- {}`: {}, {} cores, {}, {}. unseen {}, {}. {}.",
        arguments.join(" "),
        field("/proc/cpuinfo", "model name"),
        std::thread::available_parallelism().map_or(0, usize::from),
        field("/proc/meminfo", "MemTotal"),
        said("uname", &["-sr"]),
        said("git", &["describe", "--always", "--dirty"]),
        said("rustc", &["--version"]),
        said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
    )
}

/// Memory and time, by users and ids.
fn loads() {
    let mut memory = Table::new(&[
        "users",
        "ids per user",
        "filter per user: bytes per user",
        "bytes per id",
        "one space: bytes per user",
        "bytes per id",
        "one space is",
    ]);
    let mut time = Table::new(&[
        "users",
        "ids per user",
        "filter per user: insert, ns",
        "single lookup",
        "100 per lookup",
        "one space: insert, ns",
        "single lookup",
        "100 per lookup",
    ]);
    for users in USERS {
        for load in IDS.map(Load::Even).into_iter().chain([Load::Skewed]) {
            // The memory per user does not depend on the number of users.
            let measured = if load.total(users) > IDS_MEASURED { users / 10 } else { users };
            let measured = if load.total(measured) > IDS_MEASURED { measured / 10 } else { measured };
            let mark = if measured == users { "" } else { "≈ " };
            let [each, shared] = [Kind::EachHalf, Kind::Aging].map(|kind| Cell::measured(kind, measured, load, RATE));
            let ids = load.total(measured) as f64 / measured as f64;
            let name = if let Load::Even(ids) = load { thousands(ids as f64) } else { format!("skewed, {ids:.1}") };
            let ratio = each.bytes_per_user / shared.bytes_per_user;
            memory.row(vec![
                thousands(users as f64),
                name.clone(),
                format!("{mark}{}", thousands(each.bytes_per_user)),
                format!("{mark}{:.2}", each.bytes_per_user / ids),
                format!("{mark}{}", thousands(shared.bytes_per_user)),
                format!("{mark}{:.2}", shared.bytes_per_user / ids),
                if ratio > 1.0 { format!("{ratio:.1} times smaller") } else { format!("{:.1} times larger", 1.0 / ratio) },
            ]);
            if measured == users {
                let times = [each.times, shared.times].into_iter().flatten().map(|time| format!("{time:.0}"));
                time.row([thousands(users as f64), name].into_iter().chain(times).collect());
            }
        }
    }
    println!("Memory at a rate of {RATE:.0e}; ≈ extrapolated from fewer users with the same number of ids each:\n\n{memory}");
    println!("CPU time in nanoseconds per id, one thread, minimum of several rounds:\n\n{time}");
}

/// False positives and forgotten ids, for ten thousand users.
fn quality() {
    let kinds = [Kind::EachHalf, Kind::EachFull, Kind::Aging];
    let mut table = Table::new(&[
        "ids per user",
        "rebuilt half full: false positives",
        "forgotten",
        "rebuilt full: false positives",
        "forgotten",
        "one space: false positives",
        "forgotten",
    ]);
    for load in IDS.map(Load::Even).into_iter().chain([Load::Skewed]) {
        let cells = kinds.map(|kind| Cell::measured(kind, 10_000, load, RATE));
        let figures = cells.iter().flat_map(|cell| {
            let forgotten = if cell.forgotten == 0.0 { "0".to_owned() } else { format!("{:.1} %", cell.forgotten * 100.0) };
            let rate =
                if cell.false_positives < RATE_LEAST { format!("< {RATE_LEAST:.0e}") } else { format!("{:.1e}", cell.false_positives) };
            [rate, forgotten]
        });
        table.row([load.name()].into_iter().chain(figures).collect());
    }
    println!("Fresh ids reported as seen, and ids of the last window reported as unseen, for 10,000 users:\n\n{table}");
}

/// Computes the number of ids per user above which a filter per user is smaller, and draws a picture.
fn border() -> String {
    let mut table = Table::new(&[
        "rate",
        "filter per user: bytes per user",
        "aging, exactly sized: bytes per id",
        "break-even, ids per user",
        "aging: bytes per id",
        "break-even",
        "aging, uneven days: bytes per id",
        "break-even",
        "cuckoo: bytes per id",
        "break-even",
    ]);
    let mut panels = Vec::new();
    for rate in [1e-2, 1e-3, 1e-4] {
        let each = Cell::measured(Kind::EachHalf, 10_000, Load::Even(100), rate).bytes_per_user;
        let [aging, cuckoo] =
            [Kind::Aging, Kind::Cuckoo].map(|kind| Cell::measured(kind, 10_000, Load::Even(1_000), rate).bytes_per_user / 1e3);
        let shared = [store::least(rate), aging, store::uneven_days(rate), cuckoo];
        let figures = shared.iter().flat_map(|bytes| [format!("{bytes:.2}"), thousands(each / bytes)]);
        table.row([format!("{rate:.0e}"), thousands(each)].into_iter().chain(figures).collect());
        let line = |name: &str, colour, bytes: &dyn Fn(f64) -> f64| Line {
            name: name.to_owned(),
            colour,
            points: IDS.iter().map(|&ids| (ids as f64, bytes(ids as f64))).collect(),
        };
        let lines = vec![
            line("each", Colour::B, &|_| each),
            line("aging", Colour::A, &|ids| ids * aging),
            line("cuckoo", Colour::C, &|ids| ids * cuckoo),
        ];
        panels.push((format!("Bytes per user at {rate:.0e}"), lines));
    }
    println!("Number of ids per user at which a filter per user, sized for 4,000 ids, takes as much memory as one space:\n\n{table}");
    let ticks = (&[10.0, 100.0, 1_000.0, 10_000.0][..], &[10.0, 100.0, 1_000.0, 10_000.0, 100_000.0][..]);
    picture::lines(&panels, "ids per user in a window", ticks, thousands)
}
