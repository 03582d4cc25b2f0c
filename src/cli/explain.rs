//! `unseen explain`: what became of a record, and why.

use super::interrupt::Interrupt;
use super::{replay, schemas, topic};
use crate::config::{Config, Topic};
use crate::explain::{self, Captured, Cause, Explanation, Explanations, VerdictName, Waiting};
use crate::kafka;
use crate::record::Offset;
use crate::replay::format_rfc3339;
use anyhow::ensure;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Options of `unseen explain`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// The input topic of the record.
    #[arg(value_name = "TOPIC", required_unless_present = "key", conflicts_with = "key")]
    input: Option<String>,
    /// Its partition.
    #[arg(value_name = "PARTITION", requires = "input", required_unless_present = "key", value_parser = clap::value_parser!(i32).range(0..))]
    number: Option<i32>,
    /// Its offset.
    #[arg(value_name = "OFFSET", requires = "number", required_unless_present = "key", value_parser = clap::value_parser!(i64).range(0..))]
    offset: Option<Offset>,
    /// Say what is known of this key, in place of a record. One for each part of the key, in order. A field is a JSON value, or
    /// a text without its quotes; of `1`, both the number and the text are asked for.
    #[arg(long, value_name = "PART")]
    key: Vec<String>,
    /// The topic whose key it is; needed if the configuration has several.
    #[arg(long, value_name = "INPUT", requires = "key")]
    topic: Option<String>,
    /// Ask for the key in this partition only. Without it, in all that may have it.
    #[arg(long, value_name = "N", requires = "key", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Replay this file of `unseen capture`, and ask no broker.
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    capture: Option<PathBuf>,
    /// With --capture, how many partitions the topic has. Without it, 1 is taken, and what a filter would say is not certain.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), requires = "capture")]
    partitions: Option<u32>,
    /// With --capture, when the stream was read, in RFC 3339; without it, when the file was last written. As in `unseen replay`.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_rfc3339_weak, requires = "capture")]
    read_at: Option<SystemTime>,
    /// Print everything that is known, as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints what became of a record, or what is known of a key.
///
/// # Errors
/// When the configuration, the brokers or the capture are at fault, or the record is not there.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let topic = match &args.input {
        Some(name) => topic::named(&config, name, "TOPIC")?,
        None => topic::choose(&config, args.topic.as_deref())?,
    };
    let explanations = match (&args.capture, args.number, args.offset) {
        (Some(file), Some(partition), Some(offset)) => vec![recorded(args, &config, topic, file, (partition, offset))?],
        (_, partition, offset) => {
            args.config.check_properties(&config)?;
            live(args, &config, topic, partition.zip(offset))?
        }
    };
    if args.json {
        return super::print(&format!("{}\n", serde_json::to_string_pretty(&Explanations { explanations })?));
    }
    super::print(&explanations.iter().map(text).collect::<Vec<_>>().join("\n"))
}

fn live(args: &Args, config: &Config, topic: &Topic, record: Option<(i32, Offset)>) -> anyhow::Result<Vec<Explanation>> {
    let interrupt = Interrupt::listen()?;
    let waiting = Waiting { stop: &|| interrupt.came(), report: &|trouble| eprintln!("{trouble}") };
    let explained = if let Some((partition, offset)) = record {
        let schemas = schemas::patient(config)?;
        explain::record(config, &*schemas, topic, partition, offset, waiting).map(|explanation| vec![explanation])
    } else {
        let texts: Vec<_> = args.key.iter().map(String::as_bytes).collect();
        explain::key(config, topic, &texts, args.partition, waiting)
    };
    let is_interrupted = matches!(explained, Err(explain::Error::Kafka(kafka::Error::Stopped)));
    ensure!(!is_interrupted, "interrupted before the changelog was read; ask again");
    Ok(explained?)
}

fn recorded(args: &Args, config: &Config, topic: &Topic, file: &Path, record: (i32, Offset)) -> anyhow::Result<Explanation> {
    let written = || file.metadata().and_then(|data| data.modified()).ok();
    let read_at = args.read_at.or_else(written).unwrap_or_else(SystemTime::now);
    let captured = Captured {
        open: &|| Ok(Box::new(BufReader::with_capacity(1 << 16, File::open(file)?)) as Box<dyn BufRead>),
        name: &file.display().to_string(),
        partitions: args.partitions,
        max_timestamp: &|| replay::max_timestamp_ms(read_at, topic.max_future),
    };
    Ok(explain::recorded(config, topic, &schemas::patient(config)?, record, &captured)?)
}

/// An explanation for people.
fn text(explanation: &Explanation) -> String {
    let mut text = String::new();
    let mut row = |name: &str, what: &str| _ = writeln!(text, "{name:<10} {what}");
    if let Some(record) = &explanation.record {
        let time = record.time_ms.map_or_else(|| "without a time".to_owned(), |time| format!("of {}", format_rfc3339(time)));
        row("record", &format!("{}[{}] offset {}, {time}", record.topic, record.partition, record.offset));
    }
    let parts: Vec<_> = explanation.key.iter().map(|part| format!("{} = {}", part.part, part.value)).collect();
    if !parts.is_empty() {
        row("key", &parts.join(", "));
    }
    match (&explanation.record, explanation.partition) {
        (None, Some(partition)) => row("partition", &format!("{}[{partition}]", explanation.space)),
        (Some(record), Some(partition)) if record.partition != partition => {
            row("judged in", &format!("{}[{partition}]", explanation.space));
        }
        _ => {}
    }
    if let Some(verdict) = explanation.verdict {
        let certain = if explanation.certain { "" } else { ", but not for certain" };
        let verdict = word(verdict);
        row(
            "verdict",
            &explanation.cause.map_or_else(|| format!("{verdict}{certain}"), |cause| format!("{verdict}: {}{certain}", why(cause))),
        );
    }
    let label = if explanation.record.is_some() { "because" } else { "known" };
    explanation.sentences.iter().enumerate().for_each(|(at, sentence)| row(if at == 0 { label } else { "" }, sentence));
    explanation.limits.iter().enumerate().for_each(|(at, limit)| row(if at == 0 { "not known" } else { "" }, limit));
    text
}

const fn word(verdict: VerdictName) -> &'static str {
    match verdict {
        VerdictName::Unseen => "unseen",
        VerdictName::Duplicate => "duplicate",
        VerdictName::Late => "late",
        VerdictName::Retracted => "retracted",
        VerdictName::Tombstone => "tombstone",
        VerdictName::Invalid => "invalid",
        VerdictName::Pending => "pending",
        VerdictName::Unknown => "unknown",
    }
}

const fn why(cause: Cause) -> &'static str {
    match cause {
        Cause::First => "the first with its key",
        Cause::Expired => "the window of the one before was over",
        Cause::AfterRetraction => "its key was retracted before",
        Cause::Forgotten => "its key was forgotten too early",
        Cause::Repeat => "a repeat",
        Cause::FalsePositive => "a false positive",
        Cause::Unknown => "why is not known",
    }
}
