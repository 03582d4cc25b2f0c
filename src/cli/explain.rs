//! `unseen explain`: shows the verdict on a record or the state of a key.

use super::interrupt::Interrupt;
use super::{replay, schemas, topic};
use crate::config::Config;
use crate::explain::{self, Captured, Cause, Explanation, Explanations, VerdictName, Waiting};
use crate::kafka;
use crate::record::Offset;
use crate::replay::format_rfc3339;
use anyhow::{anyhow, ensure};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const EXAMPLES: &str = "\
Examples:
  unseen explain -c unseen.toml news.events 3 81234     # the record at offset 81234 of partition 3
  unseen explain -c unseen.toml --key n-4711            # the state of a key";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// Input topic of the record
    #[arg(value_name = "TOPIC", required_unless_present = "key", conflicts_with = "key")]
    input: Option<String>,
    /// Partition of the record
    #[arg(value_name = "PARTITION", requires = "input", required_unless_present = "key", value_parser = clap::value_parser!(i32).range(0..))]
    number: Option<i32>,
    /// Offset of the record
    #[arg(value_name = "OFFSET", requires = "number", required_unless_present = "key", value_parser = clap::value_parser!(i64).range(0..))]
    offset: Option<Offset>,
    /// Part of the key to look up, instead of a record. Repeat the option for each part of the key, in order
    ///
    /// A field is a JSON value, or a string without quotes. `1` looks up both the number and the string.
    #[arg(long, value_name = "PART")]
    key: Vec<String>,
    /// Input topic, or an entry's `space` if several entries read the topic; optional if there is only one choice
    #[arg(short, long, value_name = "INPUT", requires = "key")]
    topic: Option<String>,
    /// Partition to look up the key in [default: all partitions that can contain the key]
    #[arg(short, long, value_name = "N", requires = "key", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Replay a file from `unseen capture` instead of reading from the brokers
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    capture: Option<PathBuf>,
    /// Number of partitions of the topic, for --capture. If omitted, the filter is sized for 1 partition, and the explanation is
    /// uncertain unless the filter is exact
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), requires = "capture")]
    partitions: Option<u32>,
    /// With --capture, time when the stream was read, in RFC 3339 [default: modification time of the file]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_rfc3339_weak, requires = "capture")]
    read_at: Option<SystemTime>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let input = args.input.as_deref();
    let config = match input {
        Some(input) => args.config.load_with(Some(input))?,
        None => topic::expand_rule(&args.config.load()?, args.topic.as_deref())?,
    };
    if let Some(input) = input {
        config.topic(input).map_err(|message| anyhow!("TOPIC: {message}"))?;
    }
    let explanations = match (&args.capture, input, args.number.zip(args.offset)) {
        (Some(file), Some(input), Some(record)) => vec![recorded(args, &config, input, file, record)?],
        (_, input, record) => {
            args.config.check_properties(&config)?;
            live(args, &config, input.zip(record))?
        }
    };
    if args.json {
        return super::print(&format!("{}\n", serde_json::to_string_pretty(&Explanations { explanations })?));
    }
    super::print(&explanations.iter().map(text).collect::<Vec<_>>().join("\n"))
}

fn live(args: &Args, config: &Config, record: Option<(&str, (i32, Offset))>) -> anyhow::Result<Vec<Explanation>> {
    let interrupt = Interrupt::listen()?;
    let waiting = Waiting { stop: &|| interrupt.received(), report: &|problem| eprintln!("{problem}") };
    let explained = if let Some((input, (partition, offset))) = record {
        let schemas = schemas::blocking(config)?;
        explain::record(config, &*schemas, input, partition, offset, waiting).map(|explanation| vec![explanation])
    } else {
        let topic = topic::choose(config, args.topic.as_deref())?;
        let texts: Vec<_> = args.key.iter().map(String::as_bytes).collect();
        explain::key(config, topic, &texts, args.partition, waiting)
    };
    let is_interrupted = matches!(explained, Err(explain::Error::Kafka(kafka::Error::Stopped)));
    ensure!(!is_interrupted, "interrupted before the changelog was read; run the command again");
    Ok(explained?)
}

fn recorded(args: &Args, config: &Config, input: &str, file: &Path, record: (i32, Offset)) -> anyhow::Result<Explanation> {
    let max_future = config.rules(input).map(|(_, topic)| topic.max_future).next().unwrap_or_default();
    let written = || file.metadata().and_then(|data| data.modified()).ok();
    let read_at = args.read_at.or_else(written).unwrap_or_else(SystemTime::now);
    let captured = Captured {
        open: &|| Ok(Box::new(BufReader::with_capacity(1 << 16, File::open(file)?)) as Box<dyn BufRead>),
        name: &file.display().to_string(),
        partitions: args.partitions,
        max_timestamp: &|| replay::max_timestamp_ms(read_at, max_future),
    };
    Ok(explain::recorded(config, input, &schemas::blocking(config)?, record, &captured)?)
}

fn text(explanation: &Explanation) -> String {
    let mut text = String::new();
    let mut row = |name: &str, what: &str| _ = writeln!(text, "{name:<12} {what}");
    if let Some(record) = &explanation.record {
        let time = record.time_ms.map_or_else(|| "without a timestamp".to_owned(), |time| format!("timestamp {}", format_rfc3339(time)));
        row("record", &format!("{}[{}] offset {}, {time}", record.topic, record.partition, record.offset));
    }
    let parts: Vec<_> = explanation.key.iter().map(|part| format!("{} = {}", part.part, part.value)).collect();
    if !parts.is_empty() {
        row("key", &parts.join(", "));
    }
    match (&explanation.record, explanation.partition) {
        (None, Some(partition)) => row("partition", &format!("{}[{partition}]", explanation.space)),
        (Some(record), Some(partition)) if record.partition != partition => {
            row("evaluated in", &format!("{}[{partition}]", explanation.space));
        }
        _ => {}
    }
    if let Some(verdict) = explanation.verdict {
        let certain = if explanation.certain { "" } else { " (uncertain)" };
        let verdict = word(verdict);
        row(
            "verdict",
            &explanation.cause.map_or_else(|| format!("{verdict}{certain}"), |cause| format!("{verdict}: {}{certain}", why(cause))),
        );
    }
    let label = if explanation.record.is_some() { "reason" } else { "state" };
    explanation.sentences.iter().enumerate().for_each(|(at, sentence)| row(if at == 0 { label } else { "" }, sentence));
    explanation.limits.iter().enumerate().for_each(|(at, limit)| row(if at == 0 { "unknown" } else { "" }, limit));
    text
}

const fn word(verdict: VerdictName) -> &'static str {
    match verdict {
        VerdictName::Unseen => "unseen",
        VerdictName::Duplicate => "duplicate",
        VerdictName::Late => "late",
        VerdictName::Retracted => "retracted",
        VerdictName::Tombstone => "tombstone",
        VerdictName::Passed => "passed",
        VerdictName::Invalid => "invalid",
        VerdictName::Pending => "pending",
        VerdictName::Unknown => "unknown",
    }
}

const fn why(cause: Cause) -> &'static str {
    match cause {
        Cause::First => "first record with this key",
        Cause::Expired => "the window of the previous record had ended",
        Cause::AfterRetraction => "the key was retracted before",
        Cause::Forgotten => "the filter forgot the key too early",
        Cause::Changed => "changed content",
        Cause::Repeat => "repeats an earlier record",
        Cause::FalsePositive => "false positive of the filter",
        Cause::Unknown => "unknown reason",
    }
}
