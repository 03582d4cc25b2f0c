//! `unseen dlq redrive`: writes dead letters back to the inputs that they came from, or to the outputs if the worker would not emit them
//! from the input.

use super::interrupt::Interrupt;
use super::{capture, topic};
use crate::broker::topics;
use crate::kafka::{self, KafkaBroker};
use crate::plan::text::columns;
use crate::record::Verdict;
use crate::redrive::{self, Options, Redriven, Rejected, Waiting};
use crate::route::dead_letter::{reason, verdicts};
use crate::stats::Stats;
use anyhow::{bail, ensure};
use clap::builder::PossibleValuesParser;
use indicatif::{HumanCount, ProgressBar};
use serde_json::json;
use std::collections::BTreeSet;
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
  unknown     topics and reasons of dead letters that are left out, because this configuration or version does not know them
  rejected    dead letters that the topic they are written to (target) rejects, with the error. Later runs try them again
  unusable    topics that were left out, with the error
  skipped     number of records that are not dead letters
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
    /// Dead letters with the reasons `oversize`, `refused`, and `late` go to the output, and only if --reason selects them. If they went to
    /// the input, the worker would not emit them. The output rejects `oversize` and `refused` records again, unless its limits have
    /// changed. A later run can select dead letters that this run leaves out.
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

pub fn run(args: &Args) -> anyhow::Result<()> {
    let Command::Redrive(args) = &args.command;
    let config = args.config.load()?;
    args.config.check_properties(&config)?;
    let interrupt = Interrupt::listen()?;
    let broker = KafkaBroker::new(Arc::new(Stats::new(&config)));
    let (config, left_out) = topics::existing(&broker, &config, &|| interrupt.received())?;
    for input in &args.topic {
        let mut rules = config.rules(topic::input(&config, Some(input))?);
        let has_name = rules.any(|(_, topic)| crate::route::Destination::DeadLetters.name(topic).is_some());
        ensure!(has_name, "--topic: {input:?} has no dead-letter topic; set on_invalid = {{ topic = \"...\" }}");
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
    let mut redriven = match result {
        Err(redrive::Error::Kafka(kafka::Error::Stopped)) => bail!("interrupted; run the command again to continue"),
        result => result?,
    };
    for left_out in left_out.into_iter().filter(|left_out| args.topic.is_empty() || args.topic.contains(&left_out.topic)) {
        eprintln!("{left_out}");
        redriven.unusable.insert(left_out.topic, left_out.reason);
    }
    super::print(&if args.write.json { json(args, &redriven) } else { text(args, &redriven) })?;
    ensure!(!redriven.is_interrupted, "interrupted; run the command again to continue");
    let (rejected, unusable) = (redriven.rejected.len(), redriven.unusable.len());
    ensure!(
        rejected + unusable == 0,
        "some dead letters were not redriven (rejected dead letters: {rejected}, topics left out: {unusable}); fix the causes shown above and run the command again"
    );
    Ok(())
}

fn is_named(args: &RedriveArgs, verdict: Verdict) -> bool {
    args.reason.iter().any(|name| name == reason(verdict))
}

fn json(args: &RedriveArgs, redriven: &Redriven) -> String {
    let kinds = redriven.counts.iter();
    let kinds =
        kinds.map(|((input, reason, target), count)| json!({ "input": input, "reason": reason, "target": target, "redriven": count }));
    let split = |kinds: &BTreeSet<String>, name: &str| -> serde_json::Value {
        kinds.iter().filter_map(|kind| kind.split_once('/')).map(|(topic, reason)| json!({ name: topic, "reason": reason })).collect()
    };
    let rejected = redriven.rejected.iter().map(|Rejected { topic, partition, offset, target, error }| {
        json!({ "topic": topic, "partition": partition, "offset": offset, "target": target, "error": error })
    });
    let unusable = redriven.unusable.iter().map(|(topic, error)| json!({ "topic": topic, "error": error }));
    let report = json!({
        "redriven": redriven.count(), "kinds": kinds.collect::<Vec<_>>(),
        "left_out": split(&redriven.left_out, "input"), "unknown": split(&redriven.unknown, "topic"),
        "rejected": rejected.collect::<Vec<_>>(), "unusable": unusable.collect::<Vec<_>>(),
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
    let mut lines = vec![format!("{did} {} {letters}\n", HumanCount(count)), columns(&rows.collect::<Vec<_>>(), 0..0)];
    let list = |kinds: &BTreeSet<String>| kinds.iter().map(|kind| kind.replace('/', " ")).collect::<Vec<_>>().join(", ");
    if !redriven.left_out.is_empty() {
        lines.push(format!("left out because they were not selected (see --reason and --topic): {}\n", list(&redriven.left_out)));
    }
    if !redriven.unknown.is_empty() {
        lines.push(format!(
            "left out because this configuration or version does not know their topic or reason: {}\n",
            list(&redriven.unknown)
        ));
    }
    if redriven.skipped > 0 {
        let count = HumanCount(redriven.skipped);
        lines.push(format!("skipped {count} records that are not dead letters\n"));
    }
    lines.concat()
}
