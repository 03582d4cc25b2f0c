//! What the worker costs beside what Kafka costs, and beside what others cost: `scripts/bench` says how to run it.
//!
//! Each thing that is measured is a process of its own, and is watched from outside: how its output grows, what
//! processor time, memory and disk it takes. So all are measured alike, and none with a counter of its own. Rounds
//! are interleaved, so that whatever else the machine does strikes all alike; of the rounds the median is shown, and
//! what came out is read and counted after each.

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

/// The worker's, for Kafka's own cost to be measured under the same.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures unseen on a real Kafka: by default throughput, beside what Kafka itself costs and what others cost.
#[derive(Parser)]
#[command(name = "scripts/bench")]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
    /// Given by `cargo bench`.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

/// What each command understands.
#[derive(clap::Args)]
struct Options {
    /// How many records, such as 500k or 3M; each command has its own default.
    #[arg(long, global = true, value_parser = count)]
    records: Option<usize>,
    /// What is read; near is kinder to sorted stores, and its results are written only with --out.
    #[arg(long, global = true, value_enum, default_value_t = Load::Far)]
    load: Load,
    /// How often everything is repeated; the median is shown.
    #[arg(long, global = true, default_value_t = 3)]
    rounds: usize,
    /// Only what has a name that begins so; may be given again, for others. Results are then written only with --out.
    #[arg(long, global = true)]
    only: Vec<String>,
    /// Where results are written; docs/benchmarks by default.
    #[arg(long, global = true)]
    out: Option<PathBuf>,
    /// The worker to measure; the one that was built with this by default.
    #[arg(long, global = true, default_value = env!("CARGO_BIN_EXE_unseen"), hide = true)]
    binary: PathBuf,
}

impl Options {
    /// Whether something of this name is asked for.
    fn includes(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only))
    }
}

#[derive(clap::Subcommand)]
enum Command {
    /// From a record's time to its being visible, at three loads and three commit intervals, and what checkpoints do to it.
    Latency(latency::Arguments),
    /// From the start of a worker with a warm state to its first output.
    Start,
    /// Instructions that the worker takes for a record, counted by valgrind; a few minutes.
    Instructions,
    /// Beside another worker, in pairs and both orders.
    #[command(hide = true)]
    Against(against::Arguments),
    #[command(hide = true)]
    Raw(raw::Arguments),
}

/// `500k`, `3M`, or a plain number.
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
