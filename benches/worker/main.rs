//! The cost of the worker, compared with the cost of Kafka and of other systems. `scripts/bench` documents how to run it.
//!
//! Each contender is a separate process and is measured from outside: the growth of its output, CPU time, memory, and disk space. A
//! contender that only reads has no output, so it reports the number of records that it has read. Rounds are interleaved, so other load on
//! the machine affects all contenders alike. Tables show the median of the rounds. After each run, the output is read and counted.

#![allow(clippy::cast_precision_loss, reason = "counts and times here stay far below 2^52")]

mod against;
mod broker;
mod contender;
mod count;
mod input;
mod instructions;
mod latency;
mod machine;
mod paced;
mod picture;
mod process;
mod raw;
mod records;
mod report;
mod run;
mod start;
mod table;
mod throughput;
mod watch;

use clap::Parser;
use records::Load;
use std::path::PathBuf;

/// The worker's allocator. Kafka's own cost must be measured with the same allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measure unseen on a real Kafka. By default, measures throughput, compared with Kafka itself and with other systems.
#[derive(Parser)]
#[command(name = "scripts/bench")]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
    /// Set by `cargo bench`
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

/// Options of all commands.
#[derive(clap::Args)]
struct Options {
    /// Number of records, such as 500k or 3M. Each command has its own default.
    #[arg(long, global = true, value_parser = count)]
    records: Option<usize>,
    /// Input stream. `near` favors sorted stores, and its results are written only with --out.
    #[arg(long, global = true, value_enum, default_value_t = Load::Far)]
    load: Load,
    /// Number of repetitions. The median is shown.
    #[arg(long, global = true, default_value_t = 3)]
    rounds: usize,
    /// Measure only contenders whose name starts with this prefix. Can be given several times. Results are then written only with
    /// --out.
    #[arg(long, global = true)]
    only: Vec<String>,
    /// Directory for the results. Defaults to docs/benchmarks.
    #[arg(long, global = true)]
    out: Option<PathBuf>,
    /// Worker to measure. Defaults to the worker built with this benchmark.
    #[arg(long, global = true, default_value = env!("CARGO_BIN_EXE_unseen"), hide = true)]
    binary: PathBuf,
}

impl Options {
    fn includes(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only))
    }
}

#[derive(clap::Subcommand)]
enum Command {
    /// Measure the time from a record's timestamp until a consumer receives the record, at three loads and three commit intervals, and the
    /// effect of checkpoints.
    Latency(latency::Arguments),
    /// Measure the time from the start of a worker with a warm state to its first output.
    Start,
    /// Count the instructions of the worker per record with valgrind (takes a few minutes).
    Instructions,
    /// Compare with another worker, in pairs and in both orders.
    #[command(hide = true)]
    Against(against::Arguments),
    #[command(hide = true)]
    Raw(raw::Arguments),
}

fn count(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    digits.parse().ok().and_then(|number: usize| number.checked_mul(unit)).ok_or_else(|| "expected a number such as 500k or 3M".to_owned())
}

fn main() {
    let Arguments { command, options, .. } = Arguments::parse();
    match command {
        None => throughput::measure(&options),
        Some(Command::Latency(arguments)) => latency::measure(&options, &arguments),
        Some(Command::Instructions) => instructions::measure(&options),
        Some(Command::Start) => start::measure(&options),
        Some(Command::Against(arguments)) => against::measure(&options, &arguments),
        Some(Command::Raw(arguments)) => raw::work(&arguments),
    }
}
