//! `unseen dlq redrive`: writes dead letters back to the topics that they came from.

use super::interrupt::Interrupt;
use super::table::table;
use super::{capture, topic};
use crate::broker::topics;
use crate::kafka::{self, KafkaBroker};
use crate::record::Verdict;
use crate::redrive::{self, Options, Redriven, Waiting};
use crate::route::dead_letter::{reason, verdicts};
use crate::stats::Stats;
use anyhow::{bail, ensure};
use clap::builder::PossibleValuesParser;
use indicatif::{HumanCount, ProgressBar};
use serde_json::json;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  unseen dlq redrive -c unseen.toml --dry-run
  unseen dlq redrive -c unseen.toml --reason malformed,missing_key
  unseen dlq redrive -c unseen.toml --topic news.events --reason oversize

JSON output (--json): one object.
  redriven    number of dead letters
  kinds       their number (redriven) by input, reason, and topic written to (target)
  left_out    inputs and reasons of dead letters that were not selected, now or earlier
  skipped     number of records that are not dead letters of an input of the configuration
  dry_run     true if nothing was written";

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Write dead letters back to their inputs, each of them once
    ///
    /// Fix the cause first: a record that fails again becomes a new dead letter, which the next redrive writes back again.
    ///
    /// Dead letters with the reasons `oversize`, `refused`, and `late` go to the output, and only if --reason selects them: the worker
    /// would not emit them if it read them again, and the output rejects the first two again unless its limits have changed. A later run
    /// can select what this one leaves out.
    Redrive(RedriveArgs),
}

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
struct RedriveArgs {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// Input topic whose dead letters to redrive [default: all inputs]. Repeat the option to select several
    #[arg(short, long, value_name = "INPUT")]
    topic: Vec<String>,
    /// Reasons of the dead letters to redrive, separated by commas [default: all except oversize, refused, and late]
    #[arg(long, value_name = "REASON", value_delimiter = ',', value_parser = PossibleValuesParser::new(verdicts().map(reason)))]
    reason: Vec<String>,
    /// Maximum number of dead letters to redrive
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    write: super::WriteArgs,
}

/// Runs a command for dead letters.
///
/// # Errors
/// Fails if the configuration is invalid, the brokers fail, or a signal interrupts the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Command::Redrive(args) = &args.command;
    let config = args.config.load()?;
    args.config.check_properties(&config)?;
    let interrupt = Interrupt::listen()?;
    // Otherwise, dead letters of topics that match a pattern would be skipped.
    let broker = KafkaBroker::new(Arc::new(Stats::new(&config)));
    let config = topics::existing(&broker, &config, &|| interrupt.received())?;
    for input in &args.topic {
        let topic = topic::named(&config, input, "--topic")?;
        let name = crate::route::Destination::DeadLetters.name(topic);
        ensure!(name.is_some(), "--topic: {input:?} has no dead-letter topic; set on_invalid = {{ topic = \"...\" }}");
    }
    let options = Options {
        inputs: args.topic.clone(),
        verdicts: verdicts().filter(|verdict| is_named(args, *verdict)).collect(),
        limit: args.limit.unwrap_or(u64::MAX),
        dry_run: args.write.dry_run,
    };
    let shows = !args.write.quiet && io::stderr().is_terminal();
    let bar = if shows { ProgressBar::new(0).with_style(capture::style()) } else { ProgressBar::hidden() };
    let waiting = Waiting { stop: &|| interrupt.received(), report: &|problem| bar.suspend(|| eprintln!("{problem}")) };
    let progress = |read, total| {
        bar.set_length(total);
        bar.set_position(read);
    };
    let result = redrive::redrive(&config, &options, &waiting, &progress);
    bar.finish_and_clear();
    let redriven = match result {
        Err(redrive::Error::Kafka(kafka::Error::Stopped)) => bail!("interrupted; run the command again to continue"),
        result => result?,
    };
    super::print(&if args.write.json { json(args, &redriven) } else { text(args, &redriven) })?;
    ensure!(!redriven.is_interrupted, "interrupted; run the command again to continue");
    Ok(())
}

fn is_named(args: &RedriveArgs, verdict: Verdict) -> bool {
    args.reason.iter().any(|name| name == reason(verdict))
}

fn json(args: &RedriveArgs, redriven: &Redriven) -> String {
    let kinds = redriven.counts.iter();
    let kinds =
        kinds.map(|((input, reason, target), count)| json!({ "input": input, "reason": reason, "target": target, "redriven": count }));
    let left_out = redriven.left_out.iter().filter_map(|kind| kind.split_once('/'));
    let left_out = left_out.map(|(input, reason)| json!({ "input": input, "reason": reason }));
    let report = json!({
        "redriven": redriven.count(), "kinds": kinds.collect::<Vec<_>>(), "left_out": left_out.collect::<Vec<_>>(),
        "skipped": redriven.skipped, "dry_run": args.write.dry_run,
    });
    format!("{report}\n")
}

fn text(args: &RedriveArgs, redriven: &Redriven) -> String {
    let count = redriven.count();
    let letters = if count == 1 { "dead letter" } else { "dead letters" };
    let did = if args.write.dry_run { "would redrive" } else { "redrove" };
    let rows = redriven.counts.iter();
    let rows = rows.map(|((input, reason, target), count)| {
        [format!("  {input}"), (*reason).to_owned(), format!("to {target}"), HumanCount(*count).to_string()]
    });
    let mut lines = vec![format!("{did} {} {letters}\n", HumanCount(count)), table(&rows.collect::<Vec<_>>())];
    if !redriven.left_out.is_empty() {
        let left_out = redriven.left_out.iter().map(|kind| kind.replace('/', " ")).collect::<Vec<_>>().join(", ");
        lines.push(format!("left out; select them with --reason and --topic: {left_out}\n"));
    }
    if redriven.skipped > 0 {
        let count = HumanCount(redriven.skipped);
        lines.push(format!("skipped {count} records whose headers do not name an input of this configuration and a reason\n"));
    }
    lines.concat()
}
