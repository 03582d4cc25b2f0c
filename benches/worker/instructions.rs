//! Instructions of the worker per record, counted by callgrind. Unlike time, the count does not depend on the load of the machine. It
//! includes neither cache misses nor waiting.

use crate::Options;
use crate::broker::{Broker, Topic};
use crate::contender::{Allocator, Contender, DUPLICATES, Unseen};
use crate::records::{Form, Stream};
use crate::report::publish;
use crate::run::Run;
use crate::table::{Table, thousands};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const RECORDS: usize = 300_000;
const COMMIT: Duration = Duration::from_secs(1);

/// A configuration option. Its cost is the number of instructions per record that it adds to the worker's thread, compared with [`USUAL`].
struct Cost {
    name: &'static str,
    form: Form,
    key: &'static str,
    kind: &'static str,
    lines: &'static str,
}

const USUAL: Cost = Cost { name: "", form: Form::Json, key: r#"{ field = "/id" }"#, kind: "aging", lines: "" };

const SECOND_ENTRY: &str = r#"when = { field = "/seen", equals = true }
[[topics]]
input = "INPUT"
output = "OUTPUT"
space = "second"
key = { field = "/id" }
window = "1h"
filter = { capacity = 1000 }"#;

/// Options to measure. Every condition selects all records, and the fields that `on_change` compares are the same in all records of a key,
/// so all workers emit the same records.
const OPTIONS: &[Cost] = &[
    Cost { name: "when", lines: r#"when = { field = "/seen", equals = true }"#, ..USUAL },
    Cost { name: "a second entry for the input", lines: SECOND_ENTRY, ..USUAL },
    Cost { name: "optional", key: r#"{ field = "/id", optional = true }"#, ..USUAL },
    Cost { name: "normalize = [\"trim\", \"lowercase\"]", key: r#"{ field = "/id", normalize = ["trim", "lowercase"] }"#, ..USUAL },
    Cost { name: "on_duplicate = { topic = ... }", lines: DUPLICATES, ..USUAL },
    Cost { name: "kind = \"exact\"", kind: "exact", ..USUAL },
    Cost { name: "kind = \"exact\", emit = \"on_change\"", kind: "exact", lines: r#"emit = { on_change = { field = "/id" } }"#, ..USUAL },
    Cost { name: "time", form: Form::Timed, lines: r#"time = { field = "/ts" }"#, ..USUAL },
    Cost { name: "then", form: Form::InText, key: r#"{ field = "/body", then = "/id" }"#, ..USUAL },
    Cost { name: "value_encoding = \"base64\"", form: Form::Base64, lines: r#"value_encoding = "base64""#, ..USUAL },
    Cost { name: "value_encoding = \"gzip\"", form: Form::Gzip, lines: r#"value_encoding = "gzip""#, ..USUAL },
];

pub fn measure(options: &Options) {
    let valgrind = Command::new("valgrind").arg("--version").output();
    assert!(valgrind.is_ok_and(|output| output.status.success()), "valgrind is missing: apt-get install valgrind");
    let broker = Broker::start();
    let stream = Stream { partitions: 1, ..Stream::usual(options.load, options.records.unwrap_or(RECORDS), 50) };
    let a_record = |count: u64| count as f64 / stream.records as f64;
    let mut raw = serde_json::Map::new();
    let mut topic = broker.fill(stream);
    let unseen = Unseen::new(options.binary.clone(), COMMIT);
    let (rows, usual) = counted(&broker, &topic, unseen.clone());
    let mut table = Table::new(&["", "instructions per record"]);
    for &(name, count) in rows.iter().chain(&[("the ceiling: all threads of raw librdkafka calls", ceiling(&broker, &topic))]) {
        table.row(vec![name.to_owned(), thousands(a_record(count))]);
        raw.insert(name.to_owned(), a_record(count).into());
    }
    let mut costs = Table::new(&["option", "more instructions of the worker's thread"]);
    for &Cost { name, form, key, kind, lines } in OPTIONS.iter().filter(|option| options.includes(option.name)) {
        if topic.stream.form != form {
            topic = broker.fill(Stream { form, ..stream });
        }
        let unseen = Unseen { key, lines, kind, ..unseen.clone() };
        let more = a_record(counted(&broker, &topic, unseen).1) - a_record(usual);
        costs.row(vec![format!("`{name}`"), thousands(more)]);
        raw.insert(format!("{name}, more"), more.into());
    }
    let page = format!("{stream}; commit 1 s, one worker, counted by callgrind from start to exit.\n\n{table}\n{costs}");
    publish(options, "instructions", &raw, &page, &[]);
}

/// Runs a worker under callgrind. Returns the rows of the table and, separately, the instruction count of the worker's thread.
fn counted(broker: &Broker, topic: &Topic, unseen: Unseen) -> (Vec<(&'static str, u64)>, u64) {
    let dir = TempDir::new().expect("a directory");
    let threads = by_thread(broker, topic, &dir, |counts| Contender::Unseen(Unseen { callgrind: Some(counts), ..unseen }));
    let (worker, counts) = threads.first().expect("callgrind writes its counts");
    let all = total(&threads);
    let mut rows = parts(*worker, &inclusive(counts));
    rows.extend([("the worker's thread, total", *worker), ("all threads, including librdkafka's", all)]);
    (rows, *worker)
}

/// Counts the instructions of a process that only makes librdkafka's calls and forwards every second record.
fn ceiling(broker: &Broker, topic: &Topic) -> u64 {
    let dir = TempDir::new().expect("a directory");
    let pass_on = |counts| Contender::PassOn { allocator: Allocator::Jemalloc, every: 2, commit: COMMIT, callgrind: Some(counts) };
    total(&by_thread(broker, topic, &dir, pass_on))
}

/// Runs a contender under callgrind, which writes its counts to `dir`. Returns the same as [`threads`].
fn by_thread(broker: &Broker, topic: &Topic, dir: &TempDir, contender: impl FnOnce(PathBuf) -> Contender) -> Vec<(u64, PathBuf)> {
    let contender = contender(dir.path().join("counts"));
    let mut run = Run::start(broker, topic, &contender);
    run.watch();
    run.count();
    threads(dir.path())
}

fn total(threads: &[(u64, PathBuf)]) -> u64 {
    threads.iter().map(|(total, _)| total).sum()
}

/// Splits the instruction count of the worker's thread into parts that do not overlap. The last part counts everything that is in no other
/// part, such as functions that the compiler has inlined into the main loop.
fn parts(worker: u64, inclusive: &HashMap<String, u64>) -> Vec<(&'static str, u64)> {
    let of = |name: &str| inclusive.get(name).copied().unwrap_or(0);
    let filter = |call| of(&format!("<unseen::filter::aging::Aging as unseen::filter::Filter>::{call}"));
    let bitmap =
        ["", "_with_avx2"].map(|how| of(&format!("unseen::format::json::structural::StructuralBitmap::index{how}"))).into_iter().max();
    let json = of("<unseen::format::json::JsonExtractor as unseen::format::Extract>::find");
    let (key, bitmap) = (of("unseen::worker::key_reader::KeyReader::take"), bitmap.unwrap_or(0));
    let mut parts = vec![
        ("key: JSON compared with earlier texts", json.saturating_sub(bitmap)),
        ("key: structural bitmap", bitmap),
        ("key: encoding and hash", key.saturating_sub(json)),
        ("`rd_kafka_producev`, for every second record", of("rd_kafka_producev")),
        ("headers, for every second record", of("rd_kafka_message_headers")),
        ("taking messages from librdkafka", of("rd_kafka_consume_batch_queue")),
        ("returning messages to librdkafka", of("rd_kafka_message_destroy")),
        ("filter, including prefetching", filter("prefetch") + filter("check_and_insert")),
    ];
    parts.retain(|&(_, count)| count > 0);
    let known: u64 = parts.iter().map(|(_, count)| count).sum();
    parts.push(("rest: window, watched keys, verdicts, routes, pending changes, commits, a checkpoint", worker.saturating_sub(known)));
    parts
}

/// Returns the instruction count of each function, including its callees.
fn inclusive(counts: &Path) -> HashMap<String, u64> {
    let output = Command::new("callgrind_annotate").args(["--auto=no", "--threshold=100", "--inclusive=yes"]).arg(counts).output();
    let text = String::from_utf8(output.expect("callgrind_annotate comes with valgrind").stdout).expect("names");
    let mut all = HashMap::new();
    // Example: `1,132,138,610 (99.33%)  FILE:FUNCTION [OBJECT]`.
    for line in text.lines() {
        let Some((count, place)) = line.trim_start().split_once(" (") else { continue };
        let Some((_, function)) = place.split_once(')').and_then(|(_, place)| place.split_once(':')) else { continue };
        let Ok(count) = count.replace(',', "").parse::<u64>() else { continue };
        let function = function.split(" [").next().unwrap_or(function).to_owned();
        // A function has additional lines for code that was inlined from other files. The largest count is the function's total.
        all.entry(function).and_modify(|most: &mut u64| *most = count.max(*most)).or_insert(count);
    }
    all
}

/// Returns the instruction count of each thread and the callgrind output file that reports the count. The thread with the most instructions
/// comes first.
fn threads(dir: &Path) -> Vec<(u64, PathBuf)> {
    let total = |file: &Path| -> Option<u64> {
        let text = fs::read_to_string(file).ok()?;
        text.lines().rev().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
    };
    let files = fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.path());
    let mut threads: Vec<_> = files.filter_map(|file| Some((total(&file)?, file))).collect();
    threads.sort_unstable_by(|a, b| b.cmp(a));
    threads
}
